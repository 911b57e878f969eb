"""What the registry of methods holds: a factory, and what its file states about it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from graphfl_jax.core import Algorithm, Needs
from graphfl_jax.declarations import NOTHING

NO_NEEDS = Needs()


class Method(NamedTuple):
    """A method, or a variant of one."""

    factory: Callable[..., Algorithm]
    values: Mapping[str, Any] = NOTHING  # of fields; they make the method, with its factory
    needs: Needs = NO_NEEDS  # of the algorithm, where its settings have their defaults


def facts(needs: Needs = NO_NEEDS, values: Mapping[str, Any] = NOTHING) -> Callable:
    """A decorator that states the facts of a `Method` above its factory."""

    def state(factory):
        factory.facts = {"needs": needs, "values": values}
        return factory

    return state


def method_of(factory: Callable[..., Algorithm]) -> Method:
    """The method that a factory makes, with the facts that are stated above it."""
    return Method(factory, **getattr(factory, "facts", {}))


def variant(factory: Callable[..., Algorithm], values: Mapping[str, Any]) -> Method:
    """A method of the same factory, with the same needs and further values of fields."""
    method = method_of(factory)
    return method._replace(values={**method.values, **values})
