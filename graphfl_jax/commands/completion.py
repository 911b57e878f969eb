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
from pathlib import Path

from graphfl_jax import commands, configs
from graphfl_jax.commands.common.help_text import READS_RUNS, refuse, words_of

PACKAGE = Path(commands.__file__).parents[1]
LISTS = ("methods", "data", "models", "fields")
BASH = """\
_graphfl() {
    local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=
    local command=${COMP_WORDS[1]} flag=
    case $cur in  # bash makes words of : and =
        :) before=: cur= ;;
        =) before== cur= flag=${COMP_WORDS[COMP_CWORD-1]} ;;
        *) [[ $before == = ]] && flag=${COMP_WORDS[COMP_CWORD-2]} ;;
    esac
    if ((COMP_CWORD == 1)); then
        words="@COMMANDS@ --help --version"
    elif [[ $before == = && $flag != --config ]]; then
        return  # names of files
    elif [[ $cur == -* ]]; then
        case $command in
@CASES@
        esac
    else
        case $command in
            list) words="@LISTS@" ;;
            completion) words="bash zsh fish" ;;
            @CONFIGURED@)
                words="@PRESETS@"
                if [[ $before == : ]]; then words="@METHODS@"; fi ;;
        esac  # other words are files
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _graphfl graphfl
"""
ZSH = """\
#compdef graphfl
_graphfl() {
    if ((CURRENT == 2)); then
        compadd -- @COMMANDS@ --help --version
    elif [[ $PREFIX == --config=* || $PREFIX != -* ]]; then
        compset -P '--config='
        case $words[2] in
            list) compadd -- @LISTS@ ;;
            completion) compadd -- bash zsh fish ;;
            @CONFIGURED@)
                if compset -P '*:'; then
                    compadd -- @METHODS@
                else
                    compadd -- @PRESETS@
                    _files
                fi ;;
            *) _files ;;
        esac
    elif compset -P '--*='; then
        _files
    else
        local -a flags
        case $words[2] in
@CASES@
        esac
        compadd -- ${flags:#*=}
        compadd -S '' -- ${(M)flags:#*=}
    fi
}
if [[ $funcstack[1] == _graphfl ]]; then _graphfl; else compdef _graphfl graphfl; fi
"""
FISH = """\
complete -c graphfl -n __fish_use_subcommand -f -a '@COMMANDS@ --help --version'
complete -c graphfl -n '__fish_seen_subcommand_from list' -f -a '@LISTS@'
complete -c graphfl -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'
complete -c graphfl -f \
    -n '__fish_seen_subcommand_from @READERS@; and string match -q "*:*" -- (commandline -ct)' \
    -a '(for method in @METHODS@; string replace -r ":.*" ":$method" -- (commandline -ct); end)'
complete -c graphfl -n '__fish_seen_subcommand_from @READERS@' -a '@PRESETS@'
@CASES@
"""


def script(shell: str) -> str:
    """The script for bash, zsh or fish."""
    flagged = {name: flags for name in commands.COMMANDS if (flags := flags_of(name))}
    cases = {
        "bash": lambda name, words: f'            {name}) words="{words}" ;;',
        "zsh": lambda name, words: f"            {name}) flags=({words}) ;;",
        "fish": lambda name, words: (
            f"complete -c graphfl -n '__fish_seen_subcommand_from {name}' -a '{words}'"
        ),
    }
    readers = [name for name in commands.COMMANDS if reads_configuration(name)]
    words = {
        "CONFIGURED": ["|".join(readers)],
        "READERS": readers,
        "COMMANDS": commands.COMMANDS,
        "METHODS": configs.methods(),
        "PRESETS": configs.PRESETS,
        "LISTS": LISTS,
    }
    text = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell]
    lines = [
        cases[shell](name, " ".join([*flags, "--help"])) for name, flags in flagged.items()
    ]
    text = text.replace("@CASES@", "\n".join(lines))
    for name, choices in words.items():
        text = text.replace(f"@{name}@", " ".join(choices))
    return text


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


def reads_configuration(command: str) -> bool:
    """Whether a word after a command is the name of a configuration, read in its source."""
    source = PACKAGE.joinpath("commands", f"{command}.py").read_text(encoding="utf-8")
    read = "launch(main" in source and "configured=False" not in source
    return read and not {f"--{flag}=" for flag in READS_RUNS} & {*flags_of(command)}


@functools.cache
def _flags_and_imports(module):
    """The flags that a module defines, and the modules of commands that it imports."""
    path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    if not path.is_file():
        return [], []
    flags, imported = [], []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("graphfl_jax.commands."):
            imported += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("flags.DEFINE_"):
            kind = ast.unparse(node.func).removeprefix("flags.DEFINE_")
            if kind != "alias":
                value = "" if kind == "bool" else "="
                flags.append(f"--{node.args[0].value}{value}")
    return flags, imported


def start() -> None:
    """Reads the name of the shell, and prints its script."""
    shells = ("bash", "zsh", "fish")
    words = words_of(sys.modules[__name__], shells)
    if len(words) != 1:
        refuse(f"completion needs the name of one shell; choose from {', '.join(shells)}")
    print(script(words[0]), end="")
