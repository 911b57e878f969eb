"""Relations between sensors on roads, from the files of DCRNN.

Li, Yu, Shahabi, Liu. Diffusion Convolutional Recurrent Neural Network: Data-Driven Traffic
Forecasting. ICLR 2018. https://arxiv.org/abs/1707.01926. The weight of a directed edge is
exp(-(d / sigma)^2), where d is the distance by road from one sensor to the other and sigma is
the standard deviation of all distances. Edges with weights below 0.1 are left out.
"""

import collections
import csv
import io
from pathlib import Path
from typing import NamedTuple

import jraph
import numpy as np

from graphfl_jax.data import files, relations
from graphfl_jax.data.federation import Positions
from graphfl_jax.data.pickles import load_pickle

SOURCES = ("auto", "matrix", "distances")
URL = "https://github.com/liyaguang/DCRNN"  # links to all files
THRESHOLD = 0.1  # smallest weight of an edge


class RoadFiles(NamedTuple):
    """Names of the files of relations, in the folder of a data set."""

    matrix: str  # weights, a pickle
    distances: str  # distances by road, which can include other sensors
    sensors: str  # ids of the sensors
    places: str  # ids, latitudes and longitudes of the sensors; it may be missing


def read_relations(
    sensors, folder, names: RoadFiles, *, source, series, complete
) -> jraph.GraphsTuple:
    """The graph of `sensors`, from the matrix of weights or from the distances.

    Args:
      sensors: N ids.
      source: one of `SOURCES`; "auto" takes the matrix, or the distances if only they exist.
      series: file of the sensors, for error messages.
      complete: whether `sensors` are all sensors of the data set. If not, sigma is computed
        from all sensors in the file of sensors, or from all distances without such a file.

    Raises:
      FileNotFoundError: the file is missing.
      ValueError: the file has another format, a sensor is missing in it, a pair has two
        different distances, or all distances are equal.
    """
    matrix, distances = folder / names.matrix, folder / names.distances
    if source == "auto":
        source = "matrix" if matrix.is_file() or not distances.is_file() else "distances"
    file = matrix if source == "matrix" else distances
    if not file.is_file():
        raise FileNotFoundError(
            f"data.roads: no file {file}; put it there from {URL}, or set --config.data.roads "
            "to a file that exists"
        )
    if source == "matrix":
        ids, weights = read_matrix(file)
    else:
        measured = sensors if complete else _read_ids(folder / names.sensors)
        ids, weights = read_distances(file, measured)
    index = {sensor: i for i, sensor in enumerate(ids)}
    for sensor in sensors:
        if sensor not in index:
            raise ValueError(
                f"{file}: sensor {sensor} of {series} is missing; use files of the same data "
                "set, or leave the sensor out"
            )
    rows = [index[sensor] for sensor in sensors]
    return graph_of(weights[np.ix_(rows, rows)])


def read_positions(file, sensors) -> Positions | None:
    """Reads the coordinates of sensors; None without such a file.

    Its rows end with "sensor,latitude,longitude". The first row may be a header.

    Raises:
      ValueError: a row has another format or a place that is not on Earth, or a sensor is
        missing or has two places.
    """
    if not Path(file).is_file():
        return None
    wrong = (
        f"does not end with sensor,latitude,longitude; use the file from {URL}, or remove it"
    )
    places = {}
    for number, (sensor, place) in _read_rows(file, _parse_place, wrong):
        if abs(place[0]) > 180 or abs(place[1]) > 90:
            raise ValueError(
                f"{file}: line {number} has latitude {place[1]:g} and longitude {place[0]:g}, "
                f"which is no place on Earth; {wrong.partition('; ')[2]}"
            )
        if places.setdefault(sensor, place) != place:
            raise ValueError(
                f"{file}: line {number} has another place of sensor {sensor} than a line "
                f"before; remove one of the lines"
            )
    for sensor in sensors:
        if not np.isfinite(places.get(sensor, np.nan)).all():
            raise ValueError(
                f"{file}: sensor {sensor} has no coordinates; use the file from {URL}, or "
                f"remove it"
            )
    values = np.array([places[sensor] for sensor in sensors])
    return Positions(("longitude", "latitude"), values)


def graph_of(weights) -> jraph.GraphsTuple:
    """The directed graph of weights [N, N], senders as rows, without the diagonal."""
    weights = weights * (1 - np.eye(len(weights)))
    senders, receivers = np.nonzero(weights)
    edges = np.stack([senders, receivers], axis=1)
    return relations.from_edges(len(weights), edges, weights[senders, receivers], directed=True)


