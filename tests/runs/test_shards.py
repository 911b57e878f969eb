"""Parts of a sweep in one folder, and the leaderboard of all their logs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from graphfl_jax.commands.sweeping import slurm
from graphfl_jax.commands.sweeping.leaderboard import leaderboards, ranked_rows
from graphfl_jax.commands.sweeping.trial_log import merged_logs
from graphfl_jax.runs.batch import Trial
from graphfl_jax.runs.identity import digest_of_json
from graphfl_jax.runs.sweep import Planned, TrialGroup, part_of
from tests.commands import launched_small, scripted
from tests.runs.test_compare import GRAPHFL


def names(groups):
    return [planned.name for group in groups for planned in group.planned]


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 9])
def test_parts_have_each_run_once_in_the_order_of_the_sweep(parts):
    groups = [
        TrialGroup(
            None,
            dict.fromkeys((0, 1), "federation"),
            [Planned(f"{kind}{i}", {}, Trial({}, i % 2)) for i in range(size)],
        )
        for kind, size in (("a", 4), ("b", 1), ("c", 2))
    ]
    shards = [part_of(groups, number, parts) for number in range(1, parts + 1)]
    assert [name for part in shards for name in names(part)] == names(groups)
    sizes = [len(names(part)) for part in shards]
    assert max(sizes) - min(sizes) <= 1
    for group in (group for part in shards for group in part):
        assert set(group.federations) == {planned.trial.seed for planned in group.planned}


SBATCH = """#!/bin/bash
tasks=$(sed -n 's/^#SBATCH --array=1-//p' "$1")
for task in $(seq $tasks); do SLURM_ARRAY_TASK_ID=$task bash "$1"; done
"""
PYTHON = """#!/bin/bash
printf '%s\\n' "$@" END
"""


def test_a_file_for_slurm_makes_each_part_and_resumes_one_that_has_begun(tmp_path, monkeypatch):
    """A stand-in for sbatch runs the jobs, and one for Python prints its arguments."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("sbatch", SBATCH), ("python it", PYTHON)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python it"))
    out = Path("of $HOME 'x'")
    words = ["fl60", "--grid.rounds=1,2", "--array=slurm", "--tasks", "3", f"--out={out}"]
    out.mkdir()
    (out / "trials-2-of-3.jsonl").touch()
    Path("array.sbatch").write_text(slurm.array_file(words, out, 3))
    ended = subprocess.run(
        ["./sbatch", "array.sbatch"], capture_output=True, text=True, check=True
    )
    jobs = ended.stdout.removesuffix("END\n").split("END\n")
    begin = ["-m", "graphfl_jax", "sweep", "fl60", "--grid.rounds=1,2", f"--out={out}"]
    for number, job in enumerate(jobs, 1):
        resumed = ["--resume"] if number == 2 else []
        assert job.splitlines() == [*begin, f"--shard={number}/3", *resumed]
    assert len(jobs) == 3 and not ended.stderr


@pytest.mark.slow
def test_parts_share_a_folder_and_have_one_leaderboard(tmp_path):
    words = ["--config.data.val_fraction=0.1", "--grid.hparams.client_lr=0.1,0.03,1e30"]
    words += ["--config.rounds=1", "--at_once=2", "--out=here"]
    for part in (1, 2):
        ended = launched_small(
            "sweep", *words, f"--shard={part}/2", cwd=tmp_path, file="fl60.py:local"
        )
        assert ended.status == 0, ended.stderr
    logs = [tmp_path / f"here/trials-{part}-of-2.jsonl" for part in (1, 2)]
    lines = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    rates = [[line["point"]["hparams.client_lr"] for line in log] for log in lines]
    assert rates == [[0.1], [0.03, 1e30]]
    again = launched_small("sweep", *words, "--shard=1/2", cwd=tmp_path, file="fl60.py:local")
    assert again.status == 2 and "already holds a sweep; add --resume" in again.stderr

    # While a third process writes a line of a copy, which also has runs of the others.
    text = "".join(log.read_text() for log in logs)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/trials.jsonl").write_text(text + text[:100])
    folders = ["here", "copy"]
    status, printed, errors = scripted(
        GRAPHFL, "leaderboard", *folders, "--to=all.json", cwd=tmp_path
    )
    assert (status, errors) == (0, "")
    (board,) = json.loads((tmp_path / "all.json").read_text())
    assert (board["runs"], board["points"], len(board["diverged"])) == (3, 3, 1)
    validation = {
        line["point"]["hparams.client_lr"]: line["validation"]["final"]["P"]["mean"]
        for line in (*lines[0], lines[1][0])
    }
    ranked = [row["point"]["hparams.client_lr"] for row in board["rows"]]
    assert ranked == sorted(validation, key=validation.get, reverse=True)
    assert "left out: copy/trials.jsonl, line 4: incomplete or damaged" in printed
    assert "3 runs are in several logs and count once" in printed

    (changed, *_) = lines[0]
    changed["identity"]["arrays"] = "0" * 64
    del changed["sha256"]
    changed["sha256"] = digest_of_json(changed)
    (tmp_path / "copy/trials.jsonl").write_text(json.dumps(changed) + "\n")
    with pytest.raises(
        ValueError, match="trials.jsonl have the run .* seed 0, and its arrays d"
    ):
        merged_logs([tmp_path / folder for folder in folders])


