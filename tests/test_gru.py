"""The GRU encoder-decoder, against an independent cell in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphfl_jax.core import Examples, Windows
from graphfl_jax.hypernets.output import output_layer
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.models.gru import gru, gru_sampled

KEY = jax.random.key(0)
SMALL = {"inputs": (7, 3), "outputs": 3, "hidden": (4,), "task": REGRESSION}  # 4 past, 3 ahead


def cell(weights, h, x):
    """torch.nn.GRUCell's equations, gate by gate."""

    def gate(which, hidden):
        part = slice(which * len(h), (which + 1) * len(h))
        told = x @ weights["input_kernel"][:, part] + weights["input_bias"][part]
        recalled = hidden @ weights["hidden_kernel"][:, part] + weights["hidden_bias"][part]
        return told, recalled

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    r = sigmoid(sum(gate(0, h)))
    z = sigmoid(sum(gate(1, h)))
    told, recalled = gate(2, h)
    n = np.tanh(told + r * recalled)
    return (1 - z) * n + z * h


def forecast(params, x, truth=None):
    """One example [past + future, F], step by step; with `truth`, fed the true values."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    encoder, decoder = params["body"]["Cell_0"], params["head"]["Cell_0"]
    h = np.zeros(4)
    for step in x[:4]:
        h = cell(encoder, h, step)
    value, values = x[3, 0], []
    for k, known in enumerate(x[4:, 1:]):
        h = cell(decoder, h, np.concatenate([[value], known]))
        values.append(h @ params["head"]["kernel"] + params["head"]["bias"])
        value = values[-1] if truth is None else truth[k]
    return np.array(values)


@pytest.fixture
def batch():
    rng = np.random.default_rng(1)
    series = rng.normal(size=(30, 3)).astype(np.float32)
    return Windows(series, np.int32(24), past=4, future=3).rows(np.arange(6))


def test_forecasts_are_those_of_the_equations(batch):
    model = gru(**SMALL)
    params = model.init(KEY)
    expected = np.stack([forecast(params, x) for x in batch.x])
    np.testing.assert_allclose(model.apply(params, batch.x), expected, rtol=1e-4, atol=1e-6)


def test_the_papers_forecaster_has_62501_parameters():
    """Two cells of 3 H (F + H) + 6 H, F = 2 and H = 100, and a linear layer of 101."""
    model = gru(inputs=(24, 2), outputs=12, hidden=(100,), task=REGRESSION)
    assert 2 * (300 * 102 + 600) + 101 == 62_501
    assert output_layer(model, profile="whole", rank=1).size == 62_501


def test_weights_start_uniform_within_one_over_root_hidden():
    model = gru(inputs=(24, 2), outputs=12, hidden=(100,), task=REGRESSION)
    for leaf in jax.tree.leaves(model.init(KEY)):
        assert np.abs(leaf).max() <= 0.1
        if leaf.size > 10_000:
            assert np.std(leaf) == pytest.approx(0.1 / np.sqrt(3), rel=0.02)


def test_the_body_knows_nothing_of_the_speeds_ahead(batch):
    model = gru(**SMALL)
    params = model.init(KEY)
    changed = np.array(batch.x)
    changed[:, 4:, 0] = 9.0  # which Windows hides, and the model does not read
    np.testing.assert_array_equal(model.apply(params, batch.x), model.apply(params, changed))
    changed[:, 4:, 1] += 1.0
    assert not np.allclose(model.apply(params, batch.x), model.apply(params, changed))


@pytest.mark.parametrize("decay, played, forced", [(50.0, 0, True), (0.5, 1000, False)])
def test_scheduled_sampling_goes_from_the_truth_to_own_forecasts(batch, decay, played, forced):
    """k / (k + exp(rounds / k)): 50 / 51 at the start, where one of 12 coins may fall the
    other way, and 0 after a thousand rounds with k = 1/2."""
    model = gru_sampled(**SMALL, sampling_decay=decay, played=played)
    params = model.init(KEY)
    outputs = np.asarray(jax.jit(model.train_forward)(params, batch))
    own = np.stack([forecast(params, x) for x in batch.x])
    told = np.stack([forecast(params, *pair) for pair in zip(batch.x, batch.y, strict=True)])
    near = np.isclose(outputs, told if forced else own, rtol=1e-4, atol=1e-6).all(axis=1)
    assert near.sum() >= (5 if forced else 6)
    np.testing.assert_allclose(outputs[:, 0], own[:, 0], rtol=1e-4, atol=1e-6)
    # And it forecasts, once trained, as the model without it.
    np.testing.assert_array_equal(
        model.apply(params, batch.x), gru(**SMALL).apply(params, batch.x)
    )
    loss = model.objective(params, Examples(*map(jnp.asarray, batch[:2]), jnp.int32(6)))
    np.testing.assert_allclose(loss, np.mean((outputs - batch.y) ** 2), rtol=1e-5)


@pytest.mark.parametrize(
    "changes, words",
    [({"hidden": (4, 4)}, "model.hidden"), ({"inputs": (2,)}, "model.name=mlp")],
)
def test_what_is_no_series_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        gru(**{**SMALL, "task": CLASSIFICATION, **changes})
