"""The relations between clients: building a graph, and the matrices that methods ask of it.

A client graph is a ``jraph.GraphsTuple`` (Godwin et al., Jraph: a library for graph neural
networks in JAX, 2020; layout of Battaglia et al., arXiv:1806.01261) of one graph over N nodes
without features. Client j hears client i where an edge has sender i and receiver j, so a matrix
has receivers as rows and senders as columns.
"""

import jax
import jax.numpy as jnp
import jraph
import numpy as np

LAYERS = ("mean", "sage", "gcn")


def from_edges(
    num_clients, edges, weights=None, *, directed=False, names=None
) -> jraph.GraphsTuple:
    """Builds the graph in which client j receives from client i for every edge (i, j).

    An undirected edge is given once, in either order, and stored in both directions with the
    same weight. `weights` holds one number per given edge; without it every weight is one.
    Errors call clients by their `names`, or else by their indices.
    """
    if num_clients < 1:
        raise ValueError(f"num_clients={num_clients}: a graph needs at least one client.")
    pairs, weights = _checked(num_clients, edges, weights, directed, names)
    if not directed:
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
        weights = np.concatenate([weights, weights])
    # Receivers first, so that sums over what a client receives run over neighbouring rows.
    order = np.lexsort((pairs[:, 0], pairs[:, 1]))
    return jraph.GraphsTuple(
        # Nodes carry no features, but their shape makes N known while tracing.
        nodes=np.zeros((num_clients, 0), np.float32),
        edges=weights[order],  # [n_edge]
        senders=pairs[order, 0],  # [n_edge]
        receivers=pairs[order, 1],  # [n_edge], ascending
        n_node=np.array([num_clients], np.int32),
        n_edge=np.array([len(pairs)], np.int32),
        globals=None,
    )


def subgraph(graph, clients) -> jraph.GraphsTuple:
    """The relations among `clients` [n], of which client clients[i] is called i."""
    clients = np.asarray(clients)
    name = np.full(num_clients(graph), -1, np.int32)
    name[clients] = np.arange(len(clients), dtype=np.int32)
    pairs = np.stack([name[graph.senders], name[graph.receivers]], axis=1)
    inside = (pairs >= 0).all(axis=1)
    weights = np.asarray(graph.edges)
    return from_edges(len(clients), pairs[inside], weights[inside], directed=True)


def padded(graph, n_edge) -> jraph.GraphsTuple:
    """The same relations in arrays of `n_edge` edges, so that graphs of one N can be stacked.

    What is added joins client N to itself. There is no such client, and sums over what clients
    receive drop what is sent to it.
    """
    added = n_edge - len(graph.senders)
    nobody = num_clients(graph)
    return graph._replace(
        senders=np.pad(graph.senders, (0, added), constant_values=nobody),
        receivers=np.pad(graph.receivers, (0, added), constant_values=nobody),
        edges=np.pad(graph.edges, (0, added)),
    )


def nearest(points, neighbours) -> jraph.GraphsTuple:
    """Joins each of N clients to the `neighbours` others nearest to it among points [N, D].

    The distance is Euclidean. An edge is undirected, and there where either client is among the
    nearest of the other. Of equally near clients the first are taken; squares of distances
    count as equal to ten digits of the largest square of a point, so that rounding decides
    nothing.
    """
    points = np.asarray(points, np.float64)
    n = len(points)
    if not 1 <= neighbours < n:
        raise ValueError(
            f"data.neighbours={neighbours} must be at least 1 and less than the number of "
            f"clients, {n}; set --config.data.neighbours."
        )
    squares = np.sum(points**2, axis=1)  # [N]
    gaps = squares[:, None] + squares - 2 * points @ points.T  # [N, N]
    gaps = np.round(gaps / (squares.max() or 1.0), 10)
    np.fill_diagonal(gaps, np.inf)  # nobody is its own neighbour
    found = np.argsort(gaps, axis=1, kind="stable")[:, :neighbours]
    pairs = np.stack([np.repeat(np.arange(n), neighbours), found.ravel()], axis=1)
    return from_edges(n, np.unique(np.sort(pairs, axis=1), axis=0))


