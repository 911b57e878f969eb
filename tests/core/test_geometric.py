"""The generated federation of any size, whose rows are computed when they are read."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax import tree
from graphfl_jax.build import load_federation
from graphfl_jax.configs import change, million
from graphfl_jax.data import on_demand
from graphfl_jax.data.federation import input_range, score_of_constant
from graphfl_jax.data.geometric import geometric
from graphfl_jax.data.on_demand import Names, OnDemand
from graphfl_jax.runs.batch import Trial, run_trials
from graphfl_jax.runs.identity import digest_of_arrays

SMALL = {"clients": 200, "generator_seed": 3}


def splits(federation):
    return {"train": federation.data.train, **federation.data.evals}


def whole(federation):
    return jax.tree.map(np.asarray, splits(federation))


@pytest.mark.parametrize("part", [7 * 60, 10**6])
def test_rows_of_some_clients_are_those_of_all(monkeypatch, part):
    """Bit for bit, whichever clients are read together."""
    monkeypatch.setattr(on_demand, "PART", part)
    federation = geometric(**SMALL)
    everyone = whole(federation)
    rng = np.random.default_rng(0)
    chosen = (
        *(0, 199, -1, np.int32(17)),
        *(slice(None), slice(3, 60, 7), slice(200, 200)),
        *(rng.permutation(200)[:50], np.array([5]), np.array([], int), [4, 2, 2]),
        np.arange(200) % 3 == 0,
    )
    for ids in chosen:
        some = tree.take(splits(federation), ids)
        jax.tree.map(np.testing.assert_array_equal, some, tree.take(everyone, ids))
        x = some["train"].x
        assert isinstance(x, np.ndarray) and x.dtype == np.float32


def test_rows_do_not_depend_on_the_numbers_of_clients_and_of_training_examples():
    first, fewer = geometric(**SMALL), geometric(**SMALL | {"clients": 20})
    some = tree.take(splits(first), slice(20))
    jax.tree.map(np.testing.assert_array_equal, some, whole(fewer))
    longer = geometric(**SMALL, train_examples=12)
    np.testing.assert_array_equal(longer.data.evals["test"].y[:], first.data.evals["test"].y[:])
    np.testing.assert_array_equal(longer.data.train.x[:][:, :10], first.data.train.x[:])


def test_one_client_follows_the_formula():
    """Its numbers are recomputed by whole numbers of Python and one matrix product."""
    client, federation = 17, geometric(**SMALL)
    place = np.random.Generator(np.random.Philox([3, 0])).random((200, 2))[client]
    np.testing.assert_array_equal(federation.positions.values[client], place)
    rng = np.random.Generator(np.random.Philox([3, 1]))
    frequencies, phases = rng.standard_normal((8, 2)), rng.uniform(0, 2 * math.pi, 8)
    common, *waves = rng.standard_normal((9, 6, 6)) * math.sqrt(1 / 2)
    heights = [
        math.cos(2 * math.pi * f @ place + b) for f, b in zip(frequencies, phases, strict=True)
    ]
    changing = sum(h * wave for h, wave in zip(heights, waves, strict=True))
    matrix = math.sqrt(1 / 2) * common + math.sqrt(1 / 8) * changing

    def mix(number):
        z = (number + 1) * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    bits = [mix(mix(mix(3) + client) + k) for k in range(15 * 6)]
    x = np.array([(b >> 40) / 2**23 - 1 for b in bits]).reshape(15, 6)
    noise = np.array([(b % 2**24) / 2**23 - 1 for b in bits]).reshape(15, 6)
    y = np.tanh(x @ matrix) + 0.1 * math.sqrt(3) * noise
    for split, rows in (("test", slice(5)), ("train", slice(5, 15))):
        part = tree.take(splits(federation)[split], client)
        np.testing.assert_array_equal(part.x, x[rows].astype(np.float32))
        np.testing.assert_allclose(part.y, y[rows], atol=2e-6)


def test_inputs_and_targets_have_the_stated_moments():
    """Over 3,000 clients; the errors of means of clients that share waves are larger."""
    federation = geometric(clients=3000, generator_seed=1)
    x, y = federation.data.train.x[:], federation.data.train.y[:]
    assert abs(x.mean()) < 0.005 and abs(x.var() - 1 / 3) < 0.005
    clean = np.arctanh(np.clip(y, -0.99, 0.99))
    assert 0.4 < clean.var() < 2 and 0.2 < y.var() < 0.7
    low, high = input_range(federation)
    assert -1 <= low < -0.999 and 0.999 < high < 1
    some = np.array([3, 5])
    known, tests = federation.data.train.y[some], federation.data.evals["test"].y[some]
    expected = np.square(tests - known.mean(axis=(0, 1), dtype=np.float64)).mean()
    assert score_of_constant(federation, some) == pytest.approx(expected, rel=1e-6)


def test_related_clients_are_those_within_the_radius_and_are_alike():
    federation = geometric(**SMALL)
    places = federation.positions.values
    gaps = np.linalg.norm(places[:, None] - places[None], axis=-1)
    near = (gaps <= math.sqrt(5 / (math.pi * 199))) & ~np.eye(200, dtype=bool)
    graph = federation.data.graph
    related = np.zeros((200, 200), bool)
    related[graph.receivers, graph.senders] = True
    np.testing.assert_array_equal(related, near)
    assert len(graph.senders) == near.sum() and 3 < near.sum() / 200 < 6
    order = np.lexsort((graph.senders, graph.receivers))
    np.testing.assert_array_equal(order, np.arange(len(order)))

    # Least squares on one client's examples predict those of related clients better.
    big = geometric(clients=200, train_examples=200, generator_seed=3).data.train
    x, y = big.x[:], np.arctanh(np.clip(big.y[:], -0.99, 0.99))
    maps = np.stack([np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(x, y, strict=True)])
    apart = np.square(maps[:, None] - maps[None]).mean(axis=(2, 3))
    assert apart[near].mean() < 0.3 * apart[gaps > 0.5].mean()


def test_validation_takes_the_first_training_examples():
    plain, split = geometric(**SMALL), geometric(**SMALL, val_fraction=0.1)
    expected = tree.take(plain.data.train, slice(None))
    assert [part.x.shape[1] for part in splits(split).values()] == [8, 5, 2]
    for leaf in ("x", "y"):
        parts = [getattr(part, leaf)[:] for part in (split.data.evals["val"], split.data.train)]
        np.testing.assert_array_equal(np.concatenate(parts, 1), getattr(expected, leaf))
    np.testing.assert_array_equal(split.data.evals["test"].y, plain.data.evals["test"].y)
    assert split.sha256 != plain.sha256
    for fraction in (0.01, 0.7):
        with pytest.raises(ValueError, match=f"^data.val_fraction={fraction} makes "):
            geometric(**SMALL, val_fraction=fraction)


def test_equal_seeds_make_equal_federations_and_others_make_others():
    first, again = geometric(**SMALL), geometric(**SMALL)
    assert first.sha256 == again.sha256 and digest_of_arrays(first) == digest_of_arrays(again)
    jax.tree.map(np.testing.assert_array_equal, whole(first), whole(again))
    different = {"generator_seed": 4, "clients": 201, "train_examples": 9, "test_examples": 4}
    made = {name: geometric(**SMALL | {name: value}) for name, value in different.items()}
    made["mean_degree"] = geometric(**SMALL, mean_degree=4.0)
    for digest in (lambda federation: federation.sha256, digest_of_arrays):
        digests = {digest(federation) for federation in (first, *made.values())}
        assert len(digests) == 1 + len(made)
    assert (made["generator_seed"].data.train.x[:] != first.data.train.x[:]).mean() > 0.99


def test_digests_and_facts_compute_no_rows(monkeypatch):
    """Of a federation of any size: what a run states of it reads few clients."""
    federation, read = geometric(**SMALL), []
    rows_of = OnDemand.__getitem__

    def noting(self, clients):
        rows = rows_of(self, clients)
        read.append(len(rows) if rows.ndim == self.ndim else 1)
        return rows

    monkeypatch.setattr(OnDemand, "__getitem__", noting)
    digest_of_arrays(federation)
    assert not read
    config = change(
        million.get_config(), {"data.clients": 200, "eval.clients": 50, "rounds": 1}
    )
    graphfl_jax.build.build_experiment(config, load_federation(config))
    assert sum(read) < 30


def test_a_federation_without_neighbours():
    alone = geometric(clients=1)
    assert not len(alone.data.graph.senders) and alone.data.train.x[:].shape == (1, 10, 6)
    assert not len(geometric(clients=50, mean_degree=0.0).data.graph.senders)


def test_arrays_on_demand_behave_as_arrays():
    leaf = OnDemand(lambda ids: ids[:, None] * np.ones(3), (5, 3), np.float32, "rows of ids")
    expected = np.repeat(np.arange(5, dtype=np.float32)[:, None], 3, axis=1)
    assert (leaf.shape, leaf.ndim, leaf.dtype, len(leaf)) == ((5, 3), 2, np.float32, 5)
    assert repr(leaf) == "<OnDemand: float32[5, 3] by rows of ids>"
    for made in (np.asarray(leaf), jnp.asarray(leaf), np.stack([leaf])[0], leaf[:]):
        np.testing.assert_array_equal(made, expected)
    assert np.asarray(leaf, np.float64).dtype == np.float64
    assert leaf[np.array([[0, 1], [4, 2]])].shape == (2, 2, 3)
    for wrong in (5, -6, [0, 5]):
        with pytest.raises(IndexError):
            leaf[wrong]
    with pytest.raises(ValueError, match="^copy=False: rows are computed when they are read"):
        np.asarray(leaf, copy=False)


def test_names_are_made_when_they_are_read():
    names = Names("client", range(4))
    assert list(names) == [f"client {i}" for i in range(4)] and len(names) == 4
    assert names[-1] == "client 3" and list(names[1:3]) == ["client 1", "client 2"]
    assert names[np.int32(2)] == "client 2" and names.index("client 1") == 1
    with pytest.raises(IndexError):
        names[4]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "ditto", "panacea"])
def test_a_run_is_that_of_the_same_rows_in_arrays(method):
    changes = {"data.clients": 40, "rounds": 2, "eval_every": 1, "local_steps": 3}
    config = change(million.get_config(method), changes | {"eval.clients": 7})
    federation = load_federation(config)
    stored = federation._replace(data=jax.tree.map(np.asarray, federation.data))
    first, second = graphfl_jax.run(config), graphfl_jax.run(config, stored)
    assert first.results["scores"] == second.results["scores"]
    assert first.clients == tuple(f"client {i}" for i in first.results["sample"]["ids"])
    assert first.results["dataset"]["source"] == "generated"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_a_batch_is_that_of_the_same_rows_in_arrays(seeds):
    """Of one federation, and of one for each seed."""
    changes = {"data.clients": 40, "eval.clients": 7, "rounds": 1, "local_steps": 3}
    config = change(million.get_config(), changes | {"data.storage": "device"})
    made = {seed: geometric(clients=40, generator_seed=seed) for seed in seeds}
    stored = {
        seed: federation._replace(data=jax.tree.map(np.asarray, federation.data))
        for seed, federation in made.items()
    }
    trials = [Trial({}, seed) for seed in seeds]
    both = [
        [outcome.rows[-1]["scores"] for _, outcome in run_trials(config, some, trials)]
        for some in (made, stored)
    ]
    assert len(both[0]) == len(seeds)
    jax.tree.map(np.testing.assert_array_equal, *both)


@pytest.mark.release
def test_new_clients_of_arrays_on_demand():
    changes = {"data.clients": 30, "eval.clients": 9, "rounds": 1, "local_steps": 2}
    changes |= {"new_clients.fraction": 0.2, "new_clients.rounds": 1}
    changes |= {"data.storage": "device"}
    config = change(million.get_config(), changes)
    result = graphfl_jax.run(config)
    assert len(result.results["new_clients"]["clients"]) == 6
    everyone = geometric(clients=30)
    order = [int(name.removeprefix("client ")) for name in result.federation.clients]
    np.testing.assert_array_equal(
        result.federation.everyone.train.y, everyone.data.train.y[order]
    )
