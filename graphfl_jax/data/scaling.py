"""Scaling of inputs and targets to numbers near 1, fitted on training examples.

    standard  v' = (v - mean) / standard deviation
    minmax    v' = (v - smallest) / (largest - smallest)

Each number of an example, feature or target, has an offset and a scale of its own, which are
those of the training examples of all clients or of each client. A number that is the same in
all these examples becomes 0.
"""

from typing import NamedTuple

import numpy as np

from graphfl_jax.metrics import OwnUnits

KINDS = ("none", "standard", "minmax")
BY = ("federation", "client")


class Scaling(NamedTuple):
    """v' = (v - offset) / scale, for all clients (K = 1) or for each (K = N)."""

    kind: str  # one of `KINDS`
    clients: tuple[str, ...]  # K names; () if all clients have the same scaling
    inputs: tuple[np.ndarray, np.ndarray]  # offset and scale, each [K, *features] float64
    targets: tuple[np.ndarray, np.ndarray] | None  # each [K, O]; None for labels

    def as_json(self) -> dict:
        """The scaling for results.json: ``kind``, ``clients``, ``inputs`` and ``targets``."""
        parts = {"inputs": self.inputs, "targets": self.targets}
        for name, part in parts.items():
            if part is not None:
                parts[name] = {"offset": part[0].tolist(), "scale": part[1].tolist()}
        return {"kind": self.kind, "clients": list(self.clients), **parts}

    @property
    def units(self) -> OwnUnits | None:
        """The units of the targets, if these are scaled."""
        return self.targets and OwnUnits(tuple(map(tuple, self.targets[1].tolist())))


def scale_examples(name, clients, x, y, train, *, labels, kind, by, deciders=None):
    """Scales the examples of all clients.

    Args:
      x: per client, finite inputs [n_i, *features].
      y: per client, labels, or finite targets [n_i, O].
      train: per client, indices of its training examples.
      labels: whether y are labels, which are not scaled.
      kind: "standard" or "minmax".
      by: one of `BY`: whose training examples decide.
      deciders: indices of the clients whose examples decide on the scaling of all; None is all
        clients. With `by` "client", each client decides on its own.

    Returns:
      Inputs and targets of each client, in float64 where they are scaled, and the `Scaling`.

    Raises:
      ValueError: the inputs are bytes, which client models scale themselves.
    """
    if x[0].dtype == np.uint8:
        raise ValueError(
            f"{name}: data.scale={kind} is not for x of type uint8, which client models scale "
            f"themselves; set --config.data.scale=none, or give x as floats"
        )
    each = by == "client"
    who = range(len(x)) if each or deciders is None else deciders
    x, inputs = _scale(kind, x, train, who, each=each)
    y, targets = (y, None) if labels else _scale(kind, y, train, who, each=each)
    return x, y, Scaling(kind, tuple(clients) if each else (), inputs, targets)


def _scale(kind, rows, train, deciders, *, each):
    """Scales rows of N clients; returns them, and offsets and scales [K, ...], K = 1 or N."""
    fitted = [np.asarray(rows[i][train[i]], np.float64) for i in deciders]
    if not each:
        fitted = [np.concatenate(fitted)]
    offset, scale = map(np.stack, zip(*(_fit(kind, values) for values in fitted), strict=True))
    which = range(len(rows)) if each else [0] * len(rows)
    moved = [(r - offset[k]) / scale[k] for r, k in zip(rows, which, strict=True)]
    return moved, (offset, scale)


def _fit(kind, values):
    """Offset and scale of values [n, ...] over n."""
    low, high = values.min(axis=0), values.max(axis=0)
    offset, scale = (low, high - low) if kind == "minmax" else (values.mean(0), values.std(0))
    # Equal values may have a standard deviation above 0, from the rounding of their mean.
    same = low == high
    return np.where(same, low, offset), np.where(same, 1.0, scale)
