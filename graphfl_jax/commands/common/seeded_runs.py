"""The runs of one configuration with several seeds, as one program, each with a folder."""

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import stdev
from typing import NamedTuple

from ml_collections import ConfigDict

from graphfl_jax.build import Experiment, build_experiment, load_federation
from graphfl_jax.commands.common.finished_runs import damage_error, read_run
from graphfl_jax.commands.common.statistics import over_seeds
from graphfl_jax.commands.common.text_tables import TextTable
from graphfl_jax.commands.common.view_files import write_views
from graphfl_jax.evaluation import POINTS
from graphfl_jax.runs.batch import Outcome, Trial, run_trials, with_seed
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.folder import RunFolder
from graphfl_jax.runs.identity import digest_of_arrays, digests_of_code, identity_of
from graphfl_jax.runs.results import check_attacked, description_of
from graphfl_jax.runs.store import content_of, identities_of


def run_seeds(
    config: ConfigDict,
    folders: dict[int, Path],
    *,
    resume: bool = False,
    accept_changes: bool = False,
    report: Callable[[float], None] = lambda runs: None,
    keep_in: str | None = None,
    config_file: Path | None = None,
) -> list[dict]:
    """Runs a configuration with every seed, and writes a folder for each.

    A folder has the files of a single run, but neither checkpoints nor models. All folders are
    locked before the first round. Evaluations and results are written when the program that
    plays the seed has ended.

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

    Returns:
      The content of results.json of each run.

    Raises:
      ValueError: a field or the data does not fit, or a folder cannot take a run. Nothing is
        written then, unless another process has just begun to write into a folder.
    """
    runs = prepare_seeds(
        config,
        folders,
        resume=resume,
        accept_changes=accept_changes,
        report=report,
        keep_in=keep_in,
        config_file=config_file,
    )
    runs.warn_of_other_code()
    report(float(len(runs.results)))
    results, where = dict(runs.results), environment()
    try:
        for seed in runs.left:
            folder, experiment = runs.opened[seed], runs.experiments[seed]
            folder.begin(None, experiment.model.task, folder.identity, where)
            folder.describe(description_of(experiment))
        for i, outcome in runs.outcomes:
            seed = runs.left[i]
            clients = runs.experiments[seed].federation.clients
            results[seed] = _write(runs.opened[seed], outcome, clients)
    finally:
        for folder in runs.opened.values():
            folder.close()
    return [results[seed] for seed in folders]


class PreparedSeeds(NamedTuple):
    """Runs that have been checked. None has been played, and nothing written."""

    opened: dict[int, RunFolder]  # by seed
    experiments: dict[int, Experiment]  # by seed
    results: dict[int, dict]  # of the seeds that have ended before, by seed
    left: list[int]  # the seeds that are to be played
    outcomes: Iterator[tuple[int, Outcome]]  # plays them, with their indices in `left`

    def warn_of_other_code(self) -> None:
        """Warns of results that were accepted although the code differs."""
        of_other_code = sum(self.opened[seed].of_other_code for seed in self.results)
        if of_other_code:
            warnings.warn(
                f"{of_other_code} of the {len(self.results)} seeds with results are of other "
                f"code, which was accepted",
                RuntimeWarning,
                stacklevel=3,
            )


def prepare_seeds(
    config: ConfigDict,
    folders: dict[int, Path],
    *,
    resume: bool = False,
    accept_changes: bool = False,
    report: Callable[[float], None] = lambda runs: None,
    keep_in: str | None = None,
    config_file: Path | None = None,
) -> PreparedSeeds:
    """Checks all that `run_seeds` refuses, with its arguments; writes nothing."""
    opened = _open(config, folders, resume=resume, accept_changes=accept_changes)
    experiments = {}
    for seed, folder in opened.items():
        federation = load_federation(folder.config)
        experiments[seed] = build_experiment(folder.config, federation)
        check_attacked((folder.config, experiments[seed]))
    results = _finished_results(
        opened, experiments, config.rounds, digests_of_code(config_file)
    )
    left = [seed for seed in folders if seed not in results]
    federations = {seed: experiment.federation for seed, experiment in experiments.items()}
    trials = [Trial({}, seed) for seed in left]
    outcomes = run_trials(config, federations, trials, report=report, keep_in=keep_in)
    return PreparedSeeds(opened, experiments, results, left, outcomes)


