"""The user's own data: from arrays in memory, or from a file of arrays."""

import zipfile
from pathlib import Path

import numpy as np

from graphfl_jax.data import federation, relations

PARTS = ("train", "val", "test")
REQUIRED = ("x", "y", "client")
ARRAYS = (*REQUIRED, "split", "edges", "edge_weight", "directed")


def custom(*, path, seed, val_fraction) -> federation.Federation:
    """Loads the file of arrays at `path`, written by ``np.savez``.

    Its arrays have the names and meanings of `from_arrays`' arguments: x, y and client, and
    where wanted split, edges, edge_weight and directed, a single boolean.
    """
    arrays = read_arrays(path)
    try:
        return from_arrays(**arrays, seed=seed, val_fraction=val_fraction)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def from_arrays(
    x,
    y,
    client,
    *,
    split=None,
    edges=None,
    edge_weight=None,
    directed=False,
    name="custom",
    seed=0,
    val_fraction=0.0,
    test_fraction=0.2,
) -> federation.Federation:
    """Makes a federation of arrays that have one row per example.

    Args:
      x: [n, *features] numbers.
      y: [n] integers, labels from 0 on, for a classification; [n] or [n, *targets] floats for
        a regression, whose targets are flattened to [n, O].
      client: [n] strings or integers, who holds each example. Clients are in sorted order.
      split: [n] of "train", "val" and "test". Every client has examples to train on and to
        test, and for validation if any has. Without it each client's examples are split at
        random by `seed`, `val_fraction` and `test_fraction`.
      edges: [m, 2] of clients that are related; without it nobody is.
      edge_weight: [m] numbers of at least 0; without it every weight is one.
      directed: whether of an edge's two clients only the second hears the other.
      name: of the federation, in errors and results.
      seed: of a random split.
      val_fraction: of each client's examples, in a random split.
      test_fraction: of each client's examples, in a random split.

    Raises:
      ValueError: the arrays do not fit; one line with name, array and remedy.
    """
    given = {"x": x, "y": y, "client": client, "split": split}
    rows = {field: np.asarray(rows) for field, rows in given.items() if rows is not None}
    _check_rows(name, rows)
    x, y, client = (rows[field] for field in REQUIRED)
    names, holder, counts = np.unique(client, return_inverse=True, return_counts=True)
    own = np.split(np.argsort(holder, kind="stable"), np.cumsum(counts)[:-1])  # N of [n_i]

    task, y, outputs = _read_targets(name, y)
    splits = None
    if split is not None:
        if val_fraction:
            raise ValueError(
                f"{name}: data.val_fraction={val_fraction} splits nothing where split is "
                'given; set it to 0, and mark examples "val" in split.'
            )
        splits = _read_splits(name, names, rows["split"], own)
    return federation.federate(
        [str(n) for n in names],
        x=[x[i] for i in own],
        y=[y[i] for i in own],
        graph=_read_graph(name, names, edges, edge_weight, directed),
        task=task,
        name=name,
        source="own",
        val_fraction=val_fraction,
        seed=seed,
        outputs=outputs,
        test_fraction=test_fraction,
        splits=splits,
    )


def read_arrays(path) -> dict[str, np.ndarray]:
    """Reads a file of arrays, of which none is pickled and all have a name that is known."""
    if not path:
        raise ValueError(
            "custom: data.path is empty; set --config.data.path to a file of arrays, written "
            f"by np.savez with {', '.join(REQUIRED)}."
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"custom: data.path={str(path)!r} is no file; correct it.")
    with Path(path).open("rb") as opened:
        file = _npz(path, opened)
        for field in file.files:
            if field not in ARRAYS:
                raise ValueError(
                    f"{path}: the array {field!r} is unknown; choose from {', '.join(ARRAYS)}."
                )
        for field in REQUIRED:
            if field not in file.files:
                raise ValueError(f"{path}: there is no array {field!r}; add it to the file.")
        arrays = {field: _read_array(path, file, field) for field in file.files}
    if "directed" in arrays:
        directed = arrays["directed"]
        if directed.shape or directed.dtype != bool:
            raise ValueError(
                f"{path}: directed has shape {directed.shape} and type {directed.dtype}; "
                "give True or False."
            )
        arrays["directed"] = bool(directed)
    return arrays


# Damaged bytes can make the readers of zip files and of arrays raise nearly anything.