def read_matrix(file) -> tuple[list[str], np.ndarray]:
    """Reads N sensor ids and weights [N, N], senders as rows, from DCRNN's pickle.

    Raises:
      ValueError: the pickle has other content, or an id is repeated or in another place.
    """
    loaded = load_pickle(file)
    try:
        ids, table, weights = loaded
        ids = list(map(files.text_of, ids))
        table = table if isinstance(table, dict) else {}
        numbers = {files.text_of(sensor): number for sensor, number in table.items()}
        moved = [(i, n) for n, i in enumerate(ids) if numbers.get(i, n) != n]
        weights = np.asarray(weights, np.float64)
        if weights.shape != (len(ids), len(ids)) or not np.isfinite(weights).all():
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"{file}: the pickle does not hold ids, indices and a square matrix of weights; "
            f"replace it by the file from {URL}"
        ) from None
    _check_unique(file, ids)
    if moved:
        (sensor, number), *_ = moved
        raise ValueError(
            f"{file}: sensor {sensor} is number {number} in the list of sensors and "
            f"{numbers[sensor]} in the table of indices; replace it by the file from {URL}"
        )
    return ids, weights


def read_distances(file, sensors) -> tuple[list[str], np.ndarray]:
    """Reads distances by road and computes the weights of the edges.

    Args:
      file: text file with rows "from,to,metres". The first row may be a header.
      sensors: ids of the sensors whose distances are used; None uses all in the file.

    Returns:
      The N ids of those sensors that the file has, and weights [N, N] with senders as rows.

    Raises:
      ValueError: a line is no distance, or a pair has two; and as `weights_of`.
    """
    by_pair = {}  # metres
    wrong = f"is not from,to,metres; use the file from {URL}"
    for number, (start, end, metres) in _read_rows(file, _parse_distance, wrong):
        if not 0 <= metres < np.inf:
            raise ValueError(
                f"{file}: line {number} has the distance {metres:g}; give metres of at least 0"
            )
        before = by_pair.setdefault((start, end), metres)
        if before != metres:
            raise ValueError(
                f"{file}: line {number} has another distance from {start} to {end} than a "
                f"line before, {metres:g} and {before:g}; remove one of the lines"
            )
    named = dict.fromkeys(sensor for pair in by_pair for sensor in pair)
    ids = [sensor for sensor in sensors or named if sensor in named]
    index = {sensor: i for i, sensor in enumerate(ids)}
    distances = np.full((len(ids), len(ids)), np.inf)
    for (start, end), metres in by_pair.items():
        if start in index and end in index:
            distances[index[start], index[end]] = metres
    return ids, weights_of(distances)


def weights_of(distances) -> np.ndarray:
    """Weights [N, N] of edges from distances [N, N], which are infinite if unknown.

    Raises:
      ValueError: all distances are equal or missing.
    """
    finite = distances[np.isfinite(distances)]
    sigma = finite.std() if len(finite) else 0.0
    if sigma == 0:
        raise ValueError(
            "data.roads: the distances are all equal or missing; give distances that differ"
        )
    weights = np.exp(-np.square(distances / sigma))  # exp(-(d / sigma)^2)
    return np.where(weights < THRESHOLD, 0.0, weights)


def _parse_place(row):
    *_, sensor, latitude, longitude = row
    return sensor.strip(), (float(longitude), float(latitude))


def _parse_distance(row):
    start, end, metres = map(str.strip, row)
    return start, end, float(metres)


def _read_rows(file, parse, wrong):
    """The numbers of the rows of a text file, and what `parse` makes of them.

    The first row may be a header. Of other rows, and of one with a number, `wrong` says what is
    wrong if `parse` raises a ValueError.
    """
    table = csv.reader(io.StringIO(files.read_text(file), newline=""))
    try:
        for number, row in enumerate(table, start=1):
            try:
                parsed = parse(row)
            except ValueError:
                if number > 1 or any(map(_is_number, row)):
                    raise ValueError(f"{file}: line {number} {wrong}") from None
                continue
            yield number, parsed
    except csv.Error as error:
        raise ValueError(
            f"{file}: the file is no list ({error}); use the file from {URL}"
        ) from error


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_unique(file, ids):
    for sensor, times in collections.Counter(ids).items():
        if times > 1:
            raise ValueError(f"{file}: sensor {sensor} is given twice; remove one of them")


def _read_ids(file):
    """The sensor ids in a file, separated by commas or lines; None without such a file."""
    if not file.is_file():
        return None
    ids = files.read_text(file).replace(",", " ").split()
    _check_unique(file, ids)
    return ids
