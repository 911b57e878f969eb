"""Further methods against a few lines of NumPy, and cases in which two methods are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax import parts, tree
from graphfl_jax.algorithms.apfl import apfl
from graphfl_jax.algorithms.fedala import OwnPart, fedala
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.fedbabu import fedbabu
from graphfl_jax.algorithms.fedbn import fedbn
from graphfl_jax.algorithms.feddyn import Shifted, feddyn
from graphfl_jax.algorithms.fedprox import fedprox
from graphfl_jax.algorithms.moon import cosine, moon
from graphfl_jax.algorithms.tuning import finetune
from graphfl_jax.core import ClientData, ClientModel, Cohort
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.models.architectures import architectures
from graphfl_jax.models.resnet import resnet18
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group
from graphfl_jax.testing.subject import assert_equal
from graphfl_jax.trainers import sgd_trainer
from tests.core.test_identities import (
    META,
    MODEL,
    assert_close,
    distance,
    fedrep_of,
    same_batches,
)
from tests.core.test_identities import TRAIN as SAME_TRAIN
from tests.core.test_reference import (
    COUNT,
    KEY,
    LINE,
    PRODUCT,
    RATE,
    TRAIN,
    X,
    Y,
    data,
    full_slope,
    play,
    product_slopes,
    squares,
)


def same_examples():
    """The `ClientData` of a client whose examples are equal, so that all batches are."""
    return ClientData(jax.tree.map(jnp.asarray, tree.take(same_batches().train, 2)))


# ------------------------------------------------------------------------------------- FedBABU


def body_steps(b, h, i, steps=3):
    for _ in range(steps):
        b = b - RATE * product_slopes(b, h, i)[0]
    return b


def tuned_product(b, h, i, rate, steps=2):
    for _ in range(steps):
        of_b, of_h = product_slopes(b, h, i)
        b, h = b - rate * of_b, h - rate * of_h
    return b * h


@pytest.mark.parametrize("rate", [0.05, 0.0])
def test_fedbabu_trains_bodies_below_one_random_head_and_tunes_both(rate):
    """With the rate 0 of fine-tuning, P is G."""
    tune = sgd_trainer(optax.sgd(rate), steps=2, batch_size=None)
    algorithm = finetune(fedbabu(PRODUCT, TRAIN), tune, tuning_part="whole")
    first, last, program = play(algorithm, data(), 2)
    b, h = (float(first.server[part][0]) for part in ("body", "head"))
    for _ in range(2):
        before, b = b, COUNT @ [body_steps(b, h, i) for i in range(3)] / COUNT.sum()
    np.testing.assert_allclose(last.server["body"][0], b, rtol=1e-5)
    np.testing.assert_array_equal(last.server["head"], first.server["head"])
    scores = program.evaluate(last, KEY, {}, data())[0]["test"]
    np.testing.assert_allclose(scores["G"], squares([b * h] * 3), rtol=1e-4)
    local = [body_steps(b, h, i) * h for i in range(3)]
    np.testing.assert_allclose(scores["L"], squares(local), rtol=1e-4)
    personal = [tuned_product(b, h, i, rate) for i in range(3)]
    np.testing.assert_allclose(scores["P"], squares(personal), rtol=1e-4)
    assert abs(before - b) > 1e-3


def test_fedbabu_is_fedrep_without_steps_of_the_head_from_an_equal_head():
    ours, theirs = fedbabu(MODEL, SAME_TRAIN).client, fedrep_of(0).client
    w = MODEL.init(KEY)

    @jax.jit
    def both(w, data):
        head, sent, _ = ours.local(w, ours.enroll(w, KEY), data, KEY)
        return (head, sent["body"]), theirs.local(w["body"], w["head"], data, KEY)[:2]

    ours, theirs = both(w, same_examples())
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert distance(ours[1], w["body"]) > 1e-3


# ---------------------------------------------------------------------------------------- APFL


def test_apfl_steps_at_the_mixture_and_learns_its_share():
    """Some shares are free, and one ends at 0 or 1."""
    rate, steps = 0.15, 3
    algorithm = apfl(
        LINE,
        client_optimizer=optax.sgd(RATE),
        local_steps=steps,
        batch_size=None,
        apfl_share=0.5,
        apfl_lr=rate,
    )
    first, last, program = play(algorithm, data(), 2)
    w = float(first.server["head"][0])
    own, shares, clipped = [w] * 3, [0.5] * 3, set()
    for _ in range(2):
        trained = []
        for i in range(3):
            w_i = w
            for _ in range(steps):
                at_mean = full_slope(shares[i] * own[i] + (1 - shares[i]) * w_i, i)
                free = shares[i] - rate * at_mean * (own[i] - w_i)
                w_i, own[i], shares[i] = (
                    w_i - RATE * full_slope(w_i, i),
                    own[i] - RATE * shares[i] * at_mean,
                    min(max(free, 0.0), 1.0),
                )
                clipped.add(free != shares[i])
            trained.append(w_i)
        w = COUNT @ trained / COUNT.sum()
    assert clipped == {False, True}
    np.testing.assert_allclose(last.server["head"][0], w, rtol=1e-4)
    np.testing.assert_allclose(last.clients[0]["v"]["head"][:, 0], own, rtol=1e-4)
    np.testing.assert_allclose(last.clients[0]["alpha"], shares, rtol=1e-4, atol=1e-6)
    scores = program.evaluate(last, KEY, {}, data())[0]["test"]
    mixed = np.array(shares) * own + (1 - np.array(shares)) * w
    np.testing.assert_allclose(scores["P"], squares(mixed), rtol=1e-3)
    np.testing.assert_allclose(scores["G"], squares([w] * 3), rtol=1e-3)


def test_apfl_with_fixed_shares_is_fedavg_or_local_training():
    """Batches are those of FedAvg: with the share 0, P is G; with 1, P trains from itself."""
    average = fedavg(MODEL, SAME_TRAIN).client
    w, v = MODEL.init(KEY), MODEL.init(jax.random.key(1))

    @jax.jit
    def rounds(w, v, share, data):
        ours = apfl(MODEL, **META, apfl_share=share, apfl_lr=0.0).client
        memory = ours.enroll(w, KEY) | {"v": v}
        memory, sent, _ = ours.local(w, memory, data, KEY)
        theirs = [average.local(start, (), data, KEY)[1] for start in (w, v)]
        return memory, sent, ours.personalize(w, memory, data, KEY).params, theirs

    for share in (0.0, 1.0):
        memory, sent, personal, theirs = rounds(w, v, share, same_examples())
        assert memory["alpha"] == share
        assert_close(sent, theirs[0], rtol=1e-5, atol=1e-6)
        expected = theirs[1] if share else w
        assert_close(personal, expected, rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------------------------- FedALA


@pytest.mark.parametrize("tensors", [1, 2])
def test_fedala_trains_from_a_mixture_of_its_last_tensors(tensors):
    """One of two tensors, the head, or both; some weights are free, and others end at 1."""
    eta, steps = 0.02, 2
    train = sgd_trainer(optax.sgd(RATE), steps=1, batch_size=None)
    sizes = {"local_steps": steps, "batch_size": None}
    algorithm = fedala(PRODUCT, train, **sizes, fedala_tensors=tensors, fedala_eta=eta)
    first, last, program = play(algorithm, data(), 3)
    w = np.array([float(first.server[part][0]) for part in ("body", "head")])
    inside = np.array([tensors == 2, True])  # body, head
    own, shares, ends = [w] * 3, [np.ones(2)] * 3, set()

    def mixed(i):
        share = shares[i]
        for _ in range(steps):
            b, h = np.where(inside, own[i] + (w - own[i]) * share, w)
            free = share - eta * np.array(product_slopes(b, h, i)) * (w - own[i])
            share = np.clip(free, 0.0, 1.0)
            ends.update(np.sign(free - share)[inside])
        return share, np.where(inside, own[i] + (w - own[i]) * share, w)

    def trained(i):
        share, (b, h) = mixed(i)
        return share, np.array([b, h]) - RATE * np.array(product_slopes(b, h, i))

    for _ in range(3):
        shares, own = zip(*map(trained, range(3)), strict=True)
        w = COUNT @ np.array(own) / COUNT.sum()
    assert ends >= {0.0, 1.0}
    server = [float(last.server[part][0]) for part in ("body", "head")]
    np.testing.assert_allclose(server, w, rtol=1e-4)
    part, weights = last.clients[0]
    assert (part["body"] is None) == (tensors == 1)
    heads, expected = np.array(own)[:, 1], np.array(shares)[:, 1]
    np.testing.assert_allclose(part["head"][:, 0], heads, rtol=1e-4)
    np.testing.assert_allclose(weights["head"][:, 0], expected, rtol=1e-3, atol=1e-6)
    scores = program.evaluate(last, KEY, {}, data())[0]["test"]
    np.testing.assert_allclose(scores["G"], squares([np.prod(w)] * 3), rtol=1e-3)
    personal = [np.prod(mixed(i)[1]) for i in range(3)]
    np.testing.assert_allclose(scores["P"], squares(personal), rtol=1e-3)
    local = [np.prod(trained(i)[1]) for i in range(3)]
    np.testing.assert_allclose(scores["L"], squares(local), rtol=1e-3)


def test_fedala_without_steps_of_its_weights_is_fedavg_and_with_weights_of_0_keeps_its_part():
    average = fedavg(MODEL, SAME_TRAIN).client
    sizes = {"local_steps": 3, "batch_size": 5, "fedala_tensors": 2, "fedala_eta": 0.0}
    ours = fedala(MODEL, SAME_TRAIN, **sizes).client
    w, theta = MODEL.init(KEY), MODEL.init(jax.random.key(1))

    @jax.jit
    def uploads(w, theta, share, data):
        part, shares = ours.enroll(theta, KEY)
        shares = jax.tree.map(lambda leaf: share * leaf, shares)
        sent = ours.local(w, OwnPart(part, shares), data, KEY)[1]
        theirs = [w, {"body": w["body"], "head": theta["head"]}]
        return sent, [average.local(start, (), data, KEY)[1] for start in theirs]

    for share in (1.0, 0.0):
        sent, theirs = uploads(w, theta, share, same_examples())
        assert_close(sent, theirs[int(share == 0)], rtol=1e-5, atol=1e-6)


# --------------------------------------------------------------------------------------- FedBN

# h (s x + c), in which s and c are those of a normalisation layer.
AFFINE = ClientModel(
    init=lambda key: {
        "body": {"norm": {"scale": jnp.ones(1), "bias": jnp.zeros(1)}},
        "head": jax.random.uniform(key, (1,), minval=0.5),
    },
    body=lambda params, x: params["norm"]["scale"][0] * x + params["norm"]["bias"][0],
    head=lambda params, features: features * params[0],
    task=REGRESSION,
)


def test_fedbn_averages_all_but_the_normalisation_layers():
    first, last, program = play(fedbn(AFFINE, TRAIN), data(), 2)
    h, scales, biases = float(first.server["head"][0]), [1.0] * 3, [0.0] * 3

    def trained(h, s, c, i):
        x, y = X[i, : COUNT[i]], Y[i, : COUNT[i]]
        for _ in range(3):
            gap = 2 * (h * (s * x + c) - y)
            of_h, of_s, of_c = np.mean([gap * (s * x + c), gap * h * x, gap * h], axis=1)
            h, s, c = h - RATE * of_h, s - RATE * of_s, c - RATE * of_c
        return h, s, c

    for _ in range(2):
        rows = [trained(h, scales[i], biases[i], i) for i in range(3)]
        heads, scales, biases = zip(*rows, strict=True)
        h = COUNT @ heads / COUNT.sum()
    assert last.server["body"]["norm"] == {"scale": None, "bias": None}
    np.testing.assert_allclose(last.server["head"][0], h, rtol=1e-4)
    (kept,) = last.clients
    assert kept["head"] is None
    np.testing.assert_allclose(kept["body"]["norm"]["scale"][:, 0], scales, rtol=1e-4)
    np.testing.assert_allclose(kept["body"]["norm"]["bias"][:, 0], biases, rtol=1e-4)
    scores = program.evaluate(last, KEY, {}, data())[0]["test"]
    outputs = h * (np.array(scales)[:, None] * X + np.array(biases)[:, None])
    real = np.arange(3) < COUNT[:, None]
    expected = np.sum(real * (outputs - Y) ** 2, 1) / COUNT
    np.testing.assert_allclose(scores["G"], expected, rtol=1e-3)
    np.testing.assert_allclose(scores["P"], scores["G"])


def test_fedbn_of_a_model_without_normalisation_layers_is_fedavg_bit_for_bit():
    ours, theirs = (play(method(LINE, TRAIN), data(), 2)[1] for method in (fedbn, fedavg))
    assert_equal(ours.server, theirs.server)
    assert not jax.tree.leaves(ours.clients)


def test_normalisation_is_found_in_the_layers_of_the_models_of_the_package():
    """ResNet-18 has 20 batch normalisations; in a graph, a convolution has its own."""
    sizes = {"inputs": (8, 8, 3), "outputs": 2, "task": CLASSIFICATION, "width": 4}
    plain = architectures(**sizes, architectures=("plain4",))
    for model, layers in ((resnet18(**sizes), 20), (*plain, 3)):
        params = jax.eval_shape(model.init, jax.eval_shape(jax.random.key, 0))
        kept, shared = parts.split(params, parts.normalisation)
        names = [path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(kept)]
        assert sorted(names) == ["bias"] * layers + ["scale"] * layers
        assert all(leaf.ndim == 1 for leaf in jax.tree.leaves(kept))
        assert jax.tree.leaves(shared)


# ---------------------------------------------------------------------------------------- MOON

# Two features A x + a of one input, and their weighted sum: (A, a) is the body, h the head.
FEATURES = ClientModel(
    init=lambda key: {
        "body": jax.random.normal(key, (2, 2)),
        "head": jax.random.normal(jax.random.fold_in(key, 1), (2,)),
    },
    body=lambda params, x: x * params[:1] + params[1:],
    head=lambda params, features: features @ params[:, None],
    task=REGRESSION,
)


def moon_loss(body, head, server, last, mu, tau, i):
    x, y = X[i, : COUNT[i], None], Y[i, : COUNT[i]]
    z, z_g, z_p = (held[:1] * x + held[1:] for held in (body, server, last))

    def similar(other):
        norms = np.linalg.norm(z, axis=1) * np.linalg.norm(other, axis=1)
        return np.exp(np.sum(z * other, axis=1) / norms / tau)

    contrast = -np.log(similar(z_g) / (similar(z_g) + similar(z_p)))
    return np.mean((z @ head - y) ** 2 + mu * contrast)


def moon_training(server, last, mu, tau, i, rate=0.02, width=1e-6):
    """Gradient descent by central differences of the loss in float64."""
    w, start, last = (np.concatenate([b.ravel(), h]) for b, h in (server, server, last))

    def loss(w):
        body, head = w[:4].reshape(2, 2), w[4:]
        bodies = (held[:4].reshape(2, 2) for held in (start, last))
        return moon_loss(body, head, *bodies, mu, tau, i)

    for _ in range(3):
        slopes = [(loss(w + e) - loss(w - e)) / (2 * width) for e in width * np.eye(6)]
        w = w - rate * np.array(slopes)
    return w[:4].reshape(2, 2), w[4:]


def test_moon_pulls_features_to_the_server_and_away_from_the_last_model():
    mu, tau = 20.0, 0.4
    train = sgd_trainer(optax.sgd(0.02), steps=3, batch_size=None)
    algorithm = moon(FEATURES, train, moon_mu=mu, moon_tau=tau)
    first, last, _ = play(algorithm, data(), 2)
    w = tuple(first.server[part].astype(np.float64) for part in ("body", "head"))
    models, gaps = [w] * 3, []
    for _ in range(2):
        free = [moon_training(w, models[i], 0.0, tau, i) for i in range(3)]
        models = [moon_training(w, models[i], mu, tau, i) for i in range(3)]
        gaps.append(np.abs(models[0][0] - free[0][0]).max())
        w = tuple(np.average(part, axis=0, weights=COUNT) for part in zip(*models, strict=True))
    assert gaps[0] < 1e-6 < 1e-2 < gaps[1]  # no contrast in the first round
    for place, part in enumerate(("body", "head")):
        np.testing.assert_allclose(last.server[part], w[place], rtol=1e-4, atol=1e-5)
        kept = [model[place] for model in models]
        np.testing.assert_allclose(last.clients[0].model[part], kept, rtol=1e-4, atol=1e-5)


def test_the_first_round_of_a_client_of_moon_is_fedavg_whenever_it_is():
    """By then the server's model differs from the one that the client got when it enrolled."""
    average, ours = fedavg(MODEL, SAME_TRAIN), moon(MODEL, SAME_TRAIN, moon_mu=5.0)
    w, w_0 = MODEL.init(KEY), MODEL.init(jax.random.key(1))

    @jax.jit
    def uploads(w, w_0, data):
        first = ours.client.local(w, ours.client.enroll(w_0, KEY), data, KEY)
        again = ours.client.local(w, first[0]._replace(model=w_0), data, KEY)
        return first[1], average.client.local(w, (), data, KEY)[1], again[1]

    first, theirs, again = uploads(w, w_0, same_examples())
    assert_close(first, theirs, rtol=1e-5, atol=1e-6)
    assert distance(again, theirs) > 1e-3


