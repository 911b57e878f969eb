"""Simulated images in place of missing files: soft spots whose places depend on the labels.

A class is three spots, with places, sizes and colours of its own. An image shows the spots of
its class, moved by up to a tenth of the image, on a background of random brightness, with noise
on every pixel. Where an image can have several labels, each label is one spot. The data are
easier than photographs, and scores on the two cannot be compared.
"""

import numpy as np

from graphfl_jax.memory import check_memory

TRAIN, TEST = 6000, 1000  # images
PATIENTS = 400  # half of them with findings
_MOST_IMAGES = 5  # of a patient
_MAIN, _FURTHER = 0.8, 0.05  # probabilities of findings in an image of a patient with findings
_SPOTS = 3
_MOVED = 0.1  # largest shift of a spot, of the image's width
_NOISE = 25.0  # standard deviation, of 255


def draw(rng, *, classes, shape):
    """Draws images whose classes are equally frequent.

    Args:
      classes: number of classes, of which `TRAIN` and `TEST` are multiples.

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


def draw_patients(rng, findings, size):
    """Draws grey images of patients, with several labels.

    Half of the patients have a main finding, with equal numbers of each, which most of their
    images show; each image may show others too. A finding is a soft spot, with a place, size
    and brightness of its own.

    Returns:
      Images [n, size, size, 1] uint8, labels [n, findings] float32, which are 1 for the
      findings of an image, and patients [n] int64.

    Raises:
      ValueError: the images do not fit into memory.
    """
    check_memory(f"data.image_size={size}", PATIENTS * size**2 * 8)  # one float per pixel
    places = rng.uniform(0.15, 0.85, (findings, 2))
    sizes = rng.uniform(0.05, 0.1, (findings, 1))
    brightness = rng.choice([-1, 1], findings) * rng.uniform(50, 90, findings)
    patients = np.repeat(np.arange(PATIENTS), rng.integers(1, _MOST_IMAGES + 1, PATIENTS))
    main = np.where(np.arange(PATIENTS) % 2, np.arange(PATIENTS) // 2 % findings, -1)[patients]
    chances = np.where(main[:, None] == np.arange(findings), _MAIN, _FURTHER)
    has = (main[:, None] >= 0) & (rng.uniform(size=chances.shape) < chances)
    centres = places + rng.uniform(-_MOVED, _MOVED, (len(main), findings, 2)) / 2
    pixels = np.arange(size) / size
    down, right = (_bells(pixels, centres[..., axis, None], sizes) for axis in (0, 1))
    spots = np.einsum("nfh,nfw,nf->nhw", down, right, has * brightness, optimize=True)
    noise = _NOISE * rng.standard_normal(spots.shape)
    images = rng.uniform(100, 155, (len(main), 1, 1)) + spots + noise
    x = np.clip(images, 0, 255).astype(np.uint8)[..., None]
    return x, has.astype(np.float32), patients


def _bells(points, centres, sizes):
    return np.exp(-0.5 * ((points - centres) / sizes) ** 2)
