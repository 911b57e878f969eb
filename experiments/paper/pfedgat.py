"""The experiments of the pFedGAT paper: settings, sizes, and published accuracies.

Zhou, Gao, Wu, Lyu. Personalized Federated Learning via Learning Dynamic Graphs. 2025.
https://arxiv.org/abs/2503.05474, Tables 1 to 4.

The paper prints means in %, without a spread and without a number of seeds. Averages over
settings are computed here: three of the printed ones are not the means of their rows. These are
pFedHN on CIFAR-10 in Table 1 (73.02, the mean is 66.04), and Local and FedAMP in Table 2 (48.46
and 29.58, the means are 38.46 and 26.58).
"""

from typing import NamedTuple

from experiments.paper.configurations import PRINTED, Cell, by_column
from graphfl_jax.data.image_sets import CIFAR10, CIFAR100, FASHION_MNIST

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
)
ATTENTIONS = ("fedavg", "pfedgat", "pfedgat-direct", "pfedgat-v2", "pfedgat-dot")
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
    "Dirichlet 0.5": {"data.partition": "dirichlet", "data.beta": 0.5},
    "Dirichlet 0.3": {"data.partition": "dirichlet", "data.beta": 0.3},
    "Dirichlet 0.1": {"data.partition": "dirichlet", "data.beta": 0.1},
}
SETTINGS |= {
    f"Dirichlet 0.1, N={clients}": SETTINGS["Dirichlet 0.1"] | {"data.clients": clients}
    for clients in (25, 50)
}
# data set -> method -> setting -> accuracy in %
PUBLISHED = {dataset: by_column(**table) for dataset, table in PRINTED["pfedgat"].items()}
# table -> data set -> settings
TABLES = {
    "pfedgat_1": dict.fromkeys(PUBLISHED, ("IID", "pathological", "Dirichlet 0.5")),
    "pfedgat_2": {"cifar100": ("Dirichlet 0.1", "Dirichlet 0.3", "Dirichlet 0.5")},
    "pfedgat_3": {"cifar10": ("Dirichlet 0.1", "Dirichlet 0.1, N=25", "Dirichlet 0.1, N=50")},
    "pfedgat_4": {"cifar100": tuple(PUBLISHED["cifar100"]["pfedgat-direct"])},
}
LARGE_ONLY = {("pfedgat_1", "cifar100")}  # left out of a small table
AVERAGED = ("pfedgat_1", "pfedgat_2")  # tables with averages over the settings


def cells_of(table: str, profile: str) -> tuple[Cell, ...]:
    """The cells of a table of `TABLES` in a size of `SIZES`."""
    return tuple(
        cell(dataset, setting, profile)
        for dataset, settings in TABLES[table].items()
        if profile == "full" or (table, dataset) not in LARGE_ONLY
        for setting in settings
    )


def cell(dataset: str, setting: str, profile: str = "small") -> Cell:
    """A data set divided by a setting of `SETTINGS`, in a size of `SIZES`.

    All clients are in every round. The number of clients divides the examples, so that more
    clients have fewer each, as in the paper. Only the last round is evaluated.
    """
    size, partition = SIZES[profile], SETTINGS[setting]
    clients = partition.get("data.clients", CLIENTS)
    cap = size.examples // clients
    examples = cap or IMAGES[dataset].train // clients
    training = examples - round(VALIDATION * examples)
    return Cell(
        dataset,
        setting,
        partition
        | {
            "data.clients": clients,
            "cohort_size": clients,
            "data.cap": cap,
            "data.val_fraction": VALIDATION,
            "batch_size": BATCH_SIZE,
            "local_steps": max(1, round(size.epochs * training / BATCH_SIZE)),
            "rounds": size.rounds,
            "eval_every": size.rounds,
        },
    )
