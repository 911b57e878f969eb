"""Runs of tables and figures, cached in a folder so that no run is repeated.

Each file of JSON holds one run of one configuration with one seed, its identity and a digest of
all this. It is used again only if the configuration, the data and the code are the same, or if
a change of the code is accepted.
"""

import glob
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.commands.common.interrupts import resumable
from graphfl_jax.commands.common.new_files import in_file_name
from graphfl_jax.configs.base import variant_of
from graphfl_jax.configs.values import as_text, values_of
from graphfl_jax.data.federation import Federation
from graphfl_jax.runs.batch import Trial, config_of, fields_text, run_trials, with_seed
from graphfl_jax.runs.checkpoint import write_json
from graphfl_jax.runs.disk import writing
from graphfl_jax.runs.folder import TABLES, check_folder
from graphfl_jax.runs.identity import (
    changed_code,
    digest_of_arrays,
    digest_of_json,
    digests_of_code,
    identity_of,
    same_weights,
)

FOLDER = "cached_runs"  # in the output folder of a command
# Fields by which `load_federation` makes a federation.
DATA = ("seed", "data.", "new_clients.", "attack.", "hparams.attack_")
LOADED: dict[str, Federation] = {}  # by the values of these fields


class Cache:
    """The cached runs in the output folder of a command.

    Attributes:
      folder: of the files.
      new, found, accepted: how many runs were made, how many the cache had, and how many of
        these are of other code.
    """

    def __init__(
        self,
        out: Path,
        *,
        accept_changes: bool = False,
        config_files: Sequence[Path | None] = (),
    ):
        """Warns of runs of other code in the folder. Nothing is written yet.

        Args:
          out: output folder of the command.
          accept_changes: whether runs of other code are used.
          config_files: the configuration files that the user gave.

        Raises:
          ValueError: the folder cannot be written, or holds something else.
        """
        check_folder(out, TABLES)
        self.folder = out / FOLDER
        self.accept_changes = accept_changes
        self.code = digests_of_code(*config_files)
        self.new = self.found = self.accepted = 0
        runs = [_read(path) for path in self.folder.glob("*.json")]
        usable = [run for run in runs if run is not None]
        other = sum(bool(changed_code(run["identity"], self.code)) for run in usable)
        advice = "made again where they are needed; add --accept_changes to use them"
        does = "used where they are needed" if accept_changes else advice
        _warn(other, self.folder, f"of other code and are {does}")
        does = "made again where they are needed"
        _warn(
            len(runs) - len(usable),
            self.folder,
            f"damaged or of an older release and are {does}",
        )

    def counts(self) -> str:
        """How many runs are new and how many were found, as text."""
        counts = f"{self.new} new runs, {self.found} from the cache"
        if self.accepted:
            counts += f" ({self.accepted} of them of other code, which was accepted)"
        return counts

    def read(self, name: str, identity: dict, fields: str) -> dict | None:
        """The cached run of a name, an identity and `batch.fields_text`, or None."""
        paths = self.folder.glob(f"{glob.escape(name)}-*.json")
        newest = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
        runs = [run for run in map(_read, newest) if run and _is_of(run, identity, fields)]
        same = [run for run in runs if not changed_code(run["identity"], identity)]
        if same or not self.accept_changes or not runs:
            return same[0] if same else None
        run = runs[0]
        if identity not in run["accepted_changes"]:
            run["accepted_changes"].append(identity)
            self.write(name, run)
        self.accepted += 1
        return run

    def write(self, name: str, run: dict) -> None:
        """Adds a run under a name."""
        path = self._path(name, run["identity"])
        with writing(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, run | {"sha256": digest_of_json(run)})

    def _path(self, name, identity):
        code = {what: identity[what] for what in self.code}
        return self.folder / f"{name}-{digest_of_json(code)[:12]}.json"


def cached_runs(
    config: ConfigDict,
    seeds: list[int],
    cache: Cache,
    *,
    points: Sequence[dict[str, float]] = ({},),
    at_once: int = 0,
    report: Callable[[float], None] = lambda rounds: None,
) -> list[dict]:
    """Runs a configuration with several seeds, and reads earlier runs from the cache.

    Args:
      config: configuration of the runs.
      seeds: seeds of the runs.
      cache: of the command.
      points: values of ``hparams``; every point is run with every seed.
      at_once: runs in one program; 0 is all.
      report: called with numbers of rounds, of all runs: of those in the cache at once, of the
        others as they are played.

    Returns:
      The runs, point by point and seed by seed. A run is results.json of a single run with its
      ``fields`` and the ``curve``: of every evaluation the ``round``, the test scores that it
      has, means over clients, and the ``allocation`` if there is one.
    """
    resumable(marker=cache.folder)
    federations = loaded(config, seeds)
    arrays = {seed: digest_of_arrays(one) for seed, one in federations.items()}
    runs, missing = [], {}
    for trial in [Trial(point, seed) for point in points for seed in seeds]:
        run_config, federation = config_of(config, trial), federations[trial.seed]
        identity = identity_of(run_config, federation, arrays[trial.seed], cache.code)
        fields = fields_text(run_config)
        of_all = digest_of_json([fields, identity["data"], identity["arrays"]])
        variant = variant_of(run_config)
        name = f"{in_file_name(federation.name)}-{variant}-seed{trial.seed}-{of_all[:12]}"
        runs.append(cache.read(name, identity, fields))
        if runs[-1] is None:
            missing[len(runs) - 1] = (trial, name, {"fields": fields}, {"identity": identity})
    for seed in {trial.seed for trial, *_ in missing.values()}:
        build_experiment(with_seed(config, seed), federations[seed])  # checks all fields first
    places, trials = list(missing), [trial for trial, *_ in missing.values()]
    size = at_once or len(trials)
    report(config.rounds * (len(runs) - len(missing)))
    for index, outcome in run_trials(
        *(config, federations, trials),
        at_once=size,
        report=lambda played: report(config.rounds * played),
    ):
        _, name, fields, identity = missing[places[index]]
        curve = list(map(_curve_row, outcome.rows))
        run = {**fields, **outcome.results, **identity, "curve": curve}
        cache.write(name, run)
        runs[places[index]] = run
    cache.new += len(missing)
    cache.found += len(runs) - len(missing)
    return runs


def loaded(config: ConfigDict, seeds: list[int]) -> dict[int, Federation]:
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


def _read(path) -> dict | None:
    """The run in a file; None if it is damaged, or has no identity."""
    try:
        run = json.loads(path.read_text())
        whole = "sha256" not in run or run.pop("sha256") == digest_of_json(run)
        return run if whole and {"fields", "identity"} <= run.keys() else None
    except (ValueError, AttributeError, TypeError):
        return None


def _is_of(run, identity, fields):
    """Whether a run has these fields, data and pretrained weights."""
    own = run["identity"]
    same = all(own[what] == identity[what] for what in ("data", "arrays"))
    return same and same_weights(own, identity) and run["fields"] == fields


def _warn(number, folder, what):
    if number:
        text = f"{number} runs in {folder} are {what}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
