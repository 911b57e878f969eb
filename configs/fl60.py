"""The configuration of FL-60: graphfl_jax/configs/fl60.py has its settings."""

from graphfl_jax.configs.fl60 import get_config

__all__ = ["get_config"]
