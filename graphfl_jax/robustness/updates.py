"""Between clients and server: uploads as updates, which attacks and defences change."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Algorithm


def with_updates(algorithm: Algorithm, change: Callable) -> Algorithm:
    """A method whose server learns from changed updates.

    An upload is what a client would send untrained, plus an update; what the first is, each
    algorithm says. Where `change` leaves a number as it is, so is the upload, to the bit.

    Args:
      algorithm: the method.
      change: (updates [M, d], cohort, key) -> updates [M, d].
    """

    def aggregate(server, cohort, uploads, key):
        if not jax.tree.leaves(uploads):  # of clients that send nothing
            return algorithm.aggregate(server, cohort, uploads, key)

        def untrained(i):
            return algorithm.untrained(algorithm.download(server, i))

        before, _ = tree.as_matrix(jax.vmap(untrained)(cohort.ids))  # [M, d]
        after, back = tree.as_matrix(uploads)
        updates = after - before
        changed = change(updates, cohort, key)
        after = jnp.where(changed == updates, after, before + changed)
        return algorithm.aggregate(server, cohort, back(after), key)

    return dataclasses.replace(algorithm, aggregate=aggregate)
