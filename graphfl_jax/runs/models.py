"""The file of a run's models: what every client predicts with, at P and at G.

``models.safetensors`` holds tensors whose first axis is clients, by names such as
``P/params/body/Dense_0/kernel``. With several architectures, the name of the architecture comes
first. What a predictor needs beside the parameters of its model is under ``extra``. Where a
method predicts at P with the model at G, there are tensors of P alone.

The metadata has one entry, ``graphfl_jax``, with JSON of all that is needed to predict without
the data: the configuration, the shapes of the data, the scaling, and the clients of each
architecture.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors
from ml_collections import ConfigDict
from safetensors.numpy import save

from graphfl_jax import tree
from graphfl_jax.build import Experiment
from graphfl_jax.configs.base import variant_of
from graphfl_jax.configs.values import values_of
from graphfl_jax.core import FederatedData
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation
from graphfl_jax.examples import Examples, Windows
from graphfl_jax.rounds import scored_ids
from graphfl_jax.runs import checkpoint, forms
from graphfl_jax.runs.forms import load_json, misfit
from graphfl_jax.version import __version__

FILE = "models.safetensors"
KEY = "graphfl_jax"  # of the metadata
FORMAT = 2
POINTS = ("G", "P")
NAMING = {"attack.clients", "new_clients.clients"}  # fields that name clients
LARGEST = 100_000_000  # bytes of a file that a run writes unasked


class GroupOfModels(NamedTuple):
    """The clients of one architecture, and their predictors."""

    name: str  # of the architecture, where there are several
    clients: list[str]
    predictors: dict[str, Any]  # by point, every leaf [n, ...]; of P alone if P is G


def groups_of(experiment: Experiment, trained: tuple, joined: tuple = ()) -> list:
    """The clients of each architecture with their predictors.

    Args:
      trained: `evaluation.predictors_of_clients` of the clients that train.
      joined: the same after new clients have joined, of which the new ones are taken; () leaves
        the new clients out.
    """
    names, training = experiment.federation.clients, experiment.federation.training_clients
    groups = []
    for g, group in enumerate(experiment.joined if joined else experiment.groups):
        everyone = np.arange(len(names) if joined else training)
        ids = everyone if group.ids is None else group.ids
        parts = [trained[g]] if g < len(trained) else []
        if group.cohort_size and joined:
            count = group.cohort_size  # the number of its new clients
            parts.append(jax.tree.map(lambda leaf: leaf[-count:], joined[g]))  # noqa: B023
        stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        stacked = stacked if "P" in stacked else {"P": stacked["G"]}
        groups.append(GroupOfModels(group.name, [names[i] for i in ids], stacked))
    return groups


def facts_of(
    experiment: Experiment, config: ConfigDict, played: int, trained: list[int] | None
) -> dict[str, Any]:
    """What is needed to rebuild the models of a run without its data, as JSON.

    Args:
      played: rounds.
      trained: of these, the rounds in which each client that is scored trained, if they are
        known; ``scored`` has the numbers of these clients, unless they are all.
    """
    federation = experiment.federation
    ids = scored_ids(experiment.groups, len(federation.data.train.count))
    scaling = federation.scaling or federation.loader_scaling
    return {
        "version": __version__,
        "method": variant_of(config),
        "round": played,
        "rounds_trained": trained,
        "scored": None if len(ids) == len(federation.data.train.count) else ids.tolist(),
        "config": values_of(config)[0],
        "model": {
            "name": config.model.name,
            "inputs": list(_example(federation.data.train).shape),
            "type": str(_example(federation.data.train).dtype),
            "outputs": federation.outputs,
            "task": federation.task,
            "labels": list(federation.labels),
            "units": federation.units and federation.units.name,
        },
        "dataset": {"name": federation.name, "source": federation.source},
        "scaling": scaling and scaling.as_json(),
        "clients": list(federation.clients),
        "new_clients": federation.new_clients,
        "data": _shapes(federation.data),
        "everyone": federation.everyone and _shapes(federation.everyone),
    }


def facts_of_client(facts: dict[str, Any], client: str, rounds: int | None) -> dict[str, Any]:
    """The facts of one client, which name no other.

    Args:
      facts: from `facts_of`.
      client: its name.
      rounds: in which it trained, if this is known.
    """
    scaling, config = facts["scaling"], facts["config"]
    if scaling and scaling["clients"]:
        row = scaling["clients"].index(client)
        parts = {part: scaling[part] for part in ("inputs", "targets") if scaling[part]}
        rows = {
            part: {name: values[row : row + 1] for name, values in moved.items()}
            for part, moved in parts.items()
        }
        scaling = scaling | rows | {"clients": [client]}
    return facts | {
        "clients": [client],
        "scaling": scaling,
        "rounds_trained": None if rounds is None else [rounds],
        "scored": None,
        "config": config | {field: _numbers(config[field]) for field in NAMING & config.keys()},
    }


def _numbers(names):
    """As many clients without their names."""
    return [str(i) for i in range(len(names))]


def write(path: Path, groups: list[GroupOfModels], facts: dict[str, Any]) -> None:
    """Writes models in one step.

    Args:
      facts: from `facts_of`, or from another file.

    Raises:
      WriteError: the file cannot be written.
    """
    tensors, described = {}, []
    for group in groups:
        only = next(iter(group.predictors))  # P alone, where P is G
        points = {p: p if p in group.predictors else only for p in POINTS}
        described.append({"name": group.name, "clients": group.clients, "points": points})
        for point, predictor in group.predictors.items():
            start = prefix(group.name, point)
            for name, leaf in tree.leaves_by_name(predictor).items():
                tensors[start + name] = np.ascontiguousarray(jax.device_get(leaf))
    body = {**facts, "format": FORMAT, "groups": described}
    body["sha256"] = _digest(tensors, body)
    checkpoint.write_bytes(path, save(tensors, {KEY: json.dumps(body, sort_keys=True)}))


def prefix(architecture: str, point: str) -> str:
    """The beginning of the names of the tensors of an architecture at a point."""
    return f"{architecture}/{point}/" if architecture else f"{point}/"


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The facts and the tensors of a file that `write` wrote.

    Raises:
      ValueError: the file is damaged, or none of this package or of this version.
      OSError: it cannot be read.
    """
    again = "write it again with graphfl run --resume, or correct the path"
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        body = load_json(metadata[KEY]) if KEY in metadata else None
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({' '.join(str(error).split())}); {again}"
        ) from error
    if not isinstance(body, dict) or "format" not in body:
        raise ValueError(f"{path} holds no models of this package; {again}")
    if body["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {body['format']}, and version {__version__} reads format "
            f"{FORMAT}; read it with version {body.get('version')}"
        )
    if body.pop("sha256", "") != _digest(tensors, body):
        raise ValueError(f"{path} is damaged (its digest differs); {again}")
    if why := misfit(body, forms.MODELS) or _contradiction(body):
        raise ValueError(f"{path} is damaged ({why}); {again}")
    return body, tensors


