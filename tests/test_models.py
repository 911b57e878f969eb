"""Client models and the networks that generate them: sizes, scales, layout."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax.algorithms.pfedhn import pfedhn
from graphfl_jax.data import relations
from graphfl_jax.hypernets.layout import flat_layout
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
    assert flat_layout(model)[0] == size


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
    size, unravel = flat_layout(model)
    params = unravel(jnp.arange(float(size)))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(size))


@pytest.mark.parametrize("num_clients, dim", [(4, 2), (7, 2), (48, 13), (60, 16)])
def test_pfedhns_embeddings_have_the_authors_size(num_clients, dim):
    """floor(1 + N / 4)."""
    model = mlp(inputs=(2,), hidden=(3,), outputs=2, task=CLASSIFICATION)
    sizes = {"server_steps": 1, "embedding_dim": 0, "width": 5, "novel_code": "random"}
    rest = {f"{side}_optimizer": optax.identity() for side in ("server", "novel")}
    algorithm = pfedhn(model, None, **rest, **sizes)
    server = algorithm.init(jax.random.key(0), relations.from_edges(num_clients, []))
    assert server.weights["codes"].shape == (num_clients, dim)


@pytest.mark.parametrize("hidden", [(), (0,), (4, -1), ("4,a",)])
def test_a_hidden_layer_of_no_width_is_refused(hidden):
    with pytest.raises(ValueError, match="model.hidden"):
        mlp(inputs=(2,), hidden=hidden, outputs=2, task=CLASSIFICATION)
