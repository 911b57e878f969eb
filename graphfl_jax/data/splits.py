"""Splits of the examples of clients: at random, or checks of splits that are given."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

TEST_FRACTION = 0.2  # of each client's examples

# Of a client: indices of its examples in "train", "test", "val".
Split = Mapping[str, np.ndarray]


class RandomSplit(NamedTuple):
    """Splits the examples of every client at random.

    The test examples come first in a client's permutation, so they do not depend on
    `val_fraction`. The permutation does not depend on the other clients.
    """

    seed: int  # of the permutation, with the client
    val_fraction: float = 0.0  # share of validation examples, in [0, 1 - test_fraction)
    test_fraction: float = TEST_FRACTION  # share of test examples, in (0, 1)

    def of_client(self, client: int, count: int) -> Split:
        """Splits the `count` examples of a client; "val" is there if `val_fraction` > 0."""
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
        order = np.random.default_rng([seed, client]).permutation(count)
        test, val = round(test_fraction * count), round(val_fraction * count)
        split = {"train": order[test + val :], "test": order[:test]}
        return split | {"val": order[test : test + val]} if val_fraction > 0 else split


def check_splits(name: str, clients: Sequence[str], splits: Sequence[Split]) -> None:
    """Raises a ValueError if a client has an example twice in its splits, or an empty split."""
    for client, split in zip(clients, splits, strict=True):
        rows, times = np.unique(np.concatenate(list(split.values())), return_counts=True)
        if times.max(initial=1) > 1:
            raise ValueError(
                f"{name}: client {client!r} has example {rows[times > 1][0]} twice in its "
                f"splits; give every example to one split"
            )
        if not all(len(part) for part in split.values()):
            raise ValueError(
                f"{name}: client {client!r} has too few examples ({len(rows)}) for one in "
                f"each of {', '.join(split)}; leave it out, or use smaller shares for "
                f"validation and test"
            )


def check_both_kinds(name, clients: Sequence[str], y, splits: Sequence[Split]) -> None:
    """Raises a ValueError if an evaluation split of a client has no AUC.

    It needs a label that some of its examples have, and others have not. Per client, `y` is
    [n_i, labels] of 0 and 1.
    """
    for client, targets, split in zip(clients, y, splits, strict=True):
        for part in split.keys() - {"train"}:
            share = targets[split[part]].mean(axis=0)  # [labels]
            if not ((share > 0) & (share < 1)).any():
                raise ValueError(
                    f"{name}: client {client!r} has no label with positive and negative "
                    f"examples in {part}, so it has no AUC; use fewer clients, or another seed"
                )
