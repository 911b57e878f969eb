"""The configuration of ChestX-ray14: graphfl_jax/configs/chest_xray.py has its settings."""

from graphfl_jax.configs.chest_xray import get_config

__all__ = ["get_config"]
