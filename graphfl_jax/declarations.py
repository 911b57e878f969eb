"""What a parameter of a factory is: its fields in a configuration, and its value.

A `Declaration` states both. `Form` collects the fields that the parameters of factories read,
and `Source` calls factories with the values of these fields. The kinds of declarations are in
`settings` and `optimizers`; a new kind is one class.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

EMPTY = inspect.Parameter.empty
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Declaration:
    """What a parameter of a factory is."""

    def add_fields(self, form: "Form", place: "Place", name: str, default: Any) -> None:
        """Adds the fields that the parameter `name` reads. `default` may be EMPTY."""

    def value(self, source: "Source", section: str, name: str) -> Any:
        """What the parameter `name` of a factory gets, or EMPTY: the factory's own default."""
        raise NotImplementedError

    def misfit(self, name: str, default: Any, supplied: Collection[str]) -> str:
        """Why a factory cannot have such a parameter, as a part of an error; empty if it can.

        `supplied` are the names of what the builder supplies.
        """
        return ""


@dataclasses.dataclass(frozen=True)
class Setting(Declaration):
    """A value that is a field of the same name."""

    meaning: str
    # Fields without which, or if all are 0 or empty, nothing reads this one
    when: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
    kind: ClassVar[str]  # the name of its type
    values: ClassVar[str]  # those that it can have, as text
    alternatives: ClassVar[Collection] = ()  # values with which there may be other fields

    def parse(self, text: str) -> Any:
        """The value that a text states. Raises a KeyError or a ValueError if it states none."""
        return text

    def check(self, field: str, value: Any) -> Any:
        """The value. Raises a ValueError in one line if it is outside the range."""
        raise NotImplementedError

    def field(self, section: str, name: str) -> str:
        return f"{section}.{name}"

    def add_fields(self, form, place, name, default):
        chosen = [form.depend(field) for field in self.when]  # all: each decides
        if not self.when or any(chosen):
            form.add(self.field(place.section, name), self, default, place.reader)

    def value(self, source, section, name):
        return source.values.get(self.field(section, name), EMPTY)

    def misfit(self, name, default, supplied):
        if default is EMPTY:
            return f"the setting {name!r} has no default"
        try:
            self.check(name, default)
        except ValueError:
            fits = f"{self.kind}, {self.values}"
            return f"the default {default!r} of {name!r} does not fit its declaration ({fits})"
        return ""


class Supplied(Declaration):
    """A parameter without a declaration, such as the client model: the builder supplies it."""

    def value(self, source, section, name):
        return source.supplied.get(name, EMPTY)

    def misfit(self, name, default, supplied):
        if name in supplied or default is not EMPTY:
            return ""
        names = ", ".join(supplied)
        return f"{name!r} is neither declared nor one of those supplied ({names})"


class Parameter(NamedTuple):
    """A parameter of a factory."""

    name: str
    declaration: Declaration
    default: Any  # EMPTY without one


@functools.cache
def parameters(factory: Callable) -> tuple[Parameter, ...]:
    """The parameters of a factory with their declarations, in the order of its signature."""
    hints = typing.get_type_hints(factory, include_extras=True)
    signature = inspect.signature(factory).parameters
    result = []
    for name, parameter in signature.items():
        extras = getattr(hints.get(name), "__metadata__", ())
        declared = (extra for extra in extras if isinstance(extra, Declaration))
        result.append(Parameter(name, next(declared, Supplied()), parameter.default))
    return tuple(result)


class SameAs(NamedTuple):
    """A default: the number that another field of the configuration has."""

    field: str  # dotted name


class Field(NamedTuple):
    """A field of a configuration."""

    setting: Setting
    default: Any
    reader: str  # the choice that reads it, such as "algorithm.name=fedprox"


class Place(NamedTuple):
    """Where the fields of a factory are, and why there are any."""

    section: str  # of its settings, such as "algorithm"
    reader: str  # the choice of the factory, such as "algorithm.name=fedprox"


class Form:
    """The fields of a configuration, as declarations add them.

    Attributes:
      fields: by dotted name; a declaration of a field that there is changes nothing.
      choices: fields whose values decide on other fields, with alternatives to these values.
      nested: those of `choices` that decide within a factory.
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any] = NOTHING):
        """
        Args:
          values: of fields; only those that choose something are read.
          defaults: of fields, in place of the declared ones.
        """
        self.fields: dict[str, Field] = {}
        self.choices: dict[str, Collection] = {}
        self.nested: set[str] = set()
        self._values, self._defaults = values, defaults

    def add(self, name: str, setting: Setting, default: Any, reader: str) -> None:
        """Adds a field."""
        if name in self.fields:
            return
        default = self._defaults.get(name, default)
        if isinstance(default, SameAs):
            other = self.fields[default.field].default
            default = setting.check(name, self._values.get(default.field, other))
        self.fields[name] = Field(setting, default, reader)

    def choose(self, name: str) -> Any:
        """The value of a field that decides on others. Raises a ValueError if it is wrong."""
        setting, default, _ = self.fields[name]
        self.choices[name] = setting.alternatives
        return setting.check(name, self._values.get(name, default))

    def depend(self, name: str) -> Any:
        """As `choose`, for a field that decides within a factory."""
        self.nested.add(name)
        return self.choose(name)

    def walk(
        self, factory: Callable, place: Place, defaults: Mapping[str, Any] = NOTHING
    ) -> None:
        """Adds the fields of a factory. `defaults` replace those of its signature."""
        for name, declaration, default in parameters(factory):
            declaration.add_fields(self, place, name, defaults.get(name, default))


class Source(NamedTuple):
    """What factories are called with."""

    values: Mapping[str, Any]  # of the fields of a configuration, by dotted name
    supplied: Mapping[str, Any] = NOTHING  # by name of a parameter

    def make(self, factory: Callable, section: str) -> Any:
        """What a factory makes from its settings, its parts, and what is supplied."""
        arguments = {
            name: declaration.value(self, section, name)
            for name, declaration, _ in parameters(factory)
        }
        return factory(**{name: v for name, v in arguments.items() if v is not EMPTY})
