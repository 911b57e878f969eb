"""Methods for clients of different architectures: references in NumPy, and identities."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_softmax, softmax

from graphfl_jax import tree
from graphfl_jax.algorithms.distillation import distillation
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.feddistill import feddistill
from graphfl_jax.algorithms.fedgh import fedgh
from graphfl_jax.algorithms.fedproto import ClassMeans, average, class_means, fedproto
from graphfl_jax.algorithms.fml import fml
from graphfl_jax.algorithms.heterofl import heterofl
from graphfl_jax.algorithms.lgfedavg import lgfedavg
from graphfl_jax.algorithms.local import local
from graphfl_jax.core import ClientData, ClientModel, Cohort, FederatedData
from graphfl_jax.data import relations
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.mlp import mlp
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group
from graphfl_jax.trainers import sgd_trainer
from tests.federations import two_clusters

KEY = jax.random.key(7)
RATE, STEPS = 0.1, 3
TRAIN = sgd_trainer(optax.sgd(RATE), steps=STEPS, batch_size=None)
CLASSES = 3

# Three clients with up to six points in three dimensions; the last rows of some are padding.
# Class 0 is known to client 0 alone, and no client but it has all classes.
POINTS = np.random.default_rng(3).normal(size=(3, 6, 3))
LABELS = np.array([[0, 1, 1, 2, 0, 0], [2, 2, 1, 2, 2, 2], [1, 2, 1, 2, 0, 0]])
NUMBERS = np.array([5, 6, 4])
PLACES = ((0, 0), (1, 0), (0, 1))  # of each client: its architecture, and its place in it
GROUPS = (Group(2, np.array([0, 2], np.int32)), Group(1, np.array([1], np.int32)))


def linear(*widths):
    """A body that multiplies matrices of these sizes, and a head that is a matrix."""
    pairs = list(zip(widths[:-1], widths[1:], strict=True))

    def init(key):
        keys = jax.random.split(key, len(pairs) + 1)
        draw = [jax.random.normal(own, pair) for own, pair in zip(keys[1:], pairs, strict=True)]
        return {"body": draw, "head": jax.random.normal(keys[0], (widths[-1], CLASSES))}

    return ClientModel(
        init=init,
        body=lambda matrices, x: functools.reduce(jnp.matmul, matrices, x),
        head=lambda matrix, features: features @ matrix,
        task=CLASSIFICATION,
    )


MODELS = (linear(3, 2), linear(3, 4, 2))  # with the same number of features
WIDTHS = (linear(3, 2), linear(3, 4))  # one architecture at two widths
INPUTS = {"inputs": (3,), "classes": CLASSES}


def data():
    examples = Examples(
        POINTS.astype(np.float32), LABELS.astype(np.int32), NUMBERS.astype(np.int32)
    )
    return FederatedData(examples, {"test": examples}, relations.from_edges(3, []))


class Net(NamedTuple):
    """A linear model in float64."""

    body: list
    head: np.ndarray

    def features(self, x):
        return functools.reduce(np.matmul, self.body, x)

    def logits(self, x):
        return self.features(x) @ self.head

    def stepped(self, x, by_logits, by_features=0.0):
        """After a step against the gradient, from derivatives by logits and by features."""
        inputs = [x]
        for matrix in self.body:
            inputs.append(inputs[-1] @ matrix)
        head = self.head - RATE * inputs[-1].T @ by_logits
        by_output, body = by_logits @ self.head.T + by_features, []
        for matrix, own in zip(self.body[::-1], inputs[-2::-1], strict=True):
            body.insert(0, matrix - RATE * own.T @ by_output)
            by_output = by_output @ matrix.T
        return Net(body, head)


def net(params):
    """Parameters as a `Net`."""
    return Net(
        [np.asarray(matrix, np.float64) for matrix in params["body"]],
        np.asarray(params["head"], np.float64),
    )


def nets(memories):
    """The models of the three clients, which are their memories."""
    return [net(tree.take(memories[group], place)) for group, place in PLACES]


def real(i):
    """The points and labels of a client."""
    return POINTS[i, : NUMBERS[i]], LABELS[i, : NUMBERS[i]]


def off(logits, targets):
    """The derivative by the logits of the mean cross-entropy with target probabilities."""
    return (softmax(logits, axis=1) - targets) / len(logits)


def trained(model, i):
    """A model after plain gradient descent on the labels of a client."""
    x, y = real(i)
    for _ in range(STEPS):
        model = model.stepped(x, off(model.logits(x), np.eye(CLASSES)[y]))
    return model


def weighted(values):
    """The mean over clients, weighted by their examples; of arrays or of `Net`s."""
    if isinstance(values[0], Net):
        bodies = [weighted(list(each)) for each in zip(*(v.body for v in values), strict=True)]
        return Net(bodies, weighted([value.head for value in values]))
    return np.average(values, axis=0, weights=NUMBERS)


def play(algorithm, rounds=3):
    """The first state, the last, and the test scores, with all clients in every round."""
    program = Program(lambda hparams, played: algorithm, groups=GROUPS).compiled()
    start = program.start(KEY, {}, data())
    first = jax.device_get(start)
    last, _ = program.advance(start, KEY, {}, data(), jnp.int32(rounds))
    scores = program.evaluate(last, KEY, {}, data())[0]["test"]
    return first, jax.device_get(last), scores


def assert_nets(params, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        *(net(params)._asdict(), expected._asdict()),
    )


def assert_memories(memories, expected):
    for (group, place), own in zip(PLACES, expected, strict=True):
        assert_nets(tree.take(memories[group], place), own)


def assert_scores(scores, predict):
    """That scores [3] are the accuracies of predictions (i, x) -> labels."""
    right = [np.mean(predict(i, real(i)[0]) == real(i)[1]) for i in range(3)]
    np.testing.assert_allclose(scores, right, atol=1e-6)


def means_of_classes(values, y):
    """The mean of values [n, D] over each class, 0 without examples, and their numbers."""
    count = np.bincount(y, minlength=CLASSES)
    mean = np.array(
        [values[y == c].mean(0) if count[c] else 0 * values[0] for c in range(CLASSES)]
    )
    return mean, count


# ------------------------------------------------------------------------------- references


@pytest.mark.slow
def test_fedproto_pulls_features_to_the_mean_features_of_their_class():
    lam = 0.7
    algorithm = fedproto(
        MODELS, TRAIN, **INPUTS, fedproto_predict="prototypes", fedproto_lambda=lam
    )
    first, last, scores = play(algorithm)
    own, prototypes, known = nets(first.clients), np.zeros((CLASSES, 2)), np.zeros(CLASSES)
    for _ in range(3):
        uploads = []
        for i in range(3):
            x, y = real(i)
            for _ in range(STEPS):
                apart = own[i].features(x) - prototypes[y]
                pull = lam * 2 * apart / apart.size * (known[y] > 0)[:, None]
                own[i] = own[i].stepped(x, off(own[i].logits(x), np.eye(CLASSES)[y]), pull)
            uploads.append(means_of_classes(own[i].features(x), y))
        known = sum(count for _, count in uploads)
        prototypes = sum(count[:, None] * mean for mean, count in uploads) / known[:, None]
    assert_memories(last.clients, own)
    np.testing.assert_allclose(last.server.mean, prototypes, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(last.server.count, [2, 5, 8])
    assert_scores(scores["G"], lambda i, x: own[i].logits(x).argmax(1))
    assert_scores(
        scores["P"],
        lambda i, x: np.square(own[i].features(x)[:, None] - prototypes).sum(2).argmin(1),
    )


@pytest.mark.slow
def test_feddistill_learns_from_the_mean_predictions_of_the_other_clients():
    gamma = 0.7
    algorithm = feddistill(
        MODELS, TRAIN, num_clients=3, classes=CLASSES, feddistill_gamma=gamma
    )
    first, last, scores = play(algorithm)
    own, uploads = nets(first.clients), [(None, np.zeros(CLASSES))] * 3
    for _ in range(3):
        sent = list(uploads)
        for i in range(3):
            x, y = real(i)
            others = {
                c: [sent[j][0][c] for j in range(3) if j != i and sent[j][1][c]]
                for c in range(CLASSES)
            }
            taught = np.array([bool(others[c]) for c in y], float)[:, None]
            targets = np.array([np.mean(others[c] or [np.zeros(3)], axis=0) for c in y])
            for _ in range(STEPS):
                logits = own[i].logits(x)
                by_logits = off(logits, np.eye(CLASSES)[y])
                by_logits = by_logits + gamma * taught * off(logits, targets)
                own[i] = own[i].stepped(x, by_logits)
            uploads[i] = means_of_classes(softmax(own[i].logits(x), axis=1), y)
    assert_memories(last.clients, own)
    for i, (mean, count) in enumerate(uploads):
        np.testing.assert_allclose(last.server.mean[i], mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(last.server.count[i], count)
    assert_scores(scores["P"], lambda i, x: own[i].logits(x).argmax(1))


@pytest.mark.slow
def test_fml_trains_private_models_and_the_smallest_by_their_predictions():
    alpha, beta = 0.6, 0.3
    first, last, scores = play(fml(MODELS[::-1], TRAIN, fml_alpha=alpha, fml_beta=beta))
    assert_shapes_of(first.server, MODELS[0])
    own, shared = nets(first.clients), net(first.server)
    for _ in range(3):
        copies = []
        for i in range(3):
            x, y = real(i)
            copy, labels = shared, np.eye(CLASSES)[y]
            for _ in range(STEPS):
                # The derivative of KL(q || p) by the logits of p is p - q.
                logits, common = own[i].logits(x), copy.logits(x)
                by_own = alpha * off(logits, labels)
                by_own = by_own + (1 - alpha) * off(logits, softmax(common, axis=1))
                by_common = beta * off(common, labels)
                by_common = by_common + (1 - beta) * off(common, softmax(logits, axis=1))
                own[i], copy = own[i].stepped(x, by_own), copy.stepped(x, by_common)
            copies.append(copy)
        shared = weighted(copies)
    assert_memories(last.clients, own)
    assert_nets(last.server, shared)
    assert_scores(scores["P"], lambda i, x: own[i].logits(x).argmax(1))


def assert_shapes_of(params, model):
    """That parameters have the shapes of those of a model."""
    expected = jax.eval_shape(model.init, KEY)
    assert jax.tree.map(np.shape, params) == jax.tree.map(lambda leaf: leaf.shape, expected)


@pytest.mark.slow
def test_fedgh_trains_one_head_on_the_mean_features_of_all_clients():
    rate, steps = 0.4, 2
    algorithm = fedgh(
        MODELS, TRAIN, **INPUTS, server_optimizer=optax.sgd(rate), server_steps=steps
    )
    first, last, scores = play(algorithm)
    own, head = nets(first.clients), np.asarray(first.server.head, np.float64)
    for _ in range(3):
        features, labels = [], []
        for i in range(3):
            x, y = real(i)
            own[i] = trained(own[i]._replace(head=head), i)
            mean, count = means_of_classes(own[i].features(x), y)
            features += list(mean[count > 0])
            labels += list(np.flatnonzero(count))
        features = np.array(features)
        assert features.shape == (7, 2)
        for _ in range(steps):
            by_logits = off(features @ head, np.eye(CLASSES)[labels])
            head = head - rate * features.T @ by_logits
    assert_memories(last.clients, own)
    np.testing.assert_allclose(last.server.head, head, rtol=1e-4, atol=1e-5)
    after = [trained(one._replace(head=head), i) for i, one in enumerate(own)]
    assert_scores(scores["P"], lambda i, x: (own[i].features(x) @ head).argmax(1))
    assert_scores(scores["L"], lambda i, x: after[i].logits(x).argmax(1))


@pytest.mark.slow
def test_lgfedavg_averages_heads_and_keeps_bodies():
    first, last, scores = play(lgfedavg(MODELS, TRAIN))
    head = np.asarray(first.server, np.float64)
    bodies = [tree.take(first.clients[group], place) for group, place in PLACES]
    own = [net({"body": body, "head": head}) for body in bodies]
    for _ in range(3):
        own = [trained(one._replace(head=head), i) for i, one in enumerate(own)]
        head = weighted([one.head for one in own])
    np.testing.assert_allclose(last.server, head, rtol=1e-4, atol=1e-5)
    for (group, place), one in zip(PLACES, own, strict=True):
        for ours, theirs in zip(tree.take(last.clients[group], place), one.body, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    after = [trained(one._replace(head=head), i) for i, one in enumerate(own)]
    assert_scores(scores["P"], lambda i, x: (own[i].features(x) @ head).argmax(1))
    assert_scores(scores["L"], lambda i, x: after[i].logits(x).argmax(1))


@pytest.mark.slow
def test_heterofl_averages_every_element_over_the_clients_that_hold_it():
    """Clients 0 and 2 have two features of the four that client 1 has."""
    first, last, scores = play(heterofl(WIDTHS, TRAIN))
    w = net(first.server)
    assert w.head.shape == (4, CLASSES)

    def held(i):
        size = 4 if i == 1 else 2
        return Net([w.body[0][:, :size]], w.head[:size])

    for _ in range(3):
        narrow, wide, other = (trained(held(i), i) for i in range(3))
        body, head = wide.body[0].copy(), wide.head.copy()
        body[:, :2] = weighted([narrow.body[0], body[:, :2], other.body[0]])
        head[:2] = weighted([narrow.head, head[:2], other.head])
        w = Net([body], head)
    assert_nets(last.server, w)
    assert last.clients == ((), ())
    assert_scores(scores["P"], lambda i, x: held(i).logits(x).argmax(1))
    after = [trained(held(i), i) for i in range(3)]
    assert_scores(scores["L"], lambda i, x: after[i].logits(x).argmax(1))


@pytest.mark.slow
def test_distillation_trains_a_teacher_by_fedavg_and_students_by_labels_and_teacher():
    alpha, temperature = 0.4, 1.5
    algorithm = distillation(
        MODELS, TRAIN, distillation_alpha=alpha, distillation_temperature=temperature
    )
    first, last, scores = play(algorithm)
    assert_shapes_of(first.server, MODELS[0])
    own, teacher = nets(first.clients), net(first.server)
    for _ in range(3):
        for i in range(3):
            x, y = real(i)
            soft = softmax(teacher.logits(x) / temperature, axis=1)
            for _ in range(STEPS):
                logits = own[i].logits(x)
                # The derivative of 2 T^2 KL by the logits is 2 T (s_T - t_T).
                by_teacher = 2 * temperature * off(logits / temperature, soft)
                by_labels = off(logits, np.eye(CLASSES)[y])
                own[i] = own[i].stepped(x, (1 - alpha) * by_labels + alpha * by_teacher)
        teacher = weighted([trained(teacher, i) for i in range(3)])
    assert_memories(last.clients, own)
    assert_nets(last.server, teacher)
    assert_scores(scores["P"], lambda i, x: own[i].logits(x).argmax(1))


@pytest.mark.slow
def test_the_reported_loss_of_a_student_is_the_papers():
    """2 T^2 KL(t_T || s_T), beside the cross-entropy, from one step."""
    alpha, temperature = 0.4, 1.5
    algorithm = distillation(
        MODELS,
        sgd_trainer(optax.sgd(RATE), steps=1, batch_size=None),
        distillation_alpha=alpha,
        distillation_temperature=temperature,
    )
    client, params = algorithm.clients[1], MODELS[1].init(KEY)
    w = MODELS[0].init(jax.random.key(1))
    own = tree.take(jax.tree.map(jnp.asarray, data().train), 2)
    _, _, metrics = client.local(w, params, ClientData(own), KEY)
    x, y = real(2)
    student, teacher = (
        log_softmax(one.logits(x) / temperature, axis=1) for one in (net(params), net(w))
    )
    apart = np.mean(np.sum(np.exp(teacher) * (teacher - student), axis=1))
    labels = -np.mean(log_softmax(net(params).logits(x), axis=1)[np.arange(4), y])
    expected = (1 - alpha) * labels + alpha * 2 * temperature**2 * apart
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)


# --------------------------------------------------------------------------- means of classes


def test_means_of_classes_leave_padding_out():
    examples = Examples(jnp.zeros((5, 1)), jnp.array([1, 1, 0, 1, 2], jnp.int32), jnp.int32(3))
    values = jnp.array([[1.0, 2.0], [3.0, 6.0], [5.0, 7.0], [jnp.nan, 1.0], [jnp.inf, 1.0]])
    means = class_means(values, examples, CLASSES)
    np.testing.assert_array_equal(means.mean, [[5.0, 7.0], [2.0, 4.0], [0.0, 0.0]])
    np.testing.assert_array_equal(means.count, [1, 2, 0])


def test_a_class_that_no_client_of_a_cohort_has_keeps_its_mean():
    last = ClassMeans(jnp.array([[1.0], [2.0], [0.0]]), jnp.array([4, 9, 0]))
    uploads = ClassMeans(
        jnp.array([[[3.0], [0.0], [0.0]], [[7.0], [0.0], [0.0]]]),
        jnp.array([[1, 0, 0], [3, 0, 0]]),
    )
    means = average(last, uploads)
    np.testing.assert_allclose(means.mean, [[6.0], [2.0], [0.0]])
    np.testing.assert_array_equal(means.count, [4, 9, 0])


def test_a_new_client_of_feddistill_receives_the_mean_of_all_and_changes_none():
    server = feddistill(MODELS[:1], TRAIN, num_clients=2, classes=2).server
    known = ClassMeans(
        jnp.array([[[0.9, 0.1], [0.0, 0.0]], [[0.7, 0.3], [0.2, 0.8]]]),
        jnp.array([[4, 0], [1, 2]]),
    )
    new = jnp.array([2, 3], jnp.int32)
    joined = server.admit(known, (new,), relations.from_edges(4, []), KEY)
    for i in (2, 3):
        received = server.download(joined, 0, i)
        np.testing.assert_allclose(received.mean, [[0.8, 0.2], [0.2, 0.8]], rtol=1e-6)
        np.testing.assert_array_equal(received.count, [2, 1])
    for i in (0, 1):
        before, after = server.download(known, 0, i), server.download(joined, 0, i)
        jax.tree.map(np.testing.assert_array_equal, before, after)
    others = server.download(known, 0, 0)
    np.testing.assert_allclose(others.mean, [[0.7, 0.3], [0.2, 0.8]], rtol=1e-6)
    np.testing.assert_array_equal(server.download(known, 0, 1).count, [1, 0])


def test_the_head_server_of_fedgh_keeps_its_optimisers_state_from_round_to_round():
    """Two rounds of three steps."""
    algorithm = fedgh(
        *(MODELS[:1], TRAIN),
        **INPUTS,
        server_optimizer=optax.scale_by_schedule(lambda step: 0.0),
        server_steps=3,
    )
    server = algorithm.server.init(KEY, relations.from_edges(1, []))
    cohort = Cohort(jnp.array([0], jnp.int32), jnp.ones(1))
    means = ClassMeans(jnp.ones((1, CLASSES, 2)), jnp.ones((1, CLASSES), jnp.int32))
    for _ in range(2):
        server = algorithm.server.aggregate(server, (cohort,), (means,), KEY)
    assert server.opt_state.count == 6


# ------------------------------------------------------------------------------- identities

CLUSTERS = two_clusters().data
EVEN, ODD = np.arange(0, 7, 2, dtype=np.int32), np.arange(1, 7, 2, dtype=np.int32)
EVERYONE = (Group(4, EVEN), Group(3, ODD))
PERCEPTRONS = tuple(
    mlp(inputs=(2,), hidden=hidden, outputs=2, task=CLASSIFICATION) for hidden in ((6,), (3, 6))
)
OF_CLUSTERS = {"inputs": (2,), "classes": 2}
METHODS = {
    "fedproto": fedproto(PERCEPTRONS, TRAIN, **OF_CLUSTERS, fedproto_lambda=0.0),
    "feddistill": feddistill(
        PERCEPTRONS, TRAIN, num_clients=7, classes=2, feddistill_gamma=0.0
    ),
    "fml": fml(PERCEPTRONS, TRAIN, fml_alpha=1.0, fml_beta=1.0),
    "distillation": distillation(PERCEPTRONS, TRAIN, distillation_alpha=0.0),
    "fedgh": fedgh(PERCEPTRONS, TRAIN, **OF_CLUSTERS, server_optimizer=optax.sgd(0.1)),
    "lgfedavg": lgfedavg(PERCEPTRONS, TRAIN),
    "heterofl": heterofl(
        tuple(
            mlp(inputs=(2,), hidden=hidden, outputs=2, task=CLASSIFICATION)
            for hidden in ((6, 5), (3, 4))
        ),
        TRAIN,
    ),
}


def after_rounds(algorithm, groups=EVERYONE, federated=CLUSTERS, rounds=3):
    """The state after some rounds, on the host."""
    program = Program(lambda hparams, played: algorithm, groups=groups).compiled()
    state = program.start(KEY, {}, federated)
    return jax.device_get(program.advance(state, KEY, {}, federated, jnp.int32(rounds))[0])


@functools.cache
def alone():
    """The models of both architectures after local training."""
    return after_rounds(local(PERCEPTRONS, TRAIN)).clients


@functools.cache
def averages():
    """FedAvg's model of the first architecture, of all clients."""
    return after_rounds(fedavg(PERCEPTRONS[0], TRAIN), groups=(Group(7),)).server


