"""Figures of a sweep, and what all figures share: their files and the places of their axes."""

import io
import math
from pathlib import Path

import numpy as np
from matplotlib import pyplot, ticker
from matplotlib.figure import Figure

from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.runs.checkpoint import write_bytes
from graphfl_jax.runs.views import COLOURS

FAR = 10  # the ratio from which numbers may have a logarithmic axis
TICKS = 7  # values of an axis up to which each has a tick, and the best ones are joined
GAP = 0.07  # of an axis, between two ticks
LONG = 20  # letters below an axis that have room side by side


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG and SVG.

    Args:
      figure: the figure.
      path: path of the files without their suffix.
    """
    for suffix in ("png", "svg"):
        content = io.BytesIO()
        figure.savefig(content, format=suffix, dpi=150)
        write_bytes(path.with_name(f"{path.name}.{suffix}"), content.getvalue())


def grid_of_axes(rows: int, columns: int, height: float, used: int = 0, **options):
    """A figure of some height in inches with rows of axes; those after `used` are empty."""
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(7.2, height), squeeze=False, layout="constrained", **options
    )
    for axes in panels.flat[used or rows * columns :]:
        axes.set_axis_off()
    return figure, panels


def draw_search(board: dict) -> Figure:
    """Validation scores over each field of a sweep, and the best ones.

    A line joins the best scores of each value if these are few numbers. Of many numbers, the
    best point is marked.

    Args:
      board: an element of `leaderboard.leaderboards`.
    """
    fields = board["fields"]
    rows = -(-len(fields) // 3)
    columns = min(3, len(fields))
    figure, panels = grid_of_axes(rows, columns, 2.9 * rows, len(fields), sharey=True)
    scale, unit = UNITS[board["metric"]]
    best = max if board["higher_is_better"] else min
    for field, axes in zip(fields, panels.flat, strict=False):
        scores = {}
        for row in board["rows"]:
            if field in row["point"]:
                value = row["point"][field]
                numeric = isinstance(value, int | float) and not isinstance(value, bool)
                value = value if numeric else str(value)
                scores.setdefault(value, []).append(scale * row["validation"])
        values = sorted(scores)
        for value in values:
            axes.plot([value] * len(scores[value]), scores[value], "o", color=COLOURS[0], ms=3)
        chosen = {value: best(scores[value]) for value in values}
        style = {}
        if any(isinstance(value, str) for value in values):
            style = {"marker": "_", "ms": 14, "linestyle": "none"}
            _label(axes, values)
        elif values:
            _scale(axes, values)
            if len(values) > TICKS:
                value = best(chosen, key=chosen.get)
                chosen, style = {value: chosen[value]}, {"marker": "o", "ms": 5}
        axes.plot(list(chosen), list(chosen.values()), color=COLOURS[1], **style)
        axes.set_xlabel(field.removeprefix("hparams."))
        axes.tick_params(axis="x", labelsize="small")
        axes.grid(alpha=0.3)
    shown = [scale * row["validation"] for row in board["rows"]]
    if shown and 0 < FAR * min(shown) <= max(shown):
        panels[0, 0].set_yscale("log")  # of all, which share it
        _tick_decades(panels[0, 0].yaxis, min(shown), max(shown))
    panels[0, 0].set_ylabel(f"validation {board['metric']} [{unit}]")
    figure.suptitle(f"{board['data']}, data: {board['source']}", fontsize="medium")
    keys = [
        pyplot.Line2D([], [], color=COLOURS[0], marker="o", ms=3, linestyle="none"),
        pyplot.Line2D([], [], color=COLOURS[1]),
    ]
    figure.legend(
        keys, ["a candidate", "the best"], loc="outside lower center", ncols=2, frameon=False
    )
    return figure


def _scale(axes, values):
    """Sets ticks that do not overlap, and a logarithmic axis if it spreads numbers evenly.

    Args:
      axes: whose horizontal axis has the numbers.
      values: sorted. Few of them are the ticks. A logarithmic axis with 0 is linear near it.
    """
    few, positive = len(values) <= TICKS, [value for value in values if value > 0]
    if positive and values[0] >= 0 and values[-1] >= FAR * positive[0]:
        middle = positive[len(positive) // 2]
        bent = math.log(middle / positive[0]) / math.log(values[-1] / positive[0])
        if abs(bent - 0.5) < abs(middle / values[-1] - 0.5):
            if values[0] > 0:
                axes.set_xscale("log")
                _tick_decades(axes.xaxis, values[0], values[-1])
            elif few:
                axes.set_xscale("symlog", linthresh=positive[0])
    if few:
        places = axes.xaxis.get_transform().transform(np.array(values, float))
        kept = [0]
        for i, place in enumerate(places):
            if place - places[kept[-1]] > GAP * (places[-1] - places[0]):
                kept.append(i)
        axes.minorticks_off()
        _label(axes, [values[i] for i in kept])


def _label(axes, values):
    """Ticks at values, with their names below each other where they are long."""
    names = [value if isinstance(value, str) else f"{value:g}" for value in values]
    slanted = {"rotation": 40, "ha": "right"} if sum(map(len, names)) > LONG else {}
    axes.set_xticks(values, names, **slanted)


def _tick_decades(axis, low, high):
    """Ticks of a logarithmic axis: decades, of two or fewer also their thirds."""
    thirds = (1, 3) if high < 300 * low else (1,)
    axis.set_major_locator(ticker.LogLocator(subs=thirds))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())
