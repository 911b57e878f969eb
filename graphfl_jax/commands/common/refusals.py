"""Errors of commands: one line, and exit status 2."""

import sys
from typing import NoReturn


def refuse(message: str) -> NoReturn:
    """Prints an error as one line and exits with status 2."""
    complain(message)
    sys.exit(2)


def complain(message: str) -> None:
    """Prints an error as one line."""
    print("error:", " ".join(message.split()), file=sys.stderr, flush=True)
