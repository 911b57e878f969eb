"""Multilayer perceptrons: the clients' of FL-60 and TPT-48, and the parts of hypernetworks."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphfl_jax.core import ClientModel, Task
from graphfl_jax.models.layers import dense


class MLP(nn.Module):
    """Dense layers with ReLU between them, none after the last."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.widths):
            x = nn.relu(x) if i else x
            x = dense(width, x.shape[-1])(x)
        return x


def mlp(
    *, inputs: tuple[int, ...], hidden: tuple[int, ...], outputs: int, task: Task
) -> ClientModel:
    """A client's perceptron: inputs - hidden - outputs, ReLU after every hidden layer.

    `inputs` is the shape of an example, which is flattened.
    With ``hidden=(16, 16)`` it has 354 parameters on FL-60 (2 to 2) and 486 on TPT-48 (6 to 6).

    Raises:
      ValueError: a hidden layer of no width, or no hidden layer.
    """
    if not hidden or not all(isinstance(width, int) and width > 0 for width in hidden):
        raise ValueError(f"model.hidden={hidden!r} must be widths of at least 1, such as 16,16")
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
