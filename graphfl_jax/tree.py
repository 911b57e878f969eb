"""Arithmetic on trees whose leaves share a leading axis of clients."""

import functools

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

PACKED = 100_000  # numbers of a tensor that `pack` copies into one vector


def take(rows, ids):
    """Rows `ids` of every leaf: [N, ...] -> [M, ...]."""
    return jax.tree.map(lambda leaf: leaf[ids], rows)


def put(rows, ids, new):
    """Every leaf [N, ...] with its rows `ids` replaced by `new` [M, ...]."""
    return jax.tree.map(lambda leaf, part: leaf.at[ids].set(part), rows, new)


def varying_as(values, scalar):
    """The same values, which in a program over devices may differ as a scalar differs."""
    zero = jnp.zeros_like(scalar)
    return jax.tree.map(lambda leaf: leaf + zero.astype(leaf.dtype), values)


def grow(old, larger):
    """The leaves of `larger`, in which those of `old`, which are not, take the first places."""

    def of_leaf(old, larger):
        return larger.at[tuple(slice(size) for size in jnp.shape(old))].set(old)

    return jax.tree.map(of_leaf, old, larger)


def mean(rows, weights):
    """Weighted mean over the leading axis: [M, ...], weights [M] -> [...]."""
    shares = weights / jnp.sum(weights)
    return jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, axes=1), rows)


def leaves_by_name(values) -> dict:
    """The leaves of a tree by readable names, such as ``params/body/Dense_0/kernel``.

    Raises:
      ValueError: two leaves have the same name.
    """
    by_name = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(values):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in by_name:
            raise ValueError(f"two leaves are named {name!r}; leave slashes out of their keys")
        by_name[name] = leaf
    return by_name


def sq_dist(a, b):
    """Squared Euclidean distance between two trees: a scalar."""
    squares = jax.tree.map(lambda x, y: jnp.sum(jnp.square(x - y)), a, b)
    return sum(jax.tree.leaves(squares))


def as_matrix(rows):
    """Rows [M, ...] as a matrix [M, d], and the function from such a matrix back to rows."""
    _, back = ravel_pytree(take(rows, 0))
    return jax.vmap(lambda row: ravel_pytree(row)[0])(rows), jax.vmap(back)


def join_small(values, largest: int):
    """The float32 tensors of up to `largest` numbers as one vector.

    Returns:
      (vector, list of the other leaves), and the function from such a pair back to a tree.
    """
    leaves, structure = jax.tree.flatten(values)
    is_small = [leaf.dtype == jnp.float32 and leaf.size <= largest for leaf in leaves]
    vector, split = ravel_pytree(
        [leaf for leaf, small in zip(leaves, is_small, strict=True) if small]
    )
    others = [leaf for leaf, small in zip(leaves, is_small, strict=True) if not small]

    def back(parts):
        vector, others = parts
        queues = iter(others), iter(split(vector))
        return jax.tree.unflatten(structure, [next(queues[small]) for small in is_small])

    return (vector, others), back


def pack(values):
    """`join_small` on an accelerator; on a CPU, the values and a function that changes nothing.

    On an accelerator, arithmetic on each tensor would be a further kernel. Clients that are
    vmapped gain nothing: each part of their vectors that a product reads would be a kernel.
    """
    if jax.default_backend() == "cpu":
        return values, lambda values: values
    return join_small(values, PACKED)


def sq_dists(matrix):
    """Squared Euclidean distances between the rows of a matrix: [M, d] -> [M, M]."""

    def to_all(row):  # one row at a time, to avoid an array [M, M, d]
        return jnp.sum(jnp.square(matrix - row[None]), axis=1)

    return jax.lax.map(to_all, matrix)


def all_finite(tree):
    """Whether every number of every leaf is finite: a bool scalar.

    0 times a number is 0 if it is finite, and otherwise NaN. The sum takes a fifth of the time
    of a conjunction on CPUs, which XLA does not vectorise.
    """
    finite = [
        jnp.isfinite(jnp.sum(leaf * jnp.zeros((), leaf.dtype)))
        for leaf in map(jnp.asarray, jax.tree.leaves(tree))
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return jnp.all(jnp.stack(finite)) if finite else jnp.bool_(True)


def where(condition, values, others):
    """The leaves of `values` if a scalar condition holds, otherwise those of `others`."""
    return jax.tree.map(functools.partial(jnp.where, condition), values, others)
