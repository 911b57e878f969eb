"""Relations between clients: client graphs, and the matrices that methods compute from them.

A client graph is a ``jraph.GraphsTuple`` (Godwin et al., Jraph: a library for graph neural
networks in JAX, 2020; layout of Battaglia et al., arXiv:1806.01261) that holds one graph of N
nodes without features. An edge with sender i and receiver j means that client j receives from
client i. In matrices, rows are receivers and columns are senders.
"""

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from graphfl_jax.data.sparse import SparseMatrix, sparse_matrix, undirected_matrix
from graphfl_jax.memory import check_memory

LAYERS = ("mean", "sage", "gcn")
LARGEST_OF_PAIRS = 10_000  # clients; a matrix of float32 for all pairs then has 400 MB
# A graph is sparse from this number of clients on, with at most this share of N^2 edges. One
# core multiplied a matrix and its transpose with [N, 100] in, as array and as sparse matrix:
#   N = 500: 1.4 ms; 0.3 ms with 10 edges per client (2 %), 6.4 ms with 50 (10 %)
#   N = 1,000: 14 ms; 0.7 ms with 4 (0.4 %), 4.0 ms with 20 (2 %), 51 ms with 50 (5 %)
#   N = 2,000: 48 ms; 6.1 ms with 10 (0.5 %), 8.7 ms with 20 (1 %), 98 ms with 50 (2.5 %)
#   N = 10,000: 1,089 ms; 149 ms with 10 (0.1 %), 739 ms with 50 (0.5 %)
# Smaller graphs fit as arrays, and keep the bits of earlier results.
SPARSE_CLIENTS, SPARSE_SHARE = 1000, 0.01


def from_edges(
    num_clients, edges, weights=None, *, directed=False, names=None
) -> jraph.GraphsTuple:
    """Builds a client graph.

    Args:
      num_clients: N.
      edges: [m, 2] integers, pairs (sender, receiver) of client indices. An undirected edge is
        given once, in either order, and stored in both directions with the same weight.
      weights: [m] finite numbers of at least 0; None means that all are 1.
      directed: whether edges are directed.
      names: N names of the clients for error messages; None means their indices.

    Returns:
      The graph, with edges sorted by receiver and then by sender.

    Raises:
      ValueError: an edge or a weight is invalid. One line with the edge and a remedy.
    """
    weighted = weights is not None
    pairs, weights = _check_edges(num_clients, edges, weights, directed, names)
    if not directed:
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
        weights = np.concatenate([weights, weights])
    # Sorted by receiver, so that sums over received messages read neighbouring rows.
    keys = _keys(pairs[:, ::-1], num_clients)
    if weighted:
        order = np.argsort(keys)
        keys, weights = keys[order], weights[order]
    else:  # which takes a tenth of the time
        keys.sort()
    receivers, senders = (ids.astype(np.int32) for ids in np.divmod(keys, num_clients))
    return jraph.GraphsTuple(
        # Nodes have no features, but this shape makes N static under tracing.
        nodes=np.zeros((num_clients, 0), np.float32),
        edges=weights,  # [n_edge]
        senders=senders,  # [n_edge]
        receivers=receivers,  # [n_edge], ascending
        n_node=np.array([num_clients], np.int32),
        n_edge=np.array([len(pairs)], np.int32),
        globals=None,
    )


def subgraph(graph, clients) -> jraph.GraphsTuple:
    """The edges between `clients` [n], where client clients[i] becomes client i."""
    clients = np.asarray(clients)
    index = np.full(num_clients(graph), -1, np.int32)
    index[clients] = np.arange(len(clients), dtype=np.int32)
    pairs = np.stack([index[graph.senders], index[graph.receivers]], axis=1)
    inside = (pairs >= 0).all(axis=1)
    weights = np.asarray(graph.edges)
    return from_edges(len(clients), pairs[inside], weights[inside], directed=True)


def pad_edges(graph, n_edge) -> jraph.GraphsTuple:
    """Pads the edge arrays to `n_edge` edges, so that graphs of the same N can be stacked.

    A padding edge joins client N to itself. There is no client N, and JAX ignores additions at
    indices out of range, so padding changes no result.
    """
    added = n_edge - len(graph.senders)
    outside = num_clients(graph)
    return graph._replace(
        senders=np.pad(graph.senders, (0, added), constant_values=outside),
        receivers=np.pad(graph.receivers, (0, added), constant_values=outside),
        edges=np.pad(graph.edges, (0, added)),
    )


def join_nearest(points, neighbours, *, later=0) -> jraph.GraphsTuple:
    """Joins each of N clients to its `neighbours` nearest clients by Euclidean distance.

    An edge is undirected. It exists if either client is among the nearest of the other. Of
    equally near clients the first ones are taken. Squared distances are compared after rounding
    to ten digits of the largest squared norm of a point, so rounding errors decide nothing.

    Args:
      points: [N, D], one point per client.
      neighbours: at least 1, and less than the number of clients that are there from the start.
      later: number of clients that come later, the last ones. They are joined to their nearest
        among the first, whose edges to each other are as without them.
    """
    points = np.asarray(points, np.float64)
    n = len(points) - later
    check_neighbours(neighbours, n)
    check_memory(f"data.graph=knn of {len(points)} clients", 2 * 8 * len(points) * n)
    squares = np.sum(points**2, axis=1)  # [N]
    gaps = squares[:, None] + squares[:n] - 2 * points @ points[:n].T  # [N, n]
    return join_by_gaps(np.round(gaps / (squares[:n].max() or 1.0), 10), neighbours)


