"""METR-LA and PEMS-BAY: speeds on motorways, one client per sensor, an hour to forecast.

Li, Yu, Shahabi, Liu. Diffusion Convolutional Recurrent Neural Network: Data-Driven Traffic
Forecasting. ICLR 2018. https://arxiv.org/abs/1707.01926. Loop detectors of Los Angeles County
(207 sensors, March to June 2012) and of the Bay Area (325 sensors, January to June 2017) tell a
mean speed every five minutes. An example is an hour of one sensor's speeds and times of day,
and the next hour's speeds; of the T - 23 examples the first 70 % are for training, the last
20 % for test, and what is between for validation. Speeds are standardised by the mean and
standard deviation of all sensors' training inputs, readings of 0, which stand for none,
included.

Relations are exp(-(d / sigma)^2) of the distance d by road from one sensor to another, sigma
being the standard deviation of all distances; those under 0.1 are left out. They are directed.
"""

import csv
import warnings
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from graphfl_jax.core import Units
from graphfl_jax.data import federation, files, relations, simulated_traffic
from graphfl_jax.metrics import standardised

PAST = FUTURE = 12  # steps of an example that are given, and that are to be forecast
STEP = 5  # minutes
DAY = 24 * 60 * 60 * 10**9  # nanoseconds
THRESHOLD = 0.1  # of the weight of a relation
_SOURCES = ("auto", "real", "simulated")
_ROADS = ("auto", "matrix", "distances")
_FROM = "https://github.com/liyaguang/DCRNN"


class Official(NamedTuple):
    """What is official of a data set; files lie in the folder of its name."""

    name: str  # also of the folder
    series: str  # file
    sensors: int
    steps: int
    matrix: str  # file of the weights of relations
    distances: str  # file of the distances by road
    listed: str  # file of the sensors' ids, where the distances have others too
    first: int  # time of the first step, in ns since 1970


METR_LA = Official(
    name="metr-la",
    series="metr-la.h5",
    sensors=207,
    steps=34272,
    matrix="adj_mx.pkl",
    distances="distances_la_2012.csv",
    listed="graph_sensor_ids.txt",
    first=1_330_560_000 * 10**9,  # 2012-03-01
)
PEMS_BAY = Official(
    name="pems-bay",
    series="pems-bay.h5",
    sensors=325,
    steps=52116,
    matrix="adj_mx_bay.pkl",
    distances="distances_bay_2017.csv",
    listed="graph_sensor_ids_bay.txt",
    first=1_483_228_800 * 10**9,  # 2017-01-01
)


class Speeds(NamedTuple):
    """What sensors have told."""

    sensors: list[str]  # N ids
    times: np.ndarray  # [T] int64, ns since 1970
    values: np.ndarray  # [N, T] float32, miles per hour; 0 is no reading


def metr_la(*, root, source, path, roads, sensors, steps, generator_seed):
    """Loads METR-LA, or simulates traffic in its place; see `traffic`."""
    return traffic(METR_LA, root, source, path, roads, sensors, steps, generator_seed)


def pems_bay(*, root, source, path, roads, sensors, steps, generator_seed):
    """Loads PEMS-BAY, or simulates traffic in its place; see `traffic`."""
    return traffic(PEMS_BAY, root, source, path, roads, sensors, steps, generator_seed)


