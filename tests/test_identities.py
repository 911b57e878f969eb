"""Special cases in which two methods are the same, and what functions of a client receive."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax import tree
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.algorithms.ditto import ditto
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.fedprox import fedprox
from graphfl_jax.algorithms.hyper import HyperNetwork, ServerFit, hyper_federation
from graphfl_jax.algorithms.local import local
from graphfl_jax.algorithms.panacea import panacea
from graphfl_jax.algorithms.perfedavg import perfedavg
from graphfl_jax.algorithms.pfedhn import pfedhn
from graphfl_jax.algorithms.pfedme import pfedme
from graphfl_jax.algorithms.sfl import Smoothing, sfl, sfl_star
from graphfl_jax.algorithms.tuning import finetuned
from graphfl_jax.build import build_experiment
from graphfl_jax.core import (
    Algorithm,
    Client,
    ClientData,
    ClientModel,
    Cohort,
    Examples,
    Needs,
    Predictor,
    Server,
    Task,
)
from graphfl_jax.data import relations
from graphfl_jax.hypernets.generator import generator
from graphfl_jax.hypernets.output import output_layer
from graphfl_jax.hypernets.relation_gnn import RelationGNN, relation_encoder
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.mlp import MLP, mlp
from graphfl_jax.program import make_program
from graphfl_jax.trainers import Train, epoch_trainer, sgd_trainer
from tests.federations import small_config, two_clusters

KEY = jax.random.key(11)
MODEL = mlp(inputs=(2,), hidden=(4,), outputs=2, task=CLASSIFICATION)
TRAIN = sgd_trainer(optax.sgd(0.2), steps=3, batch_size=5)
FEDAVG, LOCAL = fedavg(MODEL, TRAIN), local(MODEL, TRAIN)


@functools.cache
def program_of(algorithm, cohort_size=3):
    """The program of an algorithm, compiled once for all tests."""
    return make_program(lambda hparams, played: algorithm, cohort_size=cohort_size)


def play(algorithm, data, rounds=3, cohort_size=3):
    """The state after some rounds."""
    program = program_of(algorithm, cohort_size)
    state = program.start(KEY, {}, data)
    return program.advance(state, KEY, {}, data, jnp.int32(rounds))[0]


def scores_of(algorithm, state, data, cohort_size=3):
    """The test scores of a state."""
    return program_of(algorithm, cohort_size).evaluate(state, KEY, {}, data)[0]["test"]


def assert_close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


@functools.cache
def same_batches():
    """Federated data in which a client's examples are all equal, and clients of one size."""
    data = two_clusters().data
    train = data.train
    equal = [np.repeat(leaf[:, :1], leaf.shape[1], axis=1) for leaf in (train.x, train.y)]
    return data._replace(train=Examples(*equal, np.full(7, 10, np.int32)))


def complete_graph():
    return relations.from_edges(7, [(i, j) for i in range(7) for j in range(i)])


@functools.cache
def fedavg_on_same_batches():
    return play(FEDAVG, same_batches())


# -------------------------------------------------------------- methods without a hypernetwork


def test_fedavg_of_one_client_is_local_training():
    data = two_clusters(num_clients=1).data
    averaged = play(FEDAVG, data, cohort_size=1)
    program = program_of(LOCAL, 1)
    first = program_of(FEDAVG, 1).start(KEY, {}, data).server
    state = program.start(KEY, {}, data)
    state = state._replace(clients=(jax.tree.map(lambda leaf: leaf[None], first),))
    state, _ = program.advance(state, KEY, {}, data, jnp.int32(3))
    (models,) = state.clients
    assert_close(jax.tree.map(lambda leaf: leaf[0], models), averaged.server, rtol=1e-6)


def test_fedprox_with_mu_0_is_fedavg():
    data = two_clusters().data
    ours, theirs = (
        play(each, data) for each in (fedprox(MODEL, TRAIN, mu=jnp.float32(0.0)), FEDAVG)
    )
    assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


