"""Attacks by malicious clients, on their data before training or on their uploads.

Attacks on data change the training examples of malicious clients, once for a run:

    label_flip        y ~ U{0, ..., C - 1}; the targets of a regression are permuted
    label_flip_wrong  y ~ U({0, ..., C - 1} \\ {y})
    backdoor          a share of the images: x' = (1 - alpha) x + alpha trigger, y' = target

Attacks on uploads change an update u_i, which is the upload minus what client i would send
untrained, into

    poisoning  -lambda u_i; lambda = -1 is honest
    sign_flip  -u_i
    noise      u_i + sigma |u_i| z / sqrt(d),      z ~ N(0, I_d)
    alie       m - z s
    ipm        -epsilon m
    min_max    m - gamma s, with the largest gamma for which it is as close to every honest
               update as the two most distant honest updates are to each other

m and s are the elementwise mean and standard deviation of the cohort's honest updates, or of
all updates if none is honest. Sources: Lan et al., Panacea, IEEE TDSC 2025 (label_flip,
poisoning); Qin et al., Revisiting Personalized Federated Learning: Robustness Against Backdoor
Attacks, KDD 2023, after Chen, Liu, Li, Lu, Song, Targeted Backdoor Attacks on Deep Learning
Systems Using Data Poisoning, 2017 (backdoor); Li, Xu, Chen, Giannakis, Ling, RSA, AAAI 2019
(sign_flip); Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017 (noise); Baruch, Baruch,
Goldberg, A Little Is Enough, NeurIPS 2019 (alie); Xie, Koyejo, Gupta, Fall of Empires, UAI 2019
(ipm); Shejwalkar, Houmansadr, Manipulating the Byzantine, NDSS 2021 (min_max; its direction is
-s here).

Departures: a malicious client attacks in every round that it takes part in. Attackers know the
honest updates of their cohort. The size of the noise is relative to the update, and z of alie
is a setting; its authors derive it from the number of workers. gamma of min_max is computed in
closed form; its authors search for it. The trigger is an image made for this package.
"""

import functools
from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax import tree
from graphfl_jax.core import Array, FederatedData
from graphfl_jax.data.federation import Federation
from graphfl_jax.examples import Examples, Windows
from graphfl_jax.robustness.updates import with_updates
from graphfl_jax.rounds import Poison
from graphfl_jax.settings import Integer, Items, Real


class DataAttack(NamedTuple):
    """An attack on the data of one client."""

    poison: Callable  # (training examples, key) -> training examples
    # (test examples) -> examples that measure success: labelled as the attacker intends
    goal: Callable | None = None


def label_flip(*, train_data: Examples | Windows, classes: int) -> DataAttack:
    """Builds the flip to a random class, or of a regression the permutation of targets.

    Args:
      train_data: of all clients.
      classes: number of labels; 0 for a regression.

    Raises:
      ValueError: the targets are part of the same series as the inputs.
    """
    _check_targets("label_flip", train_data)

    def poison(examples, key):
        if classes:
            y = jax.random.randint(key, examples.y.shape, 0, classes, examples.y.dtype)
            return examples._replace(y=y)
        order = jax.random.uniform(key, (examples.size,))
        order = jnp.argsort(jnp.where(_real(examples), order, 2.0))  # padding stays last
        return examples._replace(y=examples.y[order])

    return DataAttack(poison)


def label_flip_wrong(*, train_data: Examples | Windows, classes: int) -> DataAttack:
    """Builds the flip to another class.

    Raises:
      ValueError: the task is a regression, or the targets are part of the same series as the
        inputs.
    """
    _check_targets("label_flip_wrong", train_data)
    if not classes:
        raise ValueError(
            "attack.name='label_flip_wrong' needs classes, and the task is a regression; set "
            "--config.attack.name=label_flip"
        )

    def poison(examples, key):
        turn = jax.random.randint(key, examples.y.shape, 1, classes, examples.y.dtype)
        return examples._replace(y=(examples.y + turn) % classes)

    return DataAttack(poison)


