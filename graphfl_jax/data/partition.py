"""The random split of a client's examples."""

import numpy as np

TEST_FRACTION = 0.2  # of each client's examples


def random_split(count, client, *, seed, val_fraction, test_fraction) -> dict[str, np.ndarray]:
    """Splits the examples of one client at random.

    The test examples come first in the client's permutation, so they do not depend on
    `val_fraction`. The permutation does not depend on the other clients.

    Args:
      count: number of the client's examples.
      client: index of the client.
      seed: of the permutation, with `client`.
      val_fraction: share of validation examples, in [0, 1 - test_fraction).
      test_fraction: share of test examples, in (0, 1).

    Returns:
      Indices of the examples in "train", "test" and, if `val_fraction` > 0, "val".

    Raises:
      ValueError: the seed is negative, or a fraction is out of range.
    """
    if seed < 0:
        raise ValueError(f"seed={seed} is negative; set it to 0 or more")
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction={test_fraction} is not in (0, 1); set it in (0, 1)")
    if not 0 <= val_fraction < 1 - test_fraction:
        raise ValueError(
            f"data.val_fraction={val_fraction} leaves no training examples beside "
            f"test_fraction={test_fraction}; set it in [0, {1 - test_fraction:g})"
        )
    order = np.random.default_rng([seed, client]).permutation(count)
    test = round(test_fraction * count)
    val = round(val_fraction * count)
    split = {"train": order[test + val :], "test": order[:test]}
    return split | {"val": order[test : test + val]} if val_fraction > 0 else split
