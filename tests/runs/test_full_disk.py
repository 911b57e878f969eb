"""Disks that are full or cannot be written: one line at once, and nothing before is lost."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from experiments.benchmarks import interrupted_runs
from graphfl_jax.configs import fl60
from graphfl_jax.runs.disk import why_not_writable
from graphfl_jax.runs.folder import RunFolder
from tests.commands import ENVIRONMENT, ROOT, launched_small, limited

# Writes checkpoints on small file systems of its own, until one does not fit. Then there is
# room again, and the same one is written. Prints a line of JSON for each file system.
WRITER = """
import json, subprocess, sys, warnings
from pathlib import Path
import jax, numpy as np
from graphfl_jax.configs import fl60
from graphfl_jax.core import State
from graphfl_jax.runs import checkpoint
from graphfl_jax.runs.folder import RunFolder

warnings.simplefilter("error")  # a checkpoint that is skipped
FOLDER, TYPE = Path(sys.argv[1]), ["mount", "-t", "tmpfs"]


def some(played):
    weights = np.random.default_rng(played).normal(size=(4, 5000)).astype(np.float32)
    state = State(dict(enumerate(weights)), (), np.int32(played))
    return checkpoint.Checkpoint(state, {"round": np.arange(played + 1)}, None)


def save(played):
    checkpoint.save(FOLDER / "checkpoints", some(played))


def error_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except OSError as error:
        return [str(error), error.errno]
    except ValueError as error:
        return [str(error), 0]


for options in sys.argv[2:]:
    subprocess.run([*TYPE, "-o", options, "tmpfs", FOLDER], check=True)
    played, error = 0, error_of(RunFolder, FOLDER / "out", fl60.get_config(), resume=False)
    while error is None:
        played += 1
        error = error_of(save, played)
    subprocess.run([*TYPE, "-o", "remount,size=64m,nr_inodes=10k", FOLDER], check=True)
    template = jax.eval_shape(lambda: some(1).state)
    newest = checkpoint.latest(FOLDER / "checkpoints", template)
    left = sorted(path.name for path in FOLDER.glob("checkpoints/*"))
    save(played)
    again = checkpoint.latest(FOLDER / "checkpoints", template)
    np.testing.assert_array_equal(again.state.server[3], some(played).state.server[3])
    before = newest and int(newest.state.round)
    print(json.dumps([options, played, before, left, *error]))
    subprocess.run(["umount", FOLDER], check=True)
