"""Federations of several architectures: groups of clients, each with a model of its own."""

import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax import tree
from graphfl_jax.algorithms.fedah import fedah
from graphfl_jax.algorithms.fedala import OwnPart
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.fedopt import with_server_optimizer
from graphfl_jax.algorithms.local import local
from graphfl_jax.build import Experiment
from graphfl_jax.core import Algorithm, Cohort, FederatedData, Predictor, Server, State
from graphfl_jax.data import relations
from graphfl_jax.devices import client_mesh
from graphfl_jax.evaluation import Evaluated
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.mlp import mlp
from graphfl_jax.program import Participation, Program
from graphfl_jax.rounds import Group, Poison, message_bytes, sample_cohorts
from graphfl_jax.runs import checkpoint, single
from graphfl_jax.runs.folder import RunFolder
from graphfl_jax.runs.results import Course, new_seconds, results_of
from graphfl_jax.runs.single import run_experiment
from graphfl_jax.testing.subject import assert_equal
from graphfl_jax.trainers import sgd_trainer
from graphfl_jax.wire.attacks import Attackers, poison_with, with_attack_order
from graphfl_jax.wire.defences import with_defence
from graphfl_jax.wire.robust_means import clip, median
from graphfl_jax.wire.upload_attacks import poisoning
from tests.federations import small_config, two_clusters

KEY = jax.random.key(4)
FEDERATION = with_attack_order(two_clusters(), clients=(1,), seed=0)
DATA = FEDERATION.data
# Clients of one kind of labels have one architecture.
EVEN, ODD = np.arange(0, 7, 2, dtype=np.int32), np.arange(1, 7, 2, dtype=np.int32)
GROUPS = (Group(2, EVEN), Group(2, ODD))
EVERYONE = (Group(4, EVEN), Group(3, ODD))
MODELS = tuple(
    mlp(inputs=(2,), hidden=hidden, outputs=2, task=CLASSIFICATION)
    for hidden in ((16,), (16, 16))
)
HPARAMS = {"client_lr": jnp.float32(0.3)}


def trainer(hparams, steps=5, batch_size=6):
    return sgd_trainer(optax.sgd(hparams["client_lr"]), steps=steps, batch_size=batch_size)


def each_alone(train):
    """Local training of both architectures. One function sends the same to all: nothing."""
    return local(MODELS, train)


def fedavg_per_group(train):
    """FedAvg among the clients of each architecture. The server holds a model of each."""

    def aggregate(server, cohorts, uploads, key):
        return tuple(
            tree.mean(upload, cohort.weights)
            for upload, cohort in zip(uploads, cohorts, strict=True)
        )

    server = Server(
        init=lambda key, graph: tuple(model.init(key) for model in MODELS),
        download=lambda server, group, i: server[group],
        aggregate=aggregate,
    )
    clients = tuple(fedavg(model, train).client for model in MODELS)
    return Algorithm(server, clients, averages=True)


METHODS = {"local": each_alone, "fedavg": fedavg_per_group}


def build_of(method, **sizes):
    return lambda hparams, played: METHODS[method](trainer(hparams, **sizes))


SIZES = {"eval_batch_size": 5, "clients_per_eval": 2}  # of evaluation


@functools.cache
def program_of(method):
    """The program of a method on `GROUPS`, compiled once for all tests."""
    return Program(build_of(method), groups=GROUPS, **SIZES).compiled()


def start_of(method):
    """The first state, which depends neither on the size of a cohort nor on the floats."""
    return program_of(method).start(KEY, HPARAMS, DATA)


def play(program, state, rounds, data=DATA, hparams=HPARAMS):
    """The state after some rounds, and its scores, on the host."""
    state, _ = program.advance(state, KEY, hparams, data, jnp.int32(rounds))
    scores, *_ = program.evaluate(state, KEY, hparams, data)
    return jax.device_get((state, scores))


def played(method, rounds, hparams=HPARAMS):
    return play(program_of(method), start_of(method), rounds, hparams=hparams)


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


# -------------------------------------------------------------------- rounds and evaluation


def test_a_round_keeps_the_shape_of_the_state(method):
    """Each group's memories have one row for each of its clients."""
    program = program_of(method)
    before = jax.eval_shape(program.start, KEY, HPARAMS, DATA)
    after, _ = jax.eval_shape(program.advance, before, KEY, HPARAMS, DATA, jnp.int32(1))
    assert before == after
    models = tuple(jax.eval_shape(model.init, KEY) for model in MODELS)
    if method == "fedavg":
        assert (before.server, before.clients) == (models, ((), ()))
    else:
        rows = [
            jax.tree.map(lambda leaf: leaf.update(shape=(count, *leaf.shape)), model)  # noqa: B023
            for count, model in zip((4, 3), models, strict=True)
        ]
        assert (before.server, before.clients) == ((), tuple(rows))


