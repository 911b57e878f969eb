"""Special cases in which two methods are the same, and what functions of a client receive."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax import parts, tree
from graphfl_jax.algorithms import ALGORITHMS, Method
from graphfl_jax.algorithms.cfl import cfl
from graphfl_jax.algorithms.ditto import ditto
from graphfl_jax.algorithms.fedah import fedah
from graphfl_jax.algorithms.fedala import OwnPart
from graphfl_jax.algorithms.fedamp import fedamp, heurfedamp
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.fedopt import (
    Rates,
    fedadam,
    fedavgm,
    fedyogi,
    with_server_optimizer,
)
from graphfl_jax.algorithms.fedper import fedper
from graphfl_jax.algorithms.fedprox import fedprox
from graphfl_jax.algorithms.fedrep import fedrep
from graphfl_jax.algorithms.fedrod import fedrod
from graphfl_jax.algorithms.hyper import HyperNetwork, ServerFit, hyper_federation
from graphfl_jax.algorithms.knnper import Neighbours, knnper, with_neighbours
from graphfl_jax.algorithms.local import local
from graphfl_jax.algorithms.panacea import panacea
from graphfl_jax.algorithms.perfedavg import perfedavg
from graphfl_jax.algorithms.pfedhn import pfedhn
from graphfl_jax.algorithms.pfedme import pfedme
from graphfl_jax.algorithms.scaffold import scaffold
from graphfl_jax.algorithms.sfl import Smoothing, sfl, sfl_star
from graphfl_jax.algorithms.tuning import finetune
from graphfl_jax.build import build_experiment
from graphfl_jax.core import (
    Algorithm,
    Client,
    ClientData,
    ClientModel,
    Cohort,
    Needs,
    Predictor,
    Server,
    State,
    Task,
)
from graphfl_jax.data import relations
from graphfl_jax.examples import Examples
from graphfl_jax.hypernets.generator import generator
from graphfl_jax.hypernets.output import output_layer
from graphfl_jax.hypernets.relation_gnn import RelationGNN, relation_encoder
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.mlp import MLP, mlp
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group
from graphfl_jax.trainers import Train, epoch_trainer, sgd_trainer
from tests.federations import small_config, two_clusters

KEY = jax.random.key(11)
MODEL = mlp(inputs=(2,), hidden=(4,), outputs=2, task=CLASSIFICATION)
META = {"local_steps": 3, "batch_size": 5, "client_optimizer": optax.sgd(0.2)}


def trainer(rate=0.2):
    return sgd_trainer(optax.sgd(rate), steps=3, batch_size=5)


TRAIN = trainer()


def smoothing(share=1.0, weight=0.3, rule="intended"):
    return Smoothing(2, rule, weight, share)


# Methods with traced floats, and values of these.
METHODS = {
    "fedavg": (lambda rate: fedavg(MODEL, trainer(rate)), {"rate": 0.2}),
    "local": (lambda: local((MODEL,), TRAIN), {}),
    "fedprox": (lambda mu: fedprox(MODEL, TRAIN, mu=mu), {"mu": 0.0}),
    "ditto": (lambda pull: ditto(MODEL, TRAIN, ditto_lambda=pull), {"pull": 0.3}),
    "fedamp": (
        lambda pull, share: fedamp(
            MODEL,
            TRAIN,
            num_clients=7,
            fedamp_lambda=pull,
            fedamp_share=share,
            fedamp_sigma=1.0,
        ),
        {"pull": 0.3, "share": 0.5},
    ),
    "heurfedamp": (
        lambda own, sigma: heurfedamp(
            MODEL,
            TRAIN,
            num_clients=7,
            fedamp_lambda=0.3,
            heurfedamp_own=own,
            heurfedamp_sigma=sigma,
        ),
        {"own": 0.3, "sigma": 10.0},
    ),
    "fedamp alone": (lambda: fedamp(MODEL, TRAIN, num_clients=1, fedamp_lambda=0.3), {}),
    "heurfedamp alone": (
        lambda: heurfedamp(MODEL, TRAIN, num_clients=1, fedamp_lambda=0.3),
        {},
    ),
    "cfl": (
        lambda **floats: cfl(
            MODEL,
            TRAIN,
            played=jnp.int32(100),
            num_clients=7,
            cfl_clusters=5,
            cfl_warmup=20,
            **floats,
        ),
        {"cfl_mean_norm": 0.0, "cfl_max_norm": 0.0},
    ),
    "fedrod": (lambda: fedrod(MODEL, TRAIN, classes=2), {}),
    "fedrod hyper": (lambda: fedrod(MODEL, TRAIN, classes=2, fedrod_head="hyper"), {}),
    "knnper": (
        lambda share: knnper(MODEL, TRAIN, neighbours=Neighbours(3, 0, share, 1.0)),
        {"share": 0.5},
    ),
    "fedah": (lambda eta: fedah_of(2, eta), {"eta": 5.0}),
    "perfedavg": (
        lambda alpha: perfedavg(MODEL, **META, perfedavg_alpha=alpha),
        {"alpha": 0.0},
    ),
    "scaffold": (
        lambda rate: scaffold(
            MODEL, num_clients=7, **META | {"client_optimizer": optax.sgd(rate)}
        ),
        {"rate": 0.2},
    ),
    "fedavgm": (
        lambda pull: fedavgm(MODEL, TRAIN, server_lr=1.0, fedavgm_momentum=pull),
        {"pull": 0.0},
    ),
    # Without decays, and with eta = 2 tau, the step is m / 1, and m is the gradient.
    "fedadam": (lambda: fedadam(MODEL, TRAIN, rates=Rates(0.2, 0.0, 1.0, 0.1)), {}),
    "fedyogi": (lambda: fedyogi(MODEL, TRAIN, rates=Rates(0.2, 0.0, 1.0, 0.1)), {}),
    "sfl": (
        lambda **floats: sfl(MODEL, TRAIN, smoothing=smoothing(**floats)),
        {"share": 1.0, "weight": 0.3},
    ),
    "sfl as released": (
        lambda: sfl(MODEL, TRAIN, smoothing=smoothing(rule="as_released")),
        {},
    ),
    "sfl star": (
        lambda share: sfl_star(
            MODEL,
            TRAIN,
            smoothing=smoothing(),
            sfl_graph_steps=2,
            sfl_graph_share=share,
            sfl_graph_lr=0.1,
        ),
        {"share": 0.0},
    ),
}


@functools.cache
def program_of(method, cohort_size=3):
    """The program of one of `METHODS`, or of an algorithm; compiled once for all tests."""
    if isinstance(method, Algorithm):
        return Program(lambda hparams, played: method, groups=(Group(cohort_size),)).compiled()
    build, _ = METHODS[method]
    return Program(
        lambda hparams, played: build(**hparams), groups=(Group(cohort_size),)
    ).compiled()


def inputs_of(method, data, **floats):
    """The inputs of a program."""
    if not isinstance(method, Algorithm):
        floats = METHODS[method][1] | floats
    return KEY, {name: jnp.float32(value) for name, value in floats.items()}, data


def play(method, data, rounds=3, cohort_size=3, **floats):
    """The state after some rounds."""
    inputs = inputs_of(method, data, **floats)
    state = program_of(method).start(*inputs)  # the same for all sizes of cohorts
    advance = program_of(method, cohort_size).advance
    return jax.device_get(advance(state, *inputs, jnp.int32(rounds))[0])


def play_from(models, data):
    """The clients' models after three rounds of local training from [N, ...] models."""
    advance = program_of("local", min(3, len(data.train.count))).advance
    state = State((), (models,), jnp.int32(0))
    return advance(state, *inputs_of("local", data), jnp.int32(3))[0].clients[0]