@functools.cache
def after(method):
    return after_rounds(METHODS[method])


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["fedproto"]
    + [
        pytest.param(method, marks=pytest.mark.release)
        for method in ("distillation", "feddistill", "fml")
    ],
)
def test_without_the_term_of_the_others_it_is_local_training(method):
    assert_close(after(method).clients, alone())


@pytest.mark.parametrize(
    "method", ["distillation", pytest.param("fml", marks=pytest.mark.slow)]
)
def test_the_shared_model_is_fedavgs_if_it_learns_from_labels_alone(method):
    assert_close(after(method).server, averages())


@pytest.mark.parametrize("method", METHODS)
def test_a_round_with_two_architectures_keeps_the_shape_of_the_state(method):
    program = Program(lambda hparams, played: METHODS[method], groups=EVERYONE).compiled()
    before = jax.eval_shape(program.start, KEY, {}, CLUSTERS)
    state, _ = jax.eval_shape(program.advance, before, KEY, {}, CLUSTERS, jnp.int32(1))
    assert before == state
    scores, *_ = jax.eval_shape(program.evaluate, state, KEY, {}, CLUSTERS)
    assert {own.shape for own in scores["test"].values()} == {(7,)}


def identity_model():
    """A body without parameters, and a linear head."""
    return ClientModel(
        init=lambda key: {"body": {}, "head": jax.random.normal(key, (2, 2))},
        body=lambda nothing, x: x,
        head=lambda matrix, features: features @ matrix,
        task=CLASSIFICATION,
    )


