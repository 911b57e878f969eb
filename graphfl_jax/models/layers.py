"""Layers that client models and hypernetworks share."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import variance_scaling

LOWERINGS = ("patches", "grouped")
BATCH_NORM_EPSILON = 1e-5


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


class Conv(nn.Module):
    """A convolution without bias: x [B, H, W, C] -> [B, H', W', features].

    The kernel [size, size, C, features] starts as in torchvision's residual networks: normal of
    variance 2 / (size^2 features).

    `lowering` says what XLA is given, and changes no result beyond rounding: "grouped" its own
    convolution, which over clients with kernels of their own is a convolution of as many
    groups; "patches" one matrix product for each row of the kernel, which over clients is a
    batched one.
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
        # [B, padded H, W', size C]: at each output's column, what a row of the kernel sees
        seen = jnp.concatenate(shifted(x, 2, self.size, self.stride), axis=-1)
        rows = kernel.reshape(self.size, -1, self.features)
        return sum(
            part @ row
            for part, row in zip(shifted(seen, 1, self.size, self.stride), rows, strict=True)
        )


class BatchNorm(nn.Module):
    """Batch normalisation of x [B, H, W, C] over B, H and W, without running averages.

    By the mean and the biased variance of the first `count` >= 1 rows, unless the collection
    "statistics" holds a mean and a variance [C] to use in their place. Where that collection is
    mutable, it is given the rows' mean and their unbiased variance, as in PyTorch's running
    averages.
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
    """The largest of every 3 x 3 window, two apart: x [B, H, W, C] -> [B, H', W', C].

    The edges are padded by one. Of equal values the first has the gradient, as in PyTorch;
    XLA's own pooling is slower to differentiate.
    """
    for axis in (2, 1):
        padding = [(1, 1) if a == axis else (0, 0) for a in range(4)]
        first, *rest = shifted(jnp.pad(x, padding, constant_values=-jnp.inf), axis, 3, 2)
        for other in rest:
            # NaN, for which every comparison is false, passes through.
            first = jnp.where((first >= other) | jnp.isnan(first), first, other)
        x = first
    return x


def shifted(x, axis: int, size: int, stride: int) -> list:
    """Of all windows of `size` along an axis, `stride` apart: the first items, the second..."""
    reach = (x.shape[axis] - size) // stride * stride + 1
    return [
        jax.lax.slice_in_dim(x, first, first + reach, stride, axis) for first in range(size)
    ]


def per_channel(values):
    """Values [C] as [1, 1, 1, C]."""
    return values[None, None, None]
