"""From each client's examples to a federation: checked, hashed, split and stacked.

Every loader of this package ends here, so that all data sets are refused for the same reasons
and split by the same rule.
"""

import hashlib
from typing import NamedTuple

import numpy as np

from graphfl_jax.core import Examples, FederatedData, Units, Windows
from graphfl_jax.data import partition, relations

TASKS = ("classification", "regression")


class Federation(NamedTuple):
    """A data set as a run needs it, on the host, with what a report says about it."""

    data: FederatedData  # of the clients that train, in NumPy arrays
    task: str  # "classification" or "regression"
    outputs: int  # numbers that a model predicts per example: classes, or flattened targets
    name: str
    source: str  # "real", "generated" by its law, "simulated" in lieu of real data, or "own"
    sha256: str  # of all examples, the graph, and the split unless it is drawn by the seed
    clients: tuple[str, ...]  # names, those that train before the new clients
    new_clients: int = 0  # clients that join after training
    everyone: FederatedData | None = (
        None  # of all clients, new clients last, where there are any
    )
    units: Units | None = None  # of a regression's targets, where they were standardised
    extent: str = ""  # what part of the official data set this is, unless it is the whole


def federate(
    clients,
    *,
    x,
    y,
    graph,
    task,
    name,
    source,
    val_fraction,
    seed,
    outputs,
    test_fraction=0.2,
    splits=None,
) -> Federation:
    """Checks the clients' examples, splits each client's at random, and stacks them.

    `x` and `y` hold one array per client, x[i] of shape [n_i, *features] and y[i] of shape
    [n_i] (labels) or [n_i, *targets]. Clients with fewer examples than the largest are padded
    with zeros. `splits` replaces the random ones: per client a dictionary of the indices of its
    examples in "train", "test" and, for all clients or none, "val".
    """
    clients = tuple(clients)
    if task not in TASKS:
        raise ValueError(f"{name}: task={task!r} is not known; use one of {', '.join(TASKS)}.")
    _check_lengths(name, clients, x, y, graph)
    x = [_finite(name, "x", client, rows) for client, rows in zip(clients, x, strict=True)]
    read = _labels if task == "classification" else _targets
    y = [read(name, client, rows, outputs) for client, rows in zip(clients, y, strict=True)]
    _check_shapes(name, clients, x, y)

    sha256 = _digest([*x, *y, *_arrays(graph), *_indices(splits or ())])
    if splits is None:
        splits = [
            partition.random_split(
                len(rows), i, seed=seed, val_fraction=val_fraction, test_fraction=test_fraction
            )
            for i, rows in enumerate(x)
        ]
    _check_sizes(name, clients, splits)
    stacked = {part: _stack(x, y, [split[part] for split in splits]) for part in splits[0]}
    train = stacked.pop("train")
    return Federation(
        data=FederatedData(train=train, evals=stacked, graph=graph),
        task=task,
        outputs=outputs,
        name=name,
        source=source,
        sha256=sha256,
        clients=clients,
    )


def federate_series(
    clients, *, series, past, future, counts, graph, name, source, units, extent
) -> Federation:
    """Checks series of clients and splits their windows in the order of time.

    Args:
      clients: N names.
      series: [N, T, F] float32; feature 0 is to be forecast from all.
      past: steps of a window that are given.
      future: steps that are to be forecast.
      counts: windows in "train", "val" and "test", which follow each other. Where two meet,
        windows of both hold the same past + future - 1 steps.
      graph: the relations.
      name: of the data set.
      source: as in `Federation`.
      units: of feature 0.
      extent: as in `Federation`.
    """
    _check_lengths(name, clients, series, series, graph)
    for client, rows in zip(clients, series, strict=True):
        _finite(name, "series", client, rows)
    order = [np.array(list(counts.values())), np.array([past, future])]
    parts, begin = {}, 0
    for part, count in counts.items():
        end = begin + count + past + future - 1
        own = np.full(len(clients), count, np.int32)
        parts[part] = Windows(series[:, begin:end], own, past, future)
        begin += count
    return Federation(
        data=FederatedData(train=parts.pop("train"), evals=parts, graph=graph),
        task="regression",
        outputs=future,
        name=name,
        source=source,
        sha256=_digest([*series, *_arrays(graph), *order]),
        clients=tuple(clients),
        units=units,
        extent=extent,
    )


