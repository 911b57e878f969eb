"""Each method against a few lines of NumPy in float64 that share no code with it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax.algorithms.ditto import ditto
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.fedprox import fedprox
from graphfl_jax.algorithms.local import local
from graphfl_jax.algorithms.panacea import graph_loss, panacea, panacea_mlp
from graphfl_jax.algorithms.perfedavg import perfedavg
from graphfl_jax.algorithms.pfedhn import pfedhn
from graphfl_jax.algorithms.pfedme import pfedme
from graphfl_jax.algorithms.sfl import _learn_relations, sfl
from graphfl_jax.algorithms.tuning import finetuned
from graphfl_jax.core import ClientModel, Cohort, Examples, FederatedData
from graphfl_jax.data import relations
from graphfl_jax.metrics import REGRESSION
from graphfl_jax.program import make_program
from graphfl_jax.trainers import epoch_trainer, sgd_trainer

KEY = jax.random.key(2)
RATE = 0.1
# One linear weight per client, w x, in the form {"body": ..., "head": ...}.
LINE = ClientModel(
    init=lambda key: {"body": {}, "head": jax.random.normal(key, (1,))},
    body=lambda params, x: x,
    head=lambda params, features: features * params[0],
    task=REGRESSION,
)
TRAIN = sgd_trainer(optax.sgd(RATE), steps=3, batch_size=None)
X = np.array([[1.0, 2.0, 0.0], [0.5, -1.0, 1.5], [2.0, 1.0, -1.0]])  # [clients, examples]
Y = np.array([[2.0, 4.5, 0.0], [0.5, -0.5, 1.0], [-1.0, 0.0, 2.0]])
COUNT = np.array([2, 3, 3])


def data(edges=((0, 1),)):
    examples = Examples(
        X[..., None].astype(np.float32), Y[..., None].astype(np.float32), COUNT.astype(np.int32)
    )
    return FederatedData(examples, {"test": examples}, relations.from_edges(3, edges))


def gradient_descent(w, i, steps=3, mu=0.0):
    """w <- w - rate (d/dw mean (w x - y)^2 + mu (w - start)) over client i's real examples."""
    x, y = X[i, : COUNT[i]], Y[i, : COUNT[i]]
    start = w
    for _ in range(steps):
        w = w - RATE * (np.mean(2 * (w * x - y) * x) + mu * (w - start))
    return w


def test_fedavg_is_the_mean_by_examples_of_gradient_descents():
    algorithm = fedavg(LINE, TRAIN)
    program = make_program(lambda hparams, played: algorithm, LINE, cohort_size=3)
    state = program.start(KEY, {}, data())
    w = float(state.server["head"][0])
    for _ in range(2):
        w = sum(COUNT[i] * gradient_descent(w, i) for i in range(3)) / COUNT.sum()
    state, _ = program.advance(state, KEY, {}, data(), jnp.int32(2))
    np.testing.assert_allclose(state.server["head"][0], w, rtol=1e-5)
    scores = program.evaluate(state, KEY, {}, data())[0]["test"]
    real = np.arange(3) < COUNT[:, None]
    squares = lambda w: np.sum(real * (w * X - Y) ** 2, 1) / COUNT  # noqa: E731
    after = np.array([gradient_descent(w, i) for i in range(3)])
    np.testing.assert_allclose(scores["G"], squares(w), rtol=1e-4)
    np.testing.assert_allclose(scores["L"], squares(after[:, None]), rtol=1e-4)
    np.testing.assert_allclose(scores["P"], scores["G"])


def test_fedprox_descends_with_a_pull_back():
    algorithm = fedprox(LINE, TRAIN, mu=jnp.float32(0.8))
    program = make_program(lambda hparams, played: algorithm, LINE, cohort_size=3)
    state = program.start(KEY, {}, data())
    w = float(state.server["head"][0])
    w = sum(COUNT[i] * gradient_descent(w, i, mu=0.8) for i in range(3)) / COUNT.sum()
    state, _ = program.advance(state, KEY, {}, data(), jnp.int32(1))
    np.testing.assert_allclose(state.server["head"][0], w, rtol=1e-5)


