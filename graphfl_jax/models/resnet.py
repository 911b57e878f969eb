"""Residual networks for images: He, Zhang, Ren, Sun, Deep Residual Learning, CVPR 2016.

The architecture, the initialisation and the names of pretrained weights are torchvision's.
"""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors.numpy import load_file

from graphfl_jax.core import ClientModel, Task
from graphfl_jax.models.batch_statistics import model_with_batch_norm
from graphfl_jax.models.convolutions import Lowering
from graphfl_jax.models.images import (
    BatchNorm,
    Conv,
    columns,
    max_pool,
    per_channel,
    remedy_for,
)
from graphfl_jax.settings import Integer, Text

# Mean and deviation of red, green and blue in ImageNet, on a scale from 0 to 1.
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
BLOCKS = 2  # in each of the four stages
# Running averages in a torchvision file. They are not read; `recalibrate` replaces them.
AVERAGES = ("running_mean", "running_var", "num_batches_tracked")


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a skip connection: [C, H, W, B] -> [features, H', W', B]."""

    features: int
    stride: int
    lowering: str

    @nn.compact
    def __call__(self, x, count):
        conv = functools.partial(Conv, self.features, lowering=self.lowering)
        out = conv(size=3, stride=self.stride, padding=1, name="conv1")(x)
        out = nn.relu(BatchNorm(name="bn1")(out, count))
        out = conv(size=3, stride=1, padding=1, name="conv2")(out)
        out = BatchNorm(name="bn2")(out, count)
        if self.stride != 1 or len(x) != self.features:
            x = conv(size=1, stride=self.stride, padding=0, name="downsample_0")(x)
            x = BatchNorm(name="downsample_1")(x, count)
        return nn.relu(out + x)


class ResNet18(nn.Module):
    """A ResNet-18 without its last layer: images [B, H, W, 3] -> features [B, 8 width]."""

    width: int
    lowering: str

    @nn.compact
    def __call__(self, images, count):
        x = (columns(images).astype(jnp.float32) / 255 - per_channel(MEAN)) / per_channel(STD)
        x = Conv(self.width, 7, stride=2, padding=3, lowering=self.lowering, name="conv1")(x)
        x = max_pool(nn.relu(BatchNorm(name="bn1")(x, count)))
        for stage in range(4):
            for i in range(BLOCKS):
                x = BasicBlock(
                    self.width * 2**stage,
                    stride=2 if stage and not i else 1,
                    lowering=self.lowering,
                    name=f"layer{stage + 1}_{i}",
                )(x, count)
        return jnp.mean(x, axis=(1, 2)).T


def resnet18(
    *,
    inputs: tuple[int, ...],
    outputs: int,
    task: Task,
    width: Annotated[
        int, Integer("Channels of the first stage; later stages double them.")
    ] = 64,
    lowering: Lowering = "auto",
    weights: Annotated[
        str,
        Text("Pretrained weights, .safetensors or .pth; empty starts from random weights."),
    ] = "",
) -> ClientModel:
    """A client's ResNet-18 for images [H, W, 3] with values from 0 to 255.

    With ``width=64``, as in torchvision, it has 11,689,512 parameters for 1000 outputs and
    11,178,564 for 4. In the body, a batch normalisation holds "scale" and "bias", and a
    convolution holds "kernel".

    Statistics of the batch normalisation are those of `model_with_batch_norm`.

    Args:
      weights: a file with torchvision's names. All clients start from its body, and from its
        head if the number of outputs is the same. Its running averages are not used.

    Raises:
      FileNotFoundError: the file of weights does not exist.
      ValueError: the examples are not images, or the weights cannot be used.
    """
    if len(inputs) != 3 or inputs[-1] != 3:
        raise ValueError(
            f"model.name='resnet18' takes images of shape [H, W, 3], but examples have shape "
            f"{list(inputs)}; {remedy_for(inputs, channels=(3,))}"
        )
    model = model_with_batch_norm(
        ResNet18(width, lowering),
        inputs=inputs,
        features=8 * width,
        outputs=outputs,
        task=task,
    )
    if not weights:
        return model
    shapes = jax.eval_shape(model.init, jax.eval_shape(jax.random.key, 0))
    pretrained = load_weights(weights, shapes)

    def init(key):
        return model.init(key) | jax.tree.map(jnp.asarray, pretrained)

    return dataclasses.replace(model, init=init)


def load_weights(path: str, shapes) -> dict:
    """The body in a file of torchvision's tensors, and the head if its shapes are the same.

    `shapes` are those of the parameters, {"body": ..., "head": ...}.

    Raises:
      ValueError: a tensor is missing, unknown or of another shape; and as `read_tensors`.
    """
    tensors = {
        name: tensor
        for name, tensor in read_tensors(path).items()
        if not name.endswith(AVERAGES)
    }

    def refuse(what):
        width = shapes["body"]["conv1"]["kernel"].shape[-1]
        raise ValueError(
            f"model.weights={path!r} holds weights of another architecture: {what}; give the "
            f"weights of a ResNet-18 with model.width={width}, or leave it empty"
        )

    def take(keys, leaf):
        """Removes the tensor of the body's parameter `keys` from the file's and converts it."""
        *modules, kind = keys
        kind = "bias" if kind == "bias" else "weight"
        name = ".".join(modules).replace("_", ".") + f".{kind}"
        expected = torch_shape(leaf.shape)
        if name not in tensors:
            refuse(f"{name} is missing")
        tensor = tensors.pop(name)
        if tensor.shape != expected:
            refuse(f"{name} has shape {list(tensor.shape)} and not {list(expected)}")
        return from_torch(tensor)

    leaves = flatten_dict(shapes["body"])
    body = unflatten_dict({keys: take(keys, leaf) for keys, leaf in leaves.items()})
    head = {"kernel": tensors.pop("fc.weight", None), "bias": tensors.pop("fc.bias", None)}
    if tensors:
        refuse(f"{min(tensors)} is unknown")
    head_fits = all(
        tensor is not None and tensor.shape == torch_shape(shapes["head"][name].shape)
        for name, tensor in head.items()
    )
    return {"body": body} | ({"head": jax.tree.map(from_torch, head)} if head_fits else {})


def torch_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in PyTorch of a kernel [..., inputs, outputs], or of a vector: [outputs,
    inputs, ...]."""
    return (*shape[:-3:-1], *shape[:-2])


