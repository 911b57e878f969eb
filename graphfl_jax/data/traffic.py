"""METR-LA and PEMS-BAY: speeds on motorways, one client per sensor, an hour to forecast.

Li, Yu, Shahabi, Liu. Diffusion Convolutional Recurrent Neural Network: Data-Driven Traffic
Forecasting. ICLR 2018. https://arxiv.org/abs/1707.01926. Loop detectors of Los Angeles County
(207 sensors, March to June 2012) and of the Bay Area (325 sensors, January to June 2017) tell a
mean speed every five minutes. An example is an hour of one sensor's speeds and times of day,
and the next hour's speeds; of the T - 23 examples the first 70 % are for training, the last
20 % for test, and what is between for validation. Speeds are standardised by the mean and
standard deviation of all sensors' training inputs, readings of 0, which stand for none,
included.

Relations are those of `data.roads`.
"""

import warnings
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from graphfl_jax.core import Units
from graphfl_jax.data import federation, simulated_traffic
from graphfl_jax.data.roads import FROM, RoadFiles, graph_of, relations_of, weights_of
from graphfl_jax.metrics import standardised

PAST = FUTURE = 12  # steps of an example that are given, and that are to be forecast
STEP = 5  # minutes
DAY = 24 * 60 * 60 * 10**9  # nanoseconds
_SOURCES = ("auto", "real", "simulated")


class Official(NamedTuple):
    """What is official of a data set; files lie in the folder of its name."""

    name: str  # also of the folder
    series: str  # file
    sensors: int
    steps: int
    roads: RoadFiles
    first: int  # time of the first step, in ns since 1970


METR_LA = Official(
    name="metr-la",
    series="metr-la.h5",
    sensors=207,
    steps=34272,
    roads=RoadFiles("adj_mx.pkl", "distances_la_2012.csv", "graph_sensor_ids.txt"),
    first=1_330_560_000 * 10**9,  # 2012-03-01
)
PEMS_BAY = Official(
    name="pems-bay",
    series="pems-bay.h5",
    sensors=325,
    steps=52116,
    roads=RoadFiles("adj_mx_bay.pkl", "distances_bay_2017.csv", "graph_sensor_ids_bay.txt"),
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
    if source not in _SOURCES:
        raise ValueError(
            f"{name}: data.source={source!r} is not known; use one of {', '.join(_SOURCES)}."
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
        graph = graph_of(weights_of(drawn.distances))
    else:
        speeds = _cut(file, read_speeds(file), sensors, steps)
        whole = len(speeds.sensors) == official.sensors
        graph = relations_of(
            speeds.sensors, folder, official.roads, source=roads, series=file, whole=whole
        )
    train, val, test = split_sizes(file or name, len(speeds.times))
    units = _units(file or name, speeds.values, train)
    clock = (speeds.times % DAY / DAY).astype(np.float32)
    speed = standardised(speeds.values, units)
    shape = (len(speeds.sensors), len(speeds.times))
    extent = ""
    if file and shape != (official.sensors, official.steps):
        extent = (
            f"{shape[0]} of {official.sensors} sensors, {shape[1]} of {official.steps} steps"
        )
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
        extent=extent,
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
            f"the file named at {FROM}."
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


def _units(file, values, train):
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
        raise ValueError(f"{file}: all training speeds are equal; there is nothing to learn.")
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
    absent = f"{official.name}: no file {file}; put it there from the links at {FROM}"
    if path or source == "real":
        raise FileNotFoundError(f"{absent}, or set data.source=simulated.")
    warnings.warn(f"{absent}. Until then traffic is simulated.", stacklevel=3)
    return None
