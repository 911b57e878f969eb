"""Data sets: each loader returns a `federation.Federation`, checked, split and in NumPy.

A loader takes keywords only, of these what it needs: `root` (the folder of the data), `source`
(which of the forms the data exist in), `path` (one file instead of a look under `root`), `seed`
and `val_fraction` (the split), `generator_seed` (what is drawn in generated or simulated data),
and what its own docstring adds. `GRAPHS` are rules that give a loaded federation its relations.
"""

from graphfl_jax.data import compcars, custom, fl60, knn, tpt48, traffic
from graphfl_jax.data.custom import from_arrays

__all__ = ["DATASETS", "GRAPHS", "from_arrays"]

DATASETS = {
    "compcars": compcars.compcars,
    "custom": custom.custom,
    "fl60": fl60.fl60,
    "fl60_paper_formula": fl60.fl60_paper_formula,
    "metr_la": traffic.metr_la,
    "pems_bay": traffic.pems_bay,
    "tpt48": tpt48.tpt48,
}
GRAPHS = {"own": lambda federation: federation, "knn": knn.knn}
