"""Prints a script that completes commands, configurations, methods and flags in a shell.

    source <(graphfl completion bash)
    graphfl completion zsh > "${fpath[1]}/_graphfl"
    graphfl completion fish > ~/.config/fish/completions/graphfl.fish

The first line is for the current bash, or for ~/.bashrc. The words in the script are those of
this release, so it is to be made again after an update.
"""

import ast
import functools
import sys
from importlib.resources import files
from pathlib import Path

from graphfl_jax import commands, configs
from graphfl_jax.commands.common.help_text import refuse, words_of

LISTS = ("methods", "data", "models", "metrics", "parts", "fields")
SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """The script for bash, zsh or fish, from the template of that shell."""
    import jinja2

    template = files(commands).joinpath(f"completion.{shell}.j2").read_text("utf-8")
    return jinja2.Template(
        template,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    ).render(
        flags={
            name: " ".join([*flags, "--help"])
            for name in commands.COMMANDS
            if (flags := flags_of(name))
        },
        readers=commands.CONFIGURED,
        commands=commands.COMMANDS,
        methods=configs.methods(),
        presets=configs.PRESETS,
        lists=LISTS,
    )


def flags_of(command: str) -> list[str]:
    """The flags of a command as they are written, such as ``--out=`` and ``--resume``.

    They are read in the source of the command and of the modules that it imports, since a
    process can import only one command.
    """
    flags_by_module, pending = {}, [f"graphfl_jax.commands.{command}"]
    while pending:
        if (module := pending.pop()) not in flags_by_module:
            flags_by_module[module], imported = _flags_and_imports(module)
            pending += imported
    return sorted(flag for flags in flags_by_module.values() for flag in flags)


@functools.cache
def _flags_and_imports(module):
    """The flags that a module defines, and the modules of commands that it imports."""
    path = Path(commands.__file__).parent.joinpath(*module.split(".")[2:]).with_suffix(".py")
    if not path.is_file():
        return [], []
    flags, imported = [], []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("graphfl_jax.commands."):
            imported += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("flags.DEFINE_"):
            value = "" if ast.unparse(node.func) == "flags.DEFINE_bool" else "="
            flags.append(f"--{node.args[0].value}{value}")
    return flags, imported


def start() -> None:
    """Reads the name of the shell, and prints its script."""
    words = words_of(sys.modules[__name__], SHELLS)
    if len(words) != 1:
        refuse(f"completion needs the name of one shell; choose from {', '.join(SHELLS)}")
    print(script(words[0]), end="")
