"""Successive halving: runs that are worse than others after as many rounds end early.

Li, Jamieson, Rostamizadeh, Gonina, Ben-Tzur, Hardt, Recht, Talwalkar. A System for Massively
Parallel Hyperparameter Tuning. MLSys 2020. https://arxiv.org/abs/1810.05934. The rule is that
of ASHA. The runs of a batch reach a rung together, and are compared with each other and with
all runs that were there before. A run that ends is not continued later.
"""

import numpy as np

from graphfl_jax.runs.stopping import PRUNED

FACTOR = 4  # a rung has so many times the evaluations of the one before; one of so many goes on


class Halving:
    """The validation scores of the runs of a sweep at its rungs, and who goes on.

    The rungs are the evaluations 1, 4, 16, ... of a run. With n runs at a rung so far, those
    that have just come go on if they are among the best n / 4 of all, or are the best.

    Args:
      higher_is_better: whether high scores are good.
    """

    def __init__(self, *, higher_is_better: bool):
        self.sign = -1.0 if higher_is_better else 1.0
        self.costs = {}  # of the runs at each rung, by the number of evaluations

    def add(self, curve: list[float]) -> None:
        """Adds a run that has ended, with its score in each evaluation."""
        for count in range(1, len(curve) + 1):
            if _is_rung(count):
                self._at(count).append(self._cost(curve[count - 1]))

    def judge(self, rows: dict[int, list[dict]]) -> dict[int, str]:
        """Why runs that are played together end now, as `batch.run_trials` asks."""
        counts = {len(of_run) for of_run in rows.values()}
        if not any(map(_is_rung, counts)):
            return {}
        (count,) = counts
        costs = {
            i: self._cost(np.mean(of_run[-1]["scores"]["val"]["P"], dtype=np.float64))
            for i, of_run in rows.items()
        }
        at_rung = self._at(count)
        at_rung += costs.values()
        limit = sorted(at_rung)[max(1, len(at_rung) // FACTOR) - 1]
        why = f"{PRUNED}: P on validation is not among the best of {len(at_rung)} runs"
        return {i: why for i, cost in costs.items() if cost > limit}

    def _at(self, count):
        return self.costs.setdefault(count, [])

    def _cost(self, score):
        """A score of which less is better; infinite if the score is not finite."""
        return self.sign * float(score) if score is not None and np.isfinite(score) else np.inf


def _is_rung(count):
    """Whether a number of evaluations is a power of `FACTOR`."""
    while count > 1 and count % FACTOR == 0:
        count //= FACTOR
    return count == 1
