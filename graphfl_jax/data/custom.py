"""The user's own data: from arrays in memory, or from a file of arrays."""

import functools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from graphfl_jax.data import files, label_skew, relations, scaling
from graphfl_jax.data.common_settings import ValFraction
from graphfl_jax.data.federation import Federation, federate
from graphfl_jax.data.partition import TEST_FRACTION
from graphfl_jax.settings import Choice, Text, Variant

PARTS = ("train", "val", "test")
REQUIRED = ("x", "y")
ARRAYS = (*REQUIRED, "client", "split", "edges", "edge_weight", "directed")
PARTITIONS = label_skew.PARTITIONS


def custom(
    *,
    path: Annotated[str, Text("File of arrays, written by np.savez; required.")] = "",
    partition: Annotated[
        Any,  # a name in configurations, and here what the factory of that name makes
        Variant(
            "How examples without clients are divided among clients; empty: they have clients.",
            ("", *PARTITIONS),
            factories=PARTITIONS,
        ),
    ] = "",
    cap: Annotated[int, label_skew.Cap] = 0,
    val_fraction: ValFraction = 0.0,
    scale: Annotated[
        str,
        Choice(
            "How inputs and targets are scaled: to mean 0 and standard deviation 1, to 0 to 1, "
            "or not; fitted on training examples.",
            scaling.KINDS,
        ),
    ] = "none",
    scale_by: Annotated[
        str, Choice("Whose training examples decide on the scaling.", scaling.BY)
    ] = "federation",
    seed,
) -> Federation:
    """Loads a file of arrays that was written by ``np.savez``.

    The arrays have the names and meanings of the arguments of `from_arrays`: x, y and client,
    and optionally split, edges, edge_weight and directed (a boolean scalar). With a partition,
    there is no array client.

    Args:
      path: the file; required.
      partition: what a factory of `label_skew.PARTITIONS` made, or nothing.
      cap: most examples of a client in a split, with a partition; 0 is all.
      val_fraction: share of each client's examples for validation, in a random split.
      scale: one of `scaling.KINDS`.
      scale_by: one of `scaling.BY`.
      seed: of a random split.

    Raises:
      ValueError: `path` is empty, or the file or its arrays are invalid. One line with the
        file, the array and a remedy.
      FileNotFoundError: the file is missing.
    """
    arrays = read_arrays(path)
    try:
        return from_arrays(
            **arrays,
            partition=partition,
            cap=cap,
            seed=seed,
            val_fraction=val_fraction,
            scale=scale,
            scale_by=scale_by,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {str(error).removeprefix('custom: ')}") from error


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    client: ArrayLike | None = None,
    *,
    partition: Callable | None = None,
    cap: int = 0,
    split: ArrayLike | None = None,
    edges: ArrayLike | None = None,
    edge_weight: ArrayLike | None = None,
    directed: bool = False,
    name: str = "custom",
    seed: int = 0,
    val_fraction: float = 0.0,
    test_fraction: float = TEST_FRACTION,
    scale: str = "none",
    scale_by: str = "federation",
) -> Federation:
    """Makes a federation from arrays with one row per example.

    Args:
      x: [n, *features] numbers.
      y: classification: [n] integers, labels from 0. Regression: [n] or [n, *targets] floats,
        which are flattened to [n, O].
      client: [n] strings or integers, the client of each example. Clients are sorted by name.
        None needs a partition.
      partition: divides labelled examples without `client` among clients, which are named 0, 1,
        ...; made by a factory of `label_skew.PARTITIONS`. It divides the training examples of a
        given split, and the other examples in the same class proportions.
      cap: most examples of a client in each given split, with a partition; 0 is all.
      split: [n] of "train", "val" and "test". Every client needs training and test examples,
        and validation examples if any client has some. None splits each client's examples at
        random.
      edges: [m, 2] pairs of names of related clients; None means no relations.
      edge_weight: [m] numbers of at least 0; None means that all are 1.
      directed: whether edges are directed: the second client receives from the first.
      name: of the federation, in error messages and results.
      seed: of a random split.
      val_fraction: share of each client's examples for validation, in a random split.
      test_fraction: share of each client's examples for test, in a random split.
      scale: "standard" or "minmax" scales inputs and targets, see `scaling`; or "none".
      scale_by: "federation" or "client": whose training examples determine the scaling.

    Raises:
      ValueError: the arrays are invalid. One line with the name, the array and a remedy.
    """
    arrays = {"x": x, "y": y, "client": client, "split": split}
    _check_masks(name, arrays | {"edges": edges, "edge_weight": edge_weight})
    rows = {field: _array(name, field, one) for field, one in arrays.items() if one is not None}
    _check_rows(name, rows)
    Choice("", scaling.KINDS).check("data.scale", scale)
    Choice("", scaling.BY).check("data.scale_by", scale_by)
    task, y, outputs = _read_targets(name, rows["y"])
    x = rows["x"]
    # Names of the clients [N], and per client the indices of its examples, [n_i].
    if "client" in rows and not partition:
        names, holder, counts = np.unique(
            rows["client"], return_inverse=True, return_counts=True
        )
        indices = np.split(np.argsort(holder, kind="stable"), np.cumsum(counts)[:-1])
    else:
        indices = _divided(name, rows, task, partition, outputs=outputs, cap=cap, seed=seed)
        names = np.arange(len(indices))
    given = split is not None
    unread = {
        f"data.val_fraction={val_fraction}": given
        and val_fraction > 0
        and 'on a given split; set it to 0, and mark validation examples as "val" in split',
        f"test_fraction={test_fraction}": given
        and test_fraction != TEST_FRACTION
        and "on a given split; leave it out",
        f"cap={cap}": cap and not partition and "without a partition; leave it out",
        f"directed={directed}": directed and edges is None and "without edges; leave it out",
        f"data.scale_by={scale_by}": scale == "none"
        and scale_by != "federation"
        and "with data.scale=none; leave it out",
    }
    for setting, why in unread.items():
        if why:
            raise ValueError(f"{name}: {setting} has no effect {why}")
    splits = None
    if split is not None:
        splits = _read_splits(name, names, rows["split"], indices)
    rescale = functools.partial(
        *(scaling.scaled, name, scale, scale_by, tuple(map(str, names))),
        labels=task == "classification",
    )
    return federate(
        [str(n) for n in names],
        x=[x[i] for i in indices],
        y=[y[i] for i in indices],
        graph=_read_graph(name, names, edges, edge_weight, directed),
        task=task,
        name=name,
        source="own",
        val_fraction=val_fraction,
        seed=seed,
        outputs=outputs,
        test_fraction=test_fraction,
        splits=splits,
        rescale=None if scale == "none" else rescale,
    )


