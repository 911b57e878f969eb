"""Makes a federation from the examples of each client: checks, hashes, splits and stacks them.

Every loader ends in `federate` or `federate_series`, so all data sets have the same checks and
the same split.
"""

import collections
import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from graphfl_jax.core import FederatedData
from graphfl_jax.data import relations
from graphfl_jax.data.overview import draw_overview, overview_text
from graphfl_jax.data.rows import Rows
from graphfl_jax.data.scaling import Scaling, scale_examples
from graphfl_jax.data.splits import (
    MANY,
    RandomSplit,
    check_both_kinds,
    check_splits,
    in_rows,
)
from graphfl_jax.examples import Examples, Windows
from graphfl_jax.metrics import OwnUnits, Units

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOME = 10_000  # clients of which rows are read at a time


class Positions(NamedTuple):
    """Where clients are."""

    axes: tuple[str, ...]  # names of the coordinates, such as "longitude"
    values: np.ndarray  # [N, axes]


class Federation(NamedTuple):
    """A data set, ready for a run, with the facts that reports state."""

    # Of the training clients, in NumPy arrays; examples may be `on_demand.OnDemand`
    data: FederatedData
    task: str  # of `metrics.TASKS`
    outputs: int  # per example: number of classes, of labels, or of flattened targets
    name: str
    source: str  # "real", "generated" by a formula, "simulated" for missing data, or "own"
    sha256: str  # of all examples, the graph, and the split unless it is random
    clients: Sequence[str]  # names; training clients first, then new clients
    new_clients: int = 0  # number of clients that join after training
    everyone: FederatedData | None = None  # of all clients, new clients last; None without any
    units: Units | OwnUnits | None = None  # of the targets, if they were scaled
    extent: str = ""  # the part of the official data set that was loaded; empty for all
    # Names of the outputs, labels or targets, unless they are 0 to outputs - 1
    labels: tuple[str | int, ...] = ()
    scaling: Scaling | None = None  # of own data
    loader_scaling: Scaling | None = None  # of data that their loader has scaled
    positions: Positions | None = None  # of all clients, where they are known
    # Makes the federation again with the scaling that the training examples of some clients, a
    # list of their indices, determine. None where clients do not share a scaling.
    refit: Callable[[np.ndarray], "Federation"] | None = None

    @property
    def training_clients(self) -> int:
        """The number of clients that train."""
        return len(self.clients) - self.new_clients

    def describe(self) -> str:
        """Its clients, their examples, labels or targets, and relations, in ten lines."""
        return overview_text(self)

    def plot(self) -> "Figure":
        """A figure of Matplotlib with the clients, and their labels or targets."""
        return draw_overview(self)

    def __repr__(self) -> str:
        return self.describe()


def federate(
    clients, *, x, y, graph, task, outputs, name, source, split, scale=None, **facts
) -> Federation:
    """Checks the examples of all clients, splits them, and stacks them.

    Clients with fewer examples than the largest client are padded with zeros. The arguments
    that are not named here are fields of `Federation`.

    Args:
      clients: N names.
      x: per client, inputs [n_i, *features]; or the `Rows` of all clients. They become float32;
        uint8 images stay uint8.
      y: likewise, labels [n_i] (0 to outputs - 1); or targets [n_i, *targets], which are
        flattened to [n_i, outputs]; or for several labels per example [n_i, outputs], with 1
        for each label that an example has, and else 0.
      graph: relations between the N clients.
      split: a `RandomSplit`; or per client, indices of its examples in "train", "test" and, for
        all clients or none, "val".
      scale: the arguments ``kind``, ``by`` and ``deciders`` of `scale_examples`. The hash is of
        the examples before.

    Raises:
      ValueError: the examples, the graph or the split do not fit together. One line with the
        data set, the client, the example and a remedy.
    """
    clients = tuple(clients)
    _check_lengths(name, clients, x, y, graph)
    read = functools.partial(_read_examples, name, clients, task, outputs)
    unscaled, (x, y) = (x, y), read(x, y)
    parts, indices, before = _divide(split, x.counts)
    sha256 = _digest([x, y, *_arrays(graph), *indices], before)
    check_splits(name, clients, parts, x.counts)
    if task == "multi-label classification":
        check_both_kinds(name, clients, y.values, parts)
    scaling = None
    if scale is not None:
        train = [
            rows - begin for rows, begin in zip(parts["train"].split(), x.begins, strict=True)
        ]
        labels = task == "classification"
        unscaled = [rows.split() if isinstance(rows, Rows) else rows for rows in unscaled]
        x, y, scaling = scale_examples(name, clients, *unscaled, train, labels=labels, **scale)
        x, y = read(x, y)
        sha256 = _digest(jax.tree.leaves((scaling.inputs, scaling.targets)), before=sha256)
    stacked = {part: _stack(x.values, y.values, rows) for part, rows in parts.items()}
    return Federation(
        data=FederatedData(train=stacked.pop("train"), evals=stacked, graph=graph),
        task=task,
        outputs=outputs,
        name=name,
        source=source,
        sha256=sha256,
        clients=clients,
        units=scaling and scaling.units,
        scaling=scaling,
        **facts,
    )


