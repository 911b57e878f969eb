"""The experiments of the pFedGAT paper: settings, sizes, and published accuracies.

Zhou, Gao, Wu, Lyu. Personalized Federated Learning via Learning Dynamic Graphs. 2025.
https://arxiv.org/abs/2503.05474, Tables 1 to 4.

The paper prints means in %, without a spread and without a number of seeds. Averages over
settings are computed here: three of the printed ones are not the means of their rows. These are
pFedHN on CIFAR-10 in Table 1 (73.02, the mean is 66.04), and Local and FedAMP in Table 2 (48.46
and 29.58, the means are 38.46 and 26.58).
"""

from typing import NamedTuple

from experiments.paper.configurations import Cell
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


def _accuracies(settings, text):
    """Method -> setting -> accuracy, from lines with a method and its numbers."""
    lines = (line.split() for line in text.strip().splitlines())
    return {
        method: dict(zip(settings, map(float, numbers), strict=True))
        for method, *numbers in lines
    }


# data set -> method -> setting -> accuracy in %
PUBLISHED = {
    "fashion_mnist": _accuracies(
        ("IID", "pathological", "Dirichlet 0.5"),
        """
        local          84.77  99.28  90.38
        fedavg         89.61  96.33  88.44
        fedprox        89.61  94.11  88.20
        sfl-star       88.91  98.81  91.15
        cfl            87.95  99.35  91.41
        perfedavg      88.14  99.16  91.93
        pfedme         84.29  98.64  88.56
        fedamp         81.59  99.02  86.93
        pfedhn         85.30  99.05  90.38
        fedrod         87.35  99.17  91.55
        knnper         89.63  98.06  88.89
        fedah          87.99  99.34  91.88
        pfedgat        89.76  99.31  91.90
        """,
    ),
    "cifar10": _accuracies(
        (
            "IID",
            "pathological",
            "Dirichlet 0.5",
            "Dirichlet 0.1",
            "Dirichlet 0.1, N=25",
            "Dirichlet 0.1, N=50",
        ),
        """
        local          54.96  91.05  75.08  83.89  88.97  83.98
        fedavg         67.09  67.27  63.55  61.11  64.41  58.58
        fedprox        67.02  58.56  63.20  61.64  60.69  58.53
        sfl-star       66.36  89.43  73.85  83.26  88.58  82.47
        cfl            57.53  90.65  74.55  83.55  89.51  84.68
        perfedavg      64.33  89.90  74.59  84.01  89.82  84.02
        pfedme         47.17  81.71  66.38  75.64  87.29  82.23
        fedamp         46.03  86.05  64.40  75.58  86.72  81.64
        pfedhn         48.30  83.69  66.12  77.22  80.01  74.74
        fedrod         62.79  90.54  73.93  83.30  89.61  84.73
        knnper         66.81  79.61  62.89  72.06  84.77  78.84
        fedah          63.29  90.15  74.39  83.23  89.39  84.80
        pfedgat        67.17  90.73  74.80  84.23  89.91  85.05
        """,
    ),
    "cifar100": _accuracies(
        ("IID", "pathological", "Dirichlet 0.5", "Dirichlet 0.3", "Dirichlet 0.1"),
        """
        local          16.61  49.41  30.30  37.24  47.85
        fedavg         31.36  24.99  31.30  29.80  27.93
        fedprox        30.83  25.19  29.81  28.11  27.28
        sfl-star       30.82  50.23  34.87  40.94  50.83
        cfl            21.39  52.35  32.01  38.28  47.78
        perfedavg      24.21  51.14  36.46  41.61  50.15
        pfedme         12.99  33.06  23.00  26.65  34.55
        fedamp         10.17  37.92  21.47  26.79  31.47
        pfedhn         14.54  36.00  26.46  29.83  39.10
        fedrod         18.69  49.17  31.07  36.46  47.58
        knnper         31.38  25.80  30.21  29.00  28.87
        fedah          26.53  50.81  36.81  41.26  50.81
        pfedgat        31.38  51.52  36.87  42.15  51.32
        pfedgat-direct 30.23  50.75  36.36  41.15  49.87
        """,
    ),
}
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
