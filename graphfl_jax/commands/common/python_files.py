"""Python files of the user: functions of theirs are called, and their errors are one line."""

import contextlib
import functools
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any


def call_in_file(flag: str, path: str, function: str, *words: str) -> Any:
    """What a function of a user's Python file returns.

    Args:
      flag: that names the file, for error messages.
      path: of the file.
      function: its name.
      *words: its arguments.

    Raises:
      ValueError: there is no such file or function, or the file raises. One line with the
        file, the line and the exception; an error of this package remains as it is.
    """
    contents = contents_of(flag, path)
    if not callable(contents.get(function)):
        raise ValueError(f"{flag}={path} has no {function}(); define it in the file")
    with _errors_of(flag, path):
        return contents[function](*words)


@functools.cache
def contents_of(flag: str, path: str) -> dict[str, Any]:
    """The names that a Python file defines. It is executed once, and may register own parts.

    Args:
      flag: that names the file, for error messages.
      path: of the file.

    Raises:
      ValueError: as `call_in_file`.
    """
    if not Path(path).is_file():
        raise ValueError(f"{flag}={path} is not a file; choose a Python file, such as mine.py")
    folder = str(Path(path).absolute().parent)
    if folder not in sys.path:  # last, so that the file imports its neighbours, but hides none
        sys.path.append(folder)
    with _errors_of(flag, path):
        return runpy.run_path(path)


@contextlib.contextmanager
def _errors_of(flag, path):
    """Turns what a Python file raises into an error in one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        package = Path(__file__).parents[2]
        if isinstance(error, ValueError) and Path(frames[-1].filename).is_relative_to(package):
            raise
        numbers = [frame.lineno for frame in frames if frame.filename == path]
        if isinstance(error, SyntaxError) and error.filename == path:
            numbers.append(error.lineno)
        where = f"line {numbers[-1]}: " if numbers else ""
        raise ValueError(
            f"{flag}={path} cannot be loaded ({where}{type(error).__name__}: {error}); correct "
            f"the file"
        ) from error
