"""Each method against a few lines of NumPy in float64 that share no code with it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.cluster.hierarchy
import scipy.special

from graphfl_jax.algorithms.cfl import bipartition, cfl
from graphfl_jax.algorithms.ditto import ditto
from graphfl_jax.algorithms.fedah import fedah
from graphfl_jax.algorithms.fedamp import fedamp, heurfedamp
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.fedopt import Rates, fedadam, fedavgm, fedyogi
from graphfl_jax.algorithms.fedper import fedper
from graphfl_jax.algorithms.fedprox import fedprox
from graphfl_jax.algorithms.fedrep import fedrep
from graphfl_jax.algorithms.fedrod import fedrod
from graphfl_jax.algorithms.hyper import (
    HyperServer,
    ServerFit,
    fit_embeddings,
    server_fit,
)
from graphfl_jax.algorithms.knnper import Neighbours, knnper, vote
from graphfl_jax.algorithms.local import local
from graphfl_jax.algorithms.panacea import graph_loss, panacea, panacea_mlp
from graphfl_jax.algorithms.perfedavg import perfedavg
from graphfl_jax.algorithms.pfedhn import pfedhn
from graphfl_jax.algorithms.pfedme import pfedme
from graphfl_jax.algorithms.scaffold import scaffold
from graphfl_jax.algorithms.sfl import Smoothing, _learn_relations, sfl
from graphfl_jax.algorithms.tuning import finetune
from graphfl_jax.core import ClientData, ClientModel, Cohort, FederatedData
from graphfl_jax.data import relations
from graphfl_jax.examples import Examples
from graphfl_jax.hypernets.generator import generator
from graphfl_jax.hypernets.output import output_layer
from graphfl_jax.hypernets.relation_gnn import relation_encoder
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.optimizers import OPTIMIZERS, momentum
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group
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


def play(algorithm, federated, rounds, cohort_size=3):
    """The first state and the last, and the program, of a run without hyperparameters."""
    program = Program(
        lambda hparams, played: algorithm, groups=(Group(cohort_size),)
    ).compiled()
    start = program.start(KEY, {}, federated)
    first = jax.device_get(start)
    last, _ = program.advance(start, KEY, {}, federated, jnp.int32(rounds))
    return first, jax.device_get(last), program


def squares(w):
    """Mean squared error of weights w [3] over each client's test examples."""
    real = np.arange(3) < COUNT[:, None]
    return np.sum(real * (np.asarray(w)[:, None] * X - Y) ** 2, 1) / COUNT


def test_fedavg_is_the_mean_of_gradient_descents_weighted_by_examples():
    first, last, program = play(fedavg(LINE, TRAIN), data(), 2)
    w = float(first.server["head"][0])
    for _ in range(2):
        w = sum(COUNT[i] * gradient_descent(w, i) for i in range(3)) / COUNT.sum()
    np.testing.assert_allclose(last.server["head"][0], w, rtol=1e-5)
    scores = program.evaluate(last, KEY, {}, data())[0]["test"]
    trained = [gradient_descent(w, i) for i in range(3)]
    np.testing.assert_allclose(scores["G"], squares([w] * 3), rtol=1e-4)
    np.testing.assert_allclose(scores["L"], squares(trained), rtol=1e-4)
    np.testing.assert_allclose(scores["P"], scores["G"])


def test_fedprox_descends_with_a_proximal_term():
    first, last, _ = play(fedprox(LINE, TRAIN, mu=0.8), data(), 1)
    w = float(first.server["head"][0])
    w = sum(COUNT[i] * gradient_descent(w, i, mu=0.8) for i in range(3)) / COUNT.sum()
    np.testing.assert_allclose(last.server["head"][0], w, rtol=1e-5)


def test_local_is_gradient_descent_of_each_sampled_client():
    first, last, _ = play(local((LINE,), TRAIN), data(), 1, cohort_size=2)
    before, after = (state.clients[0]["head"][:, 0] for state in (first, last))
    trained = np.array([gradient_descent(before[i], i) for i in range(3)])
    moved = after != before
    assert moved.sum() == 2
    np.testing.assert_allclose(after, np.where(moved, trained, before), rtol=1e-5)


def first_examples():
    """Federated data in which client i has its first example only: all batches are equal."""
    full = data()
    return full._replace(train=full.train._replace(count=np.ones(3, np.int32)))


def slope(w, i):
    """d/dw (w x - y)^2 at client i's first example."""
    return 2 * X[i, 0] * (w * X[i, 0] - Y[i, 0])


def played(algorithm, rounds):
    """The first w, the state after some rounds with all clients, and its test scores."""
    first, last, program = play(algorithm, first_examples(), rounds)
    scores = program.evaluate(last, KEY, {}, first_examples())[0]["test"]
    return float(first.server["head"][0]), last, scores


