"""Attacks on uploads by malicious clients who know how the defence `monotone` works.

Client i trains x_i to x_i + u_i. It uploads x_i plus

    own_target       step (c_i - x_i), with c_i = tau z_i and z_i ~ N(0, I_d), the same in all
                     rounds. This is the gradient step of an honest client whose loss is
                     |x - c_i|^2 / 2: its updates are as monotone as updates can be.
    shared_target    the same with one z for all attackers, so that their updates agree
    masked_poisoning -lambda u_i - nu |u_i| x_i / |x_i|: a poisoned update, and a step towards 0
                     that makes the difference of two updates monotone
    sleeper          u_i in the first rounds of every period, and -lambda u_i in the others

step is 1, or less where the update would be longer than `attack_length` times the mean norm of
the cohort's honest updates. Attacks on data, such as `label_flip`, pass as honest in the same
way: clients descend a loss of their own, with changed labels.

Departures: these attacks were made for this package. The targets do not depend on the seed of
the run. Colluding neighbours in the graph are chosen with ``attack.placement=neighbours``.
"""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp

from graphfl_jax.core import Array
from graphfl_jax.robustness.updates import shortened
from graphfl_jax.robustness.upload_attacks import Known
from graphfl_jax.settings import Integer, Real

Target = Annotated[Array, Real("Standard deviation tau of the attackers' own target.")]
Length = Annotated[
    Array, Real("Largest norm of an attacker's update, relative to honest clients' mean.")
]
Poisoned = Annotated[
    Array, Real("Factor lambda: uploads are -lambda times the update.", low=-float("inf"))
]


def own_target(*, attack_target: Target = 1.0, attack_length: Length = 1.0) -> Callable:
    def change(updates, known):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), known.ids)
        targets = jax.vmap(lambda key: jax.random.normal(key, updates.shape[1:]))(keys)
        return towards(attack_target * targets, updates, known, attack_length)

    return change


def shared_target(*, attack_target: Target = 1.0, attack_length: Length = 1.0) -> Callable:
    def change(updates, known):
        target = jax.random.normal(jax.random.key(0), (1, updates.shape[1]))
        return towards(attack_target * target, updates, known, attack_length)

    return change


def towards(targets, updates, known: Known, length):
    """Updates [M, d] towards targets [M or 1, d], of limited norm."""
    norms = jnp.linalg.norm(updates, axis=1)
    weights = (known.honest | ~jnp.any(known.honest)).astype(norms.dtype)
    limit = length * (weights @ norms) / jnp.sum(weights)
    return shortened(targets - known.sent, limit)


def masked_poisoning(
    *,
    attack_lambda: Poisoned = 0.5,
    attack_mask: Annotated[Array, Real("Norm nu of the step towards 0.")] = 1.0,
) -> Callable:
    def change(updates, known):
        norms = jnp.linalg.norm(updates, axis=1)
        own = jnp.linalg.norm(known.sent, axis=1)
        mask = known.sent * (norms / jnp.where(own > 0, own, 1.0))[:, None]
        return -attack_lambda * updates - attack_mask * mask

    return change


def sleeper(
    *,
    attack_lambda: Poisoned = 0.5,
    period: Annotated[int, Integer("Rounds after which the attackers are honest again.")] = 100,
    honest_rounds: Annotated[
        int, Integer("Rounds of each period in which the attackers are honest.", low=0)
    ] = 50,
) -> Callable:
    """Builds `sleeper`.

    Raises:
      ValueError: no round of a period is left for the attack.
    """
    if honest_rounds >= period:
        raise ValueError(
            f"attack.honest_rounds={honest_rounds} leaves no round of a period of {period} for "
            f"the attack; set --config.attack.honest_rounds to {period - 1} or less, or a "
            f"larger --config.attack.period"
        )

    def change(updates, known):
        honest = known.played % period < honest_rounds
        return jnp.where(honest, updates, -attack_lambda * updates)

    return change


ADAPTIVE_ATTACKS = {
    "own_target": own_target,
    "shared_target": shared_target,
    "masked_poisoning": masked_poisoning,
    "sleeper": sleeper,
}
