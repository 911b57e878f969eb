"""Fashion-MNIST, CIFAR-10 and CIFAR-100, divided among clients by a partition of the labels.

The files are those of the publishers, see `image_files`. Without them, simulated images of the
same shape and with as many classes take their place, see `drawn_patterns`. The clients have no
relations of their own.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from graphfl_jax.data import drawn_patterns, files, image_files, label_skew, relations
from graphfl_jax.data.common_settings import GeneratorSeed, ValFraction, forms
from graphfl_jax.data.federation import Federation, federate, with_shared_split
from graphfl_jax.data.resized import resized
from graphfl_jax.settings import Choice, Integer, Variant

Source = Annotated[str, forms("real", "simulated")]
Partition = Annotated[
    str,
    Variant(
        "How examples are divided among clients.",
        tuple(label_skew.PARTITIONS),
        factories=label_skew.PARTITIONS,
    ),
]
Cap = Annotated[int, label_skew.Cap]
Test = Annotated[
    str,
    Choice(
        "Test examples of a client: official ones in its class proportions, or a fifth of its "
        "own training examples.",
        ("official", "own"),
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


class Version(NamedTuple):
    """Files of a data set below the data folder. A reader takes a group of them at a time."""

    train: tuple[tuple[str, ...], ...]  # groups
    test: tuple[tuple[str, ...], ...]
    reader: Callable  # (*paths of a group, classes) -> images and labels


class ImageSet(NamedTuple):
    """What is known of a data set."""

    name: str
    title: str
    shape: tuple[int, int, int]  # height, width, channels
    classes: int
    train: int  # official numbers of examples
    test: int
    versions: tuple[Version, ...]  # the first one whose first file exists is read


def _idx(suffix):
    train, test = (
        tuple(
            f"fashion-mnist/{part}-{kind}-ubyte{suffix}"
            for kind in ("images-idx3", "labels-idx1")
        )
        for part in ("train", "t10k")
    )
    return Version((train,), (test,), image_files.read_idx)


def _batches(folder, suffix, reader):
    train = tuple((f"{folder}/data_batch_{i}{suffix}",) for i in range(1, 6))
    return Version(train, ((f"{folder}/test_batch{suffix}",),), reader)


def _pair(folder, suffix, reader):
    return Version(((f"{folder}/train{suffix}",),), ((f"{folder}/test{suffix}",),), reader)


_BINARY, _PYTHON = (".bin", image_files.read_binary), ("", image_files.read_python)
FASHION_MNIST = ImageSet(
    *("fashion_mnist", "Fashion-MNIST", (28, 28, 1), 10, 60_000, 10_000),
    versions=(_idx(".gz"), _idx("")),
)
CIFAR10 = ImageSet(
    *("cifar10", "CIFAR-10", (32, 32, 3), 10, 50_000, 10_000),
    versions=(
        _batches("cifar-10-batches-bin", *_BINARY),
        _batches("cifar-10-batches-py", *_PYTHON),
    ),
)
CIFAR100 = ImageSet(
    *("cifar100", "CIFAR-100", (32, 32, 3), 100, 50_000, 10_000),
    versions=(_pair("cifar-100-binary", *_BINARY), _pair("cifar-100-python", *_PYTHON)),
)


def _loader(image_set: ImageSet):
    """The loader of a data set. All have the same settings."""

    def load(
        *,
        root,
        source: Source = "auto",
        partition: Partition = "pathological",
        cap: Cap = 0,
        test: Test = "official",
        balanced_test: BalancedTest = 0,
        image_size: ImageSize = 0,
        val_fraction: ValFraction = 0.0,
        generator_seed: GeneratorSeed = 0,
        seed,
    ) -> Federation:
        version = _find(image_set, Path(root), source)
        if version:
            parts = [_read(image_set, root, part, version.reader) for part in version[:2]]
            x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            train = len(parts[0][1])
        else:
            rng = np.random.default_rng(generator_seed)
            x, y = drawn_patterns.draw(rng, classes=image_set.classes, shape=image_set.shape)
            train = drawn_patterns.TRAIN
        if image_size:
            x = resized(x, image_size)
        split = np.where(np.arange(len(y)) < train, "train", "test")
        balanced = _balanced(image_set, y, split, balanced_test, seed=seed)
        shared = x[balanced], y[balanced]
        if test == "own":
            x, y, split = x[:train], y[:train], None
        rows = label_skew.divide(
            *(partition, y, image_set.classes), split=split, cap=cap, seed=seed
        )
        splits = None
        if split is not None:
            splits = [
                _splits(split[own], i, val_fraction, seed=seed) for i, own in enumerate(rows)
            ]
        federation = federate(
            [f"client {i}" for i in range(len(rows))],
            x=[x[own] for own in rows],
            y=[y[own] for own in rows],
            graph=relations.from_edges(len(rows), np.zeros((0, 2), int)),
            task="classification",
            name=image_set.name,
            source="real" if version else "simulated",
            val_fraction=val_fraction,
            seed=seed,
            outputs=image_set.classes,
            splits=splits,
        )
        extent = _extent(image_set, version, split, train, cap, image_size)
        federation = federation._replace(extent=extent)
        if balanced_test:
            federation = with_shared_split(federation, "balanced", *shared)
        return federation

    height, width, channels = image_set.shape
    load.__name__ = load.__qualname__ = image_set.name
    load.__doc__ = f"""{image_set.title}, or drawn images of its size, divided among clients.

    Args:
      root: data folder.
      source: "real", "simulated", or "auto": real if the files exist.
      partition: of the training examples, by a factory of `label_skew.PARTITIONS`.
      cap: most training examples of a client, and most official test examples; 0 is all.
      test: "official": the official test examples, divided in the same class proportions.
        "own": a random fifth of the client's training examples; the official test examples are
        not used for it.
      balanced_test: official test examples of the split "balanced", which all clients share,
        with as many of each class; 0 is none.
      image_size: images are resized to squares of this size, see `resized`; 0 keeps theirs.
      val_fraction: share of each client's training examples for validation, drawn at random.
      generator_seed: of simulated images.
      seed: of the partition and of random splits.

    Returns:
      Clients without relations, x [{height}, {width}, {channels}] uint8, labels from 0 to
      {image_set.classes - 1}.

    Raises:
      ValueError: a file is damaged or foreign, or the partition or `balanced_test` does not
        fit. One line.
      FileNotFoundError: a file is missing.
    """
    return load


fashion_mnist = _loader(FASHION_MNIST)
cifar10 = _loader(CIFAR10)
cifar100 = _loader(CIFAR100)


def _find(image_set, root, source):
    """The version to read, or None if images are to be simulated."""
    if source == "simulated":
        return None
    there = [one for one in image_set.versions if (root / one.train[0][0]).is_file()]
    version, *_ = there or image_set.versions
    for file in (root / name for group in version.train + version.test for name in group):
        if not file.is_file():
            remedy = f"put the official files of {image_set.title} there"
            if source == "real" or there:
                raise files.MissingFilesError(
                    f"{image_set.name}: no file {file}; {remedy}", "simulated"
                )
            warnings.warn(
                f"{image_set.name}: no file {file}, so images are simulated; {remedy}",
                stacklevel=3,
            )
            return None
    return version


def _read(image_set, root, groups, reader):
    """The images and labels of all groups of files of a split."""
    read = []
    for group in groups:
        paths = [Path(root) / name for name in group]
        x, y = reader(*paths, classes=image_set.classes)
        if x.shape[1:] != image_set.shape:
            raise ValueError(
                f"{paths[0]}: images have shape {list(x.shape[1:])} and those of "
                f"{image_set.title} have {list(image_set.shape)}; replace it by the official "
                "file"
            )
        read.append((x, y))
    x, y = zip(*read, strict=True)
    return np.concatenate(x), np.concatenate(y)


def _splits(split, client, val_fraction, *, seed):
    """The positions of a client's training, validation and test examples."""
    train = np.flatnonzero(split == "train")
    parts = {"test": np.flatnonzero(split == "test")}
    if val_fraction > 0:
        train = np.random.default_rng([seed, client]).permutation(train)
        count = round(val_fraction * len(train))
        parts["val"], train = train[:count], train[count:]
    return parts | {"train": train}