def _contradiction(facts):
    """What in the facts does not fit together; empty if all does."""
    names, model, scaling = set(facts["clients"]), facts["model"], facts["scaling"]
    trained, scored = facts.get("rounds_trained"), facts.get("scored")
    if trained is not None and scored is not None and len(trained) != len(scored):
        return "rounds_trained has other clients than scored"
    if len(facts["clients"]) not in (1, _count(facts)):
        return "it has other clients than data"
    if facts["new_clients"] >= _count(facts) or bool(facts["new_clients"]) != bool(
        facts["everyone"]
    ):
        return "new_clients does not fit the clients"
    if not names.issuperset(name for group in facts["groups"] for name in group["clients"]):
        return "groups have clients that it does not have"
    for data in filter(None, (facts["data"], facts["everyone"])):
        parts = [data["train"], *data["evals"].values()]
        shapes = [
            [part[key][0] for key in part if key in ("x", "y", "series")] for part in parts
        ]
        if any(shape[:2] != of_part[0][:2] for of_part in shapes for shape in of_part):
            return "x and y of a split have different sizes"
        if len({of_part[0][0] for of_part in shapes}) > 1:
            return "the splits have different numbers of clients"
    if scaling and scaling["clients"] and not names <= {*scaling["clients"]}:
        return "scaling lacks a client"
    for part, shape in (("inputs", model["inputs"]), ("targets", [model["outputs"]])):
        for values in (scaling and scaling[part] or {}).values():
            rows, *sizes = np.shape(values)
            if rows != (len(scaling["clients"]) or 1) or not _broadcasts(sizes, shape):
                return f"scaling.{part} does not fit the model"
    return ""


def _broadcasts(sizes, shape):
    """Whether an array of these sizes can be added to one of a shape."""
    return len(sizes) <= len(shape) and all(
        size in (1, of_shape) for size, of_shape in zip(sizes[::-1], shape[::-1], strict=False)
    )


def placeholder(facts: dict[str, Any]) -> Federation:
    """A federation of the recorded shapes, whose examples are all 0 and take no memory."""
    data, everyone, model = facts["data"], facts["everyone"], facts["model"]
    return Federation(
        data=_zeros(data),
        task=model["task"],
        outputs=model["outputs"],
        name=facts["dataset"]["name"],
        source=facts["dataset"]["source"],
        sha256="",
        clients=range(_count(facts)),
        new_clients=facts["new_clients"],
        everyone=everyone and _zeros(everyone),
        labels=tuple(model["labels"]),
    )


def _count(facts):
    """The number of clients, of which the file of one names no other."""
    train = (facts["everyone"] or facts["data"])["train"]
    return train["series" if "series" in train else "x"][0][0]


def _example(train: Examples | Windows) -> np.ndarray:
    """The inputs of the first example."""
    return np.asarray(tree.take(train, 0).rows(np.arange(1)).x)[0]


def _shapes(data: FederatedData) -> dict[str, Any]:
    """The shapes and types of the arrays of a federation."""
    return {
        "train": _shapes_of(data.train),
        "evals": {name: _shapes_of(examples) for name, examples in data.evals.items()},
        "nodes": relations.num_clients(data.graph),
        "edges": len(data.graph.senders),
    }


def _shapes_of(examples: Examples | Windows) -> dict[str, Any]:
    if isinstance(examples, Windows):
        series = [list(examples.series.shape), str(examples.series.dtype)]
        return {"series": series, "past": examples.past, "future": examples.future}
    return {
        name: [list(array.shape), str(array.dtype)]
        for name, array in (("x", examples.x), ("y", examples.y))
    }


def _zeros(shapes: dict[str, Any]) -> FederatedData:
    graph = relations.pad_edges(relations.from_edges(shapes["nodes"], ()), shapes["edges"])
    evals = {name: _zeros_of(part) for name, part in shapes["evals"].items()}
    return FederatedData(_zeros_of(shapes["train"]), evals, graph)


def _zeros_of(shapes):
    def zeros(name):
        shape, dtype = shapes[name]
        return np.broadcast_to(np.zeros((), dtype), shape)

    if "series" in shapes:
        series = zeros("series")
        count = np.zeros(len(series), np.int32)
        return Windows(series, count, shapes["past"], shapes["future"])
    x = zeros("x")
    return Examples(x, zeros("y"), np.zeros(len(x), np.int32))


def _digest(tensors: dict[str, np.ndarray], facts: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
