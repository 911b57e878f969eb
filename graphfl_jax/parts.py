"""Parts of a model's parameters, chosen by a rule over their leaves.

A rule states for each parameter whether it belongs to the part. `split` takes parameters apart
by a rule, and `merge` puts them together again. So a method can send one part and keep the
other:

>>> params = {"body": 1.0, "head": 2.0}
>>> personal, shared = split(params, head)
>>> personal, shared
({'body': None, 'head': 2.0}, {'body': 1.0, 'head': None})
>>> merge(personal, shared) == params
True

In a part, None stands for each parameter of the other one. It is no leaf of a tree, so means,
updates and traffic of a part have nothing of it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from graphfl_jax.core import Params

Rule = Callable[[Params], Any]  # parameters -> a tree of the same structure, True in the part


def head(params: Params) -> Any:
    """The rule of the parameters of the head."""
    return {side: _everywhere(side == "head", tree) for side, tree in params.items()}


def body(params: Params) -> Any:
    """The rule of the parameters of the body."""
    return {side: _everywhere(side == "body", tree) for side, tree in params.items()}


def normalisation(params: Params) -> Any:
    """The rule of normalisation: layers with a ``scale``, but for the ``kernel`` of some.

    A convolution that normalises its outputs has all of ``kernel``, ``scale`` and ``bias``.
    """
    if not isinstance(params, Mapping):
        return _everywhere(False, params)
    if "scale" in params:
        return {name: _everywhere(name != "kernel", leaf) for name, leaf in params.items()}
    return {name: normalisation(layer) for name, layer in params.items()}


def last_tensors(count: int) -> Rule:
    """The rule of the last `count` parameters, with the body before the head.

    Layers are in the order of their names, in which numbers count as numbers.
    """

    def rule(params):
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        last = sorted(paths, key=_place)[-count:] if count else []
        return jax.tree_util.tree_map_with_path(lambda path, leaf: path in last, params)

    return rule


RULES: dict[str, Rule] = {"head": head, "body": body, "normalisation": normalisation}


def split(params: Params, rule: Rule) -> tuple[Params, Params]:
    """The parameters of the part, and the remaining ones, each with None for the others."""
    chosen = rule(params)
    return (
        jax.tree.map(lambda leaf, inside: leaf if inside else None, params, chosen),
        jax.tree.map(lambda leaf, inside: None if inside else leaf, params, chosen),
    )


def merge(selected: Params, remaining: Params) -> Params:
    """The parameters of which `split` has made two parts."""
    return jax.tree.map(
        lambda leaf, other: other if leaf is None else leaf,
        selected,
        remaining,
        is_leaf=lambda leaf: leaf is None,
    )


def optimizer_of_parts(
    rule: Rule, inside: optax.GradientTransformation, outside: optax.GradientTransformation
) -> optax.GradientTransformation:
    """An optimiser with rates of its own for a part.

    Args:
      rule: of the part.
      inside: of the parameters of the part; `optax.set_to_zero` leaves them as they are.
      outside: of all other parameters.
    """
    return optax.partition({True: inside, False: outside}, rule)


def _everywhere(value, tree):
    return jax.tree.map(lambda leaf: value, tree)


def _place(path):
    """The place of a parameter: its names, in which numbers count as numbers."""
    names = [re.split(r"(\d+)", str(entry.key)) for entry in path]
    return [[(not p.isdigit(), int(p) if p.isdigit() else p) for p in name] for name in names]
