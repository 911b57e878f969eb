"""Local training whose activations and products are bfloat16."""

import dataclasses

import jax
import jax.numpy as jnp

from graphfl_jax.core import ClientModel

PRECISIONS = ("float32", "bfloat16")


def trained_in(model: ClientModel, precision: str) -> ClientModel:
    """A client model that computes its training objective in another precision.

    With "bfloat16", the objective's copy of the parameters, the activations and their gradients
    are bfloat16. The parameters themselves, their gradients, the loss and all predictions stay
    float32, as in Micikevicius et al. Mixed Precision Training. ICLR 2018.
    https://arxiv.org/abs/1710.03740

    Args:
      precision: one of `PRECISIONS`.
    """
    if precision == "float32":
        return model

    def lowered(leaf):
        return leaf.astype(precision) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def train_forward(params, batch, key):
        params, batch = jax.tree.map(lowered, (params, batch))
        return model.forward(params, batch, key).astype(jnp.float32)

    return dataclasses.replace(model, train_forward=train_forward)