META = {"local_steps": 3, "batch_size": 5, "client_lr": jnp.float32(0.2)}


def test_perfedavg_with_alpha_0_is_fedavg():
    """The adapted model P is then the model itself."""
    meta = perfedavg(MODEL, **META, perfedavg_alpha=jnp.float32(0.0))
    state = play(meta, same_batches())
    theirs = fedavg_on_same_batches()
    assert_close(state.server, theirs.server, rtol=1e-5, atol=1e-6)
    scores, same_scores = (
        scores_of(algorithm, own, same_batches())
        for algorithm, own in ((meta, state), (FEDAVG, theirs))
    )
    assert_close(scores, same_scores, atol=1e-6)


def test_perfedavg_exact_hessian_product_is_the_limit_of_the_difference():
    exact, difference = (
        perfedavg(MODEL, **META, perfedavg_hessian=kind, perfedavg_alpha=jnp.float32(0.1))
        for kind in ("hf", "fd")
    )
    ours, theirs = (play(each, same_batches(), rounds=1) for each in (exact, difference))
    assert_close(ours.server, theirs.server, atol=2e-4)


def test_pfedme_keeps_its_model_if_personal_models_do_not_move():
    """theta = w_i makes w_i - eta lambda (w_i - theta) = w_i."""
    resting = pfedme(
        MODEL,
        local_steps=3,
        batch_size=5,
        pfedme_steps=2,
        client_lr=jnp.float32(0.1),
        pfedme_lr=jnp.float32(0.0),
        pfedme_lambda=jnp.float32(2.0),
        pfedme_beta=jnp.float32(1.0),
    )
    data = two_clusters().data
    first = jax.device_get(program_of(resting).start(KEY, {}, data).server)
    assert_close(play(resting, data).server, first, atol=1e-6)


def test_ditto_global_model_is_that_of_fedavg():
    personal = ditto(MODEL, TRAIN, ditto_lambda=jnp.float32(0.3))
    ours, theirs = play(personal, same_batches()), fedavg_on_same_batches()
    assert_close(ours.server, theirs.server, rtol=1e-6, atol=1e-7)


def test_ditto_with_lambda_0_trains_personal_models_locally():
    """They start as the first model sent, and train in the rounds of their client."""
    data = same_batches()
    program = program_of(LOCAL)
    first = program_of(FEDAVG).start(KEY, {}, data).server
    state = program.start(KEY, {}, data)
    models = jax.tree.map(lambda leaf: jnp.stack([leaf] * 7), first)
    state, _ = program.advance(state._replace(clients=(models,)), KEY, {}, data, jnp.int32(3))
    free = play(ditto(MODEL, TRAIN, ditto_lambda=jnp.float32(0.0)), data)
    assert_close(free.clients, state.clients, rtol=1e-5, atol=1e-6)


def smoothing(rule="intended", weight=0.3, share=1.0):
    return Smoothing(2, rule, jnp.float32(weight), jnp.float32(share))


@functools.cache
def default_sfl():
    return sfl(MODEL, TRAIN, smoothing=smoothing())


@pytest.mark.parametrize("share, edges", [(0.0, None), (1.0, [])])
def test_sfl_without_smoothing_sends_each_client_its_last_upload(share, edges):
    """With a = 0, and without relations, u_i = v_i; w is still the mean of all."""
    data = two_clusters().data
    if edges is not None:
        data = data._replace(graph=relations.from_edges(7, edges))
    alone = sfl(MODEL, TRAIN, smoothing=smoothing(share=share))
    server = play(alone, data).server
    sent, shared = jax.vmap(alone.server.download, (None, 0))(server, jnp.arange(7))
    assert_close(sent, server.uploads, atol=1e-6)
    mean = jax.tree.map(lambda leaf: leaf.mean(0), server.uploads)
    assert_close(jax.tree.map(lambda leaf: leaf[3], shared), mean, atol=1e-6)


