"""FedProx: FedAvg whose clients are held near the model that they were sent.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks.
MLSys 2020. https://arxiv.org/abs/1812.06127

    w_i = K_c steps of SGD on F_i(w_i) + mu / 2 ||w_i - w||^2, from w
    w  <- sum_i n_i w_i / sum_i n_i

Departures: a fixed number of local steps; the paper's clients also stop early at random.
"""

import dataclasses

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.core import Algorithm, Array, ClientModel
from graphfl_jax.trainers import Train


def fedprox(model: ClientModel, train: Train, *, mu: Array) -> Algorithm:
    """Builds FedProx. mu >= 0 pulls towards the server's model; 0 is FedAvg."""

    def local(w, client, examples, key):
        def near_w(w_i, batch):
            return model.objective(w_i, batch) + 0.5 * mu * tree.sq_dist(w_i, w)

        w_i, metrics = train(near_w, w, examples, key)
        return client, w_i, metrics

    return dataclasses.replace(fedavg(model, train), local=local)
