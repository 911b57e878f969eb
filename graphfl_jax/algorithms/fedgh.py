"""FedGH: the server trains one head for bodies of any architecture, on their mean features.

Yi, Wang, Liu, Shi, Yu. FedGH: Heterogeneous Federated Learning with Generalized Global Header.
ACM Multimedia 2023. https://arxiv.org/abs/2303.13137

Client i has a body b_i, whose mean features of class c are m_ic, see `fedproto`. With the
server's head h,

    (b_i, h_i) <- K_c steps of SGD on F_i(b, h), from (b_i, h)
    m_ic        = mean_{j: y_j = c} f(x_j; b_i)
    h          <- K_s steps of an optimiser on the mean of CE(h(m_ic), c)

where the last mean is over all clients i of the cohort and all classes c that they have. The
head replaces the heads of all clients; bodies stay with their clients.

G and P are the client's own body with the server's head. L is its body with h_i.

Departures: a fixed number of local steps, not epochs. In the paper, the server passes over the
m_ic client by client; here every step is on all of them. The optimiser of the server keeps its
state from round to round.
"""

from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import optax

from graphfl_jax import core
from graphfl_jax.algorithms.fedavg import of_all_architectures
from graphfl_jax.algorithms.fedproto import ClassMeans, empty, feature_size, mean_features
from graphfl_jax.algorithms.hyper import minimise
from graphfl_jax.algorithms.lgfedavg import check_heads
from graphfl_jax.algorithms.method import facts
from graphfl_jax.optimizers import Optimizer
from graphfl_jax.settings import Integer
from graphfl_jax.trainers import Train

NEEDS = core.Needs(labels=True, head=True)


class HeadServer(NamedTuple):
    """The state of the server."""

    head: core.Params
    opt_state: Any


@facts(needs=NEEDS)
def fedgh(
    models: tuple[core.ClientModel, ...],
    train: Train,
    *,
    inputs: tuple[int, ...],
    classes: int,
    unseen: tuple[core.ClientModel, ...] = (),
    server_optimizer: Annotated[
        optax.GradientTransformation,
        Optimizer("server", meaning="Learning rate of the server's head in FedGH."),
    ],
    server_steps: Annotated[
        int, Integer("Optimiser steps K_s of the server's head in a round.")
    ] = 10,
) -> core.Algorithm:
    """Builds FedGH. The message is a head, and the upload is `ClassMeans` of features.

    The memory of a client is its model with its own last head, which only L predicts with.

    Args:
      models: of each architecture.
      train: trains body and head together.
      inputs: shape of an example.
      classes: number of classes C.
      unseen: of the architectures that only new clients have.
      server_optimizer: of the head.
      server_steps: K_s.

    Raises:
      ValueError: the architectures have features or heads of different shapes.
    """
    every = (*models, *unseen)
    size = feature_size("fedgh", every, inputs)
    check_heads("fedgh", every)
    optimizer, first = optax.with_extra_args_support(server_optimizer), models[0]

    def init(key, graph):
        head = first.init(key)["head"]
        return HeadServer(head, optimizer.init(head))

    def aggregate(server, cohorts, uploads, key):
        _, uploads = of_all_architectures(cohorts, uploads)
        means = uploads.mean.reshape(-1, size)  # [M C, F]
        labels = jnp.tile(jnp.arange(classes), len(uploads.mean))
        exists = (uploads.count > 0).reshape(-1)

        def objective(head):
            losses = jnp.where(exists, first.task.loss(first.head(head, means), labels), 0.0)
            value = jnp.sum(losses) / jnp.maximum(jnp.sum(exists.astype(losses.dtype)), 1.0)
            return value, value

        return HeadServer(*minimise(objective, tuple(server), optimizer, server_steps))

    def client(model):
        def local(head, theta, data, key):
            start = {"body": theta["body"], "head": head}
            trained, metrics = train(model.objective, start, data.train, key)
            return trained, mean_features(model, trained, data.train, classes), metrics

        def deploy(sent, theta, data):
            if isinstance(sent, ClassMeans):  # an upload
                return core.Predictor(theta)
            return core.Predictor({"body": theta["body"], "head": sent})

        return core.Client(
            model,
            local,
            enroll=lambda head, key: model.init(key),
            deploy=deploy,
            untrained=lambda head, theta, data: empty(classes, size),
        )

    server = core.Server(init, lambda server, group, i: server.head, aggregate)
    return core.Algorithm(server, tuple(map(client, every)), needs=NEEDS)