def test_local_is_gradient_descent_of_each_client_when_drawn():
    algorithm = local(LINE, TRAIN)
    program = make_program(lambda hparams, played: algorithm, LINE, cohort_size=2)
    state = program.start(KEY, {}, data())
    before = np.asarray(state.clients["head"][:, 0])
    after, _ = program.advance(state, KEY, {}, data(), jnp.int32(1))
    after = np.asarray(after.clients["head"][:, 0])
    trained = np.array([gradient_descent(before[i], i) for i in range(3)])
    moved = after != before
    assert moved.sum() == 2
    np.testing.assert_allclose(after, np.where(moved, trained, before), rtol=1e-5)


def one_each():
    """Federated data in which client i has its first example only: every batch is that one."""
    full = data()
    single = full.train._replace(count=np.ones(3, np.int32))
    return full._replace(train=single)


def slope(w, i):
    """d/dw (w x - y)^2 at client i's first example."""
    return 2 * X[i, 0] * (w * X[i, 0] - Y[i, 0])


def played(algorithm, rounds):
    """Start, state after some rounds with all clients, and scores."""
    program = make_program(lambda hparams, played: algorithm, LINE, cohort_size=3)
    start = float(program.start(KEY, {}, one_each()).server["head"][0])
    state = program.start(KEY, {}, one_each())
    state, _ = program.advance(state, KEY, {}, one_each(), jnp.int32(rounds))
    return start, state, program.evaluate(state, KEY, {}, one_each())[0]["test"]


def squares(w):
    """Mean squared error of weights w [3] over each client's three test examples."""
    real = np.arange(3) < COUNT[:, None]
    return np.sum(real * (np.asarray(w)[:, None] * X - Y) ** 2, 1) / COUNT


@pytest.mark.parametrize("hessian, share", [("hf", 1.0), ("fd", 1.0), ("fo", 0.0)])
def test_perfedavg_descends_the_adapted_loss(hessian, share):
    """On (w x - y)^2, H = 2 x^2, so a step is w - beta (1 - alpha H) g(w - alpha g(w))."""
    alpha, beta = 0.05, 0.1
    algorithm = perfedavg(
        LINE,
        TRAIN,
        local_steps=2,
        batch_size=4,
        perfedavg_hessian=hessian,
        client_lr=jnp.float32(beta),
        perfedavg_alpha=jnp.float32(alpha),
    )
    w, state, scores = played(algorithm, rounds=2)
    for _ in range(2):
        trained = []
        for i in range(3):
            w_i = w
            for _ in range(2):
                outer = slope(w_i - alpha * slope(w_i, i), i)
                w_i = w_i - beta * (1 - share * alpha * 2 * X[i, 0] ** 2) * outer
            trained.append(w_i)
        w = np.mean(trained)
    np.testing.assert_allclose(state.server["head"][0], w, rtol=1e-3)
    adapted = [w - alpha * slope(w, i) for i in range(3)]
    np.testing.assert_allclose(scores["P"], squares(adapted), rtol=1e-3)
    np.testing.assert_allclose(scores["G"], squares([w] * 3), rtol=1e-3)


def test_pfedme_solves_proximal_problems_and_is_scored_at_theta():
    lam, eta, rate, beta = 2.0, 0.1, 0.05, 0.5
    algorithm = pfedme(
        LINE,
        TRAIN,
        local_steps=2,
        batch_size=4,
        pfedme_steps=3,
        client_lr=jnp.float32(eta),
        pfedme_lr=jnp.float32(rate),
        pfedme_lambda=jnp.float32(lam),
        pfedme_beta=jnp.float32(beta),
    )
    w, state, scores = played(algorithm, rounds=2)
    for _ in range(2):
        copies, personal = [w] * 3, [w] * 3
        for i in range(3):
            for _ in range(2):
                for _ in range(3):
                    pull = slope(personal[i], i) + lam * (personal[i] - copies[i])
                    personal[i] = personal[i] - rate * pull
                copies[i] = copies[i] - eta * lam * (copies[i] - personal[i])
        w = (1 - beta) * w + beta * np.mean(copies)
    np.testing.assert_allclose(state.server["head"][0], w, rtol=1e-4)
    np.testing.assert_allclose(state.clients["head"][:, 0], personal, rtol=1e-4)
    np.testing.assert_allclose(scores["P"], squares(personal), rtol=1e-4)


