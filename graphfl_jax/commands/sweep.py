"""Searches settings: every candidate of a grid, or random ones, each with several seeds.

    graphfl sweep tpt48 --config.data.val_fraction=0.1 \\
        --grid.algorithm=panacea,pfedhn --grid.hparams.client_lr=0.01,0.03,0.1 --seeds=2

An axis is any field of the configuration, or ``algorithm`` for the methods of its file. A field
that a method does not read is left out of its candidates. ``--samples=100`` draws candidates at
random: ``--grid.FIELD`` then lists the values to draw from; ``--uniform.FIELD=LOW,HIGH`` and
``--loguniform.FIELD=LOW,HIGH`` are ranges. ``--points=FILE.py`` takes the candidates from the
function get_points() of a file. Runs that differ only in floats of hparams and in seeds are one
vmapped program, which is split over the devices of this host, or sent to a Ray cluster.

The leaderboard ranks candidates by validation: by the mean score over clients and seeds at P
after the last round, and among equal scores by the mean loss. Evaluations before that have only
P on validation, unless eval.points or eval.splits are set. New clients are also scored on
validation, when they join and after their rounds. Test scores are shown and do not affect the
ranking. A candidate with a diverged run is not ranked.

In the folder of --out, trials.jsonl gets one line with the results of each run when the run
ends. leaderboard.json, leaderboard.md and plots of the scores follow at the end. With --resume,
runs that are in trials.jsonl are not repeated; those of other code need --accept_changes.

--sampler=tpe chooses the candidates by Optuna's TPE sampler from the scores of earlier ones:
--samples candidates, of which it is asked for --batch at a time.

    graphfl sweep tpt48 --config.data.val_fraction=0.1 --sampler=tpe --samples=200 --batch=32 \\
        --loguniform.hparams.client_lr=0.001,0.3

--pruner=asha ends runs early whose validation scores at P are worse than those of others after
as many evaluations. After the evaluations 1, 4, 16, ... a quarter goes on. A pruned candidate
is not ranked.

--keep_best=3 makes the runs of the best three candidates again at the end, as single runs with
folders of their own under best/, which hold their models.

--shard=2/8 makes the second of eight parts of the runs, as one task of an array of jobs does.
The parts can share a folder: each has its own log, such as trials-2-of-8.jsonl, and `graphfl
leaderboard` ranks the candidates of all logs.

--array=slurm --tasks=8 makes no run: it checks the sweep and writes OUT/array.sbatch, with
which Slurm makes the eight parts as one array of jobs.
"""

import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib
from absl import flags

from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.commands.common.accept_changes import changes_accepted
from graphfl_jax.commands.common.command_line import (
    FLAGS,
    compiled_folder,
    launch,
    out_folder,
    progress_bar,
)
from graphfl_jax.commands.common.configuration import (
    configuration_file,
    contents_of,
    refuse_overrides,
)
from graphfl_jax.commands.common.finished_runs import write_views
from graphfl_jax.commands.common.help_text import refuse
from graphfl_jax.commands.common.interrupts import resumable
from graphfl_jax.commands.common.result_tables import divergence_remedy
from graphfl_jax.commands.common.text_tables import count_text, say
from graphfl_jax.commands.sweeping import grid, ray_backend, slurm
from graphfl_jax.commands.sweeping.leaderboard import leaderboards, print_boards, write_boards
from graphfl_jax.commands.sweeping.pruning import Halving
from graphfl_jax.commands.sweeping.tpe import Search, check_seeds, runs_of
from graphfl_jax.commands.sweeping.trial_log import TrialLog, log_of, read_log
from graphfl_jax.metrics import TASKS
from graphfl_jax.runs.batch import Hooks, fields_text, run_trials, with_seed
from graphfl_jax.runs.checkpoint import write_text
from graphfl_jax.runs.disk import writing
from graphfl_jax.runs.executables import private_folder
from graphfl_jax.runs.folder import RunFolder
from graphfl_jax.runs.identity import digest_of_json
from graphfl_jax.runs.single import run_experiment
from graphfl_jax.runs.store import SWEEP, check_folder, content_of
from graphfl_jax.runs.sweep import Point, TrialGroup, groups_of, part_of

MOST_GROUPS = 20  # programs to compile without --yes
BEST = "best"  # folder of the runs of --keep_best

