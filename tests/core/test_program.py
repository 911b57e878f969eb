"""The program: sampling of cohorts, splitting over devices, computation of scores."""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from scipy import stats

from graphfl_jax import trainers, tree
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change
from graphfl_jax.core import Algorithm, Client, FederatedData, Predictor, Server, State
from graphfl_jax.data import relations
from graphfl_jax.devices import client_mesh, map_clients
from graphfl_jax.evaluation import score_all_examples, score_client
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION, summary
from graphfl_jax.models.mlp import mlp
from graphfl_jax.program import ROUNDS_PER_EXECUTION, Log, Participation, Program, play_rounds
from graphfl_jax.rounds import Group, Poison, draw_cohort
from graphfl_jax.runs.session import RunsData, batch_program
from tests.federations import small_config, two_clusters

KEY = jax.random.key(5)


def test_cohorts_are_ascending_without_repeats_and_fair():
    """Each of 10 clients is drawn with probability 3 / 10, within four standard errors."""
    keys = jax.random.split(jax.random.key(0), 2000)
    counts = jnp.arange(10, dtype=jnp.int32) + 1
    cohorts = jax.vmap(lambda key: draw_cohort(key, counts, 3))(keys)
    ids = np.asarray(cohorts.ids)
    assert (np.diff(ids, axis=1) > 0).all()
    np.testing.assert_array_equal(cohorts.weights, ids + 1.0)
    shares = np.bincount(ids.ravel(), minlength=10) / 2000
    assert np.abs(shares - 0.3).max() < 4 * np.sqrt(0.3 * 0.7 / 2000)
    subsets = np.unique(ids, axis=0, return_counts=True)[1] / 2000
    assert len(subsets) == 120  # of 10 over 3
    assert np.abs(subsets - 1 / 120).max() < 4.5 * np.sqrt(1 / 120 * 119 / 120 / 2000)


def test_every_round_draws_a_new_cohort_and_all_are_equally_probable():
    """The server of this method writes down the cohorts of 3 of 7 clients in 2000 rounds.

    The counts of the 35 subsets follow chi^2 with 34 degrees of freedom, and two rounds in turn
    have the same cohort with probability 1 / 35; both are in the range of 99.99 %.
    """
    rounds, subsets = 2000, 35
    model = mlp(inputs=(2,), outputs=2, task=CLASSIFICATION, hidden=(2,))
    recorder = Algorithm(
        Server.of_one(
            init=lambda key, graph: (jnp.int32(0), jnp.zeros((rounds, 3), jnp.int32)),
            download=lambda server, i: (),
            aggregate=lambda server, cohort, uploads, key: (
                server[0] + 1,
                server[1].at[server[0]].set(cohort.ids),
            ),
        ),
        (
            Client(
                model,
                local=lambda message, memory, data, key: ((), (), {"loss": jnp.float32(0)}),
            ),
        ),
    )
    data, key = two_clusters().data, jax.random.key(0)
    program = Program(lambda hparams, played: recorder, groups=(Group(3),)).compiled()
    state = program.start(key, {}, data)
    (played, ids), *_ = program.advance(state, key, {}, data, jnp.int32(rounds))[0]
    assert played == rounds
    ids = np.asarray(ids)
    counts = np.unique(ids, axis=0, return_counts=True)[1]
    assert len(counts) == subsets
    expected = rounds / subsets
    assert np.sum((counts - expected) ** 2 / expected) < stats.chi2.ppf(0.9999, subsets - 1)
    repeats = np.sum((ids[1:] == ids[:-1]).all(axis=1))
    low, high = stats.binom.interval(0.9999, rounds - 1, 1 / subsets)
    assert low <= repeats <= high


def test_a_cohort_of_everyone_is_everyone():
    cohort = draw_cohort(jax.random.key(0), jnp.array([4, 5, 6]), 3)
    np.testing.assert_array_equal(cohort.ids, [0, 1, 2])
    np.testing.assert_array_equal(cohort.weights, [4.0, 5.0, 6.0])


def test_a_draw_makes_nothing_of_the_size_of_the_federation():
    counts = jax.ShapeDtypeStruct((100_000,), jnp.int32)
    trace = jax.make_jaxpr(lambda key, counts: draw_cohort(key, counts, 10))
    values = [
        variable.aval.size
        for equation in trace(jax.random.key(0), counts).jaxpr.eqns
        for variable in equation.outvars
    ]
    assert max(values) <= 10 * 10