def join_by_gaps(gaps, neighbours) -> jraph.GraphsTuple:
    """`join_nearest` by gaps [N, n] to the first n clients, which it changes."""
    n = gaps.shape[1]
    np.fill_diagonal(gaps[:n], np.inf)  # no client is its own neighbour
    near = np.argsort(gaps, axis=1, kind="stable")[:, :neighbours]  # [N, neighbours]
    pairs = np.stack([np.repeat(np.arange(len(gaps)), neighbours), near.ravel()], axis=1)
    return from_edges(len(gaps), np.unique(np.sort(pairs, axis=1), axis=0))


def check_neighbours(neighbours: int, clients: int) -> None:
    """Raises a ValueError if that many neighbours of each of `clients` are not there."""
    if not 1 <= neighbours < clients:
        raise ValueError(
            f"data.neighbours={neighbours} must be at least 1 and less than the number of "
            f"clients, {clients}; set --config.data.neighbours in [1, {clients - 1}]"
        )


def num_clients(graph) -> int:
    """N, the number of clients. It is static under tracing."""
    return graph.nodes.shape[0]


def check_number_of_pairs(
    total: int, method: str, *, field: str = "algorithm.name", other: str = "method"
) -> None:
    """Raises a ValueError if there are too many clients to hold a number for each pair.

    Args:
      method: which holds them, a value of `field`.
      other: of what the remedy is another one.
    """
    if total > LARGEST_OF_PAIRS:
        raise ValueError(
            f"{field}={method!r} holds N x N numbers, and N={total} clients exceed "
            f"{LARGEST_OF_PAIRS}; choose another {other}"
        )


def shares_among_neighbours(graph, chosen) -> np.ndarray:
    """The share of each client's neighbours that are chosen: [N]; 0 without neighbours.

    Neighbours are those of `adjacency`.

    Args:
      graph: the client graph, not padded.
      chosen: numbers of clients.
    """
    total = num_clients(graph)
    pairs = np.stack([graph.senders, graph.receivers], axis=1)
    pairs = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
    is_chosen = np.isin(pairs[:, 1], chosen)
    counts = np.bincount(pairs[is_chosen, 0], minlength=total)  # [N]
    degrees = np.bincount(pairs[:, 0], minlength=total)  # [N]
    return counts / np.maximum(degrees, 1)


def is_sparse(graph) -> bool:
    """Whether matrices of the graph are sparse. Only shapes decide; padding counts as edges."""
    n = num_clients(graph)
    return n >= SPARSE_CLIENTS and len(graph.senders) <= SPARSE_SHARE * n**2


def weight_matrix(graph) -> jax.Array:
    """The matrix of weights, [N, N] float32: at [i, j], the edge from client j to client i."""
    n = num_clients(graph)
    return jnp.zeros((n, n), jnp.float32).at[graph.receivers, graph.senders].add(graph.edges)


def adjacency(graph) -> jax.Array | SparseMatrix:
    """The undirected adjacency matrix, [N, N] float32 of 0 and 1, with a zero diagonal.

    Directions and weights are ignored; an edge of weight 0 counts as an edge.
    """
    n = num_clients(graph)
    if is_sparse(graph):
        return undirected_matrix(graph.senders, graph.receivers, n)
    receives = jnp.zeros((n, n), jnp.float32).at[graph.receivers, graph.senders].set(1.0)
    return jnp.maximum(receives, receives.T) * (1.0 - jnp.eye(n, dtype=jnp.float32))


def mean_over_related(related: jax.Array) -> jax.Array:
    """(D + I)^-1 (A + I), as the layer "mean", of an array A [N, N] of 0 and 1."""
    joined = related + jnp.eye(len(related), dtype=jnp.float32)
    return joined / jnp.sum(joined, axis=1, keepdims=True)


def edge_matrix(graph, *, weighted: bool = False) -> SparseMatrix:
    """The edges as a matrix [N, N] of their weights, or of ones, with a zero diagonal."""
    diagonal = jnp.zeros(num_clients(graph), jnp.float32)
    return sparse_matrix(graph.senders, graph.receivers, _weights(graph, weighted), diagonal)


def propagation(graph, layer: str, *, weighted: bool = False) -> jax.Array | SparseMatrix:
    """The matrix P of `message_passing`, new nodes = P nodes: [N, N] float32."""
    if is_sparse(graph):
        coefficients = _coefficients(graph, layer, weighted)
        return sparse_matrix(graph.senders, graph.receivers, *coefficients)
    return propagation_array(graph, layer, weighted=weighted)


