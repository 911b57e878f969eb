"""Limit cases that tie methods to one another: what stored numbers could not pin down."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax import tree
from graphfl_jax.algorithms.ditto import ditto
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.fedprox import fedprox
from graphfl_jax.algorithms.hyper import HyperNetwork, hyper_federation
from graphfl_jax.algorithms.local import local
from graphfl_jax.algorithms.panacea import panacea
from graphfl_jax.algorithms.perfedavg import perfedavg
from graphfl_jax.algorithms.pfedhn import pfedhn
from graphfl_jax.algorithms.pfedme import pfedme
from graphfl_jax.algorithms.sfl import sfl, sfl_star
from graphfl_jax.algorithms.tuning import finetuned
from graphfl_jax.core import Cohort, Examples
from graphfl_jax.data import relations
from graphfl_jax.hypernets.relation_gnn import RelationGNN
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.mlp import MLP, mlp
from graphfl_jax.program import make_program
from graphfl_jax.trainers import sgd_trainer
from tests.federations import two_clusters

KEY = jax.random.key(11)
MODEL = mlp(inputs=(2,), hidden=(4,), outputs=2, task=CLASSIFICATION)
TRAIN = sgd_trainer(optax.sgd(0.2), steps=3, batch_size=5)
WHOLE = {"profile": "whole", "rank": 1}
NEW_CLIENTS = {"novel_optimizer": optax.sgd(0.1), "novel_code": "random"}
PANACEA = functools.partial(
    panacea,
    MODEL,
    TRAIN,
    server_steps=2,
    embedding_dim=5,
    width=6,
    depth=3,
    **WHOLE,
    embedding_dropout=jnp.float32(0.0),
    **NEW_CLIENTS,
)
SFL = {"sfl_layers": 2, "sfl_rule": "intended"}


def play(algorithm, data, rounds=3, cohort_size=3):
    program = make_program(lambda hparams, played: algorithm, MODEL, cohort_size=cohort_size)
    state = program.start(KEY, {}, data)
    state, _ = program.advance(state, KEY, {}, data, jnp.int32(rounds))
    return state, program.evaluate(state, KEY, {}, data)[0]


def assert_close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def test_fedavg_of_one_client_is_local_training():
    data = two_clusters(num_clients=1).data
    base = fedavg(MODEL, TRAIN)
    program = make_program(lambda hparams, played: base, MODEL, cohort_size=1)
    run_synchronized, _ = play(base, data, cohort_size=1)

    alone = local(MODEL, TRAIN)
    lonely = make_program(lambda hparams, played: alone, MODEL, cohort_size=1)
    state = lonely.start(KEY, {}, data)
    first = program.start(KEY, {}, data).server
    state = state._replace(clients=jax.tree.map(lambda leaf: leaf[None], first))
    state, _ = lonely.advance(state, KEY, {}, data, jnp.int32(3))
    assert_close(
        jax.tree.map(lambda leaf: leaf[0], state.clients), run_synchronized.server, rtol=1e-6
    )


def test_fedprox_without_its_pull_is_fedavg():
    data = two_clusters().data
    prox = fedprox(MODEL, TRAIN, mu=jnp.float32(0.0))
    for ours, theirs in zip(play(prox, data), play(fedavg(MODEL, TRAIN), data), strict=True):
        assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def same_batches():
    """Federated data in which all of a client's examples are alike, and clients of one size."""
    train = two_clusters().data.train
    alike = [np.repeat(leaf[:, :1], leaf.shape[1], axis=1) for leaf in (train.x, train.y)]
    train = Examples(*alike, np.full(7, 10, np.int32))
    return two_clusters().data._replace(train=train)


META = {
    "local_steps": 3,
    "batch_size": 5,
    "perfedavg_hessian": "hf",
    "client_lr": jnp.float32(0.2),
}


def test_perfedavg_without_adaptation_is_fedavg():
    meta = perfedavg(MODEL, TRAIN, **META, perfedavg_alpha=jnp.float32(0.0))
    ours, scores = play(meta, same_batches())
    theirs, same_scores = play(fedavg(MODEL, TRAIN), same_batches())
    assert_close(ours.server, theirs.server, rtol=1e-5, atol=1e-6)
    assert_close(scores["test"], same_scores["test"], atol=1e-6)


