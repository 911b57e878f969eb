"""Attacks by malicious clients on their uploads.

They change an update u_i, which is the upload minus what client i would send untrained, into

    poisoning  -lambda u_i; lambda = -1 is no attack
    sign_flip  -u_i
    noise      u_i + sigma |u_i| z / sqrt(d),      z ~ N(0, I_d)
    alie       m - z s
    ipm        -epsilon m
    min_max    m - gamma s, with the largest gamma for which it is as close to every benign
               update as the two most distant benign updates are to each other

and, with x_i for what client i would send untrained, to pass the defence `monotone`, into

    own_target       step (c_i - x_i), with c_i = tau z_i and z_i ~ N(0, I_d), the same in all
                     rounds. This is the gradient step of a benign client whose loss is
                     |x - c_i|^2 / 2: its updates are as monotone as updates can be.
    shared_target    the same with one z for all attackers, so that their updates agree
    masked_poisoning -lambda u_i - nu x_i
    sleeper          u_i in the first rounds of every period, and -lambda u_i in the others

and, with the mean norm n of the cohort's benign updates, into an honest answer and a term whose
length is limited, so that neither the norm nor the answer to the model shows it

    drift            u_i + sigma n e, with a direction e, |e| = 1, for all attackers and rounds
    dead_units       u_i, but min(1, sigma n / |b|) b in the places of biases, where b is the
                     way from x_i to biases of -tau
    shrinkage        u_i - sigma n x_i / |x_i|

m and s are the elementwise mean and standard deviation of the cohort's benign updates, or of
all updates if none is benign. With fewer than two benign clients in the cohort, gamma is 0.
Sources: Lan et al., Panacea, IEEE TDSC 2025 (poisoning); Li, Xu, Chen, Giannakis, Ling, RSA,
AAAI 2019 (sign_flip); Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017 (noise); Baruch,
Baruch, Goldberg, A Little Is Enough, NeurIPS 2019 (alie); Xie, Koyejo, Gupta, Fall of Empires,
UAI 2019 (ipm); Shejwalkar, Houmansadr, Manipulating the Byzantine, NDSS 2021 (min_max; its
direction is -s here). Those against `monotone` were made for this package.

In the terms of `monotone`, let u_i = -C (x_i - x*) with the eigenvalues of C in [0, 1]. Then
the difference of two updates of masked_poisoning is -(nu I - lambda C) (x_t - x_s), so with
nu > lambda it is monotone with the condition number nu / (nu - lambda) at most. The attacker
pays for it with a step towards 0. Updates of this attack and of both targets can be long; the
defence shortens them as all others. Attacks on data, such as `label_flip`, pass as honest in
the same way: clients descend a loss of their own, with changed labels.

The last three keep u_i, dead_units but for biases, so the difference of two updates has the
honest -C (x_t - x_s). While n is the same in both rounds, drift adds nothing to it: the
attacker is a benign client whose minimum x* is moved by C^-1 sigma n e. The term of shrinkage
is minus the gradient of sigma n |x|, which is convex, and that of dead_units is minus the
gradient of a convex function of the biases. So with a constant n, both are monotone. A server
that compares the length of an update with how it answers sees at most about 1 + sigma times
what it sees of benign clients. A unit with a low bias is 0 for all examples, and then no
gradient of a benign client reaches the weights into it.

Departures: a malicious client attacks in every round that it takes part in, but `sleeper` waits
for some. Attackers know the benign updates of their cohort. The size of the noise is relative
to the update, and z of alie is a setting; its authors derive it from the number of workers.
gamma of min_max is computed in closed form; its authors search for it. The targets do not
depend on the seed of the run, nor does e. The biases of dead_units are all leaves of an upload
with one axis: those of the last layer, which are not followed by a ReLU, and the parameters of
normalisation layers are among them. Colluding neighbours in the graph are chosen with
``attack.placement=neighbours``.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Array
from graphfl_jax.settings import Integer, Real
from graphfl_jax.wire.updates import shorten

Target = Annotated[Array, Real("Standard deviation tau of the attackers' own target.")]
Step = Annotated[Array, Real("Share of the way to the target that an update goes.", high=1.0)]
Length = Annotated[
    Array, Real("Largest length sigma of a hidden term, relative to the mean benign update.")
]
Poisoned = Annotated[
    Array, Real("Factor lambda: uploads are -lambda times the update.", low=-float("inf"))
]


class Known(NamedTuple):
    """What attackers know of the M clients of a cohort, beside their updates."""

    honest: Array  # [M] bool
    sent: Array  # [M, d]: what they would upload untrained
    ids: Array  # [M] int32
    played: Array  # [] int32: rounds before this one
    key: Array  # of this round
    biases: Array  # [d] bool: numbers of leaves with one axis


def poisoning(*, attack_lambda: Poisoned = 0.5) -> Callable:
    """Uploads -lambda times the update."""
    return lambda updates, known: -attack_lambda * updates


def sign_flip() -> Callable:
    """Uploads minus the update."""
    return lambda updates, known: -updates


def noise(
    *, attack_sigma: Annotated[Array, Real("Size of the noise, relative to the update.")] = 3.0
) -> Callable:
    """Adds normal noise to the update."""

    def change(updates, known):
        size = jnp.sqrt(jnp.mean(jnp.square(updates), axis=1, keepdims=True))
        return updates + attack_sigma * size * jax.random.normal(known.key, updates.shape)

    return change


def alie(
    *, attack_z: Annotated[Array, Real("Standard deviations between upload and mean.")] = 1.5
) -> Callable:
    """Uploads the benign mean minus z standard deviations."""

    def change(updates, known):
        mean, deviation = statistics(updates, known.honest)
        return jnp.broadcast_to((mean - attack_z * deviation)[None], updates.shape)

    return change


def ipm(
    *,
    attack_epsilon: Annotated[
        Array, Real("Factor epsilon: uploads are -epsilon times the mean update.")
    ] = 0.5,
) -> Callable:
    """Uploads -epsilon times the benign mean."""

    def change(updates, known):
        mean, _ = statistics(updates, known.honest)
        return jnp.broadcast_to(-attack_epsilon * mean[None], updates.shape)

    return change


def min_max() -> Callable:
    """Uploads the benign mean minus as many deviations as benign updates are apart.

    |m - gamma s - u_i|^2 <= D^2 is a quadratic in gamma for each honest i.
    """

    def change(updates, known):
        mean, deviation = statistics(updates, known.honest)
        honest = known.honest
        apart = jnp.where(honest[:, None] & honest[None], tree.sq_dists(updates), 0.0)
        off = mean[None] - updates  # [M, d]
        a = jnp.sum(jnp.square(deviation))
        b = -off @ deviation  # [M]
        c = jnp.sum(jnp.square(off), axis=1) - jnp.max(apart)
        root = -b + jnp.sqrt(jnp.maximum(jnp.square(b) - a * c, 0.0))
        root = jnp.min(jnp.where(honest, root, jnp.inf))
        # With fewer than two benign clients, only their mean is known.
        gamma = jnp.where((a > 0) & jnp.isfinite(root), root / jnp.where(a > 0, a, 1.0), 0.0)
        return jnp.broadcast_to((mean - gamma * deviation)[None], updates.shape)

    return change


def statistics(updates, honest):
    """Mean and standard deviation [d] of the benign rows of [M, d], or of all without any."""
    shares = benign_shares(updates, honest)
    mean = shares @ updates
    return mean, jnp.sqrt(shares @ jnp.square(updates - mean[None]))


def mean_norm(updates, honest):
    """Mean of the norms of the benign rows of [M, d], or of all without any: []."""
    return benign_shares(updates, honest) @ jnp.linalg.norm(updates, axis=1)


def benign_shares(updates, honest):
    """Weights [M] of a mean over the benign rows of [M, d], or over all without any."""
    weights = (honest | ~jnp.any(honest)).astype(updates.dtype)
    return weights / jnp.sum(weights)


def own_target(*, attack_target: Target = 1.0, attack_step: Step = 1.0) -> Callable:
    """Pulls the server to a random model, another one for each attacker."""

    def change(updates, known):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), known.ids)
        targets = jax.vmap(lambda key: jax.random.normal(key, updates.shape[1:]))(keys)
        return attack_step * (attack_target * targets - known.sent)

    return change


def shared_target(*, attack_target: Target = 1.0, attack_step: Step = 1.0) -> Callable:
    """Pulls the server to one random model."""

    def change(updates, known):
        target = jax.random.normal(jax.random.key(0), (1, updates.shape[1]))
        return attack_step * (attack_target * target - known.sent)

    return change


def masked_poisoning(
    *,
    attack_lambda: Poisoned = 0.5,
    attack_mask: Annotated[
        Array, Real("Factor nu of the step towards 0; more than lambda hides the attack.")
    ] = 1.0,
) -> Callable:
    """Uploads -lambda times the update, with a step towards 0 that hides it."""

    def change(updates, known):
        return -attack_lambda * updates - attack_mask * known.sent

    return change


def sleeper(
    *,
    attack_lambda: Poisoned = 0.5,
    period: Annotated[
        int, Integer("Rounds after which the attackers act as benign clients again.")
    ] = 100,
    honest_rounds: Annotated[
        int, Integer("Rounds of each period in which they act as benign clients.", low=0)
    ] = 50,
) -> Callable:
    """Uploads -lambda times the update, but is honest in the first rounds of each period.

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


