"""Tables over configuration files of the user: methods by files over several seeds."""

import functools
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from experiments.paper import table_text
from experiments.paper.configurations import Cell
from experiments.paper.row_text import SPREAD
from experiments.paper.tables import TABLES, Row, Table
from graphfl_jax.commands.common.configuration import configuration_in_file
from graphfl_jax.commands.common.python_files import contents_of
from graphfl_jax.commands.common.text_tables import escaped, markdown_table
from graphfl_jax.configs.values import change

NAME = "own"  # in place of a key of `published.PUBLISHED`
SEEDS = 5  # by default


def name_of(files: Sequence[str]) -> str:
    """The name of the table of configuration files."""
    return "-".join(Path(file).stem for file in files)


def execute(files: Sequence[str]) -> None:
    """Executes the files, so that what they register is known.

    Raises:
      ValueError: two have the same name, the only one has that of a table of the papers, there
        is no such file, or one raises.
    """
    stems = [Path(file).stem for file in files]
    if len(set(stems)) < len(stems):
        raise ValueError(
            f"configs={','.join(files)} names two files alike; give them different names"
        )
    if name_of(files) in TABLES:
        raise ValueError(
            f"configs={','.join(files)} has the name of a table of the papers, whose files "
            f"would be replaced; give the file another name"
        )
    for file in files:
        contents_of("configs", file)


def own_config(
    file: str, method: str, *, root: str | None = None, rounds: int | None = None
) -> ConfigDict:
    """The configuration of a method in a file.

    Args:
      file: with get_config(method).
      method: one of `configs.methods`.
      root: folder of the data files; None is that of the file.
      rounds: rounds, if not those of the file, for a quick look.

    Raises:
      ValueError: the file cannot be read, or a value does not fit.
    """
    changes = {"data.root": root, "rounds": rounds}
    changes = {field: value for field, value in changes.items() if value is not None}
    return change(configuration_in_file("configs", file, method), changes)


def own_table(files: Sequence[str], methods: Sequence[str]) -> Table:
    """The table of methods by files. Its name and the captions are the names of the files.

    Args:
      files: that `execute` has executed.
      methods: at least one.

    Raises:
      ValueError: as `own_config`.
    """
    cells = tuple(
        Cell(own_config(file, methods[0]).data.name, setting=Path(file).stem, base=file)
        for file in files
    )
    return Table(
        methods=tuple(methods),
        cells={"": cells},
        datasets=(),
        seeds=SEEDS,
        row=_row,
        complete=list,
        console=lambda rows: table_text.console_table(rows[0]["setting"], rows),
        markdown=functools.partial(_markdown, name_of(files)),
        notes=table_text.notes,
    )


def _row(cell, config, runs) -> Row:
    return table_text.table_row(NAME, config, runs) | {"setting": cell.setting}


def _markdown(name, rows):
    """The table in Markdown: as `table_text.markdown`, without published scores."""
    metrics = dict.fromkeys(f"{row['data']}: {row['metric']}, {row['unit']}" for row in rows)
    heads, *lines = [table_text.heads_of(NAME), *table_text.score_rows(NAME, rows)]
    settings = [row["setting"] for row in rows]
    text = [["configuration", *heads[:-1]]]
    text += [[own, *cells[:-1]] for own, cells in zip(settings, lines, strict=True)]
    parts = [
        f"{name}: test scores of {rows[0]['seeds']} seeds; {'; '.join(metrics)}. {SPREAD}\n",
        markdown_table(text),
        *(f"{escaped(note)}\n" for note in table_text.notes(rows)),
    ]
    return "\n".join(parts)
