"""FLHA-GHN and pFedHN for several architectures: NumPy references, special cases, refusals."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.flha_ghn import SMALL as VECTOR
from graphfl_jax.algorithms.flha_ghn import Model, flha_ghn
from graphfl_jax.algorithms.hyper import ServerFit
from graphfl_jax.algorithms.pfedhn import pfedhn
from graphfl_jax.algorithms.pfedhn_het import pfedhn_het
from graphfl_jax.architecture import Architecture, Node
from graphfl_jax.core import ABSENT, ClientData, ClientModel, Cohort, FederatedData, State
from graphfl_jax.data import relations
from graphfl_jax.examples import Examples
from graphfl_jax.hypernets.architecture_ghn import Network, architecture_ghn
from graphfl_jax.hypernets.layer_types import layers_of, type_table
from graphfl_jax.hypernets.output import output_layer
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.architectures import architectures
from graphfl_jax.models.mlp import mlp
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group, group_clients, message_bytes
from graphfl_jax.testing.subject import assert_equal
from graphfl_jax.trainers import sgd_trainer
from graphfl_jax.wire.defences import with_defence
from graphfl_jax.wire.robust_means import median
from tests.federations import two_clusters

KEY = jax.random.key(8)
RATE = 0.2
EVEN, ODD = np.arange(0, 5, 2, dtype=np.int32), np.arange(1, 5, 2, dtype=np.int32)
SHALLOW, DEEP = MODELS = tuple(
    mlp(inputs=(2,), hidden=hidden, outputs=2, task=CLASSIFICATION) for hidden in ((3,), (3, 3))
)
# Of a small hypernetwork.
SMALL = {"ghn_depth": 2, "ghn_width": 3, "ghn_hidden": 2}
TRAIN = sgd_trainer(optax.sgd(RATE), steps=2, batch_size=None)


def equal_counts(num_clients=5, count=6):
    """Federated data in which all clients have as many training examples."""
    data = two_clusters(num_clients).data
    train = data.train
    return data._replace(train=train._replace(count=np.full_like(train.count, count)))


DATA = equal_counts()


def method(generator, models=MODELS, train=TRAIN, epochs=1, batch_size=100, unseen=()):
    return flha_ghn(
        models,
        train,
        flha_generator=generator,
        flha_head_optimizer=optax.sgd(RATE),
        flha_head_epochs=epochs,
        new_client_optimizer=optax.sgd(RATE),
        batch_size=batch_size,
        local_steps=2,
        unseen=unseen,
    )


def drawn(weights, scale=0.5):
    """Random numbers in place of all weights, so that none of them is 0."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: np.float32(rng.normal(0, scale, x.shape)), weights)


def start_of(generator):
    return jax.eval_shape(generator.init, KEY)


def generated(generator, weights, k=None):
    """The models of all architectures, or of one."""
    return jax.device_get(jax.jit(lambda weights: generator.generate(weights, k))(weights))


# ------------------------------------------------------------------------------- references


def complex_step(function, weights):
    """The gradient of a real function of a list of arrays, exact up to rounding."""
    gradient = []
    for number, array in enumerate(weights):
        slopes = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            moved = [leaf.astype(complex) for leaf in weights]
            moved[number][place] += 1e-30j
            slopes[place] = function(moved).imag / 1e-30
        gradient.append(slopes)
    return gradient


def relu(x, slope=0.0):
    return np.where(x.real > 0, x, slope * x)