@pytest.mark.parametrize("hessian, share", [("hf", 1.0), ("fd", 1.0), ("fo", 0.0)])
def test_perfedavg_descends_the_adapted_loss(hessian, share):
    """On (w x - y)^2, H = 2 x^2, so a step is w - beta (1 - alpha H) g(w - alpha g(w))."""
    alpha, beta = 0.05, 0.1
    algorithm = perfedavg(
        LINE,
        local_steps=2,
        batch_size=4,
        perfedavg_hessian=hessian,
        client_optimizer=optax.sgd(beta),
        perfedavg_alpha=alpha,
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


def test_pfedme_takes_proximal_steps_and_predicts_with_theta():
    lam, eta, rate, beta = 2.0, 0.1, 0.05, 0.5
    algorithm = pfedme(
        LINE,
        local_steps=2,
        batch_size=4,
        pfedme_steps=3,
        client_optimizer=optax.sgd(eta),
        personal_optimizer=optax.sgd(rate),
        pfedme_lambda=lam,
        pfedme_beta=beta,
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
    np.testing.assert_allclose(state.clients[0]["head"][:, 0], personal, rtol=1e-4)
    np.testing.assert_allclose(scores["P"], squares(personal), rtol=1e-4)


def test_ditto_pulls_personal_models_towards_the_received_model():
    lam = 0.8
    algorithm = ditto(LINE, TRAIN, ditto_lambda=lam)
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
    np.testing.assert_allclose(state.clients[0]["head"][:, 0], personal, rtol=1e-4)
    np.testing.assert_allclose(scores["P"], squares(personal), rtol=1e-4)


# A body and a head of one weight each, b h x.
PRODUCT = ClientModel(
    init=lambda key: {
        part: jax.random.uniform(jax.random.fold_in(key, number), (1,), minval=0.5)
        for number, part in enumerate(("body", "head"))
    },
    body=lambda params, x: x * params[0],
    head=lambda params, features: features * params[0],
    task=REGRESSION,
)


def product_slopes(b, h, i):
    """The derivatives by b and by h of mean (b h x - y)^2 over client i's real examples."""
    x, y = X[i, : COUNT[i]], Y[i, : COUNT[i]]
    outer = np.mean(2 * (b * h * x - y) * x)
    return outer * h, outer * b


def fedper_step(b, h, i):
    """Three steps of body and head together."""
    for _ in range(3):
        of_b, of_h = product_slopes(b, h, i)
        b, h = b - RATE * of_b, h - RATE * of_h
    return b, h


def fedrep_step(b, h, i):
    """Two steps of the head, then one of the body."""
    for _ in range(2):
        h = h - RATE * product_slopes(b, h, i)[1]
    return b - RATE * product_slopes(b, h, i)[0], h


@pytest.mark.parametrize(
    "algorithm, step",
    [
        (fedper(PRODUCT, TRAIN), fedper_step),
        (
            fedrep(
                PRODUCT,
                client_optimizer=optax.sgd(RATE),
                local_steps=3,
                batch_size=None,
                fedrep_head_steps=2,
            ),
            fedrep_step,
        ),
    ],
    ids=["fedper", "fedrep"],
)
def test_bodies_are_averaged_and_heads_stay_with_their_clients(algorithm, step):
    first, last, program = play(algorithm, data(), 1)
    b, heads = float(first.server[0]), first.clients[0][:, 0].astype(np.float64)
    assert len(np.unique(heads)) == 3
    bodies, heads = zip(*(step(b, heads[i], i) for i in range(3)), strict=True)
    b = COUNT @ bodies / COUNT.sum()
    np.testing.assert_allclose(last.server[0], b, rtol=1e-5)
    np.testing.assert_allclose(last.clients[0][:, 0], heads, rtol=1e-5)
    scores = program.evaluate(last, KEY, {}, data())[0]["test"]
    trained = [np.prod(step(b, heads[i], i)) for i in range(3)]
    np.testing.assert_allclose(scores["G"], squares(b * np.array(heads)), rtol=1e-4)
    np.testing.assert_allclose(scores["L"], squares(trained), rtol=1e-4)
    np.testing.assert_allclose(scores["P"], scores["G"])


@pytest.mark.parametrize("eta, ends", [(0.02, {0, 1}), (0.2, {-1, 0, 1})])
def test_fedah_mixes_heads_by_learned_shares_and_trains_head_and_body(eta, ends):
    """Some steps of shares are free, and others end at 1, or at 0 and at 1."""
    head_steps = 2
    algorithm = fedah(
        PRODUCT,
        client_optimizer=optax.sgd(RATE),
        local_steps=3,
        batch_size=None,
        fedah_head_steps=head_steps,
        fedah_eta=eta,
    )
    first, last, program = play(algorithm, data(), 3)
    b, h = (float(first.server[part][0]) for part in ("body", "head"))
    heads, shares = [h] * 3, [1.0] * 3
    clipped = set()

    def mixed(i):
        """The client's share after its steps, and its mixed head."""
        share = shares[i]
        for _ in range(head_steps):
            slope = product_slopes(b, heads[i] + (h - heads[i]) * share, i)[1]
            free = share - eta * slope * (h - heads[i])
            share = min(max(free, 0.0), 1.0)
            clipped.add(np.sign(free - share))
        return share, heads[i] + (h - heads[i]) * share

    def trained(i):
        share, head = mixed(i)
        body, head = fedrep_step(b, head, i)
        return body, head, share

    for _ in range(3):
        bodies, heads, shares = zip(*map(trained, range(3)), strict=True)
        b, h = COUNT @ bodies / COUNT.sum(), COUNT @ heads / COUNT.sum()
    assert clipped == ends
    np.testing.assert_allclose(last.server["body"][0], b, rtol=1e-4)
    np.testing.assert_allclose(last.server["head"][0], h, rtol=1e-4)
    part, weights = last.clients[0]
    np.testing.assert_allclose(part["head"][:, 0], heads, rtol=1e-4)
    np.testing.assert_allclose(weights["head"][:, 0], shares, rtol=1e-3, atol=1e-6)
    scores = program.evaluate(last, KEY, {}, data())[0]["test"]
    np.testing.assert_allclose(scores["G"], squares([b * h] * 3), rtol=1e-3)
    personal = [b * mixed(i)[1] for i in range(3)]
    np.testing.assert_allclose(scores["P"], squares(personal), rtol=1e-3)
    local = [np.prod(trained(i)[:2]) for i in range(3)]
    np.testing.assert_allclose(scores["L"], squares(local), rtol=1e-3)


def test_scaffold_corrects_its_steps_by_control_variates():
    """Three rounds of all clients, and of two of them, whose c_i the state shows."""
    eta, server_eta, steps = 0.05, 0.7, 3
    algorithm = scaffold(
        LINE,
        num_clients=3,
        local_steps=steps,
        batch_size=None,
        client_optimizer=optax.sgd(eta),
        server_lr=server_eta,
    )
    for size in (3, 2):
        program = Program(lambda hparams, played: algorithm, groups=(Group(size),)).compiled()
        state = program.start(KEY, {}, data())
        x, c, c_i = float(state.server.model["head"][0]), 0.0, np.zeros(3)
        for _ in range(3):
            state, _ = program.advance(state, KEY, {}, data(), jnp.int32(1))
            found = np.asarray(state.clients[0]["head"][:, 0])
            cohort = np.flatnonzero(np.abs(found - c_i) > 1e-4)
            assert len(cohort) == size
            ys, changes = [], []
            for i in cohort:
                y = x
                for _ in range(steps):
                    y = y - eta * (full_slope(y, i) - c_i[i] + c)
                ys.append(y)
                changes.append((x - y) / (steps * eta) - c)
            x, c = x + server_eta * np.mean(np.array(ys) - x), c + np.sum(changes) / 3
            c_i[cohort] += changes
            np.testing.assert_allclose(state.server.model["head"][0], x, rtol=1e-4)
            np.testing.assert_allclose(state.server.control["head"][0], c, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found, c_i, rtol=1e-4, atol=1e-5)


def full_slope(w, i):
    """The derivative of the mean square over client i's real examples."""
    x, y = X[i, : COUNT[i]], Y[i, : COUNT[i]]
    return np.mean(2 * (w * x - y) * x)


class HeavyBall:
    """Heavy-ball steps for a clipped gradient, in float64."""

    def __init__(self, rate):
        self.rate, self.velocity = rate, 0.0

    def step(self, gradient):
        self.velocity = 0.9 * self.velocity + np.clip(gradient, -0.2, 0.2)
        return -self.rate * self.velocity

    @staticmethod
    def optax(rate):
        return optax.chain(optax.clip_by_global_norm(0.2), optax.sgd(rate, 0.9))


def test_scaffold_takes_its_steps_with_the_clients_optimizer():
    """c_i+ is then the mean of the gradients: steps are no multiples of them."""
    algorithm = scaffold(
        LINE,
        num_clients=3,
        local_steps=3,
        batch_size=None,
        client_optimizer=HeavyBall.optax(0.3),
    )
    first, state, _ = play(algorithm, data(), rounds=2)
    x, c, c_i = float(first.server.model["head"][0]), 0.0, np.zeros(3)
    for _ in range(2):
        ys, new = [], []
        for i in range(3):
            y, ball, gradients = x, HeavyBall(0.3), []
            for _ in range(3):
                gradients.append(full_slope(y, i))
                y = y + ball.step(gradients[-1] - c_i[i] + c)
            ys.append(y)
            new.append(np.mean(gradients))
        x, c, c_i = np.mean(ys), c + np.mean(new - c_i), np.array(new)
    np.testing.assert_allclose(state.server.model["head"][0], x, rtol=1e-4)
    np.testing.assert_allclose(state.server.control["head"][0], c, rtol=1e-4, atol=1e-5)


def test_perfedavg_takes_its_steps_with_the_clients_optimizer():
    alpha = 0.05
    algorithm = perfedavg(
        LINE,
        local_steps=3,
        batch_size=4,
        client_optimizer=HeavyBall.optax(0.3),
        perfedavg_alpha=alpha,
    )
    w, state, _ = played(algorithm, rounds=1)
    trained = []
    for i in range(3):
        w_i, ball = w, HeavyBall(0.3)
        for _ in range(3):
            outer = slope(w_i - alpha * slope(w_i, i), i)
            w_i = w_i + ball.step((1 - alpha * 2 * X[i, 0] ** 2) * outer)
        trained.append(w_i)
    np.testing.assert_allclose(state.server["head"][0], np.mean(trained), rtol=1e-4)


def test_pfedme_takes_its_steps_with_the_clients_optimizer():
    """That of theta starts anew for each batch, and that of w_i in each round."""
    algorithm = pfedme(
        LINE,
        local_steps=3,
        batch_size=4,
        pfedme_steps=2,
        client_optimizer=HeavyBall.optax(0.4),
        personal_optimizer=HeavyBall.optax(0.3),
        pfedme_lambda=2.0,
    )
    w, state, _ = played(algorithm, rounds=1)
    copies, personal = [w] * 3, [w] * 3
    for i in range(3):
        outer = HeavyBall(0.4)
        for _ in range(3):
            inner = HeavyBall(0.3)
            for _ in range(2):
                pull = slope(personal[i], i) + 2.0 * (personal[i] - copies[i])
                personal[i] = personal[i] + inner.step(pull)
            copies[i] = copies[i] + outer.step(2.0 * (copies[i] - personal[i]))
    np.testing.assert_allclose(state.clients[0]["head"][:, 0], personal, rtol=1e-4)
    np.testing.assert_allclose(state.server["head"][0], np.mean(copies), rtol=1e-4)


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi"])
def test_server_optimizers_step_along_the_mean_of_the_clients(name):
    """Six rounds, in which Yogi's second moment is below the squares, and above them."""
    eta, beta1, beta2, tau = 0.2, 0.8, 0.9, 0.1
    rates = Rates(eta, beta1, beta2, tau)
    algorithm = {
        "fedavgm": lambda: fedavgm(LINE, TRAIN, server_lr=eta, fedavgm_momentum=beta1),
        "fedadam": lambda: fedadam(LINE, TRAIN, rates=rates),
        "fedyogi": lambda: fedyogi(LINE, TRAIN, rates=rates),
    }[name]()
    first, last, program = play(algorithm, data(), 6)
    w, m, v, signs = float(first.server.model["head"][0]), 0.0, tau**2, set()
    for _ in range(6):
        mean = sum(COUNT[i] * gradient_descent(w, i) for i in range(3)) / COUNT.sum()
        delta = mean - w
        if name == "fedavgm":
            m = beta1 * m + delta
            w = w + eta * m
            continue
        m = beta1 * m + (1 - beta1) * delta
        if name == "fedadam":
            v = beta2 * v + (1 - beta2) * delta**2
        else:
            signs.add(np.sign(v - delta**2))
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        w = w + eta * m / (np.sqrt(v) + tau)
    assert signs == ({-1.0, 1.0} if name == "fedyogi" else set())
    np.testing.assert_allclose(last.server.model["head"][0], w, rtol=1e-4)
    scores = program.evaluate(last, KEY, {}, data())[0]["test"]
    np.testing.assert_allclose(scores["G"], squares([w] * 3), rtol=1e-4)
    trained = [gradient_descent(w, i) for i in range(3)]
    np.testing.assert_allclose(scores["L"], squares(trained), rtol=1e-3)


def linear(weights, x):
    return x @ weights["kernel"] + weights["bias"]


def stacked(weights, x, last_relu=False):
    """Dense_0, Dense_1, ... with ReLU between them."""
    for i in range(len(weights)):
        x = np.maximum(x, 0) if i else x
        x = linear(weights[f"Dense_{i}"], x)
    return x


def generate_pfedhn(weights):
    return stacked(
        weights["output"]["linear"], stacked(weights["trunk"], weights["embeddings"])
    )


def generate_mlp(weights):
    hidden = stacked(weights["trunk"], weights["embeddings"])
    return stacked(weights["output"]["linear"], np.maximum(hidden, 0))


def encode(weights, edges, layer, dropped=False):
    """Embeddings after two layers.

    Args:
      edges: [N, N], the weight with which the row's client receives from the column's, or 0.
      layer: "mean" over neighbours and self, "sage", "gcn" or "attention".
      dropped: whether the mean of neighbours' initial embeddings replaces a client's own.
    """
    embeddings, encoder = weights["embeddings"], weights["encoder"]
    if dropped:
        related = edges > 0
        embeddings = related / related.sum(1, keepdims=True) @ embeddings
    looped = edges if layer == "sage" else edges + np.eye(len(edges))
    mixing = looped / looped.sum(1, keepdims=True)
    if layer == "gcn":
        mixing = looped / np.sqrt(np.outer(looped.sum(1), looped.sum(0)))
    for i in range(2):
        embeddings = np.maximum(embeddings, 0) if i else embeddings
        if layer == "sage":
            neighbours, self_ = (encoder[f"Dense_{2 * i + k}"] for k in (0, 1))
            embeddings = linear(neighbours, mixing @ embeddings) + embeddings @ self_["kernel"]
        elif layer == "attention":
            embeddings = attend(encoder[f"GraphAttention_{i}"], looped, embeddings)
        else:
            embeddings = linear(encoder[f"Dense_{i}"], mixing @ embeddings)
    return embeddings


def attend(weights, looped, embeddings):
    """Graph attention, client by client; a weight is a number of equal neighbours."""
    values, vector = embeddings @ weights["Dense_0"]["kernel"], weights["Dense_1"]["kernel"]
    rows = []
    for i, own in enumerate(values):
        scores = np.array([np.concatenate([own, other]) @ vector[:, 0] for other in values])
        shares = looped[i] * np.exp(np.where(scores > 0, scores, 0.2 * scores))
        rows.append(shares / shares.sum() @ values + weights["bias"][0])
    return np.array(rows)


def objective(
    weights,
    frozen,
    targets,
    ids,
    *,
    generate=None,
    edges=None,
    layer="mean",
    lam=0.0,
    dropped=False,
    plain=False,
    printed=None,
):
    """J with M's weights in the graph term taken from `frozen`: eq. (4) + lambda_d eq. (5).

    With `printed`, the differences of the round's beginning, a function whose gradient is the
    printed product of these and the derivative of what is sent, with the sign of a descent.
    """
    if edges is None:
        return 0.5 * np.mean(np.sum((targets - generate(weights)[ids]) ** 2, 1))
    embeddings = encode(weights, edges, layer, dropped)
    hidden = stacked(weights["trunk"], embeddings)
    sent = stacked(weights["output"]["linear"], np.maximum(hidden, 0))
    fit = 0.5 * np.mean(np.sum((targets - sent[ids]) ** 2, 1))
    if printed is not None:
        fit = -np.mean(np.sum(printed * sent[ids], 1))
    generator = stacked(frozen["trunk"], embeddings)
    logits = generator @ generator.T / (1 if plain else generator.shape[1])
    joined = 1 / (1 + np.exp(-logits))
    off = ~np.eye(len(edges), dtype=bool)
    bce = -np.mean(np.where(edges + edges.T > 0, np.log(joined), np.log(1 - joined))[off])
    return fit + lam * bce


def numerical_step(weights, rate, value):
    """Gradient descent by central differences, so that no derivative is written by hand."""
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


EDGES = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], float)  # the path 0 - 1 - 2
PATH = ((0, 1), (1, 2))
# Directed: 0 receives from 1 and 2, 1 from 0, and 2 from 1.
WEIGHTED = np.array([[0, 0.5, 2], [0.3, 0, 0], [0, 3, 0]])


