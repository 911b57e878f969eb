"""Per-FedAvg: an initial model from which one step on a client's own data is a good one.

Fallah, Mokhtari, Ozdaglar. Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach. NeurIPS 2020. https://arxiv.org/abs/2002.07948

    min_w  mean_i F_i(w - alpha grad F_i(w))

A local step draws three independent batches b1, b2, b3:

    w' = w - alpha g(w; b1),     g1 = g(w'; b2)
    w <- w - beta (g1 - alpha h),     h = H(w; b3) g1

"hf" (Hessian-free) takes for h the derivative of g(w; b3) along g1, exactly; "fd" the paper's
difference (g(w + delta g1; b3) - g(w - delta g1; b3)) / (2 delta), delta = 1e-3; "fo" (first
order) takes h = 0. P is the model after one step of rate alpha from w, on one batch.

Departures: batches are drawn with replacement, and "hf" is exact where the paper's is a
difference. beta is ``hparams.client_lr``, alpha ``hparams.perfedavg_alpha``.
"""

import dataclasses

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.core import Algorithm, Array, ClientModel
from graphfl_jax.trainers import Train, draw_indices

HESSIANS = ("hf", "fd", "fo")
DELTA = 1e-3  # of the authors' finite difference


def perfedavg(
    model: ClientModel,
    train: Train,
    *,
    local_steps: int,
    batch_size: int,
    perfedavg_hessian: str,
    client_lr: Array,
    perfedavg_alpha: Array,
) -> Algorithm:
    """Builds Per-FedAvg.

    Args:
      model: what is adapted.
      train: of FedAvg, whose place the meta-steps take.
      local_steps: meta-steps in a round, each of two ("fo") or four gradients' work.
      batch_size: of each of a step's batches.
      perfedavg_hessian: "hf", "fd" or "fo".
      client_lr: beta, the rate of a meta-step.
      perfedavg_alpha: the rate of the adaptation.

    Raises:
      ValueError: an unknown perfedavg_hessian.
    """
    if perfedavg_hessian not in HESSIANS:
        raise ValueError(
            f"algorithm.perfedavg_hessian={perfedavg_hessian!r} is unknown; "
            f"choose from {', '.join(HESSIANS)}"
        )

    def step_along(w, direction, rate):
        return jax.tree.map(lambda p, d: p - rate * d, w, direction)

    def hessian_times(w, batch, direction):
        gradient = jax.grad(model.objective)
        if perfedavg_hessian == "fo":
            return jax.tree.map(jnp.zeros_like, direction)
        if perfedavg_hessian == "hf":
            return jax.jvp(lambda w: gradient(w, batch), (w,), (direction,))[1]
        ahead = gradient(step_along(w, direction, -DELTA), batch)
        behind = gradient(step_along(w, direction, DELTA), batch)
        return jax.tree.map(lambda a, b: (a - b) / (2 * DELTA), ahead, behind)

    def local(w, client, examples, key):
        def meta_step(w, indices):
            first, second, third = (examples.rows(rows) for rows in indices)
            loss, gradient = jax.value_and_grad(model.objective)(w, first)
            adapted = step_along(w, gradient, perfedavg_alpha)
            outer = jax.grad(model.objective)(adapted, second)
            inner = hessian_times(w, third, outer)
            meta = step_along(outer, inner, perfedavg_alpha)
            return step_along(w, meta, client_lr), loss

        indices = draw_indices(key, (local_steps, 3, batch_size), examples.count)
        w, losses = jax.lax.scan(meta_step, w, indices)
        return client, w, {"loss": jnp.mean(losses)}

    def aggregate(w, cohort, uploads, key):
        return tree.mean(uploads, jnp.ones_like(cohort.weights))

    def personalize(w, client, examples, key):
        batch = examples.rows(draw_indices(key, (batch_size,), examples.count))
        return step_along(w, jax.grad(model.objective)(w, batch), perfedavg_alpha)

    return dataclasses.replace(
        fedavg(model, train),
        local=local,
        aggregate=aggregate,
        personalize=personalize,
    )
