"""Gated recurrent units as encoder and decoder: a client's forecaster of its own series.

Cho et al. Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
Translation. EMNLP 2014. https://arxiv.org/abs/1406.1078. Layers and inputs are those of the
62,501-parameter model in Meng, Rambhatla, Liu. Cross-Node Federated Graph Neural Network for
Spatio-Temporal Data Modeling. KDD 2021. https://arxiv.org/abs/2106.05223

    r = sigmoid(x W_xr + b_xr + h W_hr + b_hr)
    z = sigmoid(x W_xz + b_xz + h W_hz + b_hz)
    n = tanh(x W_xn + b_xn + r (h W_hn + b_hn))
    h' = (1 - z) n + z h

with two biases per gate, all initialised in U(+-1/sqrt(hidden)), as PyTorch has it. The encoder
reads the past from h = 0. The decoder starts from where the encoder ended; each step reads the
value before, which after the first is its own forecast, and what is known of the step ahead,
such as its time of day; a linear layer on h' is the forecast.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphfl_jax.core import Array, ClientModel, Examples, Task

UNROLL = 12  # steps of time in one step of a loop; see BUILD.md


def _uniform(hidden):
    bound = hidden**-0.5

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class Cell(nn.Module):
    """The weights of a cell, gates in the order r, z, n on the last axis."""

    inputs: int
    hidden: int

    @nn.compact
    def __call__(self) -> dict[str, Array]:
        init, gates = _uniform(self.hidden), 3 * self.hidden
        return {
            "input_kernel": self.param("input_kernel", init, (self.inputs, gates)),
            "input_bias": self.param("input_bias", init, (gates,)),
            "hidden_kernel": self.param("hidden_kernel", init, (self.hidden, gates)),
            "hidden_bias": self.param("hidden_bias", init, (gates,)),
        }


def from_inputs(cell: dict[str, Array], x: Array, first: int = 0) -> Array:
    """What the inputs from `first` on, [T, B, F], give to the gates, [T, B, 3 H]."""
    return x @ cell["input_kernel"][first:] + cell["input_bias"][None, None]


def next_state(cell: dict[str, Array], h: Array, told: Array) -> Array:
    """One step: states [B, H] and what their inputs give to the gates [B, 3 H] -> [B, H]."""
    recalled = h @ cell["hidden_kernel"] + cell["hidden_bias"][None]
    hidden = h.shape[-1]
    gates = jax.nn.sigmoid(told[:, : 2 * hidden] + recalled[:, : 2 * hidden])
    r, z = gates[:, :hidden], gates[:, hidden:]
    n = jnp.tanh(told[:, 2 * hidden :] + r * recalled[:, 2 * hidden :])
    return n + z * (h - n)


class Encoder(nn.Module):
    """A series [B, T, F] to the last state [B, H]."""

    hidden: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        cell = Cell(x.shape[-1], self.hidden)()
        told = from_inputs(cell, jnp.swapaxes(x, 0, 1))  # [T, B, 3 H]
        start = jnp.zeros_like(told[0, :, : self.hidden])
        h, _ = jax.lax.scan(
            lambda h, told: (next_state(cell, h, told), None), start, told, unroll=UNROLL
        )
        return h


class Decoder(nn.Module):
    """Forecasts [B, T] from a state [B, H], the last value [B], and what is known [B, T, F]."""

    hidden: int

    @nn.compact
    def __call__(self, h: Array, last: Array, known: Array, truth=None, told_truth=None):
        """`truth` [B, T] is what a step reads in place of the forecast before it, where
        `told_truth` [B, T] says so."""
        cell = Cell(1 + known.shape[-1], self.hidden)()
        init = _uniform(self.hidden)
        kernel, bias = self.param("kernel", init, (self.hidden,)), self.param("bias", init, ())
        told = from_inputs(cell, jnp.swapaxes(known, 0, 1), first=1)  # [T, B, 3 H]

        def step(carry, now):
            h, value = carry
            told, forced = now
            if forced is not None:
                value = jnp.where(forced[1], forced[0], value)
            h = next_state(cell, h, told + value[:, None] * cell["input_kernel"][:1])
            value = h @ kernel + bias
            return (h, value), value

        forced = None
        if truth is not None:
            before = jnp.concatenate([last[:, None], truth[:, :-1]], axis=1)
            forced = (before.T, told_truth.T)
        _, values = jax.lax.scan(step, (h, last), (told, forced), unroll=UNROLL)
        return values.T


def gru(
    *, inputs: tuple[int, ...], outputs: int, hidden: tuple[int, ...], task: Task
) -> ClientModel:
    """A client's forecaster, from examples such as `core.Windows` gives.

    The body is the encoder, the head the decoder with its linear layer; features [B, H + 1 +
    future F'] are the encoder's last state, the last value of the past, and what is known of
    the steps ahead. With ``hidden=(100,)`` and one known feature it has 62,501 parameters.

    Args:
      inputs: [past + future, 1 + F'], shape of an example: the value to forecast, which is 0 in
        the last `future` steps, and F' features that are known ahead.
      outputs: future, steps to forecast.
      hidden: (H,).
      task: a regression.

    Raises:
      ValueError: other than one hidden layer, or examples that are no such series.
    """
    if len(inputs) != 2 or inputs[0] <= outputs:
        raise ValueError(
            f"model.name=gru forecasts series, and examples of shape {inputs} with {outputs} "
            f"outputs are none; set --config.model.name=mlp"
        )
    if len(hidden) != 1 or not isinstance(hidden[0], int) or hidden[0] < 1:
        raise ValueError(
            f"model.hidden={hidden!r} must be one width for model.name=gru; "
            f"set --config.model.hidden='(100,)'"
        )
    past, width = inputs[0] - outputs, hidden[0]
    encoder, decoder = Encoder(width), Decoder(width)

    def init(key):
        key_body, key_head = jax.random.split(key)
        x = jnp.zeros((1, *inputs))
        body_params = encoder.init(key_body, x[:, :past])["params"]
        features = _parts(body(body_params, x), width, outputs)
        head_params = decoder.init(key_head, *features)["params"]
        return {"body": body_params, "head": head_params}

    def body(params, x):
        h = encoder.apply({"params": params}, x[:, :past])
        known = x[:, past:, 1:].reshape(x.shape[0], outputs * (inputs[1] - 1))
        return jnp.concatenate([h, x[:, past - 1, :1], known], axis=1)

    def head(params, features):
        return decoder.apply({"params": params}, *_parts(features, width, outputs))

    return ClientModel(init=init, body=body, head=head, task=task)


def gru_sampled(
    *,
    inputs: tuple[int, ...],
    outputs: int,
    hidden: tuple[int, ...],
    task: Task,
    sampling_decay: Array,
    played: Array,
) -> ClientModel:
    """`gru` trained by scheduled sampling; it forecasts as `gru` does.

    In training, each step of the decoder for each example reads the true value before it with
    probability k / (k + exp(rounds played / k)), k = sampling_decay, else its own forecast
    (Bengio, Vinyals, Jaitly, Shazeer. Scheduled Sampling for Sequence Prediction with Recurrent
    Neural Networks. NIPS 2015. https://arxiv.org/abs/1506.03099). Their schedule counts steps;
    clients that forget have no count of steps, and rounds are counted here.
    """
    model = gru(inputs=inputs, outputs=outputs, hidden=hidden, task=task)
    decoder = Decoder(hidden[0])

    def train_forward(params, batch: Examples):
        start = _parts(model.body(params["body"], batch.x), hidden[0], outputs)
        decay = jnp.asarray(sampling_decay, jnp.float32)
        share = decay / (decay + jnp.exp(jnp.asarray(played, jnp.float32) / decay))
        # A batch throws its own coins: what it holds is drawn by chance, and seeds them.
        seed = jax.lax.bitcast_convert_type(jnp.sum(batch.y[0]), jnp.uint32)
        coins = jax.random.bernoulli(jax.random.key(seed), share, batch.y.shape)
        return decoder.apply({"params": params["head"]}, *start, batch.y, coins)

    return dataclasses.replace(model, train_forward=train_forward)


def _parts(features, hidden, future):
    """What the decoder is given: h [B, H], the last value [B], and what is known [B, T, F']."""
    batch, size = features.shape
    known = features[:, hidden + 1 :].reshape(batch, future, (size - hidden - 1) // future)
    return features[:, :hidden], features[:, hidden], known