class NumpyGHN:
    """The models of `MODELS` from the leaves of the weights, layer by layer."""

    types = ("input", "linear2_3", "linear3_2", "linear3_3")  # in sorted order
    nodes = ((0, 1, 2), (0, 1, 3, 2))  # numbers of the types of both chains
    shapes = ((), (2, 3), (3, 2), (3, 3))
    features = np.eye(4)  # of each type

    def __init__(self, structure):
        self.structure = structure

    def layers(self, leaves, k):
        """Kernel and bias of every layer of architecture k."""
        weights = jax.tree.unflatten(self.structure, leaves)
        h = [self.features[kind] for kind in self.nodes[k]]
        others = tree.take(weights["gnn"]["others"], 0)  # of one step
        for step in (weights["gnn"]["first"], others):
            of_sender, own = (step[f"Dense_{i}"] for i in range(2))
            sums = [np.zeros_like(h[0]), *h[:-1]]  # each node has one sender
            h = [
                relu(x @ own["kernel"] + s @ of_sender["kernel"] + of_sender["bias"])
                for x, s in zip(h, sums, strict=True)
            ]
        layers = []
        for kind, x in zip(self.nodes[k][1:], h[1:], strict=True):
            if kind == len(self.types):  # unknown
                layers.append(None)
                continue
            head, first = weights["heads"][self.types[kind]], weights["hidden"]
            row = kind - 1  # "input" has no layers
            hidden = relu(x @ first["kernel"][row] + first["bias"][row], 0.01)
            values = hidden @ head["kernel"] + head["bias"]
            out = self.shapes[kind][1]
            bias, channels, kernel = values[:out], values[out : 2 * out], values[2 * out :]
            layers.append((kernel.reshape(self.shapes[kind]) * (1 + channels), bias))
        return layers

    def loss(self, layers, x, y):
        """Cross-entropy of the perceptron with these layers."""
        for number, (kernel, bias) in enumerate(layers):
            x = (relu(x) if number else x) @ kernel + bias
        logits = x - x.real.max(axis=1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return -logs[np.arange(len(y)), y].mean()


def examples_of(i):
    train = tree.take(DATA.train, i)
    return np.float64(train.x[: train.count]), train.y[: train.count]


@pytest.mark.slow
def test_a_round_of_two_architectures_is_that_of_numpy():
    """Two steps of gradient descent on W by each client, and the mean over all clients."""
    generator = architecture_ghn(models=MODELS, **SMALL)
    algorithm = method(generator)
    start = drawn(start_of(generator))
    groups = (Group(3, EVEN), Group(2, ODD))
    program = Program(lambda hparams, played: algorithm, groups=groups).compiled()
    state = State(start, ((), ()), jnp.int32(0))
    after = jax.device_get(program.advance(state, KEY, {}, DATA, jnp.int32(1))[0].server)

    first, structure = jax.tree.flatten(jax.tree.map(np.float64, start))
    numpy = NumpyGHN(structure)
    trained = []
    for i in range(5):
        k, (x, y), leaves = i % 2, examples_of(i), first
        for _ in range(2):
            slopes = complex_step(lambda w: numpy.loss(numpy.layers(w, k), x, y), leaves)  # noqa: B023
            leaves = [w - RATE * g for w, g in zip(leaves, slopes, strict=True)]
        trained.append(leaves)
    expected = [np.mean(leaves, axis=0) for leaves in zip(*trained, strict=True)]
    assert_equal(jax.tree.leaves(after), expected, rtol=1e-4, atol=1e-6)

    # G and L are generated from W and from the client's own, P is G with a refined head.
    deep = algorithm.clients[1]
    data_of_1 = ClientData(jax.tree.map(jnp.asarray, tree.take(DATA.train, 1)))
    for weights, leaves in ((start, first), (after, [np.float64(w) for w in expected])):
        held = deep.deploy(weights, (), ClientData(None)).params
        kernels = [held["body"]["Dense_0"], held["body"]["Dense_1"], held["head"]["Dense_0"]]
        for layer, (kernel, bias) in zip(kernels, numpy.layers(leaves, 1), strict=True):
            np.testing.assert_allclose(layer["kernel"], kernel, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(layer["bias"], bias, rtol=1e-4, atol=1e-6)
    refined = deep.personalize(start, (), data_of_1, KEY).params
    *body, head = numpy.layers(first, 1)
    slopes = complex_step(lambda head: numpy.loss([*body, head], *examples_of(1)), head)
    refined_head = refined["head"]["Dense_0"]
    for name, value, slope in zip(("kernel", "bias"), head, slopes, strict=True):
        np.testing.assert_allclose(refined_head[name], value - RATE * slope, rtol=1e-4)
    assert_equal(refined["body"], deep.deploy(start, (), ClientData(None)).params["body"])


def test_layers_with_batch_normalisation_are_values_scales_and_shifts():
    """One convolution and one head: the scale is 1 plus its value, and r scales channels."""
    generator = architecture_ghn(models=(CONVOLUTION,), **SMALL | {"ghn_depth": 0})
    weights = drawn(start_of(generator))
    params = generated(generator, weights, 0)
    first = weights["hidden"]
    for row, kind, node, layer in (
        (0, "c1_2_k3_s1", [1, 0, 0], params["body"]["conv"]),
        (1, "linear2_2", [0, 0, 1], params["head"]),
    ):
        head = weights["heads"][kind]
        hidden = np.array(node) @ first["kernel"][row] + first["bias"][row]
        hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
        values = hidden @ head["kernel"] + head["bias"]
        bias, r, values = values[:2], values[2:4], values[4:]
        size = layer["kernel"].size
        kernel = values[:size].reshape(-1, 2) * (1 + r)
        np.testing.assert_allclose(layer["kernel"].reshape(-1, 2), kernel, rtol=1e-5)
        np.testing.assert_allclose(layer["bias"], bias, rtol=1e-5)
        if kind.startswith("c1"):
            np.testing.assert_allclose(layer["scale"], 1 + values[size:], rtol=1e-5)
    initial = generated(generator, jax.jit(generator.init)(KEY), 0)["body"]["conv"]
    np.testing.assert_array_equal(initial["scale"], [1, 1])
    np.testing.assert_array_equal(initial["bias"], [0, 0])


@pytest.mark.slow
def test_generated_models_are_recalibrated_before_they_are_scored():
    """Scores of G are those of the generated parameters with the client's statistics."""
    generator = architecture_ghn(models=(CONVOLUTION,), **SMALL)
    algorithm = method(generator, (CONVOLUTION,))
    rng = np.random.default_rng(0)
    images = rng.normal(size=(3, 8, 4, 4, 1)).astype(np.float32)
    images += rng.normal(size=(3, 1, 1, 1, 1)).astype(np.float32)  # brightness of a client
    labels = (images[:, :, 0, 0, 0] > images.mean(axis=(1, 2, 3, 4))[:, None]).astype(np.int32)
    examples = Examples(images, labels, np.full(3, 8, np.int32))
    data = FederatedData(examples, {"test": examples}, relations.from_edges(3, []))
    program = Program(lambda hparams, played: algorithm, groups=(Group(3),)).compiled()
    weights = drawn(start_of(generator), scale=1.0)
    state = State(weights, ((),), jnp.int32(0))
    scores = program.evaluate(state, KEY, {}, data)[0]["test"]["G"]
    saved = program.predictors(state, KEY, {}, data)[0]["G"].params["body"]["statistics"]
    params = generated(generator, weights, 0)
    for i in range(3):
        of_client = jax.tree.map(jnp.asarray, tree.take(examples, i))
        ready = CONVOLUTION.recalibrate(params, of_client)
        right = np.argmax(CONVOLUTION.apply(ready, of_client.x), axis=1) == labels[i]
        np.testing.assert_allclose(scores[i], np.mean(right), rtol=1e-6)
        assert_equal(tree.take(saved, i), ready["body"]["statistics"], rtol=1e-5, atol=1e-6)


def small_convolution():
    """A 3x3 convolution with batch normalisation and mean over the image, and a head."""
    architecture = Architecture(
        "small convolution",
        (
            Node("input"),
            Node("c1_2_k3_s1", ("body", "conv")),
            Node("linear2_2", ("head",)),
        ),
        ((0, 1), (1, 2)),
    )

    def init(key):
        key_body, key_head = jax.random.split(key)
        conv = {"scale": jnp.ones(2), "bias": jnp.zeros(2)}
        conv["kernel"] = jax.random.normal(key_body, (3, 3, 1, 2))
        kernel = jax.random.normal(key_head, (2, 2))
        return {"body": {"conv": conv}, "head": {"kernel": kernel, "bias": jnp.zeros(2)}}

    def convolved(params, x):
        return jax.lax.conv_general_dilated(
            *(x, params["conv"]["kernel"], (1, 1), "SAME"),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def moments(x):
        return {"mean": x.mean(axis=(0, 1, 2)), "deviation": x.std(axis=(0, 1, 2)) + 1e-3}

    def body(params, x):
        x = convolved(params, x)
        found = params.get("statistics") or moments(x)
        x = (x - found["mean"][None, None, None]) / found["deviation"][None, None, None]
        x = x * params["conv"]["scale"][None, None, None]
        x = x + params["conv"]["bias"][None, None, None]
        return jax.nn.relu(x).mean(axis=(1, 2))

    def recalibrate(params, examples):
        statistics = moments(convolved(params["body"], examples.x))
        return params | {"body": params["body"] | {"statistics": statistics}}

    return ClientModel(
        init=init,
        body=body,
        head=lambda params, features: features @ params["kernel"] + params["bias"][None],
        task=CLASSIFICATION,
        recalibrate=recalibrate,
        architecture=architecture,
    )


CONVOLUTION = small_convolution()


@pytest.mark.slow
@pytest.mark.parametrize("absent", [[], [3]], ids=["all", "one absent"])
def test_a_step_of_pfedhn_het_is_the_gradient_of_the_squared_distance_of_all_models(absent):
    """Of all clients who take part; the embeddings of the others stay."""
    fit = ServerFit(optax.sgd(RATE), 1, optax.sgd(0.0), "mean")
    algorithm = pfedhn_het(MODELS, TRAIN, embedding_dim=3, width=2, fit=fit)
    server = algorithm.server.init(KEY, DATA.graph)
    server = server._replace(weights=drawn(server.weights))
    ids = [0, 4], [1, 3]
    uploads = tuple(
        jax.tree.map(
            lambda *rows: np.stack(rows),
            *(drawn(model.init(KEY), scale=i + 1) for i in members),
        )
        for model, members in zip(MODELS, ids, strict=True)
    )
    here = [jnp.array([i not in absent for i in members]) for members in ids]
    cohorts = tuple(
        Cohort(
            jnp.where(present, jnp.array(members), ABSENT),
            present.astype(jnp.float32),
            present,
        )
        if absent
        else Cohort(jnp.array(members), jnp.ones(2))
        for members, present in zip(ids, here, strict=True)
    )
    after = jax.jit(algorithm.server.aggregate)(server, cohorts, uploads, KEY).weights
    leaves, structure = jax.tree.flatten(jax.tree.map(np.float64, server.weights))
    clients = [(k, row, ids[k][row]) for k in range(2) for row in range(2)]
    clients = [client for client in clients if client[2] not in absent]

    def objective(leaves):
        weights, total = jax.tree.unflatten(structure, leaves), 0.0
        for k, row, i in clients:
            x = weights["embeddings"][i]
            for layer in range(4):
                dense = weights["trunk"][f"Dense_{layer}"]
                x = (relu(x) if layer else x) @ dense["kernel"] + dense["bias"]
            linear = weights["outputs"][k]["linear"]["Dense_0"]
            theta = x @ linear["kernel"] + linear["bias"]
            target = [leaf[row].ravel() for leaf in jax.tree.leaves(uploads[k])]
            total = total + 0.5 * np.sum((theta - np.concatenate(target)) ** 2)
        return total / len(clients)

    slopes = complex_step(objective, leaves)
    expected = [w - RATE * g for w, g in zip(leaves, slopes, strict=True)]
    assert_equal(jax.tree.leaves(after), expected, rtol=1e-4, atol=1e-6)
    # Each client gets the model of its own architecture, and client 2 keeps its embedding.
    sent = [
        jax.jit(algorithm.server.download, static_argnums=1)(server, k, k) for k in range(2)
    ]
    shapes = [jax.eval_shape(model.init, KEY) for model in MODELS]
    assert jax.tree.map(jnp.shape, sent) == jax.tree.map(jnp.shape, shapes)
    for i in (2, *absent):
        np.testing.assert_array_equal(after["embeddings"][i], server.weights["embeddings"][i])


DEEPER = mlp(inputs=(2,), hidden=(3, 3, 3), outputs=2, task=CLASSIFICATION)


@pytest.mark.slow
def test_new_clients_refine_all_layers_of_generated_models():
    """Client 5 has the first architecture, and client 6 one that no other client has."""
    generator = type_table(models=MODELS)
    algorithm = method(generator, epochs=0, batch_size=None, unseen=(DEEPER,))
    everyone, weights = two_clusters().data, drawn(start_of(generator))
    train_data = two_clusters(5).data
    groups, joined = group_clients(["0", "1", "0", "1", "0", "0", "2"], 5, 4)
    program = Program(
        lambda hparams, played: algorithm, groups=groups, joined=joined
    ).compiled()
    state = State(weights, ((), ()), jnp.int32(3))
    assert jax.eval_shape(program.start, KEY, {}, train_data).clients == state.clients
    states = [program.admit(state, KEY, {}, everyone)]
    for _ in range(2):
        states.append(program.adapt(states[-1], KEY, {}, everyone))
    scores = [
        program.evaluate(states[r], KEY, {}, everyone, joined=True).scores for r in (0, 2)
    ]

    shapes = {
        5: ("linear2_3", "linear3_2"),
        6: ("linear2_3", "linear3_3", "linear3_3", "linear3_2"),
    }
    for g, i in ((0, 5), (2, 6)):
        layers = [weights[kind] for kind in shapes[i]]
        leaves = [np.float64(layer[name]) for layer in layers for name in ("kernel", "bias")]
        train, test = (tree.take(part, i) for part in (everyone.train, everyone.evals["test"]))
        x, y = np.float64(train.x[: train.count]), train.y[: train.count]
        for played in range(3):
            held = tree.take(jax.device_get(states[played]).server.models[g], 0)
            *body, last = [held["body"][name] for name in sorted(held["body"])] + [held["head"]]
            for layer, kernel, bias in zip(
                [*body, last["Dense_0"]], leaves[::2], leaves[1::2], strict=True
            ):
                np.testing.assert_allclose(layer["kernel"], kernel, rtol=1e-4, atol=1e-6)
                np.testing.assert_allclose(layer["bias"], bias, rtol=1e-4, atol=1e-6)
            if played != 1:
                logits = np.float64(test.x[: test.count])
                for number, (kernel, bias) in enumerate(
                    zip(leaves[::2], leaves[1::2], strict=True)
                ):
                    logits = (relu(logits) if number else logits) @ kernel + bias
                right = np.mean(logits.argmax(axis=1) == test.y[: test.count])
                np.testing.assert_allclose(scores[played // 2]["test"]["G"][i - 5], right)
            for _ in range(2):
                slopes = complex_step(
                    lambda own: NumpyGHN.loss(None, list(zip(*[iter(own)] * 2)), x, y),  # noqa: B905, B023
                    leaves,
                )
                leaves = [w - RATE * s for w, s in zip(leaves, slopes, strict=True)]
    # The generator stays, and so do the models that it makes for the others.
    for state in states:
        assert_equal(jax.device_get(state.server.weights), weights)
    sent = algorithm.server.download(states[-1].server, 1, 3)
    assert_equal(jax.device_get(sent.params), generated(generator, weights, 1))


def test_each_of_several_new_clients_gets_its_own_model_back():
    """Client 5 uploads what it received plus 1, and client 6 plus 2."""
    generator = type_table(models=(SHALLOW,))
    algorithm = method(generator, (SHALLOW,), epochs=0)
    server = algorithm.server
    weights, ids = drawn(start_of(generator)), jnp.array([5, 6], jnp.int32)
    made = generator.generate(weights, 0)
    joined = server.admit(weights, (ids,), two_clusters().data.graph, KEY)
    uploads = Model(jax.tree.map(lambda leaf: jnp.stack([leaf + 1, leaf + 2]), made))
    after = server.adapt_new_clients(joined, (Cohort(ids, jnp.ones(2)),), (uploads,), KEY)
    for state, i, step in ((joined, 6, 0), (after, 3, 0), (after, 5, 1), (after, 6, 2)):
        sent = algorithm.server.download(state, 0, jnp.int32(i)).params
        assert_equal(sent, jax.tree.map(lambda leaf: leaf + step, made))  # noqa: B023


@pytest.mark.slow
def test_new_clients_of_pfedhn_het_fit_their_embeddings_alone():
    """A step on half the squared distance of their models; all other weights stay."""
    fit = ServerFit(optax.sgd(RATE), 1, optax.sgd(RATE), "mean")
    algorithm = pfedhn_het(MODELS, TRAIN, embedding_dim=3, width=2, fit=fit)
    server = algorithm.server.init(KEY, DATA.graph)
    server = server._replace(weights=drawn(server.weights))
    ids = (jnp.array([6], jnp.int32), jnp.array([5], jnp.int32))
    everyone = two_clusters().data.graph
    admitted = algorithm.server.admit(server, ids, everyone, KEY)
    known = server.weights["embeddings"]
    start = np.concatenate([known, [known.mean(axis=0)] * 2])
    np.testing.assert_allclose(admitted.weights["embeddings"], start, rtol=1e-5)
    cohorts = tuple(Cohort(own, jnp.ones(1)) for own in ids)
    targets = [drawn(model.init(KEY), scale=i + 1) for i, model in enumerate(MODELS)]
    uploads = tuple(jax.tree.map(lambda leaf: leaf[None], own) for own in targets)

    def moved(uploads):
        adapt = jax.jit(algorithm.server.adapt_new_clients)
        return jax.device_get(adapt(admitted, cohorts, uploads, KEY).weights)

    after = moved(uploads)
    assert_equal(
        after | {"embeddings": after["embeddings"][:5]}, jax.device_get(server.weights)
    )
    for k, i in enumerate((6, 5)):
        target = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(targets[k])])

        def distance(embedding, k=k, target=target):
            (x,) = embedding
            for layer in range(4):
                dense = server.weights["trunk"][f"Dense_{layer}"]
                x = (relu(x) if layer else x) @ dense["kernel"] + dense["bias"]
            linear = server.weights["outputs"][k]["linear"]["Dense_0"]
            return 0.5 * np.sum((x @ linear["kernel"] + linear["bias"] - target) ** 2)

        (slope,) = complex_step(distance, [np.float64(start[i])])
        np.testing.assert_allclose(after["embeddings"][i], start[i] - RATE * slope, rtol=1e-3)
    # Without new clients of the second architecture, its new embedding stays.
    cohorts = (cohorts[0], Cohort(jnp.zeros(0, jnp.int32), jnp.zeros(0)))
    only_first = moved((uploads[0], None))["embeddings"]
    np.testing.assert_allclose(only_first[6], after["embeddings"][6], rtol=1e-5)
    np.testing.assert_allclose(only_first[5], start[5], rtol=1e-6)


# ------------------------------------------------------------------------------- identities


def play(algorithm, server, rounds=3):
    """The server after some rounds of cohorts of three clients, and the scores."""
    program = Program(lambda hparams, played: algorithm, groups=(Group(3),)).compiled()
    state = State(jax.device_get(server), ((),), jnp.int32(0))
    state, _ = program.advance(state, KEY, {}, DATA, jnp.int32(rounds))
    scores, *_ = program.evaluate(state, KEY, {}, DATA)
    return jax.device_get((state.server, scores["test"]))


@pytest.mark.slow
def test_a_table_with_one_architecture_of_distinct_types_is_fedavg_bit_for_bit():
    train = sgd_trainer(optax.sgd(RATE), steps=3, batch_size=4)
    generator = type_table(models=(DEEP,))
    algorithm, other = method(generator, (DEEP,), train, epochs=0), fedavg(DEEP, train)
    starts = [jax.jit(one.server.init)(KEY, DATA.graph) for one in (algorithm, other)]
    assert_equal(generator.generate(starts[0], 0), starts[1])
    (table, ours), (model, theirs) = map(play, (algorithm, other), starts)
    assert_equal(generator.generate(table, 0), model)
    assert_equal(ours, theirs)


@pytest.mark.parametrize("largest", [0, 6, 100])
def test_joined_tensors_are_those_of_the_tree(largest):
    """Of one type: a number of steps stays as it is."""
    values = {"a": np.arange(12.0).reshape(3, 4), "b": np.ones((2, 3)), "c": np.zeros(())}
    values = jax.tree.map(np.float32, values)
    (vector, others), back = tree.join_small(values | {"steps": np.int32(5)}, largest)
    assert len(vector) == sum(x.size for x in values.values() if x.size <= largest)
    assert others.pop() == 5 and all(other.size > largest for other in others)
    others.append(np.int32(5))
    assert_equal(back((vector, others)), values | {"steps": np.int32(5)})
    assert_equal(back((vector + 1, [other + 1 for other in others]))["b"], values["b"] + 1)


@pytest.mark.release
def test_without_a_gnn_and_with_all_frozen_but_output_biases_it_is_fedavg():
    """One architecture of distinct types. The output biases of kernels and biases train."""
    generator = architecture_ghn(models=(DEEP,), **SMALL | {"ghn_depth": 0})
    start = jax.jit(generator.init)(KEY)
    free = jax.tree.map(np.zeros_like, start)
    for shapes, head in zip(((2, 3), (3, 2), (3, 3)), free["heads"].values(), strict=True):
        out = shapes[1]
        head["bias"][:out] = 1.0  # biases, r, kernel
        head["bias"][2 * out :] = 1.0
    free, _ = tree.join_small(free, VECTOR)  # as the weights are trained
    masked = optax.stateless(lambda slopes, _: jax.tree.map(jnp.multiply, slopes, free))
    sizes = {"steps": 3, "batch_size": 4}
    frozen = sgd_trainer(optax.chain(masked, optax.sgd(RATE)), **sizes)
    whole = sgd_trainer(optax.sgd(RATE), **sizes)
    first = generator.generate(start, 0)
    weights, _ = play(method(generator, (DEEP,), frozen), start)
    model, _ = play(fedavg(DEEP, whole), first)
    assert_equal(generator.generate(weights, 0), model, rtol=1e-4, atol=1e-6)
    assert not np.allclose(
        model["head"]["Dense_0"]["kernel"], first["head"]["Dense_0"]["kernel"]
    )


@pytest.mark.release
def test_pfedhn_het_with_one_architecture_is_pfedhn():
    fit = ServerFit(optax.sgd(RATE, 0.9), 2, optax.sgd(0.0), "mean")
    sizes = {"embedding_dim": 3, "width": 4, "fit": fit}
    one = pfedhn(DEEP, TRAIN, **sizes, output=output_layer(DEEP))
    het = pfedhn_het((DEEP,), TRAIN, **sizes)
    first = one.server.init(KEY, DATA.graph)

    def renamed(weights):
        return {
            "outputs" if name == "output" else name: [own] if name == "output" else own
            for name, own in weights.items()
        }

    same = het.server.init(KEY, DATA.graph)._replace(weights=renamed(first.weights))
    (last, scores), (other, other_scores) = play(one, first), play(het, same)
    assert_equal(renamed(last.weights), other.weights, rtol=1e-5, atol=1e-6)
    assert_equal(scores, other_scores, atol=1e-6)


# ----------------------------------------------------------------------- architecture graphs


def layered(name, types, edges):
    """A model of dense layers by hand; only its parameters and architecture are used."""

    def parameters(kind):
        _, sizes = kind.split("linear")
        inputs, outputs = map(int, sizes.split("_"))
        return {"kernel": jnp.zeros((inputs, outputs)), "bias": jnp.zeros(outputs)}

    paths = [
        ("body", f"layer{place}") if kind.startswith("linear") else ()
        for place, kind in enumerate(types)
    ]
    paths[max(place for place, path in enumerate(paths) if path)] = ("head",)

    def init(key):
        body = {
            path[1]: parameters(kind)
            for path, kind in zip(paths, types, strict=True)
            if path[:1] == ("body",)
        }
        (head,) = (kind for path, kind in zip(paths, types, strict=True) if path == ("head",))
        return {"body": body, "head": parameters(head)}

    nodes = tuple(itertools.starmap(Node, zip(types, paths, strict=True)))
    return ClientModel(
        init=init,
        body=lambda params, x: x,
        head=lambda params, x: x,
        task=CLASSIFICATION,
        architecture=Architecture(name, nodes, tuple(edges)),
    )


def chain(depth):
    """A plain network of `depth` layers: a stem, equal layers, and a head."""
    types = ["input", "linear3_4", *["linear4_4"] * (depth - 2), "linear4_2"]
    return layered(f"chain {depth}", types, itertools.pairwise(range(depth + 1)))


def kernels(generator, weights, model, layers):
    body = jax.device_get(jax.jit(generator.for_architecture(model))(weights, KEY))["body"]
    return np.stack([body[f"layer{place}"]["kernel"] for place in layers])


def plain(depth):
    """A plain network of Table 2."""
    name, width = f"plain{depth}", 4
    options = {"inputs": (8, 8, 3), "outputs": 2, "task": CLASSIFICATION, "lowering": "xla"}
    (model,) = architectures(architectures=(name,), width=width, **options)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("model", [chain(13), plain(13)], ids=["dense", "convolutions"])
def test_six_forward_layers_do_not_distinguish_deep_layers_of_a_chain(model):
    """Layer p sees the types of layers p - 6 to p, which are equal from p = 8 on."""
    of = functools.partial(architecture_ghn, models=(model,), ghn_init="rescaled")
    forward, both = of(), of(ghn_edges="bidirectional")
    weights = jax.jit(forward.init)(KEY)
    found = kernels(forward, weights, model, range(7, 13))
    np.testing.assert_allclose(found[2:], np.broadcast_to(found[1], found[2:].shape), rtol=1e-6)
    assert np.abs(found[0] - found[1]).max() > 1e-4
    found = kernels(both, weights, model, range(8, 13))
    for a, b in itertools.combinations(found, 2):
        assert np.abs(a - b).max() > 1e-4


def test_without_layers_of_the_graph_network_only_the_type_counts():
    """All layers of a type are equal, in all architectures and with all edges."""
    of = functools.partial(architecture_ghn, models=(chain(4), chain(6)), ghn_depth=0)
    generator, other = of(), of(ghn_edges="bidirectional")
    weights = jax.jit(generator.init)(KEY)
    assert weights["gnn"] == {}
    short, long = generated(generator, weights)
    assert_equal(generated(other, weights), (short, long))
    same = [short["body"][f"layer{p}"] for p in (2, 3)]
    same += [long["body"][f"layer{p}"] for p in (2, 3, 4, 5)]
    for layer in same[1:]:
        assert_equal(layer, same[0], rtol=1e-6)
    with_gnn = architecture_ghn(models=(chain(4),), ghn_init="rescaled")
    first, second = kernels(with_gnn, jax.jit(with_gnn.init)(KEY), chain(4), (2, 3))
    assert np.abs(first - second).max() > 1e-4


# A residual network, whose third dense layer gets two inputs.
TYPES = ("input", "linear3_4", "linear4_4", "add", "linear4_4", "linear4_2")
EDGES = ((0, 1), (1, 2), (1, 3), (2, 3), (3, 4), (2, 4), (4, 5))


def test_a_permutation_of_the_nodes_permutes_nothing_but_their_order():
    model = layered("residual", TYPES, EDGES)
    described = model.architecture
    order = [3, 5, 0, 4, 2, 1]  # node order[p] becomes node p
    place = np.argsort(order)
    permuted = described._replace(
        nodes=tuple(described.nodes[node] for node in order),
        edges=tuple((int(place[u]), int(place[v])) for u, v in described.edges[::-1]),
    )
    other = dataclasses.replace(model, architecture=permuted)
    for edges in ("forward", "bidirectional"):
        of = functools.partial(architecture_ghn, ghn_edges=edges, **SMALL)
        ours, theirs = of(models=(model,)), of(models=(other,))
        weights = drawn(start_of(ours))
        assert_equal(
            generated(theirs, weights, 0), generated(ours, weights, 0), rtol=1e-5, atol=1e-6
        )


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_nodes(layer, gnn, nodes, width, depth=2):
    """The nodes of the residual network after the graph network, one at a time, in float64."""
    gnn = jax.tree.map(np.float64, gnn)
    senders = {i: [u for u, v in EDGES if v == i] for i in range(len(nodes))}
    if layer == "gated":
        nodes = [np.append(row, np.zeros(width - len(row))) for row in nodes]
    for t in range(depth):
        if layer == "gated":
            unit, matrix, rows = gnn["unit"], gnn["messages"][t], []

            def product(name, x, unit=unit):
                return x @ unit[name]["kernel"] + unit[name].get("bias", 0.0)

            for i, h in enumerate(nodes):
                m = sum((nodes[u] @ matrix for u in senders[i]), np.zeros(width))
                reset = sigmoid(product("ir", m) + product("hr", h))
                keep = sigmoid(product("iz", m) + product("hz", h))
                new = np.tanh(product("in", m) + reset * product("hn", h))
                rows.append((1 - keep) * new + keep * h)
        else:
            step = gnn["first"] if t == 0 else tree.take(gnn["others"], t - 1)
            of_sender, of_node = (step[f"Dense_{i}"] for i in range(2))
            rows = []
            for i, h in enumerate(nodes):
                received = sum((nodes[u] for u in senders[i]), np.zeros_like(h))
                if layer == "mean":
                    received /= max(1, len(senders[i]))
                sent = received @ of_sender["kernel"] + of_sender["bias"]
                rows.append(relu(h @ of_node["kernel"] + sent))
        nodes = rows
    return np.stack(nodes)


@pytest.mark.parametrize("layer", ["sum", "mean", "gated"])
def test_graph_networks_compute_their_equations_at_every_node(layer):
    """Nodes 3 and 4 have two senders, so that the mean is not the sum."""
    kinds = tuple(sorted(set(TYPES)))
    model = layered("residual", TYPES, EDGES)
    of = SMALL | {"ghn_width": 6}
    gnn = drawn(start_of(architecture_ghn(models=(model,), ghn_layer=layer, **of)))["gnn"]
    network = Network(kinds, {}, depth=2, width=6, hidden=2, edges="forward", layer=layer)
    ours, types = network.embed({"gnn": gnn}, (layers_of(model, "residual"),))
    features = [np.float64([kind == known for known in kinds]) for kind in TYPES]
    np.testing.assert_allclose(ours, numpy_nodes(layer, gnn, features, 6), rtol=1e-5, atol=1e-6)
    assert types == list(TYPES)
    floats = sum(leaf.size for leaf in jax.tree.leaves(gnn))
    n, width, depth = len(kinds), 6, 2
    linear = 2 * n * width + width + (depth - 1) * (2 * width**2 + width)
    assert floats == ((depth + 6) * width**2 + 4 * width if layer == "gated" else linear)


def test_a_gated_graph_network_needs_a_number_for_each_type():
    message = (
        r"^algorithm.ghn_width=3 is too small for the 5 types of layers with "
        r"algorithm.ghn_layer=gated; set at least 5$"
    )
    model = layered("residual", TYPES, EDGES)
    with pytest.raises(ValueError, match=message):
        architecture_ghn(models=(model,), ghn_layer="gated", **SMALL)
    architecture_ghn(models=(model,), ghn_layer="gated", **SMALL | {"ghn_depth": 0})


def test_one_call_for_all_architectures_is_one_for_each():
    models = (chain(4), layered("residual", TYPES, EDGES), chain(6))
    gated = architecture_ghn(models=models, ghn_layer="gated", **SMALL | {"ghn_width": 6})
    generators = (architecture_ghn(models=models, **SMALL), gated, type_table(models=models))
    for generator in generators:
        weights = drawn(start_of(generator))
        together = generated(generator, weights)
        for k, model in enumerate(models):
            alone = generated(generator, weights, k)
            assert_equal(together[k], alone, rtol=1e-5, atol=1e-6)
            assert_equal(jax.jit(generator.for_architecture(model))(weights, KEY), alone)
            shapes = jax.eval_shape(model.init, KEY)
            assert jax.tree.map(jnp.shape, alone) == jax.tree.map(jnp.shape, shapes)


def test_a_model_of_an_unseen_architecture_is_generated_from_known_types():
    """A client of it would get the layers that it has in common with the others."""
    table = type_table(models=(chain(4),))
    weights = drawn(start_of(table))
    params = table.for_architecture(chain(7))(weights, KEY)
    assert len(params["body"]) == 6
    assert_equal(params["body"]["layer5"], weights["linear4_4"])
    assert_equal(params["head"], weights["linear4_2"])


# ---------------------------------------------------------------------------- initialisation


def wide(name="wide"):
    """Layers that are large enough to estimate variances."""
    types = ["input", "linear16_64", "linear64_64", "linear64_64", "linear64_32"]
    return layered(name, types, itertools.pairwise(range(5)))


def of_types(params):
    """The kernels of `wide` by type."""
    body = params["body"]
    return {
        "linear16_64": [body["layer1"]["kernel"]],
        "linear64_64": [body["layer2"]["kernel"], body["layer3"]["kernel"]],
        "linear64_32": [params["head"]["kernel"]],
    }


@pytest.mark.parametrize("depth", [0, 6])
def test_rescaled_kernels_have_the_variance_of_fan_out(depth):
    generator = architecture_ghn(models=(wide(),), ghn_depth=depth, ghn_init="rescaled")
    params = generated(generator, jax.jit(generator.init)(KEY), 0)
    for kind, own in of_types(params).items():
        outputs = own[0].shape[-1]
        assert np.var(own) == pytest.approx(2 / outputs, rel=0.05), kind
    assert all(
        not leaf.any()
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if path[-1].key == "bias"
    )


def test_kernels_of_a_convolution_are_rescaled_by_their_size():
    """Variance 2 / (9 * 2), as a mean over keys, because there are only 18 numbers."""
    generator = architecture_ghn(models=(CONVOLUTION,), ghn_init="rescaled")

    def mean_square(key):
        return jnp.mean(
            generator.generate(generator.init(key), 0)["body"]["conv"]["kernel"] ** 2
        )

    squares = jax.jit(jax.vmap(mean_square))(jax.random.split(KEY, 4))
    np.testing.assert_allclose(squares, 1 / 9, rtol=1e-4)


def test_printed_kernels_have_the_variance_of_the_formula():
    """4 q / c_out with q measured in NumPy; the embedding of a type is one-hot."""
    generator = architecture_ghn(models=(wide(),), ghn_depth=0)
    weights = jax.device_get(jax.jit(generator.init)(KEY))
    params = generated(generator, weights, 0)
    kinds = sorted(["input", *of_types(params)])
    for number, (kind, own) in enumerate(sorted(of_types(params).items())):
        row = kinds.index(kind)
        hidden = weights["hidden"]["kernel"][number, row]
        q = np.mean(np.where(hidden > 0, hidden, 0.01 * hidden) ** 2)
        large = own[0].size / (own[0].size + 16)  # of Xavier's fan-in + fan-out
        expected = 4 * q / own[0].shape[-1] * large
        assert np.var(own[0]) == pytest.approx(expected, rel=0.15), kind


# ------------------------------------------------------------------------------ communication


@pytest.mark.parametrize("depth", [0, 2, 6])
def test_messages_are_the_hypernetwork_and_have_the_size_of_the_formula(depth):
    generator = architecture_ghn(models=MODELS, ghn_depth=depth)
    algorithm = method(generator)
    n, e = 4, 51 if depth else 4
    sizes = {"linear2_3": (9, 3), "linear3_2": (8, 2), "linear3_3": (12, 3)}  # d_l, c_l
    floats = sum(16 * e + 16 + 17 * (d + c) for d, c in sizes.values())
    if depth:
        floats += 2 * n * e + e + (depth - 1) * (2 * e * e + e)
    assert message_bytes(algorithm, DATA) == [(4 * floats, 4 * floats)]


def test_messages_of_the_table_are_one_layer_of_each_type():
    generator = type_table(models=MODELS)
    assert message_bytes(method(generator), DATA) == [(4 * 29, 4 * 29)]


# ------------------------------------------------------------------------------- the server


def moved(weights, by):
    """Uploads that differ from the weights by a number each."""
    return jax.tree.map(lambda w: jnp.stack([w + step for step in by]), weights)


def test_the_server_has_a_robust_mean_of_each_architecture():
    """The median of every architecture's uploads, weighted by its number of clients."""
    generator = type_table(models=MODELS)
    groups = (Group(3, EVEN), Group(1, ODD))
    algorithm = with_defence(method(generator), "median", median(), groups, DATA)
    weights = drawn(start_of(generator))
    cohorts = (Cohort(jnp.array([0, 2, 4]), jnp.ones(3)), Cohort(jnp.array([1]), jnp.ones(1)))

    uploads = (moved(weights, [0.1, 0.2, 9.0]), moved(weights, [1.0]))
    sent = (moved(weights, [0.0] * 3), moved(weights, [0.0]))

    @jax.jit
    def learned(uploads):
        server, changed = algorithm.defend(weights, cohorts, sent, uploads)
        return algorithm.server.aggregate(server, cohorts, changed, KEY)

    after = learned(uploads)
    expected = jax.tree.map(lambda w: w + (3 * 0.2 + 1.0) / 4, weights)
    assert_equal(after, expected, rtol=1e-5, atol=1e-6)


def test_the_mean_over_clients_is_uniform():
    """Not weighted by numbers of examples, within an architecture and over architectures."""
    algorithm = method(type_table(models=MODELS))
    weights = drawn(start_of(type_table(models=MODELS)))
    cohorts = tuple(
        Cohort(jnp.array(ids), jnp.array(counts))
        for ids, counts in (([0, 2, 4], [1.0, 5.0, 9.0]), ([1], [100.0]))
    )
    uploads = (moved(weights, [1.0, 2.0, 6.0]), moved(weights, [3.0]))
    after = jax.jit(algorithm.server.aggregate)(weights, cohorts, uploads, KEY)
    assert_equal(after, jax.tree.map(lambda w: w + 12 / 4, weights), rtol=1e-5, atol=1e-6)
    # Of the first architecture one client answers, of the second none, or one as well.
    here = cohorts[0].of_those(jnp.array([False, False, True]))
    for answers, mean in zip((False, True), (6.0, (6.0 + 3.0) / 2), strict=True):
        there = cohorts[1].of_those(jnp.array([answers]))
        sent = (moved(weights, [6.0] * 3), moved(weights, [3.0 if answers else 0.0]))
        after = jax.jit(algorithm.server.aggregate)(weights, (here, there), sent, KEY)
        expected = jax.tree.map(lambda w: w + mean, weights)  # noqa: B023
        assert_equal(after, expected, rtol=1e-5, atol=1e-6)


def test_without_epochs_of_refining_p_is_g():
    for epochs in (0, 1):
        clients = method(type_table(models=MODELS), epochs=epochs).clients
        assert [client.personalize is None for client in clients] == [epochs == 0] * 2


# --------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("make", [architecture_ghn, type_table])
def test_what_does_not_fit_is_refused_in_one_line(make):
    def refused(*models):
        with pytest.raises(ValueError) as error:
            make(models=models, model_name="mine")
        return str(error.value)

    bare = dataclasses.replace(SHALLOW, architecture=None)
    assert refused(SHALLOW, bare) == (
        "model.name='mine' does not describe its layers, and this method generates them one by "
        "one; set --config.model.name=mlp"
    )
    wrong = dataclasses.replace(
        DEEP,
        architecture=Architecture(
            "wrong",
            tuple(
                node._replace(type=node.type.replace("3_3", "2_3"))
                for node in DEEP.architecture.nodes
            ),
            DEEP.architecture.edges,
        ),
    )
    assert refused(SHALLOW, wrong) == (
        "type='linear2_3' has parameters {'bias': (3,), 'kernel': (2, 3)}, and "
        "{'bias': (3,), 'kernel': (3, 3)} in architecture 'wrong'; give different layers "
        "different types"
    )
    missing = dataclasses.replace(
        SHALLOW, architecture=SHALLOW.architecture._replace(nodes=(Node("input"),))
    )
    assert refused(missing) == (
        "architecture='mlp_3' does not place the parameter body.Dense_0.bias; give every layer "
        "the path of its own parameters, at most one each of bias, kernel, scale"
    )


class OfShallow(NumpyGHN):
    """The hypernetwork of `SHALLOW` alone, to which linear3_3 is unknown."""

    types = ("input", "linear2_3", "linear3_2")
    features = np.eye(4)[:, :3]


@pytest.mark.parametrize("make", [architecture_ghn, type_table])
def test_layers_of_an_unknown_type_start_fresh_and_the_others_are_generated(make):
    generator = make(models=(SHALLOW,), **(SMALL if make is architecture_ghn else {}))
    weights = drawn(start_of(generator))
    params = jax.device_get(jax.jit(generator.for_architecture(DEEP))(weights, KEY))
    layers = [params["body"]["Dense_0"], params["body"]["Dense_1"], params["head"]["Dense_0"]]
    assert_equal(layers[1], DEEP.init(KEY)["body"]["Dense_1"])
    if make is type_table:
        assert_equal([layers[0], layers[2]], [weights["linear2_3"], weights["linear3_2"]])
        return
    leaves, structure = jax.tree.flatten(weights)
    expected = OfShallow(structure).layers([np.float64(leaf) for leaf in leaves], 1)
    for layer, of_numpy in zip(layers, expected, strict=True):
        if of_numpy is not None:
            made = layer["kernel"], layer["bias"]
            assert_equal(made, tuple(np.float32(part) for part in of_numpy), rtol=1e-5)
