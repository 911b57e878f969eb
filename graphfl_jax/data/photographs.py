"""Reads image files: decodes and resizes them once, and caches the result."""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

# Only common formats, so that few decoders read files that may be damaged or malicious.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")
_MAX_PIXELS = 50_000_000  # of an image before it is resized


def squares(folder, names, *, size, cache) -> np.ndarray:
    """Reads images as RGB squares, [n, size, size, 3] uint8.

    The result is written to a cache and read from it later as a memory map. A JSON file beside
    the cache holds hashes of the image files' names, sizes and times and of the pixels. If they
    differ, or the cache is damaged, it is made again. If the cache cannot be written, the
    images are decoded in every call.

    Args:
      folder: of the images.
      names: n paths within the folder.
      size: width and height of the result in pixels; the aspect ratio is not kept.
      cache: file of the cache, ``*.npy``.

    Raises:
      ValueError: an image cannot be decoded.
    """
    files = [Path(folder) / name for name in names]
    fingerprint = _fingerprint(names, files)
    shape = (len(files), size, size, 3)
    cached = _read_cache(cache, fingerprint, shape)
    if cached is not None:
        return cached
    pixels = np.empty(shape, np.uint8)

    def fill(i):
        pixels[i] = decode(files[i], size)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(fill, range(len(files))):
            pass  # the iteration raises errors of `fill`
    try:
        _write_cache(cache, fingerprint, pixels)
    except OSError:
        return pixels
    cached = _read_cache(cache, fingerprint, shape)
    return pixels if cached is None else cached  # another process may have replaced it


def decode(file, size) -> np.ndarray:
    """Reads an image as RGB and resizes it to [size, size, 3] uint8.

    Resizing is bilinear, with antialiasing where the image becomes smaller.

    Raises:
      ValueError: the image cannot be decoded.
    """
    from PIL import Image

    try:
        with Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels")
            rgb = image.convert("RGB")
        return np.asarray(rgb.resize((size, size), Image.Resampling.BILINEAR))
    # Damaged bytes can make a decoder raise almost any exception.
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"{file}: the image cannot be decoded ({why}); replace it by the official file"
        ) from error


def _fingerprint(names, files):
    """A hash of the names, their order, and the sizes and modification times of the files."""
    digest = hashlib.sha256()
    for name, file in zip(names, files, strict=True):
        stat = file.stat()
        digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _read_cache(cache, fingerprint, shape):
    """The cached pixels, or None if they are of other files, damaged, or missing."""
    try:
        hashes = json.loads(_hash_file(cache).read_text())
        pixels = np.lib.format.open_memmap(cache, mode="r")
    # Damaged bytes can make NumPy raise almost any exception.
    except Exception:
        return None
    if (pixels.shape, pixels.dtype) != (shape, np.uint8):
        return None
    return pixels if hashes == {"files": fingerprint, "pixels": _sha256(pixels)} else None


def _write_cache(cache, fingerprint, pixels):
    """Writes the cache and its hashes."""
    hashes = json.dumps({"files": fingerprint, "pixels": _sha256(pixels)}).encode()
    _write(cache, lambda file: np.save(file, pixels))
    _write(_hash_file(cache), lambda file: file.write(hashes))


def _write(path, write):
    """Writes a file. A failure leaves no partial file."""
    # In the same folder, because a rename is atomic only within one file system.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            write(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _hash_file(cache):
    return cache.with_suffix(".json")


def _sha256(pixels):
    return hashlib.sha256(np.ascontiguousarray(pixels)).hexdigest()
