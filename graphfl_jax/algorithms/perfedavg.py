"""Per-FedAvg: an initial model that one gradient step on a client's data makes personal.

Fallah, Mokhtari, Ozdaglar. Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach. NeurIPS 2020. https://arxiv.org/abs/2002.07948

    min_w  mean_i F_i(w - alpha grad F_i(w))

A local step draws three independent batches b1, b2, b3:

    w' = w - alpha g(w; b1),     g1 = g(w'; b2)
    w <- w - beta (g1 - alpha h),     h = H(w; b3) g1

With "hf" (Hessian-free), h is the exact derivative of g(w; b3) along g1; with "fd", the paper's
difference (g(w + delta g1; b3) - g(w - delta g1; b3)) / (2 delta), delta = 1e-3; with "fo"
(first order), h = 0. P is the model after one step of rate alpha from w, on one batch.

Departures: batches are drawn with replacement, and "hf" is exact where the paper takes a
difference. Another optimiser of the clients than SGD gets g1 - alpha h as its gradient. beta
is ``hparams.client_lr``, alpha ``hparams.perfedavg_alpha``.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import averaging_server, of_all_architectures
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Predictor
from graphfl_jax.optimizers import Optimizer
from graphfl_jax.settings import Choice, Real
from graphfl_jax.trainers import draw_indices, scan_steps, step_key

DELTA = 1e-3  # of the paper's finite difference


def perfedavg(
    model: ClientModel,
    *,
    local_steps: int,
    batch_size: int,
    perfedavg_hessian: Annotated[
        str,
        Choice(
            "Per-FedAvg's Hessian product: exact, finite difference, or 0.", ("hf", "fd", "fo")
        ),
    ] = "hf",
    client_optimizer: Annotated[
        optax.GradientTransformation,
        Optimizer("client", meaning="Learning rate beta of a local (meta) step."),
    ],
    perfedavg_alpha: Annotated[Array, Real("Learning rate of Per-FedAvg's adaptation.")] = 0.01,
) -> Algorithm:
    """Builds Per-FedAvg.

    Args:
      model: of the server and the clients.
      local_steps: meta-steps in a round; each computes two ("fo") or four gradients.
      batch_size: examples of each of a step's batches.
      perfedavg_hessian: "hf", "fd" or "fo".
      client_optimizer: takes the steps of w; its state starts anew in every round.
      perfedavg_alpha: alpha.
    """
    optimizer = optax.with_extra_args_support(client_optimizer)

    def step_along(w, direction, rate):
        return jax.tree.map(lambda p, d: p - rate * d, w, direction)

    def hessian_times(w, batch, direction, key):
        gradient = jax.grad(model.objective)
        if perfedavg_hessian == "fo":
            return jax.tree.map(jnp.zeros_like, direction)
        if perfedavg_hessian == "hf":
            return jax.jvp(lambda w: gradient(w, batch, key), (w,), (direction,))[1]
        ahead = gradient(step_along(w, direction, -DELTA), batch, key)
        behind = gradient(step_along(w, direction, DELTA), batch, key)
        return jax.tree.map(lambda a, b: (a - b) / (2 * DELTA), ahead, behind)

    def local(w, memory, data, key):
        def meta_step(carry, number, indices):
            w, opt_state = carry
            keys = jax.random.split(step_key(key, number), 3)
            first, second, third = (data.train.rows(rows) for rows in indices)
            loss, gradient = jax.value_and_grad(model.objective)(w, first, keys[0])
            adapted = step_along(w, gradient, perfedavg_alpha)
            after, outer = jax.value_and_grad(model.objective)(adapted, second, keys[1])
            inner = hessian_times(w, third, outer, keys[2])
            meta = step_along(outer, inner, perfedavg_alpha)
            updates, opt_state = optimizer.update(meta, opt_state, w, value=after)
            return (optax.apply_updates(w, updates), opt_state), loss

        indices = draw_indices(key, (local_steps, 3, batch_size), data.train.count)
        start = (w, optimizer.init(w))
        (w, _), metrics = scan_steps(meta_step, start, indices, data.train)
        return memory, w, metrics

    def aggregate(w, cohorts, uploads, key):
        cohort, uploads = of_all_architectures(cohorts, uploads)
        return tree.mean(uploads, jnp.ones_like(cohort.weights))

    def personalize(w, memory, data, key):
        batch = data.train.rows(draw_indices(key, (batch_size,), data.train.count))
        gradient = jax.grad(model.objective)(w, batch, step_key(key, 0))
        return Predictor(step_along(w, gradient, perfedavg_alpha))

    client = Client(model, local, personalize=personalize)
    server = dataclasses.replace(averaging_server(model), aggregate=aggregate)
    return Algorithm(server, (client,), averages=True)
