"""Declarations of settings: each is written once, in the signature of its factory.

A factory of a method, model, data set, optimiser, attack or defence annotates a parameter with
its declaration, and the parameter's default is the setting's default:

    def fedprox(
        model: ClientModel,
        train: Train,
        *,
        mu: Annotated[Array, Real("Weight of the proximal term; 0 is FedAvg.")] = 0.1,
    ) -> Algorithm:

`configs.fields` collects the declarations of a configuration: from them come its fields, the
checks of their values, the output of ``--help`` and the reference of all fields. A parameter
without a declaration is a part that the builder supplies, such as the client model.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import math
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

# The largest values that programs compute with; ranges without an upper end hold up to these.
LARGEST_INTEGER = 2**31 - 1
LARGEST_FLOAT = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True)
class Real:
    """A float. Those of methods, models, optimisers, attacks and defences are traced."""

    meaning: str
    low: float = 0.0
    high: float = math.inf
    when: str = ""  # a field without which, or at 0 or empty, nothing reads this one

    kind = "float"

    @property
    def values(self) -> str:
        if self.low == -math.inf:
            return "finite"
        return f"[{self.low:g}, {self.high:g}]" if self.high < math.inf else f">= {self.low:g}"

    def parse(self, text: str) -> float:
        return float(text)

    def check(self, field: str, value: Any) -> float:
        """The value as a float. Raises a ValueError in one line if it is outside the range."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong_type(field, value, "a number such as 0.1")
        if not (math.isfinite(value) and self.low <= value <= self.high):
            raise _out_of_range(field, value, "finite and " * (self.high == math.inf), self)
        if abs(value) > LARGEST_FLOAT:
            raise _too_large(field, value, LARGEST_FLOAT)
        return float(value)