@pytest.mark.slow
def test_a_round_trains_the_cohort_of_every_group():
    """Of the models of all clients, those of two clients in each group change."""
    before, after = jax.device_get(start_of("local")).clients, played("local", 1)[0].clients
    for old, new in zip(before, after, strict=True):
        moved = old["head"]["Dense_0"]["bias"] != new["head"]["Dense_0"]["bias"]
        assert moved.any(axis=1).sum() == 2


def test_cohorts_of_architectures_are_independent_draws():
    """Two of four clients each, so they are at equal places in a sixth of the rounds."""
    groups = (Group(2, np.arange(4, dtype=np.int32)), Group(2, np.arange(4, 8, dtype=np.int32)))
    algorithm, counts = fedavg(MODELS[0], None), jnp.ones(8, jnp.int32)
    draw = jax.jit(jax.vmap(lambda key: sample_cohorts(algorithm, (), counts, key, groups)[0]))
    even, odd = map(np.asarray, draw(jax.random.split(KEY, 300)))
    assert 0 < (even == odd).all(axis=1).mean() < 0.35


def accuracy(model, params, examples):
    """The share of a client's examples that a model classifies correctly."""
    predicted = np.argmax(model.apply(params, examples.x), axis=-1)
    return np.mean((predicted == examples.y)[: examples.count])


@pytest.mark.slow
def test_every_client_is_scored_with_its_own_model_at_its_own_place(method):
    """Scores are in the order of all clients, and not in that of the groups."""
    # With a small learning rate the scores differ from client to client.
    state, scores = played(method, 1, {"client_lr": jnp.float32(0.01)})
    expected = {split: np.full(7, np.nan) for split in scores}
    for g, ids in enumerate((EVEN, ODD)):
        for place, i in enumerate(ids):
            held = state.server[g] if method == "fedavg" else tree.take(state.clients[g], place)
            for split in scores:
                examples = tree.take(DATA.evals[split], i)
                expected[split][i] = accuracy(MODELS[g], held, examples)
    for split, points in scores.items():
        np.testing.assert_allclose(points["G"], expected[split], rtol=1e-6)
        np.testing.assert_array_equal(points["P"], points["G"])
    by_group = expected["test"][np.concatenate([EVEN, ODD])]
    assert not np.allclose(by_group, expected["test"])


@pytest.mark.parametrize("same", [True, False], ids=["equal", "different"])
def test_points_of_equal_predictors_are_compiled_once(same):
    """With several architectures; a predictor of another form gets a pass of its own."""
    traced = []

    def counting(model):
        def recalibrate(params, examples):
            traced.append(model)
            return params

        return dataclasses.replace(model, recalibrate=recalibrate)

    def personalize(message, memory, data, key):
        return Predictor(message, () if same else jnp.float32(0.0))

    def build(hparams, played):
        algorithm = fedavg_per_group(trainer(hparams)).replacing(personalize=personalize)
        clients = tuple(
            dataclasses.replace(client, model=counting(client.model))
            for client in algorithm.clients
        )
        return dataclasses.replace(algorithm, clients=clients)

    program = Program(build, groups=GROUPS, **SIZES).compiled()
    jax.eval_shape(program.evaluate, start_of("fedavg"), KEY, HPARAMS, DATA)
    assert traced == [model for model in MODELS for _ in range(1 if same else 3)]


@pytest.mark.slow
def test_it_learns_what_only_models_of_one_kind_of_clients_can(method):
    """A model for clients of both kinds would be right half of the time."""
    _, scores = played(method, 40)
    assert float(scores["test"]["P"].mean()) > 0.95


def test_messages_are_counted_for_each_architecture():
    algorithm = fedavg_per_group(trainer(HPARAMS))
    sizes = [2 * 16 + 16 + 16 * 2 + 2, 2 * 16 + 16 + 16 * 16 + 16 + 16 * 2 + 2]
    assert message_bytes(algorithm, DATA, 2) == [(4 * size, 4 * size) for size in sizes]


# --------------------------------------------------------------------------- the same numbers


