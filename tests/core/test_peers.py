"""Methods in which related clients average: gossip without a server, FedU, and L2GD."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphfl_jax import tree
from graphfl_jax.algorithms.fedu import fedu
from graphfl_jax.algorithms.gossip import (
    edges_within,
    gossip,
    gossip_pairs,
    metropolis,
    pair_weights,
)
from graphfl_jax.algorithms.l2gd import l2gd
from graphfl_jax.build import build_experiment
from graphfl_jax.core import ABSENT, Cohort
from graphfl_jax.data import relations
from graphfl_jax.rounds import message_bytes
from graphfl_jax.testing.subject import assert_equal, federation, small_config

KEY, N = jax.random.key(1), 7
EDGES = [(0, 1), (1, 2), (1, 3), (3, 4), (5, 6)]
MODEL = build_experiment(small_config("fedavg"), federation()).model


def no_train(objective, params, examples, key):
    return params, {"loss": jnp.float32(0.0)}


def rows(count, seed=0):
    """Models of as many clients, with different numbers."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(MODEL.init, KEY)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=(count, *leaf.shape)), jnp.float32), shapes
    )


def assert_near(ours, theirs):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs
    )


def neighbours_among(ids):
    """By client of a round, its related clients in it."""
    return {
        i: [j for j in ids if (i, j) in EDGES or (j, i) in EDGES] for i in ids if i != ABSENT
    }


@pytest.mark.parametrize("ids", [tuple(range(7)), (1, 2, 3, 5), (0, 4, ABSENT, ABSENT)])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_gossip_averages_with_related_clients_of_the_round(ids, share):
    """A client after the other, in float64."""
    algorithm = gossip(MODEL, no_train, num_clients=N, cohort_size=4, gossip_share=share)
    graph = relations.from_edges(N, EDGES)
    peers = algorithm.server.init(KEY, graph)._replace(models=rows(N))
    cohort = Cohort(jnp.array(ids, jnp.int32), jnp.ones(len(ids)))
    uploads = rows(len(ids), seed=1)
    after = algorithm.server.aggregate(peers, (cohort,), (uploads,), KEY)
    related = neighbours_among(ids)
    expected = jax.tree.map(lambda leaf: np.float64(leaf), peers.models)
    for place, i in enumerate(ids):
        if i == ABSENT:
            continue
        others = {j: 1 / (1 + max(len(related[i]), len(related[j]))) for j in related[i]}

        def mix(v, total, i=i, place=place, others=others):
            average = (1 - sum(others.values())) * np.float64(v[place])
            for j, weight in others.items():
                average = average + weight * np.float64(v[ids.index(j)])
            total[i] = (1 - share) * np.float64(v[place]) + share * average
            return total

        expected = jax.tree.map(mix, uploads, expected)
    assert_near(after.models, expected)


def test_related_clients_are_the_same_in_dense_and_sparse_graphs():
    edges = [(i, (i * 7 + 3) % 1200) for i in range(1200) if i != (i * 7 + 3) % 1200]
    graph = relations.from_edges(1200, sorted({tuple(sorted(edge)) for edge in edges}))
    sparse = relations.adjacency(graph)
    assert relations.is_sparse(graph)
    ids = jnp.array([3, 24, 171, 0, 1199, ABSENT], jnp.int32)
    dense = jnp.minimum(relations.weight_matrix(graph), 1.0)
    assert edges_within(dense, ids).sum() > 0
    np.testing.assert_array_equal(edges_within(sparse, ids), edges_within(dense, ids))


