"""Client models as layers with types, and weights that layers of equal types share.

The weights of a `ModelGenerator` are the same for client models of all architectures.
`type_table` is the simplest one. It has no hypernetwork: there is one learned set of parameters
for each type, and every layer of the type has these.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from graphfl_jax.core import ClientModel, Params

PARAMETERS = ("bias", "kernel", "scale")  # names of what a layer may have
Shapes = dict[str, tuple[int, ...]]  # of the parameters of a layer, by name


class ModelGenerator(NamedTuple):
    """Client models of K architectures as functions of weights that they share."""

    init: Callable  # (key) -> weights
    generate: Callable  # (weights, k) -> parameters of architecture k; of all K without k
    # (model of another architecture) -> ((weights, key) -> its parameters). Layers of a type
    # that the K architectures lack start as the model draws them. It raises a ValueError as the
    # factory does.
    for_architecture: Callable


class Layers(NamedTuple):
    """The layers of a client model, and which parameters they have."""

    name: str  # of the architecture
    types: tuple[str, ...]  # of all nodes
    shapes: tuple[Shapes, ...]  # of all nodes
    edges: np.ndarray  # [E, 2] int32, (sender, receiver)
    leaves: tuple[tuple[int, str], ...]  # node and name of each leaf of the parameters
    structure: Any  # of the tree of parameters


def generator_of(
    models: tuple[ClientModel, ...], model_name: str, make: Callable
) -> ModelGenerator:
    """Builds a `ModelGenerator`.

    Args:
      models: of the K architectures.
      model_name: of the configuration, for errors.
      make: (`Layers` of all K, shapes by type) -> (init, generate), where
        generate(weights, several) gives for each of several `Layers` the parameters of each
        node, by name; a node of an unknown type has none.

    Raises:
      ValueError: as `layers_of` and `shapes_by_type`.
    """
    every = tuple(layers_of(model, model_name) for model in models)
    shapes = shapes_by_type(every)
    init, generate = make(every, shapes)

    def of_one_or_all(weights, k=None):
        several = every if k is None else (every[k],)
        made = map(assemble, several, generate(weights, several))
        return tuple(made) if k is None else next(made)

    def for_architecture(model):
        layers = layers_of(model, model_name)
        shapes_by_type((*every, layers))

        def start(weights, key):
            (known,) = generate(weights, (layers,))
            fresh = take_apart(layers, model.init(key))
            parts = zip(layers.types, known, fresh, strict=True)
            return assemble(layers, [k if kind in shapes else new for kind, k, new in parts])

        return start

    return ModelGenerator(init, of_one_or_all, for_architecture)


def layers_of(model: ClientModel, model_name: str) -> Layers:
    """Reads the architecture of a client model.

    Raises:
      ValueError: the model has no architecture, or it does not say to which layer a parameter
        belongs, or a layer has parameters with other names than `PARAMETERS`.
    """
    architecture = model.architecture
    if architecture is None:
        raise ValueError(
            f"model.name={model_name!r} does not describe its layers, and this method "
            f"generates them one by one; set --config.model.name=mlp"
        )
    leaves, structure = jax.tree_util.tree_flatten_with_path(
        jax.eval_shape(model.init, jax.eval_shape(jax.random.key, 0))
    )
    nodes = architecture.nodes
    shapes, placed = tuple({} for _ in nodes), []
    for path, leaf in leaves:
        *parents, name = (entry.key for entry in path)
        owners = [
            number
            for number, node in enumerate(nodes)
            if node.params and tuple(parents[: len(node.params)]) == node.params
        ]
        if len(owners) != 1 or name not in PARAMETERS or name in shapes[owners[0]]:
            raise ValueError(
                f"architecture={architecture.name!r} does not place the parameter "
                f"{'.'.join([*parents, name])}; give every layer the path of its own "
                f"parameters, at most one each of {', '.join(PARAMETERS)}"
            )
        shapes[owners[0]][name] = leaf.shape
        placed.append((owners[0], name))
    types = tuple(node.type for node in nodes)
    edges = np.array(architecture.edges, np.int32).reshape(-1, 2)
    return Layers(architecture.name, types, shapes, edges, tuple(placed), structure)


def shapes_by_type(several: tuple[Layers, ...]) -> dict[str, Shapes]:
    """The shapes of the parameters of every type, in sorted order of the types.

    Raises:
      ValueError: layers of one type have different shapes.
    """
    by_type = {}
    for layers in several:
        for kind, shapes in zip(layers.types, layers.shapes, strict=True):
            if by_type.setdefault(kind, shapes) != shapes:
                raise ValueError(
                    f"type={kind!r} has parameters {by_type[kind]}, and {shapes} in "
                    f"architecture {layers.name!r}; give different layers different types"
                )
    return {kind: by_type[kind] for kind in sorted(by_type)}


def assemble(layers: Layers, by_node: list[dict]) -> Params:
    """The parameters of a model from those of each node, by name."""
    leaves = [by_node[node][name] for node, name in layers.leaves]
    return jax.tree.unflatten(layers.structure, leaves)


def take_apart(layers: Layers, params: Params) -> list[dict]:
    """The parameters of each node, by name."""
    by_node = [{} for _ in layers.types]
    for (node, name), leaf in zip(layers.leaves, jax.tree.leaves(params), strict=True):
        by_node[node][name] = leaf
    return by_node


def type_table(*, models: tuple[ClientModel, ...], model_name: str = "(own)") -> ModelGenerator:
    """Builds the generator that shares parameters by type: {type: {name: parameter}}.

    They start as those of the first layer of the type in the models, which are all initialised
    with the same key.

    Args:
      models: of the K architectures.
      model_name: of the configuration, for errors.

    Raises:
      ValueError: as `layers_of` and `shapes_by_type`.
    """

    def make(every, shapes):
        def init(key):
            table = {}
            for layers, model in zip(every, models, strict=True):
                by_node = take_apart(layers, model.init(key))
                for kind, params in zip(layers.types, by_node, strict=True):
                    if params:
                        table.setdefault(kind, params)
            return table

        def generate(table, several):
            return [[table.get(kind) for kind in layers.types] for layers in several]

        return init, generate

    return generator_of(models, model_name, make)
