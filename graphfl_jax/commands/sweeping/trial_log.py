"""The log of a sweep: one line of JSON for every run that ended, see `store.LineStore`."""

import json
import warnings
from pathlib import Path
from typing import Any

from graphfl_jax.commands.common.comparison import differing
from graphfl_jax.data.files import default_root
from graphfl_jax.runs import forms
from graphfl_jax.runs.batch import Outcome, config_of, current_fields_text
from graphfl_jax.runs.checkpoint import remove_parts
from graphfl_jax.runs.disk import writing
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.identity import (
    FILE_FIELDS,
    digest_of_arrays,
    digest_of_config,
    digests_of_code,
    identity_of,
)
from graphfl_jax.runs.results import as_json, with_null
from graphfl_jax.runs.store import (
    CONTENTS,
    LOCK,
    SWEEP,
    LineStore,
    NewFolders,
    Record,
    accept,
    changed_code,
    check_folder,
    check_locked,
    lock,
    refusal,
)
from graphfl_jax.runs.sweep import Planned, TrialGroup

NAME = "trials.jsonl"
OF_SHARD = "trials-{}-of-{}.jsonl"
BOARDS = ("leaderboard.json", "leaderboard.md", "scores-*")  # written when a sweep has ended


class TrialLog:
    """trials.jsonl in the folder of a sweep. As a context, it locks the folder.

    The log of a shard is a file of its own, which alone is locked. So the shards of a sweep can
    share a folder.

    Attributes:
      path: of the file.
      planned: identities of all runs of the sweep, by the runs' names.
      records: lines of the planned runs that the file has, by their names.
      unplanned: its lines of runs that are not planned yet.
      growing: whether more runs will be planned. Otherwise all lines must be planned.
    """

    def __init__(
        self,
        out: Path | NewFolders,
        groups: list[TrialGroup],
        *,
        resume: bool,
        accept_changes: bool = False,
        config_file: Path | None = None,
        shard: tuple[int, int] | None = None,
    ):
        """Checks that the folder can take this sweep. Nothing is written yet.

        Args:
          out: folder of the sweep; a new one is made when the log is entered.
          groups: its runs.
          resume: whether the runs that the folder has are not repeated.
          accept_changes: whether they are used although the code has changed.
          config_file: of the sweep.
          shard: the number of this part of the sweep, from 1, and the number of all parts; None
            is a whole sweep.

        Raises:
          ValueError: the folder cannot be written; it holds a sweep and `resume` is false, or
            none and `resume` is true; or it holds something else.
        """
        self.new = out if isinstance(out, NewFolders) else None
        self.out = Path(out)
        self.path = log_of(self.out, shard)
        self.lock_name = LOCK if shard is None else f"{LOCK}-{self.path.stem}"
        self.resume, self.accept_changes = resume, accept_changes
        if self.new is None:
            self._check_folder()
        else:  # another process may have taken the path, and the next one is made
            check_folder(self.out)
        self.code = digests_of_code(config_file)
        self.groups, self.planned, self.records, self.unplanned = [], {}, {}, {}
        self.growing, self.store = False, LineStore(self.path)
        self.plan(groups)

    def plan(self, groups: list[TrialGroup]) -> None:
        """Adds runs to the sweep. Runs that it has already are left out.

        Raises:
          ValueError: the file has one of the runs, of other data or code.
        """
        for group in groups:
            new = [run for run in group.planned if run.name not in self.planned]
            self.groups.append(group._replace(planned=new))
            by_seed = {
                seed: identity_of(
                    group.config, federation, digest_of_arrays(federation), self.code
                )
                for seed, federation in group.federations.items()
            }
            for planned in new:
                config = digest_of_config(config_of(group.config, planned.trial).to_dict())
                self.planned[planned.name] = by_seed[planned.trial.seed] | {"config": config}
        if self._use_planned():
            self._rewrite()

    def _check_folder(self):
        check_folder(self.out, SWEEP)
        if self.path.exists() and not self.resume:
            raise ValueError(
                f"out={self.out} already holds a sweep; add --resume to continue it, or choose "
                f"another --out"
            )
        if self.resume and not self.path.exists():
            raise ValueError(
                f"out={self.out} holds no sweep to resume; leave --resume out, or correct --out"
            )

    def __enter__(self):
        """Locks the folder and reads its runs. A damaged line is dropped, with a warning.

        Raises:
          ValueError: another process has locked the folder; or the file has a line that is not
            a run, or runs that are not in this sweep, or of other data or code.
        """
        with writing(self.path):
            if self.new is not None:
                (self.out,) = self.new.make()
                self.path = self.out / self.path.name
                self.store = LineStore(self.path)
            self.out.mkdir(parents=True, exist_ok=True)
        self.lock = lock(self.out, self.lock_name)
        try:
            remove_parts(self.out, self.path.name)
            if self.path.name == NAME:  # no other part of the sweep uses the folder
                remove_parts(self.out, *BOARDS)
            self._check_folder()  # again, since another process may have ended in the meantime
            self.unplanned = self._read()
            self._use_planned()
            if not self.growing:
                self.check_all_planned()
            self._rewrite()
        except BaseException:
            self.lock.close()
            raise
        return self

    def __exit__(self, *error):
        self.lock.close()

    def _rewrite(self):
        """Writes the lines with the changes that were accepted."""
        check_locked(self.lock, self.out)
        self.store.write([*self.records.values(), *self.unplanned.values()])

    def _read(self):
        form = tuple(trial | {"identity": forms.IDENTITY} for trial in forms.TRIAL)
        lines, damaged = read_log(self.path, form) if self.path.exists() else ([], [])
        for number in damaged:
            text = f"{self.path}: line {number} is damaged; its run is repeated"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        return {line["trial"]: line for line in lines}

    def check_all_planned(self) -> None:
        """Checks that all runs of the file are planned.

        Raises:
          ValueError: one is not.
        """
        for line in self.unplanned.values():
            run = f"{line['point']} with seed {line['seed']}"
            if others := self._changed_fields(line):
                raise ValueError(
                    f"out={self.out} has the run {run} with {others}; resume with that, or "
                    "choose another --out"
                )
            raise ValueError(
                f"out={self.out} has a run that is not in this sweep, {run}; add it to the "
                "sweep, or choose another --out"
            )

    def _changed_fields(self, line):
        """The fields by which a line differs from the planned run of its point and seed, as
        text; empty where none is planned."""
        before = json.loads(line["trial"])
        for planned in (run for group in self.groups for run in group.planned):
            if (planned.point, planned.trial.seed) == (line["point"], line["seed"]):
                now = json.loads(planned.name)
                return ", ".join(
                    f"{field}={before.get(field)!r} in place of {now.get(field)!r}"
                    for field in differing([before, now])
                )
        return ""

    def _use_planned(self):
        """Moves the lines of planned runs to `records`; whether there are any."""
        names = [name for name in self.unplanned if name in self.planned]
        here, elsewhere, of_other_code = environment(), set(), 0
        for name in names:
            line, now = self.unplanned.pop(name), self.planned[name]
            if why := refusal(line, now, accept_changes=self.accept_changes):
                raise ValueError(f"out={self.out}: {why}")
            accept(line, now)
            self.records[name] = line
            of_other_code += bool(changed_code(line["identity"], now))
            elsewhere |= {what for what, value in here.items() if line[what] != value}
        for what in sorted(elsewhere):
            text = f"{what} differs from that of runs in {self.path}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        if of_other_code:
            warnings.warn(
                f"{of_other_code} of {len(self.records)} runs in {self.path} are of other "
                f"code, which was accepted",
                RuntimeWarning,
                stacklevel=3,
            )
        return bool(names)

    def unfinished(self) -> list[TrialGroup]:
        """The groups, without the runs that the file has."""
        groups = [
            group._replace(planned=[p for p in group.planned if p.name not in self.records])
            for group in self.groups
        ]
        return [group for group in groups if group.planned]

    def write(self, group: TrialGroup, planned: Planned, outcome: Outcome) -> None:
        """Adds a run. Returns when it is on disk.

        Raises:
          ValueError: the run used other data or other code than this host has.
          FileNotFoundError: as `store.check_locked`.
        """
        identity = self.planned[planned.name]
        _check_node(group, outcome.results, identity)
        curve = [
            {"round": int(row["round"]), "P": float(row["scores"]["val"]["P"].mean())}
            for row in outcome.rows
        ]
        line = {"trial": planned.name, "point": planned.point, **as_json(outcome.results)}
        line |= {"identity": identity, "validation": with_null(_validation(outcome))}
        line["curve"] = with_null(curve)
        self.records[planned.name] = line
        check_locked(self.lock, self.out)
        self.store.add(line)

    def lines(self) -> list[Record]:
        """The runs of the file, in the order of the sweep, with the points of the sweep.

        A run may have been written with another point, by a sweep over other axes.
        """
        return [
            self.records[planned.name] | {"point": planned.point}
            for group in self.groups
            for planned in group.planned
        ]


