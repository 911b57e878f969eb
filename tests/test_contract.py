"""What every algorithm promises, checked for all of them alike and by name for none."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphfl_jax import tree
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.algorithms.tuning import finetuned
from graphfl_jax.build import build_experiment, wanted
from graphfl_jax.core import Cohort, Examples
from graphfl_jax.data import relations
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.program import client_mesh, make_program, message_bytes
from graphfl_jax.robustness.attacks import ATTACKS, UPLOAD_ATTACKS, attacked, with_ranks
from graphfl_jax.robustness.defences import CENTRES, DEFENCES, defended
from graphfl_jax.runs import checkpoint
from tests.federations import renamed, small_config, two_clusters

KEY = jax.random.key(3)
# Every algorithm as it is, and what wraps any of them.
CASES = {name: {"algorithm__name": name} for name in sorted(ALGORITHMS)} | {
    "fine-tuned": {"algorithm__name": "fedavg", "tuning__part": "whole", "tuning__steps": 3},
    "head fine-tuned": {
        "algorithm__name": "fedavg",
        "tuning__part": "head",
        "tuning__epochs": 2,
    },
    "generated in full": {"algorithm__name": "panacea", "algorithm__output": "full"},
    "generated head": {"algorithm__name": "pfedhn", "algorithm__output": "head"},
    "generated at low rank": {"algorithm__name": "panacea", "algorithm__output": "lowrank"},
}


@pytest.fixture(params=CASES)
def name(request):
    return request.param


@functools.cache
def parts(name, **changes):
    """Experiment, program and traced hyperparameters of one method; compiled once."""
    config = small_config(**CASES[name], **changes)
    experiment = build_experiment(config, two_clusters())
    program = make_program(experiment.build, experiment.model, cohort_size=config.cohort_size)
    return experiment, program, floats(experiment.hparams)


def floats(hparams):
    return {name: jnp.float32(value) for name, value in hparams.items()}


def play(name, rounds, key=KEY, data=None, **changes):
    """State, log and scores after some rounds."""
    experiment, program, hparams = parts(name, **changes)
    data = experiment.federation.data if data is None else data
    state = program.start(key, hparams, data)
    state, log = program.advance(state, key, hparams, data, jnp.int32(rounds))
    return state, log, program.evaluate(state, key, hparams, data)[0]


def assert_equal(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if tolerance:
            np.testing.assert_allclose(x, y, **tolerance)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("factory", [*ALGORITHMS.values(), finetuned, attacked, defended])
def test_docstring_says_what_departs_from_the_paper(factory):
    assert "\nDepartures:" in sys.modules[factory.__module__].__doc__


def test_a_round_keeps_the_shape_of_the_state(name):
    experiment, program, hparams = parts(name)
    data = experiment.federation.data
    before = jax.eval_shape(program.start, KEY, hparams, data)
    after, _ = jax.eval_shape(program.advance, before, KEY, hparams, data, jnp.int32(1))
    assert before == after


def test_all_floats_are_read_and_no_others(name):
    experiment, _, hparams = parts(name)
    rates = {f"{side}_lr" for side in ("client", "server", "new_clients", "tuning")} | {
        "defence_norm"
    }
    assert "client_lr" in hparams
    assert set(hparams) <= set(wanted(ALGORITHMS[CASES[name]["algorithm__name"]])) | rates
    for missing in hparams:
        with pytest.raises((KeyError, ValueError)):
            experiment.build({k: v for k, v in hparams.items() if k != missing}, 0)


def test_one_client_is_the_same_compiled_and_not(name):
    experiment, program, hparams = parts(name)
    algorithm = experiment.build(hparams, 0)
    data = experiment.federation.data
    state = program.start(KEY, hparams, data)

    def one_client(state):
        client, examples = tree.take((state.clients, data.train), 1)
        message = algorithm.download(state.server, 1)
        return algorithm.local(message, client, Examples(*map(jnp.asarray, examples)), KEY)

    compiled = jax.jit(one_client)(state)
    with jax.disable_jit():
        assert_equal(one_client(state), compiled, rtol=1e-4, atol=1e-6)


def test_neither_rounds_nor_floats_recompile(name):
    experiment, program, hparams = parts(name)
    data = experiment.federation.data
    for scale, rounds in ((1.0, 1), (0.5, 2), (0.25, 5)):
        scaled = {k: v * jnp.float32(scale) for k, v in hparams.items()}
        state = program.start(KEY, scaled, data)
        state, _ = program.advance(state, KEY, scaled, data, jnp.int32(rounds))
    # The state comes from `start` or from `advance`, and `parts` shares the program.
    assert program.advance._cache_size() == 1


def test_a_run_in_pieces_is_the_whole_run_bit_for_bit(name):
    experiment, program, hparams = parts(name)
    data = experiment.federation.data
    whole, _, scores = play(name, 5)
    state = program.start(KEY, hparams, data)
    for rounds in (2, 1, 2):
        state, _ = program.advance(state, KEY, hparams, data, jnp.int32(rounds))
        program.evaluate(state, KEY, hparams, data)
    assert_equal(state, whole)
    assert_equal(program.evaluate(state, KEY, hparams, data)[0], scores)


def test_a_sharded_round_is_the_unsharded_one(name):
    experiment, _, hparams = parts(name)
    data = experiment.federation.data
    mesh = client_mesh(4)
    assert mesh.size == 4
    sharded = make_program(
        experiment.build, experiment.model, cohort_size=4, mesh=mesh, group=3
    )
    state = sharded.start(KEY, hparams, data)
    state, log = sharded.advance(state, KEY, hparams, data, jnp.int32(1))
    # Seven clients in groups of as many as there are devices.
    scores = sharded.evaluate(state, KEY, hparams, data)[0]
    # One round: after twenty, a ReLU that flips makes 1e-7 into 1e-3.
    for ours, alone in zip((state, log, scores), play(name, 1), strict=True):
        assert_equal(jax.device_get(ours), jax.device_get(alone), rtol=1e-5, atol=1e-6)


def test_vmapped_runs_are_the_looped_ones(name):
    experiment, program, hparams = parts(name)
    data = experiment.federation.data
    keys = jax.random.split(jax.random.key(5), 2)
    rates = {k: jnp.stack([v, v * jnp.float32(0.5)]) for k, v in hparams.items()}

    def run(key, hparams):
        state = program.start(key, hparams, data)
        state, _ = program.advance(state, key, hparams, data, jnp.int32(2))
        return program.evaluate(state, key, hparams, data)[0]

    run_synchronized = jax.jit(jax.vmap(run))(keys, rates)
    for i in range(2):
        alone = run(keys[i], {k: v[i] for k, v in rates.items()})
        assert_equal(jax.tree.map(lambda leaf: leaf[i], run_synchronized), alone, atol=1e-5)  # noqa: B023


def test_padding_changes_nothing(name):
    padded = two_clusters(padding=5, filler=1e9).data
    for with_padding, without in zip(play(name, 2, data=padded), play(name, 2), strict=True):
        assert_equal(with_padding, without)


def test_renaming_clients_renames_the_results(name):
    """Everybody plays, and a client's examples are all alike: names carry no luck."""
    federation = two_clusters()
    train = federation.data.train
    alike = [np.repeat(leaf[:, :1], leaf.shape[1], axis=1) for leaf in (train.x, train.y)]
    data = federation.data._replace(train=Examples(*alike, train.count))
    experiment, _, hparams = parts(name)

    def without_luck(hparams, played):
        """What a server draws for a round strikes clients by their number."""
        return dataclasses.replace(
            experiment.build(hparams, 0), prepare=lambda server, key: server
        )

    program = make_program(without_luck, experiment.model, cohort_size=7)
    order = np.array([4, 0, 6, 2, 5, 3, 1])

    def permute(state):
        """Every axis of seven is an axis of clients."""

        def one(leaf):
            leaf = jnp.array(leaf)  # a copy, since `advance` takes the original
            for axis, size in enumerate(leaf.shape):
                leaf = jnp.take(leaf, order, axis) if size == 7 else leaf
            return leaf

        return jax.tree.map(one, state)

    start = program.start(KEY, hparams, data)
    other_start, other_data = permute(start), renamed(data, order)
    state, _ = program.advance(start, KEY, hparams, data, jnp.int32(1))
    other, _ = program.advance(other_start, KEY, hparams, other_data, jnp.int32(1))
    assert_equal(permute(state), other, rtol=1e-4, atol=1e-5)
    scores, _ = program.evaluate(state, KEY, hparams, data)
    others, _ = program.evaluate(other, KEY, hparams, other_data)
    assert_equal(permute(scores), others, atol=1e-5)