def test_sfl_on_a_complete_graph_with_lambda_0_is_fedavg():
    """Every row of A^ is 1 / N, so that u_i = w; lambda = 0 trains v_i freely."""
    equal = same_batches()._replace(graph=complete_graph())
    smoothed = sfl(MODEL, TRAIN, smoothing=smoothing(weight=0.0))
    ours, theirs = (play(each, equal, cohort_size=7) for each in (smoothed, FEDAVG))
    sent = smoothed.server.download(ours.server, 0)[0]
    assert_close(sent, theirs.server, rtol=1e-5, atol=1e-6)
    scores, same_scores = (
        scores_of(algorithm, state, equal, cohort_size=7)
        for algorithm, state in ((smoothed, ours), (FEDAVG, theirs))
    )
    assert_close(scores, same_scores, atol=1e-6)


def test_sfl_as_released_is_sfl_with_lambda_0_if_all_clients_take_part():
    free = sfl(MODEL, TRAIN, smoothing=smoothing(weight=0.0))
    released = sfl(MODEL, TRAIN, smoothing=smoothing("as_released"))
    for cohort_size, same in ((7, True), (3, False)):
        ours, theirs = (
            play(each, two_clusters().data, cohort_size=cohort_size).server.uploads
            for each in (released, free)
        )
        gap = float(tree.sq_dist(ours, theirs))
        assert (gap < 1e-9) == same


def test_sfl_star_with_learned_share_0_is_sfl():
    data = two_clusters().data
    star = sfl_star(
        MODEL,
        TRAIN,
        smoothing=smoothing(),
        sfl_graph_steps=2,
        sfl_graph_share=jnp.float32(0.0),
        sfl_graph_lr=jnp.float32(0.1),
    )
    ours, theirs = (play(each, data) for each in (star, default_sfl()))
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


# ----------------------------------------------------------------------------- fine-tuning


def one_client(i=2, data=None):
    """The `ClientData` of a client of the two clusters."""
    train = (data or two_clusters().data).train
    return ClientData(Examples(*map(jnp.asarray, tree.take(train, i))))


def test_fine_tuning_with_learning_rate_0_changes_nothing():
    """The personal models of Ditto are then the predictors, and training is Ditto's."""
    resting = sgd_trainer(optax.sgd(0.0), steps=2, batch_size=5)
    base = ditto(MODEL, TRAIN, ditto_lambda=jnp.float32(0.3))
    tuned = finetuned(base, resting, tuning_part="whole")
    assert (tuned.server, tuned.client.local) == (base.server, base.client.local)
    w, v = MODEL.init(KEY), MODEL.init(jax.random.key(1))
    ours, theirs = (
        jax.jit(each.client.personalize)(w, v, one_client(), KEY) for each in (tuned, base)
    )
    assert_close(ours, theirs, atol=1e-7)


def test_fedavg_fine_tuned_like_a_round_predicts_with_the_locally_trained_model():
    """P of the fine-tuned method is L, where all of a client's batches are equal."""
    tuned = finetuned(FEDAVG, TRAIN, tuning_part="whole")
    scores = scores_of(tuned, fedavg_on_same_batches(), same_batches())
    assert_close(scores["P"], scores["L"], atol=1e-6)


def test_fine_tuning_the_head_keeps_the_body():
    tuned = finetuned(FEDAVG, TRAIN, tuning_part="head")
    w = MODEL.init(KEY)
    after = jax.jit(tuned.client.personalize)(w, (), one_client(), KEY).params
    assert_close(after["body"], w["body"], atol=0)
    assert float(tree.sq_dist(after["head"], w["head"])) > 1e-6


