"""Graph network on the client relation graph: initial embeddings to client embeddings."""

from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jraph

from graphfl_jax.core import Array
from graphfl_jax.data import relations
from graphfl_jax.data.sparse import SparseMatrix
from graphfl_jax.models.layers import dense, uniform_within
from graphfl_jax.settings import Choice, Integer, Switch

# Settings of all networks of a hypernetwork: the encoder and the generator share the fields.
Width = Annotated[int, Integer("Width of all hidden layers.")]
Depth = Annotated[int, Integer("Number of layers.", low=2, high=1000)]


class GraphAttention(nn.Module):
    """A layer of graph attention with one head: message passing along edges, by jraph.

        h'_i = sum_j alpha_ij W h_j + b
        alpha_ij = softmax over j of LeakyReLU(a . [W h_i, W h_j]) + log w_ij     (slope 0.2)

    over the senders j of edges to client i, and i itself with the weight 1. With weights of 1
    it is that of Velickovic et al., ICLR 2018, and with a = 0 the layer `mean`.
    """

    width: int

    @nn.compact
    def __call__(self, embeddings: Array, edges: SparseMatrix) -> Array:
        """New embeddings [n, width] from embeddings [N, E] and weights of edges [n, N]."""
        rows, fan_in = embeddings.shape
        # All rows get an edge to themselves, so that no softmax is empty.
        loops, weights = jnp.arange(rows, dtype=jnp.int32), jnp.ones(rows, jnp.float32)
        graph = jraph.GraphsTuple(
            nodes=embeddings,
            edges=jnp.concatenate([edges.weights, weights]),
            senders=jnp.concatenate([edges.senders, loops]),
            receivers=jnp.concatenate([edges.receivers, loops]),
            n_node=jnp.array([rows]),
            n_edge=jnp.array([len(edges.weights) + rows]),
            globals=None,
        )
        values = dense(self.width, fan_in, use_bias=False)
        score = dense(1, 2 * self.width, use_bias=False)
        bias = self.param("bias", uniform_within(fan_in**-0.5), (1, self.width))

        def logits(sent, received, weights):
            scores = score(jnp.concatenate([received, sent], axis=1))
            return nn.leaky_relu(scores, 0.2) + jnp.log(weights)[:, None]  # [n_edge, 1]

        attend = jraph.GAT(values, logits, lambda nodes: nodes + bias)
        return attend(graph).nodes[: len(edges)]


class RelationGNN(nn.Module):
    """Message passing on embeddings [N, E] along the edges of a client graph.

    mean, gcn:  H' = P H W + b
    sage:       H' = H W_self + P H W_neighbours + b       (P without self loops)
    attention:  `GraphAttention`

    ReLU between layers, none after the last. P [N, N] is fixed, and given, as the edges of
    `attention` are, by `RelationEncoder.relate`. With a P [n, N] for each layer, a layer gives
    only the first n rows, the N of the next layer.
    """

    widths: tuple[int, ...]
    layer: str

    @nn.compact
    def __call__(self, embeddings: Array, propagation: Array | SparseMatrix | tuple) -> Array:
        if not isinstance(propagation, tuple):
            propagation = (propagation,) * len(self.widths)
        for i, (width, matrix) in enumerate(zip(self.widths, propagation, strict=True)):
            embeddings = nn.relu(embeddings) if i else embeddings
            if self.layer == "attention":
                embeddings = GraphAttention(width)(embeddings, matrix)
                continue
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

    layer: str  # kind of layer
    width: int  # size of a client embedding
    module: RelationGNN
    edge_weights: bool  # whether the layers read them

    def relate(self, graph: jraph.GraphsTuple) -> Array | SparseMatrix:
        """What its layers read of a client graph: the matrix P, or the edges."""
        if self.layer == "attention":
            return relations.edge_matrix(graph, weighted=self.edge_weights)
        return relations.propagation(graph, self.layer, weighted=self.edge_weights)


def relation_encoder(
    *,
    layer: Annotated[
        str,
        Choice(
            "Layer of the encoder: GraphSAGE, mean of neighbours and self (the paper's), GCN, "
            "or graph attention.",
            ("sage", "mean", "gcn", "attention"),
        ),
    ] = "sage",
    edge_weights: Annotated[
        bool, Switch("Whether the encoder's layers read the weights of relations.")
    ] = False,
    width: Width = 100,
    depth: Depth = 3,
) -> RelationEncoder:
    """Builds the encoder of client relations."""
    return RelationEncoder(layer, width, RelationGNN((width,) * depth, layer), edge_weights)