def rescale(federation: Federation, deciders: np.ndarray) -> Federation:
    """Scales a federation by the training examples of some clients, and updates its hash.

    Clients that join later must not decide, because nothing is known of them before.

    Args:
      deciders: the indices of the clients that decide, [n] int.
    """
    if federation.refit is None:
        return federation
    again = federation.refit(deciders)
    return federation._replace(
        data=federation.data._replace(train=again.data.train, evals=again.data.evals),
        sha256=_digest([deciders], before=federation.sha256),
        units=again.units,
        scaling=again.scaling,
        loader_scaling=again.loader_scaling,
        refit=None,
    )


def numbers_of(clients: Iterable, federation: Federation, *, field: str) -> list[int]:
    """The numbers of training clients that are given by name, or by number where none is one.

    Args:
      clients: names or numbers.
      field: that has them, for errors.

    Raises:
      ValueError: a client does not train, or is given twice.
    """
    names, training = federation.clients, federation.training_clients
    by_name, remedy = dict(zip(names[:training], range(training), strict=True)), ""
    if not any(name.isdecimal() for name in names):
        by_name |= {str(i): i for i in range(training)}
        remedy = f", or numbers from 0 to {training - 1}"
    numbers = []
    for client in clients:
        number = by_name.get(str(client))
        if number is None:
            raise ValueError(
                f"{field} has {client!r}, which does not train in {federation.name}; "
                f"give names such as {names[0]!r}{remedy}"
            )
        if number in numbers:
            raise ValueError(
                f"{field} has client {number}, {names[number]!r}, twice; name each once"
            )
        numbers.append(number)
    return numbers


def input_range(federation: Federation) -> tuple[float, float]:
    """The smallest and the largest number in the training inputs."""
    train = federation.data.train
    if isinstance(train, Windows):
        return float(train.series.min()), float(train.series.max())
    ranges = []
    for begin in range(0, len(train.count), SOME):
        some = slice(begin, begin + SOME)
        x = _real_rows(train.x[some], train.count[some])
        ranges.append((x.min(), x.max()))
    low, high = zip(*ranges, strict=True)
    return float(min(low)), float(max(high))


def score_of_constant(
    federation: Federation, clients: Sequence[int] | None = None
) -> float | None:
    """The mean test score over clients of one prediction for all their examples.

    It is the mean of the training targets, scored by the mean squared error, or their most
    frequent class, scored by the accuracy. None for series and for several labels.

    Args:
      clients: numbers of the clients that count; None is all.
    """
    train, test = federation.data.train, federation.data.evals["test"]
    if isinstance(train, Windows) or federation.task == "multi-label classification":
        return None
    chosen = slice(None) if clients is None else np.asarray(clients)
    count = test.count[chosen]
    known, y = _real_rows(train.y[chosen], train.count[chosen]), np.asarray(test.y[chosen])
    real = np.arange(y.shape[1]) < count[:, None]  # [n, S]
    if federation.task == "classification":
        scores = y == np.bincount(known).argmax()
    else:
        scores = np.square(y - known.mean(axis=0, dtype=np.float64)).mean(axis=-1)
    return float(np.mean(np.sum(scores, axis=1, where=real) / count))