def test_relations_play_a_part_where_it_is_said_so(name):
    """Other relations, as many of them: the same loss to the bit, or another one."""
    experiment, _, hparams = parts(name)
    data = experiment.federation.data
    pairs = [(i, (i + 1) % 7) for i in range(7)] + [(0, 3), (2, 5)]
    other = data._replace(graph=relations.from_edges(7, pairs))
    _, first, _ = play(name, 2)
    _, second, _ = play(name, 2, data=other)
    changed = float(first.metrics["loss"]) != float(second.metrics["loss"])
    assert changed == experiment.build(hparams, 0).relational


def test_a_checkpoint_gives_the_state_back(name, tmp_path):
    state, _, _ = play(name, 1)
    checkpoint.save(tmp_path, checkpoint.Checkpoint(state, {"round": np.array([1])}, {}))
    assert_equal(checkpoint.latest(tmp_path, state).state, jax.device_get(state))


def test_it_learns_what_only_personal_models_can(name):
    """A shared model is right half of the time; a round of local training must suffice."""
    changes = {"local_steps": 40, "hparams__client_lr": 0.3}
    _, log, scores = play(name, 40, **changes)
    assert int(log.diverged_at) == -1
    assert float(scores["test"]["L"].mean()) > 0.95


@pytest.mark.parametrize("graph", ["inductive", "transductive"])
def test_newcomers_join_and_train_at_home(name, graph):
    """Two of seven: the others' memories rest, and a round of local training suffices."""
    federation = hold_out(two_clusters(), fraction=0.3, graph=graph, seed=0)
    config = small_config(**CASES[name], local_steps=40, hparams__client_lr=0.3)
    experiment = build_experiment(config, federation)
    if graph == "transductive" and not experiment.build(experiment.hparams, 0).relational:
        pytest.skip("relations play no part")
    program = make_program(
        experiment.build, experiment.model, cohort_size=config.cohort_size, new_clients=2
    )
    given = (KEY, floats(experiment.hparams))
    state = program.start(*given, federation.data)
    state, _ = program.advance(state, *given, federation.data, jnp.int32(1))
    known = jax.device_get(state.clients)
    joined = program.admit(state, *given, federation.everyone)
    after = program.adapt(joined, *given, federation.everyone)
    assert jax.eval_shape(lambda: after) == jax.eval_shape(lambda: joined)
    for now in (joined, after):
        assert_equal(jax.tree.map(lambda leaf: leaf[:5], now.clients), known)
        assert all(len(leaf) == 7 for leaf in jax.tree.leaves(now.clients))
    scores = program.evaluate(after, *given, federation.everyone)[0]["test"]
    assert float(scores["L"][5:].min()) > 0.9
    assert all(np.isfinite(points).all() for points in scores.values())


