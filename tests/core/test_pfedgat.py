"""pFedGAT: against references, and where it is another method."""

import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special

import graphfl_jax
from graphfl_jax import tree
from graphfl_jax.algorithms import attention
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.pfedgat import FEEDBACK, AttentionServer, pfedgat
from graphfl_jax.build import build_experiment
from graphfl_jax.core import ClientData, ClientModel, Cohort, FederatedData
from graphfl_jax.data import relations
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.models.architectures import architectures
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group, message_bytes
from graphfl_jax.trainers import sgd_trainer
from tests.federations import small_config, two_clusters

KEY = jax.random.key(4)
RATE = 0.1
D = 4  # weights of a client
# y = w . x, with two weights in each part.
PLANE = ClientModel(
    init=lambda key: {"body": (), "head": jax.random.normal(key, (D,))},
    body=lambda params, x: x,
    head=lambda params, features: features @ params[:, None],
    task=REGRESSION,
)
ATTENTIONS = {
    "v1": attention.v1(attention_heads=2, attention_size=3),
    "collapsed": attention.v1(attention_heads=2, attention_size=3, attention_collapsed=True),
    "v2": attention.v2(attention_heads=2, attention_size=3),
    "direct": attention.direct(),
    "dot": attention.dot(attention_scale=jnp.float32(1.5)),
}
FIXED = {"given": attention.from_relations()}  # nothing is learned


def examples(seed, clients=3, size=5):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(clients, size, D)).astype(np.float32)
    y = rng.normal(size=(clients, size, 1)).astype(np.float32)
    return Examples(x, y, np.array([3, 5, 4, 5, 5, 5, 5][:clients], np.int32))


def data(clients=3):
    parts = {"val": examples(1, clients), "test": examples(2, clients)}
    return FederatedData(examples(0, clients), parts, relations.from_edges(clients, []))


def method(
    name="direct",
    feedback="gradient",
    rate=0.5,
    clients=3,
    model=PLANE,
    optimizer=optax.sgd,
    **settings,
):
    return pfedgat(
        model,
        sgd_trainer(optax.sgd(RATE), steps=2, batch_size=None),
        num_clients=clients,
        attention=(ATTENTIONS | FIXED)[name],
        feedback=FEEDBACK[feedback](**settings),
        server_optimizer=optimizer(rate),
    )


def play(algorithm, federated, rounds, cohort_size=3):
    """The states before and after some rounds, and the program."""
    program = Program(
        lambda hparams, played: algorithm, groups=(Group(cohort_size),)
    ).compiled()
    first = program.start(KEY, {}, federated)
    start = jax.device_get(first)
    last, _ = program.advance(first, KEY, {}, federated, jnp.int32(rounds))
    return start, jax.device_get(last), program


# ------------------------------------------------------------------------ references


def leaky(x):
    return np.where(x > 0, x, 0.2 * x)


def reference_logits(name, weights, models):
    """e [K, N, N], pair by pair."""
    n = len(models)
    unit = [(w - w.mean()) / w.std() for w in models]
    centred = models - models.mean(0)
    directions = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    heads = {"direct": 1, "dot": 1}.get(name, 2)
    e = np.zeros((heads, n, n))
    for k, i, j in itertools.product(range(heads), range(n), range(n)):
        if name == "direct":
            e[k, i, j] = weights[i, j]
        elif name == "v1":
            both = np.concatenate([weights["W"][k] @ unit[i], weights["W"][k] @ unit[j]])
            e[k, i, j] = leaky(weights["a"][k].ravel() @ both)
        elif name == "collapsed":
            e[k, i, j] = leaky(weights[k, 0] @ unit[i] + weights[k, 1] @ unit[j])
        elif name == "v2":
            joined = np.concatenate([weights["W"][0][k], weights["W"][1][k]], axis=1)
            hidden = leaky(joined @ np.concatenate([unit[i], unit[j]]))
            e[k, i, j] = weights["a"][k] @ hidden
        else:
            near = [directions[i] @ directions[m] for m in range(n) if m != i]
            product = max(near) if i == j else directions[i] @ directions[j]
            e[k, i, j] = np.exp(weights["log t"]) * product + weights["b"] * (i == j)
    return e


