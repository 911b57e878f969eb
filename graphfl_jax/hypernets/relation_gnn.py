"""Graph network on the client relation graph: initial embeddings to client embeddings."""

from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphfl_jax.core import Array
from graphfl_jax.models.layers import dense
from graphfl_jax.settings import Choice, Integer

# Settings of all networks of a hypernetwork: the encoder and the generator share the fields.
Width = Annotated[int, Integer("Width of all hidden layers.")]
Depth = Annotated[int, Integer("Number of layers.", low=2, high=1000)]


class RelationGNN(nn.Module):
    """Message passing on embeddings [N, E] with a fixed propagation matrix P [N, N].

    mean, gcn:  H' = P H W + b
    sage:       H' = H W_self + P H W_neighbours + b       (P without self loops)

    ReLU between layers, none after the last. P is `relations.propagation(graph, layer)`. With a
    P [n, N] for each layer, a layer gives only the first n rows, the N of the next layer.
    """

    widths: tuple[int, ...]
    layer: str

    @nn.compact
    def __call__(self, embeddings: Array, propagation: Array | tuple) -> Array:
        if not isinstance(propagation, tuple):
            propagation = (propagation,) * len(self.widths)
        for i, (width, matrix) in enumerate(zip(self.widths, propagation, strict=True)):
            embeddings = nn.relu(embeddings) if i else embeddings
            fan_in = embeddings.shape[-1]
            mixed, first = matrix @ embeddings, embeddings[: len(matrix)]
            layer = dense(width, fan_in)
            if self.layer != "sage":
                embeddings = layer(mixed)
                continue
            other = dense(width, fan_in, use_bias=False)
            if jax.default_backend() == "cpu" or self.is_initializing():
                embeddings = layer(mixed) + other(first)
            else:  # one product, whose gradient is also that of the bias
                inputs = jnp.concatenate([mixed, first, jnp.ones((len(first), 1))], axis=1)
                of_layer, of_other = (part.variables["params"] for part in (layer, other))
                parts = (of_layer["kernel"], of_other["kernel"], of_layer["bias"][None])
                embeddings = inputs @ jnp.concatenate(parts)
        return embeddings


class RelationEncoder(NamedTuple):
    """An encoder, and what a method needs to know to use it."""

    layer: str  # kind of layer, which selects the propagation matrix
    width: int  # size of a client embedding
    module: RelationGNN


def relation_encoder(
    *,
    layer: Annotated[
        str,
        Choice(
            "Layer of the encoder: GraphSAGE, mean of neighbours and self (the paper's), or "
            "GCN.",
            ("sage", "mean", "gcn"),
        ),
    ] = "sage",
    width: Width = 100,
    depth: Depth = 3,
) -> RelationEncoder:
    """Builds the encoder of client relations."""
    return RelationEncoder(layer, width, RelationGNN((width,) * depth, layer))
