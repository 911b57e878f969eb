"""Client graphs: stored arrays, refused edges, and matrices compared with NumPy."""

import jax
import numpy as np
import pytest

from graphfl_jax.data import relations

# A path 0 - 1 - 2 with a branch 1 - 3, and client 4 without edges.
EDGES = [(0, 1), (2, 1), (1, 3)]
JOINED = np.zeros((5, 5))
JOINED[[0, 1, 2, 1, 1, 3], [1, 0, 1, 2, 3, 1]] = 1


def directed_graph():
    return relations.from_edges(3, [(0, 1), (0, 2), (2, 1)], [2.0, 3.0, 5.0], directed=True)


def test_undirected_edges_are_stored_in_both_directions_sorted_by_receiver():
    graph = relations.from_edges(5, EDGES, [1.0, 2.0, 3.0])
    stored = list(zip(graph.receivers, graph.senders, graph.edges, strict=True))
    assert stored == [(0, 1, 1), (1, 0, 1), (1, 2, 2), (1, 3, 3), (2, 1, 2), (3, 1, 3)]
    assert graph.senders.dtype == graph.receivers.dtype == np.int32
    assert (graph.n_node.tolist(), graph.n_edge.tolist()) == ([5], [6])


def test_graph_without_edges():
    graph = relations.from_edges(3, [])
    assert relations.num_clients(graph) == 3
    np.testing.assert_array_equal(relations.weight_matrix(graph), np.zeros((3, 3)))
    np.testing.assert_array_equal(relations.propagation(graph, "mean"), np.eye(3))


def test_dense_has_receivers_as_rows():
    expected = [[0, 0, 0], [2, 0, 5], [3, 0, 0]]  # 1 receives from 0 and 2, 2 from 0
    np.testing.assert_array_equal(relations.weight_matrix(directed_graph()), expected)


def test_adjacency_ignores_direction_and_weight():
    np.testing.assert_array_equal(relations.adjacency(directed_graph()), 1 - np.eye(3))


def test_shares_among_neighbours_ignore_direction_and_weight():
    shares = relations.shares_among_neighbours(relations.from_edges(5, EDGES), [0, 1, 4])
    np.testing.assert_allclose(shares, [1, 1 / 3, 1, 1, 0])
    # Clients 1 and 2 would count twice if their edges were not merged.
    pairs = [(0, 1), (1, 2), (2, 1), (2, 3)]
    shares = relations.shares_among_neighbours(
        relations.from_edges(4, pairs, [0.0, 1.0, 2.0, 1.0], directed=True), [0, 3]
    )
    np.testing.assert_allclose(shares, [0, 1 / 2, 1 / 2, 0])


@pytest.mark.parametrize("layer, self_edges", [("mean", 1), ("sage", 0)])
def test_mean_layers_average_over_senders(layer, self_edges):
    matrix = JOINED + self_edges * np.eye(5)
    expected = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    propagated = relations.propagation(relations.from_edges(5, EDGES), layer)
    np.testing.assert_allclose(propagated, expected, rtol=1e-6)


def test_gcn_layer_is_normalised_on_both_sides():
    matrix = JOINED + np.eye(5)
    root = np.diag(matrix.sum(1) ** -0.5)
    propagated = relations.propagation(relations.from_edges(5, EDGES), "gcn")
    np.testing.assert_allclose(propagated, root @ matrix @ root, rtol=1e-6)


def test_directed_mean_uses_directions_and_ignores_weights():
    expected = [[0, 0, 0], [0.5, 0, 0.5], [1, 0, 0]]
    np.testing.assert_array_equal(relations.propagation(directed_graph(), "sage"), expected)


def test_matrices_are_the_same_under_jit():
    graph = relations.from_edges(5, EDGES)
    for matrix in (relations.weight_matrix, relations.adjacency):
        np.testing.assert_array_equal(jax.jit(matrix)(graph), matrix(graph))
    for layer in relations.LAYERS:
        traced = jax.jit(relations.propagation, static_argnums=1)(graph, layer)
        np.testing.assert_allclose(traced, relations.propagation(graph, layer), rtol=1e-6)


