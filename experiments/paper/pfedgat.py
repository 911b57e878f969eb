"""The experiments of the pFedGAT paper: settings, sizes, and rows and text of its tables.

Zhou, Gao, Wu, Lyu. Personalized Federated Learning via Learning Dynamic Graphs. 2025.
https://arxiv.org/abs/2503.05474, Tables 1 to 4.

The paper prints means in %, without a spread and without a number of seeds. Averages over
settings are computed here: three of the printed ones are not the means of their rows. These are
pFedHN on CIFAR-10 in Table 1 (73.02, the mean is 66.04), and Local and FedAMP in Table 2 (48.46
and 29.58, the means are 38.46 and 26.58).
"""

import itertools
from typing import NamedTuple

import numpy as np

from experiments.paper import columns
from experiments.paper.columns import Column, Row, TableText, number_text, spread_text
from experiments.paper.configurations import PAPERS, Cell, by_column
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.commands.common.text_tables import count_text
from graphfl_jax.data.image_sets import CIFAR10, CIFAR100, FASHION_MNIST
from graphfl_jax.evaluation import POINTS
from graphfl_jax.metrics import rank

# Of the paper, with its network, rate and optimiser; they train on test examples.
EXACT = dict.fromkeys(("pfedgat-paper", "pfedgat-direct-paper"), {"model.name": "conv3"})
# Those of the paper, the other attentions, and FedAvg with fine-tuning.
METHODS = (
    "local",
    "fedavg",
    "fedavg-finetune",
    "fedprox",
    "sfl-star",
    "cfl",
    "perfedavg",
    "pfedme",
    "fedamp",
    "pfedhn",
    "fedrod",
    "knnper",
    "fedah",
    "pfedgat",
    "pfedgat-v2",
    "pfedgat-direct",
    "pfedgat-dot",
    "pfedgat-paper",
)
ATTENTIONS = ("fedavg", "pfedgat", "pfedgat-direct", "pfedgat-v2", "pfedgat-dot", *EXACT)
NEW_CLIENT_METHODS = ("pfedgat", "pfedgat-dot", "local", "pfedme", "fedamp", "perfedavg")
ALLOCATED_METHODS = ("fedamp", "cfl", "pfedgat", "pfedgat-dot")

CLIENTS = 10  # where a setting does not say otherwise
IMAGES = {images.name: images for images in (FASHION_MNIST, CIFAR10, CIFAR100)}
BATCH_SIZE = 64
VALIDATION = 0.1  # share of a client's training examples


class Size(NamedTuple):
    """The size of an experiment."""

    examples: int  # training examples of all clients together; 0 is the whole data set
    rounds: int
    epochs: int  # of a client in a round


SIZES = {"small": Size(examples=6000, rounds=30, epochs=1), "full": Size(0, 50, 5)}
SETTINGS = {
    "IID": {"data.partition": "iid"},
    "pathological": {"data.partition": "pathological"},
}
# The paper's: each class draws the shares of its clients, so that these have different sizes.
DIRICHLET = {
    f"Dirichlet {beta}": {
        "data.partition": "dirichlet",
        "data.beta": beta,
        "data.balanced": False,
    }
    for beta in (0.5, 0.3, 0.1)
}
DIRICHLET |= {
    f"Dirichlet 0.1 N={clients}": DIRICHLET["Dirichlet 0.1"] | {"data.clients": clients}
    for clients in (25, 50)
}
EQUAL = " (equal sizes)"  # each client draws the shares of its classes
SETTINGS |= DIRICHLET
SETTINGS |= {f"{name}{EQUAL}": DIRICHLET[name] | {"data.balanced": True} for name in DIRICHLET}
# data set -> method -> setting -> accuracy in %
PUBLISHED = {dataset: by_column(**table) for dataset, table in PAPERS["pfedgat"].items()}
# table -> data set -> settings
TABLES = {
    "pfedgat_1": dict.fromkeys(PUBLISHED, ("IID", "pathological", "Dirichlet 0.5")),
    "pfedgat_2": {"cifar100": ("Dirichlet 0.1", "Dirichlet 0.3", "Dirichlet 0.5")},
    "pfedgat_3": {"cifar10": ("Dirichlet 0.1", "Dirichlet 0.1 N=25", "Dirichlet 0.1 N=50")},
    "pfedgat_4": {"cifar100": tuple(PUBLISHED["cifar100"]["pfedgat-direct-paper"])},
}
# Left out of a small table: a data set, and methods that are at chance after its few steps.
LARGE_ONLY = {("pfedgat_1", "cifar100")}
SMALL_METHODS = tuple(
    name for name in dict.fromkeys((*METHODS, *ATTENTIONS)) if name not in EXACT
)
AVERAGED = ("pfedgat_1", "pfedgat_2")  # tables with averages over the settings


def cells_of(table: str, profile: str) -> tuple[Cell, ...]:
    """The cells of a table of `TABLES` in a size of `SIZES`.

    Dirichlet partitions occur twice: the paper's, and with clients of equal sizes.
    """
    methods = SMALL_METHODS if profile == "small" else ()
    return tuple(
        cell(dataset, name, profile)._replace(methods=methods)
        for dataset, settings in TABLES[table].items()
        if profile == "full" or (table, dataset) not in LARGE_ONLY
        for setting in settings
        for name in (setting, f"{setting}{EQUAL}")
        if name in SETTINGS
    )


