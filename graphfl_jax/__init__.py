"""Personalised federated learning with relations between clients, simulated in JAX."""

import importlib
from typing import TYPE_CHECKING

from graphfl_jax.version import __version__

if TYPE_CHECKING:
    from graphfl_jax import configs, register, testing
    from graphfl_jax.build import federation
    from graphfl_jax.data import from_arrays
    from graphfl_jax.models.flax_modules import client_model
    from graphfl_jax.reading import Runs, read
    from graphfl_jax.runs.fleet import Fleet, load
    from graphfl_jax.runs.single import Result, run
    from graphfl_jax.runs.sweep import sweep

__all__ = [
    "Fleet",
    "Result",
    "Runs",
    "client_model",
    "configs",
    "federation",
    "from_arrays",
    "load",
    "read",
    "register",
    "run",
    "sweep",
    "__version__",
    "testing",
]

_MODULES = {
    "Fleet": "graphfl_jax.runs.fleet",
    "Result": "graphfl_jax.runs.single",
    "Runs": "graphfl_jax.reading",
    "client_model": "graphfl_jax.models.flax_modules",
    "federation": "graphfl_jax.build",
    "from_arrays": "graphfl_jax.data",
    "load": "graphfl_jax.runs.fleet",
    "read": "graphfl_jax.reading",
    "run": "graphfl_jax.runs.single",
    "sweep": "graphfl_jax.runs.sweep",
}


def __getattr__(name):
    """Imports a public name when it is first used: JAX and its libraries take seconds."""
    if name in ("configs", "register", "testing"):
        return importlib.import_module(f"graphfl_jax.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'graphfl_jax' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