def test_nearest_joins_clients_if_either_is_nearest_to_the_other():
    """Points at 0, 1, 3 and 7: their nearest points are at 1, 0, 1 and 3."""
    graph = relations.join_nearest([[0.0], [1.0], [3.0], [7.0]], 1)
    joined = np.zeros((4, 4))
    joined[[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]] = 1
    np.testing.assert_array_equal(relations.weight_matrix(graph), joined)


def test_of_equally_near_clients_the_first_are_taken():
    """Floating-point steps of 0.1 differ in their last bits: 0.3 - 0.2 < 0.2 - 0.1."""
    line = 0.1 * np.arange(6)[:, None]
    for points in (line, line @ np.array([[0.3, 0.7, 1.1]])):
        graph = relations.join_nearest(points, 1)
        pairs = {(i, j) for i, j in zip(graph.senders, graph.receivers, strict=True) if i < j}
        assert pairs == {(i, i + 1) for i in range(5)}
    same = relations.join_nearest(np.ones((4, 3)), 1)  # all distances are 0
    np.testing.assert_array_equal(relations.adjacency(same)[0], [0, 1, 1, 1])
    assert len(same.senders) == 6


@pytest.mark.parametrize("neighbours", [0, 4, 5])
def test_number_of_neighbours_is_checked(neighbours):
    complete = relations.join_nearest(np.eye(4), 3)
    np.testing.assert_array_equal(relations.weight_matrix(complete), 1 - np.eye(4))
    with pytest.raises(
        ValueError, match=rf"data.neighbours={neighbours} .*, 4; set .* in \[1, 3\]"
    ):
        relations.join_nearest(np.eye(4), neighbours)


def test_errors_name_the_clients_of_wrong_edges():
    names = ["ann", "bob", "eve"]
    with pytest.raises(ValueError, match=r"number 1, \('bob', 'bob'\), joins"):
        relations.from_edges(3, [(0, 2), (1, 1)], names=names)
    with pytest.raises(ValueError, match=r"\('eve', 'ann'\), is given twice"):
        relations.from_edges(3, [(0, 2), (2, 0)], names=names)


@pytest.mark.parametrize(
    "edges, weights, named",
    [
        ([(0, 1), (1, 5)], None, r"number 1, \(1, 5\), names a client outside 0 to 4"),
        ([(-1, 2)], None, r"\(-1, 2\)"),
        ([(3, 3)], None, r"\(3, 3\), joins a client to itself"),
        ([(0, 1), (2, 3), (1, 0)], None, r"number 2, \(1, 0\), is given twice"),
        ([(0, 1)], [-1.0], "weight -1.0"),
        ([(0, 1)], [np.nan], "weight nan"),
        ([(0, 1)], [1e300], "weight inf"),
        ([(0, 1)], [1.0, 2.0], r"weights: .* shape \(2,\) for 1 edges"),
        ([(0.5, 1.0)], None, "pairs of client indices"),
    ],
)
def test_invalid_edges_are_refused(edges, weights, named):
    with pytest.raises(ValueError, match=named):
        relations.from_edges(5, edges, weights)


def test_unknown_layer_is_refused():
    with pytest.raises(ValueError, match="layer='gat'.*mean, sage, gcn"):
        relations.propagation(relations.from_edges(2, [(0, 1)]), "gat")


def test_padding_edges_change_no_matrix():
    graph = relations.from_edges(4, [(0, 1), (2, 1)], [0.5, 2.0])
    longer = relations.pad_edges(graph, 9)
    assert len(longer.senders) == len(longer.receivers) == len(longer.edges) == 9
    for matrix in (relations.weight_matrix, relations.adjacency):
        np.testing.assert_array_equal(matrix(longer), matrix(graph))
    for layer in relations.LAYERS:
        np.testing.assert_array_equal(
            relations.propagation(longer, layer), relations.propagation(graph, layer)
        )


def test_subgraph_keeps_weights_and_directions():
    graph = relations.from_edges(4, [(0, 1), (2, 1), (3, 0)], [1.0, 2.0, 3.0], directed=True)
    part = relations.subgraph(graph, [2, 0, 1])
    expected = np.zeros((3, 3))
    expected[2, 1], expected[2, 0] = 1.0, 2.0  # 0 -> 1 and 2 -> 1 become 1 -> 2 and 0 -> 2
    np.testing.assert_array_equal(relations.weight_matrix(part), expected)
