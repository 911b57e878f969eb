"""What every algorithm promises. All rows are checked by the same tests, none by its name.

A row compiles its program once, and its tests share it: they differ in the values of data,
rates and keys, not in shapes.
"""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphfl_jax import tree
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.algorithms.tuning import finetuned
from graphfl_jax.build import build_experiment
from graphfl_jax.core import ClientData, Cohort, use_message, use_model
from graphfl_jax.data import relations
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.devices import client_mesh
from graphfl_jax.examples import Examples
from graphfl_jax.program import make_program
from graphfl_jax.robustness.attacks import (
    ATTACKS,
    DATA_ATTACKS,
    poison_with,
    with_attack_order,
)
from graphfl_jax.robustness.defences import CENTRES, DEFENCES, defended
from graphfl_jax.rounds import draw_cohort, message_bytes
from graphfl_jax.runs import checkpoint, models, single
from graphfl_jax.runs.session import program_of
from tests.entries import scripted
from tests.federations import renamed, small_config, two_clusters

KEY = jax.random.key(3)
METHODS = [name.replace("_", "-") for name in ALGORITHMS]
# Every algorithm as it is, and what can be combined with any of them.
ROWS = {name: (name, {}) for name in METHODS} | {
    "fine-tuned": ("fedavg", {"tuning__part": "whole", "tuning__steps": 3}),
    "head fine-tuned": ("fedavg", {"tuning__part": "head", "tuning__epochs": 2}),
    "generated residuals": ("panacea-mlp", {"algorithm__output": "residual"}),
    "generated head": ("pfedhn", {"algorithm__output": "head"}),
    "generated at low rank": ("panacea-mlp", {"algorithm__output": "lora"}),
    "generated from classes": ("fedrod", {"algorithm__fedrod_head": "hyper"}),
    # Plain SGD, as FedAvg has: with momentum, FedAvg does not learn this in 40 steps either.
    "flha-ghn": ("flha-ghn", {"client_optimizer": "sgd"}),
    "shared by types": ("flha-ghn-table", {"client_optimizer": "sgd"}),
}
# One row of each kind of server and of memory, for laws that the program keeps for all methods.
FEW = ["fedavg", "ditto", "panacea", "sfl"]
# Rows whose servers carry more than models from round to round, such as an optimiser's state.
REMEMBERING = ["pfedhn", "fedadam", "scaffold"]
# In addition, one row of each kind of local training.
KINDS = [*FEW, "perfedavg", "pfedme", "scaffold", "fedrep", "head fine-tuned"]
# What a round splits over devices or repeats over runs is the same for all generated outputs,
# and for methods that differ from another one only in the server's arithmetic or at P.
ALIKE = ("fedadam", "fedyogi", "heurfedamp", "knnper")
ROUNDS = [*(method for method in METHODS if method not in ALIKE), "head fine-tuned"]
# Enough local steps that every row learns; rates are traced and set by the tests.
STEPS = 40


def some(names, quick):
    """Parameters of a test; those that are not in `quick` are slow."""
    return [
        pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names
    ]


def rows(names=ROWS, quick=ROWS):
    """Parameters of a test over rows, each of which one worker runs."""
    groups = [pytest.mark.xdist_group(f"row {name}") for name in names]
    return [
        pytest.param(*row.values, marks=[*row.marks, group])
        for row, group in zip(some(names, quick), groups, strict=True)
    ]


SLOW = ("generated from classes", "shared by types")  # other forms of methods with a row


@pytest.fixture(params=rows(quick=[row for row in ROWS if row not in SLOW]))
def name(request):
    return request.param


def federation(padding=5, filler=0.0):
    return two_clusters(padding=padding, filler=filler)


@functools.cache
def parts(name, **changes):
    """Experiment, program and traced hyperparameters of a row."""
    method, own = ROWS[name]
    config = small_config(method, local_steps=STEPS, **own, **changes)
    experiment = build_experiment(config, federation())
    return experiment, program_of(experiment, config), floats(experiment.hparams)


