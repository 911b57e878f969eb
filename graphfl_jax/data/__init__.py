"""Data sets and relations between clients.

`DATASETS` are the loaders. Each takes keyword arguments only and returns a
`federation.Federation`: checked, split, stacked, in NumPy arrays. The settings of a loader are
declared in its signature. The builder supplies `root`, the folder of all data, and `seed`, the
seed of the random split, to the loaders that read them.

`GRAPHS` are the rules that set the relations of a loaded federation.
"""

from graphfl_jax.data import (
    chest_xray,
    compcars,
    custom,
    federation,
    fl60,
    image_sets,
    knn,
    tpt48,
    traffic,
)
from graphfl_jax.data.custom import from_arrays

__all__ = ["DATASETS", "GRAPHS", "from_arrays"]

DATASETS = {
    "chest_xray": chest_xray.chest_xray,
    "cifar10": image_sets.cifar10,
    "cifar100": image_sets.cifar100,
    "compcars": compcars.compcars,
    "custom": custom.custom,
    "fashion_mnist": image_sets.fashion_mnist,
    "fl60": fl60.fl60,
    "fl60_paper_formula": fl60.fl60_paper_formula,
    "metr_la": traffic.metr_la,
    "pems_bay": traffic.pems_bay,
    "tpt48": tpt48.tpt48,
}
GRAPHS = {"own": federation.keep_graph, "knn": knn.knn}