flags.DEFINE_integer("seeds", 1, "Runs of every candidate, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_integer(
    "samples", 0, "Candidates of --sampler; 0 takes the whole grid.", lower_bound=0
)
flags.DEFINE_string("points", None, "Python file with get_points(), which replaces a grid.")
flags.DEFINE_integer(
    "at_once",
    0,
    "Runs in one program; 0 finds a number that is fast and fits into memory.",
    lower_bound=0,
)
flags.DEFINE_integer("top", 10, "Rows of the leaderboard that are printed.", lower_bound=1)
flags.DEFINE_bool(
    "yes", False, f"Accept more than {MOST_GROUPS} programs to compile; of tpe, in a batch."
)
flags.DEFINE_string("out", None, "Folder of the sweep; by default a new one under runs/.")
flags.DEFINE_bool("resume", False, "Continue the sweep in --out.")
flags.DEFINE_enum(
    "sampler",
    "random",
    ["random", "tpe"],
    "How --samples are chosen; tpe: by Optuna.",
)
flags.DEFINE_enum("pruner", None, ["asha"], "Ends runs early that are worse than others.")
flags.DEFINE_integer("batch", 32, "Candidates that tpe is asked for at a time.", lower_bound=1)
flags.DEFINE_integer("keep_best", 0, "Candidates whose runs keep their models.", lower_bound=0)
flags.DEFINE_string("shard", None, "Part of the runs to make, I/N, such as 2/8; with --out.")
flags.DEFINE_enum("array", None, ["slurm"], "Write a file for an array of jobs; with --tasks.")
flags.DEFINE_integer("tasks", None, "Jobs of --array, each a part of the runs.", lower_bound=1)
flags.DEFINE_enum("launcher", "local", ["local", "ray"], "Where the runs are made.")
flags.DEFINE_string("ray_address", "auto", "Address of a running Ray cluster, HOST:PORT.")
READ_WITH = (("batch", "sampler", "tpe"), ("ray_address", "launcher", "ray"))


def main() -> int:
    matplotlib.use("Agg")  # needs no screen
    check_flags()
    accept_changes = changes_accepted()
    shard = shard_of(FLAGS.shard)
    if file := configuration_file():
        contents_of("config", str(file))  # before the fields that it registers are read
    refuse_overrides(
        {"seed": "the runs have the seeds 0, 1, ... of --seeds"}
        | dict.fromkeys(map(grid.dotted_field, AXES), "an axis replaces it")
    )
    search, points = first_points()
    groups = planned_groups(points)
    check_pruner(groups)
    if shard is not None:
        groups = part_of(groups, *shard)
        if not groups:
            raise ValueError(f"shard={FLAGS.shard} has no runs; choose fewer parts")
    if FLAGS.array:
        return write_array(groups)
    if FLAGS.launcher == "ray":
        ray_backend.connect(FLAGS.ray_address)
    return make_sweep(search, points, groups, shard, accept_changes)


def make_sweep(
    search: Search | None,
    points: list[Point],
    groups: list[TrialGroup],
    shard: tuple[int, int] | None,
    accept_changes: bool,
) -> int:
    """Makes the runs that the folder lacks, and prints and writes the leaderboards."""

    def known(out):
        resumable("--resume", f"--out={out}", marker=log_of(out, shard))

    out = out_folder(f"sweep-{groups[0].config.data.name}", known)
    if FLAGS.keep_best:  # refuses a path that no run can have
        RunFolder(Path(out) / BEST / "run", groups[0].config, resume=False)
    began = time.perf_counter()
    log = TrialLog(
        out,
        groups,
        resume=FLAGS.resume,
        accept_changes=accept_changes,
        config_file=configuration_file(),
        shard=shard,
    )
    if search is not None:
        points = replay(search, log, points)
    with log:
        made = make_runs(log, search, points)
        log.check_all_planned()
        lines, total, out = log.lines(), len(log.planned), log.out
    seconds = time.perf_counter() - began

    boards = leaderboards(lines)
    print_boards(boards, FLAGS.top)
    for line in edge_lines(boards, out):
        say(line)
    if shard is None:
        files = f"{log.path}, {write_boards(boards, out, FLAGS.top)}"
    else:
        files = f"{log.path}; all parts in this folder: graphfl leaderboard {out}"
    diverged = sum(len(board["diverged"]) for board in boards)
    pruned = sum(board["pruned"] for board in boards)
    for board in boards if FLAGS.keep_best else ():
        for line in keep_best(board, out):
            say(line)
    say(
        f"{count_text(made, 'run')} in {seconds:.0f} s, "
        f"{total - made} were in {log.path.name}; {diverged} diverged"
        f"{f', {pruned} were pruned' if FLAGS.pruner else ''}\n{files}"
    )
    ranked = any(board["rows"] for board in boards)
    if diverged and not ranked:
        remedy = divergence_remedy(groups[0].config)
        say(f"no candidate is ranked, since runs of all diverged; {remedy}", "red")
    return int(diverged and not ranked)


