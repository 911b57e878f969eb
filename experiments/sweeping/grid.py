"""What a sweep tries: points of a grid or of random draws, and the runs that they mean."""

import collections
import copy
import itertools
import json
import runpy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict, config_flags

from experiments.common.command_line import FLAGS, kind_of, parsed
from graphfl_jax.build import build_experiment, load_federation, pick
from graphfl_jax.data.federation import Federation
from graphfl_jax.runs.batch import Trial, identity, with_seed

METHOD = "algorithm"  # the axis of a grid that goes over the methods of a configuration file
FLOATS = "hparams."  # fields whose values one program takes
AXES = ("--grid.", "--uniform.", "--loguniform.")
Point = dict[str, Any]  # values by dotted field, and by METHOD


class Planned(NamedTuple):
    """A run that a sweep asks for."""

    identity: str  # what it follows from
    point: Point
    trial: Trial


class Group(NamedTuple):
    """Runs that differ in floats and seeds only, so that one program can play them."""

    config: ConfigDict
    federations: dict[int, Federation]  # by seed
    planned: list[Planned]


def take_axes(argv: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Splits words such as --grid.FIELD=a,b off those that absl knows.

    Returns:
      The other words, and of each axis, such as ``--grid.FIELD``, its values.

    Raises:
      ValueError: an axis has no values, or is given twice.
    """
    rest, axes = [], {}
    for word in argv:
        if not word.startswith(AXES):
            rest.append(word)
            continue
        axis, _, values = word.partition("=")
        if not all(values.split(",")):
            raise ValueError(f"{word!r} has no values; write {axis}=0.1,0.2")
        if axis in axes:
            raise ValueError(f"{axis} is given twice; put all its values in one")
        axes[axis] = values.split(",")
    return rest, axes


def points_of(config: ConfigDict, axes: dict[str, list[str]], samples: int) -> list[Point]:
    """The points of a grid, or so many at random.

    A grid's axes are crossed. At random, an axis with values takes each of them equally often,
    a uniform or loguniform one any number between its two; more samples begin with the same.

    Raises:
      ValueError: an axis names no field, has a value that is not of its kind, or no samples.
    """
    grid, ranges = {}, {}
    for axis, values in axes.items():
        law, field = axis.removeprefix("--").split(".", 1)
        if field == "seed":
            raise ValueError(f"{axis}: seeds are counted from 0; set --seeds")
        if law != "grid":
            ranges[field] = _range(config, axis, field, values)
            continue
        grid[field] = values if field == METHOD else [parsed(config, field, v) for v in values]
    if not samples:
        if ranges:
            raise ValueError(f"{next(iter(ranges))} has a range; say with --samples how many")
        return [
            dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
        ]
    points = []
    for sample in range(samples):
        rng = np.random.default_rng([0, sample])
        point = {field: values[rng.integers(len(values))] for field, values in grid.items()}
        for field, (law, low, high) in ranges.items():
            share = rng.uniform()
            between = low + share * (high - low)
            point[field] = float(low * (high / low) ** share if law == "log" else between)
        points.append(point)
    return points


def _range(config, axis, field, values):
    low, high = (parsed(config, field, values[end]) for end in (0, -1))
    law = "log" if axis.startswith("--log") else "uniform"
    if len(values) != 2 or not isinstance(low, float) or low >= high:
        raise ValueError(f"{axis}={','.join(values)} is no range of floats; write {axis}=0.1,1")
    if law == "log" and low <= 0:
        raise ValueError(f"{axis}={values[0]},{values[1]} must begin above 0")
    return law, low, high


def points_of_file(path: str) -> list[Point]:
    """The points that a Python file's ``get_points()`` returns: dictionaries by dotted field.

    Raises:
      ValueError: the file has none, or returns something else.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {path}; name a Python file with get_points()")
    points = runpy.run_path(path).get("get_points", lambda: None)()
    good = isinstance(points, list) and points and all(isinstance(one, dict) for one in points)
    if not good:
        raise ValueError(f"{path}: get_points() must return a list of dictionaries by field")
    return points


def configured(point: Point) -> ConfigDict:
    """The configuration of the flags, with another method and other values.

    Raises:
      ValueError: the configuration has no such method or field, or a value is not of its kind.
    """
    fields = dict(point)
    config = copy.deepcopy(FLAGS.config)
    if METHOD in fields:
        flag, method = FLAGS["config"], fields.pop(METHOD)
        file = runpy.run_path(config_flags.get_config_filename(flag).partition(":")[0])
        pick(file.get("METHODS", {}), method, f"grid.{METHOD}")
        config = file["get_config"](method)
        config.update_from_flattened_dict(config_flags.get_override_values(flag))
        config.data.root = FLAGS.config.data.root
    for field in fields:
        kind_of(config, field)
    try:
        config.update_from_flattened_dict(fields)
    except TypeError as error:
        raise ValueError(f"{error}; configs/base.py shows a value of its kind") from None
    return config


def groups_of(points: list[Point], seeds: list[int], *, most: int) -> list[Group]:
    """The runs of all points with all seeds, by what one program can play.

    A float that a point's method does not read is left out of the point, and points that are
    then the same are one.

    Args:
      points: of the sweep.
      seeds: of every point.
      most: groups that are accepted.

    Raises:
      ValueError: a point does not fit, there are more groups, or no method reads some float.
    """
    by_structure = collections.defaultdict(list)
    for point in points:
        structure = configured(point)
        structure.hparams = ConfigDict()
        by_structure[identity(structure)].append(point)
    if len(by_structure) > most:
        raise ValueError(
            f"{len(by_structure)} groups of trials differ in more than floats and seeds, and "
            f"each is compiled by itself; add --yes if that is meant"
        )
    loaded, read, groups = {}, set(), []
    for members in by_structure.values():
        base = configured(members[0])
        federations = {seed: _load(with_seed(base, seed), loaded) for seed in seeds}
        if "val" not in federations[seeds[0]].data.evals:
            raise ValueError("data.val_fraction=0 leaves nothing to choose by; set it to 0.1")
        floats = build_experiment(base, federations[seeds[0]]).hparams
        planned = {}
        for point in members:
            own = {
                field: value
                for field, value in point.items()
                if not field.startswith(FLOATS) or field.removeprefix(FLOATS) in floats
            }
            read |= own.keys()
            config = configured(own)
            build_experiment(config, federations[seeds[0]])  # refuses values that cannot be
            hparams = {name: config.hparams[name] for name in floats}
            for seed in seeds:
                mark = identity(with_seed(config, seed))
                planned.setdefault(mark, Planned(mark, own, Trial(hparams, seed)))
        groups.append(Group(base, federations, list(planned.values())))
    unread = sorted({field for point in points for field in point} - read)
    if unread:
        raise ValueError(
            f"{unread[0]} is not read by {base.algorithm.name}; its floats are "
            f"{', '.join(floats)}"
        )
    return groups


def _load(config, loaded):
    """The federation of a configuration, loaded once for all methods."""
    parts = (config[name].to_dict() for name in ("data", "new_clients", "attack"))
    mark = json.dumps([*parts, config.new_clients.fraction, config.seed])
    if mark not in loaded:
        loaded[mark] = load_federation(config)
    return loaded[mark]
