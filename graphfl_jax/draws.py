"""Random draws of clients without an array of all of them, and of uniform numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax.core import Array


def draw_clients(key: Array, everyone: int, size: int) -> Array:
    """Draws `size` of `everyone` clients without replacement, [size] int32, ascending.

    All subsets are equally probable. Robert Floyd's algorithm takes `size` draws: draw number k
    is uniform in [0, everyone - size + k], and a client that has already been drawn is replaced
    by client everyone - size + k (Bentley, Floyd. A Sample of Brilliance. Communications of the
    ACM 30(9), 1987).
    """
    largest = everyone - size + np.arange(size, dtype=np.int32)
    draws = jax.random.randint(key, (size,), 0, largest + 1)

    def draw(k, ids):
        seen = jnp.any(ids == draws[k])
        return ids.at[k].set(jnp.where(seen, largest[k], draws[k]))

    largest = jnp.asarray(largest)
    ids = jax.lax.fori_loop(0, size, draw, jnp.full(size, -1, jnp.int32))
    # Ascending, so that the order of a cohort's sums does not depend on the draw.
    return jnp.sort(ids)


def draw_those_up(key: Array, up: Array, size: int) -> Array:
    """Draws `size` clients of which as many as possible are `up` [N] bool; [size], ascending.

    All subsets of those who are up, and of the others, are equally probable.
    """
    order = draw_uniform(key, up.shape) + jnp.where(up, 0.0, 1.0)
    return jnp.sort(jax.lax.top_k(-order, size)[1].astype(jnp.int32))


TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))  # bits by which words are rotated


def draw_uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """``jax.random.uniform(key, shape)``: the same numbers, compiled in less time on CPUs.

    There, JAX writes its generator as a loop, and XLA compiles each operation of the loop by
    itself. Written out, all are one computation. The generator is Threefry with two words and
    20 rounds; the words that it encrypts count from 0 (Salmon, Moraes, Dror, Shaw. Parallel
    Random Numbers: As Easy as 1, 2, 3. SC 2011). Other generators, and another order of their
    words, are left to JAX.
    """
    if jax.random.key_impl(key) != "threefry2x32" or not jax.config.jax_threefry_partitionable:
        return jax.random.uniform(key, shape)
    first, second = jax.random.key_data(key)
    words = first, second, first ^ second ^ jnp.uint32(0x1BD11BDA)
    numbers = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    a, b = jnp.full_like(numbers, words[0]), numbers + words[1]
    for four in range(1, 6):
        for turn in TURNS[(four - 1) % 2]:
            a = a + b
            b = ((b << jnp.uint32(turn)) | (b >> jnp.uint32(32 - turn))) ^ a
        a = a + words[four % 3]
        b = b + words[(four + 1) % 3] + jnp.uint32(four)
    return ((a ^ b) >> jnp.uint32(9)).astype(jnp.float32) * jnp.float32(2.0**-23)