def scores_of(method, state, data):
    """The test scores of a state."""
    return program_of(method).evaluate(state, *inputs_of(method, data))[0]["test"]


def assert_close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def distance(a, b):
    """The largest difference between two trees."""
    gaps = jax.tree.map(lambda x, y: np.abs(np.asarray(x) - np.asarray(y)).max(), a, b)
    return max(jax.tree.leaves(gaps))


def with_relations(data, pairs):
    """Federated data with other relations, padded so that all compile the same program."""
    graph = data.graph if pairs is None else relations.from_edges(7, pairs)
    return data._replace(graph=relations.pad_edges(graph, 7 * 6))


ALL_PAIRS = [(i, j) for i in range(7) for j in range(i)]
CLUSTERS = with_relations(two_clusters().data, None)


def same_batches():
    """Federated data in which a client's examples are all equal, and clients of one size."""
    train = CLUSTERS.train
    equal = [np.repeat(leaf[:, :1], leaf.shape[1], axis=1) for leaf in (train.x, train.y)]
    return CLUSTERS._replace(train=Examples(*equal, np.full(7, 10, np.int32)))


@functools.cache
def fedavg_on_same_batches():
    return play("fedavg", same_batches())


# -------------------------------------------------------------- methods without a hypernetwork


def test_fedavg_of_one_client_is_local_training():
    data = two_clusters(num_clients=1).data
    averaged = play("fedavg", data, cohort_size=1)
    first = program_of("fedavg").start(*inputs_of("fedavg", data)).server
    models = play_from(jax.tree.map(lambda leaf: leaf[None], first), data)
    assert_close(jax.tree.map(lambda leaf: leaf[0], models), averaged.server, rtol=1e-6)


def test_fedprox_with_mu_0_is_fedavg():
    ours, theirs = play("fedprox", CLUSTERS, mu=0.0), play("fedavg", CLUSTERS)
    assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", ["fedavgm", "fedadam", "fedyogi"])
