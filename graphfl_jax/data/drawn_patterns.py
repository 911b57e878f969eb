"""Simulated images in place of missing files: soft spots whose places depend on the class.

A class is three spots, with places, sizes and colours of its own. An image shows the spots of
its class, moved by up to a tenth of the image, on a background of random brightness, with noise
on every pixel. The data are easier than photographs, and accuracies on the two cannot be
compared.
"""

import numpy as np

TRAIN, TEST = 6000, 1000  # images
_SPOTS = 3
_MOVED = 0.1  # largest shift of a spot, of the image's width
_NOISE = 25.0  # standard deviation, of 255


def draw(rng, *, classes, shape):
    """Draws images whose classes are equally frequent.

    Args:
      rng: a NumPy generator.
      classes: number of classes, of which `TRAIN` and `TEST` are multiples.
      shape: height, width and channels.

    Returns:
      Images [TRAIN + TEST, H, W, C] uint8, the training images first, and labels [TRAIN + TEST]
      int64.
    """
    height, width, channels = shape
    places = rng.uniform(0.2, 0.8, (classes, _SPOTS, 2))
    sizes = rng.uniform(0.08, 0.2, (classes, _SPOTS, 1))
    colours = rng.uniform(-110, 110, (classes, _SPOTS, channels))
    labels = np.concatenate(
        [rng.permutation(np.arange(count) % classes) for count in (TRAIN, TEST)]
    )
    n = len(labels)
    centres = places[labels] + rng.uniform(-_MOVED, _MOVED, (n, _SPOTS, 2))
    down = _bells(np.arange(height) / height, centres[..., :1], sizes[labels])  # [n, spots, H]
    right = _bells(np.arange(width) / width, centres[..., 1:], sizes[labels])  # [n, spots, W]
    images = np.empty((n, *shape), np.uint8)
    for i, label in enumerate(labels):
        spots = np.einsum("sh,sw,sc->hwc", down[i], right[i], colours[label])
        noise = _NOISE * rng.standard_normal(shape, np.float32)
        images[i] = np.clip(rng.uniform(90, 165) + spots + noise, 0, 255)
    return images, labels


def _bells(points, centres, sizes):
    return np.exp(-0.5 * ((points - centres) / sizes) ** 2)
