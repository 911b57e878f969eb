"""Figures of methods under attack, with a panel for each attack."""

import numpy as np
from matplotlib.figure import Figure

from experiments.common.score_plots import limits
from graphfl_jax.commands.common.plots import grid_of_axes
from graphfl_jax.commands.common.styles import styles_of
from graphfl_jax.runs.results import NEIGHBOURS

COLUMNS = 3  # panels beside each other
MARKERS = "osD^vPX*"
WIDE = 10  # ratio of the largest score to the smallest from which an axis is logarithmic
LABELS = {"none": "0", "up to half": "≤ ½", "more than half": "> ½"}  # of `NEIGHBOURS`


def draw_robustness(rows: list[dict], title: str) -> Figure:
    """Scores of benign clients at P over the share of malicious clients.

    Where a run diverged, the line has a gap, and a cross marks the edge with the worst scores.
    Errors that differ much have a logarithmic axis. `rows` are those of `robustness.play_rows`.
    """
    figure, panels = _panels(rows, title)
    metric = rows[0]["metric"]
    for axes, lines in panels:
        crosses = 0  # methods so far with a diverged run
        for method, style, chosen in lines:
            shares = [100 * row["ratio"] for row in chosen]
            scores = [row["points"]["P"]["benign"] if row["points"] else {} for row in chosen]
            mean, half_width = _intervals(scores)
            axes.plot(shares, mean, label=method, **style)
            band = np.clip([mean - half_width, mean + half_width], *limits(metric))
            axes.fill_between(shares, *band, color=style["color"], alpha=0.1, lw=0)
            broken = [100 * row["ratio"] for row in chosen if row["diverged"]]
            crosses += bool(broken)
            height = 0.03 * crosses if chosen[0]["higher_is_better"] else 1 - 0.03 * crosses
            axes.plot(
                broken,
                [height] * len(broken),
                "x",
                color=style["color"],
                ms=5,
                transform=axes.get_xaxis_transform(),
            )
    figure.supxlabel("malicious clients [%]", fontsize="medium")
    figure.supylabel(f"test {metric} of benign clients [{rows[0]['unit']}]", fontsize="medium")
    first, _ = panels[0]
    means = [row["points"]["P"]["benign"]["mean"] for row in rows if row["points"]]
    if means and np.isinf(limits(metric)[1]) and max(means) > WIDE * min(means):
        first.set_yscale("log")
        first.set_ylim(0.8 * min(means), 1.25 * max(means))
    if any(row["diverged"] for row in rows):
        first.plot([], [], "x", color="grey", ms=5, label="a run diverged")
    return _with_legend(figure, first)


def draw_neighbours(rows: list[dict], title: str) -> Figure:
    """Losses of benign clients at P by the share of malicious ones among their neighbours.

    They are those with the largest share of malicious clients. Where errors become much worse,
    the axis is logarithmic except around 0.
    """
    largest = max(row["ratio"] for row in rows)
    title = f"{title}; {100 * largest:g} % malicious clients"
    figure, panels = _panels([row for row in rows if row["ratio"] == largest], title)
    for axes, lines in panels:
        for i, (method, style, (row,)) in enumerate(lines):
            losses = [row["neighbours"].get(share, {}).get("P", {}) for share in NEIGHBOURS]
            places = np.arange(len(NEIGHBOURS)) + 0.06 * (i - (len(lines) - 1) / 2)
            axes.errorbar(places, *_intervals(losses), label=method, capsize=2, **style)
        axes.set_xticks(range(len(NEIGHBOURS)), [LABELS[share] for share in NEIGHBOURS])
    figure.supxlabel("share of malicious clients among the neighbours", fontsize="medium")
    label = f"loss of benign clients, {rows[0]['metric']} [{rows[0]['unit']}]"
    figure.supylabel(label, fontsize="medium")
    first, _ = panels[0]
    parts = [loss["P"]["mean"] for row in rows for loss in row["neighbours"].values()]
    if np.isinf(limits(rows[0]["metric"])[1]) and max(map(abs, parts), default=0) > WIDE:
        first.set_yscale("symlog", linthresh=1)
    return _with_legend(figure, first)


def _intervals(statistics):
    """Means and half widths of statistics of `over_seeds`; NaN and 0 where there is none."""
    mean = [statistic.get("mean", np.nan) for statistic in statistics]
    half_width = [statistic.get("half_width") or 0.0 for statistic in statistics]
    return np.array(mean), np.array(half_width)


def _panels(rows, title):
    """A figure, and for each attack its axes and (method, style, rows) of the methods."""
    attacks, methods = (
        list(dict.fromkeys(row[name] for row in rows)) for name in ("attack", "method")
    )
    columns = min(COLUMNS, len(attacks))
    lines = -(-len(attacks) // columns)
    figure, grid = grid_of_axes(
        lines, columns, max(4.2, 2.2 * lines), len(attacks), sharex=True, sharey=True
    )
    figure.suptitle(title, fontsize="medium")
    panels = []
    for axes in grid.flat[: len(attacks)][-columns:]:
        axes.tick_params(labelbottom=True)  # also above an empty place
    for attack, axes in zip(attacks, grid.flat, strict=False):
        axes.set_title(attack)
        axes.grid(alpha=0.3)
        of_attack = [row for row in rows if row["attack"] == attack]
        of_methods = [
            [row for row in of_attack if row["method"] == method] for method in methods
        ]
        panels.append((axes, list(zip(methods, _styles(methods), of_methods, strict=True))))
    return figure, panels


def _styles(methods):
    """The line of each method, with a marker for each defence."""
    names, _, suffixes = zip(*(method.partition("+") for method in methods), strict=True)
    defences = list(dict.fromkeys(suffixes))
    return [
        {"marker": MARKERS[defences.index(suffix) % len(MARKERS)], "ms": 4, **style}
        for suffix, style in zip(suffixes, styles_of(list(names)), strict=True)
    ]


def _with_legend(figure, axes):
    """The figure with the legend of one of its panels."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize="small")
    return figure