def test_a_server_optimizer_with_steps_of_the_whole_way_is_fedavg(method):
    """FedAvgM without momentum, and the adaptive ones with beta_1 = 0 and beta_2 = 1."""
    ours, theirs = play(method, CLUSTERS), play("fedavg", CLUSTERS)
    assert_close(ours.server.model, theirs.server, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_server_optimizer_changes_no_other_part_of_a_method():
    """The personal models of Ditto, whose server takes steps of the whole way."""
    base = ditto(MODEL, TRAIN, ditto_lambda=0.3)
    wrapped = with_server_optimizer(base, optax.sgd(1.0))
    assert (wrapped.clients, wrapped.averages) == (base.clients, True)
    ours, theirs = play(wrapped, CLUSTERS), play("ditto", CLUSTERS)
    assert_close(ours.server.model, theirs.server, rtol=1e-5, atol=1e-6)
    assert_close(ours.clients, theirs.clients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["local", "scaffold"])
def test_a_server_that_does_not_average_its_trained_models_gets_no_optimizer(method):
    build, floats = METHODS[method]
    with pytest.raises(ValueError, match="^algorithm has a server that does not average .*; "):
        with_server_optimizer(build(**floats), optax.sgd(1.0))


def test_scaffold_with_controls_of_0_is_fedavg():
    """All controls are 0 in the first round, and clients have one size."""
    ours, theirs = (play(method, same_batches(), 1) for method in ("scaffold", "fedavg"))
    assert_close(ours.server.model, theirs.server, rtol=1e-5, atol=1e-6)


def test_the_control_of_scaffolds_server_is_the_mean_of_the_clients():
    """Three of seven clients train in a round; not all have trained after two."""
    state = play("scaffold", CLUSTERS, rounds=2)
    (controls,) = state.clients
    zero = jax.tree.map(jnp.zeros_like, controls)
    moved = [distance(*tree.take((controls, zero), i)) > 1e-4 for i in range(7)]
    assert 3 <= sum(moved) < 7
    mean = jax.tree.map(lambda leaf: leaf.mean(0), controls)
    assert_close(state.server.control, mean, rtol=1e-5, atol=1e-6)


def test_scaffold_on_equal_clients_is_fedavg():
    """If all take part, c_i = c, and the corrections cancel."""
    train = same_batches().train
    equal = jax.tree.map(lambda leaf: np.repeat(leaf[:1], 7, axis=0), train)
    data = same_batches()._replace(train=equal)
    ours, theirs = (play(method, data, 3, 7) for method in ("scaffold", "fedavg"))
    assert_close(ours.server.model, theirs.server, rtol=1e-4, atol=1e-5)
    assert distance(ours.server.control, jax.tree.map(jnp.zeros_like, theirs.server)) > 1e-2


def test_fedper_of_one_client_is_local_training():
    """Body and head train together, and the mean over one client is its body."""
    data, method = two_clusters(num_clients=1).data, fedper(MODEL, TRAIN)
    inputs = inputs_of(method, data)
    program = program_of(method, 1)
    first = program.start(*inputs)
    body = jax.tree.map(lambda leaf: leaf[None], first.server)
    (heads,) = first.clients
    models = play_from({"body": body, "head": heads}, data)
    last, _ = program.advance(program.start(*inputs), *inputs, jnp.int32(3))
    assert_close(jax.tree.map(lambda leaf: leaf[None], last.server), models["body"], rtol=1e-6)
    assert_close(last.clients[0], models["head"], rtol=1e-6)


def fedrep_of(head_steps):
    sizes = {"local_steps": 3, "batch_size": 5}
    return fedrep(MODEL, client_optimizer=optax.sgd(0.2), fedrep_head_steps=head_steps, **sizes)


@pytest.mark.release
@pytest.mark.parametrize("head_steps, trained", [(0, "body"), (3, "head")])
def test_fedrep_with_steps_of_one_part_is_fedper_with_the_other_frozen(head_steps, trained):
    labels = {"body": "frozen", "head": "frozen"} | {trained: "trained"}
    optimizer = optax.multi_transform(
        {"trained": optax.sgd(0.2), "frozen": optax.set_to_zero()}, labels
    )
    frozen = fedper(MODEL, sgd_trainer(optimizer, steps=3, batch_size=5))
    first = program_of(frozen).start(*inputs_of(frozen, same_batches()))
    ours, theirs = (play(each, same_batches()) for each in (fedrep_of(head_steps), frozen))
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    moved = {
        "body": distance(ours.server, first.server),
        "head": distance(ours.clients, first.clients),
    }
    assert {part for part, gap in moved.items() if gap > 1e-3} == {trained}
    assert min(moved.values()) < 1e-6  # the mean of equal bodies is rounded


def test_fedrep_trains_the_head_in_half_of_the_steps_and_refuses_more_than_all():
    sizes = {"client_optimizer": optax.sgd(0.2), "batch_size": 5, "local_steps": 23}
    default, explicit = (fedrep(MODEL, **sizes, fedrep_head_steps=k) for k in (-1, 11))
    start = MODEL.init(KEY)

    @jax.jit
    def uploads(body, head, data):
        return [each.client.local(body, head, data, KEY)[:2] for each in (default, explicit)]

    ours, theirs = uploads(start["body"], start["head"], one_client())
    assert_close(ours, theirs, atol=1e-7)
    with pytest.raises(ValueError, match="^algorithm.fedrep_head_steps=24 is more than local_"):
        fedrep(MODEL, **sizes, fedrep_head_steps=24)


def own_head(params, share=1.0):
    """The memory of a client of FedAH with the head of some parameters."""
    head, _ = parts.split(params, parts.head)
    return OwnPart(head, jax.tree.map(lambda leaf: jnp.full_like(leaf, share), head))


def fedah_of(head_steps, eta):
    return fedah(
        MODEL,
        client_optimizer=optax.sgd(0.2),
        local_steps=3,
        batch_size=5,
        fedah_head_steps=head_steps,
        fedah_eta=eta,
    )


@pytest.mark.release
def test_fedah_with_eta_0_is_fedavg_that_trains_head_and_body_in_turn():
    """All shares stay at 1, so that every client starts from the server's head."""
    in_turn = fedrep_of(2).client.local

    def local(w, memory, data, key):
        head, body, metrics = in_turn(w["body"], w["head"], data, key)
        return memory, {"body": body, "head": head}, metrics

    ours = play("fedah", same_batches(), eta=0.0)
    theirs = play(fedavg(MODEL, TRAIN).replacing(local=local), same_batches())
    assert_close(ours.server, theirs.server, rtol=1e-5, atol=1e-6)
    assert all((leaf == 1).all() for leaf in jax.tree.leaves(ours.clients[0].shares))
    assert distance(play("fedah", same_batches()).server, theirs.server) > 1e-3


@pytest.mark.slow
def test_fedah_with_shares_of_0_is_fedrep():
    """Of eta = 0 too. A client then mixes nothing of the server's head."""

    def enroll(w, key):
        return own_head(MODEL.init(key), 0.0)

    ours = play(fedah_of(2, 0.0).replacing(enroll=enroll), same_batches())
    theirs = play(fedrep_of(2), same_batches())
    assert_close(ours.server["body"], theirs.server, rtol=1e-5, atol=1e-6)
    assert_close(ours.clients[0].part["head"], theirs.clients[0], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_client_of_fedah_that_was_never_sampled_predicts_as_the_server():
    """Its head is the server's first, so that no share has an effect."""
    state = program_of("fedah").start(*inputs_of("fedah", CLUSTERS))
    scores = scores_of("fedah", state, CLUSTERS)
    assert_close(scores["P"], scores["G"], atol=1e-6)
    trained = scores_of("fedah", play("fedah", CLUSTERS, 20, 7), CLUSTERS)
    assert float(trained["P"].mean()) > float(trained["G"].mean()) + 0.2


@pytest.mark.release
@pytest.mark.parametrize("head_steps, trained", [(0, "body"), (3, "head")])
def test_fedah_with_steps_of_one_part_keeps_the_other(head_steps, trained):
    """With the first message, whose head is the client's own."""
    w, client = MODEL.init(KEY), fedah_of(head_steps, 1.0).client
    memory = client.enroll(w, KEY)
    with jax.disable_jit():
        after, sent, _ = client.local(w, memory, one_client(), KEY)
    assert {part for part in w if distance(sent[part], w[part]) > 1e-3} == {trained}
    assert_close(after, memory._replace(part=own_head(sent).part))


def test_fedah_trains_the_head_in_half_of_the_steps_and_refuses_more_than_all():
    sizes = {"client_optimizer": optax.sgd(0.2), "batch_size": 5, "local_steps": 7}
    default, explicit = (fedah(MODEL, **sizes, fedah_head_steps=k) for k in (-1, 3))
    w = MODEL.init(KEY)
    memory = own_head(MODEL.init(jax.random.key(1)))

    @jax.jit
    def uploads(w, memory, data):
        return [each.client.local(w, memory, data, KEY)[:2] for each in (default, explicit)]

    assert_close(*uploads(w, memory, one_client()), atol=1e-7)
    with pytest.raises(ValueError, match="^algorithm.fedah_head_steps=8 is more than local_st"):
        fedah(MODEL, **sizes, fedah_head_steps=8)


@pytest.mark.slow
def test_perfedavg_with_alpha_0_is_fedavg():
    """The adapted model P is then the model itself."""
    state, theirs = play("perfedavg", same_batches(), alpha=0.0), fedavg_on_same_batches()
    assert_close(state.server, theirs.server, rtol=1e-5, atol=1e-6)
    scores = scores_of("perfedavg", state, same_batches())
    same_scores = scores_of("fedavg", theirs, same_batches())
    assert_close(scores, same_scores, atol=1e-6)


@pytest.mark.slow
def test_perfedavg_exact_hessian_product_is_the_limit_of_the_difference():
    methods = [
        perfedavg(MODEL, **META, perfedavg_hessian=kind, perfedavg_alpha=0.1)
        for kind in ("hf", "fd", "fo")
    ]

    @jax.jit
    def uploads(w, data):
        return [method.client.local(w, (), data, KEY)[1] for method in methods]

    exact, difference, neither = uploads(MODEL.init(KEY), one_client())
    assert_close(exact, difference, atol=2e-4)
    assert distance(exact, neither) > 1e-3


def test_pfedme_keeps_its_model_if_personal_models_do_not_move():
    """theta = w_i makes w_i - eta lambda (w_i - theta) = w_i, and the mean of equals is w."""
    resting = pfedme(MODEL, **META, personal_optimizer=optax.sgd(0.0), pfedme_lambda=2.0)
    w = MODEL.init(KEY)
    cohort = Cohort(jnp.arange(2), jnp.ones(2))

    @jax.jit
    def one_round(w, data):
        theta, w_i, _ = resting.client.local(w, w, data, KEY)
        uploads = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), w_i)
        return theta, w_i, resting.server.aggregate(w, (cohort,), (uploads,), KEY)

    assert_close(one_round(w, one_client()), (w, w, w), atol=1e-6)


@pytest.mark.slow
def test_ditto_global_model_is_that_of_fedavg():
    ours, theirs = play("ditto", same_batches()), fedavg_on_same_batches()
    assert_close(ours.server, theirs.server, rtol=1e-6, atol=1e-7)


