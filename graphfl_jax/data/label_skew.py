"""Partitions: how labelled examples are divided among clients.

A factory of `PARTITIONS` takes the settings of a partition and returns a function of the
labels. `divide` applies it, and divides further splits in the same class proportions. The same
labels and the same seed give the same division.
"""

from collections.abc import Callable
from typing import Annotated

import numpy as np

from graphfl_jax.memory import check_memory
from graphfl_jax.settings import Choice, Integer, Real, Switch

# (labels [n] int, number of classes) -> per client, the indices [n_i] of its examples. No index
# occurs twice; a client may be left without examples.
Divide = Callable[[np.ndarray, int], list[np.ndarray]]

Clients = Annotated[int, Integer("Clients among which the examples are divided.")]
# An unbalanced Dirichlet partition is drawn again until every client has enough examples.
DRAWS, ENOUGH = 1000, 10
ARRAY = 112  # bytes of an array of a client's indices, without these
_NEGLIGIBLE = 1e-12  # share of a class below which a client gets none of it
_PARTITION, _ALIKE, _CAP = 1, 2, 3  # streams of random numbers


def iid(*, clients: Clients = 10, seed) -> Divide:
    """Equal parts of a random permutation. Sizes differ by one at most."""

    def partition(labels, classes):
        rng = _rng_of_partition(seed, labels, clients)
        return np.array_split(rng.permutation(len(labels)), clients)

    return partition


def pathological(
    *,
    clients: Clients = 10,
    classes_per_client: Annotated[int, Integer("Classes, or shards, of a client.")] = 2,
    assignment: Annotated[
        str,
        Choice(
            "Who gets which classes: groups of clients share the same classes, or every client "
            "draws shards of sorted examples.",
            ("clustered", "shards"),
        ),
    ] = "clustered",
    seed,
) -> Divide:
    """A few classes for each client: of C classes, k per client.

    "clustered"
        client i has the classes k i to k i + k - 1, modulo C. The clients i and i + C / k have
        the same classes, and equal parts of each (Ye et al., Personalized Federated Learning
        with Inferred Collaboration Graphs, ICML 2023, in code).
    "shards"
        the examples are sorted by class and cut into k shards of equal size per client, and
        every client draws k shards (McMahan et al., Communication-Efficient Learning of Deep
        Networks from Decentralized Data, AISTATS 2017). A shard may include the border
        between two classes.

    Raises, when it divides:
      ValueError: k exceeds C, k does not divide C (clustered), a class has no client
        (clustered), or there are fewer examples than shards.
    """
    k = classes_per_client

    def partition(labels, classes):
        if k > classes:
            raise ValueError(
                f"data.classes_per_client={k} exceeds the {classes} classes; set "
                f"--config.data.classes_per_client={classes} or less"
            )
        rng = _rng_of_partition(seed, labels, clients)
        if assignment == "shards":
            return _divide_shards(rng, labels, clients, k)
        if classes % k:
            raise ValueError(
                f"data.classes_per_client={k} does not divide the {classes} classes into "
                f"groups; choose a divisor of {classes}, or set "
                f"--config.data.assignment=shards"
            )
        groups = classes // k
        if clients < groups:
            raise ValueError(
                f"data.clients={clients} leaves classes without a client, since each has "
                f"{k} of {classes}; set --config.data.clients={groups} or more"
            )
        group = np.arange(clients) % groups  # [N]
        holds = group[:, None] == np.arange(classes) // k  # [N, C]
        return _divide_classes(rng, labels, holds.astype(float))

    return partition