def cell(dataset: str, setting: str, profile: str = "small") -> Cell:
    """A data set divided by a setting of `SETTINGS`, in a size of `SIZES`.

    All clients are in every round. The number of clients divides the examples, so that more
    clients have fewer each, as in the paper. A small size has a sample of all training
    examples. All clients take the steps of a mean number of examples, but with the methods of
    `EXACT`, whose clients pass over their own. Only the last round is evaluated.
    """
    size, partition = SIZES[profile], SETTINGS[setting]
    clients = partition.get("data.clients", CLIENTS)
    examples = (size.examples or IMAGES[dataset].train) // clients
    training = examples - round(VALIDATION * examples)
    return Cell(
        dataset,
        setting,
        partition
        | {
            "data.clients": clients,
            "cohort_size": clients,
            "data.examples": size.examples,
            "data.val_fraction": VALIDATION,
            "batch_size": BATCH_SIZE,
            "local_steps": max(1, round(size.epochs * training / BATCH_SIZE)),
            "rounds": size.rounds,
            "eval_every": size.rounds,
        },
        of_methods=dict.fromkeys(EXACT, {"local_epochs": size.epochs}),
    )


# ---------------------------------------------------------------------------- rows and text

BETTER = "max(G, L)"
AVERAGE = "average"
CAPTION = """\
Test accuracy in %, means over clients and {seeds}. In each run, max(G, L) is that of
G and L which has the higher mean accuracy on validation, or the smaller loss if they are
equal, and *at* says which one. The spreads are those of max(G, L): the standard deviation
over seeds of the mean over clients, whose divisor is the number of seeds, and the standard
deviation over clients, as a mean over seeds. The paper does not say at which point it scores
a method. FedAvg at max(G, L) is the control: it has no personalised models, and gains by the
choice of the point alone. In Dirichlet partitions each class draws the shares of its clients,
whose sizes differ, as in the paper; with *equal sizes*, each client draws the shares of its
classes. Averages are without the latter.
"""
PAPER = """\
The published scores are from runs with all training images, 50 rounds of 5 epochs in batches
of 64, learning rate 0.01, and a network with three convolutional and three dense layers. These
are the runs of this table. *published* of pFedGAT is beside pfedgat-paper alone, which has this
network, rate and optimiser, and trains its attention on the test examples:
"""


def table_row(cell: Cell, config, runs: list[dict]) -> Row:
    """A row of a table, as `tables.Table.row`, from runs with a validation split."""
    row = columns.common_row(config, runs)
    printed = columns.printed_score(row, config, PUBLISHED[cell.dataset], EXACT) or {}
    row |= {
        "setting": cell.setting,
        "published": printed.get(cell.setting),
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
    scores = {
        point: columns.seed_statistics(of_seeds, scale) for point, of_seeds in summaries.items()
    }
    return row | {"scores": scores, "at": chosen}


def better_point(run: dict) -> str:
    """That of G and L which `metrics.rank` puts first by the validation of a run."""
    at, better = run["scores"]["validation"], run["higher_is_better"]
    return min(
        ("G", "L"),
        key=lambda p: rank(at[p]["mean"], at[p].get("loss"), higher_is_better=better),
    )


def _size(config):
    clients = config.data.clients
    return (
        f"{config.rounds} rounds of all {clients} clients, {config.local_steps} steps of "
        f"{config.batch_size} images with {config.model.name}"
    )


def with_averages(rows: list[Row]) -> list[Row]:
    """The rows, and after each data set the averages of the paper's settings for every method.

    The spread over seeds is that of the averages. A method with a diverged run has none.
    """
    result = []
    for _, of_data in itertools.groupby(rows, key=lambda row: row["data"]):
        of_data = list(of_data)
        result += of_data
        for method in dict.fromkeys(row["method"] for row in of_data):
            settings = [
                row
                for row in of_data
                if row["method"] == method and not row["setting"].endswith(EQUAL)
            ]
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
        "cost": None,
    }


COLUMNS = (
    columns.DATA,
    columns.SETTING,
    columns.METHOD,
    *map(columns.mean_column, POINTS),
    columns.mean_column(BETTER),
    Column("at", lambda row: ", ".join(sorted(set(row["at"])))),
    Column("sd\nseeds", lambda row: spread_text(row["scores"][BETTER]["seeds"])),
    Column("sd\nclients", lambda row: number_text(row["scores"][BETTER]["std_clients"])),
    *columns.COST,
    columns.PRINTED,
)


def text_of(table: str) -> TableText:
    """The text of a table."""
    return TableText(
        COLUMNS,
        title=lambda row: (
            f"{table} on {row['data']}, {row['setting']}, {row['unit']}, "
            f"{count_text(row['seeds'], 'seed')}"
        ),
        introduction=lambda rows: [
            CAPTION.format(seeds=count_text(rows[0]["seeds"], "seed")) + columns.COSTS + "\n",
            PAPER,
            columns.size_list(rows),
        ],
        notes=columns.simulated_notes,
    )