def test_ditto_pulls_personal_models_to_what_was_sent():
    lam = 0.8
    algorithm = ditto(LINE, TRAIN, ditto_lambda=jnp.float32(lam))
    w, state, scores = played(algorithm, rounds=2)
    personal = [w] * 3
    for _ in range(2):
        trained = []
        for i in range(3):
            w_i = w
            for _ in range(3):
                w_i = w_i - RATE * slope(w_i, i)
                pull = slope(personal[i], i) + lam * (personal[i] - w)
                personal[i] = personal[i] - RATE * pull
            trained.append(w_i)
        w = np.mean(trained)
    np.testing.assert_allclose(state.server["head"][0], w, rtol=1e-4)
    np.testing.assert_allclose(state.clients["head"][:, 0], personal, rtol=1e-4)
    np.testing.assert_allclose(scores["P"], squares(personal), rtol=1e-4)


def linear(weights, x):
    return x @ weights["kernel"] + weights["bias"]


def stacked(weights, x, last_relu=False):
    """Dense_0, Dense_1, ... with ReLU between them."""
    for i in range(len(weights)):
        x = np.maximum(x, 0) if i else x
        x = linear(weights[f"Dense_{i}"], x)
    return x


def generate_pfedhn(weights, related):
    return stacked(
        weights["output"]["linear"], stacked(weights["trunk"], weights["embeddings"])
    )


def generate_mlp(weights, related):
    hidden = stacked(weights["trunk"], weights["embeddings"])
    return stacked(weights["output"]["linear"], np.maximum(hidden, 0))


def encode(weights, heard, sage, forget=False):
    """Codes after two layers; `heard` [N, N] is 1 where the row's client hears the column's."""
    embeddings = weights["embeddings"]
    if forget:
        embeddings = heard / heard.sum(1, keepdims=True) @ embeddings
    own = np.zeros_like(heard) if sage else np.eye(len(heard))
    mixing = (heard + own) / np.maximum((heard + own).sum(1, keepdims=True), 1)
    for i in range(2):
        embeddings = np.maximum(embeddings, 0) if i else embeddings
        if sage:
            neighbours, self_ = (weights["encoder"][f"Dense_{2 * i + k}"] for k in (0, 1))
            embeddings = linear(neighbours, mixing @ embeddings) + embeddings @ self_["kernel"]
        else:
            embeddings = linear(weights["encoder"][f"Dense_{i}"], mixing @ embeddings)
    return embeddings


def objective(
    weights, frozen, targets, ids, *, generate, heard=None, sage=False, lam=0.0, forget=False
):
    """J with M's weights in the graph term taken from `frozen`: eq. (4) + lambda_d eq. (5)."""
    if heard is None:
        return 0.5 * np.mean(np.sum((targets - generate(weights, None)[ids]) ** 2, 1))
    embeddings = encode(weights, heard, sage, forget)
    hidden = stacked(weights["trunk"], embeddings)
    sent = stacked(weights["output"]["linear"], np.maximum(hidden, 0))
    fit = 0.5 * np.mean(np.sum((targets - sent[ids]) ** 2, 1))
    generator = stacked(frozen["trunk"], embeddings)
    edges = 1 / (1 + np.exp(-generator @ generator.T / generator.shape[1]))
    off = ~np.eye(len(heard), dtype=bool)
    bce = -np.mean(np.where(heard > 0, np.log(edges), np.log(1 - edges))[off])
    return fit + lam * bce


def numerical_step(weights, rate, value):
    """Gradient descent by central differences: no derivative is written down anywhere."""
    flat, shape = jax.tree.flatten(weights)
    frozen = jax.tree.map(np.copy, weights)
    gradients = []
    for leaf in flat:
        gradient = np.zeros_like(leaf)
        for index in np.ndindex(leaf.shape):
            kept = leaf[index]
            values = []
            for shift in (1e-5, -1e-5):
                leaf[index] = kept + shift
                values.append(value(jax.tree.unflatten(shape, flat), frozen))
            leaf[index] = kept
            gradient[index] = (values[0] - values[1]) / 2e-5
        gradients.append(gradient)
    moved = [leaf - rate * g for leaf, g in zip(flat, gradients, strict=True)]
    return jax.tree.unflatten(shape, moved)


