"""The report of a benchmark: on the console, and as JSON, a Markdown page and a figure."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.common import pages
from experiments.common.provenance import provenance
from graphfl_jax.commands.common.plots import save_figure
from graphfl_jax.commands.common.text_tables import escaped, markdown_table
from graphfl_jax.runs.checkpoint import write_json, write_text


class Report(NamedTuple):
    """A table with its title, and lines of text below it."""

    title: str
    rows: list[list[str]]  # cells; the heads are the first row, names the first column
    lines: list[str]


def show(report: Report, console: Console) -> None:
    """Prints a report."""
    heads, *rows = report.rows
    table = Table(title=Text(report.title, style="table.title"))
    for i, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if i else "left", no_wrap=not i)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    for line in report.lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def write(
    report: Report, out: Path, name: str, results: dict[str, Any], figure: Figure | None = None
) -> list[str]:
    """Writes NAME.json and NAME.md, and NAME.png and NAME.svg of a figure, into a folder.

    Args:
      report: of the page.
      out: the folder, which is made if it does not exist.
      name: of the files.
      results: all numbers, for the JSON file.
      figure: of the results.

    Returns:
      The names of the files.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{name}.json", results)
    made, title = provenance(sys.argv), escaped(report.title)
    table, lines = markdown_table(report.rows), escaped("\n".join(report.lines))
    page = f"{made}\n\n{title}:\n\n{table}\n{lines}\n"
    write_text(out / f"{name}.md", page)
    pages.publish(page)
    suffixes = ["json", "md"]
    if figure is not None:
        suffixes += ["png", "svg"]
        save_figure(figure, out / name)
    return [f"{out}/{name}.{suffix}" for suffix in suffixes]
