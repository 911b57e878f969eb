"""Images: resizing; and reading of image files, which are decoded once and cached."""

import contextlib
import hashlib
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from graphfl_jax.data.files import open_new
from graphfl_jax.memory import check_memory

# Only common formats, so that few decoders read files that may be damaged or malicious.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")
_MAX_PIXELS = 50_000_000  # of an image before it is resized
_COLOURED = ("LA", "P", "RGB", "RGBA")  # modes of files that may hold a grey image


def resize(images, size: int) -> np.ndarray:
    """Resizes images [n, H, W, C] uint8, C being 1 or 3, to squares [n, size, size, C].

    Where `size` divides height and width, a pixel is the mean over a rectangle of pixels,
    rounded. Otherwise, resizing is bilinear, with antialiasing where the images become smaller.

    Raises:
      ValueError: the result does not fit into memory.
    """
    n, height, width, channels = images.shape
    if (height, width) == (size, size):
        return images
    check_memory(f"data.image_size={size}", n * size**2 * channels)
    if height % size or width % size:
        return _resize_bilinear(images, size)
    down, right = height // size, width // size
    parts = images.reshape(n, size, down, size, right, channels)
    sums = parts.sum(axis=(2, 4), dtype=np.uint32)
    return ((sums + down * right // 2) // (down * right)).astype(np.uint8)


def _resize_bilinear(images, size):
    from PIL import Image

    result = np.empty((len(images), size, size, images.shape[3]), np.uint8)
    for image, place in zip(images, result, strict=True):
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        small = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
        place[:] = small.reshape(place.shape)
    return result


def squares(folder, names, *, size, cache, grey=False) -> np.ndarray:
    """Reads images as RGB squares, [n, size, size, 3] uint8, or grey ones, [n, size, size, 1].

    The result is written to a cache and read from it later as a memory map. A JSON file beside
    the cache holds hashes of the image files' names, sizes and times and of the pixels. If they
    differ, or the cache is damaged, it is made again. If the cache cannot be written, the
    images are decoded in every call.

    Args:
      names: n paths within the folder.
      size: width and height of the result in pixels; the aspect ratio is not kept.
      cache: file of the cache, ``*.npy``.
      grey: whether the images are grey squares of one size.

    Raises:
      ValueError: an image cannot be decoded, or with `grey` is none, is no square of the
        others' size or is smaller than `size`, or all of them do not fit into memory.
    """
    paths = [Path(folder) / name for name in names]
    fingerprint = _fingerprint(names, paths)
    shape = (len(paths), size, size, 1 if grey else 3)
    cached = _read_cache(cache, fingerprint, shape)
    if cached is not None:
        return cached
    check_memory(f"data.image_size={size}", math.prod(shape))
    pixels = np.empty(shape, np.uint8)
    side = _load(paths[0]).width if grey else 0

    def fill(i):
        pixels[i] = decode_grey(paths[i], size, side) if grey else decode(paths[i], size)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(fill, range(len(paths))):
            pass  # the iteration raises errors of `fill`
    with contextlib.suppress(OSError):
        with open_new(cache) as file:
            np.save(file, pixels)
        with open_new(cache.with_suffix(".json")) as file:
            file.write(json.dumps({"files": fingerprint, "pixels": _sha256(pixels)}).encode())
    return pixels


def decode(file, size) -> np.ndarray:
    """Reads an image as RGB and resizes it to [size, size, 3] uint8.

    Resizing is bilinear, with antialiasing where the image becomes smaller.
    """
    from PIL import Image

    rgb = _load(file).convert("RGB")
    return np.asarray(rgb.resize((size, size), Image.Resampling.BILINEAR))


def decode_grey(file, size, side) -> np.ndarray:
    """Reads a grey square of `side` pixels, resized by `resize` to [size, size, 1] uint8.

    A file in colour is read if red, green and blue are equal in all pixels.

    Raises:
      ValueError: the image has another size, is smaller than `size`, or is not grey.
    """
    image = _load(file)
    if image.size != (side, side) or side < size:
        wanted = f"{side} x {side} pixels" if side >= size else f"at least {size} x {size}"
        raise ValueError(
            f"{file}: the image has {image.width} x {image.height} pixels, not {wanted}; use "
            f"the official images, and --config.data.image_size of their size or less"
        )
    pixels = np.asarray(image.convert("RGB") if image.mode in _COLOURED else image)
    if pixels.ndim == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]
    if pixels.ndim != 2 or pixels.dtype != np.uint8:
        raise ValueError(
            f"{file}: the image is not grey with 8 bits (its mode is {image.mode}); replace it "
            f"by the official file"
        )
    return resize(pixels[None, ..., None], size)[0]


def _load(file):
    """The decoded image. Raises a ValueError if it cannot be decoded."""
    from PIL import Image

    try:
        with Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels")
            image.load()
            return image
    # Damaged bytes can make a decoder raise almost any exception.
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"{file}: the image cannot be decoded ({why}); replace it by the official file"
        ) from error


def _fingerprint(names, paths):
    """A hash of the names, their order, and the sizes and modification times of the files."""
    digest = hashlib.sha256()
    for name, path in zip(names, paths, strict=True):
        stat = path.stat()
        digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _read_cache(cache, fingerprint, shape):
    """The cached pixels, or None if they are of other files, damaged, or missing."""
    try:
        hashes = json.loads(cache.with_suffix(".json").read_text())
        pixels = np.lib.format.open_memmap(cache, mode="r")
    # Damaged bytes can make NumPy raise almost any exception.
    except Exception:
        return None
    if (pixels.shape, pixels.dtype) != (shape, np.uint8):
        return None
    return pixels if hashes == {"files": fingerprint, "pixels": _sha256(pixels)} else None


def _sha256(pixels):
    return hashlib.sha256(np.ascontiguousarray(pixels)).hexdigest()
