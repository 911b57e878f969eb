"""Related clients with two networks: graphfl_jax/configs/two_networks.py has its settings."""

from graphfl_jax.configs.two_networks import get_config

__all__ = ["get_config"]
