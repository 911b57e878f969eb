"""Personalised federated learning with relations between clients, simulated in JAX."""

from graphfl_jax.runs.single import Result, run

__all__ = ["Result", "run"]
__version__ = "0.1.0"
