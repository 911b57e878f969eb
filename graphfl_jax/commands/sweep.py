"""Searches settings: every point of a grid, or random ones, each with several seeds.

    graphfl sweep tpt48 --config.data.val_fraction=0.1 \\
        --grid.algorithm=panacea,pfedhn --grid.hparams.client_lr=0.01,0.03,0.1 --seeds=2

An axis is any field of the configuration, or ``algorithm`` for the methods of its file. A field
that a method does not read is left out of its points. ``--samples=100`` draws random points:
``--grid.FIELD`` then lists the values to draw from, and ``--uniform.FIELD=LOW,HIGH`` and
``--loguniform.FIELD=LOW,HIGH`` are ranges. ``--points=FILE.py`` takes the points from the
function get_points() of a file. Runs that differ only in floats of hparams and in seeds are one
vmapped program, which is split over the devices of this host, or sent to a Ray cluster.

The leaderboard ranks points by validation: by the mean score over clients and seeds at P after
the last round. Evaluations before that compute only P on validation, unless eval.points or
eval.splits are set. New clients are also scored on validation, when they join and after their
rounds. Test scores are shown and do not affect the ranking. A point with a diverged run is not
ranked.

In the folder of --out, trials.jsonl gets one line with the results of each run when the run
ends. leaderboard.json, leaderboard.md and plots of the scores follow at the end. With --resume,
runs that are in trials.jsonl are not repeated; those of other code need --accept_changes.

--shard=2/8 makes the second of eight parts of the runs, as one task of an array of jobs does.
The parts can share a folder: each has its own log, such as trials-2-of-8.jsonl, and `graphfl
leaderboard` ranks the points of all logs.
"""

import re
import sys
import time
from pathlib import Path

import matplotlib
from absl import flags
from rich.console import Console

from graphfl_jax.commands.common.accept_changes import changes_accepted
from graphfl_jax.commands.common.command_line import (
    FLAGS,
    compiled_folder,
    configuration_file,
    fresh_folder,
    launch,
    progress_bar,
)
from graphfl_jax.commands.common.interrupts import resumable
from graphfl_jax.commands.common.plots import draw_search, save_figure
from graphfl_jax.commands.common.refusals import refuse
from graphfl_jax.commands.sweeping import ray_backend
from graphfl_jax.commands.sweeping.grid import (
    configured,
    evaluated_as_ranked,
    points_of,
    points_of_file,
    take_axes,
)
from graphfl_jax.commands.sweeping.leaderboard import leaderboards, markdown, print_boards
from graphfl_jax.commands.sweeping.trial_log import TrialLog
from graphfl_jax.runs.batch import run_trials
from graphfl_jax.runs.checkpoint import write_json, write_text
from graphfl_jax.runs.sweep import groups_of, part_of

MOST_GROUPS = 20  # programs to compile without --yes

flags.DEFINE_integer("seeds", 1, "Runs of every point, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_integer(
    "samples", 0, "Number of random points; 0 takes every point of the grid.", lower_bound=0
)
flags.DEFINE_string("points", None, "Python file with get_points(), which replaces a grid.")
flags.DEFINE_integer(
    "at_once",
    0,
    "Runs in one program; 0 finds a number that is fast and fits into memory.",
    lower_bound=0,
)
flags.DEFINE_integer("top", 10, "Rows of the leaderboard that are printed.", lower_bound=1)
flags.DEFINE_bool("yes", False, f"Accept more than {MOST_GROUPS} programs to compile.")
flags.DEFINE_string("out", None, "Folder of the sweep; by default a new one under runs/.")
flags.DEFINE_bool("resume", False, "Continue the sweep in --out.")
flags.DEFINE_string("shard", None, "Part of the runs to make, I/N, such as 2/8; with --out.")
flags.DEFINE_enum("launcher", "local", ["local", "ray"], "Where the runs are made.")
flags.DEFINE_string("ray_address", "auto", "Address of a running Ray cluster, HOST:PORT.")