@pytest.mark.slow
def test_lgfedavg_of_one_architecture_without_a_body_is_fedavg():
    model, groups = identity_model(), (Group(3),)
    train = sgd_trainer(optax.sgd(RATE), steps=STEPS, batch_size=5)
    ours = after_rounds(lgfedavg((model,), train), groups)
    theirs = after_rounds(fedavg(model, train), groups)
    assert_close(ours.server, theirs.server["head"])


@pytest.mark.slow
def test_fedgh_of_one_example_a_class_without_a_body_is_fedavg_of_one_step():
    """Then means are examples, and a step of the server is the mean of the clients' steps."""
    x = np.random.default_rng(1).normal(size=(3, 2, 2)).astype(np.float32)
    y, count = np.array([[0, 1], [1, 0], [0, 1]], np.int32), np.full(3, 2, np.int32)
    examples = Examples(x, y, count)
    federated = FederatedData(examples, {"test": examples}, relations.from_edges(3, []))
    model, groups = identity_model(), (Group(3),)
    train = sgd_trainer(optax.sgd(RATE), steps=1, batch_size=None)
    algorithm = fedgh(
        *((model,), train),
        **OF_CLUSTERS,
        server_optimizer=optax.sgd(RATE),
        server_steps=1,
    )
    ours = after_rounds(algorithm, groups, federated)
    theirs = after_rounds(fedavg(model, train), groups, federated)
    assert_close(ours.server.head, theirs.server["head"])


