"""The log of a sweep: one line of JSON for every run that ended, safe against interruption.

Every line ends with its own digest, and holds the identity of its run.
"""

import contextlib
import json
import os
import warnings
from pathlib import Path

from graphfl_jax.configs.values import as_text, recorded
from graphfl_jax.data.files import default_root
from graphfl_jax.runs.batch import ELSEWHERE, Outcome, config_of
from graphfl_jax.runs.checkpoint import write_text
from graphfl_jax.runs.disk import writing
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.folder import HOLDS, LOCK, SWEEP, check_folder, lock
from graphfl_jax.runs.identity import (
    changed_code,
    check_same_code,
    check_same_data,
    digest_of_arrays,
    digest_of_config,
    digest_of_json,
    digests_of_code,
    identity_of,
    same_weights,
)
from graphfl_jax.runs.sweep import Planned, TrialGroup

NAME = "trials.jsonl"
OF_SHARD = "trials-{}-of-{}.jsonl"
# What every release wrote into a line.
REQUIRED = {
    *("trial", "point", "seed", "dataset", "validation", "device", "versions", "git_commit")
}


class TrialLog:
    """trials.jsonl in the folder of a sweep. As a context, it locks the folder.

    The log of a shard is a file of its own, which alone is locked. So the shards of a sweep can
    share a folder.

    Attributes:
      path: of the file.
      planned: identities of all runs of the sweep, by the runs' names.
      found: lines of the planned runs that the file has, by their names.
      others: its lines of runs that are not planned yet.
      growing: whether more runs will be planned. Otherwise there must not be any others.
    """

    def __init__(
        self,
        out: Path,
        groups: list[TrialGroup],
        *,
        resume: bool,
        accept_changes: bool = False,
        config_file: Path | None = None,
        shard: tuple[int, int] | None = None,
    ):
        """Checks that the folder can take this sweep. Nothing is written yet.

        Args:
          out: folder of the sweep.
          groups: runs of the sweep.
          resume: whether the runs that the folder has are not repeated.
          accept_changes: whether they are used although the code has changed.
          config_file: the configuration file of the sweep.
          shard: the number of this part of the sweep, from 1, and the number of all parts; None
            is a whole sweep.

        Raises:
          ValueError: the folder cannot be written; it holds a sweep and `resume` is false, or
            none and `resume` is true; or it holds something else.
        """
        self.out, self.path = out, out / log_name(shard)
        self.lock_name = LOCK if shard is None else f"{LOCK}-{self.path.stem}"
        self.resume, self.accept_changes = resume, accept_changes
        self._check_folder()
        self.code = digests_of_code(config_file)
        self.groups, self.planned, self.found, self.others = [], {}, {}, {}
        self.growing, self.file = False, None
        self.plan(groups)

    def plan(self, groups: list[TrialGroup]) -> None:
        """Adds runs to the sweep. Runs that it has already are left out.

        Raises:
          ValueError: the file has one of the runs, of other data or code.
        """
        for group in groups:
            new = [one for one in group.planned if one.name not in self.planned]
            self.groups.append(group._replace(planned=new))
            by_seed = {
                seed: identity_of(group.config, one, digest_of_arrays(one), self.code)
                for seed, one in group.federations.items()
            }
            for planned in new:
                config = digest_of_config(config_of(group.config, planned.trial).to_dict())
                identity = by_seed[planned.trial.seed] | {"config": config}
                self.planned[planned.name] = identity
        if self._take_planned() and self.file is not None:
            self.file.close()
            self._open()

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
            self.out.mkdir(parents=True, exist_ok=True)
            self.lock = lock(self.out, self.lock_name)
        try:
            self._check_folder()  # again, since another process may have ended in the meantime
            self.others = self._read()
            self._take_planned()
            if not self.growing:
                self.check_others()
            self._open()
        except BaseException:
            self.lock.close()
            raise
        return self

    def __exit__(self, *error):
        with contextlib.closing(self.lock), writing(self.path):
            self.file.close()

    def _open(self):
        """Writes the lines with the changes that were accepted, and opens the file for more."""
        lines = (self.found | self.others).values()
        write_text(self.path, "".join(map(_text, lines)))
        self.file = open(self.path, "a")  # noqa: SIM115

    def _read(self):
        if not self.path.exists():
            return {}
        lines, damaged = read_log(self.path)
        for number in damaged:
            text = f"{self.path}: line {number} is damaged; its run is repeated"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        return {line["trial"]: line for line in lines}

    def check_others(self) -> None:
        """Checks that all runs of the file are planned.

        Raises:
          ValueError: one is not.
        """
        for line in self.others.values():
            raise ValueError(
                f"out={self.out} has a run that is not in this sweep, {line['point']} with "
                f"seed {line['seed']}; add it to the sweep, or choose another --out"
            )

    def _take_planned(self):
        """Moves the lines of planned runs to those that are found; whether there are any."""
        taken = {name: line for name, line in self.others.items() if name in self.planned}
        if not taken:
            return False
        here, changed, other = environment(), set(), 0
        for name, line in taken.items():
            other += self._check_identity(line, self.planned[name])
            changed |= {what for what, value in here.items() if line[what] != value}
            self.found[name] = self.others.pop(name)
        for what in sorted(changed):
            text = f"{what} differs from that of runs in {self.path}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        if other:
            warnings.warn(
                f"{other} of {len(self.found)} runs in {self.path} are of other code, which "
                f"was accepted",
                RuntimeWarning,
                stacklevel=3,
            )
        return True

    def _check_identity(self, line, now):
        """Whether a run is of other code; refuses it, or records that it is accepted."""
        made, where = [line["identity"], *line["accepted_changes"]], f"out={self.out}"
        check_same_data(made[0], now, where=where)
        if not self.accept_changes:
            check_same_code(made, now, where=where)
        elif all(changed_code(one, now) for one in made):
            line["accepted_changes"].append(now)
        return bool(changed_code(made[0], now))

    def unfinished(self) -> list[TrialGroup]:
        """The groups, without the runs that the file has."""
        left = [
            group._replace(planned=[p for p in group.planned if p.name not in self.found])
            for group in self.groups
        ]
        return [group for group in left if group.planned]

    def write(self, group: TrialGroup, planned: Planned, outcome: Outcome) -> None:
        """Adds a run. Returns when it is on disk.

        Raises:
          ValueError: the run used other data or other code than this host has.
        """
        results, now = outcome.results, self.planned[planned.name]
        made = results["identity"]
        if any(made[what] != now[what] for what in ("data", "arrays")):
            root = group.config.data.root or default_root()
            raise ValueError(
                f"data.source={results['dataset']['source']}: a node has other data than this "
                f"host; put the same files into {root} on every node"
            )
        if not same_weights(made, now):
            raise ValueError(
                f"model.weights={group.config.model.weights}: a node has another file than "
                f"this host; put the same file on every node"
            )
        if changes := changed_code(made, now):
            raise ValueError(
                f"launcher=ray: a node has other code than this host: {', '.join(changes)}; "
                f"install the same on every node"
            )
        line = {"trial": planned.name, "point": planned.point, **results, "identity": now}
        line["validation"] = None
        if not results["diverged"]:
            curve = (results["new_clients"] or {"curve": ()})["curve"]  # of finite scores
            line["validation"] = {
                "final": results["scores"]["validation"],
                "new_clients": [
                    float(scores["val"]["P"].mean())
                    for scores in outcome.new_clients[: len(curve)]
                ],
            }
        line["curve"] = [
            {"round": int(row["round"]), "P": float(row["scores"]["val"]["P"].mean())}
            for row in outcome.rows
        ]
        self.found[planned.name] = line
        with writing(self.path):
            self.file.write(_text(line))
            self.file.flush()
            os.fsync(self.file.fileno())

    def lines(self) -> list[dict]:
        """The runs of the file, in the order of the sweep, with the points of the sweep.

        The last release wrote points with fields that their methods do not read.
        """
        return [
            self.found[planned.name] | {"point": planned.point}
            for group in self.groups
            for planned in group.planned
        ]


