"""Rules that say which examples a client trains on and which it is scored on."""

import numpy as np


def random_split(count, client, *, seed, val_fraction, test_fraction) -> dict[str, np.ndarray]:
    """Splits the indices of one client's `count` examples at random.

    Returns "train", "val" (only where `val_fraction` > 0) and "test". The test examples come
    first in the client's permutation, so that they do not depend on `val_fraction`; a client's
    permutation does not depend on the other clients.
    """
    if seed < 0:
        raise ValueError(f"seed={seed} is negative; set it to zero or more.")
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction={test_fraction} must lie between 0 and 1.")
    if not 0 <= val_fraction < 1 - test_fraction:
        raise ValueError(
            f"data.val_fraction={val_fraction} leaves nothing to train on next to "
            f"test_fraction={test_fraction}; set it in [0, {1 - test_fraction:g})."
        )
    order = np.random.default_rng([seed, client]).permutation(count)
    test = round(test_fraction * count)
    val = round(val_fraction * count)
    split = {"train": order[test + val :], "test": order[:test]}
    return split | {"val": order[test : test + val]} if val_fraction > 0 else split
