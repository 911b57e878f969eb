"""Personalised federated learning with relations between clients, simulated in JAX."""

from graphfl_jax import configs
from graphfl_jax.data import from_arrays
from graphfl_jax.runs.single import Result, run

__all__ = ["Result", "configs", "from_arrays", "run"]
__version__ = "0.1.0"