def test_batches_are_uniform_draws_from_the_real_examples():
    indices = np.asarray(trainers.draw_indices(jax.random.key(1), (100, 70), jnp.int32(7)))
    assert (indices.min(), indices.max()) == (0, 6)
    shares = np.bincount(indices.ravel()) / 7000
    assert np.abs(shares - 1 / 7).max() < 4 * np.sqrt(1 / 7 * 6 / 7 / 7000)
    assert len({tuple(row) for row in indices}) == 100  # steps are independent


@pytest.mark.parametrize(
    "cohorts, size",
    [((1,), None), ((5,), 5), ((11,), 6), ((12,), 6), ((16,), 8), ((17,), 6), ((3, 5), 5)],
)
def test_the_mesh_has_the_fewest_devices_with_the_smallest_shares(cohorts, size):
    """Of 8 devices. 11 clients are 2 on each of 6 devices, or on some of 8."""
    mesh = client_mesh(*cohorts)
    assert (mesh and mesh.size) == size


def train_one(shared, i, rows):
    """One gradient step of client i from the shared weight: w - d/dw (w x - y)^2 / 2."""
    x, y = rows
    return shared - jax.grad(lambda w: 0.5 * jnp.square(w * x - y))(shared)


@pytest.mark.parametrize("at_once", [1, 2, 4])
@pytest.mark.parametrize("devices", [1, 2])
def test_clients_in_sequence_are_the_clients_all_at_once(devices, at_once):
    """Of six clients, or of three on each device; 4 divides neither."""
    rows = jnp.arange(6.0), jnp.arange(6.0) * 2 + 1
    shared, ids = jnp.float32(0.5), jnp.arange(6, dtype=jnp.int32)
    mesh = client_mesh(6, devices=jax.devices()[:devices])
    found = jax.jit(map_clients(train_one, mesh, at_once))(shared, ids, rows)
    expected = map_clients(train_one, None)(shared, ids, rows)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_gradients_are_not_summed_over_devices():
    """Without the cast in `map_clients` each client would train on the others' examples."""
    x, y = jnp.arange(4.0), jnp.arange(4.0) * 2 + 1
    w = jnp.float32(0.5)
    ids = jnp.arange(4, dtype=jnp.int32)
    mesh = client_mesh(4)
    split = jax.jit(map_clients(train_one, mesh))(w, ids, (x, y))
    np.testing.assert_allclose(split, w - (w * x - y) * x, rtol=1e-6)

    def uncast(shared, ids, rows):
        return jax.vmap(train_one, (None, 0, 0))(shared, ids, rows)

    forecast = jax.shard_map(
        uncast, mesh=mesh, in_specs=(P(), P("clients"), P("clients")), out_specs=P("clients")
    )
    assert not np.allclose(
        jax.jit(forecast)(w, ids, (x, y)), split
    )  # JAX still sums these gradients


def test_pmap_over_the_same_function_gives_the_same_numbers():
    x, y = jnp.arange(4.0), jnp.arange(4.0) * 2 + 1
    w = jnp.float32(0.5)
    ids = jnp.arange(4, dtype=jnp.int32)
    split = map_clients(train_one, client_mesh(4))(w, ids, (x, y))
    devices = jax.local_devices()[:4]
    mapped = jax.pmap(train_one, in_axes=(None, 0, 0), devices=devices)(w, ids, (x, y))
    np.testing.assert_allclose(mapped, split, rtol=1e-6)


MODEL = mlp(inputs=(2,), hidden=(4,), outputs=2, task=CLASSIFICATION)


def score(params, examples, batch_size):
    predict = functools.partial(MODEL.apply, params)
    return score_client(predict, MODEL.task.score, examples, batch_size)


@pytest.mark.parametrize("batch_size", [1, 5, 12, 14, 512])
def test_scores_do_not_depend_on_the_batch_size(batch_size):
    data = two_clusters().data.evals["test"]
    examples = tree.take(data, 2)  # 14 real examples in 14 rows
    params = MODEL.init(jax.random.key(0))
    predicted = np.argmax(MODEL.apply(params, examples.x), -1)
    expected = np.mean(predicted[: examples.count] == examples.y[: examples.count])
    found = score(params, jax.tree.map(jnp.asarray, examples), batch_size)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_prediction_that_is_not_finite_has_no_score():
    examples = jax.tree.map(jnp.asarray, tree.take(two_clusters().data.train, 0))
    params = jax.tree.map(lambda leaf: leaf * jnp.nan, MODEL.init(jax.random.key(0)))
    assert np.isnan(score(params, examples, 512))


