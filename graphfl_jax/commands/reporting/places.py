"""Where the clients of a federation lie on a map, and the lines between them."""

import math
from typing import Any

import networkx as nx
import numpy as np

DEGREES = ["longitude", "latitude"]
SEED = 0  # of the positions where the data have none
STEPS = 50_000  # of single clients while positions are sought: more clients have fewer each
WIDE = 1.3  # width of a map without positions, relative to a square of its area


def map_of(described: dict[str, Any], allocation: list | None) -> dict[str, Any]:
    """Positions and lines of a map of clients.

    A line joins two clients that are related in either direction; its weight is the larger one.
    Without relations, learned shares above 1 / clients are shown, if the results have them.

    Args:
      described: the content of federation.json.
      allocation: the learned shares of the training clients in results.json.

    Returns:
      ``positions`` [N, 2], with y upwards and equal scales; ``edges``, each two numbers of
      clients and a weight; ``relations``, the number of relations that the lines show;
      ``learned``, whether they are learned shares; and ``axes``, what the positions are, empty
      where the relations determine them.
    """
    relations, learned = described["relations"], False
    if not relations and allocation:
        learned = True
        relations = [
            [j, i, share]
            for i, shares in enumerate(allocation)
            for j, share in enumerate(shares)
            if share > 1 / len(allocation) + 1e-6  # results.json has six digits
        ]
    relations = [pair for pair in relations if pair[0] != pair[1]]
    weights = {}
    for sender, receiver, weight in relations:
        pair = (min(sender, receiver), max(sender, receiver))
        weights[pair] = max(weight, weights.get(pair, weight))
    edges = [[*pair, weight] for pair, weight in sorted(weights.items())]
    count = len(described["clients"])
    known = described["axes"] and [client["position"] for client in described["clients"]]
    return {
        "positions": _project(known, described["axes"]) if known else _spring(count, edges),
        "edges": edges,
        "relations": len(relations),
        "learned": learned,
        "axes": " and ".join(described["axes"]) if known else "",
    }


def _project(positions, axes):
    """Degrees in equal distances around their mean latitude; other positions as they are."""
    places = np.array(positions, np.float64)
    if list(axes) == DEGREES:
        places[:, 0] *= np.cos(np.radians(places[:, 1].mean()))
    return places.round(5).tolist()


def _spring(count, edges):
    """Positions that draw related clients together (Fruchterman, Reingold).

    Parts of the graph without a relation to each other are placed side by side, in rows.
    """
    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(edge[:2] for edge in edges)
    parts = sorted(nx.connected_components(graph), key=lambda part: (-len(part), min(part)))
    radii = [math.sqrt(len(part)) for part in parts]
    longest = WIDE * math.sqrt(sum((2 * radius + 1) ** 2 for radius in radii))
    places, left, top, tall = np.zeros((count, 2)), 0.0, 0.0, 0.0
    for part, radius in zip(parts, radii, strict=True):
        if left and left + 2 * radius > longest:
            left, top, tall = 0.0, top - tall, 0.0
        centre = (left + radius, top - radius)
        component = graph.subgraph(sorted(part))
        rounds = max(10, min(100, STEPS // len(part)))
        layout = nx.spring_layout(
            component, seed=SEED, scale=radius, center=centre, iterations=rounds, method="force"
        )
        for i, place in layout.items():
            places[i] = place
        left, tall = left + 2 * radius + 1, max(tall, 2 * radius + 1)
    return places.round(5).tolist()
