"""Trains the embeddings of pFedHN and Panacea in the linear case and measures their risk.

The simulation does not use the closed forms of `linear_theory.closed_form`. It draws
generators, targets and initial embeddings, minimises the benign clients' losses, and compares
the resulting models with the target models.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.linear_theory.closed_form import RANK

AT_ONCE = 128  # draws that are computed together


class Risks(NamedTuple):
    """Means over draws and their standard errors, `REGIMES` by `METHODS`: [3, 2]."""

    mean: np.ndarray
    error: np.ndarray


def simulate(
    graph,
    targets,
    attacked: int,
    *,
    params: int,
    embedding: int,
    draws: int,
    steps: int,
    seed: int,
) -> Risks:
    """Trains both methods on random draws and measures their risk.

    Args:
      graph: G [n, n].
      targets: C of each regime [3, n, n].
      params, embedding: d and k, the sizes of a model and of an embedding.
      steps: gradient steps, at the largest rate that is sure to descend; 0 computes the limit
        by least squares.
    """
    benign = np.arange(len(graph)) >= attacked
    with jax.enable_x64(True):  # G = G~^L may be nearly singular
        keys = jax.random.split(jax.random.key(seed), draws)
        sizes = {"params": params, "embedding": embedding, "steps": steps}
        risks = np.asarray(_risks(keys, graph, targets, benign[None].astype(float), **sizes))
    return Risks(risks.mean(axis=0), risks.std(axis=0, ddof=1) / np.sqrt(draws))


@functools.partial(jax.jit, static_argnames=("params", "embedding", "steps"))
def _risks(keys, graph, targets, benign, *, params, embedding, steps):
    """The risk of every draw: [draws, regimes, methods]."""
    n = graph.shape[0]
    train = functools.partial(descend, steps=steps) if steps else fit

    def one_draw(key):
        key_generator, key_target, key_start = jax.random.split(key, 3)
        generator = jax.random.normal(key_generator, (params, embedding), float)
        free = jax.random.normal(key_target, (embedding, n), float)  # U
        start = jax.random.normal(key_start, (embedding, n), float)

        def risk(graph, models):
            embeddings = train(generator, start, graph, models, benign)
            return jnp.sum((generator @ embeddings @ graph - models) ** 2) / n

        graphs = jnp.stack([jnp.eye(n), graph])  # of pFedHN and of Panacea
        risks = jax.vmap(risk, (0, None))
        return jax.vmap(lambda target: risks(graphs, generator @ free @ target))(targets)

    return jax.lax.map(one_draw, keys, batch_size=AT_ONCE)


def fit(generator, start, graph, models, benign):
    """The embeddings [k, n] that minimise the benign clients' losses, nearest to `start`.

    `benign` [1, n] is 1 for a client that gives gradients and 0 for an attacked one.
    """
    error = (models - generator @ start @ graph) * benign  # [d, n]
    change = jnp.linalg.lstsq(generator, error)[0]  # [k, n], of V G
    return start + jnp.linalg.lstsq((graph * benign).T, change.T, rcond=RANK)[0].T


def descend(generator, start, graph, models, benign, *, steps):
    """The embeddings [k, n] after gradient steps on the benign clients' losses."""
    graph = graph * benign
    # The part of the targets outside the range of the generator is a constant in the loss.
    basis, generator = jnp.linalg.qr(generator)
    targets = basis.T @ models * benign  # [k, n]

    def loss(embeddings):
        return jnp.sum((generator @ embeddings @ graph - targets) ** 2) / 2

    norms = jnp.linalg.norm(generator, 2) * jnp.linalg.norm(graph, 2)
    rate = 1 / jnp.maximum(norms, RANK) ** 2
    return jax.lax.fori_loop(0, steps, lambda _, v: v - rate * jax.grad(loss)(v), start)