def test_weights_of_gossip_are_symmetric_and_rows_sum_to_one():
    edges = np.asarray(relations.adjacency(relations.from_edges(N, EDGES)))
    pairs = jax.vmap(lambda key: pair_weights(key, 5, None))(jax.random.split(KEY, 400))
    for weights in (metropolis(jnp.asarray(edges)), *pairs[:5]):
        np.testing.assert_allclose(weights, weights.T)
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-6)
        assert (weights >= 0).all()
    # Of five clients two pairs are formed, and each pair has the probability 4 / 5 * 1 / 4.
    assert all(np.sort(np.diag(pair)).tolist() == [0.5, 0.5, 0.5, 0.5, 1.0] for pair in pairs)
    together = np.mean(np.asarray(pairs) > 0, axis=0)[~np.eye(5, dtype=bool)]
    np.testing.assert_allclose(together, 0.2, atol=5 * 0.4 / 400**0.5)


def test_pairs_are_formed_of_those_who_are_present():
    present = jnp.array([True, True, True, False, False])
    for key in jax.random.split(KEY, 20):
        weights = np.asarray(pair_weights(key, 5, present))
        assert np.diag(weights).tolist()[3:] == [1.0, 1.0]
        assert sorted(np.diag(weights).tolist()[:3]) == [0.5, 0.5, 1.0]


def test_gossip_of_all_related_clients_is_the_mean_and_without_relations_local_training():
    everyone = Cohort(jnp.arange(N), jnp.ones(N))
    pairs = [(i, j) for i in range(N) for j in range(i)]
    for edges in (pairs, []):
        algorithm = gossip(MODEL, no_train, num_clients=N, cohort_size=N)
        peers = algorithm.server.init(KEY, relations.from_edges(N, edges))
        after = algorithm.server.aggregate(peers, (everyone,), (rows(N),), KEY)
        mean = jax.tree.map(lambda v: jnp.stack([v.mean(axis=0)] * N), rows(N))
        assert_near(after.models, mean if edges else rows(N))


def test_traffic_of_gossip_is_a_model_along_each_edge():
    data = federation().data._replace(graph=relations.from_edges(N, EDGES))
    ((one, _),) = message_bytes(
        build_experiment(small_config("fedavg"), federation()).build({"client_lr": 0.1}, 0),
        data,
    )
    for size, number in ((N, 10 / 7), (4, 10 / 7 * 3 / 6)):
        algorithm = gossip(MODEL, no_train, num_clients=N, cohort_size=size)
        ((down, up),) = message_bytes(algorithm, data)
        np.testing.assert_allclose([down, up], [one * number] * 2, rtol=1e-6)
    pairs = gossip_pairs(MODEL, no_train, cohort_size=4)
    assert message_bytes(pairs, data) == [(one, one)]


@pytest.mark.slow
def test_new_peers_begin_with_the_mean_of_related_ones():
    """Client 5 is related to 0 and 6, of which 6 is new too; client 6 is related to 5 alone."""
    graph = relations.from_edges(N, [(0, 1), (0, 5), (2, 5), (5, 6)])
    for method in (
        gossip(MODEL, no_train, num_clients=5, cohort_size=4),
        fedu(MODEL, no_train),
    ):
        state = method.server.init(KEY, relations.from_edges(5, [(0, 1)]))
        state = state._replace(models=rows(5))
        joined = method.server.admit(state, (jnp.array([5, 6]),), graph, KEY)
        known = jax.tree.map(lambda leaf: leaf[:5], joined.models)
        assert_equal(known, rows(5))
        first = jax.tree.map(lambda leaf: (leaf[0] + leaf[2]) / 2, rows(5))
        assert_near(jax.tree.map(lambda leaf: leaf[5], joined.models), first)
        mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), rows(5))
        assert_near(jax.tree.map(lambda leaf: leaf[6], joined.models), mean)


@pytest.mark.parametrize("ids", [tuple(range(7)), (1, 2, 4)])
def test_fedu_pulls_related_models_together(ids):
    """A client after the other, in float64; those outside the round stay as they are."""
    algorithm = fedu(MODEL, no_train, fedu_mu=0.1)
    state = algorithm.server.init(KEY, relations.from_edges(N, EDGES))
    state = state._replace(models=rows(N))
    cohort = Cohort(jnp.array(ids, jnp.int32), jnp.ones(len(ids)))
    uploads = rows(len(ids), seed=1)
    after = algorithm.server.aggregate(state, (cohort,), (uploads,), KEY)

    def pulled(last, new):
        v = np.float64(last)
        v[list(ids)] = np.float64(new)
        w = v.copy()
        for i in ids:
            for j in neighbours_among(range(N))[i]:
                w[i] -= 0.1 * (v[i] - v[j])
        return w

    assert_near(after.models, jax.tree.map(pulled, state.models, uploads))


