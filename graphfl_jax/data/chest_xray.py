"""ChestX-ray14: chest radiographs with fourteen findings, patients divided among clients.

The images and labels are those of Wang et al., ChestX-ray8: Hospital-scale Chest X-ray Database
and Benchmarks on Weakly-Supervised Classification and Localization of Common Thorax Diseases,
CVPR 2017 (https://arxiv.org/abs/1705.02315), with the fourteen findings of its later release.
An image can have several findings, or none. A patient has one or more images, all of which are
in the same split of the same client. The lists of training and test images that are published
with the data are not used.
"""

import csv
import warnings
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from graphfl_jax.data import drawn_patterns, files, label_skew, photographs, relations
from graphfl_jax.data.common_settings import GeneratorSeed, ValFraction, forms
from graphfl_jax.data.federation import Federation, federate, with_shared_split
from graphfl_jax.data.image_sets import Cap, Partition
from graphfl_jax.data.partition import TEST_FRACTION, random_split
from graphfl_jax.data.resized import resized
from graphfl_jax.settings import Integer, Switch

DIGITS = 18  # of a patient's number, at most
FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule"),
    *("Pneumonia", "Pneumothorax", "Consolidation", "Edema", "Emphysema", "Fibrosis"),
    *("Pleural_Thickening", "Hernia"),
)
NONE = "No Finding"
OFFICIAL = 112_120  # images

_FOLDER = "nih-chestxray"
_LIST, _ARRAYS = "Data_Entry_2017.csv", "nih_chestxray_1000_64x64.npz"
_COLUMNS = ("Image Index", "Finding Labels", "Patient ID")
_IMAGES = ("images", *(f"images_{part:03}/images" for part in range(1, 13)))


class Radiographs(NamedTuple):
    """Images in the order of a file."""

    x: np.ndarray  # [n, image_size, image_size, 1] uint8
    y: np.ndarray  # [n, 14] float32, 1 for each finding of an image
    patients: np.ndarray  # [n] int64


def chest_xray(
    *,
    root,
    source: Annotated[str, forms("real", "simulated")] = "auto",
    image_size: Annotated[int, Integer("Width and height of images in pixels.", low=8)] = 64,
    partition: Partition = "iid",
    cap: Cap = 0,
    pooled_test: Annotated[
        bool,
        Switch(
            "Whether all clients are scored on the test images of all clients too, as the "
            "split pooled."
        ),
    ] = False,
    val_fraction: ValFraction = 0.0,
    generator_seed: GeneratorSeed = 0,
    seed,
) -> Federation:
    """Loads ChestX-ray14, or draws simulated images, and divides the patients among clients.

    A patient's class is the first finding, in the order of `FINDINGS`, of its first image with
    findings. `partition` divides the patients with findings by their class. Patients without
    findings are divided equally, so that every client has both kinds. Each client's patients of
    both kinds are split at random.

    Args:
      root: data folder. root/nih-chestxray has the official Data_Entry_2017.csv and the images,
        in images/ or in images_001/images/ to images_012/images/; or else
        nih_chestxray_1000_64x64.npz with a part of the images. Resized images of the first form
        are cached there (see `photographs`).
      source: "real", "simulated", or "auto": real if the list or the arrays exist.
      image_size: images are resized to squares of this size, in pixels, see `resized`.
      partition: of the patients with findings, by a factory of `label_skew.PARTITIONS`.
      cap: most images of a client in a split; 0 is all.
      pooled_test: whether there is a split "pooled", which all clients share: the test images
        of all clients.
      val_fraction: share of each client's patients for validation.
      generator_seed: of simulated images.
      seed: of the partition and the splits.

    Returns:
      Clients without relations, x [image_size, image_size, 1] uint8, y [14] float32.

    Raises:
      ValueError: a file is damaged or foreign, an image is not a grey square of the others'
        size, the partition does not fit, or a split of a client has no finding with positive
        and negative examples. One line.
      FileNotFoundError: the list or an image is missing.
    """
    file = _find(Path(root) / _FOLDER, source)
    if file is None:
        rng = np.random.default_rng(generator_seed)
        found = Radiographs(*drawn_patterns.draw_patients(rng, len(FINDINGS), image_size))
    elif file.name == _LIST:
        found = read_official(file, image_size)
    else:
        found = read_arrays(file, image_size)
    rows, splits = _divided(found, partition, cap, val_fraction, seed)
    federation = federate(
        [f"client {i}" for i in range(len(rows))],
        x=[found.x[own] for own in rows],
        y=[found.y[own] for own in rows],
        graph=relations.from_edges(len(rows), np.zeros((0, 2), int)),
        task="multi-label classification",
        name="chest_xray",
        source="real" if file else "simulated",
        val_fraction=val_fraction,
        seed=seed,
        outputs=len(FINDINGS),
        splits=splits,
    )
    notes = [f"{len(found.y)} of {OFFICIAL} images"] * bool(file and len(found.y) < OFFICIAL)
    notes += [f"at most {cap} images of a split per client"] * bool(cap)
    federation = federation._replace(labels=FINDINGS, extent=", ".join(notes))
    if not pooled_test:
        return federation
    tests = np.concatenate([r[s["test"]] for r, s in zip(rows, splits, strict=True)])
    return with_shared_split(federation, "pooled", found.x[tests], found.y[tests])


