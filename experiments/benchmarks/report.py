"""The report of a benchmark: on the console, and as JSON, a Markdown page and a figure."""

from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.common import pages
from graphfl_jax.commands.common.plots import save_figure
from graphfl_jax.commands.common.text_tables import escape, markdown_table


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
