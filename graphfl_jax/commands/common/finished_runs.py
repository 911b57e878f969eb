"""Runs that have ended, read from their folders."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from graphfl_jax.configs.values import as_text, flat, recorded
from graphfl_jax.runs.batch import ELSEWHERE
from graphfl_jax.runs.folder import RUN, held

# What commands read of results.json.
NEEDED = {"scores", "metric", "variant", "dataset", "seed", "diverged"}


class FinishedRun(NamedTuple):
    """A run with results."""

    path: Path
    fields: dict[str, Any]  # of the configuration, by dotted name
    results: dict[str, Any]  # what results.json holds

    @property
    def setting(self) -> str:
        """The data set, and the fields that determine the results but the seed, as text."""
        data = self.results["dataset"]
        fields = as_text(self.fields, without=(ELSEWHERE - {"data.path"}) | {"seed"})
        return f"{data['name']} {data['source']} {fields}"


def why_no_run(path: Path) -> str:
    """Why a folder is no run with results; empty if it is one.

    Raises:
      FileNotFoundError: there is no such folder.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder; name folders of runs, such as runs/a")
    content = held(path)
    if content != RUN:
        return f"holds {content}" if content else "holds no run"
    if not (path / "results.json").exists():
        return "has no results yet; continue it with graphfl run --resume"
    return ""


def read_run(path: Path) -> FinishedRun:
    """The run in a folder with results.

    Raises:
      ValueError: a file is damaged.
      OSError: a file cannot be read.
    """
    fields, results = (_object_in(path / name) for name in ("config.json", "results.json"))
    try:
        if missing := NEEDED - results.keys():
            raise ValueError(f"it has no {min(missing)}")
        return FinishedRun(path, recorded(flat(fields)), results)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); leave it out, or repair it") from error


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The evaluations of the run in a folder, oldest first, as metrics.jsonl has them.

    Raises:
      ValueError: a line is damaged.
      OSError: the file cannot be read.
    """
    file, rows = path / "metrics.jsonl", []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(
                f"{file}: line {number} is damaged; repair it with graphfl run --resume"
            ) from error
    return rows


def _object_in(file):
    try:
        content = json.loads(file.read_text())
        if not isinstance(content, dict):
            raise ValueError("it is no object")
        return content
    except ValueError as error:
        raise ValueError(
            f"{file} is damaged ({error}); leave the run out, or repair it"
        ) from error
