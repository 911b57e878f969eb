"""The configuration of FEMNIST: graphfl_jax/configs/femnist.py has its settings."""

from graphfl_jax.configs.femnist import get_config

__all__ = ["get_config"]
