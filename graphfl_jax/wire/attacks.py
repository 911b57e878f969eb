"""Attacks by malicious clients, on their data before training or on their uploads.

Attacks on data change the training examples of malicious clients, once for a run:

    label_flip        y ~ U{0, ..., C - 1}; the targets of a regression are permuted
    label_flip_wrong  y ~ U({0, ..., C - 1} \\ {y})
    label_flip_mirror y' = C - 1 - y
    backdoor          a share of the images: x' = (1 - alpha) x + alpha trigger, y' = target

Attacks on uploads are in `upload_attacks`. Sources: Lan et al., Panacea, IEEE TDSC 2025
(label_flip); Qin et al., Revisiting Personalized Federated Learning: Robustness Against
Backdoor Attacks, KDD 2023, after Chen, Liu, Li, Lu, Song, Targeted Backdoor Attacks on Deep
Learning Systems Using Data Poisoning, 2017 (backdoor).

Departures: a malicious client attacks in every round that it takes part in, but `sleeper` waits
for some. The trigger is an image made for this package.
"""

import functools
from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax.core import Array, FederatedData
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation, numbers_of
from graphfl_jax.examples import Examples, Windows
from graphfl_jax.rounds import Poison
from graphfl_jax.settings import Choice, Integer, Items, Real
from graphfl_jax.wire.updates import vectors_of, with_updates
from graphfl_jax.wire.upload_attacks import UPLOAD_ATTACKS, Known


class DataAttack(NamedTuple):
    """An attack on the data of one client."""

    poison: Callable  # (training examples, key) -> training examples
    # (test examples) -> examples that measure success: labelled as the attacker intends
    goal: Callable | None = None


