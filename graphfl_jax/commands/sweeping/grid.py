"""The points of a sweep, from a grid, random draws or a file, and their configurations."""

import itertools
import math

import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.commands.common import configuration
from graphfl_jax.commands.common.command_line import FLAGS
from graphfl_jax.configs.fields import setting_of
from graphfl_jax.configs.values import adjust, change, parse_value
from graphfl_jax.runs.sweep import Point, TrialGroup
from graphfl_jax.settings import Real

METHOD = "algorithm"  # the axis whose values are methods of the configuration file
AXES = ("--grid.", "--uniform.", "--loguniform.")
FAR = 100.0  # the ratio of two values of a grid between which others would be tried first


def take_axes(argv: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Splits axes such as --grid.FIELD=a,b off the other words of a command line.

    Returns:
      The other words, and the values of each axis, by its name such as ``--grid.FIELD``.

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
            raise ValueError(f"{word} lacks a value; write {axis}=0.1,0.2")
        if axis in axes:
            raise ValueError(f"{word} repeats an axis; give all its values in one {axis}")
        axes[axis] = values.split(",")
    return rest, axes


def dotted_field(axis: str) -> str:
    """The field of an axis, such as ``--grid.FIELD``, or of a point."""
    field = axis.partition(".")[2] if axis.startswith(AXES) else axis
    return "algorithm.name" if field == METHOD else field


def points_of(axes: dict[str, list[str]], samples: int) -> list[Point]:
    """The points of a grid, or random points if `samples` is not 0.

    A grid is the product of its axes. In a random point, an axis with values takes one of them,
    all with the same probability, and a uniform or loguniform axis takes a number in its range.
    The first points do not depend on the number of samples.

    Raises:
      ValueError: an axis is not a field, a value is not of its type, or there is a range and
        `samples` is 0.
    """
    domains = domains_of(axes)
    grid = {field: values for field, values in domains.items() if isinstance(values, list)}
    ranges = {field: law for field, law in domains.items() if field not in grid}
    if not samples:
        if ranges:
            raise ValueError(
                f"samples=0 is not possible with a range of {next(iter(ranges))}; set "
                f"--samples to the number of points"
            )
        return _product(grid)
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


def domains_of(axes: dict[str, list[str]]) -> dict[str, list | tuple[str, float, float]]:
    """What each axis draws from: a list of values, or the law, the low and the high end.

    Raises:
      ValueError: an axis is not a field, or a value is not of its type.
    """
    domains = {}
    for axis, values in axes.items():
        law, field = axis.removeprefix("--").split(".", 1)
        if field == "seed":
            raise ValueError(
                f"{axis}={','.join(values)} is not an axis; set --seeds to the number of seeds"
            )
        if field in domains:
            raise ValueError(
                f"{axis}={','.join(values)} is a second axis of {field}; leave one of them out"
            )
        if law != "grid":
            domains[field] = _range(axis, field, values)
            continue
        if field != METHOD:
            setting = setting_of(field)
            values = [parse_value(field, text, setting) for text in values]
        domains[field] = values
    return domains


def extended(axes: dict[str, list[str]], best: Point) -> dict[str, list[str]]:
    """The axes at whose edge the best point is, each with one more value beyond this edge.

    They are grids of two or more floats. The value is the next one at the distance of the last
    two, in ratio: after 0.03 and 0.1 it is 0.3. If their ratio is more than `FAR`, it is the
    next of ..., 1, 3, 10, 30, .... There is none beyond 0, or outside of what the field takes.

    Args:
      axes: as `take_axes` returns them.
      best: a point of these axes.
    """
    longer = {}
    for axis, texts in axes.items():
        field = axis.removeprefix("--grid.")
        setting = setting_of(field) if axis.startswith("--grid.") and field != METHOD else None
        if not isinstance(setting, Real) or field not in best or len(texts) < 2:
            continue
        value = _beyond(sorted(map(float, texts)), best[field])
        if value is not None and setting.low <= value <= setting.high:
            longer[axis] = [*texts, f"{value:g}"]
    return longer


def _beyond(values, best):
    """The value beyond the end of ascending values that is the best; None inside, or at 0."""
    if best not in (values[0], values[-1]):
        return None
    before = values[1] if best == values[0] else values[-2]
    if best <= 0 or before <= 0 or best == before:
        return None
    step = best / before
    if max(step, 1 / step) > FAR:
        return half_decade(best, 1 if step > 1 else -1)
    value = best * step
    if 2.9 < max(step, 1 / step) < 3.5:
        return half_decade(value)
    return float(f"{value:.1e}")


def half_decade(value: float, steps: int = 0) -> float:
    """The number of ..., 1, 3, 10, 30, ... nearest to a value, or one some places further."""
    place = round(2 * math.log10(value)) + steps
    return float(f"{10 ** (place / 2):.0e}")


def extreme_points(axes: dict[str, list[str]]) -> list[Point]:
    """All combinations of the values that are not numbers, with the largest numbers.

    A field that one of all points reads is read in one of these.

    Args:
      axes: as `take_axes` returns them.

    Raises:
      ValueError: as `domains_of`.
    """
    largest = {}
    for field, domain in domains_of(axes).items():
        if isinstance(domain, tuple):
            largest[field] = domain[2:]
        else:
            numbers = all(isinstance(value, int | float) for value in domain)
            largest[field] = [max(domain)] if numbers else domain
    return _product(largest)


def _product(axes):
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def _range(axis, field, values):
    setting = setting_of(field)
    low, high = (parse_value(field, values[end], setting) for end in (0, -1))
    law = "log" if axis.startswith("--log") else "uniform"
    if len(values) != 2 or not isinstance(setting, Real) or low >= high:
        raise ValueError(
            f"{axis}={','.join(values)} is not a range of a float; write {axis}=0.1,1"
        )
    if law == "log" and low <= 0:
        raise ValueError(
            f"{axis}={','.join(values)} must begin above 0; write {axis}=0.001,0.1"
        )
    return law, low, high


def points_of_file(path: str) -> list[Point]:
    """The points that the function get_points() of a Python file returns.

    Raises:
      ValueError: the file cannot be read, or does not return dictionaries; or all of them have
        a field that --config sets.
    """
    points = configuration.call_in_file("points", path, "get_points")
    lists = isinstance(points, list) and points
    if not lists or not all(isinstance(point, dict) for point in points):
        raise ValueError(
            f"points={path}: get_points() returns no dictionaries; return a list of "
            f"dictionaries by dotted field"
        )
    common = [field for field in points[0] if all(field in point for point in points)]
    why = f"all points of --points={path} have it"
    configuration.refuse_overrides(dict.fromkeys(map(dotted_field, common), why))
    return points


def configure_point(point: Point) -> tuple[ConfigDict, dict]:
    """The configuration of the flags with the values of a point.

    Returns:
      The configuration, and those values of flags and point that nothing in it reads.

    Raises:
      ValueError: the method is unknown, or a value is outside its range.
    """
    changes = dict(point)
    config = configuration.file_configuration(changes.pop(METHOD, ""))
    if FLAGS.data_root is not None:
        changes["data.root"] = FLAGS.data_root
    return adjust(config, configuration.OVERRIDES, changes)


def evaluate_as_ranked(groups: list[TrialGroup]) -> list[TrialGroup]:
    """The groups, whose evaluations before the last round compute only what ranks points.

    ``eval.points`` and ``eval.splits`` keep what a configuration sets.

    Raises:
      ValueError: a run has no validation split, or sets these fields to less.
    """
    ranked = []
    for group in groups:
        splits = [federation.data.evals for federation in group.federations.values()]
        if any("val" not in evals for evals in splits):
            raise ValueError(
                "data.val_fraction=0.0 leaves no examples for validation; set "
                "--config.data.val_fraction=0.1"
            )
        values = {}
        for field, needed in (("points", "P"), ("splits", "val")):
            chosen = group.config.eval[field] or (needed,)
            if needed not in chosen:
                raise ValueError(
                    f"eval.{field}={','.join(chosen)} leaves out {needed}, by which a sweep "
                    f"ranks points; add {needed}, or leave the field empty"
                )
            values[f"eval.{field}"] = chosen
        ranked.append(group._replace(config=change(group.config, values)))
    return ranked
