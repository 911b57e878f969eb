"""The command line of commands without flags: words after the command are names."""

import sys
from collections.abc import Collection
from types import ModuleType

from graphfl_jax.commands.common.help_text import show_help
from graphfl_jax.commands.common.refusals import refuse
from graphfl_jax.settings import perhaps


def words_of(command: ModuleType, known: Collection[str]) -> list[str]:
    """The words after a command.

    Prints the help and exits, if it is asked for, and exits with status 2 if a word is unknown.

    Args:
      command: the module of the command.
      known: the words that it takes.
    """
    words = sys.argv[1:]
    if {"--help", "-h"} & {*words}:
        show_help(command, None)
        sys.exit(0)
    for word in words:
        if word not in known:
            refuse(f"{word!r} is unknown{perhaps(word, known)}; choose from {', '.join(known)}")
    return words
