"""The configuration of CIFAR-100: graphfl_jax/configs/cifar100.py has its settings."""

from graphfl_jax.configs.cifar100 import get_config

__all__ = ["get_config"]
