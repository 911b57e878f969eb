"""Runs of a table or a figure, kept in a folder so that no run is made twice.

A cell is one run of one configuration with one seed, in a file of JSON of its own. It is used
again only while all that it follows from is the same: the configuration, the data and the
source of the package.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

import graphfl_jax
from graphfl_jax.build import build_experiment, load_federation, variant_of
from graphfl_jax.configs import compcars, fl60, metr_la, pems_bay, tpt48
from graphfl_jax.runs.batch import Trial, identity, run_trials, with_seed
from graphfl_jax.runs.folder import checkpoint

CONFIGS = {
    "fl60": fl60,
    "tpt48": tpt48,
    "metr_la": metr_la,
    "pems_bay": pems_bay,
    "compcars": compcars,
}
GENERATED = ("fl60",)  # data sets whose data are a law


def paper_config(
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


def cached_runs(
    config: ConfigDict,
    seeds: list[int],
    folder: Path,
    *,
    points: Sequence[dict[str, float]] = ({},),
    at_once: int = 0,
) -> tuple[list[dict], int]:
    """The runs of a configuration with some seeds, those made before read from `folder`.

    Args:
      config: of the runs.
      seeds: of the runs.
      folder: of their files.
      points: floats of ``hparams``, with each of which every seed is run.
      at_once: runs that are one program; 0 is all.

    Returns:
      Of every point, and of each its seeds, what results.json of a single run holds, with a
      ``fingerprint`` and the ``curve``, means over clients at every evaluation; and how many
      were run now.
    """
    federations = {seed: load_federation(with_seed(config, seed)) for seed in seeds}
    found, missing = [], {}
    for trial in [Trial(point, seed) for point in points for seed in seeds]:
        own, federation = with_seed(config, trial.seed), federations[trial.seed]
        own.hparams.update(trial.hparams)
        build_experiment(own, federation)  # refuses what does not fit before anything runs
        mark = _fingerprint(own, federation)
        name = f"{federation.name}-{variant_of(own)}-seed{trial.seed}-{mark[:12]}.json"
        found.append(_read(folder / name, mark))
        if found[-1] is None:
            missing[len(found) - 1] = (trial, folder / name, mark)
    places, trials = list(missing), [trial for trial, *_ in missing.values()]
    size = at_once or len(trials)
    for place, outcome in run_trials(config, federations, trials, at_once=size):
        folder.mkdir(parents=True, exist_ok=True)
        _, path, mark = missing[places[place]]
        curve = [
            {"round": int(row["round"])}
            | jax.tree.map(lambda scores: float(scores.mean()), row["scores"]["test"])
            for row in outcome.rows
        ]
        cell = {"fingerprint": mark, **outcome.results, "curve": curve}
        checkpoint.write_json(path, cell)
        found[places[place]] = cell
    return found, len(missing)


def _read(path, mark) -> dict | None:
    """The cell in a file; None where there is none, or one that was not written to its end."""
    try:
        cell = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return cell if cell.get("fingerprint") == mark else None


def _fingerprint(config, federation) -> str:
    package = Path(graphfl_jax.__file__).parent
    digest = hashlib.sha256(identity(config).encode())
    digest.update(federation.sha256.encode())
    for source in sorted(package.rglob("*.py")):
        digest.update(str(source.relative_to(package)).encode() + source.read_bytes())
    return digest.hexdigest()
