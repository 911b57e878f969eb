"""The configuration of CIFAR-10: graphfl_jax/configs/cifar10.py has its settings."""

from graphfl_jax.configs.cifar10 import get_config

__all__ = ["get_config"]
