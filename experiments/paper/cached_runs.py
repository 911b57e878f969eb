"""Runs of tables and figures, cached in a folder so that no run is repeated.

A run is a `store.Record` in a file. It is used again only if the configuration, the data and
the code are the same, or if a change of the code is accepted.
"""

import functools
import glob
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.commands.common.interrupts import resumable
from graphfl_jax.configs.base import variant_of
from graphfl_jax.configs.values import as_text, values_of
from graphfl_jax.data.federation import Federation
from graphfl_jax.runs import store
from graphfl_jax.runs.batch import (
    Trial,
    config_of,
    current_fields_text,
    fields_text,
    run_trials,
    with_seed,
)
from graphfl_jax.runs.checkpoint import write_json
from graphfl_jax.runs.disk import writing
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.identity import (
    Identity,
    digest_of_arrays,
    digest_of_json,
    digests_of_code,
    identity_of,
)
from graphfl_jax.runs.results import as_json, from_json, with_null

FOLDER = "cached_runs"  # in the output folder of a command
FORM = {"accepted_changes": list, "device": str, "versions": {"jax": str}}  # of a run's record
# Fields by which `load_federation` makes a federation.
DATA = ("seed", "data.", "new_clients.", "attack.", "hparams.attack_")
LOADED: dict[str, Federation] = {}  # by the values of these fields


class Cache:
    """The cached runs in the output folder of a command.

    Attributes:
      folder: of the runs, a file each. Those of other code stay beside the new ones.
      made, reused, accepted: how many runs were made, how many the cache had, and how many of
        these are of other code.
      elsewhere: how many of the cache's were made on another device or with another JAX, by
        these.
    """

    def __init__(
        self,
        out: Path,
        *,
        accept_changes: bool = False,
        config_files: Sequence[Path | None] = (),
    ):
        """Warns of runs of other code in the folder. Nothing is written yet.

        Raises:
          ValueError: the folder cannot be written, or holds something else.
        """
        store.check_folder(out, store.TABLES)
        self.folder = out / FOLDER
        self.accept_changes = accept_changes
        self.code = digests_of_code(*config_files)
        self.made = self.reused = self.accepted = 0
        self.elsewhere: Counter[str] = Counter()
        runs = list(map(_read, self.folder.glob("*.json")))
        damaged = runs.count(None)
        of_other_code = sum(
            bool(store.changed_code(run["identity"], self.code)) for run in filter(None, runs)
        )
        again = "made again where they are needed"
        advice = f"{again}; add --accept_changes to use them"
        use = "used where they are needed" if accept_changes else advice
        for number, what in (
            (of_other_code, f"of other code and are {use}"),
            (damaged, f"damaged and are {again}"),
        ):
            if number:
                text = f"{number} runs in {self.folder} are {what}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)

    def counts(self) -> str:
        """How many runs are new and how many the cache had, as text."""
        counts = f"{self.made} new runs, {self.reused} from the cache"
        if self.accepted:
            counts += f" ({self.accepted} of them of other code, which was accepted)"
        for place, number in self.elsewhere.items():
            counts += f", {number} of them made on {place}"
        return counts

    def use(self, record: store.Record) -> store.Record:
        """Counts a run of the cache as used, and returns it."""
        self.reused += 1
        place = place_text(record)
        if place != self.here:
            self.elsewhere[place] += 1
        return record

    @functools.cached_property
    def here(self) -> str:
        """The device and the JAX of this process."""
        return place_text(environment())

    def find(self, name: str, identity: Identity, fields: str) -> store.Record | None:
        """The cached run of a name, an identity and `batch.fields_text`, or None.

        Other than a sweep, a table makes a run of other code again, even if that code was
        accepted before.
        """
        paths = self.folder.glob(f"{glob.escape(name)}-*.json")
        newest = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
        runs = [
            run
            for run in filter(None, map(_read, newest))
            if current_fields_text(run["fields"]) == fields
            and not store.refusal(run, identity, accept_changes=True)
        ]
        same = [run for run in runs if not store.changed_code(run["identity"], identity)]
        if same or not self.accept_changes or not runs:
            return from_json(same[0]) if same else None
        if store.accept(runs[0], identity):
            self.write(name, runs[0])
        self.accepted += 1
        return from_json(runs[0])

    def write(self, name: str, record: store.Record) -> None:
        """Adds a run, or replaces that of the same name and code."""
        code = {what: record["identity"][what] for what in self.code}
        path = self.folder / f"{name}-{digest_of_json(code)[:12]}.json"
        with writing(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, store.with_digest(record))


def _read(path):
    """The run in a file; None if it is damaged, or no run."""
    try:
        return store.read_record(path.read_bytes(), FORM)
    except (ValueError, TypeError):
        return None


def cached_runs(
    config: ConfigDict,
    seeds: list[int],
    cache: Cache,
    *,
    points: Sequence[dict[str, float]] = ({},),
    at_once: int = 0,
    report: Callable[[float], None] = lambda rounds: None,
) -> list[store.Record]:
    """Runs a configuration with several seeds, and reads earlier runs from the cache.

    Args:
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
    federations = load_federations(config, seeds)
    arrays = {seed: digest_of_arrays(data) for seed, data in federations.items()}
    runs, missing = [], []
    for trial in [Trial(point, seed) for point in points for seed in seeds]:
        run_config, federation = config_of(config, trial), federations[trial.seed]
        identity = identity_of(run_config, federation, arrays[trial.seed], cache.code)
        fields = fields_text(run_config)
        digest = digest_of_json([fields, identity["data"], identity["arrays"]])[:12]
        variant = variant_of(run_config)
        name = f"{federation.name.replace('/', '-')}-{variant}-seed{trial.seed}-{digest}"
        cached = cache.find(name, identity, fields)
        runs.append(cached and cache.use(cached))
        if cached is None:
            known = {"fields": fields, "identity": identity}
            missing.append((len(runs) - 1, trial, name, known))
    trials = [trial for _, trial, *_ in missing]
    for seed in {trial.seed for trial in trials}:
        build_experiment(with_seed(config, seed), federations[seed])  # checks all fields first
    report(config.rounds * (len(runs) - len(missing)))
    for index, outcome in run_trials(
        config,
        federations,
        trials,
        at_once=at_once or len(trials),
        report=lambda played: report(config.rounds * played),
    ):
        place, _, name, known = missing[index]
        curve = list(map(_curve_row, outcome.rows))
        record = as_json(outcome.results) | known | {"curve": with_null(curve)}
        cache.write(name, record)
        runs[place] = from_json(record)
    cache.made += len(missing)
    return runs


def load_federations(config: ConfigDict, seeds: list[int]) -> dict[int, Federation]:
    """The federation of each seed. Those of the last call are not loaded again."""
    federations = {}
    for seed in seeds:
        seeded = with_seed(config, seed)
        values = values_of(seeded)[0]
        key = as_text(values, without={name for name in values if not name.startswith(DATA)})
        federations[key] = LOADED.get(key) or load_federation(seeded)
    LOADED.clear()
    LOADED.update(federations)
    return dict(zip(seeds, federations.values(), strict=True))


def place_text(where: Mapping[str, Any]) -> str:
    """The device and the JAX of a run or an `environment`, as text."""
    return f"{where['device']} with JAX {where['versions']['jax']}"


def _curve_row(row):
    """An evaluation, with the means of its test scores over clients."""
    scores = row["scores"].get("test", {})
    means = {"round": int(row["round"])} | {at: float(scores[at].mean()) for at in scores}
    if "allocation" in row:
        means["allocation"] = np.asarray(row["allocation"]).tolist()
    return means
