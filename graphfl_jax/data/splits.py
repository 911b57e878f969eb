"""Splits of the examples of clients: at random, or checks of splits that are given."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphfl_jax.data.bits import random_bits
from graphfl_jax.data.rows import Rows

PARTS = ("train", "val", "test")
TEST_FRACTION = 0.2  # of each client's examples
MANY = 10_000  # more clients than these are split in array operations

# Of a client: indices of its examples in "train", "test", "val".
Split = Mapping[str, np.ndarray]
# The same of N clients: for each part, their indices among the examples of all clients.
Parts = Mapping[str, Rows]


class RandomSplit(NamedTuple):
    """Splits the examples of every client at random.

    The test examples come first in a client's permutation, so they do not depend on
    `val_fraction`. The permutation does not depend on the other clients, but of more than
    `MANY` clients it is another one.
    """

    seed: int  # of the permutation, with the client
    val_fraction: float = 0.0  # share of validation examples, in [0, 1 - test_fraction)
    test_fraction: float = TEST_FRACTION  # share of test examples, in (0, 1)

    def of_client(self, client: int, count: int) -> Split:
        """Splits the `count` examples of one of few clients.

        "val" is there if `val_fraction` > 0.

        Raises:
          ValueError: the seed is negative, or a share is out of its range.
        """
        self._check()
        order = np.random.default_rng([self.seed, client]).permutation(count)
        test, val = round(self.test_fraction * count), round(self.val_fraction * count)
        split = {"train": order[test + val :], "test": order[:test]}
        return split | {"val": order[test : test + val]} if self.val_fraction > 0 else split

    def of_clients(self, counts: np.ndarray) -> Parts:
        """Splits the examples of N clients, which have `counts` [N]; raises as `of_client`."""
        if len(counts) <= MANY:
            each = [self.of_client(i, int(count)) for i, count in enumerate(counts)]
            return in_rows(each, counts)
        self._check()
        examples = Rows(np.arange(counts.sum()), counts)
        client, begins = examples.clients, examples.begins
        number = examples.values - begins[client]  # among those of the client
        of_client = random_bits(random_bits(np.array([self.seed])), np.arange(len(counts)))
        draw = random_bits(np.repeat(of_client, counts), number)
        # Sorted by client, and by the draw within a client; equal draws stay in their order.
        draw >>= np.uint64(32)
        draw |= client.astype(np.uint64) << np.uint64(32)
        order = np.argsort(draw, kind="stable")
        test = np.rint(self.test_fraction * counts).astype(np.int64)
        val = np.rint(self.val_fraction * counts).astype(np.int64)
        is_test, is_train = number < test[client], number >= (test + val)[client]
        parts = {"train": Rows(order[is_train], counts - test - val)}
        parts["test"] = Rows(order[is_test], test)
        if self.val_fraction > 0:
            parts["val"] = Rows(order[~is_test & ~is_train], val)
        return parts

    def _check(self):
        seed, val_fraction, test_fraction = self
        if seed < 0:
            raise ValueError(f"seed={seed} is negative; set it to 0 or more")
        if not 0 < test_fraction < 1:
            raise ValueError(
                f"test_fraction={test_fraction} is not in (0, 1); set it in (0, 1)"
            )
        if not 0 <= val_fraction < 1 - test_fraction:
            raise ValueError(
                f"data.val_fraction={val_fraction} leaves no training examples beside "
                f"test_fraction={test_fraction}; set it in [0, {1 - test_fraction:g})"
            )


def split_training(split: np.ndarray, client: int, random: RandomSplit) -> Split:
    """The positions of a client's training, validation and test examples.

    Validation examples are drawn from the training examples, in the share of `random`.

    Args:
      split: [n] of "train" and "test"; or also of "val", if the share is 0.
    """
    parts = {part: np.flatnonzero(split == part) for part in ("train", "test")}
    if "val" in split:
        parts["val"] = np.flatnonzero(split == "val")
    if random.val_fraction > 0:
        train = np.random.default_rng([random.seed, client]).permutation(parts["train"])
        count = round(random.val_fraction * len(train))
        parts |= {"val": train[:count], "train": train[count:]}
    return parts


def in_rows(splits: Sequence[Split], counts: np.ndarray) -> Parts:
    """The splits of N clients, which have `counts` [N] examples, as parts of all examples."""
    begins = np.cumsum(counts) - counts
    return {
        part: Rows.of(split[part] + begin for split, begin in zip(splits, begins, strict=True))
        for part in splits[0]
    }


def check_splits(name: str, clients: Sequence[str], parts: Parts, counts: np.ndarray) -> None:
    """Checks the parts of the examples of clients, which have `counts` [N].

    Raises:
      ValueError: a client has no such example, an example is twice in its client's parts, or
        a part of a client is empty.
    """
    total, begins = counts.sum(), np.cumsum(counts) - counts
    for part, rows in parts.items():
        number = rows.values - begins[rows.clients]  # among those of the client
        wrong = (number < 0) | (number >= counts[rows.clients])
        if wrong.any():
            first = int(np.argmax(wrong))
            client = rows.clients[first]
            raise ValueError(
                f"{name}: client {clients[client]!r} has example {number[first]} in {part}, "
                f"and its {counts[client]} examples are counted from 0; correct its split"
            )
    times = sum(np.bincount(rows.values, minlength=total) for rows in parts.values())
    if times.max() > 1:
        client, example = Rows(times, counts).place(int(np.argmax(times > 1)))
        raise ValueError(
            f"{name}: client {clients[client]!r} has example {example} twice in its splits; "
            "give every example to one split"
        )
    sizes = np.stack([rows.counts for rows in parts.values()])  # [parts, N]
    if not sizes.all():
        client = int(np.argmin(sizes.all(axis=0)))
        empty = [part for part, size in zip(parts, sizes[:, client], strict=True) if not size]
        # A share of few examples is rounded to none.
        share = {"val": ", or set data.val_fraction to a larger share, or to 0"}
        if "val" in parts:
            share["train"] = ", or set data.val_fraction to a smaller share"
        raise ValueError(
            f"{name}: client {clients[client]!r} has {sizes[:, client].sum()} examples, and "
            f"none of them is for {' or '.join(empty)}; leave the client out, or give it more "
            f"examples{share.get(empty[0], '') if len(empty) == 1 else ''}"
        )


def check_both_kinds(name, clients: Sequence[str], y: np.ndarray, parts: Parts) -> None:
    """Raises a ValueError if an evaluation split of a client has no AUC.

    It needs a label that some of its examples have, and others have not. `y` is
    [R, labels] of 0 and 1, of the examples of all clients.
    """
    for part in parts.keys() - {"train"}:
        rows = parts[part]
        share = (
            np.add.reduceat(y[rows.values], rows.begins) / rows.counts[:, None]
        )  # [N, labels]
        scored = ((share > 0) & (share < 1)).any(axis=1)
        if not scored.all():
            client = clients[int(np.argmin(scored))]
            raise ValueError(
                f"{name}: client {client!r} has no label with positive and negative "
                f"examples in {part}, so it has no AUC; use fewer clients, or another seed"
            )