def test_divergence_is_told_with_its_round(name):
    experiment, program, hparams = parts(name)
    data = experiment.federation.data
    wild = {k: v * jnp.float32(1e30 if k == "client_lr" else 1.0) for k, v in hparams.items()}
    state = program.start(KEY, wild, data)
    _, log = program.advance(state, KEY, wild, data, jnp.int32(5))
    assert 1 <= int(log.diverged_at) <= 5


def test_messages_are_counted_from_what_is_sent(name):
    experiment, program, hparams = parts(name)
    algorithm = experiment.build(hparams, 0)
    data = experiment.federation.data
    state = program.start(KEY, hparams, data)
    down, up = message_bytes(algorithm, state, data)
    sent = jax.tree.leaves(algorithm.download(state.server, 0))
    assert down == sum(leaf.nbytes for leaf in sent)
    assert up in (0, 4 * 27)  # nothing, or one model of 2 * 5 + 5 + 5 * 2 + 2 floats


# ------------------------------------------------------------------------ attacks and defences


def with_attack_and_defence(images=False, **changes):
    """Experiment and data of a tiny federation with its attackers."""
    config = small_config(**changes)
    federation = two_clusters()
    if images:
        own = federation.data.train
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (*own.y.shape, 4, 4, 3)).astype(np.uint8)
        examples = Examples(x, own.y, own.count)
        data = federation.data._replace(train=examples, evals={"test": examples})
        federation = federation._replace(data=data)
    federation = with_ranks(federation, clients=(), seed=0)
    return build_experiment(config, federation), federation.data


def after_a_round(experiment, data, mesh=None, **values):
    """The state; `values` are floats in place of those of the configuration."""
    program = make_program(experiment.build, experiment.model, cohort_size=4, mesh=mesh)
    hparams = floats(experiment.hparams | values)
    state = program.start(KEY, hparams, data)
    return program.advance(state, KEY, hparams, data, jnp.int32(1))[0]


