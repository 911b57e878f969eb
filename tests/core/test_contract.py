"""What every algorithm promises. All rows are checked by the same tests, none by its name.

The checks are those of `graphfl_jax.testing`, which users make of their own methods. A row
compiles its program once, and its tests share it: they differ in the values of data, rates and
keys, not in shapes.
"""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.algorithms.tuning import finetune
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.configs import change, fashion_mnist
from graphfl_jax.configs.base import needing
from graphfl_jax.configs.values import complete
from graphfl_jax.core import Cohort
from graphfl_jax.devices import client_mesh
from graphfl_jax.examples import Examples
from graphfl_jax.rounds import messages_per_client
from graphfl_jax.runs import single
from graphfl_jax.runs.session import program_of
from graphfl_jax.testing import checks
from graphfl_jax.testing.subject import (
    LeftOut,
    Subject,
    assert_equal,
    federation,
    fixed_key,
    floats,
    stack,
)
from graphfl_jax.wire.attacks import ATTACKS, DATA_ATTACKS, poison_with
from graphfl_jax.wire.defences import CENTRES, DEFENCES, with_defence
from graphfl_jax.wire.privacy import PRIVACIES
from tests.commands import scripted

METHODS = [name.replace("_", "-") for name in ALGORITHMS]
FACTORIES = [method.factory for method in ALGORITHMS.values()]
# Every algorithm as it is, and what can be combined with any of them.
ROWS = {name: (name, {}) for name in METHODS} | {
    "fine-tuned": ("fedavg", {"tuning.part": "whole", "tuning.steps": 3}),
    "in epochs": ("fedavg", {"local_epochs": 2}),
    "head fine-tuned": ("fedavg", {"tuning.part": "head", "tuning.epochs": 2}),
    "generated residuals": ("panacea-mlp", {"algorithm.output": "residual"}),
    "generated head": (
        "pfedhn",
        {"algorithm.output": "head", "hparams.server_lr": 0.01},
    ),
    "generated at low rank": ("panacea-mlp", {"algorithm.output": "lora"}),
    "generated from classes": ("fedrod", {"algorithm.fedrod_head": "hyper"}),
    # Their servers take a step for each client, with momentum.
    "pfedhn": ("pfedhn", {"hparams.server_lr": 0.01}),
    "pfedhn-het": ("pfedhn-het", {"hparams.server_lr": 0.01}),
    "fedbuff": ("fedbuff", {"hparams.server_lr": 1.0}),
    # Plain SGD, as FedAvg has: with momentum, FedAvg does not learn this in 40 steps either.
    "flha-ghn": ("flha-ghn", {"client_optimizer": "sgd"}),
    "shared by types": ("flha-ghn-table", {"client_optimizer": "sgd"}),
    "panacea-flha": (
        "panacea-flha",
        {"client_optimizer": "sgd", "hparams.server_lr": 1.0},
    ),
    "attending": ("panacea", {"algorithm.layer": "attention"}),
    # Its server remembers all clients.
    "guarded": ("panacea", {"defence.name": "monotone"}),
}
# One row of each kind of server and of memory, for laws that the program keeps for all methods.
FEW = ["fedavg", "ditto", "panacea", "sfl"]
# Rows whose servers carry more than models from round to round, such as an optimiser's state.
REMEMBERING = ["pfedhn", "fedadam", "scaffold", "guarded"]
# In addition, one row of each kind of local training.
KINDS = [*FEW, "in epochs", "perfedavg", "pfedme", "scaffold", "fedrep", "head fine-tuned"]
# The rows that a quick test checks. Most kinds of local training are slow rows.
QUICK = [*FEW, "scaffold", "head fine-tuned", "pfedgat", "flha-ghn"]
# Rows that differ from another row in one part, which has tests of its own.
FORMS = ["fedyogi", "heurfedamp", "fine-tuned", "generated head", "generated at low rank"]
FORMS += ["generated from classes", "shared by types", "guarded", "attending"]
SLOW = [row for row in ROWS if row not in FORMS]
assert {*FEW, *REMEMBERING, *QUICK, *FORMS} <= ROWS.keys()
# The rows that use relations.
RELATED = [row for row, (method, _) in ROWS.items() if method in needing("relations")]
# What a round splits over devices or repeats over runs is the same for all generated outputs,
# and for methods that differ from another one only in the server's arithmetic or at P.
ALIKE = ("fedadam", "fedyogi", "heurfedamp", "knnper")
ROUNDS = [*(method for method in METHODS if method not in ALIKE), "head fine-tuned", "guarded"]
ROUNDS += ["attending"]


