"""The tables of the papers: what each compares, and how it is printed."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from rich.table import Table as ConsoleTable

from experiments.paper import (
    flha,
    flha_text,
    flha_unseen,
    pfedgat,
    pfedgat_text,
    table_text,
)
from experiments.paper.configurations import CONFIGS, Cell
from experiments.paper.row_text import simulated_notes
from graphfl_jax.configs.published import PUBLISHED
from graphfl_jax.declarations import NOTHING

Row = dict[str, Any]  # of a table: a method in a cell
NEW_CLIENTS = {"new_clients.fraction": 0.2, "new_clients.rounds": 5}  # of panacea_3


class Table(NamedTuple):
    """A table of a paper."""

    methods: tuple[str, ...]
    cells: dict[str, tuple[Cell, ...]]  # by size, the first by default; "" is the only one
    datasets: tuple[str, ...]  # of the first size, by default; empty is all
    seeds: int  # by default
    row: Callable[..., Row]  # (cell, configuration, runs)
    complete: Callable[[list[Row]], list[Row]]  # adds rows that follow from the others
    console: Callable[[list[Row]], ConsoleTable]  # of the rows of one cell
    markdown: Callable[[list[Row]], str]
    notes: Callable[[list[Row]], list[str]]
    clients: tuple[str, ...] = ()  # numbers of clients of the first size, as `datasets`


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
        notes=simulated_notes,
    )


def _flha(name):
    design = flha.TABLES[name]
    return Table(
        methods=design.methods,
        cells={size: flha.cells_of(name, size) for size in flha.SIZES},
        datasets=design.datasets,
        clients=design.clients,
        seeds=3,
        row=functools.partial(flha_text.table_row, name),
        complete=flha_text.with_drops if name == "flha_7" else list,
        console=functools.partial(flha_text.console_table, name),
        markdown=functools.partial(flha_text.markdown, name),
        notes=simulated_notes,
    )


PANACEA_DATASETS = [name for name in CONFIGS if name not in pfedgat.IMAGES]
TABLES = {
    "panacea_2": _panacea("panacea_2"),
    "panacea_3": _panacea("panacea_3", NEW_CLIENTS),
    "panacea_4": _panacea("panacea_4"),
}
TABLES |= {name: _pfedgat(name) for name in pfedgat.TABLES}
TABLES |= {name: _flha(name) for name in flha.TABLES}
TABLES["flha_6"] = Table(
    methods=flha.UNSEEN_METHODS,
    cells={
        size: tuple(flha.unseen_cell(name, size) for name in flha.RESIDUAL)
        for size in flha.SIZES
    },
    datasets=(),
    seeds=3,
    row=flha_unseen.table_row,
    complete=list,
    console=flha_unseen.console_table,
    markdown=flha_unseen.markdown,
    notes=simulated_notes,
)