def fit_of(rate=0.1, steps=2, embedding="neighbours"):
    return ServerFit(optax.sgd(rate), steps, optax.sgd(0.2), embedding)


def pfedhn_with(fit, **choices):
    sizes = {"embedding_dim": 2, "width": 3, **choices}
    return pfedhn(LINE, TRAIN, output=output_layer(LINE), fit=fit, **sizes)


def pfedhn_per_client(fit):
    return pfedhn_with(fit, step_per_client=True)


def small_generator():
    return generator(output=output_layer(LINE), embedding_dim=2, width=3, depth=2)


def panacea_mlp_with(fit):
    return panacea_mlp(LINE, TRAIN, generator=small_generator(), fit=fit)


def panacea_with(
    fit, *, layer="mean", edge_weights=False, lambda_d=0.0, embedding_dropout=0.0, **choices
):
    return panacea(
        LINE,
        TRAIN,
        encoder=relation_encoder(layer=layer, edge_weights=edge_weights, width=3, depth=2),
        generator=small_generator(),
        fit=fit,
        lambda_d=lambda_d,
        embedding_dropout=embedding_dropout,
        **choices,
    )


def panacea_with_sage(fit, **floats):
    return panacea_with(fit, layer="sage", **floats)


def panacea_with_gcn(fit, **floats):
    return panacea_with(fit, layer="gcn", edge_weights=True, **floats)


