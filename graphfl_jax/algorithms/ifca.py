"""IFCA: k models, of which each client trains the one with the least loss on its examples.

Ghosh, Chung, Yin, Ramchandran. An Efficient Framework for Clustered Federated Learning.
NeurIPS 2020. https://arxiv.org/abs/2006.04088. It is also HypCluster of Mansour, Mohri, Ro,
Suresh. Three Approaches for Personalization with Applications to Federated Learning. 2020.
https://arxiv.org/abs/2002.10619

    c_i  = argmin_c F_i(w_c), over all training examples of client i
    w_i  = K_c steps of SGD on F_i, from w_(c_i)
    w_c <- sum n_i w_i / sum n_i, over the clients i of the cohort with c_i = c

A model that no client of the cohort has chosen stays. A client receives all models, and uploads
one with its number. G and P are the model that the client chooses. With k = 1, IFCA is FedAvg.

Departures:
  * This is the paper's model averaging; its gradient averaging is with one local step. Models
    share no layers, which the paper suggests for images. Means are weighted by the numbers of
    examples; the paper's are not.
  * The k models are drawn at random, once. The paper repeats runs with other draws: a model
    that is worse than the others for all clients is never trained.
  * A fixed number of local steps, on batches drawn with replacement.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.cfl import cluster_means
from graphfl_jax.algorithms.knnper import BATCH
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Params, Predictor, Server
from graphfl_jax.evaluation import score_client
from graphfl_jax.settings import Integer
from graphfl_jax.trainers import Train


class Chosen(NamedTuple):
    """An upload."""

    model: Params  # w_i
    number: Array  # c_i, [] int32


def ifca(
    model: ClientModel,
    train: Train,
    *,
    ifca_clusters: Annotated[int, Integer("Number k of IFCA's models; 1 is FedAvg.")] = 3,
) -> Algorithm:
    """Builds IFCA. Server state and message are k models, leaves [k, ...]."""

    def choose(models, data):
        """The model that fits a client's examples best, which has not been trained."""

        def loss(params):
            ready = model.recalibrate(params, data.train)
            predict = lambda x: model.apply(ready, x)  # noqa: E731
            value = score_client(predict, model.task.loss, data.train, BATCH)
            return jnp.where(jnp.isnan(value), jnp.inf, value)

        number = jnp.argmin(jax.lax.map(loss, models)).astype(jnp.int32)
        return Chosen(tree.take(models, number), number)

    def local(models, memory, data, key):
        w, number = choose(models, data)
        w, metrics = train(model.objective, w, data.train, key)
        return memory, Chosen(w, number), metrics

    def deploy(sent, memory, data):
        chosen = sent if isinstance(sent, Chosen) else choose(sent, data)
        return Predictor(chosen.model)

    def aggregate(models, cohort, uploads, key):
        members = jnp.arange(ifca_clusters)[:, None] == uploads.number[None]
        weights = members.astype(jnp.float32) * cohort.weights[None]
        return cluster_means(models, uploads.model, weights)

    server = Server.of_one(
        init=lambda key, graph: jax.vmap(model.init)(jax.random.split(key, ifca_clusters)),
        download=lambda models, i: models,
        aggregate=aggregate,
    )
    client = Client(
        model,
        local,
        deploy=deploy,
        untrained=lambda models, memory, data: choose(models, data),
    )
    return Algorithm(server, (client,))
