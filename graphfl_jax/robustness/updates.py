"""Uploads as updates, which attacks and defences change.

An upload is what the client would send untrained, plus its update.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Cohort


def with_updates(
    algorithm: Algorithm, server, cohorts: tuple, uploads: tuple, change: Callable
):
    """The uploads of each architecture after their updates have been changed.

    Where `change` leaves a number as it is, so is the upload, bit for bit.

    Args:
      algorithm: the method.
      server: its state in this round.
      cohorts: for each architecture.
      uploads: for each architecture, every leaf [M, ...].
      change: (updates [M, d], cohort, number of the architecture) -> updates [M, d].
    """

    def changed(group: int, cohort: Cohort, uploads):
        if not jax.tree.leaves(uploads):  # of clients that send nothing
            return uploads
        client = algorithm.clients[group]

        def untrained(i):
            return client.untrained(algorithm.download(server, group, i))

        before, _ = tree.as_matrix(jax.vmap(untrained)(cohort.ids))  # [M, d]
        after, back = tree.as_matrix(uploads)
        updates = after - before
        new = change(updates, cohort, group)
        return back(jnp.where(new == updates, after, before + new))

    return tuple(
        changed(group, cohort, own)
        for group, (cohort, own) in enumerate(zip(cohorts, uploads, strict=True))
    )
