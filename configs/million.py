"""The configuration of a million clients: graphfl_jax/configs/million.py has its settings."""

from graphfl_jax.configs.million import get_config

__all__ = ["get_config"]
