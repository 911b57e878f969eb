"""Panacea's encoder with FLHA-GHN's decoder: a NumPy reference, special cases, new clients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax import tree
from graphfl_jax.algorithms.flha_ghn import flha_ghn
from graphfl_jax.algorithms.hyper import ServerFit
from graphfl_jax.algorithms.panacea import panacea
from graphfl_jax.algorithms.panacea_flha import Conditioned, panacea_flha
from graphfl_jax.core import State
from graphfl_jax.data import relations
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.hypernets.architecture_ghn import architecture_ghn
from graphfl_jax.hypernets.generator import Generator
from graphfl_jax.hypernets.relation_gnn import relation_encoder
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.mlp import mlp
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group, group_clients
from graphfl_jax.testing.subject import assert_equal
from graphfl_jax.trainers import sgd_trainer
from tests.federations import two_clusters

KEY = jax.random.key(3)
RATE, SERVER_RATE, SCALE, LAMBDA = 0.2, 0.3, 1.5, 0.7
SHALLOW, DEEP = (
    mlp(inputs=(2,), hidden=hidden, outputs=2, task=CLASSIFICATION) for hidden in ((3,), (3, 3))
)
WHOLE = hold_out(two_clusters(), fraction=0.3, seed=0)  # five clients, and two new ones
DATA, EVERYONE = WHOLE.data, WHOLE.everyone
HEAD = {"flha_head_optimizer": optax.sgd(RATE), "flha_head_epochs": 0}
NEW = {"new_client_optimizer": optax.sgd(RATE), "batch_size": 6, "local_steps": 2}


def trainer(steps=1):
    return sgd_trainer(optax.sgd(RATE), steps=steps, batch_size=None)


def decoder_of(models):
    return architecture_ghn(models=models, ghn_depth=1, ghn_width=3, ghn_hidden=2)


def encoding(rate=SERVER_RATE, dropout=0.0):
    """Settings of the encoder, of Panacea and of the combination."""
    return {
        "encoder": relation_encoder(layer="mean", width=3, depth=2),
        "fit": ServerFit(optax.sgd(rate), 1, optax.sgd(0.0), "neighbours"),
        "lambda_d": LAMBDA,
        "embedding_dropout": dropout,
    }


def method(models, *, scale=SCALE, steps=1, unseen=(), **changes):
    return panacea_flha(
        models,
        trainer(steps),
        decoder=decoder_of(models),
        panacea_flha_scale=scale,
        embedding_dim=2,
        unseen=unseen,
        **encoding(**changes),
        **HEAD,
        **NEW,
    )


def program_of(algorithm, groups, joined=()):
    return Program(lambda hparams, played: algorithm, groups=groups, joined=joined).compiled()


def played(program, start, rounds=1):
    return program.advance(start, KEY, {}, DATA, jnp.int32(rounds))[0]


def drawn(weights, seed):
    """Random numbers in place of all weights, so that none of them is 0."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: np.float32(rng.normal(0, 0.5, x.shape)), weights)


# --------------------------------------------------------------------------------- reference


def relu(x, slope=0.0):
    return np.where(x.real > 0, x, slope * x)


def linear(params, x):
    return x @ params["kernel"] + params["bias"]


def decode(weights, offset, types, known=("input", "linear2_3", "linear3_2", "linear3_3")):
    """Kernel and bias of each layer of a chain of these types, None for unknown types."""
    first = weights["gnn"]["first"]
    nodes = np.array([[float(kind == other) for other in known] for kind in types])
    before = np.concatenate([np.zeros_like(nodes[:1]), nodes[:-1]])  # one sender each
    h = relu(nodes @ first["Dense_1"]["kernel"] + linear(first["Dense_0"], before))
    layers = []
    for kind, state in zip(types[1:], h[1:], strict=True):
        if kind not in known:
            layers.append(None)
            continue
        row, head = known.index(kind) - 1, weights["heads"][kind]  # "input" has no layers
        first = tree.take(weights["hidden"], row)
        values = linear(head, relu(linear(first, state + offset), 0.01))
        fan_in, out = int(kind[6]), int(kind[8])
        bias, r, kernel = values[:out], values[out : 2 * out], values[2 * out :]
        layers.append((kernel.reshape(fan_in, out) * (1 + r), bias))
    return layers


CHAINS = (
    ("input", "linear2_3", "linear3_2"),
    ("input", "linear2_3", "linear3_3", "linear3_2"),
)


def loss_of(layers, x, y):
    """Cross-entropy of the perceptron with these layers."""
    for number, (kernel, bias) in enumerate(layers):
        x = (relu(x) if number else x) @ kernel + bias
    logs = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    return -logs[np.arange(len(y)), y].mean()


