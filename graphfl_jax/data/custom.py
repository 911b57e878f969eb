"""The user's own data: from arrays in memory, a file of arrays, a table, or a folder."""

import collections
import functools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from graphfl_jax.data import content, files, label_skew, relations, scaling, tables
from graphfl_jax.data.client_folders import read_folder
from graphfl_jax.data.common_settings import Cap, ValFraction
from graphfl_jax.data.edge_files import read_edges
from graphfl_jax.data.federation import Federation, federate
from graphfl_jax.data.rows import Rows
from graphfl_jax.data.splits import PARTS, TEST_FRACTION, RandomSplit, in_rows, split_training
from graphfl_jax.data.tables import Columns
from graphfl_jax.settings import Choice, Part, Text, Variant

NAME = "custom"  # of a federation that has no other
REQUIRED = ("x", "y")
RELATIONS = ("edges", "edge_weight", "directed")
ARRAYS = (*REQUIRED, "client", "split", *RELATIONS)
NAMED = ("client", "split", "edges")
IMAGES = ("channels_last", "channels_first")
CASTS = {"x": "float", "client": "int"}  # of objects, as of pandas, and of floats
TASKS = ("", "classification", "regression")
LARGEST_WHOLE = 2**53  # from which on not every integer is a float64

OwnPath = Annotated[
    str,
    Text(
        "File of arrays, written by np.savez; table, .csv or .parquet; or folder of PFLlib or "
        "of LEAF; required."
    ),
]
OwnTask = Annotated[
    str,
    Choice(
        "What y holds: labels of a classification, or targets of a regression; empty: integers "
        "and text are labels, and floats are targets.",
        TASKS,
    ),
]
OwnPartition = Annotated[
    Any,  # a name in configurations, and in loaders what the factory of that name makes
    Variant(
        "How examples without clients are divided among clients; empty: they have clients.",
        label_skew.PARTITIONS,
        factories=label_skew.PARTITIONS,
        or_none=True,
    ),
]
Images = Annotated[
    str, Choice("Order of the axes of images x: [n, H, W, C] or [n, C, H, W].", IMAGES)
]


def custom(
    *,
    path: OwnPath = "",
    columns: Annotated[Columns, Part(Columns)] = Columns(),  # noqa: B008
    edges: Annotated[str, Text("File of relations: pairs of clients, or a matrix.")] = "",
    images: Images = IMAGES[0],
    task: OwnTask = "",
    partition: OwnPartition = "",
    cap: Cap = 0,
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
    """Loads the user's own data from a file of arrays, a table, or a folder.

    The arrays of a file of ``np.savez`` have the names and meanings of the arguments of
    `from_arrays`: x, y and client, and optionally split, edges, edge_weight and directed (a
    boolean scalar). With a partition, there is no array client. Tables are read by
    `tables.read_table`, folders by `client_folders.read_folder`, and `edges` by
    `edge_files.read_edges`.

    Raises:
      ValueError: `path` is empty, or the file or its arrays are invalid. One line with the
        file, the array or column, and a remedy.
      FileNotFoundError: the file is missing.
    """
    arrays, targets = _read(path, columns, bool(partition))
    if edges:
        _check_no_relations(path, edges, arrays)
        clients = np.unique(arrays["client"]) if "client" in arrays else None
        arrays |= read_edges(edges, clients)
    if images == "channels_first":
        arrays["x"] = _with_channels_last(path, arrays["x"])
    federation = from_arrays(
        **arrays,
        name=f"{path} with {edges}" if edges else str(path),
        task=task,
        partition=partition,
        cap=cap,
        seed=seed,
        val_fraction=val_fraction,
        scale=scale,
        scale_by=scale_by,
    )
    if targets and federation.task == "regression":
        federation = federation._replace(labels=targets)
    return federation._replace(name=NAME)


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    client: ArrayLike | None = None,
    *,
    task: str = "",
    partition: Callable | None = None,
    cap: int = 0,
    split: ArrayLike | None = None,
    edges: ArrayLike | None = None,
    edge_weight: ArrayLike | None = None,
    directed: bool = False,
    name: str = NAME,
    seed: int = 0,
    val_fraction: float = 0.0,
    test_fraction: float = TEST_FRACTION,
    scale: str = "none",
    scale_by: str = "federation",
) -> Federation:
    """Makes a federation from arrays with one row per example.

    Args:
      x: [n, *features] numbers.
      y: labels [n], or targets [n] or [n, *targets], which are flattened to [n, O]. Labels but
        0 to K - 1, such as text, are numbered in their order; `Federation.labels` has them.
      client: [n] strings or integers, the client of each example. Clients are sorted by name.
      task: "regression"; or "classification", in which y may also be whole floats, a column
        [n, 1], or one-hot rows [n, K]. Empty: integers [n] and text are labels, floats are
        targets, and a warning says where y could be read as the other.
      partition: divides labelled examples without `client` among clients 0, 1, ...; made by a
        factory of `label_skew.PARTITIONS`. Of a given split, it divides the training examples,
        and the other examples in the same class proportions.
      cap: most examples of a client in each given split, with a partition; 0 is all.
      split: [n] of "train", "val" and "test", of which every client needs examples, of "val" if
        any client has some. None splits each client's examples at random.
      edges: [m, 2] pairs of names of related clients.
      edge_weight: [m] numbers of at least 0; None means that all are 1.
      directed: whether edges are directed: the second client receives from the first.
      name: of the federation in results, and unless it is the default one in messages.
      seed: of a random split.
      val_fraction: share of each client's examples for validation; of a `split`, of "train".
      test_fraction: share of each client's examples for test, in a random split.
      scale: one of `scaling.KINDS`, for inputs and targets.
      scale_by: one of `scaling.BY`: whose training examples determine the scaling.

    Raises:
      ValueError: the arrays are invalid. One line with the name, the array and a remedy.
    """
    Choice("", TASKS).check("data.task", task)
    where = "the arrays" if name == NAME else name
    rows = _read_rows(where, {"x": x, "y": y, "client": client, "split": split}, task)
    random = RandomSplit(seed, val_fraction, test_fraction)
    if rows.split is not None:
        _check_random_split(where, rows.split, random)
    if cap and not partition:
        raise ValueError(f"{where}: cap={cap} has no effect without a partition; leave it out")
    names, indices = _divide(where, rows, partition, cap, seed)
    graph = _read_graph(where, names, edges, edge_weight, directed)
    made = _federate(where, rows, names, indices, graph, random, (scale, scale_by))
    return made._replace(name=name)


