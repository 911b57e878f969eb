"""Layers and settings that client models and hypernetworks share."""

from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import variance_scaling

from graphfl_jax.settings import Items

Hidden = Annotated[tuple[int, ...], Items("Widths of the hidden layers.")]

LOWERINGS = ("patches", "grouped")
BATCH_NORM_EPSILON = 1e-5


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


class Conv(nn.Module):
    """A convolution without bias: x [B, H, W, C] -> [B, H', W', features].

    The kernel [size, size, C, features] is initialised as in torchvision's residual networks:
    normal with variance 2 / (size^2 features).

    `lowering` selects the operations that XLA compiles. Results are equal up to rounding.
    "grouped" is XLA's own convolution; vmapped over clients with different kernels, it becomes
    a grouped convolution. "patches" is one matrix product per row of the kernel; vmapped over
    clients, it becomes a batched matrix product.
    """

    features: int
    size: int
    stride: int
    padding: int  # zeros on each of the four sides
    lowering: str

    @nn.compact
    def __call__(self, x):
        kernel = self.param(
            "kernel",
            variance_scaling(2.0, "fan_out", "normal"),
            (self.size, self.size, x.shape[-1], self.features),
        )
        if self.lowering == "grouped":
            return jax.lax.conv_general_dilated(
                x,
                kernel,
                (self.stride, self.stride),
                [(self.padding, self.padding)] * 2,
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
        x = jnp.pad(x, ((0, 0), *[(self.padding, self.padding)] * 2, (0, 0)))
        # [B, padded H, W', size C]: for each output column, the inputs of one kernel row
        patches = jnp.concatenate(shifted(x, 2, self.size, self.stride), axis=-1)
        rows = kernel.reshape(self.size, -1, self.features)
        return sum(
            part @ row
            for part, row in zip(shifted(patches, 1, self.size, self.stride), rows, strict=True)
        )


class BatchNorm(nn.Module):
    """Batch normalisation of x [B, H, W, C] over B, H and W, without running averages.

    Uses the mean and the biased variance of the first `count` >= 1 rows. If the collection
    "statistics" holds a mean and a variance, both [C], these are used instead. If that
    collection is mutable, the mean and the unbiased variance of the rows are stored there,
    as PyTorch's running averages are computed.
    """

    @nn.compact
    def __call__(self, x, count):
        channels = x.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, channels)
        bias = self.param("bias", nn.initializers.zeros, channels)
        if self.has_variable("statistics", "mean"):
            mean = self.get_variable("statistics", "mean")
            variance = self.get_variable("statistics", "variance")
        else:
            real = (jnp.arange(x.shape[0]) < count).astype(x.dtype)[:, None, None, None]
            numbers = (count * x.shape[1] * x.shape[2]).astype(x.dtype)
            mean = jnp.sum(x * real, axis=(0, 1, 2)) / numbers
            squares = jnp.sum(jnp.square(x - per_channel(mean)) * real, axis=(0, 1, 2))
            variance = squares / numbers
            if self.is_mutable_collection("statistics"):
                self.put_variable("statistics", "mean", mean)
                unbiased = squares / jnp.maximum(numbers - 1, 1)
                self.put_variable("statistics", "variance", unbiased)
        factor = scale * jax.lax.rsqrt(variance + BATCH_NORM_EPSILON)
        return (x - per_channel(mean)) * per_channel(factor) + per_channel(bias)


def max_pool(x):
    """Max pooling, window 3 x 3, stride 2, padding 1: x [B, H, W, C] -> [B, H', W', C].

    Among equal maxima the first gets the gradient, as in PyTorch. The gradient of XLA's own
    pooling is slower.
    """
    for axis in (2, 1):
        padding = [(1, 1) if a == axis else (0, 0) for a in range(4)]
        first, *rest = shifted(jnp.pad(x, padding, constant_values=-jnp.inf), axis, 3, 2)
        for other in rest:
            # Comparisons with NaN are false, so a NaN in `other` is taken and one in `first`
            # must be kept explicitly.
            first = jnp.where((first >= other) | jnp.isnan(first), first, other)
        x = first
    return x


def shifted(x, axis: int, size: int, stride: int) -> list:
    """Sliding windows along an axis: a list of `size` arrays, the k-th items of all windows."""
    reach = (x.shape[axis] - size) // stride * stride + 1
    return [
        jax.lax.slice_in_dim(x, first, first + reach, stride, axis) for first in range(size)
    ]


def per_channel(values):
    """Values [C] as [1, 1, 1, C]."""
    return values[None, None, None]