def _real_rows(rows, counts):
    """The rows [R, ...] of rows [n, S, ...] of clients that are no padding."""
    rows = np.asarray(rows)
    if counts.min() == rows.shape[1]:
        return rows.reshape(-1, *rows.shape[2:])
    return rows[np.arange(rows.shape[1]) < counts[:, None]]


def federate_series(
    clients, *, series, past, future, counts, graph, name, source, **facts
) -> Federation:
    """Checks one time series per client and splits their windows in order of time.

    The arguments that are not named here are fields of `Federation`, as in `federate`.

    Args:
      series: [N, T, F] float32. The target is feature 0; the inputs are all features.
      past: input steps of a window.
      future: steps to forecast.
      counts: number of windows in "train", "val" and "test", in order of time. The windows on
        the two sides of a border share past + future - 1 steps.

    Raises:
      ValueError: numbers of clients differ, or a value is not finite. One line with the data
        set, the client and a remedy.
    """
    _check_lengths(name, clients, series, series, graph)
    for client, rows in zip(clients, series, strict=True):
        check_finite(name, "series", client, rows)
    order = [np.array(list(counts.values())), np.array([past, future])]
    parts, begin = {}, 0
    for part, count in counts.items():
        end = begin + count + past + future - 1
        per_client = np.full(len(clients), count, np.int32)  # [N]
        parts[part] = Windows(series[:, begin:end], per_client, past, future)
        begin += count
    return Federation(
        data=FederatedData(train=parts.pop("train"), evals=parts, graph=graph),
        task="regression",
        outputs=future,
        name=name,
        source=source,
        sha256=_digest([*series, *_arrays(graph), *order]),
        clients=tuple(clients),
        **facts,
    )


def federate_on_demand(
    clients: Sequence[str], *, parts: dict[str, Examples], graph, name, source, **facts
) -> Federation:
    """Makes a federation of examples that are computed when they are read.

    The arguments that are not named here are fields of `Federation`, as in `federate`. The hash
    is of the formulas of the examples, so that none has to be computed.

    Args:
      clients: N names, of which none is twice.
      parts: the examples of "train", "test" and perhaps "val". All are real; x [N, S, ...] and
        y [N, S, ...] are `on_demand.OnDemand`.
    """
    leaves = [leaf for part in parts.values() for leaf in (part.x, part.y)]
    formulas = [f"{leaf.formula} {leaf.dtype}{list(leaf.shape)}" for leaf in leaves]
    evals = dict(parts)
    return Federation(
        data=FederatedData(train=evals.pop("train"), evals=evals, graph=graph),
        name=name,
        source=source,
        sha256=_digest(_arrays(graph), before="; ".join(formulas)),
        clients=clients,
        **facts,
    )


def with_shared_split(federation: Federation, name: str, x, y) -> Federation:
    """Adds a split of which all clients evaluate the same examples, and updates the hash.

    The examples are inputs x [n, *features] and labels or targets y [n, ...].
    """
    train = federation.data.train
    x, y = np.asarray(x, train.x.dtype), np.asarray(y, train.y.dtype)
    examples = Examples(x, y, np.int32(len(x)))
    return federation._replace(
        data=federation.data._replace(shared=federation.data.shared | {name: examples}),
        sha256=_digest([x, y], before=federation.sha256),
    )


def keep_graph(federation: Federation) -> Federation:
    """Keeps the relations of the data set."""
    return federation


def with_graph(federation: Federation, graph) -> Federation:
    """Replaces the relations of all clients of a federation, and updates its hash.

    With new clients, the training graph has those between training clients.

    Args:
      graph: of all clients, for example from `relations.from_edges`.

    Raises:
      ValueError: it is of another number of clients; one line.
    """
    number, of_graph = len(federation.clients), relations.num_clients(graph)
    if of_graph != number:
        raise ValueError(
            f"{federation.name}: a graph has {of_graph} clients and the data have {number}; "
            f"give a graph of all clients"
        )
    data, everyone = federation.data._replace(graph=graph), federation.everyone
    if everyone is not None:
        training = np.arange(federation.training_clients)
        data = data._replace(graph=relations.subgraph(graph, training))
        everyone = everyone._replace(graph=graph)
    return federation._replace(
        data=data,
        everyone=everyone,
        sha256=_digest(_arrays(graph), before=federation.sha256),
    )


