"""The table of methods beside public code of others, on the same clients."""

import json
from pathlib import Path

from experiments.paper import columns
from experiments.paper.columns import Column, Row, TableText, interval_text, number_text
from experiments.paper.configurations import Cell
from graphfl_jax.commands.common.statistics import over_seeds
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.commands.common.text_tables import count_text

SEEDS = 5
# The lines that experiments/peers/fluke_scores.py and pfedgraph_scores.py print.
SCORES = Path(__file__).parents[1] / "peers/scores.jsonl"
FASHION = {
    "data.partition": "dirichlet",
    "data.beta": 0.3,
    "data.examples": 6000,
    "data.val_fraction": 0.0,
    "client_optimizer": "sgd",
    "hparams.client_lr": 0.1,
    "batch_size": 50,
    "rounds": 40,
    "eval_every": 40,
}
EPOCH, STEPS = {"local_epochs": 1}, {"local_steps": 12}  # 600 examples both
OF_METHODS = {
    "fedavg": EPOCH,
    "fedprox": EPOCH | {"hparams.mu": 0.1},
    "scaffold": STEPS | {"hparams.client_lr": 0.03},
    "moon": EPOCH | {"hparams.moon_mu": 1.0, "hparams.moon_tau": 0.5},
    "fedper": EPOCH,
    "fedrep": {"local_steps": 24},  # half of them for the head
    "lgfedavg": EPOCH,
    "fedrod": EPOCH,
    "ditto": EPOCH | {"hparams.ditto_lambda": 0.1},
    "fedbabu": EPOCH | {"tuning.epochs": 1, "hparams.tuning_lr": 0.01},
    "fedala": EPOCH | STEPS | {"hparams.fedala_eta": 1.0},  # steps of its weights
    "pfedgraph": EPOCH | {"hparams.pfedgraph_alpha": 0.8, "hparams.pfedgraph_lambda": 0.0},
}
METHODS = tuple(OF_METHODS)
CELL = Cell("fashion_mnist", "Dirichlet 0.3", FASHION, of_methods=OF_METHODS)


def read_scores() -> dict[str, dict]:
    """Of each method, the ``library`` and its version, and the accuracies in % by seed."""
    of_methods = {}
    for line in map(json.loads, SCORES.read_text(encoding="utf-8").splitlines()):
        library = f"{line['library']} {line['version']}"
        method = of_methods.setdefault(line["method"], {"library": library, "seeds": {}})
        method["seeds"][line["seed"]] = line["accuracy"]
    return of_methods


def table_row(cell: Cell, config, runs: list[dict]) -> Row:
    """A row, as `tables.Table.row`, with the accuracies of the public code.

    Runs of other rounds, other data or further seeds have none beside them.
    """
    row = columns.common_row(config, runs)
    public = read_scores()[row["method"]]
    row |= {"setting": cell.setting, "library": public["library"]}
    row |= {"scores": None, "public": None, "difference": None}
    if row["diverged"]:
        return row
    scale = UNITS[row["metric"]][0]
    scores = {run["seed"]: scale * run["scores"]["final"]["P"]["mean"] for run in runs}
    row["scores"] = over_seeds(list(scores.values()))
    if row["source"] != "real" or config.rounds != FASHION["rounds"]:
        return row
    of_public = public["seeds"]
    if pairs := [(scores[seed], of_public[seed]) for seed in scores if seed in of_public]:
        row["public"] = over_seeds([other for _, other in pairs])
        row["difference"] = over_seeds([ours - other for ours, other in pairs])
    return row


def _interval(summary):
    return interval_text(summary) if summary else ""


TEXT = TableText(
    columns=(
        columns.DATA,
        columns.SETTING,
        columns.METHOD,
        Column("P", lambda row: number_text(row["scores"]["mean"])),
        Column(
            "public\ncode", lambda row: number_text(row["public"] and row["public"]["mean"])
        ),
        Column("difference", lambda row: _interval(row["difference"])),
        Column("code", lambda row: row["library"], scored=False, left=True),
    ),
    title=lambda row: f"same clients, {row['data']}, {row['setting']}, {row['unit']}",
    introduction=lambda rows: [
        f"Test scores at P of {count_text(rows[0]['seeds'], 'seed')}; "
        f"{columns.metrics_text(rows)}. "
        "Both codes have the same clients, images, network, rates, batches and rounds. "
        "*Difference* is P minus the score of the public code, a mean over seeds and its 95 % "
        "interval by Student's t. Partitions differ between seeds.\n"
    ],
)
