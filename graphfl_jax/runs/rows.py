"""Evaluations of a run: its rows, their lines in metrics.jsonl, and summaries over clients."""

import json

import numpy as np

from graphfl_jax import tree
from graphfl_jax.core import Task
from graphfl_jax.evaluation import POINTS, Evaluated
from graphfl_jax.metrics import metric_summary, summary
from graphfl_jax.program import Log


def row_of(played: int, log: Log, evaluated: Evaluated) -> dict:
    """One evaluation: ``{"round", "train": {name: []}, "scores": {split: {point: [N]}}}``.

    It has also ``"metrics"`` of `Evaluated`, if there are any, and ``"allocation"`` [N, N], if
    the method has one.
    """
    row = {"round": np.int32(played), "train": log.metrics, "scores": evaluated.scores}
    if any(evaluated.metrics.values()):
        row["metrics"] = evaluated.metrics
    return row | ({"allocation": evaluated.allocation} if len(evaluated.allocation) else {})


def row_fields(row: dict, task: Task) -> dict:
    """One evaluation of `row_of`, as JSON has it.

    Returns:
      ``round``; ``train``, the metrics of the training by name; for each split the
      `metrics.summary` of its scores at each point; and ``metrics``, as `metric_summaries`, and
      ``allocation``, if there are any.
    """
    fields = {
        "round": int(row["round"]),
        "train": {name: float(value) for name, value in row["train"].items()},
        **{split: summaries(scores, task) for split, scores in row["scores"].items()},
    }
    if "metrics" in row:
        fields["metrics"] = metric_summaries(row["metrics"])
    if "allocation" in row:
        fields["allocation"] = round_shares(row["allocation"])
    return fields


def row_line(row: dict, task: Task) -> str:
    """One evaluation of `row_of` as a line of JSON."""
    return json.dumps(row_fields(row, task), allow_nan=False) + "\n"


def summaries(scores: dict, task: Task) -> dict:
    """`metrics.summary` of the clients' scores at each point."""
    return {
        point: summary(scores[point], higher_is_better=task.higher_is_better)
        for point in POINTS
        if point in scores
    }


def mean_scores(scores: dict, rows: np.ndarray, task: Task) -> dict[str, float]:
    """The means of some clients' scores at each point."""
    at_points = summaries(tree.take(scores, rows), task)
    return {point: values["mean"] for point, values in at_points.items()}


def metric_summaries(metrics: dict) -> dict:
    """Each `metrics.metric_summary` by point and name, of `Evaluated.metrics`."""
    return {
        point: {name: metric_summary(**values) for name, values in at_point.items()}
        for point, at_point in metrics.items()
    }


def round_shares(allocation) -> list[list[float]]:
    """Shares with six digits after the point."""
    return np.round(np.asarray(allocation, np.float64), 6).tolist()
