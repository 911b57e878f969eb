"""A run that was cut, killed or damaged ends, once resumed, bit for bit like an uncut one."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from orbax import checkpoint as orbax
from orbax.checkpoint import v1 as ocp

import graphfl_jax
from graphfl_jax.commands.common.result_tables import cost_text
from graphfl_jax.configs import change, fl60
from graphfl_jax.runs import single
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.folder import RunFolder
from graphfl_jax.runs.identity import digest_of_config
from graphfl_jax.runs.store import lock
from tests.commands import ENVIRONMENT, ROOT, command

pytestmark = pytest.mark.usefixtures("shared_programs")
SMALL = {
    "rounds": 10,
    "eval_every": 2,
    "checkpoint_every": 2,
    "cohort_size": 4,
    "local_steps": 2,
    "batch_size": 4,
    "model.hidden": (4,),
    "data.val_fraction": 0.1,
}
LONG = {"rounds": 200, "checkpoint_every": 20}  # it takes seconds, in which it can be killed


class Cut(BaseException):
    """Ends a run in these tests. Like SIGKILL, it is not caught anywhere in the package."""


def configure(changes, method="local"):
    return change(fl60.get_config(method), SMALL | changes)


def play(out, *, cut_at=None, changes=None, method="local", **options):
    """Resumes or starts a run, cuts it after a round; returns the rounds it reported."""
    resume = any(out.glob("*"))
    reported = []

    def report(row):
        line = (out / "metrics.jsonl").read_text().splitlines()[-1]
        assert row == json.loads(line)
        reported.append(row["round"])
        if row["round"] == cut_at:
            raise Cut

    with contextlib.suppress(Cut):
        config = configure(changes or {}, method)
        graphfl_jax.run(config, out=out, resume=resume, report=report, **options)
    return reported


def outcome(out):
    """All that a run computes: its rows, its scores, and the bits of its last state."""
    last = max((out / "checkpoints").glob("*.json")).with_suffix("")
    state = ocp.load(last.absolute())["state"]
    leaves = {key: (str(leaf.dtype), leaf.tobytes()) for key, leaf in state.items()}
    scores = json.loads((out / "results.json").read_text())["scores"]
    return last.name, (out / "metrics.jsonl").read_bytes(), scores, leaves


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """The outcome of an uninterrupted run."""
    out = tmp_path_factory.mktemp("uncut")
    assert play(out) == [2, 4, 6, 8, 10]
    return outcome(out)


@pytest.fixture(scope="module")
def cut_once(tmp_path_factory):
    out = tmp_path_factory.mktemp("cut")
    play(out, cut_at=8)
    return out


@pytest.fixture
def cut(cut_once, tmp_path):
    """A run cut after round 8, with checkpoints of rounds 4, 6 and 8."""
    shutil.copytree(cut_once, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("cut_at", [2, 4, 6])  # before, at and after the first checkpoint
def test_a_cut_run_ends_like_an_uncut_one(uncut, tmp_path, cut_at):
    every = {"checkpoint_every": 4}
    play(tmp_path, cut_at=cut_at, changes=every)
    assert not (tmp_path / "results.json").exists()
    assert play(tmp_path, changes=every)[0] == (2 if cut_at == 2 else 6)
    assert outcome(tmp_path) == uncut


def test_an_incomplete_line_of_metrics_is_replaced(uncut, cut):
    with open(cut / "metrics.jsonl", "a") as file:
        file.write('{"round": 10, "tra')
    play(cut)
    assert outcome(cut) == uncut


def largest_file(folder):
    return max(folder.rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)


def flip_a_bit(path):
    flipped = bytearray(path.read_bytes())
    flipped[len(flipped) // 2] ^= 4
    path.write_bytes(flipped)


DAMAGES = {
    "manifest missing": lambda at: at.with_suffix(".json").unlink(),
    "manifest flipped": lambda at: flip_a_bit(at.with_suffix(".json")),
    "data truncated": lambda at: os.truncate(largest_file(at), 10),
    "data flipped": lambda at: flip_a_bit(largest_file(at)),
    "data missing": lambda at: largest_file(at).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(uncut, cut, damage):
    DAMAGES[damage](cut / "checkpoints" / "00000008")
    with pytest.warns(RuntimeWarning, match="00000008 is skipped"):
        assert play(cut) == [8, 10]
    assert outcome(cut) == uncut


def test_a_run_without_a_valid_checkpoint_starts_over(uncut, cut):
    for played in (4, 6, 8):
        DAMAGES["data flipped"](cut / "checkpoints" / f"{played:08d}")
    with pytest.warns(RuntimeWarning) as caught:
        assert play(cut, cut_at=2) == [2]
    text = " ".join(str(warning.message) for warning in caught)
    assert all(f"0000000{played} is skipped" in text for played in (4, 6, 8))
    assert play(cut) == [
        4,
        6,
        8,
        10,
    ]  # the new checkpoint was kept, although its round is lower
    assert outcome(cut) == uncut


def test_a_finished_run_is_not_repeated(uncut, cut):
    play(cut)
    (cut / "report.html").write_text("of these rounds")  # as the command leaves it
    assert play(cut) == []
    assert outcome(cut) == uncut
    assert (cut / "report.html").read_text() == "of these rounds"


def test_the_time_of_this_start_is_told_from_that_of_all(cut):
    result = graphfl_jax.run(configure({}), out=cut, resume=True)
    again = graphfl_jax.run(configure({}), out=cut, resume=True)
    assert again.seconds["train"] == 0 < result.seconds["train"]
    every = again.results["timing"]["train_s"]
    assert every == result.results["timing"]["train_s"] > result.seconds["train"]
    text = cost_text(again.results, {"compile": 0.0, "train": 0.0, "evaluate": 0.0})
    assert text.startswith("0.0 s (compile 0.0, train 0.0, evaluate 0.0), ")
    assert " s with earlier starts; " in text


@pytest.mark.parametrize(
    "rounds, why",
    [
        (4, "^rounds=4 is less than the 6 of the results in "),
        (6, "^out=.* has the results of all rounds, and no valid checkpoint, so a resumed run"),
    ],
)
def test_results_without_checkpoints_are_not_lost(tmp_path, rounds, why):
    play(tmp_path, changes={"rounds": 6})
    shutil.rmtree(tmp_path / "checkpoints")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=why):
        play(tmp_path, changes={"rounds": rounds})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_diverged_run_without_a_checkpoint_is_not_called_finished(tmp_path):
    """It ended in an early round, and would end there again."""
    config = configure({"hparams.client_lr": 1e30, "checkpoint_every": 50})
    assert graphfl_jax.run(config, out=tmp_path).results["diverged"]
    with pytest.raises(ValueError, match="has a run that diverged, and no checkpoint"):
        graphfl_jax.run(config, out=tmp_path, resume=True)


def test_files_of_others_are_not_replaced(tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(ValueError, match="has a file report.html, which the run would replace"):
        RunFolder(tmp_path, fl60.get_config(), resume=False)


@pytest.mark.parametrize("change", ["removed", "moved", "replaced"])
def test_a_run_whose_folder_is_gone_ends_and_writes_nothing(cut, tmp_path, change):
    def report(row):
        if row["round"] == 8:
            if change == "removed":
                shutil.rmtree(out)
            else:
                out.rename(tmp_path / "elsewhere")
            if change == "replaced":
                shutil.copytree(tmp_path / "elsewhere", out)
            before.update(contents(tmp_path))

    out, before = tmp_path / "run", {}
    shutil.copytree(cut, out, ignore=shutil.ignore_patterns("run", "00000008*"))
    line = f"^out={out} was removed, moved or replaced while this process wrote into it; put"
    with pytest.raises(FileNotFoundError, match=line):
        graphfl_jax.run(configure({}), out=out, resume=True, report=report)
    assert contents(tmp_path) == before


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"\.lock cannot be written .*; remove the link$"):
        lock(tmp_path)
    assert not (tmp_path / "mine").exists()


def test_a_finished_run_can_be_made_longer(uncut, tmp_path):
    play(tmp_path, changes={"rounds": 6})
    (tmp_path / "models.safetensors.0af3.part").touch()  # as of a process that was killed
    (tmp_path / "film.part").touch()
    for name in ("clients.csv", "convergence.svg", "report.html"):  # as the command leaves them
        (tmp_path / name).touch()
    assert play(tmp_path, cut_at=8) == [8]
    # What is of six rounds is not of ten.
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "identity.json",
        "federation.json",
        "metrics.jsonl",
        "checkpoints",
        "film.part",
        ".lock",
    }
    assert play(tmp_path) == [10]
    assert outcome(tmp_path) == uncut


# ------------------------------------------------------------------- of another configuration


@pytest.mark.parametrize(
    "field, value",
    [
        ("hparams.client_lr", 0.2),
        ("seed", 1),
        ("eval_every", 4),
        ("batch_size", 5),
        ("model.hidden", (5,)),
        ("data.val_fraction", 0.2),
        ("data.generator_seed", 1),
        ("client_optimizer", "adam"),
        ("rounds", 6),  # fewer than the eight already played
    ],
)
def test_another_configuration_is_refused_by_its_field(cut, field, value):
    before = contents(cut)
    with pytest.raises(ValueError, match=rf"^{field}=.*{cut}.*(choose|set)"):
        play(cut, changes={field: value})
    assert contents(cut) == before


@pytest.mark.slow
def test_other_data_in_the_same_file_are_refused(tmp_path):
    path, out = tmp_path / "spiral.pkl", tmp_path / "out"
    changes = {"data.source": "file", "data.path": str(path)}

    def write_data(seed):
        arrays = {
            "data": np.random.default_rng(seed).normal(size=(6000, 2)),
            "label": np.tile([0, 1], 3000),
            "domain": np.repeat(np.arange(60), 100),
            "A": np.ones((60, 60)) - np.eye(60),
        }
        path.write_bytes(pickle.dumps(arrays))

    write_data(seed=0)
    play(out, cut_at=4, changes=changes)
    before = contents(out)
    write_data(seed=1)
    with pytest.raises(ValueError, match="the data differ from those of the run"):
        play(out, changes=changes)
    assert contents(out) == before
    write_data(seed=0)
    assert play(out, changes=changes) == [6, 8, 10]


@pytest.mark.parametrize(
    "break_it",
    [
        Path.unlink,
        *(lambda path, text=text: path.write_text(text) for text in ('{"rounds', "[1]")),
    ],
)
def test_a_run_without_a_readable_configuration_is_refused(cut, break_it):
    break_it(cut / "config.json")
    before = contents(cut)
    with pytest.raises(ValueError, match="config.json is missing or damaged"):
        play(cut)
    assert contents(cut) == before


def without_fields(out, *fields):
    """Removes fields from the configuration of a run, as if they had not existed yet."""
    config = json.loads((out / "config.json").read_text())
    before = digest_of_config(config)
    for field in fields:
        del config[field]
    (out / "config.json").write_text(json.dumps(config))
    path, after = out / "identity.json", digest_of_config(config)
    path.write_text(path.read_text().replace(before, after))
    for manifest in (out / "checkpoints").glob("*.json"):
        body = json.loads(manifest.read_text().replace(before, after))["body"]
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        manifest.write_text(json.dumps({"body": body, "sha256": digest}))


def test_a_folder_is_resumed_that_was_written_before_a_field_existed(uncut, cut):
    without_fields(cut, "eval_batch_size", "client_schedule", "attack")
    assert play(cut) == [10]
    assert outcome(cut) == uncut
    assert json.loads((cut / "config.json").read_text())["client_schedule"] == "constant"


def test_a_folder_without_a_field_is_refused_where_its_value_is_not_the_default(cut):
    path = cut / "config.json"
    config = json.loads(path.read_text())
    del config["batch_size"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="^batch_size=4 differs from 64 in the run of"):
        play(cut)


def test_the_choice_that_differs_is_named_before_the_settings_it_decides(cut):
    with pytest.raises(ValueError, match="^algorithm.name='panacea' differs from 'local'"):
        play(cut, method="panacea")


# ---------------------------------------------------------------------------- of another host


@pytest.mark.parametrize(
    "what, value, shown",
    [("device", "1 x abacus", "1 x abacus"), ("versions", {"jax": "0"}, "{'jax': '0'}")],
)
def test_another_device_or_version_leads_to_a_warning(cut, monkeypatch, what, value, shown):
    elsewhere = environment() | {what: value}
    monkeypatch.setattr(single, "environment", lambda: elsewhere)
    with pytest.warns(RuntimeWarning, match=f"{what} changed from .* to {shown}: "):
        play(cut, cut_at=10)


def test_another_processor_leads_to_a_warning(cut, monkeypatch):
    monkeypatch.setattr("graphfl_jax.runs.environment.processor", lambda: "abacus")
    with pytest.warns(RuntimeWarning, match=r"^device changed from .* to .*\(abacus\): "):
        play(cut, cut_at=10)


def test_a_folder_that_cannot_be_locked_is_named_with_the_reason(tmp_path, monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match=f"^out={tmp_path} cannot be locked .*No locks available"):
        lock(tmp_path)


def test_a_full_disk_ends_the_run_in_one_line_and_damages_nothing(
    uncut, cut, monkeypatch, capsys
):
    from graphfl_jax.commands.common.command_line import (  # defines flags, for this test only
        FLAGS,
        launch,
    )

    def full(checkpointer, path, tree):
        Path(f"{path}.orbax-checkpoint-tmp").mkdir()
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(
        warnings, "formatwarning", warnings.formatwarning
    )  # restored afterwards
    monkeypatch.setattr(sys, "argv", ["run", f"--config={ROOT}/configs/fl60.py"])
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr(orbax.Checkpointer, "save", full)
        launch(lambda: play(cut))
    FLAGS.unparse_flags()
    assert left.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith(
        f"error: {cut}/checkpoints/00000010 cannot be written (No space left"
    )
    assert "; free some space; " in line
    assert not list(cut.glob("checkpoints/*.orbax-*"))  # what was written of it is removed
    assert play(cut) == [10]
    assert outcome(cut) == uncut


def start_and_kill(out, *, ready, **changes):
    """Starts or resumes the command as a process, and kills it as soon as `ready()`."""
    settings = SMALL | LONG | {"model.hidden": 4} | changes
    words = [f"--config={ROOT}/configs/fl60.py:fedavg", f"--out={out}"]
    words += ["--resume"] * out.exists()
    words += [f"--config.{field}={value}" for field, value in settings.items()]
    process = subprocess.Popen(command("run", *words), env=ENVIRONMENT)
    while process.poll() is None and not ready():
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (out / "results.json").exists()


@pytest.mark.slow
def test_a_process_killed_twice_ends_like_an_uncut_one(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    play(whole, changes=LONG, method="fedavg")
    rows, saved = killed / "metrics.jsonl", killed / "checkpoints"
    start_and_kill(
        killed, ready=lambda: rows.exists() and rows.stat().st_size, checkpoint_every=1000
    )
    assert not list(saved.glob("*.json"))
    start_and_kill(killed, ready=lambda: any(saved.glob("*.json")))
    assert 20 < play(killed, changes=LONG, method="fedavg")[0] < 200
    assert outcome(killed) == outcome(whole)
