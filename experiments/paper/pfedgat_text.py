"""Rows of pFedGAT's tables from runs, and their text."""

import itertools

import numpy as np

from experiments.paper.columns import Column, Row, TableText, number_text
from experiments.paper.configurations import Cell
from experiments.paper.pfedgat import PUBLISHED as ACCURACIES
from experiments.paper.row_text import (
    DATA,
    METHOD,
    PUBLISHED,
    SETTING,
    common_row,
    seed_statistics,
    simulated_notes,
    size_list,
    spread_text,
)
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.evaluation import POINTS

BETTER = "max(G, L)"
AVERAGE = "average"
CAPTION = """\
Test accuracy in %, means over clients and {seeds} seeds. In each run, max(G, L) is that of G
and L which has the higher mean accuracy on validation, and *at* says which one. The spreads
are those of max(G, L): the standard deviation over seeds of the mean over clients, whose
divisor is the number of seeds, and the standard deviation over clients, as a mean over seeds.
The paper does not say at which point it scores a method. FedAvg at max(G, L) is the control: it
has no personalised models, and gains by the choice of the point alone.
"""
PAPER = """\
The published scores are from runs with all training images, 50 rounds of 5 epochs in batches
of 64, learning rate 0.01, and a network with three convolutional and three dense layers. These
are the runs of this table:
"""


def table_row(cell: Cell, config, runs: list[dict]) -> Row:
    """A row of a table, as `tables.Table.row`, from runs with a validation split."""
    row = common_row(config, runs)
    score = ACCURACIES[cell.dataset].get(row["method"], {}).get(cell.setting)
    row |= {
        "setting": cell.setting,
        "published": None if row["source"] == "simulated" else score,
        "scores": None,
        "size": _size(config),
    }
    if row["diverged"]:
        return row
    tests = [run["scores"]["final"] for run in runs]
    chosen = [better_point(run) for run in runs]
    summaries = {point: [test[point] for test in tests] for point in POINTS}
    summaries[BETTER] = [test[point] for test, point in zip(tests, chosen, strict=True)]
    scale = UNITS[row["metric"]][0]
    scores = {point: seed_statistics(of_seeds, scale) for point, of_seeds in summaries.items()}
    return row | {"scores": scores, "at": chosen}


def better_point(run: dict) -> str:
    """That of G and L with the better mean validation score of a run; G if they are equal."""
    means = {point: run["scores"]["validation"][point]["mean"] for point in ("G", "L")}
    return (max if run["higher_is_better"] else min)(means, key=means.get)


def _size(config):
    clients = config.data.clients
    return (
        f"{config.rounds} rounds of all {clients} clients, {config.local_steps} steps of "
        f"{config.batch_size} images with {config.model.name}"
    )


def with_averages(rows: list[Row]) -> list[Row]:
    """The rows, and after each data set the averages of its settings for every method.

    The spread over seeds is that of the averages. A method with a diverged run has none.
    """
    result = []
    for _, of_data in itertools.groupby(rows, key=lambda row: row["data"]):
        of_data = list(of_data)
        result += of_data
        for method in dict.fromkeys(row["method"] for row in of_data):
            settings = [row for row in of_data if row["method"] == method]
            if all(row["scores"] for row in settings):
                result.append(_average(settings))
    return result


def _average(rows):
    scores = {}
    for point in rows[0]["scores"]:
        of_settings = [row["scores"][point] for row in rows]
        seeds = np.mean([score["seeds"] for score in of_settings], axis=0)
        scores[point] = {
            "mean": seeds.mean(),
            "std_clients": np.mean([score["std_clients"] for score in of_settings]),
            "std_seeds": seeds.std(),
            "seeds": seeds.tolist(),
        }
    printed = [row["published"] for row in rows]
    published = None if None in printed else round(float(np.mean(printed)), 2)
    return rows[0] | {
        "setting": AVERAGE,
        "at": [],
        "published": published,
        "scores": scores,
        "size": None,
    }


def _score(point):
    return Column(point, lambda row: number_text(row["scores"][point]["mean"]))


COLUMNS = (
    DATA,
    SETTING,
    METHOD,
    *map(_score, POINTS),
    _score(BETTER),
    Column("at", lambda row: ", ".join(sorted(set(row["at"])))),
    Column("sd\nseeds", lambda row: spread_text(row["scores"][BETTER]["seeds"])),
    Column("sd\nclients", lambda row: number_text(row["scores"][BETTER]["std_clients"])),
    PUBLISHED,
)


def text_of(table: str) -> TableText:
    """The text of a table."""
    return TableText(
        COLUMNS,
        title=lambda row: (
            f"{table} on {row['data']}, {row['setting']}, {row['unit']}, {row['seeds']} seeds"
        ),
        introduction=lambda rows: [
            CAPTION.format(seeds=rows[0]["seeds"]),
            PAPER,
            size_list(rows),
        ],
        notes=simulated_notes,
    )