def test_the_exact_product_is_the_limit_of_the_difference():
    exact = perfedavg(MODEL, TRAIN, **META, perfedavg_alpha=jnp.float32(0.1))
    settings = META | {"perfedavg_hessian": "fd"}
    difference = perfedavg(MODEL, TRAIN, **settings, perfedavg_alpha=jnp.float32(0.1))
    ours, theirs = (play(each, same_batches(), rounds=1)[0] for each in (exact, difference))
    assert_close(ours.server, theirs.server, atol=2e-4)


def test_pfedme_whose_personal_models_rest_stays_where_it_is():
    """theta = w_i makes w_i - eta lambda (w_i - theta) = w_i."""
    resting = pfedme(
        MODEL,
        TRAIN,
        local_steps=3,
        batch_size=5,
        pfedme_steps=2,
        client_lr=jnp.float32(0.1),
        pfedme_lr=jnp.float32(0.0),
        pfedme_lambda=jnp.float32(2.0),
        pfedme_beta=jnp.float32(1.0),
    )
    state, _ = play(resting, two_clusters().data)
    assert_close(
        state.server, play(resting, two_clusters().data, rounds=0)[0].server, atol=1e-6
    )


def test_dittos_global_model_is_fedavgs():
    personal = ditto(MODEL, TRAIN, ditto_lambda=jnp.float32(0.3))
    ours, theirs = (play(each, same_batches())[0] for each in (personal, fedavg(MODEL, TRAIN)))
    assert_close(ours.server, theirs.server, rtol=1e-6, atol=1e-7)


def test_ditto_without_its_pull_trains_locally():
    """From the first model sent, and in the rounds for which a client is drawn."""
    data = same_batches()
    lonely = local(MODEL, TRAIN)
    first, _ = play(fedavg(MODEL, TRAIN), data, rounds=0)
    program = make_program(lambda hparams, played: lonely, MODEL, cohort_size=3)
    state = program.start(KEY, {}, data)
    everywhere = jax.tree.map(lambda leaf: jnp.stack([leaf] * 7), first.server)
    state, _ = program.advance(state._replace(clients=everywhere), KEY, {}, data, jnp.int32(3))
    free, _ = play(ditto(MODEL, TRAIN, ditto_lambda=jnp.float32(0.0)), data)
    assert_close(free.clients, state.clients, rtol=1e-5, atol=1e-6)


def floats(**values):
    return {name: jnp.float32(value) for name, value in values.items()}


@pytest.mark.parametrize("share, edges", [(0.0, None), (1.0, [])])
def test_sfl_that_mixes_nothing_gives_each_client_its_last_upload(share, edges):
    """With a = 0, and without relations, u_i = v_i; w is still the mean of all."""
    data = two_clusters().data
    if edges is not None:
        data = data._replace(graph=relations.from_edges(7, edges))
    alone = sfl(MODEL, TRAIN, **SFL, **floats(sfl_lambda=0.3, sfl_share=share))
    state, _ = play(alone, data)
    sent, shared = jax.vmap(alone.download, (None, 0))(state.server, jnp.arange(7))
    assert_close(sent, state.server.uploads, atol=1e-6)
    mean = jax.tree.map(lambda leaf: leaf.mean(0), state.server.uploads)
    assert_close(jax.tree.map(lambda leaf: leaf[3], shared), mean, atol=1e-6)


def test_sfl_among_clients_that_all_know_each_other_is_fedavg():
    """On a complete graph every row of A^ is 1 / N, so that u_i = w; lambda = 0 frees v_i."""
    pairs = [(i, j) for i in range(7) for j in range(i)]
    equal = same_batches()._replace(graph=relations.from_edges(7, pairs))
    run_synchronized = sfl(MODEL, TRAIN, **SFL, **floats(sfl_lambda=0.0, sfl_share=1.0))
    ours, scores = play(run_synchronized, equal, cohort_size=7)
    theirs, same_scores = play(fedavg(MODEL, TRAIN), equal, cohort_size=7)
    sent = run_synchronized.download(ours.server, 0)[0]
    assert_close(sent, theirs.server, rtol=1e-5, atol=1e-6)
    assert_close(scores["test"], same_scores["test"], atol=1e-6)