def panacea_with_attention(fit, **floats):
    return panacea_with(fit, layer="attention", edge_weights=True, **floats)


def panacea_as_printed(fit, **floats):
    return panacea_with(fit, inner_product="plain", difference="printed", **floats)


TARGETS = np.array([[1.5], [-0.5]])  # uploads of clients 0 and 2


@functools.cache
def learner(build, rate):
    """(graph, floats) -> weights before two server steps, what is sent, and weights after."""

    @jax.jit
    def learn(graph, floats):
        algorithm = build(fit_of(rate), **floats).server
        cohort = Cohort(jnp.array([0, 2], jnp.int32), jnp.ones(2))
        server = algorithm.init(KEY, graph)
        sent = jax.vmap(algorithm.download, (None, None, 0))(server, 0, jnp.arange(3))["head"]
        uploads = {"body": {}, "head": jnp.asarray(TARGETS, jnp.float32)}
        begun = algorithm.begin_round(server, KEY)
        learned = algorithm.aggregate(begun, (cohort,), (uploads,), KEY)
        return server.weights, sent, learned.weights

    return learn


@pytest.mark.parametrize(
    "build, floats, reference",
    [
        (pfedhn_with, {}, {"generate": generate_pfedhn}),
        (pfedhn_per_client, {}, {"generate": generate_pfedhn, "in_turn": True}),
        (panacea_mlp_with, {}, {"generate": generate_mlp}),
        (panacea_with, {"lambda_d": 0.0}, {"edges": EDGES}),
        (panacea_with, {"lambda_d": 0.7}, {"edges": EDGES, "lam": 0.7}),
        (
            panacea_with_sage,
            {"lambda_d": 0.7, "embedding_dropout": 0.0},
            {"edges": EDGES, "lam": 0.7, "layer": "sage"},
        ),
        (
            panacea_with_sage,
            {"lambda_d": 0.7, "embedding_dropout": 1.0},
            {"edges": EDGES, "lam": 0.7, "layer": "sage", "dropped": True},
        ),
        (
            panacea_with_gcn,
            {"lambda_d": 0.7},
            {"edges": WEIGHTED, "lam": 0.7, "layer": "gcn"},
        ),
        (
            panacea_with_attention,
            {"lambda_d": 0.7, "embedding_dropout": 0.0},
            {"edges": WEIGHTED, "lam": 0.7, "layer": "attention"},
        ),
        (
            panacea_with_attention,
            {"lambda_d": 0.7, "embedding_dropout": 1.0},
            {"edges": WEIGHTED, "lam": 0.7, "layer": "attention", "dropped": True},
        ),
        (
            panacea_as_printed,
            {"lambda_d": 0.7},
            {"edges": EDGES, "lam": 0.7, "plain": True, "printed": True},
        ),
    ],
    ids=[
        "pfedhn",
        "pfedhn-per-client",
        "mlp",
        "gn",
        "mean",
        "sage",
        "dropout",
        "gcn",
        "attention",
        "attention-drop",
        "printed",
    ],
)
def test_hypernetworks_descend_their_objective(build, floats, reference):
    """Two server steps towards fixed targets equal two numerical ones in float64.

    With steps per client, pFedHN takes them for each client, in the order of the embeddings
    along a random direction.
    """
    rate, reference, turns = 0.3, dict(reference), [(TARGETS, [0, 2])]
    floats = {name: jnp.float32(value) for name, value in floats.items()}
    graph = data(PATH).graph
    if reference.get("edges") is WEIGHTED:
        receivers, senders = np.nonzero(WEIGHTED)
        edges, values = np.stack([senders, receivers], axis=1), WEIGHTED[receivers, senders]
        graph = relations.from_edges(3, edges, values, directed=True)
    weights, sent, learned = learner(build, rate)(graph, floats)
    weights = jax.tree.map(lambda leaf: np.array(leaf, np.float64), weights)
    if "generate" in reference:
        np.testing.assert_allclose(sent, reference["generate"](weights), rtol=1e-4)
    if "printed" in reference:
        embeddings = encode(weights, EDGES, "mean")
        first = generate_mlp(weights | {"embeddings": embeddings})[[0, 2]]
        reference["printed"] = TARGETS - first
    if reference.pop("in_turn", False):
        turns = [(TARGETS[:1], [0]), (TARGETS[1:], [2])]
        direction = jax.random.normal(KEY, weights["embeddings"].shape[1:])
        turns.sort(key=lambda turn: weights["embeddings"][turn[1][0]] @ np.float64(direction))
    for targets, ids in (turn for turn in turns for _ in range(2)):
        value = functools.partial(objective, targets=targets, ids=ids, **reference)
        weights = numerical_step(weights, rate, value)
    assert jax.tree.structure(learned) == jax.tree.structure(weights)
    for ours, theirs in zip(jax.tree.leaves(learned), jax.tree.leaves(weights), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["sgd", "polyak_sgd", "momentum", "adam"])
