"""Methods whose servers mix models in further ways: references in NumPy, and special cases."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
import scipy.special

from graphfl_jax.algorithms.fed_pub import Upload, fed_pub, proxies, sparse_sgd
from graphfl_jax.algorithms.fedas import Upload as TracedBody
from graphfl_jax.algorithms.fedas import fedas, fisher_trace
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.feddbe import feddbe
from graphfl_jax.algorithms.fedfomo import Mixed, fedfomo, select
from graphfl_jax.algorithms.fednova import fednova
from graphfl_jax.algorithms.fedpac import Upload as HeadUpload
from graphfl_jax.algorithms.fedpac import combine, fedpac
from graphfl_jax.algorithms.fedper import fedper
from graphfl_jax.algorithms.fedproto import ClassMeans
from graphfl_jax.algorithms.fedrep import fedrep
from graphfl_jax.algorithms.ifca import ifca
from graphfl_jax.algorithms.pfedgraph import pfedgraph
from graphfl_jax.core import ClientModel, Cohort, FederatedData
from graphfl_jax.data import relations
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.optimizers import adam, momentum
from graphfl_jax.parts import optimizer_of_parts
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group
from graphfl_jax.runs.executables import without_cache_of_jax
from graphfl_jax.trainers import epoch_trainer, sgd_trainer

KEY = jax.random.key(6)
RATE, STEPS = 0.1, 4
# One linear weight per client, w x.
LINE = ClientModel(
    init=lambda key: {"body": {}, "head": jax.random.normal(key, (1,))},
    body=lambda params, x: x,
    head=lambda params, features: features * params[0],
    task=REGRESSION,
)
# Two weights, w_0 x + w_1 x^2.
CURVE = dataclasses.replace(
    LINE,
    init=lambda key: {"body": {}, "head": jax.random.normal(key, (2,))},
    body=lambda params, x: jnp.concatenate([x, x * x], axis=1),
    head=lambda params, features: features @ params[:, None],
)
TRAIN = sgd_trainer(optax.sgd(RATE), steps=STEPS, batch_size=None)
X = np.array([[1.0, 2.0, 0.0], [0.5, -1.0, 1.5], [2.0, 1.0, -1.0]])  # [clients, examples]
Y = np.array([[2.0, 4.5, 0.0], [0.5, -0.5, 1.0], [-1.0, 0.0, 2.0]])
COUNT = np.array([2, 3, 3])


def examples(x=X, y=Y):
    return Examples(*(np.float32(part)[..., None] for part in (x, y)), np.int32(COUNT))


def data(val=None):
    evals = {"test": examples(), "val": val or examples()}
    return FederatedData(examples(), evals, relations.from_edges(3, []))


def play(algorithm, rounds, federated=None, cohort_size=3):
    """The first state and the last of a run, and a function that gives its test scores."""
    federated = federated or data()
    program = Program(lambda hparams, played: algorithm, groups=(Group(cohort_size),))
    program = program.compiled()
    start = program.start(KEY, {}, federated)
    first = jax.device_get(start)
    last, _ = program.advance(start, KEY, {}, federated, jnp.int32(rounds))
    scores = lambda: program.evaluate(last, KEY, {}, federated)[0]["test"]  # noqa: E731
    return first, jax.device_get(last), scores


def slope(w, i):
    """The derivative of the mean square over client i's real examples."""
    x, y = X[i, : COUNT[i]], Y[i, : COUNT[i]]
    return np.mean(2 * (w * x - y) * x)


def squares(w, x=X, y=Y):
    """Mean squared error of weights w [3] over each client's examples."""
    real = np.arange(3) < COUNT[:, None]
    return np.sum(real * (np.asarray(w)[:, None] * x - y) ** 2, 1) / COUNT


def descend(w, i):
    """A round of local training."""
    for _ in range(STEPS):
        w = w - RATE * slope(w, i)
    return w


# ----------------------------------------------------------------------------------- FedNova

WORK = (0.25, 0.75, 1.0)  # shares of four steps


def with_work(algorithm, work=WORK):
    """A method whose clients take these shares of their steps."""

    def attend(key, cohorts, sizes, server):
        return tuple(cohort._replace(work=jnp.array(work)) for cohort in cohorts)

    return algorithm.replacing(attend=attend)


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_fednova_divides_updates_by_the_norms_of_their_steps(rho):
    """With SGD and with momentum, whose a_i are those of the paper."""
    train = sgd_trainer(
        momentum(lr=RATE, momentum=rho, weight_decay=0.0), steps=4, batch_size=None
    )
    first, last, scores = play(with_work(fednova(LINE, train)), 2)
    w = float(first.server["head"][0])
    shares, taken = COUNT / COUNT.sum(), (1, 3, 4)
    norms = [sum((1 - rho ** (t - k)) / (1 - rho) for k in range(t)) for t in taken]

    def trained(w, i, steps):
        speed = 0.0
        for _ in range(steps):
            speed = rho * speed + slope(w, i)
            w = w - RATE * speed
        return w

    for _ in range(2):
        moves = [(trained(w, i, taken[i]) - w) / norms[i] for i in range(3)]
        averaged = shares @ [trained(w, i, taken[i]) for i in range(3)]
        w = w + shares @ norms * (shares @ moves)
        assert abs(w - averaged) > 1e-3
    np.testing.assert_allclose(last.server["head"][0], w, rtol=1e-5)
    scores = scores()
    np.testing.assert_allclose(scores["G"], squares([w] * 3), rtol=1e-4)
    whole = [trained(w, i, 4) for i in range(3)]  # an evaluation is no round
    np.testing.assert_allclose(scores["L"], squares(whole), rtol=1e-4)


