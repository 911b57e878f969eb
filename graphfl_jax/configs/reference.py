"""Every field of every configuration, in sections, as the reference and the lists show them."""

from typing import NamedTuple

from graphfl_jax.configs.fields import BASE, EVERY, Field, all_fields

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
ALWAYS = ("data.name", "model.name", "algorithm.name")  # choices of every configuration


class Entry(NamedTuple):
    """A field, and the choices that read it."""

    name: str
    readers: dict[str, list[str]]  # such as {"algorithm.name": ["fedprox"]}; see `readers_text`
    field: Field  # of the first reader; the declaration and the default are those of all


def sections() -> dict[str, list[Entry]]:
    """The fields by the title of their section, sorted by name.

    Readers of a field with the same declaration and default share an entry.
    """
    fields = list(all_fields())
    entries = {}
    for title, choices in SECTIONS.items():
        rows = {}
        for name, field in fields:
            setting = field.setting
            if _listed_under(field) in choices:
                text = (setting.kind, setting.values, setting.meaning)
                rows.setdefault((name, text, field.default), []).append(field)
        entries[title] = [
            Entry(name, _by_choice(readers), readers[0])
            for (name, *_), readers in sorted(rows.items(), key=lambda row: row[0][0])
        ]
    return entries


def _listed_under(field):
    """The choice whose section lists a field."""
    if field.setting.when == NEW_CLIENTS:
        return NEW_CLIENTS
    return field.reader.partition("=")[0]


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
    if choice in ALWAYS:
        missing = [name for name in BASE[choice].setting.choices if name not in names]
        if not missing:
            return f"any `{choice}`"
        if len(missing) < len(names) - 1:
            return f"`{choice}`: all but {', '.join(missing)}"
    return f"`{choice}`: {', '.join(names)}"


def default_text(field: Field) -> str:
    """The default of a field as on the command line."""
    default = field.default
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
