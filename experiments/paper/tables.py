"""The tables of the papers: what each compares, and how it is printed."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from rich.table import Table as ConsoleTable

from experiments.paper import pfedgat, pfedgat_text, table_text
from experiments.paper.configurations import CONFIGS, Cell
from experiments.paper.published import PUBLISHED
from graphfl_jax.configs.fields import NOTHING

Row = dict[str, Any]  # of a table: a method in a cell
NEW_CLIENTS = {"new_clients.fraction": 0.2, "new_clients.rounds": 5}  # of panacea_3


class Table(NamedTuple):
    """A table of a paper."""

    methods: tuple[str, ...]
    cells: dict[str, tuple[Cell, ...]]  # by size, the first by default; "" is the only one
    datasets: tuple[str, ...]  # by default; empty is all
    seeds: int  # by default
    row: Callable[..., Row]  # (cell, configuration, runs)
    complete: Callable[[list[Row]], list[Row]]  # adds rows that follow from the others
    console: Callable[[list[Row]], ConsoleTable]  # of the rows of one cell
    markdown: Callable[[list[Row]], str]
    notes: Callable[[list[Row]], list[str]]


def _panacea(name, changes=NOTHING):
    return Table(
        methods=tuple(PUBLISHED[name]),
        cells={"": tuple(Cell(dataset, changes=changes) for dataset in PANACEA_DATASETS)},
        datasets=("fl60", "tpt48"),
        seeds=5,
        row=lambda cell, config, runs: table_text.table_row(name, config, runs),
        complete=list,
        console=functools.partial(table_text.console_table, name),
        markdown=functools.partial(table_text.markdown, name),
        notes=table_text.notes,
    )


def _pfedgat(name):
    methods = pfedgat.ATTENTIONS if name == "pfedgat_4" else pfedgat.METHODS
    return Table(
        methods=methods,
        cells={size: pfedgat.cells_of(name, size) for size in pfedgat.SIZES},
        datasets=(),
        seeds=3,
        row=pfedgat_text.table_row,
        complete=pfedgat_text.with_averages if name in pfedgat.AVERAGED else list,
        console=functools.partial(pfedgat_text.console_table, name),
        markdown=pfedgat_text.markdown,
        notes=pfedgat_text.notes,
    )


PANACEA_DATASETS = [name for name in CONFIGS if name not in pfedgat.IMAGES]
TABLES = {
    "panacea_2": _panacea("panacea_2"),
    "panacea_3": _panacea("panacea_3", NEW_CLIENTS),
    "panacea_4": _panacea("panacea_4"),
} | {name: _pfedgat(name) for name in pfedgat.TABLES}
