"""The tables of the papers: what each compares, and how it is printed."""

import functools
from collections.abc import Callable
from typing import NamedTuple

from experiments.paper import (
    flha,
    flha_text,
    methods,
    panacea_text,
    pfedgat,
    public_code,
    relations,
    same_clients,
    two_graphs,
    wire,
)
from experiments.paper.columns import Row, TableText
from experiments.paper.configurations import Cell
from graphfl_jax.configs.published import PUBLISHED
from graphfl_jax.declarations import NOTHING


class Table(NamedTuple):
    """A table of a paper."""

    methods: tuple[str, ...]
    cells: dict[str, tuple[Cell, ...]]  # by size, the first by default
    # (cell, configuration, the results.json of each seed) -> a row: scores in the printed unit,
    # or the number of diverged runs
    row: Callable[..., Row]
    text: TableText
    complete: Callable[[list[Row]], list[Row]] = list  # adds rows that follow from the others
    seeds: int = 3  # by default
    datasets: tuple[str, ...] = ()  # of the first size, by default; empty is all
    clients: tuple[str, ...] = ()  # numbers of clients of the first size, as `datasets`


def _published(name, changes=NOTHING):
    cells = {
        "full": tuple(Cell(dataset, changes=changes) for dataset in PANACEA_DATASETS),
        "small": tuple(
            cell._replace(changes={**cell.changes, **changes}) for cell in SMALL.values()
        ),
    }
    return _panacea(name, PUBLISHED[name], cells, datasets=("fl60", "tpt48"))


def _panacea(name, methods, cells, datasets=()):
    return Table(
        methods=tuple(methods),
        cells=cells,
        datasets=datasets,
        seeds=5,
        row=lambda cell, config, runs: panacea_text.table_row(name, config, runs),
        text=panacea_text.text_of(name),
    )


def _pfedgat(name):
    return Table(
        methods=pfedgat.ATTENTIONS if name == "pfedgat_4" else pfedgat.METHODS,
        cells={size: pfedgat.cells_of(name, size) for size in pfedgat.SIZES},
        row=pfedgat.table_row,
        complete=pfedgat.with_averages if name in pfedgat.AVERAGED else list,
        text=pfedgat.text_of(name),
    )


def _flha(name):
    design = flha.TABLES[name]
    return Table(
        methods=design.methods,
        cells={size: flha.cells_of(name, size) for size in design.sizes},
        datasets=design.datasets,
        clients=design.clients,
        row=functools.partial(flha_text.table_row, name),
        complete=flha_text.with_drops if name == "flha_7" else list,
        text=flha_text.text_of(name),
    )


# Data sets of Panacea with which the papers' federations take hours on two cores, made small.
TRAFFIC = {"data.sensors": 16, "batch_size": 32, "local_steps": 10, "rounds": 100}
SMALL = {
    "compcars": Cell("compcars", changes={"data.source": "simulated", "rounds": 40}),
    "metr_la": Cell("metr_la", changes=TRAFFIC),
    "pems_bay": Cell("pems_bay", changes=TRAFFIC),
}
PANACEA_DATASETS = ("fl60", "tpt48", "metr_la", "pems_bay", "compcars")
TABLES = {
    "panacea_2": _published("panacea_2"),
    "panacea_3": _published("panacea_3", methods.NEW_CLIENTS),
    "panacea_4": _published("panacea_4"),
    "panacea_weights": _panacea(
        "panacea_weights",
        ("panacea", "panacea-mean", "panacea-gcn", "panacea-attention"),
        {
            size: tuple(
                cell._replace(
                    setting=setting,
                    changes={**cell.changes, "algorithm.edge_weights": setting == "weighted"},
                )
                for cell in cells
                for setting in ("unweighted", "weighted")
            )
            for size, cells in {
                "full": (Cell("metr_la"), Cell("pems_bay")),
                "small": (SMALL["metr_la"], SMALL["pems_bay"]),
            }.items()
        },
    ),
}
TABLES |= {name: _pfedgat(name) for name in pfedgat.TABLES}
TABLES |= {name: _flha(name) for name in flha.TABLES}
TABLES["flha_6"] = Table(
    methods=flha.UNSEEN_METHODS,
    cells={
        size: tuple(flha.unseen_cell(name, size) for name in (*flha.RESIDUAL, flha.SMALL_CNN))
        for size in flha.SIZES
    },
    row=flha_text.unseen_row,
    text=flha_text.UNSEEN_TEXT,
)
TABLES |= {
    "compression": Table(
        methods=wire.COMPRESSED,
        cells={"small": wire.COMPRESSION_CELLS},
        row=wire.table_row,
        text=wire.COMPRESSION_TEXT,
        seeds=5,
    ),
    "privacy": Table(
        methods=wire.PRIVATE,
        cells={"small": wire.PRIVACY_CELLS},
        row=wire.table_row,
        text=wire.PRIVACY_TEXT,
        seeds=5,
    ),
    "relations": Table(
        methods=relations.METHODS,
        cells={"small": relations.CELLS},
        row=wire.table_row,
        text=relations.TEXT,
        seeds=5,
    ),
    "methods": Table(
        methods=methods.METHODS,
        cells={"small": methods.CELLS},
        row=methods.table_row,
        complete=methods.with_best,
        text=methods.TEXT,
        seeds=5,
    ),
    "two_graphs": Table(
        methods=two_graphs.METHODS,
        cells={"small": two_graphs.CELLS},
        row=methods.table_row,
        complete=methods.with_best,
        text=two_graphs.TEXT,
        seeds=5,
    ),
    "public_code": Table(
        methods=public_code.METHODS,
        cells=public_code.CELLS,
        row=public_code.table_row,
        text=public_code.TEXT,
        seeds=1,
    ),
    "same_clients": Table(
        methods=same_clients.METHODS,
        cells={"small": (same_clients.CELL,)},
        row=same_clients.table_row,
        text=same_clients.TEXT,
        seeds=same_clients.SEEDS,
    ),
}
