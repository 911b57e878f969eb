"""UCI HAR: six activities from the motion sensors of a smartphone, one client per person.

Anguita, Ghio, Oneto, Parra, Reyes-Ortiz. A Public Domain Dataset for Human Activity Recognition
Using Smartphones. ESANN 2013. Thirty persons wore a smartphone at the waist. An example is 561
features of 2.56 seconds, which are scaled to -1 to 1 in the files. The official split is by
person; here, as usual in personalised federated learning, all thirty are clients, and the
examples of each are split at random. Windows that follow each other overlap by half, so test
examples resemble training examples of the same client. The clients have no relations.
"""

from pathlib import Path
from typing import Annotated

import numpy as np

from graphfl_jax.data import files, relations
from graphfl_jax.data.common_settings import GeneratorSeed, ValFraction, forms
from graphfl_jax.data.federation import Federation, federate
from graphfl_jax.data.splits import RandomSplit

FOLDER = "UCI HAR Dataset"
ACTIVITIES = (
    "WALKING",
    "WALKING_UPSTAIRS",
    "WALKING_DOWNSTAIRS",
    "SITTING",
    "STANDING",
    "LAYING",
)
FEATURES, SUBJECTS, OFFICIAL = 561, 30, 10_299  # of them, examples
SIMULATED = 60  # examples of a simulated person
_PARTS = ("train", "test")
_FILES = ("X", "y", "subject")


def har(
    *,
    root,
    source: Annotated[str, forms("real", "simulated")] = "auto",
    val_fraction: ValFraction = 0.0,
    generator_seed: GeneratorSeed = 0,
    seed,
) -> Federation:
    """The features of UCI HAR by person, or simulated ones.

    Returns:
      Clients without relations, x [561] float32, y 0 to 5.

    Raises:
      ValueError: a file is damaged or foreign, or a person has too few examples. One line.
      FileNotFoundError: a file is missing.
    """
    folder = _find(Path(root) / FOLDER, source)
    x, y, subject = _simulate(generator_seed) if folder is None else read(folder)
    names = np.unique(subject)
    rows = [np.flatnonzero(subject == name) for name in names]
    whole = folder is None or len(y) == OFFICIAL
    return federate(
        [f"person {name}" for name in names],
        x=[x[i] for i in rows],
        y=[y[i] for i in rows],
        graph=relations.from_edges(len(rows), ()),
        task="classification",
        outputs=len(ACTIVITIES),
        labels=ACTIVITIES,
        name="har",
        source="simulated" if folder is None else "real",
        split=RandomSplit(seed, val_fraction),
        extent="" if whole else f"{len(y)} of {OFFICIAL} examples",
    )


def read(folder) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads the official files: x [n, 561], y [n] from 0, and the number of the person [n]."""
    parts = []
    for part in _PARTS:
        x, y, subject = (_read_numbers(_path(folder, part, file)) for file in _FILES)
        _check(_path(folder, part, "X"), x.shape[1] == FEATURES, f"{FEATURES} columns")
        for file, column, last in (("y", y, len(ACTIVITIES)), ("subject", subject, SUBJECTS)):
            fits = column.shape == (len(x), 1) and np.isin(column, np.arange(1, last + 1)).all()
            what = f"one number from 1 to {last} for each of {len(x)} examples"
            _check(_path(folder, part, file), fits, what)
        parts.append((x, y[:, 0].astype(int) - 1, subject[:, 0].astype(int)))
    x, y, subject = map(np.concatenate, zip(*parts, strict=True))
    return x, y, subject


def _path(folder, part, file):
    return Path(folder) / part / f"{file}_{part}.txt"


def _read_numbers(path):
    """The numbers [n, columns] of a text file."""
    try:
        return np.loadtxt(path, ndmin=2)
    except ValueError as error:
        why = " ".join(str(error).split())
        raise ValueError(
            f"{path}: the file is not a table of numbers ({why}); use the official file"
        ) from error


def _check(path, fits, what):
    if not fits:
        raise ValueError(f"{path}: the file has not {what}; use the official file")


def _find(folder, source):
    """The folder to read, or None if features are to be simulated."""
    if source == "simulated":
        return None
    for path in (_path(folder, part, file) for part in _PARTS for file in _FILES):
        if not path.is_file():
            return files.report_missing(
                "har",
                f"no file {path}",
                f"put the folder '{FOLDER}' there",
                folder=folder,
                required=source == "real",
                stand_in="features are simulated",
            )
    return folder


def _simulate(generator_seed):
    """As `read`: activities are directions, in which a person moves in a way of its own."""
    rng = np.random.default_rng(generator_seed)
    common = rng.normal(size=(len(ACTIVITIES), FEATURES))
    subject = np.repeat(np.arange(1, SUBJECTS + 1), SIMULATED)
    y = np.tile(np.arange(SIMULATED) % len(ACTIVITIES), SUBJECTS)
    habits = rng.normal(size=(SUBJECTS, *common.shape))
    noise = rng.normal(size=(len(y), FEATURES))
    return np.tanh((common[y] + habits[subject - 1, y]) / 4 + noise), y, subject
