"""Trains the codes of Panacea and of pFedHN in the linear case, and measures their risk.

Nothing here knows the closed forms of `linear_theory.closed_form`: generators, wishes and first codes
are drawn, the benign clients' losses are brought down, and the models that come out are held
against those that were wanted.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from experiments.linear_theory.closed_form import RANK


class Risks(NamedTuple):
    """Means over draws and their standard errors, of `REGIMES` by `METHODS`: [3, 2]."""

    mean: np.ndarray
    error: np.ndarray


def simulate(
    graph, wish, attacked: int, *, params: int, code: int, draws: int, steps: int, seed: int
) -> Risks:
    """Draws generators, wishes and first codes, trains both methods, and measures their risk.

    With steps=0 training goes to its end, by least squares; else so many steps of gradient
    descent, at the largest rate that is sure to descend.
    """
    benign = np.arange(len(graph)) >= attacked
    with jax.enable_x64(True):  # G = G~^L may be nearly singular
        keys = jax.random.split(jax.random.key(seed), draws)
        sizes = {"params": params, "code": code, "steps": steps}
        risks = np.asarray(_risks(keys, graph, wish, benign[None].astype(float), **sizes))
    return Risks(risks.mean(axis=0), risks.std(axis=0, ddof=1) / np.sqrt(draws))


@functools.partial(jax.jit, static_argnames=("params", "code", "steps"))
def _risks(keys, graph, wish, benign, *, params, code, steps):
    """The risk of every draw: [draws, regimes, methods]."""
    n = graph.shape[0]
    train = functools.partial(descend, steps=steps) if steps else fit

    def one_draw(key):
        key_generator, key_wish, key_start = jax.random.split(key, 3)
        generator = jax.random.normal(key_generator, (params, code), float)
        free = jax.random.normal(key_wish, (code, n), float)
        start = jax.random.normal(key_start, (code, n), float)

        def risk(graph, models):
            codes = train(generator, start, graph, models, benign)
            return jnp.sum((generator @ codes @ graph - models) ** 2) / n

        graphs = jnp.stack([jnp.eye(n), graph])  # pFedHN's clients have a code each
        return jax.vmap(lambda c: jax.vmap(risk, (0, None))(graphs, generator @ free @ c))(wish)

    return jax.lax.map(one_draw, keys, batch_size=128)


def fit(generator, start, graph, models, benign):
    """The codes nearest to `start` whose benign models are nearest to those wanted.

    `benign` [1, n] is 1 for a client that gives gradients and 0 for one that is attacked.
    """
    apart = (models - generator @ start @ graph) * benign  # [d, n]
    wanted = jnp.linalg.lstsq(generator, apart)[0]  # [k, n], of what V G lacks
    return start + jnp.linalg.lstsq((graph * benign).T, wanted.T, rcond=RANK)[0].T


def descend(generator, start, graph, models, benign, *, steps):
    """The codes [k, n] after gradient steps on the benign clients' losses."""
    heard = graph * benign
    # What the generator cannot give is a constant in the loss.
    given, generator = jnp.linalg.qr(generator)
    wanted = given.T @ models * benign  # [k, n]

    def loss(codes):
        return jnp.sum((generator @ codes @ heard - wanted) ** 2) / 2

    norms = jnp.linalg.norm(generator, 2) * jnp.linalg.norm(heard, 2)
    rate = 1 / jnp.maximum(norms, RANK) ** 2
    return jax.lax.fori_loop(0, steps, lambda _, v: v - rate * jax.grad(loss)(v), start)


def interval(draws: int, *, missed: float, numbers: int = 1) -> float:
    """Standard errors on either side within which lie `numbers` true means at once.

    `missed` is the chance that any of them does not.
    """
    return float(stats.t.isf(missed / (2 * numbers), draws - 1))