def test_a_run_in_pieces_is_the_whole_run_bit_for_bit(method):
    state = start_of(method)
    for _ in range(2):
        state, scores = play(program_of(method), state, 2)
    assert_equal((state, scores), played(method, 4))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", pytest.param("fedavg", marks=pytest.mark.release)])
def test_a_sharded_round_is_the_unsharded_one(method):
    """On two devices. The groups of 4 and 3 clients are evaluated two at a time."""
    mesh = client_mesh(2)
    assert mesh.size == 2
    sharded = Program(build_of(method), groups=GROUPS, mesh=mesh, **SIZES).compiled()
    ours = play(sharded, sharded.start(KEY, HPARAMS, DATA), 1)
    assert_equal(ours, played(method, 1), rtol=1e-5, atol=1e-6)


def test_cohorts_need_not_divide_over_the_devices(method):
    """Three and two clients on two devices."""
    groups, mesh = (Group(3, EVEN), Group(2, ODD)), client_mesh(2)
    program = Program(build_of(method), groups=groups, mesh=mesh, **SIZES).compiled()
    before = jax.eval_shape(program.start, KEY, HPARAMS, DATA)
    after, _ = jax.eval_shape(program.advance, before, KEY, HPARAMS, DATA, jnp.int32(1))
    assert before == after


