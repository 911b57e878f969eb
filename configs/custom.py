"""The configuration of your own data: graphfl_jax/configs/custom.py has its settings."""

from graphfl_jax.configs.custom import get_config

__all__ = ["get_config"]
