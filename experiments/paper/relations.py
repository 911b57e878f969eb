"""The table of relations: none, random, the data set's, nearest by data, and learned."""

from experiments.paper import wire
from experiments.paper.configurations import Cell

METHODS = ("sfl", "panacea")
LEARNING = ("sfl",)  # those whose server can learn relations


def _cells(dataset, graphs, changes, methods=()):
    """A cell for each of the relations, with five neighbours but for the data set's own."""
    cells = []
    for graph in graphs:
        fields = {**changes, "data.graph": graph}
        if graph not in ("none", "own"):
            fields["data.neighbours"] = 5
        of_graph = LEARNING if graph == "learned" else methods
        cells.append(Cell(dataset, graph, fields, methods=of_graph))
    return tuple(cells)


FASHION = wire.FASHION | {"cohort": "fixed"}
CELLS = (
    *_cells("tpt48", ("none", "random", "own", "knn", "learned"), {"eval_every": 800}),
    *_cells("fashion_mnist", ("none", "random", "knn", "learned"), FASHION, ("sfl",)),
)
TEXT = wire.text_of(
    "relations",
    "The *setting* is `data.graph`: no relations, random ones, those of the data set, those of "
    "similar data, or those that the server learns. The rates were not chosen for it.",
)
