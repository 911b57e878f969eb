"""A run that was cut, killed or damaged ends, once resumed, bit for bit as an uncut one."""

import contextlib
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from orbax.checkpoint import v1 as ocp

import graphfl_jax
from graphfl_jax.configs import fl60
from graphfl_jax.runs import checkpoint

ROOT = Path(__file__).resolve().parent.parent
SMALL = {
    "rounds": 10,
    "eval_every": 2,
    "checkpoint_every": 2,
    "cohort_size": 4,
    "local_steps": 2,
    "batch_size": 4,
    "model.hidden": (4,),
    "algorithm.width": 4,
    "data.val_fraction": 0.1,
}
LONG = {"rounds": 200, "checkpoint_every": 20}  # seconds in which to kill it


class Cut(BaseException):
    """What ends a run in these tests; like SIGKILL, nothing in the code catches it."""


def configure(changes, method="local"):
    config = fl60.get_config(method)
    config.update_from_flattened_dict(SMALL | changes)
    return config


def play(out, *, cut_at=None, changes=None, method="local"):
    """Resumes or starts a run, cuts it after a round; returns the rounds it reported."""
    reported = []

    def report(played):
        reported.append(played)
        if played == cut_at:
            raise Cut

    with contextlib.suppress(Cut):
        graphfl_jax.run(configure(changes or {}, method), out=out, resume=True, report=report)
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


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Runs in this process share executables, for time; those in child processes do not."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("executables")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """The outcome of a run that nothing befell."""
    out = tmp_path_factory.mktemp("uncut")
    assert play(out) == [2, 4, 6, 8, 10]
    return outcome(out)


@pytest.fixture
def cut(tmp_path):
    """A run cut after round 8, with checkpoints of rounds 4, 6 and 8."""
    play(tmp_path, cut_at=8)
    return tmp_path


@pytest.mark.parametrize("cut_at", [2, 4, 6])  # before, at and after the first checkpoint
def test_a_cut_run_ends_as_an_uncut_one(uncut, tmp_path, cut_at):
    every = {"checkpoint_every": 4}
    play(tmp_path, cut_at=cut_at, changes=every)
    assert not (tmp_path / "results.json").exists()
    assert play(tmp_path, changes=every)[0] == (2 if cut_at == 2 else 6)
    assert outcome(tmp_path) == uncut


def test_a_half_written_line_of_metrics_heals(uncut, cut):
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
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(uncut, cut, damage):
    DAMAGES[damage](cut / "checkpoints" / "00000008")
    with pytest.warns(RuntimeWarning, match="00000008 is passed over"):
        assert play(cut) == [8, 10]
    assert outcome(cut) == uncut


def test_a_run_without_any_whole_checkpoint_starts_over(uncut, cut):
    for played in (4, 6, 8):
        DAMAGES["data flipped"](cut / "checkpoints" / f"{played:08d}")
    with pytest.warns(RuntimeWarning) as caught:
        assert play(cut, cut_at=2) == [2]
    told = " ".join(str(warning.message) for warning in caught)
    assert all(f"0000000{played} is passed over" in told for played in (4, 6, 8))
    assert play(cut) == [4, 6, 8, 10]  # the new checkpoint outlived the damaged ones
    assert outcome(cut) == uncut


def test_a_finished_run_is_not_played_again(uncut, tmp_path):
    play(tmp_path)
    assert play(tmp_path) == []
    assert outcome(tmp_path) == uncut


def test_a_finished_run_can_be_made_longer(uncut, tmp_path):
    play(tmp_path, changes={"rounds": 6})
    assert play(tmp_path, cut_at=8) == [8]
    assert not (tmp_path / "results.json").exists()  # those of six rounds are no result of ten
    assert play(tmp_path) == [10]
    assert outcome(tmp_path) == uncut


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
        ("rounds", 6),  # fewer than the eight already played
    ],
)
def test_another_configuration_is_refused_by_its_field(cut, field, value):
    before = contents(cut)
    with pytest.raises(ValueError, match=rf"^{field}=.*{cut}.*(choose|set)"):
        play(cut, changes={field: value})
    assert contents(cut) == before


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
    with pytest.raises(ValueError, match="the data are not those of the run"):
        play(out, changes=changes)
    assert contents(out) == before
    write_data(seed=0)
    assert play(out, changes=changes) == [6, 8, 10]


@pytest.mark.parametrize("break_it", [Path.unlink, lambda path: path.write_text('{"rounds')])
def test_a_run_of_unknown_configuration_is_refused(cut, break_it):
    break_it(cut / "config.json")
    before = contents(cut)
    with pytest.raises(ValueError, match="config.json is missing or damaged"):
        play(cut)
    assert contents(cut) == before


def test_another_device_is_told_of(cut, monkeypatch):
    elsewhere = graphfl_jax.experiment.environment() | {"device": "1 x abacus"}
    monkeypatch.setattr(graphfl_jax.runs.single, "environment", lambda: elsewhere)
    with pytest.warns(RuntimeWarning, match="device changed from .* to 1 x abacus"):
        play(cut)


def test_a_full_disk_stops_the_run_in_one_line_and_spoils_nothing(
    uncut, cut, monkeypatch, capsys
):
    from experiments.common.command_line import (  # absl's flags, for this test alone
        FLAGS,
        launch,
    )

    def full(path, tree):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # put back after
    monkeypatch.setattr(sys, "argv", ["run", f"--config={ROOT}/configs/fl60.py"])
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr(checkpoint.ocp, "save", full)
        launch(lambda: play(cut))
    FLAGS.unparse_flags()
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error: [Errno 28] No space left on device: ")
    assert play(cut) == [10]
    assert outcome(cut) == uncut


def start_and_kill(out, *, sign, **changes):
    """Starts or resumes the entry in a process of its own; kills it when `sign` is there."""
    settings = SMALL | LONG | {"model.hidden": 4} | changes
    command = [
        sys.executable,
        "-m",
        "experiments.run",
        f"--config={ROOT}/configs/fl60.py:fedavg",
    ]
    command += [f"--config.{field}={value}" for field, value in settings.items()]
    process = subprocess.Popen([*command, f"--out={out}", "--resume"], cwd=ROOT)
    while process.poll() is None and not sign():
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (out / "results.json").exists()


def test_a_process_killed_twice_ends_as_an_uncut_one(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    play(whole, changes=LONG, method="fedavg")
    rows, saved = killed / "metrics.jsonl", killed / "checkpoints"
    start_and_kill(
        killed, sign=lambda: rows.exists() and rows.stat().st_size, checkpoint_every=1000
    )
    assert not list(saved.glob("*.json"))
    start_and_kill(killed, sign=lambda: any(saved.glob("*.json")))
    assert 20 < play(killed, changes=LONG, method="fedavg")[0] < 200
    assert outcome(killed) == outcome(whole)
