"""Layers that client models and hypernetworks share."""

import flax.linen as nn
import jax
from jax.nn.initializers import variance_scaling


def dense(features: int, fan_in: int, *, use_bias: bool = True) -> nn.Dense:
    """A dense layer initialised as PyTorch's ``Linear``: U(+-1/sqrt(fan_in)), biases too.

    A hypernetwork inherits the scale of the weights that it generates from this choice.
    """
    bound = fan_in**-0.5

    def uniform(key, shape, dtype=None):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    # A uniform variable of variance scale / fan_in lies within sqrt(3 scale / fan_in).
    return nn.Dense(
        features,
        use_bias=use_bias,
        kernel_init=variance_scaling(1 / 3, "fan_in", "uniform"),
        bias_init=uniform,
    )