def _npz(path, opened):
    try:
        if not zipfile.is_zipfile(opened):  # np.load would take it for a pickle
            raise zipfile.BadZipFile
        opened.seek(0)
        return np.load(opened, allow_pickle=False)
    except Exception as error:
        raise ValueError(f"{path} is no whole npz file; write it by np.savez.") from error


def _read_array(path, file, field):
    try:
        return np.asarray(file[field])
    except Exception as error:
        why = " ".join(str(error).split())
        raise ValueError(
            f"{path}: the array {field!r} cannot be read ({why}); write it by np.savez, with "
            "names as strings and not as objects."
        ) from error


def _check_rows(name, rows):
    """Refuses arrays of another type than they must have, or of another length than x."""
    kinds = {
        "x": ("biuf", "give numbers"),
        "y": ("biuf", "give integers for labels, floats for targets"),
        "client": ("iuU", "give strings or integers"),
        "split": ("U", f"give the strings {', '.join(PARTS)}"),
    }
    for field, array in rows.items():
        admitted, remedy = kinds[field]
        if array.dtype.kind not in admitted:
            raise ValueError(f"{name}: {field} has type {array.dtype}; {remedy}.")
        if not array.size:
            raise ValueError(f"{name}: {field} has shape {array.shape}; it must not be empty.")
        if field in ("client", "split") and array.ndim != 1:
            raise ValueError(
                f"{name}: {field} has shape {array.shape}; give one name per example."
            )
        if array.shape[:1] != rows["x"].shape[:1]:
            raise ValueError(
                f"{name}: {field} has shape {array.shape} and x has {rows['x'].shape}; give "
                "one row of each per example."
            )


def _read_targets(name, y):
    """Returns the task, the targets in its form, and the number of outputs."""
    if y.dtype.kind == "f":
        y = y.reshape(len(y), -1)
        return "regression", y, y.shape[1]
    if y.ndim != 1:
        raise ValueError(
            f"{name}: y has integers of shape {y.shape}; give one label per example, or "
            "floats for targets."
        )
    labels = int(y.max()) + 1
    if not 2 <= labels <= len(y):
        raise ValueError(
            f"{name}: y has integers up to {labels - 1} in {len(y)} examples; number at least "
            "two labels from 0 on, or give floats for targets."
        )
    return "classification", y, labels


def _read_splits(name, names, split, own):
    """Returns per client, whose rows are own[i], the indices of its examples by part."""
    unknown = ~np.isin(split, PARTS)
    if unknown.any():
        first = int(np.argmax(unknown))
        raise ValueError(
            f"{name}: split has {str(split[first])!r} at example {first}; "
            f"use {', '.join(PARTS)}."
        )
    parts = [part for part in PARTS if part in split or part != "val"]
    splits = []
    for client, rows in zip(names, own, strict=True):
        splits.append({part: np.flatnonzero(split[rows] == part) for part in parts})
        for part, indices in splits[-1].items():
            if not len(indices):
                raise ValueError(
                    f"{name}: client {str(client)!r} has no {part!r} in split; every client "
                    f"needs an example in each of {', '.join(parts)}."
                )
    return splits


def _read_graph(name, names, edges, edge_weight, directed):
    """Returns the graph of edges between clients called by their names."""
    edges = np.zeros((0, 2), np.int32) if edges is None else np.asarray(edges)
    if edges.size == 0:
        edges = np.zeros((0, 2), names.dtype)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise ValueError(
            f"{name}: edges has shape {edges.shape}; give pairs of clients [m, 2]."
        )
    if edges.dtype.kind not in "iuU" or (edges.dtype.kind == "U") != (names.dtype.kind == "U"):
        raise ValueError(
            f"{name}: edges has type {edges.dtype} and client has {names.dtype}; call clients "
            "the same in both."
        )
    pairs = np.minimum(np.searchsorted(names, edges), len(names) - 1)
    strange = names[pairs] != edges
    if strange.any():
        first = int(np.argmax(strange.any(axis=1)))
        raise ValueError(
            f"{name}: edges: number {first}, {tuple(edges[first].tolist())}, names "
            f"{edges[strange][0].item()!r}, who has no examples; correct it."
        )
    if edge_weight is not None:
        edge_weight = np.asarray(edge_weight)
        if edge_weight.dtype.kind not in "biuf" or edge_weight.shape != (len(edges),):
            raise ValueError(
                f"{name}: edge_weight has shape {edge_weight.shape} and type "
                f"{edge_weight.dtype} for {len(edges)} edges; give one number for each."
            )
    return relations.from_edges(len(names), pairs, edge_weight, directed=directed, names=names)
