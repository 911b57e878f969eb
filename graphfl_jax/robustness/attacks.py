"""Attacks: what malicious clients make of their data before training, or of what they upload.

Of data, the training examples of malicious clients alone are changed, and once for a run:

    label_flip        y ~ U{0, ..., C - 1}; the targets of a regression change places
    label_flip_wrong  y ~ U({0, ..., C - 1} \\ {y})
    backdoor          a share of the images: x' = (1 - alpha) x + alpha trigger, y' = target

Of uploads, an update u_i, the upload less what client i would send untrained, becomes

    poisoning  -lambda u_i; lambda = -1 is honest
    sign_flip  -u_i
    noise      u_i + sigma |u_i| z / sqrt(d),      z ~ N(0, I_d)
    alie       m - z s
    ipm        -epsilon m
    min_max    m - gamma s, gamma the largest for which it is as close to every honest update
               as the farthest two of them are to each other

m and s are the mean and the standard deviation, number by number, of the cohort's honest
updates; where nobody is honest, of all. Sources: Lan et al., Panacea, IEEE TDSC 2025
(label_flip, poisoning); Qin et al., Revisiting Personalized Federated Learning: Robustness
Against Backdoor Attacks, KDD 2023, after Chen, Liu, Li, Lu, Song, Targeted Backdoor Attacks on
Deep Learning Systems Using Data Poisoning, 2017 (backdoor); Li, Xu, Chen, Giannakis, Ling, RSA,
AAAI 2019 (sign_flip); Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017 (noise); Baruch,
Baruch, Goldberg, A Little Is Enough, NeurIPS 2019 (alie); Xie, Koyejo, Gupta, Fall of Empires,
UAI 2019 (ipm); Shejwalkar, Houmansadr, Manipulating the Byzantine, NDSS 2021 (min_max, whose
direction is -s here).

Departures: whoever takes part in a round attacks in it. Attackers know the honest updates of
their cohort. Noise is measured by the update, and z of alie is a setting, which its authors
derive from the number of workers. gamma of min_max has a closed form, which its authors search
for. The trigger is a drawing of this package's own.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Examples, Windows
from graphfl_jax.data.federation import Federation
from graphfl_jax.robustness.updates import with_updates


class DataAttack(NamedTuple):
    """What one client's data become."""

    poison: Callable  # (training examples, key) -> training examples
    # (test examples) -> those that tell of success, where a prediction is the attacker's wish
    goal: Callable | None = None


def label_flip(*, train: Examples | Windows, classes: int) -> DataAttack:
    """Builds the flip to any class; of a regression, 0 `classes`, targets change places."""
    _check_targets("label_flip", train)

    def poison(examples, key):
        if classes:
            y = jax.random.randint(key, examples.y.shape, 0, classes, examples.y.dtype)
            return examples._replace(y=y)
        order = jax.random.uniform(key, (examples.size,))
        order = jnp.argsort(jnp.where(_real(examples), order, 2.0))  # padding stays last
        return examples._replace(y=examples.y[order])

    return DataAttack(poison)


def label_flip_wrong(*, train: Examples | Windows, classes: int) -> DataAttack:
    """Builds the flip to another class.

    Raises:
      ValueError: there are no classes.
    """
    _check_targets("label_flip_wrong", train)
    if not classes:
        raise ValueError(
            "attack.name='label_flip_wrong' needs classes, of which a regression has none; set "
            "--config.attack.name=label_flip"
        )

    def poison(examples, key):
        turn = jax.random.randint(key, examples.y.shape, 1, classes, examples.y.dtype)
        return examples._replace(y=(examples.y + turn) % classes)

    return DataAttack(poison)


