"""Small convolutional networks for images.

LeNet-5: LeCun, Bottou, Bengio, Haffner. Gradient-Based Learning Applied to Document
Recognition. Proceedings of the IEEE 86(11), 1998, with ReLU and max pooling as in common use.
cnn: McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient
Learning of Deep Networks from Decentralized Data. AISTATS 2017.
https://arxiv.org/abs/1602.05629
conv3: Zhou, Gao, Wu, Lyu. Personalized Federated Learning via Learning Dynamic Graphs. 2025.
https://arxiv.org/abs/2503.05474, which states three convolutional and three dense layers; their
sizes, and where it pools, are those of this package.
"""

import itertools
import math

import flax.linen as nn
import jax.numpy as jnp

from graphfl_jax.architecture import Architecture, Node
from graphfl_jax.core import ClientModel, Task
from graphfl_jax.models.convolutions import Lowering, convolve
from graphfl_jax.models.images import (
    Augment,
    augment_images,
    columns,
    halve,
    has_channels_first,
    per_channel,
    remedy_for,
)
from graphfl_jax.models.layers import dense, init_parts, scale_bytes, uniform_within
from graphfl_jax.models.objectives import MicroBatched


class Convolution(nn.Module):
    """A convolution with bias, ReLU and pooling: [C, H, W, B] -> [features, H' / 2, W' / 2, B].

    Initialised like PyTorch's ``Conv2d``.
    """

    features: int
    size: int  # of the kernel
    padding: int
    lowering: str

    @nn.compact
    def __call__(self, x):
        init = uniform_within((self.size**2 * len(x)) ** -0.5)
        kernel = self.param("kernel", init, (self.size, self.size, len(x), self.features))
        bias = self.param("bias", init, (self.features,))
        x = convolve(x, kernel, padding=self.padding, lowering=self.lowering)
        return halve(nn.relu(x + per_channel(bias)))


class Body(nn.Module):
    """Convolutions, then dense layers with ReLU: images [B, H, W, C] -> [B, F]."""

    size: int  # of the kernels
    channels: tuple[int, ...]
    paddings: tuple[int, ...]
    widths: tuple[int, ...]
    lowering: str

    @nn.compact
    def __call__(self, images):
        x = columns(scale_bytes(images))
        for i, (channels, padding) in enumerate(zip(self.channels, self.paddings, strict=True)):
            name = f"conv{i + 1}"
            x = Convolution(channels, self.size, padding, self.lowering, name=name)(x)
        x = x.reshape(-1, x.shape[-1]).T  # [B, channels height width]
        for i, width in enumerate(self.widths):
            init = uniform_within(x.shape[1] ** -0.5)
            layer = nn.Dense(width, kernel_init=init, bias_init=init, name=f"dense{i + 1}")
            x = nn.relu(layer(x))
        return x


def check_images(name, inputs, smallest):
    """Raises a ValueError unless examples are images of at least the smallest size."""
    if len(inputs) != 3 or min(inputs[:2]) < smallest or has_channels_first(inputs):
        raise ValueError(
            f"model.name={name!r} takes images of shape [H, W, C] with H and W of at least "
            f"{smallest}, but examples have shape {list(inputs)}; {remedy_for(inputs)}"
        )


def _network(smallest):
    """Makes a client model's factory from a function of the shape of the images.

    The function returns the first fields of `Body`. The factory raises a ValueError unless the
    examples are images of at least the smallest size.
    """

    def decorate(layers):
        def make(
            *,
            inputs: tuple[int, ...],
            outputs: int,
            task: Task,
            lowering: Lowering = "auto",
            augment: Augment = False,
        ) -> ClientModel:
            check_images(layers.__name__, inputs, smallest)
            body = Body(*layers(inputs), lowering)
            return _client_model(layers.__name__, body, inputs, outputs, task, augment)

        make.__name__ = make.__qualname__ = layers.__name__
        make.__doc__ = layers.__doc__
        return make

    return decorate


@_network(smallest=16)
def lenet(inputs):
    """A client's LeNet-5 for images [H, W, C] of at least 16 x 16.

    Convolutions with 6 and 16 channels, dense layers with 120 and 84 units, and the head. With
    10 outputs it has 61,706 parameters on 28 x 28 x 1, where the first convolution has a
    padding of 2, and 62,006 on 32 x 32 x 3.
    """
    first = 2 if tuple(inputs[:2]) == (28, 28) else 0
    return 5, (6, 16), (first, 0), (120, 84)


@_network(smallest=4)
def cnn(inputs):
    """A client's network of the FedAvg paper, for images [H, W, C] of at least 4 x 4.

    Convolutions with 32 and 64 channels that keep height and width, a dense layer with 512
    units, and the head. It has 1,663,370 parameters on 28 x 28 x 1 with 10 outputs.
    """
    return 5, (32, 64), (2, 2), (512,)


@_network(smallest=8)
def conv3(inputs):
    """A client's network of the pFedGAT paper, for images [H, W, C] of at least 8 x 8.

    Convolutions of 3 x 3 with 32, 64 and 64 channels and a padding of 1, so that they keep
    height and width, dense layers with 120 and 84 units, and the head. With 10 outputs it has
    135,998 parameters on 28 x 28 x 1, and 190,334 on 32 x 32 x 3.
    """
    return 3, (32, 64, 64), (1, 1, 1), (120, 84)


def _client_model(name, body, inputs, outputs, task, augment):
    features = body.widths[-1]
    head = dense(outputs, features)

    def init(key):
        return init_parts(key, body, head, jnp.zeros((1, *inputs)), features=features)

    def apply_body(params, x):
        return body.apply({"params": params}, x)

    def apply_head(params, features):
        return head.apply({"params": params}, features)

    def train_forward(params, batch, key):
        images = augment_images(batch.x, key)
        return apply_head(params["head"], apply_body(params["body"], images))

    return MicroBatched(
        init=init,
        body=apply_body,
        head=apply_head,
        task=task,
        train_forward=train_forward if augment else None,
        at_once=1,
        architecture=_architecture(name, body, inputs, outputs),
    )


def _architecture(name, body, inputs, outputs):
    """The graph of a body and its head: one layer after the other."""
    *sides, size = inputs
    nodes = [Node("input")]
    for i, (channels, padding) in enumerate(zip(body.channels, body.paddings, strict=True)):
        nodes.append(Node(f"c{size}_{channels}_k{body.size}_s1", ("body", f"conv{i + 1}")))
        sides = [(side + 2 * padding - body.size + 1) // 2 for side in sides]
        size = channels
    size *= math.prod(sides)  # flattened
    for i, width in enumerate(body.widths):
        nodes.append(Node(f"linear{size}_{width}", ("body", f"dense{i + 1}")))
        size = width
    nodes.append(Node(f"linear{size}_{outputs}", ("head",)))
    return Architecture(name, tuple(nodes), tuple(itertools.pairwise(range(len(nodes)))))