SIZES = {"profile": "whole", "rank": 1, "embedding_dim": 2, "width": 3}
NEW_CLIENTS = {"novel_optimizer": optax.sgd(0.2), "novel_code": "neighbours"}
MEAN = {"depth": 2, "layer": "mean", "embedding_dropout": 0.0}
HEARD = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], float)  # the path 0 - 1 - 2


@pytest.mark.parametrize(
    "factory, settings, reference",
    [
        (pfedhn, {}, {"generate": generate_pfedhn}),
        (panacea_mlp, {"depth": 2}, {"generate": generate_mlp}),
        (panacea, MEAN | {"lambda_d": 0.0}, {"heard": HEARD}),
        (panacea, MEAN | {"lambda_d": 0.7}, {"heard": HEARD, "lam": 0.7}),
        (
            panacea,
            {"depth": 2, "layer": "sage", "lambda_d": 0.7, "embedding_dropout": 0.0},
            {"heard": HEARD, "lam": 0.7, "sage": True},
        ),
        (
            panacea,
            {"depth": 2, "layer": "sage", "lambda_d": 0.7, "embedding_dropout": 1.0},
            {"heard": HEARD, "lam": 0.7, "sage": True, "forget": True},
        ),
    ],
)
def test_hypernetworks_descend_their_objective(factory, settings, reference):
    """Two server steps towards fixed targets equal two numerical ones in float64."""
    rate = 0.3
    step = {"server_optimizer": optax.sgd(rate), "server_steps": 2}
    algorithm = factory(LINE, TRAIN, **step, **NEW_CLIENTS, **SIZES, **settings)
    server = algorithm.init(KEY, data(((0, 1), (1, 2))).graph)
    cohort = Cohort(jnp.array([0, 2], jnp.int32), jnp.ones(2))
    targets = np.array([[1.5], [-0.5]])
    uploads = {"body": {}, "head": jnp.asarray(targets, jnp.float32)}

    weights = jax.tree.map(lambda leaf: np.array(leaf, np.float64), server.weights)
    sent = jax.vmap(algorithm.download, (None, 0))(server, jnp.arange(3))["head"]
    if "generate" in reference:
        np.testing.assert_allclose(sent, reference["generate"](weights, None), rtol=1e-4)
    for _ in range(2):
        weights = numerical_step(
            weights,
            rate,
            lambda w, frozen: objective(
                w, frozen, targets, [0, 2], **{"generate": None, **reference}
            ),
        )
    learned = algorithm.aggregate(algorithm.prepare(server, KEY), cohort, uploads, KEY).weights
    assert jax.tree.structure(learned) == jax.tree.structure(weights)
    for ours, theirs in zip(jax.tree.leaves(learned), jax.tree.leaves(weights), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_newcomers_begin_at_their_neighbours_and_move_their_codes_alone():
    """Clients 0 and 1 trained; 2, related to 1, joins, and takes two numerical steps."""
    rate = 0.2
    algorithm = panacea(
        LINE,
        TRAIN,
        server_optimizer=optax.sgd(0.1),
        server_steps=2,
        lambda_d=0.7,
        **NEW_CLIENTS,
        **SIZES,
        **MEAN,
    )
    trained = algorithm.init(KEY, relations.from_edges(2, [(0, 1)]))
    graph = data(((0, 1), (1, 2))).graph
    new_clients = jnp.array([2], jnp.int32)
    server = algorithm.admit(trained, new_clients, graph, KEY)
    embeddings = np.asarray(trained.weights["embeddings"])
    np.testing.assert_allclose(server.weights["embeddings"], embeddings[[0, 1, 1]], rtol=1e-6)

    weights = jax.tree.map(lambda leaf: np.array(leaf, np.float64), server.weights)
    target = np.array([[2.5]])
    value = lambda w, frozen: objective(w, frozen, target, [2], generate=None, heard=HEARD)  # noqa: E731
    for _ in range(2):
        embeddings = numerical_step(weights, rate, value)["embeddings"]
        weights["embeddings"][2] = embeddings[2]
    uploads = {"body": {}, "head": jnp.asarray(target, jnp.float32)}
    after = algorithm.adapt(server, Cohort(new_clients, jnp.ones(1)), uploads, KEY).weights
    for ours, theirs in zip(jax.tree.leaves(after), jax.tree.leaves(weights), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(after["embeddings"][:2], server.weights["embeddings"][:2])


@pytest.mark.parametrize(
    "scheme, expected",
    [
        ("zero", [[0.0], [0.0]]),
        ("mean", [[4.0], [4.0]]),
        # Client 3 knows 0 and the new client 4, who counts for nothing; client 4 knows nobody.
        ("neighbours", [[1.0], [4.0]]),
        ("neighbour", [[1.0], None]),
        ("random", [None, None]),
    ],
)
def test_codes_of_newcomers_by_every_scheme(scheme, expected):
    rule = NEW_CLIENTS | {"novel_code": scheme}
    algorithm = pfedhn(
        LINE,
        TRAIN,
        server_optimizer=optax.sgd(0.1),
        server_steps=1,
        embedding_dim=1,
        width=2,
        profile="whole",
        rank=1,
        **rule,
    )
    server = algorithm.init(KEY, relations.from_edges(3, [(0, 1)]))
    embeddings = jnp.array([[1.0], [3.0], [8.0]])
    server = server._replace(weights=server.weights | {"embeddings": embeddings})
    graph = relations.from_edges(5, [(0, 1), (0, 3), (3, 4)])
    admitted = algorithm.admit(server, jnp.array([3, 4], jnp.int32), graph, KEY)
    now = np.asarray(admitted.weights["embeddings"])
    np.testing.assert_array_equal(now[:3], embeddings)
    for row, wanted in zip(now[3:], expected, strict=True):
        if wanted is not None:
            np.testing.assert_allclose(row, wanted)
        elif scheme == "neighbour":  # nobody known is near: any known client's
            assert row in np.asarray(embeddings)
        else:
            assert row not in np.asarray(embeddings)


@pytest.mark.parametrize("rule", ["intended", "as_released"])
def test_sfl_smooths_over_relations_and_pulls_to_both(rule):
    """The path 0 - 1 - 2; everybody plays, so that only the pull tells the rules apart."""
    lam, share = (0.6, 0.75)
    algorithm = sfl(
        LINE,
        TRAIN,
        sfl_layers=2,
        sfl_rule=rule,
        sfl_lambda=jnp.float32(lam),
        sfl_share=jnp.float32(share),
    )
    path = one_each()._replace(graph=data(((0, 1), (1, 2))).graph)
    program = make_program(lambda hparams, played: algorithm, LINE, cohort_size=3)
    state = program.start(KEY, {}, path)
    v = np.asarray(state.server.uploads["head"][:, 0], np.float64)
    given = np.array([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 2, 1 / 2]])
    mixing = share * given @ given + (1 - share) * np.eye(3)
    for _ in range(2):
        u = mixing @ v
        w = u.mean()
        v = np.full(3, w)
        for _ in range(3):
            pull = lam * ((v - u) + (v - w)) if rule == "intended" else 0.0
            v = v - RATE * (np.array([slope(v[i], i) for i in range(3)]) + pull)
    state, _ = program.advance(state, KEY, {}, path, jnp.int32(2))
    np.testing.assert_allclose(state.server.uploads["head"][:, 0], v, rtol=1e-4)
    scores = program.evaluate(state, KEY, {}, path)[0]["test"]
    np.testing.assert_allclose(scores["G"], squares(mixing @ v), rtol=1e-4)
    np.testing.assert_allclose(scores["P"], scores["G"])


def test_sfl_gives_a_newcomer_its_row_over_the_known():
    """Client 2 joins behind 1: (A^^2)_2 = (1/6, 5/12, 5/12), over the known (2/7, 5/7)."""
    algorithm = sfl(
        LINE, TRAIN, sfl_layers=2, sfl_rule="intended", sfl_lambda=0.3, sfl_share=1.0
    )
    server = algorithm.init(KEY, relations.from_edges(2, [(0, 1)]))
    uploads = {"body": {}, "head": jnp.array([[7.0], [14.0]])}
    server = server._replace(uploads=uploads)
    graph = data(((0, 1), (1, 2))).graph
    admitted = algorithm.admit(server, jnp.array([2], jnp.int32), graph, KEY)
    sent, _ = algorithm.download(admitted, 2)
    np.testing.assert_allclose(sent["head"], [12.0], rtol=1e-6)


def test_sfl_star_joins_similar_models_and_the_released_learner_those_that_differ():
    """Four models in two pairs. E1 E2^T - E2 E1^T has one sign each way: no pair is mutual."""
    pairs = {"body": {}, "head": jnp.array([[1.0, 0.2], [1.1, 0.1], [-1.0, 0.3], [-1.2, 0.2]])}
    within = np.kron(np.eye(2), np.ones((2, 2))) - np.eye(4)
    shares = {}
    for apart in (False, True):
        learn = functools.partial(_learn_relations, pairs, steps=100, rate=1.0, apart=apart)
        graphs = np.asarray(jax.vmap(learn)(jax.random.split(KEY, 64)))
        assert (graphs >= 0).all() and (np.diagonal(graphs, axis1=1, axis2=2) == 0).all()
        assert (graphs * graphs.swapaxes(1, 2) == 0).all()
        shares[apart] = (graphs * within).sum() / graphs.sum()
    assert shares[False] > shares[True] + 0.05  # from 0.41 at the start to 0.41 and 0.32


def test_fine_tuning_by_epochs_takes_every_example_once_each():
    """On the loss w x the gradient is x, whatever w: three passes subtract three sums."""
    slopes = LINE.objective
    trainer = epoch_trainer(optax.sgd(RATE), epochs=3, batch_size=1)

    def linear(params, batch):
        return jnp.sum(batch.x[:, 0] * params["head"][0])

    for i in range(3):
        examples = Examples(*(jnp.asarray(leaf[i]) for leaf in data().train))
        start = {"body": {}, "head": jnp.array([0.5])}
        after, _ = trainer(linear, start, examples, KEY)
        expected = 0.5 - RATE * 3 * X[i, : COUNT[i]].sum()
        np.testing.assert_allclose(after["head"], [expected], rtol=1e-5)
        whole, _ = epoch_trainer(optax.sgd(RATE), epochs=3, batch_size=8)(
            slopes, start, examples, KEY
        )
        np.testing.assert_allclose(whole["head"], [gradient_descent(0.5, i)], rtol=1e-5)


def test_the_last_batch_of_an_epoch_holds_what_is_left():
    """Of batches of two, two examples are one step a pass and three are two."""
    trainer = epoch_trainer(optax.sgd(1.0), epochs=4, batch_size=2)
    for i, steps in ((0, 4), (1, 8)):
        examples = Examples(*(jnp.asarray(leaf[i]) for leaf in data().train))
        start = {"head": jnp.zeros(1)}
        after, told = trainer(lambda p, batch: p["head"][0], start, examples, KEY)
        np.testing.assert_allclose(after["head"], [-steps])
        np.testing.assert_allclose(told["loss"], -(steps - 1) / 2)


def test_fedavg_fine_tuned_is_scored_after_steps_of_its_own():
    tuned = finetuned(fedavg(LINE, TRAIN), LINE, TRAIN, tuning_part="whole")
    w, state, scores = played(tuned, rounds=1)
    personal = [float(state.server["head"][0])] * 3
    for i in range(3):
        for _ in range(3):
            personal[i] = personal[i] - RATE * slope(personal[i], i)
    np.testing.assert_allclose(scores["P"], squares(personal), rtol=1e-4)


def test_graph_loss_is_the_mean_cross_entropy_over_ordered_pairs():
    hidden = np.array([[1.0, 2.0], [-1.0, 0.5], [0.0, 3.0]])
    joined = {(0, 2), (2, 0)}
    losses = []
    for u in range(3):
        for v in range(3):
            if u != v:
                edge = 1 / (1 + np.exp(-hidden[u] @ hidden[v] / 2))
                losses.append(-np.log(edge if (u, v) in joined else 1 - edge))
    graph = relations.from_edges(3, [(0, 2)])
    ours = graph_loss(jnp.asarray(hidden, jnp.float32), relations.adjacency(graph))
    np.testing.assert_allclose(ours, np.mean(losses), rtol=1e-6)
