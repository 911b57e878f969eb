"""A client model as one vector, which a hypernetwork can put out."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from graphfl_jax.core import Array, ClientModel, Params


def flat_layout(model: ClientModel) -> tuple[int, Callable[[Array], Params]]:
    """The number d of a client's parameters, and the function that shapes a vector [d] as them.

    One linear layer onto the flat vector is the same map as one linear layer per tensor.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    flat, unravel = ravel_pytree(zeros)
    return flat.shape[0], unravel
