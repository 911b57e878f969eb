"""The points of a sweep: a grid, random draws, or a file; and their configurations."""

import itertools
import runpy
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict, config_flags

from experiments.common.command_line import FLAGS, OVERRIDES, file_configuration
from graphfl_jax.configs.base import METHODS
from graphfl_jax.configs.fields import adjusted, parse, setting_of
from graphfl_jax.runs.sweep import Point, TrialGroup
from graphfl_jax.settings import Real

METHOD = "algorithm"  # the axis of a grid that goes over the methods of a configuration file
AXES = ("--grid.", "--uniform.", "--loguniform.")


def take_axes(argv: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Splits words such as --grid.FIELD=a,b off the flags that absl knows.

    Returns:
      The other words, and for each axis, such as ``--grid.FIELD``, its values.

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


def points_of(axes: dict[str, list[str]], samples: int) -> list[Point]:
    """The points of a grid, or random points if `samples` is not 0.

    A grid is the product of its axes. In random points, an axis with values takes each of them
    with the same probability, and a uniform or loguniform axis any number in its range. The
    first points do not depend on the number of samples.

    Raises:
      ValueError: an axis is not a field, a value is not of its type, or samples are missing.
    """
    grid, ranges = {}, {}
    for axis, values in axes.items():
        law, field = axis.removeprefix("--").split(".", 1)
        if field == "seed":
            raise ValueError(f"{axis}: seeds are counted from 0; set --seeds")
        if law != "grid":
            ranges[field] = _range(axis, field, values)
            continue
        if field != METHOD:
            setting = setting_of(field)
            values = [setting.check(field, parse(field, text, setting)) for text in values]
        grid[field] = values
    if not samples:
        if ranges:
            raise ValueError(f"{next(iter(ranges))} has a range; set --samples to a number")
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


def _range(axis, field, values):
    setting = setting_of(field)
    low, high = (parse(field, values[end], setting) for end in (0, -1))
    law = "log" if axis.startswith("--log") else "uniform"
    if len(values) != 2 or not isinstance(setting, Real) or low >= high:
        raise ValueError(
            f"{axis}={','.join(values)} is not a range of floats; write {axis}=0.1,1"
        )
    if law == "log" and low <= 0:
        raise ValueError(
            f"{axis}={values[0]},{values[1]} must begin above 0; write {axis}=0.001,0.1"
        )
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


def configured(point: Point) -> tuple[ConfigDict, dict]:
    """The configuration of the flags with the values of a point.

    Returns:
      The configuration, and the values of flags and point that nothing in it reads.

    Raises:
      ValueError: there is no such method, or a value is outside its range.
    """
    changes, config = dict(point), file_configuration()
    if METHOD in changes:
        method = changes.pop(METHOD)
        file = runpy.run_path(
            config_flags.get_config_filename(FLAGS["config"]).partition(":")[0]
        )
        known = METHODS | file.get("METHODS", {})
        if method not in known:
            raise ValueError(
                f"grid.{METHOD}={method!r} is unknown; choose from {', '.join(known)}"
            )
        config = file["get_config"](method)
    if FLAGS.data_root is not None:
        changes["data.root"] = FLAGS.data_root
    return adjusted(config, OVERRIDES, changes)


def check_validation(groups: list[TrialGroup]) -> None:
    """Checks that all runs of a sweep have a validation split.

    Raises:
      ValueError: one does not.
    """
    for group in groups:
        for federation in group.federations.values():
            if "val" not in federation.data.evals:
                raise ValueError(
                    "data.val_fraction=0.0 leaves no examples for validation; set "
                    "--config.data.val_fraction=0.1"
                )
