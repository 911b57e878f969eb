"""The table of all methods: known and new clients of several data sets."""

import numpy as np

from experiments.paper import columns, pfedgat
from experiments.paper.columns import Column, Row, TableText, interval_text, number_text
from experiments.paper.configurations import Cell
from graphfl_jax import configs
from graphfl_jax.commands.common.statistics import over_seeds
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.commands.common.text_tables import count_text
from graphfl_jax.configs.base import needing, was_searched
from graphfl_jax.evaluation import POINTS

NEW_CLIENTS = {"new_clients.fraction": 0.2, "new_clients.rounds": 5}
# The variants that are named after a paper are in the tables of these papers.
METHODS = tuple(
    name for name in configs.methods() if "paper" not in name and name not in needing("layers")
)
REGRESSION = tuple(name for name in METHODS if name not in needing("labels"))
# fedbuff needs clients that train while those of the cohort upload.
WITH_ALL_CLIENTS = tuple(name for name in METHODS if name != "fedbuff")
SKEWED = ("pathological", "Dirichlet 0.1")


def _images(dataset, setting):
    """A cell of images, with all clients that are not new in every round."""
    cell = pfedgat.cell(dataset, setting)
    known = round(pfedgat.CLIENTS * (1 - NEW_CLIENTS["new_clients.fraction"]))
    return cell._replace(
        changes={**cell.changes, **NEW_CLIENTS, "cohort_size": known}, methods=WITH_ALL_CLIENTS
    )


CELLS = (
    Cell("tpt48", "states", {"eval_every": 800, **NEW_CLIENTS}, methods=REGRESSION),
    Cell("fl60", "spiral", NEW_CLIENTS, methods=METHODS),
    *(_images(dataset, skew) for dataset in ("fashion_mnist", "cifar10") for skew in SKEWED),
)


def table_row(cell: Cell, config, runs: list[dict]) -> Row:
    """A row, as `tables.Table.row`: the scores of known clients, and those of new ones at P."""
    row = columns.common_row(config, runs)
    row |= {
        "setting": cell.setting,
        "higher_is_better": runs[0]["higher_is_better"],
        "searched": was_searched(config),
        "scores": None,
        "behind": None,
    }
    if row["diverged"]:
        return row
    scale = UNITS[row["metric"]][0]
    finals = [run["scores"]["final"] for run in runs]
    curves = [run["new_clients"]["curve"] for run in runs]
    summaries = {point: [final[point] for final in finals] for point in POINTS}
    summaries |= {"joined": [curve[0]["P"] for curve in curves]}
    summaries |= {"trained": [curve[-1]["P"] for curve in curves]}
    row["scores"] = {
        name: columns.seed_statistics(of_seeds, scale) for name, of_seeds in summaries.items()
    }
    return row


def with_best(rows: list[Row]) -> list[Row]:
    """The rows, best at P first in each cell, and how far each is behind the best.

    ``behind`` summarises the differences of runs with the same seed, by `over_seeds`.
    """
    sorted_rows = []
    for cell in dict.fromkeys((row["data"], row["setting"]) for row in rows):
        of_cell = [row for row in rows if (row["data"], row["setting"]) == cell]
        whole = [row for row in of_cell if row["scores"]]
        sign = 1 if of_cell[0]["higher_is_better"] else -1
        whole.sort(key=lambda row, sign=sign: -sign * row["scores"]["P"]["mean"])
        for row in whole[1:]:
            best, other = (np.array(each["scores"]["P"]["seeds"]) for each in (whole[0], row))
            row["behind"] = over_seeds((sign * (best - other)).tolist())
        sorted_rows += whole + [row for row in of_cell if not row["scores"]]
    return sorted_rows


def _method(row):
    return row["method"] if row["searched"] else f"{row['method']} *"


COLUMNS = (
    columns.DATA,
    columns.SETTING,
    Column("method", _method, scored=False, left=True),
    *map(columns.mean_column, POINTS),
    Column("behind", lambda row: interval_text(row["behind"]) if row["behind"] else "best"),
    Column("worst\ndecile", lambda row: number_text(row["scores"]["P"]["worst_decile"])),
    columns.mean_column("joined"),
    columns.mean_column("trained"),
    *columns.COST,
)


def text_of(share: str, introduction: str = "") -> TableText:
    """The text of a table with `table_row`.

    Args:
      share: "A fifth" of the clients are new.
      introduction: of its settings.
    """

    def paragraphs(rows):
        return [
            f"{introduction} Test scores of {count_text(rows[0]['seeds'], 'seed')}; "
            f"{columns.metrics_text(rows)}. *Behind* is how much worse than the "
            "best method a method is at P, a mean over runs with the same seed and its 95 % "
            f"interval by Student's t. {share} of the clients are new. *Joined* is their score "
            "at P when they join, *trained* after five rounds in which they train. "
            f"{columns.COSTS} The rates of methods with * were not searched here.\n".lstrip()
        ]

    return TableText(
        columns=COLUMNS,
        title=lambda row: f"methods on {row['data']}, {row['setting']}, {row['unit']}",
        introduction=paragraphs,
        notes=columns.simulated_notes,
    )


TEXT = text_of("A fifth")