def embeddings_of(weights, edges):
    """z [N, 3]: two layers on the mean over neighbours and self."""
    mixed = edges + np.eye(len(edges))
    mixed = mixed / mixed.sum(axis=1, keepdims=True)
    first, second = (weights["encoder"][f"Dense_{i}"] for i in range(2))
    hidden = relu(linear(first, mixed @ weights["embeddings"]))
    return linear(second, mixed @ hidden)


def penalty_of(z, edges):
    joined = 1 / (1 + np.exp(-(z @ z.T) / z.shape[1]))
    off = ~np.eye(len(edges), dtype=bool)
    return -np.mean(np.where(edges > 0, np.log(joined), np.log(1 - joined))[off])


def descended(function, weights, rate):
    """A step of gradient descent, with an exact derivative by a complex step."""
    leaves, structure = jax.tree.flatten(weights)
    after = []
    for number, leaf in enumerate(leaves):
        slopes = np.zeros(leaf.shape)
        for place in np.ndindex(leaf.shape):
            moved = [other.astype(complex) for other in leaves]
            moved[number][place] += 1e-30j
            slopes[place] = function(jax.tree.unflatten(structure, moved)).imag / 1e-30
        after.append(leaf - rate * slopes)
    return jax.tree.unflatten(structure, after)


@functools.cache
def two_architectures():
    """The program of three shallow networks and two deep ones, and a drawn state."""
    groups, joined = group_clients(("a", "b", "a", "b", "a", "c", "a"), 5, 4)
    groups = tuple(group._replace(cohort_size=len(group.ids)) for group in groups)
    deeper = mlp(inputs=(2,), hidden=(3, 3, 3), outputs=2, task=CLASSIFICATION)
    algorithm = method((SHALLOW, DEEP), unseen=(deeper,))
    program = program_of(algorithm, groups, joined)
    start = jax.device_get(program.start(KEY, {}, DATA))
    server = start.server
    encoder = server.encoder._replace(weights=drawn(server.encoder.weights, 2))
    server = server._replace(decoder=drawn(server.decoder, 1), encoder=encoder)
    return program, start._replace(server=server), deeper


def test_a_round_of_two_architectures_is_that_of_numpy():
    """Clients step on (W, c_i); the server averages W, and steps on J of the offsets."""
    program, start, _ = two_architectures()
    after = jax.device_get(played(program, start).server)
    server = start.server
    edges = np.float64(relations.adjacency(DATA.graph))
    weights, psi = (
        jax.tree.map(np.float64, part) for part in (server.decoder, server.encoder.weights)
    )
    offsets = embeddings_of(psi, edges) @ psi["projection"]
    trained = []
    for i in range(5):
        own = tree.take(DATA.train, i)
        x, y = np.float64(own.x[: own.count]), own.y[: own.count]

        def objective(held, i=i, x=x, y=y):
            return loss_of(decode(held[0], SCALE * held[1], CHAINS[i % 2]), x, y)

        trained.append(descended(objective, (weights, offsets[i]), RATE))
    targets = np.stack([offset for _, offset in trained])
    assert np.abs(targets - offsets).min(axis=1).max() > 1e-4  # all clients train theirs
    mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *(w for w, _ in trained))
    assert_equal(after.decoder, mean, rtol=1e-4, atol=1e-6)

    def distance(psi):
        z = embeddings_of(psi, edges)
        apart = np.sum((targets - z @ psi["projection"]) ** 2, axis=1)
        return 0.5 * np.mean(apart) + LAMBDA * penalty_of(z, edges)

    expected = descended(distance, psi, SERVER_RATE)
    assert_equal(after.encoder.weights, expected, rtol=1e-4, atol=1e-6)


