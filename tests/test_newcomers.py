"""Who joins after training, and what training knows of them."""

import numpy as np
import pytest

from graphfl_jax.data.new_clients import hold_out
from tests.federations import two_clusters


def named_edges(data, names):
    graph = data.graph
    return {(names[i], names[j]) for i, j in zip(graph.senders, graph.receivers, strict=True)}


@pytest.mark.parametrize("graph", ["inductive", "transductive"])
@pytest.mark.parametrize("seed", [0, 1])
def test_newcomers_come_last_and_everybody_keeps_their_own(graph, seed):
    whole = two_clusters()
    after = hold_out(whole, fraction=0.3, graph=graph, seed=seed)
    assert after.new_clients == 2 and after.sha256 == whole.sha256
    assert sorted(after.clients) == sorted(whole.clients)
    assert after.clients[:5] == tuple(sorted(after.clients[:5]))

    where = [whole.clients.index(name) for name in after.clients]
    for data, clients in ((after.everyone, where), (after.data, where[:5])):
        for ours, theirs in ((data.train, whole.data.train), *pairs(data, whole.data)):
            for leaf, before in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(leaf, before[clients])
    relations = named_edges(whole.data, whole.clients)
    known = {edge for edge in relations if not set(edge) & set(after.clients[5:])}
    assert named_edges(after.everyone, after.clients) == relations
    expected = known if graph == "inductive" else relations
    assert named_edges(after.data, after.clients) == expected
    assert len(after.data.graph.nodes) == (5 if graph == "inductive" else 7)


def pairs(data, other):
    return [(data.evals[name], other.evals[name]) for name in other.evals]


def test_the_seed_draws_the_newcomers():
    drawn = [
        hold_out(two_clusters(), fraction=0.3, graph="inductive", seed=seed).clients[5:]
        for seed in range(40)
    ]
    again = hold_out(two_clusters(), fraction=0.3, graph="inductive", seed=7)
    assert again.clients[5:] == drawn[7]
    assert {name for pair in drawn for name in pair} == set(two_clusters().clients)


@pytest.mark.parametrize("fraction, new clients", [(0.29, 2), (2 / 7, 2), (0.28, 1), (0.99, 6)])
def test_a_fraction_is_rounded_down(fraction, new_clients):
    held = hold_out(two_clusters(), fraction=fraction, graph="inductive", seed=0)
    assert held.new_clients == new_clients


@pytest.mark.parametrize("fraction, joining", [(0.1, 0), (1.0, 7), (1.5, 10)])
def test_somebody_must_train_and_somebody_join(fraction, joining):
    with pytest.raises(
        ValueError, match=f"new_clients.fraction={fraction} makes {joining} of the 7"
    ):
        hold_out(two_clusters(), fraction=fraction, graph="inductive", seed=0)