def log_name(shard: tuple[int, int] | None) -> str:
    """The name of the log of a shard, as for `TrialLog`."""
    return NAME if shard is None else OF_SHARD.format(*shard)


def read_log(path: Path) -> tuple[list[dict], list[int]]:
    """The runs in a log, and the numbers of its damaged lines. A process may be writing it.

    Raises:
      ValueError: a line is complete and not a run.
      OSError: the file cannot be read.
    """
    lines, damaged = [], []
    for number, text in enumerate(path.read_bytes().splitlines(), 1):
        try:
            lines.append(_line(text))
        except ValueError:
            damaged.append(number)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: line {number} is not a run of a sweep; remove the line, or choose "
                f"another --out"
            ) from error
    return lines, damaged


def merged_logs(folders: list[Path]) -> tuple[list[dict], list[str]]:
    """The runs of all logs in some folders, each run once, and remarks for the user.

    Raises:
      ValueError: a folder has no log, or two logs have a run with other data or other code, or
        have different data of one name.
      FileNotFoundError: there is no such folder.
    """
    found, data, notes, repeated = {}, {}, [], 0
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not a folder; name folders of sweeps")
        logs = sorted(path for name in HOLDS[SWEEP] for path in folder.glob(name))
        if not logs:
            raise ValueError(f"{folder} holds no sweep; leave it out, or correct the folder")
        for path in logs:
            lines, damaged = read_log(path)
            if damaged:
                numbers = ", ".join(map(str, damaged))
                notes.append(f"left out: {path}, line {numbers}: incomplete or damaged")
            for line in lines:
                first, log = found.setdefault(line["trial"], (line, path))
                if log != path:
                    _check_same_run(first, line, log, path)
                    repeated += 1
                _check_same_data(*data.setdefault(_data_of(line), (line, path)), line, path)
    if not found:
        raise ValueError(
            f"folders={','.join(map(str, folders))} has no finished run; wait until one ends"
        )
    if repeated:
        notes.append(f"{repeated} runs are in several logs and count once")
    runs = [line for line, _ in found.values()]
    sources = {line["identity"].get("source") for line in runs}
    if len(sources) > 1:
        notes.append(f"the runs are of {len(sources)} versions of the code")
    return runs, notes


