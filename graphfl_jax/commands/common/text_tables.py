"""What commands print: lines, and rows of text as tables, also in Markdown.

The first row of a table holds the heads. Brackets are printed as they are: Rich takes them for
markup in `str`, but not in `Text`. Control characters, as in names of files and clients that
come from others, are printed as text: a terminal would execute them. On a terminal, lines are
broken between words; other output has them as they are.
"""

import re
import textwrap
from collections.abc import Collection
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line breaks
COMMAND = re.compile(r" *(?:graphfl|python) [a-z-]")  # begins a command, to be pasted whole
BEGINNING = re.compile(r" *(?:\* |\S+ {2,})?")  # of a line: a name in a list stands out
BULLET = re.compile(r"^( *\* .+)\n {4,}(?=\S)", re.MULTILINE)  # with a line that goes on
UNBOUNDED = 10**4  # a width that every table has


def visible(text: str) -> str:
    """A text in which control characters are written as \\x1b."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def say(text: object, style: str = "", *, error: bool = False, prose: bool = False) -> None:
    """Prints a line, or several, with control characters as text.

    Args:
      text: the lines.
      style: of the text on a terminal.
      error: whether it is printed on stderr.
      prose: whether the lines of a paragraph may be joined, as those of a docstring.
    """
    console, shown = Console(stderr=error), visible(str(text))
    if not console.is_terminal:
        print(shown, file=console.file, flush=error)
        return
    if prose:
        shown = re.sub(r"(?<=\S)\n(?=\S)", " ", shown)
        while BULLET.search(shown):
            shown = BULLET.sub(r"\1 ", shown)
    console.print(Text(folded(shown, console), style), soft_wrap=True)


def folded(text: str, console: Console) -> str:
    """Lines that are broken between words for a terminal; a command is a line of its own."""
    if not console.is_terminal:
        return text
    lines = re.sub(rf": (?={COMMAND.pattern})", ":\n", text).split("\n")
    return "\n".join(
        line
        if COMMAND.match(line)
        else textwrap.fill(
            line,
            console.width,
            subsequent_indent=" " * max(BEGINNING.match(line).end(), 4 * line.startswith(" ")),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )


def styled(text: str, style: str = "") -> Text:
    """A text for Rich, with control characters as text."""
    return Text(visible(text), style=style)


class TextTable(NamedTuple):
    """A table as text."""

    title: str
    caption: str
    rows: list[list[str]]  # the first row holds the heads

    def show(self, left: Collection[str] = ()) -> None:
        """Prints it. Columns for which the console is too narrow follow in further tables.

        Args:
          left: heads of the columns that each of these has, by default the first.
        """
        console, heads = Console(), self.rows[0]
        kept = [i for i, head in enumerate(heads) if head in (left or heads[:1])]
        others = [i for i in range(len(heads)) if i not in kept]
        options = console.options.update(max_width=UNBOUNDED)
        while others:
            for count in range(len(others), 0, -1):
                shown = sorted(kept + others[:count])
                rows = [[row[i] for i in shown] for row in self.rows]
                table = narrow(self.title, rows, left=left or heads[:1])
                if console.measure(table, options=options).minimum <= console.width:
                    break
            others = others[count:]
            console.print("", table, sep="\n", crop=False)
        say(self.caption, "dim italic")

    def markdown(self) -> str:
        """The caption and the rows in Markdown."""
        return f"{self.title}: {self.caption}\n\n{markdown_table(self.rows)}"


def narrow(
    title: str,
    rows: list[list[str]],
    *,
    left: Collection[str] = ("method",),
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
        title_justify="left",
        caption_justify="left",
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


def count_text(count: int, noun: str) -> str:
    """A number of things as text: "1 seed", "2 seeds"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