def shares(name, weights, models):
    return scipy.special.softmax(reference_logits(name, weights, models), axis=2).mean(0)


def losses(models, part):
    """Mean squared error of each client's own model."""
    return np.array(
        [
            np.mean((part.x[i, :c] @ models[i] - part.y[i, :c, 0]) ** 2)
            for i, c in enumerate(part.count)
        ]
    )


def trained(w, i, part, steps=2):
    x, y = part.x[i, : part.count[i]], part.y[i, : part.count[i], 0]
    for _ in range(steps):
        w = w - RATE * np.mean(2 * (x @ w - y)[:, None] * x, axis=0)
    return w


def doubles(values):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), values)


def slopes(function, weights, step=1e-5):
    """Central differences of a function of a tree of arrays."""
    leaves, back = jax.tree.flatten(weights)
    found = []
    for leaf in leaves:
        slope = np.zeros_like(leaf)
        for place in np.ndindex(leaf.shape):
            ends = []
            for sign in (1, -1):
                kept = leaf[place]
                leaf[place] = kept + sign * step
                ends.append(function(back.unflatten(leaves)))
                leaf[place] = kept
            slope[place] = (ends[0] - ends[1]) / (2 * step)
        found.append(slope)
    return back.unflatten(found)


def different(state, seed=5):
    """A state whose models differ, and whose shares belong to them."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(len(state.server.mixing), D)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_round_descends_the_validation_losses_of_the_mixtures(name):
    """Against finite differences of sum_i V_i, in which R is computed pair by pair."""
    algorithm, federated = method(name), data()
    first, _, program = play(algorithm, federated, 1)
    models, weights = different(first), doubles(first.server.weights)
    if name == "dot":  # b = 0 would hide a term
        weights = {"b": np.array(0.3), "log t": np.array(weights["log t"])}
    before = shares(name, weights, models)
    server = first.server._replace(
        uploads={"body": (), "head": jnp.asarray(models)},
        mixing=jnp.asarray(before, jnp.float32),
        weights=jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), weights),
    )
    state = jax.tree.map(jnp.asarray, first._replace(server=server))
    scores = program.evaluate(state, KEY, {}, federated)[0]["test"]
    np.testing.assert_allclose(
        scores["G"], losses(before @ models, federated.evals["test"]), rtol=1e-4
    )
    after, _ = program.advance(state, KEY, {}, federated, jnp.int32(1))

    def total(weights):
        return losses(shares(name, weights, models) @ models, federated.evals["val"]).sum()

    slope = slopes(total, weights)
    expected = jax.tree.map(lambda w, g: w - 0.5 * g, weights, slope)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5),
        *(dict_of(after.server.weights), dict_of(expected)),
    )
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(slope)) > 1e-3
    uploads = np.stack([trained(before[i] @ models, i, federated.train) for i in range(3)])
    np.testing.assert_allclose(after.server.uploads["head"], uploads, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        after.server.mixing, shares(name, expected, uploads), rtol=2e-3, atol=1e-4
    )


def dict_of(weights):
    return weights if isinstance(weights, dict) else {"weights": weights}


def test_update_feedback_takes_the_change_of_a_client_for_its_gradient():
    """For direct, d/dB_ij is R_ij (g_i . w_j - g_i . u_i)."""
    algorithm, federated = method(feedback="update", rate=0.5), data()
    first, _, program = play(algorithm, federated, 1)
    models = different(first)
    server = first.server._replace(uploads={"body": (), "head": jnp.asarray(models)})
    state = jax.tree.map(jnp.asarray, first._replace(server=server))
    after, _ = program.advance(state, KEY, {}, federated, jnp.int32(1))
    mixture = models.mean(0)
    g = np.stack([mixture - trained(mixture, i, federated.train) for i in range(3)])
    slope = (g @ models.T - (g @ mixture)[:, None]) / 3
    np.testing.assert_allclose(after.server.weights, -0.5 * slope, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_mean_of_spsa_over_all_signs_is_the_gradient():
    """E[D_j D_k] = [j = k], so that only the step c leaves a difference, of order c^2."""
    algorithm, federated = method(feedback="spsa", spsa_step=0.03), data()
    exact = method(feedback="gradient")
    first, _, _ = play(algorithm, federated, 1)
    first, federated = jax.tree.map(jnp.asarray, (first, federated))
    models = different(first)
    uploads = {"body": (), "head": jnp.asarray(models)}
    cohort = Cohort(jnp.arange(3, dtype=jnp.int32), jnp.ones(3))

    @jax.jit
    def change(signs):
        """Of B, in a round with these signs."""
        server = first.server._replace(uploads=uploads, signs=signs)
        return after(algorithm, server) - first.server.weights

    def after(algorithm, server):
        def one(i):
            own = tree.take((federated.train, federated.evals["val"]), i)
            message = algorithm.server.download(server, 0, i)
            return algorithm.client.local(message, (), ClientData(*own), KEY)[1]

        sent = jax.vmap(one)(jnp.arange(3))
        return algorithm.server.aggregate(server, (cohort,), (sent,), KEY).weights

    changes = [
        change(jnp.broadcast_to(jnp.float32(signs), (3, 3)))
        for signs in itertools.product((1, -1), repeat=3)
    ]
    given = first.server._replace(uploads=uploads, signs=())
    expected = jax.jit(functools.partial(after, exact))(given) - first.server.weights
    assert np.abs(changes[0] - expected).max() > 0.1 * np.abs(expected).max()
    np.testing.assert_allclose(np.mean(changes, axis=0), expected, rtol=2e-2, atol=2e-3)


# ------------------------------------------------------------------------ limit cases


def equal_counts(federated):
    count = np.full_like(federated.train.count, 3)
    return federated._replace(train=federated.train._replace(count=count))


def test_with_equal_shares_that_stay_it_is_fedavg():
    """With all clients in every round, as many examples for each, and the same first model."""
    federated = equal_counts(data())
    first, ours, program = play(method("direct", rate=0.0), federated, 3)
    reference = fedavg(PLANE, sgd_trainer(optax.sgd(RATE), steps=2, batch_size=None))
    start, _, fedavg_program = play(reference, federated, 0)
    start = start._replace(server=tree.take(first.server.uploads, 0))
    theirs, _ = fedavg_program.advance(start, KEY, {}, federated, jnp.int32(3))
    np.testing.assert_allclose(ours.server.mixing, np.full((3, 3), 1 / 3), rtol=1e-6)
    mixture, _ = method().server.download(ours.server, 0, 1)
    np.testing.assert_allclose(mixture["head"], theirs.server["head"], rtol=1e-5, atol=1e-6)
    scores = program.evaluate(ours, KEY, {}, federated)[0]["test"]
    expected = fedavg_program.evaluate(theirs, KEY, {}, federated)[0]["test"]
    for point in "GLP":
        np.testing.assert_allclose(scores[point], expected[point], rtol=1e-4)


@pytest.mark.release
def test_with_one_client_it_is_local_training():
    federated = data(clients=1)
    for name in ATTENTIONS | FIXED:
        first, last, _ = play(method(name, clients=1), federated, 2, cohort_size=1)
        w = first.server.uploads["head"][0]
        for _ in range(2):
            w = trained(w, 0, federated.train)
        np.testing.assert_allclose(last.server.uploads["head"][0], w, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(last.server.mixing, [[1.0]])


@pytest.mark.parametrize("feedback", ["gradient", "spsa"])
def test_a_model_with_batch_normalisation_sends_a_gradient_of_its_parameters(feedback):
    model = architectures(
        inputs=(4, 4, 1), outputs=2, task=CLASSIFICATION, architectures=("plain4",), width=1
    )[0]
    algorithm = pfedgat(
        *(model, sgd_trainer(optax.sgd(RATE), steps=1, batch_size=2)),
        num_clients=2,
        attention=ATTENTIONS["dot"],
        feedback=FEEDBACK[feedback](),
        server_optimizer=optax.sgd(RATE),
    )
    images = Examples(jnp.ones((5, 4, 4, 1)), jnp.zeros(5, jnp.int32), jnp.int32(5))

    def local(key):
        server = algorithm.server.init(key, relations.from_edges(2, []))
        server = algorithm.server.begin_round(server, key)
        message, client = algorithm.server.download(server, 0, 0), algorithm.client
        data = ClientData(images, images)
        _, sent, _ = client.local(message, (), data, key)
        return sent, client.untrained(message, (), data)

    sent, untrained = jax.eval_shape(local, KEY)
    assert sent == untrained


def test_given_shares_are_those_of_the_client_graph_and_stay():
    """Clients 0 and 1 are related, client 2 is alone."""
    algorithm = method("given")
    federated = data()._replace(graph=relations.from_edges(3, [(0, 1)]))
    _, last, _ = play(algorithm, federated, 3)
    expected = np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])
    np.testing.assert_allclose(last.server.mixing, expected, rtol=1e-6, atol=1e-30)
    models = np.array(play(algorithm, federated, 1)[1].server.uploads["head"])
    for _ in range(2):
        mixtures = expected @ models
        models = np.stack([trained(u, i, federated.train) for i, u in enumerate(mixtures)])
    np.testing.assert_allclose(last.server.uploads["head"], models, rtol=1e-4, atol=1e-6)


def test_collapsed_heads_have_the_logits_of_the_factors_products():
    whole, collapsed = ATTENTIONS["v1"], ATTENTIONS["collapsed"]
    weights = whole.init(KEY, relations.from_edges(5, []), (5, D))
    products = jnp.einsum("kch,khd->kcd", weights["a"], weights["W"])
    models = jax.random.normal(jax.random.key(1), (5, D))
    np.testing.assert_allclose(
        collapsed.logits(products, models), whole.logits(weights, models), rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_v1_ranks_all_clients_alike_for_every_client_and_the_others_do_not():
    models = jax.random.normal(jax.random.key(1), (6, D))
    alike = {}
    for name, own in ATTENTIONS.items():
        weights = own.init(KEY, relations.from_edges(6, []), (6, D))
        if name == "direct":
            weights = jax.random.normal(KEY, (6, 6))
        ranks = np.argsort(own.logits(weights, models), axis=2)
        alike[name] = bool((ranks == ranks[:, :1]).all())
    assert alike == {name: name in ("v1", "collapsed") for name in ATTENTIONS}


@pytest.mark.parametrize("clients", [2, 10, 300])
def test_dot_gives_equal_shares_to_a_model_that_is_the_mean_of_all(clients):
    """What remains of its difference from the mean is rounding, whose direction is none."""
    rng = np.random.default_rng(clients)
    known = np.float32(1.0 + 0.1 * rng.normal(size=(clients, 354)))
    models = jnp.concatenate([known, jnp.mean(jnp.asarray(known), axis=0, keepdims=True)])
    own = ATTENTIONS["dot"]
    weights = own.init(KEY, None, models.shape)
    (logits,) = own.logits(weights, models)
    np.testing.assert_allclose(jax.nn.softmax(logits[-1]), 1 / (clients + 1), rtol=1e-5)
    assert np.ptp(np.asarray(logits[0])) > 0.1  # of the others


# ------------------------------------------------------------------------ one function

MODELS = np.random.default_rng(6).normal(size=(3, D)).astype(np.float32)
SHARES = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.2, 0.2, 0.6]], np.float32)


def server_of(opt_state=(), signs=()):
    """The server of direct with three models and the shares SHARES, whose logits are log R."""
    uploads = {"body": (), "head": jnp.asarray(MODELS)}
    mixing = jnp.asarray(SHARES)
    return AttentionServer(uploads, mixing, jnp.log(mixing), opt_state, signs)


@pytest.mark.slow
@pytest.mark.parametrize("feedback", ["update", "spsa"])
def test_clients_of_a_part_of_the_federation_change_their_own_logits(feedback):
    """With dV_i/dR_ij = s_ij, d/dB_ij = R_ij (s_ij - sum_k R_ik s_ik). Client 1 is absent."""
    rng, ids, step = np.random.default_rng(7), [0, 2], 0.1
    models = rng.normal(size=(2, D)).astype(np.float32)
    shares, rate = SHARES[ids], 0.5
    if feedback == "update":
        signs, sent, settings = (), (), {}
        slopes = (shares @ MODELS - models) @ MODELS.T  # g_i . w_j
    else:
        signs = np.array([[1, 1, -1], [-1, 1, 1], [-1, 1, -1]], np.float32)
        sent, settings = (jnp.array([0.3, 0.9]), jnp.array([0.2, 0.4])), {"spsa_step": step}
        # (V+ - V-) / 2c D_ij is the derivative by log R_ij.
        slopes = np.array([[0.1], [0.5]]) / (2 * step) * signs[ids] / shares
    algorithm = method(feedback=feedback, rate=rate, **settings)
    server = server_of(algorithm.server.init(KEY, None).opt_state, signs)
    cohort = Cohort(jnp.array(ids, jnp.int32), jnp.ones(2))
    uploads = ({"body": (), "head": jnp.asarray(models)}, sent)
    after = algorithm.server.aggregate(server, (cohort,), (uploads,), KEY)
    expected = np.log(SHARES)
    expected[ids] -= rate * shares * (slopes - np.sum(shares * slopes, axis=1, keepdims=True))
    assert np.abs(expected - np.log(SHARES))[ids].max(axis=1).min() > 0.01
    np.testing.assert_allclose(after.weights, expected, rtol=1e-4, atol=1e-5)
    kept = [models[0], MODELS[1], models[1]]
    np.testing.assert_array_equal(after.uploads["head"], kept)


def test_the_servers_optimiser_keeps_its_state_from_round_to_round():
    counting = optax.scale_by_schedule(lambda step: 0.0)
    algorithm = method(feedback="update", optimizer=lambda rate: counting)
    server = algorithm.server.init(KEY, None)
    cohort = Cohort(jnp.arange(3, dtype=jnp.int32), jnp.ones(3))
    for _ in range(2):
        server = algorithm.server.aggregate(server, (cohort,), ((server.uploads, ()),), KEY)
    assert server.opt_state.count == 2


def test_the_gradient_is_that_of_the_model_that_a_client_predicts_with():
    """With a doubled head, V = mean (2 x . u - y)^2, and dV/du = mean 4 (2 x . u - y) x."""
    model = dataclasses.replace(
        PLANE, recalibrate=lambda params, examples: params | {"head": 2 * params["head"]}
    )
    own = data()
    train, val = (tree.take(part, 0) for part in (own.train, own.evals["val"]))
    u = MODELS[0]
    message = ({"body": (), "head": jnp.asarray(u)}, ())
    _, (_, sent), _ = method(model=model).client.local(
        *(message, ()), jax.tree.map(jnp.asarray, ClientData(train, val)), KEY
    )
    x, y = val.x[: val.count], val.y[: val.count, 0]
    expected = np.mean(4 * (2 * x @ u - y)[:, None] * x, axis=0)
    np.testing.assert_allclose(sent["head"], expected, rtol=1e-5, atol=1e-6)


def test_a_new_client_starts_from_the_mean_and_changes_no_known_mixture():
    """Its logits in direct are 0, so that it gets equal shares of all."""
    algorithm, new = method(), jnp.array([3], jnp.int32)
    graph = relations.from_edges(4, [])
    memory = algorithm.server.init(KEY, relations.from_edges(3, [])).opt_state
    server = algorithm.server.admit(server_of(memory), (new,), graph, KEY)
    shares = [[*row, 0.0] for row in SHARES] + [[0.25] * 4]
    np.testing.assert_allclose(server.mixing, shares, rtol=1e-6)
    np.testing.assert_allclose(server.uploads["head"], [*MODELS, MODELS.mean(0)], rtol=1e-5)
    np.testing.assert_allclose(server.weights, np.pad(np.log(SHARES), (0, 1)), rtol=1e-6)


def test_given_shares_in_training_leave_out_the_new_clients_of_the_graph():
    """On the path 0 - 1 - 2, client 1 has three senders with itself, of which 2 is new."""
    own, path = attention.from_relations(), relations.from_edges(3, [(0, 1), (1, 2)])
    shares = own.init(KEY, path, (2, D))
    np.testing.assert_allclose(shares, [[1 / 2, 1 / 2], [1 / 2, 1 / 2]], rtol=1e-6)
    everyone = [[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 2, 1 / 2]]
    np.testing.assert_allclose(own.grow(shares, path), everyone, rtol=1e-6)


def test_dot_starts_with_its_scale_times_the_products_of_directions():
    """The models have the mean 0. cos of (1, 0) and (-1, -1) is -1 / sqrt 2."""
    models = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    own = ATTENTIONS["dot"]
    logits = own.logits(own.init(KEY, None, models.shape), models)
    np.testing.assert_allclose(logits[0, 0, 1:], [0.0, -1.5 / 2**0.5], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["v1", "collapsed", "v2"])
def test_first_weights_have_the_variance_of_one_over_their_inputs(name):
    """W has d inputs and a has d'; both are drawn independently."""
    make, d, size = attention.v2 if name == "v2" else attention.v1, 100, 400
    settings = {"attention_collapsed": True} if name == "collapsed" else {}
    heads = 50 if name == "collapsed" else 2  # so that there are 10,000 numbers or more
    own = make(attention_heads=heads, attention_size=size, **settings)
    weights = own.init(KEY, None, (3, d))
    w = weights if name == "collapsed" else weights["W"]
    assert np.std(w) == pytest.approx(1 / 10, rel=0.02)
    if name != "collapsed":
        a = np.ravel(weights["a"])  # 800 numbers or more
        assert np.std(a) == pytest.approx(1 / 20, rel=0.1)
        assert abs(np.corrcoef(a, np.ravel(w)[: a.size])[0, 1]) < 0.2


