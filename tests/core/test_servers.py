"""What servers compute, on examples worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax.algorithms import perfedavg as perfedavg_module
from graphfl_jax.algorithms import sfl as sfl_module
from graphfl_jax.algorithms.attention import from_relations
from graphfl_jax.algorithms.cfl import cfl
from graphfl_jax.algorithms.fedamp import MixingServer, fedamp, heurfedamp
from graphfl_jax.algorithms.hyper import ServerFit, hyper_federation, without_relations
from graphfl_jax.algorithms.perfedavg import perfedavg
from graphfl_jax.algorithms.pfedgat import AttentionServer, pfedgat
from graphfl_jax.algorithms.pfedme import pfedme
from graphfl_jax.algorithms.sfl import Smoothing, SmoothingServer, sfl, sfl_star
from graphfl_jax.core import ClientData, ClientModel, Cohort
from graphfl_jax.data import relations
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import REGRESSION

KEY = jax.random.key(3)
# The output is w x, with two weights that are 0 at the start.
MODEL = ClientModel(
    init=lambda key: {"body": {}, "head": jnp.zeros(2)},
    body=lambda params, x: x,
    head=lambda params, features: features @ params[:, None],
    task=REGRESSION,
)
PATH = relations.from_edges(3, [(0, 1), (1, 2)])
ASYMMETRIC = [[0.7, 0.3, 0.0], [0.2, 0.7, 0.1], [0.0, 0.6, 0.4]]  # rows sum to one


def no_training(objective, params, examples, key):
    """A trainer that returns what it receives."""
    return params, {"loss": jnp.float32(0.0)}


def models(rows):
    """Models of clients, one row of weights for each."""
    return {"body": {}, "head": jnp.array(rows, jnp.float32)}


def cohort_of(*ids):
    """Clients with 1, 2, ... examples."""
    return Cohort(jnp.array(ids, jnp.int32), jnp.arange(1.0, len(ids) + 1.0))


# ------------------------------------------------------------------------- means of uploads


SIZES = {"local_steps": 1, "batch_size": 1, "client_optimizer": optax.sgd(0.1)}
UNEQUAL = Cohort(jnp.array([0, 1], jnp.int32), jnp.array([1.0, 3.0]))


def test_the_server_of_perfedavg_weights_all_clients_equally():
    server = perfedavg(MODEL, **SIZES).server
    w = server.aggregate(models([9, 9]), (UNEQUAL,), (models([[0, 8], [4, 0]]),), KEY)
    np.testing.assert_allclose(w["head"], [2, 4])  # (0 + 4) / 2, (8 + 0) / 2


def test_the_server_of_pfedme_weights_clients_by_their_examples():
    server = pfedme(MODEL, **SIZES, personal_optimizer=optax.sgd(0.1), pfedme_beta=0.25).server
    w = server.aggregate(models([2, 2]), (UNEQUAL,), (models([[0, 8], [4, 0]]),), KEY)
    # The means are (1 * 0 + 3 * 4) / 4 = 3 and (1 * 8 + 3 * 0) / 4 = 2.
    np.testing.assert_allclose(w["head"], [0.75 * 2 + 0.25 * 3, 0.75 * 2 + 0.25 * 2])


def test_a_step_of_perfedavg_draws_three_batches(monkeypatch):
    """The loss is (w x)^2. The first batch has x = 1, the second 2 and the third 3."""
    monkeypatch.setattr(
        *(perfedavg_module, "draw_indices"),
        lambda key, shape, count: jnp.arange(np.prod(shape)).reshape(shape),
    )
    x = jnp.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    data = ClientData(Examples(x, jnp.zeros((3, 1)), jnp.int32(3)))
    client = perfedavg(MODEL, **SIZES, perfedavg_alpha=0.1).client
    _, w, _ = client.local(models([1, 0]), (), data, KEY)
    # w' = 1 - 0.1 * 2 * 1 = 0.8, its gradient is 2 * 4 * 0.8 = 6.4, the second derivative is
    # 2 * 9 = 18, and w = 1 - 0.1 * (6.4 - 0.1 * 18 * 6.4). One batch for all gives 0.872.
    np.testing.assert_allclose(w["head"], [1.512, 0.0], rtol=1e-5)


# ------------------------------------------------------------------------------ clusters


THREE = [[3.0, 0.0], [-3.0, 0.0], [0.0, 1.2]]


def cfl_of(num_clients=3, **changes):
    settings = {
        "cfl_clusters": 2,
        "cfl_warmup": 0,
        "cfl_mean_norm": 0.5 / 3,
        "cfl_max_norm": 2.5 / 3,
    }
    return cfl(
        MODEL, no_training, played=1, num_clients=num_clients, **settings | changes
    ).server


def after_updates(server, updates):
    """The state after a first round with all clients, whose model is 0."""
    state = server.init(KEY, relations.from_edges(len(updates), []))
    cohort = cohort_of(*range(len(updates)))
    return jax.jit(server.aggregate)(state, (cohort,), (models(updates),), KEY)


@pytest.mark.parametrize(
    "changes, clusters",
    [({}, 2), ({"cfl_mean_norm": 0.1}, 1), ({"cfl_max_norm": 3.5 / 3}, 1)],
)
def test_cfl_compares_the_norm_of_the_mean_update_and_the_largest_norm(changes, clusters):
    """The mean update is (0, 0.4), the largest norm is 3, and the mean of the norms is 2.4."""
    for scale in (1.0, 1e-3):  # of the updates, which does not matter
        updates = [[scale * number for number in update] for update in THREE]
        assert int(after_updates(cfl_of(**changes), updates).count) == clusters


def test_the_unit_of_cfl_is_the_largest_norm_of_its_first_round():
    server, cohort = cfl_of(cfl_mean_norm=0.0), cohort_of(0, 1, 2)
    state = after_updates(server, THREE)
    assert state.unit == 3.0
    sent = np.asarray(state.models["head"])[0]
    uploads = models((sent + 100.0 * np.array(THREE)).tolist())
    assert server.aggregate(state, (cohort,), (uploads,), KEY).unit == 3.0


def test_cfl_splits_no_cluster_of_two_clients():
    state = after_updates(cfl_of(num_clients=2), THREE[:2])  # their mean is 0
    assert int(state.count) == 1 and not state.clusters.any()


def test_a_new_client_of_cfl_joins_no_cluster_that_does_not_exist():
    """The unused model of the second cluster is still 0, and the only cluster's is (2, 0).

    Seen from there, 0 lies in the direction of the new client's model, (1, 0).
    """
    server = cfl_of(cfl_mean_norm=0.0)
    state = after_updates(server, [[2.0, 0.0]] * 3)
    np.testing.assert_array_equal(state.root["head"], [2, 0])
    state = server.admit(state, (jnp.array([3], jnp.int32),), None, KEY)
    state = server.adapt_new_clients(state, (cohort_of(3),), (models([[1, 0]]),), KEY)
    np.testing.assert_array_equal(state.clusters, [0, 0, 0, 0])


# ---------------------------------------------------------------------- mixtures of models


def mixing_servers():
    """The servers of methods that send mixtures, with states that have the same mixtures."""
    uploads, mixing = models([[1, 0], [4, 1], [2, 5]]), jnp.array(ASYMMETRIC)
    mixed = MixingServer(uploads, mixing)
    smoothed = SmoothingServer(uploads, jnp.eye(3), mixing)
    smoothing = Smoothing(1, "intended", 0.3, 1.0)
    attentive = pfedgat(
        *(MODEL, no_training),
        num_clients=3,
        attention=from_relations(),
        server_optimizer=optax.sgd(0.1),
    )
    return {
        "fedamp": (fedamp(MODEL, no_training, num_clients=3), mixed),
        "heurfedamp": (heurfedamp(MODEL, no_training, num_clients=3), mixed),
        "sfl": (sfl(MODEL, no_training, smoothing=smoothing), smoothed),
        "sfl_star": (sfl_star(MODEL, no_training, smoothing=smoothing), smoothed),
        "pfedgat": (attentive, AttentionServer(uploads, mixing, (), (), ())),
    }


@pytest.mark.parametrize("method", ["fedamp", "heurfedamp", "sfl", "sfl_star", "pfedgat"])
def test_the_allocation_holds_each_clients_shares_in_what_is_sent(method):
    algorithm, state = mixing_servers()[method]
    # 0.7 * 1 + 0.3 * 4 = 1.9 for the first client, and so on.
    expected = np.array(ASYMMETRIC) @ [[1, 0], [4, 1], [2, 5]]
    np.testing.assert_allclose(expected[0], [1.9, 0.3])
    for i in range(3):
        sent = algorithm.server.download(state, 0, i)
        sent = sent[0] if isinstance(sent, tuple) else sent  # with other messages
        np.testing.assert_allclose(sent["head"], expected[i], rtol=1e-6)
    shares = algorithm.server.allocation(state)
    np.testing.assert_allclose(shares, ASYMMETRIC, rtol=1e-6)


def test_the_allocation_of_cfl_is_equal_shares_within_a_cluster():
    server, rows = cfl_of(), [[3, 0], [-3, 0], [0, 1]]
    state = server.init(KEY, PATH)._replace(clusters=jnp.array([0, 1, 0]), count=jnp.int32(2))
    shares = server.allocation(state)
    expected = [[1 / 2, 0, 1 / 2], [0, 1, 0], [1 / 2, 0, 1 / 2]]
    np.testing.assert_array_equal(shares, expected)
    state = jax.jit(server.aggregate)(state, (cohort_of(0, 1, 2),), (models(rows),), KEY)
    for i in range(3):
        np.testing.assert_allclose(
            server.download(state, 0, i)["head"], expected[i] @ np.array(rows)
        )


def test_a_new_client_changes_no_mixture_but_its_own():
    """HeurFedAMP with 0.3 of the own model and, as sigma = 0, equal shares of all others."""
    server = heurfedamp(
        *(MODEL, no_training), num_clients=2, heurfedamp_own=0.3, heurfedamp_sigma=0.0
    ).server
    known = [[0.7, 0.3], [0.2, 0.8]]
    state = MixingServer(models([[1, 2], [3, 8]]), jnp.array(known))
    state = server.admit(state, (jnp.array([2], jnp.int32),), None, KEY)
    np.testing.assert_allclose(state.uploads["head"], [[1, 2], [3, 8], [2, 5]])
    expected = [[0.7, 0.3, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]]
    np.testing.assert_allclose(state.mixing, expected)
    state = server.adapt_new_clients(state, (cohort_of(2),), (models([[6, 7]]),), KEY)
    np.testing.assert_allclose(state.uploads["head"], [[1, 2], [3, 8], [6, 7]])
    expected[2] = [0.35, 0.35, 0.3]  # (1 - 0.3) / 2 for each of the others
    np.testing.assert_allclose(state.mixing, expected, rtol=1e-6)


def test_sfl_star_smooths_over_given_and_learned_relations(monkeypatch):
    """The path 0 - 1 - 2, and a learned relation of client 0 to 1 alone."""
    learned = jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    monkeypatch.setattr(sfl_module, "_learn_relations", lambda *args, **kwargs: learned)
    smoothing = Smoothing(1, "intended", 0.3, 1.0)
    server = sfl_star(MODEL, no_training, smoothing=smoothing, sfl_graph_share=0.4).server
    state = server.init(KEY, PATH)
    state = server.aggregate(state, (cohort_of(0, 1, 2),), ((models(THREE),),), KEY)
    # A^ has the rows (1/2, 1/2, 0), (1/3, 1/3, 1/3) and (0, 1/2, 1/2). The first row is
    # (0.6 / 2, 0.6 / 2 + 0.4, 0); the others sum to 0.6 and are divided by it.
    expected = [[0.3, 0.7, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.0, 1 / 2, 1 / 2]]
    np.testing.assert_allclose(state.mixing, expected, rtol=1e-6)


def normalised(matrix):
    """Rows that sum to one; a row of zeros stays."""
    total = matrix.sum(1, keepdims=True)
    return matrix / np.where(total > 0, total, 1)


@pytest.mark.parametrize("apart", [False, True])
def test_sfl_star_learns_relations_by_gradient_descent(apart, monkeypatch):
    """In NumPy with numerical gradients, for the two largest scores of each of six clients.

    A score is that of one of the two clients of a pair, so that some client has three.
    """
    monkeypatch.setattr(sfl_module, "DEGREE", 2)
    rows = np.array([[1.0, 0.2], [0.4, 0.9], [-1.0, 0.3], [-0.5, -0.8], [0.1, -0.4], [2, 1]])
    rate, steps = 5.0, 2
    before, after = (
        sfl_module._learn_relations(*(models(rows), KEY), steps=number, rate=rate, apart=apart)
        for number in (0, steps)
    )
    squares = ((rows[:, None] - rows) ** 2).sum(2)
    target = normalised(np.sqrt(squares) if apart else np.exp(-squares / squares.mean()))
    features = rows - rows.mean(0)
    features = features / np.sqrt((features**2).sum(1).mean())

    def relations_of(weights):
        one, other = np.tanh(features @ weights)
        scores = np.maximum(np.tanh(one @ other.T - other @ one.T), 0)
        return normalised(np.where(scores >= np.sort(scores)[:, [-2]], scores, 0))

    def loss(weights):
        return ((relations_of(weights) - target) ** 2).mean()

    weights = np.array(jax.random.normal(KEY, (2, 2, 10)), np.float64)
    np.testing.assert_allclose(before, relations_of(weights), atol=1e-5)
    first, size = loss(weights), 1e-6
    for _ in range(steps):
        steps_of_one = size * np.eye(weights.size).reshape(-1, *weights.shape)
        slopes = [loss(weights + one) - loss(weights - one) for one in steps_of_one]
        weights = weights - rate * np.reshape(slopes, weights.shape) / (2 * size)
    assert loss(weights) < first
    assert np.abs(before - after).max() > 1e-2
    np.testing.assert_allclose(after, relations_of(weights), atol=1e-4)


# --------------------------------------------------------------------------- hypernetworks


def test_each_new_client_of_a_hypernetwork_moves_as_if_it_joined_alone():
    """A client's weights are twice its embedding, and the known embeddings are 1 and 3."""

    def initial(key, num_clients):
        return {"embeddings": jnp.array([[1.0], [3.0]])}

    hyper = without_relations(initial, lambda weights, own: models(2 * own))
    fit = ServerFit(optax.sgd(0.1), 1, optax.sgd(0.1), "mean")
    server = hyper_federation(MODEL, no_training, hyper, fit).server
    graph = relations.from_edges(4, [])
    state = server.admit(server.init(KEY, PATH), (jnp.array([2, 3], jnp.int32),), graph, KEY)
    state = server.adapt_new_clients(state, (cohort_of(2, 3),), (models([[9.0], [-1.0]]),), KEY)
    # Both start from 2 and got 4. The gradient of (9 - 2 e)^2 / 2 is -2 (9 - 4) = -10, and that
    # of (-1 - 2 e)^2 / 2 is -2 (-1 - 4) = 10.
    expected = [[1.0], [3.0], [2.0 + 0.1 * 10], [2.0 - 0.1 * 10]]
    np.testing.assert_allclose(state.weights["embeddings"], expected, rtol=1e-6)
