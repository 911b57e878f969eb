"""Runs of a table or a figure, kept in a folder so that no run is made twice.

A cell is one run of one configuration with one seed, in a file of JSON of its own. It is used
again only while all that it follows from is the same: the configuration, the data and the
source of the package.
"""

import copy
import hashlib
import json
from pathlib import Path

import jax
from ml_collections import ConfigDict

import graphfl_jax
from configs import compcars, fl60, metr_la, pems_bay, tpt48
from experiments.trials import Trial, run_trials, with_seed
from graphfl_jax import checkpoint
from graphfl_jax.build import build_experiment, load_federation, variant_of
from graphfl_jax.core import Task
from graphfl_jax.results import environment, errors_in_units, novel_scores, summaries

CONFIGS = {
    "fl60": fl60,
    "tpt48": tpt48,
    "metr_la": metr_la,
    "pems_bay": pems_bay,
    "compcars": compcars,
}
GENERATED = ("fl60",)  # data sets whose data are a law
# Fields that say where data lie or when a run is saved, and not what it computes.
ELSEWHERE = ("data.root", "data.path", "data.download", "checkpoint_every")


def papers_config(
    dataset: str,
    method: str,
    *,
    source: str = "real",
    root: str | None = None,
    rounds: int | None = None,
) -> ConfigDict:
    """A method's settings on a data set, which is real where the papers' is.

    Args:
      dataset: a key of `CONFIGS`.
      method: one of its methods.
      source: "simulated" where real data are not at hand.
      root: the folder of data files, unless the default.
      rounds: for a quick look.
    """
    config = CONFIGS[dataset].get_config(method)
    if root is not None:
        config.data.root = root
    if rounds is not None:
        config.rounds = rounds
    if dataset not in GENERATED:
        config.data.source = source
    return config


def cells(
    config: ConfigDict, seeds: list[int], folder: Path, *, at_once: int = 0
) -> tuple[list[dict], int]:
    """The runs of a configuration with some seeds, those made before read from `folder`.

    Args:
      config: of the runs.
      seeds: of the runs.
      folder: of their files.
      at_once: seeds whose runs are one program; 0 is all.

    Returns:
      A dictionary per seed: ``fingerprint``, ``variant``, ``seed``, ``dataset``, ``metric``,
      ``higher_is_better``, ``hparams``, ``diverged``, ``scores`` (summaries at G, L and P; None
      where it diverged), ``errors`` and ``novel`` (as in results.json), ``curve`` (means over
      clients at every evaluation), and where it was made; and how many of them were run now.
    """
    found, missing = {}, []
    for seed in seeds:
        own = with_seed(config, seed)
        federation = load_federation(own)
        build_experiment(own, federation)  # refuses what does not fit before anything runs
        mark = _fingerprint(own, federation)
        path = folder / f"{federation.name}-{variant_of(own)}-seed{seed}-{mark[:12]}.json"
        cell = _read(path, mark)
        if cell is None:
            missing.append((seed, path, mark, federation))
        else:
            found[seed] = cell
    size = at_once or max(1, len(missing))
    for part in (missing[begin : begin + size] for begin in range(0, len(missing), size)):
        trials, task = run_trials(config, [{}], [seed for seed, *_ in part], curve=True)
        folder.mkdir(parents=True, exist_ok=True)
        for trial, (seed, path, mark, federation) in zip(trials, part, strict=True):
            found[seed] = _cell(config, trial, task, federation, mark)
            checkpoint.write_json(path, found[seed])
    return [found[seed] for seed in seeds], len(missing)


def _cell(config, trial: Trial, task: Task, federation, mark) -> dict:
    scores = errors = novel = None
    curve = []
    if not trial.diverged:
        scores = summaries(trial.scores["test"], task)
        curve = [
            {"round": played, **jax.tree.map(lambda s: float(s.mean()), told["test"])}
            for played, told in trial.curve
        ]
        if task.sum_up:
            errors = errors_in_units(federation, trial.tallies, task)
        if trial.novel:
            novel = novel_scores(federation, trial.novel, task)
    return {
        "fingerprint": mark,
        "variant": variant_of(config),
        "seed": trial.seed,
        "dataset": {
            "name": federation.name,
            "source": federation.source,
            "extent": federation.extent,
            "sha256": federation.sha256,
        },
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "hparams": trial.hparams,
        "diverged": trial.diverged,
        "scores": scores,
        "errors": errors,
        "novel": novel,
        "curve": curve,
        **environment(),
    }


def _read(path, mark) -> dict | None:
    """The cell in a file; None where there is none, or one that was not written to its end."""
    try:
        cell = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return cell if cell.get("fingerprint") == mark else None


def _fingerprint(config, federation) -> str:
    fields = copy.deepcopy(config)
    for field in ELSEWHERE:
        *folders, name = field.split(".")
        place = fields
        for part in folders:
            place = place[part]
        place[name] = type(place[name])()
    package = Path(graphfl_jax.__file__).parent
    digest = hashlib.sha256(json.dumps(fields.to_dict(), sort_keys=True).encode())
    digest.update(federation.sha256.encode())
    for source in sorted(package.rglob("*.py")):
        digest.update(str(source.relative_to(package)).encode() + source.read_bytes())
    return digest.hexdigest()
