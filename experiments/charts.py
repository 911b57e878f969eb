"""Lines of scores, and histograms, as drawings."""

import numpy as np
from matplotlib import pyplot
from matplotlib.figure import Figure

from experiments.published import UNITS

# Colours that stay apart for all eyes, then the same with other dashes.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("-", "--", ":")


def draw(lines: list[dict], label: str) -> Figure:
    """Draws means over seeds, and a band of one standard deviation about them.

    Args:
      lines: of each its ``name``, ``metric``, the places ``x``, and the scores there of every
        seed, ``seeds`` [seeds][x], empty where no run has a score.
      label: of the places.
    """
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    scale, unit = UNITS[lines[0]["metric"]]
    alone = len(lines) == 1
    low, high = [], []
    for i, line in enumerate(lines):
        if not line["seeds"]:
            axes.plot([], [], label=line["name"])
            continue
        scores = scale * np.array(line["seeds"])  # [seeds, x]
        mean, spread = scores.mean(axis=0), scores.std(axis=0)
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS)]}
        axes.plot(line["x"], mean, label=line["name"], marker="o" if alone else None, **style)
        axes.fill_between(
            line["x"], mean - spread, mean + spread, color=style["color"], alpha=0.12, lw=0
        )
        # The first rounds of the worst method would flatten everything else.
        seen = slice(0 if alone else len(mean) // 4, None)
        low.extend((mean - spread)[seen] if alone else mean[seen])
        high.extend((mean + spread)[seen] if alone else mean[seen])
    if low:
        margin = 0.08 * (max(high) - min(low)) or 0.5
        axes.set_ylim(min(low) - margin, max(high) + margin)
    axes.set(xlabel=label, ylabel=f"test {lines[0]['metric']} [{unit}]")
    axes.grid(alpha=0.3)
    if alone:
        axes.set(title=lines[0]["name"], xticks=lines[0]["x"])
    else:
        figure.legend(loc="outside right center", frameon=False, fontsize="small")
    return figure


def draw_search(board: dict) -> Figure:
    """Draws validation scores over each field of a leaderboard, and a line through the best.

    Args:
      board: as `leaderboard.leaderboards` has it.
    """
    fields = board["fields"]
    rows = -(-len(fields) // 3)
    figure, panels = pyplot.subplots(
        rows,
        min(3, len(fields)),
        figsize=(7.2, 2.6 * rows),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    scale, unit = UNITS[board["metric"]]
    for axes in panels.flat[len(fields) :]:
        axes.set_axis_off()
    best = max if board["higher_is_better"] else min
    for field, axes in zip(fields, panels.flat, strict=False):
        scores = {}
        for row in board["rows"]:
            if field in row["point"]:
                value = row["point"][field]
                value = value if type(value) in (int, float) else str(value)
                scores.setdefault(value, []).append(scale * row["validation"])
        values = sorted(scores)
        if values and not isinstance(values[0], str) and values[0] > 0:
            axes.set_xscale("log")
        for value in values:
            axes.plot([value] * len(scores[value]), scores[value], "o", color=COLOURS[0], ms=3)
        axes.plot(values, [best(scores[value]) for value in values], color=COLOURS[1])
        axes.set_xlabel(field.removeprefix("hparams."))
        axes.grid(alpha=0.3)
    panels[0, 0].set_ylabel(f"validation {board['metric']} [{unit}]")
    return figure


def draw_histograms(lines: list[dict], unit: str) -> Figure:
    """Draws a panel for each client, four in a row.

    Args:
      lines: of each its ``name``, the ``edges`` of bins [b + 1] and the ``shares`` in them [b].
      unit: of the edges.
    """
    rows = -(-len(lines) // 4)
    figure, panels = pyplot.subplots(
        rows, 4, figsize=(7.2, 1.5 * rows), sharex=True, sharey=True, layout="constrained"
    )
    for axes in panels.flat[len(lines) :]:
        axes.set_axis_off()
    for line, axes in zip(lines, panels.flat, strict=False):
        axes.stairs([100 * share for share in line["shares"]], line["edges"], fill=True)
        axes.set_title(line["name"], fontsize="small")
        axes.grid(alpha=0.3)
    figure.supxlabel(unit)
    figure.supylabel("% of readings")
    return figure


def draw_risks(curves: list[dict], methods: dict[str, str]) -> Figure:
    """Draws risks over the share of attacked clients: a row for each graph.

    Args:
      curves: of each its ``graph``, ``regime``, ``shares``, and for every method what there is
        of risks there: ``closed_form``, ``printed``, ``mean`` and ``half_width``.
      methods: what each is called.
    """
    graphs, regimes = (
        list(dict.fromkeys(c[name] for c in curves)) for name in ("graph", "regime")
    )
    figure, panels = pyplot.subplots(
        len(graphs),
        len(regimes),
        figsize=(7.2, 1 + 1.4 * len(graphs)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for curve in curves:
        row, column = graphs.index(curve["graph"]), regimes.index(curve["regime"])
        axes = panels[row, column]
        for colour, (method, name) in zip(COLOURS, methods.items(), strict=False):
            axes.plot(curve["shares"], curve["closed_form"][method], color=colour, label=name)
            axes.plot(
                curve["shares"],
                curve["printed"][method],
                ":",
                color=colour,
                label=f"{name}, printed",
            )
            axes.errorbar(
                curve["shares"],
                curve["mean"][method],
                curve["half_width"][method],
                fmt="o",
                ms=3,
                color=colour,
                label=f"{name}, trained",
            )
        axes.grid(alpha=0.3)
        if row == 0:
            axes.set_title(curve["regime"], fontsize="small")
        if column == 0:
            axes.set_ylabel(curve["graph"], fontsize="small")
    # Risks grow a thousandfold where relations are wrong, and are zero in a clique.
    panels[0, 0].set_yscale("symlog", linthresh=10)
    panels[0, 0].set_ylim(bottom=0)
    figure.supxlabel("share of attacked clients")
    figure.supylabel("risk")
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside upper center", ncols=3, frameon=False, fontsize="small"
    )
    return figure
