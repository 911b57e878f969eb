"""Which clients join a federation only after it has been trained."""

import math

import numpy as np

from graphfl_jax import tree
from graphfl_jax.core import FederatedData
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation

GRAPHS = ("inductive", "transductive")


def hold_out(federation: Federation, *, fraction: float, graph: str, seed: int) -> Federation:
    """Draws new clients and leaves them out of what is trained on.

    Args:
      federation: in which every client trains.
      fraction: of the N clients that join later; floor(fraction N) of them.
      graph: what training knows of them: "inductive" nothing, "transductive" their relations,
        as clients that are never drawn.
      seed: of the draw.

    Raises:
      ValueError: an unknown graph, or a fraction that leaves nobody to train or to join.
    """
    if graph not in GRAPHS:
        raise ValueError(
            f"new_clients.graph={graph!r} is unknown; choose from {', '.join(GRAPHS)}"
        )
    total = len(federation.clients)
    joining = math.floor(fraction * total + 1e-9)  # 0.29 * 100 is less than 29
    if not 0 < joining < total:
        raise ValueError(
            f"new_clients.fraction={fraction} makes {joining} of the {total} clients of "
            f"{federation.name} new clients; set it in [{1 / total:.3g}, 1), or to 0 for none"
        )
    # Three numbers, where the clients' own splits are seeded by two.
    order = np.random.default_rng([seed, total, joining]).permutation(total)
    training, later = np.sort(order[joining:]), np.sort(order[:joining])
    order = np.concatenate([training, later])
    everyone = _chosen(federation.data, order)
    known = _chosen(federation.data, training)
    if graph == "transductive":
        known = known._replace(graph=everyone.graph)
    return federation._replace(
        data=known,
        everyone=everyone,
        new_clients=joining,
        clients=tuple(federation.clients[i] for i in order),
    )


def _chosen(data, clients):
    return FederatedData(
        train=tree.take(data.train, clients),
        evals=tree.take(data.evals, clients),
        graph=relations.subgraph(data.graph, clients),
    )