def _data_of(line):
    """The name, the fields and the seed of the data of a run."""
    fields = json.loads(line["trial"]).items()
    own = {field: value for field, value in fields if field.startswith("data.")}
    return json.dumps([line["dataset"]["name"], own, line["seed"]], sort_keys=True)


def _check_same_data(one, first, other, second):
    digests = [line["identity"].get("data", "")[:12] for line in (one, other)]
    if digests[0] != digests[1]:
        raise ValueError(
            f"{first} and {second} have different data of the name {one['dataset']['name']} "
            f"(sha256 {' and '.join(digests)} with seed {one['seed']}); leave one of them out"
        )


def _check_same_run(one, other, first, second):
    identities = [line["identity"] for line in (one, other)]
    for what in sorted(identities[0].keys() | identities[1].keys()):
        if identities[0].get(what) != identities[1].get(what):
            raise ValueError(
                f"{first} and {second} have the run {one['point']} with seed {one['seed']}, "
                f"and its {what} differs; leave one of them out"
            )


def _line(text):
    """The run in a line, with the names of this release.

    Raises:
      ValueError: the line is incomplete, or was changed.
      KeyError, TypeError, AttributeError: it is not the line of a run.
    """
    line = json.loads(text)
    if not isinstance(line, dict):
        raise TypeError("the line is no dictionary")
    if line.pop("sha256", "") != digest_of_json(line) and "identity" in line:
        raise ValueError("the line was changed")
    if missing := REQUIRED - line.keys():
        raise KeyError(*missing)
    if "identity" not in line:  # of the last release
        line |= {"identity": {"data": line["dataset"]["sha256"]}, "accepted_changes": []}
    return _with_current_names(line)


def _with_current_names(line):
    """A line that the last release may have written, with the names of this one.

    Fields that are not known here stay as they were written.
    """
    fields = json.loads(line["trial"])
    with contextlib.suppress(ValueError):  # a part that the user registers elsewhere
        fields = recorded(fields)
    line["trial"] = as_text(fields, without=ELSEWHERE)
    for part in (line, line["validation"] or {}):
        if "novel" in part:
            part["new_clients"] = part.pop("novel")
    return line


def _text(line):
    return json.dumps(line | {"sha256": digest_of_json(line)}) + "\n"
