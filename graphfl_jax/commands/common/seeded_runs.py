"""The runs of one configuration with several seeds, as one program, each with a folder."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from statistics import stdev

from ml_collections import ConfigDict

from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.commands.common.statistics import over_seeds
from graphfl_jax.commands.common.text_tables import TextTable
from graphfl_jax.commands.common.view_files import write_views
from graphfl_jax.evaluation import POINTS
from graphfl_jax.runs.attack_results import check_attacked
from graphfl_jax.runs.batch import Outcome, Trial, run_trials, with_seed
from graphfl_jax.runs.description import description_of
from graphfl_jax.runs.folder import RunFolder, held
from graphfl_jax.runs.identity import digest_of_arrays, digests_of_code, identity_of


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

    A folder has the files of a single run, but neither checkpoints nor models. It is written
    when the program that plays its seed has ended.

    Args:
      config: of the runs.
      folders: by seed.
      resume: whether folders may hold runs. Those with results are not repeated.
      accept_changes: as in `graphfl_jax.run`.
      report: called after every evaluation, with the number of runs that the played rounds
        amount to.
      keep_in: as in `graphfl_jax.run`.
      config_file: as in `graphfl_jax.run`.

    Returns:
      The content of results.json of each run.

    Raises:
      ValueError: a field or the data does not fit, or a folder cannot take a run.
    """
    configs = {seed: with_seed(config, seed) for seed in folders}
    opened = {
        seed: RunFolder(
            *(path, configs[seed]),
            resume=resume and bool(held(path)),
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
    code = digests_of_code(config_file=config_file)
    found = {}
    for seed, folder in opened.items():
        arrays = digest_of_arrays(federations[seed])
        folder.check(identity_of(configs[seed], federations[seed], arrays, code))
        results = folder.path / "results.json"
        if folder.resume and results.exists():
            found[seed] = json.loads(results.read_text())
            if found[seed]["rounds"] != config.rounds:
                del found[seed]
    report(float(len(found)))
    seeds = [seed for seed in folders if seed not in found]
    trials = [Trial({}, seed) for seed in seeds]
    for i, outcome in run_trials(config, federations, trials, report=report, keep_in=keep_in):
        seed = seeds[i]
        identity = outcome.results["identity"] | code
        outcome = outcome._replace(results=outcome.results | {"identity": identity})
        _write(opened[seed], experiments[seed], outcome)
        found[seed] = outcome.results
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


def _write(folder: RunFolder, experiment, outcome: Outcome) -> None:
    """Writes the folder of a run."""
    results = outcome.results
    where = {name: results[name] for name in ("device", "versions", "git_commit")}
    try:
        folder.begin(None, experiment.model.task, results["identity"], where)
        for row in outcome.rows:
            folder.append(row)
        folder.describe(description_of(experiment))
        names = experiment.federation.clients
        write_views(folder.path, outcome.rows, outcome.final, results, names)
        folder.finish(results)
    finally:
        folder.close()


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
        f"means over clients" + f"; {lost} seeds diverged and are left out" * bool(lost)
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