def test_sfl_as_released_is_sfl_without_pull_while_everybody_plays():
    free = sfl(MODEL, TRAIN, **SFL, **floats(sfl_lambda=0.0, sfl_share=1.0))
    rule = SFL | {"sfl_rule": "as_released"}
    released = sfl(MODEL, TRAIN, **rule, **floats(sfl_lambda=0.3, sfl_share=1.0))
    for cohort_size, same in ((7, True), (3, False)):
        ours, theirs = (
            play(each, two_clusters().data, cohort_size=cohort_size)[0].server.uploads
            for each in (released, free)
        )
        gap = float(tree.sq_dist(ours, theirs))
        assert (gap < 1e-9) == same


def test_sfl_star_that_learns_no_relations_is_sfl():
    data = two_clusters().data
    given = floats(sfl_lambda=0.3, sfl_share=1.0)
    plain = sfl(MODEL, TRAIN, **SFL, **given)
    ours, theirs = (
        play(each, data)
        for each in (
            sfl_star(
                MODEL,
                TRAIN,
                **SFL,
                **given,
                sfl_graph_steps=2,
                **floats(sfl_graph_share=0.0, sfl_graph_lr=0.1),
            ),
            plain,
        )
    )
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_fine_tuning_by_no_step_is_the_method():
    resting = sgd_trainer(optax.sgd(0.0), steps=2, batch_size=5)
    base = ditto(MODEL, TRAIN, ditto_lambda=jnp.float32(0.3))
    tuned = finetuned(base, MODEL, resting, tuning_part="whole")
    for ours, theirs in zip(
        play(tuned, two_clusters().data), play(base, two_clusters().data), strict=True
    ):
        assert_close(ours, theirs, atol=1e-7)


def test_fine_tuning_fedavg_as_a_round_trains_is_its_locally_trained_model():
    """P of the tuned is L of the plain, when all of a client's batches are alike."""
    base = fedavg(MODEL, TRAIN)
    tuned = finetuned(base, MODEL, TRAIN, tuning_part="whole")
    _, scores = play(tuned, same_batches())
    assert_close(scores["test"]["P"], scores["test"]["L"], atol=1e-6)


def test_fine_tuning_the_head_leaves_the_body():
    tuned = finetuned(fedavg(MODEL, TRAIN), MODEL, TRAIN, tuning_part="head")
    examples = tree.take(two_clusters().data.train, 2)
    examples = Examples(*map(jnp.asarray, examples))
    w = MODEL.init(KEY)
    after = tuned.personalize(w, (), examples, KEY)
    assert_close(after["body"], w["body"], atol=0)
    assert float(tree.sq_dist(after["head"], w["head"])) > 1e-6


def test_a_hypernetwork_that_ignores_the_client_is_fedavg():
    """theta <- theta - 1/M sum (theta - theta_i) = 1/M sum theta_i, for equal client sizes."""
    data = two_clusters().data
    equal = data.train._replace(count=np.full(7, 10, np.int32))
    data = data._replace(train=equal)
    constant = HyperNetwork(
        relate=lambda graph: (),
        init=lambda key, num_clients: MODEL.init(key),
        encode=lambda theta, relations, mask: jnp.zeros((7, 1)),
        decode=lambda theta, code: theta,
        penalty=lambda theta, embeddings, relations: jnp.float32(0.0),
    )
    hyper = hyper_federation(
        MODEL, TRAIN, constant, server_optimizer=optax.sgd(1.0), server_steps=1, **NEW_CLIENTS
    )
    average, scores = play(fedavg(MODEL, TRAIN), data)
    generated, same_scores = play(hyper, data)
    assert_close(generated.server.weights, average.server, rtol=1e-4, atol=1e-6)
    assert_close(same_scores, scores, atol=1e-6)


