"""The description of a federation, for readers without its data: federation.json."""

from typing import Any

import numpy as np

from graphfl_jax.build import Experiment
from graphfl_jax.data.federation import Federation
from graphfl_jax.examples import Windows
from graphfl_jax.runs.attack_results import malicious_clients

FILE = "federation.json"


def description_of(experiment: Experiment) -> dict[str, Any]:
    """The content of federation.json.

    Returns:
      Facts of the data set; ``clients``, with for each its name, its numbers of ``examples``
      and of each of their ``labels`` by split, its ``position``, and whether it is ``new`` or
      ``malicious``; ``axes``, what a position consists of; and ``relations``, for each the
      numbers of the sender and of the receiver among the clients, and its weight. Positions,
      axes and labels are None where there are none.
    """
    federation = experiment.federation
    whole = federation.everyone or federation.data
    splits = {"train": whole.train, **whole.evals}
    positions, count = federation.positions, len(federation.clients)
    new = np.arange(count) >= count - federation.new_clients
    malicious = np.zeros(count, bool)
    malicious[: count - federation.new_clients] = malicious_clients(experiment)
    labels = {split: _labels(federation, examples) for split, examples in splits.items()}
    has_labels = federation.task != "regression"
    graph = whole.graph
    edges = zip(*(part.tolist() for part in (graph.senders, graph.receivers)), strict=True)
    return {
        "name": federation.name,
        "source": federation.source,
        "extent": federation.extent,
        "sha256": federation.sha256,
        "task": federation.task,
        "outputs": federation.outputs,
        "labels": list(federation.labels),
        "axes": positions and list(positions.axes),
        "clients": [
            {
                "name": name,
                "examples": {s: int(examples.count[i]) for s, examples in splits.items()},
                "labels": (
                    {s: counts[i].tolist() for s, counts in labels.items()}
                    if has_labels
                    else None
                ),
                "position": positions and positions.values[i].tolist(),
                "new": bool(new[i]),
                "malicious": bool(malicious[i]),
            }
            for i, name in enumerate(federation.clients)
        ],
        "relations": [
            [*edge, weight]
            for edge, weight in zip(edges, np.asarray(graph.edges).tolist(), strict=True)
        ],
    }


def _labels(federation: Federation, examples) -> np.ndarray | None:
    """The number of examples of each client with each label [N, O]; None without labels."""
    if federation.task == "regression" or isinstance(examples, Windows):
        return None
    real = np.arange(examples.y.shape[1])[None] < np.asarray(examples.count)[:, None]  # [N, S]
    y = np.asarray(examples.y)
    if federation.task == "classification":
        labels = range(federation.outputs)
        return np.stack([np.sum(real & (y == label), axis=1) for label in labels], axis=1)
    return np.sum(real[..., None] & (y > 0), axis=1)
