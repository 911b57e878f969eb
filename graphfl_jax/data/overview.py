"""What a federation consists of: a text of ten lines, and a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfl_jax import tree
from graphfl_jax.examples import Windows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 100  # clients of the largest federation whose picture has their names
LISTED = 10  # labels of a text
SAMPLE = 2_000  # clients of which targets are read, at most


def overview_text(federation: Any) -> str:
    """Clients, sizes, labels or targets, and relations of a `federation.Federation`."""
    whole = federation.everyone or federation.data
    train, new = whole.train, federation.new_clients
    ids = _sample(len(federation.clients))
    lines = [f"{federation.name}, data: {federation.source}"]
    lines += [federation.extent] if federation.extent else []
    lines.append(
        f"{len(federation.clients):,} clients"
        + (f", of which {new:,} join after training" if new else "")
        + f": {_some(federation.clients)}"
    )
    shape = tree.take(train, 0).rows(np.arange(1)).x.shape[1:]
    lines.append(f"{federation.task}: inputs {list(shape)}, outputs {federation.outputs}")
    for split, part in {"train": train, **whole.evals}.items():
        lines.append(f"{split}: {_sizes(np.asarray(part.count))}")
    if federation.task == "regression":
        means, spreads = _targets_of_clients(train, ids)
        lines += [f"targets: {_some(federation.labels)}"] if federation.labels else []
        lines.append(
            f"targets in train: means of clients {_range(means)}, standard deviations "
            f"{_range(spreads)}"
        )
    else:
        counts = label_counts(federation, train, ids)
        names = federation.labels or range(federation.outputs)
        lines.append(f"labels: {_some(list(names))}")
        held = (counts > 0).sum(axis=1)
        lines.append(f"labels of a client in train: {_range(held)}")
    lines.append(_relations_text(whole.graph, len(federation.clients)))
    lines.append(f"sha256 {federation.sha256[:16]}")
    return "\n".join(lines)


def draw_overview(federation: Any) -> "Figure":
    """A figure with two parts: the clients with their relations where their positions are
    known, and else their numbers of examples; and their labels, or their targets."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    whole, ids = federation.everyone or federation.data, _sample(len(federation.clients))
    positions = federation.positions
    if positions is not None and positions.values.shape[1] == 2:
        _draw_map(left, positions, whole.graph, federation)
    else:
        left.bar(np.arange(len(ids)), np.asarray(whole.train.count)[ids])
        left.set(xlabel="client", ylabel="training examples")
    if federation.task == "regression":
        means, spreads = _targets_of_clients(whole.train, ids)
        right.errorbar(np.arange(len(ids)), means, spreads, fmt="o", ms=3, lw=0.8)
        right.set(xlabel="client", ylabel="targets, mean and standard deviation")
    else:
        image = right.imshow(
            label_counts(federation, whole.train, ids).T, aspect="auto", cmap="Blues"
        )
        right.set(xlabel="client", ylabel="label")
        right.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(image, ax=right, label="training examples")
    figure.suptitle(f"{federation.name}, data: {federation.source}")
    return figure


def label_counts(federation: Any, part: Any, ids: Sequence[int]) -> np.ndarray:
    """The examples with each label that clients `ids` [n] have in a split, [n, outputs]."""
    y, counts = np.asarray(part.y[ids]), np.asarray(part.count)[ids]
    real = np.arange(y.shape[1])[None] < counts[:, None]  # [n, S]
    if federation.task == "classification":
        labels = range(federation.outputs)
        return np.stack([np.sum(real & (y == label), axis=1) for label in labels], axis=1)
    return np.sum(real[..., None] & (y > 0), axis=1)


def _draw_map(axes, positions, graph, federation):
    from matplotlib.collections import LineCollection

    x, y = positions.values[:, 0], positions.values[:, 1]
    ends = np.stack([np.asarray(graph.senders), np.asarray(graph.receivers)], axis=1)
    axes.add_collection(LineCollection(positions.values[ends], colors="0.7", linewidths=0.6))
    new = np.arange(len(x)) >= federation.training_clients
    axes.scatter(x[~new], y[~new], s=12, zorder=2)
    axes.scatter(x[new], y[new], s=16, marker="s", zorder=2)
    axes.set(xlabel=positions.axes[0], ylabel=positions.axes[1])
    if len(x) <= SHOWN:
        for name, *place in zip(federation.clients, x, y, strict=True):
            axes.annotate(name, place, fontsize=5, xytext=(2, 2), textcoords="offset points")


def _sample(total):
    """The numbers of up to `SAMPLE` clients, spread over all."""
    return np.unique(np.linspace(0, total - 1, min(total, SAMPLE)).round().astype(int))


def _targets_of_clients(train, ids):
    """The mean and the standard deviation of the training targets of each client."""
    if isinstance(train, Windows):
        values = np.asarray(train.series)[ids, :, 0]
        return values.mean(axis=1), values.std(axis=1)
    y, counts = np.asarray(train.y[ids]), np.asarray(train.count)[ids]
    rows = [of_client[:count] for of_client, count in zip(y, counts, strict=True)]
    return np.array([r.mean() for r in rows]), np.array([r.std() for r in rows])


def _sizes(counts):
    """Numbers of examples, as text."""
    return f"{counts.sum():,} examples, of a client {_range(counts)}"


def _range(values):
    """The smallest and the largest of some values, and their mean."""
    low, high, mean = (f"{value:,.6g}" for value in (values.min(), values.max(), values.mean()))
    return low if low == high else f"{low} to {high}, mean {mean}"


def _some(names):
    """The first of some names."""
    shown = ", ".join(str(name) for name in names[:LISTED])
    return shown + (", ..." if len(names) > LISTED else "")


def _relations_text(graph, total):
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    if not len(senders):
        return "no relations"
    neighbours = np.bincount(receivers, minlength=total)
    return f"{len(senders):,} relations; neighbours of a client: {_range(neighbours)}"
