"""The arithmetic of defences: what becomes of the updates u_i, i = 1, ..., M, of a cohort.

    clip              u_i min(1, c median_j |u_j| / |u_i|)
    median            elementwise median
    trimmed_mean      elementwise mean without the f largest and the f smallest
    geometric_median  argmin_v sum_i |u_i - v|, by Weiszfeld's steps
    centred_clip      v <- v + (1/M) sum_i (u_i - v) min(1, c median_j |u_j| / |u_i - v|)
    krum              the u_i with the smallest sum of squared distances to its M - f - 2
                      nearest others
    multi_krum        the mean of the M - f best by that sum
    bulyan            T = M - 2f updates are chosen by krum, one after the other; then the
                      elementwise mean of the T - 2f that are nearest to their median
    dnc               the mean without the f with the largest squared projections of
                      u_i - mean_j u_j on the first principal direction of all of them
    foolsgold         the mean weighted by b_i, which is small where another update is alike:
                      m_i = max_j cos(u_i, u_j);  c_i = max_j cos(u_i, u_j), each times
                      m_i / m_j if m_i < m_j;  a_i = 1 - c_i, over the largest, at most 0.99;
                      b_i = log(a_i / (1 - a_i)) + 1/2, within [0, 1]

Sources: Sun, Kairouz, Suresh, McMahan, Can You Really Backdoor Federated Learning?, 2019
(clip); Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning, ICML 2018
(median, trimmed_mean); Pillutla, Kakade, Harchaoui, Robust Aggregation for Federated Learning,
IEEE TSP 2022 (geometric_median); Karimireddy, He, Jaggi, Learning from History for Byzantine
Robust Optimization, ICML 2021 (centred_clip); Blanchard, El Mhamdi, Guerraoui, Stainer, Machine
Learning with Adversaries, NeurIPS 2017 (krum, multi_krum); El Mhamdi, Guerraoui, Rouault, The
Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018 (bulyan); Shejwalkar,
Houmansadr, Manipulating the Byzantine, NDSS 2021 (dnc); Fung, Yoon, Beschastnikh, The
Limitations of Federated Learning in Sybil Settings, RAID 2020 (foolsgold).

Departures: norms are clipped at a multiple of their median, not at a constant; an update whose
norm is not finite becomes 0, and is not among those of the median. Weiszfeld's steps begin at
the elementwise median, and there are WEISZFELD of them, not as many as a tolerance needs.
centred_clip begins at 0 in each round, not at the last round's update. dnc takes all numbers
of an update, not random subsets of them, so that one pass is enough. foolsgold compares the
updates of a round, not the sums of each client's past ones. All clients have the same weight in
the robust means, whatever weights a method uses.
"""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Array
from graphfl_jax.settings import Integer, Real
from graphfl_jax.wire.updates import shorten

CENTRED = 3  # steps of centred_clip
MOST = 0.99  # the largest a_i of foolsgold before its logarithm
WEISZFELD = 50  # steps
TINY = 1e-12  # lower bound of a distance, which avoids division by 0


Attackers = Annotated[int, Integer("Attackers in a cohort that the defence allows for.", low=0)]


def clip(
    *,
    defence_norm: Annotated[
        Array, Real("Largest norm of an update, relative to the cohort's median norm.")
    ] = 1.0,
) -> Callable:
    """Shortens updates to a multiple of the median norm."""

    def change(updates):
        norms = jnp.linalg.norm(updates, axis=1)
        finite = jnp.isfinite(norms)
        limit = defence_norm * jnp.nanmedian(jnp.where(finite, norms, jnp.nan))
        return shorten(jnp.where(finite[:, None], updates, 0.0), limit)

    return change


def median() -> Callable:
    """The elementwise median of the updates."""
    return lambda updates: jnp.median(updates, axis=0)


def trimmed_mean(*, attackers: Attackers = 1) -> Callable:
    """The elementwise mean without the largest and the smallest values."""

    def centre(updates):
        ordered = jnp.sort(updates, axis=0)
        return jnp.mean(ordered[attackers : len(updates) - attackers], axis=0)

    return centre


def geometric_median() -> Callable:
    """The vector with the smallest sum of distances to the updates."""

    def centre(updates):
        def step(_, v):
            distance = jnp.sqrt(jnp.sum(jnp.square(updates - v[None]), axis=1))
            weights = 1 / jnp.maximum(distance, TINY)
            return weights / jnp.sum(weights) @ updates

        return jax.lax.fori_loop(0, WEISZFELD, step, jnp.median(updates, axis=0))

    return centre