def drift(*, attack_length: Length = 3.0) -> Callable:
    """Adds a direction to the update, the same for all attackers and rounds."""

    def change(updates, known):
        direction = jax.random.normal(jax.random.key(0), (1, updates.shape[1]))
        length = attack_length * mean_norm(updates, known.honest)
        return updates + length * direction / jnp.linalg.norm(direction)

    return change


def dead_units(
    *,
    attack_length: Length = 3.0,
    attack_depth: Annotated[
        Array, Real("Depth tau below 0 to which attackers pull the biases.")
    ] = 5.0,
) -> Callable:
    """Pulls biases far below 0, where units are 0 for all examples."""

    def change(updates, known):
        ways = jnp.where(known.biases[None], -attack_depth - known.sent, 0.0)  # b
        pulls = shorten(ways, attack_length * mean_norm(updates, known.honest))
        return jnp.where(known.biases[None], pulls, updates)

    return change


def shrinkage(*, attack_length: Length = 3.0) -> Callable:
    """Adds a step towards 0 to the update."""

    def change(updates, known):
        norms = jnp.linalg.norm(known.sent, axis=1, keepdims=True)
        directions = known.sent / jnp.where(norms > 0, norms, 1.0)
        return updates - attack_length * mean_norm(updates, known.honest) * directions

    return change


UPLOAD_ATTACKS = {
    "poisoning": poisoning,
    "sign_flip": sign_flip,
    "noise": noise,
    "alie": alie,
    "ipm": ipm,
    "min_max": min_max,
    "own_target": own_target,
    "shared_target": shared_target,
    "masked_poisoning": masked_poisoning,
    "sleeper": sleeper,
    "drift": drift,
    "dead_units": dead_units,
    "shrinkage": shrinkage,
}