def read_official(path, image_size) -> Radiographs:
    """Reads the official list, and the images beside it.

    Raises:
      ValueError: a column is missing, a line has an unknown finding or no number of a patient
        or repeats an image, or an image is not a grey square of the others' size.
      FileNotFoundError: an image is missing.
    """
    y, patients, lines = [], [], {}
    for line, (name, findings, patient) in _read_list(path):
        where = f"{path}: line {line}"
        if not name.endswith(".png") or name != Path(name).name:
            raise ValueError(f"{where} has the image {name!r}, which is no name; correct it")
        if name in lines:
            raise ValueError(
                f"{where} repeats {name} of line {lines[name]}; remove one of them"
            )
        if not patient.isdecimal():
            raise ValueError(f"{where} has patient {patient!r}, which is no number; correct it")
        lines[name] = line
        y.append(_kinds(where, findings))
        patients.append(int(patient))
    if not lines:
        raise ValueError(f"{path}: the list has no images; use the official {_LIST}")
    names = _located(path, lines)
    folder = Path(path).parent
    cache = folder / f"images-{image_size}.npy"
    x = photographs.squares(folder, names, size=image_size, cache=cache, grey=True)
    return Radiographs(x, np.array(y, np.float32), np.array(patients))


def _read_list(path):
    """The line numbers of the official list, and the values of `_COLUMNS`."""
    remedy = f"use the official {_LIST}"
    # Latin-1 decodes any bytes, so a file of another type is refused by its columns.
    with Path(path).open(newline="", encoding="latin1") as opened:
        table = csv.DictReader(opened)
        try:
            for column in _COLUMNS:
                if column not in (table.fieldnames or ()):
                    raise ValueError(f"{path}: there is no column {column!r}; {remedy}")
            for row in table:
                yield table.line_num, [row[column] or "" for column in _COLUMNS]
        except csv.Error as error:
            raise ValueError(f"{path}: the file is no list ({error}); {remedy}") from error


def read_arrays(path, image_size) -> Radiographs:
    """Reads a file of arrays: images, labels, image_index, and class_names.

    A patient's number is the first part of the name in image_index, as in 00000005_003.png.

    Raises:
      ValueError: an array is missing or of another form, or the images are smaller than
        `image_size`.
    """
    remedy = f"replace it by the file {_ARRAYS}"
    try:
        with np.load(path, allow_pickle=False) as file:
            x, y = file["images"], file["labels"]
            names, classes = file["image_index"], file["class_names"]
    # Damaged bytes can make NumPy raise almost any exception.
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{path}: the file cannot be read ({why}); {remedy}") from error
    if x.dtype != np.uint8 or x.ndim != 3 or x.shape[1] != x.shape[2] or not len(x):
        raise ValueError(
            f"{path}: 'images' is of type {x.dtype} and shape {x.shape} and not grey squares "
            f"[n, size, size] in uint8; {remedy}"
        )
    if tuple(classes.ravel().tolist()) != FINDINGS:
        raise ValueError(f"{path}: 'class_names' is not {', '.join(FINDINGS)}; {remedy}")
    if y.shape != (len(x), len(FINDINGS)) or not np.isin(y, (0, 1)).all():
        raise ValueError(
            f"{path}: 'labels' of shape {y.shape} is not 0 or 1 for each of {len(x)} images "
            f"and {len(FINDINGS)} findings; {remedy}"
        )
    patients = [str(name).partition("_")[0] for name in names.ravel().tolist()]
    known = all(number.isdecimal() and len(number) <= DIGITS for number in patients)
    if len(patients) != len(x) or not known:
        raise ValueError(
            f"{path}: 'image_index' is not PATIENT_IMAGE.png for each of {len(x)} images; "
            f"{remedy}"
        )
    if image_size > x.shape[1]:
        raise ValueError(
            f"data.image_size={image_size} exceeds the {x.shape[1]} pixels of {path}; set "
            f"--config.data.image_size={x.shape[1]} or less, or put the official images there"
        )
    return Radiographs(
        resized(x[..., None], image_size), y.astype(np.float32), np.array(patients, int)
    )


