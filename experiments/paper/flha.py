"""The experiments of the FLHA-GHN paper: federations and sizes.

Litany, Maron, Acuna, Kautz, Chechik, Fidler. Federated Learning with Heterogeneous
Architectures using Graph HyperNetworks. 2022. https://arxiv.org/abs/2201.08459

flha_1, 2, 3, 5, 6 and 7 are the tables of these numbers, and flha_b is the text of Appendix B.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.paper.configurations import PAPERS, Cell, by_column
from graphfl_jax.configs.base import needing
from graphfl_jax.data.chest_xray import OFFICIAL
from graphfl_jax.data.image_sets import CIFAR10, CIFAR100
from graphfl_jax.data.splits import TEST_FRACTION
from graphfl_jax.declarations import NOTHING

# The upper bound of the paper: all clients have the first architecture.
UPPER_BOUND = "fedavg"
# Of the paper, with its rate and optimiser. The others have rates that were searched.
PAPER = ("flha-ghn-paper", "flha-ghn-no-gnn-paper")
# Those without relations.
LAYERED = tuple(
    name for name in needing("layers") if name not in (*PAPER, *needing("relations"))
)
METHODS = (UPPER_BOUND, "local", "pfedhn-het", "distillation", *LAYERED, PAPER[0])

RESIDUAL, XRAY, HYBRID = (
    tuple(f"{kind}{i}" for i in range(4)) for kind in ("arch", "chest", "hybrid")
)
PLAIN = ("plain4", "plain7", "plain10", "plain13")
SMALL_CNN = "plain4"  # takes the place of an architecture in Table 7
CLIENTS = tuple(f"client {i}" for i in range(4))

TRAINING = {
    "cifar10": CIFAR10.train,
    "cifar100": CIFAR100.train,
    "chest_xray": round((1 - TEST_FRACTION) * OFFICIAL),
}
BATCH_SIZE = 64
XRAY_PIXELS = 64  # in both sizes: their networks divide images by four before the first stage


class Size(NamedTuple):
    """The size of an experiment."""

    width: int  # channels of the first convolution
    pixels: int  # width and height of images of CIFAR; 0 keeps theirs
    examples: int  # training examples of a client; 0 is all
    rounds: int
    steps: int  # of a client in a round; 0 is one epoch
    balanced: int  # examples of the balanced test set


SIZES = {"small": Size(8, 16, 2000, 40, 25, 2000), "full": Size(64, 0, 0, 1000, 0, 10_000)}
EXACT = dict.fromkeys(PAPER, {"model.width": SIZES["full"].width})


class Place(NamedTuple):
    """A federation in which a table compares its methods."""

    dataset: str
    setting: str
    clients: int
    architectures: tuple[str, ...]
    changes: Mapping[str, Any] = NOTHING
    balanced: bool = False  # whether there is a balanced test set


class Design(NamedTuple):
    """What a table compares."""

    methods: tuple[str, ...]
    columns: tuple[str, ...]  # architectures, or clients
    places: tuple[Place, ...]
    # The splits that are scored, by what a row calls them; "" if there is one.
    tests: Mapping[str, str] = {"": "test"}
    datasets: tuple[str, ...] = ("cifar10",)  # of the small size, by default
    clients: tuple[str, ...] = ("4", "16")  # likewise
    sizes: tuple[str, ...] = tuple(SIZES)


def _numbers_of_clients(datasets, numbers, architectures, changes=NOTHING):
    return tuple(
        Place(dataset, f"{clients} clients", clients, architectures, changes)
        for dataset in datasets
        for clients in numbers
    )


def _dirichlet(beta):
    changes = {"data.partition": "dirichlet", "data.beta": beta}
    return Place("cifar10", f"Dirichlet {beta:g}", 4, RESIDUAL, changes, balanced=True)


def _without(name):
    architectures = tuple(SMALL_CNN if place == name else place for place in RESIDUAL)
    return Place("cifar10", f"{name} replaced", 4, architectures)


NONE_REPLACED = "none replaced"
BOTH = ("cifar10", "cifar100")
# Beside the small size: all examples, images at their size and twice the channels.
LARGER = {"data.cap": 0, "data.image_size": 0, "model.width": 2 * SIZES["small"].width}
TABLES = {
    "flha_1": Design(METHODS, RESIDUAL, _numbers_of_clients(BOTH, (4, 8, 16), RESIDUAL)),
    "flha_2": Design((*LAYERED, *PAPER), PLAIN, _numbers_of_clients(BOTH, (4, 8), PLAIN)),
    "flha_3": Design(
        tuple(method for method in METHODS if method != "distillation"),
        XRAY,
        _numbers_of_clients(("chest_xray",), (4, 8, 16), XRAY, {"data.pooled_test": True}),
        tests={"": "pooled"},
        datasets=("chest_xray",),
        clients=("4",),
    ),
    "flha_5": Design(
        (UPPER_BOUND, "local", *LAYERED, PAPER[0]),
        CLIENTS,
        tuple(map(_dirichlet, (100.0, 1.0, 0.1))),
        tests={"own": "test", "balanced": "balanced"},
    ),
    "flha_7": Design(
        (*LAYERED, PAPER[0]),
        (*RESIDUAL, SMALL_CNN),
        (Place("cifar10", NONE_REPLACED, 4, RESIDUAL), *map(_without, RESIDUAL)),
    ),
    "flha_layers": Design(
        (LAYERED[0],),
        RESIDUAL,
        tuple(
            Place("cifar10", layer, 4, RESIDUAL, {"algorithm.ghn_layer": layer})
            for layer in ("sum", "mean", "gated")
        ),
    ),
    "flha_large": Design(
        ("local", "flha-ghn", "flha-ghn-no-gnn"),
        RESIDUAL,
        _numbers_of_clients(BOTH, (4,), RESIDUAL, LARGER),
        sizes=("small",),
    ),
    "flha_b": Design((*LAYERED, PAPER[0]), HYBRID, _numbers_of_clients(BOTH, (4, 8), HYBRID)),
}
# table -> (data set, setting, name of the test set) -> method -> column -> score in %
PUBLISHED = dict.fromkeys(TABLES, NOTHING) | {
    name: {
        tuple(place): by_column(table["columns"], methods)
        for *place, methods in table["places"]
    }
    for name, table in PAPERS["flha"].items()
}
(UNSEEN,) = PUBLISHED.pop("flha_6").values()  # unseen architectures are columns


def cells_of(table: str, profile: str) -> tuple[Cell, ...]:
    """The cells of a table of `TABLES` in a size of `SIZES`."""
    return tuple(cell(place, profile) for place in TABLES[table].places)


def cell(place: Place, profile: str = "small") -> Cell:
    """A federation in a size of `SIZES`.

    All clients are in every round. Only the last round is evaluated. FedAvg has the first
    architecture alone. Learning rates fall until the last round.
    """
    size, dataset = SIZES[profile], place.dataset
    changes = {
        "data.name": dataset,
        "data.clients": place.clients,
        "data.cap": size.examples,
        "data.image_size": XRAY_PIXELS if dataset == "chest_xray" else size.pixels,
        "model.architectures": place.architectures,
        "model.width": size.width,
        "cohort_size": place.clients,
        "batch_size": BATCH_SIZE,
        "local_steps": size.steps or round(TRAINING[dataset] / place.clients / BATCH_SIZE),
        "rounds": size.rounds,
    }
    if place.balanced:
        changes["data.balanced_test"] = size.balanced
    changes |= place.changes
    return Cell(
        dataset,
        place.setting,
        changes | {"eval_every": changes["rounds"]},
        base="flha_cifar10",
        of_methods={
            UPPER_BOUND: {"model.architectures": place.architectures[:1]},
            **dict.fromkeys(PAPER, {"local_epochs": 0 if size.steps else 1}),
        },
    )


# ------------------------------------------------------------------------ unseen architectures

UNSEEN_METHODS = ("local", *LAYERED, PAPER[0])  # local training starts from scratch
REFINING = 20  # rounds of a new client, with as many steps each as those of the others
SHOWN = (0, 1, 5, REFINING)  # of these rounds, in tables
RANDOM_START_LR = 0.3  # of a new client that starts from a random model, chosen by validation


def unseen_cell(name: str, profile: str = "small") -> Cell:
    """Clients train, and then another one joins, whose architecture `name` none of them has.

    They have the other architectures of the same kind, each one of them; with `SMALL_CNN`, all
    of `RESIDUAL`. A random model is trained as a generated one is, with the same optimiser and
    no schedule, but with another learning rate. It does not depend on the others, so these
    train for one round.
    """
    kinds = (RESIDUAL, (*RESIDUAL, SMALL_CNN), PLAIN)
    kind = next(names for names in kinds if name in names)
    changes = {
        "cohort_size": len(kind) - 1,
        "new_clients.fraction": 1 / len(kind),
        "new_clients.rounds": REFINING,
        "new_clients.architectures": (name,),
    }
    trained = tuple(other for other in kind if other != name)
    place = Place("cifar10", f"{name} unseen", len(kind), trained, changes)
    made = cell(place, profile)
    scratch = {
        "client_optimizer": "momentum",
        "client_schedule": "constant",
        "hparams.client_lr": RANDOM_START_LR,
        "rounds": 1,
        "eval_every": 1,
    }
    return made._replace(of_methods={**made.of_methods, "local": scratch})


# ------------------------------------------------------------------------------------- figures


def with_steps(steps: int, profile: str) -> Cell:
    """Four clients that train for `steps` steps a round, and for as many in all as always."""
    size = SIZES[profile]
    whole = cell(Place("cifar10", "4 clients", 4, RESIDUAL), profile)
    total = size.rounds * whole.changes["local_steps"]
    changes = {"local_steps": steps, "rounds": max(1, round(total / steps))}
    return cell(Place("cifar10", f"{steps} steps", 4, RESIDUAL, changes), profile)


def with_examples(examples: int, profile: str) -> Cell:
    """Four clients with `examples` training examples each, scored on a balanced test set.

    The number of steps does not depend on the number of examples.
    """
    steps = cell(Place("cifar10", "", 4, RESIDUAL), profile).changes["local_steps"]
    changes = {"data.cap": examples, "local_steps": steps}
    place = Place("cifar10", f"{examples} examples", 4, RESIDUAL, changes, balanced=True)
    return cell(place, profile)


def with_divisor(divisor: int, profile: str) -> Cell:
    """Four clients, of which the first has arch0 with its width divided by `divisor`.

    So some of its types of layers are in no other network: of the nine types, none with 1, four
    with 2 and six with 4.
    """
    first = RESIDUAL[0] if divisor == 1 else f"{RESIDUAL[0]}/{divisor}"
    return cell(Place("cifar10", f"{first} first", 4, (first, *RESIDUAL[1:])), profile)
