"""Every field of every configuration, in sections, as the reference and the lists show them.

``python -m graphfl_jax.configs.reference`` prints the reference in Markdown, which is
docs/guide/settings.md.
"""

from typing import NamedTuple

from graphfl_jax.configs.fields import BASE, EVERY, all_fields
from graphfl_jax.data.new_clients import CHOSEN_BY
from graphfl_jax.declarations import Setting

SECTIONS = {  # title: the first letters of the choices whose fields it lists
    "Every configuration": (EVERY,),
    "Data sets": ("data.name",),
    "Partitions": ("data.partition",),
    "Relations": ("data.graph",),
    "Client models": ("model.",),
    "Methods": ("algorithm.",),
    "Optimisers and schedules": ("client_", "server_"),
    "Fine-tuning": ("tuning.",),
    "New clients": ("new_clients.",),
    "Availability": ("availability.", "stragglers."),
    "Clock": ("clock.",),
    "Compression": ("compression.",),
    "Privacy": ("privacy.",),
    "Attacks": ("attack.",),
    "Defences": ("defence.",),
}
ALWAYS = ("data.name", "model.name", "algorithm.name")  # choices of every configuration


INTRODUCTION = """\
# Settings

This page lists every field of a configuration. It is the output of
`.venv/bin/python -m graphfl_jax.configs.reference`; do not edit it by hand.

A field is set with `--config.FIELD=VALUE`, or in Python with
`graphfl_jax.configs.change(config, {"FIELD": value})`. A configuration has only the fields
that something in it reads; the column "read with" names the values of other fields with which a
field exists. Setting another field is an error. The defaults below are those of the source; the
configuration of a data set replaces some of them. To list the fields of one configuration with
their values, add `--help`: `graphfl run tpt48 --help`.

Floats in `hparams` are inputs of the compiled program. Another value does not compile again,
and runs that differ only in these floats and in their seeds can share one program. Another
value of any other field compiles another program, except for the seed, the numbers of rounds,
and paths.

Methods are named here by their function, as in `algorithm.name=panacea_mlp`. The name after the
colon, as in `graphfl run tpt48:panacea-mlp`, has hyphens, and may set several fields at once.
"""


class Entry(NamedTuple):
    """A field, as the reference and the lists show it."""

    name: str
    readers: str  # the choices that read it, such as "`algorithm.name`: all but pfedme"
    default: str  # as on the command line
    setting: Setting


def sections() -> dict[str, list[Entry]]:
    """The fields by the title of their section, sorted by name.

    Readers of a field with the same declaration and default share an entry.
    """
    fields = list(all_fields())
    entries = {}
    for title, starts in SECTIONS.items():
        rows = {}
        for name, field in fields:
            setting, choice = field.setting, field.reader.partition("=")[0]
            listed = CHOSEN_BY[0] if setting.when == CHOSEN_BY else choice
            if listed.startswith(starts):
                text = (setting.kind, setting.values, setting.meaning)
                rows.setdefault((name, text, field.default), []).append(field)
        entries[title] = [
            Entry(name, _readers_text(alike), _default_text(default), alike[0].setting)
            for (name, _, default), alike in sorted(rows.items(), key=lambda row: row[0][0])
        ]
    return entries


def _readers_text(fields):
    """The choices that read a field, by name of the choice."""
    values = {}
    for reader in dict.fromkeys(field.reader for field in fields):
        choice, _, value = reader.partition("=")
        values.setdefault(choice, []).append(value)
    return "; ".join(_values(choice, names) for choice, names in values.items())


def _values(choice, names):
    if names == [""]:
        return f"`{choice}`"
    if choice in ALWAYS:
        missing = [name for name in BASE[choice].setting.alternatives if name not in names]
        if not missing:
            return f"any `{choice}`"
        if len(missing) < len(names) - 1:
            return f"`{choice}`: all but {', '.join(missing)}"
    return f"`{choice}`: {', '.join(names)}"


def _default_text(default):
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def reference() -> str:
    """The page."""
    parts = [INTRODUCTION]
    for title, entries in sections().items():
        every = SECTIONS[title] == (EVERY,)
        parts.append(f"## {title}\n\n" + "\n".join(_table(entries, every=every)) + "\n")
    return "\n".join(parts)


def _table(entries, *, every):
    """Lines of a table; `every`: of fields that every configuration has."""
    heads = ["field", "read with", "type", "default", "values", "meaning"]
    rows = [heads, ["---"] * len(heads)]
    for name, readers, default, setting in entries:
        texts = [setting.kind, default and f"`{default}`", setting.values, setting.meaning]
        rows.append([f"`{name}`", readers, *texts])
    for first, reader, *cells in rows:
        shown = [first, *cells] if every else [first, reader, *cells]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in shown)} |"


if __name__ == "__main__":
    print(reference(), end="")
