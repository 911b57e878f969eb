"""Checkpoints: atomic when written, verified when read.

A checkpoint is an Orbax folder ``checkpoints/ROUND`` with the leaves of the state and the
history, and a manifest ``ROUND.json`` with a digest of every file in the folder. The manifest
is written last, by an atomic rename. A folder without a manifest is incomplete; one whose
digests differ is damaged. Both are skipped, and the checkpoint before is used.

Only what the run wrote is removed: the files that a manifest of the run lists; a folder with
the mark ``ROUND.unfinished``, which the run writes before the folder and removes after the
manifest; and unfinished files, by their names. Anything else under the name of a new checkpoint
is moved.

Orbax is imported by the functions that call it: its import takes longer than a short run.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from graphfl_jax import tree
from graphfl_jax.core import State
from graphfl_jax.data.files import open_new
from graphfl_jax.runs import multihost
from graphfl_jax.runs.disk import writing
from graphfl_jax.runs.forms import leaf, read_json
from graphfl_jax.runs.identity import digest_of_json

OS_ERROR = re.compile(r"os_error_code='(\d+)'")  # in errors of TensorStore
KEPT = 3  # so that two are left if the newest is damaged
PARTS = {"leaves": [leaf], "files": {str: str}, "notes": object}  # the form of a manifest
# Names of a checkpoint's folder, manifest and mark, and of what is left of unfinished ones.
ENTRY = re.compile(
    r"(\d{8,})(?:\.json|\.unfinished|"
    r"(\.orbax-checkpoint-tmp.*|\.(?:json|unfinished)\.[0-9a-f]+\.part))?"
)
PATIENCE = 20  # times that a removal is tried


class Checkpoint(NamedTuple):
    """What a run needs to continue."""

    state: State
    history: dict  # every leaf [evaluations so far, ...]
    notes: dict  # JSON of the caller
    clients: dict = {}  # of arrays of any sizes: what is beside the state


def save(
    folder: Path, checkpoint: Checkpoint, *, is_ours: Callable[[Any], bool] = lambda notes: True
) -> None:
    """Writes a checkpoint under its state's round, then removes all but the newest few.

    Args:
      folder: the run's ``checkpoints`` folder, inside one that exists.
      is_ours: whether a checkpoint with these notes is of this run. Others stay.

    Raises:
      WriteError: it cannot be written. What there is of it is removed, and earlier ones stay.
    """
    name = f"{int(checkpoint.state.round):08d}"
    target, manifest, mark = _paths(folder, name)
    leaves = _by_name(jax.device_get(checkpoint.state))
    with writing(target):
        folder.mkdir(exist_ok=True)
        _remove(folder, name, is_ours)  # damaged, or the run would have been resumed from it
        _move_aside(target, manifest)
        try:
            _write_manifest(mark, {"notes": checkpoint.notes})
            arrays = {"state": leaves, "history": checkpoint.history}
            if checkpoint.clients:
                arrays["clients"] = checkpoint.clients
            _write(target.absolute(), arrays)
            body = {
                "leaves": _describe(checkpoint.state),
                "files": _digests(target),
                "notes": checkpoint.notes,
            }
            _write_manifest(manifest, body)
            mark.unlink()
        except OSError:
            _remove_failed(folder, name, is_ours)
            raise
        # Checkpoints of later rounds were skipped when this run was resumed, and are removed.
        names = _names(folder)
        whole = [other for other in names if _is_whole(folder, other, is_ours)]
        kept = sorted((other for other in whole if int(other) <= int(name)), key=int)[-KEPT:]
        for other in names.difference(kept):
            _remove(folder, other, is_ours)


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
        clients = arrays.get("clients", {})
        return Checkpoint(state, arrays["history"], body["notes"], clients)
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
    names = _names(folder) if folder.exists() else set()
    names = [name for name in names if any(path.exists() for path in _paths(folder, name)[:2])]
    for name in sorted(names, key=int, reverse=True):
        fault = _fault(folder, name)
        if fault:
            warnings.warn(
                f"checkpoint {folder / name} is skipped: {fault}",
                RuntimeWarning,
                stacklevel=3,
            )
            continue
        yield name, _body(folder / f"{name}.json", PARTS)


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
    with writing(path), open_new(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def remove_parts(folder: Path, *names: str) -> None:
    """Removes what killed processes have left of files of these names, with * for any text."""
    for name in names:
        for part in folder.glob(f"{name}.*.part"):
            if re.search(r"\.[0-9a-f]+\.part$", part.name):
                part.unlink(missing_ok=True)


def _names(folder):
    """The rounds, as text, of which a folder has anything of a checkpoint."""
    return {match[1] for match in map(ENTRY.fullmatch, os.listdir(folder)) if match}


def _paths(folder, name):
    """The folder, the manifest and the mark of a checkpoint."""
    return folder / name, folder / f"{name}.json", folder / f"{name}.unfinished"


def _write_manifest(path, body):
    write_json(path, {"body": body, "sha256": digest_of_json(body)})


def _body(manifest, form):
    """What a manifest or a mark holds; None if it is missing or damaged."""
    try:
        written = read_json(manifest, {"body": form, "sha256": str})
    except (FileNotFoundError, ValueError):
        return None
    return written["body"] if written["sha256"] == digest_of_json(written["body"]) else None


def _is_whole(folder, name, is_ours):
    body = _body(folder / f"{name}.json", PARTS)
    return body is not None and is_ours(body["notes"])


def _remove(folder, name, is_ours):
    """Removes what the run wrote of a checkpoint; follows no links."""
    target, manifest, mark = _paths(folder, name)
    written = _body(manifest, PARTS) or _body(mark, {"notes": object})
    if written is not None:
        if not is_ours(written["notes"]):
            return
        _remove_files(target, written.get("files"))
        manifest.unlink(missing_ok=True)
        mark.unlink(missing_ok=True)
    for path in folder.glob(f"{name}.*"):
        match = ENTRY.fullmatch(path.name)
        if match and match[2]:
            _remove_files(path)


def _remove_files(path, listed=None):
    """Removes a file, or of a folder the files that are listed, and what is then empty.

    None is all files.
    """
    if path.is_symlink() or not path.is_dir():
        if listed is None:
            path.unlink(missing_ok=True)
        return
    for parent, folders, files in os.walk(path, topdown=False):
        links = [folder for folder in folders if os.path.islink(os.path.join(parent, folder))]
        for file in files + links:
            at = Path(parent, file)
            if listed is None or str(at.relative_to(path)) in listed:
                at.unlink(missing_ok=True)
        if not os.listdir(parent):
            os.rmdir(parent)


def _remove_failed(folder, name, is_ours):
    """Removes what there is of a checkpoint that could not be written.

    Threads of TensorStore, for which nobody can wait, still write for a moment.
    """
    for _ in range(PATIENCE):
        with contextlib.suppress(OSError):  # they write into a folder that is removed
            _remove(folder, name, is_ours)
        time.sleep(0.05)
        if name not in _names(folder):
            return


def _move_aside(*paths):
    """Gives files and folders that are not known to be of this run other names."""
    for path in filter(os.path.lexists, paths):
        to = path.with_name(f"{path.name}.{os.urandom(6).hex()}.moved")
        path.rename(to)
        warnings.warn(
            f"{path} is not known to be of this run, and was moved to {to}",
            RuntimeWarning,
            stacklevel=3,
        )


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

    # `ocp.save` makes all processes compare their paths, whatever its options are (0.12.8), and
    # the others do not call it. Orbax's older interface respects the same option.
    alone = orbax.options.MultiprocessingOptions(active_processes={0})
    # Compressed weights are a tenth smaller, and take longer to compress than to write.
    handler = orbax.PyTreeCheckpointHandler(
        use_compression=False, multiprocessing_options=alone
    )
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
    body = _body(manifest, PARTS)
    if body is None:
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
