"""Images at another size."""

import numpy as np

from graphfl_jax.memory import check_memory


def resized(images, size: int) -> np.ndarray:
    """Resizes images to squares.

    Where `size` divides height and width, a pixel is the mean over a rectangle of pixels,
    rounded. Otherwise, resizing is bilinear, with antialiasing where the images become smaller.

    Args:
      images: [n, H, W, C] uint8; C is 1 or 3.
      size: height and width of the result in pixels.

    Returns:
      [n, size, size, C] uint8.

    Raises:
      ValueError: the result does not fit into memory.
    """
    n, height, width, channels = images.shape
    if (height, width) == (size, size):
        return images
    check_memory(f"data.image_size={size}", n * size**2 * channels)
    if height % size or width % size:
        return _bilinear(images, size)
    down, right = height // size, width // size
    parts = images.reshape(n, size, down, size, right, channels)
    sums = parts.sum(axis=(2, 4), dtype=np.uint32)
    return ((sums + down * right // 2) // (down * right)).astype(np.uint8)


def _bilinear(images, size):
    from PIL import Image

    result = np.empty((len(images), size, size, images.shape[3]), np.uint8)
    for image, place in zip(images, result, strict=True):
        grey = image.shape[2] == 1
        picture = Image.fromarray(image[..., 0] if grey else image)
        small = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
        place[:] = small.reshape(place.shape)
    return result
