"""Runs with `data.storage=host`: they are those with all clients on the device."""

import contextlib
import functools
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import graphfl_jax
from graphfl_jax import fit
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change
from graphfl_jax.runs import memories as memories_module
from graphfl_jax.runs.batch import Trial, run_trials
from graphfl_jax.runs.memories import Memories
from graphfl_jax.testing.subject import assert_equal
from tests.federations import small_config, two_clusters

pytestmark = pytest.mark.usefixtures("shared_programs")
FEDERATION = two_clusters()


class Cut(BaseException):
    """Ends a run in these tests."""


def configure(storage, **fields):
    sizes = {"rounds": 7, "eval_every": 3, "checkpoint_every": 1, "local_steps": 2}
    return small_config("ditto", data__storage=storage, **(sizes | fields))


def play(out, storage="host", *, cut_at=None, resume=False, **fields):
    def report(row):
        if row["round"] == cut_at:
            raise Cut

    with contextlib.suppress(Cut):
        config = configure(storage, **fields)
        return graphfl_jax.run(config, FEDERATION, out=out, resume=resume, report=report)


def outcome(out):
    """What a run computes, from its files."""
    results = json.loads((out / "results.json").read_text())
    parts = ("scores", "rounds_trained", "trained_only", "communication", "not_finite")
    tensors = load_file(out / "models.safetensors")
    models = {name: tensor.tobytes() for name, tensor in tensors.items()}
    return [results[part] for part in parts], (out / "metrics.jsonl").read_bytes(), models


@pytest.fixture(scope="module")
def on_device(tmp_path_factory):
    out = tmp_path_factory.mktemp("device")
    play(out, "device")
    return outcome(out)


@pytest.mark.slow
def test_a_run_has_the_results_of_one_on_the_device(on_device, tmp_path):
    result = play(tmp_path)
    assert outcome(tmp_path) == on_device
    assert jax.tree.leaves(result.state.clients) == []


@pytest.mark.release
def test_evaluations_of_few_clients_at_once_have_the_same_results(on_device, tmp_path):
    """Three of seven, so that the last part is filled up."""
    play(tmp_path, clients_per_eval=3)
    assert outcome(tmp_path) == on_device


@pytest.mark.release
def test_runs_with_other_numbers_of_rounds_share_what_is_kept(tmp_path):
    """They are no part of the key, and decide how many rounds an execution has."""
    for rounds, eval_every in ((7, 3), (4, 2), (7, 5)):
        fields, outs = {"rounds": rounds, "eval_every": eval_every}, []
        for storage in ("host", "device"):
            outs.append(tmp_path / f"{storage}-{rounds}-{eval_every}")
            play(outs[-1], storage, **fields)
        assert outcome(outs[0]) == outcome(outs[1])


@pytest.mark.slow
@pytest.mark.parametrize("cut_at", [3, 6])
def test_a_cut_run_ends_like_an_uncut_one(on_device, tmp_path, cut_at):
    play(tmp_path, cut_at=cut_at)
    play(tmp_path, resume=True)
    assert outcome(tmp_path) == on_device


@pytest.mark.slow
def test_a_truncated_checkpoint_is_not_read(on_device, tmp_path):
    play(tmp_path, cut_at=6)
    newest = max((tmp_path / "checkpoints").glob("*.json")).with_suffix("")
    files = [path for path in newest.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-100])
    with pytest.warns(RuntimeWarning, match="is damaged or missing"):
        play(tmp_path, resume=True)
    assert outcome(tmp_path) == on_device


def test_large_data_stay_on_the_host_unless_all_must_be_on_the_device(monkeypatch):
    """The data have more than half of 4,000 bytes."""
    monkeypatch.setattr(fit, "device_memory", lambda: 4_000)
    monkeypatch.setattr("graphfl_jax.memory.device_memory", lambda: 10**9)
    config = configure("auto")
    with pytest.warns(UserWarning, match="so they stay on the host; set --config"):
        assert build_experiment(config, FEDERATION).on_host
    with (
        pytest.raises(ValueError, match="on the host, only for single runs; set"),
        pytest.warns(UserWarning, match="stay on the host"),
    ):
        run_trials(config, {0: FEDERATION}, [Trial({}, 0)])
    assert not build_experiment(change(config, {"data.storage": "device"}), FEDERATION).on_host
    joined = change(config, {"new_clients.fraction": 0.3})
    with pytest.raises(ValueError, match="^data.storage='host' .*, and new clients join; set"):
        build_experiment(change(joined, {"data.storage": "host"}), FEDERATION)


def test_a_method_that_draws_by_the_state_of_its_server_is_refused(monkeypatch):
    method, config = ALGORITHMS["ditto"], configure("host")

    @functools.wraps(method.factory)
    def sampling(*arguments, **settings):
        made = method.factory(*arguments, **settings)
        return made.replacing(sample=lambda server, counts, size, key: counts[:size])

    monkeypatch.setitem(ALGORITHMS, "ditto", method._replace(factory=sampling))
    with pytest.raises(ValueError, match="draws them by the state of its server; set"):
        build_experiment(config, FEDERATION)


def test_debug_needs_all_clients_on_the_device():
    with pytest.raises(ValueError, match="and --debug needs all on the device; set"):
        graphfl_jax.run(configure("host"), FEDERATION, debug=True)


def test_records_of_any_types_are_read_as_they_were_written():
    rng = np.random.default_rng(0)
    rows = {
        "weights": rng.normal(size=(3, 2, 4)).astype(np.float32),
        "count": np.array([1, -2, 3], np.int32),
        "seen": np.array([True, False, True]),
        "nothing": np.zeros((3, 0), np.float32),
        "half": rng.normal(size=(3, 5)).astype(jax.numpy.bfloat16),
    }
    form = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
    memories, ids = Memories(form, 1_000_000), np.array([7, 999_999, 0])
    memories.write(ids, rows)
    assert_equal(memories.read(ids), rows)
    assert not jax.tree.leaves(memories.read(np.array([5])))[0].any() and not memories.known[5]
    again = Memories(form, 1_000_000)
    again.restore(memories.saved())
    assert memories.saved()["ids"].tolist() == sorted(ids)
    assert_equal(again.read(ids), rows)
    assert_equal(again.known, memories.known)
    with pytest.raises(ValueError, match="a client keeps 4; choose another --out"):
        Memories(jax.ShapeDtypeStruct((), np.float32), 9).restore(memories.saved())


def test_a_full_disk_is_named(monkeypatch):
    memories = Memories(jax.ShapeDtypeStruct((3,), np.float32), 9)
    monkeypatch.setattr(memories_module.os, "pwrite", lambda *_: 5)
    with pytest.raises(OSError, match="cannot be written .*; free some space"):
        memories.write(np.array([1]), np.ones((1, 3), np.float32))