def _divide(split, counts):
    """The parts of a split, and the arrays and the text of it that the hash includes."""
    if isinstance(split, RandomSplit):
        # Of many clients, it is another split than before version 0.1.
        return split.of_clients(counts), [], "split in arrays" if len(counts) > MANY else ""
    return in_rows(split, counts), [rows[part] for rows in split for part in sorted(rows)], ""


def _check_lengths(name, clients, x, y, graph):
    if len(set(clients)) < len(clients):
        client, times = collections.Counter(clients).most_common(1)[0]
        raise ValueError(
            f"{name}: {times} clients are called {client!r}; give each its own name"
        )
    of_x, of_y = map(_counts, (x, y))
    counts = {"x": len(of_x), "y": len(of_y), "graph": relations.num_clients(graph)}
    for field, count in counts.items():
        if count != len(clients) or count == 0:
            raise ValueError(
                f"{name}: {field} has {count} clients and there are {len(clients)} names; give "
                "at least one client, and the same number everywhere"
            )
    if not of_x.all():
        client = clients[int(np.argmin(of_x))]
        raise ValueError(f"{name}: client {client!r} has no examples; leave it out")
    if (of_x != of_y).any():
        i = int(np.argmax(of_x != of_y))
        raise ValueError(
            f"{name}: client {clients[i]!r} has {of_x[i]} rows in x and {of_y[i]} in y; give "
            "one row of each per example"
        )


def _counts(rows):
    """The number of rows of each client, [N]."""
    if isinstance(rows, Rows):
        return rows.counts
    if isinstance(rows, np.ndarray):
        return np.full(rows.shape[:1], rows.shape[1])
    return np.fromiter(map(len, rows), np.int64, len(rows))


def _read_examples(name, clients, task, outputs, x, y):
    """The inputs and the targets of all clients, checked, in the types of a federation."""
    readers = {
        "classification": _read_labels,
        "regression": _read_targets,
        "multi-label classification": _read_label_sets,
    }
    if task not in readers:
        raise ValueError(f"task={task!r} is unknown; choose from {', '.join(readers)}")
    x, y = (
        _join(name, "x", clients, x),
        _join(name, "y", clients, y, flat=task != "classification"),
    )

    def where(row):
        client, example = x.place(row)
        return f"{name}: client {clients[client]!r}", f"example {example}, counted from 0"

    return (
        x._replace(values=_as_finite("x", x.values, where)),
        y._replace(values=readers[task](y.values, outputs, where)),
    )


def _join(name, field, clients, arrays, *, flat=False):
    """The arrays of all clients in `Rows`; of `flat` ones, each row becomes a vector."""
    if isinstance(arrays, Rows):
        values = arrays.values
        return arrays._replace(values=values.reshape(len(values), -1)) if flat else arrays
    if isinstance(arrays, np.ndarray):
        return Rows.of(arrays.reshape(*arrays.shape[:2], -1) if flat else arrays)
    arrays = [np.asarray(rows) for rows in arrays]
    if flat:
        arrays = [rows.reshape(len(rows), -1) for rows in arrays]
    shapes = [rows.shape[1:] for rows in arrays]
    if len(set(shapes)) > 1:
        other = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
        raise ValueError(
            f"{name}: client {clients[other]!r} has {field} of shape {shapes[other]} per "
            f"example and {clients[0]!r} has {shapes[0]}; make them equal"
        )
    return Rows.of(arrays)


def check_finite(name, field, client, rows) -> np.ndarray:
    """The rows of a client in float32; bytes of inputs remain bytes.

    Raises:
      ValueError: a value is NaN, infinite, or too large for float32.
    """

    def where(row):
        return f"{name}: client {client!r}", f"example {row}, counted from 0"

    return _as_finite(field, np.asarray(rows), where)


