"""Sparse graphs: matrices against NumPy, and methods against themselves on dense graphs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend import core as jex_core

from graphfl_jax.algorithms import hyper, panacea
from graphfl_jax.algorithms.hyper import server_fit
from graphfl_jax.algorithms.sfl import Smoothing, sfl, sfl_star
from graphfl_jax.core import Cohort, FederatedData
from graphfl_jax.data import relations
from graphfl_jax.data.sparse import SparseMatrix
from graphfl_jax.devices import call_for_all, client_mesh
from graphfl_jax.examples import Examples
from graphfl_jax.hypernets import neighbourhoods
from graphfl_jax.hypernets.generator import generator
from graphfl_jax.hypernets.output import output_layer
from graphfl_jax.hypernets.relation_gnn import relation_encoder
from graphfl_jax.metrics import REGRESSION
from graphfl_jax.models.mlp import mlp
from graphfl_jax.optimizers import WithoutMemory, sgd
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group
from graphfl_jax.trainers import sgd_trainer

KEY = jax.random.key(5)
MODEL = mlp(inputs=(2,), hidden=(3,), outputs=1, task=REGRESSION)
TRAIN = sgd_trainer(optax.sgd(0.1), steps=3, batch_size=4)
RNG = np.random.default_rng(0)
# Directed relations between 12 clients, some of them in both directions. Clients 10 and 11 have
# none, and client 9 only sends.
PRESENT = (RNG.random((12, 12)) < 0.25) & ~np.eye(12, dtype=bool)  # [receivers, senders]
PRESENT[9:] = PRESENT[:, 10:] = False
PRESENT[0, 9] = PRESENT[1, 0] = PRESENT[0, 1] = True


@pytest.fixture
def sparse(monkeypatch):
    """All graphs are sparse."""
    monkeypatch.setattr(relations, "SPARSE_CLIENTS", 0)
    monkeypatch.setattr(relations, "SPARSE_SHARE", 2.0)


def directed(padding=0):
    receivers, senders = np.nonzero(PRESENT)
    pairs = np.stack([senders, receivers], axis=1)
    return relations.pad_edges(
        relations.from_edges(12, pairs, np.arange(len(pairs)), directed=True),
        len(pairs) + padding,
    )


def ring(clients):
    return relations.from_edges(clients, [(i, (i + 1) % clients) for i in range(clients)])


def numpy_matrices(weighted=False):
    """The matrices of `directed` in float64, by name."""
    a, identity = PRESENT.astype(float), np.eye(12)
    if weighted:
        a[PRESENT] = np.arange(PRESENT.sum())  # one weight is 0
    rows = a.sum(1, keepdims=True)
    looped = a + identity
    return {
        "mean": looped / looped.sum(1, keepdims=True),
        "sage": a / np.where(rows > 0, rows, 1),
        "gcn": looped / np.sqrt(looped.sum(1, keepdims=True) * looped.sum(0)),
        "adjacency": 1.0 * (PRESENT | PRESENT.T),
        "edges": a,
    }


def matrix_of(graph, name, weighted=False):
    if name == "adjacency":
        return relations.adjacency(graph)
    if name == "edges":
        return relations.edge_matrix(graph, weighted=weighted)
    return relations.propagation(graph, name, weighted=weighted)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layer", relations.LAYERS)
def test_messages_of_jraph_are_products_with_the_matrix(layer, weighted, request):
    """Dense and sparse, with padding, against NumPy; weights of 1 change no bit."""
    nodes = jnp.asarray(RNG.normal(size=(12, 5)), jnp.float32)
    expected = numpy_matrices(weighted)[layer] @ np.asarray(nodes, float)
    graph = directed(padding=3)
    ones = graph._replace(edges=np.ones_like(graph.edges))
    passed = relations.message_passing(graph, nodes, layer, weighted=weighted)
    np.testing.assert_allclose(passed, expected, rtol=1e-5, atol=1e-6)
    plain = relations.message_passing(graph, nodes, layer)
    passed = relations.message_passing(ones, nodes, layer, weighted=True)
    np.testing.assert_array_equal(passed, plain)
    for kind in ("dense", "sparse"):
        if kind == "sparse":
            request.getfixturevalue("sparse")
        matrix = matrix_of(graph, layer, weighted)
        assert isinstance(matrix, SparseMatrix) == (kind == "sparse")
        np.testing.assert_allclose(matrix @ nodes, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_attention_to_a_neighbourhood_is_that_of_all_clients(sparse):
    """Two layers around clients 4 and 10 of a ring, values and gradients."""
    weights = 0.5 + RNG.random(20)
    graph = relations.from_edges(20, [(i, (i + 1) % 20) for i in range(20)], weights)
    encoder = relation_encoder(layer="attention", width=3, depth=2, edge_weights=True)
    edges, clients = encoder.relate(graph), jnp.array([10, 4, 10], jnp.int32)
    embeddings = jnp.asarray(RNG.normal(size=(20, 2)), jnp.float32)
    network = encoder.module.init(KEY, embeddings, edges)

    near = jax.jit(neighbourhoods.of_clients, static_argnums=2)(edges, clients, 2)
    assert near.fit

    def of_some(network, embeddings):
        parts = [neighbourhoods.part(edges, near, level) for level in (1, 0)]
        encoded = encoder.module.apply(network, embeddings[near.nodes], tuple(parts))
        return jnp.sin(encoded[near.places]).sum(), encoded[near.places]

    def of_all(network, embeddings):
        encoded = encoder.module.apply(network, embeddings, edges)[clients]
        return jnp.sin(encoded).sum(), encoded

    some, everyone = (
        jax.jit(jax.value_and_grad(encode, (0, 1), has_aux=True))(network, embeddings)
        for encode in (of_some, of_all)
    )
    assert_close(some, everyone)


@pytest.mark.parametrize("name", [*relations.LAYERS, "edges", "adjacency"])
def test_sparse_matrices_multiply_as_their_arrays(name, sparse):
    """Also transposed, in gradients, with padding, and mapped over graphs."""
    expected = numpy_matrices()[name]
    values = RNG.normal(size=(12, 3, 2))
    x, weights = (jnp.asarray(values * scale, jnp.float32) for scale in (1.0, 0.5))

    @jax.jit
    def products(graph):
        matrix = matrix_of(graph, name)
        assert isinstance(matrix, SparseMatrix) and len(matrix) == 12
        gradient = jax.grad(lambda x: jnp.sum(weights * jnp.sin(matrix @ x)))(x)
        return matrix @ x, matrix.transposed_times(x), gradient, matrix @ x[:, 0, 0]

    graphs = [relations.pad_edges(directed(), len(directed().senders) + 5), directed(padding=5)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *graphs)
    forward = np.einsum("ij,jkl->ikl", expected, values)
    backward = np.einsum("ij,ikl->jkl", expected, 0.5 * values * np.cos(forward))
    for actual in (
        products(directed()),
        jax.tree.map(lambda a: a[1], jax.vmap(products)(stacked)),
    ):
        np.testing.assert_allclose(actual[0], forward, atol=1e-6)
        np.testing.assert_allclose(
            actual[1], np.einsum("ij,ikl->jkl", expected, values), atol=1e-6
        )
        np.testing.assert_allclose(actual[2], backward, atol=1e-6)
        np.testing.assert_allclose(actual[3], forward[:, 0, 0], atol=1e-6)


def test_an_undirected_pair_counts_once_in_each_direction(sparse):
    matrix = relations.adjacency(directed(padding=3))
    joined = numpy_matrices()["adjacency"]
    assert int(matrix.starts[-1]) == joined.sum() < 2 * PRESENT.sum()
    np.testing.assert_array_equal(matrix.degrees, joined.sum(1))


def test_only_shapes_decide_whether_a_graph_is_sparse():
    few = relations.from_edges(1000, [(0, 1)])
    assert relations.is_sparse(few)
    assert not relations.is_sparse(relations.from_edges(999, [(0, 1)]))
    assert relations.is_sparse(relations.pad_edges(few, 10_000))
    assert not relations.is_sparse(relations.pad_edges(few, 10_001))
    assert jax.jit(lambda graph: jnp.bool_(relations.is_sparse(graph)))(few)


def test_a_function_of_many_is_called_once_when_mapped_over_clients():
    called = []

    @call_for_all
    def scaled(shared, ids):
        called.append(len(ids))
        return {"row": shared[ids] * 2.0}

    rows = jnp.arange(6.0)
    assert float(scaled(rows, jnp.int32(4))["row"]) == 8.0 and called == [1]
    called.clear()
    ids = jnp.array([1, 3, 5])
    mapped = jax.vmap(scaled, (None, 0))(rows, ids)["row"]
    np.testing.assert_array_equal(mapped, [2.0, 6.0, 10.0])
    assert 3 in called
    runs = jax.vmap(jax.vmap(scaled, (None, 0)), (0, None))(jnp.stack([rows, rows + 1]), ids)
    np.testing.assert_array_equal(runs["row"], [[2.0, 6.0, 10.0], [4.0, 8.0, 12.0]])
    each = jax.vmap(scaled, (0, 0))(jnp.stack([rows, rows + 1]), jnp.array([0, 5]))["row"]
    np.testing.assert_array_equal(each, [0.0, 12.0])


# ------------------------------------------------------------------------------ neighbourhoods


def dense_of(matrix):
    """The array [N, N] of a sparse matrix."""
    return np.asarray(matrix @ jnp.eye(len(matrix)))


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["sage", pytest.param("gcn", marks=pytest.mark.release)])
def test_a_neighbourhood_holds_the_clients_within_some_steps(sparse, layer):
    """On a ring, two steps around clients 4 and 10; client 2 is followed to 1 and 3."""
    matrix = relations.propagation(ring(20), layer)
    farther = lambda ids: ids == 2  # noqa: E731
    clients = jnp.array([10, 4, 10], jnp.int32)
    near = neighbourhoods.of_clients(matrix, clients, 2, farther)
    assert near.fit
    np.testing.assert_array_equal(near.nodes[near.places], clients)
    levels = [{4, 10}, {3, 5, 9, 11}, {2, 6, 8, 12}, {1}]
    for level, size in enumerate(near.sizes):
        assert set(near.nodes[:size].tolist()) - {20} == set().union(*levels[: level + 1])
    assert sorted(set(near.nodes.tolist())) == sorted({20}.union(*levels))

    values = jnp.asarray(RNG.normal(size=(20, 3)), jnp.float32)
    array, weights = dense_of(matrix), jnp.asarray(RNG.normal(size=(20, 3)), jnp.float32)
    for level, size in enumerate(near.sizes[:-1]):
        rows, columns = near.nodes[:size], near.nodes[: near.sizes[level + 1]]
        inside = neighbourhoods.part(matrix, near, level)
        real = np.asarray(rows) < 20
        followed = real & (np.ones(size, bool) if level < 2 else np.asarray(rows) == 2)
        expected = (array @ values)[np.minimum(rows, 19)]
        np.testing.assert_allclose(
            (inside @ values[columns])[followed], expected[followed], rtol=1e-6
        )
        if level == 2:
            continue
        # The gradient of a weighted sum of the rows is the transposed matrix times the weights.
        scale = jnp.where(real[:, None], weights[rows], 0.0)
        gradient = jax.grad(lambda x: jnp.sum(scale * (inside @ x)))(values[columns])  # noqa: B023
        full = array[np.minimum(rows, 19)].T @ scale
        known = np.asarray(columns) < 20
        np.testing.assert_allclose(
            gradient[known], full[np.asarray(columns)[known]], rtol=1e-5, atol=1e-6
        )


@pytest.mark.release
def test_a_neighbourhood_that_is_too_large_is_refused(sparse, monkeypatch):
    """Of client 4 on a ring, 3 are within one step."""
    matrix, clients = relations.propagation(ring(20), "sage"), jnp.array([4], jnp.int32)
    monkeypatch.setattr(neighbourhoods, "FEWEST", 1)
    for reach, fit in ((1.0, True), (0.9, False)):  # levels of 1 and 3, or of 1 and 2
        monkeypatch.setattr(neighbourhoods, "REACH", reach)
        assert bool(neighbourhoods.of_clients(matrix, clients, 2).fit) == fit
    monkeypatch.setattr(neighbourhoods, "REACH", 1.0)
    monkeypatch.setattr(neighbourhoods, "EDGES", -0.6)  # room for one of two edges
    assert not neighbourhoods.of_clients(matrix, clients, 2).fit


# ------------------------------------------------------------------------------------ Panacea


def panacea_with(layer="sage", lambda_d=0.5, dropout=0.3, width=4, optimizer=None):
    return panacea.panacea(
        MODEL,
        TRAIN,
        encoder=relation_encoder(layer=layer, width=width, depth=2),
        generator=generator(
            output=output_layer(MODEL), embedding_dim=width, width=width, depth=2
        ),
        fit=server_fit(
            server_optimizer=optimizer or sgd(lr=0.1),
            server_steps=3,
            separate_embedding_lr=True,
            embedding_lr=2.0,
            new_client_lr=0.1,
        ),
        lambda_d=lambda_d,
        embedding_dropout=dropout,
    )


def federation(graph, clients, examples=6):
    x = RNG.normal(size=(clients, examples, 2)).astype(np.float32)
    rows = Examples(x, x[..., :1] * 0.5, np.full(clients, examples, np.int32))
    return FederatedData(rows, {"test": rows}, graph)


def played(algorithm, data, rounds=2, mesh=None, cohort_size=4):
    """The state after some rounds, and the scores."""
    build = lambda hparams, played: algorithm  # noqa: E731
    program = Program(build, groups=(Group(cohort_size),), mesh=mesh).compiled()
    state = program.start(KEY, {}, data)
    state, log = program.advance(state, KEY, {}, data, jnp.int32(rounds))
    assert int(log.diverged_at) == -1
    scores = program.evaluate(state, KEY, {}, data)[0]
    return jax.device_get((state.server, scores))


def assert_close(actual, expected, **tolerance):
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, **({"rtol": 1e-4, "atol": 1e-5} | tolerance))


@pytest.mark.release
@pytest.mark.parametrize("layer", ["sage", "mean", "attention"])
def test_panacea_without_the_graph_loss_is_the_same_on_a_sparse_graph(layer, request):
    """Both draw the same cohorts and batches."""
    data = federation(directed(padding=2), 12)
    algorithm = panacea_with(layer, lambda_d=0.0, dropout=0.0)
    dense = played(algorithm, data)
    request.getfixturevalue("sparse")
    server, scores = played(algorithm, data)
    assert isinstance(server.relations[0], SparseMatrix)
    assert_close((server.weights, scores), (dense[0].weights, dense[1]))


@pytest.mark.release
@pytest.mark.parametrize(
    "optimizer, layer",
    [
        (sgd(lr=0.1), "sage"),
        (optax.sgd(0.1, momentum=0.5), "sage"),
        (sgd(lr=0.1), "attention"),
    ],
    ids=["rows", "all", "attention"],
)
def test_neighbourhoods_change_nothing(sparse, monkeypatch, optimizer, layer):
    """With them, with a condition that chooses all clients, and without a condition.

    An optimiser with a memory moves all embeddings, and the other one those that are used.
    """
    monkeypatch.setattr(panacea, "DRAWN_CLIENTS", 3)
    monkeypatch.setattr(panacea, "DRAWN_RELATIONS", 1)
    ids = jnp.array([3, 4, 50, 99], jnp.int32)
    results, branches = {}, {}
    for size in (1.0, 0.1, 1000):
        monkeypatch.setattr(neighbourhoods, "REACH", size)
        monkeypatch.setattr(neighbourhoods, "FEWEST", 1)
        algorithm = panacea_with(layer, lambda_d=5.0, optimizer=optimizer)
        server = algorithm.server.init(KEY, ring(100))
        begun = algorithm.server.begin_round(server, KEY)

        @jax.jit
        def learned(begun, algorithm=algorithm):
            sent = jax.vmap(algorithm.server.download, (None, None, 0))(begun, 0, ids)
            uploads = jax.tree.map(lambda leaf: 1.5 * leaf, sent)
            cohort = Cohort(ids, jnp.ones(4))
            return sent, algorithm.server.aggregate(begun, (cohort,), (uploads,), KEY).weights

        results[size] = learned(begun)
        branches[size] = str(jax.make_jaxpr(learned)(begun)).count(" cond[")
    # In the download; in the server's steps, only an optimiser with a memory has a condition.
    number = 1 if isinstance(optimizer, WithoutMemory) else 2
    assert branches == {1.0: number, 0.1: number, 1000: 0}
    moved = results[1.0][1]["embeddings"] - server.weights["embeddings"]
    assert jnp.abs(moved).max() > 1e-3
    # Exact up to rounding, which differs between the three.
    assert_close(results[0.1], results[1000], rtol=1e-5, atol=1e-6)
    assert_close(results[1.0], results[1000], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_share_of_the_embeddings_is_dropped_in_each_round(sparse):
    """Two related clients keep their messages if none of them is dropped: 0.7^2 of 2,000 pairs.

    The share is within 4 standard errors, and two rounds are independent: 0.49^2 keep both.
    """
    graph = relations.from_edges(4000, [(i, i + 1) for i in range(0, 4000, 2)])
    algorithm = panacea_with(dropout=0.3)
    server, ids = algorithm.server.init(KEY, graph), jnp.arange(4000)

    @jax.jit
    def sent(server):
        messages = jax.vmap(algorithm.server.download, (None, None, 0))(server, 0, ids)
        return messages["body"]["Dense_0"]["kernel"].reshape(4000, -1)

    whole, kept = sent(server), []
    for i in range(2):
        begun = sent(algorithm.server.begin_round(server, jax.random.key(i)))
        same = jnp.all(jnp.isclose(begun, whole, rtol=1e-5, atol=1e-7), axis=1)
        kept.append(np.asarray(same).reshape(-1, 2).all(axis=1))
    error = 4 * np.sqrt(0.25 / 2000)
    assert abs(kept[0].mean() - 0.49) < error and abs(kept[1].mean() - 0.49) < error
    assert abs((kept[0] & kept[1]).mean() - 0.49**2) < error


@pytest.mark.release
def test_runs_in_one_program_have_neighbourhoods(sparse, monkeypatch):
    monkeypatch.setattr(panacea, "DRAWN_CLIENTS", 3)
    monkeypatch.setattr(panacea, "DRAWN_RELATIONS", 1)
    monkeypatch.setattr(neighbourhoods, "REACH", 1.0)
    monkeypatch.setattr(neighbourhoods, "FEWEST", 1)
    data, algorithm = federation(ring(100), 100), panacea_with()
    program = Program(lambda hparams, played: algorithm, groups=(Group(4),)).compiled()

    def run(key):
        state = program.start(key, {}, data)
        return program.advance(state, key, {}, data, jnp.int32(2))[0].server.weights

    keys = jax.random.split(KEY, 2)
    runs = jax.vmap(run)(keys)
    for i in range(2):
        alone = jax.tree.map(lambda leaf, i=i: leaf[i], runs)
        assert_close(alone, run(keys[i]), rtol=1e-5, atol=1e-6)


@pytest.mark.release
def test_a_cohort_on_several_devices_has_neighbourhoods(sparse, monkeypatch):
    """Tests simulate eight devices."""
    monkeypatch.setattr(panacea, "DRAWN_CLIENTS", 3)
    monkeypatch.setattr(panacea, "DRAWN_RELATIONS", 1)
    monkeypatch.setattr(neighbourhoods, "REACH", 1.0)
    monkeypatch.setattr(neighbourhoods, "FEWEST", 1)
    data = federation(ring(100), 100)
    single, sharded = (played(panacea_with(), data, 1, mesh) for mesh in (None, client_mesh(2)))
    assert_close(sharded, single, rtol=1e-5, atol=1e-6)


def hidden_values():
    return jnp.asarray(RNG.normal(size=(12, 5)) * 2, jnp.float32)


def exact_graph_loss(hidden, divisor=5):
    """In float64, over all ordered pairs."""
    hidden, joined = np.asarray(hidden, float), numpy_matrices()["adjacency"]
    edge = 1 / (1 + np.exp(-hidden @ hidden.T / divisor))
    losses = -np.log(np.where(joined > 0, edge, 1 - edge))
    return losses[~np.eye(12, dtype=bool)].mean()


@pytest.mark.parametrize("divisor", [5, 1], ids=["scaled", "plain"])
@pytest.mark.slow
def test_the_drawn_graph_loss_of_everything_is_the_graph_loss(sparse, monkeypatch, divisor):
    hidden, joined = hidden_values(), numpy_matrices()["adjacency"]
    rows, columns = np.nonzero(joined)
    monkeypatch.setattr(panacea, "DRAWN_RELATIONS", len(rows))
    every = np.concatenate([np.arange(12), columns, rows])
    actual = panacea.drawn_graph_loss(hidden[every], relations.adjacency(directed()), divisor)
    np.testing.assert_allclose(actual, exact_graph_loss(hidden, divisor), rtol=1e-6)


def test_the_drawn_graph_loss_is_unbiased(sparse, monkeypatch):
    monkeypatch.setattr(panacea, "DRAWN_CLIENTS", 3)
    monkeypatch.setattr(panacea, "DRAWN_RELATIONS", 2)
    hidden, adjacency = hidden_values(), relations.adjacency(directed(padding=4))
    draws = 20_000

    @jax.jit
    @jax.vmap
    def estimate(key):
        clients = panacea.draw_for_loss(adjacency, key)
        return clients, panacea.drawn_graph_loss(hidden[clients], adjacency, 5)

    clients, losses = jax.device_get(estimate(jax.random.split(KEY, draws)))
    assert all(len(set(neighbours)) == 3 for neighbours in clients[:100, :3].tolist())
    joined = numpy_matrices()["adjacency"]
    assert joined[clients[:, 3:5], clients[:, 5:7]].all()
    losses = losses.astype(float)
    error = losses.std() / np.sqrt(draws)
    assert error > 1e-4  # the draws differ
    assert abs(losses.mean() - exact_graph_loss(hidden)) < 4 * error


@pytest.mark.slow
def test_the_first_weights_do_not_depend_on_the_number_of_clients():
    """As with the propagation of all clients, from which only the shapes of weights follow."""
    algorithm = panacea_with()
    server = algorithm.server.init(KEY, ring(9))
    key = jax.random.split(KEY, 3)[1]
    encoder = relation_encoder(layer="sage", width=4, depth=2).module
    expected = encoder.init(key, server.weights["embeddings"], jnp.eye(9))["params"]
    for x, y in zip(*map(jax.tree.leaves, (server.weights["encoder"], expected)), strict=True):
        np.testing.assert_array_equal(x, y)


# ----------------------------------------------------------------------------- new clients


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["zero", "mean", "neighbours"])
def test_new_clients_start_from_the_same_embeddings_on_a_sparse_graph(scheme, request):
    embeddings = jnp.asarray(RNG.normal(size=(12, 3)), jnp.float32)
    new = jnp.array([8, 9, 10, 11])
    arguments = (embeddings, new, directed(), scheme, KEY)
    dense = hyper._initial_embeddings(*arguments)
    request.getfixturevalue("sparse")
    np.testing.assert_allclose(hyper._initial_embeddings(*arguments), dense, atol=1e-6)


def test_a_new_client_starts_from_a_random_known_neighbour(sparse):
    """Client 9 sends to client 0, and may to others; clients 10 and 11 have no neighbours."""
    embeddings = jnp.arange(12.0)[:, None]
    new = jnp.array([9, 10, 11])
    draw = functools.partial(
        hyper._initial_embeddings, embeddings, new, directed(), "neighbour"
    )
    drawn = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(KEY, 2000)))[..., 0]
    related = np.flatnonzero(numpy_matrices()["adjacency"][9, :9])
    for place, possible in ((0, related), (1, np.arange(9)), (2, np.arange(9))):
        counts = np.bincount(drawn[:, place].astype(int), minlength=12)
        assert set(np.flatnonzero(counts)) == set(possible.tolist())
        share = 1 / len(possible)
        error = np.sqrt(share * (1 - share) / 2000)
        np.testing.assert_allclose(counts[possible] / 2000, share, atol=4.5 * error + 1e-12)


# ---------------------------------------------------------------------------------------- SFL


@pytest.mark.release
@pytest.mark.parametrize(
    "rule", ["intended", pytest.param("as_released", marks=pytest.mark.release)]
)
def test_sfl_is_the_same_on_a_sparse_graph(rule, request):
    """Cohorts of 4 take rows of the mixing, and all 12 clients take all smoothed models."""
    data = federation(directed(padding=2), 12)
    algorithm = sfl(MODEL, TRAIN, smoothing=Smoothing(3, rule, 0.3, 0.8))
    dense = played(algorithm, data)
    request.getfixturevalue("sparse")
    server, scores = played(algorithm, data)
    assert server.mixing == () and isinstance(server.relations, SparseMatrix)
    assert_close((server.uploads, scores), (dense[0].uploads, dense[1]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("graph", ["inductive", "transductive"])
def test_new_clients_of_sfl_are_the_same_on_a_sparse_graph(graph, request):
    algorithm = sfl(MODEL, TRAIN, smoothing=Smoothing(2, "intended", 0.3, 0.8)).server
    known = relations.subgraph(directed(), np.arange(8 if graph == "inductive" else 12))

    def join():
        @jax.jit
        def uploads(known, everyone):
            server = algorithm.init(KEY, known)
            rows = jax.tree.map(lambda leaf: jax.random.normal(KEY, leaf.shape), server.uploads)
            server = server._replace(uploads=rows)
            return algorithm.admit(server, (jnp.arange(8, 12),), everyone, KEY).uploads

        return uploads(known, directed())

    dense = join()
    request.getfixturevalue("sparse")
    assert_close(join(), dense, rtol=1e-5, atol=1e-6)


def test_sfl_star_refuses_more_clients_than_a_matrix_allows():
    star = sfl_star(MODEL, TRAIN, smoothing=Smoothing(3, "intended", 0.3, 1.0))
    with pytest.raises(ValueError, match="'sfl_star' .* N=10001 .*choose another method"):
        jax.eval_shape(star.server.init, KEY, ring(10_001))


# ------------------------------------------------------------------------------------- memory


def largest_array(jaxpr):
    """The number of elements of the largest array in a trace."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [variable.aval.size for variable in equation.outvars]
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                if isinstance(part, jex_core.ClosedJaxpr):
                    part = part.jaxpr
                if isinstance(part, jex_core.Jaxpr):
                    sizes.append(largest_array(part))
    return max(sizes)


@pytest.mark.release
@pytest.mark.parametrize("method", ["panacea", "sfl"])
def test_no_array_of_a_large_federation_has_a_number_for_each_pair(method):
    """Arrays of a round grow with the relations times the width, here 8."""
    clients, related = 100_000, 500_000
    pairs = np.stack([np.arange(clients).repeat(5)] * 2, axis=1)
    pairs[:, 1] = (pairs[:, 0] + np.tile(np.arange(1, 6), clients)) % clients
    data = federation(relations.from_edges(clients, pairs), clients, examples=2)
    algorithm = panacea_with(width=8)
    if method == "sfl":
        algorithm = sfl(MODEL, TRAIN, smoothing=Smoothing(3, "intended", 0.3, 1.0))
    program = Program(lambda hparams, played: algorithm, groups=(Group(5),)).compiled()
    state = jax.eval_shape(program.start, KEY, {}, data)
    trace = jax.make_jaxpr(program.advance)(state, KEY, {}, data, jnp.int32(1))
    assert 2 * related <= largest_array(trace.jaxpr) <= 16 * 2 * related
    held = sum(leaf.size for leaf in jax.tree.leaves(state))
    assert held < 30 * 2 * related
