"""Checkpoints: atomic when written, verified when read.

A checkpoint is an Orbax folder ``checkpoints/ROUND`` with the leaves of the state and the
history, and a manifest ``ROUND.json`` with a digest of every file in the folder. The manifest
is written last, by an atomic rename. A folder without a manifest is incomplete; one whose
digests differ is damaged. Both are skipped, and the checkpoint before is used.

Orbax is imported by the functions that call it: its import takes longer than a short run.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from graphfl_jax import tree
from graphfl_jax.core import State
from graphfl_jax.runs import multihost
from graphfl_jax.runs.disk import writing
from graphfl_jax.runs.identity import digest_of_json

OS_ERROR = re.compile(r"os_error_code='(\d+)'")  # in errors of TensorStore
KEPT = 3  # so that two are left if the newest is damaged
PARTS = {"leaves", "files", "notes"}  # that every manifest has


class Checkpoint(NamedTuple):
    """What a run needs to continue."""

    state: State
    history: dict  # every leaf [evaluations so far, ...]
    notes: dict  # JSON of the caller


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint under its state's round, then removes all but the newest few.

    Raises:
      WriteError: it cannot be written. What there is of it is removed, and earlier ones stay.
    """
    name = f"{int(checkpoint.state.round):08d}"
    target = folder / name
    leaves = _by_name(jax.device_get(checkpoint.state))
    with writing(target), _remove_on_error(target):
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists():  # incomplete or damaged, or the run would have been resumed from it
            shutil.rmtree(target)
        _write(target.absolute(), {"state": leaves, "history": checkpoint.history})
        body = {
            "leaves": _describe(checkpoint.state),
            "files": _digests(target),
            "notes": checkpoint.notes,
        }
        write_json(folder / f"{name}.json", {"body": body, "sha256": digest_of_json(body)})
    # Checkpoints of later rounds were skipped when this run was resumed, and are removed.
    whole = sorted(path.stem for path in folder.glob("*.json") if path.stem <= name)[-KEPT:]
    for path in sorted(folder.glob("[0-9]*"), reverse=True):  # a manifest before its folder
        if path.name.split(".")[0] not in whole:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def latest(folder: Path, template: State) -> Checkpoint | None:
    """The newest valid checkpoint; warns of every newer one that is not.

    Args:
      folder: the run's ``checkpoints`` folder; it need not exist.
      template: shapes and dtypes of the state, from ``jax.eval_shape``.

    Raises:
      ValueError: a valid checkpoint holds another state than `template` describes.
    """
    for name, body in _valid(folder):
        if body["leaves"] != _describe(template):
            raise ValueError(
                f"{folder / name} holds another state than this configuration has; resume with "
                f"the version of graphfl_jax that wrote it, or choose another --out"
            )
        arrays = _read((folder / name).absolute())
        state = _restore(arrays["state"], template)
        return Checkpoint(state, arrays["history"], body["notes"])
    return None


def newest(folder: Path) -> dict[str, np.ndarray] | None:
    """The leaves of the state in the newest valid checkpoint, as `tree.leaves_by_name`.

    None without a checkpoint; warns as `latest`.
    """
    for name, body in _valid(folder):
        leaves = _read((folder / name).absolute())["state"]
        for path, shape, dtype in body["leaves"]:
            if 0 in shape:
                words = re.findall(r"\.(\w+)|\['(.*?)'\]|\[(\d+)\]", path)
                leaves["/".join("".join(word) for word in words)] = np.zeros(shape, dtype)
        return leaves
    return None


def _valid(folder: Path) -> Iterator[tuple[str, dict]]:
    """The valid checkpoints of a folder, the newest first, with what their manifests hold."""
    names = {path.name.removesuffix(".json") for path in folder.glob("[0-9]*")}
    for name in sorted((name for name in names if name.isdigit()), reverse=True):
        fault = _fault(folder, name)
        if fault:
            warnings.warn(
                f"checkpoint {folder / name} is skipped: {fault}",
                RuntimeWarning,
                stacklevel=3,
            )
            continue
        yield name, json.loads((folder / f"{name}.json").read_text())["body"]


def from_first(checkpoint: Checkpoint | None, template: State) -> Checkpoint | None:
    """The checkpoint that the first of several processes has read, on all of them."""
    packed = None
    if checkpoint is not None:
        packed = checkpoint._asdict() | {"state": _by_name(checkpoint.state)}
    packed = multihost.from_first(packed)
    return packed and Checkpoint(**packed | {"state": _restore(packed["state"], template)})


