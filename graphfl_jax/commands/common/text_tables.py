"""Rows of text as tables: for the console and as Markdown. The first row holds the heads."""

from rich import box
from rich.table import Table

from graphfl_jax.evaluation import POINTS


def narrow(
    title: str,
    rows: list[list[str]],
    *,
    left: tuple[str, ...] = ("method",),
    caption: str | None = None,
) -> Table:
    """A console table that folds "mean±interval" into two lines where a row is too wide.

    Args:
      title: printed above the table.
      rows: cells, with the heads in the first row.
      left: heads of the columns that are aligned to the left and never folded.
      caption: printed below the table.
    """
    heads, *body = rows
    table = Table(
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        title=title,
        caption=caption,
    )
    body = [[cell.replace("±", " ±") for cell in row] for row in body]
    for head, *cells in zip(heads, *body, strict=True):
        if head in left:
            table.add_column(head, no_wrap=True)
        else:
            words = " ".join([head, *cells]).split()
            table.add_column(head, justify="right", min_width=max(map(len, words)))
    for row in body:
        table.add_row(*row)
    return table


def markdown_table(rows: list[list[str]]) -> str:
    """The rows as a Markdown table."""
    heads, *body = rows
    lines = [heads, ["---"] * len(heads), *body]
    return "".join(f"| {' | '.join(map(_markdown_cell, line))} |\n" for line in lines)


def escaped(text: str) -> str:
    """The text with stars that Markdown does not take for emphasis."""
    return text.replace("*", "\\*")


def _markdown_cell(cell):
    return cell.replace("|", "\\|").replace("\n", " ")


def new_architectures_table(results: dict) -> Table:
    """Test scores of the new clients of each architecture, before and after their rounds."""
    table = Table(
        title="new clients by architecture",
        caption=f"means of {results['metric']} over clients, test",
    )
    table.add_column("architecture")
    for column in ("trained", "clients", "rounds", *POINTS):
        table.add_column(column, justify="right")
    for name, own in results["new_clients"]["architectures"].items():
        trained = "yes" if own["trained"] else "no"
        for row in own["curve"]:
            scores = (f"{row[point]:.4g}" for point in POINTS)
            table.add_row(name, trained, str(len(own["clients"])), str(row["rounds"]), *scores)
    return table
