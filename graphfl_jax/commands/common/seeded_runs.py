"""The runs of one configuration with several seeds, as one program, each with a folder."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import stdev

from ml_collections import ConfigDict

from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.commands.common.finished_runs import damaged, read_object
from graphfl_jax.commands.common.statistics import over_seeds
from graphfl_jax.commands.common.text_tables import TextTable
from graphfl_jax.commands.common.view_files import write_views
from graphfl_jax.evaluation import POINTS
from graphfl_jax.runs.attack_results import check_attacked
from graphfl_jax.runs.batch import Outcome, Trial, run_trials, with_seed
from graphfl_jax.runs.description import description_of
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.folder import RunFolder, held
from graphfl_jax.runs.identity import (
    changed_code,
    digest_of_arrays,
    digests_of_code,
    identity_of,
)

# What `seeds_table` and this module read of results.json.
NEEDED = {"rounds", "diverged", "scores", "metric", "higher_is_better", "variant", "dataset"}


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
    configs = {seed: with_seed(config, seed) for seed in folders}
    # Folders without a run begin anew if another one is resumed, and are refused if none is.
    begun = {seed: bool(held(path)) for seed, path in folders.items()}
    opened = {
        seed: RunFolder(
            *(path, configs[seed]),
            resume=resume and (begun[seed] or not any(begun.values())),
            accept_changes=accept_changes,
        )
        for seed, path in folders.items()
    }
    federations = {seed: load_federation(own) for seed, own in configs.items()}
    experiments = {
        seed: build_experiment(own, federations[seed]) for seed, own in configs.items()
    }
    for seed, own in configs.items():
        check_attacked((own, experiments[seed]))
    code = digests_of_code(config_file)
    identities, found = {}, {}
    for seed, folder in opened.items():
        arrays = digest_of_arrays(federations[seed])
        identities[seed] = identity_of(configs[seed], federations[seed], arrays, code)
        folder.check(identities[seed])
        results = _results_in(folder, config.rounds)
        if results:
            found[seed] = results
    other = sum(bool(changed_code(opened[s].made[0], opened[s].identity)) for s in found)
    if other:
        warnings.warn(
            f"{other} of the {len(found)} seeds with results are of other code, which was "
            f"accepted",
            RuntimeWarning,
            stacklevel=2,
        )
    report(float(len(found)))
    seeds = [seed for seed in folders if seed not in found]
    trials = [Trial({}, seed) for seed in seeds]
    # Checks what is left to check, and plays nothing yet.
    outcomes = run_trials(config, federations, trials, report=report, keep_in=keep_in)
    where = environment()
    try:
        for seed in seeds:
            task = experiments[seed].model.task
            opened[seed].begin(None, task, identities[seed], where)
            opened[seed].describe(description_of(experiments[seed]))
        for i, outcome in outcomes:
            seed = seeds[i]
            found[seed] = outcome.results | {"identity": opened[seed].identity}
            clients = experiments[seed].federation.clients
            _write(opened[seed], outcome._replace(results=found[seed]), clients)
    finally:
        for folder in opened.values():
            folder.close()
    return [found[seed] for seed in folders]


def seed_folders(base: str, seeds: range, *, fresh: bool) -> dict[int, Path]:
    """The folder of each seed, BASE-seed0 and so on.

    Args:
      base: beginning of the folders' paths.
      seeds: of the runs.
      fresh: whether a number follows `base` if one of them exists.
    """
    for i in itertools.count(1):
        own = f"{base}-{i}" if i > 1 else base
        found = {s: Path(f"{own}-seed{s}") for s in seeds}
        if not (fresh and any(path.exists() for path in found.values())):
            break
    return found


def _results_in(folder: RunFolder, rounds: int) -> dict | None:
    """The results in a checked folder; None if there are none of this number of rounds.

    Raises:
      ValueError: results.json is damaged or of another run, or a single run has to be finished.
    """
    file = folder.path / "results.json"
    if file.exists():
        results = read_object(file)
        if missing := NEEDED - results.keys():
            raise damaged(file, f"it has no {min(missing)}")
        if results.get("identity", folder.made[0]) not in folder.made:
            raise damaged(file, "it is of another run")
        if results["rounds"] == rounds:
            return results
    if any(folder.path.glob("checkpoints/*.json")):
        raise ValueError(
            f"out={folder.path} holds checkpoints of a single run; finish it with graphfl run "
            f"--out={folder.path} --resume --config.rounds={rounds}, or choose another --out"
        )
    return None


def _write(folder: RunFolder, outcome: Outcome, clients: Sequence[str]) -> None:
    """Writes the evaluations and the results of a run."""
    for row in outcome.rows:
        folder.append(row)
    write_views(folder.path, outcome.rows, outcome.final, outcome.results, clients)
    folder.finish(outcome.results)


def seeds_table(runs: list[dict]) -> TextTable:
    """Means over the seeds that did not diverge, with their spread and 95 % interval."""
    first, kept = runs[0], [run for run in runs if not run["diverged"]]
    lost = len(runs) - len(kept)
    better = "higher" if first["higher_is_better"] else "lower"
    title = (
        f"{first['variant']} on {first['dataset']['name']}, data: "
        f"{first['dataset']['source']}, {len(kept)} seeds"
    )
    caption = (
        f"{better} is better; {first['metric']} after round {first['rounds']}, test, "
        f"means over clients; sd over seeds with the divisor n - 1"
        + f"; {lost} seeds diverged and are left out"
        * bool(lost)
    )
    columns = ("mean over seeds", "95 % interval", "sd over seeds", "sd over clients")
    rows = [["scored at", *columns]]
    for point in POINTS if kept else ():
        scores = [run["scores"]["final"][point] for run in kept]
        own = over_seeds([score["mean"] for score in scores])
        clients = over_seeds([score["std_clients"] for score in scores])["mean"]
        half = "" if own["half_width"] is None else f"± {own['half_width']:.2g}"
        spread = sample_deviation(own["seeds"])
        rows.append([point, f"{own['mean']:.4g}", half, spread, f"{clients:.4g}"])
    return TextTable(title, caption, rows)


def sample_deviation(values: list[float]) -> str:
    """The standard deviation of a sample as text; empty for one value."""
    return f"{stdev(values):.2g}" if len(values) > 1 else ""