def test_the_objective_is_the_mean_over_real_rows():
    model = mlp(inputs=(1,), hidden=(3,), outputs=1, task=REGRESSION)
    params = model.init(jax.random.key(0))
    x, y = jnp.arange(4.0)[:, None], jnp.arange(4.0)[:, None] * 3
    batch = Examples(x, y.at[3].set(1e6), jnp.int32(3))
    losses = np.square(np.asarray(model.apply(params, x)) - np.asarray(y))[:3]
    np.testing.assert_allclose(
        model.objective(params, batch, jax.random.key(0)), losses.mean(), rtol=1e-5
    )


@pytest.mark.parametrize("scored", [score_client, score_all_examples])
def test_a_row_with_one_output_that_is_not_finite_has_no_score(scored):
    """A row of padding may have any outputs."""
    outputs = np.float32([[0, 1], [np.nan, 1], [1, 0]])

    @jax.jit
    def scores(outputs, count):
        examples = Examples(outputs, jnp.zeros(3, jnp.int32), count)
        return scored(lambda x: x, lambda found, y, *real: jnp.ones(len(found)), examples, 2)

    assert (np.asarray(scores(outputs, np.int32(1))) == 1).all()
    assert np.isnan(scores(outputs, np.int32(2))).all()


@pytest.mark.parametrize("higher_is_better, worst", [(True, 0.5), (False, 10.5)])
def test_the_worst_decile_is_of_the_worst_clients(higher_is_better, worst):
    """Of the scores 0, 1, ..., 11 the worst ceil(12 / 10) = 2 are 0, 1 or 10, 11."""
    scores = summary(np.arange(12), higher_is_better=higher_is_better)
    assert scores["worst_decile"] == worst
    assert scores["mean"] == 5.5
    assert scores["std_clients"] == pytest.approx(np.sqrt((144 - 1) / 12))  # of 0..n-1


def test_a_score_that_is_not_finite_leaves_no_summary():
    """Not a worst decile of the others, and not the fairness of equal scores."""
    scores = summary(np.array([1.0, np.inf, 0.0]), higher_is_better=True)
    numbers = ("mean", "std_clients", "worst_decile", "jain")
    assert np.isnan([scores[name] for name in numbers]).all()
    np.testing.assert_array_equal(scores["per_client"], [1, np.nan, 0])


@pytest.mark.parametrize("scores, index", [((1.0, 2.0, 3.0), 36 / 42), ((0.0, 0.0), 1.0)])
def test_the_fairness_index_is_that_of_jain(scores, index):
    """(1 + 2 + 3)^2 / (3 (1 + 4 + 9)), and 1 if all scores are equal."""
    assert summary(np.array(scores), higher_is_better=True)["jain"] == pytest.approx(index)


def test_trees_of_clients_are_taken_put_and_averaged():
    rows = {"a": jnp.arange(6.0).reshape(3, 2), "b": jnp.arange(3.0)}
    taken = tree.take(rows, jnp.array([0, 2]))
    np.testing.assert_array_equal(taken["a"], [[0, 1], [4, 5]])
    put = tree.put(rows, jnp.array([1]), {"a": jnp.full((1, 2), 9.0), "b": jnp.array([7.0])})
    np.testing.assert_array_equal(put["b"], [0, 7, 2])
    mean = tree.mean(rows, jnp.array([1.0, 0.0, 3.0]))
    np.testing.assert_allclose(mean["a"], [3, 4])
    assert not tree.all_finite(State((), rows | {"b": jnp.array([1.0, jnp.nan, 0.0])}, 0))
    assert tree.all_finite(())


