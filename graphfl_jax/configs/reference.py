"""Every field of every configuration, in sections, as the reference and the lists show them."""

from collections.abc import Iterator
from typing import NamedTuple

from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.configs.fields import EVERY, Field, all_fields, fields_of
from graphfl_jax.data import DATASETS
from graphfl_jax.models import MODELS

SECTIONS = {  # title: the choices whose fields it lists
    "Every configuration": (EVERY,),
    "Data sets": ("data.name",),
    "Partitions": ("data.partition",),
    "Relations": ("data.graph",),
    "Client models": ("model.name",),
    "Methods": (
        "algorithm.name",
        "algorithm.attention",
        "algorithm.feedback",
        "algorithm.flha_generator",
    ),
    "Optimisers and schedules": (
        "client_optimizer",
        "client_schedule",
        "server_optimizer",
        "server_schedule",
    ),
    "Fine-tuning": ("tuning.part",),
    "New clients": ("new_clients.fraction",),
    "Attacks": ("attack.name",),
    "Defences": ("defence.name",),
}
NEW_CLIENTS = "new_clients.fraction"
WITH_NEW_CLIENTS = {NEW_CLIENTS: 0.1}
# Choices that every configuration makes.
MADE = {"data.name": DATASETS, "model.name": MODELS, "algorithm.name": ALGORITHMS}


class Entry(NamedTuple):
    """A field, and the choices that read it."""

    name: str
    readers: dict[str, list[str]]  # such as {"algorithm.name": ["fedprox"]}; see `readers_text`
    field: Field  # of the first reader; the declaration and the default are those of all


def sections() -> dict[str, list[Entry]]:
    """The fields by the title of their section, sorted by name.

    Readers of a field with the same declaration and default share an entry.
    """
    fields = list(_fields())
    found = {}
    for title, choices in SECTIONS.items():
        rows = {}
        for _, name, field in (entry for entry in fields if entry[0] in choices):
            setting = field.setting
            shown = (setting.kind, setting.values, setting.meaning)
            rows.setdefault((name, shown, field.default), []).append(field)
        found[title] = [
            Entry(name, _by_choice(own), own[0])
            for (name, *_), own in sorted(rows.items(), key=lambda row: row[0][0])
        ]
    return found


def _fields() -> Iterator[tuple[str, str, Field]]:
    """The choice whose section lists a field, the field's name, and the field."""
    for name, field in all_fields():
        choice, _, method = field.reader.partition("=")
        if choice == "algorithm.name" and name not in fields_of({choice: method}):
            continue  # of new clients, see below
        yield choice, name, field
    for method in ALGORITHMS:
        without = fields_of({"algorithm.name": method})
        fields = fields_of({"algorithm.name": method} | WITH_NEW_CLIENTS)
        for name, field in fields.items():
            if name not in without and field.reader.startswith("algorithm.name="):
                yield NEW_CLIENTS, name, field


def _by_choice(fields):
    values = {}
    for reader in dict.fromkeys(field.reader for field in fields):
        choice, _, value = reader.partition("=")
        values.setdefault(choice, []).append(value)
    return values


def readers_text(readers: dict[str, list[str]]) -> str:
    """The choices that read a field, such as "algorithm.name: all but perfedavg, pfedme".

    Names of fields are in backticks.
    """
    return "; ".join(_values(choice, names) for choice, names in readers.items())


def _values(choice, names):
    if names == [""]:
        return f"`{choice}`"
    others = [name for name in MADE.get(choice, names) if name not in names]
    if choice in MADE and not others:
        return f"any `{choice}`"
    if choice in MADE and len(others) < len(names) - 1:
        return f"`{choice}`: all but {', '.join(others)}"
    return f"`{choice}`: {', '.join(names)}"


def default_text(field: Field) -> str:
    """The default of a field as on the command line."""
    default = field.default
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
