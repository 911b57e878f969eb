"""Prints the reference of all fields in Markdown: ``python -m graphfl_jax.configs``.

docs/guide/settings.md is its output.
"""

from collections.abc import Iterator

from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.configs.fields import EVERY, Field, all_fields, fields_of
from graphfl_jax.data import DATASETS
from graphfl_jax.models import MODELS

INTRODUCTION = """\
# Settings

This page lists every field of a configuration. It is the output of
`.venv/bin/python -m graphfl_jax.configs`; do not edit it by hand.

A field is set with `--config.FIELD=VALUE`, or in Python with
`graphfl_jax.configs.changed(config, {"FIELD": value})`. A configuration has only the fields
that its own choices read; the column "read with" names these choices. Setting another field is
an error. The defaults below are those of the source. The file of a data set replaces some of
them. To list the fields of one configuration with their values, add `--help`:
`.venv/bin/python -m experiments.run --config=configs/tpt48.py --help`.

Floats in `hparams` are inputs of the compiled program. Another value does not compile again,
and runs that differ only in these floats and in their seeds can share one program. All other
fields are static.

Methods are named here by their function, as in `algorithm.name=panacea_mlp`. The name after the
colon of `--config=configs/tpt48.py:panacea-mlp` may set several fields at once.
"""
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


def reference() -> str:
    """The page."""
    fields = list(_fields())
    parts = [INTRODUCTION]
    for title, choices in SECTIONS.items():
        own = [entry for entry in fields if entry[0] in choices]
        parts.append(f"## {title}\n\n" + "\n".join(_table(own, choices)) + "\n")
    return "\n".join(parts)


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


def _table(entries, choices):
    """Lines of a table. Readers of a field with the same declaration share a row."""
    rows = {}
    for _, name, field in entries:
        setting = field.setting
        row = (name, setting.kind, _shown(field.default), setting.values, setting.meaning)
        rows.setdefault(row, []).append(field.reader)
    every = choices == (EVERY,)
    heads = ["field", *["read with"] * (not every), "type", "default", "values", "meaning"]
    yield _line(heads)
    yield _line(["---"] * len(heads))
    for (name, *cells), readers in sorted(rows.items(), key=lambda row: row[0][0]):
        yield _line([f"`{name}`", *[_readers(readers)] * (not every), *cells])


def _readers(readers):
    """The choices that read a field, such as "algorithm.name: all but perfedavg, pfedme"."""
    values = {}
    for reader in dict.fromkeys(readers):
        choice, _, value = reader.partition("=")
        values.setdefault(choice, []).append(value)
    return "; ".join(_values(choice, names) for choice, names in values.items())


def _values(choice, names):
    if names == [""]:
        return f"`{choice}`"
    others = [name for name in MADE.get(choice, names) if name not in names]
    if choice in MADE and not others:
        return f"any `{choice}`"
    if choice in MADE and len(others) < len(names) - 1:
        return f"`{choice}`: all but {', '.join(others)}"
    return f"`{choice}`: {', '.join(names)}"


def _shown(default):
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    return "" if default == "" else f"`{default}`"


def _line(cells):
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(reference(), end="")
