"""Perceptrons and the networks that generate client models: sizes, scales, layout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax.algorithms.hyper import ServerFit
from graphfl_jax.algorithms.pfedhn import pfedhn
from graphfl_jax.build import build_experiment
from graphfl_jax.data import relations
from graphfl_jax.hypernets.architecture_ghn import architecture_ghn
from graphfl_jax.hypernets.generator import generator
from graphfl_jax.hypernets.output import OUTPUTS, output_layer
from graphfl_jax.hypernets.relation_gnn import relation_encoder
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.models.layers import dense
from graphfl_jax.models.mlp import mlp
from tests.federations import small_config, two_clusters


@pytest.mark.parametrize(
    "inputs, outputs, task, size",
    [
        (2, 2, CLASSIFICATION, 2 * 16 + 16 + 16 * 16 + 16 + 16 * 2 + 2),  # 354, FL-60
        (6, 6, REGRESSION, 6 * 16 + 16 + 16 * 16 + 16 + 16 * 6 + 6),  # 486, TPT-48
    ],
)
def test_perceptrons_have_the_sizes_of_the_paper(inputs, outputs, task, size):
    model = mlp(inputs=(inputs,), hidden=(16, 16), outputs=outputs, task=task)
    assert size in (354, 486)
    assert output_layer(model).size == size


def test_a_model_applies_its_body_and_then_its_head():
    """Against NumPy, with ReLU after both hidden layers and none after the last."""
    model = mlp(inputs=(3,), hidden=(4, 5), outputs=2, task=CLASSIFICATION)
    params = jax.device_get(model.init(jax.random.key(0)))
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    features = x
    for name in ("Dense_0", "Dense_1"):
        layer = params["body"][name]
        features = np.maximum(features @ layer["kernel"] + layer["bias"], 0)
    head = params["head"]["Dense_0"]
    np.testing.assert_allclose(
        model.apply(params, x), features @ head["kernel"] + head["bias"], rtol=1e-5, atol=1e-6
    )


def test_without_hidden_layers_a_perceptron_is_linear():
    """Also in what it describes; and methods that share its body warn that it has none."""
    model = mlp(inputs=(3, 2), hidden=(), outputs=2, task=CLASSIFICATION)
    params = jax.device_get(model.init(jax.random.key(0)))
    assert params["body"] == {} and output_layer(model).size == 6 * 2 + 2
    x = -np.random.default_rng(0).uniform(size=(7, 3, 2)).astype(np.float32)
    layer = params["head"]["Dense_0"]
    np.testing.assert_allclose(
        model.apply(params, x), x.reshape(7, 6) @ layer["kernel"] + layer["bias"], rtol=1e-5
    )
    assert [node.type for node in model.architecture.nodes] == ["input", "linear6_2"]
    with pytest.warns(UserWarning, match="^algorithm.name='fedper' shares no part of this cli"):
        build_experiment(small_config("fedper", model__hidden=()), two_clusters())


def test_the_architecture_of_a_perceptron_is_the_chain_of_its_layers():
    """Its nodes, in order and with ReLU between them, compute what the model computes."""
    model = mlp(inputs=(2, 3), hidden=(4, 5), outputs=2, task=CLASSIFICATION)
    described = model.architecture
    types = ["input", "linear6_4", "linear4_5", "linear5_2"]
    assert [node.type for node in described.nodes] == types
    assert described.edges == ((0, 1), (1, 2), (2, 3))
    assert described.nodes[-1].params == ("head",)
    params = jax.device_get(model.init(jax.random.key(0)))
    x = jax.random.normal(jax.random.key(1), (7, 2, 3))
    outputs = np.asarray(x).reshape(7, 6)
    for number, node in enumerate(described.nodes[1:]):
        outputs = np.maximum(outputs, 0) if number else outputs
        layer = functools.reduce(lambda part, name: part[name], node.params, params)
        bias, kernel = jax.tree.leaves(layer)
        outputs = outputs @ kernel + bias
    np.testing.assert_allclose(model.apply(params, x), outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hidden, at_once", [((16, 16), 20), ((256, 256), 1)])
def test_a_core_trains_as_many_perceptrons_at_once_as_fit_into_its_cache(hidden, at_once):
    """10,000 parameters: 20 perceptrons of 486, and one of 69,126."""
    model = mlp(inputs=(6,), hidden=hidden, outputs=6, task=REGRESSION)
    assert model.at_once == at_once


def test_examples_are_flattened():
    model = mlp(inputs=(6,), hidden=(4,), outputs=2, task=CLASSIFICATION)
    params = model.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (5, 6))
    for shape in ((5, 2, 3), (5, 6, 1)):
        np.testing.assert_array_equal(
            model.apply(params, x.reshape(shape)), model.apply(params, x)
        )


def test_dense_layers_are_initialised_in_one_over_root_fan_in():
    """Weights and biases have variance (1 / fan_in) / 3, up to 4 standard errors."""
    fan_in, features = 50, 400
    params = dense(features, fan_in).init(jax.random.key(0), jnp.zeros((1, fan_in)))["params"]
    for leaf in (params["kernel"], params["bias"]):
        scaled = np.asarray(leaf).ravel() * fan_in**0.5
        assert np.abs(scaled).max() <= 1
        # If u is uniform on (-1, 1), u^2 has mean 1/3 and variance 1/5 - 1/9.
        error = np.sqrt((1 / 5 - 1 / 9) / scaled.size)
        assert abs(np.mean(scaled**2) - 1 / 3) < 4 * error


def test_direct_output_fills_every_parameter_once():
    model = mlp(inputs=(3,), hidden=(4,), outputs=2, task=CLASSIFICATION)
    output = output_layer(model, output="direct")
    linear = {"kernel": jnp.zeros((1, output.size)), "bias": jnp.arange(float(output.size))}
    params = output.decode({"linear": {"Dense_0": linear}}, jnp.ones(1))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(output.size))


# The model 3-4-2 has 4 + 2 biases and kernels [3, 4] and [4, 2]; with lora a kernel [m, n]
# takes rank (m + n) numbers.
@pytest.mark.parametrize(
    "form, size",
    [("direct", 26), ("residual", 26), ("head", 4 + 2 + 8), ("lora", 6 + 2 * (7 + 6))],
)
def test_output_forms_follow_their_formulas(form, size):
    """Against the formulas of `hypernets.output`, tensor by tensor."""
    model = mlp(inputs=(3,), hidden=(4,), outputs=2, task=CLASSIFICATION)
    output = output_layer(model, output=form, rank=2)
    assert output.size == size
    weights = output.init(jax.random.key(0), 5)
    features = jnp.linspace(-1.0, 2.0, 5)
    params = output.decode(weights, features)
    linear = weights["linear"]["Dense_0"]
    v = np.asarray(features @ linear["kernel"] + linear["bias"])
    body = (v[:4], v[4 : 4 + 12])  # tensors are ordered by name: bias, kernel
    if form == "direct":
        assert "base" not in weights
        np.testing.assert_allclose(params["body"]["Dense_0"]["bias"], v[:4], rtol=1e-6)
        return
    assert np.abs(v).max() < 5 * 0.01  # the scale of the docstring
    base = weights["base"]
    kernel = np.asarray(base["body"]["Dense_0"]["kernel"])
    if form == "residual":
        kernel = kernel + body[1].reshape(3, 4)
    if form == "lora":
        shared = weights["factors"]["body"]["Dense_0"]["kernel"]
        assert not shared["b"].any() and shared["a"].any()
        a = np.asarray(shared["a"]) + v[4:10].reshape(3, 2)
        kernel = kernel + a @ v[10:18].reshape(2, 4) / np.sqrt(2)
    expected = np.asarray(base["body"]["Dense_0"]["bias"]) + body[0]
    np.testing.assert_allclose(params["body"]["Dense_0"]["bias"], expected, rtol=1e-5)
    np.testing.assert_allclose(params["body"]["Dense_0"]["kernel"], kernel, rtol=1e-5)
    if form == "head":
        head = np.asarray(base["head"]["Dense_0"]["kernel"]) + v[6:].reshape(4, 2)
        np.testing.assert_allclose(params["head"]["Dense_0"]["kernel"], head, rtol=1e-5)


def test_shared_factors_of_kernels_start_in_one_over_root_fan_in():
    """The standard deviation of n normal numbers deviates by 1 / sqrt(2 n)."""
    model = mlp(inputs=(50,), hidden=(20,), outputs=2, task=CLASSIFICATION)
    output = output_layer(model, output="lora", rank=100)
    factors = jax.jit(output.init, static_argnums=1)(jax.random.key(0), 1)["factors"]
    kernels = (factors["body"]["Dense_0"]["kernel"], factors["head"]["Dense_0"]["kernel"])
    for fan_in, kernel in zip((50, 20), kernels, strict=True):
        a = np.asarray(kernel["a"])
        assert a.shape == (fan_in, 100) and not kernel["b"].any()
        assert abs(np.std(a) * np.sqrt(fan_in) - 1) < 4 / np.sqrt(2 * a.size)


def test_hidden_kernels_of_each_type_of_layers_start_xavier_normal():
    """Variance 2 / (inputs + outputs) of the network of a type, not of those of all types."""
    model = mlp(inputs=(2,), hidden=(3, 4), outputs=5, task=CLASSIFICATION)
    generates = architecture_ghn(models=(model,), ghn_depth=0, ghn_hidden=200)
    kernel = np.asarray(jax.jit(generates.init)(jax.random.key(0))["hidden"]["kernel"])
    assert kernel.shape == (3, 4, 200)  # three types of layers; the inputs are a fourth type
    # Squares of normal numbers have a relative deviation of sqrt(2), of truncated ones less.
    np.testing.assert_allclose(
        np.mean(kernel**2), 2 / (4 + 200), rtol=4 * np.sqrt(2 / kernel.size)
    )


@pytest.mark.parametrize("form", OUTPUTS)
def test_a_generator_decodes_its_hidden_layer(form):
    """Against NumPy: trunk, ReLU, output layer; one embedding or many."""
    model = mlp(inputs=(3,), hidden=(4,), outputs=2, task=CLASSIFICATION)
    output = output_layer(model, output=form)
    built = generator(output=output, embedding_dim=6, width=8, depth=3)
    assert (built.embedding_dim, built.width) == (6, 8)
    weights = built.init(jax.random.key(0), 7)
    embeddings = jax.random.normal(jax.random.key(1), (5, 7))
    first, second = (weights["trunk"][f"Dense_{i}"] for i in range(2))
    hidden = np.maximum(embeddings @ first["kernel"] + first["bias"][None], 0)
    hidden = np.asarray(hidden) @ np.asarray(second["kernel"]) + np.asarray(second["bias"])
    np.testing.assert_allclose(built.hidden(weights, embeddings), hidden, rtol=1e-4, atol=1e-6)
    expected = output.decode(weights["output"], jnp.maximum(hidden[2], 0))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        built.decode(weights, embeddings[2]),
        expected,
    )


@pytest.mark.parametrize("layer", ["sage", "mean", "gcn", "attention"])
def test_a_relation_encoder_has_the_declared_layers(layer):
    """`depth` layers of `width`; some have a second kernel in each."""
    encoder = relation_encoder(layer=layer, width=8, depth=3)
    assert (encoder.layer, encoder.width) == (layer, 8)
    embeddings = jnp.ones((4, 6))
    propagation = encoder.relate(relations.from_edges(4, [(0, 1)]))
    params = encoder.module.init(jax.random.key(0), embeddings, propagation)["params"]
    leaves = jax.tree.leaves_with_path(params)
    kernels = [leaf.shape for path, leaf in leaves if path[-1].key == "kernel"]
    widths = [(6, 8), (8, 8), (8, 8)]
    second = {"sage": widths, "attention": 3 * [(16, 1)]}.get(layer, [])
    assert sorted(kernels) == sorted(widths + second)
    assert encoder.module.apply({"params": params}, embeddings, propagation).shape == (4, 8)


@pytest.mark.parametrize("num_clients, dim", [(4, 2), (7, 2), (48, 13), (60, 16)])
def test_embeddings_of_pfedhn_have_the_authors_size(num_clients, dim):
    """floor(1 + N / 4)."""
    model = mlp(inputs=(2,), hidden=(3,), outputs=2, task=CLASSIFICATION)
    fit = ServerFit(optax.identity(), 1, optax.identity(), "random")
    algorithm = pfedhn(
        model, None, embedding_dim=0, width=5, output=output_layer(model), fit=fit
    )
    server = algorithm.server.init(jax.random.key(0), relations.from_edges(num_clients, []))
    assert server.weights["embeddings"].shape == (num_clients, dim)


@pytest.mark.parametrize("hidden", [(0,), (4, -1), ("4,a",)])
def test_hidden_layers_without_a_width_are_refused(hidden):
    with pytest.raises(ValueError, match="model.hidden"):
        mlp(inputs=(2,), hidden=hidden, outputs=2, task=CLASSIFICATION)
