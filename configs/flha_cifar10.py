"""CIFAR-10 with several architectures: graphfl_jax/configs/flha_cifar10.py has its settings."""

from graphfl_jax.configs.flha_cifar10 import get_config

__all__ = ["get_config"]
