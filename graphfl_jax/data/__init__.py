"""Data sets and relations between clients.

`DATASETS` are the loaders. Each takes keyword arguments only and returns a
`federation.Federation`: checked, split, stacked, in NumPy arrays; those of `geometric` are made
when they are read. The settings of a loader are
declared in its signature. The builder supplies `root`, the folder of all data, and `seed`, the
seed of the random split, to the loaders that read them.

`GRAPHS` are the rules that set the relations of a loaded federation; those of ``learned`` come
in the run.
"""

import importlib

from graphfl_jax.data import federation, graphs, knn
from graphfl_jax.data.custom import from_arrays

__all__ = ["DATASETS", "GRAPHS", "from_arrays"]

# The file of each loader, by the name of the loader. A new data set adds one line.
FILES = {
    "chest_xray": "chest_xray",
    "cifar10": "image_sets",
    "cifar100": "image_sets",
    "compcars": "compcars",
    "custom": "custom",
    "fashion_mnist": "image_sets",
    "femnist": "leaf",
    "fl60": "fl60",
    "fl60_paper_formula": "fl60",
    "geometric": "geometric",
    "har": "har",
    "metr_la": "traffic",
    "mnist": "image_sets",
    "pems_bay": "traffic",
    "shakespeare": "leaf",
    "tpt48": "tpt48",
}
DATASETS = {
    name: getattr(importlib.import_module(f"graphfl_jax.data.{file}"), name)
    for name, file in FILES.items()
}
GRAPHS = {
    "own": federation.keep_graph,
    "knn": knn.knn,
    "learned": graphs.learned,
    "random": graphs.random,
    "none": graphs.without_relations,
}