# ------------------------------------------------------------------------ in a run


@pytest.mark.slow
def test_dot_gives_the_shares_to_clients_of_the_same_kind():
    """Even clients and odd clients have opposite labels."""
    config = small_config("pfedgat-dot", cohort_size=7, rounds=6, eval_every=6, local_steps=30)
    result = graphfl_jax.run(config, two_clusters())
    kinds = np.arange(7) % 2
    same = kinds[:, None] == kinds[None]
    found = np.array(result.results["allocation"])
    assert (found * same).sum(axis=1).min() > 0.9
    # A mixture comes back with the gradient of its validation loss.
    communication = result.results["communication"]
    assert communication["up_bytes"] == 2 * communication["down_bytes"] > 0
    assert result.final["test"]["G"].mean() > 0.9


@pytest.mark.parametrize(
    "feedback, down, up", [("gradient", D, 2 * D), ("update", D, D), ("spsa", 3 * D, D + 2)]
)
def test_what_is_sent(feedback, down, up):
    algorithm, federated = method(feedback=feedback), data()
    assert message_bytes(algorithm, federated) == [(4 * down, 4 * up)]


def test_paper_mode_reads_test_examples_and_says_so():
    federation = two_clusters()
    config = small_config("pfedgat", algorithm__paper_mode=True)
    with pytest.warns(UserWarning, match="trains on test examples") as warned:
        experiment = build_experiment(config, federation)
    assert len(warned) == 1
    assert experiment.build(experiment.hparams, 0).needs.held_out == "test"
    clean = build_experiment(small_config("pfedgat"), federation)
    assert clean.build(clean.hparams, 0).needs.held_out == "val"
    free = build_experiment(small_config("pfedgat", algorithm__feedback="update"), federation)
    assert free.build(free.hparams, 0).needs.held_out == ""