@dataclasses.dataclass(frozen=True)
class Integer:
    """An integer. It is static: another value compiles another program."""

    meaning: str
    low: int = 1
    high: float = math.inf
    when: str = ""

    kind = "int"

    @property
    def values(self) -> str:
        return f"[{self.low}, {self.high}]" if self.high < math.inf else f">= {self.low}"

    def parse(self, text: str) -> int:
        return int(text)

    def check(self, field: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(field, value, "an integer")
        if not self.low <= value <= self.high:
            raise _out_of_range(field, value, "", self)
        if self.high == math.inf and value > LARGEST_INTEGER:
            raise _too_large(field, value, LARGEST_INTEGER)
        return value


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several names. An empty choice means none."""

    meaning: str
    choices: Collection[str]
    when: str = ""

    kind = "str"

    @property
    def values(self) -> str:
        return ", ".join(choice or "(empty)" for choice in self.choices)

    def parse(self, text: str) -> str:
        return text

    def check(self, field: str, value: Any) -> str:
        if not isinstance(value, str) or value not in self.choices:
            choices = ", ".join(filter(None, self.choices))
            empty = ", or leave it empty for none" if "" in self.choices else ""
            near = perhaps(str(value), self.choices)
            raise ValueError(
                f"{field}={value!r} is unknown{near}; choose from {choices}{empty}"
            )
        return value


@dataclasses.dataclass(frozen=True)
class Text:
    """A free text, such as a path."""

    meaning: str
    when: str = ""

    kind, values = "str", "text"

    def parse(self, text: str) -> str:
        return text

    def check(self, field: str, value: Any) -> str:
        if not isinstance(value, str):
            raise _wrong_type(field, value, "text")
        return value


@dataclasses.dataclass(frozen=True)
class Switch:
    """Yes or no."""

    meaning: str
    when: str = ""

    kind, values = "bool", "true, false"

    def parse(self, text: str) -> bool:
        return {"true": True, "false": False}[text.lower()]

    def check(self, field: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise _wrong_type(field, value, "true or false")
        return value


@dataclasses.dataclass(frozen=True)
class Items:
    """A sequence of integers or names, such as ``16,16``."""

    meaning: str
    choices: Collection[str] = ()  # the possible items; without any, all are possible
    when: str = ""

    kind = "tuple"

    @property
    def values(self) -> str:
        return (
            f"items{' of ' * bool(self.choices)}{', '.join(self.choices)}, separated by commas"
        )

    def parse(self, text: str) -> tuple:
        try:
            value = ast.literal_eval(text) if text else ()
        except (SyntaxError, ValueError):
            value = tuple(text.split(","))  # names without quotes
        return tuple(value) if isinstance(value, tuple | list) else (value,)

    def check(self, field: str, value: Any) -> tuple:
        if isinstance(value, str) or not isinstance(value, tuple | list):
            raise _wrong_type(field, value, "items such as 16,16")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int | str):
                raise ValueError(
                    f"{field}={value!r} has the item {item!r}; set --config.{field} to "
                    f"integers or names, such as 16,16"
                )
        for item in value if self.choices else ():
            if item not in self.choices:
                given, known = ",".join(map(str, value)), ", ".join(self.choices)
                raise ValueError(f"{field}={given}: {item!r} is unknown; choose from {known}")
        return tuple(value)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimiser. Its kind, schedule and floats are fields that begin with `side`.

    Attributes:
      side: "client" or "server"; two parameters of one side share all fields but the rate and
        the schedule, which a learning rate of a field of its own does not have.
      defaults: of the fields that differ from those that the optimisers declare, by their names
        without the side.
      rate: the field of the learning rate in ``hparams``; by default ``SIDE_lr``.
      meaning: of the learning rate.
    """

    side: str
    defaults: tuple[tuple[str, Any], ...] = ()
    rate: str = ""
    meaning: str = ""


class Part:
    """A part that another factory makes from settings of its own.

    Args:
      factory: of the part; its declarations become those of the factory that takes the part.
      **defaults: replace the factory's own defaults.
    """

    def __init__(self, factory: Callable, **defaults: Any):
        self.factory, self.defaults = factory, defaults


@dataclasses.dataclass(frozen=True)
class Variant(Choice):
    """One of several factories, by name. Their settings are fields of the same section.

    The parameter gets what the chosen factory makes, or None if the choice is empty.
    """

    factories: Mapping[str, Callable] = dataclasses.field(default_factory=dict)


SETTINGS = (Real, Integer, Choice, Text, Switch, Items)


class Parameter(NamedTuple):
    """A parameter of a factory."""

    name: str
    declaration: Any  # one of SETTINGS, an Optimizer, a Part, or None for what is supplied
    default: Any  # inspect.Parameter.empty without one


@functools.cache
def parameters(factory: Callable) -> tuple[Parameter, ...]:
    """The parameters of a factory with their declarations, in the order of its signature."""
    hints = typing.get_type_hints(factory, include_extras=True)
    found = []
    for name, parameter in inspect.signature(factory).parameters.items():
        extras = getattr(hints.get(name), "__metadata__", ())
        kinds = (*SETTINGS, Optimizer, Part)
        declaration = next((extra for extra in extras if isinstance(extra, kinds)), None)
        found.append(Parameter(name, declaration, parameter.default))
    return tuple(found)


def perhaps(name: str, known: Iterable[str]) -> str:
    """The known names that an unknown one resembles, as a part of an error; empty if none."""
    *others, last = difflib.get_close_matches(name, known, n=3) or [""]
    near = f"{', '.join(others)} or {last}" if others else last
    return near and f"; perhaps {near} is meant"


def _wrong_type(field, value, expected):
    kind = type(value).__name__
    return ValueError(
        f"{field}={value!r} is of type {kind}; set --config.{field} to {expected}"
    )


def _out_of_range(field, value, finite, declared):
    if declared.high < math.inf:
        return ValueError(
            f"{field}={value} is not in {declared.values}; set --config.{field} to a value in "
            f"{declared.values}"
        )
    if declared.low == -math.inf:
        return ValueError(f"{field}={value} must be finite; set --config.{field} to a number")
    return ValueError(
        f"{field}={value} must be {finite}at least {declared.low:g}; "
        f"set --config.{field}={declared.low:g} or more"
    )


def _too_large(field, value, largest):
    return ValueError(
        f"{field}={value} is too large for 32 bits; set --config.{field} to {largest:.10g} or "
        f"less"
    )
