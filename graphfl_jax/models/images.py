"""Layers of networks for images, whose activations are [channels, height, width, batch]."""

from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import variance_scaling

from graphfl_jax.models.convolutions import convolve, windows
from graphfl_jax.settings import Switch

Augment = Annotated[
    bool,
    Switch("Whether training images are moved by up to 4 pixels at random, and half mirrored."),
]
BATCH_NORM_EPSILON = 1e-5
_MOVED = 4  # pixels
_CHANNELS = (1, 3, 4)  # of grey, of colours, and of colours with opacity


def has_channels_first(inputs) -> bool:
    """Whether examples are images [C, H, W], by their sizes."""
    if len(inputs) != 3 or inputs[-1] in _CHANNELS:
        return False
    return inputs[0] in _CHANNELS and inputs[0] < min(inputs[1:])


def remedy_for(inputs, channels=_CHANNELS) -> str:
    """What to do with examples that are no images [H, W, C], with C one of `channels`."""
    if has_channels_first(inputs) and inputs[0] in channels:
        return (
            "move the channels to the end, of a file with --config.data.images=channels_first "
            "and else by np.moveaxis(x, 1, -1)"
        )
    if has_channels_first(inputs) and inputs[0] > max(channels):
        return "move the colours to the end, by np.moveaxis(x, 1, -1)[..., :3]"
    return "set --config.model.name=mlp, or choose other data"


def columns(images):
    """Images [B, H, W, C] as [C, H, W, B]."""
    return jnp.moveaxis(images, (0, 3), (3, 0))


def augment_images(images, key):
    """Images [B, H, W, C], each moved at random, and mirrored with probability 1/2.

    An image is cropped out of itself with 4 zeros added on each side, as is common for CIFAR
    (He et al., Deep Residual Learning for Image Recognition, CVPR 2016). Zeros are black in
    bytes.
    """
    key_corner, key_mirror = jax.random.split(key)
    corners = jax.random.randint(key_corner, (images.shape[0], 2), 0, 2 * _MOVED + 1)
    mirrored = jax.random.bernoulli(key_mirror, 0.5, images.shape[:1])

    def crop(image, corner, mirror):
        moved = jax.lax.dynamic_slice(image, (*corner, jnp.int32(0)), images.shape[1:])
        return jnp.where(mirror, moved[:, ::-1], moved)

    added = jnp.pad(images, ((0, 0), (_MOVED, _MOVED), (_MOVED, _MOVED), (0, 0)))
    return jax.vmap(crop)(added, corners, mirrored)


class Conv(nn.Module):
    """A convolution without bias: [C, H, W, B] -> [features, H', W', B].

    The kernel [size, size, C, features] is initialised as in torchvision's residual networks:
    normal with variance 2 / (size^2 features).
    """

    features: int
    size: int
    stride: int
    padding: int  # zeros on each of the four sides
    lowering: str  # one of `LOWERINGS`

    @nn.compact
    def __call__(self, x):
        init = variance_scaling(2.0, "fan_out", "normal")
        kernel = self.param("kernel", init, (self.size, self.size, len(x), self.features))
        options = {"padding": self.padding, "lowering": self.lowering, "stride": self.stride}
        return convolve(x, kernel, **options)


class BatchNorm(nn.Module):
    """Batch normalisation of x [C, H, W, B] over H, W and B, without running averages.

    Uses the mean and the biased variance of the first `count` >= 1 examples. If the collection
    "statistics" holds a mean and a variance, both [C], these are used instead. If that
    collection is mutable, the mean and the unbiased variance of the examples are stored there,
    as PyTorch's running averages are computed. It computes in float32, and returns the type of
    x.
    """

    @nn.compact
    def __call__(self, x, count):
        channels, dtype = (len(x),), x.dtype
        scale = self.param("scale", nn.initializers.ones, channels)
        bias = self.param("bias", nn.initializers.zeros, channels)
        x, scale, bias = (value.astype(jnp.float32) for value in (x, scale, bias))
        if self.has_variable("statistics", "mean"):
            mean = self.get_variable("statistics", "mean")
            variance = self.get_variable("statistics", "variance")
        else:
            real = (jnp.arange(x.shape[3]) < count).astype(x.dtype)[None, None, None]
            numbers = (count * x.shape[1] * x.shape[2]).astype(x.dtype)
            mean = jnp.sum(x * real, axis=(1, 2, 3)) / numbers
            squares = jnp.sum(jnp.square(x - per_channel(mean)) * real, axis=(1, 2, 3))
            variance = squares / numbers
            if self.is_mutable_collection("statistics"):
                self.put_variable("statistics", "mean", mean)
                unbiased = squares / jnp.maximum(numbers - 1, 1)
                self.put_variable("statistics", "variance", unbiased)
        factor = scale * jax.lax.rsqrt(variance + BATCH_NORM_EPSILON)
        return ((x - per_channel(mean)) * per_channel(factor) + per_channel(bias)).astype(dtype)


def halve(x):
    """Max pooling, window 2 x 2, stride 2, of [C, H, W, B]; drops a last odd row or column."""
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = jnp.maximum(x[:, 0:height:2], x[:, 1:height:2])
    return jnp.maximum(x[:, :, 0:width:2], x[:, :, 1:width:2])


def max_pool(x):
    """Max pooling, window 3 x 3, stride 2, padding 1: x [C, H, W, B] -> [C, H', W', B].

    Among equal maxima the first gets the gradient, as in PyTorch. The gradient of XLA's own
    pooling is slower.
    """
    for axis in (2, 1):
        padding = [(1, 1) if a == axis else (0, 0) for a in range(4)]
        x, *later = windows(jnp.pad(x, padding, constant_values=-jnp.inf), axis, 3, 2)
        for values in later:
            # Comparisons with NaN are false, so a NaN in `values` is taken and one in `x` must
            # be kept explicitly.
            x = jnp.where((x >= values) | jnp.isnan(x), x, values)
    return x


def per_channel(values):
    """Values [C] as [C, 1, 1, 1]."""
    return values[:, None, None, None]
