"""An LSTM that predicts the next symbol of a sequence, such as the next character of a text.

Hochreiter, Schmidhuber. Long Short-Term Memory. Neural Computation 9(8), 1997. Layers and sizes
are those of the model for Shakespeare in McMahan, Moore, Ramage, Hampson, Aguera y Arcas.
Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017.
https://arxiv.org/abs/1602.05629: an embedding, two layers of 256 cells, and a dense layer on
the last state. All weights start as in PyTorch's ``LSTM``, in U(+-1/sqrt(cells)), of which a
gate has one bias in place of two, and those of the embedding from a standard normal
distribution.
"""

from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphfl_jax.core import ClientModel, Task
from graphfl_jax.models.layers import Hidden, dense, init_parts, uniform_within
from graphfl_jax.settings import Integer


class Layer(nn.Module):
    """The states h [T, B, H] of cells after each of the inputs x [T, B, F].

    i, f, g, o = x W + h V + b;  c' = s(f) c + s(i) tanh(g);  h' = s(o) tanh(c')
    """

    width: int

    @nn.compact
    def __call__(self, x):
        init, gates = uniform_within(self.width**-0.5), 4 * self.width
        kernel = self.param("input_kernel", init, (x.shape[-1], gates))
        of_state = self.param("hidden_kernel", init, (self.width, gates))
        from_input = x @ kernel + self.param("bias", init, (gates,))[None, None]

        def step(state, from_input):
            h, c = state
            i, f, g, o = jnp.split(from_input + h @ of_state, 4, axis=-1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros_like(from_input, shape=(x.shape[1], self.width))
        return jax.lax.scan(step, (start, start), from_input)[1]


class Reader(nn.Module):
    """The last state [B, H] of the last layer after symbols [B, T]."""

    symbols: int
    embedding: int
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        embed = nn.Embed(
            self.symbols, self.embedding, embedding_init=nn.initializers.normal(1.0)
        )
        states = embed(x.T.astype(jnp.int32))  # [T, B, E]; NaN where there is no such symbol
        for width in self.widths:
            states = Layer(width)(states)
        return states[-1]


def lstm(
    *,
    inputs: tuple[int, ...],
    outputs: int,
    task: Task,
    hidden: Hidden = (256, 256),
    embedding: Annotated[int, Integer("Numbers with which a symbol is described.")] = 8,
) -> ClientModel:
    """A client's LSTM on sequences of symbols: embedding, layers of cells, dense layer.

    The head is the dense layer. With ``hidden=(256, 256)`` and 80 symbols the model has 817,872
    parameters.

    Args:
      inputs: (T,), the length of a sequence.
      outputs: number of symbols. Those of the sequences are numbers from 0 to outputs - 1, and
        so is the next one, the label.
      task: a classification.

    Raises:
      ValueError: the examples are not sequences, or there is no layer or an empty one.
    """
    if len(inputs) != 1:
        raise ValueError(
            f"model.name='lstm' reads sequences of symbols, but examples have shape "
            f"{list(inputs)}; set --config.model.name=mlp"
        )
    if not hidden or not all(isinstance(width, int) and width > 0 for width in hidden):
        raise ValueError(
            f"model.hidden={hidden!r} must hold widths of at least 1 for an LSTM; set "
            f"--config.model.hidden to widths such as 256,256"
        )
    body, head = Reader(outputs, embedding, tuple(hidden)), dense(outputs, hidden[-1])

    def init(key):
        example = jnp.zeros((1, *inputs))
        return init_parts(key, body, head, example, features=hidden[-1])

    def apply_body(params, x):
        return body.apply({"params": params}, x)

    def apply_head(params, features):
        return head.apply({"params": params}, features)

    return ClientModel(
        init=init, body=apply_body, head=apply_head, task=task, at_once=1, symbols=outputs
    )