@pytest.mark.parametrize("part", ["whole", "head", "new_head"])
def test_fine_tuning_changes_the_parameters_of_a_predictor_only(part):
    base = FEDAVG.replacing(deploy=lambda w, memory: Predictor(w, {"scale": jnp.float32(3.0)}))
    tuned = finetuned(base, TRAIN, tuning_part=part)
    w = MODEL.init(KEY)
    after = jax.jit(tuned.client.personalize)(w, (), one_client(), KEY)
    assert after.extra == {"scale": 3.0}
    assert float(tree.sq_dist(after.params, w)) > 1e-6


# ----------------------------------------------------------------------------- hypernetworks

NO_FIT = ServerFit(optax.sgd(0.0), 1, optax.sgd(0.1), "random")


def panacea_with(fit, *, layer="mean", lambda_d=0.0):
    sizes = {"width": 6, "depth": 3}
    return panacea(
        MODEL,
        TRAIN,
        encoder=relation_encoder(layer=layer, **sizes),
        generator=generator(output=output_layer(MODEL), embedding_dim=5, **sizes),
        fit=fit,
        lambda_d=jnp.float32(lambda_d),
        embedding_dropout=jnp.float32(0.0),
    )


def fit_of(rate, steps=2):
    return NO_FIT._replace(optimizer=optax.sgd(rate), steps=steps)


def models_of(algorithm, server, ids):
    """The messages to clients."""
    return jax.jit(jax.vmap(algorithm.server.download, (None, 0)))(server, ids)


def first_server(algorithm, key=KEY):
    return jax.jit(algorithm.server.init)(key, two_clusters().data.graph)


def test_a_hypernetwork_that_ignores_the_client_is_fedavg():
    """theta <- theta - 1/M sum (theta - theta_i) = 1/M sum theta_i, for equal client sizes."""
    data = two_clusters().data
    data = data._replace(train=data.train._replace(count=np.full(7, 10, np.int32)))
    constant = HyperNetwork(
        relate=lambda graph: (),
        init=lambda key, num_clients: MODEL.init(key),
        encode=lambda theta, relations, dropped: jnp.zeros((7, 1)),
        decode=lambda theta, embedding: theta,
        penalty=lambda theta, embeddings, relations: jnp.float32(0.0),
    )
    hyper = hyper_federation(MODEL, TRAIN, constant, fit_of(1.0, steps=1))
    average, generated = play(FEDAVG, data), play(hyper, data)
    assert_close(generated.server.weights, average.server, rtol=1e-4, atol=1e-6)
    scores, same_scores = scores_of(hyper, generated, data), scores_of(FEDAVG, average, data)
    assert_close(scores, same_scores, atol=1e-6)


def test_panacea_on_a_complete_graph_sends_one_model_to_all():
    """The mean over neighbours and self is then the same for all clients."""
    data = two_clusters().data._replace(graph=complete_graph())
    algorithm = panacea_with(fit_of(0.1))
    sent = models_of(algorithm, play(algorithm, data).server, jnp.arange(7))
    first = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), sent)
    assert_close(sent, first, atol=1e-6)


@pytest.mark.parametrize("layer", ["mean", "gcn", "sage"])
def test_without_relations_the_encoder_is_a_perceptron_on_each_embedding(layer):
    """With no edges D^-1 (A + I) = I; the neighbours' part of sage is its bias alone."""
    empty = relations.from_edges(4, [])
    embeddings = jax.random.normal(KEY, (4, 5))
    encoder, perceptron = RelationGNN((6, 6), layer), MLP((6, 6))
    propagation = relations.propagation(empty, layer)
    weights = encoder.init(KEY, embeddings, propagation)["params"]
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
    alone = perceptron.apply({"params": own}, embeddings)
    assert_close(encoder.apply({"params": weights}, embeddings, propagation), alone, atol=1e-6)


