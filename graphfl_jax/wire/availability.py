"""Clients that do not answer: who of a cohort takes part in its round.

    dropout   each client of a cohort fails with the probability ``hparams.dropout_share``,
              whatever the others do; it is drawn anew in each round

A client that fails counts as untrained: it keeps what it had, and the server learns from the
others alone. Where the server averages, the mean is over those who answer. A round in which
nobody answers changes nothing. The message was sent to all, so the bytes are those of all.
"""

from collections.abc import Callable
from typing import Annotated

import jax

from graphfl_jax.core import Array
from graphfl_jax.settings import Real

# (key, ids [M] of a cohort, n clients of its architecture) -> [M] bool, who takes part
Attendance = Callable[[Array, Array, int], Array]


def dropout(
    *,
    dropout_share: Annotated[
        Array, Real("Probability with which a client of a round does not answer.", high=1.0)
    ] = 0.1,
) -> Attendance:
    def present(key, ids, clients):
        return jax.random.uniform(key, ids.shape) >= dropout_share

    return present


AVAILABILITIES = {"dropout": dropout}


def both(first: Attendance | None, second: Attendance) -> Attendance:
    """Those who take part by two laws, of which the first may be None."""
    if first is None:
        return second

    def present(key, ids, clients):
        key_first, key_second = jax.random.split(key)
        return first(key_first, ids, clients) & second(key_second, ids, clients)

    return present