def backdoor(
    *,
    train: Examples | Windows,
    classes: int,
    target: int,
    trigger_size: int,
    attack_alpha: Array,
    attack_share: Array,
) -> DataAttack:
    """Builds the backdoor.

    Args:
      train: of all clients, images [N, S, H, W, C] in uint8.
      classes: C.
      target: the label that the trigger is to mean.
      trigger_size: pixels along the trigger's side, in the lower right corner; 0: all.
      attack_alpha: its opacity.
      attack_share: of an attacker's images.

    Raises:
      ValueError: there are no images or no such label, or the trigger exceeds the images.
    """
    if isinstance(train, Windows) or train.x.ndim != 5 or train.x.dtype != np.uint8:
        raise ValueError(
            "attack.name='backdoor' needs images [height, width, channels] in uint8, which "
            "these data are not; take compcars, or another attack"
        )
    if not 0 <= target < classes:
        raise ValueError(
            f"attack.target={target} is no label; set --config.attack.target in "
            f"[0, {classes - 1}]"
        )
    shape = train.x.shape[2:]
    if not 0 <= trigger_size <= min(shape[:2]):
        raise ValueError(
            f"attack.trigger_size={trigger_size} does not fit into images of {shape[0]} x "
            f"{shape[1]}; set --config.attack.trigger_size in [0, {min(shape[:2])}]"
        )
    drawing, opaque = trigger(shape, trigger_size or min(shape[:2]))

    def blend(x):
        alpha = attack_alpha * opaque
        mixed = (1.0 - alpha) * x.astype(jnp.float32) + alpha * drawing
        return jnp.round(mixed).astype(jnp.uint8)

    def poison(examples, key):
        order = jnp.where(_real(examples), jax.random.uniform(key, (examples.size,)), 2.0)
        place = jnp.argsort(jnp.argsort(order))  # a rank among the real ones
        count = examples.count.astype(jnp.float32)
        chosen = place.astype(jnp.float32) < jnp.round(attack_share * count)
        x = jnp.where(chosen[:, None, None, None], jax.vmap(blend)(examples.x), examples.x)
        y = jnp.where(chosen, jnp.asarray(target, examples.y.dtype), examples.y)
        return Examples(x, y, examples.count)

    def goal(examples):
        other = _real(examples) & (examples.y != target)
        first = jnp.argsort(~other, stable=True)
        x = jax.vmap(blend)(examples.x[first])
        y = jnp.full_like(examples.y, target)
        return Examples(x, y, jnp.sum(other, dtype=examples.count.dtype))

    return DataAttack(poison, goal)


def trigger(shape: tuple[int, int, int], size: int) -> tuple[np.ndarray, np.ndarray]:
    """A spiral of as many colours as channels, [H, W, C] from 0 to 255; and where it is, 1."""
    height, width, channels = shape
    across, down = np.meshgrid(*(np.linspace(-1, 1, size, dtype=np.float32),) * 2)
    turn = np.arctan2(down, across) / (2 * np.pi) + 1.5 * np.hypot(across, down)  # [size, size]
    waves = turn[..., None] + np.arange(channels) / channels
    drawing, opaque = np.zeros((2, *shape), np.float32)
    corner = (slice(height - size, None), slice(width - size, None))
    drawing[corner] = 127.5 * (1 + np.sin(2 * np.pi * waves))
    opaque[corner] = 1
    return drawing, opaque


def poisoning(*, attack_lambda: Array) -> Callable:
    return lambda updates, honest, key: -attack_lambda * updates


def sign_flip() -> Callable:
    return lambda updates, honest, key: -updates


def noise(*, attack_sigma: Array) -> Callable:
    def change(updates, honest, key):
        size = jnp.sqrt(jnp.mean(jnp.square(updates), axis=1, keepdims=True))
        return updates + attack_sigma * size * jax.random.normal(key, updates.shape)

    return change


def alie(*, attack_z: Array) -> Callable:
    def change(updates, honest, key):
        mean, deviation = _statistics(updates, honest)
        return jnp.broadcast_to((mean - attack_z * deviation)[None], updates.shape)

    return change


def ipm(*, attack_epsilon: Array) -> Callable:
    def change(updates, honest, key):
        mean, _ = _statistics(updates, honest)
        return jnp.broadcast_to(-attack_epsilon * mean[None], updates.shape)

    return change


def min_max() -> Callable:
    """|m - gamma s - u_i|^2 <= D^2 is a quadratic in gamma for each honest i."""

    def change(updates, honest, key):
        mean, deviation = _statistics(updates, honest)
        apart = jnp.where(honest[:, None] & honest[None], tree.sq_dists(updates), 0.0)
        off = mean[None] - updates  # [M, d]
        a = jnp.sum(jnp.square(deviation))
        b = -off @ deviation  # [M]
        c = jnp.sum(jnp.square(off), axis=1) - jnp.max(apart)
        root = -b + jnp.sqrt(jnp.maximum(jnp.square(b) - a * c, 0.0))
        root = jnp.min(jnp.where(honest, root, jnp.inf))
        # Of fewer than two honest clients nothing is known but their mean.
        gamma = jnp.where((a > 0) & jnp.isfinite(root), root / jnp.where(a > 0, a, 1.0), 0.0)
        return jnp.broadcast_to((mean - gamma * deviation)[None], updates.shape)

    return change


