"""A GRU encoder-decoder that forecasts a client's own series.

Cho et al. Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
Translation. EMNLP 2014. https://arxiv.org/abs/1406.1078. Layers and inputs are those of the
62,501-parameter model in Meng, Rambhatla, Liu. Cross-Node Federated Graph Neural Network for
Spatio-Temporal Data Modeling. KDD 2021. https://arxiv.org/abs/2106.05223

    r = sigmoid(x W_xr + b_xr + h W_hr + b_hr)
    z = sigmoid(x W_xz + b_xz + h W_hz + b_hz)
    n = tanh(x W_xn + b_xn + r (h W_hn + b_hn))
    h' = (1 - z) n + z h

Each gate has two biases. All weights are initialised in U(+-1/sqrt(hidden)), as in PyTorch. The
encoder reads the past from h = 0. The decoder starts from the encoder's last state. Each of its
steps reads the previous value and the features that are known ahead, such as the time of day.
The previous value is the last observed one in the first step, and the decoder's own forecast in
the later steps. A linear layer on h' gives the forecast.

Inside, states are [hidden, batch], as in `models.images`. The product with a step's inputs is
computed in the step: storing and reading all of these products takes longer. Accelerators
compute them at once (`models.recurrence`).
"""

import dataclasses
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphfl_jax.core import Array, ClientModel, Task
from graphfl_jax.examples import Examples
from graphfl_jax.models.layers import Hidden, uniform_within
from graphfl_jax.models.recurrence import UNROLL, all_states
from graphfl_jax.settings import Real


class Cell(nn.Module):
    """The weights of a cell, with the gates in the order r, z, n on the last axis."""

    inputs: int
    hidden: int

    @nn.compact
    def __call__(self) -> dict[str, Array]:
        init, gates = uniform_within(self.hidden**-0.5), 3 * self.hidden
        return {
            "input_kernel": self.param("input_kernel", init, (self.inputs, gates)),
            "input_bias": self.param("input_bias", init, (gates,)),
            "hidden_kernel": self.param("hidden_kernel", init, (self.hidden, gates)),
            "hidden_bias": self.param("hidden_bias", init, (gates,)),
        }


def next_state(cell: dict[str, Array], h: Array, x: Array) -> Array:
    """One step: the state [H, B] after the inputs x [F, B]."""
    from_input = cell["input_kernel"].T @ x + cell["input_bias"][:, None]
    from_state = cell["hidden_kernel"].T @ h + cell["hidden_bias"][:, None]
    hidden = len(h)
    gates = jax.nn.sigmoid(from_input[: 2 * hidden] + from_state[: 2 * hidden])
    r, z = gates[:hidden], gates[hidden:]
    n = jnp.tanh(from_input[2 * hidden :] + r * from_state[2 * hidden :])
    return n + z * (h - n)  # (1 - z) n + z h


class Encoder(nn.Module):
    """Encodes a series [B, T, F] as the last state [B, H]."""

    hidden: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        cell = Cell(x.shape[-1], self.hidden)()
        steps = jnp.transpose(x, (1, 2, 0))  # [T, F, B]
        start = jnp.zeros_like(steps[0], shape=(self.hidden, len(x)))
        if jax.default_backend() != "cpu":
            return all_states(cell, start, steps)[-1].T

        def step(h, inputs):
            return next_state(cell, h, inputs), None

        h, _ = jax.lax.scan(step, start, steps, unroll=UNROLL)
        return h.T


class Decoder(nn.Module):
    """Forecasts [B, T] from a state [B, H], the last value [B] and features ahead [B, T, F]."""

    hidden: int

    @nn.compact
    def __call__(self, h: Array, last: Array, ahead: Array, truth=None, use_truth=None):
        """Where `use_truth` [B, T] is true, a step reads the true previous value instead of the
        forecast one; `truth` [B, T] holds the true values."""
        cell = Cell(1 + ahead.shape[-1], self.hidden)()
        init = uniform_within(self.hidden**-0.5)
        kernel, bias = self.param("kernel", init, (self.hidden,)), self.param("bias", init, ())

        def step(carry, inputs):
            h, value = carry
            features, forced = inputs
            if forced is not None:
                true_value, is_forced = forced
                value = jnp.where(is_forced, true_value, value)
            h = next_state(cell, h, jnp.concatenate([value[None], features]))
            value = kernel @ h + bias
            return (h, value), value

        forced = None
        if truth is not None:
            previous = jnp.concatenate([last[:, None], truth[:, :-1]], axis=1)
            forced = (previous.T, use_truth.T)
        if jax.default_backend() != "cpu":
            return _forecast(cell, kernel, bias, h.T, last, ahead, forced).T
        steps = (jnp.transpose(ahead, (1, 2, 0)), forced)  # [T, F, B]
        _, values = jax.lax.scan(step, (h.T, last), steps, unroll=UNROLL)
        return values.T


