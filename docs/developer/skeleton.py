"""Skeleton: FedAvg whose server goes only a part of the way to the clients' mean.

Copy this file to graphfl_jax/algorithms/, and replace this docstring by the authors, title,
venue and address of the paper, and by its equations:

    w_i = P times K_c steps of SGD on F_i, from w
    w  <- (1 - s) w + s sum_i n_i w_i / sum_i n_i

Departures: a list of all differences from the paper. This method is in no paper.
"""

from typing import Annotated

import jax

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Server
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import Train


def skeleton(
    model: ClientModel,
    train: Train,
    *,
    passes: Annotated[int, Integer("Times P that a client trains in a round.")] = 1,
    server_share: Annotated[
        Array, Real("Share s of the way to the mean that the server goes.", high=1.0)
    ] = 1.0,
) -> Algorithm:
    """Builds the skeleton. Server state, message and upload are one model each."""

    def init(key, graph):
        return model.init(key)

    def download(w, i):
        return w

    def local(w, memory, data, key):
        for number in range(passes):  # static, so a Python loop
            key_pass = jax.random.fold_in(key, number)
            w, metrics = train(model.objective, w, data.train, key_pass)
        return memory, w, metrics

    def aggregate(w, cohort, uploads, key):
        mean = tree.mean(uploads, cohort.weights)
        return jax.tree.map(lambda a, m: (1.0 - server_share) * a + server_share * m, w, mean)

    server = Server.of_one(init, download, aggregate)
    return Algorithm(server, (Client(model, local),), averages=True)
