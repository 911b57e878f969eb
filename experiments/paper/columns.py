"""Tables as lists of columns, and what the rows of all tables of runs have."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table as ConsoleTable

from graphfl_jax.commands.common.statistics import diverged
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.commands.common.text_tables import escape, markdown_table, narrow
from graphfl_jax.configs.base import methods, variant_of
from graphfl_jax.configs.values import values_of
from graphfl_jax.declarations import NOTHING
from graphfl_jax.runs.views import per_round

Row = dict[str, Any]  # of a table: a method in a cell


LARGE = 1e6  # numbers from here on have a power of ten


class Column(NamedTuple):
    """A column of a table."""

    head: str  # with a line break where a console breaks it
    text: Callable[[Row], str]  # of its cell in a row
    # Whether it is read from scores. In a row with a diverged run, the first of these columns
    # says so, and the others are empty.
    scored: bool = True
    left: bool = False  # whether a console aligns it to the left and does not fold it
    console: bool = True  # whether a console shows it
    optional: bool = False  # whether it is left out where it is empty in all rows


class TableText(NamedTuple):
    """How the rows of a table are printed."""

    columns: tuple[Column, ...]
    title: Callable[[Row], str]  # of the rows of one cell on a console, from the first row
    introduction: Callable[[list[Row]], list[str]]  # the paragraphs above it in Markdown
    notes: Callable[[list[Row]], list[str]] = lambda rows: []  # below it
    lines: Callable[[Row], Iterable[Row]] = lambda row: [row]  # as which a row is printed
    caption: str | None = None  # below it on a console

    def filled(self, rows: list[Row]) -> list[tuple[Column, list[str]]]:
        """The columns that are shown, each with its head and the texts of all rows."""
        texts = [self._texts(line) for row in rows for line in self.lines(row)]
        return [
            (column, [column.head, *cells])
            for column, *cells in zip(self.columns, *texts, strict=True)
            if any(cells) or not column.optional
        ]

    def cells(self, rows: list[Row]) -> list[list[str]]:
        """The rows as text; the first one has the heads."""
        return [
            list(line) for line in zip(*(cells for _, cells in self.filled(rows)), strict=True)
        ]

    def _texts(self, row):
        remarks = [f"{row['diverged']} of {row['seeds']} diverged"] if row["diverged"] else []
        left = iter(remarks)
        return [
            next(left, "") if remarks and column.scored else column.text(row)
            for column in self.columns
        ]

    def console(self, rows: list[Row]) -> ConsoleTable:
        """The rows of one cell for a console of 80 columns."""
        shown = [pair for pair in self.filled(rows) if pair[0].console]
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


def number_text(value: float | None, digits: int = 2) -> str:
    """A number as text; empty for None."""
    if value is None:
        return ""
    return f"{value:.{digits}f}" if abs(value) < LARGE else f"{value:.1e}"


def mean_column(name: str) -> Column:
    """The column of one of the means in ``row["scores"]``, such as that at "P"."""
    return Column(name, lambda row: number_text(row["scores"][name]["mean"]))


# What tables with the column "sd seeds" say of it.
SPREAD = "*sd seeds* is the standard deviation over seeds; its divisor is the number of seeds."
DATA, SETTING = (
    Column(name, itemgetter(name), scored=False, console=False) for name in ("data", "setting")
)
METHOD = Column("method", itemgetter("method"), scored=False, left=True)
COSTS = (
    "*Steps* are the local steps of a client in a round, *kB* the kilobytes that a client "
    "receives and sends in a round, as means over clients, and *s* the seconds of training of "
    "a run. A method that trains further models in its steps, as ditto does, shows it in *s* "
    "alone."
)


def _cost(head, name, digits):
    """The column of a part of `cost`; an average over settings has none."""
    text = lambda row: number_text(row["cost"] and row["cost"][name], digits)  # noqa: E731
    return Column(head, text, console=False)


# Its columns in every table.
COST = (_cost("steps", "steps", 0), _cost("kB", "kilobytes", 2), _cost("s", "seconds", 2))
PRINTED = Column("published", lambda row: number_text(row["published"]), scored=False)


def common_row(config, runs: list[dict]) -> Row:
    """The part of a row that all tables have, from the results.json of each seed."""
    first = runs[0]
    return {
        "data": config.data.name,
        "method": variant_of(config),
        "metric": first["metric"],
        "unit": UNITS[first["metric"]][1],
        "seeds": len(runs),
        "hparams": first["hparams"],
        "diverged": sum(map(diverged, runs)),
        "source": first["dataset"]["source"],
        "extent": first["dataset"]["extent"],
        "cost": cost(runs),
    }


def cost(runs: list[dict]) -> dict[str, float]:
    """What training takes, as means over runs.

    ``steps`` and ``kilobytes`` are of a client in a round, and ``seconds`` of a run.

    Raises:
      ValueError: as `views.per_round`.
    """
    parts = {
        "kilobytes": lambda run: (
            per_round(run, "bytes") / run["communication"]["clients"] / 1e3
        ),
        "steps": lambda run: per_round(run, "steps") / run["communication"]["clients"],
        "seconds": lambda run: run["timing"]["train_s"],
    }
    return {name: float(np.mean([part(run) for run in runs])) for name, part in parts.items()}


def printed_score(row: Row, config, printed: Mapping, exact: Mapping = NOTHING):
    """What a paper prints for the method of a row; None where the row is not this method.

    A row is the method if its configuration has the values that define it, rates and optimisers
    among them, which its name does not show. Simulated data have no printed score.

    Args:
      row: from `common_row`.
      config: of its runs.
      printed: by method.
      exact: by method, further fields that the paper states.
    """
    name, (values, _) = row["method"], values_of(config)
    stated = {**methods().get(name, NOTHING), **exact.get(name, NOTHING)}
    same = all(values.get(field) == value for field, value in stated.items())
    return printed.get(name) if same and row["source"] != "simulated" else None


def seed_statistics(summaries: list[dict], scale: float) -> dict:
    """Means over seeds and their spread, from the summaries in the results.json of each."""
    values = {
        name: np.array([summary[name] for summary in summaries])
        for name in ("mean", "std_clients", "worst_decile", "jain")
    }
    return {
        "mean": scale * values["mean"].mean(),
        "std_clients": scale * values["std_clients"].mean(),
        "std_seeds": scale * values["mean"].std(),
        "worst_decile": scale * values["worst_decile"].mean(),
        "jain": values["jain"].mean(),
        "seeds": (scale * values["mean"]).tolist(),
    }


def new_client_curves(runs: list[dict]) -> list[list[dict]]:
    """The scores of the new clients in each run that did not diverge, by round and point."""
    return [run["new_clients"]["curve"] for run in runs if not diverged(run)]


def metrics_text(rows: list[Row]) -> str:
    """The metric and the unit of each data set."""
    texts = (f"{row['data']}: {row['metric']}, {row['unit']}" for row in rows)
    return "; ".join(dict.fromkeys(texts))


def spread_text(scores: Sequence[float]) -> str:
    """The standard deviation over seeds as text; empty for one seed."""
    return number_text(float(np.std(scores))) if len(scores) > 1 else ""


def size_list(rows: list[Row]) -> str:
    """The size of the runs of each data set, or of each setting if they differ in it.

    It is a list in Markdown. The size of a row that is computed from others is None.
    """
    settings = {}
    for row in rows:
        if row["size"]:
            size = f"{row['size']}, {row['extent'] or 'all images'}"
            settings.setdefault((row["data"], size), []).append(row["setting"])
    return "".join(
        f"- {data}, {'; '.join(dict.fromkeys(names))}: {size}\n"
        for (data, size), names in settings.items()
    )


def simulated_notes(rows: list[Row]) -> list[str]:
    """Notes on simulated data."""
    simulated = dict.fromkeys(row["data"] for row in rows if row["source"] == "simulated")
    return [f"{data}: simulated; not comparable with published scores" for data in simulated]


def interval_text(summary: dict) -> str:
    """A mean with the half width of its 95 % interval, from `statistics.over_seeds`."""
    half_width = summary["half_width"]
    return number_text(summary["mean"]) + (
        "" if half_width is None else f"±{number_text(half_width)}"
    )