def _check_node(group, results, now):
    """Refuses the results of a node whose data or code are not those of this host."""
    made = results["identity"]
    if any(made[what] != now[what] for what in ("data", "arrays")):
        root = group.config.data.root or default_root()
        raise ValueError(
            f"data.source={results['dataset']['source']}: a node has other data than this "
            f"host; put the same files into {root} on every node"
        )
    for name, field in FILE_FIELDS.items():
        if made.get(name) != now.get(name):
            raise ValueError(
                f"the content of {field}: a node has another file than "
                f"this host; put the same file on every node"
            )
    if changes := changed_code(made, now):
        raise ValueError(
            f"launcher=ray: a node has other code than this host: {', '.join(changes)}; "
            f"install the same on every node"
        )


def _validation(outcome):
    """The validation scores of a run; None if it diverged."""
    results = outcome.results
    if results["diverged"]:
        return None
    curve = (results["new_clients"] or {"curve": ()})["curve"]  # of finite scores
    scores = outcome.new_clients[: len(curve)]
    return {
        "final": results["scores"]["validation"],
        "new_clients": [float(after["val"]["P"].mean()) for after in scores],
    }


def log_of(out: Path, shard: tuple[int, int] | None) -> Path:
    """The log of a sweep, or of one of its shards, in its folder."""
    return out / (NAME if shard is None else OF_SHARD.format(*shard))