@pytest.mark.parametrize("portions", [[20], [20, 5], [20, 20, 5]])
def test_many_rounds_are_played_in_portions_and_logged_as_one(portions):
    """The first client that is not finite has the number 0."""
    rounds = sum(portions)
    counts, first_broken = [], np.array([7, -1, rounds - 1])

    def advance(state, rounds):
        counts.append(int(rounds))
        played = state + np.arange(int(rounds))  # the rounds of this portion
        inside = (first_broken >= state) & (first_broken <= played[-1])
        broken = np.where(inside, first_broken, -1)
        once = np.ones(3, np.int32)
        participation = Participation(
            once * counts[-1], once, np.stack([broken, np.minimum(broken, 0)], 1)
        )
        log = Log({"loss": np.float32(played.mean())}, broken, participation)
        return state + len(played), log

    state, log = play_rounds(advance, 0, rounds)

    assert ROUNDS_PER_EXECUTION == 20 and state == rounds and counts == portions
    np.testing.assert_allclose(log.metrics["loss"], np.arange(rounds).mean(), rtol=1e-6)
    np.testing.assert_array_equal(log.diverged_at, first_broken)
    np.testing.assert_array_equal(
        log.participation.first, np.stack([first_broken, np.minimum(first_broken, 0)], 1)
    )
    assert (log.participation.trained == rounds).all() and (
        log.participation.not_finite == len(portions)
    ).all()


# -------------------------------------------------------- what the parts of a program are given


def counting(hparams, played):
    """A method that sends, keeps and predicts the number of rounds that it is given.

    Clients that train add the mean of their targets. The server has the sum of all uploads.
    """
    now = jnp.asarray(played, jnp.float32)

    def local(message, memory, data, key):
        trained = now + jnp.mean(data.train.y)
        return trained, trained, {"loss": now}

    server = Server.of_one(
        init=lambda key, graph: now,
        download=lambda total, i: now,
        aggregate=lambda total, cohort, uploads, key: total + uploads.sum(),
        admit=lambda total, ids, graph, key: now,
    )
    client = Client(
        mlp(inputs=(1,), outputs=1, task=REGRESSION, hidden=(2,)),
        local=local,
        predict=lambda predictor, x: jnp.full((len(x), 1), predictor.params),
        enroll=lambda message, key: now,
        personalize=lambda *given: Predictor(local(*given)[0]),
    )
    return Algorithm(server, (client,))


def zeros(clients):
    """Clients of two examples, whose targets are 0."""
    x = np.zeros((clients, 2, 1), np.float32)
    examples = Examples(x, x, np.full(clients, 2, np.int32))
    return FederatedData(examples, {"test": examples}, relations.from_edges(clients, []))


def test_evaluations_and_new_clients_get_the_number_of_rounds_played():
    """Two clients have played two rounds, and then a third one joins and trains."""
    program = Program(counting, groups=(Group(2),), joined=(Group(1),)).compiled()
    state = State(np.float32(0), (np.zeros(2, np.float32),), np.int32(2))
    scores = program.evaluate(state, KEY, {}, zeros(2)).scores["test"]
    assert {point: own.tolist() for point, own in scores.items()} == dict.fromkeys(
        "GLP", [4.0, 4.0]
    )
    (predictors,) = program.predictors(state, KEY, {}, zeros(2))
    assert {point: own.params.tolist() for point, own in predictors.items()} == dict.fromkeys(
        "GP", [2.0, 2.0]
    )
    joined = jax.device_get(program.admit(state, KEY, {}, zeros(3)))
    assert (joined.server, joined.round) == (2, 2)
    assert joined.clients[0].tolist() == [0, 0, 2]
    joined = joined._replace(round=np.int32(6))
    after = jax.device_get(program.adapt(joined, KEY, {}, zeros(3)))
    assert (after.server, after.round) == (2, 7)
    assert after.clients[0].tolist() == [0, 0, 6]


def test_a_run_from_the_server_of_its_own_start_begins_with_the_same_state():
    """The server and the memories of the clients are drawn, each from its own key."""

    def drawing(hparams, played):
        algorithm = counting(hparams, played)
        draw = lambda given, key: jax.random.uniform(key)  # noqa: E731
        server = dataclasses.replace(
            algorithm.server, init=lambda key, graph: jax.random.uniform(key)
        )
        client = dataclasses.replace(algorithm.clients[0], enroll=draw)
        return dataclasses.replace(algorithm, server=server, clients=(client,))

    program = Program(drawing, groups=(Group(2),)).compiled()
    begun = program.start(KEY, {}, zeros(3))
    again = program.start(KEY, {}, zeros(3), begun.server)
    jax.tree.map(np.testing.assert_array_equal, again, begun)
    assert len({float(begun.server), *begun.clients[0].tolist()}) == 4


