"""The configuration of Fashion-MNIST: graphfl_jax/configs/fashion_mnist.py has its settings."""

from graphfl_jax.configs.fashion_mnist import get_config

__all__ = ["get_config"]
