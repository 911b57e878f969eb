"""Random draws of clients without an array of all of them."""

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
