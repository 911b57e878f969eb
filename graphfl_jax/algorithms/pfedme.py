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
here. Another optimiser of the clients than SGD takes the steps of theta, anew for each batch,
and those of w_i, whose gradient is lambda (w_i - theta_i). eta is ``hparams.client_lr``.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import averaging_server
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Predictor
from graphfl_jax.optimizers import Optimizer
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import step_key, train_steps


def pfedme(
    model: ClientModel,
    *,
    local_steps: int,
    batch_size: int,
    pfedme_steps: Annotated[int, Integer("Steps K of pFedMe's personal model on a batch.")] = 5,
    client_optimizer: Annotated[
        optax.GradientTransformation,
        Optimizer("client", meaning="Learning rate eta of w_i; eta lambda < 2."),
    ],
    personal_optimizer: Annotated[
        optax.GradientTransformation,
        Optimizer(
            "client",
            (("lr", 0.05),),
            rate="pfedme_lr",
            meaning="Learning rate of pFedMe's personal models.",
        ),
    ],
    pfedme_lambda: Annotated[Array, Real("Weight of pFedMe's distance to w_i.")] = 15.0,
    pfedme_beta: Annotated[Array, Real("Server step of pFedMe; 1 takes the mean.")] = 1.0,
) -> Algorithm:
    """Builds pFedMe.

    Args:
      model: of theta_i and w.
      local_steps: batches in a round, which are the steps of w_i.
      batch_size: examples of each batch.
      pfedme_steps: K, gradient steps of theta_i on a batch.
      client_optimizer: of w_i. With SGD and eta lambda = 1, a step ends at theta_i, and from 2
        on steps diverge.
      personal_optimizer: of theta_i. The rate of SGD times (lambda + curvature) must be below
        2.
      pfedme_lambda: lambda.
      pfedme_beta: beta.
    """
    outer = optax.with_extra_args_support(client_optimizer)
    inner = optax.with_extra_args_support(personal_optimizer)

    def local(w, personal, data, key):
        def step(carry, batch, key_batch):
            w_i, theta, outer_state = carry

            def proximal(theta, key):
                pull = 0.5 * pfedme_lambda * tree.sq_dist(theta, w_i)
                return model.objective(theta, batch, key) + pull

            def personal_step(carry, number):
                theta, state = carry
                value, gradient = jax.value_and_grad(proximal)(
                    theta, step_key(key_batch, number)
                )
                updates, state = inner.update(gradient, state, theta, value=value)
                return (optax.apply_updates(theta, updates), state), None

            (theta, _), _ = jax.lax.scan(
                personal_step, (theta, inner.init(theta)), jnp.arange(pfedme_steps)
            )
            # lambda (w_i - theta_i), the gradient of lambda / 2 ||w_i - theta_i||^2
            gradient = jax.tree.map(lambda a, t: pfedme_lambda * (a - t), w_i, theta)
            value = 0.5 * pfedme_lambda * tree.sq_dist(w_i, theta)
            updates, outer_state = outer.update(gradient, outer_state, w_i, value=value)
            w_i = optax.apply_updates(w_i, updates)
            return (w_i, theta, outer_state), model.objective(theta, batch, key_batch)

        start = (w, w, outer.init(w))
        (w_i, theta, _), metrics = train_steps(
            step, start, data.train, key, steps=local_steps, batch_size=batch_size
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
