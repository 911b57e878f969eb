"""The table of a hypernetwork on two graphs: related clients with different networks."""

from experiments.paper import methods
from experiments.paper.configurations import Cell

NEW_CLIENTS = {
    "data.clients": 16,
    "new_clients.fraction": 0.25,
    "new_clients.rounds": 5,
    "hparams.client_final": 0.1,  # of the rate, with which new clients train
}
SAME = ("panacea", "pfedhn", "fedavg")  # which need one architecture
MIXED = ("panacea-flha", "flha-ghn", "flha-ghn-table", "pfedhn-het", "local")
METHODS = (*MIXED, *SAME)
# They can make a network that no client had before.
GENERATING = ("panacea-flha", "flha-ghn", "flha-ghn-table", "local")


def _cell(setting, changes, methods=()):
    changes = {"eval_every": 120, **NEW_CLIENTS, **changes}
    return Cell("fashion_mnist", setting, changes, base="two_networks", methods=methods)


CELLS = (
    _cell("two networks", {}, MIXED),
    _cell("random relations", {"data.graph": "random"}, ("panacea-flha",)),
    _cell("joining plain10", {"new_clients.architectures": ("plain10",)}, GENERATING),
    _cell("one network", {"model.architectures": ("plain4",)}),
)
TEXT = methods.text_of(
    "A quarter",
    "Clients have the networks plain4 and plain7 in turn, or plain4 alone; new ones have these "
    "too, or plain10. Relations are those of similar data, or random.",
)