"""


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    """What `WRITER` found on file systems of these sizes, by their options."""
    alone = ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system of their own")
    folder = tmp_path_factory.mktemp("disk")
    sizes = [f"size=8m,nr_inodes={number}" for number in (1, 2, 3, 4, 8, 40)]
    sizes += [f"size={size}k" for size in (40, 120, 250)]
    ended = subprocess.run(
        [*alone, sys.executable, "-c", WRITER, str(folder), *sizes],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    lines = map(json.loads, ended.stdout.splitlines())
    return folder, {options: outcome for options, *outcome in lines}


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_is_one_line_and_leaves_those_before(disks):
    folder, outcomes = disks
    whole = re.escape(f"{folder}/checkpoints/")
    for options, (played, before, left, error, number) in outcomes.items():
        if options == "size=8m,nr_inodes=1":
            continue
        assert number == 28, options
        assert re.fullmatch(
            rf"{whole}{played:08d}(\.json|\.unfinished)? cannot be written "
            rf"\(No space left on device\); free some space",
            error,
        )
        assert before == (played - 1 or None), options
        assert not any(name.startswith(f"{played:08d}") for name in left), options
    assert max(played for played, *_ in outcomes.values()) > 1  # not only the first was refused


@pytest.mark.slow
def test_a_file_system_without_inodes_is_refused_before_the_run(disks):
    folder, outcomes = disks
    played, _, left, error, _ = outcomes["size=8m,nr_inodes=1"]
    assert (played, left) == (0, [])
    assert error == (
        f"out={folder}/out cannot be written (its file system has no free inode); choose "
        f"another --out"
    )


@pytest.mark.parametrize(
    "blocks, inodes, why",
    [
        ((9, 5, 0), (9, 5, 5), "its disk is full"),
        ((9, 5, 5), (9, 5, 0), "its file system has no free inode"),
        ((9, 5, 5), (9, 5, 5), ""),
    ],
)
def test_what_only_root_may_use_is_not_free(tmp_path, monkeypatch, blocks, inodes, why):
    """Numbers of all, of free and of available blocks and inodes."""
    disk = os.statvfs_result((4096, 4096, *blocks, *inodes, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    for user, expected in ((0, ""), (1000, why)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert why_not_writable(tmp_path) == expected


def test_a_folder_of_another_user_is_refused(tmp_path):
    """In another process, which gives up the rights of the root user where it has them."""
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o555)
    for path in (tmp_path, *tmp_path.parents[:3]):
        if path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode | 0o111)
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from graphfl_jax.runs.disk import why_not_writable\n"
        "if os.geteuid() == 0:\n"
        "    os.setuid(65534)\n"
        "print(why_not_writable(Path(sys.argv[1]) / 'out'))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, folder],
        env=ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == f"{folder} is not writable\n"


def test_a_folder_of_checkpoints_that_is_a_file_is_refused_before_the_run(tmp_path):
    config = fl60.get_config()
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    (tmp_path / "checkpoints").touch()
    with pytest.raises(ValueError) as caught:
        RunFolder(tmp_path, config, resume=True)
    assert str(caught.value) == (
        f"out={tmp_path}/checkpoints cannot be written ({tmp_path}/checkpoints is a file); "
        f"choose another --out"
    )


# --------------------------------------------------------------------------------- the commands


LIMITED = ["--config.checkpoint_every=1", "--config.eval_every=1", "--cores=1"]
LIMITED += ["--config.rounds=9", "--config.data.path=federation.npz"]
OWN = {"file": "custom.py:fedavg"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run without an error, with the data of few clients beside it.

    So federation.json is smaller than the files of a checkpoint.
    """
    folder = tmp_path_factory.mktemp("whole")
    interrupted_runs.write_data(folder)
    assert launched_small("run", "--out=out", *LIMITED, cwd=folder, **OWN).status == 0
    return folder


@pytest.mark.parametrize(
    "largest, unwritten",
    [
        pytest.param(500, r"(config|identity|federation)\.json", marks=pytest.mark.release),
        pytest.param(2000, r"checkpoints/\S+", marks=pytest.mark.slow),
        pytest.param(4000, r"metrics\.jsonl", marks=pytest.mark.release),
    ],
)
def test_a_run_that_cannot_write_ends_in_one_line_and_is_resumed(
    tmp_path, whole, largest, unwritten
):
    """Before the first round, in a checkpoint, and after some checkpoints."""
    shutil.copy(whole / "federation.npz", tmp_path)
    ended = limited("run", "--out=out", *LIMITED, cwd=tmp_path, largest=largest, **OWN)
    assert ended.status == 2
    line = re.fullmatch(
        rf"error: out/(?:{unwritten}) cannot be written \(File too large\); raise the limit "
        r"of file sizes, ulimit -f; (nothing was written; start again|continue) with: "
        r"(python .*)\n",
        "".join(
            line
            for line in ended.stderr.splitlines(keepends=True)
            if not line.startswith("warning")
        ),
    )
    assert line, ended.stderr
    begun = (tmp_path / "out" / "config.json").exists()
    *_, does, command = line.groups()
    assert (does == "continue") == begun == command.endswith("--resume")
    words = [*LIMITED, *["--resume"] * begun]
    resumed = launched_small("run", "--out=out", *words, cwd=tmp_path, **OWN)
    assert resumed.status == 0, resumed.stderr
    metrics = [(path / "out" / "metrics.jsonl").read_bytes() for path in (tmp_path, whole)]
    assert metrics[0] == metrics[1]


@pytest.mark.release
def test_a_sweep_that_cannot_write_ends_in_one_line(tmp_path):
    words = ["--out=out", "--grid.hparams.client_lr=0.1,0.2", "--config.data.val_fraction=0.2"]
    ended = limited("sweep", *words, cwd=tmp_path, largest=3000)
    assert ended.status == 2
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("warning")]
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("error: out/trials.jsonl cannot be written (File too large); ")
    assert lines[0].endswith("--resume")
    assert str(ROOT) in lines[0]  # of the configuration, which the command needs
