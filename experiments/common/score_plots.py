"""Figures of scores, of data and of the risks of the theory."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter, MaxNLocator

from graphfl_jax.commands.common.plots import grid_of_axes
from graphfl_jax.commands.common.styles import UNITS, styles_of
from graphfl_jax.runs.views import COLOURS

MARKS = "os^vDP*X<>hd"  # of the parts of the wire in figures of costs
WORST = 100  # times the best error: the end of the axis in figures of costs
# metric -> (smallest, largest) possible score
RANGES = {"accuracy": (0, 1), "auc": (0, 1), "mse": (0, float("inf"))}


def draw_lines(lines: list[dict], label: str, title: str) -> Figure:
    """Means over seeds, with a band of one standard deviation over seeds.

    Args:
      lines: each with its ``name``, ``metric``, positions ``x``, and the scores there of every
        seed, ``seeds`` [seeds, x]; ``seeds`` is empty if no run has a score.
      label: label of the x axis.
      title: title of the figure, such as the data set; a single line's name comes before.
    """
    figure, ((axes,),) = grid_of_axes(1, 1, 4.2)
    single = len(lines) == 1
    low, high = [], []
    for line, style in zip(lines, styles_of([line["name"] for line in lines]), strict=True):
        mean, spread = _draw_line(axes, style, line, marker="o" if single else None)
        # The y axis ignores early rounds, in which the worst method would flatten the others.
        shown = slice(0 if single else len(mean) // 4, None)
        low.extend((mean - spread)[shown] if single else mean[shown])
        high.extend((mean + spread)[shown] if single else mean[shown])
    if low:
        margin = 0.08 * (max(high) - min(low)) or 0.5
        axes.set_ylim(min(low) - margin, max(high) + margin)
    axes.set(xlabel=label, ylabel=_score_label(lines[0]))
    axes.grid(alpha=0.3)
    if single:
        axes.set(title=f"{lines[0]['name']} on {title}", xticks=lines[0]["x"])
    else:
        axes.set_title(title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside right center", frameon=False, fontsize="small")
    return figure


def draw_panels(
    panels: dict[str, list[dict]], label: str, *, title: str = "", ticks: tuple[int, ...] = ()
) -> Figure:
    """Means over seeds as in `draw_lines`, with a panel for each list of lines.

    Args:
      panels: title -> lines as of `draw_lines`, of the same methods in every panel. A remark in
        parentheses after a name, such as "(1 diverged)", is in the legend.
      label: label of the x axis.
      title: of the figure, if the panels' titles do not name the data.
      ticks: of a logarithmic x axis; without any, it is linear.
    """
    figure, axes = grid_of_axes(1, len(panels), 3.6, sharey=True)
    figure.suptitle(title, fontsize="medium")
    for panel_axes, (panel, lines) in zip(axes[0], panels.items(), strict=True):
        for line, style in zip(lines, styles_of([line["name"] for line in lines]), strict=True):
            _draw_line(panel_axes, style, line, marker="o")
        panel_axes.set_title(panel, fontsize="medium")
        if ticks:
            panel_axes.set_xscale("log")
            panel_axes.set_xticks(ticks, list(map(str, ticks)))
            panel_axes.minorticks_off()
        else:
            panel_axes.xaxis.set_major_locator(
                MaxNLocator(12 // len(panels), integer=True, steps=(1, 2, 5, 10))
            )
        panel_axes.grid(alpha=0.3)
    figure.supxlabel(label, fontsize="medium")
    axes[0, 0].set_ylabel(_score_label(next(iter(panels.values()))[0]))
    handles, _ = axes[0, 0].get_legend_handles_labels()
    names = [_name_and_remarks(lines, panels) for lines in zip(*panels.values(), strict=True)]
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize="small")
    return figure


def draw_costs(panels: dict[str, list[dict]], label: str) -> Figure:
    """Scores over costs, a panel for each list of lines, with error bars over seeds.

    A line joins the settings that no other one of its method beats at the same cost or less.
    Settings without a cost are at the right end; of a method that has no others, a line has
    their score. Errors above `WORST` times the best one are drawn there, without their bars.

    Args:
      panels: title -> lines, each with its ``name``, ``metric`` and ``unit``, and of its
        settings the ``parts``, the costs ``x`` or None, the scores ``seeds`` [settings, seeds]
        in this unit, and the numbers of those that are joined, ``front``.
      label: of the costs.
    """
    figure, (row,) = grid_of_axes(1, len(panels), 3.9)
    every = [line for lines in panels.values() for line in lines]
    parts = dict.fromkeys(part for line in every for part in line["parts"])
    marks = dict(zip(parts, MARKS, strict=False))
    for axes, (title, lines) in zip(row, panels.items(), strict=True):
        costs = [x for line in lines for x in line["x"] if x is not None]
        end = 4 * max(costs, default=1)
        means = [np.mean(scores) for line in lines for scores in line["seeds"]]
        is_error = limits(lines[0]["metric"])[1] == np.inf
        top = WORST * min(means) if is_error and means else np.inf
        for line, style in zip(lines, styles_of([line["name"] for line in lines]), strict=True):
            _draw_costs(axes, style, line, marks, end, top)
        axes.set(title=title, xscale="log")
        axes.xaxis.set_major_formatter("{x:g}")
        if top < np.inf:
            axes.set_yscale("log")
            axes.set_ylim(top=min(axes.get_ylim()[1], 1.3 * top))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(LogFormatter())
        if any(None in line["x"] for line in lines):
            low, high = (np.log10(limit) for limit in (min(costs, default=1), end / 4))
            ticks = [10.0**power for power in range(int(np.ceil(low)), int(high) + 1)]
            axes.set_xticks([*ticks, end], [*(f"{tick:g}" for tick in ticks), "none"])
            axes.xaxis.set_tick_params(which="minor", bottom=False)
        axes.set_ylabel(_score_label(lines[0]))
        axes.grid(alpha=0.3)
    figure.supxlabel(label, fontsize="medium")
    handles, _ = row[0].get_legend_handles_labels()
    names = [_name_and_remarks(lines, panels) for lines in zip(*panels.values(), strict=True)]
    for part, mark in marks.items():
        handles += [Line2D([], [], color="0.3", marker=mark, ms=4, linestyle="")]
        names += [part or "none"]
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize="small")
    return figure


def _draw_costs(axes, style, line, marks, end, top):
    """Draws a line of `draw_costs`; no setting is beyond the cost `end` and the score `top`."""
    costs = [end if cost is None else cost for cost in line["x"]]
    means = [min(np.mean(scores), top) for scores in line["seeds"]]
    spreads = [
        np.std(scores) if mean < top else 0.0
        for mean, scores in zip(means, line["seeds"], strict=True)
    ]
    points = zip(line["parts"], costs, means, spreads, strict=True)
    for part, cost, mean, spread in points:
        look = {"marker": marks[part], "ms": 4, "elinewidth": 0.8, "color": style["color"]}
        axes.errorbar(cost, mean, spread, linestyle="", **look)
    front = line["front"]
    if means and not front:
        axes.axhline(means[0], label=line["name"], **style)
    else:
        joined = ([values[i] for i in front] for values in (costs, means))
        axes.plot(*joined, label=line["name"], **style)


def _name_and_remarks(lines, titles):
    """The method of some lines, and their remarks, a row for each panel."""
    parts = [line["name"].partition(" (") for line in lines]
    remarks = [
        f"{title}: {remark.removesuffix(')')}"
        for title, (*_, remark) in zip(titles, parts, strict=True)
        if remark
    ]
    return "\n".join([parts[0][0], *remarks])


def _draw_line(axes, style, line, *, marker):
    """Draws a line with its band; the mean and the spread over seeds in the printed unit."""
    if not line["seeds"]:
        axes.plot([], [], label=line["name"], marker=marker, **style)
        return np.zeros(0), np.zeros(0)
    factor = UNITS[line["metric"]][0]
    scores = factor * np.array(line["seeds"])  # [seeds, x]
    mean, spread = scores.mean(axis=0), scores.std(axis=0)
    axes.plot(line["x"], mean, label=line["name"], marker=marker, ms=4, **style)
    band = np.clip([mean - spread, mean + spread], *limits(line["metric"]))
    axes.fill_between(line["x"], *band, color=style["color"], alpha=0.12, lw=0)
    return mean, spread


def limits(metric: str) -> list[float]:
    """The smallest and the largest possible score in the printed unit."""
    return [UNITS[metric][0] * limit for limit in RANGES[metric]]


def _score_label(line):
    return f"test {line['metric']} [{UNITS[line['metric']][1]}]"


def draw_histograms(lines: list[dict], unit: str) -> Figure:
    """A histogram for each client, four panels in a row.

    Args:
      lines: each with its ``name``, the ``edges`` of bins [b + 1] and the ``shares`` of values
        in them [b].
      unit: unit of the edges.
    """
    rows = -(-len(lines) // 4)
    figure, panels = grid_of_axes(rows, 4, 1.5 * rows, len(lines), sharex=True, sharey=True)
    for line, axes in zip(lines, panels.flat, strict=False):
        axes.stairs([100 * share for share in line["shares"]], line["edges"], fill=True)
        axes.set_title(line["name"], fontsize="small")
        axes.grid(alpha=0.3)
    figure.supxlabel(unit)
    figure.supylabel("% of readings")
    return figure


def draw_holdings(lines: list[dict], title: str) -> Figure:
    """A heat map of the classes that clients have, a column for each client.

    Args:
      lines: a line for each client, with the numbers ``train`` of its training examples of
        every class.
      title: title of the figure.
    """
    figure, ((axes,),) = grid_of_axes(1, 1, 4.8)
    counts = np.array([line["train"] for line in lines]).T  # [classes, clients]
    drawn = axes.imshow(counts, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    figure.colorbar(drawn, label="training examples")
    axes.set(xlabel="client", ylabel="class", title=title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    return figure


def draw_shares(lines: list[dict]) -> Figure:
    """Heat maps of matrices of shares, a row of panels for each line.

    Args:
      lines: each with its ``name``, rounds ``x``, and for each round a matrix of
        ``allocations`` [x, N, N]; the numbers of rounds may differ.
    """
    columns = max(len(line["x"]) for line in lines)
    height = 0.6 + 6.6 / columns * len(lines)
    figure, panels = grid_of_axes(len(lines), columns, height)
    for row, line in zip(panels, lines, strict=True):
        highest = np.max(line["allocations"])  # each method has a scale of its own
        for axes in row[len(line["x"]) :]:
            axes.set_axis_off()
        for axes, played, matrix in zip(row, line["x"], line["allocations"], strict=False):
            drawn = axes.imshow(matrix, cmap="Blues", vmin=0, vmax=highest)
            axes.set(title=f"{line['name']}, round {played}", xticks=[], yticks=[])
            axes.title.set_fontsize("small")
        figure.colorbar(drawn, ax=row)
    figure.supxlabel("client whose model has the share")
    figure.supylabel("client that gets the mixture")
    return figure


def draw_risks(curves: list[dict], methods: dict[str, str]) -> Figure:
    """Risks over the share of attacked clients, a row of panels for each graph.

    Args:
      curves: each with its ``graph``, ``regime`` and ``shares``, and for every method the risks
        ``closed_form``, ``stated``, ``mean`` and the ``half_width`` of its interval.
      methods: the label of each method.
    """
    graphs, regimes = (
        list(dict.fromkeys(c[name] for c in curves)) for name in ("graph", "regime")
    )
    height = 1 + 1.4 * len(graphs)
    figure, panels = grid_of_axes(len(graphs), len(regimes), height, sharex=True, sharey=True)
    for curve in curves:
        row, column = graphs.index(curve["graph"]), regimes.index(curve["regime"])
        axes, shares = panels[row, column], curve["shares"]
        for color, (method, name) in zip(COLOURS, methods.items(), strict=False):
            axes.plot(shares, curve["closed_form"][method], color=color, label=name)
            stated, mean = curve["stated"][method], curve["mean"][method]
            axes.plot(shares, stated, ":", color=color, label=f"{name}, stated")
            style = {"fmt": "o", "ms": 3, "color": color, "label": f"{name}, trained"}
            axes.errorbar(shares, mean, curve["half_width"][method], **style)
        axes.grid(alpha=0.3)
        if row == 0:
            axes.set_title(curve["regime"], fontsize="small")
        if column == 0:
            axes.set_ylabel(curve["graph"], fontsize="small")
    # Risks range from zero in a clique to thousands where relations are wrong.
    panels[0, 0].set_yscale("symlog", linthresh=10)
    panels[0, 0].set_ylim(bottom=0)
    figure.supxlabel("share of attacked clients")
    figure.supylabel("risk")
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside upper center", ncols=3, frameon=False, fontsize="small"
    )
    return figure
