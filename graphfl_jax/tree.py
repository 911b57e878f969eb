"""Arithmetic on trees whose leaves share a leading axis of clients."""

import jax
import jax.numpy as jnp


def take(rows, ids):
    """Rows `ids` of every leaf: [N, ...] -> [M, ...]."""
    return jax.tree.map(lambda leaf: leaf[ids], rows)


def put(rows, ids, new):
    """Every leaf [N, ...] with its rows `ids` replaced by `new` [M, ...]."""
    return jax.tree.map(lambda leaf, part: leaf.at[ids].set(part), rows, new)


def mean(rows, weights):
    """Weighted mean over the leading axis: [M, ...], weights [M] -> [...]."""
    shares = weights / jnp.sum(weights)
    return jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, axes=1), rows)


def sq_dist(a, b):
    """Squared Euclidean distance between two trees: a scalar."""
    squares = jax.tree.map(lambda x, y: jnp.sum(jnp.square(x - y)), a, b)
    return sum(jax.tree.leaves(squares))


def all_finite(tree):
    """Whether no leaf holds a NaN or an infinity: a bool scalar."""
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(finite)) if finite else jnp.bool_(True)
