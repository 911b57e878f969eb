"""Networks for images that are made from their architecture graphs.

`GraphNetwork` computes what the graph describes, and has no other definition. A ReLU follows
every node, except a node whose receivers are all sums or concatenations: there, the ReLU
follows the sum or the concatenation. So a sum of two layers is the residual connection of He et
al. with a shortcut without parameters (Deep Residual Learning, CVPR 2016, option A). An edge or
a node "add" can state it.
"""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from graphfl_jax.architecture import (
    JOINS,
    Architecture,
    Linear,
    Node,
    check_graph,
    layer_of,
    name_of,
    refuse,
)
from graphfl_jax.core import Task
from graphfl_jax.models.batch_statistics import model_with_batch_norm
from graphfl_jax.models.images import BatchNorm, Conv, columns, max_pool
from graphfl_jax.models.layers import scale_bytes


class Graph(NamedTuple):
    """What `GraphNetwork` computes."""

    architecture: Architecture
    pooled: tuple[int, ...] = ()  # nodes after which images are max-pooled


class NormalisedConv(nn.Module):
    """A convolution and its batch normalisation: [C, H, W, B] -> [features, H', W', B].

    Its parameters are "kernel", "scale" and "bias". The sides of the image are divided by the
    stride and rounded up.
    """

    features: int
    size: int
    stride: int
    lowering: str

    @nn.compact
    def __call__(self, x, count):
        conv = Conv(self.features, self.size, self.stride, self.size // 2, self.lowering)
        norm = BatchNorm()
        for part in (conv, norm):
            nn.share_scope(self, part)
        return norm(conv(x), count)


class GraphNetwork(nn.Module):
    """A graph without its head: images [B, H, W, C] -> features [B, F].

    The features are means over height and width. Bytes are scaled to -1 to 1.
    """

    graph: Graph
    lowering: str

    @nn.compact
    def __call__(self, images, count):
        architecture, pooled = self.graph
        values = [columns(scale_bytes(images))]
        for number, node in list(enumerate(architecture.nodes))[1:-1]:
            *senders, main = architecture.senders(number)
            x = values[main]
            if node.type not in JOINS:
                layer, (_, name) = layer_of(node.type), node.params
                outputs, size, stride = layer.outputs, layer.size, layer.stride
                x = NormalisedConv(outputs, size, stride, self.lowering, name=name)(x, count)
            shortcuts = [subsample(values[sender], x) for sender in senders]
            for sender, shortcut in zip(senders, shortcuts, strict=True):
                if shortcut.shape[1:] != x.shape[1:]:
                    (_, *before, _), (_, *after, _) = values[sender].shape, x.shape
                    refuse(
                        architecture,
                        f"{name_of(architecture, sender)} gives images of {before} pixels, and "
                        f"{name_of(architecture, number)} of {after}",
                        "leave the edge out, or begin it at a layer with larger images",
                    )
            if node.type == "concat":
                x = jnp.concatenate([*shortcuts, x])
            else:
                x = sum((widen(shortcut, x) for shortcut in shortcuts), x)
            receivers = [architecture.nodes[i] for i in architecture.receivers(number)]
            if any(receiver.type not in JOINS for receiver in receivers):
                x = nn.relu(x)
            values.append(max_pool(x) if number in pooled else x)
        (last,) = architecture.senders(len(architecture.nodes) - 1)
        return jnp.mean(values[last], axis=(1, 2)).T


def subsample(x, like):
    """Every n-th row and column of x [C, H, W, B], for the height and width of `like`."""
    down, across = (-(-x.shape[axis] // like.shape[axis]) for axis in (1, 2))
    return x[:, ::down, ::across]


def widen(x, like):
    """x [C, H, W, B] with as many channels as `like`; those that are added are zero."""
    return jnp.pad(x, [(0, len(like) - len(x)), (0, 0), (0, 0), (0, 0)])


class Layers:
    """Collects the layers of a graph, from the input to the head. Layers are their numbers."""

    def __init__(self, channels: int):
        """Begins with the input, images with this number of channels."""
        self.nodes, self.edges, self.channels, self.pooled = [Node("input")], [], [channels], []

    def convolution(self, features: int, *senders: int, size: int = 3, stride: int = 1) -> int:
        """Adds a convolution of the last sender; the others are shortcuts to its output.

        Raises:
          ValueError: the senders are not in ascending order.
        """
        type = f"c{self.channels[senders[-1]]}_{features}_k{size}_s{stride}"
        name = f"layer{sum(bool(node.params) for node in self.nodes) + 1}"
        return self._add(Node(type, ("body", name)), features, senders)

    def join(self, type: str, *senders: int) -> int:
        """Adds the sum or the concatenation of layers; images get the size of the last."""
        sizes = [self.channels[sender] for sender in senders]
        return self._add(Node(type), sum(sizes) if type == "concat" else sizes[-1], senders)

    def pool(self, number: int) -> None:
        """Max-pools what a layer gives."""
        self.pooled.append(number)

    def graph(self, last: int, outputs: int) -> Graph:
        """The graph, without a name, with a head that reads the last layer."""
        self._add(Node(f"linear{self.channels[last]}_{outputs}", ("head",)), outputs, (last,))
        architecture = Architecture("", tuple(self.nodes), tuple(self.edges))
        return Graph(architecture, tuple(self.pooled))

    def _add(self, node, channels, senders):
        if list(senders) != sorted(set(senders)):
            raise ValueError(
                f"{node.type} gets the layers {senders}; give each once, in ascending order"
            )
        number = len(self.nodes)
        self.nodes.append(node)
        self.channels.append(channels)
        self.edges += [(sender, number) for sender in senders]
        return number


def graph_model(graph: Graph, *, inputs: tuple[int, ...], task: Task, lowering: str):
    """The client model of a graph.

    Args:
      graph: convolutions, sums and concatenations, then a dense layer as the head.
      inputs: shape of an image [H, W, C].

    Raises:
      ValueError: as `architecture.check_graph`; or the graph has a dense layer that is not the
        head, the head has several inputs, or (when parameters are made) images along an edge do
        not fit.
    """
    check_graph(graph.architecture)
    _check_network(graph.architecture)
    layer = layer_of(graph.architecture.nodes[-1].type)
    return model_with_batch_norm(
        GraphNetwork(graph, lowering),
        inputs=inputs,
        features=layer.inputs,
        outputs=layer.outputs,
        task=task,
        architecture=graph.architecture,
    )


def _check_network(architecture):
    """Refuses a graph that `GraphNetwork` does not compute."""
    last = len(architecture.nodes) - 1
    for number, node in enumerate(architecture.nodes[:last]):
        if isinstance(layer_of(node.type), Linear):
            refuse(
                architecture,
                f"{name_of(architecture, number)} is not the head",
                "before the head, a network of a graph has convolutions and joins only",
            )
    if len(architecture.senders(last)) > 1:
        refuse(
            architecture,
            f"{name_of(architecture, last)} has several inputs",
            "join them by add or concat",
        )
