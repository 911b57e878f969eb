"""Checkpoints: what is saved is read again, and damaged checkpoints are skipped."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import time
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax import checkpoint as orbax
from orbax.checkpoint import v1 as ocp

from graphfl_jax import tree
from graphfl_jax.core import State
from graphfl_jax.runs import checkpoint

HISTORY = {"round": np.arange(2, dtype=np.int32), "scores": {"G": np.ones((2, 3), np.float32)}}


def some_state(played=4) -> State:
    """Nested and empty containers, and leaves of all kinds, some with special bit patterns."""
    numbers = jnp.array([0.1, -0.0, jnp.inf, jnp.nan, 1e-45], jnp.float32)
    server = {
        "weights": (numbers, {"half": jnp.ones((2, 3), jnp.bfloat16), "none": ()}),
        "list": [jnp.int32(-7), jnp.zeros((0, 2)), jnp.array([True, False])],
        "bytes": jnp.arange(256).astype(jnp.uint8),
    }
    return State(server, (), jnp.int32(played))


def save(folder, state, notes=None):
    checkpoint.save(folder, checkpoint.Checkpoint(state, HISTORY, notes))


def latest(folder, template=None):
    return checkpoint.latest(
        folder, jax.eval_shape(some_state) if template is None else template
    )


def bits(state):
    return [
        (leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(state)
    ]


def rounds_kept(folder):
    return sorted(path.name for path in folder.iterdir())


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.fixture
def strictly():
    """Turns warnings into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def test_every_leaf_is_restored_with_its_bits_and_its_type(tmp_path):
    save(tmp_path, some_state(), {"seconds": 0.1})
    restored = latest(tmp_path)
    assert jax.tree.structure(restored.state) == jax.tree.structure(some_state())
    assert bits(restored.state) == bits(some_state())
    jax.tree.map(np.testing.assert_array_equal, restored.history, HISTORY)
    assert restored.notes == {"seconds": 0.1}


def test_leaves_have_readable_names_for_other_programs(tmp_path):
    save(tmp_path, some_state())
    leaves = ocp.load((tmp_path / "00000004").absolute())["state"]
    names = {"weights/0", "weights/1/half", "list/0", "list/2", "bytes"}  # list/1 is empty
    assert set(leaves) == {f"server/{name}" for name in names} | {"round"}
    np.testing.assert_array_equal(leaves["server/list/2"], [True, False])
    newest, expected = checkpoint.newest(tmp_path), tree.leaves_by_name(some_state())
    assert newest.keys() == expected.keys() and bits(newest) == bits(expected)


def test_an_empty_folder_holds_no_checkpoint(tmp_path, strictly):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "absent") is None


def test_the_newest_are_kept_and_the_last_is_read(tmp_path, strictly):
    for played in (2, 4, 6, 8, 10):
        save(tmp_path, some_state(played))
    newest = ("00000006", "00000008", "00000010")
    assert rounds_kept(tmp_path) == sorted([*newest, *(f"{name}.json" for name in newest)])
    assert latest(tmp_path).state.round == 10


