"""The configuration of PEMS-BAY: graphfl_jax/configs/pems_bay.py has its settings."""

from graphfl_jax.configs.pems_bay import get_config

__all__ = ["get_config"]
