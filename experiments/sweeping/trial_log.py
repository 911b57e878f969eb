"""The file of a sweep: a line of JSON for every run that ended, written once and never lost."""

import fcntl
import json
import os
import warnings
from pathlib import Path

from graphfl_jax.metrics import summary
from graphfl_jax.runs.batch import Outcome, recorded_identity
from graphfl_jax.runs.checkpoint import write_text
from graphfl_jax.runs.folder import check_folder
from graphfl_jax.runs.results import POINTS, environment
from graphfl_jax.runs.sweep import Planned
from graphfl_jax.runs.sweep import TrialGroup as Group

NAME = "trials.jsonl"


class TrialLog:
    """trials.jsonl in the folder of a sweep; a context, in which nobody else writes there."""

    def __init__(self, out: Path, groups: list[Group], *, resume: bool):
        """Checks that the folder can take this sweep; nothing is written yet.

        Raises:
          ValueError: it cannot be written, or it holds a sweep and `resume` is false.
        """
        check_folder(out)
        self.path = out / NAME
        self.groups = groups
        self.planned = {
            one.identity: group.federations[one.trial.seed].sha256
            for group in groups
            for one in group.planned
        }
        if self.path.exists() and not resume:
            raise ValueError(
                f"out={out} already holds a sweep; add --resume to go on with it, or choose "
                f"another --out"
            )

    def __enter__(self):
        """Takes the file, and reads the runs that it has.

        A last line that was not written to its end is dropped.

        Raises:
          ValueError: another process writes it, or it has runs that this sweep has not.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.path.with_suffix(".lock"), "w")  # noqa: SIM115
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"another process writes {self.path}; wait for its end") from None
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
                        f"{self.path}: line {number} is damaged; its run is made again",
                        RuntimeWarning,
                        stacklevel=4,
                    )
                    continue
                line["trial"] = recorded_identity(line["trial"])
                line["new_clients"] = line.pop("novel", line.get("new_clients"))
                found[line["trial"]] = line
        return found

    def _check(self):
        here, elsewhere = environment(), set()
        for mark, line in self.found.items():
            if mark not in self.planned:
                raise ValueError(
                    f"{self.path} has a run that this sweep has not, {line['point']} with seed "
                    f"{line['seed']}; add it to the grid, or choose another --out"
                )
            if line["dataset"]["sha256"] != self.planned[mark]:
                raise ValueError(f"the data are not those of {self.path}; choose another --out")
            elsewhere |= {what for what, value in here.items() if line[what] != value}
        for what in sorted(elsewhere):
            warnings.warn(
                f"{what} is another than for some runs that {self.path} has",
                RuntimeWarning,
                stacklevel=3,
            )

    def unfinished(self) -> list[Group]:
        """The groups, with those of their runs that the file has not."""
        left = [
            group._replace(planned=[p for p in group.planned if p.identity not in self.found])
            for group in self.groups
        ]
        return [group for group in left if group.planned]

    def write(self, group: Group, planned: Planned, outcome: Outcome) -> None:
        """Adds a run, and returns when it is on disk.

        Raises:
          ValueError: it was made with other data than this host has.
        """
        results = outcome.results
        if results["dataset"]["sha256"] != group.federations[planned.trial.seed].sha256:
            raise ValueError(
                f"a run used other data ({results['dataset']['source']}) than this host has; "
                f"put the same files in {group.config.data.root} of every node"
            )
        line = {"trial": planned.identity, "point": planned.point, **results}
        line["validation"] = None
        if not results["diverged"]:
            better = results["higher_is_better"]
            final = outcome.rows[-1]["scores"]["val"]
            line["validation"] = {
                "final": {
                    point: summary(final[point], higher_is_better=better) for point in POINTS
                },
                "new_clients": [float(told["val"]["P"].mean()) for told in outcome.new_clients],
            }
        self.found[planned.identity] = line
        self.file.write(_text(line))
        self.file.flush()
        os.fsync(self.file.fileno())

    def lines(self) -> list[dict]:
        """The runs of the file, in the order of the sweep."""
        return [self.found[one.identity] for group in self.groups for one in group.planned]


def _text(line):
    return json.dumps(line) + "\n"
