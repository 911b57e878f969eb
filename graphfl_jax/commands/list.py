"""Lists the methods, the data sets, the client models, and the fields of configurations.

    graphfl list
    graphfl list methods
    graphfl list data models

Words after the command choose what is listed: methods, data, models and fields. Methods are
shown with their papers, and fields with their type, default, possible values and meaning, and
with the choices that read them. `graphfl run tpt48 --help` lists the fields of one
configuration with their values.
"""

import inspect
import sys
from collections.abc import Callable, Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from graphfl_jax import configs
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.commands.common.help_text import words_of
from graphfl_jax.configs.fields import fields_of
from graphfl_jax.configs.reference import sections
from graphfl_jax.data import DATASETS
from graphfl_jax.models import MODELS

Row = tuple[str, ...]


def methods() -> Iterator[Row]:
    """The name, the description and the paper of each method."""
    for name, values in configs.methods().items():
        algorithm = values["algorithm.name"]
        factory, common, _ = ALGORITHMS[algorithm]
        module = inspect.getmodule(factory)
        title, *blocks = inspect.getdoc(module).split("\n\n")
        description = " ".join(title.split())
        if module.__name__.rpartition(".")[2] != algorithm:  # one of several in a file
            description += f" {_first_sentence(factory).removeprefix('Builds ')}"
        common = {"algorithm.name": algorithm, **common}
        special = {field: v for field, v in values.items() if field not in common}
        if special:
            text = ", ".join(f"{field}={value}" for field, value in special.items())
            description += f" Here with {text}."
        paper = blocks[0] if blocks and not blocks[0].startswith((" ", "Departures")) else ""
        yield name, description, " ".join(paper.split())


def data() -> Iterator[Row]:
    """The name, the task and the clients, and the source of each data set."""
    for name, loader in DATASETS.items():
        about = ""
        if name in configs.PRESETS:
            about = inspect.getmodule(configs.PRESETS[name]).__doc__.partition("\n")[0]
        source = fields_of({"data.name": name}).get("data.source")
        sources = f" data.source: {source.setting.values}." if source else ""
        yield name, about, _first_sentence(loader) + sources


def models() -> Iterator[Row]:
    """The name and the description of each client model."""
    for name, factory in MODELS.items():
        yield name, _first_sentence(factory)


def fields() -> Iterator[Row]:
    """The name, type, default, values, meaning and readers of each field."""
    for entries in sections().values():
        for name, readers, default, setting in entries:
            known = readers.replace("`", "")
            about = f"{setting.meaning}\n{setting.kind}: {setting.values}\nread by {known}"
            yield name, default, about


LISTS: dict[str, tuple[tuple[str, ...], Callable[[], Iterator[Row]]]] = {
    "methods": (("method", "description", "paper"), methods),
    "data": (("data set", "task and clients", "source"), data),
    "models": (("client model", "description"), models),
    "fields": (("field", "default", "meaning, type, values and readers"), fields),
}


def _first_sentence(factory):
    """The first sentence of a function's docstring."""
    paragraph = " ".join(inspect.getdoc(factory).split("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".").replace("``", "") + "."


def _table(heads, rows):
    """Rows as a table whose first column is never folded."""
    table = Table(show_edge=False, box=box.SIMPLE_HEAD, pad_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, no_wrap=i == 0, overflow="fold", ratio=i or None)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def start() -> None:
    """Reads the words, and prints the lists."""
    console = Console()
    for word in words_of(sys.modules[__name__], LISTS) or LISTS:
        heads, rows = LISTS[word]
        console.print(_table(heads, rows()), "")
