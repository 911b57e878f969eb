"""A run's folder: configuration, identity, metrics, checkpoints and, at the end, results."""

import itertools
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from graphfl_jax.configs.fields import choices
from graphfl_jax.configs.values import configuration, current_values, values_of
from graphfl_jax.core import State, Task
from graphfl_jax.program import Participation
from graphfl_jax.runs import checkpoint, models, store, views
from graphfl_jax.runs.disk import writing
from graphfl_jax.runs.forms import LOST, NOTES, RECORD, count, misfit, read_json
from graphfl_jax.runs.identity import FREE_ON_RESUME, Identity, digest_of_config
from graphfl_jax.runs.results import DESCRIPTION, as_json, row_line

UNKNOWN = -(2**40)  # rounds that a client trained; less than 0 with any number of known ones
WRITTEN_AT_THE_END = (models.FILE, views.TABLE, views.PLOT, views.REPORT)
WRITTEN = ("config.json", "identity.json", "metrics.jsonl", "results.json", DESCRIPTION)
WRITTEN += WRITTEN_AT_THE_END


class RunFolder:
    """Writes one run. It writes nothing before `begin`, and is locked from then to `close`.

    Attributes:
      record: of the run in the folder, if it is resumed: the newest identity, and those before.
      identity: of this run.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        config: ConfigDict,
        *,
        resume: bool,
        accept_changes: bool = False,
    ):
        """Checks that the folder can take this run.

        Args:
          path: of the folder; `NewFolders` with one folder are made by `begin`.
          config: of the run.
          resume: as of `graphfl_jax.run`.
          accept_changes: as of `graphfl_jax.run`.

        Raises:
          ValueError: it cannot be written; it holds a run and `resume` is false, or none and
            `resume` is true; it holds a run of another configuration, a sweep or tables.
        """
        self.path = Path(path)
        self.new = path if isinstance(path, store.NewFolders) else None
        self.config = config
        self.resume = resume
        self.accept_changes = accept_changes
        self.lock = self.record = None
        _check_path(self.path)
        if self.new is None:
            self._check_run()
        else:  # another process may have taken the path, and `begin` takes the next
            store.check_folder(self.path)

    def _check_run(self):
        store.check_folder(self.path, store.RUN)
        store.check_folder(self.path / "checkpoints")
        if self.resume:
            self._check_rounds()
            self._check_fields()
            return
        if store.content_of(self.path):
            raise ValueError(
                f"out={self.path} already holds a run; add --resume to go on with it, or "
                f"choose another --out"
            )
        for name in WRITTEN_AT_THE_END:
            if (self.path / name).exists():
                raise ValueError(
                    f"out={self.path} has a file {name}, which the run would replace; choose "
                    f"another --out"
                )

    def _check_fields(self):
        before = current_values(flatten_dict(config_in(self.path), sep="."))
        now, _ = values_of(self.config)
        fields = (before.keys() | now.keys()) - FREE_ON_RESUME
        choosing = choices()
        for field in sorted(fields, key=lambda name: (name not in choosing, name)):
            if before.get(field) != now.get(field):
                raise ValueError(
                    f"{field}={now.get(field)!r} differs from {before.get(field)!r} in the run "
                    f"of {self.path}; resume with that, or choose another --out"
                )

    def _check_rounds(self):
        """Refuses to play fewer rounds than the results have."""
        results = results_in(self.path, {"rounds": count})
        played = results["rounds"] if results else 0
        if self.config.rounds < played:
            raise ValueError(
                f"rounds={self.config.rounds} is less than the {played} of the results in "
                f"{self.path}; set --config.rounds={played} or more, or choose another --out"
            )

    def check(self, identity: Identity) -> None:
        """Checks that the run in the folder, if it is resumed, can be continued as this run.

        Raises:
          ValueError: config.json was changed, or `store.refusal` gives a reason.
        """
        self.identity = identity
        if not self.resume:
            return
        config = digest_of_config(config_in(self.path))
        self.record = self._read_record() or {
            "identity": identity | {"config": config} | LOST,
            "accepted_changes": [],
        }
        identities = store.identities_of(self.record)
        if identity["config_file"] is None:  # the fields come from config.json or from Python
            self.identity = identity | {"config_file": identities[0]["config_file"]}
        if config not in [before["config"] for before in identities]:
            raise ValueError(
                f"out={self.path}: config.json was changed since the run began; put its fields "
                f"back, or choose another --out"
            )
        if why := store.refusal(self.record, identity, accept_changes=self.accept_changes):
            raise ValueError(f"out={self.path}: {why}")

    @property
    def init(self) -> str:
        """The digest of the server's state from which the run in the folder began, if it is
        resumed and began from that of another run."""
        record = self._read_record() if self.resume else None
        return record["identity"].get("init", "") if record else ""

    def _read_record(self) -> store.Record | None:
        """What identity.json holds; None if it is missing."""
        path = self.path / "identity.json"
        try:
            record = read_json(path, RECORD)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(
                f"{path} is damaged; remove it and resume with --accept_changes, or choose "
                f"another --out"
            ) from error
        accepted = [LOST | identity for identity in record["accepted_changes"]]
        return record | {"accepted_changes": accepted}

    @property
    def accepted_changes(self) -> list[Identity]:
        """Other identities under which some rounds were played, each once."""
        identities = store.identities_of(self.record) if self.record else []
        return [
            before
            for i, before in enumerate(identities)
            if before != self.identity and before not in identities[:i]
        ]

    @property
    def of_other_code(self) -> bool:
        """Whether the last rounds in the folder are of other code, which was accepted."""
        return bool(store.changed_code(self.record["identity"], self.identity))

    def begin(
        self,
        template: State,
        task: Task,
        clients: Sequence[str],
        identity: Identity,
        where: dict,
    ) -> checkpoint.Checkpoint | None:
        """Locks the folder, and restores the newest valid checkpoint in it if it is resumed.

        Args:
          template: shapes and dtypes of the state.
          task: of the rows that `append` writes.
          clients: their names.

        Returns:
          The checkpoint to continue from, or None at the start of a run.

        Raises:
          ValueError: as `check`; or another process writes into the folder, its checkpoint is
            of another run or of more rounds, or it has results and no checkpoint.
        """
        self.task, self.clients = task, clients
        self.where = where
        with writing(self.path):
            if self.new is not None:
                (self.path,) = self.new.make()
            self.path.mkdir(parents=True, exist_ok=True)
        self.lock = store.lock(self.path)
        self._check_run()  # again, since another process may have ended in the meantime
        self.check(identity)
        newest = None
        if self.resume:
            newest = checkpoint.latest(self.path / "checkpoints", template)
            self._check_checkpoint(newest)
            self._warn_of_changes()
            self._remove_outdated(newest)
        # First, so that a folder with a configuration has an identity too.
        record = {"identity": self.identity, "accepted_changes": self.accepted_changes}
        checkpoint.write_json(self.file("identity.json"), record)
        checkpoint.write_json(self.file("config.json"), self.config.to_dict())
        lines = [row_line(row, task, clients) for row in self.rows(newest)]
        checkpoint.write_text(self.file("metrics.jsonl"), "".join(lines))
        return newest

    def _check_checkpoint(self, newest):
        if newest is None:
            results = results_in(self.path, {"rounds": count, "diverged": bool})
            if results and results["diverged"]:
                raise ValueError(
                    f"out={self.path} has a run that diverged, and no checkpoint from before; "
                    f"choose another --out, and lower learning rates"
                )
            if results and results["rounds"] == self.config.rounds:
                raise ValueError(
                    f"out={self.path} has the results of all rounds, and no valid checkpoint, "
                    f"so a resumed run would replace them; choose another --out, or remove "
                    f"results.json"
                )
            return
        played = int(newest.state.round)
        if why := misfit(newest.notes, NOTES):
            raise ValueError(
                f"out={self.path}: the checkpoint of round {played} is damaged (notes: {why}); "
                f"remove it, or choose another --out"
            )
        identity = newest.notes["identity"]
        written = {"identity": identity, "accepted_changes": []}
        if why := store.refusal(written, self.identity, accept_changes=True):
            raise ValueError(f"out={self.path}: {why}")
        if not self._is_ours(newest.notes):
            raise ValueError(
                f"out={self.path}: the checkpoint of round {played} is of another run; put the "
                f"run's own checkpoints back, or choose another --out"
            )
        if played > self.config.rounds:
            raise ValueError(
                f"rounds={self.config.rounds} is less than the {played} already played in "
                f"{self.path}; set --config.rounds={played} or more"
            )
        before = newest.notes["where"]
        for what in ("device", "versions"):
            if before[what] != self.where[what]:
                warnings.warn(
                    f"{what} changed from {before[what]} to {self.where[what]}: the resumed "
                    f"run may differ from an uninterrupted one in the last bits",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def _is_ours(self, notes):
        """Whether a checkpoint with these notes is of this run."""
        if misfit(notes, NOTES):
            return False
        *_, oldest = identities = (
            store.identities_of(self.record) if self.record else [self.identity]
        )
        # Of a lost identity.json, only the configuration is left to compare.
        lost = oldest["source"] is None and oldest["config"] == notes["identity"]["config"]
        return notes["identity"] in [self.identity, *identities] or lost

    def _warn_of_changes(self):
        changes = [
            store.changed_code(before, self.identity) for before in self.accepted_changes
        ]
        differences = sorted(set(itertools.chain.from_iterable(changes)))
        if differences:
            warnings.warn(
                f"out={self.path} holds rounds of other code, which was accepted: "
                f"{', '.join(differences)}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _remove_outdated(self, newest):
        """Removes what is of fewer rounds, and the rest of processes that were killed."""
        if newest is None or newest.state.round < self.config.rounds:
            for name in ("results.json", *WRITTEN_AT_THE_END):
                (self.path / name).unlink(missing_ok=True)
        checkpoint.remove_parts(self.path, *WRITTEN)

    @staticmethod
    def rows(newest: checkpoint.Checkpoint | None) -> list[dict]:
        """The evaluations in a checkpoint's history, oldest first."""
        if newest is None:
            return []
        history, count = dict(newest.history), len(newest.history["round"])
        packed = history.pop("participation", None)
        if packed is None:  # of an older release: nobody knows who trained
            some = jax.tree.leaves(history["scores"])[0]
            unknown = np.full(some.shape, UNKNOWN)
            first = np.full((count, 2), -1)
            packed = {"trained": unknown, "not_finite": np.zeros_like(unknown), "first": first}
        rows = [jax.tree.map(lambda leaf: leaf[t], history) for t in range(count)]  # noqa: B023
        parts = _unpack(packed)
        return [row | {"participation": part} for row, part in zip(rows, parts, strict=True)]

    def file(self, name: str) -> Path:
        """The path of a file in the folder, just before it is written.

        Raises:
          FileNotFoundError: as `store.check_locked`.
        """
        store.check_locked(self.lock, self.path)
        return self.path / name

    def append(self, row: dict) -> None:
        """Adds an evaluation to metrics.jsonl."""
        path = self.file("metrics.jsonl")
        with writing(path), open(path, "a") as file:
            file.write(row_line(row, self.task, self.clients))

    def save(self, state: State, rows: list[dict], seconds: dict, clients: dict) -> None:
        """Writes a checkpoint of the state after the last of `rows`.

        Args:
          clients: of the session, what is beside the state.
        """
        others = [{k: v for k, v in row.items() if k != "participation"} for row in rows]
        history = jax.tree.map(lambda *leaves: np.stack(leaves), *others)
        history["participation"] = _pack([row["participation"] for row in rows])
        notes = {"identity": self.identity, "where": self.where, "seconds": seconds}
        newest = checkpoint.Checkpoint(state, history, notes, clients)
        checkpoint.save(self.file("checkpoints"), newest, is_ours=self._is_ours)

    def describe(self, content: dict) -> None:
        """Writes federation.json: at the beginning, so that an unfinished run has it too."""
        text = json.dumps(content, allow_nan=False) + "\n"
        checkpoint.write_text(self.file(DESCRIPTION), text)

    def finish(self, results: dict) -> None:
        """Writes results.json, which completes the run."""
        checkpoint.write_json(self.file("results.json"), as_json(results))

    def close(self) -> None:
        """Unlocks the folder."""
        if self.lock is not None:
            self.lock.close()