@pytest.mark.slow
@pytest.mark.parametrize("groups", [(Group(3),), EVERYONE], ids=["one", "two"])
def test_heterofl_of_equal_widths_is_fedavg(groups):
    """With one group, and with two of the same architecture."""
    model = PERCEPTRONS[0]
    ours = after_rounds(heterofl((model,) * len(groups), TRAIN), groups).server
    one = groups if len(groups) == 1 else (Group(7),)
    assert_close(ours, after_rounds(fedavg(model, TRAIN), one).server)


def test_a_narrow_model_is_the_wide_one_whose_other_elements_are_0():
    algorithm = METHODS["heterofl"]
    wide, narrow = algorithm.clients[0].model, algorithm.clients[1].model
    w = algorithm.server.init(KEY, CLUSTERS.graph)
    part = algorithm.server.download(w, 1, 0)
    assert_shapes_of(part, narrow)
    assert_shapes_of(algorithm.server.download(w, 0, 0), wide)

    def filled(small, large):
        pads = [(0, n - m) for m, n in zip(small.shape, large.shape, strict=True)]
        return jnp.pad(small, pads)

    x = CLUSTERS.train.x[0]
    outputs = wide.apply(jax.tree.map(filled, part, w), x)
    np.testing.assert_allclose(narrow.apply(part, x), outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_an_element_of_heterofl_that_no_client_with_examples_holds_stays():
    algorithm = heterofl(WIDTHS[::-1], TRAIN)  # the widest is found at any place
    w = algorithm.server.init(KEY, CLUSTERS.graph)
    sent = [algorithm.server.download(w, group, 0) for group in range(2)]
    uploads = tuple(jax.tree.map(lambda leaf: leaf[None] + 1.0, one) for one in sent)
    cohorts = tuple(
        Cohort(jnp.array([i], jnp.int32), jnp.array([weight]))
        for i, weight in enumerate((0.0, 2.0))
    )
    after = algorithm.server.aggregate(w, cohorts, uploads, KEY)
    np.testing.assert_allclose(after["head"][:2], w["head"][:2] + 1, rtol=1e-6)
    np.testing.assert_array_equal(after["head"][2:], w["head"][2:])
    np.testing.assert_allclose(after["body"][0][:, :2], w["body"][0][:, :2] + 1, rtol=1e-6)
    np.testing.assert_array_equal(after["body"][0][:, 2:], w["body"][0][:, 2:])


# --------------------------------------------------------------------------------- refusals

WIDER = "choose architectures with equal features, or set --config.algorithm.name=feddistill"


@pytest.mark.parametrize(
    "build, message",
    [
        (
            lambda: fedproto(WIDTHS, TRAIN, **INPUTS),
            "algorithm.name='fedproto' needs features of one size, and those of the "
            f"architectures have the sizes 2, 4; {WIDER}",
        ),
        (
            lambda: fedgh(WIDTHS, TRAIN, **INPUTS, server_optimizer=optax.sgd(0.1)),
            "algorithm.name='fedgh' needs features of one size, and those of the "
            f"architectures have the sizes 2, 4; {WIDER}",
        ),
        (
            lambda: lgfedavg(WIDTHS, TRAIN),
            "algorithm.name='lgfedavg' needs heads of one shape, and those of the "
            f"architectures have 2x3, 4x3; {WIDER}",
        ),
        (
            lambda: heterofl(MODELS, TRAIN),
            "algorithm.name='heterofl' needs one architecture at several widths, and no "
            "architecture of this federation has all others as slices of its parameters; "
            "choose architectures that differ in width only, or set "
            "--config.algorithm.name=fedproto",
        ),
    ],
    ids=["fedproto", "fedgh", "lgfedavg", "heterofl"],
)
def test_architectures_that_do_not_fit_are_refused_in_one_line(build, message):
    with pytest.raises(ValueError) as refused:
        build()
    assert str(refused.value) == message


def test_widths_of_which_none_has_all_others_are_refused():
    crossed = (linear(3, 4, 2), linear(3, 2, 4))
    with pytest.raises(ValueError, match="^algorithm.name='heterofl' needs one architecture"):
        heterofl(crossed, TRAIN)