def traffic(
    official: Official, root, source, path, roads, sensors, steps, generator_seed
) -> federation.Federation:
    """Loads a series of speeds, or simulates one from `generator_seed`.

    Args:
      official: what there is to load.
      root: folder of the data.
      source: "real"; "simulated", of the official size; "auto", the first that there is.
      path: the file of the series, unless the official one.
      roads: what relations are read from: the "matrix" of weights, the "distances", or "auto",
        the first that there is.
      sensors: the first so many of the file; 0 is all.
      steps: the first so many; 0 is all.
      generator_seed: of what is simulated.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file does not hold what it should. One line with the file and the sensor.
    """
    name = official.name
    for field, value, known in (("source", source, _SOURCES), ("roads", roads, _ROADS)):
        if value not in known:
            raise ValueError(
                f"{name}: data.{field}={value!r} is not known; use one of {', '.join(known)}."
            )
    folder = Path(root) / name
    file = _find(official, folder, source, path)
    if file is None:
        drawn = simulated_traffic.simulate(
            generator_seed,
            sensors=sensors or official.sensors,
            steps=steps or official.steps,
            first=official.first,
            step=STEP * 60 * 10**9,
        )
        speeds = Speeds(*drawn[:3])
        graph = _graph(len(speeds.sensors), weights_of(drawn.distances))
    else:
        speeds = _cut(file, read_speeds(file), sensors, steps)
        graph = _relations(official, folder, roads, file, speeds.sensors)
    train, val, test = split_sizes(file or name, len(speeds.times))
    units = _units(speeds.values, train)
    clock = (speeds.times % DAY / DAY).astype(np.float32)
    speed = standardised(speeds.values, units)
    shape = (len(speeds.sensors), len(speeds.times))
    whole = shape == (official.sensors, official.steps) or file is None
    return federation.federate_series(
        speeds.sensors,
        series=np.stack([speed, np.broadcast_to(clock, shape)], axis=-1),
        past=PAST,
        future=FUTURE,
        counts={"train": train, "val": val, "test": test},
        graph=graph,
        name=official.name.replace("-", "_"),
        source="real" if file else "simulated",
        units=units,
        extent=""
        if whole
        else f"{shape[0]} of {official.sensors} sensors, {shape[1]} of {official.steps} steps",
    )


def split_sizes(file, steps) -> tuple[int, int, int]:
    """Examples for training, validation and test in a series of so many steps."""
    examples = steps - PAST - FUTURE + 1
    train, test = round(0.7 * examples), round(0.2 * examples)
    if min(train, examples - train - test, test) < 1:
        raise ValueError(
            f"{file}: {steps} steps are too few: an example takes {PAST + FUTURE}, and "
            f"training, validation and test need one each; give at least {PAST + FUTURE + 4}."
        )
    return train, examples - train - test, test


def read_speeds(file) -> Speeds:
    """Reads speeds from a pandas frame of fixed format in an HDF file.

    Rows are times and columns sensors; no pandas is needed, as only the arrays that it writes
    are read: axis0 (sensors), axis1 (times in ns), block0_items and block0_values.
    """
    try:
        with h5py.File(file, "r") as hdf:
            frames = [group for group in hdf.values() if "block0_values" in group]
            if len(frames) != 1:
                raise KeyError("no single frame with block0_values")
            (frame,) = frames
            columns, items = _names(frame["axis0"]), _names(frame["block0_items"])
            kind = frame["axis1"].attrs.get("kind", b"")
            kind = kind.decode() if isinstance(kind, bytes) else str(kind)
            times = np.asarray(frame["axis1"])
            values = np.asarray(frame["block0_values"], np.float64)
        if not kind.startswith("datetime64") or sorted(items) != sorted(columns):
            raise KeyError(f"axis1 is of kind {kind!r}, or columns and block0_items differ")
        if values.shape != (len(times), len(items)) or len(set(items)) != len(items):
            raise KeyError(f"{values.shape} values for {len(times)} times, {len(items)} names")
    except (OSError, KeyError, TypeError, ValueError) as error:
        why = " ".join(str(error).strip("\"'").split())
        raise ValueError(
            f"{file} is not a frame of speeds that pandas wrote in fixed format ({why}); use "
            f"the file named at {_FROM}."
        ) from error
    order = [items.index(column) for column in columns]
    return _checked(file, Speeds(columns, times.astype(np.int64), values[:, order].T))


def _names(dataset):
    return [n.decode() if isinstance(n, bytes) else str(n) for n in np.asarray(dataset)]


def _checked(file, speeds):
    """Refuses times that do not ascend, and sensors that tell nothing, or nonsense."""
    if (np.diff(speeds.times) <= 0).any():
        row = int(np.argmax(np.diff(speeds.times) <= 0)) + 1
        raise ValueError(f"{file}: time {row} is not after the one before; sort the rows.")
    for sensor, values in zip(speeds.sensors, speeds.values, strict=True):
        wrong = ~(np.isfinite(values) & (values >= 0) & (values < 1000))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"{file}: sensor {sensor} has the speed {values[row]:g} at time {row}; speeds "
                f"are in miles per hour, and 0 where there is no reading."
            )
        if not values.any():
            raise ValueError(f"{file}: sensor {sensor} has no reading at all; leave it out.")
    return speeds


