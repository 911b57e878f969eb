"""Rows of pFedGAT's tables from runs, and their text."""

import itertools

import numpy as np
from rich.table import Table

from experiments.paper.configurations import Cell
from experiments.paper.pfedgat import PUBLISHED
from experiments.paper.row_text import common_row, simulated_notes, sizes, spread_text
from experiments.paper.table_text import over_seeds
from graphfl_jax.commands.common.text_tables import escaped, markdown_table, narrow
from graphfl_jax.commands.common.units import UNITS
from graphfl_jax.evaluation import POINTS

BETTER = "max(G, L)"
AVERAGE = "average"
HEADS = (
    *("data", "setting", "method", *POINTS, BETTER, "at", "sd seeds", "sd clients"),
    "published",
)
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


def table_row(cell: Cell, config, runs: list[dict]) -> dict:
    """One row of a table: scores in %, or the number of diverged runs.

    Args:
      cell: of the table.
      config: configuration of the runs.
      runs: one per seed, in the format of results.json, with a validation split.
    """
    row = common_row(config, runs)
    score = PUBLISHED[cell.dataset].get(row["method"], {}).get(cell.setting)
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
    scores = {
        point: over_seeds(own, UNITS[row["metric"]][0]) for point, own in summaries.items()
    }
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


def with_averages(rows: list[dict]) -> list[dict]:
    """The rows, and after each data set the averages of its settings for every method.

    The spread over seeds is that of the averages. A method with a diverged run has none.
    """
    result = []
    for _, of_data in itertools.groupby(rows, key=lambda row: row["data"]):
        of_data = list(of_data)
        result += of_data
        methods = dict.fromkeys(row["method"] for row in of_data)
        for method in methods:
            own = [row for row in of_data if row["method"] == method]
            if all(row["scores"] for row in own):
                result.append(_average(own))
    return result


def _average(rows):
    scores = {}
    for point in rows[0]["scores"]:
        own = [row["scores"][point] for row in rows]
        seeds = np.mean([score["seeds"] for score in own], axis=0)
        scores[point] = {
            "mean": seeds.mean(),
            "std_clients": np.mean([score["std_clients"] for score in own]),
            "std_seeds": seeds.std(),
            "seeds": seeds.tolist(),
        }
    printed = [row["published"] for row in rows]
    published = None if None in printed else round(float(np.mean(printed)), 2)
    own = {"setting": AVERAGE, "at": [], "published": published, "scores": scores}
    return rows[0] | own | {"size": None}


def score_rows(rows: list[dict]) -> list[list[str]]:
    """The rows as text, in the order of `HEADS`."""
    text = []
    for row in rows:
        cells = [row["data"], row["setting"], row["method"]]
        if row["scores"] is None:
            empty = len(HEADS) - len(cells) - 2
            cells += [f"{row['diverged']} of {row['seeds']} diverged", *[""] * empty]
        else:
            better = row["scores"][BETTER]
            cells += [f"{row['scores'][point]['mean']:.2f}" for point in (*POINTS, BETTER)]
            cells.append(", ".join(sorted(set(row["at"]))))
            cells += [spread_text(better["seeds"]), f"{better['std_clients']:.2f}"]
        paper = row["published"]
        text.append([*cells, "" if paper is None else f"{paper:.2f}"])
    return text


def console_table(table: str, rows: list[dict]) -> Table:
    """The rows of one cell for a console of 80 columns."""
    first = rows[0]
    title = (
        f"{table} on {first['data']}, {first['setting']}, {first['unit']}, "
        f"{first['seeds']} seeds"
    )
    heads = [head.replace("sd ", "sd\n") for head in HEADS]
    return narrow(title, [cells[2:] for cells in [heads, *score_rows(rows)]])


def markdown(rows: list[dict]) -> str:
    """The table in Markdown, with a caption, the sizes of the runs, and notes."""
    parts = [
        CAPTION.format(seeds=rows[0]["seeds"]),
        PAPER,
        "".join(f"- {line}\n" for line in sizes(rows)),
        markdown_table([list(HEADS), *score_rows(rows)]),
        *(f"{escaped(note)}\n" for note in simulated_notes(rows)),
    ]
    return "\n".join(parts)