def _balanced(image_set, y, split, count, *, seed):
    """The places of `count` random test examples, with as many of each class."""
    each, rest = divmod(count, image_set.classes)
    rows = [np.flatnonzero((split == "test") & (y == c)) for c in range(image_set.classes)]
    fewest = min(map(len, rows))
    if rest or each > fewest:
        raise ValueError(
            f"data.balanced_test={count} is not a multiple of the {image_set.classes} classes "
            f"with at most {fewest} test examples of each; set --config.data.balanced_test to "
            f"a multiple of {image_set.classes} up to {fewest * image_set.classes}"
        )
    rng = np.random.default_rng([seed, len(y), count])
    return np.concatenate([rng.permutation(own)[:each] for own in rows])


def _extent(image_set, version, split, train, cap, image_size):
    """The part of the official data set, as `Federation.extent` states it."""
    notes = []
    if version and train < image_set.train:
        notes.append(f"{train} of {image_set.train} training images")
    if version and split is not None and len(split) - train < image_set.test:
        notes.append(f"{len(split) - train} of {image_set.test} test images")
    if cap:
        notes.append(f"at most {cap} images of a split per client")
    if image_size and (image_size, image_size) != image_set.shape[:2]:
        notes.append(f"images resized to {image_size} x {image_size} pixels")
    return ", ".join(notes)