@pytest.mark.parametrize("value", [0.05, 100.0])  # Polyak's limit holds for the first
def test_embeddings_have_a_learning_rate_of_their_own(kind, value):
    """The first step. Polyak's size is value / (its first-order decrease per unit of size)."""
    rate, factor = 0.1, 9.0
    gradient = {"embeddings": np.array([[0.5, -1.0]]), "trunk": np.array([2.0, 0.0, -1.0])}
    squares = {name: np.sum(np.square(g)) for name, g in gradient.items()}
    decrease = squares["trunk"] + factor * squares["embeddings"]
    size = {"polyak_sgd": min(rate, value / decrease)}
    directions = {"adam": np.sign}
    expected = {
        name: -size.get(kind, rate) * directions.get(kind, np.asarray)(g)
        for name, g in gradient.items()
    }
    expected["embeddings"] *= factor

    values = {"weight_decay": 0.0} if kind == "momentum" else {}
    fit = server_fit(
        server_optimizer=OPTIMIZERS[kind](lr=jnp.float32(rate), **values),
        separate_embedding_lr=True,
        embedding_lr=jnp.float32(factor),
    )
    optimizer = optax.with_extra_args_support(fit.optimizer)
    weights = jax.tree.map(lambda g: jnp.ones(g.shape), gradient)
    gradient = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), gradient)
    memory = optimizer.init(weights)
    updates, _ = optimizer.update(gradient, memory, weights, value=jnp.float32(value))
    for name, theirs in expected.items():
        # Adam's 1 - 0.999 in float32 has an error of 1e-5.
        np.testing.assert_allclose(updates[name], theirs, rtol=1e-5)


def test_new_clients_start_from_their_neighbours_and_change_only_their_embeddings():
    """Clients 0 and 1 trained; 2, related to 1, joins, and takes two numerical steps."""
    algorithm = panacea_with(fit_of(), lambda_d=0.7).server
    target = np.array([[2.5]])
    cohort = Cohort(jnp.array([2], jnp.int32), jnp.ones(1))

    @jax.jit
    def join(graph, all_relations):
        trained = algorithm.init(KEY, graph)
        server = algorithm.admit(trained, (cohort.ids,), all_relations, KEY)
        uploads = {"body": {}, "head": jnp.asarray(target, jnp.float32)}
        adapted = algorithm.adapt_new_clients(server, (cohort,), (uploads,), KEY)
        return trained.weights, server.weights, adapted.weights

    known = relations.from_edges(2, [(0, 1)])
    trained, admitted, adapted = jax.device_get(join(known, data(PATH).graph))
    embeddings = trained["embeddings"]
    np.testing.assert_allclose(admitted["embeddings"], embeddings[[0, 1, 1]], rtol=1e-6)

    weights = jax.tree.map(lambda leaf: np.array(leaf, np.float64), admitted)
    for _ in range(2):
        embeddings = numerical_step(
            weights, 0.2, lambda w, frozen: objective(w, frozen, target, [2], edges=EDGES)
        )["embeddings"]
        weights["embeddings"][2] = embeddings[2]
    for ours, theirs in zip(jax.tree.leaves(adapted), jax.tree.leaves(weights), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(adapted["embeddings"][:2], admitted["embeddings"][:2])


def test_new_clients_embeddings_stay_where_nothing_is_to_fit():
    """Their steps have no momentum and no weight decay, whatever the hypernetwork's have."""
    heavy = momentum(lr=0.5, momentum=0.9, weight_decay=0.1)
    fit = server_fit(server_optimizer=heavy, server_steps=3, new_client_lr=100.0)
    weights, ids = {"embeddings": jnp.arange(1.0, 7.0).reshape(3, 2)}, jnp.array([2])
    server = HyperServer(weights, fit.new_client_optimizer.init(weights["embeddings"][ids]), ())

    def gap(weights):
        return 0.0 * jnp.sum(weights["embeddings"])

    after = fit_embeddings(server, ids, gap, fit)
    np.testing.assert_array_equal(after.weights["embeddings"], weights["embeddings"])


@pytest.mark.parametrize(
    "scheme, expected",
    [
        ("zero", [[0.0], [0.0]]),
        ("mean", [[4.0], [4.0]]),
        # Client 3 has the neighbours 0, and 4, which is new and does not count. Client 4 has
        # no known neighbour.
        ("neighbours", [[1.0], [4.0]]),
        ("neighbour", [[1.0], None]),
        ("random", [None, None]),
    ],
)
def test_new_clients_start_with_the_embedding_of_each_scheme(scheme, expected):
    algorithm = pfedhn_with(fit_of(embedding=scheme), embedding_dim=1, width=2).server
    known = np.array([[1.0], [3.0], [8.0]], np.float32)

    @jax.jit
    def join(graph, all_relations):
        server = algorithm.init(KEY, graph)
        server = server._replace(weights=server.weights | {"embeddings": jnp.asarray(known)})
        new_clients = jnp.array([3, 4], jnp.int32)
        return algorithm.admit(server, (new_clients,), all_relations, KEY).weights["embeddings"]

    graph = relations.from_edges(5, [(0, 1), (0, 3), (3, 4)])
    found = np.asarray(join(relations.from_edges(3, [(0, 1)]), graph))
    np.testing.assert_array_equal(found[:3], known)
    for row, value in zip(found[3:], expected, strict=True):
        if value is not None:
            np.testing.assert_allclose(row, value)
        elif scheme == "neighbour":  # without a known neighbour: that of any known client
            assert row in known
        else:
            assert row not in known


@pytest.mark.parametrize("rule", ["intended", "as_released"])
def test_sfl_smooths_over_relations_and_pulls_to_both_models(rule):
    """The path 0 - 1 - 2. All clients take part, so that the rules differ in the pull only."""
    lam, share = 0.6, 0.75
    algorithm = sfl(LINE, TRAIN, smoothing=Smoothing(2, rule, lam, share))
    path = first_examples()._replace(graph=data(PATH).graph)
    first, last, program = play(algorithm, path, 2)
    v = np.asarray(first.server.uploads["head"][:, 0], np.float64)
    given = np.array([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 2, 1 / 2]])
    mixing = share * given @ given + (1 - share) * np.eye(3)
    for _ in range(2):
        u = mixing @ v
        w = u.mean()
        v = np.full(3, w)
        for _ in range(3):
            pull = lam * ((v - u) + (v - w)) if rule == "intended" else 0.0
            v = v - RATE * (np.array([slope(v[i], i) for i in range(3)]) + pull)
    np.testing.assert_allclose(last.server.uploads["head"][:, 0], v, rtol=1e-4)
    scores = program.evaluate(last, KEY, {}, path)[0]["test"]
    np.testing.assert_allclose(scores["G"], squares(mixing @ v), rtol=1e-4)
    np.testing.assert_allclose(scores["P"], scores["G"])


