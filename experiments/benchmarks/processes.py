"""Python commands, each in a new process, for `benchmarks.suite`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from experiments.common import pages


class Failure(Exception):
    """A command failed or exceeded its budget; the message is one line."""


def run_command(
    words: list[str],
    seconds: float,
    python: str = sys.executable,
    variables: dict[str, str] | None = None,
) -> str:
    """The standard output of a Python command; it gets so many seconds.

    Args:
      variables: of the environment, beside those of this process.

    Raises:
      Failure: it failed, or was stopped with all processes that it started.
    """
    pipe = subprocess.PIPE
    streams = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
    process = _start(words, python, variables, **streams)
    try:
        printed, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise _late(seconds) from error
    finally:
        _stop(process)
    if process.returncode:
        raise _failure(errors, process)
    return printed


@contextlib.contextmanager
def answering(words: list[str], seconds: float) -> Iterator[Callable[[str], Any]]:
    """A Python command that answers each line of its input by a line of JSON.

    It is stopped at the end of the block, and after so many seconds.

    Yields:
      A function that sends a line and returns the answer. It raises `Failure` if the command
      has ended.
    """
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+") as errors:
        process = _start(words, sys.executable, None, stdin=pipe, stdout=pipe, stderr=errors)
        late = threading.Event()

        def stop_late():
            late.set()
            process.kill()

        def ask(line):
            with contextlib.suppress(BrokenPipeError):  # it has ended, so nothing is read below
                process.stdin.write(f"{line}\n")
                process.stdin.flush()
            answer = process.stdout.readline()
            if answer:
                return json.loads(answer)
            process.wait()
            errors.seek(0)
            raise _late(seconds) if late.is_set() else _failure(errors.read(), process)

        timer = threading.Timer(seconds, stop_late)
        timer.start()
        try:
            yield ask
        finally:
            timer.cancel()
            _stop(process)
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _start(words, python, variables, **streams):
    return subprocess.Popen(
        [python, *words],
        env=os.environ | {"PYTHONPATH": str(pages.ROOT)} | (variables or {}),
        text=True,
        start_new_session=True,
        **streams,
    )


def _stop(process):
    """Ends a process with all that it started."""
    with contextlib.suppress(ProcessLookupError):  # it has ended with all its children
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _late(seconds):
    return Failure(f"it takes longer than its budget of {seconds} s")


def _failure(errors, process):
    """The failure of a process that has ended: the last line of its errors."""
    lines = [line for line in errors.splitlines() if line.strip()]
    return Failure(lines[-1].strip() if lines else f"it ended with {process.returncode}")
