"""A graph hypernetwork: it generates the layers of client models from architecture graphs.

    h_v <- one-hot type of node v, and then `ghn_depth` times, for all nodes at once,
    h_v <- relu(A h_v + b + B sum_{edges u -> v} h_u)
    [theta, r] = C leaky_relu(D h_v + d) + c      with C, c, D, d of the type of v

Each of the steps has another A, B and b. ``ghn_layer=mean`` has the mean over u in place
of the sum, and ``ghn_layer=gated`` a gated recurrent unit, the same one in all steps,

    h_v <- GRU(h_v, sum_{edges u -> v} B h_u)

where h_v starts as the one-hot type with zeros after it. r has a number for each output channel
of the layer's kernel. The parameters of node v are

    kernel = (1 + r) theta_kernel,   scale = 1 + theta_scale,   bias = theta_bias

where the scale is that of a batch normalisation, and the bias that of a batch normalisation or
of a linear layer. With ``ghn_depth=0`` there is no graph network, and all layers of a type are
equal.

At the start, c, d and the rows of C for r, scales and biases are 0. D is Xavier normal. The
rows of C for a kernel with c_in input channels are Xavier normal times sqrt(2 c_in /
ghn_hidden), so that kernels [k, k, c_in, c_out] have a variance of 4 q c_in / (ghn_hidden +
k^2 c_in c_out), where q is the mean square of leaky_relu(D h + d). For large kernels, it is
4 q / (k^2 c_out). A linear layer has k = 1. ``ghn_init=rescaled``
multiplies these rows by a factor, after which the mean square of all kernels of the type is 2 /
(k^2 c_out). A, B and b are drawn like PyTorch's ``Linear``, and the weights of the unit like
Flax's ``GRUCell``.

Zhang, Ren, Urtasun. Graph HyperNetworks for Neural Architecture Search. ICLR 2019.
https://arxiv.org/abs/1810.05749. The layer of the graph network: Morris, Ritzert, Fey,
Hamilton, Lenssen, Rattan, Grohe. Weisfeiler and Leman Go Neural. AAAI 2019.
https://arxiv.org/abs/1810.02244. The mean: Hamilton, Ying, Leskovec. Inductive Representation
Learning on Large Graphs. NIPS 2017. https://arxiv.org/abs/1706.02216. The gated layer: Li,
Tarlow, Brockschmidt, Zemel. Gated Graph Sequence Neural Networks. ICLR 2016.
https://arxiv.org/abs/1511.05493
"""

import functools
from collections.abc import Callable
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jraph
import numpy as np

from graphfl_jax import tree
from graphfl_jax.core import Array, ClientModel
from graphfl_jax.data import relations
from graphfl_jax.hypernets.layer_types import (
    Layers,
    ModelGenerator,
    Shapes,
    generator_of,
    type_table,
)
from graphfl_jax.hypernets.relation_gnn import RelationGNN
from graphfl_jax.models.layers import uniform_within
from graphfl_jax.settings import Choice, Integer

CHANNELS = "channels"  # name of r among the parameters
EDGES = Choice(
    "Whether messages go along the edges of an architecture, or also against them.",
    ("forward", "bidirectional"),
)
LAYER = Choice(
    "Layer of the graph network: the sum of messages (the paper's), their mean, or a gated "
    "recurrent unit that reads their sum.",
    ("sum", "mean", "gated"),
)


def architecture_ghn(
    *,
    models: tuple[ClientModel, ...],
    model_name: str = "(own)",
    ghn_depth: Annotated[
        int,
        Integer("Layers of the graph network; 0: the type alone generates.", low=0, high=1000),
    ] = 6,
    ghn_layer: Annotated[str, LAYER] = "sum",
    ghn_width: Annotated[int, Integer("Width of the graph network.")] = 51,
    ghn_hidden: Annotated[int, Integer("Hidden width of the network of each type.")] = 16,
    ghn_edges: Annotated[str, EDGES] = "forward",
    ghn_init: Annotated[
        str,
        Choice(
            "Initial scale of generated kernels: the paper's, or by measured second moments.",
            ("printed", "rescaled"),
        ),
    ] = "printed",
) -> ModelGenerator:
    """Builds a graph hypernetwork.

    Its weights hold "gnn", the first layers "hidden" of the networks of all types in sorted
    order, leaves [types, ...], and their second layers "heads" by type. The graphs of all
    architectures that are generated together are one graph.

    Args:
      models: of the K architectures.
      model_name: of the configuration, for errors.

    Raises:
      ValueError: as `layer_types.layers_of` and `layer_types.shapes_by_type`, or a gated layer
        has less width than there are types.
    """

    def make(every, shapes):
        if ghn_layer == "gated" and ghn_depth:
            _check_width(ghn_width, len(shapes))
        network = Network(
            kinds=tuple(shapes),
            heads={
                kind: Head(ghn_hidden, generated_shapes(of_type))
                for kind, of_type in shapes.items()
                if of_type
            },
            depth=ghn_depth,
            width=ghn_width,
            hidden=ghn_hidden,
            edges=ghn_edges,
            layer=ghn_layer,
        )
        if ghn_init == "printed":
            return network.init, network.generate
        return functools.partial(network.init_rescaled, every), network.generate

    return generator_of(models, model_name, make)