def write_json(path: Path, value: Any) -> None:
    """Writes JSON; a reader finds the old file or the new one, never a part."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replaces a file in one step."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file in one step."""
    # Drawn, since processes of several hosts can write the same file, with the same number.
    part = path.with_name(f"{path.name}.{os.urandom(6).hex()}.part")
    with writing(path), _remove_on_error(part):
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)


@contextlib.contextmanager
def _remove_on_error(path: Path) -> Iterator[None]:
    """Removes a file or folder, and Orbax's unfinished one, if the block raises an OSError."""
    try:
        yield
    except OSError:
        for left in (path, *path.parent.glob(f"{path.name}.orbax-*")):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        raise


def _by_name(state: State) -> dict[str, np.ndarray]:
    """A state's leaves but those of size zero, which Orbax refuses."""
    leaves = tree.leaves_by_name(state)
    return {name: np.asarray(leaf) for name, leaf in leaves.items() if leaf.size}


def _restore(arrays: dict[str, np.ndarray], template: State) -> State:
    """A state from its leaves of `_by_name`; those of size zero are made anew."""
    leaves = [
        arrays[name] if leaf.size else np.zeros(leaf.shape, leaf.dtype)
        for name, leaf in tree.leaves_by_name(template).items()
    ]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _write(target: Path, arrays: dict) -> None:
    """Writes a folder of arrays from this process alone."""
    import orbax.checkpoint as orbax
    from orbax.checkpoint import v1 as ocp

    if not multihost.is_distributed():
        context = ocp.Context()
        # Otherwise a thread waits for 20 minutes for a folder that could not be made.
        context.asynchronous.create_directories_asynchronously = False
        with context, _errors_of_tensorstore():
            ocp.save(target, arrays)
        return
    # `ocp.save` makes all processes compare their paths, whatever its options are (0.12.8), and
    # the others do not call it. Orbax's older interface respects the same option.
    alone = orbax.options.MultiprocessingOptions(active_processes={0})
    handler = orbax.PyTreeCheckpointHandler(multiprocessing_options=alone)
    checkpointer = orbax.Checkpointer(handler, multiprocessing_options=alone)
    with checkpointer, _errors_of_tensorstore():
        checkpointer.save(target, arrays)


def _is_waited_for(record):
    """Whether a message of asyncio is about anything but a write of TensorStore that failed."""
    error = record.exc_info and record.exc_info[1]
    return OS_ERROR.search(str(error)) is None


@contextlib.contextmanager
def _errors_of_tensorstore() -> Iterator[None]:
    """Turns a ValueError that the system caused into an OSError of one line.

    Orbax also logs the traceback of every thread that saw the error, and TensorStore and
    asyncio that of every write that failed later, for which nobody waits any more. These are
    not shown.
    """
    getLogger("asyncio").addFilter(_is_waited_for)  # once; asyncio logs when it frees memory
    verbosity, shown = logging.get_verbosity(), sys.unraisablehook

    def show(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed":
            shown(unraisable)

    logging.set_verbosity(logging.FATAL)
    sys.unraisablehook = show
    try:
        yield
        sys.unraisablehook = shown
    except ValueError as error:
        code = OS_ERROR.search(str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
    finally:
        logging.set_verbosity(verbosity)


def _read(target: Path) -> dict:
    """Reads, from this process alone, what `_write` wrote."""
    from orbax.checkpoint import v1 as ocp

    context = ocp.Context()
    context.multiprocessing.active_processes = {0}
    with context:
        return ocp.load(target)


def _fault(folder: Path, name: str) -> str:
    """What is wrong with a checkpoint, or an empty string."""
    manifest = folder / f"{name}.json"
    if not manifest.exists():
        return "its writing was interrupted"
    try:
        written = json.loads(manifest.read_text())
        body = written["body"]
        whole = written["sha256"] == digest_of_json(body) and body.keys() >= PARTS
    except (AttributeError, ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        return "its manifest is damaged"
    digests = _digests(folder / name)
    for file in sorted(body["files"].keys() | digests.keys()):
        if body["files"].get(file) != digests.get(file):
            return f"{file} is damaged or missing"
    return ""


def _describe(state: State) -> list:
    """Path, shape and dtype of every leaf."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return [
        [jax.tree_util.keystr(path), list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves
    ]


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
