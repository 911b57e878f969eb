"""The configuration of HAR: graphfl_jax/configs/har.py has its settings."""

from graphfl_jax.configs.har import get_config

__all__ = ["get_config"]
