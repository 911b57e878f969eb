"""The neighbourhood of a few clients in a large graph: all that determines their embeddings.

An encoder of L layers gives a client an embedding that depends on the clients within L steps
along edges. The neighbourhood of K clients has levels: level 0 is these clients, and level
l + 1 adds the senders of edges to level l. The last layer is computed of level 0 alone, the one
before of level 1, and so on. So the cost does not grow with the number of clients in the graph.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from graphfl_jax.core import Array
from graphfl_jax.data.sparse import SparseMatrix, sparse_matrix

# Largest levels of K clients in a graph with d edges per client: level l has up to
# K (1 + REACH d l^1.5) clients. Around 37 of 100,000 clients on random points, with 10 edges
# for each from near clients, the levels 1 to 3 had 10, 24 and 46 clients for each of the 37 as
# a mean, and at most 11, 26 and 50 in 60 draws.
REACH = 1.25
FEWEST = 32  # the sizes are those of at least so many clients: those of fewer vary more
EDGES = 0.5  # the edges to a level of n clients are up to (1 + EDGES / (l + 1)) d n
FARTHER, FARTHER_EDGES = 0.5, 0.25  # of the last level, clients and edges of one more step


class Level(NamedTuple):
    """The edges to the clients of a level from those of the next level."""

    receivers: Array  # [e] int32, ascending places in this level; its size is padding
    senders: Array  # [e] int32, places in the next level; its size is padding
    edges: Array  # [e] int32, their numbers in the matrix


class Neighbourhood(NamedTuple):
    """The neighbourhood of K clients."""

    nodes: Array  # [n] int32: of level l, the first sizes[l]; N is padding
    places: Array  # [K] int32, of the clients in level 0
    sizes: tuple[int, ...]  # of the levels
    levels: tuple[Level, ...]
    fit: Array  # [] bool: no level is larger than its size


def sizes_of(matrix: SparseMatrix, clients: int, steps: int) -> tuple[int, ...]:
    """The sizes of the levels of so many clients, up to a number of steps."""
    degree, count = len(matrix.senders) / len(matrix), max(clients, FEWEST)
    later = (int(count * (1 + REACH * degree * step**1.5)) for step in range(1, steps + 1))
    return clients, *later


def of_clients(
    matrix: SparseMatrix, clients: Array, steps: int, farther: Callable | None = None
) -> Neighbourhood:
    """The neighbourhood of clients: all within some steps against the direction of edges.

    Args:
      matrix: whose edges are followed.
      clients: [K] int32; a client may occur twice.
      steps: number of steps.
      farther: (ids [n]) -> [n] bool, which clients of the last level are followed for one more
        step.
    """
    padding, degree = len(matrix), len(matrix.senders) / len(matrix)
    nodes = jnp.unique(clients, size=len(clients), fill_value=padding)
    places, fit = jnp.searchsorted(nodes, clients), clients[0] >= 0  # True
    sizes, levels = list(sizes_of(matrix, len(clients), steps)), []
    shares = [1 + EDGES / (step + 1) for step in range(steps)]
    if farther is not None:
        sizes.append(int(sizes[-1] * (1 + FARTHER)))
        shares.append(FARTHER_EDGES)
    for step, share in enumerate(shares):
        followed = True if step < steps else farther(nodes)
        capacity = int(share * degree * max(sizes[step], FEWEST)) + 1
        receivers, edges, real, complete = _edges_to(matrix, nodes, followed, capacity)
        senders = jnp.where(real, matrix.senders[edges], padding)
        order = jnp.argsort(nodes).astype(jnp.int32)
        known = order[jnp.searchsorted(nodes[order], senders)]
        is_known = nodes[known] == senders
        room = sizes[step + 1] - len(nodes)
        others = jnp.where(is_known, padding, senders)
        added = jnp.unique(others, size=room + 1, fill_value=padding)
        fit &= complete & (added[-1] == padding)
        within = jnp.where(is_known, known, len(nodes) + jnp.searchsorted(added, senders))
        within = jnp.where(real, within, sizes[step + 1]).astype(jnp.int32)
        levels.append(Level(receivers, within, edges))
        nodes = jnp.concatenate([nodes, added[:-1]])
    return Neighbourhood(nodes, places, tuple(sizes), tuple(levels), fit)


def part(matrix: SparseMatrix, near: Neighbourhood, level: int) -> SparseMatrix:
    """The rows of a level and the columns of the next one, of a matrix with the same edges."""
    receivers, senders, edges = near.levels[level]
    size = near.sizes[level]
    weights = jnp.where(receivers < size, matrix.weights[edges], 0.0)
    return sparse_matrix(senders, receivers, weights, matrix.diagonal[near.nodes[:size]])


def _edges_to(matrix, nodes, followed, capacity):
    """The edges to those of the nodes that are followed.

    Returns:
      Places of the receivers among the nodes, padded by their number, and the numbers of the
      edges, both [capacity]; which are real; and whether there are not more.
    """
    degrees = jnp.where((nodes < len(matrix)) & followed, matrix.degrees[nodes], 0)
    ends = jnp.cumsum(degrees)
    slots = jnp.arange(capacity, dtype=jnp.int32)
    places = jnp.searchsorted(ends, slots, side="right")
    edges = (matrix.starts[nodes] - ends + degrees)[places] + slots
    return places, edges, slots < ends[-1], ends[-1] <= capacity
