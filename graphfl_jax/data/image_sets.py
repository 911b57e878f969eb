"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, divided among clients by a partition.

The files are those of the publishers. Without them, simulated images of the same shape and with
as many classes take their place, see `drawn_patterns`. The clients have no relations.

Sources: LeCun, Bottou, Bengio, Haffner, Gradient-Based Learning Applied to Document
Recognition, Proceedings of the IEEE 86(11), 1998. Xiao, Rasul, Vollgraf, Fashion-MNIST: a Novel
Image Dataset for Benchmarking Machine Learning Algorithms, arXiv:1708.07747. Krizhevsky,
Learning Multiple Layers of Features from Tiny Images, 2009.

Official test examples are divided among clients in the class proportions of their training
examples. With test="own", they are not used for it; a random fifth of a client's training
examples takes their place.

The hundred classes of CIFAR-100 are in twenty superclasses of five, such as maple, oak, palm,
pine and willow in trees. `Superclasses` says which of the two are the labels, and which of
them the partition divides. If it divides the classes and the labels are the superclasses,
clients with the same label have other kinds of images of it.
"""

import gzip
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from graphfl_jax.data import (
    drawn_patterns,
    files,
    label_skew,
    photographs,
    relations,
)
from graphfl_jax.data.common_settings import Cap, GeneratorSeed, Partition, ValFraction, forms
from graphfl_jax.data.federation import Federation, federate, with_shared_split
from graphfl_jax.data.pickles import load_pickle
from graphfl_jax.data.splits import RandomSplit, split_training
from graphfl_jax.settings import Choice, Integer, Part

Test = Annotated[
    str,
    Choice(
        "Test examples of a client: official ones in its class proportions, or a fifth of its "
        "own training examples.",
        ("official", "own"),
    ),
]
Sample = Annotated[
    int,
    Integer(
        "Training examples of all clients together, drawn before they are divided; 0 is all. "
        "With data.test=own, of training and test examples together.",
        low=0,
    ),
]
BalancedTest = Annotated[
    int,
    Integer(
        "Official test examples, equally many of each class, on which all clients are scored "
        "too, as the split balanced; 0 is none.",
        low=0,
    ),
]
ImageSize = Annotated[
    int,
    Integer("Width and height in pixels to which images are resized; 0 keeps theirs.", low=0),
]


LEVELS = ("fine", "coarse")


class Superclasses(NamedTuple):
    """What CIFAR-100 has two levels of classes for, as settings of its loader."""

    labels: Annotated[
        str, Choice("Labels: the hundred classes, or their twenty superclasses.", LEVELS)
    ] = "fine"
    partition_by: Annotated[
        str,
        Choice(
            "What the partition divides. With coarse labels, fine classes are in the order in "
            "which the first twenty are one of each superclass, and so on: 20 classes per "
            "client give clients different kinds of all superclasses.",
            LEVELS,
        ),
    ] = "fine"


FINE = Superclasses()


def _without_superclasses():
    """As `Superclasses`, of a data set that has none: there are no settings."""
    return FINE


class Version(NamedTuple):
    """Files of a data set below the data folder. A reader takes a group of them at a time."""

    train: tuple[tuple[str, ...], ...]  # groups
    test: tuple[tuple[str, ...], ...]
    reader: Callable  # (*paths of a group, classes) -> images [n, H, W, C] uint8, labels [n]

    @property
    def files(self) -> list[str]:
        return [name for group in self.train + self.test for name in group]


class ImageSet(NamedTuple):
    """What is known of a data set."""

    name: str
    title: str
    shape: tuple[int, int, int]  # height, width, channels
    classes: int
    train: int  # official numbers of examples
    test: int
    versions: tuple[Version, ...]  # the first one whose first file exists is read


SIDE, CHANNELS = 32, 3  # of CIFAR's images
KINDS = 5  # classes of a superclass
# Of a record of CIFAR, by the number of classes: the bytes of labels, which of them it is, and
# its name in the version for Python.
_LABELS = {10: (1, 0, "labels"), 20: (2, 0, "coarse_labels"), 100: (2, 1, "fine_labels")}
PIXELS = SIDE * SIDE * CHANNELS
_LONGEST = 60_000  # examples of an IDX file; bounds what is unpacked


def read_idx(images, labels, *, classes) -> tuple[np.ndarray, np.ndarray]:
    """Reads a pair of IDX files, compressed by gzip if their names end in .gz.

    A file has two zero bytes, the type of its values (8 is uint8), the number of its axes, the
    length of each axis (4 bytes, big-endian), and the values. The axes of images are n, H, W.

    Returns:
      Images [n, H, W, 1] uint8 and labels [n] int64.

    Raises:
      ValueError: a file does not fit, or the numbers of images and labels differ.
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

    A record of CIFAR-10 has the label; a record of CIFAR-100 has the coarse and the fine label.
    Both have 3,072 bytes, the red, green and blue plane.

    Args:
      classes: 10; or of CIFAR-100 100 or 20, for the fine or the coarse labels.

    Returns:
      Images [n, 32, 32, 3] uint8 and labels [n] int64.

    Raises:
      ValueError: the file has no whole records, or a label is not below `classes`.
    """
    head, place, _ = _LABELS[classes]
    content = np.fromfile(path, np.uint8)
    length = head + PIXELS
    if not len(content) or len(content) % length:
        raise ValueError(
            f"{path}: the file has {len(content)} bytes, which are no whole records of {length}"
            "; replace it by the file of the official binary version"
        )
    records = content.reshape(-1, length)
    return _join_planes(records[:, head:]), _check_labels(path, records[:, place], classes)


def read_python(path, *, classes) -> tuple[np.ndarray, np.ndarray]:
    """Reads a pickle of CIFAR's version for Python; no code of the pickle is executed.

    It is a dictionary with data [n, 3072] uint8 and a list of labels, or lists of fine_labels
    and coarse_labels. `classes` is as in `read_binary`.

    Returns:
      As `read_binary`.

    Raises:
      ValueError: an array does not fit, or a label is not below `classes`.
    """
    content, key = load_pickle(path), _LABELS[classes][2]
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


def _idx(folder, suffix):
    train, test = (
        tuple(
            f"{folder}/{part}-{kind}-ubyte{suffix}" for kind in ("images-idx3", "labels-idx1")
        )
        for part in ("train", "t10k")
    )
    return Version((train,), (test,), read_idx)


def _cifar(classes, train, test, folders):
    """CIFAR of so many classes, whose `folders` end so: binary, and for Python."""
    versions = []
    readers = (".bin", read_binary), ("", read_python)
    for end, (suffix, reader) in zip(folders, readers, strict=True):
        folder = f"cifar-{classes}-{end}"
        groups = tuple((f"{folder}/{name}{suffix}",) for name in (*train, test))
        versions.append(Version(groups[:-1], groups[-1:], reader))
    name, title = f"cifar{classes}", f"CIFAR-{classes}"
    return ImageSet(name, title, (32, 32, 3), classes, 50_000, 10_000, tuple(versions))


def _like_mnist(name, title, *folders):
    """MNIST or Fashion-MNIST, in one of the folders."""
    versions = tuple(_idx(folder, end) for folder in folders for end in (".gz", ""))
    return ImageSet(name, title, (28, 28, 1), 10, 60_000, 10_000, versions)


# The official files, and those of torchvision.
MNIST = _like_mnist("mnist", "MNIST", "mnist", "MNIST/raw")
FASHION_MNIST = _like_mnist(
    "fashion_mnist", "Fashion-MNIST", "fashion-mnist", "FashionMNIST/raw"
)
_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
CIFAR10 = _cifar(10, _BATCHES, "test_batch", ("batches-bin", "batches-py"))
CIFAR100 = _cifar(100, ["train"], "test", ("binary", "python"))


def _loader(image_set: ImageSet):
    """The loader of a data set. All have the same settings.

    A loader returns clients without relations, with x [H, W, C] uint8 and labels from 0. It
    raises a ValueError if a file is damaged or foreign, or the partition or `balanced_test`
    does not fit, and a FileNotFoundError if a file is missing.
    """
    levels = Superclasses if image_set.name == "cifar100" else _without_superclasses

    def load(
        *,
        root,
        source: Annotated[str, forms("real", "simulated")] = "auto",
        partition: Partition = "pathological",
        examples: Sample = 0,
        cap: Cap = 0,
        test: Test = "official",
        balanced_test: BalancedTest = 0,
        image_size: ImageSize = 0,
        superclasses: Annotated[Superclasses, Part(levels)] = FINE,
        val_fraction: ValFraction = 0.0,
        generator_seed: GeneratorSeed = 0,
        seed,
    ) -> Federation:
        version = _find_version(image_set, Path(root), source)
        x, y, train = _read_images(image_set, version, Path(root), generator_seed)
        x = photographs.resize(x, image_size) if image_size else x
        (y, classes), (divided, kinds) = _choose_levels(
            image_set, version, Path(root), superclasses, y
        )
        split = np.where(np.arange(len(y)) < train, "train", "test")
        balanced = _choose_balanced(y, classes, split, balanced_test, seed=seed)
        shared = x[balanced], y[balanced]
        if test == "own":
            x, y, split = x[:train], y[:train], None
        divided = divided[: len(y)]
        limits = {"examples": examples, "cap": cap}
        rows = label_skew.divide(partition, divided, kinds, split=split, seed=seed, **limits)
        splits = RandomSplit(seed, val_fraction)
        if split is not None:
            splits = [split_training(split[i], c, splits) for c, i in enumerate(rows)]
        federation = federate(
            [f"client {i}" for i in range(len(rows))],
            x=[x[i] for i in rows],
            y=[y[i] for i in rows],
            graph=relations.from_edges(len(rows), ()),
            task="classification",
            outputs=classes,
            name=image_set.name,
            source="real" if version else "simulated",
            split=splits,
            extent=_extent(image_set, version, split, train, examples, cap, image_size),
        )
        if balanced_test:
            federation = with_shared_split(federation, "balanced", *shared)
        return federation

    load.__name__ = load.__qualname__ = image_set.name
    load.__doc__ = f"{image_set.title}, or drawn images of its size, divided among clients."
    return load


mnist = _loader(MNIST)
fashion_mnist = _loader(FASHION_MNIST)
cifar10 = _loader(CIFAR10)
cifar100 = _loader(CIFAR100)


def _find_version(image_set, root, source):
    """The version to read, or None if images are to be simulated."""
    if source == "simulated":
        return None
    # The version of which the most files are there.
    version = max(image_set.versions, key=lambda v: sum((root / n).is_file() for n in v.files))
    for file in (root / name for name in version.files):
        if not file.is_file():
            return files.report_missing(
                image_set.name,
                f"no file {file}",
                f"put the official files of {image_set.title} there",
                folder=root / file.relative_to(root).parts[0],
                required=source == "real",
                stand_in="images are simulated",
            )
    return version


def _read_images(image_set, version, root, generator_seed):
    """Images and labels, and how many come first that are for training."""
    if version is None:
        rng = np.random.default_rng(generator_seed)
        images = drawn_patterns.draw(rng, classes=image_set.classes, shape=image_set.shape)
        return *images, drawn_patterns.TRAIN
    x, y, train = [], [], 0
    for group in version.train + version.test:
        paths = [root / name for name in group]
        images, labels = version.reader(*paths, classes=image_set.classes)
        if images.shape[1:] != image_set.shape:
            raise ValueError(
                f"{paths[0]}: images have shape {list(images.shape[1:])} and those of "
                f"{image_set.title} have {list(image_set.shape)}; replace it by the official "
                "file"
            )
        x.append(images)
        y.append(labels)
        train += len(labels) if group in version.train else 0
    return np.concatenate(x), np.concatenate(y), train


def _read_superclasses(image_set, version, root, fine):
    """The superclass of each image [n]. Those of simulated images are made of their classes."""
    if version is None:
        return fine // KINDS
    groups = [[root / name for name in group] for group in version.train + version.test]
    classes = image_set.classes // KINDS
    coarse = np.concatenate([version.reader(*paths, classes=classes)[1] for paths in groups])
    pairs = np.unique(np.stack([coarse, fine]), axis=1)  # [2, pairs]
    if len(np.unique(pairs[1])) < len(pairs[1]) or np.bincount(pairs[0]).max() > KINDS:
        raise ValueError(
            f"{groups[0][0]}: the coarse labels are not superclasses of {KINDS} fine labels "
            "each; replace the files by the official ones"
        )
    return coarse


def _choose_levels(image_set, version, root, superclasses, fine):
    """The labels [n] and their number, and what the partition divides, likewise."""
    levels = {"fine": (fine, image_set.classes)}
    if "coarse" in superclasses:
        coarse = _read_superclasses(image_set, version, root, fine)
        levels["coarse"] = coarse, image_set.classes // KINDS
    chosen, divided = (levels[level] for level in superclasses)
    if superclasses == ("coarse", "fine"):
        groups, members = np.unique(np.stack([coarse, fine]), axis=1)
        kinds = np.zeros(image_set.classes, int)  # the number of a class in its superclass
        kinds[members] = np.arange(len(groups)) - np.searchsorted(groups, groups)
        divided = kinds[fine] * chosen[1] + coarse, image_set.classes
    return chosen, divided


def _choose_balanced(y, classes, split, count, *, seed):
    """The places of `count` random test examples, with as many of each class."""
    each, remainder = divmod(count, classes)
    rows = [np.flatnonzero((split == "test") & (y == c)) for c in range(classes)]
    fewest = min(map(len, rows))
    if remainder or each > fewest:
        raise ValueError(
            f"data.balanced_test={count} is not a multiple of the {classes} classes "
            f"with at most {fewest} test examples of each; set --config.data.balanced_test to "
            f"a multiple of {classes} up to {fewest * classes}"
        )
    rng = np.random.default_rng([seed, len(y), count])
    return np.concatenate([rng.permutation(of_class)[:each] for of_class in rows])


def _extent(image_set, version, split, train, examples, cap, image_size):
    """The part of the official data set, as `Federation.extent` states it."""
    notes = []
    if version and train < image_set.train:
        notes.append(f"{train} of {image_set.train} training images")
    if version and split is not None and len(split) - train < image_set.test:
        notes.append(f"{len(split) - train} of {image_set.test} test images")
    if 0 < examples < train:
        notes.append(f"{examples} training images drawn from all")
    if cap:
        notes.append(f"at most {cap} images of a split per client")
    if image_size and (image_size, image_size) != image_set.shape[:2]:
        notes.append(f"images resized to {image_size} x {image_size} pixels")
    return ", ".join(notes)
