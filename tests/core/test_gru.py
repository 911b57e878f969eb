"""The GRU encoder-decoder against an independent cell in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphfl_jax.examples import Examples, Windows
from graphfl_jax.hypernets.output import output_layer
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.models.gru import gru, gru_sampled
from graphfl_jax.testing.subject import assert_equal

KEY = jax.random.key(0)
SMALL = {"inputs": (7, 3), "outputs": 3, "hidden": (4,), "task": REGRESSION}  # 4 past, 3 ahead


def cell(weights, h, x):
    """torch.nn.GRUCell's equations, gate by gate."""

    def gate(which, hidden):
        part = slice(which * len(h), (which + 1) * len(h))
        from_input = x @ weights["input_kernel"][:, part] + weights["input_bias"][part]
        from_state = hidden @ weights["hidden_kernel"][:, part] + weights["hidden_bias"][part]
        return from_input, from_state

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    r = sigmoid(sum(gate(0, h)))
    z = sigmoid(sum(gate(1, h)))
    from_input, from_state = gate(2, h)
    n = np.tanh(from_input + r * from_state)
    return (1 - z) * n + z * h


def forecast(params, x, truth=None):
    """Forecasts one example [past + future, F]; with `truth`, steps read the true values."""
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


@pytest.mark.slow
def test_forecasts_follow_the_equations(batch):
    model = gru(**SMALL)
    params = model.init(KEY)
    expected = np.stack([forecast(params, x) for x in batch.x])
    np.testing.assert_allclose(model.apply(params, batch.x), expected, rtol=1e-4, atol=1e-6)


def test_the_forecaster_of_the_paper_has_62501_parameters():
    """Two cells of 3 H (F + H) + 6 H, F = 2 and H = 100, and a linear layer of 101."""
    model = gru(inputs=(24, 2), outputs=12, hidden=(100,), task=REGRESSION)
    assert 2 * (300 * 102 + 600) + 101 == 62_501
    assert output_layer(model).size == 62_501


def test_weights_are_initialised_in_one_over_root_hidden():
    model = gru(inputs=(24, 2), outputs=12, hidden=(100,), task=REGRESSION)
    for leaf in jax.tree.leaves(model.init(KEY)):
        assert np.abs(leaf).max() <= 0.1
        if leaf.size > 10_000:
            assert np.std(leaf) == pytest.approx(0.1 / np.sqrt(3), rel=0.02)


def test_forecasts_do_not_depend_on_future_values(batch):
    model = gru(**SMALL)
    params = model.init(KEY)
    changed = np.array(batch.x)
    changed[:, 4:, 0] = 9.0  # the values to forecast, which `Windows` sets to 0
    np.testing.assert_array_equal(model.apply(params, batch.x), model.apply(params, changed))
    changed[:, 4:, 1] += 1.0
    assert not np.allclose(model.apply(params, batch.x), model.apply(params, changed))


@pytest.mark.release
@pytest.mark.parametrize("decay, played, forced", [(50.0, 0, True), (0.5, 1000, False)])
def test_scheduled_sampling_moves_from_true_values_to_forecasts(batch, decay, played, forced):
    """True values have the probability k / (k + exp(rounds / k)). At the start it is 50 / 51,
    so one of the 12 draws may differ; after 1000 rounds with k = 1/2 it is 0."""
    model = gru_sampled(**SMALL, sampling_decay=decay, played=played)
    params = model.init(KEY)
    outputs = np.asarray(jax.jit(model.train_forward)(params, batch, KEY))
    free = np.stack([forecast(params, x) for x in batch.x])
    fed = np.stack([forecast(params, *pair) for pair in zip(batch.x, batch.y, strict=True)])
    near = np.isclose(outputs, fed if forced else free, rtol=1e-4, atol=1e-6).all(axis=1)
    assert near.sum() >= (5 if forced else 6)
    # The first step reads the last observed value in any case.
    np.testing.assert_allclose(outputs[:, 0], free[:, 0], rtol=1e-4, atol=1e-6)
    # Predictions are those of the model without sampling.
    np.testing.assert_array_equal(
        model.apply(params, batch.x), gru(**SMALL).apply(params, batch.x)
    )
    examples = Examples(*map(jnp.asarray, batch[:2]), jnp.int32(6))
    loss = model.objective(params, examples, KEY)
    np.testing.assert_allclose(loss, np.mean((outputs - batch.y) ** 2), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("played", [None, 180])
def test_accelerators_compute_the_same_gradients(batch, played, monkeypatch):
    """Without and with scheduled sampling: of the weights and of the examples."""
    sampled = {"sampling_decay": 50.0, "played": played}
    model = gru(**SMALL) if played is None else gru_sampled(**SMALL, **sampled)
    params, x, y = model.init(KEY), jnp.asarray(batch.x), jnp.asarray(batch.y)

    def loss(params, x):
        return model.objective(params, Examples(x, y, jnp.int32(6)), KEY)

    def first():
        return jax.jit(jax.value_and_grad(lambda *of: loss(*of), argnums=(0, 1)))(params, x)

    def second():
        """A product with the matrix of second derivatives, as Per-FedAvg needs it."""
        slope = jax.grad(lambda params: loss(params, x))
        return jax.jit(lambda params: jax.jvp(slope, (params,), (params,))[1])(params)

    expected = first(), second()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert_equal((first(), second()), expected, rtol=1e-4, atol=1e-6)


def test_scheduled_sampling_draws_from_its_key():
    """The share of true values is k / (k + exp(rounds / k)) up to 4 standard errors."""
    rng = np.random.default_rng(2)
    series = rng.normal(size=(306, 3)).astype(np.float32)
    batch = Windows(series, np.int32(300), past=4, future=3).rows(np.arange(300))
    model = gru_sampled(**SMALL, sampling_decay=50.0, played=jnp.int32(180))
    params = model.init(KEY)
    train_forward = jax.jit(model.train_forward)
    outputs = [np.asarray(train_forward(params, batch, jax.random.key(i))) for i in (0, 0, 1)]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    free = np.stack([forecast(params, x) for x in batch.x])
    fed = np.stack([forecast(params, *pair) for pair in zip(batch.x, batch.y, strict=True)])
    drawn = [np.abs(o - fed)[:, 1] < np.abs(o - free)[:, 1] for o in outputs]
    share = 50 / (50 + np.exp(180 / 50))
    error = np.sqrt(share * (1 - share) / 300)
    assert abs(drawn[0].mean() - share) < 4 * error
    # Draws with different keys are independent: both are true with probability share^2.
    assert abs((drawn[0] & drawn[2]).mean() - share**2) < 4 * error


@pytest.mark.parametrize(
    "changes, message",
    [({"hidden": (4, 4)}, "model.hidden"), ({"inputs": (2,)}, r"shape \[2\] .*model.name=mlp")],
)
def test_settings_that_do_not_fit_a_gru_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        gru(**{**SMALL, "task": CLASSIFICATION, **changes})
