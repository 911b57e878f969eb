"""Personalised federated learning with relations between clients, simulated in JAX."""

from graphfl_jax import configs
from graphfl_jax.data import from_arrays
from graphfl_jax.runs.single import Result, run
from graphfl_jax.runs.sweep import sweep

__all__ = ["Result", "configs", "from_arrays", "run", "sweep"]
__version__ = "0.1.0"