def dirichlet(
    *,
    clients: Clients = 10,
    beta: Annotated[
        float, Real("Concentration; a small one gives clients few classes.", low=1e-3)
    ] = 0.5,
    balanced: Annotated[bool, Switch("Whether all clients have equally many examples.")] = True,
    seed,
) -> Divide:
    """Class shares from Dirichlet distributions.

    Balanced: client i draws class shares from Dir(beta, ..., beta) over the C classes, and its
    n / N examples by these shares, without replacement (Hsu et al., Measuring the Effects of
    Non-Identical Data Distribution for Federated Visual Classification, arXiv:1909.06335). A
    class that is used up is left out, so the last clients have what remains.

    Otherwise: each class draws the shares of its N clients from Dir(beta, ..., beta) (Yurochkin
    et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019). All shares
    are drawn again, at most `DRAWS` times in all, until every client has `ENOUGH` examples, or
    half of the mean n / N if that is less.

    Raises, when it divides:
      ValueError: no draw gives every client its examples. One line that names the clients.
    """

    def partition(labels, classes):
        rng = _rng_of_partition(seed, labels, clients)
        if balanced:
            return _divide_equally(rng, labels, classes, clients, beta)
        enough = max(1, min(ENOUGH, len(labels) // (2 * clients)))
        for _ in range(DRAWS):
            shares = rng.dirichlet(np.full(clients, beta), classes).T  # [N, C]
            indices = _divide_classes(rng, labels, shares)
            small = [i for i, rows in enumerate(indices) if len(rows) < enough]
            if not small:
                return indices
        raise ValueError(
            f"data.beta={beta} leaves {_list_clients(small)} with fewer than {enough} of the "
            f"{len(labels)} examples in {DRAWS} draws; set a larger --config.data.beta, fewer "
            f"--config.data.clients, or --config.data.balanced=true"
        )

    return partition


PARTITIONS = {"iid": iid, "pathological": pathological, "dirichlet": dirichlet}


def divide(
    partition: Divide, labels, classes: int, *, split=None, cap: int = 0, seed: int
) -> list[np.ndarray]:
    """Divides examples among clients.

    Args:
      partition: of the training examples.
      labels: [n] integers from 0 to `classes` - 1.
      split: [n] names of splits. The partition divides "train"; every other split is divided so
        that a client has the same share of a class as of the training examples of that class.
        None: the partition divides all examples.
      cap: most examples of a client in a split, drawn at random; 0 is all.

    Returns:
      Per client, the indices [n_i] of its examples, those of "train" first.

    Raises:
      ValueError: a client would have no examples of a split, or as the partition. One line
        that names the clients and a remedy.
    """
    split = np.full(len(labels), "train") if split is None else split
    train = np.flatnonzero(split == "train")
    indices = [train[rows] for rows in partition(labels[train], classes)]
    _check_all_hold(indices, "training examples", "fewer --config.data.clients")
    counts = np.stack([np.bincount(labels[i], minlength=classes) for i in indices])  # [N, C]
    parts = [indices]  # of each split, the indices of every client
    for name in dict.fromkeys(split[split != "train"].tolist()):
        examples = np.flatnonzero(split == name)
        rng = _rng(seed, examples, len(counts), _ALIKE)
        alike = _divide_classes(rng, labels[examples], counts)
        parts.append([examples[rows] for rows in alike])
        remedy = "fewer --config.data.clients, or another --config.data.partition"
        _check_all_hold(parts[-1], f"{name} examples in their class proportions", remedy)
    if cap:
        rng = _rng(seed, labels, len(counts), _CAP)
        parts = [[rng.permutation(rows)[:cap] for rows in part] for part in parts]
    return [np.concatenate(of_client) for of_client in zip(*parts, strict=True)]


def _rng_of_partition(seed, labels, clients):
    check_memory(f"data.clients={clients}", ARRAY * clients)
    return _rng(seed, labels, clients, _PARTITION)


def _rng(seed, labels, clients, stream):
    """A generator that no other split or draw uses."""
    return np.random.default_rng([seed, len(labels), clients, stream])


def _divide_classes(rng, labels, shares):
    """Divides each class at random in proportion to shares [N, C]; per client, its indices.

    A class whose shares are all 0 is left out.
    """
    indices = [[] for _ in shares]
    for label, of_class in enumerate(shares.T):  # [N]
        rows = rng.permutation(np.flatnonzero(labels == label))
        if of_class.sum() == 0:
            continue
        ends = np.round(np.cumsum(of_class) / of_class.sum() * len(rows)).astype(int)
        for client, part in zip(indices, np.split(rows, ends[:-1]), strict=True):
            client.append(part)
    return [np.concatenate(parts) for parts in indices]


def _divide_shards(rng, labels, clients, k):
    total = clients * k
    if len(labels) < total:
        raise ValueError(
            f"data.clients={clients} with {k} shards each need {total} examples, and there are "
            f"{len(labels)}; set fewer --config.data.clients or classes_per_client"
        )
    # Sorted by class, and at random within a class.
    shuffled = rng.permutation(len(labels))
    shards = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], total)
    drawn = rng.permutation(total).reshape(clients, k)
    return [np.concatenate([shards[shard] for shard in of_client]) for of_client in drawn]


def _divide_equally(rng, labels, classes, clients, beta):
    sizes = np.diff(np.arange(clients + 1) * len(labels) // clients)  # [N]
    left = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    indices = []
    for size in sizes:
        shares = rng.dirichlet(np.full(classes, beta))
        counts = _draw_counts(rng, size, shares, np.array([len(rows) for rows in left]))
        taken = [rows[:count] for rows, count in zip(left, counts, strict=True)]
        left = [rows[count:] for rows, count in zip(left, counts, strict=True)]
        indices.append(np.concatenate(taken))
    return indices


def _draw_counts(rng, size, shares, left):
    """Draws `size` examples by class shares [C] without replacement; returns counts [C].

    `left` [C] is how many there are of each class.
    """
    counts = np.zeros_like(left)
    while missing := size - counts.sum():
        usable = np.where((counts < left) & (shares > _NEGLIGIBLE), shares, 0.0)
        if usable.sum() == 0:  # only classes without a share are left
            usable = (left - counts).astype(float)
        drawn = rng.multinomial(missing, usable / usable.sum())
        counts = np.minimum(counts + drawn, left)
    return counts


def _check_all_hold(indices, what, remedy):
    empty = [i for i, rows in enumerate(indices) if not len(rows)]
    if empty:
        raise ValueError(
            f"data.clients={len(indices)}: {_list_clients(empty)} would have no {what}; set "
            f"{remedy}"
        )


def _list_clients(clients):
    """The first three clients by name, and how many follow."""
    first = ", ".join(f"client {i}" for i in clients[:3])
    return f"{first} and {len(clients) - 3} others" if len(clients) > 3 else first
