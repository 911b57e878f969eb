"""FedAvg: one model for all, the average of what the clients made of it.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient Learning of Deep
Networks from Decentralized Data. AISTATS 2017. https://arxiv.org/abs/1602.05629

    w <- sum_i n_i w_i / sum_i n_i,      w_i = K_c steps of SGD on F_i, from w

Departures: a fixed number of local steps on batches drawn with replacement, not epochs.
"""

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, ClientModel
from graphfl_jax.trainers import Train


def fedavg(model: ClientModel, train: Train) -> Algorithm:
    """Builds FedAvg. The server, the message and the upload are all one model."""

    def local(w, client, examples, key):
        w, metrics = train(model.objective, w, examples, key)
        return client, w, metrics

    def aggregate(w, cohort, uploads, key):
        return tree.mean(uploads, cohort.weights)

    return Algorithm(
        init=lambda key, graph: model.init(key),
        download=lambda w, i: w,
        local=local,
        aggregate=aggregate,
        predict=model.apply,
        averages=True,
    )
