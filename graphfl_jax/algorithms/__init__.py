"""Every federated algorithm, by name. One paper per file.

A factory takes the client model, the local trainer if it uses one, and as keyword-only
arguments its settings and parts, declared in its signature (see `graphfl_jax.settings`). Above
it stand its facts, if there are any (see `graphfl_jax.algorithms.method`).
"""

import importlib

from graphfl_jax.algorithms.method import Method, method_of

# The file of each factory and of each variant of a method, by its name. The place here is the
# colour in plots: a new method adds one line at the end.
FILES = {
    "panacea": "panacea",
    "fedavg": "fedavg",
    "pfedhn": "pfedhn",
    "local": "local",
    "ditto": "ditto",
    "pfedgat": "pfedgat",
    "flha_ghn": "flha_ghn",
    "fedprox": "fedprox",
    "perfedavg": "perfedavg",
    "pfedme": "pfedme",
    "fedamp": "fedamp",
    "sfl": "sfl",
    "cfl": "cfl",
    "panacea_mlp": "panacea",
    "fedper": "fedper",
    "fedrep": "fedrep",
    "fedrod": "fedrod",
    "knnper": "knnper",
    "sfl_star": "sfl",
    "heurfedamp": "fedamp",
    "panacea_gn": "panacea",
    "scaffold": "scaffold",
    "fedavgm": "fedopt",
    "fedadam": "fedopt",
    "fedyogi": "fedopt",
    "fedah": "fedah",
    "panacea_mean": "panacea",
    "fedavg_finetune": "fedavg",
    "pfedgat_v2": "pfedgat",
    "pfedgat_direct": "pfedgat",
    "pfedgat_dot": "pfedgat",
    "pfedhn_het": "pfedhn_het",
    "fedproto": "fedproto",
    "feddistill": "feddistill",
    "fml": "fml",
    "fedgh": "fedgh",
    "lgfedavg": "lgfedavg",
    "heterofl": "heterofl",
    "distillation": "distillation",
    "flha_ghn_no_gnn": "flha_ghn",
    "flha_ghn_table": "flha_ghn",
    "pfedgat_paper": "pfedgat",
    "pfedgat_direct_paper": "pfedgat",
    "flha_ghn_paper": "flha_ghn",
    "flha_ghn_no_gnn_paper": "flha_ghn",
    "panacea_gcn": "panacea",
    "panacea_attention": "panacea",
    "panacea_paper": "panacea",
    "panacea_paper_gn": "panacea",
    "panacea_paper_printed": "panacea",
    "fedbuff": "fedbuff",
    "gossip": "gossip",
    "gossip_pairs": "gossip",
    "fedu": "fedu",
    "fedbabu": "fedbabu",
    "apfl": "apfl",
    "fedala": "fedala",
    "fedbn": "fedbn",
    "moon": "moon",
    "feddyn": "feddyn",
    "fednova": "fednova",
    "ifca": "ifca",
    "fedfomo": "fedfomo",
    "pfedgraph": "pfedgraph",
    "fedpac": "fedpac",
    "feddbe": "feddbe",
    "fedas": "fedas",
    "fed_pub": "fed_pub",
    "l2gd": "l2gd",
    "panacea_flha": "panacea_flha",
}
_STATED = {
    name: getattr(importlib.import_module(f"graphfl_jax.algorithms.{file}"), name)
    for name, file in FILES.items()
}
# All that `algorithm.name` can choose; users can register further ones.
ALGORITHMS = {
    name: method_of(stated)
    for name, stated in _STATED.items()
    if not isinstance(stated, Method)
}
VARIANTS = {name: stated for name, stated in _STATED.items() if isinstance(stated, Method)}
