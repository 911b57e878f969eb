"""Rows of FLHA-GHN's tables from runs, and their text.

A row is a method in a cell. It has a line for each test set, with the scores of every seed by
point and column; a column is an architecture, or a client.
"""

import numpy as np
from rich.table import Table

from experiments.paper.configurations import Cell
from experiments.paper.flha import CLIENTS, NONE_REPLACED, SIZES, TABLES
from experiments.paper.flha_published import PUBLISHED
from experiments.paper.row_text import common_row, simulated_notes, sizes, spread_text
from graphfl_jax.commands.common.text_tables import escaped, markdown_table, narrow
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
LEFT_OUT = ("data", "setting", "G", "M down")  # columns for which a console is too narrow


def table_row(table: str, cell: Cell, config, runs: list[dict]) -> dict:
    """One row of a table: scores in %, or the number of diverged runs.

    Args:
      table: a key of `flha.TABLES`.
      cell: of the table.
      config: configuration of the runs.
      runs: one per seed, in the format of results.json.
    """
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
                    scale * np.mean(np.array(own[point]["per_client"])[ids]) for own in scores
                ]
                for name, ids in columns.items()
            }
            for point in SHOWN
        }
        printed = (
            PUBLISHED[table].get((cell.dataset, cell.setting, test), {}).get(row["method"])
        )
        published = None if row["source"] == "simulated" else printed
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


def with_drops(rows: list[dict]) -> list[dict]:
    """The rows of Table 7, and for every method the drops by a replaced architecture.

    The drop of an architecture is its score where none is replaced, minus the mean of its
    scores where another one is, seed by seed. A method with a diverged run, or without all of
    these cells, has none.
    """
    drops, places = [], TABLES["flha_7"].places
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        if len(own) == len(places) and all(row["lines"] for row in own):
            drops.append(_drops(own))
    return rows + drops


def _drops(rows):
    """The row of the drops of a method."""
    whole, *others = sorted(rows, key=lambda row: row["setting"] != NONE_REPLACED)
    before, *after = (row["lines"][0] for row in (whole, *others))

    def drops(first, others):
        return {
            name: (
                np.array(own) - np.mean([one[name] for one in others if name in one], axis=0)
            ).tolist()
            for name, own in first.items()
        }

    points = {
        point: drops(own, [one["points"][point] for one in after])
        for point, own in before["points"].items()
    }
    published = before["published"] and drops(
        before["published"], [one["published"] for one in after]
    )
    line = {"test": before["test"], "points": points, "published": published}
    return whole | {"setting": DROP, "lines": [line], "size": None}


def heads_of(table: str) -> list[str]:
    """The heads of a table."""
    tests = ["test set"] * (len(TABLES[table].tests) > 1)
    columns = TABLES[table].columns
    after = (*SHOWN, "sd seeds", "M down", "M up")
    return ["data", "setting", "method", *tests, *columns, *after]


def score_rows(table: str, rows: list[dict]) -> list[list[str]]:
    """The rows as text, in the order of `heads_of`, each followed by what the paper prints."""
    heads = heads_of(table)
    text = []
    for row in rows:
        begin = [row["data"], row["setting"], row["method"]]
        if row["lines"] is None:
            broken = [*begin, f"{row['diverged']} of {row['seeds']} diverged"]
            text.append([*broken, *[""] * (len(heads) - len(broken))])
        for line in row["lines"] or ():
            tests = [line["test"]] * bool(line["test"])
            seeds = line["points"]["P"]
            means = {
                at: np.mean(list(own.values()), axis=0) for at, own in line["points"].items()
            }
            text.append(
                [
                    *(*begin, *tests, *_cells(table, seeds)),
                    *(f"{means[at].mean():.2f}" for at in SHOWN),
                    spread_text(means["P"]),
                    *(f"{row['floats'][way]:.3f}" for way in ("down", "up")),
                ]
            )
            if line["published"]:
                printed = line["published"]
                mean = f"{np.mean(list(printed.values())):.2f}"
                cells = [*begin[:2], "published", *tests, *_cells(table, printed)]
                text.append([*cells, "", mean, "", "", ""])
    return text


def _cells(table, scores):
    """The mean over seeds in each column of a table, as text."""
    return [
        f"{np.mean(scores[name]):.2f}" if name in scores else ""
        for name in TABLES[table].columns
    ]


def console_table(table: str, rows: list[dict]) -> Table:
    """The rows of one cell for a console of 80 columns."""
    first, heads = rows[0], heads_of(table)
    title = (
        f"{table} on {first['data']}, {first['setting']}, {first['metric']} at P in "
        f"{first['unit']}, {first['seeds']} seeds"
    )
    shown = [place for place, head in enumerate(heads) if head not in LEFT_OUT]
    text = [[head.replace(" ", "\n") for head in heads], *score_rows(table, rows)]
    text = [[cells[place] for place in shown] for cells in text]
    return narrow(title, text, left=("method", "test\nset"))


def markdown(table: str, rows: list[dict]) -> str:
    """The table in Markdown, with a caption, the sizes of the runs, and notes."""
    first = rows[0]
    columns = "clients" if TABLES[table].columns == CLIENTS else "architectures"
    caption = CAPTION.format(metric=first["metric"], seeds=first["seeds"], columns=columns)
    splits = TABLES[table].tests.values()
    parts = [
        caption,
        *(text for split, text in TESTS.items() if split in splits),
        *([DROPS.format(drop=DROP)] if first["setting"] == NONE_REPLACED else []),
        SMALL if first["width"] < FULL_WIDTH else FULL,
        "".join(f"- {line}\n" for line in sizes(rows)),
        markdown_table([heads_of(table), *score_rows(table, rows)]),
        *(f"{escaped(note)}\n" for note in simulated_notes(rows)),
    ]
    return "\n".join(parts)
