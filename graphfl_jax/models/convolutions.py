"""Convolutions as matrix products.

Arrays are [channels, height, width, batch]. On a CPU, the batch as the last axis fills the
vector registers, and the gradients of weights become products that XLA computes fast. Elsewhere
XLA chooses the layout in memory itself.

Minimal filtering (lowering `winograd`) computes m = 4 neighbouring outputs y of a row from
n = m + k - 1 inputs d, with n multiplications instead of m k (Winograd. Arithmetic Complexity
of Computations. SIAM 1980; Lavin, Gray. Fast Algorithms for Convolutional Neural Networks.
CVPR 2016. https://arxiv.org/abs/1509.09308):

    y = A^T [(G g) * (B^T d)]

The product of two polynomials with k and m coefficients, g and u, is evaluated at n points:
V^-1 [(V_k g) * (V_m u)], where V is the Vandermonde matrix of the points and V_k its first k
columns. This is linear in u, and its transpose computes y: A = V_m, G = V_k and B = V^-1. Here,
only the axis of width is filtered. So the products of all channels and kernel rows are sums,
which are one matrix product for each point.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax.settings import Choice

LOWERINGS = ("auto", "rows", "im2col", "winograd", "xla")
Lowering = Annotated[
    str,
    Choice(
        "How convolutions are computed: one product per kernel row, one product, products of "
        "filtered rows, or XLA's own convolution; auto decides by the size of the kernel and "
        "its input channels: im2col or winograd on a CPU, im2col or xla elsewhere.",
        LOWERINGS,
    ),
]
TILE = 4  # m, outputs
# Of the evaluation, in addition to infinity. Few and small denominators keep rounding small:
# for k = 5, errors are about 5 times as large as those of direct sums.
POINTS = (0, 1, -1, 1 / 2, -2, -1 / 2, 2)
LARGEST = len(POINTS) + 2 - TILE  # size of a kernel that can be filtered
# From which on filtering is faster than `im2col`, for kernels of the largest size. It takes
# 0.65 of the time for 32 channels, 0.8 for 16 and 1.0 for 8. With 3 x 3, a round of ResNet-18
# takes 1.45 times as long.
# On an H100, cuDNN's grouped convolutions of LeNet, with 1 and 6 channels, take 5.6 times as
# long as `im2col`. More channels have not been measured there.
MANY_CHANNELS = 16


def convolve(x, kernel, *, padding: int, lowering: str, stride: int = 1):
    """A convolution: [C, H, W, B] and [k, k, C, F] -> [F, H', W', B].

    Args:
      padding: zeros on each of the four sides.
      lowering: one of `LOWERINGS`. Results are equal up to rounding. `winograd` is `im2col`
        for a kernel of size 1 or above `LARGEST`, or with a stride.
      stride: of both axes.
    """
    size, _, channels, features = kernel.shape
    x = x.astype(kernel.dtype)
    if lowering == "auto" and jax.default_backend() != "cpu":
        lowering = "im2col" if channels < MANY_CHANNELS else "xla"
    elif lowering == "auto":
        gains = size == LARGEST and channels >= MANY_CHANNELS and kernel.dtype == jnp.float32
        lowering = "winograd" if gains else "im2col"
    if lowering == "xla":
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(stride, stride),
            padding=[(padding, padding), (padding, padding)],
            dimension_numbers=("CHWN", "HWIO", "CHWN"),
        )
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    if lowering == "winograd" and stride == 1 and 1 < size <= LARGEST:
        return filter_rows(x, kernel)
    # [k C, padded H, W', B]: for each output column, the inputs of one kernel row
    parts = windows(jnp.concatenate(windows(x, 2, size, stride)), 1, size, stride)
    height, width = parts[0].shape[1:3]
    if lowering in ("im2col", "winograd"):
        product = kernel.reshape(-1, features).T @ jnp.concatenate(parts).reshape(
            size * size * channels, -1
        )
    else:
        rows = kernel.reshape(size, size * channels, features)
        product = sum(
            row.T @ part.reshape(len(part), -1) for row, part in zip(rows, parts, strict=True)
        )
    return product.reshape(features, height, width, -1)


def transforms(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrices A [n, m], G [n, size] and B^T [n, n] of a kernel with `size` columns."""
    count = TILE + size - 1
    powers = np.vander(POINTS[: count - 1], count, increasing=True)
    infinity = np.eye(count)[-1:]
    matrix = np.concatenate([powers, infinity])

    def first(columns):
        return np.concatenate([powers[:, :columns], np.eye(columns)[-1:]])

    return first(TILE), first(size), np.linalg.inv(matrix).T


def filter_rows(x, kernel):
    """A convolution without padding: x [C, H, W, B] and kernel [k, k, C, F] -> [F, H', W', B].

    `k` is at most `LARGEST`.
    """
    size, _, channels, features = kernel.shape
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    a, g, b_transposed = (jnp.asarray(matrix, kernel.dtype) for matrix in transforms(size))
    points = len(g)
    tiles = -(-width // TILE)
    x = jnp.pad(x, ((0, 0), (0, 0), (0, tiles * TILE - width), (0, 0)))
    inputs = jnp.stack(windows(x, 2, points, TILE))  # d [n, C, H, tiles, B]
    inputs = (b_transposed @ inputs.reshape(points, -1)).reshape(inputs.shape)  # B^T d
    inputs = jnp.concatenate(windows(inputs, 2, size, 1), axis=1)  # [n, k C, H', tiles, B]
    rows = jnp.einsum("nj,hjcf->nhcf", g, kernel)  # G g
    products = jnp.einsum(
        "nkf,nkp->nfp",
        rows.reshape(points, size * channels, features),
        inputs.reshape(points, size * channels, -1),
    )
    outputs = a.T @ products.reshape(points, -1)  # y [m, F H' tiles B]
    outputs = outputs.reshape(TILE, features, height, tiles, -1)
    outputs = jnp.moveaxis(outputs, 0, 3).reshape(features, height, tiles * TILE, -1)
    return outputs[:, :, :width]


def windows(x, axis: int, size: int, stride: int) -> list:
    """Sliding windows along an axis: a list of `size` arrays, the k-th items of all windows."""
    reach = (x.shape[axis] - size) // stride * stride + 1
    return [
        jax.lax.slice_in_dim(x, first, first + reach, stride, axis) for first in range(size)
    ]