def test_ditto_with_lambda_0_trains_personal_models_locally():
    """They start as the first model sent, and train in the rounds of their client."""
    data = same_batches()
    first = program_of("fedavg").start(*inputs_of("fedavg", data)).server
    models = play_from(jax.tree.map(lambda leaf: np.stack([leaf] * 7), first), data)
    (free,) = play("ditto", data, pull=0.0).clients
    assert_close(free, models, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedamp alone", "heurfedamp alone"])
def test_fedamp_of_one_client_pulls_it_to_its_own_last_model(method):
    """Its mixture is its model, so that each round is FedProx from there."""
    data = two_clusters(num_clients=1).data
    ours = play(method, data, cohort_size=1)
    theirs = play("fedprox", data, cohort_size=1, mu=0.3)
    assert_close(tree.take(ours.server.uploads, 0), theirs.server, rtol=1e-6, atol=1e-7)
    assert_close(ours.clients[0], ours.server.uploads)


@pytest.mark.slow
def test_fedamp_without_a_share_of_the_others_and_without_pull_is_local_training():
    data = same_batches()
    ours = play("fedamp", data, share=0.0, pull=0.0)
    first = program_of("fedavg").start(*inputs_of("fedavg", data)).server
    models = play_from(jax.tree.map(lambda leaf: np.stack([leaf] * 7), first), data)
    assert_close(ours.server.uploads, models, rtol=1e-5, atol=1e-6)
    mixed = play("fedamp", data, share=0.5, pull=0.0)
    assert distance(mixed.server.uploads, models) > 1e-3


@pytest.mark.slow
def test_heurfedamp_with_equal_shares_sends_the_mean_of_all_models():
    """With 1 / N of the own model, and sigma = 0."""
    server = play("heurfedamp", CLUSTERS, cohort_size=7, own=1 / 7, sigma=0.0).server
    method = heurfedamp(
        *(MODEL, TRAIN),
        num_clients=7,
        fedamp_lambda=0.3,
        heurfedamp_own=1 / 7,
        heurfedamp_sigma=0.0,
    )
    sent = models_of(method, server, jnp.arange(7))
    means = jax.tree.map(lambda leaf: np.stack([leaf.mean(0)] * 7), server.uploads)
    assert_close(sent, means, rtol=1e-5, atol=1e-6)


def test_cfl_without_splits_is_fedavg():
    """All clients have as many examples. epsilon_1 = 0 splits no cluster."""
    ours, theirs = play("cfl", same_batches()), fedavg_on_same_batches()
    assert int(ours.server.count) == 1
    assert_close(tree.take(ours.server.models, 0), theirs.server, rtol=1e-5, atol=1e-6)
    assert_close(ours.server.root, theirs.server, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_cfl_separates_clients_whose_labels_are_opposite():
    """Their updates are opposite. A large epsilon_1 splits clusters that are not stationary."""
    ours = play("cfl", same_batches(), 4, 7, cfl_mean_norm=1e6, cfl_max_norm=0.0)
    clusters, kinds = np.asarray(ours.server.clusters), np.arange(7) % 2
    assert len(np.unique(clusters)) == int(ours.server.count) > 1
    assert all(len(set(kinds[clusters == c])) == 1 for c in np.unique(clusters))


@pytest.mark.slow
def test_fedrod_of_equal_class_counts_trains_the_generic_model_by_the_plain_loss():
    """The balanced softmax then adds the same number to all logits."""
    train = CLUSTERS.train
    y = np.broadcast_to(np.arange(train.y.shape[1]) % 2, train.y.shape).astype(np.int32)
    balanced = CLUSTERS._replace(train=Examples(train.x, y, np.full(7, 10, np.int32)))
    ours, theirs = play("fedrod", balanced), play("fedavg", balanced)
    assert_close(ours.server, theirs.server, rtol=1e-5, atol=1e-6)
    skewed = balanced._replace(train=Examples(train.x, y, np.full(7, 9, np.int32)))
    apart = distance(play("fedrod", skewed).server, play("fedavg", skewed).server)
    assert apart > 1e-3


@pytest.mark.slow
def test_a_client_of_fedrod_that_was_never_sampled_predicts_as_the_generic_model():
    state = program_of("fedrod").start(*inputs_of("fedrod", CLUSTERS))
    scores = scores_of("fedrod", state, CLUSTERS)
    assert_close(scores["P"], scores["G"])
    trained = scores_of("fedrod", play("fedrod", CLUSTERS, 20, 7), CLUSTERS)
    assert float(trained["P"].mean()) > float(trained["G"].mean()) + 0.2


@pytest.mark.slow
def test_the_personal_heads_of_fedrod_do_not_change_the_generic_model():
    ours, theirs = (play(name, CLUSTERS) for name in ("fedrod hyper", "fedrod"))
    assert_close((ours.server["body"], ours.server["head"]), tuple(theirs.server.values()))


@pytest.mark.slow
def test_the_head_that_fedrod_generates_for_the_only_client_of_a_class_is_a_kept_one():
    """All of client 0's examples have class 1, and no other client is there."""
    train = two_clusters(num_clients=1).data.train
    data = two_clusters(num_clients=1).data._replace(
        train=train._replace(y=np.ones_like(train.y))
    )
    ours, theirs = (play(name, data, cohort_size=1) for name in ("fedrod hyper", "fedrod"))
    generated = tree.take(ours.server["personal"], 1)
    assert_close(generated, tree.take(theirs.clients[0], 0), rtol=1e-5, atol=1e-7)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(generated)) > 1e-3
    other = tree.take(ours.server["personal"], 0)  # of a share of `fedrod.ABSENT`
    assert_close(other, jax.tree.map(np.zeros_like, generated), atol=1e-12)


@pytest.mark.release
def test_a_client_of_fedrod_has_a_generated_head_for_classes_that_it_did_not_train():
    """Each client has one of two classes, and then the other one, as a new client would."""

    def of_classes(kinds):
        def labelled(part):
            y = np.broadcast_to(kinds[:, None], part.y.shape).astype(np.int32)
            return part._replace(y=y)

        train, test = map(labelled, (CLUSTERS.train, CLUSTERS.evals["test"]))
        return CLUSTERS._replace(train=train, evals={"test": test})

    kinds = np.arange(7) % 2
    for method, right in (("fedrod hyper", True), ("fedrod", False)):
        trained = play(method, of_classes(kinds), 20)
        for now in (kinds, 1 - kinds):
            scores = scores_of(method, trained, of_classes(now))["P"]
            assert (float(scores.min()) == 1.0) == (right or now is kinds)


@pytest.mark.slow
def test_knnper_with_lambda_0_is_fedavg():
    """Training is FedAvg's with every lambda; P is then G."""
    ours, theirs = play("knnper", CLUSTERS), play("fedavg", CLUSTERS)
    assert_close(ours, theirs)
    scores = scores_of("fedavg", theirs, CLUSTERS)
    program, data = program_of("knnper"), CLUSTERS
    for share, same in ((0.0, True), (1.0, False)):
        mixed = program.evaluate(ours, *inputs_of("knnper", data, share=share))[0]["test"]
        assert_close((mixed["G"], mixed["L"]), (scores["G"], scores["L"]))
        assert np.array_equal(mixed["P"], scores["P"]) == same


@pytest.mark.slow
def test_neighbours_keep_what_the_predictor_of_a_method_holds():
    """The personal head of Fed-RoD, and the method's own P with lambda = 0."""
    base = fedrod(MODEL, TRAIN, classes=2)
    mixed = with_neighbours(base, Neighbours(3, 0, 0.0, 1.0))
    w, data = MODEL.init(KEY), one_client()
    personal = MODEL.init(jax.random.key(1))["head"]
    ours, theirs = (each.client.personalize(w, personal, data, KEY) for each in (mixed, base))
    outputs = base.client.predict(theirs, data.train.x)
    expected = jax.nn.log_softmax(outputs)
    assert_close(mixed.client.predict(ours, data.train.x), expected, rtol=1e-5, atol=1e-5)
    assert (mixed.server, mixed.client.local) == (base.server, base.client.local)


@pytest.mark.parametrize(
    "factory", [fedamp, heurfedamp, functools.partial(cfl, played=jnp.int32(0))]
)
def test_methods_of_all_pairs_refuse_too_many_clients(factory):
    factory(MODEL, TRAIN, num_clients=10_000)
    with pytest.raises(ValueError) as refused:
        factory(MODEL, TRAIN, num_clients=10_001)
    method = getattr(factory, "func", factory).__name__
    assert str(refused.value) == (
        f"algorithm.name={method!r} holds N x N numbers, and N=10001 clients exceed 10000; "
        f"choose another method"
    )


@pytest.mark.slow
@pytest.mark.parametrize("share, edges", [(0.0, None), (1.0, [])])
def test_sfl_without_smoothing_sends_each_client_its_last_upload(share, edges):
    """With a = 0, and without relations, u_i = v_i; w is still the mean of all."""
    server = play("sfl", with_relations(CLUSTERS, edges), share=share).server
    sent, shared = models_of(sfl(MODEL, TRAIN, smoothing=smoothing()), server, jnp.arange(7))
    assert_close(sent, server.uploads, atol=1e-6)
    mean = jax.tree.map(lambda leaf: leaf.mean(0), server.uploads)
    assert_close(jax.tree.map(lambda leaf: leaf[3], shared), mean, atol=1e-6)


@pytest.mark.slow
def test_sfl_on_a_complete_graph_with_lambda_0_is_fedavg():
    """Every row of A^ is 1 / N, so that u_i = w; lambda = 0 trains v_i freely."""
    data = with_relations(same_batches(), ALL_PAIRS)
    ours = play("sfl", data, cohort_size=7, weight=0.0)
    theirs = play("fedavg", data, cohort_size=7)
    sent, _ = sfl(MODEL, TRAIN, smoothing=smoothing()).server.download(ours.server, 0, 0)
    assert_close(sent, theirs.server, rtol=1e-5, atol=1e-6)
    program, inputs = program_of("sfl"), inputs_of("sfl", data, weight=0.0)
    scores = program.evaluate(ours, *inputs)[0]["test"]
    assert_close(scores, scores_of("fedavg", theirs, data), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("cohort_size, same", [(7, True), (3, False)])
def test_sfl_as_released_is_sfl_with_lambda_0_if_all_clients_take_part(cohort_size, same):
    ours = play("sfl as released", CLUSTERS, cohort_size=cohort_size)
    theirs = play("sfl", CLUSTERS, cohort_size=cohort_size, weight=0.0)
    assert (distance(ours.server.uploads, theirs.server.uploads) < 1e-5) == same


@pytest.mark.slow
def test_sfl_star_with_learned_share_0_is_sfl():
    ours, theirs = play("sfl star", CLUSTERS, share=0.0), play("sfl", CLUSTERS)
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


# ----------------------------------------------------------------------------- fine-tuning


def one_client():
    """The `ClientData` of a client of the two clusters."""
    return ClientData(jax.tree.map(jnp.asarray, tree.take(CLUSTERS.train, 2)))


def test_fine_tuning_with_learning_rate_0_changes_nothing():
    """The personal models of Ditto are then the predictors, and training is Ditto's."""
    base = ditto(MODEL, TRAIN, ditto_lambda=0.3)
    tuned = finetune(base, trainer(0.0), tuning_part="whole")
    assert (tuned.server, tuned.client.local) == (base.server, base.client.local)
    w, v = MODEL.init(KEY), MODEL.init(jax.random.key(1))
    ours = jax.jit(tuned.client.personalize)(w, v, one_client(), KEY)
    theirs = base.client.personalize(w, v, one_client(), KEY)
    assert_close(ours, theirs, atol=1e-7)


def test_fedavg_fine_tuned_like_a_round_predicts_with_the_locally_trained_model():
    """P of the fine-tuned method is L, where all of a client's batches are equal."""
    tuned = finetune(fedavg(MODEL, TRAIN), TRAIN, tuning_part="whole")
    scores = scores_of(tuned, fedavg_on_same_batches(), same_batches())
    assert_close(scores["P"], scores["L"], atol=1e-6)


@pytest.mark.parametrize("part", ["whole", "head", "new_head"])
def test_fine_tuning_changes_the_named_part_of_the_parameters_only(part):
    """A predictor's extra stays, and so does the body where the head is tuned."""
    extra = {"scale": jnp.float32(3.0)}
    base = fedavg(MODEL, TRAIN).replacing(deploy=lambda w, memory, data: Predictor(w, extra))
    tuned = finetune(base, TRAIN, tuning_part=part)
    w = MODEL.init(KEY)
    after = jax.jit(tuned.client.personalize)(w, (), one_client(), KEY)
    assert after.extra == {"scale": 3.0}
    assert distance(after.params["head"], w["head"]) > 1e-3
    moved = distance(after.params["body"], w["body"])
    assert moved > 1e-3 if part == "whole" else moved == 0


# ----------------------------------------------------------------------------- hypernetworks

FIT = ServerFit(optax.sgd(1.0), 1, optax.sgd(0.1), "random")
SIZES = {"width": 6, "depth": 3}


def models_of(algorithm, server, ids):
    """The messages to clients."""
    return jax.jit(jax.vmap(algorithm.server.download, (None, None, 0)))(server, 0, ids)


@pytest.mark.slow
def test_a_hypernetwork_that_ignores_the_client_is_fedavg():
    """theta <- theta - 1/M sum (theta - theta_i) = 1/M sum theta_i, for equal client sizes."""
    data = CLUSTERS._replace(train=CLUSTERS.train._replace(count=np.full(7, 10, np.int32)))
    constant = HyperNetwork(
        relate=lambda graph: (),
        init=lambda key, num_clients: MODEL.init(key) | {"embeddings": jnp.zeros((7, 1))},
        encode=lambda theta, relations, dropped: jnp.zeros((7, 1)),
        decode=lambda theta, embedding: {name: theta[name] for name in ("body", "head")},
        penalty=lambda theta, embeddings, relations: jnp.float32(0.0),
    )
    hyper = hyper_federation(MODEL, TRAIN, constant, FIT)
    average, generated = play("fedavg", data), play(hyper, data)
    weights = {name: generated.server.weights[name] for name in ("body", "head")}
    assert_close(weights, average.server, rtol=1e-4, atol=1e-6)
    scores, same_scores = (
        scores_of(each, state, data)
        for each, state in ((hyper, generated), ("fedavg", average))
    )
    assert_close(scores, same_scores, atol=1e-6)


@functools.partial(jax.jit, static_argnames=("steps", "choices"))
def server_step(key, graph, rate, lambda_d, shift, steps=1, choices=()):
    """One step of Panacea's server towards what it sent to clients 0 and 2, plus a shift.

    Returns:
      Its weights, and the models of all clients, both before and after the step.
    """
    algorithm = panacea(
        MODEL,
        TRAIN,
        encoder=relation_encoder(layer="mean", **SIZES),
        generator=generator(output=output_layer(MODEL), embedding_dim=5, **SIZES),
        fit=FIT._replace(optimizer=optax.sgd(rate), steps=steps),
        lambda_d=lambda_d,
        embedding_dropout=0.0,
        **dict(choices),
    ).server
    cohort = Cohort(jnp.array([0, 2], jnp.int32), jnp.ones(2))
    server = algorithm.init(key, graph)
    sent = jax.vmap(algorithm.download, (None, None, 0))(server, 0, jnp.arange(7))
    uploads = jax.tree.map(lambda leaf: leaf[cohort.ids] + shift, sent)
    after = algorithm.aggregate(server, (cohort,), (uploads,), KEY)
    now = jax.vmap(algorithm.download, (None, None, 0))(after, 0, jnp.arange(7))
    return (server.weights, sent), (after.weights, now)


def floats(*values):
    return map(jnp.float32, values)


PRINTED, PLAIN = (("difference", "printed"),), (("inner_product", "plain"),)


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps, lambda_d, choices, same",
    [(1, 0.5, PRINTED, True), (2, 0.5, PRINTED, False), (1, 0.0, PLAIN, True)],
    ids=["K_s=1", "K_s=2", "lambda_d=0"],
)
def test_the_printed_forms_of_panacea_are_the_same_in_the_limit(steps, lambda_d, choices, same):
    """Bit for bit: the first difference is that of held targets, and 0 L_d has no gradient."""
    values = list(floats(0.1, lambda_d, 1.0))
    _, (before, _) = server_step(KEY, CLUSTERS.graph, *values, steps=steps)
    _, (after, _) = server_step(KEY, CLUSTERS.graph, *values, steps=steps, choices=choices)
    equal = map(np.array_equal, *map(jax.tree.leaves, (before, after)))
    assert all(equal) == same


def test_panacea_on_a_complete_graph_sends_one_model_to_all():
    """The mean over neighbours and self is then the same for all clients."""
    graph = with_relations(CLUSTERS, ALL_PAIRS).graph
    (_, before), (_, after) = server_step(KEY, graph, *floats(0.1, 0.0, 1.0))
    assert distance(before, after) > 1e-3
    for sent in (before, after):
        first = jax.tree.map(lambda leaf: np.broadcast_to(leaf[:1], leaf.shape), sent)
        assert_close(sent, first, atol=1e-6)


@pytest.mark.parametrize("layer", ["mean", "gcn", "sage"])
def test_without_relations_the_encoder_is_a_perceptron_on_each_embedding(layer):
    """With no edges D^-1 (A + I) = I; the neighbours' part of sage is its bias alone."""
    embeddings = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), jnp.float32)

    @jax.jit
    def encoded(graph):
        encoder, propagation = RelationGNN((6, 6), layer), relations.propagation(graph, layer)
        weights = encoder.init(KEY, embeddings, propagation)
        return weights["params"], encoder.apply(weights, embeddings, propagation)

    weights, found = encoded(relations.from_edges(4, []))
    if layer == "sage":  # two dense layers per layer: neighbours with bias, self without
        layers = [
            {
                "kernel": weights[f"Dense_{2 * i + 1}"]["kernel"],
                "bias": weights[f"Dense_{2 * i}"]["bias"],
            }
            for i in range(2)
        ]
    else:
        layers = [weights[f"Dense_{i}"] for i in range(2)]
    own = {f"Dense_{i}": layer for i, layer in enumerate(layers)}
    assert_close(found, MLP((6, 6)).apply({"params": own}, embeddings), atol=1e-6)