def _forecast(cell, kernel, bias, h, last, ahead, forced):
    """The values [T, B] of `Decoder` from all states, see `models.recurrence`."""
    shape = (ahead.shape[1], len(last))
    previous, is_forced = forced or (jnp.broadcast_to(last, shape), jnp.zeros(shape, bool))
    is_later = jnp.arange(shape[0])[:, None] > 0  # The first step reads the last value.
    is_free = is_later & ~is_forced
    previous = jnp.where(is_free, 0.0, previous)
    x = jnp.concatenate([previous[:, None], jnp.transpose(ahead, (1, 2, 0))], axis=1)
    states = all_states(cell, h, x, (kernel, bias), is_free)
    return jnp.einsum("h,thb->tb", kernel, states) + bias


def gru(
    *, inputs: tuple[int, ...], outputs: int, task: Task, hidden: Hidden = (100,)
) -> ClientModel:
    """A client's forecaster of windows such as those of `examples.Windows`.

    The body is the encoder. The head is the decoder with its linear layer. The features
    [B, H + 1 + future F'] are the encoder's last state, the last value of the past, and the
    features that are known ahead. With ``hidden=(100,)`` and one known feature the model has
    62,501 parameters.

    Args:
      inputs: [past + future, 1 + F'], shape of an example: the value to forecast, which is 0 in
        the last `future` steps, and F' features that are known ahead.
      outputs: future, the number of steps to forecast.
      task: a regression.
      hidden: (H,).

    Raises:
      ValueError: there is not exactly one hidden layer, or the examples are not windows.
    """
    if len(inputs) != 2 or inputs[0] <= outputs:
        raise ValueError(
            f"model.name='gru' forecasts series, but examples have shape {list(inputs)} with "
            f"{outputs} outputs; set --config.model.name=mlp"
        )
    if len(hidden) != 1 or not isinstance(hidden[0], int) or hidden[0] < 1:
        raise ValueError(
            f"model.hidden={hidden!r} must be one width for a GRU; "
            f"set --config.model.hidden=100"
        )
    past, width = inputs[0] - outputs, hidden[0]
    encoder, decoder = Encoder(width), Decoder(width)

    def init(key):
        key_body, key_head = jax.random.split(key)
        x = jnp.zeros((1, *inputs))
        body_params = encoder.init(key_body, x[:, :past])["params"]
        features = _split_features(body(body_params, x), width, outputs)
        head_params = decoder.init(key_head, *features)["params"]
        return {"body": body_params, "head": head_params}

    def body(params, x):
        h = encoder.apply({"params": params}, x[:, :past])
        ahead = x[:, past:, 1:].reshape(x.shape[0], outputs * (inputs[1] - 1))
        return jnp.concatenate([h, x[:, past - 1, :1], ahead], axis=1)

    def head(params, features):
        return decoder.apply({"params": params}, *_split_features(features, width, outputs))

    return ClientModel(init=init, body=body, head=head, task=task, at_once=1)


def gru_sampled(
    *,
    inputs: tuple[int, ...],
    outputs: int,
    task: Task,
    played: Array,
    hidden: Hidden = (100,),
    sampling_decay: Annotated[
        Array,
        Real("Rounds over which scheduled sampling moves from true values to forecasts."),
    ] = 50.0,
) -> ClientModel:
    """`gru` trained with scheduled sampling; its predictions are those of `gru`.

    In training, each step of the decoder reads, independently for each example, the true
    previous value with probability k / (k + exp(rounds played / k)), k = sampling_decay, and
    its own forecast otherwise (Bengio, Vinyals, Jaitly, Shazeer. Scheduled Sampling for
    Sequence Prediction with Recurrent Neural Networks. NIPS 2015.
    https://arxiv.org/abs/1506.03099). The paper's schedule counts training steps. Here it
    counts rounds, because clients without memory cannot count steps.

    Args:
      played: number of rounds played.
    """
    model = gru(inputs=inputs, outputs=outputs, task=task, hidden=hidden)
    decoder = Decoder(hidden[0])

    def train_forward(params, batch: Examples, key):
        start = _split_features(model.body(params["body"], batch.x), hidden[0], outputs)
        decay = jnp.asarray(sampling_decay, jnp.float32)
        share = decay / (decay + jnp.exp(jnp.asarray(played, jnp.float32) / decay))
        use_truth = jax.random.bernoulli(key, share, batch.y.shape)
        return decoder.apply({"params": params["head"]}, *start, batch.y, use_truth)

    return dataclasses.replace(model, train_forward=train_forward)


def _split_features(features, hidden, future):
    """The decoder's inputs: h [B, H], the last value [B] and features ahead [B, T, F']."""
    batch, size = features.shape
    ahead = features[:, hidden + 1 :].reshape(batch, future, (size - hidden - 1) // future)
    return features[:, :hidden], features[:, hidden], ahead
