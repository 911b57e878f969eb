"""Relations from the data: joins clients whose training data have similar statistics.

This rule is for federations without known relations, and for measuring what known relations
are worth. The statistics describe the distributions of inputs and labels. They do not describe
how labels depend on inputs: two clients with the same inputs and opposite labels can look
similar.

The statistics leave the clients: the party that builds the graph sees the means, standard
deviations and label shares of every client, which no method of this package uploads. They are
not protected, and they are not part of the reported traffic.
"""

from typing import Annotated

import numpy as np

from graphfl_jax import tree
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation, with_graph
from graphfl_jax.settings import Integer

# Data are float32: a spread over clients below this share of a feature's size is rounding.
_PRECISION = np.finfo(np.float32).eps


def knn(
    federation: Federation,
    *,
    neighbours: Annotated[int, Integer("Nearest clients that each client is joined to.")] = 5,
) -> Federation:
    """Replaces the relations by edges to clients whose examples have near `statistics`.

    An edge is undirected. It exists if either client is among the nearest of the other, so a
    client has at least `neighbours` edges. New clients are joined to their nearest training
    clients, and do not change the relations between these.

    Raises:
      ValueError: all clients have the same statistics, or `neighbours` is not less than the
        number of training clients.
    """
    points = statistics(federation)
    if not points.shape[1]:
        raise ValueError(
            f"{federation.name}: all clients have equal statistics, which give no nearest "
            "clients; set --config.data.graph=own, or choose a method that needs no relations"
        )
    graph = relations.join_nearest(points, neighbours, later=federation.new_clients)
    return with_graph(federation, graph)


def statistics(federation: Federation) -> np.ndarray:
    """Statistics of the N clients' training examples, standardised over training clients.

    They are [N, D]. The columns are the mean and the standard deviation of each input feature,
    then the share of each label (classification) or the mean and the standard deviation of each
    target (regression). Columns that are equal for all training clients are left out.
    """
    train = (federation.everyone or federation.data).train
    rows = [tree.take(train, i).rows(np.arange(count)) for i, count in enumerate(train.count)]
    x = [examples.x.reshape(len(examples.x), -1) for examples in rows]
    y = [examples.y.reshape(len(examples.y), -1) for examples in rows]
    classification = federation.task == "classification"
    of_y = _shares(y, federation.outputs) if classification else _moments(y)
    parts = zip(_moments(x), of_y, strict=True)
    columns, size = (np.concatenate(part, axis=-1) for part in parts)
    training = columns[: federation.training_clients]
    spread = training.std(axis=0)
    differs = spread > _PRECISION * size
    return (columns - training.mean(axis=0))[:, differs] / spread[differs]


def _moments(clients):
    """Means and standard deviations [N, 2 F] of rows [n_i, F], and the features' sizes [2 F].

    The size of a feature is its largest absolute value.
    """
    means, deviations = (
        np.stack([moment(rows, axis=0, dtype=np.float64) for rows in clients])
        for moment in (np.mean, np.std)
    )
    largest = np.max([np.abs(rows).max(axis=0) for rows in clients], axis=0)
    return np.concatenate([means, deviations], axis=1), np.tile(largest, 2)


def _shares(clients, labels):
    """Shares [N, labels] of the labels in rows [n_i, 1], and the sizes [labels], all one."""
    shares = [np.bincount(rows[:, 0], minlength=labels) / len(rows) for rows in clients]
    return np.stack(shares), np.ones(labels)
