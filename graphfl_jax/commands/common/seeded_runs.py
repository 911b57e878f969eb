"""The runs of one configuration with several seeds, as one program, each with a folder.

A folder has the evaluations and the checkpoints of its run while it is played, as that of a
single run. Runs that have checkpoints are finished one after the other, as single runs.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.build import Experiment, build_experiment, load_federation
from graphfl_jax.commands.common.finished_runs import damage_error, read_run, write_views
from graphfl_jax.commands.common.statistics import over_seeds
from graphfl_jax.commands.common.text_tables import TextTable, count_text
from graphfl_jax.commands.common.trackers import TRACKERS
from graphfl_jax.configs.values import values_of
from graphfl_jax.evaluation import POINTS
from graphfl_jax.runs import models
from graphfl_jax.runs.batch import Hooks, Outcome, Trial, Watched, run_trials, with_seed
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.executables import private_folder
from graphfl_jax.runs.folder import RunFolder, configuration_in
from graphfl_jax.runs.identity import digest_of_arrays, digests_of_code, identity_of
from graphfl_jax.runs.results import check_attacked, description_of, row_fields
from graphfl_jax.runs.single import run_experiment
from graphfl_jax.runs.store import NewFolders, content_of, identities_of


class PreparedSeeds(NamedTuple):
    """Runs that have been checked. None has been played, and nothing written."""

    opened: dict[int, RunFolder]  # by seed
    experiments: dict[int, Experiment]  # by seed
    results: dict[int, dict]  # of the seeds that have ended before, by seed
    begun: list[int]  # the seeds that have checkpoints, and are finished as single runs
    left: list[int]  # the seeds that are to be played from the start
    outcomes: Iterator[tuple[int, Outcome]]  # plays them, with their indices in `left`


def prepare_seeds(
    config: ConfigDict,
    folders: dict[int, Path],
    *,
    resume: bool = False,
    accept_changes: bool = False,
    report: Callable[[float], None] = lambda runs: None,
    keep_in: str | None = None,
    config_file: Path | None = None,
    save_models: bool = False,
) -> PreparedSeeds:
    """Checks the runs of a configuration with every seed; writes nothing.

    Args:
      config: of the runs.
      folders: by seed.
      resume: whether folders hold runs, at least one of them. Those with results are not
        repeated.
      accept_changes: as in `graphfl_jax.run`.
      report: called after every evaluation, with the number of runs that the played rounds
        amount to.
      keep_in: as in `graphfl_jax.run`.
      config_file: as in `graphfl_jax.run`.
      save_models: as in `graphfl_jax.run`.

    Raises:
      ValueError: a field or the data does not fit, or a folder cannot take a run.
    """
    begun = {seed: bool(content_of(path)) for seed, path in folders.items()}
    opened = {}
    for seed, path in folders.items():
        # One without a run begins anew if another is resumed, and is refused if none is.
        again = resume and (begun[seed] or not any(begun.values()))
        of_seed = with_seed(config, seed)
        opened[seed] = RunFolder(path, of_seed, resume=again, accept_changes=accept_changes)
    experiments, results, code = {}, {}, digests_of_code(config_file)
    for seed, folder in opened.items():
        federation = load_federation(folder.config)
        experiments[seed] = build_experiment(folder.config, federation)
        check_attacked((folder.config, experiments[seed]))
        arrays = digest_of_arrays(federation)
        folder.check(identity_of(folder.config, federation, arrays, code))
        if content := _results_in(folder):
            results[seed] = content
    unfinished = [seed for seed in folders if seed not in results]
    begun = [seed for seed in unfinished if any(opened[seed].path.glob("checkpoints/*.json"))]
    left = [seed for seed in unfinished if seed not in begun]
    federations = {seed: experiment.federation for seed, experiment in experiments.items()}
    trials = [Trial({}, seed) for seed in left]
    most = math.inf if save_models else models.LARGEST
    hooks = Hooks(watch=_Written([opened[seed] for seed in left]))
    outcomes = run_trials(
        config, federations, trials, report=report, keep_in=keep_in, models=most, hooks=hooks
    )
    return PreparedSeeds(opened, experiments, results, begun, left, outcomes)


class _Written:
    """Writes the evaluations and the checkpoints of runs, while they are played."""

    def __init__(self, folders: list[RunFolder]):
        self.folders, self.saved = folders, [0] * len(folders)

    def __call__(self, runs: Iterable[Watched]) -> None:
        for run in runs:
            folder, played = self.folders[run.index], int(run.rows[-1]["round"])
            folder.append(run.rows[-1])
            if run.ends or played - self.saved[run.index] >= folder.config.checkpoint_every:
                folder.save(run.state(), run.rows, run.seconds, {})
                self.saved[run.index] = played


def run_seeds(
    config: ConfigDict,
    folders: dict[int, Path],
    *,
    new: NewFolders | None = None,
    report: Callable[[float], None] = lambda runs: None,
    track: Sequence[str] = (),
    **options: Any,
) -> list[dict]:
    """Runs a configuration with every seed, and writes a folder for each.

    A folder has the files of a single run. The folders of the runs that are played together are
    locked before the first round. Models and results are written when the program that plays
    the seed has ended, and `track`, names of `TRACKERS`, get the evaluations then.

    The arguments are those of `prepare_seeds`. `report` is also called with the number of runs
    that have ended before. `new`, if they are given, are made before the first round, and take
    the place of `folders`.

    Returns:
      The content of results.json of each run.

    Raises:
      ValueError: as `prepare_seeds`. Nothing is written then, unless another process has just
        begun to write into a folder.
    """
    runs = prepare_seeds(config, folders, report=report, **options)
    _warn_of_other_code(runs)
    report(float(len(runs.results)))
    results, where = dict(runs.results), environment()
    if new is not None:
        for folder, path in zip(runs.opened.values(), new.make(), strict=True):
            folder.path = path
    try:
        for seed in runs.begun:
            results[seed] = _finish(runs, seed, track, options)
            report(1.0)
        for seed in runs.left:
            folder, experiment = runs.opened[seed], runs.experiments[seed]
            clients = experiment.federation.clients
            folder.begin(None, experiment.model.task, clients, folder.identity, where)
            folder.describe(description_of(experiment))
        for i, outcome in runs.outcomes:
            seed = runs.left[i]
            folder = runs.opened[seed]
            results[seed] = outcome.results | {"identity": folder.identity}
            write_views(folder.path, outcome)
            _write_models(folder, runs.experiments[seed], outcome)
            folder.finish(results[seed])
            _send(track, folder, runs.experiments[seed], outcome)
    finally:
        for folder in runs.opened.values():
            folder.close()
    return [results[seed] for seed in folders]


def _warn_of_other_code(runs):
    of_other_code = sum(runs.opened[seed].of_other_code for seed in runs.results)
    if of_other_code:
        warnings.warn(
            f"{of_other_code} of the {len(runs.results)} seeds with results are of other "
            f"code, which was accepted",
            RuntimeWarning,
            stacklevel=3,
        )


def _finish(runs, seed, track, options):
    """Finishes a run that has checkpoints; the content of results.json."""
    folder, experiment = runs.opened[seed], runs.experiments[seed]
    run = run_experiment(
        experiment,
        folder.config,
        folder=folder,
        config_file=options.get("config_file"),
        executables=private_folder(options.get("keep_in")),
        save_models=options.get("save_models", False),
    )
    if run.unsaved:
        _warn_unsaved(folder)
    write_views(folder.path, run)
    _send(track, folder, experiment, run)
    return run.results


def _write_models(folder, experiment, outcome):
    """Writes the models of all clients, or says that they are too large."""
    if not outcome.models and not outcome.results["diverged"]:
        _warn_unsaved(folder)
    if outcome.models:
        groups = models.groups_of(experiment, *outcome.models)
        rounds, trained = (outcome.results[name] for name in ("rounds", "rounds_trained"))
        facts = models.facts_of(experiment, folder.config, rounds, trained)
        models.write(folder.file(models.FILE), groups, facts)


def _warn_unsaved(folder):
    warnings.warn(
        f"out={folder.path}: the models have more than {models.LARGEST / 1e6:g} MB and were "
        f"not written; to have them, run with --save_models into another folder",
        RuntimeWarning,
        stacklevel=4,
    )


def _send(track, folder, experiment, outcome):
    """Sends the evaluations of a run to services."""
    for name in track:
        tracker = TRACKERS[name](folder.path, values_of(folder.config)[0])
        for row in outcome.rows:
            tracker.write(row_fields(row, experiment.model.task, experiment.federation.clients))
        tracker.close()


def seed_folders(base: str, seeds: range) -> dict[int, Path]:
    """The folder of each seed, BASE-seed0 and so on."""
    return {seed: Path(f"{base}-seed{seed}") for seed in seeds}


def _results_in(folder: RunFolder) -> dict | None:
    """The results in a checked folder; None if there are none of so many rounds.

    A run that was stopped has them, unless now something else would stop it.

    Raises:
      ValueError: results.json is damaged or of another run.
    """
    file = folder.path / "results.json"
    if file.exists():
        results = read_run(folder.path).results
        if results.get("identity") not in identities_of(folder.record):
            raise damage_error(file, "it is of another run")
        before, now = configuration_in(folder.path), folder.config
        if results["rounds"] == now.rounds or (
            results.get("stopped") and before.stop == now.stop
        ):
            return results
    return None


def seeds_table(runs: list[dict]) -> TextTable:
    """Means over the seeds that did not diverge, with their spread and 95 % interval.

    With new clients, also theirs, when they join and after their last round.
    """
    first, kept = runs[0], [run for run in runs if not run["diverged"]]
    diverged = len(runs) - len(kept)
    better = "higher" if first["higher_is_better"] else "lower"
    title = (
        f"{first['variant']} on {first['dataset']['name']}, data: "
        f"{first['dataset']['source']}, {count_text(len(kept), 'seed')}"
    )
    caption = (
        f"{better} is better; {first['metric']} {_when(runs)}, test, "
        f"means over clients; sd over seeds with the divisor n - 1"
    )
    if sample := first.get("sample"):
        caption += f" ({len(sample['ids']):,} of {sample['of']:,})"
    if diverged:
        caption += f"; {count_text(diverged, 'seed')} diverged and left out"
    columns = ("mean over seeds", "95 % interval", "sd over seeds", "sd over clients")
    rows = [["scored at", *columns]]
    for point in POINTS if kept else ():
        rows.append(_over_seeds(point, [run["scores"]["final"][point] for run in kept]))
    joined = [new["curve"] for run in kept if (new := run["new_clients"])]
    whole = [curve for curve in joined if len(curve) == max(map(len, joined))]
    if len(whole) < len(joined):
        lost = count_text(len(joined) - len(whole), "seed")
        caption += f"; new clients of {lost} diverged and left out"
    for played in sorted({0, len(whole[0]) - 1}) if whole and whole[0] else ():
        for point in POINTS:
            name = f"{point}, new clients, {played} rounds"
            rows.append(_over_seeds(name, [curve[played][point] for curve in whole]))
    return TextTable(title, caption, rows)


def _when(runs):
    """After which round runs were scored, in words."""
    rounds = {run["rounds"] for run in runs}
    return f"after round {min(rounds)}" if len(rounds) == 1 else "after each run's last round"


def _over_seeds(name, scores):
    """The row of a table: scores with means and deviations over clients, of each seed."""
    over = over_seeds([score["mean"] for score in scores])
    clients = over_seeds([score["std_clients"] for score in scores])["mean"]
    half = spread = ""  # of one seed
    if len(scores) > 1:
        half, spread = f"± {over['half_width']:.2g}", f"{np.std(over['seeds'], ddof=1):.2g}"
    return [name, f"{over['mean']:.4g}", half, spread, f"{clients:.4g}"]