def label_flip(*, train_data: Examples | Windows, classes: int) -> DataAttack:
    """Gives examples random classes, or without classes permutes their targets.

    Args:
      train_data: of all clients.
      classes: number of labels; 0 for other tasks than a classification.

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
    """Gives each example another class.

    Raises:
      ValueError: as `_check_classes`.
    """
    _check_classes("label_flip_wrong", train_data, classes)

    def poison(examples, key):
        turn = jax.random.randint(key, examples.y.shape, 1, classes, examples.y.dtype)
        return examples._replace(y=(examples.y + turn) % classes)

    return DataAttack(poison)


def label_flip_mirror(*, train_data: Examples | Windows, classes: int) -> DataAttack:
    """Exchanges the first class with the last one, and so on.

    Raises:
      ValueError: as `_check_classes`.
    """
    _check_classes("label_flip_mirror", train_data, classes)

    def poison(examples, key):
        return examples._replace(y=classes - 1 - examples.y)

    return DataAttack(poison)


def backdoor(
    *,
    train_data: Examples | Windows,
    classes: int,
    target: Annotated[
        int, Integer("Class that images with the trigger get, numbered from 0.", low=0)
    ] = 1,
    trigger_size: Annotated[
        int, Integer("Width and height of the trigger in pixels; 0: those of the image.", low=0)
    ] = 0,
    attack_alpha: Annotated[Array, Real("Opacity of the trigger.", high=1.0)] = 0.2,
    attack_share: Annotated[
        Array, Real("Share of an attacker's images with the trigger.", high=1.0)
    ] = 0.5,
) -> DataAttack:
    """Puts a trigger into the lower right corner of images, and gives them the target class.

    Args:
      train_data: of all clients, images [N, S, H, W, C] in uint8.
      classes: number of labels.
      target: label that images with the trigger get.
      trigger_size: width and height of the trigger in pixels; 0: those of the image.
      attack_alpha: opacity of the trigger.
      attack_share: share of an attacker's images that get the trigger.

    Raises:
      ValueError: the data are not images with classes, there is no such label, or the trigger
        is larger than the images.
    """
    _check_backdoor(train_data, classes, target, trigger_size)
    shape = train_data.x.shape[2:]
    drawing, opaque = trigger(shape, trigger_size or min(shape[:2]))

    def blend(x):
        alpha = attack_alpha * opaque
        mixed = (1.0 - alpha) * x.astype(jnp.float32) + alpha * drawing  # x'
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


def _check_backdoor(train_data, classes, target, trigger_size):
    """Refuses data or settings that `backdoor` cannot work with."""
    if (
        isinstance(train_data, Windows)
        or train_data.x.ndim != 5
        or train_data.x.dtype != np.uint8
    ):
        raise ValueError(
            "attack.name='backdoor' needs images [height, width, channels] in uint8, and the "
            "data are of another form; use compcars, or another attack"
        )
    if not classes:
        raise ValueError(
            "attack.name='backdoor' needs classes, and the task has none; choose another attack"
        )
    if not 0 <= target < classes:
        raise ValueError(
            f"attack.target={target} is not a label; set --config.attack.target to a value in "
            f"[0, {classes - 1}]"
        )
    height, width = train_data.x.shape[2:4]
    if not 0 <= trigger_size <= min(height, width):
        raise ValueError(
            f"attack.trigger_size={trigger_size} does not fit into images of {height} x "
            f"{width}; set --config.attack.trigger_size to a value in [0, {min(height, width)}]"
        )


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


DATA_ATTACKS = {
    "label_flip": label_flip,
    "label_flip_wrong": label_flip_wrong,
    "label_flip_mirror": label_flip_mirror,
    "backdoor": backdoor,
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


def _poison_uploads(attack, attackers, cohorts, untrained, uploads, rank, played, key):
    malicious = [attackers.among(rank[cohort.ids]) for cohort in cohorts]

    def change(updates, sent, group):
        # The method's own draws must be those of a benign run.
        key_attack = jax.random.fold_in(key, 1 + group)
        biases = vectors_of(uploads[group])
        known = Known(~malicious[group], sent, cohorts[group].ids, played, key_attack, biases)
        return attack(updates, known)

    def choose(malicious, poisoned, honest):
        rows = malicious.reshape(-1, *(1,) * (honest.ndim - 1))
        return jnp.where(rows, poisoned, honest)

    # Benign uploads are chosen as they came: an update that is added again can be rounded.
    poisoned = with_updates(untrained, uploads, change)
    return tuple(
        jax.tree.map(functools.partial(choose, who), new, old)
        for who, new, old in zip(malicious, poisoned, uploads, strict=True)
    )


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
        tuple,
        Items(
            "Attackers, by name, or by number where no name is a number; empty: drawn with the "
            "seed."
        ),
    ] = (),
    placement: Annotated[
        str,
        Choice(
            "Attackers that are drawn: any clients, or neighbours of each other.",
            ("random", "neighbours"),
        ),
    ] = "random",
) -> Federation:
    """Draws the order in which a federation's clients become malicious.

    The attackers of a smaller ratio are among those of a larger one. New clients never attack.

    Args:
      federation: of benign clients.
      seed: of the draw.
      clients: attackers by name, whatever the ratio is; then all others are benign. Where no
        client has a number as its name, also by their numbers from 0.
      placement: "neighbours" begins with a random client and goes on with the neighbours of
        those before; where none is left, with another random client.

    Raises:
      ValueError: one of `clients` is not a client that trains or is given twice, or
        `placement` is given too.
    """
    total = len(federation.clients)
    training = federation.training_clients
    rank = np.full(total, training, np.int32)
    if clients:
        if placement != "random":
            raise ValueError(
                f"attack.placement={placement} is for attackers that are drawn, and "
                f"attack.clients names them; leave one out"
            )
        rank[numbers_of(clients, federation, field="attack.clients")] = -1
    else:
        # Three numbers seed the draw, as for new clients; the last one, 0, is no count of them.
        order = np.random.default_rng([seed, training, 0]).permutation(training)
        if placement == "neighbours":
            graph = relations.subgraph(federation.data.graph, np.arange(training))
            order = _ranks_along(graph, order)
        rank[:training] = order
    everyone = federation.everyone and federation.everyone._replace(attack_rank=rank)
    data = federation.data._replace(attack_rank=rank[:training])
    return federation._replace(data=data, everyone=everyone)


def _ranks_along(graph, order):
    """Ranks [n] of clients: breadth first along the graph, with the ranks `order` otherwise."""
    neighbours = [set() for _ in order]
    for sender, receiver in zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True):
        neighbours[sender].add(receiver)
        neighbours[receiver].add(sender)
    ranks, number = np.full(len(order), -1), 0
    for start in np.argsort(order).tolist():
        waiting = [start]
        while waiting:
            client = waiting.pop(0)
            if ranks[client] < 0:
                ranks[client], number = number, number + 1
                waiting += sorted(neighbours[client], key=lambda client: order[client])
    return ranks


def _check_classes(name, train_data, classes):
    """Raises a ValueError if there are no classes, or no labels beside the inputs."""
    _check_targets(name, train_data)
    if not classes:
        raise ValueError(
            f"attack.name={name!r} needs classes, and the task has none; set "
            f"--config.attack.name=label_flip"
        )


def _check_targets(name, train):
    if isinstance(train, Windows):
        raise ValueError(
            f"attack.name={name!r} cannot change targets that are part of the same series as "
            f"the inputs; set --config.attack.name=poisoning or another attack on uploads"
        )


def _real(examples):
    return jnp.arange(examples.size) < examples.count
