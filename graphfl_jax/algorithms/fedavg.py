"""FedAvg: one global model, the average of the clients' trained models.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient Learning of Deep
Networks from Decentralized Data. AISTATS 2017. https://arxiv.org/abs/1602.05629

    w <- sum_i n_i w_i / sum_i n_i,      w_i = K_c steps of SGD on F_i, from w

Departures: a fixed number of local steps on batches drawn with replacement, not epochs.
"""

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Client, ClientModel, Server
from graphfl_jax.trainers import Train


def fedavg(model: ClientModel, train: Train) -> Algorithm:
    """Builds FedAvg. The state of the server, the message and the upload are one model each."""

    def local(w, memory, data, key):
        w, metrics = train(model.objective, w, data.train, key)
        return memory, w, metrics

    return Algorithm(averaging_server(model), (Client(model, local),), averages=True)


def averaging_server(model: ClientModel) -> Server:
    """A server that sends one model to all clients and averages what they return."""

    def aggregate(w, cohort, uploads, key):
        return tree.mean(uploads, cohort.weights)

    return Server(
        init=lambda key, graph: model.init(key),
        download=lambda w, i: w,
        aggregate=aggregate,
    )
