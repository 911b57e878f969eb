"""Each method against a few lines of NumPy in float64 that share no code with it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.fedprox import fedprox
from graphfl_jax.algorithms.local import local
from graphfl_jax.algorithms.panacea import graph_loss, panacea, panacea_mlp
from graphfl_jax.algorithms.pfedhn import pfedhn
from graphfl_jax.core import ClientModel, Cohort, Examples, FederatedData
from graphfl_jax.data import relations
from graphfl_jax.local import sgd_trainer
from graphfl_jax.metrics import REGRESSION
from graphfl_jax.program import make_program

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
    program = make_program(lambda hparams: algorithm, LINE, cohort_size=3)
    state = program.start(KEY, {}, data())
    w = float(state.server["head"][0])
    for _ in range(2):
        w = sum(COUNT[i] * gradient_descent(w, i) for i in range(3)) / COUNT.sum()
    state, _ = program.advance(state, KEY, {}, data(), jnp.int32(2))
    np.testing.assert_allclose(state.server["head"][0], w, rtol=1e-5)
    scores = program.evaluate(state, KEY, {}, data())["test"]
    real = np.arange(3) < COUNT[:, None]
    squares = lambda w: np.sum(real * (w * X - Y) ** 2, 1) / COUNT  # noqa: E731
    after = np.array([gradient_descent(w, i) for i in range(3)])
    np.testing.assert_allclose(scores["G"], squares(w), rtol=1e-4)
    np.testing.assert_allclose(scores["L"], squares(after[:, None]), rtol=1e-4)
    np.testing.assert_allclose(scores["P"], scores["G"])


def test_fedprox_descends_with_a_pull_back():
    algorithm = fedprox(LINE, TRAIN, mu=jnp.float32(0.8))
    program = make_program(lambda hparams: algorithm, LINE, cohort_size=3)
    state = program.start(KEY, {}, data())
    w = float(state.server["head"][0])
    w = sum(COUNT[i] * gradient_descent(w, i, mu=0.8) for i in range(3)) / COUNT.sum()
    state, _ = program.advance(state, KEY, {}, data(), jnp.int32(1))
    np.testing.assert_allclose(state.server["head"][0], w, rtol=1e-5)


def test_local_is_gradient_descent_of_each_client_when_drawn():
    algorithm = local(LINE, TRAIN)
    program = make_program(lambda hparams: algorithm, LINE, cohort_size=2)
    state = program.start(KEY, {}, data())
    before = np.asarray(state.clients["head"][:, 0])
    after, _ = program.advance(state, KEY, {}, data(), jnp.int32(1))
    after = np.asarray(after.clients["head"][:, 0])
    trained = np.array([gradient_descent(before[i], i) for i in range(3)])
    moved = after != before
    assert moved.sum() == 2
    np.testing.assert_allclose(after, np.where(moved, trained, before), rtol=1e-5)


def linear(weights, x):
    return x @ weights["kernel"] + weights["bias"]


def stacked(weights, x, last_relu=False):
    """Dense_0, Dense_1, ... with ReLU between them."""
    for i in range(len(weights)):
        x = np.maximum(x, 0) if i else x
        x = linear(weights[f"Dense_{i}"], x)
    return x


def generate_pfedhn(weights, related):
    return stacked(weights["output"], stacked(weights["trunk"], weights["codes"]))


def generate_mlp(weights, related):
    hidden = stacked(weights["trunk"], weights["codes"])
    return stacked(weights["output"], np.maximum(hidden, 0))


def encode(weights, heard, sage):
    """Codes after two layers; `heard` [N, N] is 1 where the row's client hears the column's."""
    codes = weights["codes"]
    own = np.zeros_like(heard) if sage else np.eye(len(heard))
    mixing = (heard + own) / np.maximum((heard + own).sum(1, keepdims=True), 1)
    for i in range(2):
        codes = np.maximum(codes, 0) if i else codes
        if sage:
            neighbours, self_ = (weights["encoder"][f"Dense_{2 * i + k}"] for k in (0, 1))
            codes = linear(neighbours, mixing @ codes) + codes @ self_["kernel"]
        else:
            codes = linear(weights["encoder"][f"Dense_{i}"], mixing @ codes)
    return codes


def objective(weights, frozen, targets, ids, *, generate, heard=None, sage=False, lam=0.0):
    """J with M's weights in the graph term taken from `frozen`: eq. (4) + lambda_d eq. (5)."""
    if heard is None:
        return 0.5 * np.mean(np.sum((targets - generate(weights, None)[ids]) ** 2, 1))
    codes = encode(weights, heard, sage)
    hidden = stacked(weights["trunk"], codes)
    sent = stacked(weights["output"], np.maximum(hidden, 0))
    fit = 0.5 * np.mean(np.sum((targets - sent[ids]) ** 2, 1))
    generator = stacked(frozen["trunk"], codes)
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


SIZES = {"embedding_dim": 2, "width": 3}
HEARD = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], float)  # the path 0 - 1 - 2


@pytest.mark.parametrize(
    "factory, settings, reference",
    [
        (pfedhn, {}, {"generate": generate_pfedhn}),
        (panacea_mlp, {"depth": 2}, {"generate": generate_mlp}),
        (panacea, {"depth": 2, "layer": "mean", "lambda_d": 0.0}, {"heard": HEARD}),
        (panacea, {"depth": 2, "layer": "mean", "lambda_d": 0.7}, {"heard": HEARD, "lam": 0.7}),
        (
            panacea,
            {"depth": 2, "layer": "sage", "lambda_d": 0.7},
            {"heard": HEARD, "lam": 0.7, "sage": True},
        ),
    ],
)
def test_hypernetworks_descend_their_objective(factory, settings, reference):
    """Two server steps towards fixed targets equal two numerical ones in float64."""
    rate = 0.3
    algorithm = factory(
        LINE, TRAIN, server_optimizer=optax.sgd(rate), server_steps=2, **SIZES, **settings
    )
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
    learned = algorithm.aggregate(server, cohort, uploads, KEY).weights
    assert jax.tree.structure(learned) == jax.tree.structure(weights)
    for ours, theirs in zip(jax.tree.leaves(learned), jax.tree.leaves(weights), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


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