def num_clients(graph) -> int:
    """Counts the clients of a graph, which is known while tracing."""
    return graph.nodes.shape[0]


def dense(graph) -> jax.Array:
    """Writes the weight of what client i receives from j at [i, j]: [N, N] float32."""
    n = num_clients(graph)
    return jnp.zeros((n, n), jnp.float32).at[graph.receivers, graph.senders].add(graph.edges)


def adjacency(graph) -> jax.Array:
    """Tells who is related to whom in either direction: [N, N] float32, 0 or 1, zero diagonal.

    Weights play no part: an edge of weight zero is an edge.
    """
    n = num_clients(graph)
    heard = jnp.zeros((n, n), jnp.float32).at[graph.receivers, graph.senders].set(1.0)
    return jnp.maximum(heard, heard.T) * (1.0 - jnp.eye(n, dtype=jnp.float32))


def propagation(graph, layer: str) -> jax.Array:
    """Returns the matrix P of one linear message-passing step, new nodes = P nodes: [N, N].

    ``"mean"``
        The mean over a client and those it hears, D^-1 (A + I).
    ``"sage"``
        The mean over those it hears; a row of zeros for a client that hears nobody. This is
        the neighbours' half of GraphSAGE (Hamilton et al., NeurIPS 2017).
    ``"gcn"``
        D^-1/2 (A + I) D^-1/2 (Kipf and Welling, ICLR 2017); in a directed graph the left factor
        counts what a client receives and the right one what it sends.

    Edge weights are not used, only who hears whom. P is what the layer makes of the identity.
    """
    if layer not in LAYERS:
        raise ValueError(f"layer={layer!r} is not known; use one of {', '.join(LAYERS)}.")
    symmetric = layer == "gcn"
    convolve = jraph.GraphConvolution(
        update_node_fn=lambda nodes: nodes,
        aggregate_nodes_fn=jraph.segment_sum if symmetric else jraph.segment_mean,
        add_self_edges=layer != "sage",
        symmetric_normalization=symmetric,
    )
    identity = jnp.eye(num_clients(graph), dtype=jnp.float32)
    # jraph clips its integer degrees with the float 1.0, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        return convolve(graph._replace(nodes=identity)).nodes


def _checked(num_clients, edges, weights, directed, names):
    """Returns edges [n, 2] int32 and weights [n] float32, or says which edge is wrong."""
    edges = edges if isinstance(edges, np.ndarray) else list(edges)
    pairs = np.asarray(edges) if len(edges) else np.zeros((0, 2), np.int32)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise ValueError(
            f"edges have shape {pairs.shape} and type {pairs.dtype}; give pairs of client "
            "indices."
        )
    outside = ((pairs < 0) | (pairs >= num_clients)).any(axis=1)
    _refuse(pairs, outside, f"names a client outside 0 to {num_clients - 1}; correct it")
    named = pairs if names is None else np.asarray(names)[pairs]
    _refuse(named, pairs[:, 0] == pairs[:, 1], "joins a client to itself; leave it out")
    canonical = pairs if directed else np.sort(pairs, axis=1)
    repeated = np.ones(len(pairs), bool)
    repeated[np.unique(canonical, axis=0, return_index=True)[1]] = False
    _refuse(named, repeated, "is given twice; give it once")

    weights = np.ones(len(pairs)) if weights is None else np.asarray(weights)
    if weights.shape != (len(pairs),):
        raise ValueError(
            f"weights have shape {weights.shape} for {len(pairs)} edges; give one for each."
        )
    with np.errstate(over="ignore"):  # a weight too large for float32 is refused just below
        weights = weights.astype(np.float32)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    _refuse(named, wrong, "has a weight that is negative or not finite; correct it", weights)
    return pairs.astype(np.int32), weights


def _refuse(pairs, wrong, why, weights=None):
    if wrong.any():
        first = int(np.argmax(wrong))
        weight = "" if weights is None else f" (weight {weights[first]})"
        edge = tuple(pairs[first].tolist())
        raise ValueError(f"edges: number {first}, {edge}{weight}, {why}.")
