"""Figures of a sweep, and what all figures share: their files and the places of their axes."""

import io
from pathlib import Path

from matplotlib import pyplot
from matplotlib.figure import Figure

from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.runs.checkpoint import write_bytes
from graphfl_jax.runs.views import COLOURS


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
    """Validation scores over each field of a sweep, and the best one of each value.

    A line joins the best ones, if the values are numbers.

    Args:
      board: an element of `leaderboard.leaderboards`.
    """
    fields = board["fields"]
    rows = -(-len(fields) // 3)
    columns = min(3, len(fields))
    figure, panels = grid_of_axes(rows, columns, 2.6 * rows, len(fields), sharey=True)
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
        names = any(isinstance(value, str) for value in values)
        if values and not isinstance(values[0], str) and values[0] > 0:
            axes.set_xscale("log")
        for value in values:
            axes.plot([value] * len(scores[value]), scores[value], "o", color=COLOURS[0], ms=3)
        style = {"marker": "_", "ms": 14, "linestyle": "none"} if names else {}
        axes.plot(values, [best(scores[value]) for value in values], color=COLOURS[1], **style)
        axes.set_xlabel(field.removeprefix("hparams."))
        axes.grid(alpha=0.3)
    panels[0, 0].set_ylabel(f"validation {board['metric']} [{unit}]")
    figure.suptitle(f"{board['data']}, data: {board['source']}", fontsize="medium")
    keys = [
        pyplot.Line2D([], [], color=COLOURS[0], marker="o", ms=3, linestyle="none"),
        pyplot.Line2D([], [], color=COLOURS[1]),
    ]
    figure.legend(
        keys, ["a point", "the best"], loc="outside lower center", ncols=2, frameon=False
    )
    return figure
