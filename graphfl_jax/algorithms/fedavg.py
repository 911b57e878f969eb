"""FedAvg: one global model, the average of the clients' trained models.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient Learning of Deep
Networks from Decentralized Data. AISTATS 2017. https://arxiv.org/abs/1602.05629

    w <- sum_i n_i w_i / sum_i n_i,      w_i = K_c steps of SGD on F_i, from w

Departures: a fixed number of local steps on batches drawn with replacement, not epochs.
"""

from typing import Any

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.method import variant
from graphfl_jax.core import Algorithm, Client, ClientModel, Cohort, Server
from graphfl_jax.trainers import Train


def fedavg(model: ClientModel, train: Train) -> Algorithm:
    """Builds FedAvg. The state of the server, the message and the upload are one model each."""

    def local(w, memory, data, key):
        w, metrics = train(model.objective, w, data.train, key)
        return memory, w, metrics

    return Algorithm(averaging_server(model), (Client(model, local),), averages=True)


fedavg_finetune = variant(fedavg, {"tuning.part": "whole"})


def averaging_server(model: ClientModel) -> Server:
    """A server that sends one model to all clients and averages what they return."""

    def aggregate(w, cohorts, uploads, key):
        cohort, uploads = of_all_architectures(cohorts, uploads)
        return tree.mean(uploads, cohort.weights)

    return Server(
        init=lambda key, graph: model.init(key),
        download=lambda w, group, i: w,
        aggregate=aggregate,
    )


def of_all_architectures(cohorts: tuple[Cohort, ...], uploads: tuple) -> tuple[Cohort, Any]:
    """One cohort and its uploads [M, ...], which have equal shapes in all architectures.

    Args:
      cohorts: of each architecture, as `Server.aggregate` gets them.
      uploads: of each architecture.
    """
    return tuple(
        jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
        for parts in (cohorts, uploads)
    )
