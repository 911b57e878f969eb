"""Cohorts of random size, in which each client takes part with the same probability.

With ``cohort=poisson``, client i of N is in a round with the probability q = cohort_size / N,
whatever the others do, so that a cohort has K clients, K ~ Binomial(N, q). Accountants of
differential privacy assume such cohorts.

A compiled round has a fixed number M of places, at least K except with a probability below
`MISSED`, and then K counts as M. M clients are drawn, of which a random K take part. The others
count as untrained: they keep what they had, and their examples do not count. Where the server
averages, the mean is over the K clients. A round without a client changes nothing.

Mironov, Talwar, Zhang. Renyi Differential Privacy of the Sampled Gaussian Mechanism. 2019.
https://arxiv.org/abs/1908.10530
"""

import jax
import jax.numpy as jnp

from graphfl_jax.wire.availability import Law

MISSED = 1e-9  # of a round


def places(cohort_size: int, clients: int) -> int:
    """The number M of places of a round.

    Args:
      cohort_size: the mean number of clients that take part.
      clients: N.
    """
    from scipy.stats import binom  # it takes a while to import

    return max(int(binom.isf(MISSED, clients, cohort_size / clients)), 1)


def poisson_cohorts(cohort_size: int) -> Law:
    """The law of Poisson cohorts with a mean of `cohort_size` clients, of one architecture."""

    def law(key, cohorts, sizes, server):
        (cohort,), (clients,) = cohorts, sizes
        key_number, key_order = jax.random.split(key)
        total, share = jnp.float32(clients), jnp.float32(cohort_size / clients)
        number = jax.random.binomial(key_number, total, share).astype(jnp.int32)
        order = jax.random.permutation(key_order, len(cohort.ids))
        return (cohort.of_those(order < number),)

    return law
