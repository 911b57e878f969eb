"""Multilayer perceptrons: client models for FL-60 and TPT-48, and parts of hypernetworks."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphfl_jax.core import ClientModel, Task
from graphfl_jax.models.layers import Hidden, dense


class MLP(nn.Module):
    """Dense layers with ReLU between them and none after the last."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.widths):
            x = nn.relu(x) if i else x
            x = dense(width, x.shape[-1])(x)
        return x


def mlp(
    *, inputs: tuple[int, ...], outputs: int, task: Task, hidden: Hidden = (16, 16)
) -> ClientModel:
    """A client's perceptron: inputs - hidden - outputs, with ReLU after every hidden layer.

    The head is the last layer. With ``hidden=(16, 16)`` the model has 354 parameters on FL-60
    (2 inputs, 2 outputs) and 486 on TPT-48 (6 inputs, 6 outputs).

    Args:
      inputs: shape of an example, which is flattened.

    Raises:
      ValueError: there is no hidden layer, or a width is not a positive integer.
    """
    if not hidden or not all(isinstance(width, int) and width > 0 for width in hidden):
        raise ValueError(
            f"model.hidden={hidden!r} must hold widths of at least 1; "
            f"set --config.model.hidden to widths such as 16,16"
        )
    body, head = MLP(hidden), MLP((outputs,))
    features = math.prod(inputs)

    def init(key):
        key_body, key_head = jax.random.split(key)
        return {
            "body": body.init(key_body, jnp.zeros((1, features)))["params"],
            "head": head.init(key_head, jnp.zeros((1, hidden[-1])))["params"],
        }

    return ClientModel(
        init=init,
        body=lambda params, x: nn.relu(
            body.apply({"params": params}, x.reshape(x.shape[0], features))
        ),
        head=lambda params, features: head.apply({"params": params}, features),
        task=task,
    )
