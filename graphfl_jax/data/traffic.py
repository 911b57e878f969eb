"""METR-LA and PEMS-BAY: motorway speeds forecast for the next hour, one client per sensor.

Li, Yu, Shahabi, Liu. Diffusion Convolutional Recurrent Neural Network: Data-Driven Traffic
Forecasting. ICLR 2018. https://arxiv.org/abs/1707.01926. Loop detectors of Los Angeles County
(207 sensors, March to June 2012) and of the Bay Area (325 sensors, January to June 2017) report
a mean speed every five minutes. An example is one hour of speeds and times of day of one
sensor, and the speeds of the next hour. Of the T - 23 examples, the first 70 % are for
training, the last 20 % for test, and the rest for validation. Speeds are standardised by the
mean and the standard deviation of the training inputs of all sensors. Missing readings, which
the files store as 0, are included. With missing="masked", targets that are missing count
neither in the loss nor in the score, as in the tables of Li et al.; inputs are the same. Rows
may be missing, as in PEMS-BAY where daylight saving time begins; an example is of 24 rows that
follow each other in the file.

The module `roads` reads the relations.
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from graphfl_jax.data import files, roads, simulated_traffic
from graphfl_jax.data.common_settings import DataPath, GeneratorSeed, forms
from graphfl_jax.data.federation import Federation, federate_series
from graphfl_jax.data.scaling import Scaling
from graphfl_jax.data.simulated_traffic import Traffic
from graphfl_jax.memory import check_memory
from graphfl_jax.metrics import Units, standardise
from graphfl_jax.settings import Choice, Integer

PAST = FUTURE = 12  # input steps and target steps of an example
STEP = 5  # minutes
ARRAYS = ("axis0", "axis1", "block0_items", "block0_values")  # of a frame
MISSING = ("included", "masked")
DAY = 24 * 60 * 60 * 10**9  # nanoseconds


class Official(NamedTuple):
    """Facts of an official data set."""

    name: str
    series: str  # file name
    sensors: int
    steps: int
    roads: roads.RoadFiles
    first: int  # time of the first step, in ns since 1970


def _official(name, area, suffix, sensors, steps, first):
    names = roads.RoadFiles(
        matrix=f"adj_mx{suffix}.pkl",
        distances=f"distances_{area}.csv",
        sensors=f"graph_sensor_ids{suffix}.txt",
        places=f"graph_sensor_locations{suffix}.csv",
    )
    series = f"{name.replace('_', '-')}.h5"
    return Official(name, series, sensors, steps, names, first * 10**9)


METR_LA = _official("metr_la", "la_2012", "", 207, 34272, 1_330_560_000)  # 2012-03-01
PEMS_BAY = _official("pems_bay", "bay_2017", "_bay", 325, 52116, 1_483_228_800)  # 2017-01-01


def _loader(official: Official):
    """The loader of an official data set. All have the same settings.

    A loader reads the files in root/FOLDER, or simulates traffic in the official size. It
    returns one client per sensor, with windows x [24, 2] (standardised speed, hidden in the
    last 12 steps, and time of day in [0, 1)) and y [12] (standardised speed); units are miles
    per hour. It raises a FileNotFoundError if a file is missing, and a ValueError, in one line
    with the file and the sensor, if a file has another format or wrong values, or has fewer
    sensors or steps than `sensors` and `steps`.
    """

    def load(
        *,
        root,
        source: Annotated[str, forms("real", "simulated")] = "auto",
        path: DataPath = "",
        roads: Annotated[
            str,
            Choice("File of the relations; auto takes the first available one.", roads.SOURCES),
        ] = "auto",
        sensors: Annotated[int, Integer("First sensors to load; 0 loads all.", low=0)] = 0,
        steps: Annotated[
            int, Integer("First time steps of five minutes to load; 0 loads all.", low=0)
        ] = 0,
        missing: Annotated[
            str,
            Choice("Whether missing readings count as targets, in losses and scores.", MISSING),
        ] = "included",
        generator_seed: GeneratorSeed = 0,
    ) -> Federation:
        folder = Path(root) / official.name.replace("_", "-")
        file = _find_series(official, folder, source, path)
        masked = missing == "masked"
        if file is None:
            return _simulate(official, sensors, steps, generator_seed, masked)
        return _read(official, folder, file, roads, sensors, steps, masked)

    load.__name__ = load.__qualname__ = official.name
    load.__doc__ = f"Loads {official.series}, or simulates traffic."
    return load


metr_la = _loader(METR_LA)
pems_bay = _loader(PEMS_BAY)


def _find_series(official, folder, source, path):
    """The file of the series, or None if traffic is to be simulated."""
    files.check_path(path, source, reading=("auto", "real"))
    if source == "simulated":
        return None
    file = Path(path) if path else folder / official.series
    if file.is_file():
        return file
    return files.report_missing(
        official.name,
        f"no file {file}",
        f"put it there from {roads.URL}",
        folder=folder,
        required=source == "real",
        stand_in="traffic is simulated",
    )


def _read(official, folder, file, source, sensors, steps, masked):
    speeds = _cut(file, read_speeds(file), sensors, steps)
    graph = roads.read_relations(
        speeds.sensors,
        folder,
        official.roads,
        source=source,
        series=file,
        complete=len(speeds.sensors) == official.sensors,
    )
    positions = roads.read_positions(folder / official.roads.places, speeds.sensors)
    (n, t), whole = speeds.values.shape, (official.sensors, official.steps)
    extent = f"{n} of {whole[0]} sensors, {t} of {whole[1]} steps" if (n, t) != whole else ""
    facts = {"extent": extent, "positions": positions, "masked": masked}
    return _federate(official, file, speeds, graph, "real", **facts)


def _simulate(official, sensors, steps, generator_seed, masked):
    sensors, steps = sensors or official.sensors, steps or official.steps
    excess = {"sensors": sensors / official.sensors, "steps": steps / official.steps}
    field = max(excess, key=excess.get)
    # Speeds in float32, and distances between all sensors in float64.
    needed = 4 * sensors * steps + 8 * sensors**2
    check_memory(f"data.{field}={sensors if field == 'sensors' else steps}", needed)
    traffic = simulated_traffic.simulate(
        generator_seed,
        sensors=sensors,
        steps=steps,
        first=official.first,
        step=STEP * 60 * 10**9,
    )
    graph = roads.graph_of(roads.weights_of(traffic.distances))
    return _federate(official, official.name, traffic, graph, "simulated", masked=masked)


def _federate(official, file, speeds, graph, source, *, masked, deciders=slice(None), **facts):
    """Standardises the speeds and splits their windows.

    The training speeds of the sensors `deciders` determine the scaling; `file` is for error
    messages. With `masked`, every sensor needs readings among its targets of each split.
    """
    train, val, test = counts = split_sizes(file, len(speeds.times))
    if masked:
        _check_targets(file, speeds, counts)
    units = _units_of(file, speeds.values[deciders], train)._replace(masked=masked)
    speed = standardise(speeds.values, units)  # [N, T]
    time_of_day = (speeds.times % DAY / DAY).astype(np.float32)  # [T], in [0, 1)

    def refit(deciders):
        some = {"masked": masked, "deciders": deciders}
        return _federate(official, file, speeds, graph, source, **some, **facts)

    return federate_series(
        speeds.sensors,
        series=np.stack([speed, np.broadcast_to(time_of_day, speed.shape)], axis=-1),
        past=PAST,
        future=FUTURE,
        counts={"train": train, "val": val, "test": test},
        graph=graph,
        name=official.name,
        source=source,
        units=units,
        loader_scaling=_scaling(units),
        refit=refit,
        **facts,
    )


def _check_targets(file, speeds, counts):
    """Checks that each sensor has a reading among its targets of each split."""
    end = 0
    for part, count in zip(("training", "validation", "test"), counts, strict=True):
        begin, end = end, end + count
        targets = speeds.values[:, begin + PAST : end + PAST + FUTURE - 1]
        without = ~targets.any(axis=1)
        if without.any():
            sensor = speeds.sensors[int(np.argmax(without))]
            raise ValueError(
                f"{file}: data.missing=masked leaves sensor {sensor} without readings among "
                f"its {part} targets; leave it out, or set --config.data.missing=included"
            )


def _scaling(units):
    """The scaling of windows and targets: of speeds, but not of times or of what is hidden."""
    offset, scale = np.zeros((1, PAST + FUTURE, 2)), np.ones((1, PAST + FUTURE, 2))
    offset[:, :PAST, 0], scale[:, :PAST, 0] = units.mean, units.std
    targets = np.full((1, FUTURE), units.mean), np.full((1, FUTURE), units.std)
    return Scaling("standard", (), (offset, scale), targets)


def split_sizes(file, steps) -> tuple[int, int, int]:
    """Numbers of training, validation and test examples in a series of `steps` steps.

    Raises:
      ValueError: there are too few steps.
    """
    examples = steps - PAST - FUTURE + 1
    train, test = round(0.7 * examples), round(0.2 * examples)
    if min(train, examples - train - test, test) < 1:
        raise ValueError(
            f"{file}: {steps} steps are too few for training, validation and test examples of "
            f"{PAST + FUTURE} steps; give at least {PAST + FUTURE + 8}"
        )
    return train, examples - train - test, test


def read_speeds(file) -> Traffic:
    """Reads speeds from an HDF file with one pandas frame in fixed format.

    Rows are times and columns are sensors. The arrays axis0 (sensors), axis1 (local times),
    block0_items and block0_values are read directly, so pandas is not needed.

    Raises:
      ValueError: the file is no such frame, is compressed by an unknown filter, has a time
        zone, or a speed does not fit.
    """
    check_memory(f"{file}", _read_frame(file, _declared_bytes))
    if lacking := _read_frame(file, _missing_filter):
        raise ValueError(
            f"{file}: the file is compressed by the filter {lacking}, which h5py lacks; write "
            f'it again without, by pandas.read_hdf("{file}").to_hdf("new.h5", key="speed")'
        )
    zone = _read_frame(file, lambda frame: _attribute(frame["axis1"], "tz"))
    if zone:
        raise ValueError(
            f"{file}: the times have the zone {zone!r}, and times of day are local; write "
            'frame.tz_convert("Etc/GMT+8").tz_localize(None), Pacific standard time all year'
        )
    columns, items, times, values = _read_frame(file, _read_arrays)
    order = [items.index(column) for column in columns]
    speeds = Traffic(columns, times, values[:, order].T)
    _check_speeds(file, speeds)
    return speeds


def _read_frame(file, read):
    """What a function reads of the frame in a file."""
    import h5py

    try:
        with h5py.File(file, "r") as hdf:
            frames = [group for group in hdf.values() if "block0_values" in group]
            if len(frames) != 1:
                raise KeyError("no single frame with block0_values")
            return read(frames[0])
    except (AttributeError, OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        why = " ".join(str(error).strip("\"'").split())
        raise ValueError(
            f"{file}: the file is not a pandas frame of speeds in fixed format ({why}); use "
            f"the file from {roads.URL}"
        ) from error


def _declared_bytes(frame):
    """Bytes of the arrays of a frame, which are read with 8 bytes per number."""
    return 8 * sum(frame[name].size for name in ARRAYS)


def _missing_filter(frame):
    """The first filter of an array, such as a compression, that is not there to undo it."""
    from h5py import h5z

    for name in ARRAYS:
        settings = frame[name].id.get_create_plist()
        for i in range(settings.get_nfilters()):
            number, _, _, label = settings.get_filter(i)
            if not h5z.filter_avail(number):
                return f"{number} {label.decode()}".strip()
    return ""


def _read_arrays(frame):
    """The sensors in the frame's order and in that of the values, times [T] in ns, and values
    [T, N]."""
    columns, items = _read_names(frame["axis0"]), _read_names(frame["block0_items"])
    kind = _attribute(frame["axis1"], "kind")
    times = np.asarray(frame["axis1"], np.int64)
    values = np.asarray(frame["block0_values"], np.float64)
    if not kind.startswith("datetime64") or sorted(items) != sorted(columns):
        raise KeyError(f"axis1 is of kind {kind!r}, or axis0 and block0_items differ")
    if values.shape != (len(times), len(items)) or len(set(items)) != len(items):
        raise KeyError(f"{values.shape} values for {len(times)} times, {len(items)} names")
    # Frames of older versions of pandas do not state the unit, which is ns.
    times = times.astype(kind if "[" in kind else "datetime64[ns]").astype("datetime64[ns]")
    return columns, items, times.astype(np.int64), values


def _read_names(dataset):
    return list(map(files.text_of, np.asarray(dataset)))


def _attribute(dataset, name):
    return files.text_of(dataset.attrs.get(name, ""))


def _check_speeds(file, speeds):
    """Checks that times follow each other, and that sensors have valid readings."""
    apart, step = np.diff(speeds.times), STEP * 60 * 10**9
    if (apart <= 0).any():
        row = int(np.argmax(apart <= 0)) + 1
        raise ValueError(f"{file}: row {row} is not later than the row before; sort the rows")
    smallest = apart.min() if len(apart) else step
    uneven = (apart % step != 0) | (smallest != step)
    if uneven.any():
        row = int(np.argmax(uneven)) + 1
        raise ValueError(
            f"{file}: row {row} is {apart[row - 1] / 10**9:g} s later than the row before; "
            f"give a row every {STEP} minutes, with times since 1970 in the unit that axis1 has"
        )
    for sensor, values in zip(speeds.sensors, speeds.values, strict=True):
        wrong = ~(np.isfinite(values) & (values >= 0) & (values < 1000))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"{file}: sensor {sensor} has the speed {values[row]:g} in row {row}; give "
                f"speeds in miles per hour, and 0 for missing readings"
            )
        if not values.any():
            raise ValueError(f"{file}: sensor {sensor} has no readings; leave it out")


def _cut(file, speeds, sensors, steps):
    """The first `sensors` sensors and `steps` steps; 0 means all."""
    counts = {"sensors": len(speeds.sensors), "steps": len(speeds.times)}
    for field, value in {"sensors": sensors, "steps": steps}.items():
        if value > counts[field]:
            raise ValueError(
                f"data.{field}={value} exceeds the {counts[field]} {field} of {file}; set "
                f"--config.data.{field} to {counts[field]} or less, or to 0 for all"
            )
    n, t = sensors or counts["sensors"], steps or counts["steps"]
    cut = Traffic(speeds.sensors[:n], speeds.times[:t], speeds.values[:n, :t])
    _check_speeds(file, cut)
    return cut


def _units_of(file, values, train):
    """Mean and standard deviation of the training inputs of all sensors, from values [N, T].

    Inputs overlap. A step that is in k inputs has weight k, up to 12.
    """
    step = np.arange(train + PAST - 1)
    weights = np.minimum(np.minimum(step + 1, PAST), np.minimum(len(step) - step, train))
    inputs = values[:, : len(step)].astype(np.float64)
    total = weights.sum() * len(values)
    mean = (inputs * weights).sum() / total
    std = np.sqrt((np.square(inputs - mean) * weights).sum() / total)
    if std == 0:
        raise ValueError(f"{file}: all training speeds are equal; give speeds that vary")
    # The values in float32 precision, in which the speeds are standardised.
    mean, std = float(np.float32(mean)), float(np.float32(std))
    return Units(name="mph", mean=mean, std=std, step=STEP, missing=0.0)
