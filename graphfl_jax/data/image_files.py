"""Reads the files of Fashion-MNIST, CIFAR-10 and CIFAR-100 as they are published.

Sources: Xiao, Rasul, Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
Learning Algorithms, arXiv:1708.07747. Krizhevsky, Learning Multiple Layers of Features from
Tiny Images, 2009. Every reader returns images [n, H, W, C] uint8 and labels [n] int64.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from graphfl_jax.data import files

SIDE, CHANNELS = 32, 3  # of CIFAR's images
PIXELS = SIDE * SIDE * CHANNELS
_LONGEST = 60_000  # examples of an IDX file; bounds what is unpacked


def read_idx(images, labels, *, classes) -> tuple[np.ndarray, np.ndarray]:
    """Reads a pair of IDX files, compressed by gzip if their names end in .gz.

    A file has two zero bytes, the type of its values (8 is uint8), the number of its axes, the
    length of each axis (4 bytes, big-endian), and the values.

    Args:
      images: file with the axes n, H, W.
      labels: file with the axis n.
      classes: labels are 0 to `classes` - 1.

    Raises:
      ValueError: a file has another format or is truncated, or the two do not fit together.
        One line with the file.
    """
    x, y = _read_idx_file(images, axes=3), _read_idx_file(labels, axes=1)
    if len(x) != len(y):
        raise ValueError(
            f"{labels}: the file has {len(y)} labels and {images} has {len(x)} images; use the "
            "official pair"
        )
    return x[..., None], _check_labels(labels, y, classes)


def read_binary(path, *, classes) -> tuple[np.ndarray, np.ndarray]:
    """Reads a file of CIFAR's binary version.

    A record of CIFAR-10 has the label; a record of CIFAR-100 has the coarse and the fine label,
    of which the fine one is used. Both have 3,072 bytes, the red, green and blue plane.

    Raises:
      ValueError: the file does not consist of whole records, or a label is too large.
    """
    head = 1 if classes == 10 else 2  # bytes of labels
    content = np.fromfile(path, np.uint8)
    length = head + PIXELS
    if not len(content) or len(content) % length:
        raise ValueError(
            f"{path}: the file has {len(content)} bytes, which are no whole records of {length}"
            "; replace it by the file of the official binary version"
        )
    records = content.reshape(-1, length)
    return _join_planes(records[:, head:]), _check_labels(path, records[:, head - 1], classes)


def read_python(path, *, classes) -> tuple[np.ndarray, np.ndarray]:
    """Reads a pickle of CIFAR's version for Python; no code of the pickle is executed.

    It is a dictionary with data [n, 3072] uint8 and a list of labels, or of fine_labels.

    Raises:
      ValueError: the file is damaged, or it holds something else.
    """
    content = files.load_pickle(path)
    key = "labels" if classes == 10 else "fine_labels"
    arrays = content if isinstance(content, dict) else {}
    x, y = np.asarray(arrays.get("data")), np.asarray(arrays.get(key))
    if x.dtype != np.uint8 or x.shape != (len(x) if x.ndim else 0, PIXELS) or not len(x):
        raise ValueError(
            f"{path}: 'data' is of type {x.dtype} and shape {x.shape} and not bytes of shape "
            f"(n, {PIXELS}); replace it by the official file"
        )
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
        raise ValueError(
            f"{path}: {key!r} is of type {y.dtype} and shape {y.shape} and not integers of "
            f"shape {x.shape[:1]}; replace it by the official file"
        )
    return _join_planes(x), _check_labels(path, y, classes)


def _read_idx_file(path, *, axes):
    """The values of an IDX file of bytes with so many axes."""
    opened = gzip.open if Path(path).suffix == ".gz" else open
    remedy = "replace it by the official file"
    try:
        with opened(path, "rb") as file:
            start = file.read(4 + 4 * axes)
            if start[:4] != bytes([0, 0, 8, axes]) or len(start) < 4 + 4 * axes:
                raise ValueError(
                    f"{path}: the file is not an IDX file of bytes with {axes} axes; {remedy}"
                )
            shape = tuple(np.frombuffer(start, ">u4", offset=4).tolist())
            size = math.prod(shape)
            if not 0 < shape[0] <= _LONGEST or not 0 < size <= _LONGEST * SIDE * SIDE:
                raise ValueError(f"{path}: the file has axes of lengths {shape}; {remedy}")
            values = file.read(size + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        why = " ".join(str(error).split())
        raise ValueError(
            f"{path}: the file is damaged or truncated ({why}); {remedy}"
        ) from error
    if len(values) != size:
        more = "more" if len(values) > size else len(values)
        raise ValueError(
            f"{path}: the file has {more} bytes after its head, not {size}; {remedy}"
        )
    return np.frombuffer(values, np.uint8).reshape(shape)


def _join_planes(rows):
    """Rows [n, 3072] of three planes as images [n, 32, 32, 3]."""
    planes = rows.reshape(-1, CHANNELS, SIDE, SIDE)
    return np.ascontiguousarray(np.moveaxis(planes, 1, 3))


def _check_labels(path, labels, classes):
    labels = labels.astype(np.int64)
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"{path}: label {labels[first]} of example {first} is not in 0 to {classes - 1}; "
            "replace it by the official file"
        )
    return labels