def rows(names, quick, slow=ROWS):
    """Parameters of a test over rows, each of which one worker runs.

    Rows that are not in `quick` are slow; those that are not in `slow` either are left to the
    tests before a release.
    """

    marks = {name: pytest.mark.slow if name in slow else pytest.mark.release for name in names}
    return [
        pytest.param(
            name,
            marks=[
                pytest.mark.xdist_group(f"row {name}"),
                *[marks[name]] * (name not in quick),
            ],
        )
        for name in names
    ]


@functools.cache
def subject_of(name):
    return Subject(*ROWS[name])


@pytest.fixture(params=rows(ROWS, QUICK, SLOW))
def subject(request):
    return subject_of(request.param)


def chosen(names, quick, slow=ROWS):
    """The subjects of some rows, for tests that need not check all."""
    return pytest.mark.parametrize("subject", rows(names, quick, slow), indirect=True)


@pytest.mark.parametrize("factory", [*FACTORIES, finetune, poison_with, with_defence])
def test_docstring_has_departures_from_the_paper(factory):
    assert "\nDepartures:" in sys.modules[factory.__module__].__doc__


def test_a_round_keeps_the_shape_of_the_state(subject):
    checks.a_round_keeps_the_shape_of_the_state(subject)


def test_all_floats_are_read(subject):
    assert "client_lr" in subject.hparams
    checks.all_floats_are_read(subject)


@chosen(
    ["fedavg", "head fine-tuned", "perfedavg", "pfedme", "scaffold", "fedrep", "fedah", "apfl"],
    [],
    ["fedavg"],
)
def test_a_client_computes_the_same_compiled_and_not(subject):
    """Once for each kind of local training; the other rows use one of these."""
    checks.a_client_computes_the_same_compiled_and_not(subject)


def test_neither_rounds_nor_floats_recompile(subject):
    checks.neither_rounds_nor_floats_recompile(subject)


def test_a_run_in_pieces_is_the_whole_run_bit_for_bit(subject):
    checks.a_run_in_pieces_is_the_whole_run_bit_for_bit(subject)


@chosen(KINDS, ["fedavg"], ["panacea"])
def test_a_cohort_of_one_client_plays_rounds(subject):
    checks.a_cohort_of_one_client_plays_rounds(subject)


@chosen(ROUNDS, ["fedavg", "panacea"], FEW)
def test_a_sharded_round_is_the_unsharded_one(subject):
    checks.a_sharded_round_is_the_unsharded_one(subject)


@chosen(FEW, ["panacea"], [])
def test_a_sharded_evaluation_is_the_unsharded_one(subject):
    checks.a_sharded_evaluation_is_the_unsharded_one(subject)


@chosen(ROWS, ["ditto"], ["fedavg"])
def test_clients_on_the_host_change_no_bit(subject):
    try:
        checks.clients_on_the_host_change_no_bit(subject)
    except LeftOut as why:
        assert "set --config.data.storage=device" in str(why)


