"""The report of a benchmark: on the console, and as JSON, a Markdown page and a figure."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.common import pages
from graphfl_jax.commands.common.plots import save_figure
from graphfl_jax.commands.common.styles import DASHES
from graphfl_jax.commands.common.text_tables import escape, markdown_table
from graphfl_jax.runs.views import COLOURS


class Report(NamedTuple):
    """A table with its title, and lines of text below it."""

    title: str
    rows: list[list[str]]  # cells; the heads are the first row, names the first column
    lines: list[str]


def show(report: Report) -> None:
    """Prints a report."""
    console = Console()
    heads, *rows = report.rows
    table = Table(title=Text(report.title, style="table.title"))
    for i, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if i else "left", no_wrap=not i)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    for line in report.lines:
        pages.print_line(console, line)


def markdown(report: Report) -> str:
    """The title, the table and the lines of a report."""
    title, lines = escape(report.title), escape("\n".join(report.lines))
    return f"{title}\n\n{markdown_table(report.rows)}\n{lines}\n"


def write(
    report: Report, out: Path, name: str, results: dict[str, Any], figure: Figure | None = None
) -> None:
    """Writes as `pages.write_results`, draws a figure, and prints the names of the files."""
    titled = report._replace(title=f"{report.title}:")
    pages.write_results(out, name, results, markdown(titled))
    suffixes = ["json", "md"]
    if figure is not None:
        suffixes += ["png", "svg"]
        save_figure(figure, out / name)
    pages.print_line(Console(), "\n".join(f"{out}/{name}.{suffix}" for suffix in suffixes))


def draw_rates(times: dict[str, list[float]], title: str) -> Figure:
    """Rounds per second as bars, with each bar's time per round relative to the first.

    `times` are the median, fastest and slowest seconds per round, by the label of the bar.
    """
    figure, axes = pyplot.subplots(figsize=(7.2, 0.8 + 0.5 * len(times)), layout="constrained")
    first, *_ = next(iter(times.values()))
    for i, (median, fastest, slowest) in enumerate(times.values()):
        rate = 1 / median
        reach = [[rate - 1 / slowest], [1 / fastest - rate]]
        axes.barh(i, rate, color=COLOURS[min(i, 1)])
        axes.errorbar(rate, i, xerr=reach, color=COLOURS[-1], capsize=3)
        ratio = f", {median / first:.1f} times the time per round" if i else ""
        axes.annotate(
            f"{rate:.3g}/s{ratio}",
            (1 / fastest, i),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(times)), list(times))
    axes.set(xlabel="rounds per second", title=title)
    axes.set_xlim(0, 1.45 / min(fastest for _, fastest, _ in times.values()))
    axes.invert_yaxis()
    return figure


def draw_power(sizes: list[int], times: list, fit, labels: tuple[str, str], title: str):
    """Times over sizes on logarithmic axes, with the fitted `scaling.Power`, if there is one.

    `times` are the median, fastest and slowest time of each size.
    """
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    median, fastest, slowest = np.array(times).T
    reach = [median - fastest, slowest - median]
    axes.errorbar(sizes, median, yerr=reach, marker="o", capsize=3, color=COLOURS[0])
    if fit is not None:
        fitted = np.array(fit.sizes, float)
        axes.plot(
            fitted,
            fit.factor * fitted**fit.exponent,
            color=COLOURS[1],
            linestyle=DASHES[1],
            label=f"exponent {fit.exponent:.2f}",
        )
        axes.legend(frameon=False)
    axes.set(xscale="log", yscale="log", xlabel=labels[0], ylabel=labels[1], title=title)
    axes.grid(alpha=0.3, which="both")
    return figure
