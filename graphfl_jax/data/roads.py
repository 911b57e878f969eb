"""Relations between sensors on roads, from DCRNN's files.

A relation weighs exp(-(d / sigma)^2), d being the distance by road from one sensor to another
and sigma the standard deviation of all distances; weights under 0.1 are left out (Li, Yu,
Shahabi, Liu. Diffusion Convolutional Recurrent Neural Network: Data-Driven Traffic Forecasting.
ICLR 2018. https://arxiv.org/abs/1707.01926). Relations are directed.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import jraph
import numpy as np

from graphfl_jax.data import files, relations

SOURCES = ("auto", "matrix", "distances")
FROM = "https://github.com/liyaguang/DCRNN"
THRESHOLD = 0.1  # of the weight of a relation


class RoadFiles(NamedTuple):
    """Names of a data set's files of relations, all in its folder."""

    matrix: str  # of weights, a pickle
    distances: str  # by road
    listed: str  # ids of the sensors, where the distances have others too


def relations_of(
    sensors, folder, names: RoadFiles, *, source, series, whole
) -> jraph.GraphsTuple:
    """The graph of `sensors`, from the matrix of weights or from the distances.

    Args:
      sensors: N ids.
      folder: of the files.
      names: of the files.
      source: one of `SOURCES`; "auto" is the matrix, or the distances if they alone are there.
      series: the file that the sensors are from, for errors.
      whole: whether they are all of the data set, and their distances make sigma.

    Raises:
      FileNotFoundError: the file is missing.
      ValueError: the file is no such file, or lacks a sensor.
    """
    if source not in SOURCES:
        raise ValueError(
            f"data.roads={source!r} is not known; use one of {', '.join(SOURCES)}."
        )
    matrix, distances = folder / names.matrix, folder / names.distances
    if source == "auto":
        source = "matrix" if matrix.is_file() or not distances.is_file() else "distances"
    file = matrix if source == "matrix" else distances
    if not file.is_file():
        raise FileNotFoundError(
            f"no file {file}; put it there from {FROM}, or set --config.data.roads to what "
            f"there is."
        )
    if source == "matrix":
        named, weights = read_matrix(file)
    else:
        listed = sensors if whole else _listed(folder / names.listed)
        named, weights = read_distances(file, listed)
    place = {sensor: i for i, sensor in enumerate(named)}
    for sensor in sensors:
        if sensor not in place:
            raise ValueError(
                f"{file} has no sensor {sensor}, which {series} has; use the files of one data "
                f"set, or leave that sensor out."
            )
    chosen = [place[sensor] for sensor in sensors]
    return graph_of(weights[np.ix_(chosen, chosen)])


def graph_of(weights) -> jraph.GraphsTuple:
    """The second of two clients hears the first where weights[first, second] is not 0."""
    weights = weights * (1 - np.eye(len(weights)))
    first, second = np.nonzero(weights)
    edges = np.stack([first, second], axis=1)
    return relations.from_edges(len(weights), edges, weights[first, second], directed=True)


def read_matrix(file) -> tuple[list[str], np.ndarray]:
    """Reads sensors and the weights [N, N] of their relations from DCRNN's pickle."""
    loaded = files.load_pickle(file)
    try:
        ids, _, weights = loaded
        named = [i.decode() if isinstance(i, bytes) else str(i) for i in ids]
        weights = np.asarray(weights, np.float64)
        if weights.shape != (len(named), len(named)) or not np.isfinite(weights).all():
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"{file} does not hold sensors, their numbers and a square matrix of weights; "
            f"replace it by the file at {FROM}."
        ) from None
    return named, weights


def read_distances(file, sensors) -> tuple[list[str], np.ndarray]:
    """Reads distances by road, rows "from,to,metres", and weighs them.

    Args:
      file: the distances.
      sensors: whose distances make sigma; None is all in the file.

    Returns:
      The sensors, and the weights [N, N] of what goes from one (row) to another (column).
    """
    rows = []
    with Path(file).open(newline="", encoding="latin1") as text:
        for number, row in enumerate(csv.reader(text), start=1):
            try:
                start, end, metres = row
                rows.append((start.strip(), end.strip(), float(metres)))
                if not 0 <= rows[-1][2] < np.inf:
                    raise ValueError
            except ValueError:
                if number > 1:  # the first may be a heading
                    raise ValueError(
                        f"{file}, line {number} is not from,to,metres; use the file at {FROM}."
                    ) from None
    named = sensors or list(dict.fromkeys(end for row in rows for end in row[:2]))
    place = {sensor: i for i, sensor in enumerate(named)}
    distances = np.full((len(named), len(named)), np.inf)
    for start, end, metres in rows:
        if start in place and end in place:
            distances[place[start], place[end]] = metres
    return named, weights_of(distances)


def weights_of(distances) -> np.ndarray:
    """Weights of relations from distances [N, N], infinite where no road is known."""
    known = distances[np.isfinite(distances)]
    sigma = known.std() if len(known) else 0.0
    if sigma == 0:
        raise ValueError("distances by road are all equal, or there are none; give others.")
    weights = np.exp(-np.square(distances / sigma))
    return np.where(weights < THRESHOLD, 0.0, weights)


def _listed(file):
    """The sensors that a file lists, separated by commas or lines; None if it is not there."""
    if not file.is_file():
        return None
    return file.read_text("latin1").replace(",", " ").split()
