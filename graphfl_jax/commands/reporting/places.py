"""Where the clients of a federation lie on a map, and the lines between them."""

from typing import Any

import networkx as nx
import numpy as np

DEGREES = ["longitude", "latitude"]
SEED = 0  # of the positions where the data have none


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
            if share > 1 / len(allocation)
        ]
    relations = [one for one in relations if one[0] != one[1]]
    weights = {}
    for sender, receiver, weight in relations:
        pair = (min(sender, receiver), max(sender, receiver))
        weights[pair] = max(weight, weights.get(pair, weight))
    edges = [[*pair, weight] for pair, weight in sorted(weights.items())]
    count = len(described["clients"])
    known = described["axes"] and [one["position"] for one in described["clients"]]
    return {
        "positions": _projected(known, described["axes"]) if known else _spring(count, edges),
        "edges": edges,
        "relations": len(relations),
        "learned": learned,
        "axes": " and ".join(described["axes"]) if known else "",
    }


def _projected(positions, axes):
    """Degrees in equal distances around their mean latitude; other positions as they are."""
    places = np.array(positions, np.float64)
    if list(axes) == DEGREES:
        places[:, 0] *= np.cos(np.radians(places[:, 1].mean()))
    return places.round(5).tolist()


def _spring(count, edges):
    """Positions that draw related clients together (Fruchterman, Reingold)."""
    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    if not edges:
        places = nx.circular_layout(graph)
    else:
        graph.add_weighted_edges_from(edges)
        # Weights only up to their rank: a few large ones would draw all clients into one point.
        places = nx.spring_layout(graph, seed=SEED, weight=None, iterations=100)
    return [np.round(places[i], 5).tolist() for i in range(count)]
