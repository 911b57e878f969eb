"""What all commands print: ``--help``, and errors as one line; and words that are no flags."""

import sys
from collections.abc import Collection
from types import ModuleType
from typing import NoReturn

from absl import flags
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from graphfl_jax.commands.common.text_tables import say
from graphfl_jax.configs.fields import fields_of
from graphfl_jax.configs.values import values_of
from graphfl_jax.settings import perhaps

COMMANDS = ("graphfl_jax.commands.", "experiments.")  # packages whose modules are commands
# Packages of modules whose flags several commands have.
SHARED = tuple(f"{package}common." for package in COMMANDS)


def refuse(message: str) -> NoReturn:
    """Prints an error as one line and exits with status 2."""
    complain(message)
    sys.exit(2)


def complain(message: str) -> None:
    """Prints an error as one line."""
    say("error: " + " ".join(message.split()), error=True)


def name_of(command: ModuleType) -> str:
    """The name of the command that a module is, even if it is started by ``python -m``."""
    return command.__spec__.name.rpartition(".")[2]


def show_help(
    command: ModuleType, config: ConfigDict | None, *, configured: bool = True
) -> None:
    """Prints the description of a command, its flags, and the fields of a configuration.

    Without one, it prints how to list them, if the command is configured.
    """
    parts, known = [command.__doc__], set()
    for title, listed in flags_of(command).items():
        parts.append("\n".join([f"{title}:", *map(_describe, listed)]))
        known |= {flag.name for flag in listed}
    say("\n\n".join(part.strip("\n") for part in parts), prose=True)
    if config is not None:
        Console().print("", field_table(config), sep="\n")
    elif configured and "config" in known and not known & {"folders", "run"}:  # of runs
        say(
            "\nAdd a configuration to list its fields, as in --config=tpt48 --help, or "
            "--config=FILE."
        )


def flags_of(command: ModuleType) -> dict[str, list[flags.Flag]]:
    """The flags of a command and those that commands share, by titles; no libraries' flags."""
    of_command, shared = [], []
    started = getattr(sys.modules["__main__"], "__file__", None)  # the module of python -m
    for module, defined in flags.FLAGS.flags_by_module_dict().items():
        if module.startswith(SHARED):
            shared += defined
        elif module.startswith(COMMANDS) or module == started:
            of_command += defined
    titled = {f"flags of {name_of(command)}": of_command, "flags that commands share": shared}
    return {
        title: sorted(listed, key=lambda flag: flag.name)
        for title, listed in titled.items()
        if listed
    }


def _describe(flag):
    """The lines of a flag: its name, meaning, values and default."""
    name = f"[no]{flag.name}" if flag.boolean else flag.name
    text = f"--{name}: {flag.help}"
    if values := getattr(flag.parser, "enum_values", None):
        text += f" One of {', '.join(values)}."
    if flag.default not in (None, False, "", []):
        text += f" Default: {flag.default_as_str.strip(chr(39))}."
    return flags.text_wrap(text, indent="      ", firstline_indent="  ")


def field_table(config: ConfigDict) -> Table:
    """The fields of a configuration with their values, meanings and possible values."""
    values, defaults = values_of(config)
    table = Table(title="--config.FIELD=VALUE", show_edge=False)
    table.add_column("field", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("meaning, and possible values", overflow="fold")
    for name, field in fields_of(values, defaults).items():
        meaning = f"{field.setting.meaning}\n{field.setting.values}"
        table.add_row(name, Text(str(values[name])), Text(meaning))
    return table


def words_of(command: ModuleType, known: Collection[str]) -> list[str]:
    """The words after a command without flags.

    Prints the help and exits, if it is asked for, and exits with status 2 if a word is unknown.
    """
    words = sys.argv[1:]
    if {"--help", "-h"} & {*words}:
        show_help(command, None)
        sys.exit(0)
    for word in words:
        if word not in known:
            refuse(f"{word!r} is unknown{perhaps(word, known)}; choose from {', '.join(known)}")
    return words