def edge_lines(boards: list[dict], out: Path) -> Iterator[str]:
    """A line for each axis at whose edge the best candidate of a leaderboard is."""
    for board in boards:
        best = board["rows"][0]["point"] if board["rows"] else {}
        for axis, values in grid.extended(AXES, best).items():
            field = axis.removeprefix("--grid.")
            again = "" if FLAGS.sampler == "tpe" or FLAGS.samples else f" --resume --out={out}"
            yield (
                f"{board['data']}: the best {field}, {best[field]:g}, is at the edge of its "
                f"grid; to extend it: {axis}={','.join(values)}{again}"
            )


def check_flags() -> None:
    """Checks which flags are set together, before any file is read.

    Raises:
      ValueError: flags do not fit together, or there are no points.
    """
    if FLAGS.resume and not FLAGS.out:
        raise ValueError("resume=True needs the folder of the sweep; add --out=DIR")
    if FLAGS.shard is not None and FLAGS.keep_best:
        raise ValueError(
            f"keep_best={FLAGS.keep_best} cannot be combined with shard={FLAGS.shard}, since a "
            f"part does not know the best points; leave one out"
        )
    if FLAGS.points and (AXES or FLAGS.samples):
        raise ValueError(
            f"points={FLAGS.points} cannot be combined with axes or --samples; leave one out"
        )
    if not (FLAGS.points or AXES):
        raise ValueError(
            "the sweep has no points; add an axis such as --grid.hparams.client_lr=0.03,0.1"
        )
    if FLAGS.pruner and FLAGS.seeds > 1:
        raise ValueError(
            f"seeds={FLAGS.seeds} cannot be combined with pruner=asha, which compares runs and "
            f"not candidates; leave --seeds out, and run the best ones with several seeds"
        )
    if FLAGS.pruner and FLAGS.launcher == "ray":
        raise ValueError(
            "launcher=ray cannot be combined with pruner=asha, since its tasks do not know of "
            "each other; leave one out"
        )
    check_array()
    for name, reader, needed in READ_WITH:
        if FLAGS[name].present and FLAGS[reader].value != needed:
            raise ValueError(
                f"{name}={FLAGS[name].value} is not read without --{reader}={needed}; add it, "
                f"or leave --{name} out"
            )


def check_array() -> None:
    """Checks the flags of --array.

    Raises:
      ValueError: a flag does not fit, or is missing.
    """
    if bool(FLAGS.array) != bool(FLAGS.tasks):
        raise ValueError(
            f"array={FLAGS.array} and tasks={FLAGS.tasks} need each other; add --array=slurm "
            f"and --tasks=8"
        )
    if FLAGS.array and not FLAGS.out:
        raise ValueError(f"array={FLAGS.array} needs the folder of the sweep; add --out=DIR")
    for name in ("shard", "resume", "keep_best") if FLAGS.array else ():
        if FLAGS[name].value:
            raise ValueError(
                f"{name}={FLAGS[name].value} cannot be combined with array={FLAGS.array}, "
                f"whose jobs make and resume the parts; leave it out"
            )


