"""Residual networks for images: He, Zhang, Ren, Sun, Deep Residual Learning, CVPR 2016.

The architecture, the initial weights and the names of pretrained ones are torchvision's.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from graphfl_jax.core import ClientModel, Task
from graphfl_jax.models.layers import LOWERINGS, BatchNorm, Conv, dense, max_pool
from graphfl_jax.models.pretrained import read_tensors

RECALIBRATION_EXAMPLES = 256  # of a client, at most, whose statistics it predicts with
# Of ImageNet's red, green and blue, on a scale from 0 to 1.
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
BLOCKS = 2  # in each of the four stages
# What a torchvision file holds besides the weights: running averages, which `recalibrate` replaces.
AVERAGES = ("running_mean", "running_var", "num_batches_tracked")


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a way around them: [B, H, W, C] -> [B, H', W', features]."""

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
        if self.stride != 1 or x.shape[-1] != self.features:
            x = conv(size=1, stride=self.stride, padding=0, name="downsample_0")(x)
            x = BatchNorm(name="downsample_1")(x, count)
        return nn.relu(out + x)


class ResNet18(nn.Module):
    """All of a ResNet-18 but its last layer: images [B, H, W, 3] -> features [B, 8 width]."""

    width: int
    lowering: str

    @nn.compact
    def __call__(self, images, count):
        x = (images.astype(jnp.float32) / 255 - MEAN[None, None, None]) / STD[None, None, None]
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
        return jnp.mean(x, axis=(1, 2))


def resnet18(
    *,
    inputs: tuple[int, ...],
    outputs: int,
    task: Task,
    width: int,
    lowering: str,
    weights: str,
) -> ClientModel:
    """A client's ResNet-18 for images [H, W, 3] with values from 0 to 255.

    With ``width=64``, torchvision's, it has 11,689,512 parameters for 1000 outputs and
    11,178,564 for 4. In the body a batch normalisation holds "scale" and "bias", a convolution
    "kernel" alone.

    Training normalises by each batch, and keeps no running averages: a model is a function of
    its parameters. A client that is about to predict recomputes the statistics from its own
    training examples (`recalibrate`), up to SETTLE_EXAMPLES of them in one pass, and keeps them
    beside the body's parameters as ``params["body"]["statistics"]``. So they stay with the
    client, as in personalised methods, and are never stale, whoever averaged or generated the
    parameters.

    Args:
      width: channels of the first stage; the others have 2, 4 and 8 times as many.
      lowering: of convolutions, one of LOWERINGS.
      weights: a file of torchvision's names, ``.safetensors`` or ``.pth``, whose body every
        client starts from, and whose head too if it has as many outputs. Its running averages
        are not used. Empty: random weights.

    Raises:
      FileNotFoundError: there is no file of weights.
      ValueError: a field has a value that cannot be, or the file is another model's.
    """
    if len(inputs) != 3 or inputs[-1] != 3:
        raise ValueError(
            f"model.name='resnet18' takes images of shape [H, W, 3], and an example has shape "
            f"{list(inputs)}; choose other data, or --config.model.name=mlp"
        )
    if not isinstance(width, int) or width < 1:
        raise ValueError(f"model.width={width!r} must be at least 1, such as 64")
    if lowering not in LOWERINGS:
        raise ValueError(
            f"model.lowering={lowering!r} is unknown; choose from {', '.join(LOWERINGS)}"
        )
    body, head = ResNet18(width, lowering), dense(outputs, 8 * width)

    def random(key):
        key_body, key_head = jax.random.split(key)
        image = jnp.zeros((1, 32, 32, 3), jnp.uint8)  # of any size; no parameter depends on it
        return {
            "body": body.init(key_body, image, jnp.int32(1))["params"],
            "head": head.init(key_head, jnp.zeros((1, 8 * width)))["params"],
        }

    trained = (
        load_weights(weights, jax.eval_shape(random, jax.random.key(0))) if weights else {}
    )

    def init(key):
        return random(key) | jax.tree.map(jnp.asarray, trained)

    def features(params, x, count):
        held = {"params": params, "statistics": params.get("statistics", {})}
        return body.apply(held, x, count)

    def of_body(params, x):
        return features(params, x, jnp.int32(x.shape[0]))

    def of_head(params, x):
        return head.apply({"params": params}, x)

    def train_forward(params, batch):
        count = jnp.maximum(batch.count, 1)  # of no rows there are no statistics
        return of_head(params["head"], features(params["body"], batch.x, count))

    def recalibrate(params, examples):
        size = min(RECALIBRATION_EXAMPLES, examples.size)
        # Spread over all examples, in case they lie in the order of their classes.
        spread = jnp.arange(size) * jnp.maximum(examples.count, size) // size
        images, real = examples.rows(spread).x, jnp.minimum(examples.count, size)
        _, told = body.apply({"params": params["body"]}, images, real, mutable=["statistics"])
        return params | {"body": params["body"] | told}

    return ClientModel(
        init=init,
        body=of_body,
        head=of_head,
        task=task,
        train_forward=train_forward,
        recalibrate=recalibrate,
    )


def load_weights(path: str, shapes) -> dict:
    """The body in a file of torchvision's tensors, and the head if it has as many outputs.

    Args:
      path: of the file.
      shapes: of the parameters, {"body": ..., "head": ...}.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it does not hold such a body; one line that names the tensor.
    """
    tensors = {
        name: tensor
        for name, tensor in read_tensors(path).items()
        if not name.endswith(AVERAGES)
    }

    def refuse(what):
        width = shapes["body"]["conv1"]["kernel"].shape[-1]
        raise ValueError(
            f"model.weights={path!r} holds weights of another architecture: {what}; give those "
            f"of a ResNet-18 of model.width={width}, or leave it empty"
        )

    def take(keys, leaf):
        """The tensor that belongs at `keys` of the body, HWIO where PyTorch has OIHW."""
        *modules, kind = keys
        kind = "bias" if kind == "bias" else "weight"
        name = ".".join(modules).replace("_", ".") + f".{kind}"
        expected = in_torch(leaf.shape)
        if name not in tensors:
            refuse(f"{name} is missing")
        tensor = tensors.pop(name)
        if tensor.shape != expected:
            refuse(f"{name} has shape {list(tensor.shape)} and not {list(expected)}")
        return from_torch(tensor)

    flat = flatten_dict(shapes["body"])
    body = unflatten_dict({keys: take(keys, leaf) for keys, leaf in flat.items()})
    head = {"kernel": tensors.pop("fc.weight", None), "bias": tensors.pop("fc.bias", None)}
    if tensors:
        refuse(f"{min(tensors)} is unknown")
    fits = all(
        tensor is not None and tensor.shape == in_torch(shapes["head"][name].shape)
        for name, tensor in head.items()
    )
    return {"body": body} | ({"head": jax.tree.map(from_torch, head)} if fits else {})


def in_torch(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A kernel's shape [..., inputs, outputs], or a vector's, as [outputs, inputs, ...]."""
    return (*shape[:-3:-1], *shape[:-2])


def from_torch(tensor: np.ndarray) -> np.ndarray:
    """A weight [outputs, inputs, ...] as a kernel [..., inputs, outputs]; a vector as it is."""
    axes = (*range(2, tensor.ndim), 1, 0)[-tensor.ndim :]
    return tensor.transpose(axes).astype(np.float32)
