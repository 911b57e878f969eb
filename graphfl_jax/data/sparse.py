"""Sparse matrices between clients, stored as edges; memory and time are linear in these."""

import functools

import flax
import jax
import jax.numpy as jnp
import jraph
import numpy as np

from graphfl_jax.core import Array


@flax.struct.dataclass
class SparseMatrix:
    """A matrix [N, N] of a diagonal and of edges; rows are receivers, columns are senders.

    ``matrix @ values`` multiplies values [N, ...], and so does ``matrix.transposed_times``.
    Both sum over sorted segments, also in the gradient; the matrix itself is a constant in
    gradients. An edge from N to N is padding. On CPUs, the order of the sums is fixed.

    A matrix [n, N] of the first n rows multiplies values [N, ...] too; it has no transpose.
    """

    senders: Array  # [n_edge] int32
    receivers: Array  # [n_edge] int32, ascending
    weights: Array  # [n_edge] float32
    diagonal: Array  # [N] float32
    by_sender: Array  # [n_edge] int32: the places of the edges in ascending order of senders
    starts: Array  # [N + 1] int32: the edges of receiver i are starts[i] to starts[i + 1] - 1

    def __len__(self) -> int:
        return self.diagonal.shape[0]

    @property
    def degrees(self) -> Array:
        """The number of senders of every receiver, [N] int32, without the diagonal."""
        return self.starts[1:] - self.starts[:-1]

    def __matmul__(self, values: Array) -> Array:
        return _product(False, len(self), self, values)

    def transposed_times(self, values: Array) -> Array:
        """The transposed matrix times values [N, ...]."""
        return _product(True, len(self), self, values)


def sparse_matrix(senders, receivers, weights, diagonal) -> SparseMatrix:
    """Builds a matrix from edges in ascending order of receivers, with padding at their end.

    Args:
      senders: [n_edge] int32.
      receivers: [n_edge] int32.
      weights: [n_edge] float32.
      diagonal: [N] float32.
    """
    bounds = np.arange(diagonal.shape[0] + 1, dtype=np.int32)
    return SparseMatrix(
        senders=jnp.asarray(senders),
        receivers=jnp.asarray(receivers),
        weights=weights,
        diagonal=diagonal,
        by_sender=jnp.argsort(senders, stable=True).astype(jnp.int32),
        starts=jnp.searchsorted(receivers, bounds).astype(jnp.int32),
    )


def undirected_matrix(senders, receivers, size: int) -> SparseMatrix:
    """The symmetric matrix of ones where an edge joins two of `size` clients in any direction.

    It stores twice as many edges as given; those that are given in both directions leave
    padding. ``starts[-1]`` is the number of ones.
    """
    rows = jnp.concatenate([receivers, senders])
    columns = jnp.concatenate([senders, receivers])
    rows, columns = jax.lax.sort((rows, columns), num_keys=2)
    repeated = (rows[1:] == rows[:-1]) & (columns[1:] == columns[:-1])
    kept = ~jnp.pad(repeated, (1, 0))
    edges = jax.lax.sort(
        (jnp.where(kept, rows, size), jnp.where(kept, columns, size)), num_keys=2
    )
    ones = (edges[0] < size).astype(jnp.float32)
    return sparse_matrix(edges[1], edges[0], ones, jnp.zeros(size, jnp.float32))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(transposed, rows, matrix, values):
    """A matrix or its transpose times values; the matrix is a constant in gradients.

    Args:
      rows: number of rows of the result.
    """
    sources, targets, weights = matrix.senders, matrix.receivers, matrix.weights
    if transposed:
        edges = (targets, sources, weights)
        sources, targets, weights = (leaf[matrix.by_sender] for leaf in edges)
    trailing = [1] * (values.ndim - 1)
    # A source out of range reads some value, and its target out of range drops it.
    messages = values[sources] * weights.reshape([-1, *trailing])
    sums = jraph.segment_sum(messages, targets, rows, indices_are_sorted=True)
    scaled = values[: len(matrix)] * matrix.diagonal.reshape([-1, *trailing])
    if len(matrix) < rows:
        scaled = jnp.pad(scaled, [(0, rows - len(matrix)), *[(0, 0)] * (values.ndim - 1)])
    return sums + scaled


def _product_forward(transposed, rows, matrix, values):
    return _product(transposed, rows, matrix, values), (matrix, len(values))


def _product_backward(transposed, rows, saved, gradient):
    matrix, size = saved
    return None, _product(not transposed, size, matrix, gradient)


_product.defvjp(_product_forward, _product_backward)
