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
FITS = 1000  # of a table to the sums of its rows and columns, at most
_PARTITION, _ALIKE, _CAP, _SAMPLE = 1, 2, 3, 4  # streams of random numbers


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
    """A few classes for each client: of the C classes that have examples, k per client.

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
        present, labels = np.unique(labels, return_inverse=True)
        classes = len(present)
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

    Balanced: client i draws class shares p_i from Dir(beta, ..., beta) over the C classes (Hsu
    et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, arXiv:1909.06335). It gets n / N examples, of class c in proportion to
    a_i b_c p_ic: the factors a and b are those with which every client has its number of
    examples and every example has a client. All clients are treated alike. Hsu et al. deal to
    one client after the other instead, so that the last ones get what remains.

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

        def draw():
            shares = rng.dirichlet(np.full(clients, beta), classes).T  # [N, C]
            return _divide_classes(rng, labels, shares)

        remedy = "--config.data.clients, or --config.data.balanced=true"
        return _draw_until_enough(draw, labels, clients, beta, remedy)

    return partition


def quantity(
    *,
    clients: Clients = 10,
    beta: Annotated[
        float,
        Real("Concentration; a small one gives clients very different sizes.", low=1e-3),
    ] = 0.5,
    seed,
) -> Divide:
    """Parts of a random permutation, of sizes from Dir(beta, ..., beta) over the N clients.

    So clients have all classes alike and very different numbers of examples (Li, Diao, Chen,
    He, Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022). All sizes
    are drawn again until every client has enough examples, as in `dirichlet`, and it raises
    the same error.
    """

    def partition(labels, classes):
        rng = _rng_of_partition(seed, labels, clients)

        def draw():
            shares = rng.dirichlet(np.full(clients, beta))  # [N]
            return _divide_classes(rng, np.zeros_like(labels), shares[:, None])

        remedy = "--config.data.clients, or --config.data.partition=iid"
        return _draw_until_enough(draw, labels, clients, beta, remedy)

    return partition


PARTITIONS: dict[str, Callable[..., Divide]] = {
    "iid": iid,
    "pathological": pathological,
    "dirichlet": dirichlet,
    "quantity": quantity,
}


def divide(
    partition: Divide,
    labels,
    classes: int,
    *,
    split=None,
    examples: int = 0,
    cap: int = 0,
    seed: int,
) -> list[np.ndarray]:
    """Divides examples among clients.

    Args:
      partition: of the training examples.
      labels: [n] integers from 0 to `classes` - 1.
      split: [n] names of splits. The partition divides "train"; every other split is divided so
        that a client has the same share of a class as of the training examples of that class.
        None: the partition divides all examples.
      examples: most examples that the partition divides, drawn at random; 0 is all.
      cap: most examples of a client in a split, drawn at random; 0 is all.

    Returns:
      Per client, the indices [n_i] of its examples, those of "train" first.

    Raises:
      ValueError: a client would have no examples of a split, or as the partition, or what a
        registered one returns divides nothing. One line that names the clients and a remedy.
    """
    split = np.full(len(labels), "train") if split is None else split
    train = np.flatnonzero(split == "train")
    if examples:
        train = _rng(seed, labels, examples, _SAMPLE).permutation(train)[:examples]
    indices = [train[rows] for rows in _apply(partition, labels[train], classes)]
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


def _apply(partition, labels, classes):
    """What a partition returns, which may be one that a user has registered."""
    made = partition(labels, classes) if callable(partition) else partition
    parts = list(map(np.asarray, made)) if isinstance(made, list | tuple) else []
    if not parts or any(rows.ndim != 1 or rows.dtype.kind not in "iu" for rows in parts):
        what = "no list of integer arrays [n_i]"
    else:
        every = np.sort(np.concatenate(parts))
        outside = every.size and not 0 <= every[0] <= every[-1] < len(labels)
        twice = (every[1:] == every[:-1]).any()
        what = "an index of no example" if outside else "an index twice" if twice else ""
    if what:
        raise ValueError(
            f"data.partition: its function returns {what}; return for each client the indices "
            f"of its examples among the {len(labels)}, each for one client at most"
        )
    return parts


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


def _draw_until_enough(draw, labels, clients, beta, remedy):
    """A division that `draw` makes in which every client has `ENOUGH` examples.

    They are half of the mean if that is less. `remedy` ends the error after `DRAWS` draws.
    """
    enough = max(1, min(ENOUGH, len(labels) // (2 * clients)))
    for _ in range(DRAWS):
        indices = draw()
        small = [i for i, rows in enumerate(indices) if len(rows) < enough]
        if not small:
            return indices
    raise ValueError(
        f"data.beta={beta} leaves {_list_clients(small)} with fewer than {enough} of the "
        f"{len(labels)} examples in {DRAWS} draws; set a larger --config.data.beta, fewer "
        f"{remedy}"
    )


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
    totals = np.bincount(labels, minlength=classes)  # [C]
    table = _fit_table(_log_dirichlet(rng, beta, clients, classes), sizes, totals)
    counts = _round_table(rng, table, sizes, totals)
    parts = [
        np.split(
            rng.permutation(np.flatnonzero(labels == label)), np.cumsum(counts[:-1, label])
        )
        for label in range(classes)
    ]
    return [np.concatenate(of_client) for of_client in zip(*parts, strict=True)]


def _log_dirichlet(rng, beta, clients, classes):
    """Logarithms of shares [N, C] whose rows are drawn from Dir(beta, ..., beta).

    A variable of Gamma(beta) is one of Gamma(beta + 1) times U^(1 / beta). Its logarithm is
    finite also where the share is too small for a float.
    """
    shape = (clients, classes)
    logs = np.log(rng.standard_gamma(beta + 1, shape)) + np.log1p(-rng.random(shape)) / beta
    return logs - np.logaddexp.reduce(logs, axis=1, keepdims=True)


def _fit_table(log_shares, rows, columns):
    """The table a_i b_c p_ic [N, C] with given sums of rows [N] and of columns [C].

    The sums of rows are exact. Those of columns are within half of one, or after `FITS` fits
    somewhat more, as with a very small beta.
    """
    tiny = np.finfo(float).tiny  # in place of 0, whose logarithm is infinite
    log_rows = np.log(np.maximum(rows, tiny))[:, None]
    log_columns = np.log(np.maximum(columns, tiny))[None]
    log_table = log_shares
    for _ in range(FITS):
        log_table = log_table + log_columns - np.logaddexp.reduce(log_table, axis=0)
        log_table += log_rows - np.logaddexp.reduce(log_table, axis=1, keepdims=True)
        if np.max(np.abs(np.exp(log_table).sum(axis=0) - columns)) < 0.5:
            break
    return np.exp(log_table)


def _round_table(rng, table, rows, columns):
    """Integers [N, C] near those of a table, with exact sums of rows [N] and of columns [C]."""
    counts = np.floor(table).astype(int)
    rows_left, columns_left = rows - counts.sum(axis=1), columns - counts.sum(axis=0)
    for column in np.flatnonzero(columns_left < 0):  # where the fit was not exact
        row = np.argmax(counts[:, column])
        counts[row, column] += columns_left[column]
        rows_left[row] -= columns_left[column]
        columns_left[column] = 0
    rest = table - counts + 1e-9 * rng.random(table.shape)  # equal rests in a random order
    order = np.unravel_index(np.argsort(-rest, axis=None), table.shape)
    while rows_left.sum():
        for row, column in zip(*order, strict=True):
            if rows_left[row] and columns_left[column]:
                counts[row, column] += 1
                rows_left[row] -= 1
                columns_left[column] -= 1
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
