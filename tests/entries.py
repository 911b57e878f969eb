"""Entries started as a user starts them, on tiny settings."""

import os
import subprocess
import sys
from pathlib import Path

from tests.federations import SMALL

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def small_words(file="fl60.py", rounds=3):
    """Flags of a configuration at tiny sizes."""
    settings = [
        f"--config.{field}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for field, value in SMALL.items()
    ]
    return [f"--config={ROOT}/configs/{file}", *settings, f"--config.rounds={rounds}"]


def command(name, *words):
    return [sys.executable, "-m", f"experiments.{name}", *words]


def launched(name, *words, cwd, **environment):
    """Runs an entry to its end; its status, output and errors."""
    return finished(command(name, *words), cwd, environment)


def finished(words, cwd, environment):
    """Runs a command to its end; its status, output and errors."""
    env = ENVIRONMENT | environment
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def shrunk(name, *words, cwd, file):
    """As `launched`, with the settings of one of configs/ at tiny sizes."""
    script = f"""
import sys
from graphfl_jax.configs import {file} as file
from tests.federations import SMALL
whole = file.get_config
def tiny(*method):
    config = whole(*method)
    config.update_from_flattened_dict(SMALL)
    return config
file.get_config = tiny
from experiments import {name}
from experiments.common import command_line
sys.argv = {["experiments." + name, *words]!r}
entry.launch({name}.main)
"""
    return finished([sys.executable, "-c", script], cwd, {})


def entry(name, *words, cwd, file="fl60.py", **environment):
    """The same on tiny settings."""
    return launched(name, *small_words(file), *words, cwd=cwd, **environment)
