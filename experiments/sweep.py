"""Searches a grid of float hyperparameters, all runs of it as vmapped programs.

    python -m experiments.sweep --config=configs/tpt48.py --config.data.val_fraction=0.1 \\
        --grid.hparams.client_lr=0.01,0.03,0.1 --grid.hparams.server_lr=0.03,0.1 --seeds=2

Validation decides: the leaderboard is sorted by its mean over clients and seeds at P, after the
last round. Newcomers, if there are any, are scored on validation too, as they join and after
their rounds at home. Test scores stand apart and decide nothing. A run that diverged has no
score; a point is scored only where all its seeds are.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from experiments.entry import FLAGS, configuration, launch, refuse
from experiments.trials import run_trials
from graphfl_jax.build import load_federation, variant_of

flags.DEFINE_integer("seeds", 1, "Runs of every point, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_integer("at_once", 32, "Runs in the device's memory at a time.", lower_bound=1)
flags.DEFINE_integer("top", 10, "Rows of the leaderboard.", lower_bound=1)
flags.DEFINE_string("out", None, "File for the trials, one line of JSON each.")
PREFIX = "--grid.hparams."


def main() -> int:
    config = configuration()
    if config.data.val_fraction == 0 and "val" not in load_federation(config).data.evals:
        raise ValueError("data.val_fraction=0 leaves nothing to choose by; set it to 0.1")
    if FLAGS.out and Path(FLAGS.out).exists():
        raise ValueError(f"out={FLAGS.out} exists; choose another --out")
    names = list(GRID)
    points = [dict(zip(names, p, strict=True)) for p in itertools.product(*GRID.values())]
    began = time.perf_counter()
    trials, measured = run_trials(
        config, points, list(range(FLAGS.seeds)), at_once=FLAGS.at_once
    )
    seconds = time.perf_counter() - began

    if FLAGS.out:
        with open(FLAGS.out, "w") as file:
            file.writelines(json.dumps(_short(trial)) + "\n" for trial in trials)
    console = Console()
    console.print(_leaderboard(variant_of(config), names, trials, measured))
    diverged = [trial for trial in trials if trial.diverged]
    console.print(f"{len(trials)} runs in {seconds:.0f} s; {len(diverged)} diverged")
    for trial in diverged:
        console.print(f"  diverged: seed {trial.seed}, {trial.hparams}", highlight=False)
    return 0


def _leaderboard(variant, names, trials, measured):
    points = []
    for _, group in itertools.groupby(trials, lambda trial: trial.hparams):
        own = list(group)
        if not any(trial.diverged for trial in own):
            points.append((own[0].hparams, _scores(own)))
    points.sort(key=lambda row: row[1]["validation"], reverse=measured.higher_is_better)
    table = Table(title=f"{variant}, {measured.metric} at P: {len(points)} points have a score")
    for column in (*names, *(points[0][1] if points else ())):
        table.add_column(column, justify="right")
    for hparams, scores in points[: FLAGS.top]:
        numbers = [f"{hparams[name]:g}" for name in names]
        table.add_row(*numbers, *(f"{score:.4g}" for score in scores.values()))
    return table


def _scores(trials):
    """Means at P over clients and seeds, and those of newcomers as they join and at the end."""
    val, test = ([t.scores[split]["P"].mean() for t in trials] for split in ("val", "test"))
    scores = {"validation": np.mean(val), "sd seeds": np.std(val)}
    if trials[0].novel:
        for name, played in (("newcomers", 0), ("later", -1)):
            scores[name] = np.mean([t.novel[played]["val"]["P"].mean() for t in trials])
    return scores | {"test": np.mean(test)}


def _short(trial):
    """A trial as JSON holds it: means over clients of the last round's scores."""
    means = jax.tree.map(lambda values: float(values.mean()), trial.scores)
    return {
        "hparams": trial.hparams,
        "seed": trial.seed,
        "diverged": trial.diverged,
        "scores": None if trial.diverged else means,
    }


def _take_grid(argv):
    """Splits --grid.hparams.NAME=a,b,... from the flags that absl knows."""
    rest, grid = [], {}
    for word in argv:
        if not word.startswith("--grid."):
            rest.append(word)
            continue
        name, _, values = word.removeprefix(PREFIX).partition("=")
        try:
            if not word.startswith(PREFIX):
                raise ValueError
            grid[name] = [float(value) for value in values.split(",")]
        except ValueError:
            refuse(f"{word!r} is no grid; write {PREFIX}NAME=0.1,0.2")
    return rest, grid


if __name__ == "__main__":
    sys.argv, GRID = _take_grid(sys.argv)
    launch(main)
