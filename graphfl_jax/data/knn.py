"""Relations from the data: clients are joined where statistics of their examples are close.

For federations whose relations nobody knows, and to ask what known ones are worth. Statistics
tell how inputs and labels are distributed, not how labels follow from inputs: clients who label
the same inputs in different ways look alike.

These statistics leave the clients. Whoever builds the graph sees every client's means, standard
deviations and label shares, which no method here uploads. Nothing hides them, and the traffic
that a run reports leaves them out.
"""

import numpy as np

from graphfl_jax import tree
from graphfl_jax.data import federation, relations

# Data are float32: clients that differ by less than this share of a feature do not differ.
_PRECISION = np.finfo(np.float32).eps


def knn(loaded, *, neighbours) -> federation.Federation:
    """Replaces a federation's relations by those of each client's nearest `neighbours`.

    Near is near in `statistics`. An edge is undirected, and there where either client is among
    the nearest of the other, so that a client has at least `neighbours`.
    """
    told = statistics(loaded)
    if not told.shape[1]:
        raise ValueError(
            f"{loaded.name}: the clients have equal statistics, which tell nobody's "
            "neighbours; set --config.data.graph=own."
        )
    return federation.with_graph(loaded, relations.nearest(told, neighbours))


def statistics(loaded) -> np.ndarray:
    """Describes every client by its training examples: [N, D], standardised over clients.

    The mean and the standard deviation of each input feature, then the share of each label or,
    in a regression, the mean and the standard deviation of each target. What is the same for
    all clients is left out.
    """
    train = loaded.data.train
    rows = [tree.take(train, i).rows(np.arange(count)) for i, count in enumerate(train.count)]
    of_x = [told.x.reshape(len(told.x), -1) for told in rows]
    of_y = [told.y.reshape(len(told.y), -1) for told in rows]
    inputs = _moments(of_x)
    labelled = loaded.task == "classification"
    targets = _shares(of_y, loaded.outputs) if labelled else _moments(of_y)
    told, size = (np.concatenate(parts, axis=-1) for parts in zip(inputs, targets, strict=True))
    spread = told.std(axis=0)
    differs = spread > _PRECISION * size
    told, spread = told[:, differs], spread[differs]
    return (told - told.mean(axis=0)) / spread


def _moments(clients):
    """Means and deviations [N, 2 F] of rows [n_i, F], and the size [2 F] of what they sum."""
    means, deviations = (
        np.stack([moment(rows, axis=0, dtype=np.float64) for rows in clients])
        for moment in (np.mean, np.std)
    )
    largest = np.max([np.abs(rows).max(axis=0) for rows in clients], axis=0)
    return np.concatenate([means, deviations], axis=1), np.tile(largest, 2)


def _shares(clients, labels):
    """Shares [N, labels] of the labels in rows [n_i, 1], and the size [labels] of a share."""
    shares = [np.bincount(rows[:, 0], minlength=labels) / len(rows) for rows in clients]
    return np.stack(shares), np.ones(labels)
