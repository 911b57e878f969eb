"""Layers and settings that client models and hypernetworks share."""

from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import variance_scaling

from graphfl_jax.settings import Items

Hidden = Annotated[
    tuple[int, ...], Items("Widths of the hidden layers; empty: none, which only mlp can.")
]


def dense(features: int, fan_in: int, *, use_bias: bool = True) -> nn.Dense:
    """A dense layer initialised like PyTorch's ``Linear``.

    Weights and biases are drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)). In a hypernetwork
    this choice also sets the scale of the generated weights.
    """
    # A uniform variable of variance scale / fan_in is in +-sqrt(3 scale / fan_in).
    return nn.Dense(
        features,
        use_bias=use_bias,
        kernel_init=variance_scaling(1 / 3, "fan_in", "uniform"),
        bias_init=uniform_within(fan_in**-0.5),
    )


def uniform_within(bound: float):
    """An initialiser that draws from U(-bound, bound)."""

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def init_parts(key, body: nn.Module, head: nn.Module, *example, features: int) -> dict:
    """The parameters of a client model.

    Args:
      body: (*example) -> features [1, F].
      head: features [B, F] -> outputs.
      example: what the body gets for one example.
    """
    key_body, key_head = jax.random.split(key)
    return {
        "body": body.init(key_body, *example).get("params", {}),  # it may have none
        "head": head.init(key_head, jnp.zeros((1, features)))["params"],
    }


def scale_bytes(images):
    """Bytes from 0 to 255 as floats from -1 to 1; floats as they are."""
    if images.dtype == jnp.uint8:
        return images.astype(jnp.float32) / 127.5 - 1.0
    return images
