"""Objectives of client models in training: in another precision, or in parts of a batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from graphfl_jax.core import Array, ClientModel, Params
from graphfl_jax.examples import Examples

PRECISIONS = ("float32", "tensorfloat32", "bfloat16")


def with_precision(model: ClientModel, precision: str) -> ClientModel:
    """A client model that computes its training objective in another precision.

    With "bfloat16", the objective's copy of the parameters, the activations and their gradients
    are bfloat16. The parameters themselves, their gradients, the loss and all predictions stay
    float32, as in Micikevicius et al. Mixed Precision Training. ICLR 2018.
    https://arxiv.org/abs/1710.03740

    Args:
      precision: one of `PRECISIONS`; "tensorfloat32" is of products alone, see
        `program.with_products`.
    """
    if precision != "bfloat16":
        return model

    def lower(leaf):
        return leaf.astype(precision) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def train_forward(params, batch, key):
        params, batch = jax.tree.map(lower, (params, batch))
        return model.forward(params, batch, key).astype(jnp.float32)

    return dataclasses.replace(model, train_forward=train_forward)


@dataclasses.dataclass(frozen=True)
class MicroBatched(ClientModel):
    """A client model whose objective computes its gradient in parts of a batch.

    With the value, the objective also computes the gradient, part by part, so that the
    activations of one part are used while they are in the cache. The gradient is the same up to
    rounding, unless the model draws at random in training: each part then has draws of its own,
    so they differ from those of the whole batch. A model that mixes the examples of a batch, as
    batch normalisation does, cannot be cut in this way.

    Attributes:
      rows: examples in a part, at most, whose activations fit into the cache.
    """

    rows: int = 32

    def objective(self, params: Params, batch: Examples, key: Array) -> Array:
        parts = -(-batch.y.shape[0] // self.rows)
        if parts == 1 or jax.default_backend() != "cpu":  # an accelerator takes all at once
            return super().objective(params, batch, key)
        return _mean_of_parts(super().objective, parts, params, batch, key)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _mean_of_parts(objective, parts, params, batch, key):
    return objective(params, batch, key)


def _value_and_gradient(objective, parts, params, batch, key):
    whole = batch.y.shape[0]
    size = -(-whole // parts)
    x, y = (
        jnp.pad(rows, [(0, parts * size - whole)] + [(0, 0)] * (rows.ndim - 1))
        for rows in (batch.x, batch.y)
    )

    def add(total, number):
        first = number * size
        rows = (jax.lax.dynamic_slice_in_dim(array, first, size) for array in (x, y))
        part = Examples(*rows, jnp.clip(batch.count - first, 0, size))
        values = jax.value_and_grad(objective)(params, part, jax.random.fold_in(key, number))
        share = part.count.astype(jnp.float32) / jnp.maximum(batch.count, 1).astype(jnp.float32)
        return jax.tree.map(lambda sum, new: sum + share * new, total, values), None

    # Zeros that vary over devices as the parameters of the clients do.
    zeros = jax.tree.map(lambda leaf: 0.0 * leaf, params)
    start = jnp.ravel(jax.tree.leaves(zeros)[0])[0], zeros
    (value, gradient), _ = jax.lax.scan(add, start, jnp.arange(parts))
    return value, gradient


def _pull_back(objective, parts, gradient, cotangent):
    return jax.tree.map(lambda leaf: cotangent * leaf, gradient), None, None


_mean_of_parts.defvjp(_value_and_gradient, _pull_back)
