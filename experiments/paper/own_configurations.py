"""Tables over configuration files of the user: methods by files over several seeds."""

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from ml_collections import ConfigDict

from experiments.paper import panacea_text
from experiments.paper.columns import Column, Row
from experiments.paper.configurations import Cell
from experiments.paper.tables import TABLES, Table
from graphfl_jax.commands.common.configuration import configuration_in_file
from graphfl_jax.commands.common.python_files import contents_of
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
        text=_text(name_of(files)),
    )


def _row(cell, config, runs) -> Row:
    return panacea_text.table_row(NAME, config, runs) | {"setting": cell.setting}


def _text(name):
    """As the text of Panacea's tables, with the configurations and no published scores."""
    text = panacea_text.text_of(NAME)
    setting = Column("configuration", itemgetter("setting"), scored=False, console=False)
    return text._replace(
        columns=(setting, *text.columns[:-1]),
        title=lambda row: text.title(row).replace(NAME, row["setting"], 1),
        introduction=lambda rows: [f"{name}: t{text.introduction(rows)[0][1:]}"],
    )