def read_arrays(path) -> dict[str, Any]:
    """Reads the arrays of a file by name. Pickled arrays are refused.

    Raises:
      ValueError: the path is empty, the file is damaged, or an array is missing or unknown.
      FileNotFoundError: the file is missing.
    """
    if not path:
        raise ValueError(
            "custom: data.path is empty; set --config.data.path to a file of arrays, written "
            f"by np.savez with {', '.join(REQUIRED)}"
        )
    files.check_exists(path)
    with Path(path).open("rb") as opened:
        file = open_npz(path, opened)
        for i, field in enumerate(file.files):
            if field in file.files[:i]:
                raise ValueError(f"{path}: the array {field!r} is given twice; remove one")
            if field not in ARRAYS:
                raise ValueError(
                    f"{path}: the array {field!r} is unknown; choose from {', '.join(ARRAYS)}"
                )
        for field in REQUIRED:
            if field not in file.files:
                raise ValueError(f"{path}: there is no array {field!r}; add it to the file")
        arrays: dict[str, Any] = {f: read_array(path, file, f) for f in file.files}
    if "directed" in arrays:
        directed = arrays["directed"]
        if directed.shape or directed.dtype != bool:
            raise ValueError(
                f"{path}: directed has shape {directed.shape} and type {directed.dtype}; "
                "give True or False"
            )
        arrays["directed"] = bool(directed)
    return arrays


# Damaged bytes can make the readers of zip files and of arrays raise almost any exception.


def open_npz(path, opened):
    """The npz file of an opened file. Raises a ValueError if it is none, or damaged."""
    try:
        if not zipfile.is_zipfile(opened):  # np.load would read it as a pickle
            raise zipfile.BadZipFile
        opened.seek(0)
        return np.load(opened, allow_pickle=False)
    except Exception as error:
        raise ValueError(
            f"{path}: the file is not a complete npz file; write it with np.savez"
        ) from error


def read_array(path, file, field):
    """An array of an npz file. Raises a ValueError if it cannot be read, or is pickled."""
    try:
        return np.asarray(file[field])
    except Exception as error:
        why = " ".join(str(error).split())
        raise ValueError(
            f"{path}: the array {field!r} cannot be read ({why}); write it with np.savez, and "
            "names as strings and not as objects"
        ) from error


def _check_masks(name, arrays):
    """Refuses masked values, which would be used as if they were not masked."""
    for field, array in arrays.items():
        if isinstance(array, np.ma.MaskedArray) and array.mask.any():
            raise ValueError(
                f"{name}: {field} has {int(array.mask.sum())} masked values; leave their "
                "examples out, or fill them in"
            )


def _array(name, field, rows):
    """The array of an argument. Strings that are objects, as in pandas, become strings."""
    try:
        rows = np.asarray(rows)
    except ValueError:
        raise ValueError(f"{name}: {field} has rows of several shapes; give all one") from None
    if rows.dtype == object and all(isinstance(value, str) for value in rows.flat):
        return rows.astype(str)
    return rows