@pytest.mark.release
@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_vmapped_runs_are_the_looped_ones(method):
    program = program_of(method)
    keys = jax.random.split(KEY, 2)
    rates = jnp.float32([0.3, 0.1])

    def run(key, rate):
        hparams = {"client_lr": rate}
        state = program.start(key, hparams, DATA)
        state, _ = program.advance(state, key, hparams, DATA, jnp.int32(2))
        return state, program.evaluate(state, key, hparams, DATA)[0]

    both = jax.device_get(jax.jit(jax.vmap(run))(keys, rates))
    for number in range(2):
        single = jax.device_get(run(keys[number], rates[number]))
        assert_equal(tree.take(both, number), single, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_one_group_of_all_clients_is_no_group_bit_for_bit():
    """Whether the ids of its clients are given or not."""
    algorithm = fedavg(MODELS[0], trainer(HPARAMS))
    first = jax.device_get(start_of("fedavg"))
    first = State(first.server[0], ((),), first.round)
    without, grouped = (
        play(
            Program(lambda hparams, played: algorithm, **groups).compiled(),
            first,
            2,
            hparams={},
        )
        for groups in (
            {"groups": (Group(3),)},
            {"groups": (Group(3, np.arange(7, dtype=np.int32)),)},
        )
    )
    assert_equal(without, grouped)


@pytest.mark.release
def test_fedavg_per_group_is_a_federation_of_its_own_for_each_group():
    """All clients take part with all examples, so that no draw matters."""
    first = jax.device_get(start_of("fedavg"))
    together = Program(build_of("fedavg", batch_size=None), groups=EVERYONE).compiled()
    state, scores = play(together, first, 3)
    for g, ids in enumerate((EVEN, ODD)):
        part = FederatedData(
            *tree.take((DATA.train, DATA.evals), ids), relations.subgraph(DATA.graph, ids)
        )
        program = Program(
            lambda hparams, played, g=g: fedavg(MODELS[g], trainer(hparams, batch_size=None)),
            groups=(Group(len(ids)),),
        ).compiled()
        alone, own_scores = play(program, State(first.server[g], ((),), first.round), 3, part)
        assert_equal(state.server[g], alone.server, rtol=1e-5, atol=1e-6)
        assert_equal(tree.take(scores, ids), own_scores, atol=1e-6)


def test_a_server_optimizer_steps_in_the_model_of_every_group():
    """Uploads of the models sent plus 1 and plus 3; SGD of rate 0.5 goes half of the way."""
    algorithm = with_server_optimizer(fedavg_per_group(trainer(HPARAMS)), optax.sgd(0.5))
    cohorts = tuple(Cohort(jnp.asarray(group.ids[:2]), jnp.ones(2)) for group in GROUPS)

    @jax.jit
    def one_round():
        server = algorithm.server.init(KEY, DATA.graph)
        sent = [algorithm.server.download(server, g, 0) for g in range(2)]
        uploads = tuple(
            jax.tree.map(lambda leaf, up=up: jnp.stack([leaf + up - 1, leaf + up + 1]), model)
            for up, model in zip((1.0, 3.0), sent, strict=True)
        )
        after = algorithm.server.aggregate(server, cohorts, uploads, KEY)
        return sent, [algorithm.server.download(after, g, 0) for g in range(2)]

    sent, after = one_round()
    for way, old, new in zip((0.5, 1.5), sent, after, strict=True):
        assert_equal(new, jax.tree.map(lambda leaf: leaf + way, old), atol=1e-6)  # noqa: B023


def test_a_checkpoint_restores_the_state(method, tmp_path):
    """A run that goes on from it is the whole run, bit for bit."""
    state, _ = played(method, 2)
    checkpoint.save(tmp_path, checkpoint.Checkpoint(state, {"round": np.array([2])}, {}))
    template = jax.eval_shape(lambda: start_of(method))
    restored = checkpoint.latest(tmp_path, template).state
    assert_equal(play(program_of(method), restored, 2), played(method, 4))


# ------------------------------------------------------------------------------- whole runs


def test_results_have_the_messages_and_scores_of_each_architecture():
    """Three clients of the first architecture train in a round, and one of the second."""
    groups = (Group(3, EVEN, name="even"), Group(1, ODD, name="odd"))
    experiment = Experiment(FEDERATION, MODELS[0], None, None, {}, groups)
    scores = {"test": dict.fromkeys("GLP", np.float32([4, 1, 4, 1, 4, 1, 4]))}
    course = Course(
        rows=[{"round": 2, "scores": scores}],
        participation=jax.device_get(Participation.nothing(7)),
        final=Evaluated(scores, {}, {}, {}, (), ()),
        new_clients=None,
        rounds=2,
        seconds=new_seconds() | {"train": 4.0},
        traffic=[(100, 10), (20, 50)],
    )
    results = results_of(small_config("local", local_steps=5), experiment, course, {})
    # Means over the clients of a round, (3 * 100 + 20) / 4 and (3 * 10 + 50) / 4.
    assert results["communication"] == {"down_bytes": 80, "up_bytes": 20, "clients": 4}
    assert results["timing"]["client_steps_per_s"] == 2 * (3 + 1) * 5 / 4.0
    assert results["architectures"] == {
        "even": {
            "clients": ["client 0", "client 2", "client 4", "client 6"],
            "ids": [0, 2, 4, 6],
            "scores": {"test": dict.fromkeys("GLP", 4.0)},
            "up_bytes": 10,
            "down_bytes": 100,
        },
        "odd": {
            "clients": ["client 1", "client 3", "client 5"],
            "ids": [1, 3, 5],
            "scores": {"test": dict.fromkeys("GLP", 1.0)},
            "up_bytes": 50,
            "down_bytes": 20,
        },
    }


def run_of(method, folder=None, *, resume=False, debug=False, rounds=4, **sizes):
    config = small_config(
        "fedavg", rounds=rounds, eval_every=1, checkpoint_every=2, cohort_size=2, **SIZES
    )
    build, hparams = build_of(method, **sizes), {"client_lr": 0.3}
    experiment = Experiment(
        FEDERATION, MODELS[0], build, lambda hparams: Poison(), hparams, GROUPS
    )
    folder = folder and RunFolder(folder, config, resume=resume)
    return run_experiment(experiment, config, folder=folder, debug=debug)


@pytest.mark.release
def test_a_resumed_run_is_the_whole_run_bit_for_bit(tmp_path, monkeypatch):
    once = functools.cache(
        lambda mesh: Program(build_of("local"), groups=GROUPS, mesh=mesh, **SIZES).compiled()
    )
    monkeypatch.setattr(
        single, "program_of", lambda experiment, config, mesh, **models: once(mesh)
    )
    whole = run_of("local", tmp_path)
    assert len(whole.results["scores"]["final"]["P"]["per_client"]) == 7
    metrics = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "results.json").unlink()
    shutil.rmtree(tmp_path / "checkpoints" / "00000004")
    (tmp_path / "checkpoints" / "00000004.json").unlink()
    resumed = run_of("local", tmp_path, resume=True)
    assert_equal(resumed.state, whole.state)
    assert_equal(resumed.rows, whole.rows)
    assert (tmp_path / "metrics.jsonl").read_text() == metrics


