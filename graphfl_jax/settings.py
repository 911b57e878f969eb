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
checks of their values, the output of ``--help`` and the reference of all fields.
"""

import ast
import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from graphfl_jax.declarations import Declaration, Place, Setting

# The largest values that programs compute with; ranges without an upper end hold up to these.
LARGEST_INTEGER = 2**31 - 1
LARGEST_FLOAT = 3.4028234663852886e38
UNTRACED = "data"  # the section whose floats are not in ``hparams``


@dataclasses.dataclass(frozen=True)
class _Number(Setting):
    """A number in a range. A kind of numbers has the constants that the checks name."""

    low: float = 0.0
    high: float = math.inf

    def parse(self, text: str) -> Any:
        return self.number(text)

    def check(self, field: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, self.types):
            raise _wrong_type(field, value, self.example)
        if not (abs(value) < math.inf and self.low <= value <= self.high):
            raise _out_of_range(field, value, self)
        if self.high == math.inf and abs(value) > self.largest:
            raise ValueError(
                f"{field}={value} is too large for 32 bits; set --config.{field} to "
                f"{self.largest:.10g} or less"
            )
        return self.number(value)


class Real(_Number):
    """A float. Those of methods, models, optimisers, attacks and defences are traced."""

    kind, number, types, largest = "float", float, int | float, LARGEST_FLOAT
    example, finite = "a number such as 0.1", "finite and "

    @property
    def values(self) -> str:
        if self.low == -math.inf:
            return "finite"
        return f"[{self.low:g}, {self.high:g}]" if self.high < math.inf else f">= {self.low:g}"

    @property
    def alternatives(self) -> tuple:
        return (min(max(self.low, 1.0), self.high),)

    def field(self, section: str, name: str) -> str:
        return f"{section if section == UNTRACED else 'hparams'}.{name}"


@dataclasses.dataclass(frozen=True)
class Integer(_Number):
    """An integer. It is static: another value compiles another program."""

    low: int = 1

    kind, number, types, largest = "int", int, int, LARGEST_INTEGER
    example, finite = "an integer", ""

    @property
    def values(self) -> str:
        return f"[{self.low}, {self.high}]" if self.high < math.inf else f">= {self.low}"


class Shared(Integer):
    """An integer of several factories, whose field is in no section."""

    def field(self, section: str, name: str) -> str:
        return name


@dataclasses.dataclass(frozen=True)
class Choice(Setting):
    """One of several names. An empty choice means none.

    `choices` may be a registry, to which names are added later.
    """

    choices: Collection[str]
    or_none: bool = dataclasses.field(default=False, kw_only=True)

    kind = "str"

    @property
    def alternatives(self) -> Collection[str]:
        return ("", *self.choices) if self.or_none else self.choices

    @property
    def values(self) -> str:
        return ", ".join(choice or "(empty)" for choice in self.alternatives)

    def check(self, field: str, value: Any) -> str:
        if not isinstance(value, str) or value not in self.alternatives:
            choices = ", ".join(filter(None, self.alternatives))
            empty = ", or leave it empty for none" if "" in self.alternatives else ""
            near = perhaps(str(value), self.alternatives)
            raise ValueError(
                f"{field}={value!r} is unknown{near}; choose from {choices}{empty}"
            )
        return value


class Text(Setting):
    """A free text, such as a path."""

    kind, values = "str", "text"

    def check(self, field: str, value: Any) -> str:
        if not isinstance(value, str):
            raise _wrong_type(field, value, "text")
        return value


class Switch(Setting):
    """Yes or no."""

    kind, values = "bool", "true, false"
    alternatives = (True,)

    def parse(self, text: str) -> bool:
        return {"true": True, "false": False}[text.lower()]

    def check(self, field: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise _wrong_type(field, value, "true or false")
        return value


@dataclasses.dataclass(frozen=True)
class Items(Setting):
    """A sequence of integers or names, such as ``16,16``."""

    choices: Collection[str] = ()  # the possible items; without any, all are possible

    kind = "tuple"

    @property
    def values(self) -> str:
        of = f" of {', '.join(self.choices)}" if self.choices else ""
        return f"items{of}, separated by commas"

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
                text, choices = ",".join(map(str, value)), ", ".join(self.choices)
                raise ValueError(f"{field}={text}: {item!r} is unknown; choose from {choices}")
        return tuple(value)


class Part(Declaration):
    """A part that another factory makes from settings of its own.

    Args:
      factory: of the part; its declarations become those of the factory that takes the part.
      **defaults: replace the factory's own defaults.
    """

    def __init__(self, factory: Callable, **defaults: Any):
        self.factory, self.defaults = factory, defaults

    def add_fields(self, form, place, name, default):
        form.walk(self.factory, place, self.defaults)

    def value(self, source, section, name):
        return source.make(self.factory, section)


@dataclasses.dataclass(frozen=True)
class Variant(Choice):
    """One of several factories, by name. Their settings are fields of the same section.

    The parameter gets what the chosen factory makes, or None if the choice is empty.
    """

    factories: Mapping[str, Callable] = dataclasses.field(default_factory=dict)

    def add_fields(self, form, place, name, default):
        super().add_fields(form, place, name, default)
        field = self.field(place.section, name)
        chosen = form.depend(field) if field in form.fields else ""
        if chosen:
            form.walk(self.factories[chosen], Place(place.section, f"{field}={chosen}"))

    def value(self, source, section, name):
        factory = self.factories.get(super().value(source, section, name))
        return factory and source.make(factory, section)


def perhaps(name: str, names: Iterable[str]) -> str:
    """The names that an unknown one resembles, as a part of an error; empty if none.

    If none is spelt like it, these are the shortest that have all its words: client_lr for lr.
    """
    names = sorted(names, key=lambda known: (len(known), known))
    near = difflib.get_close_matches(name, names, n=3)
    near = near or [known for known in names if _words(name) <= _words(known)][:3]
    *firsts, last = near or [""]
    near = f"{', '.join(firsts)} or {last}" if firsts else last
    return near and f"; perhaps {near} is meant"


def _words(name):
    return set(re.split(r"\W|_", name.lstrip("-").replace("learning_rate", "lr")))


def _wrong_type(field, value, expected):
    kind = type(value).__name__
    return ValueError(
        f"{field}={value!r} is of type {kind}; set --config.{field} to {expected}"
    )


def _out_of_range(field, value, declared):
    if declared.high < math.inf:
        return ValueError(
            f"{field}={value} is not in {declared.values}; set --config.{field} to a value in "
            f"{declared.values}"
        )
    if declared.low == -math.inf:
        return ValueError(f"{field}={value} must be finite; set --config.{field} to a number")
    return ValueError(
        f"{field}={value} must be {declared.finite}at least {declared.low:g}; "
        f"set --config.{field}={declared.low:g} or more"
    )
