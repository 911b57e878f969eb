"""Summaries of scores over clients."""

import numpy as np

from graphfl_jax import tree
from graphfl_jax.core import Task
from graphfl_jax.evaluation import POINTS
from graphfl_jax.metrics import summary


def summaries(scores: dict, task: Task) -> dict:
    """`metrics.summary` of the clients' scores at each point."""
    return {
        point: summary(scores[point], higher_is_better=task.higher_is_better)
        for point in POINTS
        if point in scores
    }


def mean_scores(scores: dict, rows: np.ndarray, task: Task) -> dict[str, float]:
    """The means of some clients' scores at each point."""
    chosen = summaries(tree.take(scores, rows), task)
    return {point: own["mean"] for point, own in chosen.items()}
