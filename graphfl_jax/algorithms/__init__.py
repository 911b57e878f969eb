"""Every federated algorithm, by name. One paper per file.

A factory takes the client model, the local trainer if it uses one, and as keyword-only
arguments its settings and parts, declared in its signature (see `graphfl_jax.settings`).
"""

import importlib

# The file of each factory, by the name of the factory. A new method adds one line.
FILES = {
    "panacea": "panacea",
    "panacea_mlp": "panacea",
    "pfedhn": "pfedhn",
    "pfedhn_het": "pfedhn_het",
    "flha_ghn": "flha_ghn",
    "fedavg": "fedavg",
    "fedprox": "fedprox",
    "scaffold": "scaffold",
    "fedavgm": "fedopt",
    "fedadam": "fedopt",
    "fedyogi": "fedopt",
    "fedper": "fedper",
    "fedrep": "fedrep",
    "fedah": "fedah",
    "perfedavg": "perfedavg",
    "pfedme": "pfedme",
    "ditto": "ditto",
    "sfl": "sfl",
    "sfl_star": "sfl",
    "fedamp": "fedamp",
    "heurfedamp": "fedamp",
    "pfedgat": "pfedgat",
    "cfl": "cfl",
    "fedrod": "fedrod",
    "knnper": "knnper",
    "fedproto": "fedproto",
    "feddistill": "feddistill",
    "fml": "fml",
    "fedgh": "fedgh",
    "lgfedavg": "lgfedavg",
    "heterofl": "heterofl",
    "distillation": "distillation",
    "local": "local",
}
ALGORITHMS = {
    name: getattr(importlib.import_module(f"graphfl_jax.algorithms.{file}"), name)
    for name, file in FILES.items()
}
