"""The runs of methods on configuration files of the user, each with several seeds."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from graphfl_jax.commands.common.configuration import configuration_in_file, with_data_root
from graphfl_jax.commands.common.seeded_runs import prepare_seeds, run_seeds, seed_folders
from graphfl_jax.configs.base import variant_of
from graphfl_jax.configs.values import values_of
from graphfl_jax.runs.store import content_of


class PlannedRuns(NamedTuple):
    """The runs of one method on one configuration file."""

    name: str  # of the file and the method
    config: ConfigDict
    file: Path
    folders: dict[int, Path]  # by seed

    @property
    def begun(self) -> bool:
        """Whether a folder holds a run."""
        return any(map(content_of, self.folders.values()))


def plan_runs(
    flag: str, files: Sequence[str], methods: Sequence[str], number: int, out: Path
) -> list[PlannedRuns]:
    """The runs of all methods on all files. The files are executed.

    Args:
      flag: that names the files, for error messages.
      files: with get_config(method).
      methods: of each file; if there are none, the method that get_config() chooses.
      number: of seeds, from that of the file on.
      out: the folder of the runs' folders, FILE-METHOD-seed0 and so on.

    Raises:
      ValueError: a file or a method does not fit, or two runs are the same.
    """
    plans = []
    for file, method in itertools.product(files, methods or [None]):
        words = [] if method is None else [method]
        config = with_data_root(configuration_in_file(flag, file, *words))
        name = f"{Path(file).stem}-{method or variant_of(config)}"
        seeds = range(config.seed, config.seed + number)
        folders = seed_folders(str(out / name), seeds, fresh=False)
        plans.append(PlannedRuns(name, config, Path(file), folders))
    for first, second in itertools.combinations(plans, 2):
        if first.name == second.name:
            raise ValueError(
                f"{flag}={','.join(files)} with methods={','.join(methods)} names "
                f"{second.name} twice; give each file another name, and name each method once"
            )
        if first.folders.keys() & second.folders.keys() and _same(first, second):
            raise ValueError(
                f"{flag}={second.file} has the configuration of {first.file}; leave one of "
                f"them out"
            )
    return plans


def _same(first, second):
    """Whether two configurations differ in the seed at most."""
    values, others = (values_of(plan.config)[0] for plan in (first, second))
    return values | {"seed": 0} == others | {"seed": 0}


def play_runs(
    plans: Sequence[PlannedRuns],
    *,
    resume: bool,
    accept_changes: bool,
    keep_in: str | None,
    report: Callable[[PlannedRuns, float], None],
) -> None:
    """Makes the runs that have no results, after all have been checked.

    Args:
      plans: of the runs.
      resume: whether folders hold runs; those with results are not repeated.
      accept_changes: as in `graphfl_jax.run`.
      keep_in: as in `graphfl_jax.run`.
      report: called after every evaluation, with the number of runs of a plan that the rounds
        played since the last call amount to.

    Raises:
      ValueError: as `run_seeds`. Nothing is written then.
    """
    options = [
        {
            "resume": resume and plan.begun,
            "accept_changes": accept_changes,
            "keep_in": keep_in,
            "config_file": plan.file,
        }
        for plan in plans
    ]
    for plan, words in zip(plans, options, strict=True):
        prepare_seeds(plan.config, plan.folders, **words)
    for plan, words in zip(plans, options, strict=True):
        run_seeds(
            plan.config,
            plan.folders,
            report=lambda runs, plan=plan: report(plan, runs),
            **words,
        )
