"""Defences: how a server changes its cohort's updates before it learns from them.

An update u_i is an upload minus what its client would have sent untrained; a round has M.

    clip              u_i min(1, c median_j |u_j| / |u_i|)
    median            elementwise median
    trimmed_mean      elementwise mean without the f largest and the f smallest
    geometric_median  argmin_v sum_i |u_i - v|, by Weiszfeld's steps
    krum              the u_i with the smallest sum of squared distances to its M - f - 2
                      nearest others
    multi_krum        the mean of the M - f best by that sum
    monotone          compares updates of a client with its earlier ones, see `monotone`

A server that averages gets clip's updates, or, with all others but monotone, M copies of one
update. A server that holds a different model for each client, as with hypernetworks and SFL,
gets clip's updates too. With krum and multi_krum, its rejected clients count as untrained: a
single update for all would make all clients equal. median, trimmed_mean and geometric_median
are refused there. If clients have different architectures, a defence sees the updates of each
architecture by themselves, so f is the number of attackers among them.

Sources: Sun, Kairouz, Suresh, McMahan, Can You Really Backdoor Federated Learning?, 2019
(clip); Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning, ICML 2018
(median, trimmed_mean); Pillutla, Kakade, Harchaoui, Robust Aggregation for Federated Learning,
IEEE TSP 2022 (geometric_median); Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning
with Adversaries, NeurIPS 2017 (krum, multi_krum).

Departures: norms are clipped at a multiple of their median, not at a constant; an update whose
norm is not finite becomes 0, and is not among those of the median. Weiszfeld's steps begin at
the elementwise median, and there are WEISZFELD of them, not as many as a tolerance needs. All
clients have the same weight in the robust means, whatever weights a method uses.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, FederatedData
from graphfl_jax.rounds import Group
from graphfl_jax.settings import Integer, Real
from graphfl_jax.wire.monotone import Monotone, guard, monotone
from graphfl_jax.wire.updates import floats_of, shorten, with_updates

WEISZFELD = 50  # steps
TINY = 1e-12  # lower bound of a distance, which avoids division by 0


Attackers = Annotated[int, Integer("Attackers in a cohort that the defence allows for.", low=0)]


def clip(
    *,
    defence_norm: Annotated[
        Array, Real("Largest norm of an update, relative to the cohort's median norm.")
    ] = 1.0,
) -> Callable:
    def change(updates):
        norms = jnp.linalg.norm(updates, axis=1)
        finite = jnp.isfinite(norms)
        limit = defence_norm * jnp.nanmedian(jnp.where(finite, norms, jnp.nan))
        return shorten(jnp.where(finite[:, None], updates, 0.0), limit)

    return change


def median() -> Callable:
    return lambda updates: jnp.median(updates, axis=0)


def trimmed_mean(*, attackers: Attackers = 1) -> Callable:
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

        return jax.lax.fori_loop(0, WEISZFELD, step, jnp.median(updates, axis=0))

    return centre


def krum(*, attackers: Attackers = 1) -> Callable:
    return lambda updates: _best(updates, attackers, 1)


def multi_krum(*, attackers: Attackers = 1) -> Callable:
    return lambda updates: _best(updates, attackers, len(updates) - attackers)


def _best(updates, attackers, number):
    """Whether [M] each update is among the `number` with the smallest sums."""
    size = len(updates)
    apart = tree.sq_dists(updates) + jnp.diag(jnp.full(size, jnp.inf))
    sums = jnp.sum(jnp.sort(apart, axis=1)[:, : size - attackers - 2], axis=1)
    place = jnp.argsort(jnp.argsort(sums, stable=True))  # among equals, the first
    return place < number


CENTRES = {
    "median": median,
    "trimmed_mean": trimmed_mean,
    "geometric_median": geometric_median,
}
FILTERS = {"krum": krum, "multi_krum": multi_krum}
DEFENCES = {"clip": clip, "monotone": monotone} | CENTRES | FILTERS
# Smallest cohort for f attackers in it.
SMALLEST_COHORT = {
    "trimmed_mean": lambda attackers: 2 * attackers + 1,
    "krum": lambda attackers: 2 * attackers + 3,
    "multi_krum": lambda attackers: 2 * attackers + 3,
}
# Of the others: the smallest in which they differ from no defence, or from a mean.
SMALLEST_DEFENDED = {"clip": 2, "median": 3, "geometric_median": 3}


def with_defence(
    algorithm: Algorithm,
    name: str,
    defence: Callable | Monotone,
    groups: tuple[Group, ...],
    data: FederatedData,
) -> Algorithm:
    """A method whose server defends itself.

    Args:
      algorithm: the method, accepted by `check_defence`.
      name: one of `DEFENCES`.
      defence: what it builds.
      groups: the clients of each architecture.
      data: of the federation, for the shapes of uploads.
    """
    if isinstance(defence, Monotone):
        first = algorithm.first_exchange(data, len(groups))
        sizes = tuple(
            jax.eval_shape(lambda u: floats_of(u)[0], upload).size for upload in first.uploads
        )
        return guard(algorithm, defence, groups, sizes)

    def change(updates, sent, group):
        result = defence(updates)
        if name not in CENTRES and name not in FILTERS:
            _check_result(name, updates, result)
            return result
        if name in FILTERS:
            kept = result[:, None]
            if not algorithm.averages:
                return jnp.where(kept, updates, 0.0)
            number = jnp.sum(kept, dtype=updates.dtype)
            result = jnp.sum(jnp.where(kept, updates, 0.0), axis=0) / number
        return jnp.broadcast_to(result[None], updates.shape)

    def defend(server, cohorts, untrained, uploads):
        return server, with_updates(untrained, uploads, change)

    return algorithm.replacing(defend=defend)


def _check_result(name, updates, result):
    """Refuses what a registered defence returns in place of updates."""
    if jnp.shape(result) != updates.shape:
        raise ValueError(
            f"defence.name={name!r} returns an array {list(jnp.shape(result))} for updates "
            f"{list(updates.shape)}; return one update for each client"
        )


class DoesNotFit(ValueError):
    """A method cannot have a defence, whatever its settings are. One line."""


def check_defence(
    algorithm: Algorithm,
    name: str,
    data: FederatedData,
    *,
    method: str,
    attackers: int,
    cohort_size: int,
) -> None:
    """Checks that a defence fits a method and a cohort, and warns if it does nothing in this.

    Args:
      algorithm: the method.
      name: one of `DEFENCES`.
      data: of the federation.
      method: its name, for errors.
      attackers: that the defence allows for.
      cohort_size: of the smallest group.

    Raises:
      DoesNotFit: the method's clients upload nothing, or no models where the defence needs
        these, or its server needs different models for its clients.
      ValueError: the cohort is too small for so many attackers.
    """
    fitting = _fitting(algorithm, data)
    if not fitting:
        raise DoesNotFit(
            f"defence.name={name!r} has no effect: the clients of algorithm.name={method!r} "
            f"upload nothing; leave it empty"
        )
    if name not in fitting:
        why = (
            f"compares the models that clients get and send, and the clients of "
            f"algorithm.name={method!r} send none"
            if name == "monotone"
            else f"makes one model of all uploads, and the server of "
            f"algorithm.name={method!r} needs one for each client"
        )
        raise DoesNotFit(f"defence.name={name!r} {why}; choose from {', '.join(fitting)}")
    _check_cohort(name, attackers, cohort_size, len(algorithm.clients) > 1)


def _check_cohort(name, attackers, cohort_size, several):
    """Refuses too many attackers in a cohort, and warns if nothing keeps them away there.

    Args:
      several: whether there are several architectures, of which this is the smallest cohort.
    """
    counts = SMALLEST_COHORT.get(name)
    smallest = counts(attackers) if counts else SMALLEST_DEFENDED.get(name, 1)
    where = f"a cohort of {cohort_size}"
    remedy = f"--config.cohort_size={smallest} or more"
    if several:
        where = f"a cohort with {cohort_size} clients of an architecture"
        remedy = f"a larger --config.cohort_size, so that each architecture has {smallest}"
    too_small = cohort_size < smallest
    if too_small and counts:
        raise ValueError(
            f"defence.attackers={attackers} is too many for {name} in {where}; set {remedy}, "
            f"or fewer attackers"
        )
    if too_small:
        idle = f"defence.name={name!r} keeps no attacker away in {where}; set {remedy}"
        warnings.warn(idle, stacklevel=2)
    elif attackers == 0 and name in ("trimmed_mean", "multi_krum"):
        idle = f"defence.attackers=0 makes {name} a mean of all updates; set 1 or more"
        warnings.warn(idle, stacklevel=2)


def _fitting(algorithm, data):
    """The names of the defences that a method can have."""
    first = algorithm.first_exchange(data, len(algorithm.clients))
    uploads = functools.partial(algorithm.first_uploads, data)
    program = jax.make_jaxpr(uploads)(first.messages, first.memories).jaxpr
    if not program.outvars:
        return []
    _, read = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    left_out = set() if algorithm.averages else set(CENTRES)
    if not any(read[: len(jax.tree.leaves(first.messages))]):
        left_out.add("monotone")  # what clients send does not depend on what they got
    return [name for name in DEFENCES if name not in left_out]
