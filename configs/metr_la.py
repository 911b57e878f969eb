"""The configuration of METR-LA: graphfl_jax/configs/metr_la.py has its settings."""

from graphfl_jax.configs.metr_la import get_config

__all__ = ["get_config"]