def _check_width(width, types):
    if width < types:
        raise ValueError(
            f"algorithm.ghn_width={width} is too small for the {types} types of layers with "
            f"algorithm.ghn_layer=gated; set at least {types}"
        )


class Network(NamedTuple):
    """A graph network over architectures, and for each type a network that gives parameters."""

    kinds: tuple[str, ...]  # all types, sorted
    heads: dict[str, "Head"]  # second layers, of the types with parameters
    depth: int  # layers of the graph network
    width: int  # E, of the graph network
    hidden: int  # H, outputs of the first layers
    edges: str  # "forward" or "bidirectional"
    layer: str = "sum"  # or "mean" or "gated"

    @property
    def module(self) -> nn.Module:
        """A layer: (nodes [n, E], edges [n, n]) -> [n, E], or the gated unit."""
        gated = self.layer == "gated"
        return nn.GRUCell(self.width) if gated else RelationGNN((self.width,), "sage")

    @property
    def numbers(self) -> dict[str, int]:
        """The place of a type among the first layers, which are stacked."""
        return {kind: number for number, kind in enumerate(self.heads)}

    def init(self, key: Array) -> dict:
        """Weights, in which kernels have the scale of the paper."""
        key_gnn, key_hidden, key_heads = jax.random.split(key, 3)
        width = self.width if self.depth else len(self.kinds)
        xavier = nn.initializers.xavier_normal(batch_axis=0)
        numbers = self.numbers
        return {
            "gnn": self._init_gnn(key_gnn) if self.depth else {},
            "hidden": {
                "kernel": xavier(key_hidden, (len(numbers), width, self.hidden)),
                "bias": jnp.zeros((len(numbers), self.hidden)),
            },
            "heads": {
                kind: head.init(jax.random.fold_in(key_heads, numbers[kind]))
                for kind, head in self.heads.items()
            },
        }

    def init_rescaled(self, several: tuple[Layers, ...], key: Array) -> dict:
        """Weights with which the kernels of several architectures have measured scales."""
        weights = self.init(key)
        heads = {
            kind: self.heads[kind].rescale(weights["heads"][kind], rows)
            for kind, rows in self.outputs(weights, several).items()
        }
        return weights | {"heads": heads}

    def _init_gnn(self, key):
        """The weights of the first layer, and of the others stacked, if there are others.

        Those of a gated network are of its unit, and the B of all steps stacked.
        """
        if self.layer == "gated":
            key_unit, key_messages = jax.random.split(key)
            nodes, drawn = jnp.zeros((1, self.width)), uniform_within(self.width**-0.5)
            return {
                "unit": self.module.init(key_unit, nodes, nodes)["params"],
                "messages": drawn(key_messages, (self.depth, self.width, self.width)),
            }

        def of_layer(key, fan_in):
            return self.module.init(key, jnp.zeros((1, fan_in)), jnp.zeros((1, 1)))["params"]

        first, *others = jax.random.split(key, self.depth)
        weights = {"first": of_layer(first, len(self.kinds))}
        if others:
            of_width = functools.partial(of_layer, fan_in=self.width)
            weights["others"] = jax.vmap(of_width)(jnp.stack(others))
        return weights

    def embed(self, weights: dict, several: tuple[Layers, ...]) -> tuple[Array, list[str]]:
        """All nodes h_v [n, E] after the graph network, and the type of each."""
        graph = jraph.batch_np([graph_of(layers, self.kinds, self.edges) for layers in several])
        # [receivers, senders]: a product adds in the same order on all devices.
        edges = relations.weight_matrix(graph)
        if self.layer == "mean":
            edges = edges / jnp.maximum(edges.sum(axis=1, keepdims=True), 1.0)
        nodes, gnn = jnp.asarray(graph.nodes), weights["gnn"]

        def step(nodes, params):
            return nn.relu(self.module.apply({"params": params}, nodes, edges)), None

        def gated_step(nodes, matrix):
            received = edges @ (nodes @ matrix)
            return self.module.apply({"params": gnn["unit"]}, nodes, received)[0], None

        # Loops, because six layers with their derivatives take long to compile.
        if self.depth and self.layer == "gated":
            nodes = jnp.pad(nodes, ((0, 0), (0, self.width - len(self.kinds))))
            nodes, _ = jax.lax.scan(gated_step, nodes, gnn["messages"])
        elif self.depth:
            nodes, _ = step(nodes, gnn["first"])
            if self.depth > 1:
                nodes, _ = jax.lax.scan(step, nodes, gnn["others"])
        return nodes, [kind for layers in several for kind in layers.types]

    def outputs(self, weights: dict, several: tuple[Layers, ...]) -> dict[str, Array]:
        """[theta, r] of the nodes of each type that occurs: {type: [nodes of the type, d]}."""
        nodes, types = self.embed(weights, several)
        places = [place for place, kind in enumerate(types) if kind in self.heads]
        kinds, numbers = [types[place] for place in places], self.numbers
        first = tree.take(weights["hidden"], np.array([numbers[kind] for kind in kinds]))
        # leaky_relu(D h_v + d) with D and d of the type of v
        hidden = jnp.einsum("ne,neh->nh", nodes[np.array(places)], first["kernel"])
        hidden = nn.leaky_relu(hidden + first["bias"])
        return {
            kind: hidden[rows] @ head["kernel"] + head["bias"][None]
            for kind, head in weights["heads"].items()
            if len(rows := np.flatnonzero(np.array(kinds) == kind))
        }

    def generate(self, weights: dict, several: tuple[Layers, ...]) -> list[list[dict]]:
        """The parameters of each node of several architectures, by name."""
        of_type = {}
        for kind, outputs in self.outputs(weights, several).items():
            values, single = self.heads[kind].parameters(outputs), [1] * len(outputs)
            parts = {name: jax.lax.split(rows, single) for name, rows in values.items()}
            of_type[kind] = iter(
                [
                    {name: rows[place][0] for name, rows in parts.items()}
                    for place in range(len(outputs))
                ]
            )
        # Nodes of a type are in the order of the architectures and of their nodes.
        return [
            [next(of_type[kind]) if kind in of_type else {} for kind in layers.types]
            for layers in several
        ]