def _as_finite(field, rows, where):
    """As `check_finite`; `where` gives the names of the client and of the example of a row."""
    if field == "x" and rows.dtype == np.uint8:
        return rows  # images take a quarter of the memory of float32
    with np.errstate(over="ignore"):  # values too large for float32 are refused below
        rows = rows.astype(np.float32, copy=False)
    finite = np.isfinite(rows)
    if not finite.all():
        client, example = where(int(np.argmin(finite.reshape(len(rows), -1).all(axis=1))))
        raise ValueError(
            f"{client} has a NaN or infinite value in {field} of its {example}; correct or "
            "remove that example"
        )
    return rows


def _read_labels(rows, outputs, where):
    labels = rows.astype(np.float64)
    if labels.ndim != 1:
        raise ValueError(
            f"{where(0)[0]} has labels of shape {rows.shape}; give one label per example"
        )
    # All comparisons with NaN are false, so this form refuses NaN.
    wrong = ~((labels >= 0) & (labels < outputs) & (labels == np.floor(labels)))
    if wrong.any():
        first = int(np.argmax(wrong))
        client, example = where(first)
        raise ValueError(
            f"{client} has label {labels[first]:g} at its {example}; labels are the integers 0 "
            f"to {outputs - 1}"
        )
    return labels.astype(np.int32)


def _read_targets(rows, outputs, where):
    targets = _as_finite("y", rows, where)
    if targets.shape[1] != outputs:
        raise ValueError(
            f"{where(0)[0]} has {targets.shape[1]} targets per example and outputs={outputs}; "
            "make them equal"
        )
    return targets


def _read_label_sets(rows, outputs, where):
    labels = _read_targets(rows, outputs, where)
    wrong = ~np.isin(labels, (0, 1)).all(axis=1)
    if wrong.any():
        client, example = where(int(np.argmax(wrong)))
        raise ValueError(
            f"{client} has a label other than 0 and 1 at its {example}; give 1 for each label "
            f"that an example has, and else 0"
        )
    return labels


def _stack(x, y, part):
    """Stacks the rows of a part of every client to [N, S, ...], S being the largest count."""
    counts = part.counts.astype(np.int32)  # [N]
    size = counts.max()
    real = np.arange(size) < counts[:, None]  # [N, S]

    def pad(values):
        if real.all():
            return values[part.values].reshape(*real.shape, *values.shape[1:])
        stacked = np.zeros((*real.shape, *values.shape[1:]), values.dtype)
        stacked[real] = values[part.values]
        return stacked

    return Examples(x=pad(x), y=pad(y), count=counts)


def _arrays(graph):
    return graph.senders, graph.receivers, graph.edges, graph.n_node


def _digest(arrays, before=""):
    """SHA-256 of arrays, of which those of all clients may stand together in `Rows`."""
    digest = hashlib.sha256(before.encode())
    for array in arrays:
        if not isinstance(array, Rows):
            array = Rows(np.atleast_1d(array), np.array([np.size(array, 0)]))
        _add_rows(digest, array)
    return digest.hexdigest()


def _add_rows(digest, rows):
    """Adds the array of each client to a hash, one after another."""
    # Little-endian on every machine. The header separates equal bytes of other shapes.
    values = np.ascontiguousarray(rows.values, rows.values.dtype.newbyteorder("<"))
    content, shape = values.reshape(-1).view(np.uint8), values.shape[1:]
    headers = {
        count: f"{values.dtype.str}{(count, *shape)}".encode()
        for count in set(rows.counts.tolist())
    }
    if len(headers) == 1:
        (header,) = headers.values()
        of_clients = content.reshape(len(rows.counts), -1)
        for some in np.array_split(of_clients, len(of_clients) // 10_000 + 1):
            begins = np.broadcast_to(np.frombuffer(header, np.uint8), (len(some), len(header)))
            digest.update(np.concatenate([begins, some], axis=1))
        return
    of_clients = np.split(content, np.cumsum(rows.counts)[:-1] * (len(content) // len(values)))
    for count, some in zip(rows.counts.tolist(), of_clients, strict=True):
        digest.update(headers[count])
        digest.update(some)