def floats(hparams, **changed):
    return {name: np.float32(changed.get(name, value)) for name, value in hparams.items()}


def fast(experiment):
    """A learning rate with which every row learns; momentum multiplies it."""
    return 0.3 * (1 - experiment.hparams.get("client_momentum", 0.0))


def play(name, rounds, key=KEY, data=None, **rates):
    """State, log and scores after some rounds."""
    experiment, program, hparams = parts(name)
    data, hparams = data or experiment.federation.data, floats(hparams, **rates)
    state = program.start(key, hparams, data)
    state, log = program.advance(state, key, hparams, data, np.int32(rounds))
    return state, log, program.evaluate(state, key, hparams, data)[0]


def assert_equal(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if tolerance:
            np.testing.assert_allclose(x, y, **tolerance)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("factory", [*ALGORITHMS.values(), finetuned, poison_with, defended])
def test_docstring_has_departures_from_the_paper(factory):
    assert "\nDepartures:" in sys.modules[factory.__module__].__doc__


def test_a_round_keeps_the_shape_of_the_state(name):
    experiment, program, hparams = parts(name)
    data = experiment.federation.data
    before = jax.eval_shape(program.start, KEY, hparams, data)
    after, _ = jax.eval_shape(program.advance, before, KEY, hparams, data, jnp.int32(1))
    assert before == after


def test_all_floats_are_read(name):
    experiment, _, hparams = parts(name)
    assert "client_lr" in hparams
    for missing in hparams:
        with pytest.raises(KeyError):
            experiment.build({k: v for k, v in hparams.items() if k != missing}, 0)


@pytest.mark.parametrize(
    "name",
    rows(
        ["fedavg", "head fine-tuned", "perfedavg", "pfedme", "scaffold", "fedrep", "fedah"],
        quick=["fedavg", "head fine-tuned", "pfedme", "scaffold", "fedrep", "fedah"],
    ),
)
def test_a_client_computes_the_same_compiled_and_not(name):
    """Once for each kind of local training; the other rows use one of these."""
    method, changes = ROWS[name]
    experiment = build_experiment(small_config(method, local_steps=2, **changes), federation())
    algorithm = experiment.build(floats(experiment.hparams), 0)
    client, data = algorithm.client, experiment.federation.data
    message = algorithm.download(algorithm.server.init(KEY, data.graph), 0, 1)
    memory = client.enroll(message, KEY)
    own = ClientData(Examples(*map(jnp.asarray, tree.take(data.train, 1))))

    def one_client(message, memory):
        memory, upload, metrics = client.local(message, memory, own, KEY)
        if client.personalize is None:
            return memory, upload, metrics
        return memory, upload, metrics, client.personalize(message, memory, own, KEY)

    compiled = jax.jit(one_client)(message, memory)
    with jax.disable_jit():
        assert_equal(one_client(message, memory), compiled, rtol=2e-4, atol=1e-5)


def test_neither_rounds_nor_floats_recompile(name):
    experiment, program, hparams = parts(name)
    for scale, rounds in ((1.0, 1), (0.5, 2), (0.25, 3)):
        play(name, rounds, **{k: v * scale for k, v in hparams.items()})
    # The tests of a row share the program, and so count its compilations together.
    assert program.advance._cache_size() == 1


def test_a_run_in_pieces_is_the_whole_run_bit_for_bit(name):
    experiment, program, hparams = parts(name)
    data = experiment.federation.data
    whole, _, scores = play(name, 5)
    state = program.start(KEY, hparams, data)
    for rounds in (2, 1, 2):
        state, _ = program.advance(state, KEY, hparams, data, np.int32(rounds))
        program.evaluate(state, KEY, hparams, data)
    assert_equal(state, whole)
    assert_equal(program.evaluate(state, KEY, hparams, data)[0], scores)


@pytest.mark.parametrize("name", rows(ROUNDS, quick=KINDS))
def test_a_sharded_round_is_the_unsharded_one(name):
    experiment, program, hparams = parts(name)
    data, rates = experiment.federation.data, floats(hparams, client_lr=0.01)
    # Small steps: at larger ones a ReLU that flips turns 1e-7 into 1e-3.
    start = jax.device_get(program.start(KEY, rates, data))
    state, log = sharded(name).advance(start, KEY, rates, data, np.int32(1))
    for ours, alone in zip((state, log), play(name, 1, client_lr=0.01), strict=False):
        assert_equal(jax.device_get(ours), jax.device_get(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", rows(FEW, quick=["panacea"]))
def test_a_sharded_evaluation_is_the_unsharded_one(name):
    """Seven clients, evaluated as many at once as there are devices."""
    experiment, _, hparams = parts(name)
    data, rates = experiment.federation.data, floats(hparams, client_lr=0.01)
    state, _, alone = play(name, 1, client_lr=0.01)
    scores, *_ = sharded(name).evaluate(jax.device_get(state), KEY, rates, data)
    assert_equal(jax.device_get(scores), jax.device_get(alone), rtol=1e-5, atol=1e-6)


@functools.cache
def sharded(name):
    """The program of a row on four devices."""
    experiment, _, _ = parts(name)
    mesh = client_mesh(4)
    assert mesh.size == 4
    return make_program(experiment.build, cohort_size=4, mesh=mesh, clients_per_eval=3)


@pytest.mark.parametrize("name", rows([row for row in ROUNDS if row not in FEW], quick=KINDS))
def test_vmapped_rounds_are_the_looped_ones(name):
    """The other rows are in `test_vmapped_runs_are_the_looped_ones`."""
    experiment, program, hparams = parts(name)
    data = experiment.federation.data
    keys = jax.random.split(jax.random.key(5), 2)
    rates = [floats(hparams, client_lr=rate) for rate in (0.02, 0.01)]
    starts = [
        jax.device_get(program.start(key, own, data))
        for key, own in zip(keys, rates, strict=True)
    ]
    stacked = stack(starts), keys, stack(rates)
    rounds = jax.jit(jax.vmap(lambda *run: program.advance(*run, data, np.int32(2))))
    vmapped = jax.device_get(rounds(*stacked))
    for i in range(2):
        alone = program.advance(starts[i], keys[i], rates[i], data, np.int32(2))
        assert_equal(jax.tree.map(lambda leaf: leaf[i], vmapped), alone, rtol=1e-4, atol=1e-5)  # noqa: B023


@pytest.mark.parametrize("name", rows(FEW, quick=["ditto", "panacea"]))
def test_vmapped_runs_are_the_looped_ones(name):
    experiment, program, hparams = parts(name)
    data = experiment.federation.data
    keys = jax.random.split(jax.random.key(5), 2)
    rates = [floats(hparams, client_lr=rate) for rate in (0.02, 0.01)]

    def run(key, hparams):
        state = program.start(key, hparams, data)
        state, _ = program.advance(state, key, hparams, data, np.int32(2))
        return program.evaluate(state, key, hparams, data)[0]

    vmapped = jax.device_get(jax.jit(jax.vmap(run))(keys, stack(rates)))
    for i in range(2):
        alone = run(keys[i], rates[i])
        assert_equal(jax.tree.map(lambda leaf: leaf[i], vmapped), alone, atol=1e-5)  # noqa: B023


def stack(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def test_values_of_padding_change_nothing(name):
    filled = federation(filler=1e9).data
    for with_filler, without in zip(play(name, 2, data=filled), play(name, 2), strict=True):
        assert_equal(with_filler, without)


@pytest.mark.parametrize("name", rows(["fedavg", "head fine-tuned", "perfedavg"]))
def test_rows_of_padding_change_nothing(name):
    """Once for each way in which batches are drawn."""
    experiment, program, hparams = parts(name)
    data = federation(padding=0).data
    for with_rows, without in zip(play(name, 2), play(name, 2, data=data), strict=True):
        assert_equal(with_rows, without)
    program.advance.clear_cache()  # the other shape must not count as a compilation


def test_renaming_clients_renames_the_results(name):
    """Clients of the cohort change names among themselves, and so do the others.

    All of a client's examples are equal, so that the draw of batches has no effect.
    """
    whole = federation()
    train = whole.data.train
    equal = [np.repeat(leaf[:, :1], leaf.shape[1], axis=1) for leaf in (train.x, train.y)]
    data = whole.data._replace(train=Examples(*equal, train.count))
    _, program, hparams = parts(name)
    rates = floats(hparams, client_lr=0.02)
    if "embedding_dropout" in rates:  # its draw depends on the number of a client
        rates["embedding_dropout"] = np.float32(0.0)
    cohort = first_cohort(data)
    others = np.setdiff1d(np.arange(7), cohort)
    order = np.arange(7)
    order[cohort], order[others] = np.roll(cohort, 1), np.roll(others, 1)

    def permute(values):
        """Every axis of size seven is an axis of clients."""

        def one(leaf):
            leaf = np.asarray(leaf)
            for axis, size in enumerate(leaf.shape):
                leaf = np.take(leaf, order, axis) if size == 7 else leaf
            return leaf

        return jax.tree.map(one, values)

    start = jax.device_get(program.start(KEY, rates, data))
    other_data = renamed(data, order)
    state, _ = program.advance(start, KEY, rates, data, np.int32(1))
    other, _ = program.advance(permute(start), KEY, rates, other_data, np.int32(1))
    assert_equal(permute(state), other, rtol=1e-4, atol=1e-5)
    scores, *_ = program.evaluate(state, KEY, rates, data)
    other_scores, *_ = program.evaluate(other, KEY, rates, other_data)
    assert_equal(permute(scores), other_scores, atol=1e-5)


def first_cohort(data):
    """The ids of the clients that the program draws for the first round."""
    key_rounds = jax.random.split(KEY, 5)[1]
    key_cohort = jax.random.split(jax.random.fold_in(key_rounds, 0), 4)[0]
    return np.asarray(draw_cohort(key_cohort, data.train.count, 4).ids)


def test_relations_have_an_effect_exactly_where_they_are_needed(name):
    """With other relations, as many of them, the loss is the same bit for bit, or another."""
    experiment, _, hparams = parts(name)
    data = experiment.federation.data
    pairs = [(i, (i + 1) % 7) for i in range(7)] + [(0, 3), (2, 5)]
    other = data._replace(graph=relations.from_edges(7, pairs))
    _, first, _ = play(name, 2)
    _, second, _ = play(name, 2, data=other)
    changed = float(first.metrics["loss"]) != float(second.metrics["loss"])
    assert changed == experiment.build(hparams, 0).needs.relations


def test_a_checkpoint_restores_the_state(name, tmp_path):
    state, _, _ = play(name, 1)
    checkpoint.save(tmp_path, checkpoint.Checkpoint(state, {"round": np.array([1])}, {}))
    assert_equal(checkpoint.latest(tmp_path, state).state, jax.device_get(state))


# Predicts with a file of models and saved test examples, which are all that it is given.
PREDICTING = """
import json, sys
import numpy as np
from graphfl_jax.runs.fleet import load

fleet, test = load("models.safetensors"), np.load("test.npz")
found = {}
for at in ("G", "P"):
    found[at] = []
    for i, client in enumerate(fleet.clients):
        real = slice(test["count"][i])
        label = fleet.predict(client, test["x"][i, real], at=at)["label"]
        hits = np.float32(np.sum(label == test["y"][i, real]))
        found[at].append(float(hits / np.float32(test["count"][i])))
print(json.dumps(found))
"""


def test_saved_models_have_the_scores_of_the_run_in_another_process(name, tmp_path):
    experiment, program, hparams = parts(name)
    data, (method, own) = experiment.federation.data, ROWS[name]
    state, _, scores = play(name, 2)
    groups = models.groups_of(experiment, program.predictors(state, KEY, hparams, data))
    config = small_config(method, local_steps=STEPS, **own)
    facts = models.facts_of(experiment, config, int(state.round))
    models.write(tmp_path / models.FILE, groups, facts)
    np.savez(tmp_path / "test.npz", **data.evals["test"]._asdict())
    ended = scripted(PREDICTING, cwd=tmp_path)
    assert ended.status == 0, ended.stderr
    expected = {at: np.asarray(scores["test"][at]).tolist() for at in ("G", "P")}
    assert json.loads(ended.stdout) == expected
    assert np.mean(expected["P"]) > 0.1


@pytest.mark.parametrize("name", rows(quick=REMEMBERING))
def test_a_resumed_run_ends_like_an_uncut_one(name, tmp_path, monkeypatch):
    """Two rounds in one run, and a round in each of two, leave the same bits."""
    monkeypatch.setattr(single, "mesh_of", lambda experiment: None)
    monkeypatch.setattr(single, "program_of", lambda *arguments: parts(name)[1])
    method, own = ROWS[name]
    every = {"eval_every": 1, "checkpoint_every": 1, "local_steps": STEPS}

    def run(rounds, **folder):
        config = small_config(method, rounds=rounds, **every, **own)
        return single.run(config, federation(), **folder)

    whole = run(2)
    assert int(run(1, out=tmp_path).state.round) == 1
    resumed = run(2, out=tmp_path, resume=True)
    assert_equal(jax.device_get(resumed.state), jax.device_get(whole.state))
    assert_equal(resumed.rows, whole.rows)
    assert resumed.results["scores"] == whole.results["scores"]


def test_it_learns_what_only_personal_models_can(name):
    """A shared model is right half of the time; a round of local training must suffice."""
    experiment, _, _ = parts(name)
    _, log, scores = play(name, 60, client_lr=fast(experiment))
    assert int(log.diverged_at) == -1
    assert float(scores["test"]["L"].mean()) > 0.95


@pytest.mark.parametrize("name", rows(quick=[*FEW, "pfedhn"]))
@pytest.mark.parametrize(
    "graph", ["inductive", pytest.param("transductive", marks=pytest.mark.slow)]
)
def test_new_clients_join_and_train(name, graph):
    """Two of seven: the others' memories stay, and a round of local training suffices."""
    experiment, of_seven, _ = parts(name)
    if graph == "transductive" and not experiment.build(experiment.hparams, 0).needs.relations:
        pytest.skip("the method does not use relations")
    method, own = ROWS[name]
    held_out = hold_out(federation(), fraction=0.3, graph=graph, seed=0)
    config = small_config(method, local_steps=STEPS, **own, new_clients__fraction=0.3)
    experiment = build_experiment(config, held_out)
    program = program_of(experiment, config)
    given = (KEY, floats(experiment.hparams, client_lr=fast(experiment)))
    state = program.start(*given, held_out.data)
    if name in FEW:
        state, _ = program.advance(state, *given, held_out.data, np.int32(1))
    known = jax.device_get(state.clients)
    joined = program.admit(state, *given, held_out.everyone)
    after = program.adapt(joined, *given, held_out.everyone)
    assert jax.eval_shape(lambda: after) == jax.eval_shape(lambda: joined)
    for now in map(jax.device_get, (joined, after)):
        assert_equal(jax.tree.map(lambda leaf: leaf[:5], now.clients), known)
        assert all(len(leaf) == 7 for leaf in jax.tree.leaves(now.clients))
    scores = of_seven.evaluate(after, *given, held_out.everyone)[0]["test"]
    assert float(scores["L"][5:].min()) > 0.9
    assert all(np.isfinite(points).all() for points in scores.values())


def test_divergence_is_reported_with_its_round(name):
    # At 1e38, heads that train alone separate the examples, and then all gradients are 0.
    _, log, _ = play(name, 5, client_lr=np.inf)
    assert 1 <= int(log.diverged_at) <= 5


def test_message_sizes_are_those_of_the_messages(name):
    experiment, program, hparams = parts(name)
    algorithm = experiment.build(hparams, 0)
    data = experiment.federation.data
    state = jax.eval_shape(program.start, KEY, hparams, data)
    down, up = message_bytes(algorithm, state, data)
    sent = jax.eval_shape(lambda server: algorithm.download(server, 0, 0), state.server)
    assert down == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(sent))
    body, head = 4 * (2 * 5 + 5), 4 * (5 * 2 + 2)
    outputs = 4 * (2 * 2 + 2)
    # Nothing, a body, a head, a model, or a model with as many other floats, or a head for each
    # class; means and counts of classes, of features as many as a head, or of outputs.
    sizes = [0, body, head, body + head, 2 * (body + head), body + 3 * head, outputs]
    client = algorithm.client
    if algorithm.averages and client.untrained is use_message and client.deploy != use_model:
        sizes.append(down)  # a trained copy of what generates the model
    assert up in sizes


@pytest.mark.parametrize("name", rows(METHODS))
def test_an_untrained_client_uploads_what_the_method_says(name):
    experiment, _, hparams = parts(name)
    rates = floats(hparams, client_lr=0.0, fedah_eta=0.0)  # all rates of clients' uploads
    method = experiment.build(rates, 0)

    @jax.jit
    def both(state, data):
        message = method.download(state.server, 0, 1)
        memory, train = tree.take((state.clients[0], data.train), 1)
        none = train._replace(count=jnp.zeros_like(train.count))
        return (
            method.client.local(message, memory, ClientData(none, none), KEY)[1],
            method.client.untrained(message, memory),
        )

    assert_equal(*both(play(name, 2)[0], experiment.federation.data))


# ------------------------------------------------------------------------ attacks and defences


@functools.cache
def attacked(method, images=False, **changes):
    """Experiment and data of a small federation with its attackers."""
    config = small_config(method, **changes)
    whole = federation()
    if images:
        own = whole.data.train
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (*own.y.shape, 4, 4, 3)).astype(np.uint8)
        examples = Examples(x, own.y, own.count)
        data = whole.data._replace(train=examples, evals={"test": examples})
        whole = whole._replace(data=data)
    whole = with_attack_order(whole, clients=(), seed=0)
    return build_experiment(config, whole), whole.data


def after_a_round(method, mesh=None, *, ratio=0.0, **changes):
    """The state after the first round of a method with an attack."""
    experiment, data = attacked(method, **changes)
    program = make_program(experiment.build, cohort_size=4, mesh=mesh, poison=experiment.poison)
    hparams = floats(experiment.hparams, attack_ratio=ratio)
    return program.advance(first_state(method), KEY, hparams, data, np.int32(1))[0]


@functools.cache
def first_state(method):
    """It does not depend on attackers."""
    experiment, program, hparams = parts(method)
    return jax.device_get(program.start(KEY, hparams, experiment.federation.data))


def untrained_upload(method, server, i):
    """The upload of a client that has just joined."""
    message = method.download(server, 0, i)
    return method.client.untrained(message, method.client.enroll(message, KEY))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_ratio_of_zero_is_no_attack_bit_for_bit(attack):
    experiment, data = attacked("fedavg", attack == "backdoor", attack__name=attack)
    assert experiment.hparams["attack_ratio"] == 0.0
    if attack not in DATA_ATTACKS:
        cohort = Cohort(jnp.arange(7), jnp.arange(1.0, 8.0))
        before, after = np.random.default_rng(0).normal(size=(2, 7, 9)).astype(np.float32)

        @jax.jit
        def uploads(hparams, before, after):
            poison, rank = experiment.poison(hparams).uploads, jnp.asarray(data.attack_rank)
            # After 60 rounds, all attacks are active.
            return poison((cohort,), (before,), (after,), rank, 60, KEY)[0]

        same, other = (
            uploads(floats(experiment.hparams, attack_ratio=ratio), before, after)
            for ratio in (0.0, 0.5)
        )
        np.testing.assert_array_equal(same, after)
        assert (np.asarray(other) != after).any(axis=1).sum() == 4  # round(3.5) is even
        return
    same, other = (
        experiment.poison(floats(experiment.hparams, attack_ratio=ratio)).data(data, KEY)
        for ratio in (0.0, 0.5)
    )
    assert_equal(same.train, data.train)
    assert_equal(same.evals["test"], data.evals["test"])
    assert not np.array_equal(other.train.y, data.train.y)


@pytest.mark.parametrize("method, attack", [("panacea", "poisoning"), ("fedavg", "label_flip")])
def test_a_round_without_attackers_is_an_honest_one_bit_for_bit(method, attack):
    assert_equal(after_a_round(method, attack__name=attack), after_a_round(method))


def test_a_sharded_round_with_attackers_is_the_unsharded_one():
    alone, split = (
        after_a_round("pfedhn", mesh, attack__name="alie", ratio=0.5)
        for mesh in (None, client_mesh(4))
    )
    assert_equal(jax.device_get(split), jax.device_get(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", some(METHODS, FEW))
def test_poison_of_lambda_minus_one_is_honest_bit_for_bit(method):
    """With another lambda it is not, unless nothing is sent."""
    experiment, data = attacked(method, attack__name="poisoning")
    cohort, rank = Cohort(jnp.arange(7), jnp.ones(7)), jnp.asarray(data.attack_rank)
    algorithm = experiment.build(experiment.hparams, 0)

    @jax.jit
    def untrained():
        server = algorithm.server.init(KEY, data.graph)
        return jax.vmap(lambda i: untrained_upload(algorithm, server, i))(cohort.ids)

    before, rng = untrained(), np.random.default_rng(0)
    uploads = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(x.dtype), before)

    @jax.jit
    def poison(hparams, before, uploads):
        change = experiment.poison(hparams).uploads
        return change((cohort,), (before,), (uploads,), rank, 0, KEY)[0]

    honest, recovered, poisoned = (
        poison(floats(experiment.hparams, **own), before, uploads)
        for own in ({}, {"attack_ratio": 0.5, "attack_lambda": -1.0}, {"attack_ratio": 0.5})
    )
    assert_equal(honest, uploads)
    assert_equal(recovered, uploads)
    leaves = zip(*map(jax.tree.leaves, (poisoned, uploads)), strict=True)
    assert all(np.array_equal(a, b) for a, b in leaves) == (not jax.tree.leaves(uploads))


@pytest.mark.parametrize("method", ["fedavg", "pfedhn", "scaffold"])
@pytest.mark.parametrize("defence", DEFENCES)
def test_a_defence_keeps_the_shape_of_the_state_or_is_refused(defence, method):
    changes = {"defence__name": defence, "attack__name": "sign_flip"}
    if defence in ("trimmed_mean", "krum", "multi_krum"):
        changes["defence__attackers"] = 0
    if method == "pfedhn" and defence in CENTRES:
        with pytest.raises(ValueError, match=f"defence.name={defence!r} "):
            attacked(method, **changes)
        return
    experiment, data = attacked(method, **changes)
    program = make_program(experiment.build, cohort_size=4, poison=experiment.poison)
    hparams = floats(experiment.hparams)
    before = jax.eval_shape(program.start, KEY, hparams, data)
    after, _ = jax.eval_shape(program.advance, before, KEY, hparams, data, jnp.int32(1))
    assert before == after
