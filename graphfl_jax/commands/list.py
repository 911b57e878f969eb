"""Lists the methods, the data sets, the client models, the metrics, the parts, and all fields.

    graphfl list
    graphfl list methods
    graphfl list methods ditto panacea
    graphfl list data models metrics
    graphfl list parts

Words after the command choose what is listed: methods, data, models, metrics, parts and fields.
Names of methods after them show all about these: equations, papers, departures and fields.
Parts combine with methods: attacks, defences, compression, privacy, absent clients, relations,
partitions and optimisers. Fields are shown with their type, default, possible values and
meaning, and with the choices that read them. `graphfl run tpt48 --help` lists the fields of one
configuration with their values.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from graphfl_jax import configs
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.commands.common.help_text import words_of
from graphfl_jax.commands.common.text_tables import UNBOUNDED, say
from graphfl_jax.configs.fields import fields_of
from graphfl_jax.configs.reference import ALWAYS, sections
from graphfl_jax.data import DATASETS
from graphfl_jax.declarations import parameters
from graphfl_jax.metrics import METRICS, METRICS_OF
from graphfl_jax.models import MODELS
from graphfl_jax.settings import Choice

Row = tuple[str, ...]


def methods() -> Iterator[Row]:
    """The name of each method, what it needs, and what it is, in one line."""
    for name, values in configs.methods().items():
        method = ALGORITHMS[values["algorithm.name"]]
        needs = method.needs
        takes = {parameter.name for parameter in parameters(method.factory)}
        marks = (needs.relations, needs.labels, "models" in takes, bool(needs.held_out))
        yield name, *("x" * mark for mark in marks), _untitled(description_of(name))


def description_of(method: str) -> str:
    """What a method is, in a sentence."""
    values = configs.methods()[method]
    algorithm = values["algorithm.name"]
    factory, common, _ = ALGORITHMS[algorithm]
    module = inspect.getmodule(factory)
    title = " ".join(inspect.getdoc(module).split("\n\n")[0].split())
    if module.__name__.rpartition(".")[2] != algorithm:  # one of several in a file
        title = _first_sentence(factory).removeprefix("Builds ")
    usual = {"algorithm.name": algorithm, **common}
    special = {f: v for f, v in values.items() if f not in usual or v != usual[f]}
    if special:
        text = ", ".join(f"{field}={value}" for field, value in special.items())
        title = f"{algorithm.replace('_', '-')} with {text}."
    return title


def about(method: str) -> str:
    """All about a method: what its file says, and its fields with their defaults."""
    values, what = configs.methods()[method], description_of(method)
    algorithm = values["algorithm.name"]
    text = inspect.getdoc(inspect.getmodule(ALGORITHMS[algorithm].factory))
    if " ".join(text.partition("\n\n")[0].split()) == what:
        text = text.partition("\n\n")[2]
    read = fields_of(values)
    lines = [
        f"  {name} = {values.get(name, field.default)}  {field.setting.meaning}"
        for name, field in read.items()
        if field.reader == f"algorithm.name={algorithm}"
    ]
    return "\n".join([f"{method}: {what}\n", f"{text}\n", "Fields:", *lines])


def data() -> Iterator[Row]:
    """The name of each data set, which data there are, and its task and clients."""
    for name, loader in DATASETS.items():
        what = _first_sentence(loader)
        if name in configs.PRESETS:
            what = inspect.getmodule(configs.PRESETS[name]).__doc__.partition("\n")[0]
        source = fields_of({"data.name": name}).get("data.source")
        values = source.setting.values if source else ""
        reads = {"root", "path"} & {parameter.name for parameter in parameters(loader)}
        marks = ("real" in values, "simulated" in values, "generated" in values or not reads)
        yield name, *("x" * mark for mark in marks), _untitled(what)


def models() -> Iterator[Row]:
    """The name and the description of each client model."""
    for name, factory in MODELS.items():
        yield name, _first_sentence(factory)


def metrics() -> Iterator[Row]:
    """The name, the tasks and the description of each further metric."""
    for name, function in METRICS.items():
        tasks = [task for task, names in METRICS_OF.items() if name in names]
        text = inspect.getdoc(function)
        yield name, ", ".join(tasks) or "any", text.splitlines()[0] if text else ""


def parts() -> Iterator[Row]:
    """The field, the value and the description of each part that combines with methods."""
    for entries in sections().values():
        chosen = {entry.name: entry.setting for entry in entries if entry.name not in ALWAYS}
        for name, setting in chosen.items():
            registry = setting.choices if isinstance(setting, Choice) else ()
            if isinstance(registry, Mapping):
                yield from (
                    (name, value, _first_sentence(registry[value])) for value in registry
                )


def fields() -> Iterator[Row]:
    """The name, type, default, values, meaning and readers of each field."""
    for entries in sections().values():
        for name, readers, default, setting in entries:
            known = readers.replace("`", "")
            about = f"{setting.meaning}\n{setting.kind}: {setting.values}\nread by {known}"
            yield name, default, about


NOTES = {
    "methods": "rel: needs relations; lab: needs classes; net: clients may have different "
    "networks; val: needs a validation split. graphfl list methods NAME shows all about one.",
    "parts": "--config.FIELD=VALUE chooses a part.",
    "data": "real: files of real data; sim: simulated ones; gen: generated by a formula. "
    "--config.data.source chooses; graphfl run NAME --help shows all about one.",
}
LISTS: dict[str, tuple[tuple[str, ...], Callable[[], Iterator[Row]]]] = {
    "methods": (("method", "rel", "lab", "net", "val", "description"), methods),
    "data": (("data set", "real", "sim", "gen", "task and clients"), data),
    "models": (("client model", "description"), models),
    "metrics": (("metric", "tasks", "description"), metrics),
    "parts": (("field", "value", "description"), parts),
    "fields": (("field", "default", "meaning, type, values and readers"), fields),
}


def _untitled(text):
    """A line without the name before its colon."""
    return text.partition(": ")[2] or text


def _first_sentence(factory):
    """The first sentence of a function's docstring."""
    paragraph = " ".join(inspect.getdoc(factory).split("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".").replace("``", "") + "."


def _table(heads, rows):
    """Rows of three cells as a table whose last column has the most room."""
    table = Table(show_edge=False, box=box.SIMPLE_HEAD, pad_edge=False)
    for head, options in zip(heads, ({"no_wrap": True}, {"max_width": 12}, {}), strict=True):
        table.add_column(head, overflow="fold", **options)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _lines(heads, rows, width, lines):
    """Rows whose last cell has at most so many lines of the width, and is cut after a word."""
    *short, last = zip(heads, *rows, strict=True)
    widths = [max(map(len, cells)) for cells in short]
    gaps = [1 if size < 5 else 2 for size in widths]  # marks are close to each other
    for *cells, text in zip(*short, last, strict=True):
        columns = zip(cells, widths, gaps, strict=True)
        begin = "".join(cell.ljust(size + gap) for cell, size, gap in columns)
        left = max(width - len(begin), 10)
        first, *more = textwrap.wrap(text, left, max_lines=lines, placeholder=" ...") or [""]
        yield f"{begin}{first}"
        yield from (f"{' ' * len(begin)}{line}" for line in more)


def start() -> None:
    """Reads the words, and prints the lists."""
    console = Console()
    names = configs.methods()
    words = words_of(sys.modules[__name__], {**LISTS, **names})
    chosen = [word for word in words if word in names]
    for name in chosen:
        say(about(name) + "\n", prose=True)
    lists = [word for word in words if word in LISTS and not (chosen and word == "methods")]
    for word in lists or ([] if chosen else LISTS):
        heads, rows = LISTS[word]
        if word == "fields":
            console.print(_table(heads, rows()))
        else:
            width = console.width if console.is_terminal else UNBOUNDED
            # So that all methods are on one screen; another list has the rest of each.
            for line in _lines(heads, rows(), width, 1 if word == "methods" else None):
                console.print(Text(line), soft_wrap=True)
        say(NOTES.get(word, "") + "\n")
