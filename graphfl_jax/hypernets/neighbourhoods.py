"""Neighbourhoods of a few clients in a large graph: all that determines their embeddings.

An encoder of L layers gives a client an embedding that depends on the clients within L steps
along edges. Each of K clients gets a small graph of these, stored as an array, so that the cost
of K embeddings and of their gradient does not grow with the number of clients in the graph.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax.core import Array
from graphfl_jax.data.sparse import SparseMatrix

# Largest neighbourhood. Of 4,000 clients on random points of a square with 10 nearby relations
# each, and a tenth of all clients dropped, the largest had 112 clients and 1,526 edges.
SIZE, EDGES = 128, 2048


class Neighbourhoods(NamedTuple):
    """The neighbourhoods of K clients."""

    nodes: Array  # [K, SIZE] int32, ascending; N is padding
    places: Array  # [K] int32, of the clients among their own nodes
    fit: Array  # [] bool: no neighbourhood is larger than `SIZE` and `EDGES`


def of_clients(matrix: SparseMatrix, clients, steps: int, farther) -> Neighbourhoods:
    """The neighbourhoods of clients: all within some steps against the direction of edges.

    Args:
      matrix: whose edges are followed.
      clients: [K] int32.
      steps: number of steps.
      farther: [N] bool, clients that are followed for one more step.
    """
    padding = len(matrix)

    def extend(step, carry):
        nodes, fit = carry
        followed = (step < steps) | farther[nodes]
        _, senders, _, complete = _edges_to(matrix, nodes, followed)
        nodes = jnp.unique(jnp.concatenate([nodes, senders]), size=SIZE + 1, fill_value=padding)
        # Padding is the largest number, so it is last unless there are too many nodes.
        return nodes[:-1], fit & complete & (nodes[-1] == padding)

    def of_client(client):
        nodes = jnp.full(SIZE, padding, jnp.int32).at[0].set(client)
        # True, and of the client's type where clients are split over devices.
        fit = client >= 0
        nodes, fit = jax.lax.fori_loop(0, steps + 1, extend, (nodes, fit))
        fit &= _edges_to(matrix, nodes, True)[-1]  # as `blocks` needs
        return nodes, jnp.searchsorted(nodes, client), fit

    nodes, places, fit = jax.vmap(of_client)(clients)
    return Neighbourhoods(nodes, places, jnp.all(fit))


def blocks(matrix: SparseMatrix, near: Neighbourhoods) -> Array:
    """The matrix within each neighbourhood, [K, SIZE, SIZE]."""

    def block(nodes):
        receivers, senders, weights, _ = _edges_to(matrix, nodes, True)
        places = jnp.searchsorted(nodes, senders)
        places = jnp.where(nodes[places] == senders, places, SIZE)  # out of range: ignored
        empty = jnp.zeros((SIZE, SIZE), jnp.float32)
        within = empty.at[receivers, places].add(weights)
        diagonal = jnp.arange(SIZE)
        return within.at[diagonal, diagonal].add(matrix.diagonal[nodes])

    return jax.vmap(block)(near.nodes)


def _edges_to(matrix, nodes, followed):
    """The edges to those of the nodes that are followed.

    Returns:
      Places of the receivers among the nodes, senders and weights, all [EDGES] and padded by
      the place SIZE, the client N and the weight 0; and whether there are at most `EDGES`.
    """
    padding = len(matrix)
    degrees = jnp.where((nodes < padding) & followed, matrix.degrees[nodes], 0)
    ends = jnp.cumsum(degrees)
    slots = jnp.arange(EDGES, dtype=jnp.int32)
    places = jnp.searchsorted(ends, slots, side="right")
    edges = (matrix.starts[nodes] - ends + degrees)[places] + slots
    real = slots < ends[-1]
    senders = jnp.where(real, matrix.senders[edges], padding)
    return places, senders, jnp.where(real, matrix.weights[edges], 0.0), ends[-1] <= EDGES
