"""Finished runs and sweeps, read from their folders."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfl_jax.commands.common.comparison import differing
from graphfl_jax.commands.common.curves import Curve, draw_curves
from graphfl_jax.commands.common.finished_runs import (
    fitting,
    read_object,
    read_rows,
    read_run,
)
from graphfl_jax.commands.sweeping.trial_log import merged_logs
from graphfl_jax.configs.fields import SPLITS
from graphfl_jax.evaluation import POINTS
from graphfl_jax.runs import views
from graphfl_jax.runs.forms import FEDERATION
from graphfl_jax.runs.results import DESCRIPTION, from_json
from graphfl_jax.runs.single import Result
from graphfl_jax.runs.store import SWEEP, content_of

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingImports]  # of an extra
    from matplotlib.axes import Axes


class Runs(tuple[Result, ...]):
    """Several runs, in the order in which they were named.

    Attributes:
      settings: of each run, the fields in which the runs differ, without the seed; those that a
        run does not have are left out.
    """

    settings: Sequence[Mapping[str, Any]]

    def frame(self) -> "pandas.DataFrame":
        """The frames of all runs, with the number, the method, the data set and the seed of the
        run, and the fields in which the runs differ, as first columns.

        Raises:
          ImportError: pandas is not installed.
        """
        pandas, frames = views.import_pandas(), []
        for number, (run, fields) in enumerate(zip(self, self.settings, strict=True)):
            results = run.results
            names = {"run": number, "method": results["variant"]}
            names |= {"data": results["dataset"]["name"], "seed": results["seed"]}
            rows = run.frame()
            for place, (name, value) in enumerate((names | dict(fields)).items()):
                rows.insert(place, name, value if np.isscalar(value) else str(value))
            frames.append(rows)
        return pandas.concat(frames, ignore_index=True)

    def plot(
        self, axes: "Axes | None" = None, *, point: str = "P", over: str = "rounds"
    ) -> "Axes":
        """Draws test scores as `draw_curves` does. Diverged runs are left out.

        Args:
          axes: of Matplotlib; None makes a new figure.
          point: "G", "L" or "P".
          over: "rounds", "steps", "bytes" or "seconds".

        Raises:
          ValueError: `over` is another word, or a run is of a release that did not record it.
        """
        curves = []
        for run, fields in zip(self, self.settings, strict=True):
            if not run.results["diverged"]:
                words = [run.results["variant"], *(f"{k}={v}" for k, v in fields.items())]
                curves.append(Curve(", ".join(words), run.results, _curve(run, point)))
        axes = axes or views.new_axes()
        draw_curves(axes, curves, point=point, over=over)
        return axes


def read(folders: str | os.PathLike | Iterable[str | os.PathLike]) -> Result | Runs:
    """Reads the run in a folder, or the runs in several folders or in a sweep.

    Args:
      folders: the folder of a run, which gives a `Result`; or that of a sweep, or several of
        either kind, which give `Runs`. Of the runs of a sweep only the last test scores are
        known, and their clients have numbers for names: a sweep keeps no more.

    Raises:
      ValueError: a folder has no finished run and no sweep, a folder is named twice, or a file
        is damaged; one line.
      OSError: a file cannot be read.
    """
    if isinstance(folders, str | os.PathLike):
        path = Path(folders)
        if content_of(path) != SWEEP:
            return _result_in(path)[0]
        folders = [path]
    paths = [Path(folder) for folder in folders]
    for i, path in enumerate(paths):
        if path.resolve() in map(Path.resolve, paths[:i]):
            raise ValueError(f"folders={path} is named twice; name each folder once")
    pairs = []
    for path in paths:
        pairs += _results_of_sweep(path) if content_of(path) == SWEEP else [_result_in(path)]
    runs = Runs(result for result, _ in pairs)
    fields = [settings for _, settings in pairs]
    names = [name for name in differing(fields) if name != "algorithm.name"]
    runs.settings = [{n: of_run[n] for n in names if n in of_run} for of_run in fields]
    return runs


def _result_in(path):
    """The run in a folder, and its settings."""
    run, names = read_run(path), ()
    if (path / DESCRIPTION).exists():  # folders of older releases have none
        described = read_object(path / DESCRIPTION, FEDERATION)
        names = tuple(client["name"] for client in described["clients"])
        if run.results.get("sample") and not described.get("listed"):
            names = tuple(names[i] for i in run.results["sample"]["ids"])
    with fitting(path):
        rows = [_row(row) for row in read_rows(path)]
        final = None
        if not run.results["diverged"]:
            final = dict(rows[-1]["scores"]) if rows else {}
            for split, scores in run.results["scores"].items():
                split = {"final": "test", "validation": "val"}.get(split, split)
                if scores and split != "best_val":
                    final[split] = {p: np.array(scores[p]["per_client"]) for p in POINTS}
        first = (run.results.get("not_finite") or {}).get("first")
        ended = first["round"] if first else run.results["rounds"]
        ended = ended if run.results["diverged"] else -1
    names = names or tuple(map(str, range(_count(final))))
    return Result(run.results, rows, None, ended, final, None, clients=names), run.settings


def _results_of_sweep(path):
    """The runs of a sweep, and their points."""
    lines, _ = merged_logs([path])
    for line in lines:
        results, final = from_json(line), None
        if not results["diverged"]:
            scores = results["scores"]["final"]
            final = {"test": {point: np.array(scores[point]["per_client"]) for point in POINTS}}
        names = tuple(map(str, range(_count(final))))
        yield Result(results, [], None, -1, final, None, clients=names), line["point"]


def _count(final):
    return len(final["test"]["P"]) if final else 0


def _row(row):
    """An evaluation of metrics.jsonl as `results.row_of` has it, as far as it is known."""
    scores = {
        split: {
            point: np.array(values["per_client"], float) for point, values in points.items()
        }
        for split, points in row.items()
        if split in SPLITS
    }
    return {"round": row["round"], "train": row["train"], "scores": scores}


def _curve(run, point):
    """The mean test scores of a run by the number of rounds."""
    return {
        played: float(np.mean(scores["test"][point]))
        for played, scores in views.rounds_with_scores(run)
        if point in scores.get("test", {})
    }