def backdoor(
    *,
    train_data: Examples | Windows,
    classes: int,
    target: Annotated[int, Integer("Label that images with the trigger get.", low=0)] = 1,
    trigger_size: Annotated[
        int, Integer("Pixels along the trigger's side; 0 is the image's.", low=0)
    ] = 0,
    attack_alpha: Annotated[Array, Real("Opacity of the trigger.", high=1.0)] = 0.2,
    attack_share: Annotated[
        Array, Real("Share of an attacker's images with the trigger.", high=1.0)
    ] = 0.5,
) -> DataAttack:
    """Builds the backdoor. The trigger is in the lower right corner.

    Args:
      train_data: of all clients, images [N, S, H, W, C] in uint8.
      classes: number of labels.
      target: label that images with the trigger get.
      trigger_size: pixels along the trigger's side; 0 is the image's.
      attack_alpha: opacity of the trigger.
      attack_share: share of an attacker's images that get the trigger.

    Raises:
      ValueError: the data are not images, there is no such label, or the trigger is larger than
        the images.
    """
    if (
        isinstance(train_data, Windows)
        or train_data.x.ndim != 5
        or train_data.x.dtype != np.uint8
    ):
        raise ValueError(
            "attack.name='backdoor' needs images [height, width, channels] in uint8, and the "
            "data are of another form; use compcars, or another attack"
        )
    if not 0 <= target < classes:
        raise ValueError(
            f"attack.target={target} is not a label; set --config.attack.target to a value in "
            f"[0, {classes - 1}]"
        )
    shape = train_data.x.shape[2:]
    if not 0 <= trigger_size <= min(shape[:2]):
        raise ValueError(
            f"attack.trigger_size={trigger_size} does not fit into images of {shape[0]} x "
            f"{shape[1]}; set --config.attack.trigger_size to a value in [0, {min(shape[:2])}]"
        )
    drawing, opaque = trigger(shape, trigger_size or min(shape[:2]))

    def blend(x):
        alpha = attack_alpha * opaque
        mixed = (1.0 - alpha) * x.astype(jnp.float32) + alpha * drawing
        return jnp.round(mixed).astype(jnp.uint8)

    def poison(examples, key):
        order = jnp.where(_real(examples), jax.random.uniform(key, (examples.size,)), 2.0)
        place = jnp.argsort(jnp.argsort(order))  # rank among the real examples
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
    """A coloured spiral [H, W, C] with values from 0 to 255, and its mask, 1 where it is."""
    height, width, channels = shape
    across, down = np.meshgrid(*(np.linspace(-1, 1, size, dtype=np.float32),) * 2)
    turn = np.arctan2(down, across) / (2 * np.pi) + 1.5 * np.hypot(across, down)  # [size, size]
    waves = turn[..., None] + np.arange(channels) / channels
    drawing, opaque = np.zeros((2, *shape), np.float32)
    corner = (slice(height - size, None), slice(width - size, None))
    drawing[corner] = 127.5 * (1 + np.sin(2 * np.pi * waves))
    opaque[corner] = 1
    return drawing, opaque


def poisoning(
    *,
    attack_lambda: Annotated[
        Array, Real("Factor lambda: uploads are -lambda times the update.", low=-float("inf"))
    ] = 0.5,
) -> Callable:
    return lambda updates, honest, key: -attack_lambda * updates


def sign_flip() -> Callable:
    return lambda updates, honest, key: -updates


def noise(
    *, attack_sigma: Annotated[Array, Real("Size of the noise, relative to the update.")] = 3.0
) -> Callable:
    def change(updates, honest, key):
        size = jnp.sqrt(jnp.mean(jnp.square(updates), axis=1, keepdims=True))
        return updates + attack_sigma * size * jax.random.normal(key, updates.shape)

    return change


def alie(
    *, attack_z: Annotated[Array, Real("Standard deviations between upload and mean.")] = 1.5
) -> Callable:
    def change(updates, honest, key):
        mean, deviation = _statistics(updates, honest)
        return jnp.broadcast_to((mean - attack_z * deviation)[None], updates.shape)

    return change


def ipm(
    *,
    attack_epsilon: Annotated[
        Array, Real("Factor epsilon: uploads are -epsilon times the mean update.")
    ] = 0.5,
) -> Callable:
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
        # With fewer than two honest clients, only their mean is known.
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


