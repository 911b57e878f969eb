"""Points that Optuna's TPE sampler chooses, a batch at a time.

The sampler is asked for a batch of points, and gets their validation scores when all of them
have ended. Its draws depend only on its seed and on the scores. So a sweep that continues asks
for the same points again, gives it the scores in its log, and goes on as if it had not ended.
"""

from pathlib import Path
from typing import Any

import numpy as np

from graphfl_jax.commands.common.statistics import diverged
from graphfl_jax.commands.sweeping.grid import configure_point, domains_of
from graphfl_jax.runs.batch import fields_text, with_seed
from graphfl_jax.runs.stopping import is_pruned
from graphfl_jax.runs.sweep import Point


class Search:
    """A search by TPE.

    Attributes:
      left: number of points that are not asked for yet.
    """

    def __init__(self, axes: dict[str, list[str]], samples: int, batch: int):
        """Begins a search of `samples` points, of which `ask` gives `batch` at once.

        Raises:
          ValueError: Optuna is not installed, or an axis does not fit.
        """
        try:
            import optuna
        except ImportError:
            raise ValueError(
                "sampler=tpe needs Optuna, which is not installed; run pip install optuna"
            ) from None
        self.domains = domains_of(axes)
        self.left, self.batch = samples, batch
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # A point of the same batch has no score yet: the sampler then takes it for a bad one.
        sampler = optuna.samplers.TPESampler(seed=0, constant_liar=True)
        # It minimises; scores of which higher ones are better become negative numbers.
        self.study = optuna.create_study(sampler=sampler, direction="minimize")
        self.pruned = optuna.trial.TrialState.PRUNED
        self.asked = []

    def ask(self) -> list[Point]:
        """The points of the next batch."""
        count = min(self.batch, self.left)
        self.left -= count
        self.asked = [self.study.ask() for _ in range(count)]
        return [
            {field: _draw(trial, field, domain) for field, domain in self.domains.items()}
            for trial in self.asked
        ]

    def record(self, runs: list[list[dict]]) -> None:
        """Gives the sampler the scores of the last batch.

        Args:
          runs: for each point of `ask` the lines of its runs. A point with a diverged run
            counts as worse than all others, and a pruned one as worse than those that had more
            rounds.
        """
        for trial, lines in zip(self.asked, runs, strict=True):
            if any(map(diverged, lines)):
                self.study.tell(trial, state=self.pruned)
                continue
            mean = np.mean([line["validation"]["final"]["P"]["mean"] for line in lines])
            cost = float(-mean if lines[0]["higher_is_better"] else mean)
            if any(map(is_pruned, lines)):
                trial.report(cost, step=lines[0]["rounds"])
                self.study.tell(trial, state=self.pruned)
            else:
                self.study.tell(trial, cost)


def _draw(trial, field, domain) -> Any:
    if isinstance(domain, list):
        return domain[trial.suggest_categorical(field, list(range(len(domain))))]
    law, low, high = domain
    return trial.suggest_float(field, low, high, log=law == "log")


def _names_of(point, seeds):
    """The names of the runs of a point."""
    config = configure_point(point)[0]
    return [fields_text(with_seed(config, seed)) for seed in seeds]


def runs_of(points: list[Point], records: dict[str, dict], seeds: int) -> list[list[dict]]:
    """For each point the lines of its runs, with seeds 0, 1, ..., that are among `records`."""
    return [
        [records[name] for name in _names_of(point, range(seeds)) if name in records]
        for point in points
    ]


def check_seeds(path: Path, points: list[Point], records: dict[str, dict], seeds: int) -> None:
    """Checks that a search goes on with the seeds with which it began.

    Args:
      path: of the log.
      points: of the first batch, which is complete if the log has runs of later ones.
      records: the lines of the log by the names of their runs.
      seeds: of every point.

    Raises:
      ValueError: the log has other seeds, so TPE would choose other points than before.
    """
    before = {line["seed"] for line in records.values()}
    first = {name for point in points for name in _names_of(point, before)}
    complete = not records.keys() <= first
    if max(before, default=0) >= seeds or (complete and len(before) < seeds):
        raise ValueError(
            f"seeds={seeds} is not the number of seeds in {path}, and TPE chooses points by "
            f"means over all seeds; set --seeds as before, or choose another --out"
        )
