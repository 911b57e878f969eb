"""Local training in bfloat16."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import graphfl_jax
from graphfl_jax.build import build_experiment
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.models.cnn import lenet
from graphfl_jax.models.gru import gru_sampled
from graphfl_jax.models.mlp import mlp
from graphfl_jax.models.objectives import PRECISIONS, with_precision
from graphfl_jax.models.resnet import resnet18
from graphfl_jax.runs.session import inputs_of, program_of
from tests.federations import small_config, two_clusters

KEY = jax.random.key(8)
IMAGES = (16, 16, 3)
MODELS = {
    "mlp": lambda: mlp(inputs=(6,), outputs=3, task=CLASSIFICATION),
    "mlp of bytes": lambda: mlp(inputs=IMAGES, outputs=3, task=CLASSIFICATION),
    "lenet": lambda: lenet(inputs=IMAGES, outputs=3, task=CLASSIFICATION),
    "resnet18": lambda: resnet18(inputs=IMAGES, outputs=3, task=CLASSIFICATION, width=4),
    "gru_sampled": lambda: gru_sampled(
        inputs=(8, 2), outputs=3, task=REGRESSION, hidden=(7,), played=jnp.int32(3)
    ),
}


def batch_of(name):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 10).astype(np.int32)
    if name == "mlp":
        x = rng.normal(size=(10, 6)).astype(np.float32)
    elif name == "gru_sampled":
        x = rng.normal(size=(10, 8, 2)).astype(np.float32)
        y = rng.normal(size=(10, 3)).astype(np.float32)
    else:
        x = rng.integers(0, 256, (10, *IMAGES)).astype(np.uint8)
    return jax.tree.map(jnp.asarray, Examples(x, y, np.int32(9)))


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "mlp of bytes",
        pytest.param("lenet", marks=pytest.mark.release),
        pytest.param("gru_sampled", marks=pytest.mark.release),
        pytest.param("resnet18", marks=pytest.mark.release),
    ],
)
def test_the_objective_is_bfloat16_inside_and_float32_outside(name):
    """Its error is a few roundings, 2^-9, of a network with weights rounded to bfloat16."""
    whole, batch = MODELS[name](), batch_of(name)
    low = with_precision(whole, "bfloat16")
    params = whole.init(KEY)
    rounded = jax.tree.map(lambda leaf: leaf.astype("bfloat16").astype("float32"), params)

    in_float32, in_bfloat16 = (
        jax.jit(jax.value_and_grad(model.objective)) for model in (whole, low)
    )
    gradients = [
        of_model(w, batch, KEY)
        for of_model, w in ((in_float32, params), (in_bfloat16, params), (in_float32, rounded))
    ]
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {np.dtype(np.float32)}
    exact, ours, theirs = (ravel_pytree(gradient)[0] for gradient in gradients)
    error, of_weights = (np.linalg.norm(vector - exact) for vector in (ours, theirs))
    assert 0 < error < 4 * of_weights + 10 * 2**-9 * np.linalg.norm(exact)
    text = str(jax.make_jaxpr(jax.grad(low.objective))(params, batch, KEY))
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products and all("bf16" in line for line in products)


@pytest.mark.release
@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_predictions_stay_float32(name):
    whole, x = MODELS[name](), batch_of(name).x
    params = whole.init(KEY)
    predictions = with_precision(whole, "bfloat16").apply(params, x)
    np.testing.assert_array_equal(predictions, whole.apply(params, x))
    assert predictions.dtype == np.float32


@pytest.mark.parametrize("precision", ["float32", "tensorfloat32"])
def test_other_precisions_leave_the_objective(precision):
    model = MODELS["mlp"]()
    assert with_precision(model, precision) is model


@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_of_float32_have_all_bits_unless_tensorfloat32_is_set(precision):
    """JAX's default on a GPU is TensorFloat-32, also where the setting says float32."""
    config = small_config("panacea", precision=precision)
    experiment = build_experiment(config, two_clusters())
    inputs = inputs_of(experiment, 0)
    program = program_of(experiment, config)
    state = jax.eval_shape(program.start, *inputs)
    text = program.advance.lower(state, *inputs, 1).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    in_float32 = [line for line in products if "bf16" not in line]
    word = "HIGH" if precision == "tensorfloat32" else "HIGHEST"
    assert in_float32 and all(f"precision = [{word}, {word}]" in line for line in in_float32)
    assert (len(in_float32) < len(products)) == (precision == "bfloat16")


@functools.cache
def run(precision):
    config = small_config(
        "fedavg-finetune", rounds=4, eval_every=4, local_steps=20, precision=precision
    )
    return graphfl_jax.run(config, two_clusters())


@pytest.mark.release
def test_a_run_learns_as_much():
    precisions = ("float32", "bfloat16")
    whole, low = (run(precision).final["test"]["P"].mean() for precision in precisions)
    assert abs(whole - low) < 0.05 and low > 0.9
    states = [jax.tree.leaves(run(precision).state.server) for precision in precisions]
    assert any((a != b).any() for a, b in zip(*states, strict=True))
    assert all(leaf.dtype == np.float32 for leaf in states[1])


def test_a_method_that_trains_the_parts_of_a_model_refuses_it():
    config = small_config("fedrod", precision="bfloat16")
    with pytest.raises(ValueError) as refused:
        build_experiment(config, two_clusters())
    assert str(refused.value) == (
        "algorithm.name='fedrod' trains the parts of a model by itself, and does not read "
        "precision; leave precision out"
    )
    build_experiment(small_config("fedrod"), two_clusters())
