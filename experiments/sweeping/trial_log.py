"""The log of a sweep: one line of JSON for every run that ended, safe against interruption."""

import fcntl
import json
import os
import warnings
from pathlib import Path

from graphfl_jax.configs.renamed import current
from graphfl_jax.runs.batch import Outcome, recorded_identity
from graphfl_jax.runs.checkpoint import write_text
from graphfl_jax.runs.folder import check_folder
from graphfl_jax.runs.results import environment
from graphfl_jax.runs.sweep import Planned, TrialGroup

NAME = "trials.jsonl"


class TrialLog:
    """trials.jsonl in the folder of a sweep. As a context, it locks the file.

    Attributes:
      planned: digests of the data of all runs of the sweep, by the runs' identities.
      found: lines of the runs that the file has, by their identities.
    """

    def __init__(self, out: Path, groups: list[TrialGroup], *, resume: bool):
        """Checks that the folder can take this sweep. Nothing is written yet.

        Raises:
          ValueError: the folder cannot be written, or it holds a sweep and `resume` is false.
        """
        check_folder(out)
        self.out, self.path = out, out / NAME
        self.groups = groups
        self.planned = {
            planned.identity: group.federations[planned.trial.seed].sha256
            for group in groups
            for planned in group.planned
        }
        if self.path.exists() and not resume:
            raise ValueError(
                f"out={out} already holds a sweep; add --resume to continue it, or choose "
                f"another --out"
            )

    def __enter__(self):
        """Locks the file and reads its runs. An incomplete line is dropped, with a warning.

        Raises:
          ValueError: another process has locked the file, or the file has runs that are not in
            this sweep.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.path.with_suffix(".lock"), "w")  # noqa: SIM115
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"out={self.out}: another process writes {NAME}; wait until it has ended"
            ) from None
        self.found = self._read()
        self._check()
        write_text(self.path, "".join(_text(line) for line in self.found.values()))
        self.file = open(self.path, "a")  # noqa: SIM115
        return self

    def __exit__(self, *error):
        self.file.close()
        self.lock.close()

    def _read(self):
        found = {}
        if self.path.exists():
            for number, text in enumerate(self.path.read_text().splitlines(keepends=True), 1):
                try:
                    line = json.loads(text)
                except ValueError:
                    warnings.warn(
                        f"{self.path}: line {number} is damaged; its run is repeated",
                        RuntimeWarning,
                        stacklevel=4,
                    )
                    continue
                line = _with_current_names(line)
                found[line["trial"]] = line
        return found

    def _check(self):
        here, changed = environment(), set()
        for identity, line in self.found.items():
            if identity not in self.planned:
                raise ValueError(
                    f"out={self.out} has a run that is not in this sweep, {line['point']} with "
                    f"seed {line['seed']}; add it to the sweep, or choose another --out"
                )
            if line["dataset"]["sha256"] != self.planned[identity]:
                raise ValueError(
                    f"out={self.out}: the data differ from those of its runs; choose another "
                    f"--out"
                )
            changed |= {what for what, value in here.items() if line[what] != value}
        for what in sorted(changed):
            warnings.warn(
                f"{what} differs from that of runs in {self.path}",
                RuntimeWarning,
                stacklevel=3,
            )

    def unfinished(self) -> list[TrialGroup]:
        """The groups, without the runs that the file has."""
        left = [
            group._replace(planned=[p for p in group.planned if p.identity not in self.found])
            for group in self.groups
        ]
        return [group for group in left if group.planned]

    def write(self, group: TrialGroup, planned: Planned, outcome: Outcome) -> None:
        """Adds a run. Returns when it is on disk.

        Raises:
          ValueError: the run used other data than this host has.
        """
        results = outcome.results
        if results["dataset"]["sha256"] != group.federations[planned.trial.seed].sha256:
            raise ValueError(
                f"data.source={results['dataset']['source']}: a node has other data than this "
                f"host; put the same files into {group.config.data.root} on every node"
            )
        line = {"trial": planned.identity, "point": planned.point, **results}
        line["validation"] = None
        if not results["diverged"]:
            line["validation"] = {
                "final": results["scores"]["validation"],
                "new_clients": [
                    float(scores["val"]["P"].mean()) for scores in outcome.new_clients
                ],
            }
        self.found[planned.identity] = line
        self.file.write(_text(line))
        self.file.flush()
        os.fsync(self.file.fileno())

    def lines(self) -> list[dict]:
        """The runs of the file, in the order of the sweep, with the points of the sweep.

        The last release wrote points with fields that their methods do not read.
        """
        return [
            self.found[planned.identity] | {"point": planned.point}
            for group in self.groups
            for planned in group.planned
        ]


def _with_current_names(line):
    """A line that the last release may have written, with the names of this one."""
    line = dict(line)
    line["trial"] = recorded_identity(line["trial"])
    line["point"] = dict(current(field, value) for field, value in line["point"].items())
    for part in (line, line["validation"] or {}):
        if "novel" in part:
            part["new_clients"] = part.pop("novel")
    return line


def _text(line):
    return json.dumps(line) + "\n"