def _find(folder, source):
    """The list or the arrays to read, or None if images are to be simulated."""
    if source == "simulated":
        return None
    for file in (folder / _LIST, folder / _ARRAYS):
        if file.is_file():
            return file
    missing, remedy = f"no file {folder / _LIST}", "put the files of ChestX-ray14 there"
    if source == "real" or folder.is_dir():
        raise files.MissingFilesError(f"chest_xray: {missing}; {remedy}", "simulated")
    warnings.warn(f"chest_xray: {missing}, so images are simulated; {remedy}", stacklevel=3)
    return None


def _kinds(where, findings):
    """1 for each finding in a text such as "Effusion|Mass", 0 for the others: [14]."""
    named = [] if findings == NONE else findings.split("|")
    for finding in named:
        if finding not in FINDINGS:
            raise ValueError(
                f"{where} has the finding {finding!r}, which is unknown; use {NONE!r}, or some "
                f"of {', '.join(FINDINGS)} with | between them"
            )
    return [finding in named for finding in FINDINGS]


def _located(path, lines):
    """The paths of the images below the folder of the list, in its order."""
    folder, places = Path(path).parent, {}
    for part in _IMAGES:
        places |= {file.name: f"{part}/{file.name}" for file in (folder / part).glob("*.png")}
    for name, line in lines.items():
        if name not in places:
            raise files.MissingFilesError(
                f"{path}: line {line}: no file {name} in {folder / _IMAGES[0]} or "
                f"{folder / _IMAGES[1]} to {Path(_IMAGES[-1]).parent}; put all images of "
                "ChestX-ray14 there",
                "simulated",
            )
    return [places[name] for name in lines]


def _divided(found, division, cap, val_fraction, seed):
    """Per client, the indices of its images, and their positions in each split."""
    names, of = np.unique(found.patients, return_inverse=True)  # [patients], [n]
    classes = np.full(len(names), -1)  # of a patient; -1 is no finding
    for image in np.flatnonzero(found.y.any(axis=1))[::-1]:
        classes[of[image]] = np.argmax(found.y[image])
    ill, well = np.flatnonzero(classes >= 0), np.flatnonzero(classes < 0)
    held = label_skew.divide(division, classes[ill], len(FINDINGS), seed=seed)
    equally = label_skew.iid(clients=len(held), seed=seed)
    others = equally(np.zeros(len(well), int), 1)
    rows, splits = [], []
    for i, kinds in enumerate(zip(held, others, strict=True)):
        parts = {}
        for patients, chosen in zip((ill, well), kinds, strict=True):
            fractions = {"val_fraction": val_fraction, "test_fraction": TEST_FRACTION}
            split = random_split(len(chosen), i, seed=seed, **fractions)
            for part, places in split.items():
                parts.setdefault(part, []).append(patients[chosen[places]])
        images = {
            part: np.flatnonzero(np.isin(of, np.concatenate(patients)))
            for part, patients in parts.items()
        }
        if cap:
            rng = np.random.default_rng([seed, i, cap])
            images = {part: rng.permutation(own)[:cap] for part, own in images.items()}
        ends = np.cumsum([len(own) for own in images.values()])
        rows.append(np.concatenate(list(images.values())))
        places = np.split(np.arange(len(rows[-1])), ends[:-1])
        splits.append(dict(zip(images, places, strict=True)))
    return rows, splits