def _check_rows(name, rows):
    """Checks the types of the arrays, and that all have the length of x."""
    kinds = {
        "x": ("biuf", "give numbers"),
        "y": ("biuf", "give integers for labels, floats for targets"),
        "client": ("iuU", "give strings or integers"),
        "split": ("U", f"give the strings {', '.join(PARTS)}"),
    }
    for field, array in rows.items():
        admitted, remedy = kinds[field]
        if array.dtype.kind not in admitted:
            raise ValueError(f"{name}: {field} has type {array.dtype}; {remedy}")
        if not (array.ndim and array.size):
            raise ValueError(
                f"{name}: {field} has shape {array.shape}; give one row for each of one or "
                f"more examples"
            )
        if field in ("client", "split") and array.ndim != 1:
            raise ValueError(
                f"{name}: {field} has shape {array.shape}; give one name per example"
            )
        if array.shape[:1] != rows["x"].shape[:1]:
            raise ValueError(
                f"{name}: {field} has shape {array.shape} and x has {rows['x'].shape}; give "
                "one row of each per example"
            )


def _read_targets(name, y):
    """Returns the task, the labels [n] or targets [n, O], and the number of outputs."""
    if y.dtype.kind == "f":
        y = y.reshape(len(y), -1)
        return "regression", y, y.shape[1]
    if y.ndim != 1:
        raise ValueError(
            f"{name}: y has integers of shape {y.shape}; give one label per example, or "
            "floats for targets"
        )
    labels = int(y.max()) + 1
    if not 2 <= labels <= len(y):
        raise ValueError(
            f"{name}: y has integers up to {labels - 1} in {len(y)} examples; number at least "
            "two labels from 0 on, or give floats for targets"
        )
    return "classification", y, labels


def _divided(name, rows, task, partition, *, outputs, cap, seed):
    """Returns, per client of a partition, the indices of its examples."""
    if not partition:
        raise ValueError(
            f"{name}: there is no array 'client'; add it, or set --config.data.partition to "
            f"{' or '.join(PARTITIONS)}"
        )
    if "client" in rows:
        raise ValueError(
            f"{name}: data.partition divides examples among clients, and the array 'client' "
            "does so too; leave data.partition empty, or remove the array"
        )
    if task != "classification":
        raise ValueError(
            f"{name}: data.partition divides examples by label, and y holds targets; add the "
            "array 'client'"
        )
    labels, split = rows["y"].astype(np.int64), rows.get("split")
    if labels.min() < 0:
        raise ValueError(f"{name}: y has label {labels.min()}; number labels from 0 on")
    if split is not None:
        _check_parts(name, split)
    return label_skew.divide(partition, labels, outputs, split=split, cap=cap, seed=seed)


def _check_parts(name, split):
    unknown = ~np.isin(split, PARTS)
    if unknown.any():
        first = int(np.argmax(unknown))
        raise ValueError(
            f"{name}: split has {str(split[first])!r} at example {first}; "
            f"use {', '.join(PARTS)}"
        )


def _read_splits(name, names, split, indices):
    """Returns, per client, the positions in indices[i] of the examples of each part."""
    _check_parts(name, split)
    parts = [part for part in PARTS if part in split or part != "val"]
    splits = []
    for client, rows in zip(names, indices, strict=True):
        splits.append({part: np.flatnonzero(split[rows] == part) for part in parts})
        for part, chosen in splits[-1].items():
            if not len(chosen):
                raise ValueError(
                    f"{name}: client {str(client)!r} has no {part!r} in split; give every "
                    f"client an example in each of {', '.join(parts)}"
                )
    return splits


def _read_graph(name, names, edges, edge_weight, directed):
    """Returns the graph of edges between clients, which are given by name."""
    edges = np.zeros((0, 2), np.int32) if edges is None else _array(name, "edges", edges)
    if edges.size == 0:
        edges = np.zeros((0, 2), names.dtype)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise ValueError(f"{name}: edges has shape {edges.shape}; give pairs of clients [m, 2]")
    if edges.dtype.kind not in "iuU" or (edges.dtype.kind == "U") != (names.dtype.kind == "U"):
        raise ValueError(
            f"{name}: edges has type {edges.dtype} and client has {names.dtype}; use the same "
            "names in both"
        )
    pairs = np.minimum(np.searchsorted(names, edges), len(names) - 1)
    unknown = names[pairs] != edges
    if unknown.any():
        first = int(np.argmax(unknown.any(axis=1)))
        raise ValueError(
            f"{name}: edges: edge number {first}, {tuple(edges[first].tolist())}, names client "
            f"{edges[unknown][0].item()!r}, which has no examples; correct it"
        )
    if edge_weight is not None:
        edge_weight = np.asarray(edge_weight)
        if edge_weight.dtype.kind not in "biuf" or edge_weight.shape != (len(edges),):
            raise ValueError(
                f"{name}: edge_weight has shape {edge_weight.shape} and type "
                f"{edge_weight.dtype} for {len(edges)} edges; give one number per edge"
            )
    return relations.from_edges(len(names), pairs, edge_weight, directed=directed, names=names)