def test_clients_that_hear_everybody_are_sent_one_model():
    """On a complete graph the mean over neighbours and self is the same for all."""
    pairs = [(i, j) for i in range(7) for j in range(i)]
    data = two_clusters().data._replace(graph=relations.from_edges(7, pairs))
    algorithm = PANACEA(
        server_optimizer=optax.sgd(0.1), layer="mean", lambda_d=jnp.float32(0.0)
    )
    state, _ = play(algorithm, data)
    sent = jax.vmap(algorithm.download, (None, 0))(state.server, jnp.arange(7))
    first = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), sent)
    assert_close(sent, first, atol=1e-6)


@pytest.mark.parametrize("layer", ["mean", "gcn", "sage"])
def test_without_relations_the_encoder_is_a_perceptron_on_each_code(layer):
    """With no edges D^-1 (A + I) = I; what sage hears of nobody is zero, or its bias."""
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
def test_the_server_steps_towards_what_clients_return(rate, closer):
    """The printed algorithm subtracts alpha J^T (theta~ - theta): a rate of -alpha."""
    algorithm = PANACEA(
        server_optimizer=optax.sgd(rate), layer="mean", lambda_d=jnp.float32(0.0)
    )
    server = algorithm.init(KEY, two_clusters().data.graph)
    cohort = Cohort(jnp.array([0, 2], jnp.int32), jnp.ones(2))
    generate = jax.vmap(algorithm.download, (None, 0))
    targets = jax.tree.map(lambda leaf: leaf + 0.1, generate(server, cohort.ids))
    after = algorithm.aggregate(server, cohort, targets, KEY)
    before, now = (tree.sq_dist(generate(s, cohort.ids), targets) for s in (server, after))
    assert (float(now) < float(before)) == closer


def test_the_graph_generator_moves_the_encoder_and_not_the_generator():
    """With targets equal to what was sent, only lambda_d BCE has a gradient (eq. 8)."""
    # One server step: in a second one the generator would follow what the first one moved.
    algorithm = PANACEA(
        server_optimizer=optax.sgd(0.1), server_steps=1, layer="mean", lambda_d=jnp.float32(1.0)
    )
    key = jax.random.key(0)  # a draw in which no layer's ReLUs are all dead
    server = algorithm.init(key, two_clusters().data.graph)
    cohort = Cohort(jnp.array([0, 2], jnp.int32), jnp.ones(2))
    sent = jax.vmap(algorithm.download, (None, 0))(server, cohort.ids)
    after = algorithm.aggregate(server, cohort, sent, KEY).weights
    for part in ("trunk", "output"):
        assert_close(after[part], server.weights[part], atol=1e-7)
    for part in ("encoder", "embeddings"):
        moved = jax.tree.map(
            lambda a, b: float(jnp.abs(a - b).max()), after[part], server.weights[part]
        )
        assert max(jax.tree.leaves(moved)) > 1e-6


def test_embeddings_of_clients_that_took_no_part_rest():
    """Momentum and weight decay would move them; pFedHN's departure says they do not."""
    optimizer = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, 0.9))
    algorithm = pfedhn(
        MODEL,
        TRAIN,
        server_optimizer=optimizer,
        server_steps=2,
        embedding_dim=3,
        width=6,
        **WHOLE,
        **NEW_CLIENTS,
    )
    server = algorithm.init(KEY, two_clusters().data.graph)
    cohort = Cohort(jnp.array([1, 4], jnp.int32), jnp.ones(2))
    sent = jax.vmap(algorithm.download, (None, 0))(server, cohort.ids)
    targets = jax.tree.map(lambda leaf: leaf + 1.0, sent)
    for _ in range(2):  # so that momentum is there to drift with
        learned = algorithm.aggregate(server, cohort, targets, KEY)
        rest = np.array([0, 2, 3, 5, 6])
        old, new = server.weights["embeddings"], learned.weights["embeddings"]
        np.testing.assert_array_equal(new[rest], old[rest])
        assert (np.abs(new - old)[np.array([1, 4])].max(1) > 1e-6).all()
        server = learned
