"""pFedMe: personal models by proximal steps from a global one.

Dinh, Tran, Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020.
https://arxiv.org/abs/2006.08848

    theta_i ~ argmin_theta f_i(theta; b) + lambda / 2 ||theta - w_i||^2     (K gradient steps)
    w_i <- w_i - eta lambda (w_i - theta_i),                                 for each batch b
    w   <- (1 - beta) w + beta mean_i w_i

Every round starts from w_i = theta_i = w. P is theta_i, as in the paper. A client that was
never sampled is scored with the first w that it received.

Departures: clients are weighted by their number of examples, as in the authors' code. That code
also applies a weight decay of 1e-3 to theta and scores w_i instead of theta_i; neither is done
here. eta is ``hparams.client_lr``.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import averaging_server
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Predictor
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import step_key, train_steps


def pfedme(
    model: ClientModel,
    *,
    local_steps: int,
    batch_size: int,
    pfedme_steps: Annotated[int, Integer("Steps K of pFedMe's personal model on a batch.")] = 5,
    client_lr: Annotated[Array, Real("Learning rate eta of w_i; eta lambda < 2.")] = 0.1,
    pfedme_lr: Annotated[Array, Real("Learning rate of pFedMe's personal models.")] = 0.05,
    pfedme_lambda: Annotated[Array, Real("Weight of pFedMe's distance to w_i.")] = 15.0,
    pfedme_beta: Annotated[Array, Real("Server step of pFedMe; 1 takes the mean.")] = 1.0,
) -> Algorithm:
    """Builds pFedMe.

    Args:
      model: of theta_i and w.
      local_steps: batches in a round, which are the steps of w_i.
      batch_size: examples of each batch.
      pfedme_steps: K, gradient steps of theta_i on a batch.
      client_lr: eta; with eta lambda = 1, a step ends at theta_i, and from 2 on steps diverge.
      pfedme_lr: the learning rate of theta_i; times (lambda + curvature) it must be below 2.
      pfedme_lambda: lambda.
      pfedme_beta: beta.
    """

    def local(w, personal, data, key):
        def step(carry, batch, key_batch):
            w_i, theta = carry

            def proximal(theta, key):
                pull = 0.5 * pfedme_lambda * tree.sq_dist(theta, w_i)
                return model.objective(theta, batch, key) + pull

            def inner(theta, inner_step):
                gradient = jax.grad(proximal)(theta, step_key(key_batch, inner_step))
                return jax.tree.map(lambda t, g: t - pfedme_lr * g, theta, gradient), None

            theta, _ = jax.lax.scan(inner, theta, jnp.arange(pfedme_steps))
            rate = client_lr * pfedme_lambda
            w_i = jax.tree.map(lambda a, t: a - rate * (a - t), w_i, theta)
            return (w_i, theta), model.objective(theta, batch, key_batch)

        (w_i, theta), metrics = train_steps(
            step, (w, w), data.train, key, steps=local_steps, batch_size=batch_size
        )
        return theta, w_i, metrics

    def aggregate(w, cohorts, uploads, key):
        mean = averaging.aggregate(w, cohorts, uploads, key)
        return jax.tree.map(lambda a, m: (1.0 - pfedme_beta) * a + pfedme_beta * m, w, mean)

    client = Client(
        model,
        local,
        enroll=lambda w, key: w,
        personalize=lambda w, theta, data, key: Predictor(theta),
    )
    averaging = averaging_server(model)
    server = dataclasses.replace(averaging, aggregate=aggregate)
    return Algorithm(server, (client,), averages=True)