DATA_ATTACKS = {
    "label_flip": label_flip,
    "label_flip_wrong": label_flip_wrong,
    "backdoor": backdoor,
}
UPLOAD_ATTACKS = {
    "poisoning": poisoning,
    "sign_flip": sign_flip,
    "noise": noise,
    "alie": alie,
    "ipm": ipm,
    "min_max": min_max,
}
ATTACKS = DATA_ATTACKS | UPLOAD_ATTACKS


def attacked(
    algorithm: Algorithm, attack: DataAttack | Callable, *, ratio: Array, num_clients: int
) -> Algorithm:
    """A method among whose clients some are malicious.

    Args:
      algorithm: the method.
      attack: what one of `ATTACKS` builds.
      ratio: share of the clients that train.
      num_clients: that train.
    """
    if not isinstance(attack, DataAttack):

        def change(updates, cohort, key):
            bad = malicious(cohort.rank, ratio, num_clients)
            # The method's own draws are to be those of an honest run.
            changed = attack(updates, ~bad, jax.random.fold_in(key, 1))
            return jnp.where(bad[:, None], changed, updates)

        return with_updates(algorithm, change)

    def poison_data(data, key):
        bad = malicious(data.rank, ratio, num_clients)  # [N]

        def of_client(bad, examples, i):
            poisoned = attack.poison(examples, jax.random.fold_in(key, i))
            return jax.tree.map(lambda new, old: jnp.where(bad, new, old), poisoned, examples)

        examples = jax.tree.map(jnp.asarray, data.train)
        train = jax.vmap(of_client)(bad, examples, jnp.arange(len(bad)))
        evals = dict(data.evals)
        if attack.goal:
            evals["triggered"] = jax.vmap(attack.goal)(data.evals["test"])
        return data._replace(train=train, evals=evals)

    return dataclasses.replace(algorithm, poison_data=poison_data)


def malicious(rank: Array, ratio: Array, num_clients: int) -> Array:
    """Who attacks: of ranks [N] the round(ratio num_clients) first, and all below 0."""
    return rank < jnp.round(ratio * jnp.float32(num_clients)).astype(jnp.int32)


def with_ranks(federation: Federation, *, clients: tuple, seed: int) -> Federation:
    """Draws in which order a federation's clients turn malicious; new clients never do.

    Args:
      federation: of honest clients.
      clients: who attacks whatever the ratio is, then nobody else, by name or number.
      seed: of the draw.

    Raises:
      ValueError: one of `clients` is none that trains.
    """
    names, total = federation.clients, len(federation.clients)
    training = total - federation.new_clients
    rank = np.full(total, training, np.int32)
    if clients:
        numbers = dict(zip(names[:training], range(training), strict=True))
        numbers |= {i: i for i in range(training)}
        for client in clients:
            if client not in numbers:
                raise ValueError(
                    f"attack.clients has {client!r}, who does not train in {federation.name}; "
                    f"name others, as {names[0]!r}, or give numbers from 0 to {training - 1}"
                )
            rank[numbers[client]] = -1
    else:
        # Three numbers, as new clients' are, with one that no count of theirs is.
        rank[:training] = np.random.default_rng([seed, training, 0]).permutation(training)
    everyone = federation.everyone and federation.everyone._replace(rank=rank)
    data = federation.data._replace(rank=rank[:training])
    return federation._replace(data=data, everyone=everyone)


def _check_targets(name, train):
    if isinstance(train, Windows):
        raise ValueError(
            f"attack.name={name!r} cannot change targets that are steps of the series which "
            f"inputs are; set --config.attack.name=poisoning or another attack on uploads"
        )


def _real(examples):
    return jnp.arange(examples.size) < examples.count


def _statistics(updates, honest):
    """Mean and standard deviation [d] of the honest rows of [M, d]; of all if none is."""
    weights = (honest | ~jnp.any(honest)).astype(updates.dtype)
    shares = weights / jnp.sum(weights)
    mean = shares @ updates
    return mean, jnp.sqrt(shares @ jnp.square(updates - mean[None]))
