"""Ditto: a global model, and a personal model of each client that is kept near it.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization.
ICML 2021. https://arxiv.org/abs/2012.04221

    w   by FedAvg
    v_i <- K_c steps of SGD on F_i(v_i) + lambda / 2 ||v_i - w||^2, from the last v_i

In the second line, w is the model that client i received in this round.

Departures: both models take the same number of local steps. w weights clients by their numbers
of examples, and the authors' code weights them equally. A client that was never sampled is
scored at P with the first model that it received, which is its v_i until then.
"""

from typing import Annotated

import jax

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.core import Algorithm, Array, ClientModel, Predictor
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train


def ditto(
    model: ClientModel,
    train: Train,
    *,
    ditto_lambda: Annotated[
        Array, Real("Weight of Ditto's distance to the global model; 0 is local training.")
    ] = 0.1,
) -> Algorithm:
    """Builds Ditto."""

    def local(w, v, data, key):
        key_global, key_personal = jax.random.split(key)
        w_i, metrics = train(model.objective, w, data.train, key_global)

        def near_w(v, batch, key):
            return model.objective(v, batch, key) + 0.5 * ditto_lambda * tree.sq_dist(v, w)

        v, _ = train(near_w, v, data.train, key_personal)
        return v, w_i, metrics

    return fedavg(model, train).replacing(
        local=local,
        enroll=lambda w, key: w,
        personalize=lambda w, v, data, key: Predictor(v),
    )
