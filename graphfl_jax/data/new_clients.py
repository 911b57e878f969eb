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
      graph: "inductive": the training graph has the training clients only. "transductive": all.
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
        raise ValueError(_misfit(federation.name, fraction, new_clients, total))
    # Three numbers, because the clients' splits are seeded by two.
    drawn = np.random.default_rng([seed, total, new_clients]).permutation(total)
    training = np.sort(drawn[new_clients:])
    order = np.concatenate([training, np.sort(drawn[:new_clients])])
    federation = rescale(federation, training)
    everyone = select_clients(federation.data, order)
    data = select_clients(federation.data, training)
    if graph == "transductive":
        data = data._replace(graph=everyone.graph)
    units, positions = federation.units, federation.positions
    return federation._replace(
        data=data,
        everyone=everyone,
        new_clients=new_clients,
        units=units.of(training) if isinstance(units, OwnUnits) else units,
        clients=tuple(federation.clients[i] for i in order),
        positions=positions and positions._replace(values=positions.values[order]),
    )


def _misfit(name, fraction, new_clients, total):
    """Why there would be no new client, or no training client."""
    if total == 1:
        needs = "needs two clients"
        return f"new_clients.fraction={fraction} {needs}, and {name} has one; set it to 0"
    return (
        f"new_clients.fraction={fraction} makes {new_clients} of the {total} clients of {name} "
        f"new clients; set it in [{math.ceil(1000 / total) / 1000:.3g}, 1), or to 0 for none"
    )


def select_clients(data, clients):
    """The data of `clients` [n], which become clients 0 to n - 1."""
    return data._replace(
        train=tree.take(data.train, clients),
        evals=tree.take(data.evals, clients),
        graph=relations.subgraph(data.graph, clients),
    )
