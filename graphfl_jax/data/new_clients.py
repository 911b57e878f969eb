"""New clients: clients that join a federation after it has been trained."""

import math
from typing import Annotated

import numpy as np

from graphfl_jax import tree
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation, rescale
from graphfl_jax.metrics import OwnUnits
from graphfl_jax.settings import Choice


def hold_out(
    federation: Federation,
    *,
    fraction: float,
    graph: Annotated[
        str,
        Choice(
            "What training knows of new clients: nothing (inductive) or their relations "
            "(transductive).",
            ("inductive", "transductive"),
        ),
    ] = "inductive",
    seed: int,
) -> Federation:
    """Draws new clients at random and removes them from the training data.

    Args:
      federation: a federation without new clients.
      fraction: share of new clients; floor(fraction N) of the N clients are drawn.
      graph: "inductive": the training graph has the training clients only. "transductive": it
        has all clients, and new clients are never in a cohort.
      seed: of the draw.

    Returns:
      The federation, scaled by its training clients if it is scaled, with these clients in
      `data` and all clients in `everyone`, where the new clients come last. Both groups keep
      their order.

    Raises:
      ValueError: there would be no new client or no training client.
    """
    total = len(federation.clients)
    new_clients = math.floor(fraction * total + 1e-9)  # 0.29 * 100 is less than 29
    if not 0 < new_clients < total:
        if total == 1:
            raise ValueError(
                f"new_clients.fraction={fraction} needs two clients, and {federation.name} has "
                f"one; set it to 0"
            )
        raise ValueError(
            f"new_clients.fraction={fraction} makes {new_clients} of the {total} clients of "
            f"{federation.name} new clients; set it in "
            f"[{math.ceil(1000 / total) / 1000:.3g}, 1), or to 0 for none"
        )
    # Three numbers, because the clients' splits are seeded by two.
    order = np.random.default_rng([seed, total, new_clients]).permutation(total)
    training, new = np.sort(order[new_clients:]), np.sort(order[:new_clients])
    order = np.concatenate([training, new])
    federation = rescale(federation, training)
    everyone = select_clients(federation.data, order)
    data, positions = select_clients(federation.data, training), federation.positions
    units = federation.units
    if graph == "transductive":
        data = data._replace(graph=everyone.graph)
    return federation._replace(
        data=data,
        everyone=everyone,
        new_clients=new_clients,
        units=units.of(training) if isinstance(units, OwnUnits) else units,
        clients=tuple(federation.clients[i] for i in order),
        positions=positions and positions._replace(values=positions.values[order]),
    )


def select_clients(data, clients):
    """The data of `clients` [n], which become clients 0 to n - 1."""
    return data._replace(
        train=tree.take(data.train, clients),
        evals=tree.take(data.evals, clients),
        graph=relations.subgraph(data.graph, clients),
    )
