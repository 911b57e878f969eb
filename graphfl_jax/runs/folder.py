"""A run's folder: configuration, identity, metrics, checkpoints and, at the end, results."""

import fcntl
import itertools
import json
import os
import warnings
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.configs.fields import choices
from graphfl_jax.configs.values import configuration, flat, recorded, values_of
from graphfl_jax.core import State, Task
from graphfl_jax.runs import checkpoint, description, models, views
from graphfl_jax.runs.disk import why_not_writable, writing
from graphfl_jax.runs.identity import (
    FREE_ON_RESUME,
    Identity,
    accepted,
    changed_code,
    check_same_code,
    check_same_data,
    digest_of_config,
)
from graphfl_jax.runs.results import row_line

LOCK = ".lock"
RUN, SWEEP, TABLES = "a run", "a sweep", "runs of tables or figures"
# What a folder holds, by the names in it, with * for any text. A folder holds one of these.
HOLDS = {
    RUN: ("config.json", "metrics.jsonl", "results.json", "checkpoints"),
    SWEEP: ("trials.jsonl", "trials-*-of-*.jsonl"),
    TABLES: ("cached_runs",),
}
WRITTEN_AT_THE_END = (models.FILE, views.TABLE, views.PLOT, views.REPORT)
# What is read of an identity, and that of a run of the last release.
PARTS = {"config", "data", "source", "config_file", "callables"}
OLD_PARTS = {"config", "data"}