def test_sfl_sends_a_new_client_its_row_over_the_known_clients():
    """Client 2 joins next to 1: (A^^2)_2 = (1/6, 5/12, 5/12), over the known (2/7, 5/7)."""
    algorithm = sfl(LINE, TRAIN, smoothing=Smoothing(2, "intended", 0.3, 1.0)).server

    @jax.jit
    def join(graph, all_relations):
        server = algorithm.init(KEY, graph)
        server = server._replace(uploads={"body": {}, "head": jnp.array([[7.0], [14.0]])})
        admitted = algorithm.admit(server, (jnp.array([2], jnp.int32),), all_relations, KEY)
        return algorithm.download(admitted, 0, 2)[0]["head"]

    sent = join(relations.from_edges(2, [(0, 1)]), data(PATH).graph)
    np.testing.assert_allclose(sent, [12.0], rtol=1e-6)


def test_sfl_star_relates_similar_models_and_the_released_learner_different_ones():
    """Four models in two pairs.

    E1 E2^T - E2 E1^T is antisymmetric, so that of two clients one at most relates to the other.
    """
    pairs = {"body": {}, "head": jnp.array([[1.0, 0.2], [1.1, 0.1], [-1.0, 0.3], [-1.2, 0.2]])}
    within = np.kron(np.eye(2), np.ones((2, 2))) - np.eye(4)
    shares = {}
    for apart in (False, True):
        learn = functools.partial(_learn_relations, pairs, steps=100, rate=1.0, apart=apart)
        graphs = np.asarray(jax.jit(jax.vmap(learn))(jax.random.split(KEY, 64)))
        assert (graphs >= 0).all() and (np.diagonal(graphs, axis1=1, axis2=2) == 0).all()
        assert (graphs * graphs.swapaxes(1, 2) == 0).all()
        shares[apart] = (graphs * within).sum() / graphs.sum()
    assert shares[False] > shares[True] + 0.05  # from 0.41 at the start to 0.41 and 0.32


def example_of(i):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), data().train)


def test_every_epoch_takes_every_example_once():
    """On the loss w x the gradient is x for any w: three epochs subtract three sums."""

    def linear_loss(params, batch, key):
        return jnp.sum(batch.x[:, 0] * params["head"][0])

    @jax.jit
    def trained(examples):
        start = {"body": {}, "head": jnp.array([0.5])}
        single, whole = (
            epoch_trainer(optax.sgd(RATE), epochs=3, batch_size=size) for size in (1, 8)
        )
        return (
            single(linear_loss, start, examples, KEY)[0]["head"],
            whole(LINE.objective, start, examples, KEY)[0]["head"],
        )

    for i in range(3):
        single, whole = trained(example_of(i))
        np.testing.assert_allclose(single, [0.5 - RATE * 3 * X[i, : COUNT[i]].sum()], rtol=1e-5)
        np.testing.assert_allclose(whole, [gradient_descent(0.5, i)], rtol=1e-5)


def test_the_last_batch_of_an_epoch_holds_the_remaining_examples():
    """With batches of two, an epoch over two examples is one step, and over three two steps."""
    trainer = epoch_trainer(optax.sgd(1.0), epochs=4, batch_size=2)

    @jax.jit
    def train(examples):
        objective = lambda params, batch, key: params["head"][0]  # noqa: E731
        return trainer(objective, {"head": jnp.zeros(1)}, examples, KEY)

    for i, steps in ((0, 4), (1, 8)):
        after, metrics = train(example_of(i))
        np.testing.assert_allclose(after["head"], [-steps])
        np.testing.assert_allclose(metrics["loss"], -(steps - 1) / 2)


def test_random_numbers_of_an_epoch_do_not_depend_on_padding():
    trainer = epoch_trainer(optax.sgd(1.0), epochs=3, batch_size=2)

    def moved(size):
        examples = Examples(jnp.zeros((size, 1)), jnp.zeros((size, 1)), jnp.int32(4))
        objective = lambda params, batch, key: params * jax.random.normal(key)  # noqa: E731
        return trainer(objective, jnp.float32(0.0), examples, KEY)[0]

    np.testing.assert_array_equal(jax.jit(moved, static_argnums=0)(4), moved(7))


def test_fine_tuned_fedavg_predicts_after_steps_on_the_client_data():
    _, state, scores = played(finetune(fedavg(LINE, TRAIN), TRAIN, tuning_part="whole"), 1)
    personal = [float(state.server["head"][0])] * 3
    for i in range(3):
        for _ in range(3):
            personal[i] = personal[i] - RATE * slope(personal[i], i)
    np.testing.assert_allclose(scores["P"], squares(personal), rtol=1e-4)


@pytest.mark.parametrize("divisor", [2, 1], ids=["scaled", "plain"])
def test_graph_loss_is_the_mean_cross_entropy_over_ordered_pairs(divisor):
    hidden = np.array([[1.0, 2.0], [-1.0, 0.5], [0.0, 3.0]])
    joined = {(0, 2), (2, 0)}
    losses = []
    for u in range(3):
        for v in range(3):
            if u != v:
                edge = 1 / (1 + np.exp(-hidden[u] @ hidden[v] / divisor))
                losses.append(-np.log(edge if (u, v) in joined else 1 - edge))
    graph = relations.from_edges(3, [(0, 2)])
    ours = graph_loss(jnp.asarray(hidden, jnp.float32), relations.adjacency(graph), divisor)
    np.testing.assert_allclose(ours, np.mean(losses), rtol=1e-6)


def test_fedamp_mixes_models_by_their_distances_and_trains_near_the_mixture():
    """The first mixtures are of equal models, so that all clients start from the same."""
    share, sigma, pull = 0.6, 0.5, 0.8
    algorithm = fedamp(
        *(LINE, TRAIN),
        num_clients=3,
        fedamp_lambda=pull,
        fedamp_share=share,
        fedamp_sigma=sigma,
    )
    first, last, program = play(algorithm, data(), 2)
    sent = np.repeat(float(first.server.uploads["head"][0, 0]), 3)
    for _ in range(2):
        trained = np.array([gradient_descent(sent[i], i, mu=pull) for i in range(3)])
        squared = (trained[:, None] - trained) ** 2
        unit = np.median([squared[0, 1], squared[0, 2], squared[1, 2]])
        xi = share / 2 * np.exp(-squared / (sigma * unit))
        for i in range(3):
            xi[i, i] = 1 - sum(xi[i, j] for j in range(3) if j != i)
        sent = xi @ trained
    np.testing.assert_allclose(last.server.mixing, xi, rtol=1e-4)
    np.testing.assert_allclose(last.server.uploads["head"][:, 0], trained, rtol=1e-4)
    np.testing.assert_allclose(last.clients[0]["head"][:, 0], trained, rtol=1e-4)
    scores = program.evaluate(last, KEY, {}, data())[0]["test"]
    np.testing.assert_allclose(scores["G"], squares(sent), rtol=1e-4)
    np.testing.assert_allclose(scores["P"], squares(trained), rtol=1e-4)


# Four weights per client, for what a server makes of models.
VECTOR = ClientModel(
    init=lambda key: {"body": {}, "head": jnp.arange(1.0, 5.0)},
    body=lambda params, x: x,
    head=lambda params, features: features * params[:1],
    task=REGRESSION,
)