def learned(experiment, data, *values):
    """What a server makes of uploads that chance wrote, of seven clients, for each `values`.

    These are floats in place of those of the configuration; all are one program.
    """
    cohort = Cohort(jnp.arange(7), jnp.arange(1.0, 8.0), jnp.asarray(data.rank))

    @jax.jit
    def aggregate(hparams):
        method = experiment.build(hparams, 0)
        server = method.init(KEY, data.graph)

        def upload(i):
            sent = method.untrained(method.download(server, i))
            keys = iter(jax.random.split(jax.random.fold_in(KEY, i), 99))
            return jax.tree.map(lambda x: x + jax.random.normal(next(keys), x.shape), sent)

        return method.aggregate(server, cohort, jax.vmap(upload)(cohort.ids), KEY)

    return [aggregate(floats(experiment.hparams | own)) for own in values]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_ratio_of_none_is_no_attack_bit_for_bit(attack):
    experiment, data = with_attack_and_defence(
        attack == "backdoor", algorithm__name="fedavg", attack__name=attack
    )
    assert experiment.hparams["attack_ratio"] == 0.0
    if attack in UPLOAD_ATTACKS:
        honest, _ = with_attack_and_defence(algorithm__name="fedavg")
        same, other = learned(experiment, data, {}, {"attack_ratio": 0.5})
        assert_equal(same, *learned(honest, data, {}))
        assert any(jax.tree.leaves(jax.tree.map(lambda a, b: (a != b).any(), same, other)))
        return
    same, other = (
        experiment.build(experiment.hparams | {"attack_ratio": ratio}, 0).poison_data(data, KEY)
        for ratio in (0.0, 0.5)
    )
    assert_equal(same.train, data.train)
    assert_equal(same.evals["test"], data.evals["test"])
    assert not np.array_equal(other.train.y, data.train.y)


@pytest.mark.parametrize(
    "algorithm, attack", [("panacea", "poisoning"), ("fedavg", "label_flip")]
)
def test_a_round_without_attackers_is_an_honest_one_bit_for_bit(algorithm, attack):
    experiment, data = with_attack_and_defence(algorithm__name=algorithm, attack__name=attack)
    assert_equal(after_a_round(experiment, data), play(algorithm, 1)[0])


def test_a_sharded_round_with_attackers_is_the_unsharded_one():
    experiment, data = with_attack_and_defence(algorithm__name="pfedhn", attack__name="alie")
    alone, split = (
        after_a_round(experiment, data, mesh, attack_ratio=0.5)
        for mesh in (None, client_mesh(4))
    )
    assert_equal(jax.device_get(split), jax.device_get(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_poison_of_lambda_minus_one_is_honest_bit_for_bit(algorithm):
    """With another lambda it is not, but where nothing is sent."""
    experiment, data = with_attack_and_defence(
        algorithm__name=algorithm, attack__name="poisoning"
    )
    half = {"attack_ratio": 0.5}
    honest, recovered, poisoned = learned(
        experiment, data, {}, half | {"attack_lambda": -1.0}, half
    )
    assert_equal(recovered, honest)
    leaves = zip(*map(jax.tree.leaves, (poisoned, honest)), strict=True)
    assert all(np.array_equal(a, b) for a, b in leaves) == (algorithm == "local")


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_who_does_not_train_uploads_what_the_algorithm_says(algorithm):
    experiment, _, hparams = parts(algorithm)
    method = experiment.build(hparams | {"client_lr": jnp.float32(0.0)}, 0)

    @jax.jit
    def both(state, data):
        message = method.download(state.server, 1)
        client, examples = tree.take((state.clients, data.train), 1)
        return method.local(message, client, examples, KEY)[1], method.untrained(message)

    assert_equal(*both(play(algorithm, 2)[0], experiment.federation.data))


@pytest.mark.parametrize("algorithm", ["fedavg", "pfedhn"])
@pytest.mark.parametrize("defence", DEFENCES)
def test_a_defence_keeps_the_shape_of_the_state_or_is_refused(defence, algorithm):
    changes = {"defence__name": defence, "defence__attackers": 0, "attack__name": "sign_flip"}
    if algorithm == "pfedhn" and defence in CENTRES:
        with pytest.raises(ValueError, match=f"defence.name={defence!r} "):
            with_attack_and_defence(algorithm__name=algorithm, **changes)
        return
    experiment, data = with_attack_and_defence(algorithm__name=algorithm, **changes)
    program = make_program(experiment.build, experiment.model, cohort_size=4)
    hparams = floats(experiment.hparams)
    before = jax.eval_shape(program.start, KEY, hparams, data)
    after, _ = jax.eval_shape(program.advance, before, KEY, hparams, data, jnp.int32(1))
    assert before == after
