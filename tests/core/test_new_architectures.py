"""New clients in federations of several architectures, and of one that nobody trained."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax import tree
from graphfl_jax.algorithms.distillation import distillation
from graphfl_jax.algorithms.feddistill import feddistill
from graphfl_jax.algorithms.fedgh import fedgh
from graphfl_jax.algorithms.fedproto import fedproto
from graphfl_jax.algorithms.flha_ghn import flha_ghn
from graphfl_jax.algorithms.fml import fml
from graphfl_jax.algorithms.heterofl import heterofl
from graphfl_jax.algorithms.hyper import ServerFit
from graphfl_jax.algorithms.lgfedavg import lgfedavg
from graphfl_jax.algorithms.local import local
from graphfl_jax.algorithms.panacea_flha import panacea_flha
from graphfl_jax.algorithms.pfedhn_het import pfedhn_het
from graphfl_jax.build import Experiment
from graphfl_jax.commands.common.result_tables import new_architectures_table
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.devices import client_mesh
from graphfl_jax.hypernets.architecture_ghn import architecture_ghn
from graphfl_jax.hypernets.layer_types import type_table
from graphfl_jax.hypernets.relation_gnn import relation_encoder
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.mlp import mlp
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group, Poison, group_clients
from graphfl_jax.runs import debug, single
from graphfl_jax.runs.folder import RunFolder
from graphfl_jax.runs.results import new_client_scores
from graphfl_jax.runs.single import run_experiment
from graphfl_jax.testing.subject import assert_equal
from graphfl_jax.trainers import sgd_trainer
from tests.federations import small_config, two_clusters

KEY = jax.random.key(6)
FEDERATION = hold_out(two_clusters(), fraction=0.3, seed=0)  # five clients, and two new ones
DATA, EVERYONE = FEDERATION.data, FEDERATION.everyone
# The last client is the only one of its architecture.
NAMES = ("a", "b", "a", "b", "a", "a", "c")
GROUPS, JOINED = group_clients(NAMES, 5, 4)
A, B, C = MODELS = tuple(
    mlp(inputs=(2,), hidden=hidden, outputs=2, task=CLASSIFICATION)
    for hidden in ((6,), (6, 6), (6, 6, 6))
)
HPARAMS = {"client_lr": jnp.float32(0.3)}


def trainer(hparams):
    return sgd_trainer(optax.sgd(hparams["client_lr"]), steps=5, batch_size=6)


def alone(hparams, played):
    return local((A, B), trainer(hparams), unseen=(C,))


@functools.cache
def program_of(build=alone, mesh=None):
    return Program(build, groups=GROUPS, joined=JOINED, mesh=mesh, eval_batch_size=5).compiled()


def join(program, key=KEY, hparams=HPARAMS, rounds=1):
    """The states when new clients have joined and after their rounds, and the last scores."""
    given = (key, hparams)
    states = [program.admit(program.start(*given, DATA), *given, EVERYONE)]
    for _ in range(rounds):
        states.append(program.adapt(states[-1], *given, EVERYONE))
    return states, program.evaluate(states[-1], *given, EVERYONE, joined=True).scores


@functools.cache
def joined():
    return jax.device_get(join(program_of()))


# -------------------------------------------------------------------------------------- groups


def listed(groups):
    return [
        (group.name, group.cohort_size, None if group.ids is None else group.ids.tolist())
        for group in groups
    ]


def test_groups_have_the_clients_that_train_and_then_all():
    assert listed(GROUPS) == [("a", 2, [0, 2, 4]), ("b", 2, [1, 3])]
    assert listed(JOINED) == [("a", 1, [0, 2, 4, 5]), ("b", 0, [1, 3]), ("c", 1, [6])]


def test_a_single_group_has_all_clients():
    assert listed(group_clients(["a"] * 5, 3, 2)[0]) == listed(
        group_clients(["a"] * 3, 3, 2)[0]
    )
    assert [listed(own) for own in group_clients(["a"] * 5, 3, 2)] == [
        [("", 2, None)],
        [("", 2, None)],
    ]
    assert [listed(own) for own in group_clients(["a"] * 3, 3, 2)] == [[("", 2, None)], []]
    groups, everyone = group_clients(["a", "a", "b"], 2, 1)
    assert listed(groups) == [("a", 1, None)]
    assert listed(everyone) == [("a", 0, [0, 1]), ("b", 1, [2])]


# ------------------------------------------------------------------------------------- methods

OF_CLUSTERS = {"inputs": (2,), "classes": 2}
TRAIN = trainer({"client_lr": 0.3})
WIDTHS = tuple(
    mlp(inputs=(2,), hidden=hidden, outputs=2, task=CLASSIFICATION)
    for hidden in ((6, 5), (3, 4), (2, 5))
)
FIT = ServerFit(optax.sgd(0.1), 1, optax.sgd(0.1), "neighbours")
METHODS = {
    "local": lambda models, unseen: local(models, TRAIN, unseen=unseen),
    "fedproto": lambda models, unseen: fedproto(models, TRAIN, **OF_CLUSTERS, unseen=unseen),
    "feddistill": lambda models, unseen: feddistill(
        models, TRAIN, num_clients=5, classes=2, unseen=unseen
    ),
    "fml": lambda models, unseen: fml(models, TRAIN, unseen=unseen),
    "fedgh": lambda models, unseen: fedgh(
        models, TRAIN, **OF_CLUSTERS, server_optimizer=optax.sgd(0.1), unseen=unseen
    ),
    "lgfedavg": lambda models, unseen: lgfedavg(models, TRAIN, unseen=unseen),
    "distillation": lambda models, unseen: distillation(models, TRAIN, unseen=unseen),
    "heterofl": lambda models, unseen: heterofl(WIDTHS[:2], TRAIN, unseen=WIDTHS[2:]),
    "flha_ghn": lambda models, unseen: flha_ghn(
        models,
        TRAIN,
        flha_generator=type_table(models=models),
        flha_head_optimizer=optax.sgd(0.1),
        new_client_optimizer=optax.sgd(0.1),
        batch_size=6,
        local_steps=2,
        unseen=unseen,
    ),
    "panacea_flha": lambda models, unseen: panacea_flha(
        models,
        TRAIN,
        decoder=architecture_ghn(models=models, ghn_depth=1, ghn_width=3, ghn_hidden=2),
        encoder=relation_encoder(width=3, depth=2),
        fit=FIT,
        embedding_dim=2,
        flha_head_optimizer=optax.sgd(0.1),
        new_client_optimizer=optax.sgd(0.1),
        batch_size=6,
        local_steps=2,
        unseen=unseen,
    ),
    "pfedhn_het": lambda models, unseen: pfedhn_het(
        (*models, *unseen), TRAIN, embedding_dim=3, width=2, fit=FIT
    ),
}


@pytest.mark.release
@pytest.mark.parametrize("method", METHODS)
def test_new_clients_join_with_every_method_of_several_architectures(method):
    """Traced only: a round of theirs keeps the shapes, and all clients have scores.

    With pFedHN, the third architecture has a client that trains.
    """
    groups, everyone, algorithm = GROUPS, JOINED, METHODS[method]((A, B), (C,))
    if method == "pfedhn_het":
        groups, everyone = group_clients(("a", "b", "c", "b", "a", "a", "c"), 5, 4)
    program = Program(
        lambda hparams, played: algorithm, groups=groups, joined=everyone
    ).compiled()
    before = jax.eval_shape(program.start, KEY, {}, DATA)
    trained, _ = jax.eval_shape(program.advance, before, KEY, {}, DATA, jnp.int32(1))
    assert trained == before
    admitted = jax.eval_shape(program.admit, trained, KEY, {}, EVERYONE)
    assert jax.eval_shape(program.adapt, admitted, KEY, {}, EVERYONE) == admitted
    for own, group in zip(admitted.clients, everyone, strict=True):
        assert all(len(leaf) == len(group.ids) for leaf in jax.tree.leaves(own))
    scores = jax.eval_shape(
        functools.partial(program.evaluate, joined=True), admitted, KEY, {}, EVERYONE
    ).scores
    assert {own.shape for own in scores["test"].values()} == {(2,)}


@pytest.mark.slow
def test_only_the_new_clients_train():
    """One of an architecture that others have, one of its own, and none of the second."""
    (first, last), scores = joined()
    start = jax.device_get(program_of().start(KEY, HPARAMS, DATA))
    for state in (first, last):
        known = tuple(tree.take(own, slice(n)) for own, n in zip(state.clients, (3, 2)))  # noqa: B905
        assert_equal(known, start.clients)
    for g, place in ((0, 3), (2, 0)):
        before, after = (tree.take(state.clients[g], place) for state in (first, last))
        assert float(tree.sq_dist(before, after)) > 1e-3
        i = (5, 6)[g // 2]
        examples = tree.take(EVERYONE.evals["test"], i)
        predicted = np.argmax(MODELS[g].apply(after, examples.x), axis=-1)
        right = (predicted == examples.y)[: examples.count]
        np.testing.assert_allclose(scores["test"]["G"][i - 5], right.mean(), rtol=1e-6)


@pytest.mark.release
def test_groups_of_one_architecture_are_a_single_group():
    """Keys belong to clients, so that their draws do not depend on their group."""

    def build(hparams, played):
        return local((A, A), trainer(hparams))

    groups, everyone = group_clients(NAMES[:6] + ("b",), 5, 4)
    two = Program(build, groups=groups, joined=everyone, eval_batch_size=5).compiled()
    one = Program(
        lambda hparams, played: local((A,), trainer(hparams)),
        groups=(Group(4),),
        joined=(Group(2),),
        eval_batch_size=5,
    ).compiled()
    (*_, ours), scores = join(two)
    (*_, theirs), expected = join(one)
    for own, group in zip(ours.clients, everyone, strict=True):
        assert_equal(own, tree.take(theirs.clients[0], group.ids), rtol=1e-5, atol=1e-6)
    assert_equal(scores, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.release
def test_vmapped_runs_are_the_looped_ones():
    keys, rates = jax.random.split(KEY, 2), jnp.float32([0.3, 0.1])

    def run(key, rate):
        return join(program_of(), key, {"client_lr": rate})

    both = jax.device_get(jax.jit(jax.vmap(run))(keys, rates))
    for number in range(2):
        own = jax.device_get(run(keys[number], rates[number]))
        assert_equal(tree.take(both, number), own, rtol=1e-5, atol=1e-6)


@pytest.mark.release
def test_new_clients_on_two_devices_are_those_on_one():
    mesh = client_mesh(2)
    assert mesh.size == 2
    assert_equal(join(program_of(mesh=mesh)), joined(), rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------- results


CONFIG = small_config(
    "fedavg",
    rounds=2,
    eval_every=1,
    checkpoint_every=1,
    cohort_size=4,
    new_clients__fraction=0.3,
    new_clients__rounds=1,
)
EXPERIMENT = Experiment(
    FEDERATION, A, alone, lambda hparams: Poison(), {"client_lr": 0.3}, GROUPS, JOINED
)


def run_of(folder, *, resume=False):
    return run_experiment(EXPERIMENT, CONFIG, folder=RunFolder(folder, CONFIG, resume=resume))


@pytest.mark.release
def test_a_resumed_run_has_the_new_clients_of_the_whole_run(tmp_path, monkeypatch):
    once = functools.cache(lambda mesh: program_of(mesh=mesh))
    monkeypatch.setattr(
        single, "program_of", lambda experiment, config, mesh, **models: once(mesh)
    )
    whole = run_of(tmp_path).results["new_clients"]
    assert whole["clients"] == list(FEDERATION.clients[5:])
    own = whole["architectures"]
    assert {name: (part["ids"], part["trained"]) for name, part in own.items()} == {
        "a": ([5], True),
        "c": ([6], False),
    }
    for played, everyone in enumerate(whole["curve"]):
        for place, part in enumerate(own.values()):
            means = part["curve"][played]
            assert means["rounds"] == everyone["rounds"] == played
            for point in "GLP":
                assert means[point] == everyone[point]["per_client"][place]
    (tmp_path / "results.json").unlink()
    shutil.rmtree(tmp_path / "checkpoints" / "00000002")
    (tmp_path / "checkpoints" / "00000002.json").unlink()
    assert run_of(tmp_path, resume=True).results["new_clients"] == whole


@pytest.mark.slow
def test_new_clients_join_a_debugged_run(monkeypatch):
    monkeypatch.setattr(debug, "program_of", lambda experiment, config: program_of())
    session = debug.DebugSession(EXPERIMENT, CONFIG)
    _, (_, scores) = session.join(session.state, EVERYONE, 1)
    _, expected = join(program_of(), session.inputs.key, session.inputs.hparams)
    assert_equal(scores, jax.device_get(expected))


def test_the_table_has_the_scores_of_each_architecture():
    scores = [{"test": dict.fromkeys("GLP", np.array(own))} for own in ((0.1, 0.2), (0.3, 0.4))]
    result = new_client_scores(FEDERATION, scores, CLASSIFICATION, JOINED)
    table = new_architectures_table({"metric": "accuracy", "new_clients": result})
    assert table.rows == [
        ["architecture", "trained", "clients", "rounds", "G and L and P"],
        ["a", "yes", "1", "0", "0.1"],
        ["a", "yes", "1", "1", "0.3"],
        ["c", "no", "1", "0", "0.2"],
        ["c", "no", "1", "1", "0.4"],
    ]


def test_results_of_one_architecture_have_no_architectures():
    scores = {"test": dict.fromkeys("GLP", np.ones(2))}
    result = new_client_scores(FEDERATION, [scores], CLASSIFICATION, (Group(2),))
    assert list(result) == ["clients", "curve", "diverged_at"]


# ------------------------------------------------------------------------------------ refusals


def test_a_width_that_no_training_client_has_as_a_slice_is_refused():
    with pytest.raises(ValueError, match="^algorithm.name='heterofl' needs one architecture"):
        heterofl(WIDTHS[1:], TRAIN, unseen=WIDTHS[:1])


def test_an_unseen_architecture_with_other_features_is_refused():
    other = mlp(inputs=(2,), hidden=(5,), outputs=2, task=CLASSIFICATION)
    for name, method in METHODS.items():
        if name in ("fedproto", "fedgh", "lgfedavg"):
            with pytest.raises(ValueError, match=f"^algorithm.name='{name}' needs "):
                method((A, B), (other,))