def propagation_array(graph, layer: str, *, weighted: bool = False) -> jax.Array:
    """`propagation` as an array [N, N], whatever the number of clients."""
    identity = jnp.eye(num_clients(graph), dtype=jnp.float32)
    return message_passing(graph, identity, layer, weighted=weighted)


def message_passing(graph, nodes, layer: str, *, weighted: bool = False) -> jax.Array:
    """One linear step of messages along the edges, by jraph: new nodes [N, E].

    Directions of edges are used. Weights are used if `weighted`; a client's weight for itself
    is 1.

    Args:
      graph: the client graph. Its directed matrix A has the weights, or ones, and D holds the
        row sums of A.
      nodes: [N, E].
      layer: one of
        "mean": the mean over a client and its senders, (D + I)^-1 (A + I).
        "sage": the mean over a client's senders, D^-1 A, with zero rows where D is 0, as for
        clients without senders. This is the neighbours' part of GraphSAGE (Hamilton et al.,
        NeurIPS 2017).
        "gcn": R^-1/2 (A + I) S^-1/2 (Kipf and Welling, ICLR 2017), where R holds the row sums
        and S the column sums of A + I.

    Raises:
      ValueError: the layer is unknown.
    """
    weights, diagonal = _coefficients(graph, layer, weighted)
    step = jraph.InteractionNetwork(
        update_edge_fn=lambda edges, sent, received: edges[:, None] * sent,
        update_node_fn=lambda nodes, received: diagonal[:, None] * nodes + received,
    )
    return step(graph._replace(nodes=nodes, edges=weights)).nodes


def _weights(graph, weighted):
    return jnp.asarray(graph.edges) if weighted else jnp.ones_like(graph.edges)


def _coefficients(graph, layer, weighted):
    """Of the matrix P, the numbers of the edges [n_edge] and the diagonal [N]."""
    if layer not in LAYERS:
        raise ValueError(f"layer={layer!r} is unknown; choose from {', '.join(LAYERS)}")
    n, loops = num_clients(graph), 0.0 if layer == "sage" else 1.0  # weights of oneself
    weights = _weights(graph, weighted)

    def total(ends):
        """The weights of each client's edges at one of their ends: [N] float32."""
        return jraph.segment_sum(weights, ends, n) + loops

    received = total(graph.receivers)  # row sums of A, or of A + I
    if layer == "gcn":  # R^-1/2 (A + I) S^-1/2
        left, right = jax.lax.rsqrt(received), jax.lax.rsqrt(total(graph.senders))
        return weights * (left[graph.receivers] * right[graph.senders]), left * right
    received = jnp.where(received > 0, received, 1.0)
    # D^-1 A, or (D + I)^-1 (A + I)
    return weights / received[graph.receivers], loops / received


def _keys(pairs, num_clients):
    """A whole number for each pair of clients [m, 2], in the order of the pairs."""
    return pairs[:, 0].astype(np.int64) * num_clients + pairs[:, 1]


def _check_edges(num_clients, edges, weights, directed, names):
    """Checks edges and weights; returns them as [m, 2] int32 and [m] float32."""
    edges = edges if isinstance(edges, np.ndarray) else list(edges)
    pairs = np.asarray(edges) if len(edges) else np.zeros((0, 2), np.int32)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise ValueError(
            f"edges: the array has shape {pairs.shape} and type {pairs.dtype}; give pairs of "
            "client indices [m, 2]"
        )
    outside = ((pairs < 0) | (pairs >= num_clients)).any(axis=1)
    _refuse(pairs, outside, f"names a client outside 0 to {num_clients - 1}; correct it")
    clients = pairs if names is None else np.asarray(names)[pairs]
    _refuse(clients, pairs[:, 0] == pairs[:, 1], "joins a client to itself; leave it out")
    keys = _keys(pairs if directed else np.sort(pairs, axis=1), num_clients)
    ascending = np.sort(keys)
    if (ascending[1:] == ascending[:-1]).any():
        repeated = np.ones(len(pairs), bool)
        repeated[np.unique(keys, return_index=True)[1]] = False
        _refuse(clients, repeated, "is given twice; give it once")

    weights = np.ones(len(pairs)) if weights is None else np.asarray(weights)
    if weights.shape != (len(pairs),):
        raise ValueError(
            f"weights: the array has shape {weights.shape} for {len(pairs)} edges; give one "
            "weight per edge"
        )
    with np.errstate(over="ignore"):  # weights too large for float32 are refused below
        weights = weights.astype(np.float32)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    _refuse(clients, wrong, "has a weight that is negative or not finite; correct it", weights)
    return pairs.astype(np.int32), weights


def _refuse(pairs, wrong, why, weights=None):
    """Raises an error for the first edge that is `wrong` [m]."""
    if wrong.any():
        first = int(np.argmax(wrong))
        weight = "" if weights is None else f" (weight {weights[first]})"
        edge = tuple(pairs[first].tolist())
        raise ValueError(f"edges: edge number {first}, {edge}{weight}, {why}")
