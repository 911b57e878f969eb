"""Starts entries as a user does, at tiny sizes.

Importing JAX and the packages takes seconds. So a server process imports them once, and forks a
child for every start before JAX is used. The child is a fresh process in all other respects.
"""

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.federations import SMALL

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
TIMEOUT = 300  # seconds of one start

# Reads one start per line from standard input, and answers with the exit status.
SERVER = """
import gc, json, os, runpy, sys
import matplotlib.pyplot, orbax.checkpoint, rich.progress
import experiments.common.command_line, experiments.common.plots, experiments.paper.published
import graphfl_jax

gc.freeze()  # so that a child does not copy memory when it collects garbage
for line in sys.stdin:
    start = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(start["cwd"])
        os.environ.update(start["environment"])
        for number, name in enumerate([os.devnull, *start["outputs"]]):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = start["argv"]
        if "script" in start:
            exec(start["script"], {"__name__": "__main__"})
            sys.exit()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, flush=True)
"""


def small_words(file="fl60.py", rounds=3):
    """Flags of a configuration at tiny sizes."""
    settings = [
        f"--config.{field}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for field, value in SMALL.items()
    ]
    return [f"--config={ROOT}/configs/{file}", *settings, f"--config.rounds={rounds}"]
