"""Uploads as updates, which attacks and defences change.

An upload is what the client would send untrained, plus its update.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Array


def shortened(updates: Array, limit: Array) -> Array:
    """Updates [M, d], of which those with a norm above the limit have the limit as norm."""
    norms = jnp.linalg.norm(updates, axis=1)
    above = norms > limit
    scale = jnp.where(above, limit / jnp.where(above, norms, 1.0), 1.0)
    return updates * scale[:, None]


def with_updates(untrained: tuple, uploads: tuple, change: Callable) -> tuple:
    """The uploads of each architecture after their updates have been changed.

    Where `change` leaves a number as it is, so is the upload, bit for bit.

    Args:
      untrained: what the clients would have sent untrained, for each architecture, every leaf
        [M, ...].
      uploads: what they sent.
      change: (updates [M, d], what would be sent untrained [M, d], number of the architecture)
        -> updates [M, d].
    """

    def changed(group: int, before, after):
        if not jax.tree.leaves(after):  # of clients that send nothing
            return after
        before, _ = tree.as_matrix(before)  # [M, d]
        after, back = tree.as_matrix(after)
        updates = after - before
        new = change(updates, before, group)
        return back(jnp.where(new == updates, after, before + new))

    groups = range(len(uploads))
    return tuple(changed(*own) for own in zip(groups, untrained, uploads, strict=True))