def _open(config, folders, *, resume, accept_changes):
    """The folder of each seed.

    Folders without a run begin anew if another one is resumed, and are refused if none is.
    """
    begun = {seed: bool(content_of(path)) for seed, path in folders.items()}
    return {
        seed: RunFolder(
            path,
            with_seed(config, seed),
            resume=resume and (begun[seed] or not any(begun.values())),
            accept_changes=accept_changes,
        )
        for seed, path in folders.items()
    }


def _finished_results(opened, experiments, rounds, code):
    """The results of the seeds that have ended, after all folders have been checked."""
    results = {}
    for seed, folder in opened.items():
        federation = experiments[seed].federation
        arrays = digest_of_arrays(federation)
        folder.check(identity_of(folder.config, federation, arrays, code))
        if content := _results_in(folder, rounds):
            results[seed] = content
    return results


def seed_folders(base: str, seeds: range, *, fresh: bool) -> dict[int, Path]:
    """The folder of each seed, BASE-seed0 and so on.

    Args:
      base: beginning of the folders' paths.
      seeds: of the runs.
      fresh: whether a number follows `base` if one of them exists.
    """
    for i in itertools.count(1):
        numbered = f"{base}-{i}" if i > 1 else base
        folders = {seed: Path(f"{numbered}-seed{seed}") for seed in seeds}
        if not (fresh and any(path.exists() for path in folders.values())):
            break
    return folders


def _results_in(folder: RunFolder, rounds: int) -> dict | None:
    """The results in a checked folder; None if there are none of this number of rounds.

    Raises:
      ValueError: results.json is damaged or of another run, or a single run has to be finished.
    """
    file = folder.path / "results.json"
    if file.exists():
        results = read_run(folder.path).results
        if results.get("identity") not in identities_of(folder.record):
            raise damage_error(file, "it is of another run")
        if results["rounds"] == rounds:
            return results
    if any(folder.path.glob("checkpoints/*.json")):
        raise ValueError(
            f"out={folder.path} holds checkpoints of a single run; finish it with graphfl run "
            f"--out={folder.path} --resume --config.rounds={rounds}, or choose another --out"
        )
    return None


def _write(folder: RunFolder, outcome: Outcome, clients: Sequence[str]) -> dict:
    """Writes the evaluations and the results of a run; the results."""
    results = outcome.results | {"identity": folder.identity}
    for row in outcome.rows:
        folder.append(row)
    write_views(folder.path, outcome.rows, outcome.final, results, clients)
    folder.finish(results)
    return results


def seeds_table(runs: list[dict]) -> TextTable:
    """Means over the seeds that did not diverge, with their spread and 95 % interval."""
    first, kept = runs[0], [run for run in runs if not run["diverged"]]
    diverged = len(runs) - len(kept)
    better = "higher" if first["higher_is_better"] else "lower"
    title = (
        f"{first['variant']} on {first['dataset']['name']}, data: "
        f"{first['dataset']['source']}, {len(kept)} seeds"
    )
    caption = (
        f"{better} is better; {first['metric']} after round {first['rounds']}, test, "
        f"means over clients; sd over seeds with the divisor n - 1"
    )
    if diverged:
        caption += f"; {diverged} seeds diverged and are left out"
    columns = ("mean over seeds", "95 % interval", "sd over seeds", "sd over clients")
    rows = [["scored at", *columns]]
    for point in POINTS if kept else ():
        scores = [run["scores"]["final"][point] for run in kept]
        over = over_seeds([score["mean"] for score in scores])
        clients = over_seeds([score["std_clients"] for score in scores])["mean"]
        half = "" if over["half_width"] is None else f"± {over['half_width']:.2g}"
        spread = sample_deviation(over["seeds"])
        rows.append([point, f"{over['mean']:.4g}", half, spread, f"{clients:.4g}"])
    return TextTable(title, caption, rows)


def sample_deviation(values: list[float]) -> str:
    """The standard deviation of a sample as text; empty for one value."""
    return f"{stdev(values):.2g}" if len(values) > 1 else ""
