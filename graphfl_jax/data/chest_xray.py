"""ChestX-ray14: chest radiographs with fourteen findings, patients divided among clients.

The images and labels are those of Wang et al., ChestX-ray8: Hospital-scale Chest X-ray Database
and Benchmarks on Weakly-Supervised Classification and Localization of Common Thorax Diseases,
CVPR 2017 (https://arxiv.org/abs/1705.02315), with the fourteen findings of its later release.
An image can have several findings, or none. A patient has one or more images, all of which are
in the same split of the same client. The lists of training and test images that are published
with the data are not used.

A patient's class is the first finding, in the order of `FINDINGS`, of its first image with
findings. The partition divides the patients with findings by their class. Patients without
findings are divided equally, so that every client has both kinds. Each client's patients of
both kinds are split at random.

The folder nih-chestxray of the data folder has the official Data_Entry_2017.csv and the images,
in images/ or in images_001/images/ to images_012/images/; or else nih_chestxray_1000_64x64.npz
with a part of the images. Resized images of the first form are cached there (see
`photographs`).
"""

import csv
import io
from pathlib import Path
from typing import Annotated

import numpy as np

from graphfl_jax.data import drawn_patterns, files, label_skew, photographs, relations
from graphfl_jax.data.common_settings import (
    Cap,
    GeneratorSeed,
    ImageSize,
    Partition,
    ValFraction,
    forms,
)
from graphfl_jax.data.federation import Federation, federate, with_shared_split
from graphfl_jax.data.splits import RandomSplit
from graphfl_jax.settings import Switch

DIGITS = 18  # of a patient's number, at most
FINDINGS = (
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural_Thickening",
    "Hernia",
)
NONE = "No Finding"
OFFICIAL = 112_120  # images

_FOLDER = "nih-chestxray"
_LIST, _ARRAYS = "Data_Entry_2017.csv", "nih_chestxray_1000_64x64.npz"
_COLUMNS = ("Image Index", "Finding Labels", "Patient ID")
_IMAGES = ("images", *(f"images_{part:03}/images" for part in range(1, 13)))