@pytest.mark.parametrize("rate, closer", [(0.01, True), (-0.01, False)])
def test_the_server_moves_its_models_towards_the_uploads(rate, closer):
    """The printed algorithm subtracts alpha J^T (theta~ - theta): a rate of -alpha."""
    algorithm = panacea_with(fit_of(rate))
    server = first_server(algorithm)
    cohort = Cohort(jnp.array([0, 2], jnp.int32), jnp.ones(2))
    sent = models_of(algorithm, server, cohort.ids)
    targets = jax.tree.map(lambda leaf: leaf + 0.1, sent)
    after = jax.jit(algorithm.server.aggregate)(server, cohort, targets, KEY)
    before, now = (
        float(tree.sq_dist(models, targets))
        for models in (sent, models_of(algorithm, after, cohort.ids))
    )
    assert (now < before) == closer


def test_the_graph_generator_trains_the_encoder_and_not_the_generator():
    """With targets equal to what was sent, only lambda_d BCE has a gradient (eq. 8)."""
    # One server step: in a second one the generator would follow the encoder.
    algorithm = panacea_with(fit_of(0.1, steps=1), lambda_d=1.0)
    server = first_server(algorithm, jax.random.key(0))  # no layer has only inactive ReLUs
    cohort = Cohort(jnp.array([0, 2], jnp.int32), jnp.ones(2))
    sent = models_of(algorithm, server, cohort.ids)
    after = jax.jit(algorithm.server.aggregate)(server, cohort, sent, KEY).weights
    for part in ("trunk", "output"):
        assert_close(after[part], server.weights[part], atol=1e-7)
    for part in ("encoder", "embeddings"):
        moved = jax.tree.map(
            lambda a, b: float(jnp.abs(a - b).max()), after[part], server.weights[part]
        )
        assert max(jax.tree.leaves(moved)) > 1e-6


def test_pfedhn_keeps_the_embeddings_of_clients_that_were_not_sampled():
    """Momentum and weight decay would change them; this is a departure from the authors."""
    optimizer = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, 0.9))
    algorithm = pfedhn(
        MODEL,
        TRAIN,
        embedding_dim=3,
        width=6,
        output=output_layer(MODEL),
        fit=NO_FIT._replace(optimizer=optimizer, steps=2),
    )
    server = first_server(algorithm)
    aggregate = jax.jit(algorithm.server.aggregate)
    cohort = Cohort(jnp.array([1, 4], jnp.int32), jnp.ones(2))
    sent = models_of(algorithm, server, cohort.ids)
    targets = jax.tree.map(lambda leaf: leaf + 1.0, sent)
    for _ in range(2):  # in the second round there is momentum
        learned = aggregate(server, cohort, targets, KEY)
        rest = np.array([0, 2, 3, 5, 6])
        old, new = (np.asarray(one.weights["embeddings"]) for one in (server, learned))
        np.testing.assert_array_equal(new[rest], old[rest])
        assert (np.abs(new - old)[np.array([1, 4])].max(1) > 1e-6).all()
        server = learned


# ------------------------------------------------------------------- learning-rate schedules


@functools.cache
def scheduled(schedule):
    """The experiment and program of FedAvg with a schedule of the client's learning rate."""
    config = small_config("fedavg", client_schedule=schedule)
    experiment = build_experiment(config, two_clusters())
    return experiment, make_program(experiment.build, groups=experiment.groups)


def rounds_of(program, hparams, rounds):
    """The server after each of some rounds."""
    data = two_clusters().data
    hparams = {name: jnp.float32(value) for name, value in hparams.items()}
    state = program.start(KEY, hparams, data)
    servers = []
    for _ in range(rounds):
        state, _ = program.advance(state, KEY, hparams, data, jnp.int32(1))
        servers.append(jax.device_get(state.server))
    return servers


