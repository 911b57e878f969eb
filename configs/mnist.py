"""The configuration of MNIST: graphfl_jax/configs/mnist.py has its settings."""

from graphfl_jax.configs.mnist import get_config

__all__ = ["get_config"]
