"""Generated images for benchmarks: ``bench --images=28x28x1 --config=custom``."""

import re

import numpy as np
from ml_collections import ConfigDict

from experiments.benchmarks.scaling import ring
from graphfl_jax.build import arrange
from graphfl_jax.data.custom import from_arrays
from graphfl_jax.data.federation import Federation

TEST = 5  # training examples of a client per test example


def shape_of(text: str) -> tuple[int, int, int]:
    """Height, width and channels from text such as 28x28x1.

    Raises:
      ValueError: the text is not three positive integers.
    """
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text)
    if match is None:
        raise ValueError(
            f"images={text} is not HEIGHTxWIDTHxCHANNELS; set --images=28x28x1 or other sizes"
        )
    height, width, channels = map(int, match.groups())
    return height, width, channels


def load_images(
    config: ConfigDict, text: str, *, clients: int, examples: int, classes: int
) -> Federation:
    """The `image_federation` of a size as text, in place of the file of custom data.

    Raises:
      ValueError: the configuration names other data, or a number does not fit.
    """
    if config.data.name != "custom" or config.data.path or config.data.val_fraction:
        raise ValueError(
            f"images={text} replaces the file of --config=custom, and the configuration has "
            f"other data; set --config=custom, and leave data.path and "
            f"data.val_fraction out"
        )
    return arrange(config, image_federation(shape_of(text), clients, examples, classes))


def image_federation(
    shape: tuple[int, int, int], clients: int, examples: int, classes: int
) -> Federation:
    """A classification of byte images on a ring of clients.

    An image is the mean of its class's pattern and of noise, both uniform from 0 to 255. So
    equal neighbouring pixels are rare: in max pooling, libraries give the gradient of equal
    maxima to different places.

    Args:
      shape: height, width and channels of an image.
      clients: number of clients.
      examples: training examples of each. Each has a fifth as many for test, at least one.
      classes: number of classes, which all clients have.

    Raises:
      ValueError: there are fewer than two classes, or more of them than images.
    """
    each = examples + max(1, examples // TEST)
    total = clients * each
    if not 2 <= classes <= total:
        raise ValueError(
            f"classes={classes} is not in [2, {total}] for {total} generated images; set "
            f"--classes, --clients or --examples"
        )
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(total) % classes)
    patterns = rng.integers(256, size=(classes, *shape), dtype=np.uint16)
    noise = rng.integers(256, size=(total, *shape), dtype=np.uint16)
    split = np.where(np.arange(each) < examples, "train", "test")
    return from_arrays(
        ((patterns[labels] + noise) // 2).astype(np.uint8),
        labels,
        np.repeat(np.arange(clients), each),
        split=np.tile(split, clients),
        edges=ring(clients),
        name=f"generated images {'x'.join(map(str, shape))}",
    )