def main() -> int:
    matplotlib.use("Agg")  # needs no screen
    if FLAGS.resume and not FLAGS.out:
        raise ValueError("resume=True needs the folder of the sweep; add --out=DIR")
    accept_changes = changes_accepted()
    shard = shard_of(FLAGS.shard)
    if FLAGS.points and (AXES or FLAGS.samples):
        raise ValueError(
            f"points={FLAGS.points} cannot be combined with axes or --samples; leave one out"
        )
    if not (FLAGS.points or AXES):
        raise ValueError(
            "the sweep has no points; add an axis such as --grid.hparams.client_lr=0.03,0.1"
        )
    points = points_of_file(FLAGS.points) if FLAGS.points else points_of(AXES, FLAGS.samples)
    most = len(points) if FLAGS.yes else MOST_GROUPS
    groups = groups_of(points, list(range(FLAGS.seeds)), configured, most=most)
    groups = evaluated_as_ranked(groups)
    if shard is not None:
        groups = part_of(groups, *shard)
        if not groups:
            raise ValueError(f"shard={FLAGS.shard} has no runs; choose fewer parts")
    if FLAGS.launcher == "ray":
        ray_backend.connect(FLAGS.ray_address)
    out = Path(FLAGS.out) if FLAGS.out else fresh_folder(f"sweep-{groups[0].config.data.name}")
    began = time.perf_counter()
    log = TrialLog(
        *(out, groups),
        resume=FLAGS.resume,
        accept_changes=accept_changes,
        config_file=configuration_file(),
        shard=shard,
    )
    resumable("--resume", f"--out={out}", marker=log.path)
    with log, progress_bar("runs") as bar:
        total, found = len(log.planned), len(log.found)
        task = bar.add_task("sweep", total=total, completed=found)
        for group, i, outcome in outcomes(
            log.unfinished(), lambda runs: bar.advance(task, runs)
        ):
            log.write(group, group.planned[i], outcome)
        lines = log.lines()
    seconds = time.perf_counter() - began

    console = Console()
    boards = leaderboards(lines)
    print_boards(console, boards, FLAGS.top)
    if shard is None:
        write_json(out / "leaderboard.json", boards)
        write_text(
            out / "leaderboard.md", "\n".join(markdown(board, FLAGS.top) for board in boards)
        )
        for board in boards:
            save_figure(draw_search(board), out / f"scores-{board['data']}")
        files = f"{log.path}, leaderboard.md and .json, scores-*.png and .svg"
    else:
        files = f"{log.path}; all parts in this folder: graphfl leaderboard {out}"
    diverged = sum(len(board["diverged"]) for board in boards)
    console.print(
        f"{total - found} runs in {seconds:.0f} s, {found} were in {log.path.name}; "
        f"{diverged} diverged\n{files}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def shard_of(text: str | None) -> tuple[int, int] | None:
    """The number of a part, and of all parts, that --shard names.

    Raises:
      ValueError: it names no part, or --out is missing.
    """
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    number, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= parts:
        raise ValueError(f"shard={text} is not a part; write --shard=1/8 to --shard=8/8")
    if not FLAGS.out:
        raise ValueError(f"shard={text} needs the folder of its log; add --out=DIR")
    return number, parts


def outcomes(groups, report):
    """Yields the group, the index in its ``planned`` and the outcome of each run that ends."""
    if FLAGS.launcher == "ray":
        for ended in ray_backend.run_groups(groups, at_once=FLAGS.at_once):
            report(1)
            yield ended
        return
    for group in groups:
        trials = [planned.trial for planned in group.planned]
        for i, outcome in run_trials(
            *(group.config, group.federations, trials),
            at_once=FLAGS.at_once,
            report=report,
            keep_in=compiled_folder(),
        ):
            yield group, i, outcome


def start() -> None:
    """Reads the axes and the flags, and runs the command."""
    global AXES
    try:
        sys.argv, AXES = take_axes(sys.argv)
    except ValueError as error:
        refuse(str(error))
    launch(main)
