"""New clients: clients that join a federation after it has been trained."""

import math
from typing import Annotated

import numpy as np

from graphfl_jax import tree
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation, numbers_of, rescale
from graphfl_jax.metrics import OwnUnits
from graphfl_jax.settings import Choice, Items, Real

# The fields that say which clients are new; at 0 and empty there are none.
CHOSEN_BY = ("new_clients.fraction", "new_clients.clients")
ALONE, TOGETHER = "alone", "together"
JOIN = Choice(
    "In the rounds of new clients, these alone adapt and all else stays, or all clients take "
    "part together as in training.",
    (ALONE, TOGETHER),
)
FRACTION = Real("Share of the clients that are drawn to join only after training.", high=1.0)
CLIENTS = Items(
    "Clients that join only after training, by name, or by number where no name is a number; "
    "empty: drawn by new_clients.fraction."
)


def hold_out(
    federation: Federation,
    *,
    fraction: float = 0.0,
    clients: Annotated[tuple, CLIENTS] = (),
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
    """Removes new clients, which are drawn at random or named, from the training data.

    Args:
      federation: a federation without new clients.
      fraction: share of new clients; floor(fraction N) of the N clients are drawn.
      clients: new clients by name. Where no client has a number as its name, also by their
        numbers from 0.
      graph: "inductive": the training graph has the training clients only. "transductive": all.
      seed: of the draw.

    Returns:
      The federation, scaled by its training clients if it is scaled, with these clients in
      `data` and all clients in `everyone`, where the new clients come last. Both groups keep
      their order.

    Raises:
      ValueError: there would be no new client or no training client, one of `clients` is none
        or is given twice, or `fraction` is given too.
    """
    if clients:
        new = _named(federation, clients, fraction)
    else:
        new = _drawn(federation, fraction, seed)
    training = np.setdiff1d(np.arange(len(federation.clients)), new)
    order = np.concatenate([training, np.sort(new)])
    federation = rescale(federation, training)
    everyone = select_clients(federation.data, order)
    data = select_clients(federation.data, training)
    if graph == "transductive":
        data = data._replace(graph=everyone.graph)
    units, positions = federation.units, federation.positions
    return federation._replace(
        data=data,
        everyone=everyone,
        new_clients=len(new),
        units=units.of(training) if isinstance(units, OwnUnits) else units,
        clients=tuple(federation.clients[i] for i in order),
        positions=positions and positions._replace(values=positions.values[order]),
    )


def _named(federation, clients, fraction):
    """The numbers of new clients that are named."""
    if fraction:
        raise ValueError(
            f"new_clients.fraction={fraction} draws new clients, and new_clients.clients names "
            f"them; leave one out"
        )
    numbers = numbers_of(clients, federation, field="new_clients.clients")
    if len(numbers) == len(federation.clients):
        raise ValueError(
            f"new_clients.clients has all {len(numbers)} clients of {federation.name}, so none "
            f"would train; name fewer"
        )
    return np.array(numbers)


def _drawn(federation, fraction, seed):
    """The numbers of new clients that are drawn."""
    total = len(federation.clients)
    count = math.floor(fraction * total + 1e-9)  # 0.29 * 100 is less than 29
    if not 0 < count < total:
        raise ValueError(_misfit(federation.name, fraction, count, total))
    # Three numbers, because the clients' splits are seeded by two.
    return np.random.default_rng([seed, total, count]).permutation(total)[:count]


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