def test_an_exponential_schedule_is_a_smaller_learning_rate_in_each_round():
    """Each round of a decay of 0.5 is a round of a constant half of the last learning rate."""
    experiment, program = scheduled("exponential")
    found = rounds_of(program, experiment.hparams | {"client_decay": 0.5}, 3)
    experiment, constant = scheduled("constant")
    data, rate = two_clusters().data, experiment.hparams["client_lr"]
    state = constant.start(KEY, {"client_lr": jnp.float32(rate)}, data)
    for played, server in enumerate(found):
        hparams = {"client_lr": jnp.float32(rate * 0.5**played)}
        state, _ = constant.advance(state, KEY, hparams, data, jnp.int32(1))
        assert_close(server, state.server, rtol=1e-6, atol=1e-7)


def test_a_constant_schedule_is_no_schedule_bit_for_bit():
    experiment, program = scheduled("constant")
    assert set(experiment.hparams) == {"client_lr"}

    def build(hparams, played):
        train = sgd_trainer(optax.sgd(hparams["client_lr"]), steps=5, batch_size=6)
        return fedavg(experiment.model, train)

    plain = make_program(build, cohort_size=4)
    ours, theirs = (rounds_of(each, experiment.hparams, 2) for each in (program, plain))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_schedule_of_the_server_changes_its_steps():
    """After three rounds, a decay of 0.5 is an eighth of the learning rate."""
    changes = {"client_optimizer": "sgd", "server_optimizer": "sgd"}
    experiment, same = (
        build_experiment(
            small_config("pfedhn", server_schedule=name, **changes), two_clusters()
        )
        for name in ("exponential", "constant")
    )
    cohort = Cohort(jnp.array([1, 4], jnp.int32), jnp.ones(2))

    def learned(experiment, hparams, played):
        algorithm = experiment.build(experiment.hparams | hparams, played)
        server = algorithm.server.init(KEY, two_clusters().data.graph)
        uploads = jax.vmap(lambda i: algorithm.server.download(server, i))(cohort.ids)
        uploads = jax.tree.map(lambda leaf: leaf + 1.0, uploads)
        return algorithm.server.aggregate(server, cohort, uploads, KEY).weights

    rate = same.hparams["server_lr"]
    ours = jax.jit(functools.partial(learned, experiment, {"server_decay": 0.5}))(jnp.int32(3))
    theirs = jax.jit(functools.partial(learned, same, {"server_lr": rate / 8}))(jnp.int32(3))
    assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------ what a method needs and receives


def needing(needs, monkeypatch):
    """Makes FedAvg need something of the federation."""

    def factory(model: ClientModel, train: Train) -> Algorithm:
        return fedavg(model, train).replacing(needs=needs)

    monkeypatch.setitem(ALGORITHMS, "fedavg", factory)


def without_relations(federation):
    return federation._replace(data=federation.data._replace(graph=relations.from_edges(7, [])))


def without_validation(federation):
    evals = {"test": federation.data.evals["test"]}
    return federation._replace(data=federation.data._replace(evals=evals))


@pytest.mark.parametrize(
    "needs, cohort_size, change, message",
    [
        (
            Needs(relations=True),
            *(4, without_relations),
            "needs relations between clients, and two_clusters has none; add edges to the "
            "file, or set --config.data.graph=knn",
        ),
        (
            Needs(validation=True),
            *(4, without_validation),
            "needs a validation split, and two_clusters has none; set "
            "--config.data.val_fraction=0.1",
        ),
        (
            Needs(everyone=True),
            *(4, lambda federation: federation),
            "needs all clients in every round, and cohort_size=4; set --config.cohort_size=7",
        ),
        (
            Needs(labels=True),
            *(4, lambda federation: federation._replace(task="regression")),
            "needs labels, and two_clusters is a regression; choose another method",
        ),
    ],
)
def test_needs_that_a_federation_does_not_meet_are_refused_in_one_line(
    needs, cohort_size, change, message, monkeypatch
):
    needing(needs, monkeypatch)
    with pytest.raises(ValueError) as refused:
        config = small_config("fedavg", cohort_size=cohort_size)
        build_experiment(config, change(two_clusters()))
    assert str(refused.value) == f"algorithm.name='fedavg' {message}"
    build_experiment(small_config("fedavg", cohort_size=7), two_clusters())