@pytest.mark.release
def test_a_debugged_run_is_the_compiled_one():
    ours, theirs = (run_of("fedavg", rounds=1, debug=debug, steps=1) for debug in (True, False))
    states = jax.device_get((ours.state, theirs.state))
    assert_equal(*states, rtol=1e-5, atol=1e-6)
    assert_equal(ours.rows, theirs.rows, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- attacks and defences


@functools.cache
def attacked_program(defence=None):
    """FedAvg per group, in which client 1 poisons its upload."""

    def build(hparams, played):
        algorithm = fedavg_per_group(trainer(hparams))
        if defence is None:
            return algorithm
        name, make = defence
        return with_defence(algorithm, name, make(), EVERYONE, DATA)

    def poison(hparams):
        attack = poisoning(attack_lambda=hparams["attack_lambda"])
        return poison_with(attack, Attackers(jnp.float32(0.0), 7))

    return Program(build, groups=EVERYONE, poison=poison).compiled()


def after_attack(attack_lambda, defence=None):
    hparams = HPARAMS | {"attack_lambda": jnp.float32(attack_lambda)}
    advance = attacked_program(defence).advance
    return advance(start_of("fedavg"), KEY, hparams, DATA, jnp.int32(1))[0].server


@pytest.mark.slow
def test_an_attacker_changes_the_model_of_its_own_group_only():
    """Client 1 is odd. A factor of -1 is honest."""
    honest, attacked = (after_attack(value) for value in (-1.0, 5.0))
    assert_equal(honest[0], attacked[0])
    gaps = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), honest[1], attacked[1])
    assert max(jax.tree.leaves(gaps)) > 1e-2


@pytest.mark.parametrize("defence", [None, ("clip", clip), ("median", median)])
def test_a_round_with_attack_and_defence_keeps_the_shape_of_the_state(defence):
    hparams = HPARAMS | {"attack_lambda": jnp.float32(0.5)}
    program = attacked_program(defence)
    before = jax.eval_shape(program.start, KEY, hparams, DATA)
    after, _ = jax.eval_shape(program.advance, before, KEY, hparams, DATA, jnp.int32(1))
    assert before == after


@pytest.mark.slow
def test_a_defence_limits_the_attack_in_the_group_of_the_attacker():
    """A poisoned update of factor 5 that is clipped moves the group's model less."""
    moved = [
        [
            float(tree.sq_dist(attacked, honest))
            for attacked, honest in zip(
                *(after_attack(value, defence) for value in (5.0, -1.0)), strict=True
            )
        ]
        for defence in (None, ("clip", clip))
    ]
    (even, odd), (even_clipped, odd_clipped) = moved
    assert even == even_clipped == 0
    assert 0 < odd_clipped < odd / 4


@pytest.mark.release
@pytest.mark.parametrize("by", ["attack", "defence"])
def test_an_update_starts_from_what_the_memory_of_its_client_makes_of_the_message(by):
    """Attackers of lambda = 0, and updates that are clipped to 0, are untrained uploads."""
    sizes = {"client_optimizer": optax.sgd(0.3), "local_steps": 2, "batch_size": 6}

    def build(hparams, played):
        algorithm = fedavg_per_group(trainer(HPARAMS))
        clients = tuple(fedah(model, **sizes).client for model in MODELS)
        algorithm = Algorithm(algorithm.server, clients, averages=True)
        nothing = clip(defence_norm=jnp.float32(0.0))
        return (
            algorithm
            if by == "attack"
            else with_defence(algorithm, "clip", nothing, EVERYONE, DATA)
        )

    def poison(hparams):
        everyone = Attackers(jnp.float32(by == "attack"), 7)
        return poison_with(poisoning(attack_lambda=jnp.float32(0.0)), everyone)

    data = DATA._replace(attack_rank=np.arange(7, dtype=np.int32))
    program = Program(build, groups=EVERYONE, poison=poison).compiled()
    state = jax.device_get(program.start(KEY, {}, data))
    rng = np.random.default_rng(0)

    def drawn(leaf):
        return rng.uniform(size=leaf.shape).astype(np.float32)

    state = state._replace(clients=jax.tree.map(drawn, state.clients))
    for ids, w, memory, after in zip(
        (EVEN, ODD),
        state.server,
        state.clients,
        jax.device_get(program.advance(state, KEY, {}, data, jnp.int32(1))[0]).server,
        strict=True,
    ):
        assert isinstance(memory, OwnPart)
        counts = data.train.count[ids]

        def mean(h, start, share, counts=counts):
            return np.average(start + (h - start) * share, axis=0, weights=counts)

        heads = jax.tree.map(mean, w["head"], *(own["head"] for own in memory))
        assert_equal(after["head"], heads, rtol=1e-5, atol=1e-6)
        assert_equal(after["body"], w["body"], rtol=1e-5, atol=1e-6)
