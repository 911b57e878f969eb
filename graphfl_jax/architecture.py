"""Architecture graphs: which layers a client model has, and how they are connected.

A type describes a layer:

    input                    the example
    c<in>_<out>_k<k>_s<s>    a convolution of k x k with stride s and what belongs to it
    linear<in>_<out>         a dense layer; before it, images may be pooled or flattened
    add, concat              the sum of the inputs, or all their channels

A convolution or a dense layer computes from the last of the nodes that have an edge to it. The
others are shortcuts without parameters, which are added to what it gives: subsampled if they
are larger images, and with zero channels if they have fewer channels.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from flax.traverse_util import flatten_dict

JOINS = ("add", "concat")
_CONVOLUTION = re.compile(r"c([1-9]\d*)_([1-9]\d*)_k([1-9]\d*)_s([1-9]\d*)")
_LINEAR = re.compile(r"linear([1-9]\d*)_([1-9]\d*)")


class Node(NamedTuple):
    """A layer of a client model."""

    # Such as "input", "c3_64_k3_s1", "linear512_10", "add". Layers of equal types have
    # parameters of equal names and shapes, in all architectures.
    type: str
    params: tuple[str, ...] = ()  # path of its parameters in those of the model; () has none


class Architecture(NamedTuple):
    """The layers of a client model as a directed acyclic graph."""

    name: str
    nodes: tuple[Node, ...]  # the first is the input, the last is the head
    edges: tuple[tuple[int, int], ...]  # (sender, receiver), with sender < receiver

    def senders(self, receiver: int) -> list[int]:
        """The nodes with an edge to a node, ascending."""
        return sorted(start for start, end in self.edges if end == receiver)

    def receivers(self, sender: int) -> list[int]:
        """The nodes to which a node has an edge, ascending."""
        return sorted(end for start, end in self.edges if start == sender)


class Convolution(NamedTuple):
    """What the type of a convolution states."""

    inputs: int  # channels
    outputs: int
    size: int  # of the kernel's sides
    stride: int

    @property
    def kernel(self) -> tuple[int, ...]:
        """The shape of the kernel."""
        return (self.size, self.size, self.inputs, self.outputs)


class Linear(NamedTuple):
    """What the type of a dense layer states."""

    inputs: int
    outputs: int

    @property
    def kernel(self) -> tuple[int, ...]:
        """The shape of the kernel."""
        return (self.inputs, self.outputs)


def layer_of(type: str) -> Convolution | Linear | None:
    """The layer that a type describes; None for a type without parameters or an unknown one."""
    for pattern, kind in ((_CONVOLUTION, Convolution), (_LINEAR, Linear)):
        if match := pattern.fullmatch(type):
            return kind(*map(int, match.groups()))
    return None


def check_architecture(architecture: Architecture, params: Mapping[str, Any]) -> None:
    """Checks a graph as `check_graph` does, and that it describes a model.

    Args:
      params: of the model, or their shapes: {"body": ..., "head": ...}.

    Raises:
      ValueError: as `check_graph`; or a node's kernel is missing or has another shape, or a
        parameter belongs to no node or to several.
    """
    check_graph(architecture)
    _check_params(architecture, flatten_dict(params))


def check_graph(architecture: Architecture) -> None:
    """Checks that a graph is whole, and that its numbers of channels fit.

    Raises:
      ValueError: a type is unknown, there is a cycle or an unconnected node, or shapes along an
        edge do not fit. One line with the architecture and the node.
    """
    _check_types(architecture)
    _check_edges(architecture)
    _check_shapes(architecture)


def refuse(architecture: Architecture, what: str, remedy: str) -> NoReturn:
    """Raises a ValueError in one line, which names the architecture if it has a name."""
    name = f"architecture {architecture.name!r}" if architecture.name else "the architecture"
    raise ValueError(f"{name}: {what}; {remedy}")


def name_of(architecture: Architecture, number: int) -> str:
    """A node for errors: its number and type."""
    return f"node {number} ({architecture.nodes[number].type})"


def _check_types(architecture):
    nodes = architecture.nodes
    for number, node in enumerate(nodes):
        if (node.type == "input") != (number == 0):
            refuse(
                architecture,
                f"node {number} has the type {node.type!r}",
                "the first node, and no other, has the type input",
            )
        if node.type not in ("input", *JOINS) and layer_of(node.type) is None:
            refuse(
                architecture,
                f"node {number} has the unknown type {node.type!r}",
                "types are input, c<in>_<out>_k<k>_s<s>, linear<in>_<out>, add and concat, "
                "with sizes of at least 1",
            )
    if nodes[-1].params != ("head",):
        last = name_of(architecture, len(nodes) - 1)
        refuse(architecture, f"{last} is not the head", "the last node has the path ('head',)")


def _check_edges(architecture):
    count = len(architecture.nodes)
    for sender, receiver in architecture.edges:
        if not (0 <= sender < count and 0 <= receiver < count):
            refuse(
                architecture,
                f"there is no node for the edge {sender} -> {receiver}",
                f"nodes have the numbers 0 to {count - 1}",
            )
        if sender >= receiver:
            refuse(
                architecture,
                f"the edge {sender} -> {receiver} leads back, as in a cycle",
                "order the nodes so that every edge leads to a later one",
            )
    for number in range(count):
        node, remedy = name_of(architecture, number), "connect it, or leave it out"
        if number > 0 and not architecture.senders(number):
            refuse(architecture, f"no edge leads to {node}", remedy)
        if number < count - 1 and not architecture.receivers(number):
            refuse(architecture, f"no edge leads from {node}", remedy)


def _check_shapes(architecture):
    """Compares numbers of channels along all edges. Those of the input are what is read."""
    channels = {}  # of the nodes so far; the input is unknown until a layer reads it
    for number, node in list(enumerate(architecture.nodes))[1:]:
        *shortcuts, main = architecture.senders(number)
        layer, name = layer_of(node.type), name_of(architecture, number)
        if layer is None:
            sizes = [channels[sender] for sender in (*shortcuts, main) if sender in channels]
            if len(sizes) < max(2, len(shortcuts) + 1):
                refuse(
                    architecture,
                    f"{name} does not join two layers",
                    "give it an edge from each of two or more layers",
                )
            channels[number] = sum(sizes) if node.type == "concat" else sizes[-1]
        else:
            size = channels.get(main, layer.inputs)
            flattened = isinstance(layer, Linear) and layer.inputs % size == 0
            if main == 0 and isinstance(layer, Convolution):
                channels[main] = size
            if size != layer.inputs and not flattened:
                refuse(
                    architecture,
                    f"{name} takes {layer.inputs} channels, and {name_of(architecture, main)} "
                    f"gives {size}",
                    "make them equal",
                )
            channels[number] = layer.outputs
        for sender in shortcuts if node.type != "concat" else ():
            if channels.get(sender, 0) > channels[number]:
                refuse(
                    architecture,
                    f"the shortcut from {name_of(architecture, sender)} has "
                    f"{channels[sender]} channels, and {name} gives {channels[number]}",
                    "leave the edge out, or give the receiver as many channels",
                )


def _check_params(architecture, leaves):
    """Compares the graph with the shapes of a model's parameters, {path: leaf}."""
    nodes = {}  # of the parameters so far, by path
    for number, node in enumerate(architecture.nodes):
        layer, prefix = layer_of(node.type), node.params
        paths = [path for path in leaves if prefix and path[: len(prefix)] == prefix]
        kernels = [tuple(leaves[path].shape) for path in paths if path[-1] == "kernel"]
        if kernels != ([layer.kernel] if layer else []) or (paths and not layer):
            shapes = " and ".join(str(list(shape)) for shape in kernels) or "none"
            refuse(
                architecture,
                f"{name_of(architecture, number)} has the kernels {shapes} at {list(prefix)}",
                "a layer has one kernel, [k, k, in, out] or [in, out], and other nodes have no "
                "parameters",
            )
        for path in paths:
            if path in nodes:
                refuse(
                    architecture,
                    f"{name_of(architecture, number)} and {name_of(architecture, nodes[path])} "
                    f"both have the parameter {list(path)}",
                    "give every node a path of its own",
                )
            nodes[path] = number
    for path in (path for path in leaves if path not in nodes):
        refuse(
            architecture,
            f"no node has the parameter {list(path)}",
            "add the layer to which it belongs",
        )
