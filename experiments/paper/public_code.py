"""The table of methods beside the scores that PFLlib publishes for its code.

Zhang, Liu, Hua, Wang, Song, Xue, Ma, Cao. PFLlib: A Beginner-Friendly and Comprehensive
Personalized Federated Learning Library and Benchmark. JMLR 26, 2025, and its leaderboard,
http://pfllib.com/benchmark.html: Fashion-MNIST, pathological label skew.
"""

from experiments.paper import columns, wire
from experiments.paper.columns import Row
from experiments.paper.configurations import PAPERS, Cell

PUBLISHED = PAPERS["pfllib"]
METHODS = tuple(PUBLISHED)
# One rate for all methods. In a round a client passes over its 3,000 examples, or, with the
# methods of `BY_STEPS`, draws as many.
FASHION = {
    "data.partition": "pathological",
    "data.clients": 20,
    "cohort_size": 20,
    "batch_size": 10,
    "hparams.client_lr": 0.005,
}
SMALL = {"model.name": "lenet", "rounds": 100, "eval_every": 100}
FULL = {"model.name": "cnn", "rounds": 2000, "eval_every": 2000}
EPOCHS, STEPS = {"local_epochs": 1}, {"local_steps": 300}
BY_STEPS = ("perfedavg", "pfedme", "apfl")  # which have no `local_epochs`
OF_METHODS = {name: STEPS if name in BY_STEPS else EPOCHS for name in METHODS}
OF_METHODS["fedfomo"] = EPOCHS | {"data.val_fraction": 0.1}  # on which it compares models


def _cells(size):
    return (Cell("fashion_mnist", "pathological", FASHION | size, of_methods=OF_METHODS),)


CELLS = {"small": _cells(SMALL), "full": _cells(FULL)}


def table_row(cell: Cell, config, runs: list[dict]) -> Row:
    """A row, as `tables.Table.row`."""
    row = wire.table_row(cell, config, runs)
    return row | {"published": columns.printed_score(row, config, PUBLISHED)}


TEXT = wire.text_of(
    "public_code",
    "*published* is the accuracy of the best of 2,000 rounds, a mean over runs of PFLlib's "
    "code, with another network, other partitions, and a quarter of the examples for tests.",
    columns.PRINTED,
)