def test_attention_that_ignores_its_values_is_the_mean():
    """With a = 0, the shares are the weights; and the weights of edges are 1 if none are."""
    embeddings = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), jnp.float32)
    graph = relations.from_edges(4, [(0, 1), (0, 2), (1, 3)], [0.5, 2.0, 3.0], directed=True)
    weighted, unweighted = (
        relation_encoder(layer="attention", width=6, depth=2, edge_weights=weights)
        for weights in (True, False)
    )
    params = weighted.module.init(KEY, embeddings, weighted.relate(graph))["params"]
    flat, mean = jax.tree.map(jnp.copy, params), {}
    for i in range(2):
        layer = flat[f"GraphAttention_{i}"]
        layer["Dense_1"]["kernel"] *= 0.0
        mean[f"Dense_{i}"] = {**layer["Dense_0"], "bias": layer["bias"][0]}

    def encoded(encoder, params, graph):
        return encoder.module.apply({"params": params}, embeddings, encoder.relate(graph))

    expected = relation_encoder(layer="mean", width=6, depth=2, edge_weights=True)
    even = encoded(weighted, flat, graph)
    assert_close(even, encoded(expected, mean, graph), atol=1e-6)
    assert distance(even, encoded(weighted, params, graph)) > 1e-3
    ones = graph._replace(edges=np.ones_like(graph.edges))
    equal = [encoded(weighted, params, ones), encoded(unweighted, params, graph)]
    np.testing.assert_array_equal(*equal)
    assert distance(equal[0], encoded(weighted, params, graph)) > 1e-3