def line(point, score, *, seed=0, metrics=None, **settings):
    """What a leaderboard reads of a line of a log; `settings` with __ for the dots."""
    settings = {name.replace("__", "."): value for name, value in settings.items()}
    trial = json.dumps({"seed": seed} | settings | point)
    scores = {"final": {"P": {"mean": score}}}
    return {
        **{"trial": trial, "point": point, "seed": seed},
        **{"dataset": {"name": "fl60", "source": "own"}, "metric": "accuracy"},
        **{"validation": scores, "scores": scores, "metrics": metrics, "new_clients": None},
        **{"higher_is_better": True, "diverged": False, "accepted_changes": []},
    }


def logged(*methods):
    """The lines of a log with a run of each method."""
    run = {**line({}, 0.5), "identity": {"data": "d", "source": "s"}}
    run |= {"device": "", "versions": {}, "git_commit": ""}
    for name in methods:
        run["trial"] = json.dumps({"algorithm.name": name, "rounds": 1, "seed": 0})
        yield json.dumps(run | {"sha256": digest_of_json(run)}) + "\n"


def methods_of(lines):
    return [json.loads(line["trial"])["algorithm.name"] for line in lines]


def test_runs_of_methods_that_are_not_known_here_are_ranked(tmp_path):
    """The configuration file that registers the method is not executed."""
    (tmp_path / "trials.jsonl").write_text("".join(logged("own_method", "fedavg")))
    lines, notes = merged_logs([tmp_path])
    assert (methods_of(lines), notes) == (["own_method", "fedavg"], [])
    assert lines[0]["trial"] == '{"algorithm.name": "own_method", "rounds": 1, "seed": 0}'


@pytest.mark.parametrize(
    "value",
    [{"seed": "0"}, {"trial": "[1]"}, {"dataset": []}, {"validation": 7}, {"point": None}]
    + [{"validation": None}, {"scores": None}, {"scores": {"final": {"P": {"mean": None}}}}],
)
def test_a_line_with_a_wrong_value_is_named(tmp_path, value):
    run = {
        name: part
        for name, part in json.loads(next(logged("local"))).items()
        if name != "sha256"
    }
    run |= value
    text = json.dumps(run | {"sha256": digest_of_json(run)}) + "\n"
    (tmp_path / "trials.jsonl").write_text(text)
    with pytest.raises(
        ValueError, match="trials.jsonl: line 1 is not a run of a sweep; remove"
    ):
        merged_logs([tmp_path])


def test_lines_that_do_not_fit_together_are_refused():
    lines = [line({"a": 1}, 0.5), line({"a": 1}, 0.5, seed=1) | {"validation": None}]
    with pytest.raises(
        ValueError, match="have runs that do not fit together .*; leave a folder"
    ):
        leaderboards(lines)


@pytest.mark.parametrize("byte", [b"\xff", b"\x0c"])
def test_a_damaged_byte_costs_one_line(tmp_path, byte):
    first, second, third = (text.encode() for text in logged("local", "fedavg", "ditto"))
    damaged = second.replace(b"own", b"ow" + byte)
    (tmp_path / "trials.jsonl").write_bytes(first + damaged + third)
    lines, (note,) = merged_logs([tmp_path])
    assert methods_of(lines) == ["local", "ditto"]
    assert note.endswith("trials.jsonl, line 2: incomplete or damaged")


def test_a_point_of_two_sweeps_with_other_settings_is_two_points():
    """Of three methods, of which one has a setting of its own with two values."""
    point = {"hparams.client_lr": 0.1}
    further = {"P": {"macro_f1": {"mean": 0.25}}}
    lines = [
        line(point, 0.9, algorithm__name="fedavg", metrics=further),
        line(point, 0.7, algorithm__name="fedavg", metrics=further, seed=1),
        line(point, 0.1, algorithm__name="local"),
        line(point, 0.2, algorithm__name="fedprox", hparams__mu=0.5),
        line(point, 0.3, algorithm__name="fedprox", hparams__mu=1.0),
    ]
    (board,) = leaderboards(lines)
    assert (board["points"], board["runs"]) == (4, 5)
    assert ranked_rows(board, 9) == [
        [
            *["client_lr", "algorithm.name", "mu", "runs", "validation", "sd seeds", "test"],
            "test macro f1",
        ],
        ["0.1", "fedavg", "", "2", "0.8", "0.1", "0.8", "0.25"],
        ["0.1", "fedprox", "1", "1", "0.3", "none", "0.3", "none"],
        ["0.1", "fedprox", "0.5", "1", "0.2", "none", "0.2", "none"],
        ["0.1", "local", "", "1", "0.1", "none", "0.1", "none"],
    ]


def test_a_point_that_lacks_an_axis_of_another_sweep_has_the_value_of_its_runs():
    rate = {"hparams.client_lr": 0.1}
    lines = [line(rate, 0.5, local_steps=5), line(rate | {"local_steps": 1}, 0.4)]
    (board,) = leaderboards(lines)
    assert [row["point"]["local_steps"] for row in board["rows"]] == [5, 1]


def test_logs_that_cannot_be_ranked_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    refused = [
        ([], "folders is not set; name folders of sweeps"),
        (["empty"], "empty holds no sweep; leave it out"),
        (["none"], "none is not a folder; name folders of sweeps"),
        (["empty", "--to=a.csv"], "to=a.csv has no known format; let it end with .json or .md"),
    ]
    for words, message in refused:
        status, printed, errors = scripted(GRAPHFL, "leaderboard", *words, cwd=tmp_path)
        assert (status, printed) == (2, "") and errors.startswith(f"error: {message}"), errors
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
