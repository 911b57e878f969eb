"""Photographs from image files: decoded and resized once, and kept."""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

# The formats of photographs; decoders of others have more to go wrong.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")
_MAX_PIXELS = 50_000_000  # of an image before it is resized


def squares(folder, names, *, size, cache) -> np.ndarray:
    """Reads the images `names` of a folder, squashed to squares: [n, size, size, 3] uint8.

    They are kept in the file `cache`, with a note beside it of what they were made from, and
    read from there afterwards as a memory map. A cache of other names, or of files whose sizes
    or times have changed, and one that is damaged, is made anew. Where it cannot be written,
    the images are decoded every time.
    """
    files = [Path(folder) / name for name in names]
    state = _fingerprint(names, files)
    shape = (len(files), size, size, 3)
    kept = _kept(cache, state, shape)
    if kept is not None:
        return kept
    pixels = np.empty(shape, np.uint8)

    def fill(i):
        pixels[i] = decode(files[i], size)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(fill, range(len(files))):
            pass  # raises what a decoder has raised
    try:
        _keep(cache, state, pixels)
    except OSError:
        return pixels
    kept = _kept(cache, state, shape)
    return pixels if kept is None else kept  # another process may have written its own


def decode(file, size) -> np.ndarray:
    """Reads an image as RGB and squashes it to [size, size, 3] uint8.

    Resizing is bilinear; where it shrinks, it averages over all that a pixel covers.
    """
    try:
        with Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels")
            rgb = image.convert("RGB")
        return np.asarray(rgb.resize((size, size), Image.Resampling.BILINEAR))
    # Damaged bytes can make a decoder raise nearly anything.
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"{file} is no image that can be read ({why}); replace it by the official file."
        ) from error


def _fingerprint(names, files):
    """Changes with the names, their order, and the sizes and times of the files."""
    digest = hashlib.sha256()
    for name, file in zip(names, files, strict=True):
        stat = file.stat()
        digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _kept(cache, state, shape):
    """Opens the cache if its note tells of this state and of the very pixels that it holds."""
    try:
        note = json.loads(_note(cache).read_text())
        pixels = np.lib.format.open_memmap(cache, mode="r")
    # Damaged bytes can make NumPy raise nearly anything.
    except Exception:
        return None
    if (pixels.shape, pixels.dtype) != (shape, np.uint8):
        return None
    return pixels if note == {"files": state, "pixels": _sha256(pixels)} else None


def _keep(cache, state, pixels):
    """Writes cache and note, each whole or not at all."""
    note = json.dumps({"files": state, "pixels": _sha256(pixels)}).encode()
    _write(cache, lambda file: np.save(file, pixels))
    _write(_note(cache), lambda file: file.write(note))


def _write(path, write):
    # In the same folder, since a rename is atomic only within one file system.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            write(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _note(cache):
    return cache.with_suffix(".json")


def _sha256(pixels):
    return hashlib.sha256(np.ascontiguousarray(pixels)).hexdigest()
