"""The checks that every method must pass, for methods of the user's own.

import graphfl_jax as g

g.testing.check_algorithm("myprox")
"""

import inspect
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphfl_jax.configs.base import methods
from graphfl_jax.declarations import NOTHING
from graphfl_jax.settings import Choice
from graphfl_jax.testing import checks
from graphfl_jax.testing.subject import LeftOut, Subject

__all__ = ["CHECKS", "check_algorithm"]

# In the order of their file. Those with a parameter `folder` get an empty one.
CHECKS = [
    check
    for name, check in vars(checks).items()
    if inspect.isfunction(check)
    and not name.startswith("_")
    and next(iter(inspect.signature(check).parameters)) == "subject"
]


def check_algorithm(
    name: str,
    *,
    settings: Mapping[str, Any] = NOTHING,
    report: Callable[[str], None] = print,
) -> None:
    """Makes the checks that every method must pass with a method, on small federations.

    Args:
      name: of the method, as after the colon in ``graphfl run tpt48:NAME``.
      settings: other fields of its configuration.
      report: called with a line for every check: passed, left out or failed.

    Raises:
      ValueError: the method is unknown, or a field does not fit.
      AssertionError: checks failed, which are named.
    """
    name = name.replace("_", "-")
    Choice("name", tuple(methods())).check("name", name)
    subject = Subject(name, settings)
    subject.config()
    failed = []
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            takes = inspect.signature(check).parameters
            arguments = [subject, Path(folder)] if "folder" in takes else [subject]
            if not _passes(check, *arguments, report=report):
                failed.append(check.__name__)
    if failed:
        raise AssertionError(
            f"{name} fails {len(failed)} of {len(CHECKS)} checks: {', '.join(failed)}"
        )


def _passes(check, *arguments, report) -> bool:
    """Whether a check does not fail; it may be left out."""
    began, shown = time.perf_counter(), check.__name__.replace("_", " ")
    try:
        check(*arguments)
    except LeftOut as why:
        report(f"left out  {shown}: {why}")
    except Exception as error:  # whatever the user's method raises
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        report(f"failed    {shown}: {type(error).__name__}: {first}")
        return False
    else:
        report(f"passed    {shown} ({time.perf_counter() - began:.1f} s)")
    return True