def test_fednova_of_clients_with_as_many_steps_is_fedavg():
    train = sgd_trainer(adam(lr=RATE), steps=STEPS, batch_size=2)
    ours, theirs = (
        play(method(LINE, train), 2)[1].server["head"] for method in (fednova, fedavg)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_fednova_counts_the_steps_of_epochs():
    """Batches of two: one of the first client, whose two examples are real, and two else."""
    client = fednova(LINE, epoch_trainer(optax.sgd(RATE), epochs=3, batch_size=2)).client
    everyone = fednova(LINE, TRAIN).client_data(data())
    norms = jax.vmap(lambda data: client.untrained(({},), (), data)[1])(everyone)
    np.testing.assert_allclose(norms, RATE * np.array([3, 6, 6]), rtol=1e-6)


# -------------------------------------------------------------------------------------- IFCA


def test_ifca_trains_the_model_that_fits_each_client():
    """Of three models, one is nobody's choice and stays."""
    drawn = jnp.array([[1.5], [9.0], [-0.5]])
    method = ifca(LINE, TRAIN, ifca_clusters=3)
    method = method.replacing(init=lambda key, graph: {"body": {}, "head": drawn})
    _, last, scores = play(method, 2)
    w = np.array(drawn[:, 0], np.float64)

    def choices():
        return np.argmin([squares([of_all] * 3) for of_all in w], axis=0)

    for _ in range(2):
        chosen = choices()
        assert list(chosen) == [0, 0, 2]
        trained = np.array([descend(w[c], i) for i, c in enumerate(chosen)])
        for c in set(chosen):
            mine = chosen == c
            w[c] = COUNT[mine] @ trained[mine] / COUNT[mine].sum()
    assert w[1] == 9.0
    np.testing.assert_allclose(last.server["head"][:, 0], w, rtol=1e-5)
    scores = scores()
    np.testing.assert_allclose(scores["G"], squares(w[choices()]), rtol=1e-4)
    np.testing.assert_allclose(scores["P"], scores["G"])
    trained = [descend(w[c], i) for i, c in enumerate(choices())]
    np.testing.assert_allclose(scores["L"], squares(trained), rtol=1e-4)


def test_ifca_chooses_no_model_whose_outputs_are_not_finite():
    client = ifca(LINE, TRAIN, ifca_clusters=3).client
    rows = fedavg(LINE, TRAIN).client_data(data())
    for broken in (np.nan, np.inf):
        models = {"body": {}, "head": jnp.array([[broken], [7.0], [2.0]])}
        sent = jax.vmap(lambda data, models=models: client.untrained(models, (), data))(rows)
        # The slopes of the best lines are 2.2, 0.64 and -0.67.
        assert sent.number.tolist() == [2, 2, 2]


def test_ifca_of_one_model_is_fedavg_and_of_more_it_draws_different_ones():
    first, last, _ = play(ifca(LINE, TRAIN, ifca_clusters=1), 2)
    start = jax.tree.map(lambda leaf: leaf[0], first.server)
    averaged = fedavg(LINE, TRAIN).replacing(init=lambda key, graph: start)
    expected = play(averaged, 2)[1].server["head"]
    np.testing.assert_allclose(last.server["head"][0], expected, rtol=1e-6)
    models = ifca(LINE, TRAIN, ifca_clusters=3).server.init(KEY, None)
    assert len(np.unique(models["head"])) == 3


# ----------------------------------------------------------------------------------- FedFomo

SHARES = ((0.25, 0.75), (0.375, 0.625))
X_VAL = X + 0.4
Y_VAL = X_VAL * np.array([[2.2], [2.0], [5.0]])


def test_fedfomo_moves_to_the_models_with_a_lower_loss_on_validation():
    """In the first round all models are equal; then some have no, one or two better ones."""
    federated = data(examples(X_VAL, Y_VAL))
    first, last, scores = play(fedfomo(LINE, TRAIN, num_clients=3), 3, federated)
    theta = first.server.models["head"][:, 0].astype(np.float64)
    preferences, better = np.zeros((3, 3)), set()

    def mixtures():
        losses = np.array([squares([w] * 3, X_VAL, Y_VAL) for w in theta]).T  # [i, n]
        gains = np.maximum(np.diag(losses)[:, None] - losses, 0)
        apart = np.abs(theta[:, None] - theta[None])
        weights = gains / np.where(apart > 0, apart, 1)
        better.update(np.sum(weights > 0, axis=1))
        totals = weights.sum(axis=1, keepdims=True)
        shares = weights / np.where(totals > 0, totals, 1)
        return shares, theta + np.sum(shares * (theta[None] - theta[:, None]), axis=1)

    for _ in range(3):
        shares, starts = mixtures()
        preferences += shares
        theta = np.array([descend(w, i) for i, w in enumerate(starts)])
    assert better == {0, 1, 2}
    np.testing.assert_allclose(last.server.models["head"][:, 0], theta, rtol=1e-4)
    np.testing.assert_allclose(last.clients[0]["head"][:, 0], theta, rtol=1e-4)
    np.testing.assert_allclose(last.server.preferences, preferences, rtol=1e-3, atol=1e-6)
    scores = scores()
    _, starts = mixtures()
    np.testing.assert_allclose(scores["G"], squares(starts), rtol=1e-3)
    np.testing.assert_allclose(scores["P"], squares(theta), rtol=1e-3)
    trained = [descend(w, i) for i, w in enumerate(starts)]
    np.testing.assert_allclose(scores["L"], squares(trained), rtol=1e-3)


def test_fedfomo_without_better_models_is_local_training():
    """On validation inputs of 0, all models have the same loss."""
    federated = data(examples(0 * X))
    first, last, _ = play(fedfomo(LINE, TRAIN, num_clients=3), 2, federated)
    w = float(first.server.models["head"][0, 0])
    expected = [descend(descend(w, i), i) for i in range(3)]
    np.testing.assert_allclose(last.clients[0]["head"][:, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("explored", [0, 1, 3])
def test_fedfomo_sends_preferred_models_and_explores(explored):
    """Three of eight others. The first one is preferred to the next, and so on."""
    preferences = jnp.tile(jnp.arange(9.0, 0.0, -1.0), (9, 1))
    draw = jax.vmap(lambda key: select(preferences, 3, explored, key))
    sent = np.asarray(draw(jax.random.split(KEY, 2000)))
    assert (sent.sum(axis=2) == 3).all()
    for i, share in enumerate(sent.mean(axis=0)):
        others = np.delete(share, i)
        assert share[i] == 0 and (others[: 3 - explored] == 1).all()
        rest = others[3 - explored :]
        np.testing.assert_allclose(rest, explored / len(rest), atol=5 * 0.5 / 2000**0.5)


def test_fedfomo_explores_with_the_probability_of_each_place():
    """Binomially many of three places; the other places are for the first ones."""
    method = fedfomo(LINE, TRAIN, num_clients=9, fedfomo_models=3, fedfomo_epsilon=0.25)
    preferences = jnp.tile(jnp.arange(9.0, 0.0, -1.0), (9, 1))
    state = method.server.init(KEY, None)._replace(preferences=preferences)
    sent = jax.vmap(lambda key: method.server.begin_round(state, key).sent)(
        jax.random.split(KEY, 2000)
    )
    # With e explored places of three, the last e of the first three are among 5 + e others.
    numbers = np.array([27, 27, 9, 1]) / 64  # of the probabilities of e = 0, 1, 2, 3
    drawn = np.arange(4) / (5 + np.arange(4))
    expected = [np.sum(numbers * np.where(np.arange(4) < 3 - k, 1, drawn)) for k in range(3)]
    shares = np.asarray(sent).mean(axis=0)[8, :3]  # of the last client
    # Five standard deviations of a mean of 2,000 draws of 0 or 1.
    np.testing.assert_allclose(shares, expected, atol=5 * 0.5 / 2000**0.5)


def test_fedfomo_prefers_by_the_shares_of_the_models_that_a_client_received():
    """A cohort of two of four clients, which receive two models each."""
    method = fedfomo(LINE, TRAIN, num_clients=4, fedfomo_models=2)
    state = method.server.init(KEY, None)
    sent = np.array([[0, 1, 1, 0], [1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 1, 0]], bool)
    models = {"body": {}, "head": jnp.arange(4.0)[:, None]}
    state = state._replace(models=models, sent=jnp.asarray(sent), preferences=jnp.eye(4)[::-1])
    received = [method.server.download(state, 0, i)["head"][:, 0].tolist() for i in (1, 3)]
    assert received == [[0.0, 3.0], [1.0, 2.0]]
    uploads = Mixed({"body": {}, "head": jnp.array([[7.0], [8.0]])}, jnp.float32(SHARES))
    cohort = Cohort(jnp.array([1, 3]), jnp.ones(2))
    after = method.server.aggregate(state, (cohort,), (uploads,), KEY)
    np.testing.assert_array_equal(after.models["head"][:, 0], [0, 7, 2, 8])
    (a, b), (c, d) = SHARES
    expected = [[0, 0, 0, 1], [a, 0, 1, b], [0, 1, 0, 0], [1, c, d, 0]]
    np.testing.assert_array_equal(after.preferences, expected)
    chosen = np.asarray(after.sent)
    assert chosen[1].tolist() == [False, False, True, True]  # 1 and 0.75
    assert chosen[3].tolist() == [True, False, True, False]  # 1 and 0.625


def test_fedfomo_sends_the_models_of_new_clients_in_rounds_of_all():
    """Three clients receive two models each, and then five clients four each."""
    alone, together = (fedfomo(LINE, TRAIN, num_clients=n, fedfomo_models=4) for n in (3, 5))
    state = alone.server.init(KEY, None)
    first = {"body": {}, "head": jnp.arange(3.0)[:, None]}
    state = state._replace(models=first)
    state = alone.server.admit(state, (jnp.array([3, 4]),), relations.from_edges(5, []), KEY)
    received = [alone.server.download(state, 0, i)["head"][:, 0].tolist() for i in (0, 4)]
    assert [sorted(models) for models in received] == [
        [0.0, 0.0, 1.0, 2.0],
        [0.0, 1.0, 1.0, 2.0],
    ]
    state = together.server.begin_round(state, KEY)
    uploads = Mixed({"body": {}, "head": jnp.arange(5.0)[:, None]}, jnp.zeros((5, 4)))
    cohort = Cohort(jnp.arange(5), jnp.ones(5))
    after = together.server.aggregate(state, (cohort,), (uploads,), KEY)
    for i in range(5):  # as an evaluation of new clients has it
        received = alone.server.download(after, 0, i)["head"][:, 0]
        np.testing.assert_array_equal(received, np.delete(np.arange(5), i))


# --------------------------------------------------------------------------------- pFedGraph


def curve_slope(w, i):
    x, y = X[i, : COUNT[i]], Y[i, : COUNT[i]]
    features = np.stack([x, x * x], axis=1)
    return 2 * features.T @ (features @ w - y) / len(x)


def curve_squares(w):
    return [
        np.mean((w[i, 0] * X[i, :n] + w[i, 1] * X[i, :n] ** 2 - Y[i, :n]) ** 2)
        for i, n in enumerate(COUNT)
    ]


CURVE_RATE = 0.02
CURVE_TRAIN = sgd_trainer(optax.sgd(CURVE_RATE), steps=STEPS, batch_size=None)


def cosine(a, b):
    return a @ b / np.sqrt(a @ a * (b @ b))


def test_pfedgraph_mixes_by_a_quadratic_program_and_pulls_to_the_mixture():
    alpha, lam = 0.8, 0.7
    method = pfedgraph(
        CURVE, CURVE_TRAIN, num_clients=3, pfedgraph_alpha=alpha, pfedgraph_lambda=lam
    )
    first, last, scores = play(method, 2)
    w_0 = first.server.first["head"].astype(np.float64)
    shares = COUNT / COUNT.sum()

    def trained(u, i):
        theta = u
        for _ in range(STEPS):
            size, of_u = np.sqrt(theta @ theta), u / np.sqrt(u @ u)
            along = of_u / size - theta * (theta @ of_u) / size**3  # of the cosine
            theta = theta - CURVE_RATE * (curve_slope(theta, i) - lam * along)
        return theta

    def solved(i, theta):
        similar = np.array([cosine(theta[i] - w_0, other - w_0) for other in theta])
        loss = lambda w: alpha * np.sum((w - shares) ** 2) - similar @ w  # noqa: E731
        whole = {"type": "eq", "fun": lambda w: np.sum(w) - 1}
        solution = scipy.optimize.minimize(
            loss, shares, bounds=[(0, 1)] * 3, constraints=whole, options={"ftol": 1e-12}
        )
        return solution.x

    u = np.array([w_0] * 3)
    for _ in range(2):
        theta = np.array([trained(u[i], i) for i in range(3)])
        mixing = np.array([solved(i, theta) for i in range(3)])
        u = mixing @ theta
    assert 0 < np.sum(mixing < 1e-6) < 6  # in some rows the constraints are active
    np.testing.assert_allclose(last.server.uploads["head"], theta, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.server.mixing, mixing, atol=1e-4)
    scores = scores()
    np.testing.assert_allclose(scores["G"], curve_squares(u), rtol=1e-3)
    np.testing.assert_allclose(scores["P"], curve_squares(theta), rtol=1e-3)


@pytest.mark.slow
def test_pfedgraph_is_fedavg_with_a_large_alpha_and_local_training_with_a_small_one():
    def played(alpha):
        method = pfedgraph(
            CURVE, CURVE_TRAIN, num_clients=3, pfedgraph_alpha=alpha, pfedgraph_lambda=0.0
        )
        return play(method, 2)[1].server

    averaged = play(fedavg(CURVE, CURVE_TRAIN), 2)[1].server["head"]
    mixed = played(1e6)
    means = mixed.mixing @ mixed.uploads["head"]
    np.testing.assert_allclose(means, [averaged] * 3, rtol=1e-4)
    alone = played(1e-6)
    np.testing.assert_array_equal(alone.mixing, np.eye(3))
    expected = np.array([np.float64(alone.first["head"])] * 3)
    for i in range(3):
        for _ in range(2 * STEPS):
            expected[i] -= CURVE_RATE * curve_slope(expected[i], i)
    np.testing.assert_allclose(alone.uploads["head"], expected, rtol=1e-4)


def test_pfedgraph_mixes_the_models_of_those_who_have_sent_one():
    """Client 1 never was in a round: nobody gets its model, and it gets the others' mean.

    Client 0 has moved in the opposite direction of clients 2 and 3. No share becomes 0.
    """
    alpha, sizes, signs = 5.0, np.array([4.0, 9.0, 7.0]), np.array([1, -1, -1])
    method = pfedgraph(CURVE, CURVE_TRAIN, num_clients=4, pfedgraph_alpha=alpha)
    state = method.server.init(KEY, None)
    moves = np.float32(signs[:, None] * np.array([[0.3, -0.2]]))
    sent = {"body": {}, "head": state.first["head"][None] + moves}
    cohort = Cohort(jnp.array([0, 2, 3]), jnp.float32(sizes))
    after = method.server.aggregate(state, (cohort,), (sent,), KEY)
    shares = sizes / sizes.sum()
    # The minimum on the plane of rows that sum to one is inside of the simplex.
    similar = np.outer(signs, signs)
    of_those = shares + (similar - similar.mean(axis=1, keepdims=True)) / (2 * alpha)
    assert (of_those > 0.05).all()
    expected = np.insert(np.insert(of_those, 1, shares, axis=0), 1, 0, axis=1)
    np.testing.assert_allclose(after.mixing, expected, rtol=1e-4, atol=1e-6)
    received = method.server.download(after, 0, 1)["head"]
    np.testing.assert_allclose(received, shares @ sent["head"], rtol=1e-4)


# ------------------------------------------------------------------------------------ FedPAC

# Two features b_0 x and b_1 x^2, and two logits.
CLASSES = ClientModel(
    init=lambda key: {
        "body": jax.random.uniform(key, (2,), minval=0.5),
        "head": jax.random.normal(key, (2, 2)),
    },
    body=lambda params, x: jnp.concatenate([x, x * x], axis=1) * params[None],
    head=lambda params, features: features @ params,
    task=CLASSIFICATION,
)
LABELS = np.array([[0, 1, 1], [1, 0, 1], [0, 1, 0]])


def labelled():
    train = Examples(np.float32(X)[..., None], np.int32(LABELS), np.int32(COUNT))
    return FederatedData(train, {"test": train}, relations.from_edges(3, []))


def of_classes(b, head, i):
    """Inputs, features, labels and the slope of the loss by the logits, of client i."""
    inputs = np.stack([X[i, : COUNT[i]], X[i, : COUNT[i]] ** 2], axis=1)
    features, y = inputs * b, LABELS[i, : COUNT[i]]
    slope = (scipy.special.softmax(features @ head, axis=1) - np.eye(2)[y]) / len(y)
    return inputs, features, y, slope


def quadratic(points, variances, i):
    """The matrix of FedPAC's program of client i."""
    gaps = points - points[i]
    return np.diag(variances) + gaps @ gaps.T


def least(matrix):
    """The point of the simplex with the smallest a^T P a."""
    whole = {"type": "eq", "fun": lambda a: np.sum(a) - 1, "jac": np.ones_like}
    return scipy.optimize.minimize(
        lambda a: a @ matrix @ a,
        np.full(len(matrix), 1 / len(matrix)),
        jac=lambda a: 2 * matrix @ a,
        bounds=[(0, 1)] * len(matrix),
        constraints=whole,
        options={"ftol": 1e-15, "maxiter": 500},
    ).x


def fedpac_of(lam, head_steps=2):
    return fedpac(
        CLASSES,
        client_optimizer=optax.sgd(0.3),
        local_steps=3,
        batch_size=None,
        num_clients=3,
        inputs=(1,),
        classes=2,
        fedpac_head_steps=head_steps,
        fedpac_lambda=lam,
    )


def test_fedpac_aligns_features_and_combines_heads():
    lam = 0.8
    first, last, _ = play(fedpac_of(lam), 2, labelled())
    b, heads = np.float64(first.server.body), np.float64(first.server.heads)
    centres, shared = np.zeros((2, 2)), np.zeros(2)
    for _ in range(2):
        bodies, trained, sums, numbers, points, variances = [], [], [], [], [], []
        for i in range(3):
            body, head = b.copy(), heads[i].copy()
            inputs, features, y, _ = of_classes(body, head, i)
            mine = np.eye(2)[y]  # [n, C]
            points.append((mine.T @ features / len(y)).ravel())
            spread = np.mean(np.sum(features**2, axis=1)) - np.sum(points[-1] ** 2)
            variances.append(spread / len(y))
            for _ in range(2):
                _, features, _, slope = of_classes(body, head, i)
                head = head - 0.3 * features.T @ slope
            inputs, features, y, slope = of_classes(body, head, i)
            apart = (features - centres[y]) * (shared[y] > 0)[:, None]
            by_features = slope @ head.T + lam * apart / len(y)  # 2 / F is 1
            body = body - 0.3 * np.sum(by_features * inputs, axis=0)
            bodies.append(body)
            trained.append(head)
            sums.append(mine.T @ (inputs * body))
            numbers.append(mine.sum(axis=0))
        b = COUNT @ np.array(bodies) / COUNT.sum()
        shared = np.sum(numbers, axis=0)
        centres = np.sum(sums, axis=0) / shared[:, None]
        rows = [least(quadratic(np.array(points), variances, i)) for i in range(3)]
        heads = np.tensordot(rows, trained, axes=1)
    assert np.max(np.abs(rows - np.eye(3))) > 0.1
    np.testing.assert_allclose(last.server.body, b, rtol=1e-4)
    np.testing.assert_allclose(last.server.means.mean, centres, rtol=1e-4)
    np.testing.assert_allclose(last.server.heads, heads, rtol=2e-3, atol=1e-4)


@pytest.mark.slow
def test_fedpac_of_a_client_without_alignment_is_fedrep():
    """A cohort of one client has no heads to combine."""
    rep = fedrep(
        CLASSES,
        client_optimizer=optax.sgd(0.3),
        local_steps=3,
        batch_size=None,
        fedrep_head_steps=2,
    )
    same = fedpac_of(0.0).server.init(KEY, None)
    rep = rep.replacing(enroll=lambda body, key: same.heads[0])
    rep = rep.replacing(init=lambda key, graph: same.body)
    method = fedpac_of(0.0).replacing(init=lambda key, graph: same)
    ours = play(method, 4, labelled(), cohort_size=1)[1].server
    theirs = play(rep, 4, labelled(), cohort_size=1)[1]
    np.testing.assert_allclose(ours.body, theirs.server, rtol=1e-5)
    np.testing.assert_allclose(ours.heads, theirs.clients[0], rtol=1e-5)


def test_fedpac_leaves_out_a_client_that_has_not_trained():
    """Client 1 of three keeps its head, which no other client gets."""
    method, rng = fedpac_of(1.0), np.random.default_rng(5)
    heads, shares = rng.normal(size=(2, 3, 2, 2)).astype(np.float32)
    shares[1] = 0
    variances, counts = np.float32([0.3, 0, 0.2]), np.int32([[1, 1], [0, 0], [2, 1]])
    means = ClassMeans(np.zeros((3, 2, 2), np.float32), counts)
    uploads = HeadUpload(np.ones((3, 2), np.float32), heads, means, shares, variances)
    cohort = Cohort(jnp.arange(3), jnp.array([2.0, 5.0, 3.0]))
    state = method.server.init(KEY, None)
    after = method.server.aggregate(state, (cohort,), (uploads,), KEY).heads
    points = np.float64(shares[[0, 2]]).reshape(2, -1)
    rows = [least(quadratic(points, np.float64(variances[[0, 2]]), i)) for i in range(2)]
    expected = np.tensordot(rows, heads[[0, 2]], axes=1)
    np.testing.assert_allclose(after, [expected[0], heads[1], expected[1]], atol=1e-4)


def test_fedpac_solves_its_quadratic_programs():
    """As a general solver does, for clients of two kinds, of which the last has not trained."""
    rng = np.random.default_rng(3)
    kinds = rng.normal(size=(2, 10))
    points = kinds[np.arange(9) % 2] + 0.1 * rng.normal(size=(9, 10))
    variances = rng.uniform(0.02, 0.3, size=9)
    chosen = np.arange(9) < 8
    rows = np.asarray(jax.jit(combine)(np.float32(points), np.float32(variances), chosen))
    assert (rows[:, 8] == 0).all()
    for i in range(8):
        matrix = quadratic(points, variances, i)[:8, :8]
        expected, row = least(matrix), np.float64(rows[i, :8])
        assert row @ matrix @ row <= (1 + 1e-4) * (expected @ matrix @ expected)
        np.testing.assert_allclose(row, expected, atol=2e-3)
        assert 1 < np.sum(row > 0.01) < 8


# ------------------------------------------------------------------------------------ FedDBE

# Two features b_0 x and b_1 x^2, and a head of two weights.
SCALED = dataclasses.replace(
    CURVE,
    init=lambda key: {"body": jnp.array([0.7, -0.4]), "head": jnp.array([1.3, 0.6])},
    body=lambda params, x: jnp.concatenate([x, x * x], axis=1) * params[None],
)


def feddbe_of(optimizer, **values):
    return feddbe(
        SCALED,
        client_optimizer=optimizer,
        local_steps=STEPS,
        batch_size=None,
        inputs=(1,),
        **values,
    )


def test_feddbe_trains_biases_and_keeps_means_near_those_of_all():
    kappa, mu = 3.0, 0.6
    method = feddbe_of(optax.sgd(CURVE_RATE), feddbe_kappa=kappa, feddbe_momentum=mu)
    _, last, scores = play(method, 3)
    b, h = np.array([0.7, -0.4]), np.array([1.3, 0.6])
    biases, common, number = np.zeros((3, 2)), np.zeros(2), 0
    inputs = [np.stack([X[i, :n], X[i, :n] ** 2], axis=1) for i, n in enumerate(COUNT)]
    targets = [Y[i, :n] for i, n in enumerate(COUNT)]

    def trained(i):
        x, y = inputs[i], targets[i]
        (w_b, w_h, z), mean = (b, h, biases[i]), inputs[i].mean(axis=0)
        running = b * mean
        for _ in range(STEPS):
            features = x * w_b + z
            slope = 2 * (features @ w_h - y)[:, None] / len(y)
            running = (1 - mu) * running + mu * w_b * mean
            pull = kappa * 2 / 2 * (running - common) * mu * mean * (number > 0)
            by_b = np.sum(slope * w_h * x, axis=0) + pull
            by_h, by_z = np.sum(slope * features, axis=0), np.sum(slope * w_h, axis=0)
            w_b, w_h = w_b - CURVE_RATE * by_b, w_h - CURVE_RATE * by_h
            z = z - CURVE_RATE * by_z
        return w_b, w_h, z

    for _ in range(3):
        bodies, heads, after = map(np.array, zip(*map(trained, range(3)), strict=True))
        means = np.array([b * x.mean(axis=0) for x in inputs])
        common = (number * common + COUNT @ means) / (number + COUNT.sum())
        number += COUNT.sum()
        b, h, biases = COUNT @ bodies / COUNT.sum(), COUNT @ heads / COUNT.sum(), after
    np.testing.assert_allclose(last.server.model["body"], b, rtol=1e-4)
    np.testing.assert_allclose(last.server.model["head"], h, rtol=1e-4)
    np.testing.assert_allclose(last.server.mean, common, rtol=1e-4)
    np.testing.assert_allclose(last.clients[0], biases, rtol=1e-4)
    scores = scores()

    def squares_of(models):
        errors = [
            np.mean(((x * w_b + z) @ w_h - y) ** 2)
            for x, y, (w_b, w_h, z) in zip(inputs, targets, models, strict=True)
        ]
        return np.array(errors)

    np.testing.assert_allclose(scores["G"], squares_of([(b, h, z) for z in biases]), rtol=1e-3)
    np.testing.assert_allclose(scores["L"], squares_of(map(trained, range(3))), rtol=1e-3)


def test_feddbe_without_biases_and_without_kappa_is_fedavg():
    def biases(trained):
        model, z = trained
        return jax.tree.map(lambda leaf: False, model), True

    sgd = optax.sgd(CURVE_RATE)
    frozen = optimizer_of_parts(biases, optax.set_to_zero(), sgd)
    ours = play(feddbe_of(frozen, feddbe_kappa=0.0), 2)[1].server.model
    theirs = play(fedavg(SCALED, CURVE_TRAIN), 2)[1].server
    for part in ("body", "head"):
        np.testing.assert_allclose(ours[part], theirs[part], rtol=1e-6)


# -------------------------------------------------------------------------------------- FedAS

CLASS_TRAIN = sgd_trainer(optax.sgd(0.3), steps=3, batch_size=None)


def fedas_of(steps):
    return fedas(
        CLASSES, CLASS_TRAIN, batch_size=None, classes=2, fedas_steps=steps, fedas_lr=0.05
    )


def accuracies(bodies, heads):
    right = []
    for i in range(3):
        _, features, y, _ = of_classes(bodies[i], heads[i], i)
        right.append(np.mean(np.argmax(features @ heads[i], axis=1) == y))
    return right


def fedas_training(body, last, head, i):
    """A round of client i: its body, its head and its trace."""
    inputs, features, y, _ = of_classes(last, head, i)
    means = np.array([features[y == c].mean(axis=0) for c in range(2)])
    for _ in range(4):
        gaps = inputs * body - means[y]
        body = body - 0.05 * np.mean(gaps * inputs, axis=0)  # 2 / F is 1
    for _ in range(3):
        _, features, _, slope = of_classes(body, head, i)
        by_body = np.sum(slope @ head.T * inputs, axis=0)
        body, head = body - 0.3 * by_body, head - 0.3 * features.T @ slope
    _, features, _, slope = of_classes(body, head, i)
    slope = slope * len(y)  # of single examples
    by_body, by_head = slope @ head.T * inputs, features[:, :, None] * slope[:, None]
    return body, head, np.mean(np.sum(by_body**2, 1) + np.sum(by_head**2, (1, 2)))


def test_fedas_aligns_bodies_to_means_of_classes_and_weights_by_fisher_traces():
    first, last, scores = play(fedas_of(4), 3, labelled())
    b, heads = np.float64(first.server), np.float64(first.clients[0]["head"])
    bodies = np.float64(first.clients[0]["body"])
    np.testing.assert_array_equal(bodies, [b] * 3)
    for _ in range(3):
        clients = [fedas_training(b, bodies[i], heads[i], i) for i in range(3)]
        bodies, heads, traces = map(np.array, zip(*clients, strict=True))
        b = traces @ bodies / traces.sum()
    assert traces.max() > 2 * traces.min()
    np.testing.assert_allclose(last.server, b, rtol=1e-4)
    np.testing.assert_allclose(last.clients[0]["body"], bodies, rtol=1e-4)
    np.testing.assert_allclose(last.clients[0]["head"], heads, rtol=1e-3, atol=1e-5)
    scores = scores()
    np.testing.assert_allclose(scores["P"], accuracies(bodies, heads))
    np.testing.assert_allclose(scores["G"], accuracies([b] * 3, heads))


@pytest.mark.slow
def test_fedas_of_a_client_without_alignment_is_fedper():
    """The weight of one client is 1, whatever its trace is."""
    ours = play(fedas_of(0), 4, labelled(), cohort_size=1)[1]
    theirs = play(fedper(CLASSES, CLASS_TRAIN), 4, labelled(), cohort_size=1)[1]
    np.testing.assert_allclose(ours.server, theirs.server, rtol=1e-5)
    np.testing.assert_allclose(ours.clients[0]["head"], theirs.clients[0], rtol=1e-5)


@pytest.mark.parametrize(
    "traces, expected",
    [((3.0, 3.0, 3.0), 2.0), ((-1.0, 2.0, 0.0), 0.0), ((0.0, 0.0, -4.0), 7.0)],
    ids=["equal", "one positive", "no positive"],
)
def test_fedas_reads_positive_traces_alone(traces, expected):
    """With equal ones, all clients have equal weights; without any, the body stays."""
    bodies = jnp.array([[1.0, 1.0], [0.0, 0.0], [5.0, 5.0]])
    cohort = Cohort(jnp.arange(3), jnp.array([1.0, 5.0, 9.0]))
    uploads = TracedBody(bodies, jnp.array(traces))
    after = fedas_of(0).server.aggregate(jnp.full(2, 7.0), (cohort,), (uploads,), KEY)
    np.testing.assert_allclose(after, [expected] * 2, rtol=1e-6)


def test_fisher_traces_are_of_single_examples_and_of_parameters_alone():
    """The model subtracts a mean of the client's inputs, which is no parameter."""
    model = dataclasses.replace(
        CLASSES,
        body=lambda params, x: CLASSES.body(params["scale"], x - params["mean"]),
        recalibrate=lambda params, examples: (
            params | {"body": params["body"] | {"mean": jnp.mean(examples.x[:40])}}
        ),
    )
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=45), rng.integers(0, 2, 45)
    x[40:] = 1e9  # padding
    b, head = np.array([0.7, -0.4]), rng.normal(size=(2, 2))
    examples = Examples(jnp.float32(x)[:, None], jnp.asarray(y), jnp.int32(40))
    params = {"body": {"scale": jnp.float32(b)}, "head": jnp.float32(head)}
    trace = jax.jit(lambda params: fisher_trace(model, params, examples))(params)
    total = 0.0
    for x_j, y_j in zip(x[:40] - x[:40].mean(), y, strict=False):
        inputs = np.array([x_j, x_j**2])
        slope = scipy.special.softmax(inputs * b @ head) - np.eye(2)[y_j]
        total += np.sum((head @ slope * inputs) ** 2)
        total += np.sum(np.outer(inputs * b, slope) ** 2)
    np.testing.assert_allclose(trace, total / 40, rtol=1e-5)


# ------------------------------------------------------------------------------------ FED-PUB


def fed_pub_of(*, tau, lam=0.0, sparsity=0.0, rate=0.0, clients=3, outputs=1):
    return fed_pub(
        CURVE,
        client_optimizer=optax.sgd(CURVE_RATE),
        local_steps=STEPS,
        batch_size=None,
        num_clients=clients,
        outputs=outputs,
        fed_pub_tau=tau,
        fed_pub_lambda=lam,
        fed_pub_sparsity=sparsity,
        fed_pub_lr=rate,
    )


def test_fed_pub_mixes_by_outputs_and_trains_masks():
    tau, lam, sparsity, rate = 30.0, 0.8, 0.5, 0.04
    method = fed_pub_of(tau=tau, lam=lam, sparsity=sparsity, rate=rate)
    first, last, scores = play(method, 3)
    of_client = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data().train)
    inputs = np.float64(proxies(CURVE, of_client)).ravel()
    inputs = np.stack([inputs, inputs**2])  # [2, PROXIES]
    u = np.float64(first.server.uploads.model["head"])
    np.testing.assert_allclose(first.server.mixing, np.full((3, 3), 1 / 3), rtol=1e-6)

    def trained(u, mask, i):
        v = u
        for _ in range(STEPS):
            slope = curve_slope(v * mask, i)
            by_v = slope * mask + 2 * lam * (v - u)
            stepped = mask - rate * slope * v
            v = v - CURVE_RATE * by_v
            mask = np.sign(stepped) * np.maximum(np.abs(stepped) - rate * sparsity, 0)
        return v, mask

    masks = np.ones((3, 2))
    for _ in range(3):
        v, masks = map(np.array, zip(*map(trained, u, masks, range(3)), strict=True))
        sent = (v * masks) @ inputs
        similar = np.array([[cosine(a, b) for b in sent] for a in sent])
        mixing = scipy.special.softmax(tau * similar, axis=1)
        u = mixing @ v
    assert np.ptp(mixing) > 0.1 and np.ptp(masks) > 0.1
    np.testing.assert_allclose(last.server.uploads.model["head"], v, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.clients[0]["mask"]["head"], masks, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.server.mixing, mixing, rtol=1e-3)
    scores = scores()
    np.testing.assert_allclose(scores["G"], curve_squares(u * masks), rtol=1e-3)
    np.testing.assert_allclose(scores["P"], curve_squares(v * masks), rtol=1e-3)
    after = np.array([np.prod(trained(u[i], masks[i], i), axis=0) for i in range(3)])
    np.testing.assert_allclose(scores["L"], curve_squares(after), rtol=1e-3)


def test_masks_become_sparse():
    """The proximal point minimises half the squared distance, and lr weight |m|."""
    masks, slopes = jnp.array([1.0, 0.2, -0.3, 0.0]), jnp.array([0.5, 0.4, -1.0, 0.0])
    optimizer = sparse_sgd(0.1, 2.5)
    steps, _ = optimizer.update(slopes, optimizer.init(masks), masks)
    grid = np.linspace(-1, 1, 2001)
    stepped = np.float64(masks - 0.1 * slopes)
    costs = 0.5 * (grid[:, None] - stepped) ** 2 + 0.1 * 2.5 * np.abs(grid)[:, None]
    after = np.asarray(masks + steps)
    np.testing.assert_allclose(after, grid[np.argmin(costs, axis=0)], atol=1e-3)
    assert list(after == 0) == [False, True, True, True]


def test_fed_pub_starts_with_equal_shares_however_it_is_compiled():
    """With constants in place of the first outputs, some compilations made NaN of them.

    The programs are compiled as `executables.options_of_one_call` has it.
    """

    def shares(tau):
        method = fed_pub_of(tau=tau, clients=60, outputs=2)
        return method.server.init(jax.random.key(0), None).mixing

    factors = jnp.float32([1, 10])
    lowered = jax.jit(jax.vmap(shares)).lower(factors)
    with without_cache_of_jax():
        for _ in range(12):
            mixing = lowered.compile({"xla_backend_optimization_level": 1})(factors)
            np.testing.assert_allclose(mixing, np.full((2, 60, 60), 1 / 60), rtol=1e-5)


@pytest.mark.slow
def test_fed_pub_is_fedavg_with_a_tau_of_0_and_local_training_with_a_large_one():
    """Masks are fixed, and all clients have as many examples."""
    federated = data()
    train = federated.train._replace(count=np.int32([2, 2, 2]))
    federated = federated._replace(train=train)
    averaged = play(fedavg(CURVE, CURVE_TRAIN), 2, federated)[1].server["head"]
    mixed = play(fed_pub_of(tau=0.0), 2, federated)[1].server
    means = mixed.mixing @ mixed.uploads.model["head"]
    np.testing.assert_allclose(means, [averaged] * 3, rtol=1e-5)
    first, last, _ = play(fed_pub_of(tau=1e6), 2)
    np.testing.assert_array_equal(last.server.mixing, np.eye(3))
    expected = np.float64(first.server.uploads.model["head"])
    for i in range(3):
        for _ in range(2 * STEPS):
            expected[i] -= CURVE_RATE * curve_slope(expected[i], i)
    np.testing.assert_allclose(last.server.uploads.model["head"], expected, rtol=1e-4)


def test_fed_pub_mixes_the_uploads_that_were_sent():
    """Client 1 never was in a round: nobody gets its model, and it gets the others' mean."""
    method, rng = fed_pub_of(tau=5.0), np.random.default_rng(2)
    state = method.server.init(KEY, None)
    sent = Upload(CURVE.init(KEY), jnp.zeros(100))
    sent = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=(2, *leaf.shape)), jnp.float32), sent
    )
    cohort = Cohort(jnp.array([0, 2]), jnp.array([4.0, 9.0]))
    mixing = method.server.aggregate(state, (cohort,), (sent,), KEY).mixing
    a, b = np.float64(sent.outputs)
    other = 1 / (1 + np.exp(5 * (1 - cosine(a, b))))
    expected = [[1 - other, 0, other], [0.5, 0, 0.5], [other, 0, 1 - other]]
    np.testing.assert_allclose(mixing, expected, rtol=1e-4)


def test_proxies_are_of_the_type_of_inputs_and_never_change():
    def inputs(dtype, symbols=0, seed=0):
        x = np.random.default_rng(seed).integers(0, 5, (3, 4)).astype(dtype)
        rows = Examples(jnp.asarray(x), jnp.zeros(3), jnp.int32(3))
        return np.asarray(proxies(dataclasses.replace(LINE, symbols=symbols), rows))

    normal, images, symbols = inputs(np.float32), inputs(np.uint8), inputs(np.float32, 5)
    for drawn in (normal, images, symbols):
        assert drawn.shape == (5, 20, 4)
    assert images.dtype == np.uint8 and images.min() < 10 and images.max() > 245
    assert set(np.unique(symbols)) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert abs(normal.mean()) < 0.25 and 0.8 < normal.std() < 1.2
    np.testing.assert_array_equal(normal, inputs(np.float32, seed=1))
