"""pFedMe: personal models by proximal steps from a global one.

Dinh, Tran, Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020.
https://arxiv.org/abs/2006.08848

    theta_i ~ argmin_theta f_i(theta; b) + lambda / 2 ||theta - w_i||^2     (K gradient steps)
    w_i <- w_i - eta lambda (w_i - theta_i),                                 for each batch b
    w   <- (1 - beta) w + beta mean_i w_i

Every round starts from w_i = theta_i = w. P is theta_i, as the paper defines it; a client that
was never drawn is scored with the first w it was sent.

Departures: clients' results are weighted by their examples, as in the authors' code. That code
also decays theta's weights by 1e-3 and scores w_i in theta_i's place; neither is done here. eta
is ``hparams.client_lr``.
"""

import dataclasses

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.core import Algorithm, Array, ClientModel
from graphfl_jax.trainers import Train, draw_indices


def pfedme(
    model: ClientModel,
    train: Train,
    *,
    local_steps: int,
    batch_size: int,
    pfedme_steps: int,
    client_lr: Array,
    pfedme_lr: Array,
    pfedme_lambda: Array,
    pfedme_beta: Array,
) -> Algorithm:
    """Builds pFedMe.

    Args:
      model: of theta_i and w alike.
      train: of FedAvg, whose place the proximal problems take.
      local_steps: batches in a round, and so steps of w_i.
      batch_size: of each.
      pfedme_steps: K, gradient steps of theta_i on a batch.
      client_lr: eta, the rate of w_i; eta lambda < 1.
      pfedme_lr: the rate of theta_i; times (lambda + curvature) it must stay below 2.
      pfedme_lambda: the pull of theta_i to w_i.
      pfedme_beta: how far the server goes to the clients' mean; 1 is all the way.
    """

    def local(w, personal, examples, key):
        def one_batch(carry, indices):
            w_i, theta = carry
            batch = examples.rows(indices)

            def proximal(theta):
                pull = 0.5 * pfedme_lambda * tree.sq_dist(theta, w_i)
                return model.objective(theta, batch) + pull

            def inner(theta, _):
                gradient = jax.grad(proximal)(theta)
                return jax.tree.map(lambda t, g: t - pfedme_lr * g, theta, gradient), None

            theta, _ = jax.lax.scan(inner, theta, length=pfedme_steps)
            rate = client_lr * pfedme_lambda
            w_i = jax.tree.map(lambda a, t: a - rate * (a - t), w_i, theta)
            return (w_i, theta), model.objective(theta, batch)

        indices = draw_indices(key, (local_steps, batch_size), examples.count)
        (w_i, theta), losses = jax.lax.scan(one_batch, (w, w), indices)
        return theta, w_i, {"loss": jnp.mean(losses)}

    def aggregate(w, cohort, uploads, key):
        mean = tree.mean(uploads, cohort.weights)
        return jax.tree.map(lambda a, m: (1.0 - pfedme_beta) * a + pfedme_beta * m, w, mean)

    return dataclasses.replace(
        fedavg(model, train),
        local=local,
        aggregate=aggregate,
        enroll=lambda w, key: w,
        personalize=lambda w, theta, examples, key: theta,
    )
