"""Files of results, which state how they were made: command, commit, device and versions.

A command can also replace one block of a Markdown page by them: the text between the
lines ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.
"""

import shlex
import sys
import time
from pathlib import Path
from typing import Any

from absl import flags
from rich.console import Console

from graphfl_jax.runs.checkpoint import write_json, write_text
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.results import with_null
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

flags.DEFINE_string(
    "page", None, "FILE.md#BLOCK: the block of a Markdown page that the result replaces."
)


def write_results(
    out: Path, name: str, results: Any, text: str, *, since: float | None = None, note: str = ""
) -> None:
    """Writes NAME.json and NAME.md into a folder, and the block that --page names, if it does.

    Args:
      out: the folder, which is made if it does not exist.
      results: all numbers, for the JSON file, in which null is one that is not finite.
      text: in Markdown, below the provenance.
      since: `time.perf_counter` at the start of the command; None states no duration.
      note: behind the provenance.

    Raises:
      ValueError: as `around`.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{name}.json", with_null(results))
    seconds = None if since is None else time.perf_counter() - since
    page = f"{provenance(sys.argv, seconds=seconds)}{note}\n\n{text}"
    write_text(out / f"{name}.md", page)
    if flags.FLAGS.page:
        update(*_place(), page)


def print_line(console: Console, text: str) -> None:
    """Prints a text as it is, without markup, colours or line breaks."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def check_page() -> None:
    """Checks that there is the block that --page names, if it does, as `around`."""
    if flags.FLAGS.page:
        around(*_place())


def _place():
    path, _, name = flags.FLAGS.page.partition("#")
    return path, name


def update(path: str | Path, name: str, text: str) -> None:
    """Replaces the block `name` of a page. The markers and the page's line ends stay.

    Raises:
      ValueError: as `around`.
    """
    before, after = around(path, name)
    page = "\n".join([*before, text.strip("\n"), *after]) + "\n"
    if b"\r\n" in Path(path).read_bytes():
        page = page.replace("\n", "\r\n")
    write_text(Path(path), page)


def around(path: str | Path, name: str) -> tuple[list[str], list[str]]:
    """The lines of a page up to the beginning of the block `name`, and from its end on.

    Raises:
      ValueError: the page does not exist, or does not have both markers once and in order.
    """
    path = Path(path)
    begin, end = markers(name)
    if not path.is_file():
        raise ValueError(f"page={path} is not a file; choose a page that has the line {begin}")
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    places = [[i for i, line in enumerate(lines) if line == mark] for mark in (begin, end)]
    if list(map(len, places)) != [1, 1] or places[0] > places[1]:
        raise ValueError(
            f"page={path} has no block {name}; add the lines {begin} and {end} to it, once and "
            f"in this order"
        )
    (first,), (last,) = places
    return lines[: first + 1], lines[last:]


def markers(name: str) -> tuple[str, str]:
    """The lines before and after a block."""
    return f"<!-- begin {name} -->", f"<!-- end {name} -->"


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