def write_array(groups: list[TrialGroup]) -> int:
    """Writes the file of --array, and says how to use it.

    Raises:
      ValueError: there are more jobs than runs, or the file cannot be written.
    """
    runs, out = sum(len(group.planned) for group in groups), Path(FLAGS.out)
    if FLAGS.tasks > runs:
        raise ValueError(
            f"tasks={FLAGS.tasks} exceeds the number of runs, {runs}; set --tasks={runs}"
        )
    check_folder(out, SWEEP)
    file = out / slurm.FILE
    if file.exists():
        raise ValueError(f"out={out} has {slurm.FILE}; remove it, or choose another --out")
    with writing(file):
        out.mkdir(parents=True, exist_ok=True)
        write_text(file, slurm.array_file(WORDS, out, FLAGS.tasks))
    paste, folder = (shlex.quote(str(path)) for path in (file, out))
    say(
        f"{count_text(FLAGS.tasks, 'job')} for {count_text(runs, 'run')}; start them with\n"
        f"  sbatch {paste}    (add your --time, --partition and --gres)\n"
        f"and rank the candidates, while they run or after, with\n"
        f"  graphfl leaderboard {folder}"
    )
    return 0


def first_points() -> tuple[Search | None, list[Point]]:
    """The search by TPE, if there is one, and all points or those of its first batch.

    Raises:
      ValueError: a flag or a value does not fit, or the method of --config is not read.
    """
    search = None
    if FLAGS.sampler == "tpe":
        check_tpe()
        search = Search(AXES, FLAGS.samples, FLAGS.batch)
        points = search.ask()
    elif FLAGS.points:
        points = grid.points_of_file(FLAGS.points)
    else:
        points = grid.points_of(AXES, FLAGS.samples)
    method = (FLAGS.config or "").partition(":")[2]
    if method and all(grid.METHOD in point for point in points):
        where = f"--points={FLAGS.points}" if FLAGS.points else f"--grid.{grid.METHOD}"
        raise ValueError(
            f"config={FLAGS.config} names the method {method}, and {where} names others; leave "
            f":{method} out"
        )
    return search, points


def make_runs(log: TrialLog, search: Search | None, points: list[Point]) -> int:
    """Makes the runs that the log lacks, and shows the progress; their number.

    A search, whose current batch has these points, chooses further ones by the scores.
    """
    made, halving = 0, None
    if FLAGS.pruner:
        halving = begin_halving(log)
    total = FLAGS.samples * FLAGS.seeds if search is not None else len(log.planned)
    with progress_bar("runs") as bar:
        task = bar.add_task("sweep", total=total, completed=len(log.records))
        while True:
            for group, i, outcome in outcomes(
                log.unfinished(), lambda runs: bar.advance(task, runs), halving
            ):
                log.write(group, group.planned[i], outcome)
                made += 1
            if search is None or not search.left:
                return made
            search.record(runs_of(points, log.records, FLAGS.seeds))
            points = search.ask()
            log.plan(planned_groups(points))
            bar.update(task, completed=len(log.records))


def begin_halving(log: TrialLog) -> Halving:
    """The rule of --pruner, with the scores of the runs in the log."""
    group = log.groups[0]
    task = TASKS[next(iter(group.federations.values())).task]
    halving = Halving(higher_is_better=task.higher_is_better)
    for line in log.records.values():
        halving.add([row["P"] for row in line["curve"]])
    return halving


def planned_groups(points: list[Point]) -> list[TrialGroup]:
    """The runs of points with all seeds, evaluated as they are ranked."""
    most = len(points) if FLAGS.yes else MOST_GROUPS
    part = FLAGS.sampler == "tpe"
    seeds = list(range(FLAGS.seeds))
    return grid.evaluate_as_ranked(
        groups_of(points, seeds, grid.configure_point, most=most, part=part)
    )


def check_tpe() -> None:
    """Checks the flags of a search by TPE.

    Raises:
      ValueError: a flag or a value does not fit, no run reads a field, none has attackers, or
        there are several data sets.
    """
    for flag in ("points", "shard", "array"):
        if FLAGS[flag].value:
            raise ValueError(
                f"{flag}={FLAGS[flag].value} cannot be combined with sampler=tpe; leave one out"
            )
    if not FLAGS.samples:
        raise ValueError("samples=0 is not possible with sampler=tpe; add --samples=200")
    groups = groups_of(grid.extreme_points(AXES), [0], grid.configure_point)
    names = dict.fromkeys(group.config.data.name for group in groups)
    if len(names) > 1:
        raise ValueError(
            f"data.name={','.join(names)} cannot be an axis with sampler=tpe, which compares "
            f"the scores of all points; make a sweep for each data set"
        )