def with_graph(federation, graph) -> Federation:
    """Replaces the relations of a federation; its hash is then of both."""
    return federation._replace(
        data=federation.data._replace(graph=graph),
        sha256=_digest(_arrays(graph), before=federation.sha256),
    )


def _check_lengths(name, clients, x, y, graph):
    counts = {"x": len(x), "y": len(y), "graph": relations.num_clients(graph)}
    for field, count in counts.items():
        if count != len(clients) or count == 0:
            raise ValueError(
                f"{name}: {field} has {count} clients and {len(clients)} are named; "
                "give at least one client, and the same number everywhere."
            )
    for client, inputs, targets in zip(clients, x, y, strict=True):
        if len(inputs) == 0:
            raise ValueError(f"{name}: client {client!r} has no examples; leave it out.")
        if len(inputs) != len(targets):
            raise ValueError(
                f"{name}: client {client!r} has {len(inputs)} rows in x and {len(targets)} "
                "in y; give one of each per example."
            )


def _finite(name, field, client, rows):
    rows = np.asarray(rows)
    if field == "x" and rows.dtype == np.uint8:
        return rows  # images, in a quarter of the memory
    with np.errstate(over="ignore"):  # what is too large for float32 is refused just below
        rows = rows.astype(np.float32)
    wrong = ~np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
    if wrong.any():
        raise ValueError(
            f"{name}: client {client!r} has a NaN or infinite value in {field} of example "
            f"{int(np.argmax(wrong))}; repair or remove that example."
        )
    return rows


def _labels(name, client, rows, outputs):
    labels = np.asarray(rows, np.float64)
    if labels.ndim != 1:
        raise ValueError(
            f"{name}: client {client!r} has labels of shape {labels.shape}; "
            "give one per example."
        )
    # Written so that NaN, for which every comparison is false, counts as wrong.
    wrong = ~((labels >= 0) & (labels < outputs) & (labels == np.floor(labels)))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"{name}: client {client!r} has label {labels[first]:g} at example {first}; "
            f"labels are the integers 0 to {outputs - 1}."
        )
    return labels.astype(np.int32)


def _targets(name, client, rows, outputs):
    targets = _finite(name, "y", client, rows)
    if targets[0].size != outputs:
        raise ValueError(
            f"{name}: client {client!r} has {targets[0].size} targets per example; "
            f"set outputs={outputs} to that number."
        )
    return targets


def _check_shapes(name, clients, x, y):
    for field, arrays in {"x": x, "y": y}.items():
        for client, rows in zip(clients, arrays, strict=True):
            if rows.shape[1:] != arrays[0].shape[1:]:
                raise ValueError(
                    f"{name}: client {client!r} has {field} of shape {rows.shape[1:]} per "
                    f"example and {clients[0]!r} has {arrays[0].shape[1:]}; make them equal."
                )


def _check_sizes(name, clients, splits):
    for client, split in zip(clients, splits, strict=True):
        sizes = {part: len(rows) for part, rows in split.items()}
        if min(sizes.values()) == 0:
            raise ValueError(
                f"{name}: client {client!r} has too few examples ({sum(sizes.values())}) to "
                f"put one in each of {', '.join(sizes)}; leave it out or change val_fraction."
            )


def _stack(x, y, chosen):
    """Gathers the chosen rows of every client into arrays [N, S, ...], S the largest count."""
    counts = np.array([len(rows) for rows in chosen], np.int32)  # [N]

    def padded(arrays):
        stacked = np.zeros((len(arrays), counts.max(), *arrays[0].shape[1:]), arrays[0].dtype)
        for i, rows in enumerate(chosen):
            stacked[i, : len(rows)] = arrays[i][rows]
        return stacked

    return Examples(x=padded(x), y=padded(y), count=counts)


def _arrays(graph):
    return graph.senders, graph.receivers, graph.edges, graph.n_node


def _indices(splits):
    return [split[part] for split in splits for part in sorted(split)]


def _digest(arrays, before=""):
    digest = hashlib.sha256(before.encode())
    for array in arrays:
        # Little-endian on every machine; the header keeps equal bytes of other shapes apart.
        array = np.asarray(array)
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
