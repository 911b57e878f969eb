"""Every federated algorithm, by name. One paper per file.

A factory takes the client model and, if it uses one, the local trainer. Its keyword-only
arguments are its settings and parts. They are declared in its signature, see
`graphfl_jax.settings`.
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
    "panacea": panacea.panacea,
    "panacea_mlp": panacea.panacea_mlp,
    "pfedhn": pfedhn.pfedhn,
    "fedavg": fedavg.fedavg,
    "fedprox": fedprox.fedprox,
    "perfedavg": perfedavg.perfedavg,
    "pfedme": pfedme.pfedme,
    "ditto": ditto.ditto,
    "sfl": sfl.sfl,
    "sfl_star": sfl.sfl_star,
    "local": local.local,
}
