"""Curves of test scores: the mean over the seeds of each group, with a band."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphfl_jax.commands.common.styles import styles_of
from graphfl_jax.runs import views

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Curve(NamedTuple):
    """The course of a run that did not diverge."""

    group: str  # of runs that differ in the seed
    results: Mapping[str, Any]
    scores: Mapping[int, float]  # mean test scores by the number of rounds


def draw_curves(
    axes: "Axes", curves: Sequence[Curve], *, point: str = "P", over: str = "rounds"
) -> None:
    """Draws a line for each group, the mean over its seeds, with a band of one standard
    deviation over them.

    A line has the rounds at which all seeds of its group were evaluated. Over steps, bytes or
    seconds, a round takes the mean over these seeds.

    Args:
      point: at which the scores are, for the label.
      over: one of `views.OVER`.

    Raises:
      ValueError: as `views.per_round`.
    """
    groups = {}
    for curve in curves:
        groups.setdefault(curve.group, []).append(curve)
    for seeds, style in zip(groups.values(), styles_of(list(groups)), strict=True):
        rounds = sorted(set.intersection(*(set(curve.scores) for curve in seeds)))
        scores = np.array([[curve.scores[played] for played in rounds] for curve in seeds])
        takes = np.mean([views.per_round(curve.results, over) for curve in seeds])
        places, mean = takes * np.array(rounds), scores.mean(axis=0)
        axes.plot(places, mean, label=seeds[0].group, **style)
        if len(seeds) > 1:
            spread = scores.std(axis=0, ddof=1)
            band = {"color": style["color"], "alpha": 0.2, "lw": 0}
            axes.fill_between(places, mean - spread, mean + spread, **band)
    metrics = sorted({curve.results["metric"] for curve in curves})
    axes.set(xlabel=views.OVER[over], ylabel=f"test {' or '.join(metrics)} at {point}")
    axes.grid(alpha=0.3)
    if groups:
        axes.legend(frameon=False)
