"""The configuration of TPT-48: graphfl_jax/configs/tpt48.py has its settings."""

from graphfl_jax.configs.tpt48 import get_config

__all__ = ["get_config"]
