"""Starts commands as a user does, at tiny sizes.

Importing JAX and the packages takes seconds. So a server process imports them once, and forks a
child for every start before JAX is used. The child is a fresh process in all other respects.
"""

import atexit
import functools
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from graphfl_jax.configs.fields import fields_of
from graphfl_jax.configs.values import change, values_of
from tests.federations import SMALL

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
TIMEOUT = 300  # seconds of one start

# Reads one start per line from standard input, and answers with the exit status.
SERVER = """
import atexit, gc, json, os, runpy, sys, threading, traceback
import graphfl_jax
import orbax.checkpoint, scipy.special  # which the commands import when they need them
# All but the commands and `processes`, whose flags would be those of every command.
import graphfl_jax.runs.sweep
import graphfl_jax.commands.common.plots, experiments.paper.cached_runs
import experiments.paper.panacea_text, graphfl_jax.commands.sweeping.grid
import graphfl_jax.commands.sweeping.leaderboard, graphfl_jax.commands.sweeping.trial_log

gc.freeze()  # so that a child does not copy memory when it collects garbage


def play(start):
    sys.argv = start["argv"]
    if "script" in start:
        exec(start["script"], {"__name__": "__main__"})
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def status_of(start):
    try:
        play(start)
    except SystemExit as stop:
        if not isinstance(stop.code, str):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


for line in sys.stdin:
    start = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(start["cwd"])
        os.environ.update(start["environment"])
        for number, name in enumerate([os.devnull, *start["outputs"]]):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        status = status_of(start)
        # As at the end of a process, but without the time to free all objects.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, flush=True)
"""


class Ended(NamedTuple):
    """How a process ended."""

    status: int
    stdout: str
    stderr: str


def tiny(config):
    """A configuration at the sizes of `SMALL`."""
    fields = fields_of(*values_of(config))
    return change(config, {name: value for name, value in SMALL.items() if name in fields})


def small_words(file="fl60.py", rounds=3, words=()):
    """Flags of a configuration at tiny sizes; `file` may name a method, as in "fl60.py:sfl".

    Fields that are axes of a sweep in the other `words` are left out.
    """
    name, _, method = file.partition(":")
    module = importlib.import_module(f"graphfl_jax.configs.{name.removesuffix('.py')}")
    config = module.get_config(*[method] * bool(method))
    values, before = values_of(tiny(config))[0], values_of(config)[0]
    settings = [
        f"--config.{field}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for field, value in values.items()
        if value != before[field] and not any(f".{field}=" in word for word in words)
    ]
    return [f"--config={ROOT}/configs/{file}", *settings, f"--config.rounds={rounds}"]


def command(name, *words):
    """The words that start a command as a process."""
    return [sys.executable, "-m", f"experiments.{name}", *words]


def launched(name, *words, cwd, **environment) -> Ended:
    """Runs a command to its end."""
    return _forked({"argv": [f"experiments.{name}", *words]}, cwd, environment)


def launched_small(name, *words, cwd, file="fl60.py", **environment) -> Ended:
    """Runs a command with a configuration at tiny sizes to its end."""
    return launched(name, *small_words(file, words=words), *words, cwd=cwd, **environment)


def limited(name, *words, cwd, largest, file="fl60.py") -> Ended:
    """As `launched_small`, in a process that cannot write files of more than `largest` bytes.

    A write then ends in its middle, as on a full disk.
    """
    script = f"""
import resource, runpy, sys
sys.orig_argv = [sys.executable, "-m", *sys.argv]
resource.setrlimit(resource.RLIMIT_FSIZE, ({largest}, resource.RLIM_INFINITY))
runpy.run_module("experiments.{name}", run_name="__main__", alter_sys=True)
"""
    argv = [f"experiments.{name}", *small_words(file, words=words), *words]
    return _forked({"argv": argv, "script": script}, cwd, {})


def scripted(script, *words, cwd) -> Ended:
    """Runs a script in a process that has imported the package and used no device."""
    return _forked({"argv": ["script", *map(str, words)], "script": script}, cwd, {})


def shrunk(name, *words, cwd, file, **changes) -> Ended:
    """Runs a command that chooses configurations itself, with those of `file` at tiny sizes.

    `changes` of its configurations, with __ for the dots, come before.
    """
    changes = {field.replace("__", "."): value for field, value in changes.items()}
    script = f"""
import runpy
from graphfl_jax.configs import change, {file} as file
from tests.commands import tiny
whole = file.get_config
file.get_config = lambda *method: tiny(change(whole(*method), {changes}))
runpy.run_module("experiments.{name}", run_name="__main__", alter_sys=True)
"""
    return _forked({"argv": [f"experiments.{name}", *words], "script": script}, cwd, {})


def _forked(start, cwd, environment) -> Ended:
    """Sends a start to the server, and waits until its process has ended."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        start |= {"cwd": str(cwd), "environment": environment, "outputs": [*map(str, outputs)]}
        server = _server()
        server.stdin.write(json.dumps(start) + "\n")
        server.stdin.flush()
        ready, _, _ = select.select([server.stdout], [], [], TIMEOUT)
        answer = server.stdout.readline() if ready else ""
        texts = [path.read_text() if path.exists() else "" for path in outputs]
        if not answer:
            _stop(server)
            _server.cache_clear()
            raise TimeoutError(f"{start['argv']} did not end: {''.join(texts)}")
        return Ended(int(answer), *texts)


@functools.cache
def _server():
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_stop, server)
    return server


def _stop(server):
    """Ends the server and its child, if there is one."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
