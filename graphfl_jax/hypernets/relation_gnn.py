"""Graph network over the client relation graph: from initial codes to client codes."""

import flax.linen as nn

from graphfl_jax.core import Array
from graphfl_jax.models.layers import dense


class RelationGNN(nn.Module):
    """Message passing on codes [N, E] with a fixed propagation matrix P [N, N].

    mean, gcn:  H' = P H W + b
    sage:       H' = H W_self + P H W_neighbours + b       (P without self loops)

    ReLU between layers, none after the last. P is `relations.propagation(graph, layer)`.
    """

    widths: tuple[int, ...]
    layer: str

    @nn.compact
    def __call__(self, embeddings: Array, propagation: Array) -> Array:
        for i, width in enumerate(self.widths):
            embeddings = nn.relu(embeddings) if i else embeddings
            fan_in = embeddings.shape[-1]
            mixed = dense(width, fan_in)(propagation @ embeddings)
            if self.layer == "sage":
                mixed = mixed + dense(width, fan_in, use_bias=False)(embeddings)
            embeddings = mixed
        return embeddings