def test_files_of_an_interrupted_save_are_skipped(tmp_path):
    save(tmp_path, some_state(4))
    shutil.copytree(tmp_path / "00000004", tmp_path / "00000006")  # killed before the manifest
    (tmp_path / "00000008.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    (tmp_path / "00000008.json.0af3.part").write_text('{"bo')
    with pytest.warns(RuntimeWarning) as caught:
        assert latest(tmp_path).state.round == 4
    assert ["00000006 is skipped" in str(w.message) for w in caught] == [True]
    with pytest.warns(RuntimeWarning, match="00000006 is not known to be of this run, and was"):
        save(tmp_path, some_state(6))  # no mark, as of a version before 0.1
    assert latest(tmp_path).state.round == 6
    moved = next(tmp_path.glob("00000006.*.moved"))
    kept = ["00000004", "00000004.json", "00000006", "00000006.json", moved.name]
    assert rounds_kept(tmp_path) == sorted(kept)
    assert any(moved.rglob("_METADATA"))


def test_what_a_killed_process_wrote_of_a_checkpoint_is_replaced(tmp_path, monkeypatch):
    def kill(folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint, "_digests", kill)  # before the manifest
        save(tmp_path, some_state(4))
    assert rounds_kept(tmp_path) == ["00000004", "00000004.unfinished"]
    with pytest.warns(RuntimeWarning, match="00000004 is skipped: its writing was interrupted"):
        assert latest(tmp_path) is None
    save(tmp_path, some_state(4))
    assert rounds_kept(tmp_path) == ["00000004", "00000004.json"]


@pytest.mark.parametrize("linked", [False, True])
def test_only_what_the_run_wrote_is_removed(tmp_path, linked, strictly):
    """The folder of checkpoints may be a link, as to a scratch disk."""
    folder, other = tmp_path / "checkpoints", tmp_path / "other"
    folder.mkdir()
    if linked:
        folder.rename(tmp_path / "scratch")
        folder.symlink_to(tmp_path / "scratch")
    save(folder, some_state(2), {"run": "another"})
    shutil.copytree(folder / "00000002", folder / "00000060-best")
    shutil.copy(folder / "00000002.json", folder / "00000060-best.json")
    for name in ("2019-x", "20190101", "00000001.orbax-mine"):
        (folder / name).mkdir()
        (folder / name / "mine").touch()
    (folder / "2020.txt").touch()
    shutil.copytree(folder / "00000060-best", other)
    (folder / "00000003").symlink_to(other)
    mine = contents(tmp_path)
    for played in (4, 6, 8, 10, 12):
        added = checkpoint.Checkpoint(some_state(played), HISTORY, {"run": "this"})
        checkpoint.save(folder, added, is_ours=lambda notes: notes["run"] == "this")
        (folder / f"{played:08d}" / "notes.txt").touch()
    assert mine.items() <= contents(tmp_path).items()
    assert [path.name for path in (folder / "00000006").iterdir()] == ["notes.txt"]
    kept = {"00000002", "00000060-best", "00000008", "00000010", "00000012"}
    assert {path.stem for path in folder.glob("*.json")} == kept


def test_a_manifest_removes_nothing_outside_its_folder(tmp_path):
    save(tmp_path, some_state(2))
    (tmp_path / "mine").touch()
    body = json.loads((tmp_path / "00000002.json").read_text())["body"]
    body["files"] |= {"../mine": "", str(tmp_path / "mine"): ""}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (tmp_path / "00000002.json").write_text(json.dumps({"body": body, "sha256": digest}))
    for played in (4, 6, 8):
        save(tmp_path, some_state(played))
    assert (tmp_path / "mine").exists()
    assert not (tmp_path / "00000002").exists()


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path, monkeypatch):
    synchronize, path, contents = os.fsync, tmp_path / "a.json", []

    def other_writer(file):
        monkeypatch.setattr(os, "fsync", synchronize)
        checkpoint.write_json(path, {"written": "first"})
        contents.append(json.loads(path.read_text()))

    monkeypatch.setattr(os, "fsync", other_writer)  # while the other one writes
    checkpoint.write_json(path, {"written": "last"})
    assert contents == [{"written": "first"}]
    assert json.loads(path.read_text()) == {"written": "last"}
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_checkpoints_of_later_rounds_do_not_replace_valid_ones(tmp_path):
    for played in (6, 8, 10):
        save(tmp_path, some_state(played))
        (tmp_path / f"{played:08d}.json").write_text("{}")
    save(tmp_path, some_state(2))  # the run started over
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert latest(tmp_path).state.round == 2


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"body": 1, "sha256": 2}', "\x00"])
def test_an_invalid_manifest_is_skipped(tmp_path, manifest):
    save(tmp_path, some_state())
    (tmp_path / "00000004.json").write_text(manifest)
    with pytest.warns(RuntimeWarning, match="00000004 is skipped: its manifest is damaged"):
        assert latest(tmp_path) is None


def test_a_changed_manifest_is_skipped(tmp_path):
    save(tmp_path, some_state(), {"seconds": 0.1})
    manifest = tmp_path / "00000004.json"
    manifest.write_text(manifest.read_text().replace('"seconds": 0.1', '"seconds": 0.3'))
    with pytest.warns(RuntimeWarning, match="its manifest is damaged"):
        assert latest(tmp_path) is None


