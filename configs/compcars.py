"""The configuration of CompCars: graphfl_jax/configs/compcars.py has its settings."""

from graphfl_jax.configs.compcars import get_config

__all__ = ["get_config"]
