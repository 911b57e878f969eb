"""Rows of FLHA-GHN's tables from runs, and their text.

A row is a method in a cell. It has a line for each test set, with the scores of every seed by
point and column; a column is an architecture, or a client.
"""

from operator import itemgetter

import numpy as np

from experiments.paper.columns import Column, Row, TableText, number_text
from experiments.paper.configurations import Cell
from experiments.paper.flha import CLIENTS, NONE_REPLACED, PUBLISHED, SIZES, TABLES
from experiments.paper.row_text import (
    DATA,
    METHOD,
    SETTING,
    common_row,
    simulated_notes,
    size_list,
    spread_text,
)
from graphfl_jax.commands.common.units import UNITS

DROP = "mean drop"
FULL_WIDTH = SIZES["full"].width
FLOAT = 4e6  # bytes of a million of floats
CAPTION = """\
Test {metric} in %, means over {seeds} seeds. The columns of {columns} have P, the method's own
predictor: for FLHA-GHN and its controls this is the generated model whose head the client has
refined. G and P are means over these columns, and *sd seeds* is the standard deviation of P
over seeds; its divisor is the number of seeds. L is left out: it equals G, because the cosine
schedule has ended. A line *published* has what the paper prints for the method above it, and
its mean. *M down* and *M up* are the millions of numbers that a client receives and
sends in a round; where architectures differ in them, this is the mean over clients. fedavg has
the first architecture alone: it is the paper's upper bound.
"""
TESTS = {
    "pooled": "All clients are scored on the test images of all clients.\n",
    "balanced": (
        "*own* are the clients' own test sets, in the class shares of their training images; "
        "*balanced* is one test set for all clients, with as many images of each class.\n"
    ),
}
DROPS = """\
*{drop}* is the score of an architecture where none is replaced, minus its mean score where
another one is. The paper states 2.2 points.
"""
SMALL = """\
The sizes are small, so scores cannot be compared with the published ones, which are from
all images and larger networks. These are the runs of this table:
"""
FULL = "These are the runs of this table:\n"
SHOWN = ("G", "P")  # of the points


def table_row(table: str, cell: Cell, config, runs: list[dict]) -> Row:
    """A row of a table of `flha.TABLES`, as `tables.Table.row`."""
    row = common_row(config, runs)
    scale, traffic = UNITS[row["metric"]][0], runs[0]["communication"]
    row |= {
        "setting": cell.setting,
        "width": config.model.width,
        "size": size_of(config),
        "floats": {way: traffic[f"{way}_bytes"] / FLOAT for way in ("down", "up")},
        "lines": None,
    }
    if row["diverged"]:
        return row
    columns = columns_of(table, config)
    row["lines"] = []
    for test, split in TABLES[table].tests.items():
        scores = [run["scores"]["final" if split == "test" else split] for run in runs]
        points = {
            point: {
                name: [
                    scale * np.mean(np.array(points[point]["per_client"])[ids])
                    for points in scores
                ]
                for name, ids in columns.items()
            }
            for point in SHOWN
        }
        cell_scores = PUBLISHED[table].get((cell.dataset, cell.setting, test), {})
        published = None if row["source"] == "simulated" else cell_scores.get(row["method"])
        row["lines"].append({"test": test, "points": points, "published": published})
    return row


def columns_of(table: str, config) -> dict[str, list[int]]:
    """The columns of a table in which a run has scores, with the numbers of their clients."""
    everyone = range(config.data.clients)
    if TABLES[table].columns == CLIENTS:
        return {CLIENTS[i]: [i] for i in everyone}
    names = config.model.architectures
    return {name: list(everyone[k :: len(names)]) for k, name in enumerate(names)}


def size_of(config) -> str:
    """The size of a run in words."""
    return (
        f"{config.rounds} rounds of all {config.cohort_size} clients, {config.local_steps} "
        f"steps of {config.batch_size} images with {config.model.width} channels in the first "
        f"layer"
    )