@pytest.mark.parametrize("rate, closer", [(0.01, True), (-0.01, False)])
def test_the_server_moves_its_models_towards_the_uploads(rate, closer):
    """The printed algorithm subtracts alpha J^T (theta~ - theta): a rate of -alpha."""
    (_, before), (_, after) = server_step(KEY, CLUSTERS.graph, *floats(rate, 0.0, 0.1))
    squares = [
        sum(
            np.square(np.asarray(old - new)[[0, 2]] + 0.1).sum()
            for old, new in zip(*map(jax.tree.leaves, (before, now)), strict=True)
        )
        for now in (before, after)
    ]
    assert (squares[1] < squares[0]) == closer


def test_the_graph_generator_trains_the_encoder_and_not_the_generator():
    """With targets equal to what was sent, only lambda_d BCE has a gradient (eq. 8).

    One server step: in a second one the generator would follow the encoder.
    """
    key = jax.random.key(0)  # no layer has only inactive ReLUs
    (before, _), (after, _) = server_step(key, CLUSTERS.graph, *floats(0.1, 1.0, 0.0))
    for part in ("trunk", "output"):
        assert_close(after[part], before[part], atol=1e-7)
    for part in ("encoder", "embeddings"):
        assert distance(after[part], before[part]) > 1e-6


