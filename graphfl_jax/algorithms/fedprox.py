"""FedProx: FedAvg with a proximal term that keeps clients near the server's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks.
MLSys 2020. https://arxiv.org/abs/1812.06127

    w_i = K_c steps of SGD on F_i(w_i) + mu / 2 ||w_i - w||^2, from w
    w  <- sum_i n_i w_i / sum_i n_i

Departures: a fixed number of local steps; in the paper, random clients also stop early.
"""

from typing import Annotated

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.core import Algorithm, Array, ClientModel
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train


def fedprox(
    model: ClientModel,
    train: Train,
    *,
    mu: Annotated[Array, Real("Weight of FedProx's proximal term; 0 is FedAvg.")] = 0.1,
) -> Algorithm:
    """Builds FedProx."""

    def local(w, memory, data, key):
        def near_w(w_i, batch, key):
            return model.objective(w_i, batch, key) + 0.5 * mu * tree.sq_dist(w_i, w)

        w_i, metrics = train(near_w, w, data.train, key)
        return memory, w_i, metrics

    return fedavg(model, train).replacing(local=local)
