"""The optional functions of servers and clients: what the program asks of a method."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.build import build_experiment
from graphfl_jax.core import Algorithm, Client, Cohort, Predictor, Server, State
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.mlp import mlp
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group, message_bytes, sample_cohorts
from graphfl_jax.runs.debug import DebugSession
from graphfl_jax.trainers import sgd_trainer
from tests.federations import small_config, two_clusters

DATA, KEY = two_clusters().data, jax.random.key(3)
MODEL = mlp(inputs=(2,), outputs=2, task=CLASSIFICATION, hidden=(3,))


def play(algorithm, rounds=2, cohort=3):
    program = Program(lambda hparams, played: algorithm, (Group(cohort),)).compiled()
    inputs = (KEY, {}, DATA)
    state, log = program.advance(program.start(*inputs), *inputs, jnp.int32(rounds))
    return jax.device_get((state, log)), program.evaluate(state, *inputs)


def averaging():
    return fedavg(MODEL, sgd_trainer(optax.sgd(0.1), steps=2, batch_size=4))


@pytest.mark.slow
def test_a_server_within_a_larger_state_is_the_same_server():
    algorithm = averaging()
    lifted = algorithm.server.within(
        lambda state: state["inner"], lambda state, inner: state | {"inner": inner}
    )
    lifted = dataclasses.replace(
        lifted,
        init=lambda key, graph: {"inner": algorithm.server.init(key, graph), "more": 1.0},
    )
    (alone, _), scores = play(algorithm)
    (state, _), lifted_scores = play(dataclasses.replace(algorithm, server=lifted))
    assert state.server["more"] == 1.0
    jax.tree.map(np.testing.assert_array_equal, state.server["inner"], alone.server)
    jax.tree.map(np.testing.assert_array_equal, lifted_scores.scores, scores.scores)


def test_a_lifted_server_keeps_which_functions_it_lacks():
    lifted = averaging().server.within(lambda state: state, lambda state, inner: inner)
    assert (lifted.sample, lifted.allocation, lifted.rejected, lifted.substitute) == (None,) * 4
    assert lifted.moved is None


def test_every_function_of_a_lifted_server_gets_its_part_and_changes_it_alone():
    """The part is a number, which each function multiplies by the sum of its arguments."""
    product = lambda part, *values: part * sum(jax.tree.leaves(values))  # noqa: E731
    functions = dict.fromkeys(
        (
            "download",
            "aggregate",
            "begin_round",
            "admit",
            "adapt_new_clients",
            "allocation",
            "relate",
            "substitute",
            "rejected",
            "moved",
            "sample",
            "seconds",
        ),
        product,
    )
    server = Server(init=product, messages=product, plays_on=False, **functions)
    assert {field.name for field in dataclasses.fields(Server)} == {
        *functions,
        "init",
        "messages",
        "plays_on",
    }
    lifted = server.within(lambda state: state[1], lambda state, inner: (state[0], inner))
    steps = ("aggregate", "begin_round", "admit", "adapt_new_clients", "substitute", "relate")
    for name in steps:
        assert getattr(lifted, name)(("more", 3), 5, (7,)) == ("more", 36)
    for name in ("download", "allocation", "rejected", "moved", "sample", "seconds"):
        assert getattr(lifted, name)(("more", 3), 5, (7,)) == 36
    # These do not get the state.
    assert lifted.init is product and lifted.messages is product
    assert not lifted.plays_on


def counting(sample=None):
    """The server counts the rounds of each client, [N]."""
    server = Server.of_one(
        init=lambda key, graph: jnp.zeros(7),
        download=lambda counts, i: counts[i],
        aggregate=lambda counts, cohort, uploads, key: counts.at[cohort.ids].add(uploads),
        sample=sample,
    )
    client = Client(
        MODEL,
        local=lambda message, memory, data, key: ((), jnp.float32(1.0), {"loss": message}),
        predict=lambda predictor, x: jnp.zeros((len(x), 2)),
    )
    return Algorithm(server, (client,))


def least_trained(counts, sizes, size, key):
    """A `Server.sample` of those clients that have trained least."""
    assert sizes.shape == (7,)
    return jnp.sort(jnp.argsort(counts)[:size]).astype(jnp.int32)


def test_a_server_may_draw_the_cohort_from_its_state():
    """After seven rounds of three clients, each has trained three times."""
    (state, _), _ = play(counting(least_trained), rounds=7)
    np.testing.assert_array_equal(state.server, np.full(7, 3.0))
    (state, _), _ = play(counting(), rounds=7)
    assert state.server.sum() == 21 and state.server.std() > 0


@pytest.mark.slow
def test_debug_mode_trains_the_cohort_that_the_server_draws():
    config = small_config("fedavg", cohort_size=3)
    experiment = build_experiment(config, two_clusters())._replace(
        build=lambda hparams, played: counting(least_trained)
    )
    session = DebugSession(experiment, config)
    for rounds, expected in ((1, [1, 1, 1, 0, 0, 0, 0]), (2, [1, 1, 1, 1, 1, 1, 0])):
        state, _ = session.advance(session.state, rounds)
        np.testing.assert_array_equal(state.server, expected)


def test_a_server_draws_places_in_each_architecture():
    """The two clients with most examples of each; ids are those of the whole federation."""

    def largest(server, counts, size, key):
        return jnp.sort(jnp.argsort(-counts)[:size]).astype(jnp.int32)

    groups = (
        Group(2, np.array([0, 2, 4, 6], np.int32)),
        Group(2, np.array([1, 3, 5], np.int32)),
    )
    counts = jnp.array([5, 1, 9, 8, 7, 3, 2])
    places, cohorts = sample_cohorts(counting(largest), State((), (), 0), counts, KEY, groups)
    assert [list(drawn) for drawn in places] == [[1, 2], [1, 2]]
    expected = (
        Cohort(np.array([2, 4]), np.array([9, 7])),
        Cohort(np.array([3, 5]), np.array([8, 3])),
    )
    jax.tree.map(np.testing.assert_array_equal, cohorts, expected)


@pytest.mark.parametrize("number", [None, 2.5])
def test_traffic_counts_the_messages_of_a_round(number):
    algorithm = counting()
    if number is not None:
        algorithm = algorithm.replacing(messages=lambda graph: jnp.full(7, number))
    assert message_bytes(algorithm, DATA) == [(4 * (number or 1), 4 * (number or 1))]


def test_clients_deploy_and_upload_untrained_with_their_data():
    """A client gets two numbers, and chooses the one that its data name."""

    def choice(message, data):
        return message[jnp.where(jnp.mean(data.train.x[:, 0]) > 0, 1, 0)]

    def predict(predictor, x):
        return jnp.broadcast_to(jnp.stack([-predictor.params, predictor.params]), (len(x), 2))

    def local(message, memory, data, key):
        return (), choice(message, data), {"loss": jnp.float32(0.0)}

    def deploy(sent, memory, data):
        return Predictor(sent if jnp.ndim(sent) == 0 else choice(sent, data))

    def defend(server, cohorts, untrained, uploads):
        return server, (untrained[0],)

    server = Server.of_one(
        init=lambda key, graph: jnp.array([-1.0, 1.0]),
        download=lambda server, i: server[:2],
        aggregate=lambda server, cohort, uploads, key: jnp.concatenate([server[:2], uploads]),
    )
    client = Client(
        MODEL,
        local,
        predict=predict,
        deploy=deploy,
        untrained=lambda message, memory, data: choice(message, data),
    )
    algorithm = Algorithm(server, (client,), defend=defend)
    algorithm = algorithm.replacing(
        init=lambda key, graph: jnp.array([-1.0, 1.0, *[0.0] * 7]),
    )
    (state, _), evaluated = play(algorithm, cohort=7)
    means = np.array([DATA.train.x[i, :, 0].mean() for i in range(7)])
    expected = np.where(means > 0, 1.0, -1.0)
    np.testing.assert_array_equal(state.server[2:], expected)
    y, counts = DATA.evals["test"].y, DATA.evals["test"].count
    hits = [np.mean(y[i, : counts[i]] == (1 if expected[i] > 0 else 0)) for i in range(7)]
    np.testing.assert_allclose(evaluated.scores["test"]["G"], hits, rtol=1e-6)
    np.testing.assert_allclose(evaluated.scores["test"]["L"], hits, rtol=1e-6)
