"""Multilayer perceptrons: client models for FL-60 and TPT-48, and parts of hypernetworks."""

import itertools
import math

import flax.linen as nn
import jax.numpy as jnp

from graphfl_jax.architecture import Architecture, Node
from graphfl_jax.core import ClientModel, Task
from graphfl_jax.models.layers import Hidden, dense, init_parts, scale_bytes

# Parameters of the clients that a core trains at once. More do not fit into its cache: 1,000
# perceptrons of TPT-48 at once take 1.4 times as long as 20 at once, and 40 of width 256 in
# groups of 20 take 1.2 times as long as one by one.
PARAMETERS_AT_ONCE = 10_000


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

    The head is the last layer. Without hidden layers, it is all: a linear model, whose features
    are the inputs. With ``hidden=(16, 16)`` the model has 354 parameters on FL-60
    (2 inputs, 2 outputs) and 486 on TPT-48 (6 inputs, 6 outputs).

    Args:
      inputs: shape of an example, which is flattened. Bytes are scaled to -1 to 1.

    Raises:
      ValueError: a width is not a positive integer.
    """
    if not all(isinstance(width, int) and width > 0 for width in hidden):
        raise ValueError(
            f"model.hidden={hidden!r} must hold widths of at least 1; "
            f"set --config.model.hidden to widths such as 16,16"
        )
    body, head = MLP(hidden), MLP((outputs,))
    features = math.prod(inputs)
    pairs = tuple(itertools.pairwise((features, *hidden, outputs)))
    size = sum((fan_in + 1) * fan_out for fan_in, fan_out in pairs)
    paths = [("body", f"Dense_{i}") for i in range(len(hidden))] + [("head",)]
    layers = [
        Node(f"linear{fan_in}_{fan_out}", path)
        for (fan_in, fan_out), path in zip(pairs, paths, strict=True)
    ]

    def init(key):
        example = jnp.zeros((1, features))
        return init_parts(key, body, head, example, features=(features, *hidden)[-1])

    def apply(params, x):
        return _columns(params, x.T).T

    def apply_body(params, x):
        rows = scale_bytes(x).reshape(x.shape[0], features)
        return nn.relu(apply(params, rows)) if hidden else rows

    return ClientModel(
        init=init,
        body=apply_body,
        head=apply,
        task=task,
        at_once=max(1, PARAMETERS_AT_ONCE // size),
        architecture=Architecture(
            "_".join(["mlp", *map(str, hidden)]),
            (Node("input"), *layers),
            tuple(itertools.pairwise(range(len(layers) + 1))),
        ),
    )


def _columns(params, x):
    """`MLP` with the examples as columns: [F, B] -> [widths[-1], B].

    On a CPU, products over the batch, the gradients of weights, are faster in this layout.
    """
    for i in range(len(params)):
        x = nn.relu(x) if i else x
        layer = params[f"Dense_{i}"]
        x = layer["kernel"].T @ x.astype(layer["kernel"].dtype) + layer["bias"][:, None]
    return x
