"""Client models and the networks that generate them: sizes, scales, layout."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax.algorithms.pfedhn import pfedhn
from graphfl_jax.data import relations
from graphfl_jax.hypernets.output import SCALE, output_layer
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.models.layers import dense
from graphfl_jax.models.mlp import mlp


@pytest.mark.parametrize(
    "inputs, outputs, task, size",
    [
        (2, 2, CLASSIFICATION, 2 * 16 + 16 + 16 * 16 + 16 + 16 * 2 + 2),  # 354, FL-60
        (6, 6, REGRESSION, 6 * 16 + 16 + 16 * 16 + 16 + 16 * 6 + 6),  # 486, TPT-48
    ],
)
def test_the_papers_perceptrons_have_their_sizes(inputs, outputs, task, size):
    model = mlp(inputs=(inputs,), hidden=(16, 16), outputs=outputs, task=task)
    assert size in (354, 486)
    assert output_layer(model, profile="whole", rank=1).size == size


def test_a_model_is_its_head_after_its_body():
    """ReLU after both hidden layers, none after the last: written out in NumPy."""
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


def test_examples_of_any_shape_are_flattened():
    model = mlp(inputs=(6,), hidden=(4,), outputs=2, task=CLASSIFICATION)
    params = model.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (5, 6))
    for shape in ((5, 2, 3), (5, 6, 1)):
        np.testing.assert_array_equal(
            model.apply(params, x.reshape(shape)), model.apply(params, x)
        )


def test_layers_start_uniform_within_one_over_root_fan_in():
    """Variance (1 / fan_in) / 3 for weights and biases alike; 4 standard errors of a mean."""
    fan_in, features = 50, 400
    params = dense(features, fan_in).init(jax.random.key(0), jnp.zeros((1, fan_in)))["params"]
    for leaf in (params["kernel"], params["bias"]):
        scaled = np.asarray(leaf).ravel() * fan_in**0.5
        assert np.abs(scaled).max() <= 1
        # Of u uniform on (-1, 1), u^2 has mean 1/3 and variance 1/5 - 1/9.
        error = np.sqrt((1 / 5 - 1 / 9) / scaled.size)
        assert abs(np.mean(scaled**2) - 1 / 3) < 4 * error


def test_a_vector_is_shaped_as_parameters_without_loss():
    model = mlp(inputs=(3,), hidden=(4,), outputs=2, task=CLASSIFICATION)
    output = output_layer(model, profile="whole", rank=1)
    linear = {"kernel": jnp.zeros((1, output.size)), "bias": jnp.arange(float(output.size))}
    params = output.decode({"linear": {"Dense_0": linear}}, jnp.ones(1))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(output.size))


# Of the model 3-4-2: 4 + 2 biases, 4 x 2 in the head's kernel; a kernel [m, n] takes 2 (m + n).
@pytest.mark.parametrize(
    "profile, size",
    [("whole", 26), ("full", 26), ("head", 4 + 2 + 8), ("lowrank", 6 + 2 * (7 + 6))],
)
def test_a_profile_generates_what_it_says(profile, size):
    """Against the formulas of `hypernets.output`, tensor by tensor."""
    model = mlp(inputs=(3,), hidden=(4,), outputs=2, task=CLASSIFICATION)
    output = output_layer(model, profile=profile, rank=2)
    assert output.size == size
    weights = output.init(jax.random.key(0), 5)
    active = jnp.linspace(-1.0, 2.0, 5)
    sent = output.decode(weights, active)
    linear = weights["linear"]["Dense_0"]
    v = np.asarray(active @ linear["kernel"] + linear["bias"])
    body = (v[:4], v[4 : 4 + 12])  # tensors follow each other by name: bias, kernel
    if profile == "whole":
        assert "base" not in weights
        np.testing.assert_allclose(sent["body"]["Dense_0"]["bias"], v[:4], rtol=1e-6)
        return
    assert np.abs(v).max() < 5 * SCALE
    base = weights["base"]
    kernel = np.asarray(base["body"]["Dense_0"]["kernel"])
    if profile == "full":
        kernel = kernel + body[1].reshape(3, 4)
    if profile == "lowrank":
        shared = weights["factors"]["body"]["Dense_0"]["kernel"]
        assert not shared["b"].any() and shared["a"].any()
        a = np.asarray(shared["a"]) + v[4:10].reshape(3, 2)
        kernel = kernel + a @ v[10:18].reshape(2, 4) / np.sqrt(2)
    expected = np.asarray(base["body"]["Dense_0"]["bias"]) + body[0]
    np.testing.assert_allclose(sent["body"]["Dense_0"]["bias"], expected, rtol=1e-5)
    np.testing.assert_allclose(sent["body"]["Dense_0"]["kernel"], kernel, rtol=1e-5)
    if profile == "head":
        head = np.asarray(base["head"]["Dense_0"]["kernel"]) + v[6:].reshape(4, 2)
        np.testing.assert_allclose(sent["head"]["Dense_0"]["kernel"], head, rtol=1e-5)


@pytest.mark.parametrize(
    "profile, rank, why", [("half", 1, "whole, full"), ("lowrank", 0, "1")]
)
def test_profiles_that_cannot_be_are_refused(profile, rank, why):
    model = mlp(inputs=(3,), hidden=(4,), outputs=2, task=CLASSIFICATION)
    with pytest.raises(ValueError, match=why):
        output_layer(model, profile=profile, rank=rank)


@pytest.mark.parametrize("num_clients, dim", [(4, 2), (7, 2), (48, 13), (60, 16)])
def test_pfedhns_embeddings_have_the_authors_size(num_clients, dim):
    """floor(1 + N / 4)."""
    model = mlp(inputs=(2,), hidden=(3,), outputs=2, task=CLASSIFICATION)
    sizes = {"server_steps": 1, "embedding_dim": 0, "width": 5, "novel_code": "random"}
    rest = {f"{side}_optimizer": optax.identity() for side in ("server", "new_clients")}
    algorithm = pfedhn(model, None, **rest, **sizes, profile="whole", rank=1)
    server = algorithm.init(jax.random.key(0), relations.from_edges(num_clients, []))
    assert server.weights["embeddings"].shape == (num_clients, dim)


@pytest.mark.parametrize("hidden", [(), (0,), (4, -1), ("4,a",)])
def test_a_hidden_layer_of_no_width_is_refused(hidden):
    with pytest.raises(ValueError, match="model.hidden"):
        mlp(inputs=(2,), hidden=hidden, outputs=2, task=CLASSIFICATION)
