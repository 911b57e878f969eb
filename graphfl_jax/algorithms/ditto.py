"""Ditto: a global model for all, and a personal one for each client that is kept near it.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization.
ICML 2021. https://arxiv.org/abs/2012.04221

    w   by FedAvg
    v_i <- K_c steps of SGD on F_i(v_i) + lambda / 2 ||v_i - w||^2, from where v_i stood

w in the second line is the model that client i was sent in this round.

Departures: both models take the same number of local steps. A client that was never drawn is
scored at P with the first model that it was sent, which is its v_i until then.
"""

import dataclasses

import jax

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.core import Algorithm, Array, ClientModel
from graphfl_jax.trainers import Train


def ditto(model: ClientModel, train: Train, *, ditto_lambda: Array) -> Algorithm:
    """Builds Ditto. ditto_lambda >= 0 pulls v_i to w: 0 is local training, infinity FedAvg."""

    def local(w, v, examples, key):
        key_global, key_personal = jax.random.split(key)
        w_i, metrics = train(model.objective, w, examples, key_global)

        def near_w(v, batch):
            return model.objective(v, batch) + 0.5 * ditto_lambda * tree.sq_dist(v, w)

        v, _ = train(near_w, v, examples, key_personal)
        return v, w_i, metrics

    return dataclasses.replace(
        fedavg(model, train),
        local=local,
        enroll=lambda w, key: w,
        personalize=lambda w, v, examples, key: v,
    )
