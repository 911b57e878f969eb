"""A run's folder: config.json, metrics.jsonl, checkpoints/ and, at the end, results.json."""

import json
import os
import warnings
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.configs.values import flat, recorded, values_of
from graphfl_jax.core import State, Task
from graphfl_jax.runs import checkpoint
from graphfl_jax.runs.results import row_line

# Fields that may differ on resume: they change where and how long a run is, not its results.
PATHS = {"data.path", "data.root", "data.download"}
FREE_ON_RESUME = {"rounds", "checkpoint_every", *PATHS}
FILES = ("config.json", "metrics.jsonl", "results.json", "checkpoints")


class RunFolder:
    """Writes one run. It writes nothing before `begin`."""

    def __init__(self, path: str | os.PathLike, config: ConfigDict, *, resume: bool):
        """Checks that the folder can take this run.

        Raises:
          ValueError: it cannot be written; it holds a run and `resume` is false; or it holds a
            run of another configuration.
        """
        self.path = Path(path)
        self.config = config
        self.resume = resume
        check_folder(self.path)
        if "[" in str(self.path.absolute()):
            # Orbax takes it for a pattern, does not find its own files, and drops them.
            raise ValueError(
                f"out={self.path} has a bracket in its path, and checkpoints would be lost; "
                f"choose another --out"
            )
        if not resume and any((self.path / name).exists() for name in FILES):
            raise ValueError(
                f"out={self.path} already holds a run; add --resume to go on with it, "
                f"or choose another --out"
            )
        if resume and any((self.path / name).exists() for name in FILES):
            self._check_same_config()

    def _check_same_config(self):
        before = recorded(flat(self._config_before()))
        now, _ = values_of(self.config)
        for field in sorted((before.keys() | now.keys()) - FREE_ON_RESUME):
            if before.get(field) != now.get(field):
                raise ValueError(
                    f"{field}={now.get(field)!r} differs from {before.get(field)!r} in the run "
                    f"of {self.path}; resume with that, or choose another --out"
                )

    def _config_before(self):
        try:
            return json.loads((self.path / "config.json").read_text())
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(
                f"{self.path}/config.json is missing or damaged, and the run cannot be "
                f"resumed without it; choose another --out"
            ) from error

    def begin(
        self, template: State, task: Task, identity: dict
    ) -> checkpoint.Checkpoint | None:
        """Creates the folder, or restores the newest valid checkpoint in it.

        Args:
          template: shapes and dtypes of the state.
          task: of the rows that `append` writes.
          identity: ``{"data": sha256, "device": ..., "versions": ...}`` of this run.

        Returns:
          The checkpoint to continue from, or None at the start of a run.
        """
        self.task = task
        self.identity = identity
        found = None
        if self.resume:
            found = checkpoint.latest(self.path / "checkpoints", template)
        if found is not None:
            self._check_identity(found)
        self.path.mkdir(parents=True, exist_ok=True)
        if found is None or found.state.round < self.config.rounds:
            (self.path / "results.json").unlink(missing_ok=True)  # of fewer rounds
        checkpoint.write_json(self.path / "config.json", self.config.to_dict())
        lines = [row_line(row, task) for row in self.rows(found)]
        checkpoint.write_text(self.path / "metrics.jsonl", "".join(lines))
        return found

    def _check_identity(self, found):
        before = found.notes["identity"]
        played = int(found.state.round)
        if before["data"] != self.identity["data"]:
            raise ValueError(
                f"data.name={self.config.data.name}: the data differ from those of the run in "
                f"{self.path} (sha256 {self.identity['data'][:12]}, not "
                f"{before['data'][:12]}); choose another --out"
            )
        if played > self.config.rounds:
            raise ValueError(
                f"rounds={self.config.rounds} is less than the {played} already played in "
                f"{self.path}; set --config.rounds={played} or more"
            )
        for what in ("device", "versions"):
            if before[what] != self.identity[what]:
                warnings.warn(
                    f"{what} changed from {before[what]} to {self.identity[what]}: the resumed "
                    f"run may differ from an uninterrupted one in the last bits",
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
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(row_line(row, self.task))

    def save(self, state: State, rows: list[dict], seconds: dict) -> None:
        """Writes a checkpoint of the state after the last of `rows`."""
        history = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        notes = {"identity": self.identity, "seconds": seconds}
        checkpoint.save(self.path / "checkpoints", checkpoint.Checkpoint(state, history, notes))

    def finish(self, results: dict) -> None:
        """Writes results.json, which completes the run."""
        checkpoint.write_json(self.path / "results.json", results)


def check_folder(path: Path) -> None:
    """Checks that a folder can be written or made; makes nothing.

    Raises:
      ValueError: it cannot.
    """
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ValueError(f"out={path} cannot be written; choose another --out")