def graph_of(layers: Layers, kinds: tuple[str, ...], edges: str) -> jraph.GraphsTuple:
    """An architecture as a graph whose nodes [n, types] are one-hot; unknown types have zeros.

    Args:
      layers: of the architecture.
      kinds: all types.
      edges: "forward" or "bidirectional".
    """
    senders, receivers = layers.edges.T
    if edges == "bidirectional":
        senders, receivers = np.append(senders, receivers), np.append(receivers, senders)
    return jraph.GraphsTuple(
        nodes=np.float32([[kind == known for known in kinds] for kind in layers.types]),
        edges=np.ones(len(senders), np.float32),
        senders=senders,
        receivers=receivers,
        n_node=np.array([len(layers.types)]),
        n_edge=np.array([len(senders)]),
        globals=None,
    )


def generated_shapes(shapes: Shapes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes of what the network of a type gives, in order: theta and r."""
    channels = {CHANNELS: shapes["kernel"][-1:]} if "kernel" in shapes else {}
    return tuple(sorted((shapes | channels).items()))


class Head(NamedTuple):
    """The second layer of the network of a type: it gives the vector [theta, r] of a node."""

    hidden: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # from `generated_shapes`

    def init(self, key) -> dict[str, Array]:
        """Kernel [hidden, outputs] and bias [outputs]."""
        deviations = self.outputs_of_kernel(self.deviation)
        kernel = jax.random.normal(key, (self.hidden, len(deviations))) * deviations[None]
        return {"kernel": kernel, "bias": jnp.zeros_like(deviations)}

    def deviation(self, shape: tuple[int, ...]) -> float:
        """Initial standard deviation of C: Xavier's times sqrt(2 c_in / hidden)."""
        xavier = 2 / (self.hidden + np.prod(shape))
        return np.sqrt(xavier * 2 * shape[-2] / self.hidden)

    def outputs_of_kernel(self, value: Callable) -> Array:
        """``value(shape)`` at all outputs that are of the kernel, and 0 elsewhere."""
        parts = [
            jnp.full(np.prod(shape), value(shape) if name == "kernel" else 0.0, jnp.float32)
            for name, shape in self.shapes
        ]
        return jnp.concatenate(parts)

    def rescale(self, params: dict, outputs: Array) -> dict:
        """Initial parameters with which kernels have a mean square of 2 / (k^2 c_out).

        Args:
          params: of the layer.
          outputs: what it gives with them for the n nodes of the type.
        """
        of_kernel = self.outputs_of_kernel(lambda shape: 1.0)
        squares = jnp.mean(jnp.square(outputs), axis=0) * of_kernel
        measured = jnp.sum(squares) / jnp.maximum(jnp.sum(of_kernel), 1.0)
        wanted = self.outputs_of_kernel(lambda shape: 2 / np.prod((*shape[:-2], shape[-1])))
        factors = jnp.sqrt(wanted / jnp.where((wanted > 0) & (measured > 0), measured, 1.0))
        return params | {"kernel": params["kernel"] * factors[None]}

    def parameters(self, outputs: Array) -> dict[str, Array]:
        """The parameters of n nodes, by name and [n, ...] each."""
        sizes = [np.prod(shape) for _, shape in self.shapes]
        parts = jax.lax.split(outputs, sizes, axis=1)
        values = {
            name: part.reshape(-1, *shape)
            for (name, shape), part in zip(self.shapes, parts, strict=True)
        }
        if "scale" in values:
            values["scale"] = 1.0 + values["scale"]
        if CHANNELS in values:
            channels, kernel = values.pop(CHANNELS), values["kernel"]
            between = (1,) * (kernel.ndim - 2)
            # (1 + r) theta_kernel
            values["kernel"] = (1.0 + channels.reshape(len(channels), *between, -1)) * kernel
        return values


GENERATORS = {"ghn": architecture_ghn, "table": type_table}