def test_a_defence_is_used_in_rounds_without_attackers():
    """Clients upload 1 in the second round; the defence of the server makes a 5 of each."""

    def defended(hparams, played):
        def defend(server, cohorts, untrained, uploads):
            return server, jax.tree.map(lambda own: jnp.full_like(own, 5), uploads)

        return dataclasses.replace(counting(hparams, played), defend=defend)

    for build, total in ((counting, 0 + 2), (defended, 10 + 10)):
        program = Program(build, groups=(Group(2),)).compiled()
        state = program.start(KEY, {}, zeros(2))
        state, _ = program.advance(state, KEY, {}, zeros(2), np.int32(2))
        assert state.server == total


def test_a_server_that_diverges_is_reported_with_its_round():
    """The uploads of 3e38 in the third round are finite, and their sum is not."""

    def attack(cohorts, untrained, uploads, rank, played, key):
        return jax.tree.map(lambda own: jnp.where(played == 2, 3e38, own), uploads)

    poison = lambda hparams: Poison(uploads=attack)  # noqa: E731
    program = Program(counting, groups=(Group(2),), poison=poison).compiled()
    state = program.start(KEY, {}, zeros(2))
    state, log = jax.device_get(program.advance(state, KEY, {}, zeros(2), np.int32(4)))
    assert log.diverged_at == 3 and np.isinf(state.server) and log.participation.since == -1
    assert log.metrics["loss"] == (0 + 1 + 2 + 3) / 4


def test_the_rounds_of_a_client_are_counted():
    """Two of five clients train in a round. The memory of one is its last round, from 0 on."""
    program, data = Program(counting, groups=(Group(2),)).compiled(), zeros(5)
    state = program.start(KEY, {}, data)
    state, first = program.advance(state, KEY, {}, data, np.int32(1))
    once = np.asarray(first.participation.trained)
    state, log = program.advance(state, KEY, {}, data, np.int32(3))
    trained, last = np.asarray(log.participation.trained), np.asarray(state.clients[0])
    assert sorted(once) == [0, 0, 0, 1, 1] and trained.sum() == 6 and trained.max() <= 3
    assert ((trained > 0) == (last > 0)).all()


def test_an_attack_that_is_not_finite_counts_as_untrained():
    """Both clients upload 1 more than untrained, but infinity in the third of four rounds."""

    def attack(cohorts, untrained, uploads, rank, played, key):
        return jax.tree.map(lambda own: jnp.where(played == 2, jnp.inf, own + 1), uploads)

    poison = lambda hparams: Poison(uploads=attack)  # noqa: E731
    program = Program(counting, groups=(Group(2),), poison=poison).compiled()
    state = program.start(KEY, {}, zeros(2))
    state, log = jax.device_get(program.advance(state, KEY, {}, zeros(2), np.int32(4)))
    assert log.diverged_at == -1
    assert state.server == 2 * ((0 + 1) + (1 + 1) + 2 + (3 + 1))
    assert log.participation.trained.tolist() == [
        3,
        3,
    ] and log.participation.not_finite.tolist() == [1, 1]
    assert log.participation.first.tolist() == [3, 0]


@pytest.mark.parametrize("many", [False, True], ids=["run", "batch"])
def test_a_client_that_is_not_finite_counts_as_untrained_and_keeps_its_memory(many):
    """Client 1 of three has an infinite target. In a batch, it has so in one of two runs."""
    good = zeros(3)
    y = good.train.y.copy()
    y[1] = np.inf
    bad = good._replace(train=good.train._replace(y=y))
    program = Program(counting, groups=(Group(3),)).compiled()
    if many:
        program = batch_program(program, mesh=None, federations=2)
        data = RunsData(
            jnp.arange(2), jax.tree.map(lambda *leaves: np.stack(leaves), good, bad)
        )
        keys = jnp.stack([KEY, KEY])
        state = program.start(keys, {}, data)
        played = jax.device_get(program.advance(state, keys, {}, data, np.int32(2)))
        fine, (state, log) = (tree.take(played, run) for run in (0, 1))
        assert fine[1].participation.since == -1 and fine[1].participation.trained.tolist() == [
            2,
            2,
            2,
        ]
        assert fine[0].clients[0].tolist() == [1, 1, 1]
    else:
        state = program.start(KEY, {}, bad)
        state, log = jax.device_get(program.advance(state, KEY, {}, bad, np.int32(2)))
    assert state.server == 0 + 3 and log.diverged_at == -1
    assert state.clients[0].tolist() == [1, 0, 1]  # the memory before the first round
    assert log.participation.trained.tolist() == [
        2,
        0,
        2,
    ] and log.participation.not_finite.tolist() == [
        0,
        2,
        0,
    ]
    assert log.participation.first.tolist() == [1, 1]


