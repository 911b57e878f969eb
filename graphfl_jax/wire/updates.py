"""Uploads as updates, which attacks and defences change.

An upload is what the client would send untrained, plus its update. Integers, such as numbers
of examples, are not part of the update.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from graphfl_jax import tree
from graphfl_jax.core import Array


def shorten(updates: Array, limit: Array) -> Array:
    """Updates [M, d], of which those with a norm above the limit have the limit as norm."""
    norms = jnp.linalg.norm(updates, axis=1)
    above = norms > limit
    scale = jnp.where(above, limit / jnp.where(above, norms, 1.0), 1.0)
    return updates * scale[:, None]


def floats_of(upload: Any) -> tuple[Array, Callable[[Array], Any]]:
    """The floats of an upload as a vector [d], and the function from such a vector back.

    What it gives has the other numbers of this upload.
    """
    leaves, structure = jax.tree.flatten(upload)
    is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
    vector, split = ravel_pytree(list(itertools.compress(leaves, is_float)))

    def back(vector):
        floats = iter(split(vector))
        pairs = zip(leaves, is_float, strict=True)
        return jax.tree.unflatten(
            structure, [next(floats) if floating else leaf for leaf, floating in pairs]
        )

    return vector, back


def vectors_of(uploads: Any) -> Array:
    """Which numbers of updates [M, d] are of leaves with one axis [M, k], as biases: [d]."""
    leaves = [x for x in jax.tree.leaves(uploads) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.concatenate([jnp.full(leaf[0].size, leaf.ndim == 2) for leaf in leaves])


def with_updates(untrained: tuple, uploads: tuple, change: Callable) -> tuple:
    """The uploads of each architecture after their updates have been changed.

    Where `change` leaves a number as it is, so is the upload, bit for bit. Integers stay as
    they were sent; those of a client whose update becomes 0 are what it would send untrained.

    Args:
      untrained: what the clients would have sent untrained, for each architecture, every leaf
        [M, ...].
      uploads: what they sent.
      change: (updates [M, d], what would be sent untrained [M, d], number of the architecture)
        -> updates [M, d].
    """

    def change_group(group: int, before, after):
        if not jax.tree.leaves(after):  # of clients that send nothing
            return after
        before, (after, structure) = jax.tree.leaves(before), jax.tree.flatten(after)
        is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in after]
        start, _ = tree.as_matrix(list(itertools.compress(before, is_float)))  # [M, d]
        sent, back = tree.as_matrix(list(itertools.compress(after, is_float)))
        updates = sent - start
        new = change(updates, start, group)
        rejected = jnp.any(updates, axis=1) & ~jnp.any(new, axis=1)
        floats = iter(back(jnp.where(new == updates, sent, start + new)))
        leaves = [
            next(floats) if floating else jax.vmap(jnp.where)(rejected, old, leaf)
            for floating, old, leaf in zip(is_float, before, after, strict=True)
        ]
        return jax.tree.unflatten(structure, leaves)

    pairs = zip(untrained, uploads, strict=True)
    return tuple(change_group(group, *pair) for group, pair in enumerate(pairs))
