"""FedAvg without a configuration: an `Algorithm`, a `Program`, and two seeds in one vmap.

Clients of two kinds give the same points opposite labels, so G is near 0.5, and L near 1.
"""

import jax
import numpy as np
import optax

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Client, FederatedData, Server
from graphfl_jax.data import relations
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.mlp import mlp
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group
from graphfl_jax.trainers import sgd_trainer

CLIENTS = 10
MODEL = mlp(inputs=(2,), outputs=2, task=CLASSIFICATION, hidden=(16,))


def federation():
    """Points in a square, and on which side of the middle they are."""
    x = np.random.default_rng(0).uniform(-1, 1, (2, CLIENTS, 20, 2)).astype(np.float32)
    y = ((x[..., 0] > 0) ^ (np.arange(CLIENTS) % 2 == 1)[:, None]).astype(np.int32)
    counts = np.full(CLIENTS, 20, np.int32)
    train, test = Examples(x[0], y[0], counts), Examples(x[1], y[1], counts)
    return FederatedData(train, {"test": test}, relations.from_edges(CLIENTS, []))


def fedavg(hparams, played):
    """w <- sum_i n_i w_i / sum_i n_i, where w_i is w after local steps of client i."""
    train = sgd_trainer(optax.sgd(hparams["client_lr"]), steps=50, batch_size=8)

    def local(w, memory, data, key):
        w, metrics = train(MODEL.objective, w, data.train, key)
        return memory, w, metrics

    server = Server.of_one(
        init=lambda key, graph: MODEL.init(key),
        download=lambda w, i: w,
        aggregate=lambda w, cohort, uploads, key: tree.mean(uploads, cohort.weights),
    )
    return Algorithm(server, (Client(MODEL, local),))


program = Program(fedavg, (Group(4),)).compiled()


@jax.vmap
def play(key):
    inputs = key, {"client_lr": 0.3}, federation()
    state, _ = program.advance(program.start(*inputs), *inputs, np.int32(30))
    return program.evaluate(state, *inputs).scores["test"]


for point, accuracies in play(jax.vmap(jax.random.key)(np.arange(2))).items():  # [2, N]
    print(point, accuracies.mean(axis=1))