@pytest.mark.parametrize("many", [False, True], ids=["run", "batch"])
def test_the_memory_of_the_state_before_some_rounds_is_used_again(many):
    program = Program(counting, groups=(Group(2),)).compiled()
    inputs = (KEY, {}, zeros(2))
    if many:
        program = batch_program(program, mesh=None, federations=1)
        inputs = (KEY[None], {}, RunsData(jnp.zeros(1, jnp.int32), zeros(2)))
    state = program.start(*inputs)
    program.advance(state, *inputs, jnp.int32(1))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_attacked_data_are_those_of_rounds_predictors_and_evaluations():
    """The targets of client 0 are 1 and no longer 0; those of the test examples stay 0."""

    def attack(data, key):
        y = jnp.asarray(data.train.y).at[0].set(1.0)
        return data._replace(train=data.train._replace(y=y))

    program = Program(
        counting, groups=(Group(2),), poison=lambda hparams: Poison(data=attack)
    ).compiled()
    state = State(np.float32(0), (np.zeros(2, np.float32),), np.int32(0))
    given = (KEY, {}, zeros(2))
    (predictors,) = program.predictors(state, *given)
    assert {point: own.params.tolist() for point, own in predictors.items()} == {
        "G": [0, 0],
        "P": [1, 0],
    }
    scores = program.evaluate(state, *given).scores["test"]
    assert scores["L"].tolist() == scores["P"].tolist() == [1, 0]
    after, _ = program.advance(state, *given, jnp.int32(1))
    assert after.clients[0].tolist() == [1, 0]


@pytest.mark.parametrize(
    "method, changes, remedy, message",
    [
        (
            "cfl",
            {"rounds": 8},
            {"algorithm.cfl_warmup": 7},
            "algorithm.cfl_warmup=8 is not less than rounds=8, so no cluster is split; set "
            "--config.algorithm.cfl_warmup=7 or less",
        ),
        (
            "fedavg",
            {"rounds": 5, "attack__name": "sleeper", "hparams__attack_ratio": 0.3},
            {"rounds": 51},
            "attack.honest_rounds=50 is not less than rounds=5, so no client attacks",
        ),
        (
            "fedavg",
            {"tuning__part": "whole", "tuning__epochs": 2, "tuning__steps": 9},
            {"tuning.epochs": 0},
            "tuning.steps=9 is not read with tuning.epochs=2; leave one out",
        ),
        (
            "fedrep",
            {"local_steps": 1},
            {"local_steps": 2},
            "algorithm.fedrep_head_steps=-1 of local_steps=1 train no head; set "
            "--config.algorithm.fedrep_head_steps=-1 and --config.local_steps=2 or more",
        ),
        (
            "fedah",
            {"algorithm__fedah_head_steps": 5},
            {"algorithm.fedah_head_steps": -1},
            "algorithm.fedah_head_steps=5 of local_steps=5 train no body",
        ),
        (
            "fedbn",
            {},
            {"algorithm.name": "fedavg"},
            "algorithm.name='fedbn' finds no normalisation layers in model.name='mlp', so it "
            "is fedavg; set --config.algorithm.name=fedavg, or choose",
        ),
        (
            "fedavg",
            {"defence__name": "median", "cohort_size": 2},
            {"cohort_size": 3},
            "defence.name='median' keeps no attacker away in a cohort of 2; set "
            "--config.cohort_size=3 or more",
        ),
        (
            "fedavg",
            {"defence__name": "trimmed_mean", "defence__attackers": 0},
            {"defence.attackers": 1},
            "defence.attackers=0 makes trimmed_mean a mean of all updates; set 1 or more",
        ),
        (
            "pfedhn",
            {"defence__name": "clip", "cohort_size": 1},
            {"cohort_size": 2},
            "defence.name='clip' keeps no attacker away in a cohort of 1; set",
        ),
    ],
)
def test_numbers_with_which_a_part_does_nothing_are_warned_of(method, changes, remedy, message):
    config = small_config(method, **changes)
    with pytest.warns(UserWarning) as warned:
        build_experiment(config, two_clusters())
    assert [str(each.message).startswith(message) for each in warned] == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_experiment(change(config, remedy), two_clusters())