def check_pruner(groups: list[TrialGroup]) -> None:
    """Checks that the runs of a sweep can be compared before their end.

    Raises:
      ValueError: they have no evaluation before the last round, or several data sets.
    """
    for group in groups if FLAGS.pruner else ():
        config = group.config
        if config.eval_every >= config.rounds:
            raise ValueError(
                f"eval_every={config.eval_every} leaves pruner=asha no evaluation before the "
                f"last of {config.rounds} rounds; set a smaller --config.eval_every"
            )
        if config.data.name != groups[0].config.data.name:
            raise ValueError(
                "data.name cannot be an axis with pruner=asha, which compares the scores of "
                "all runs; make a sweep for each data set"
            )


def replay(search: Search, log: TrialLog, points: list[Point]) -> list[Point]:
    """Gives a search the scores in the log, plans its next batch of points and returns it.

    The log may have runs of later batches, if a line of an earlier one is damaged.

    Raises:
      ValueError: the search began with other flags, so TPE would choose other points.
    """
    if not log.path.exists():
        return points
    lines, damaged = read_log(log.path)
    records = {line["trial"]: line for line in lines}
    check_seeds(log.path, points, records, FLAGS.seeds)
    while search.left:
        runs = runs_of(points, records, FLAGS.seeds)
        if any(len(of_point) < FLAGS.seeds for of_point in runs):
            break
        search.record(runs)
        points = search.ask()
        log.plan(planned_groups(points))
    log.growing = bool(search.left)
    unplanned = [line for name, line in records.items() if name not in log.planned]
    if unplanned and not any(number <= len(lines) for number in damaged):
        raise ValueError(
            f"out={log.out} has a run that this search does not choose, "
            f"{unplanned[0]['point']} with seed {unplanned[0]['seed']}; set all flags as "
            f"before, such as --samples, --batch and the axes, or choose another --out"
        )
    return points


def keep_best(board: dict, out: Path) -> Iterator[str]:
    """Makes the runs of the best points as single runs, and yields a line for each folder."""
    for rank, row in enumerate(board["rows"][: FLAGS.keep_best], 1):
        for seed in range(FLAGS.seeds):
            config = with_seed(grid.configure_point(row["point"])[0], seed)
            path = out / BEST / f"{digest_of_json(fields_text(config))[:12]}-seed{seed}"
            begun, keep_in = bool(content_of(path)), compiled_folder()
            folder = RunFolder(path, config, resume=begun, accept_changes=changes_accepted())
            # A point may have no attackers, which `graphfl_jax.run` refuses.
            run = run_experiment(
                build_experiment(config, load_federation(config)),
                config,
                folder=folder,
                config_file=configuration_file(),
                executables=private_folder(keep_in),
                save_models=True,
            )
            write_views(path, run)
            yield f"best {rank}, seed {seed}: {path}"


def shard_of(text: str | None) -> tuple[int, int] | None:
    """The number of a part, and of all parts, that --shard names.

    Raises:
      ValueError: it names no part, or --out is missing.
    """
    if text is None:
        return None
    numbers = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    number, parts = map(int, numbers.groups()) if numbers else (0, 0)
    if not 1 <= number <= parts:
        raise ValueError(f"shard={text} is not a part; write --shard=1/8 to --shard=8/8")
    if not FLAGS.out:
        raise ValueError(f"shard={text} needs the folder of its log; add --out=DIR")
    return number, parts


def outcomes(groups, report, halving=None):
    """Yields the group, the index in its ``planned`` and the outcome of each run that ends."""
    if FLAGS.launcher == "ray":
        file = configuration_file()
        for ended in ray_backend.run_groups(groups, at_once=FLAGS.at_once, file=file):
            report(1)
            yield ended
        return
    for group in groups:
        trials = [planned.trial for planned in group.planned]
        for i, outcome in run_trials(
            group.config,
            group.federations,
            trials,
            at_once=FLAGS.at_once,
            report=report,
            keep_in=compiled_folder(),
            hooks=Hooks(halving and halving.judge),
        ):
            yield group, i, outcome


def start() -> None:
    """Reads the axes and the flags, and runs the command."""
    global AXES, WORDS
    WORDS = sys.argv[1:]
    try:
        sys.argv, AXES = grid.take_axes(sys.argv)
    except ValueError as error:
        refuse(str(error))
    launch(main)