@pytest.mark.slow
def test_pfedhn_keeps_the_embeddings_of_clients_that_were_not_sampled():
    """Momentum and weight decay would change them; this is a departure from the authors."""
    optimizer = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, 0.9))
    algorithm = pfedhn(
        MODEL,
        TRAIN,
        embedding_dim=3,
        width=6,
        output=output_layer(MODEL),
        fit=FIT._replace(optimizer=optimizer, steps=2),
    ).server
    cohort = Cohort(jnp.array([1, 4], jnp.int32), jnp.ones(2))

    @jax.jit
    def embeddings_of_rounds(key):
        servers = [algorithm.init(key, CLUSTERS.graph)]
        sent = jax.vmap(algorithm.download, (None, None, 0))(servers[0], 0, cohort.ids)
        targets = jax.tree.map(lambda leaf: leaf + 1.0, sent)
        for _ in range(2):  # in the second round there is momentum
            servers.append(algorithm.aggregate(servers[-1], (cohort,), (targets,), key))
        traces = [optax.tree_utils.tree_get(one.opt_state, "trace") for one in servers]
        return [one.weights["embeddings"] for one in servers], [
            one["embeddings"] for one in traces
        ]

    embeddings, traces = jax.device_get(embeddings_of_rounds(KEY))
    rest = np.array([0, 2, 3, 5, 6])
    for trace in traces:
        np.testing.assert_array_equal(trace[rest], 0)
    assert (np.abs(traces[-1])[cohort.ids].max(1) > 1e-6).all()
    for old, new in zip(embeddings, embeddings[1:], strict=False):
        np.testing.assert_array_equal(new[rest], old[rest])
        assert (np.abs(new - old)[cohort.ids].max(1) > 1e-6).all()


@pytest.mark.slow
def test_steps_of_pfedhn_per_client_are_those_of_the_mean_for_a_cohort_of_one():
    optimizer = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, 0.9))
    sizes = {"embedding_dim": 3, "width": 6, "output": output_layer(MODEL)}
    sizes["fit"] = FIT._replace(optimizer=optimizer, steps=2)

    def played(ids, step_per_client):
        algorithm = pfedhn(MODEL, TRAIN, step_per_client=step_per_client, **sizes).server
        cohort = Cohort(jnp.array(ids, jnp.int32), jnp.ones(len(ids)))

        @jax.jit
        def rounds(key):
            server = algorithm.init(key, CLUSTERS.graph)
            sent = jax.vmap(algorithm.download, (None, None, 0))(server, 0, cohort.ids)
            targets = jax.tree.map(lambda leaf: leaf + 1.0, sent)
            for _ in range(2):
                server = algorithm.aggregate(server, (cohort,), (targets,), key)
            return server

        return jax.device_get(rounds(KEY))

    jax.tree.map(np.testing.assert_array_equal, played([4], True), played([4], False))
    others = played([1, 4], True), played([1, 4], False)
    assert distance(*(server.weights for server in others)) > 1e-3


# ------------------------------------------------------------------- learning-rate schedules


@functools.cache
def scheduled(schedule):
    """FedAvg with a schedule of the client's learning rate, of the sizes of `METHODS`."""
    sizes = {"cohort_size": 3, "local_steps": 3, "batch_size": 5, "model__hidden": (4,)}
    config = small_config("fedavg", client_schedule=schedule, **sizes)
    experiment = build_experiment(config, two_clusters())
    return experiment, Program(experiment.build, groups=experiment.groups).compiled()


def servers_of(program, inputs, rounds=3):
    """The server of FedAvg before the first round and after each of some rounds."""
    state = program_of("fedavg").start(*inputs_of("fedavg", CLUSTERS))
    servers = [jax.device_get(state.server)]
    for _ in range(rounds):
        state, _ = program.advance(state, *inputs, jnp.int32(1))
        servers.append(jax.device_get(state.server))
    return servers


def test_an_exponential_schedule_is_a_smaller_learning_rate_in_each_round():
    """Each round of a decay of 0.5 is a round of half of the last round's learning rate."""
    experiment, program = scheduled("exponential")
    assert set(experiment.hparams) == {"client_lr", "client_decay"}
    hparams = {"client_lr": jnp.float32(0.4), "client_decay": jnp.float32(0.5)}
    servers = servers_of(program, (KEY, hparams, CLUSTERS))
    constant = program_of("fedavg")
    for played, rate in enumerate((0.4, 0.2, 0.1)):
        inputs = inputs_of("fedavg", CLUSTERS, rate=rate)
        state = State(servers[played], ((),), jnp.int32(played))
        after = constant.advance(state, *inputs, jnp.int32(1))[0].server
        assert_close(after, servers[played + 1], rtol=1e-6, atol=1e-7)


def test_a_constant_schedule_is_no_schedule_bit_for_bit():
    experiment, program = scheduled("constant")
    assert set(experiment.hparams) == {"client_lr"}
    ours = servers_of(program, (KEY, {"client_lr": jnp.float32(0.2)}, CLUSTERS))
    theirs = servers_of(program_of("fedavg"), inputs_of("fedavg", CLUSTERS, rate=0.2))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_schedule_of_the_server_changes_its_steps():
    """After three rounds, a decay of 0.5 is an eighth of the learning rate."""
    changes = {"client_optimizer": "sgd", "server_optimizer": "sgd"}
    decaying, constant = (
        build_experiment(
            small_config("pfedhn", server_schedule=name, **changes), two_clusters()
        )
        for name in ("exponential", "constant")
    )
    cohort = Cohort(jnp.array([1, 4], jnp.int32), jnp.ones(2))

    @jax.jit
    def learned(played):
        first = constant.build(constant.hparams, 0).server
        server = first.init(KEY, CLUSTERS.graph)
        sent = jax.vmap(lambda i: first.download(server, 0, i))(cohort.ids)
        uploads = jax.tree.map(lambda leaf: leaf + 1.0, sent)
        rate = constant.hparams["server_lr"]
        algorithms = (
            decaying.build(decaying.hparams | {"server_decay": 0.5}, played),
            constant.build(constant.hparams | {"server_lr": rate / 8}, played),
            constant.build(constant.hparams, played),
        )
        return [
            algorithm.server.aggregate(server, (cohort,), (uploads,), KEY).weights
            for algorithm in algorithms
        ]

    ours, eighth, whole = learned(jnp.int32(3))
    assert_close(ours, eighth, rtol=1e-6, atol=1e-7)
    assert distance(ours, whole) > 1e-3


# ------------------------------------------------------------ what a method needs and receives


def needing(needs, monkeypatch):
    """Makes FedAvg need something of the federation."""

    def factory(model: ClientModel, train: Train) -> Algorithm:
        return fedavg(model, train).replacing(needs=needs)

    monkeypatch.setitem(ALGORITHMS, "fedavg", Method(factory))


def without_relations(federation):
    return federation._replace(data=federation.data._replace(graph=relations.from_edges(7, [])))


