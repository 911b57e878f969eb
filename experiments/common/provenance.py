"""Provenance of a result page: command, commit, device and versions in one line."""

import platform
import shlex
from pathlib import Path

from graphfl_jax.runs.environment import environment
from graphfl_jax.version import __version__

ROOT = Path(__file__).resolve().parents[2]
# Flags that name folders or files of one machine.
PATH_FLAGS = {
    "out",
    "page",
    "data_root",
    "compilation_cache",
    "config.data.root",
    "config.data.path",
}


def provenance(
    argv: list[str], *, seconds: float | None = None, where: dict | None = None
) -> str:
    """One sentence in Markdown that states how a result page was made.

    Args:
      argv: ``sys.argv`` of the command. Flags that name data or output folders are left out.
      seconds: wall-clock time of the command, if it is to be stated.
      where: the `environment` of the numbers; None is this process, which initialises JAX.
    """
    where = where or environment()
    device, versions = where["device"], where["versions"]
    if "cpu" in device:
        device += f" ({_processor()})"
    duration = "" if seconds is None else f", in {seconds:.0f} s"
    return (
        f"Made by `{command(argv)}` at {_commit(where['git_commit'])} on {device}, "
        f"Python {versions['python']}, JAX {versions['jax']}{duration}."
    )


def command(argv: list[str]) -> str:
    """What was typed to start a command, without folders of this machine."""
    module = Path(argv[0]).name.removesuffix(".py").rpartition(".")[2]
    words, flag = [], ""
    for word in argv[1:]:
        if word.startswith("-"):
            name, has_value, value = word.partition("=")
            flag = name.lstrip("-")
            word = f"{name}={_portable(value)}" if has_value else word
        else:  # the value of the flag before it, as in "--out DIR", or a word of its own
            word, has_value = _portable(word), True
        if flag not in PATH_FLAGS:
            words.append(word)
        flag = "" if has_value else flag
    return shlex.join(["python", "-m", f"experiments.{module}", *words])


def _portable(value):
    """An absolute path, relative to this checkout if it is inside, else its file name."""
    path = Path(value)
    if not path.is_absolute():
        return value
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _commit(commit):
    if commit is None:
        return f"version {__version__}"
    changes = " with uncommitted changes" if commit.endswith("+changes") else ""
    return f"commit {commit[:7]}{changes}"


def _processor():
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
