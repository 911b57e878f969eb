"""The store of runs: what was made, and the one rule on data and code by which it is used.

A record is a dictionary of JSON with the ``identity`` of a run, and its ``accepted_changes``:
further identities, whose difference was accepted. Four stores hold records:

    a run           a folder, with identity.json, checkpoints and results: `folder.RunFolder`
    several seeds   such a folder for each seed
    a sweep         a file with a line for each run that ended: `LineStore`
    tables          a folder with a file for each run that ended

A store finds a record by the name of its run, which has all fields that determine it. Whether
the record is used is decided here, by `refusal`. The fields that may differ when a single run
is resumed are `identity.FREE_ON_RESUME`. Lines and files also have ``sha256``, a digest of all
else, so that a damaged one is noticed, and its run is made again.
"""

import fcntl
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from graphfl_jax.runs.checkpoint import write_text
from graphfl_jax.runs.disk import why_not_writable, writing
from graphfl_jax.runs.forms import load_json, misfit
from graphfl_jax.runs.identity import FILE_FIELDS, Identity, digest_of_json

LOCK = ".lock"
RUN, SWEEP, TABLES = "a run", "a sweep", "runs of tables or figures"
# What a folder holds, by the names in it, with * for any text. A folder holds one of these.
CONTENTS = {
    RUN: ("config.json", "metrics.jsonl", "results.json", "checkpoints"),
    SWEEP: ("trials.jsonl", "trials-*-of-*.jsonl"),
    TABLES: ("cached_runs",),
}

Record = dict[str, Any]


# ------------------------------------------------------------------------------------ the rule


def refusal(record: Record, now: Identity, *, accept_changes: bool) -> str:
    """Why a record is not used for a run of the same name, and the remedy; empty if it is.

    Other data, another split and other pretrained weights are always refused. Other code is
    refused unless that difference has been accepted, now or earlier.

    Args:
      now: identity of the run that could use it.
    """
    before = record["identity"]
    if before["data"] != now["data"]:
        return (
            f"the data differ from those of the run in it (sha256 {_short(now['data'])}, not "
            f"{_short(before['data'])}); choose another --out"
        )
    if before["arrays"] != now["arrays"]:
        return (
            "the data are split in another way than in the run in it, so test examples may be "
            "former training examples; give the same split, or choose another --out"
        )
    for name, field in FILE_FIELDS.items():
        old, new = before.get(name), now.get(name)
        if old != new:
            return (
                f"the content of {field} differs from that of the run in it (sha256 "
                f"{_short(new)}, not {_short(old)}); put the file back, or choose another --out"
            )
    if accept_changes or _has_code_of(record, now):
        return ""
    absent = sorted(before["callables"].keys() - now["callables"].keys())
    if absent and before["config_file"] and not now["config_file"]:
        return (
            f"the results were made with functions of {', '.join(absent)}, which is not "
            f"loaded; add the --config of the run"
        )
    changes = ", ".join(changed_code(before, now))
    return (
        f"the code changed since its results were made: {changes}; go back to that code, "
        f"choose another --out, or add --accept_changes to mix the results of both"
    )


def accept(record: Record, now: Identity) -> bool:
    """Adds an identity to the accepted changes of a record; whether it was not among them."""
    if _has_code_of(record, now):
        return False
    record["accepted_changes"].append(now)
    return True


def identities_of(record: Record) -> list[Identity]:
    """The identity of a record, and those that were accepted for it."""
    return [record["identity"], *record["accepted_changes"]]


def changed_code(before: Identity, now: Identity) -> list[str]:
    """What differs in the code under which results were made, with both digests.

    A configuration file counts only where both have one: without it, the fields come from
    config.json or from Python.
    """
    pairs = {"graphfl_jax": (before["source"], now["source"])}
    if before["config_file"] and now["config_file"]:
        pairs["the configuration file"] = (before["config_file"], now["config_file"])
    for name in sorted(before["callables"].keys() | now["callables"].keys()):
        pairs[name] = (before["callables"].get(name), now["callables"].get(name))
    return [
        f"{what} (sha256 {_short(new)}, not {_short(old)})"
        for what, (old, new) in pairs.items()
        if old != new
    ]


def _has_code_of(record, now):
    """Whether a record was made with the code of an identity, or that code was accepted."""
    return any(not changed_code(before, now) for before in identities_of(record))


def _short(digest):
    return digest[:12] if digest else "none"


# ---------------------------------------------------------------------------- stores of many


