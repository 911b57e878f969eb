"""A perceptron that generates a client's parameters from the client's embedding."""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax.hypernets.output import Output, output_layer
from graphfl_jax.hypernets.relation_gnn import Depth, Width
from graphfl_jax.models.mlp import MLP
from graphfl_jax.settings import Integer, Part

EmbeddingDim = Annotated[int, Integer("Size of a client's initial embedding.")]


class Generator(NamedTuple):
    """Functions of weights that hold "trunk" and "output"."""

    embedding_dim: int  # size of a client's initial embedding
    width: int  # of the hidden layers
    init: Callable  # (key, size of an embedding) -> weights
    hidden: Callable  # (weights, embedding [..., E]) -> [..., width], before the last ReLU
    decode: Callable  # (weights, embedding [E]) -> the parameters of one client


def generator(
    *,
    output: Annotated[Output, Part(output_layer)],
    embedding_dim: EmbeddingDim = 100,
    width: Width = 100,
    depth: Depth = 3,
) -> Generator:
    """Builds a generator of depth - 1 hidden layers and the output layer."""
    trunk = MLP((width,) * (depth - 1))

    def init(key, embedding_size):
        key_trunk, key_output = jax.random.split(key)
        return {
            "trunk": trunk.init(key_trunk, jnp.zeros((embedding_size,)))["params"],
            "output": output.init(key_output, width),
        }

    def hidden(weights, embedding):
        return trunk.apply({"params": weights["trunk"]}, embedding)

    def decode(weights, embedding):
        features = jax.nn.relu(hidden(weights, embedding))
        return output.decode(weights["output"], features)

    return Generator(embedding_dim, width, init, hidden, decode)