def _cut(file, speeds, sensors, steps):
    """The first so many sensors and steps."""
    there = {"sensors": len(speeds.sensors), "steps": len(speeds.times)}
    for field, value in {"sensors": sensors, "steps": steps}.items():
        if not 0 <= value <= there[field]:
            raise ValueError(
                f"data.{field}={value}: {file} has {there[field]}; set --config.data.{field} "
                f"to that or less, or to 0 for all."
            )
    sensors, steps = sensors or there["sensors"], steps or there["steps"]
    cut = Speeds(
        speeds.sensors[:sensors], speeds.times[:steps], speeds.values[:sensors, :steps]
    )
    return _checked(file, cut)


def _units(values, train):
    """Mean and standard deviation of all sensors' training inputs, [N, T] values.

    Overlapping inputs hold a step up to 12 times, and it counts as often.
    """
    step = np.arange(train + PAST - 1)
    times = np.minimum(np.minimum(step + 1, PAST), np.minimum(len(step) - step, train))
    told = values[:, : len(step)].astype(np.float64)
    total = times.sum() * len(values)
    mean = (told * times).sum() / total
    std = np.sqrt((np.square(told - mean) * times).sum() / total)
    if std == 0:
        raise ValueError("all training speeds are equal; there is nothing to forecast.")
    return Units("mph", float(np.float32(mean)), float(np.float32(std)), STEP, missing=0.0)


def _find(official, folder, source, path):
    """The file of the series, or None where traffic is to be simulated."""
    if path and source == "simulated":
        raise ValueError(
            f"{official.name}: data.path={str(path)!r} is not read with "
            "data.source='simulated'; leave data.path empty or set data.source=real."
        )
    file = Path(path) if path else folder / official.series
    if source == "simulated":
        return None
    if file.is_file():
        return file
    absent = f"{official.name}: no file {file}; put it there from the links at {_FROM}"
    if path or source == "real":
        raise FileNotFoundError(f"{absent}, or set data.source=simulated.")
    warnings.warn(f"{absent}. Until then traffic is simulated.", stacklevel=3)
    return None


def _relations(official, folder, roads, file, sensors):
    """The graph of the `sensors`, from the matrix or from the distances."""
    matrix, distances = folder / official.matrix, folder / official.distances
    if roads == "auto":
        roads = "matrix" if matrix.is_file() or not distances.is_file() else "distances"
    source = matrix if roads == "matrix" else distances
    if not source.is_file():
        raise FileNotFoundError(
            f"{official.name}: no file {source}; put it there from {_FROM}, or set "
            f"--config.data.roads to what there is."
        )
    if roads == "matrix":
        named, weights = read_matrix(source)
    else:
        named, weights = read_distances(source, _listed(official, folder, sensors))
    place = {sensor: i for i, sensor in enumerate(named)}
    for sensor in sensors:
        if sensor not in place:
            raise ValueError(
                f"{source} has no sensor {sensor}, which {file} has; use the files of one data "
                f"set, or leave that sensor out."
            )
    chosen = [place[sensor] for sensor in sensors]
    return _graph(len(sensors), weights[np.ix_(chosen, chosen)])


def _graph(num_clients, weights):
    """The second of two clients hears the first where weights[first, second] is not 0."""
    weights = weights * (1 - np.eye(num_clients))
    first, second = np.nonzero(weights)
    edges = np.stack([first, second], axis=1)
    return relations.from_edges(num_clients, edges, weights[first, second], directed=True)


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
            f"replace it by the file at {_FROM}."
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
                        f"{file}, line {number} is not from,to,metres; use the file at {_FROM}."
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


def _listed(official, folder, sensors):
    """The sensors of the official data set, as far as anything tells them; None if nothing."""
    if len(sensors) == official.sensors:
        return sensors
    file = folder / official.listed
    if not file.is_file():
        return None
    return [sensor.strip() for sensor in file.read_text("latin1").replace("\n", ",").split(",")]