def test_every_objective_gets_another_key_in_every_step_for_every_client_and_round():
    """The objective's gradient is a number drawn from its key; step t stores it at place t."""
    steps = 6
    model = ClientModel(
        init=lambda key: {"body": (), "head": jnp.zeros(steps)},
        body=lambda params, x: x,
        head=lambda params, features: jnp.sum(params) + 0.0 * features[:, 0],
        task=Task(lambda outputs, y: outputs, lambda outputs, y: outputs, "sum", True),
        train_forward=lambda params, batch, key: jnp.broadcast_to(
            jnp.sum(params["head"]) * jax.random.normal(key), batch.y.shape
        ),
    )

    def store(gradient, number, params=None):
        place = jax.nn.one_hot(number, steps)
        return jax.tree.map(lambda leaf: leaf * place, gradient), number + 1

    optimizer = optax.GradientTransformation(lambda params: jnp.int32(0), store)
    trainers = {
        "sgd": sgd_trainer(optimizer, steps=steps, batch_size=3),
        # 10 to 12 examples are three batches of at most 4 in each of two epochs.
        "epochs": epoch_trainer(optimizer, epochs=2, batch_size=4),
    }
    for train in trainers.values():
        algorithm = fedavg(model, train).replacing(
            init=lambda key, graph: jnp.zeros((7, steps)),
            download=lambda drawn, i: model.init(KEY),
            aggregate=lambda drawn, cohort, uploads, key: uploads["head"],
        )
        draws = np.stack(
            [play(algorithm, two_clusters().data, rounds, 7).server for rounds in (1, 2)]
        )
        assert draws.shape == (2, 7, steps)
        assert len(np.unique(draws.round(4))) == 2 * 7 * steps


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

    server = Server(
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
    data = two_clusters().data
    algorithm, seen = storing(validation=True)
    state = play(algorithm, data, rounds=1, cohort_size=7)
    np.testing.assert_allclose(state.server, data.evals["val"].x.sum((1, 2)), rtol=1e-5)
    jax.eval_shape(program_of(algorithm, 7).evaluate, state, KEY, {}, data)
    assert all(val.x.shape == data.evals["val"].x.shape[1:] for val in seen)


def test_clients_receive_no_validation_examples_otherwise():
    algorithm, seen = storing()
    program, data = program_of(algorithm, 7), two_clusters().data
    state = jax.eval_shape(program.start, KEY, {}, data)
    jax.eval_shape(program.advance, state, KEY, {}, data, jnp.int32(1))
    jax.eval_shape(program.evaluate, state, KEY, {}, data)
    assert len(seen) >= 3 and set(seen) == {None}


def test_the_extra_of_a_predictor_reaches_predict_at_every_point():
    """Outputs times an extra of -1 are wrong where the outputs themselves are right."""
    factors = {"G": 1.0, "L": 1.0, "P": -1.0}

    def deploy(w, memory):
        return Predictor(w, jnp.float32(factors["G"]))

    def personalize(w, memory, data, key):
        return Predictor(w, jnp.float32(factors["P"]))

    def predict(predictor, x):
        return predictor.extra * MODEL.apply(predictor.params, x)

    negated = FEDAVG.replacing(deploy=deploy, predict=predict, personalize=personalize)
    assert negated.client == dataclasses.replace(
        FEDAVG.client, deploy=deploy, predict=predict, personalize=personalize
    )
    state, data = fedavg_on_same_batches(), same_batches()
    plain, ours = (scores_of(each, state, data) for each in (FEDAVG, negated))
    assert_close((ours["G"], ours["L"]), (plain["G"], plain["L"]), atol=1e-6)
    assert_close(ours["P"], 1 - plain["G"], atol=1e-6)