def after_uploads(algorithm, *rounds, ids=None):
    """The server after the rounds' models [M, 4], and its messages [N, 4]."""
    ids = np.arange(len(rounds[0])) if ids is None else np.asarray(ids)
    total = int(ids.max()) + 1
    server = algorithm.server.init(KEY, relations.from_edges(total, []))
    cohort = Cohort(jnp.asarray(ids, jnp.int32), jnp.arange(1.0, len(ids) + 1.0))
    aggregate = jax.jit(algorithm.server.aggregate)
    for models in rounds:
        models = {"body": {}, "head": jnp.asarray(models, jnp.float32)}
        server = aggregate(server, (cohort,), (models,), KEY)
    sent = jax.vmap(algorithm.server.download, (None, None, 0))(server, 0, jnp.arange(total))
    return jax.device_get(server), np.asarray(sent["head"])


def test_heurfedamp_mixes_models_by_their_cosines():
    own, sigma = 0.3, 4.0
    algorithm = heurfedamp(
        *(VECTOR, TRAIN),
        num_clients=5,
        fedamp_lambda=1.0,
        heurfedamp_own=own,
        heurfedamp_sigma=sigma,
    )
    models = np.random.default_rng(0).normal(size=(5, 4))
    server, sent = after_uploads(algorithm, models)
    expected = np.zeros((5, 5))
    for i in range(5):
        others = [j for j in range(5) if j != i]
        cosine = [
            models[i] @ models[j] / np.linalg.norm(models[i]) / np.linalg.norm(models[j])
            for j in others
        ]
        expected[i, others] = (1 - own) * scipy.special.softmax(sigma * np.array(cosine))
        expected[i, i] = own
    np.testing.assert_allclose(server.mixing, expected, rtol=1e-4)
    np.testing.assert_allclose(sent, expected @ models, rtol=1e-4)


def same_parts(a, b):
    """Whether two labellings divide the same elements in the same way."""
    a, b = np.asarray(a), np.asarray(b)
    return np.array_equal(a[:, None] == a, b[:, None] == b)


def test_bipartition_is_complete_linkage_within_each_cluster():
    """Against SciPy, for two clusters to be split and one that stays."""
    rng = np.random.default_rng(1)
    updates, clusters = rng.normal(size=(24, 5)), rng.integers(0, 3, 24)
    ready = np.array([True, False, True])
    leaves = jax.jit(bipartition)(
        jnp.asarray(updates, jnp.float32), jnp.asarray(clusters), jnp.asarray(ready)
    )
    for cluster in range(3):
        members = np.flatnonzero(clusters == cluster)
        if not ready[cluster]:
            assert not leaves[members].any()
            continue
        links = scipy.cluster.hierarchy.linkage(updates[members], "complete", "cosine")
        parts = scipy.cluster.hierarchy.fcluster(links, 2, "maxclust")
        assert same_parts(leaves[members], parts) and not leaves[members[0]]
        assert 0 < np.sum(np.asarray(leaves)[members]) < len(members)


def cfl_of(played=20, **changes):
    settings = {
        "cfl_clusters": 6,
        "cfl_warmup": 20,
        "cfl_mean_norm": 0.1,  # times the first largest norm, sqrt(29): 0.54
        "cfl_max_norm": 0.37,  # 2.0
    }
    return cfl(VECTOR, TRAIN, played=played, num_clients=12, **settings | changes)


# Clients of four kinds, in no order; kinds 0 and 1 are the nearer to each other, as 2 and 3.
KINDS = np.array([3, 0, 2, 1, 0, 3, 1, 2, 2, 0, 1, 3])


DIRECTIONS = np.array([[5.0, 2.0], [5.0, -2.0], [-5.0, 2.0], [-5.0, -2.0]])


def updates_of_kinds():
    """Updates [12, 4] whose means over all, and over each pair of kinds, are near 0 in turn."""
    rng = np.random.default_rng(0)
    return np.concatenate([DIRECTIONS[KINDS], rng.normal(size=(12, 2)) / 50], axis=1)


def means_of(groups, rows):
    """For each client the mean row of its group."""
    return np.array([rows[groups == group].mean(0) for group in groups])


def test_cfl_splits_clusters_and_keeps_the_numbers_of_their_clients():
    """Two levels. In the second, places of clients in their cluster are not their numbers."""
    first = updates_of_kinds()
    second = first * np.array([0.0, 1.5, 1.0, 1.0])  # what remains differs within each pair
    start = np.arange(1.0, 5.0)
    uploads = [start + first]
    server, sent = after_uploads(cfl_of(), *uploads)
    assert server.count == 2 and same_parts(server.clusters, KINDS // 2)
    expected = start + means_of(KINDS // 2, first)
    np.testing.assert_allclose(sent, expected, atol=1e-5)
    uploads.append(expected + second)
    server, sent = after_uploads(cfl_of(), *uploads)
    assert server.count == 4 and same_parts(server.clusters, KINDS)
    expected = expected + means_of(KINDS, second)
    np.testing.assert_allclose(sent, expected, atol=1e-5)
    uploads.append(expected + first)
    _, sent = after_uploads(cfl_of(), *uploads)
    np.testing.assert_allclose(sent, expected + means_of(KINDS, first), atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"played": 19},
        {"cfl_mean_norm": 0.0},
        {"cfl_max_norm": 1.1},
        {"cfl_clusters": 1},
    ],
)
def test_cfl_splits_only_if_all_conditions_hold(changes):
    server, _ = after_uploads(cfl_of(**changes), np.arange(1.0, 5.0) + updates_of_kinds())
    assert server.count == 1 and not server.clusters.any()


def test_cfl_splits_only_after_all_clients_of_the_cluster_have_trained():
    """Client 1 is never in the cohort."""
    ids = np.delete(np.arange(12), 1)
    models = np.arange(1.0, 5.0) + updates_of_kinds()[ids]
    server, sent = after_uploads(cfl_of(), models, ids=ids)
    assert server.count == 1
    np.testing.assert_allclose(sent, np.tile(models.mean(0), (12, 1)), atol=1e-5)


@pytest.mark.slow
def test_a_new_client_of_cfl_joins_the_cluster_that_moved_as_it_does():
    """It starts from the model that was split, and keeps its cluster afterwards."""
    algorithm, first = cfl_of(), updates_of_kinds()
    root = start = np.arange(1.0, 5.0)
    moved = root + np.where(KINDS[:, None] < 2, 1.0, -1.0) * np.array([5.0, 0.0, 0.0, 0.0])
    server, sent = after_uploads(algorithm, start + first, moved)
    server = jax.tree.map(jnp.asarray, server)
    np.testing.assert_allclose(sent, moved, atol=1e-5)
    ids = jnp.array([12, 13], jnp.int32)
    server = algorithm.server.admit(server, (ids,), relations.from_edges(14, []), KEY)
    download = jax.vmap(lambda server, i: algorithm.server.download(server, 0, i), (None, 0))
    np.testing.assert_allclose(download(server, ids)["head"], [root] * 2, atol=1e-5)
    uploads = {
        "body": {},
        "head": jnp.asarray(root + np.array([[-1.0, 1, 0, 0], [2, 0, 1, 0]])),
    }
    uploads = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), uploads)
    cohort = Cohort(ids, jnp.ones(2))
    adapted = algorithm.server.adapt_new_clients(server, (cohort,), (uploads,), KEY)
    expected = [moved[KINDS >= 2][0], moved[KINDS < 2][0]]
    np.testing.assert_allclose(download(adapted, ids)["head"], expected, atol=1e-5)
    again = algorithm.server.adapt_new_clients(
        adapted, (cohort,), (download(adapted, ids[::-1]),), KEY
    )
    np.testing.assert_array_equal(again.clusters, adapted.clusters)
    np.testing.assert_array_equal(again.clusters[:12], server.clusters[:12])