@pytest.mark.parametrize("value", [None, 7, ["a"]])
@pytest.mark.parametrize("part", ["leaves", "files"])
def test_a_manifest_with_a_wrong_value_is_skipped_and_removes_nothing(tmp_path, part, value):
    save(tmp_path, some_state())
    manifest = tmp_path / "00000004.json"
    body = json.loads(manifest.read_text())["body"] | {part: value}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    manifest.write_text(json.dumps({"body": body, "sha256": digest}))
    before = contents(tmp_path)
    with pytest.warns(RuntimeWarning, match="00000004 is skipped: its manifest is damaged"):
        assert latest(tmp_path) is None
    for played in (6, 8, 10, 12):
        save(tmp_path, some_state(played))
    assert before.items() <= contents(tmp_path).items()


@pytest.mark.parametrize("part", sorted(checkpoint.PARTS))
def test_a_manifest_without_a_part_is_skipped(tmp_path, part):
    save(tmp_path, some_state(), {"seconds": 0.1})
    manifest = tmp_path / "00000004.json"
    body = json.loads(manifest.read_text())["body"]
    del body[part]
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    manifest.write_text(json.dumps({"body": body, "sha256": digest}))
    with pytest.warns(RuntimeWarning, match="00000004 is skipped: its manifest is damaged"):
        assert latest(tmp_path) is None


def test_a_flipped_bit_in_any_file_is_detected(tmp_path):
    save(tmp_path, some_state())
    rng = np.random.default_rng(0)
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        whole = path.read_bytes()
        flipped = np.frombuffer(whole or b"\0", np.uint8).copy()
        flipped[rng.integers(flipped.size)] ^= 1 << rng.integers(8)
        path.write_bytes(flipped.tobytes())
        with pytest.warns(RuntimeWarning, match="00000004 is skipped"):
            assert latest(tmp_path) is None
        path.write_bytes(whole)
    assert latest(tmp_path).state.round == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state._replace(clients={"more": jnp.zeros(3)}),
        lambda state: state._replace(server={**state.server, "bytes": jnp.zeros(256)}),
        lambda state: state._replace(
            server={**state.server, "bytes": state.server["bytes"][:9]}
        ),
        lambda state: state._replace(server={"renamed": state.server}),
    ],
)
def test_a_state_of_another_structure_is_refused_in_one_line(tmp_path, change):
    save(tmp_path, some_state())
    with pytest.raises(ValueError, match="holds another state") as caught:
        latest(tmp_path, change(some_state()))
    assert "00000004" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_is_replaced_completely_or_not_at_all(tmp_path):
    checkpoint.write_json(tmp_path / "results.json", {"a": 1})
    with pytest.raises(ValueError):
        checkpoint.write_json(tmp_path / "results.json", {"a": float("nan")})
    assert json.loads((tmp_path / "results.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_an_error_of_the_system_keeps_its_number_and_others_stay_themselves(
    tmp_path, monkeypatch
):
    def fail(message):
        def fails(*_):
            raise ValueError(message)

        monkeypatch.setattr(orbax.Checkpointer, "save", fails)
        save(tmp_path, some_state())

    with pytest.raises(OSError, match=re.escape(os.strerror(errno.ENOSPC))) as caught:
        fail(f"Error writing file [os_error_code='{errno.ENOSPC}' source locations='...']")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(ValueError, match="^a fault of the program$"):
        fail("a fault of the program")


def test_what_threads_write_after_an_error_is_removed(tmp_path, monkeypatch):
    def write_on(path):
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                path.mkdir(parents=True, exist_ok=True)
                (path / "late").touch()

    def fail(checkpointer, path, arrays):
        unfinished = path.with_name(f"{path.name}.orbax-checkpoint-tmp")
        threads.append(threading.Thread(target=write_on, args=(unfinished / "state",)))
        threads[0].start()
        raise OSError(errno.ENOSPC, "No space left on device")

    threads = []
    monkeypatch.setattr(orbax.Checkpointer, "save", fail)
    with pytest.raises(OSError, match="No space left on device"):
        save(tmp_path, some_state())
    threads[0].join()
    assert rounds_kept(tmp_path) == []


def test_only_errors_of_abandoned_writes_are_not_shown(tmp_path, monkeypatch):
    shown, messages = [], ["Event loop is closed", "another error"]

    def save_with_unraisable_errors(*_):
        for message in messages:
            sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError(message)))
        raise ValueError("the save failed")

    monkeypatch.setattr(sys, "unraisablehook", lambda error: shown.append(str(error.exc_value)))
    monkeypatch.setattr(orbax.Checkpointer, "save", save_with_unraisable_errors)
    with pytest.raises(ValueError, match="the save failed"):
        save(tmp_path, some_state())
    assert shown == ["another error"]
