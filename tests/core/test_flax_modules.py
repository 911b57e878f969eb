"""Client models from Flax modules: the same functions as the modules, and what is refused."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from graphfl_jax import client_model
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import configuration
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models import MODELS
from graphfl_jax.models.objectives import with_precision
from tests.federations import two_clusters

GIVEN = {"inputs": (2,), "task": CLASSIFICATION}
X = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)


class Layers(nnx.Module):
    """Its list of layers has numbers as names."""

    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(2, 12, rngs=rngs), nnx.Linear(12, 3, rngs=rngs)])

    def __call__(self, x):
        return self.layers[1](nnx.relu(self.layers[0](x)))


class Dropped(nnx.Module):
    def __init__(self, rngs):
        self.layer, self.drop = nnx.Linear(2, 3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.layer(x))


class Two(nn.Module):
    def __call__(self, x):
        return x, x


LINEN = nn.Sequential([nn.Dense(12), nn.relu, nn.Dense(3)])


def test_a_linen_module_is_applied_as_it_is():
    model = client_model(body=LINEN, head=nn.Dense(2), **GIVEN)
    params = model.init(jax.random.key(0))
    features = LINEN.apply({"params": params["body"]}, X)
    expected = nn.Dense(2).apply({"params": params["head"]}, features)
    np.testing.assert_array_equal(model.apply(params, X), expected)


def test_an_nnx_module_is_applied_as_it_is_and_drawn_by_the_key():
    model = client_model(body=Layers, **GIVEN)
    key_body, _ = jax.random.split(jax.random.key(0))
    params = model.init(jax.random.key(0))
    np.testing.assert_array_equal(model.apply(params, X), Layers(nnx.Rngs(key_body))(X))
    other = model.init(jax.random.key(1))
    assert not np.array_equal(model.apply(other, X), model.apply(params, X))
    scaled = jax.tree.map(lambda leaf: 2.0 * leaf, params)  # parameters are what is applied
    assert not np.array_equal(model.apply(scaled, X), model.apply(params, X))
    batched = jax.jit(jax.vmap(model.apply, (0, None)))(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), params, other), X
    )
    np.testing.assert_allclose(batched[1], model.apply(other, X), rtol=1e-5, atol=1e-6)


def test_an_nnx_module_that_has_its_weights_keeps_them_with_a_warning():
    module = Layers(nnx.Rngs(7))
    with pytest.warns(UserWarning, match="body=Layers is an NNX module that has its weights"):
        model = client_model(body=module, **GIVEN)
    for seed in (0, 1):
        params = model.init(jax.random.key(seed))
        np.testing.assert_array_equal(model.apply(params, X), module(X))


def test_bytes_are_scaled():
    model = client_model(body=nn.Dense(3), **GIVEN)
    params = model.init(jax.random.key(0))
    images = np.array([[0, 255]], np.uint8)
    expected = model.apply(params, np.array([[-1.0, 1.0]], np.float32))
    np.testing.assert_array_equal(model.apply(params, images), expected)


@pytest.mark.parametrize(
    "body, message",
    [
        (
            nn.BatchNorm(use_running_average=False),
            "^body=BatchNorm has the collection batch_stats and no argument train; write",
        ),
        (nn.Dropout(0.5, deterministic=False), "^body=Dropout has random draws beside"),
        (nn.Dropout(0.5), "^body=Dropout cannot be applied to inputs of shape"),
        (Dropped, "^body=Dropped has the state drop/rngs/count, drop/rngs/key beside"),
        (Two(), "^body=Two returns a tuple; return one array"),
        (lambda rngs: 3, "^body=int is no Flax module; give a Linen module, or a function"),
        (3, "^body=int is no Flax module; give a Linen module, or a function"),
        (lambda rngs: nnx.Linear(7, 2, rngs=rngs), r"^body=<lambda> cannot be .* \(1, 2\) .Ty"),
    ],
)
def test_what_a_client_cannot_keep_or_apply_is_refused(body, message):
    with pytest.raises(ValueError, match=message) as refused:
        client_model(body=body, **GIVEN)
    assert "\n" not in str(refused.value)


class Normed(nn.Module):
    momentum: float = 0.9

    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train, momentum=self.momentum)(nn.Dense(4)(x))
        return nn.BatchNorm(use_running_average=not train)(nn.relu(x))


class NormedToo(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(2, 4, rngs=rngs)
        self.first = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.second = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.first(self.dense(x))))


def normalised(x, mean, var):
    return (x - mean) / np.sqrt(var + 1e-5)


def layers_by_hand(dense, x, seen):
    """Both layers with the statistics that the rows `seen` have in each of them."""
    h, s = (np.float64(rows @ dense["kernel"] + dense["bias"]) for rows in (x, seen))
    h, s = (np.maximum(normalised(rows, s.mean(0), s.var(0)), 0) for rows in (h, s))
    return normalised(h, s.mean(0), s.var(0))


@pytest.mark.parametrize("body", [Normed(), Normed(0.999), NormedToo])
def test_batches_are_normalised_and_clients_predict_with_their_training_examples(body):
    model = client_model(body=body, **GIVEN)
    params = model.init(jax.random.key(0))
    assert "statistics" not in params["body"]
    dense = next(part for name, part in params["body"].items() if name[0] in "dD")
    dense = {name: np.asarray(leaf) for name, leaf in dense.items()}
    # Flax has the variance as E x^2 - (E x)^2 in float32, of numbers near 5.
    x = 5 + np.random.default_rng(1).normal(size=(6, 2)).astype(np.float32)
    padded = np.concatenate([x[:3], np.full((3, 2), 1e6, np.float32)])
    y = jnp.zeros(6, jnp.int32)
    forward, recalibrate = jax.jit(model.forward), jax.jit(model.recalibrate)
    apply = jax.jit(model.apply)
    for rows, count, real in ((x, 6, x), (padded, 3, x[:3])):
        batch = Examples(jnp.asarray(rows), y, jnp.int32(count))
        outputs = forward(params, batch, jax.random.key(0))[:count]
        np.testing.assert_allclose(outputs, layers_by_hand(dense, real, real), atol=1e-3)
        predicted = apply(recalibrate(params, batch), X + 5)
        np.testing.assert_allclose(predicted, layers_by_hand(dense, X + 5, real), atol=1e-3)
    gradient = jax.eval_shape(jax.grad(model.objective), params, batch, jax.random.key(0))
    assert jax.tree.structure(gradient) == jax.tree.structure(params)


def test_a_head_that_normalises_by_batches_is_refused():
    with pytest.raises(ValueError, match="^head=Normed normalises by batches; do so in the"):
        client_model(body=nn.Dense(3), head=Normed(), **GIVEN)


def test_features_have_one_axis_where_there_is_a_head():
    body = nn.Sequential([nn.Dense(12), lambda x: x.reshape(-1, 2, 2, 3)])
    with pytest.raises(
        ValueError, match=r"^body=Sequential gives features of shape \(2, 2, 3\)"
    ):
        client_model(body=body, head=nn.Dense(3), **GIVEN)


def test_images_are_bfloat16_where_the_parameters_are():
    seen = []

    class Watched(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(3)(x)
            seen.append(x.dtype)
            return x

    model = with_precision(client_model(body=Watched(), **GIVEN), "bfloat16")
    params = model.init(jax.random.key(0))
    for x in (jnp.zeros((1, 2), jnp.uint8), jnp.zeros((1, 2))):
        batch = Examples(x, jnp.zeros(1, jnp.int32), jnp.int32(1))
        jax.eval_shape(model.forward, params, batch, jax.random.key(0))
        assert seen[-1] == jnp.bfloat16


def test_an_nnx_module_may_have_arrays_and_traced_settings_as_attributes():
    class Scaled(nnx.Module):
        def __init__(self, slope, *, rngs):
            self.linear, self.slope = nnx.Linear(2, 3, rngs=rngs), slope

        def __call__(self, x):
            return self.slope * self.linear(x)

    def outputs(slope):
        model = client_model(body=lambda rngs: Scaled(slope, rngs=rngs), **GIVEN)
        return model.apply(model.init(jax.random.key(0)), X)

    np.testing.assert_allclose(jax.jit(outputs)(3.0), 3 * outputs(1.0), rtol=1e-5)


HEADS = ("fedper", "fedrep", "fedah", "lgfedavg", "fedgh", "fedproto", "fedrod", "knnper")
HEADS += ("fedbabu", "moon")
HEADS += ("fedpac", "feddbe", "fedas")
WITHOUT = [{"algorithm.name": name} for name in HEADS]
WITHOUT += [{"algorithm.name": "pfedhn", "algorithm.output": "head"}]
WITHOUT += [{"algorithm.name": "fedavg", "tuning.part": part} for part in ("head", "new_head")]


@pytest.mark.parametrize("values", WITHOUT, ids=str)
def test_methods_that_treat_the_head_apart_refuse_a_model_without(monkeypatch, values):
    def headless(*, inputs, outputs, task):
        body = nn.Sequential([nn.Dense(5), nn.relu, nn.Dense(outputs)])
        return client_model(body=body, inputs=inputs, task=task)

    monkeypatch.setitem(MODELS, "headless", headless)
    config = configuration({"model.name": "headless", "cohort_size": 4} | values)
    with pytest.raises(ValueError, match="needs client models with a head, and .* has no"):
        build_experiment(config, two_clusters())


def test_a_model_with_other_outputs_is_refused(monkeypatch):
    def three(*, inputs, outputs, task):
        return client_model(body=nn.Dense(3), inputs=inputs, task=task)

    monkeypatch.setitem(MODELS, "three", three)
    config = configuration({"model.name": "three", "cohort_size": 4})
    with pytest.raises(ValueError, match=r"^model.name='three' maps .* \(3,\), .* needs .2,"):
        build_experiment(config, two_clusters())