def _pack(parts: list[dict]) -> dict[str, np.ndarray]:
    """The participation of all rows in a few arrays.

    The entries of a row are after those of the row before, and ``counts`` has their numbers.
    There are no arrays without entries, which Orbax refuses.
    """
    packed = {
        name: np.concatenate([part[name] for part in parts])
        for name in ("ids", "trained", "not_finite")
    }
    packed = {name: leaf for name, leaf in packed.items() if len(leaf)}
    packed["counts"] = np.array([len(part["ids"]) for part in parts])
    return packed | {"first": np.stack([part["first"] for part in parts])}


def _unpack(packed: dict[str, np.ndarray]) -> list[dict]:
    """The participation of each row, from what `_pack` made of it.

    Older releases have arrays [rows, N] of all clients, without ``counts``.
    """
    if "counts" not in packed:
        rows = zip(packed["trained"], packed["not_finite"], packed["first"], strict=True)
        return [Participation(*row).sparse()._asdict() for row in rows]
    ends, none = np.cumsum(packed["counts"])[:-1], np.zeros(0, np.int32)
    of_clients = (
        np.split(packed.get(name, none), ends) for name in ("trained", "not_finite", "ids")
    )
    rows = zip(*of_clients, packed["first"], strict=True)
    return [
        Participation(trained, not_finite, first, ids)._asdict()
        for trained, not_finite, ids, first in rows
    ]


