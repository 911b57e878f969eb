"""Rows of FLHA-GHN's tables from runs, and their text.

A row is a method in a cell. It has a line for each test set, with the scores of every seed by
point and column; a column is an architecture, or a client.

flha_6 has clients that join with an architecture that nobody trained. A new client gets a
generated model, and then trains all its layers by itself, which changes nothing for others.
With local training it starts from a random model.
"""

from operator import itemgetter

import numpy as np

from experiments.paper import columns, flha
from experiments.paper.columns import Column, Row, TableText, number_text, spread_text
from experiments.paper.configurations import Cell
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.commands.common.text_tables import count_text

DROP = "mean drop"
FULL_WIDTH = flha.SIZES["full"].width
CAPTION = """\
Test {metric} in %, means over {seeds}. The columns of {columns} have P, the method's
own predictor: for FLHA-GHN and its controls this is the generated model whose head the
client has refined. G and P are means over these columns, and *sd seeds* is the standard
deviation of P over seeds; its divisor is the number of seeds. L is left out: it equals G,
because the cosine schedule has ended. A line *published* has what the paper prints for the
method above it, and its mean; that of FLHA-GHN is below flha-ghn-paper alone, and only with
the paper's width. fedavg has the first architecture alone: it is the paper's upper bound.
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
POINTS = ("G", "P")  # that a table shows


def table_row(table: str, cell: Cell, config, runs: list[dict]) -> Row:
    """A row of a table of `flha.TABLES`, as `tables.Table.row`."""
    row = _row(cell, config, runs) | {"lines": None}
    if row["diverged"]:
        return row
    scale, clients_of = UNITS[row["metric"]][0], columns_of(table, config)
    row["lines"] = []
    for test, split in flha.TABLES[table].tests.items():
        scores = [run["scores"]["final" if split == "test" else split] for run in runs]
        points = {
            point: {
                name: [
                    scale * np.mean(np.array(points[point]["per_client"])[ids])
                    for points in scores
                ]
                for name, ids in clients_of.items()
            }
            for point in POINTS
        }
        printed = flha.PUBLISHED[table].get((cell.dataset, cell.setting, test), {})
        published = columns.printed_score(row, config, printed, flha.EXACT)
        row["lines"].append({"test": test, "points": points, "published": published})
    return row


def columns_of(table: str, config) -> dict[str, list[int]]:
    """The columns of a table in which a run has scores, with the numbers of their clients."""
    everyone = range(config.data.clients)
    if flha.TABLES[table].columns == flha.CLIENTS:
        return {flha.CLIENTS[i]: [i] for i in everyone}
    names = config.model.architectures
    return {name: list(everyone[k :: len(names)]) for k, name in enumerate(names)}


def _row(cell, config, runs):
    """What the rows of all these tables have."""
    size = (
        f"{count_text(config.rounds, 'round')} of all {config.cohort_size} clients, "
        f"{config.local_steps} steps of {config.batch_size} images with {config.model.width} "
        f"channels in the first layer"
    )
    return columns.common_row(config, runs) | {
        "setting": cell.setting,
        "width": config.model.width,
        "size": size,
    }


def with_drops(rows: list[Row]) -> list[Row]:
    """The rows of Table 7, and for every method the drops by a replaced architecture.

    The drop of an architecture is its score where none is replaced, minus the mean of its
    scores where another one is, seed by seed. A method with a diverged run, or without all of
    these cells, has none.
    """
    drops, places = [], flha.TABLES["flha_7"].places
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = [row for row in rows if row["method"] == method]
        if len(cells) == len(places) and all(row["lines"] for row in cells):
            drops.append(_drop_row(cells))
    return rows + drops


def _drop_row(rows):
    """The row of the drops of a method."""
    whole, *replaced = sorted(rows, key=lambda row: row["setting"] != flha.NONE_REPLACED)
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
            remark = {"method": "published", "scores": printed, "means": means, "cost": None}
            lines.append(row_of_test | remark)
    return lines


def _mean_text(scores):
    """The mean over seeds as text; empty without scores."""
    return "" if scores is None else f"{np.mean(scores):.2f}"


def text_of(table: str) -> TableText:
    """The text of a table. A console is too narrow for some of the columns."""
    design = flha.TABLES[table]
    tests = (Column("test\nset", itemgetter("test"), left=True),)
    return TableText(
        columns=(
            columns.DATA,
            columns.SETTING,
            columns.METHOD,
            *(tests if len(design.tests) > 1 else ()),
            *(
                Column(
                    name.replace(" ", "\n"),
                    lambda row, name=name: _mean_text(row["scores"].get(name)),
                )
                for name in design.columns
            ),
            Column("G", lambda row: _mean_text(row["means"].get("G")), console=False),
            Column("P", lambda row: _mean_text(row["means"]["P"])),
            Column("sd\nseeds", lambda row: spread_text(row["means"]["P"])),
            *columns.COST,
        ),
        title=lambda row: (
            f"{table} on {row['data']}, {row['setting']}, {row['metric']} at P in "
            f"{row['unit']}, {count_text(row['seeds'], 'seed')}"
        ),
        introduction=lambda rows: _introduction(design, rows),
        lines=lines_of,
        notes=columns.simulated_notes,
    )


def _introduction(design, rows):
    """A caption, remarks on test sets and drops, and the sizes of the runs."""
    first = rows[0]
    shown = "clients" if design.columns == flha.CLIENTS else "architectures"
    return [
        CAPTION.format(
            metric=first["metric"], seeds=count_text(first["seeds"], "seed"), columns=shown
        )
        + f"{columns.COSTS}\n",
        *(text for split, text in TESTS.items() if split in design.tests.values()),
        *([DROPS.format(drop=DROP)] if first["setting"] == flha.NONE_REPLACED else []),
        *_sizes(rows),
    ]


def _sizes(rows):
    """The sizes of the runs, and what they mean for published scores."""
    return SMALL if rows[0]["width"] < FULL_WIDTH else FULL, columns.size_list(rows)


# ------------------------------------------------------------------------ unseen architectures

UNSEEN_CAPTION = """\
Test {metric} in % of the new client, means over {seeds}. The columns *after* have the
accuracy of its model (G) after this number of its rounds of local training: at 0 it is as it
was generated, or random with local. *sd seeds* is the standard deviation of the last of them
over seeds; its divisor is the number of seeds. P is after the last round too, when the head has
been refined once more. The costs are those of the other clients. With local, these train for
one round only, since they do not affect the new client. The paper does not state how long its
new clients train.
"""


def unseen_row(cell: Cell, config, runs: list[dict]) -> Row:
    """A row of flha_6, as `tables.Table.row`."""
    (name,) = config.new_clients.architectures
    row = _row(cell, config, runs)
    row["size"] += f"; then {config.new_clients.rounds} rounds of the new client"
    scale = UNITS[row["metric"]][0]
    printed = columns.printed_score(row, config, flha.UNSEEN, flha.EXACT) or {}
    scores = {
        point: [
            [scale * scores[point]["mean"] for scores in curve]
            for curve in columns.new_client_curves(runs)
        ]
        for point in POINTS
    }
    scores = None if row["diverged"] else scores
    return row | {"published": printed.get(name), "scores": scores}


def _after(rounds):
    """The column of the score after a number of rounds of the new client."""
    return Column(
        f"after\n{rounds}", lambda row: number_text(_scores(row, "G")[:, rounds].mean())
    )


def _scores(row, point):
    """[seeds, rounds] of a row."""
    return np.array(row["scores"][point])


UNSEEN_TEXT = TableText(
    columns=(
        columns.DATA,
        columns.SETTING,
        columns.METHOD,
        *map(_after, flha.SHOWN),
        Column("sd\nseeds", lambda row: spread_text(_scores(row, "G")[:, -1])),
        Column("P", lambda row: number_text(_scores(row, "P")[:, -1].mean())),
        *columns.COST,
        columns.PRINTED,
    ),
    title=lambda row: (
        f"flha_6 on {row['data']}, {row['setting']}, {row['metric']} in {row['unit']}, "
        f"{count_text(row['seeds'], 'seed')}"
    ),
    introduction=lambda rows: [
        UNSEEN_CAPTION.format(
            metric=rows[0]["metric"], seeds=count_text(rows[0]["seeds"], "seed")
        )
        + f"{columns.COSTS}\n",
        *_sizes(rows),
    ],
    notes=columns.simulated_notes,
)
