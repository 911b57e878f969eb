"""Every federated algorithm, by name. One paper per file.

A factory takes the client model, the local trainer, and as keyword-only arguments the fields of
a configuration that it wants (see `graphfl_jax.build`).
"""

from graphfl_jax.algorithms import (
    ditto,
    fedavg,
    fedprox,
    local,
    panacea,
    perfedavg,
    pfedhn,
    pfedme,
    sfl,
)

ALGORITHMS = {
    "ditto": ditto.ditto,
    "fedavg": fedavg.fedavg,
    "fedprox": fedprox.fedprox,
    "local": local.local,
    "panacea": panacea.panacea,
    "panacea_mlp": panacea.panacea_mlp,
    "perfedavg": perfedavg.perfedavg,
    "pfedhn": pfedhn.pfedhn,
    "pfedme": pfedme.pfedme,
    "sfl": sfl.sfl,
    "sfl_star": sfl.sfl_star,
}