def krum(*, attackers: Attackers = 1) -> Callable:
    """The update that is nearest to its nearest others."""
    return lambda updates: _best(updates, attackers, 1)


def multi_krum(*, attackers: Attackers = 1) -> Callable:
    """The mean of the updates that are near to their nearest others."""
    return lambda updates: _best(updates, attackers, len(updates) - attackers)


def _best(updates, attackers, number):
    """Whether [M] each update is among the `number` with the smallest sums."""
    size = len(updates)
    apart = tree.sq_dists(updates) + jnp.diag(jnp.full(size, jnp.inf))
    sums = jnp.sum(jnp.sort(apart, axis=1)[:, : size - attackers - 2], axis=1)
    place = jnp.argsort(jnp.argsort(sums, stable=True))  # among equals, the first
    return place < number


def centred_clip(
    *,
    defence_norm: Annotated[
        Array, Real("Largest distance of an update, relative to the cohort's median norm.")
    ] = 1.0,
) -> Callable:
    """The mean of updates that are shortened to be near to it."""

    def centre(updates):
        limit = defence_norm * jnp.median(jnp.linalg.norm(updates, axis=1))

        def step(_, v):
            return v + jnp.mean(shorten(updates - v[None], limit), axis=0)

        return jax.lax.fori_loop(0, CENTRED, step, jnp.zeros_like(updates[0]))

    return centre


def bulyan(*, attackers: Attackers = 1) -> Callable:
    """A trimmed mean of the updates that `krum` chooses."""

    def centre(updates):
        size, number = len(updates), len(updates) - 2 * attackers
        apart, turns = tree.sq_dists(updates), jnp.arange(size)

        def choose(left, turn):
            """Krum among those who are left; it has one neighbour at least."""
            both = left[:, None] & left[None, :] & (turns[:, None] != turns[None, :])
            nearest = jnp.sort(jnp.where(both, apart, jnp.inf), axis=1)
            neighbours = jnp.maximum(size - turn - attackers - 2, 1)
            sums = jnp.sum(jnp.where(turns[None, :] < neighbours, nearest, 0.0), axis=1)
            best = jnp.argmin(jnp.where(left, sums, jnp.inf))
            return left.at[best].set(False), best

        _, chosen = jax.lax.scan(choose, jnp.ones(size, bool), turns[:number])
        kept = updates[chosen]
        gaps = jnp.abs(kept - jnp.median(kept, axis=0, keepdims=True))
        order = jnp.argsort(gaps, axis=0)[: number - 2 * attackers]
        return jnp.mean(jnp.take_along_axis(kept, order, axis=0), axis=0)

    return centre


def dnc(*, attackers: Attackers = 1) -> Callable:
    """The mean without the updates that are farthest along their first principal direction."""

    def kept(updates):
        size = len(updates)
        centred = updates - jnp.mean(updates, axis=0, keepdims=True)
        # Of C = U S V^T, the projections on the first direction of V are those of U S.
        values, vectors = jnp.linalg.eigh(centred @ centred.T)
        projections = values[-1] * jnp.square(vectors[:, -1])
        place = jnp.argsort(jnp.argsort(projections, stable=True))
        return place < size - attackers

    return kept


def foolsgold() -> Callable:
    """The mean with small weights for updates that resemble each other."""

    def centre(updates):
        norms = jnp.linalg.norm(updates, axis=1, keepdims=True)
        unit = updates / jnp.maximum(norms, TINY)
        themselves = jnp.eye(len(updates), dtype=bool)
        cosines = jnp.where(themselves, -1.0, unit @ unit.T)
        largest = jnp.max(cosines, axis=1)
        smaller = largest[:, None] < largest[None, :]
        ratios = largest[:, None] / jnp.where(largest == 0, TINY, largest)[None, :]
        pardoned = jnp.where(smaller & ~themselves, cosines * ratios, cosines)
        shares = jnp.clip(1.0 - jnp.max(pardoned, axis=1), 0.0, 1.0)
        shares = jnp.minimum(shares / jnp.maximum(jnp.max(shares), TINY), MOST)
        logits = jnp.log(shares / (1.0 - shares)) + 0.5
        weights = jnp.clip(logits, 0.0, 1.0)
        return weights @ updates / jnp.maximum(jnp.sum(weights), TINY)

    return centre