class RunFolder:
    """Writes one run. It writes nothing before `begin`, and is locked from then to `close`."""

    def __init__(
        self,
        path: str | os.PathLike,
        config: ConfigDict,
        *,
        resume: bool,
        accept_changes: bool = False,
    ):
        """Checks that the folder can take this run.

        Raises:
          ValueError: it cannot be written; it holds a run and `resume` is false, or none and
            `resume` is true; it holds a run of another configuration, a sweep or tables.
        """
        self.path = Path(path)
        self.config = config
        self.resume = resume
        self.accept_changes = accept_changes
        self.lock = None
        try:
            str(self.path.absolute()).encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"out={ascii(str(self.path))} has characters that cannot be written with this "
                f"locale; set LC_ALL=C.UTF-8, or choose another --out"
            ) from None
        if "[" in str(self.path.absolute()):
            # Orbax takes it for a pattern, does not find its own files, and drops them.
            raise ValueError(
                f"out={self.path} has a bracket in its path, and checkpoints would be lost; "
                f"choose another --out"
            )
        self._check_run()

    def _check_run(self):
        check_folder(self.path, RUN)
        check_folder(self.path / "checkpoints")
        if not self.resume:
            if held(self.path):
                raise ValueError(
                    f"out={self.path} already holds a run; add --resume to go on with it, "
                    f"or choose another --out"
                )
            for name in WRITTEN_AT_THE_END:
                if (self.path / name).exists():
                    raise ValueError(
                        f"out={self.path} has a file {name}, which the run would replace; "
                        f"choose another --out"
                    )
            return
        self._check_results()
        before = recorded(flat(config_in(self.path)))
        now, _ = values_of(self.config)
        fields = (before.keys() | now.keys()) - FREE_ON_RESUME
        choosing = choices()
        for field in sorted(fields, key=lambda field: (field not in choosing, field)):
            if before.get(field) != now.get(field):
                raise ValueError(
                    f"{field}={now.get(field)!r} differs from {before.get(field)!r} in the run "
                    f"of {self.path}; resume with that, or choose another --out"
                )

    def _rounds_of_results(self):
        """The rounds of results.json; 0 if it is missing or damaged, and is written again."""
        try:
            return int(json.loads((self.path / "results.json").read_text())["rounds"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0

    def _check_results(self):
        """Refuses to play fewer rounds than the results have."""
        played = self._rounds_of_results()
        if self.config.rounds < played:
            raise ValueError(
                f"rounds={self.config.rounds} is less than the {played} of the results in "
                f"{self.path}; set --config.rounds={played} or more, or choose another --out"
            )

    def check(self, identity: Identity) -> None:
        """Checks that the run in the folder, if it is resumed, has the identity of this run.

        Raises:
          ValueError: its data or its split differ, its config.json was changed, or its code
            differs and changes are not accepted.
        """
        self.identity = identity
        self.made = []  # identities of the rounds in the folder, the newest first
        if not self.resume:
            return
        config, where = digest_of_config(config_in(self.path)), f"out={self.path}"
        self.made = self._recorded() or [{"data": identity["data"], "config": config}]
        if identity["config_file"] is None:  # the fields come from config.json or from Python
            self.identity = identity | {"config_file": self.made[0].get("config_file")}
        if config not in [one["config"] for one in self.made]:
            raise ValueError(
                f"{where}: config.json was changed since the run began; put its fields back, "
                f"or choose another --out"
            )
        check_same_data(self.made[0], identity, where=where)
        if not self.accept_changes:
            check_same_code(self.made, identity, where=where)

    @property
    def init(self) -> str:
        """The digest of the server's state from which the run in the folder began, if it is
        resumed and began from that of another run."""
        made = self._recorded() if self.resume else []
        return made[0].get("init", "") if made else ""

    def _recorded(self):
        """The identities in identity.json; none in a folder of the last release."""
        path = self.path / "identity.json"
        try:
            record = json.loads(path.read_text())
            made = [record["identity"], *record["accepted_changes"]]
            if not all(one.keys() >= PARTS or one.keys() == OLD_PARTS for one in made):
                raise KeyError("an identity lacks a part")
            if not all(isinstance(one.get("callables", {}), dict) for one in made):
                raise TypeError("callables are files and their digests")
            return made
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is damaged; remove it and resume with --accept_changes, or choose "
                f"another --out"
            ) from error

    @property
    def accepted_changes(self) -> list[Identity]:
        """Other identities under which some rounds were played."""
        return accepted(self.made, self.identity)

    def begin(
        self, template: State, task: Task, identity: Identity, where: dict
    ) -> checkpoint.Checkpoint | None:
        """Locks the folder, and restores the newest valid checkpoint in it if it is resumed.

        Args:
          template: shapes and dtypes of the state.
          task: of the rows that `append` writes.
          identity: of this run.
          where: `environment.environment` of this run.

        Returns:
          The checkpoint to continue from, or None at the start of a run.

        Raises:
          ValueError: as `check`; or another process writes into the folder, its checkpoint is
            of another run or of more rounds, or it has results and no checkpoint.
        """
        self.task = task
        self.where = where
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = lock(self.path)
        self._check_run()  # again, since another process may have ended in the meantime
        self.check(identity)
        found = None
        if self.resume:
            found = checkpoint.latest(self.path / "checkpoints", template)
        if found is not None:
            self._check_checkpoint(found)
        elif self.resume and self._rounds_of_results() == self.config.rounds:
            raise ValueError(
                f"out={self.path} has the results of all rounds, and no valid checkpoint, so a "
                f"resumed run would replace them; choose another --out, or remove results.json"
            )
        if self.accepted_changes:
            self._warn_of_changes()
        if self.resume:
            if found is None or found.state.round < self.config.rounds:
                for name in ("results.json", *WRITTEN_AT_THE_END):  # of fewer rounds
                    (self.path / name).unlink(missing_ok=True)
            for path in self.path.glob("*.part"):  # of processes that were killed
                path.unlink()
        # First, so that a folder with a configuration has an identity too.
        record = {"identity": self.identity, "accepted_changes": self.accepted_changes}
        checkpoint.write_json(self.path / "identity.json", record)
        checkpoint.write_json(self.path / "config.json", self.config.to_dict())
        lines = [row_line(row, task) for row in self.rows(found)]
        checkpoint.write_text(self.path / "metrics.jsonl", "".join(lines))
        return found

    def _check_checkpoint(self, found):
        own, played = found.notes["identity"], int(found.state.round)
        before = found.notes.get("where", own)  # the last release wrote one dictionary
        if "source" not in own:
            own = {"data": own["data"]}
        check_same_data(own, self.identity, where=f"out={self.path}")
        oldest = self.made[-1]
        unrecorded = "source" not in oldest and own.get("config") in (None, oldest["config"])
        if own not in self.made and not unrecorded:
            raise ValueError(
                f"out={self.path}: the checkpoint of round {played} is of another run; put the "
                f"run's own checkpoints back, or choose another --out"
            )
        if played > self.config.rounds:
            raise ValueError(
                f"rounds={self.config.rounds} is less than the {played} already played in "
                f"{self.path}; set --config.rounds={played} or more"
            )
        for what in ("device", "versions"):
            if before[what] != self.where[what]:
                warnings.warn(
                    f"{what} changed from {before[what]} to {self.where[what]}: the resumed "
                    f"run may differ from an uninterrupted one in the last bits",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def _warn_of_changes(self):
        changes = [changed_code(one, self.identity) for one in self.accepted_changes]
        if any(changes):
            differences = sorted(set(itertools.chain.from_iterable(changes)))
            warnings.warn(
                f"out={self.path} holds rounds of other code, which was accepted: "
                f"{', '.join(differences)}",
                RuntimeWarning,
                stacklevel=3,
            )

    @staticmethod
    def rows(found: checkpoint.Checkpoint | None) -> list[dict]:
        """The evaluations in a checkpoint's history, oldest first."""
        if found is None:
            return []
        count = len(found.history["round"])
        return [jax.tree.map(lambda leaf: leaf[t], found.history) for t in range(count)]  # noqa: B023

    def append(self, row: dict) -> None:
        """Adds an evaluation to metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        with writing(path), open(path, "a") as file:
            file.write(row_line(row, self.task))

    def save(self, state: State, rows: list[dict], seconds: dict) -> None:
        """Writes a checkpoint of the state after the last of `rows`."""
        history = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        notes = {"identity": self.identity, "where": self.where, "seconds": seconds}
        checkpoint.save(self.path / "checkpoints", checkpoint.Checkpoint(state, history, notes))

    def describe(self, content: dict) -> None:
        """Writes federation.json: at the beginning, so that an unfinished run has it too."""
        text = json.dumps(content, allow_nan=False) + "\n"
        checkpoint.write_text(self.path / description.FILE, text)

    def finish(self, results: dict) -> None:
        """Writes results.json, which completes the run."""
        checkpoint.write_json(self.path / "results.json", results)

    def close(self) -> None:
        """Unlocks the folder."""
        if self.lock is not None:
            self.lock.close()


def configuration_in(path: Path) -> ConfigDict:
    """The configuration of the run in a folder.

    Raises:
      ValueError: the folder holds no run, or its configuration cannot be read.
    """
    check_folder(path, RUN)
    try:
        return configuration(recorded(flat(config_in(path))))
    except ValueError as error:
        if "is unknown" not in str(error):
            raise
        raise ValueError(
            f"out={path}: {error}; or add the --config of the run, if its file registers it"
        ) from error


def config_in(path: Path) -> dict[str, Any]:
    """The content of config.json of the run in a folder.

    Raises:
      ValueError: the folder holds no run, or its configuration cannot be read.
    """
    if not held(path):
        raise ValueError(
            f"out={path} holds no run to resume; leave --resume out, or correct --out"
        )
    try:
        config = json.loads((path / "config.json").read_text())
        if not isinstance(config, dict):
            raise ValueError("config.json has no fields")
        return config
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{path}/config.json is missing or damaged, and the run cannot be resumed without "
            f"it; choose another --out"
        ) from error


def held(path: Path) -> str:
    """What a folder holds, one of `HOLDS`, or an empty string."""
    for what, names in HOLDS.items():
        if any(any(path.glob(name)) for name in names):
            return what
    return ""


def check_folder(path: Path, content: str = "") -> None:
    """Checks that a folder can be written or made; makes nothing.

    Args:
      path: of the folder.
      content: one of `HOLDS` that will be written, if it is one.

    Raises:
      ValueError: it cannot, or it holds another of `HOLDS`.
    """
    why = why_not_writable(path)
    if why:
        raise ValueError(f"out={path} cannot be written ({why}); choose another --out")
    if content and held(path) not in ("", content):
        raise ValueError(
            f"out={path} holds {held(path)}, and {content} needs a folder of its own; choose "
            f"another --out"
        )


def lock(path: Path, name: str = LOCK) -> IO:
    """Locks a folder until the returned file is closed, or this process ends.

    Args:
      path: of the folder.
      name: of the file that is locked. Processes that lock different files can share a folder.

    Raises:
      ValueError: another process has locked it.
      OSError: its file system has no locks.
    """
    file = open(path / name, "a")  # noqa: SIM115
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
