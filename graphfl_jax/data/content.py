"""Warnings about own data that are valid, and perhaps not what they are meant to be."""

import warnings

import numpy as np

from graphfl_jax.data.bits import digest_rows

FEW = 20  # whole numbers of this many kinds may be labels; of more kinds, they may be targets
SAMPLE = 10_000, 10**6  # rows, and numbers in them, that are sorted at most
LOST = 0.01  # share of the numbers of a feature; random numbers lose less in a sample


def warn_of_guess(name, y, labels, task) -> None:
    """Says which task was taken if y may be meant for the other one.

    Args:
      y: [n] or [n, *targets], as it was given.
      labels: [n], the labels that y has if it has labels.
      task: that was taken.
    """
    kinds, hot = len(np.unique(labels)), y.size > len(y)
    if task == "regression":
        doubtful, other = hot or 2 <= kinds <= FEW, "classification"
        cast = "y.argmax(axis=1)" if hot else "y.ravel().astype(int)"
    else:
        doubtful, other = kinds > max(FEW, len(y) // 2), "regression"
        cast = "y.astype(float)"
    if doubtful:
        what = "one-hot rows" if hot else f"{kinds} different whole numbers"
        _warn(
            f"{name}: y has {what} of type {y.dtype}, so the task is a {task}; for a {other}, "
            f"set --config.data.task={other} or give {cast}, else set "
            f"--config.data.task={task}"
        )


def warn_of_shared_examples(name, x, y, train, test) -> None:
    """Warns of test examples whose x and y a training example of any client has too.

    Args:
      x: [n, *features].
      y: [n] or [n, O].
      train: indices of the training examples of all clients.
      test: indices of their test examples.
    """
    keys = digest_rows(x, y)
    known, test = np.sort(keys[train]), test[np.argsort(keys[test])]
    places = np.minimum(np.searchsorted(known, keys[test]), len(known) - 1)
    shared = test[known[places] == keys[test]]
    if len(shared):
        _warn(
            f"{name}: {len(shared)} of {len(test)} test examples are training examples too, "
            f"with the same x and y, the first is example {shared.min()}, counted from 0; "
            "leave out copies, or scores may be too high"
        )


def warn_of_merged_numbers(name, x) -> None:
    """Warns of a feature of which float32 makes different numbers equal.

    Args:
      x: [n, *features], which are not scaled.
    """
    rows, numbers = SAMPLE
    if x.dtype.itemsize < 4 or x.dtype == np.float32:
        return
    sample = x[: min(rows, numbers // x[0].size + 1)].reshape(-1, x[0].size)
    exact = np.sort(sample, axis=0)
    before, after = (
        1 + (values[1:] != values[:-1]).sum(axis=0)
        for values in (exact, exact.astype(np.float32))
    )
    merged = after < (1 - LOST) * before
    if merged.any():
        feature = int(np.argmax(merged))
        _warn(
            f"{name}: float32, in which runs compute, keeps {after[feature]} of "
            f"{before[feature]} different numbers of feature {feature} of x, counted from 0; "
            "set --config.data.scale=standard, or subtract an offset"
        )


def _warn(text):
    warnings.warn(text, RuntimeWarning, stacklevel=5)
