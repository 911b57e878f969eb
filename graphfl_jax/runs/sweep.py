"""Sweeps: the runs of many points, grouped so that one program plays those that it can.

A point, or candidate, is a dictionary of values by dotted field. Runs whose configurations
differ only in floats of ``hparams`` and in seeds form a group, which `batch.run_trials` plays
as one program.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.configs.values import adjust, structure, values_of
from graphfl_jax.data.federation import Federation
from graphfl_jax.declarations import NOTHING
from graphfl_jax.runs.batch import ELSEWHERE, Outcome, Trial, fields_text, run_trials, with_seed
from graphfl_jax.runs.initial import check_not_single
from graphfl_jax.runs.results import check_attacked

Point = dict[str, Any]


class Planned(NamedTuple):
    """A run of a sweep."""

    name: str  # the fields that determine the run, as text
    point: Point  # without the fields that its method does not read
    trial: Trial


class TrialGroup(NamedTuple):
    """Runs that one program can play."""

    config: ConfigDict
    federations: dict[int, Federation]  # by seed
    planned: list[Planned]


def sweep(
    config: ConfigDict,
    points: Iterable[Point],
    *,
    seeds: Iterable[int] = (),
    at_once: int = 0,
    keep_in: str | os.PathLike | bool | None = True,
) -> Iterator[tuple[Point, int, Outcome]]:
    """Runs every candidate with every seed, in as few programs as possible.

    Args:
      config: the configuration that the candidates change.
      points: the candidates, dictionaries of values by dotted field.
      seeds: of every candidate; none is the seed of `config`.
      at_once: largest number of runs in a program, rounded up to the number of devices; 0 finds
        a number that is fast and fits into memory.
      keep_in: folder of compiled programs, as in `graphfl_jax.run`.

    Yields:
      The candidate, the seed and the outcome of a run, when its program has ended.

    Raises:
      ValueError: a candidate does not fit, or no configuration reads one of its fields.
    """

    def configure(point):
        return adjust(config, NOTHING, point)

    seeds = list(seeds) or [values_of(config)[0]["seed"]]
    for group in groups_of(list(points), seeds, configure):
        trials = [planned.trial for planned in group.planned]
        outcomes = run_trials(
            group.config, group.federations, trials, at_once=at_once, keep_in=keep_in
        )
        for i, outcome in outcomes:
            yield group.planned[i].point, trials[i].seed, outcome


def groups_of(
    points: list[Point],
    seeds: list[int],
    configure: Callable[[Point], tuple[ConfigDict, dict[str, Any]]],
    *,
    most: int | None = None,
    part: bool = False,
) -> list[TrialGroup]:
    """The runs of all points with all seeds, in groups that one program can play.

    A field that a point's configuration does not read is left out of the point. Points that are
    the same afterwards count once.

    Args:
      configure: point -> configuration, and the values that nothing in it reads.
      most: largest accepted number of groups.
      part: whether these are not all points, so that a field may be read by others only.

    Raises:
      ValueError: a point does not fit, there are too many groups, or nothing reads a field.
    """
    by_structure, read, unread = {}, set(), {}
    for point in points:
        _check_fields(point)
        config, left = configure(point)
        used = {field: value for field, value in point.items() if field not in left}
        read |= set(values_of(config)[0])
        unread |= left
        by_structure.setdefault(structure(config, without=ELSEWHERE), []).append((used, config))
    for field, value in unread.items():
        if field not in read and not part:
            raise ValueError(
                f"{field}={value} is not read by any run of this sweep; remove it, or add a "
                f"method that reads it"
            )
    if most is not None and len(by_structure) > most:
        raise ValueError(
            f"{len(by_structure)} groups of trials differ in more than floats and seeds, and "
            f"each is compiled separately; add --yes if this is intended"
        )
    loaded = {}
    built = [  # refuses values that do not fit
        (config, build_experiment(config, _load(with_seed(config, seeds[0]), loaded)))
        for members in by_structure.values()
        for _, config in members
    ]
    for config, experiment in built:
        check_not_single(config, on_host=experiment.on_host)
    if not part:
        check_attacked(*built)
    return [_group(members, seeds, loaded) for members in by_structure.values()]


def part_of(groups: list[TrialGroup], number: int, parts: int) -> list[TrialGroup]:
    """One of several parts of the runs of a sweep, which together have each run once.

    A part has consecutive runs, so that few parts compile the program of a group.

    Args:
      number: of the part, from 1.
      parts: number of parts. The sizes of any two differ by at most one run.
    """
    total, begin, result = sum(len(group.planned) for group in groups), 0, []
    low, high = (total * end // parts for end in (number - 1, number))
    for group in groups:
        runs = group.planned[max(0, low - begin) : max(0, high - begin)]
        begin += len(group.planned)
        if runs:
            seeds = {planned.trial.seed for planned in runs}
            federations = {seed: group.federations[seed] for seed in sorted(seeds)}
            result.append(group._replace(planned=runs, federations=federations))
    return result


def _check_fields(point):
    if "seed" in point:
        raise ValueError(
            f"seed={point['seed']} cannot be a field of a candidate; give all the same "
            f"seeds, by --seeds, or by seeds in Python"
        )
    for field in sorted(ELSEWHERE & point.keys()):
        raise ValueError(
            f"{field}={point[field]} cannot be a field of a candidate; set it for the whole "
            f"sweep, and make another sweep for another value"
        )


def _group(members, seeds, loaded):
    """The group of points and configurations of one structure."""
    _, base = members[0]
    federations = {seed: _load(with_seed(base, seed), loaded) for seed in seeds}
    planned = {}
    for point, config in members:
        hparams = config.hparams.to_dict()
        for seed in seeds:
            name = fields_text(with_seed(config, seed))
            planned.setdefault(name, Planned(name, point, Trial(hparams, seed)))
    return TrialGroup(base, federations, list(planned.values()))


def _load(config, loaded):
    """The federation of a configuration, loaded once for all methods."""
    sections = ("data.", "new_clients.", "attack.")
    values, _ = values_of(config)
    fields = {name: value for name, value in values.items() if name.startswith(sections)}
    key = json.dumps([fields, config.seed], sort_keys=True)
    if key not in loaded:
        loaded[key] = load_federation(config)
    return loaded[key]