@pytest.mark.release
def test_allocations_are_kept_at_every_evaluation_and_over_an_interruption(tmp_path):
    config = small_config("pfedgat-direct", rounds=4, eval_every=2, checkpoint_every=2)
    whole = graphfl_jax.run(config, two_clusters(), out=tmp_path / "whole")
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    kept = np.array([json.loads(line)["allocation"] for line in lines])
    assert kept.shape == (2, 7, 7)
    np.testing.assert_allclose(kept.sum(axis=2), 1.0, atol=1e-5)
    np.testing.assert_allclose(kept[-1], whole.results["allocation"])
    np.testing.assert_allclose(kept[-1], whole.state.server.mixing, atol=1e-6)
    assert np.abs(kept[1] - kept[0]).max() > 1e-4
    half = graphfl_jax.configs.change(config, {"rounds": 2})
    graphfl_jax.run(half, two_clusters(), out=tmp_path / "half")
    graphfl_jax.run(config, two_clusters(), out=tmp_path / "half", resume=True)
    resumed = (tmp_path / "half" / "metrics.jsonl").read_text()
    assert resumed.splitlines() == lines


@pytest.mark.release
def test_methods_without_mixtures_have_no_allocation():
    result = graphfl_jax.run(small_config("fedavg", rounds=1, eval_every=1), two_clusters())
    assert result.results["allocation"] is None and "allocation" not in result.rows[0]
