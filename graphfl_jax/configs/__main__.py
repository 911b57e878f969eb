"""Prints the reference of all fields in Markdown: ``python -m graphfl_jax.configs``.

docs/guide/settings.md is its output.
"""

from graphfl_jax.configs.reference import EVERY, SECTIONS, default_text, readers_text, sections

INTRODUCTION = """\
# Settings

This page lists every field of a configuration. It is the output of
`.venv/bin/python -m graphfl_jax.configs`; do not edit it by hand.

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
    for name, readers, field in entries:
        default, setting = default_text(field), field.setting
        texts = [setting.kind, default and f"`{default}`", setting.values, setting.meaning]
        rows.append([f"`{name}`", readers_text(readers), *texts])
    for first, reader, *cells in rows:
        yield _line([first, *cells] if every else [first, reader, *cells])


def _line(cells):
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(reference(), end="")