def test_a_new_client_begins_with_its_neighbours_embedding_and_its_own_architecture():
    """One has an architecture that nobody trained, with a layer of a known type twice."""
    program, start, deeper = two_architectures()
    joined = program.admit(start, KEY, {}, EVERYONE)
    models = jax.device_get(joined.server.decoder.models)
    assert [len(jax.tree.leaves(own)[0]) for own in models] == [1, 0, 1]
    edges = np.float64(relations.adjacency(EVERYONE.graph))
    psi = jax.tree.map(np.float64, start.server.encoder.weights)
    known = psi["embeddings"]
    near = edges[5:, :5]
    assert near.sum(axis=1).min() > 0
    added = near @ known / near.sum(axis=1, keepdims=True)
    psi["embeddings"] = np.concatenate([known, added])
    offsets = SCALE * embeddings_of(psi, edges) @ psi["projection"]
    weights = jax.tree.map(np.float64, start.server.decoder)
    chain = ("input", "linear2_3", "linear3_3", "linear3_3", "linear3_2")
    for i, types, held in ((5, chain, models[2]), (6, CHAINS[0], models[0])):
        params = tree.take(held, 0)
        ours = [*params["body"].values(), params["head"]["Dense_0"]]
        layers = decode(weights, offsets[i], types)
        for layer, (kernel, bias) in zip(ours, layers, strict=True):
            np.testing.assert_allclose(layer["kernel"], kernel, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(layer["bias"], bias, rtol=1e-4, atol=1e-6)
    later = program.adapt(joined, KEY, {}, EVERYONE)
    assert_equal(later.server.encoder, joined.server.encoder)
    moved = float(tree.sq_dist(later.server.decoder.models[2], models[2]))
    assert moved > 1e-4
    example = jnp.asarray(EVERYONE.evals["test"].x[5])
    outputs = deeper.apply(tree.take(later.server.decoder.models[2], 0), example)
    assert np.isfinite(outputs).all()


# ----------------------------------------------------------------------------- special cases


def test_without_embeddings_it_is_flha_ghn():
    """s = 0: a few steps of all clients, and then new clients, one of an unseen type."""
    models = (SHALLOW,)
    groups, joined = group_clients(("a",) * 6 + ("b",), 5, 5)
    flha = flha_ghn(
        models, trainer(2), flha_generator=decoder_of(models), unseen=(DEEP,), **HEAD, **NEW
    )
    both = method(models, scale=jnp.float32(0.0), steps=2, unseen=(DEEP,))
    states = []
    for algorithm in (flha, both):
        program = program_of(algorithm, groups, joined)
        state = played(program, program.start(KEY, {}, DATA), rounds=2)
        admitted = program.admit(state, KEY, {}, EVERYONE)
        adapted = program.adapt(admitted, KEY, {}, EVERYONE)
        states.append([at.server for at in (state, admitted, adapted)])
    expected, ours = states
    assert_equal([server.decoder for server in ours], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_with_single_steps_it_is_panacea_with_this_decoder():
    """One architecture, K_c = K_s = 1 and the server's rate 1, with dropout in both."""
    models = (SHALLOW,)
    decoder, both = decoder_of(models), method(models, rate=1.0, dropout=0.5)
    program = program_of(both, (Group(5),))
    start = jax.device_get(program.start(KEY, {}, DATA))

    def generate(weights, z):
        offset = SCALE * (z @ weights["projection"])
        hidden = weights["decoder"]["hidden"]
        bias = hidden["bias"] + jnp.einsum("e,teh->th", offset, hidden["kernel"])
        return decoder.generate(weights["decoder"] | {"hidden": hidden | {"bias": bias}}, 0)

    plain = panacea(
        SHALLOW,
        trainer(),
        generator=Generator(
            2,
            3,
            lambda key, width: {
                "projection": jnp.zeros((width, 3)),
                "decoder": decoder.init(key),
            },
            lambda weights, z: z,
            generate,
        ),
        **encoding(rate=1.0, dropout=0.5),
    )
    other = program_of(plain, (Group(5),))
    first = jax.device_get(other.start(KEY, {}, DATA))
    weights = start.server.encoder.weights | {"decoder": start.server.decoder}
    first = State(first.server._replace(weights=weights), *first[1:])
    ours = played(program, start, rounds=3).server
    expected = played(other, first, rounds=3).server.weights
    decoded = expected.pop("decoder")
    assert_equal(ours.decoder, decoded, rtol=1e-4, atol=1e-5)
    assert_equal(ours.encoder.weights, expected, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------- the message


@pytest.mark.parametrize("depth, size", [(0, 4), (2, 6)])
def test_a_message_has_an_offset_as_long_as_a_node_s_state(depth, size):
    models = (SHALLOW, DEEP)
    decoder = architecture_ghn(models=models, ghn_depth=depth, ghn_width=6, ghn_layer="gated")
    both = panacea_flha(
        models, trainer(), decoder=decoder, embedding_dim=2, **encoding(), **HEAD, **NEW
    )
    server = jax.eval_shape(both.server.init, KEY, DATA.graph)
    message = jax.eval_shape(lambda server: both.server.download(server, 1, 0), server)
    assert isinstance(message, Conditioned)
    assert message.offset.shape == (size,)
    assert message.weights == jax.eval_shape(decoder.init, KEY)