def chest_xray(
    *,
    root,
    source: Annotated[str, forms("real", "simulated")] = "auto",
    image_size: ImageSize = 64,
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

    Returns:
      Clients without relations, x [image_size, image_size, 1] uint8, y [14] float32.

    Raises:
      ValueError: a file is damaged or foreign, an image is not a grey square of the others'
        size or is smaller than `image_size`, the partition does not fit, or a split of a
        client has no finding with positive and negative examples. One line.
      FileNotFoundError: the list or an image is missing.
    """
    file = _find_file(Path(root) / _FOLDER, source)
    if file is None:
        rng = np.random.default_rng(generator_seed)
        x, y, patients = drawn_patterns.draw_patients(rng, len(FINDINGS), image_size)
    else:
        read = read_official if file.name == _LIST else read_arrays
        x, y, patients = read(file, image_size)
    rows, splits = _divide(y, patients, partition, cap, RandomSplit(seed, val_fraction))
    notes = []
    if file and len(y) < OFFICIAL:
        notes.append(f"{len(y)} of {OFFICIAL} images")
    if cap:
        notes.append(f"at most {cap} images of a split per client")
    federation = federate(
        [f"client {i}" for i in range(len(rows))],
        x=[x[i] for i in rows],
        y=[y[i] for i in rows],
        graph=relations.from_edges(len(rows), ()),
        task="multi-label classification",
        outputs=len(FINDINGS),
        name="chest_xray",
        source="real" if file else "simulated",
        split=splits,
        labels=FINDINGS,
        extent=", ".join(notes),
    )
    if not pooled_test:
        return federation
    tests = np.concatenate([i[split["test"]] for i, split in zip(rows, splits, strict=True)])
    return with_shared_split(federation, "pooled", x[tests], y[tests])


def read_official(path, image_size) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads the official list, and the images beside it.

    Returns:
      Images [n, image_size, image_size, 1] uint8, y [n, 14] float32, which is 1 for each
      finding of an image, and patients [n] int64.

    Raises:
      ValueError: a line of the list or an image does not fit, or there are none.
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
        y.append(_parse_findings(where, findings))
        patients.append(int(patient))
    if not lines:
        raise ValueError(f"{path}: the list has no images; use the official {_LIST}")
    names = _locate_images(path, lines)
    folder = Path(path).parent
    cache = folder / f"images-{image_size}.npy"
    x = photographs.squares(folder, names, size=image_size, cache=cache, grey=True)
    return x, np.array(y, np.float32), np.array(patients)


def _read_list(path):
    """The line numbers of the official list, and the values of `_COLUMNS`."""
    remedy = f"use the official {_LIST}"
    table = csv.DictReader(io.StringIO(files.read_text(path), newline=""))
    try:
        for column in _COLUMNS:
            if column not in (table.fieldnames or ()):
                raise ValueError(f"{path}: there is no column {column!r}; {remedy}")
        for row in table:
            yield table.line_num, [row[column] or "" for column in _COLUMNS]
    except csv.Error as error:
        raise ValueError(f"{path}: the file is no list ({error}); {remedy}") from error


def read_arrays(path, image_size) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `read_official`, of a file of images, labels, image_index, and class_names.

    A patient's number is the first part of the name in image_index, as in 00000005_003.png.

    Raises:
      ValueError: the file cannot be read, an array does not fit, or the images are smaller
        than `image_size`.
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
    numbered = all(number.isdecimal() and len(number) <= DIGITS for number in patients)
    if len(patients) != len(x) or not numbered:
        raise ValueError(
            f"{path}: 'image_index' is not PATIENT_IMAGE.png for each of {len(x)} images; "
            f"{remedy}"
        )
    if image_size > x.shape[1]:
        raise ValueError(
            f"data.image_size={image_size} exceeds the {x.shape[1]} pixels of {path}; set "
            f"--config.data.image_size={x.shape[1]} or less, or put the official images there"
        )
    x = photographs.resize(x[..., None], image_size)
    return x, y.astype(np.float32), np.array(patients, int)


def _find_file(folder, source):
    """The list or the arrays to read, or None if images are to be simulated."""
    if source == "simulated":
        return None
    for file in (folder / _LIST, folder / _ARRAYS):
        if file.is_file():
            return file
    return files.report_missing(
        "chest_xray",
        f"no file {folder / _LIST}",
        "put the files of ChestX-ray14 there",
        folder=folder,
        required=source == "real",
        stand_in="images are simulated",
    )


def _parse_findings(where, findings):
    """1 for each finding in a text such as "Effusion|Mass", 0 for the others: [14]."""
    names = [] if findings == NONE else findings.split("|")
    for finding in names:
        if finding not in FINDINGS:
            raise ValueError(
                f"{where} has the finding {finding!r}, which is unknown; use {NONE!r}, or some "
                f"of {', '.join(FINDINGS)} with | between them"
            )
    return [finding in names for finding in FINDINGS]


def _locate_images(path, lines):
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


def _divide(y, patients, partition, cap, split):
    """Per client, the indices of its images, and their positions in each split."""
    names, patient_of = np.unique(patients, return_inverse=True)  # [P], [n]
    classes = np.full(len(names), -1)  # [P]; -1 is no finding
    for image in np.flatnonzero(y.any(axis=1))[::-1]:
        classes[patient_of[image]] = np.argmax(y[image])
    ill, well = np.flatnonzero(classes >= 0), np.flatnonzero(classes < 0)
    of_ill = label_skew.divide(partition, classes[ill], len(FINDINGS), seed=split.seed)
    divide_equally = label_skew.iid(clients=len(of_ill), seed=split.seed)
    of_well = divide_equally(np.zeros(len(well), int), 1)
    rows, splits = [], []
    for client, (i, j) in enumerate(zip(of_ill, of_well, strict=True)):
        kinds = ill[i], well[j]  # the patients of the client
        halves = [split.of_client(client, len(patients)) for patients in kinds]
        parts = []  # of each split, its images
        for part in halves[0]:
            patients = [kind[half[part]] for kind, half in zip(kinds, halves, strict=True)]
            parts.append(np.flatnonzero(np.isin(patient_of, np.concatenate(patients))))
        if cap:
            rng = np.random.default_rng([split.seed, client, cap])
            parts = [rng.permutation(part)[:cap] for part in parts]
        rows.append(np.concatenate(parts))
        places = np.split(np.arange(len(rows[-1])), np.cumsum([len(p) for p in parts])[:-1])
        splits.append(dict(zip(halves[0], places, strict=True)))
    return rows, splits
