"""Tables as lists of columns: their text for a console and in Markdown."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rich.table import Table as ConsoleTable

from graphfl_jax.commands.common.text_tables import escape, markdown_table, narrow

Row = dict[str, Any]  # of a table: a method in a cell


class Column(NamedTuple):
    """A column of a table."""

    head: str  # with a line break where a console breaks it
    text: Callable[[Row], str]  # of its cell in a row
    # Whether it is read from scores. In a row with a diverged run, the first of these columns
    # says so, and the others are empty.
    scored: bool = True
    left: bool = False  # whether a console aligns it to the left and does not fold it
    console: bool = True  # whether a console shows it
    optional: bool = False  # whether a console leaves it out where it is empty in all rows


class TableText(NamedTuple):
    """How the rows of a table are printed."""

    columns: tuple[Column, ...]
    title: Callable[[Row], str]  # of the rows of one cell on a console, from the first row
    introduction: Callable[[list[Row]], list[str]]  # the paragraphs above it in Markdown
    notes: Callable[[list[Row]], list[str]] = lambda rows: []  # below it
    lines: Callable[[Row], Iterable[Row]] = lambda row: [row]  # as which a row is printed
    caption: str | None = None  # below it on a console

    def cells(self, rows: list[Row]) -> list[list[str]]:
        """The rows as text; the first one has the heads."""
        heads = [column.head for column in self.columns]
        lines = [line for row in rows for line in self.lines(row)]
        return [heads, *(_cells(self.columns, line) for line in lines)]

    def console(self, rows: list[Row]) -> ConsoleTable:
        """The rows of one cell for a console of 80 columns."""
        shown = [
            (column, cells)
            for column, *cells in zip(self.columns, *self.cells(rows), strict=True)
            if column.console and (any(cells[1:]) or not column.optional)
        ]
        return narrow(
            self.title(rows[0]),
            [list(cells) for cells in zip(*(cells for _, cells in shown), strict=True)],
            left=tuple(column.head for column, _ in shown if column.left),
            caption=self.caption,
        )

    def markdown(self, rows: list[Row]) -> str:
        """The table in Markdown, with its introduction and its notes."""
        notes = [f"{escape(note)}\n" for note in self.notes(rows)]
        return "\n".join([*self.introduction(rows), markdown_table(self.cells(rows)), *notes])


def _cells(columns, row):
    """The text of a row in each column."""
    remarks = iter([f"{row['diverged']} of {row['seeds']} diverged"] if row["diverged"] else [])
    return [
        next(remarks, "") if row["diverged"] and column.scored else column.text(row)
        for column in columns
    ]


def number_text(value: float | None, digits: int = 2) -> str:
    """A number as text; empty for None."""
    return "" if value is None else f"{value:.{digits}f}"