@chosen([row for row in ROUNDS if row not in FEW], ["scaffold"], [])
def test_vmapped_rounds_are_the_looped_ones(subject):
    """The other rows are in `test_vmapped_runs_are_the_looped_ones`, which compiles longer."""
    program, data = subject.program, subject.data
    keys = jax.random.split(jax.random.key(5), 2)
    rates = [floats(subject.hparams, client_lr=rate) for rate in (0.02, 0.01)]
    starts = [
        jax.device_get(program.start(key, hparams, data))
        for key, hparams in zip(keys, rates, strict=True)
    ]
    play = jax.jit(jax.vmap(lambda *run: program.advance(*run, data, np.int32(2))))
    vmapped = jax.device_get(play(stack(starts), keys, stack(rates)))
    for i in range(2):
        alone = program.advance(starts[i], keys[i], rates[i], data, np.int32(2))
        assert_equal(jax.tree.map(lambda leaf: leaf[i], vmapped), alone, rtol=1e-4, atol=1e-5)  # noqa: B023


@chosen(FEW, [], ["panacea"])
def test_vmapped_runs_are_the_looped_ones(subject):
    checks.vmapped_runs_are_the_looped_ones(subject)


def test_values_of_padding_change_nothing(subject):
    checks.values_of_padding_change_nothing(subject)


@chosen(["fedavg", "head fine-tuned", "perfedavg"], ["fedavg"], [])
def test_rows_of_padding_change_nothing(subject):
    """Once for each way in which batches are drawn."""
    checks.rows_of_padding_change_nothing(subject)


# In random pairs, who is with whom depends on the places in the cohort.
@chosen([row for row in ROWS if row != "gossip-pairs"], QUICK, SLOW)
def test_renaming_clients_renames_the_results(subject):
    checks.renaming_clients_renames_the_results(subject)


def test_relations_have_an_effect_exactly_where_they_are_needed(subject):
    checks.relations_have_an_effect_exactly_where_they_are_needed(subject)


def test_the_registry_states_the_needs_of_the_algorithm(subject):
    stated = ALGORITHMS[subject.config().algorithm.name].needs
    assert subject.experiment.build(subject.hparams, 0).needs == stated


def test_a_checkpoint_restores_the_state(subject, tmp_path):
    checks.a_checkpoint_restores_the_state(subject, tmp_path)


# All that it is given is a folder with models and test examples.
PREDICTING = """
import json, sys
from pathlib import Path
from graphfl_jax.testing.checks import scores_of_models

print(json.dumps(scores_of_models(Path(sys.argv[1]))))
"""


def scores_in_another_process(folder):
    ended = scripted(PREDICTING, folder, cwd=folder)
    assert ended.status == 0, ended.stderr
    return json.loads(ended.stdout)


@chosen(ROWS, FEW, ["pfedgat", "flha-ghn"])
def test_saved_models_have_the_scores_of_the_run_in_another_process(subject, tmp_path):
    check = checks.saved_models_have_the_scores_of_the_run
    assert check(subject, tmp_path, scores_in_another_process) > 0.1