def with_drops(rows: list[Row]) -> list[Row]:
    """The rows of Table 7, and for every method the drops by a replaced architecture.

    The drop of an architecture is its score where none is replaced, minus the mean of its
    scores where another one is, seed by seed. A method with a diverged run, or without all of
    these cells, has none.
    """
    drops, places = [], TABLES["flha_7"].places
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = [row for row in rows if row["method"] == method]
        if len(cells) == len(places) and all(row["lines"] for row in cells):
            drops.append(_drop_row(cells))
    return rows + drops


def _drop_row(rows):
    """The row of the drops of a method."""
    whole, *replaced = sorted(rows, key=lambda row: row["setting"] != NONE_REPLACED)
    before, *after = (row["lines"][0] for row in (whole, *replaced))
    published = before["published"] and _drops(
        before["published"], [line["published"] for line in after]
    )
    points = {
        point: _drops(scores, [line["points"][point] for line in after])
        for point, scores in before["points"].items()
    }
    line = {"test": before["test"], "points": points, "published": published}
    return whole | {"setting": DROP, "lines": [line], "size": None}


def _drops(before, after):
    """By how much each architecture falls from scores to the mean of its other scores."""
    return {
        name: (
            np.array(scores)
            - np.mean([replaced[name] for replaced in after if name in replaced], axis=0)
        ).tolist()
        for name, scores in before.items()
    }


def lines_of(row: Row) -> list[Row]:
    """A row for each test set, each followed by what the paper prints.

    It has the ``scores`` of the columns, and the ``means`` [seeds] over them at each point.
    """
    if row["lines"] is None:
        return [row]
    lines = []
    for line in row["lines"]:
        points, printed = line["points"], line["published"]
        means = {at: np.mean(list(scores.values()), axis=0) for at, scores in points.items()}
        row_of_test = row | {"test": line["test"]}
        lines.append(row_of_test | {"scores": points["P"], "means": means})
        if printed:
            means = {"P": [np.mean(list(printed.values()))]}
            remark = {"method": "published", "scores": printed, "means": means, "floats": {}}
            lines.append(row_of_test | remark)
    return lines


def _mean_text(scores):
    """The mean over seeds as text; empty without scores."""
    return "" if scores is None else f"{np.mean(scores):.2f}"


def _mean(point, *, console=True):
    """The column of the mean over the columns at a point."""
    return Column(point, lambda row: _mean_text(row["means"].get(point)), console=console)


# The millions of numbers that a client receives and sends.
DOWN, UP = (
    Column(f"M\n{way}", lambda row, way=way: number_text(row["floats"].get(way), 3))
    for way in ("down", "up")
)


def text_of(table: str) -> TableText:
    """The text of a table. A console is too narrow for some of the columns."""
    design = TABLES[table]
    tests = (Column("test\nset", itemgetter("test"), left=True),)
    return TableText(
        columns=(
            DATA,
            SETTING,
            METHOD,
            *(tests if len(design.tests) > 1 else ()),
            *map(_column, design.columns),
            _mean("G", console=False),
            _mean("P"),
            Column("sd\nseeds", lambda row: spread_text(row["means"]["P"])),
            DOWN._replace(console=False),
            UP,
        ),
        title=lambda row: (
            f"{table} on {row['data']}, {row['setting']}, {row['metric']} at P in "
            f"{row['unit']}, {row['seeds']} seeds"
        ),
        introduction=lambda rows: _introduction(design, rows),
        lines=lines_of,
        notes=simulated_notes,
    )


def _column(name):
    """The column of an architecture or a client."""
    return Column(name.replace(" ", "\n"), lambda row: _mean_text(row["scores"].get(name)))


def _introduction(design, rows):
    """A caption, remarks on test sets and drops, and the sizes of the runs."""
    first = rows[0]
    columns = "clients" if design.columns == CLIENTS else "architectures"
    return [
        CAPTION.format(metric=first["metric"], seeds=first["seeds"], columns=columns),
        *(text for split, text in TESTS.items() if split in design.tests.values()),
        *([DROPS.format(drop=DROP)] if first["setting"] == NONE_REPLACED else []),
        size_note(first),
        size_list(rows),
    ]


def size_note(row: Row) -> str:
    """What the sizes of the runs mean for published scores."""
    return SMALL if row["width"] < FULL_WIDTH else FULL