# A linear body with two features and a linear head with three classes, without biases.
SOFTMAX = ClientModel(
    init=lambda key: {
        "body": jax.random.normal(key, (3, 2)),
        "head": jax.random.normal(jax.random.fold_in(key, 1), (2, 3)),
    },
    body=lambda weights, x: x @ weights,
    head=lambda weights, features: features @ weights,
    task=CLASSIFICATION,
)


POINTS = np.random.default_rng(5).normal(size=(3, 6, 3))


LABELS = np.array([[0, 1, 1, 2, 0, 0], [2, 2, 1, 2, 2, 2], [0, 2, 0, 2, 0, 2]])


NUMBERS = np.array([5, 6, 4])  # of real examples


def classified():
    """Three clients, of which the last two lack a class."""
    examples = Examples(
        POINTS.astype(np.float32), LABELS.astype(np.int32), NUMBERS.astype(np.int32)
    )
    evals = {"test": examples, "val": examples._replace(y=np.roll(examples.y, 1, axis=1))}
    return FederatedData(examples, evals, relations.from_edges(3, [(0, 1)]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "hyper"])
def test_fedrod_trains_a_balanced_generic_head_and_a_personal_head_on_top(kind):
    """A hypernetwork has a head for each class, and mixes them by the client's shares."""
    algorithm = fedrod(SOFTMAX, TRAIN, classes=3, fedrod_head=kind)
    first, last, program = play(algorithm, classified(), 2)
    body, head = (np.asarray(first.server[part], np.float64) for part in ("body", "head"))
    personal, by_class = [np.zeros((2, 3)) for _ in range(3)], np.zeros((3, 2, 3))
    shares = [np.bincount(LABELS[i, :n], minlength=3) / n for i, n in enumerate(NUMBERS)]
    for _ in range(2):
        bodies, heads, generators = [], [], []
        for i in range(3):
            x, y = POINTS[i, : NUMBERS[i]], np.eye(3)[LABELS[i, : NUMBERS[i]]]
            prior = np.log(np.maximum(y.sum(0), 1e-12))
            a, g, q = body, head, by_class
            for _ in range(3):
                if kind == "hyper":
                    personal[i] = sum(
                        share * q_c for share, q_c in zip(shares[i], q, strict=True)
                    )
                off = (scipy.special.softmax(x @ a @ g + prior, axis=1) - y) / len(x)
                own = scipy.special.softmax(x @ a @ (g + personal[i]), axis=1) - y
                step = (x @ a).T @ own / len(x)
                a, g = a - RATE * x.T @ off @ g.T, g - RATE * (x @ a).T @ off
                q = np.stack(
                    [q_c - RATE * s * step for s, q_c in zip(shares[i], q, strict=True)]
                )
                personal[i] = personal[i] - RATE * step
            bodies.append(a)
            heads.append(g)
            generators.append(q)
        body, head, by_class = (
            np.average(each, axis=0, weights=NUMBERS) for each in (bodies, heads, generators)
        )
    np.testing.assert_allclose(last.server["body"], body, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(last.server["head"], head, rtol=1e-4, atol=1e-6)
    if kind == "hyper":
        assert last.clients == ((),)
        np.testing.assert_allclose(last.server["personal"], by_class, rtol=1e-4, atol=1e-6)
        personal = [np.tensordot(each, by_class, 1) for each in shares]
    else:
        np.testing.assert_allclose(last.clients[0], personal, rtol=1e-4, atol=1e-6)
    scores = program.evaluate(last, KEY, {}, classified())[0]["test"]
    for point, heads in (("G", [head] * 3), ("P", [head + own for own in personal])):
        for i in range(3):
            x, y = POINTS[i, : NUMBERS[i]], LABELS[i, : NUMBERS[i]]
            right = np.mean(np.argmax(x @ body @ heads[i], axis=1) == y)
            np.testing.assert_allclose(scores[point][i], right, atol=1e-6)


def neighbours_of(query, stored, labels, number, scale):
    """p_knn of one query, by sorting all distances."""
    squared = np.sum((stored - query) ** 2, axis=1)
    nearest = np.argsort(squared)[:number]
    weights = np.exp(-squared[nearest] / (len(query) * scale))
    votes = np.array([np.sum(weights * (labels[nearest] == c)) for c in range(3)])
    return votes / votes.sum()


@pytest.mark.parametrize("number", [1, 3, 10])
def test_votes_are_those_of_the_nearest_real_examples(number):
    """With more neighbours than examples, all examples vote."""
    rng = np.random.default_rng(6)
    stored, labels, queries = (
        rng.normal(size=(8, 4)),
        rng.integers(0, 3, 8),
        rng.normal(size=(5, 4)),
    )
    stored[6:] = queries[:2]  # padding
    found = vote(
        *(jnp.asarray(queries, jnp.float32), jnp.asarray(stored, jnp.float32)),
        *(jnp.asarray(labels), jnp.int32(6), 3, number, 0.7),
    )
    expected = [neighbours_of(q, stored[:6], labels[:6], number, 0.7) for q in queries]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_knnper_mixes_probabilities_and_chooses_lambda_on_validation():
    share, choices = 0.8, 4
    settings = Neighbours(number=2, choices=choices, weight=share, scale=0.5)
    algorithm, w = knnper(SOFTMAX, TRAIN, neighbours=settings), SOFTMAX.init(KEY)
    body, head = (np.asarray(w[part], np.float64) for part in ("body", "head"))
    federated = jax.tree.map(jnp.asarray, classified())

    def mixed(i, x, weight):
        real = slice(NUMBERS[i])
        stored, labels = POINTS[i, real] @ body, LABELS[i, real]
        near = [neighbours_of(q, stored, labels, 2, 0.5) for q in x @ body]
        model = scipy.special.softmax(x @ body @ head, axis=1)
        return weight * np.array(near) + (1 - weight) * model

    chosen = []
    for i in range(3):
        own = jax.tree.map(lambda leaf: leaf[i], (federated.train, federated.evals["val"]))  # noqa: B023
        found = jax.jit(algorithm.client.personalize)(w, (), ClientData(*own), KEY)
        x, y = POINTS[i, : NUMBERS[i]], np.roll(LABELS[i], 1)[: NUMBERS[i]]
        tried = [share * j / choices for j in range(choices + 1)]
        scores = [np.mean(np.argmax(mixed(i, x, each), axis=1) == y) for each in tried]
        chosen.append(tried[int(np.argmax(scores))])
        np.testing.assert_allclose(found.extra.weight, chosen[-1], rtol=1e-6)
        outputs = algorithm.client.predict(found, jnp.asarray(x, jnp.float32))
        np.testing.assert_allclose(np.exp(outputs), mixed(i, x, chosen[-1]), rtol=1e-4)
    assert len(set(chosen)) > 1