def test_fedu_of_all_related_clients_is_the_mean_and_with_mu_0_local_training():
    everyone = Cohort(jnp.arange(N), jnp.ones(N))
    graph = relations.from_edges(N, [(i, j) for i in range(N) for j in range(i)])
    mean = jax.tree.map(lambda v: jnp.stack([v.mean(axis=0)] * N), rows(N))
    for mu, expected in ((1 / N, mean), (0.0, rows(N))):
        algorithm = fedu(MODEL, no_train, fedu_mu=mu)
        state = algorithm.server.init(KEY, graph)
        after = algorithm.server.aggregate(state, (everyone,), (rows(N),), KEY)
        assert_near(after.models, expected)


def l2gd_after(uploads, cohort, key, **floats):
    """The models of all clients after an aggregation, which begins with `rows(N)`."""
    algorithm = l2gd(MODEL, no_train, **floats)
    state = algorithm.server.init(KEY, relations.from_edges(N, []))
    state = state._replace(models=rows(N))
    return algorithm.server.aggregate(state, (cohort,), (uploads,), key).models


@pytest.mark.parametrize("ids", [tuple(range(7)), (1, 2, 4, ABSENT)])
def test_l2gd_moves_to_the_mean_of_the_round_with_a_probability(ids):
    """Either all clients of the round move, or none; the others keep their models."""
    present = jnp.array([i != ABSENT for i in ids])
    cohort = Cohort(jnp.array(ids, jnp.int32), jnp.ones(len(ids)), present)
    uploads, share = rows(len(ids), seed=1), 0.4
    number = sum(i != ABSENT for i in ids)

    def expected(moves):
        def of_leaf(last, sent):
            after, sent = np.float64(last), np.float64(sent)[:number]
            mean = sum(sent) / number
            for i, v in zip(ids, sent, strict=False):
                after[i] = v - share * moves * (v - mean)
            return after

        return jax.tree.map(of_leaf, rows(N), uploads)

    after = jax.jit(
        jax.vmap(
            lambda key: l2gd_after(uploads, cohort, key, l2gd_probability=0.3, l2gd_share=share)
        )
    )(jax.random.split(KEY, 400))
    bias = lambda models: np.asarray(models["head"]["Dense_0"]["bias"])  # noqa: E731
    moved = np.any(np.abs(bias(after) - bias(expected(0))) > 1e-4, axis=(1, 2))
    np.testing.assert_allclose(np.mean(moved), 0.3, atol=5 * 0.46 / 400**0.5)
    for some in (True, False):
        first = np.flatnonzero(moved == some)[0]
        assert_near(tree.take(after, first), expected(some))


def test_l2gd_of_every_round_is_gossip_and_fedu_and_of_no_round_local_training():
    everyone, share = Cohort(jnp.arange(N), jnp.ones(N)), 0.4
    graph = relations.from_edges(N, [(i, j) for i in range(N) for j in range(i)])
    always = l2gd_after(rows(N), everyone, KEY, l2gd_probability=1.0, l2gd_share=share)
    for method in (
        gossip(MODEL, no_train, num_clients=N, cohort_size=N, gossip_share=share),
        fedu(MODEL, no_train, fedu_mu=share / N),
    ):
        state = method.server.init(KEY, graph)
        after = method.server.aggregate(state, (everyone,), (rows(N),), KEY)
        assert_near(after.models, always)
    for never in ({"l2gd_probability": 0.0}, {"l2gd_share": 0.0}):
        assert_equal(l2gd_after(rows(N), everyone, KEY, **never), rows(N))
