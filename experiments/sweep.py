"""Searches settings: every point of a grid, or random ones, each with several seeds.

    python -m experiments.sweep --config=configs/tpt48.py --config.data.val_fraction=0.1 \\
        --grid.algorithm=panacea,pfedhn --grid.hparams.client_lr=0.01,0.03,0.1 --seeds=2

An axis is any field of the configuration, or ``algorithm`` for the methods of its file.
``--samples=100`` draws points instead, with ``--uniform.FIELD=LOW,HIGH`` and
``--loguniform.FIELD=LOW,HIGH`` beside values to choose from; ``--points=FILE.py`` takes them
from the file's ``get_points()``. Trials that differ in floats and seeds are one program,
vmapped, and split over the devices of this host, or over those of a Ray cluster.

Validation decides: the leaderboard is sorted by its mean over clients and seeds at P, after the
last round. New clients, if there are any, are scored on validation too, as they join and after
their rounds at home. Test scores stand apart and decide nothing. A point is ranked only where
none of its runs diverged.

The folder of --out gets trials.jsonl, a line with the results of each run as it ends, and at
the end leaderboard.json, leaderboard.md, and a plot of scores over each axis. With --resume,
runs that trials.jsonl has are not made again.
"""

import sys
import time
from pathlib import Path

import matplotlib
from absl import flags
from rich.console import Console

from experiments.common.command_line import (
    FLAGS,
    fresh_folder,
    launch,
    progress_bar,
    refuse,
)
from experiments.common.plots import draw_search
from experiments.sweeping import ray_backend
from experiments.sweeping.grid import (
    check_validation,
    configured,
    points_of,
    points_of_file,
    take_axes,
)
from experiments.sweeping.leaderboard import leaderboards, markdown, ranked_table
from experiments.sweeping.trial_log import TrialLog
from graphfl_jax.runs.batch import run_trials
from graphfl_jax.runs.checkpoint import write_json, write_text
from graphfl_jax.runs.sweep import groups_of

MOST_GROUPS = 20  # of trials that differ in structure, without --yes

flags.DEFINE_integer("seeds", 1, "Runs of every point, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_integer("samples", 0, "Random points in place of a grid.", lower_bound=0)
flags.DEFINE_string("points", None, "Python file with get_points(), in place of a grid.")
flags.DEFINE_integer(
    "at_once", 0, "Runs in a program; 0 finds what is fast and fits into memory.", lower_bound=0
)
flags.DEFINE_integer("top", 10, "Rows of the leaderboard that are printed.", lower_bound=1)
flags.DEFINE_bool("yes", False, f"Accept more than {MOST_GROUPS} groups to compile.")
flags.DEFINE_string("out", None, "Folder of the sweep; by default a new one under runs/.")
flags.DEFINE_bool("resume", False, "Go on with the sweep in --out.")
flags.DEFINE_enum("launcher", "local", ["local", "ray"], "Where trials run.")
flags.DEFINE_string("ray_address", "auto", "Of a running Ray ray_backend, HOST:PORT.")


def main() -> int:
    matplotlib.use("Agg")  # writes files, and needs no screen
    if FLAGS.resume and not FLAGS.out:
        raise ValueError("--resume needs to know which sweep; add --out=DIR")
    if FLAGS.points and (AXES or FLAGS.samples):
        raise ValueError(f"points={FLAGS.points} and a grid are two searches; leave one out")
    if not (FLAGS.points or AXES):
        raise ValueError("nothing to search; add --grid.hparams.client_lr=0.03,0.1 or so")
    points = points_of_file(FLAGS.points) if FLAGS.points else points_of(AXES, FLAGS.samples)
    most = len(points) if FLAGS.yes else MOST_GROUPS
    groups = groups_of(points, list(range(FLAGS.seeds)), configured, most=most)
    check_validation(groups)
    if FLAGS.launcher == "ray":
        ray_backend.connect(FLAGS.ray_address)
    out = Path(FLAGS.out) if FLAGS.out else fresh_folder(f"sweep-{groups[0].config.data.name}")

    began = time.perf_counter()
    with TrialLog(out, groups, resume=FLAGS.resume) as log, progress_bar("runs") as bar:
        total, found = len(log.planned), len(log.found)
        task = bar.add_task("sweep", total=total, completed=found)
        for group, place, outcome in outcomes(
            log.unfinished(), lambda runs: bar.advance(task, runs)
        ):
            log.write(group, group.planned[place], outcome)
        lines = log.lines()
    seconds = time.perf_counter() - began

    console = Console()
    boards = leaderboards(lines)
    write_json(out / "leaderboard.json", boards)
    write_text(
        out / "leaderboard.md", "\n".join(markdown(board, FLAGS.top) for board in boards)
    )
    for board in boards:
        console.print(ranked_table(board, FLAGS.top), crop=False)
        for run in board["diverged"]:
            console.print(f"  diverged: seed {run['seed']}, {run['point']}", highlight=False)
        for suffix in ("png", "svg"):
            draw_search(board).savefig(out / f"scores-{board['data']}.{suffix}", dpi=150)
    diverged = sum(len(board["diverged"]) for board in boards)
    console.print(
        f"{total - found} runs in {seconds:.0f} s, {found} found; {diverged} diverged\n"
        f"{out}/trials.jsonl, leaderboard.md and .json, scores-*.png and .svg",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def outcomes(groups, report):
    """Outcomes of all runs, as they end: the group, the place in it, what became of it."""
    if FLAGS.launcher == "ray":
        for ended in ray_backend.run_groups(groups, at_once=FLAGS.at_once):
            report(1)
            yield ended
        return
    for group in groups:
        trials = [planned.trial for planned in group.planned]
        for place, outcome in run_trials(
            group.config, group.federations, trials, at_once=FLAGS.at_once, report=report
        ):
            yield group, place, outcome


if __name__ == "__main__":
    try:
        sys.argv, AXES = take_axes(sys.argv)
    except ValueError as error:
        refuse(str(error))
    launch(main, many_runs=True)