@chosen(ROWS, ["scaffold"], [*FEW, *REMEMBERING])
def test_a_resumed_run_ends_like_an_uncut_one(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(single, "mesh_of", lambda experiment: None)
    monkeypatch.setattr(single, "program_of", lambda *given, **models: subject.program)
    checks.a_resumed_run_ends_like_an_uncut_one(subject, tmp_path)


def test_it_learns_what_only_personal_models_can(subject):
    checks.it_learns_what_only_personal_models_can(subject)


def new_clients_join_and_train(subject, graph):
    trains = any(subject is subject_of(name) for name in FEW)
    checks.new_clients_join_and_train(subject, graph, rounds=int(trains))


@chosen(ROWS, ["panacea"], ["fedavg"])
def test_new_clients_join_and_train(subject):
    new_clients_join_and_train(subject, "inductive")


@chosen(RELATED, [], ["sfl"])
def test_new_clients_with_relations_join_before_they_train(subject):
    new_clients_join_and_train(subject, "transductive")


def test_divergence_is_reported_with_its_round(subject):
    checks.divergence_is_reported_with_its_round(subject)


def test_message_sizes_are_those_of_the_messages(subject):
    down, up = checks.message_sizes_are_those_of_the_messages(subject)
    body, head = 4 * (2 * 5 + 5), 4 * (5 * 2 + 2)
    outputs = 4 * (2 * 2 + 2)
    # Nothing, a body, a head, a model, or a model with a number, one for each other client,
    # as many other floats, or a head for each class; means and counts of classes, of features
    # as many as a head, or of outputs; a model with such means and with variances of classes; a
    # model with mean features, or with two outputs for each of 100 inputs; a body and a number.
    model = body + head
    sizes = [0, body, head, model, model + 4, model + 4 * 6, 2 * model, body + 3 * head]
    means = 4 * (2 * 5 + 2)
    sizes += [outputs, model + 2 * means - 4, model + 4 * 5, model + 4 * 2 * 100, body + 4]
    algorithm = subject.experiment.build(subject.hparams, 0)
    if algorithm.needs.layers:
        sizes.append(down)  # a trained copy of what generates the model
    assert round(up / messages_per_client(algorithm, subject.data), 3) in sizes


@chosen(METHODS, FEW, KINDS)
def test_an_untrained_client_uploads_what_the_method_says(subject):
    checks.an_untrained_client_uploads_what_the_method_says(subject)


# ------------------------------------------------------------------------ attacks and defences


def with_images():
    """The federation with images, for triggers."""
    whole = federation()
    own = whole.data.train
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (*own.y.shape, 4, 4, 3)).astype(np.uint8)
    examples = Examples(x, own.y, own.count)
    data = whole.data._replace(train=examples, evals={"test": examples})
    return whole._replace(data=data)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_ratio_of_zero_is_no_attack_bit_for_bit(attack):
    whole = with_images() if attack == "backdoor" else None
    experiment, _ = subject_of("fedavg").with_attackers(whole, attack__name=attack)
    data = experiment.federation.data
    assert experiment.hparams["attack_ratio"] == 0.0
    if attack not in DATA_ATTACKS:
        cohort = Cohort(jnp.arange(7), jnp.arange(1.0, 8.0))
        before, after = np.random.default_rng(0).normal(size=(2, 7, 9)).astype(np.float32)

        @jax.jit
        def uploads(hparams, before, after):
            poison, rank = experiment.poison(hparams).uploads, jnp.asarray(data.attack_rank)
            # After 60 rounds, all attacks are active.
            return poison((cohort,), (before,), (after,), rank, 60, fixed_key())[0]

        same, other = (
            uploads(floats(experiment.hparams, attack_ratio=ratio), before, after)
            for ratio in (0.0, 0.5)
        )
        np.testing.assert_array_equal(same, after)
        assert (np.asarray(other) != after).any(axis=1).sum() == 4  # round(3.5) is even
        return
    same, other = (
        experiment.poison(floats(experiment.hparams, attack_ratio=ratio)).data(
            data, fixed_key()
        )
        for ratio in (0.0, 0.5)
    )
    assert_equal(same.train, data.train)
    assert_equal(same.evals["test"], data.evals["test"])
    assert not np.array_equal(other.train.y, data.train.y)


@pytest.mark.parametrize(
    "method, attack",
    [
        pytest.param("panacea", "poisoning", marks=pytest.mark.release),
        ("fedavg", "label_flip"),
    ],
)
def test_a_round_without_attackers_is_an_honest_one_bit_for_bit(method, attack):
    checks.a_round_without_attackers_is_an_honest_one_bit_for_bit(subject_of(method), attack)


