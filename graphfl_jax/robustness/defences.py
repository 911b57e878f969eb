"""Defences: what a server makes of its cohort's updates before it learns from them.

An update u_i is an upload less what its client would have sent untrained; M of them come in.

    clip              u_i min(1, c median_j |u_j| / |u_i|)
    median            number by number, the median
    trimmed_mean      number by number, the mean without the f largest and the f smallest
    geometric_median  argmin_v sum_i |u_i - v|, by Weiszfeld's steps
    krum              the u_i whose squared distances to the M - f - 2 closest others sum least
    multi_krum        the mean of the M - f best by that sum

A server that averages gets clip's updates, or M times the one update that the others make of
them. One that keeps its clients apart, as those of hypernetworks and of SFL do, gets clip's
updates too; with krum and multi_krum the rejected clients count as untrained, and a single
update for everybody would undo what such a server is for.

Sources: Sun, Kairouz, Suresh, McMahan, Can You Really Backdoor Federated Learning?, 2019
(clip); Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning, ICML 2018
(median, trimmed_mean); Pillutla, Kakade, Harchaoui, Robust Aggregation for Federated Learning,
IEEE TSP 2022 (geometric_median); Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning
with Adversaries, NeurIPS 2017 (krum, multi_krum).

Departures: norms are clipped at a multiple of their median, not at a constant. Clients count
once each in the robust means, whatever a method weights them by.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array
from graphfl_jax.robustness.updates import with_updates

WEISZFELD = 50  # steps
TINY = 1e-12  # of a distance, beneath which a median is where an update is


def clip(*, defence_norm: Array) -> Callable:
    def change(updates):
        norms = jnp.linalg.norm(updates, axis=1)
        most = defence_norm * jnp.median(norms)
        scale = jnp.where(norms > most, most / jnp.where(norms > most, norms, 1.0), 1.0)
        return updates * scale[:, None]

    return change


def median() -> Callable:
    return lambda updates: jnp.median(updates, axis=0)


def trimmed_mean(*, attackers: int) -> Callable:
    def centre(updates):
        ordered = jnp.sort(updates, axis=0)
        return jnp.mean(ordered[attackers : len(updates) - attackers], axis=0)

    return centre


def geometric_median() -> Callable:
    def centre(updates):
        def step(_, v):
            distance = jnp.sqrt(jnp.sum(jnp.square(updates - v[None]), axis=1))
            weights = 1 / jnp.maximum(distance, TINY)
            return weights / jnp.sum(weights) @ updates

        return jax.lax.fori_loop(0, WEISZFELD, step, jnp.mean(updates, axis=0))

    return centre


def krum(*, attackers: int) -> Callable:
    return lambda updates: _best(updates, attackers, 1)


def multi_krum(*, attackers: int) -> Callable:
    return lambda updates: _best(updates, attackers, len(updates) - attackers)


def _best(updates, attackers, number):
    """Which [M] of the updates have the `number` least sums."""
    size = len(updates)
    apart = tree.sq_dists(updates) + jnp.diag(jnp.full(size, jnp.inf))
    sums = jnp.sum(jnp.sort(apart, axis=1)[:, : size - attackers - 2], axis=1)
    place = jnp.argsort(jnp.argsort(sums, stable=True))  # of equals the first
    return place < number


CENTRES = {
    "median": median,
    "trimmed_mean": trimmed_mean,
    "geometric_median": geometric_median,
}
FILTERS = {"krum": krum, "multi_krum": multi_krum}
DEFENCES = {"clip": clip} | CENTRES | FILTERS
# A cohort's least size for f attackers among it.
FEWEST = {
    "trimmed_mean": lambda attackers: 2 * attackers + 1,
    "krum": lambda attackers: 2 * attackers + 3,
    "multi_krum": lambda attackers: 2 * attackers + 3,
}


def defended(algorithm: Algorithm, name: str, defence: Callable) -> Algorithm:
    """A method whose server defends itself.

    Args:
      algorithm: the method, which `check_bearable` has seen.
      name: of one of `DEFENCES`.
      defence: what it builds.
    """

    def change(updates, cohort, key):
        told = defence(updates)
        if name in FILTERS:
            kept = told[:, None]
            if not algorithm.averages:
                return jnp.where(kept, updates, 0.0)
            number = jnp.sum(kept, dtype=updates.dtype)
            told = jnp.sum(jnp.where(kept, updates, 0.0), axis=0) / number
        return told if name == "clip" else jnp.broadcast_to(told[None], updates.shape)

    return with_updates(algorithm, change)


def check_defence(
    algorithm: Algorithm, name: str, graph, *, attackers: int, cohort_size: int
) -> None:
    """Refuses a defence that means nothing for a method, or cannot bear so many attackers.

    Raises:
      ValueError: so.
    """

    def upload(key):
        return algorithm.untrained(algorithm.download(algorithm.init(key, graph), 0))

    if not jax.tree.leaves(jax.eval_shape(upload, jax.random.key(0))):
        raise ValueError(
            f"defence.name={name!r} means nothing where clients upload nothing; leave it empty"
        )
    if name in CENTRES and not algorithm.averages:
        own = [one for one in DEFENCES if one not in CENTRES]
        raise ValueError(
            f"defence.name={name!r} makes one model of all uploads, which this method's server "
            f"keeps apart; choose from {', '.join(own)}"
        )
    fewest = FEWEST.get(name, lambda attackers: 1)(attackers)
    if cohort_size < fewest:
        raise ValueError(
            f"defence.attackers={attackers} in a cohort of {cohort_size} are more than {name} "
            f"can bear; set --config.cohort_size={fewest} or more, or allow for fewer"
        )