def test_moon_with_mu_0_is_fedavg():
    average, ours = fedavg(MODEL, SAME_TRAIN), moon(MODEL, SAME_TRAIN, moon_mu=0.0)
    w, last = MODEL.init(KEY), MODEL.init(jax.random.key(1))

    @jax.jit
    def uploads(w, last, data):
        theirs = average.client.local(w, (), data, KEY)[1]
        memory = ours.client.enroll(w, KEY)._replace(model=last, trained=True)
        return ours.client.local(w, memory, data, KEY)[1], theirs

    assert_close(*uploads(w, last, same_examples()), rtol=1e-5, atol=1e-6)


def test_the_cosine_of_features_that_are_0_is_0_and_has_a_finite_slope():
    features = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    slope = jax.grad(lambda a: jnp.sum(cosine(a, features)))(features)
    np.testing.assert_allclose(cosine(features, features), [0.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(slope, np.zeros((2, 2)), atol=1e-6)


# -------------------------------------------------------------------------------------- FedDyn


def test_feddyn_keeps_a_linear_term_of_each_client_and_shifts_the_mean():
    """Three rounds of two of three clients, whose g_i the state shows."""
    alpha = 0.3
    algorithm = feddyn(LINE, TRAIN, num_clients=3, feddyn_alpha=alpha)
    program = Program(lambda hparams, played: algorithm, groups=(Group(2),)).compiled()
    state = program.start(KEY, {}, data())
    w, h, g = float(state.server.model["head"][0]), 0.0, np.zeros(3)
    for _ in range(3):
        state, _ = program.advance(state, KEY, {}, data(), jnp.int32(1))
        after = np.asarray(state.clients[0]["head"][:, 0])
        cohort = np.flatnonzero(np.abs(after - g) > 1e-4)
        assert len(cohort) == 2
        models = []
        for i in cohort:
            w_i = w
            for _ in range(3):
                w_i = w_i - RATE * (full_slope(w_i, i) - alpha * g[i] + alpha * (w_i - w))
            g[i] -= w_i - w
            models.append(w_i)
        h -= 1 / 3 * np.sum(np.array(models) - w)
        w = np.mean(models) - h
        np.testing.assert_allclose(state.server.model["head"][0], w, rtol=1e-4)
        np.testing.assert_allclose(state.server.shift["head"][0], h, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(after, g, rtol=1e-4, atol=1e-5)


def test_the_first_round_of_feddyn_is_fedprox_but_for_the_known_shift():
    """With both of two clients it is w + 2 (mean - w)."""
    ours = feddyn(LINE, TRAIN, num_clients=2, feddyn_alpha=0.3)
    theirs = fedprox(LINE, TRAIN, mu=0.3)
    w, cohort = LINE.init(KEY), Cohort(jnp.arange(2), jnp.array([1.0, 3.0]))

    @jax.jit
    def both(w, clients):
        def uploads(client):
            return jax.vmap(lambda rows: client.local(w, client.enroll(w, KEY), rows, KEY)[1])

        sent, expected = (uploads(each.client)(clients) for each in (ours, theirs))
        state = Shifted(w, jax.tree.map(jnp.zeros_like, w))
        return sent, expected, ours.server.aggregate(state, (cohort,), (sent,), KEY).model

    rows = ClientData(jax.tree.map(lambda leaf: jnp.asarray(leaf[:2]), data().train))
    sent, expected, after = both(w, rows)
    assert_close(sent, expected, rtol=1e-6)
    twice = 2 * expected["head"].mean(0) - w["head"]
    np.testing.assert_allclose(after["head"], twice, rtol=1e-5)