def from_torch(tensor: np.ndarray) -> np.ndarray:
    """A weight [outputs, inputs, ...] as a kernel [..., inputs, outputs]; vectors as is."""
    axes = (*range(2, tensor.ndim), 1, 0)[-tensor.ndim :]
    return tensor.transpose(axes).astype(np.float32)


def read_tensors(path: str) -> dict[str, np.ndarray]:
    """The tensors of a ``.safetensors`` file, or of a ``.pth`` file if PyTorch is installed.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file has another format, or cannot be read.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"model.weights={path!r} does not exist; set --config.model.weights to a file, or "
            f"leave it empty for random weights"
        )
    return _read(path, os.stat(path).st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _read(path, modified):
    """Cached, because every compilation builds the model again.

    The time of modification is part of the cache's key, so that a changed file is read again.
    """
    readers = {".safetensors": load_file, ".pth": _read_pth}
    suffix = Path(path).suffix
    if suffix not in readers:
        endings = " or ".join(readers)
        raise ValueError(
            f"model.weights={path!r} has an unknown file format; give a file that ends in "
            f"{endings}"
        )
    try:
        return readers[suffix](path)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"model.weights={path!r} needs PyTorch, which is not installed; run pip install "
            f"torch, or convert the file to .safetensors on a machine with PyTorch"
        ) from error
    # A damaged file can make the unpickler raise almost any exception.
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(
            f"model.weights={path!r} is damaged or is not a {suffix} file of tensors ({why}); "
            f"download it again"
        ) from error


def _read_pth(path):
    import torch

    # With weights_only, PyTorch executes no code from the file.
    content = torch.load(path, map_location="cpu", weights_only=True)
    return {name: tensor.float().numpy() for name, tensor in content.items()}