class _Rows(NamedTuple):
    """Arrays with one row per example."""

    x: np.ndarray  # [n, *features]
    y: np.ndarray  # labels [n] from 0 on, or targets [n, O]
    client: np.ndarray | None  # [n] names
    split: np.ndarray | None  # [n] names
    task: str
    outputs: int  # labels or targets
    labels: tuple[int | str, ...]  # in the data, if others than 0, 1, ...


def _read(path, columns, partitioned) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments of `from_arrays`, and the names of targets, which tables have."""
    if not path:
        raise ValueError(
            "custom: data.path is empty; set --config.data.path to a table, .csv or .parquet, "
            f"or to a file of arrays, written by np.savez with {', '.join(REQUIRED)}"
        )
    if Path(path).is_dir():
        columns.check_unread(path)
        return read_folder(path), ()
    files.check_exists(path)
    if Path(path).suffix.lower() in tables.SUFFIXES:
        return tables.read_table(path, columns, partitioned=partitioned)
    columns.check_unread(path)
    if Path(path).suffix.lower() != ".npz" and not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path}: the file is neither a table, whose name ends in "
            f"{' or '.join(tables.SUFFIXES)}, nor a complete npz file; rename it, or write it "
            "with np.savez"
        )
    return read_arrays(path), ()


def _check_no_relations(path, edges, arrays):
    there = [name for name in RELATIONS if name in arrays]
    if there:
        raise ValueError(
            f"data.edges={edges!r}: {path} has relations too, in {', '.join(there)}; leave "
            "data.edges empty, or remove them from the file"
        )


def _with_channels_last(path, x):
    if x.ndim != 4:
        raise ValueError(
            f"data.images=channels_first is of x [n, channels, height, width], and {path} has "
            f"x of shape {x.shape}; leave it out"
        )
    return np.moveaxis(x, 1, -1)


def read_arrays(path) -> dict[str, Any]:
    """Reads the arrays of a file by name. Pickled arrays are refused."""
    with Path(path).open("rb") as opened:
        file = files.open_npz(path, opened)
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
        arrays: dict[str, Any] = {f: files.read_npz_array(path, file, f) for f in file.files}
    if "directed" in arrays:
        directed = arrays["directed"]
        if directed.shape or directed.dtype != bool:
            raise ValueError(
                f"{path}: directed has shape {directed.shape} and type {directed.dtype}; "
                "give True or False"
            )
        arrays["directed"] = bool(directed)
    return arrays


def _read_array(name, field, rows):
    """The array of an argument. Strings that are objects, as in pandas, become strings."""
    if isinstance(rows, np.ma.MaskedArray) and rows.mask.any():
        raise ValueError(
            f"{name}: {field} has {int(rows.mask.sum())} masked values; leave their examples "
            "out, or fill them in"
        )
    try:
        array = np.asarray(rows)
        if array.dtype.kind == "U" and array is not rows:  # NumPy writes missing values as text
            array = np.asarray(rows, object)
    except ValueError:
        raise ValueError(f"{name}: {field} has rows of several shapes; give all one") from None
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):
        return array.astype(str)
    if array.ndim and (array.dtype == object or (array.dtype.kind in "fM" and field in NAMED)):
        missing = [place for place, value in enumerate(array.flat) if _is_missing(value)]
        if missing:
            raise ValueError(
                f"{name}: {field} has {len(missing)} missing values, the first in row "
                f"{np.unravel_index(missing[0], array.shape)[0]}, counted from 0; leave their "
                "rows out, or fill them in"
            )
    return array


def _is_missing(value):
    """Whether a value is None, NaN, or the NaT or NA of pandas."""
    return value is None or type(value).__name__ == "NAType" or bool(np.any(value != value))


def _read_rows(name, arrays, task):
    """Checks the types of the arguments, that all have the length of x, and the parts."""
    rows = {f: _read_array(name, f, array) for f, array in arrays.items() if array is not None}
    kinds = {
        "x": ("biuf", "give numbers"),
        "y": ("biufU", "give integers or text for labels, floats for targets"),
        "client": ("iuU", "give strings or integers"),
        "split": ("U", f"give the strings {', '.join(PARTS)}"),
    }
    for field, array in rows.items():
        admitted, remedy = kinds[field]
        if array.dtype.kind not in admitted:
            odd = _odd_value(array)
            if not odd and field in CASTS and array.dtype.kind in "Of":
                remedy += f", as by {field}.astype({CASTS[field]})"
            raise ValueError(f"{name}: {field} has type {array.dtype}{odd}; {remedy}")
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
    unknown = ~np.isin(rows.get("split", ()), PARTS)
    if unknown.any():
        first = int(np.argmax(unknown))
        raise ValueError(
            f"{name}: split has {str(rows['split'][first])!r} at example {first}; "
            f"use {', '.join(PARTS)}"
        )
    of_y = _read_targets(name, rows["y"], task)
    return _Rows(rows["x"], client=rows.get("client"), split=rows.get("split"), **of_y)


def _odd_value(array):
    """The first value of another type than most objects have, as text."""
    kinds = [type(value) for value in array.flat]
    if array.dtype != object or len(set(kinds)) < 2:
        return ""
    usual, _ = collections.Counter(kinds).most_common(1)[0]
    place = int(np.argmax([kind is not usual for kind in kinds]))
    example = np.unravel_index(place, array.shape)[0]
    return (
        f", with {array.flat[place]!r} at example {example} and {usual.__name__} elsewhere, "
        f"counted from 0"
    )


def _read_targets(name, y, task) -> dict[str, Any]:
    """The fields of `_Rows` that y decides, with the task."""
    text = y.dtype.kind == "U"
    if text and (task == "regression" or y.size > len(y)):
        raise ValueError(
            f"{name}: y has text of shape {y.shape}, such as {str(y.flat[0])!r}; give numbers "
            "for targets, or one label per example for a classification"
        )
    readable = _find_labels(y)
    if not task:
        task = "regression" if y.dtype.kind == "f" else "classification"
        if task == "classification" and y.ndim != 1 and not text:
            hot = "" if readable is None else "set --config.data.task=classification, or "
            raise ValueError(
                f"{name}: y has integers of shape {y.shape}; {hot}give one label per example, "
                "or floats for targets"
            )
        if readable is not None and not text:
            content.warn_of_guess(name, y, readable, task)
    if task == "regression":
        y = (y if y.dtype.kind == "f" else y.astype(float)).reshape(len(y), -1)
        return {"task": task, "y": y, "outputs": y.shape[1], "labels": ()}
    if readable is None:
        raise ValueError(
            f"{name}: y of type {y.dtype} and shape {y.shape} has no labels, as "
            "data.task=classification says; give one whole number per example or one-hot "
            "rows, or set --config.data.task=regression"
        )
    labels, places = np.unique(readable, return_inverse=True)
    if len(labels) < 2:
        remedy = "" if text else ", or set --config.data.task=regression"
        raise ValueError(
            f"{name}: y has the label {labels[0]} alone; give at least two labels{remedy}"
        )
    numbered = not text and (labels == np.arange(len(labels))).all()
    names = () if numbered else tuple(labels.tolist())
    return {"task": task, "y": places, "outputs": len(labels), "labels": names}


def _find_labels(y):
    """The labels [n] in y: whole numbers, one per example, or the places of the ones in
    one-hot rows; None if y has none."""
    rows = y.reshape(len(y), -1)
    if rows.shape[1] > 1:
        hot = np.isin(rows, (0, 1)).all() and (rows.sum(axis=1) == 1).all()
        return rows.argmax(axis=1) if hot else None
    if y.dtype.kind != "f":
        return rows[:, 0]
    numbers = rows[:, 0].astype(float)
    whole = (numbers == np.floor(numbers)) & (abs(numbers) < LARGEST_WHOLE)  # false for NaN
    return numbers.astype(np.int64) if whole.all() else None


def _check_random_split(name, split, random):
    """Refuses settings of a random split that have no effect beside a given one."""
    if random.val_fraction > 0 and "val" in split:
        raise ValueError(
            f"{name}: data.val_fraction={random.val_fraction} has no effect on a split with "
            f'"val"; leave it out'
        )
    if random.test_fraction != TEST_FRACTION:
        raise ValueError(
            f"{name}: test_fraction={random.test_fraction} has no effect on a given split; "
            "leave it out"
        )


def _divide(name, rows, partition, cap, seed):
    """The names of the clients [N], and the `Rows` of the indices of their examples."""
    if partition:
        indices = _divide_by_label(name, rows, partition, cap, seed)
        return np.arange(len(indices)), Rows.of(indices)
    if rows.client is None:
        raise ValueError(
            f"{name}: there is no array 'client'; add it, or set --config.data.partition to "
            f"{' or '.join(label_skew.PARTITIONS)}"
        )
    names, holder, counts = np.unique(rows.client, return_inverse=True, return_counts=True)
    return names, Rows(np.argsort(holder, kind="stable"), counts)


def _divide_by_label(name, rows, partition, cap, seed):
    if rows.client is not None:
        raise ValueError(
            f"{name}: data.partition divides examples among clients, and the array 'client' "
            "does so too; leave data.partition empty, or remove the array"
        )
    if rows.task != "classification":
        raise ValueError(
            f"{name}: data.partition divides examples by label, and y holds targets; add the "
            "array 'client', or set --config.data.task=classification"
        )
    return label_skew.divide(
        partition, rows.y, rows.outputs, split=rows.split, cap=cap, seed=seed
    )


def _federate(name, rows, names, indices, graph, random, scale):
    """The federation of clients with these names and examples; `scale` is how and by whom."""
    kind, by = scale
    Choice("", scaling.KINDS).check("data.scale", kind)
    Choice("", scaling.BY).check("data.scale_by", by)
    if kind == "none" and by != "federation":
        raise ValueError(
            f"{name}: data.scale_by={by} has no effect with data.scale=none; leave it out"
        )
    splits = None
    if rows.split is not None:
        splits = _read_splits(name, names, rows.split, indices.split(), random)
    order = indices.values
    if np.array_equal(order, np.arange(len(rows.x))):
        order = slice(None)  # the examples stand in the order of the clients: no copy
    make = functools.partial(
        federate,
        tuple(map(str, names.tolist())),
        x=indices._replace(values=rows.x[order]),
        y=indices._replace(values=rows.y[order]),
        graph=graph,
        task=rows.task,
        outputs=rows.outputs,
        labels=rows.labels,
        name=name,
        source="own",
        split=splits or random,
    )
    how = {"kind": kind, "by": by}
    federation = make(scale=None if kind == "none" else how)
    if kind != "none" and by == "federation":
        federation = federation._replace(
            refit=lambda deciders: make(scale=how | {"deciders": deciders})
        )
    parts = in_rows(splits, indices.counts) if splits else random.of_clients(indices.counts)
    train, test = (indices.values[parts[part].values] for part in ("train", "test"))
    content.warn_of_shared_examples(name, rows.x, rows.y, train, test)
    if kind == "none":
        content.warn_of_merged_numbers(name, rows.x)
    return federation


def _read_splits(name, names, split, indices, random):
    """Per client, the positions in indices[i] of the examples of each part."""
    parts = [part for part in PARTS if part in split or part != "val"]
    splits = []
    for i, (client, rows) in enumerate(zip(names, indices, strict=True)):
        for part in parts:
            if not (split[rows] == part).any():
                raise ValueError(
                    f"{name}: client {str(client)!r} has no {part!r} in split; give every "
                    f"client an example in each of {', '.join(parts)}"
                )
        splits.append(split_training(split[rows], i, random))
    return splits


def _read_graph(name, names, edges, edge_weight, directed):
    """The graph of edges between clients, which are given by name."""
    if directed and edges is None:
        raise ValueError(f"{name}: directed=True has no effect without edges; leave it out")
    edges = _read_array(name, "edges", () if edges is None else edges)
    if edges.size == 0:
        edges = np.zeros((0, 2), names.dtype)
    if edges.shape[1:] != (2,):
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
        edge_weight = _read_array(name, "edge_weight", edge_weight)
        if edge_weight.dtype.kind not in "biuf" or edge_weight.shape != (len(edges),):
            raise ValueError(
                f"{name}: edge_weight has shape {edge_weight.shape} and type "
                f"{edge_weight.dtype} for {len(edges)} edges; give one number per edge"
            )
    form = {"directed": directed, "names": names}
    try:
        return relations.from_edges(len(names), pairs, edge_weight, **form)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
