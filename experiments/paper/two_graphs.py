"""The table of a hypernetwork on two graphs: related clients with different networks."""

from experiments.paper import wire
from experiments.paper.configurations import Cell

SAME = ("panacea", "pfedhn", "fedavg")  # which need one architecture
METHODS = (
    "panacea-flha",
    "flha-ghn",
    "flha-ghn-table",
    "pfedhn-het",
    "local",
    *SAME,
)
NETWORKS = ("plain4", "plain7")
# Groups of clients have the same two classes, and the nearest clients are their relations.
FASHION = {
    "data.name": "fashion_mnist",
    "data.image_size": 8,
    "data.clients": 12,
    "data.partition": "pathological",
    "data.cap": 100,
    "data.graph": "knn",
    "data.neighbours": 3,
    "model.width": 4,
    "model.architectures": NETWORKS,
    "cohort_size": 12,
    "batch_size": 16,
    "local_steps": 5,
    "rounds": 40,
    "eval_every": 40,
}
CELLS = (
    Cell(
        "fashion_mnist",
        "two networks",
        FASHION,
        base="flha_cifar10",
        methods=tuple(method for method in METHODS if method not in SAME),
    ),
    Cell(
        "fashion_mnist",
        "random relations",
        FASHION | {"data.graph": "random"},
        base="flha_cifar10",
        methods=("panacea-flha",),
    ),
    Cell(
        "fashion_mnist",
        "one network",
        FASHION | {"model.architectures": NETWORKS[:1]},
        base="flha_cifar10",
    ),
)
TEXT = wire.text_of(
    "two_graphs",
    "Twelve clients in groups with the same two classes, and the networks plain4 and plain7 "
    "in turn, or plain4 alone. Relations are those of similar data, or random.",
)
