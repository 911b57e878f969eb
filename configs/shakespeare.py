"""The configuration of Shakespeare: graphfl_jax/configs/shakespeare.py has its settings."""

from graphfl_jax.configs.shakespeare import get_config

__all__ = ["get_config"]