def without_validation(federation):
    evals = {"test": federation.data.evals["test"]}
    return federation._replace(data=federation.data._replace(evals=evals))


@pytest.mark.parametrize(
    "needs, change, message",
    [
        (
            Needs(relations=True),
            without_relations,
            "needs relations between clients, and two_clusters has none; add edges to the "
            "file, or set --config.data.graph=knn",
        ),
        (
            Needs(held_out="val"),
            without_validation,
            "needs a validation split, and two_clusters has none; set "
            "--config.data.val_fraction=0.1",
        ),
        (
            Needs(everyone=True),
            lambda federation: federation,
            "needs all clients in every round, and cohort_size=4; set --config.cohort_size=7",
        ),
        (
            Needs(labels=True),
            lambda federation: federation._replace(task="regression"),
            "needs labels, and two_clusters is a regression; choose another method",
        ),
    ],
)
def test_needs_that_a_federation_does_not_meet_are_refused_in_one_line(
    needs, change, message, monkeypatch
):
    needing(needs, monkeypatch)
    with pytest.raises(ValueError) as refused:
        build_experiment(small_config("fedavg", cohort_size=4), change(two_clusters()))
    assert str(refused.value) == f"algorithm.name='fedavg' {message}"
    build_experiment(small_config("fedavg", cohort_size=7), two_clusters())


def weighted_federation(**facts):
    federation = two_clusters()._replace(**facts)
    graph = federation.data.graph
    graph = graph._replace(edges=2.0 * graph.edges)
    return federation._replace(data=federation.data._replace(graph=graph))


def test_weights_of_relations_are_read_or_said_not_to_be():
    config = small_config(algorithm__edge_weights=True)
    with pytest.raises(ValueError) as refused:
        build_experiment(config, two_clusters())
    assert str(refused.value) == (
        "algorithm.edge_weights=True needs relations with weights, and those of two_clusters "
        "have none; give edge_weight, or leave algorithm.edge_weights out"
    )
    said = "^two_clusters: algorithm.name='panacea' does not read edge_weight; set .*=true,"
    with pytest.warns(RuntimeWarning, match=said):
        build_experiment(small_config(), weighted_federation(source="own"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_experiment(small_config(), weighted_federation())
        build_experiment(small_config("fedavg"), weighted_federation(source="own"))
        build_experiment(config, weighted_federation(source="own"))


def test_every_objective_gets_another_key_in_every_step_for_every_client_and_round():
    """The objective's gradient is a number drawn from its key; step t stores it at place t."""
    steps = 6
    model = ClientModel(
        init=lambda key: {"body": (), "head": jnp.zeros(steps)},
        body=lambda params, x: x,
        head=lambda params, features: features,
        task=Task(lambda outputs, y: outputs, lambda outputs, y: outputs, "sum", True),
        train_forward=lambda params, batch, key: jnp.broadcast_to(
            jnp.sum(params["head"]) * jax.random.normal(key), batch.y.shape
        ),
    )

    def store(gradient, number, params=None):
        place = jax.nn.one_hot(number, steps)
        return jax.tree.map(lambda leaf: leaf * place, gradient), number + 1

    optimizer = optax.GradientTransformation(lambda params: jnp.int32(0), store)
    trainers = (
        sgd_trainer(optimizer, steps=steps, batch_size=3),
        # 10 to 12 examples are three batches of at most 4 in each of two epochs.
        epoch_trainer(optimizer, epochs=2, batch_size=4),
    )

    def local(message, memory, data, key):
        w = model.init(key)
        trained = [train(model.objective, w, data.train, key)[0] for train in trainers]
        return memory, jnp.stack([w["head"] for w in trained]), {"loss": jnp.float32(0.0)}

    algorithm = fedavg(model, trainers[0]).replacing(
        local=local,
        untrained=lambda message, memory, data: jnp.zeros((2, steps)),
        init=lambda key, graph: jnp.zeros((7, 2, steps)),
        aggregate=lambda drawn, cohorts, uploads, key: uploads[0],
    )
    draws = np.stack([play(algorithm, CLUSTERS, rounds, 7).server for rounds in (1, 2)])
    assert draws.shape == (2, 7, 2, steps)  # rounds, clients, trainers, steps
    for number in range(2):
        drawn = draws[:, :, number]
        assert len(np.unique(drawn.round(4))) == drawn.size


def storing(**needs):
    """A method whose clients upload the sum of their validation inputs, or -1 without any."""
    seen = []

    def local(message, memory, data, key):
        seen.append(data.val)
        upload = jnp.float32(-1.0) if data.val is None else data.val.x.sum()
        return memory, upload, {"loss": upload}

    def personalize(message, memory, data, key):
        seen.append(data.val)
        return Predictor(message)

    server = Server.of_one(
        init=lambda key, graph: jnp.zeros(7),
        download=lambda sums, i: sums[i],
        aggregate=lambda sums, cohort, uploads, key: uploads,
    )
    client = Client(
        MODEL,
        local,
        predict=lambda predictor, x: jnp.full((len(x), 2), predictor.params),
        personalize=personalize,
    )
    return Algorithm(server, (client,), needs=Needs(**needs)), seen


def test_clients_receive_their_validation_examples_if_the_method_needs_them():
    data = CLUSTERS
    algorithm, seen = storing(held_out="val")
    state = play(algorithm, data, rounds=1, cohort_size=7)
    np.testing.assert_allclose(state.server, data.evals["val"].x.sum((1, 2)), rtol=1e-5)
    jax.eval_shape(program_of(algorithm, 7).evaluate, state, KEY, {}, data)
    assert all(val.x.shape == data.evals["val"].x.shape[1:] for val in seen)


def test_clients_receive_no_validation_examples_otherwise():
    algorithm, seen = storing()
    program, data = program_of(algorithm, 7), CLUSTERS
    state = jax.eval_shape(program.start, KEY, {}, data)
    jax.eval_shape(program.advance, state, KEY, {}, data, jnp.int32(1))
    jax.eval_shape(program.evaluate, state, KEY, {}, data)
    assert len(seen) >= 3 and set(seen) == {None}


def test_the_extra_of_a_predictor_reaches_predict_at_every_point():
    """Outputs times an extra of -1 are wrong where the outputs themselves are right."""
    factors = {"G": 1.0, "L": 1.0, "P": -1.0}

    def deploy(w, memory, data):
        return Predictor(w, jnp.float32(factors["G"]))

    def personalize(w, memory, data, key):
        return Predictor(w, jnp.float32(factors["P"]))

    def predict(predictor, x):
        return predictor.extra * MODEL.apply(predictor.params, x)

    negated = fedavg(MODEL, TRAIN).replacing(
        deploy=deploy, predict=predict, personalize=personalize
    )
    state, data = fedavg_on_same_batches(), same_batches()
    plain, ours = (scores_of(each, state, data) for each in ("fedavg", negated))
    assert_close((ours["G"], ours["L"]), (plain["G"], plain["L"]), atol=1e-6)
    assert_close(ours["P"], 1 - plain["G"], atol=1e-6)
