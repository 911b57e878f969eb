"""Gossip: clients without a server average their models with those of related clients.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu. Can Decentralized Algorithms Outperform Centralized
Algorithms? NeurIPS 2017. https://arxiv.org/abs/1705.09056 (D-PSGD). Random pairs: Boyd, Ghosh,
Prabhakar, Shah. Randomized Gossip Algorithms. IEEE Transactions on Information Theory 52(6),
2006.

    v_i = K_c steps of SGD on F_i, from x_i
    x_i <- (1 - s) v_i + s sum_j W_ij v_j

The sum is over the clients of a round. Client i has the d_i related ones of them as neighbours:

    W_ij = 1 / (1 + max(d_i, d_j)) for neighbours,   W_ii = 1 - sum_j W_ij     (Metropolis)

so that W is symmetric and its rows sum to one. In `gossip_pairs`, the clients of a round form
random pairs instead, whatever their relations are, and W_ij = 1/2 within a pair. P is x_i, and
so is G.

Nobody holds the models of all clients: that the state does is a matter of the simulation. A
client sends its model along its edges, so the traffic is that of the relations.

Departures: K_c local steps between two averages; the paper takes one, and adds its gradient to
the average. With ``gossip_share`` s below 1, a client keeps a part of its model to itself. The
directions and the weights of relations are not read. A new client begins with the mean of its
related clients' models, or where it has none of all models; in its rounds it trains alone, and
averages with nobody.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from graphfl_jax.algorithms.fedu import degrees_of, mixing_method
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Array, ClientModel, Needs
from graphfl_jax.data import relations
from graphfl_jax.data.sparse import SparseMatrix
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train

NEEDS = Needs(relations=True)
Share = Annotated[Array, Real("Share s of the average in a client's next model.", high=1.0)]


@facts(needs=NEEDS)
def gossip(
    model: ClientModel,
    train: Train,
    *,
    num_clients: int,
    cohort_size: int,
    gossip_share: Share = 1.0,
) -> Algorithm:
    """Builds gossip. A message and an upload are one model each, along each edge.

    Args:
      num_clients: N.
      cohort_size: M, clients of a round.
    """

    def weights(peers, cohort, key):
        return metropolis(edges_within(peers.related, cohort.ids))

    def messages(graph):
        """Those of a client in its round, in the mean over the draws of cohorts."""
        both_drawn = (cohort_size - 1) / max(num_clients - 1, 1)
        return both_drawn * degrees_of(relations.adjacency(graph))

    return _averaging(model, train, gossip_share, weights, messages, NEEDS)


def gossip_pairs(
    model: ClientModel,
    train: Train,
    *,
    cohort_size: int,
    gossip_share: Share = 1.0,
) -> Algorithm:
    """Builds gossip of random pairs."""

    def weights(peers, cohort, key):
        return pair_weights(key, len(cohort.ids), cohort.present)

    def messages(graph):
        number = relations.num_clients(graph)
        return jnp.full(number, 2 * (cohort_size // 2) / cohort_size)

    return _averaging(model, train, gossip_share, weights, messages, Needs())


def _averaging(model, train, share, weights, messages, needs):
    """The method in which the models of a round are averaged by the rows of weights [M, M]."""

    def mix(peers, cohort, uploads, key):
        shares = weights(peers, cohort, key)
        return jax.tree.map(
            lambda v: (1.0 - share) * v + share * jnp.tensordot(shares, v, 1), uploads
        )

    return mixing_method(model, train, mix, needs, messages=messages)


def edges_within(related: Array | SparseMatrix, ids: Array) -> Array:
    """Which of the clients `ids` [M] are related: [M, M] of 0 and 1."""
    if not isinstance(related, SparseMatrix):
        rows = related.at[ids].get(mode="fill", fill_value=0.0)
        return rows.at[:, ids].get(mode="fill", fill_value=0.0)
    size = len(ids)
    # Edges of padding go from client N to itself.
    place = jnp.full(len(related) + 1, size).at[ids].set(jnp.arange(size))
    edges = place[related.receivers], place[related.senders]
    return jnp.zeros((size, size)).at[edges].set(1.0, mode="drop")


def metropolis(edges: Array) -> Array:
    """W of the docstring, [M, M], for edges [M, M] of 0 and 1."""
    degrees = jnp.sum(edges, axis=1)
    others = edges / (1.0 + jnp.maximum(degrees[:, None], degrees[None, :]))
    return others + jnp.diag(1.0 - jnp.sum(others, axis=1))


def pair_weights(key: Array, size: int, present: Array | None) -> Array:
    """W of random pairs of those who are `present` [M] bool; of an odd number, one is alone."""
    absent = jnp.zeros(size) if present is None else 1.0 - present.astype(jnp.float32)
    order = jnp.argsort(jax.random.uniform(key, (size,)) + absent)
    number = size if present is None else jnp.sum(present)
    turns = jnp.arange(size)
    others = jnp.minimum(turns ^ 1, size - 1)  # the other one of a pair in this order
    paired = jnp.maximum(turns, others) < number
    partner = jnp.zeros(size, jnp.int32).at[order].set(order[jnp.where(paired, others, turns)])
    identity = jnp.eye(size)
    return 0.5 * (identity + identity[partner])