@pytest.mark.release
def test_a_sharded_round_with_attackers_is_the_unsharded_one():
    alone, split = (
        subject_of("pfedhn").after_a_round(mesh, attack__name="alie", ratio=0.5)
        for mesh in (None, client_mesh(4))
    )
    assert_equal(jax.device_get(split), jax.device_get(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", rows(METHODS, ["fedavg"], FEW))
def test_poison_of_lambda_minus_one_is_honest_bit_for_bit(method):
    checks.poison_of_lambda_minus_one_is_honest_bit_for_bit(subject_of(method))


SAMPLED = [method for method in METHODS if method != "fedbuff"]  # which draws its cohorts


@pytest.mark.parametrize("method", rows(SAMPLED, ["fedavg", "sfl"], METHODS))
def test_absent_clients_do_not_count(method):
    checks.absent_clients_do_not_count(subject_of(method))


@pytest.mark.parametrize("method", rows(METHODS, ["fedavg"], FEW))
def test_compression_without_loss_changes_nothing(method):
    try:
        checks.compression_without_loss_changes_nothing(subject_of(method))
    except LeftOut:
        assert method == "local"


@pytest.mark.parametrize("method", rows(SAMPLED, ["fedavg"], METHODS))
def test_a_distant_deadline_changes_nothing(method):
    # Where a number of steps is no constant, the compiler divides in another way.
    rtol = {"scaffold": 1e-6, "fedyogi": 1e-6}
    checks.a_distant_deadline_changes_nothing(subject_of(method), rtol.get(method, 0.0))


@pytest.mark.parametrize("method", rows(METHODS, FEW, METHODS))
def test_a_veto_fits_every_method(method):
    """A round and an evaluation keep their shapes."""
    checks.a_veto_fits(Subject(method, {**ROWS[method][1], "defence.veto": True}))


@functools.cache
def images():
    """Simulated images of ten clients, with more examples than a part of a batch."""
    return load_federation(images_config("fedavg"))


def images_config(method):
    settings = {"data.source": "simulated", "data.cap": 50, "data.val_fraction": 0.2}
    return change(fashion_mnist.get_config(method), settings | {"local_steps": 2})


@pytest.mark.parametrize("method", rows(METHODS, ["fedavg", "feddbe"], METHODS))
def test_a_round_computes_gradients_in_parts_of_a_batch(method):
    """Image networks cut a batch of 64 in two on a CPU, see `MicroBatched`."""
    settings = {"cohort_size": 5} if method == "fedbuff" else {}
    config = complete(change(images_config(method), settings))
    experiment = build_experiment(config, images())
    program = program_of(experiment, config)
    inputs = (fixed_key(), floats(experiment.hparams), experiment.federation.data)
    before = jax.eval_shape(program.start, *inputs)
    after, _ = jax.eval_shape(program.advance, before, *inputs, jnp.int32(1))
    assert before == after


AVERAGING = (
    "fedavg",
    "fedprox",
    "ditto",
    "fedrep",
    "fedper",
    "fedavgm",
    "scaffold",
    "perfedavg",
    "fedbabu",
    "apfl",
    "fedbn",
    "moon",
    "feddyn",
)


@pytest.mark.parametrize("privacy", PRIVACIES)
@pytest.mark.parametrize("method", rows(METHODS, ["fedavg", "panacea"], METHODS))
def test_privacy_keeps_the_shape_of_the_state_or_is_refused(method, privacy):
    try:
        checks.privacy_keeps_the_shape_of_the_state(subject_of(method), privacy)
    except LeftOut:
        assert privacy == "central" or method not in (*AVERAGING, "panacea", "sfl", "pfedhn")
        assert method not in AVERAGING


@pytest.mark.parametrize("method", ["fedavg", "pfedhn", "scaffold"])
@pytest.mark.parametrize("defence", DEFENCES)
def test_a_defence_keeps_the_shape_of_the_state_or_is_refused(defence, method):
    if method == "pfedhn" and defence in CENTRES:
        with pytest.raises(LeftOut, match=f"defence.name={defence!r} "):
            checks.a_defence_keeps_the_shape_of_the_state(subject_of(method), defence)
        return
    checks.a_defence_keeps_the_shape_of_the_state(subject_of(method), defence)


@pytest.mark.parametrize("method", rows(METHODS, [], METHODS))
def test_compression_attack_and_defence_keep_the_shape_of_the_state(method):
    try:
        checks.a_defence_keeps_the_shape_of_the_state(subject_of(method))
    except LeftOut:
        assert method == "local"
