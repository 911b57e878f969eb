"""Runs of tables and figures, cached in a folder so that no run is repeated.

Each file of JSON holds one run of one configuration with one seed. It is used again only if
the configuration, the data and the source of the package are the same.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.build import build_experiment, load_federation, variant_of
from graphfl_jax.configs import changed
from graphfl_jax.configs.values import as_text, values_of
from graphfl_jax.data.federation import Federation
from graphfl_jax.runs.batch import Trial, identity, run_trials, with_seed
from graphfl_jax.runs.checkpoint import write_json
from graphfl_jax.runs.results import source_code

FOLDER = "cached_runs"  # in the output folder of an entry
# Fields by which `load_federation` makes a federation.
DATA = ("seed", "data.", "new_clients.", "attack.", "hparams.attack_")
LOADED: dict[str, Federation] = {}  # by the values of these fields


def cached_runs(
    config: ConfigDict,
    seeds: list[int],
    folder: Path,
    *,
    points: Sequence[dict[str, float]] = ({},),
    at_once: int = 0,
) -> tuple[list[dict], int]:
    """Runs a configuration with several seeds, and reads earlier runs from the cache.

    Args:
      config: configuration of the runs.
      seeds: seeds of the runs.
      folder: output folder of the entry, which holds the cache.
      points: values of ``hparams``; every point is run with every seed.
      at_once: runs in one program; 0 is all.

    Returns:
      The runs, point by point and seed by seed, and how many of them were not in the cache. A
      run is results.json of a single run with a ``fingerprint`` and the ``curve``: of every
      evaluation the ``round``, the test scores that it has, means over clients, and the
      ``allocation`` if there is one.
    """
    folder = folder / FOLDER
    federations = _loaded(config, seeds)
    runs, missing = [], {}
    for trial in [Trial(point, seed) for point in points for seed in seeds]:
        hparams = {f"hparams.{name}": value for name, value in trial.hparams.items()}
        run_config = changed(with_seed(config, trial.seed), hparams)
        federation = federations[trial.seed]
        build_experiment(run_config, federation)  # checks all fields before anything runs
        fingerprint = _fingerprint(run_config, federation)
        variant = variant_of(run_config)
        path = folder / f"{federation.name}-{variant}-seed{trial.seed}-{fingerprint[:12]}.json"
        runs.append(_read(path, fingerprint))
        if runs[-1] is None:
            missing[len(runs) - 1] = (trial, path, fingerprint)
    places, trials = list(missing), [trial for trial, *_ in missing.values()]
    size = at_once or len(trials)
    for index, outcome in run_trials(config, federations, trials, at_once=size):
        _, path, fingerprint = missing[places[index]]
        curve = list(map(_curve_row, outcome.rows))
        run = {"fingerprint": fingerprint, **outcome.results, "curve": curve}
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, run)
        runs[places[index]] = run
    return runs, len(missing)


def _loaded(config, seeds):
    """The federation of each seed. Those of the last call are not loaded again."""
    federations = {}
    for seed in seeds:
        own = with_seed(config, seed)
        values = values_of(own)[0]
        key = as_text(values, without={one for one in values if not one.startswith(DATA)})
        federations[key] = LOADED.get(key) or load_federation(own)
    LOADED.clear()
    LOADED.update(federations)
    return dict(zip(seeds, federations.values(), strict=True))


def _curve_row(row):
    """An evaluation, with the means of its test scores over clients."""
    scores = row["scores"].get("test", {})
    kept = {"round": int(row["round"])} | {at: float(scores[at].mean()) for at in scores}
    if "allocation" in row:
        kept["allocation"] = np.asarray(row["allocation"]).tolist()
    return kept


def _read(path, fingerprint) -> dict | None:
    """The run in a file; None if there is no such file or it is incomplete."""
    try:
        run = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return run if run.get("fingerprint") == fingerprint else None


def _fingerprint(config, federation) -> str:
    """Hash of the configuration, the data and the source of the package."""
    digest = hashlib.sha256(identity(config).encode())
    digest.update(federation.sha256.encode())
    digest.update(source_code())
    return digest.hexdigest()