class LineStore:
    """A file of records, one on each line, in which an interruption costs one line at most."""

    def __init__(self, path: Path):
        self.path = path

    def read(self, form: Any) -> tuple[list[Record], list[int]]:
        """The records, and the numbers of damaged lines. A process may be writing the file.

        Args:
          form: that every record has, see `forms`.

        Raises:
          ValueError: a line is complete, and not such a record.
          OSError: the file cannot be read.
        """
        records, damaged = [], []
        for number, line in enumerate(self.path.read_bytes().splitlines(), 1):
            try:
                records.append(read_record(line, form))
            except ValueError:
                damaged.append(number)
            except TypeError as error:
                raise ValueError(
                    f"{self.path}: line {number} is not a run of a sweep; remove the line, or "
                    f"choose another --out"
                ) from error
        return records, damaged

    def write(self, records: Iterable[Record]) -> None:
        """Replaces all records in one step."""
        write_text(self.path, "".join(map(_line, records)))

    def add(self, record: Record) -> None:
        """Adds a record. Returns when it is on disk."""
        with writing(self.path), open(self.path, "a") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())


def with_digest(record: Record) -> Record:
    """A record as it is written."""
    return record | {"sha256": digest_of_json(record)}


def _line(record):
    return json.dumps(with_digest(record), allow_nan=False) + "\n"


def read_record(text: str | bytes, form: dict) -> Record:
    """The record in a text, with a digest that fits.

    Raises:
      ValueError: the text is incomplete, or was changed.
      TypeError: it is no record of this form.
    """
    record = load_json(text)
    if not isinstance(record, dict) or "identity" not in record:
        raise TypeError("the text is no record")
    if record.pop("sha256", "") != digest_of_json(record):
        raise ValueError("the record was changed")
    if why := misfit(record, form):
        raise TypeError(why)
    return record


# ----------------------------------------------------------------------------- their folders


def content_of(path: Path) -> str:
    """What a folder holds, one of `CONTENTS`, or an empty string."""
    for content, names in CONTENTS.items():
        if any(any(path.glob(name)) for name in names):
            return content
    return ""


def check_folder(path: Path, content: str = "") -> None:
    """Checks that a folder can be written or made; makes nothing.

    Args:
      content: one of `CONTENTS` that will be written, if it is one.

    Raises:
      ValueError: it cannot, or it holds another of `CONTENTS`.
    """
    why = why_not_writable(path)
    if why:
        raise ValueError(f"out={path} cannot be written ({why}); choose another --out")
    if content and content_of(path) not in ("", content):
        raise ValueError(
            f"out={path} holds {content_of(path)}, and {content} needs a folder of its own; "
            f"choose another --out"
        )


class NewFolders(os.PathLike):
    """Folders that do not exist: PATH and an ending each, or with a number -2, -3, ... between.

    Nothing is made before `make`. Processes that call it at the same time get different ones.

    Attributes:
      paths: of the folders; until `make` has been called, another process can make them too.
    """

    def __init__(
        self,
        path: Path,
        endings: Sequence[str] = ("",),
        *,
        known: Callable[[Path], None] = lambda path: None,
    ):
        """Chooses paths.

        Args:
          known: called with the first path, as soon as that folder is made.
        """
        self.path, self.endings, self.known = path, endings, known
        self.paths = self._absent()

    def __fspath__(self) -> str:
        return str(self.paths[0])

    def make(self) -> list[Path]:
        """Makes the folders, all with the same number, and returns their paths."""
        while not self._make():
            self.paths = self._absent()
        self.known(self.paths[0])
        return self.paths

    def _make(self):
        """Makes all folders, or none if another process has just made one of them."""
        for i, path in enumerate(self.paths):
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    path.mkdir()
                except FileExistsError:
                    for made in self.paths[:i]:
                        made.rmdir()
                    return False
        return True

    def _absent(self):
        for i in itertools.count(1):
            base = f"{self.path}-{i}" if i > 1 else self.path
            paths = [Path(f"{base}{ending}") for ending in self.endings]
            if not any(map(os.path.lexists, paths)):
                return paths


def lock(path: Path, name: str = LOCK) -> IO:
    """Locks a folder until the returned file is closed, or this process ends.

    Args:
      name: of the file that is locked. Processes that lock different files can share a folder.

    Raises:
      ValueError: another process has locked it.
      OSError: its file system has no locks, or the file is a link or cannot be written.
    """

    def open_no_link(file, flags):
        return os.open(file, flags | os.O_NOFOLLOW, 0o666)

    with writing(path / name):
        file = open(path / name, "a", opener=open_no_link)  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            raise ValueError(
                f"out={path}: another process writes into it; wait until it has ended, or "
                f"choose another --out"
            ) from None
        raise OSError(
            f"out={path} cannot be locked ({error}); choose a folder of another file system"
        ) from error
    return file


def check_locked(file: IO, path: Path) -> None:
    """Checks that a folder is still the one that `lock` has locked.

    Raises:
      FileNotFoundError: it was removed, moved or replaced.
    """
    there = os.lstat(file.name) if os.path.lexists(file.name) else None
    if there is None or not os.path.samestat(os.fstat(file.fileno()), there):
        raise FileNotFoundError(
            f"out={path} was removed, moved or replaced while this process wrote into it; put "
            f"it back and add --resume, or choose another --out"
        )
