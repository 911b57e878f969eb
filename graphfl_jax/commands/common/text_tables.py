"""What commands print: lines, and rows of text as tables, also in Markdown.

The first row of a table holds the heads. Brackets are printed as they are: Rich takes them for
markup in `str`, but not in `Text`. Control characters, as in names of files and clients that
come from others, are printed as text: a terminal would execute them.
"""

import re
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line breaks


def visible(text: str) -> str:
    """A text in which control characters are written as \\x1b."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def say(text: object) -> None:
    """Prints a line, or several, with control characters as text."""
    print(visible(str(text)))


def styled(text: str, style: str = "") -> Text:
    """A text for Rich, with control characters as text."""
    return Text(visible(text), style=style)


class TextTable(NamedTuple):
    """A table as text."""

    title: str
    caption: str
    rows: list[list[str]]  # the first row holds the heads

    def wide(self) -> Table:
        """For a console: with a box, and all columns but the first aligned to the right."""
        (first, *others), *body = self.rows
        title = styled(self.title, "table.title")
        caption = styled(self.caption, "table.caption")
        table = Table(title=title, caption=caption)
        table.add_column(styled(first))
        for head in others:
            table.add_column(styled(head), justify="right")
        for row in body:
            table.add_row(*map(styled, row))
        return table

    def markdown(self) -> str:
        """The caption and the rows in Markdown."""
        return f"{self.title}: {self.caption}\n\n{markdown_table(self.rows)}"


def narrow(
    title: str,
    rows: list[list[str]],
    *,
    left: tuple[str, ...] = ("method",),
    caption: str | None = None,
) -> Table:
    """A console table that folds "mean±interval" into two lines where a row is too wide.

    Args:
      title: printed above it.
      rows: as of a `TextTable`.
      left: heads of the columns that are aligned to the left and never folded.
      caption: printed below it.
    """
    heads, *body = rows
    table = Table(
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        title=styled(title, "table.title"),
        caption=caption and styled(caption, "table.caption"),
    )
    heads = [visible(head) for head in heads]
    body = [[visible(cell).replace("±", " ±") for cell in row] for row in body]
    for head, *cells in zip(heads, *body, strict=True):
        if head in left:
            table.add_column(Text(head), no_wrap=True)
        else:
            words = " ".join([head, *cells]).split()
            table.add_column(Text(head), justify="right", min_width=max(map(len, words)))
    for row in body:
        table.add_row(*map(Text, row))
    return table


def markdown_table(rows: list[list[str]]) -> str:
    """The rows as a Markdown table."""
    heads, *body = rows
    lines = [heads, ["---"] * len(heads), *body]
    return "".join(f"| {' | '.join(map(_markdown_cell, line))} |\n" for line in lines)


def score_text(value: float | None, factor: float = 1) -> str:
    """A score times a factor; None is undefined."""
    return "none" if value is None else f"{factor * value:.4g}"


def value_text(value: Any) -> str:
    """The value of a field; None is that of a field which nothing reads."""
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def escape(text: str) -> str:
    """The text with stars that Markdown does not take for emphasis."""
    return text.replace("*", "\\*")


def _markdown_cell(cell):
    """The text of a cell, without line breaks, in which bars and HTML are text."""
    return cell.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