def _check_path(path):
    """Refuses a path that cannot be written, or in which checkpoints would be lost."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"out={ascii(str(path))} has characters that cannot be written with this locale; "
            f"set LC_ALL=C.UTF-8, or choose another --out"
        ) from None
    if "[" in str(path.absolute()):
        # Orbax takes it for a pattern, does not find its own files, and drops them.
        raise ValueError(
            f"out={path} has a bracket in its path, and checkpoints would be lost; choose "
            f"another --out"
        )


def configuration_in(path: Path) -> ConfigDict:
    """The configuration of the run in a folder.

    Raises:
      ValueError: the folder holds no run, or its configuration cannot be read.
    """
    store.check_folder(path, store.RUN)
    fields = flatten_dict(config_in(path), sep=".")
    try:
        return configuration(current_values(fields))
    except ValueError as error:
        known = "is unknown" not in str(error)
        remedy = "" if known else "; or add the --config of the run, if its file registers it"
        raise ValueError(f"{path}/config.json: {error}{remedy}") from error


def config_in(path: Path) -> dict[str, Any]:
    """The content of config.json of the run in a folder.

    Raises:
      ValueError: the folder holds no run, or its configuration cannot be read.
    """
    if not store.content_of(path):
        raise ValueError(
            f"out={path} holds no run to resume; leave --resume out, or correct --out"
        )
    try:
        return read_json(path / "config.json", dict)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{path}/config.json is missing or damaged, and the run cannot be resumed without "
            f"it; choose another --out"
        ) from error


def results_in(path: Path, form: dict[str, Any]) -> dict[str, Any] | None:
    """The results of a form of the run in a folder.

    Returns:
      None if results.json is missing or damaged. A resumed run writes it again.
    """
    try:
        return read_json(path / "results.json", form)
    except (FileNotFoundError, ValueError):
        return None
