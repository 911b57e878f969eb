"""What the measurements of ``bench --suite`` execute, in processes of their own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from experiments.common.provenance import ROOT


class Failure(Exception):
    """A command failed or exceeded its budget; the message is one line."""


def run_command(words: list[str], seconds: float) -> str:
    """The standard output of a Python command.

    Args:
      words: after ``python``.
      seconds: after which it is stopped, with all processes that it started.

    Raises:
      Failure: it failed, or was stopped.
    """
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, *words],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"it takes longer than its budget of {seconds} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended with all its children
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        lines = [line for line in errors.splitlines() if line.strip()]
        raise Failure(lines[-1].strip() if lines else f"it ended with {process.returncode}")
    return printed


def bench(words, folder, seconds, *, file="bench.json"):
    """The numbers that `python -m experiments.bench` writes."""
    command = ["-m", "experiments.bench", *words, f"--out={folder}"]
    run_command(command, seconds)
    return json.loads((folder / file).read_text())


def scaling_over(what: str) -> Callable:
    """A `Measurement.measure` of ``bench --scaling``."""

    def measure(words, folder, seconds):
        words = (*words, f"--scaling={what}")
        return bench(words, folder, seconds, file=f"scaling_{what}.json")

    return measure


def start_up(words, folder, seconds):
    """Seconds from the command to the end of a run, without and with kept programs."""
    kept, took = folder / "compiled", {}
    for name in ("first", "second"):
        command = ["-m", "graphfl_jax", "run", *words, f"--compilation_cache={kept}"]
        began = time.perf_counter()
        run_command([*command, f"--out={folder / name}"], seconds)
        took[name] = time.perf_counter() - began
    return took


def resume(words, folder, seconds):
    """Compares a run with one that stops at half of its rounds and is resumed.

    Raises:
      Failure: the files of metrics differ.
    """
    command = ["-m", "graphfl_jax", "run", *words, f"--compilation_cache={folder / 'compiled'}"]
    parts = (("whole", 40, ()), ("resumed", 20, ()), ("resumed", 40, ("--resume",)))
    for name, rounds, more in parts:
        part = (f"--config.rounds={rounds}", f"--out={folder / name}", *more)
        run_command([*command, *part], seconds)
    whole, resumed = ((folder / n / "metrics.jsonl").read_bytes() for n in ("whole", "resumed"))
    if whole != resumed:
        raise Failure("metrics.jsonl of the resumed run differs from that of the whole run")
    return {"rounds": 40, "bytes": len(whole), "equal": True}
