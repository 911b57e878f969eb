"""``graphfl COMMAND``, or ``python -m graphfl_jax COMMAND``: see `graphfl_jax.commands`."""

import os
import signal
import sys

if __name__ == "__main__" or os.path.basename(sys.argv[0]).startswith("graphfl"):
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once, without a traceback
    from graphfl_jax.commands.common import interrupts

    interrupts.install()  # before the imports of a command, which take seconds

import ast
import gc
import importlib
from pathlib import Path

from graphfl_jax import commands
from graphfl_jax.commands.common.text_tables import say
from graphfl_jax.settings import perhaps
from graphfl_jax.version import __version__

OVERVIEW = """\
graphfl {version}: personalised federated learning with relations between clients, in JAX

    graphfl COMMAND [--FLAG=VALUE]
    graphfl COMMAND CONFIGURATION[:METHOD] [--FLAG=VALUE] [--config.FIELD=VALUE]

The second form is for run and sweep.

commands:
{commands}

examples:
  graphfl run tpt48
  graphfl run fl60:ditto --config.seed=3 --out=runs/mine
  graphfl run tpt48 --help
  graphfl list methods

graphfl COMMAND --help describes a command and its flags."""


def main() -> None:
    """Starts the command that the first word names."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--help", "-h", "help"):
        say(overview())
    elif name == "--version":
        print(f"graphfl {__version__}")
    elif name in commands.COMMANDS:
        sys.argv[:2] = [f"graphfl {name}"]
        _imported(f"graphfl_jax.commands.{name}").start()
    else:
        near, names = perhaps(name, commands.COMMANDS), ", ".join(commands.COMMANDS)
        why = f"is unknown{near}; choose from {names}"
        if name in commands.OF_A_CHECKOUT:
            module = f"python -m experiments.{name}"
            why = f"is {module} in a checkout of the repository; start it there"
        say(f"error: command {name!r} {why}", error=True)
        sys.exit(2)


def _imported(module):
    """A module, imported without the collection of garbage, which takes an eighth of the time.

    What has been imported is never garbage, so later collections skip it.
    """
    gc.disable()
    imported = importlib.import_module(module)
    gc.freeze()
    gc.enable()
    return imported


def overview() -> str:
    """What ``graphfl --help`` prints. No command is imported, which would take seconds."""
    width = max(map(len, commands.COMMANDS))
    lines = [f"  {name:{width}}  {_summary(name)}" for name in commands.COMMANDS]
    return OVERVIEW.format(version=__version__, commands="\n".join(lines))


def _summary(name):
    """The first line of the description of a command."""
    source = Path(commands.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


if __name__ == "__main__":
    main()
