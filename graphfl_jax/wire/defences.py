"""Defences: how a server changes its cohort's updates before it learns from them.

An update u_i is an upload minus what its client would have sent untrained. `robust_means` has
the arithmetic of the defences; `monotone` compares updates of a client with its earlier ones.

A server that averages gets clip's updates, or, with all others but monotone, M copies of one
update. A server that holds a different model for each client, as with hypernetworks and SFL,
gets clip's updates too. With krum, multi_krum and dnc, its rejected clients count as untrained:
a single update for all would make all clients equal. The other means are refused there. If
clients have different architectures, a defence sees the updates of each architecture by
themselves, so f is the number of attackers among them.

Departures: those of `robust_means` and of `monotone`.
"""

import functools
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from graphfl_jax.core import Algorithm, FederatedData
from graphfl_jax.rounds import Group
from graphfl_jax.wire import robust_means
from graphfl_jax.wire.monotone import Monotone, guard, monotone
from graphfl_jax.wire.updates import floats_of, with_updates

CENTRES = {
    "median": robust_means.median,
    "trimmed_mean": robust_means.trimmed_mean,
    "geometric_median": robust_means.geometric_median,
    "centred_clip": robust_means.centred_clip,
    "bulyan": robust_means.bulyan,
    "foolsgold": robust_means.foolsgold,
}
FILTERS = {
    "krum": robust_means.krum,
    "multi_krum": robust_means.multi_krum,
    "dnc": robust_means.dnc,
}
DEFENCES = {"clip": robust_means.clip, "monotone": monotone} | CENTRES | FILTERS
# Smallest cohort for f attackers in it.
SMALLEST_COHORT = {
    "trimmed_mean": lambda attackers: 2 * attackers + 1,
    "krum": lambda attackers: 2 * attackers + 3,
    "multi_krum": lambda attackers: 2 * attackers + 3,
    "bulyan": lambda attackers: 4 * attackers + 3,
    "dnc": lambda attackers: 2 * attackers + 1,
}
# Of the others: the smallest in which they differ from no defence, or from a mean.
SMALLEST_DEFENDED = {"clip": 2, "median": 3, "geometric_median": 3}
SMALLEST_DEFENDED |= {"centred_clip": 2, "foolsgold": 3}


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
    elif attackers == 0 and name in ("trimmed_mean", "multi_krum", "dnc"):
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