def read_log(path: Path, form: Any = forms.TRIAL) -> tuple[list[Record], list[int]]:
    """The runs in a log, and the numbers of its damaged lines. A process may be writing it.

    Their names are those of this release, so that a run of an older one is found again.

    Raises:
      ValueError: a line is complete and not a run.
      OSError: the file cannot be read.
    """
    lines, damaged = LineStore(path).read(form)
    return [line | {"trial": current_fields_text(line["trial"])} for line in lines], damaged


def merged_logs(folders: list[Path]) -> tuple[list[Record], list[str]]:
    """The runs of all logs in some folders, each run once, and remarks for the user.

    Raises:
      ValueError: a folder has no log, or two logs have a run with other data or other code, or
        have different data of one name.
      FileNotFoundError: there is no such folder.
    """
    runs, data, notes, repeated = {}, {}, [], 0
    for path in _logs(folders):
        lines, damaged = read_log(path)
        if damaged:
            numbers = ", ".join(map(str, damaged))
            notes.append(f"left out: {path}, line {numbers}: incomplete or damaged")
        for line in lines:
            first, log = runs.setdefault(line["trial"], (line, path))
            if log != path:
                _check_same_run(first, log, line, path)
                repeated += 1
            _check_same_data(*data.setdefault(_data_of(line), (line, path)), line, path)
    if not runs:
        raise ValueError(
            f"folders={','.join(map(str, folders))} has no finished run; wait until one ends"
        )
    if repeated:
        notes.append(f"{repeated} runs are in several logs and count once")
    lines = [line for line, _ in runs.values()]
    sources = {line["identity"]["source"] for line in lines}
    if len(sources) > 1:
        notes.append(f"the runs are of {len(sources)} versions of the code")
    return lines, notes


def _logs(folders):
    """The logs in folders, each of which has one."""
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not a folder; name folders of sweeps")
        logs = sorted(path for name in CONTENTS[SWEEP] for path in folder.glob(name))
        if not logs:
            raise ValueError(f"{folder} holds no sweep; leave it out, or correct the folder")
        yield from logs


def _data_of(line):
    """The name, the fields and the seed of the data of a run."""
    fields = json.loads(line["trial"]).items()
    of_data = {field: value for field, value in fields if field.startswith("data.")}
    return json.dumps([line["dataset"]["name"], of_data, line["seed"]], sort_keys=True)


def _check_same_data(before, first, line, second):
    digests = [each["identity"]["data"][:12] for each in (before, line)]
    if digests[0] != digests[1]:
        raise ValueError(
            f"{first} and {second} have different data of the name {line['dataset']['name']} "
            f"(sha256 {' and '.join(digests)} with seed {line['seed']}); leave one of them out"
        )


def _check_same_run(before, first, line, second):
    for what in sorted(differing([before["identity"], line["identity"]])):
        raise ValueError(
            f"{first} and {second} have the run {line['point']} with seed {line['seed']}, "
            f"and its {what} differs; leave one of them out"
        )