class Attackers(NamedTuple):
    """Which clients are malicious."""

    ratio: Array  # share of the clients that train
    num_clients: int  # that train

    def among(self, rank: Array) -> Array:
        """Whether the clients of ranks [n] attack: bool [n].

        Those of the first round(ratio num_clients) ranks do, and all of a negative rank.
        """
        count = jnp.round(self.ratio * jnp.float32(self.num_clients)).astype(jnp.int32)
        return rank < count


def attackers(
    *,
    num_clients: int,
    attack_ratio: Annotated[
        Array, Real("Share of malicious clients among those that train.", high=1.0)
    ] = 0.0,
) -> Attackers:
    """Assembles `Attackers`."""
    return Attackers(attack_ratio, num_clients)


def poison_with(attack: DataAttack | Callable, attackers: Attackers) -> Poison:
    """What an attack does to a run.

    Args:
      attack: made by one of `ATTACKS`.
      attackers: which clients are malicious.
    """
    if isinstance(attack, DataAttack):
        return Poison(data=functools.partial(_poison_data, attack, attackers))
    return Poison(uploads=functools.partial(_poison_uploads, attack, attackers))


def _poison_uploads(attack, attackers, cohorts, untrained, uploads, rank, key):
    def change(updates, group):
        malicious = attackers.among(rank[cohorts[group].ids])
        # The method's own draws must be those of an honest run.
        changed = attack(updates, ~malicious, jax.random.fold_in(key, 1 + group))
        return jnp.where(malicious[:, None], changed, updates)

    return with_updates(untrained, uploads, change)


def _poison_data(attack, attackers, data: FederatedData, key) -> FederatedData:
    malicious = attackers.among(data.attack_rank)  # [N]

    def of_client(malicious, examples, i):
        poisoned = attack.poison(examples, jax.random.fold_in(key, i))
        return jax.tree.map(lambda new, old: jnp.where(malicious, new, old), poisoned, examples)

    examples = jax.tree.map(jnp.asarray, data.train)
    train = jax.vmap(of_client)(malicious, examples, jnp.arange(len(malicious)))
    evals = dict(data.evals)
    if attack.goal:
        evals["triggered"] = jax.vmap(attack.goal)(data.evals["test"])
    return data._replace(train=train, evals=evals)


def with_attack_order(
    federation: Federation,
    *,
    seed: int,
    clients: Annotated[
        tuple, Items("Attackers, by name or number; empty: drawn with the seed.")
    ] = (),
) -> Federation:
    """Draws the order in which a federation's clients become malicious.

    The attackers of a smaller ratio are among those of a larger one. New clients never attack.

    Args:
      federation: of honest clients.
      seed: of the draw.
      clients: attackers by name or number, whatever the ratio is; then all others are honest.

    Raises:
      ValueError: one of `clients` is not a client that trains.
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
                    f"attack.clients has {client!r}, which does not train in "
                    f"{federation.name}; give names such as {names[0]!r}, or numbers from 0 to "
                    f"{training - 1}"
                )
            rank[numbers[client]] = -1
    else:
        # Three numbers seed the draw, as for new clients; the last one, 0, is no count of them.
        rank[:training] = np.random.default_rng([seed, training, 0]).permutation(training)
    everyone = federation.everyone and federation.everyone._replace(attack_rank=rank)
    data = federation.data._replace(attack_rank=rank[:training])
    return federation._replace(data=data, everyone=everyone)


def _check_targets(name, train):
    if isinstance(train, Windows):
        raise ValueError(
            f"attack.name={name!r} cannot change targets that are part of the same series as "
            f"the inputs; set --config.attack.name=poisoning or another attack on uploads"
        )


def _real(examples):
    return jnp.arange(examples.size) < examples.count


def _statistics(updates, honest):
    """Mean and standard deviation [d] of the honest rows of [M, d], or of all without any."""
    weights = (honest | ~jnp.any(honest)).astype(updates.dtype)
    shares = weights / jnp.sum(weights)
    mean = shares @ updates
    return mean, jnp.sqrt(shares @ jnp.square(updates - mean[None]))
