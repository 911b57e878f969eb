"""Relations that no data give: none, random ones, and those that a server learns.

The first two are what all other relations are compared with.
"""

from typing import Annotated, NamedTuple

import numpy as np

from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation, with_graph
from graphfl_jax.memory import check_memory
from graphfl_jax.settings import Choice, Integer, Part

COMPARED = ("model", "update")
RANDOM = 77  # of the generator of random relations, beside the seed


class Learning(NamedTuple):
    """How a server learns relations, see `algorithms.learned_relations`."""

    neighbours: int
    every: int  # rounds
    compared: str  # of `COMPARED`


def learning(
    *,
    neighbours: Annotated[
        int, Integer("Most similar clients that each client is joined to.")
    ] = 5,
    learned_every: Annotated[
        int, Integer("Rounds between two computations of the learned relations.")
    ] = 10,
    learned_from: Annotated[
        str,
        Choice("What of two clients is compared: their last uploads, or updates.", COMPARED),
    ] = "model",
) -> Learning:
    """Assembles a `Learning`."""
    return Learning(neighbours, learned_every, learned_from)


def without_relations(federation: Federation) -> Federation:
    """Removes the relations."""
    return with_graph(federation, relations.from_edges(len(federation.clients), []))


def learned(federation: Federation, *, rule: Annotated[Learning, Part(learning)]) -> Federation:
    """Removes the relations; the server learns others in the run."""
    return without_relations(federation)


def random(
    federation: Federation,
    *,
    seed: int,
    neighbours: Annotated[int, Integer("Random clients that each client is joined to.")] = 5,
) -> Federation:
    """Replaces the relations by random ones.

    They are those of `relations.join_nearest` at random distances. New clients are joined to
    random training clients.

    Raises:
      ValueError: `neighbours` is not less than the number of training clients.
    """
    total, known = len(federation.clients), federation.training_clients
    relations.check_neighbours(neighbours, known)
    check_memory(f"data.graph=random of {total} clients", 2 * 8 * total * known)
    gaps = np.random.default_rng([seed, RANDOM]).random((total, known))
    gaps[:known] += gaps[:known].T.copy()  # of two clients, the same in both directions
    return with_graph(federation, relations.join_by_gaps(gaps, neighbours))
