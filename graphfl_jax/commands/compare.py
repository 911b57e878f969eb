"""Compares runs: what differs in their settings, scores over seeds, and paired tests.

    graphfl compare runs/*
    graphfl compare runs/panacea-* runs/fedavg-* --to=compare.md
    graphfl compare my.py other.py --methods=panacea,fedavg --seeds=3 --out=runs/mine

Runs that differ only in their seed are one group. For each group, the mean test score after
the last round and its 95 % interval over seeds are shown at G, L and P. Two groups with the
same seeds on the same split of the same data are compared by Wilcoxon's signed-rank test over
clients. Groups with other data are not compared, and the output names them.

A word that ends in .py, .toml or .yaml is a configuration file. Each of --methods is run on it
with each of --seeds; without --methods, the method that the file chooses is. A run has a folder
in --out, such as my-panacea-seed0, without checkpoints. With --resume, runs that have results
there are not repeated. If the code or the file has changed since, --accept_changes is needed.

--plot=curves.svg draws the test scores at P over rounds, or with --over=bytes, steps or seconds
over what a round takes in the mean. Seeds of a group are one line with a band of one standard
deviation.

With --target=0.9, a further table has the rounds, the bytes and the seconds of training until
an evaluation has a mean test score at P of 0.9 or better.

With --to, the comparison is also written: all of it as .json or .md, the scores alone as .csv,
and as .tex for a paper, with the best in bold and marks of the tests.
"""

import csv
import io
import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from absl import flags
from ml_collections import ConfigDict

from graphfl_jax.commands.common import paper_tables
from graphfl_jax.commands.common.accept_changes import changes_accepted
from graphfl_jax.commands.common.command_line import (
    FLAGS,
    compiled_folder,
    launch,
    new_file_of_flag,
    progress_bar,
    refuse_unread,
)
from graphfl_jax.commands.common.comparison import comparison, data_texts
from graphfl_jax.commands.common.configuration import (
    READERS,
    configuration_in_file,
    with_data_root,
)
from graphfl_jax.commands.common.finished_runs import (
    FinishedRun,
    read_rows,
    read_run,
    read_runs,
    why_no_run,
)
from graphfl_jax.commands.common.interrupts import resumable
from graphfl_jax.commands.common.seeded_runs import prepare_seeds, run_seeds, seed_folders
from graphfl_jax.commands.common.text_tables import TextTable, count_text, say, value_text
from graphfl_jax.configs.base import variant_of
from graphfl_jax.configs.values import values_of
from graphfl_jax.evaluation import POINTS
from graphfl_jax.runs.checkpoint import write_bytes, write_json, write_text
from graphfl_jax.runs.results import with_null
from graphfl_jax.runs.store import NewFolders, content_of
from graphfl_jax.runs.views import OVER, new_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

flags.DEFINE_multi_string(
    "folders", [], "Folders of runs, and configuration files; the words without a flag."
)
flags.DEFINE_string("to", None, "File to write, .json, .csv, .md or .tex; it must not exist.")
flags.DEFINE_float("target", None, "Mean test score at P; what it takes to reach it is shown.")
flags.DEFINE_string("plot", None, "File of the curves at P, .png, .svg or .pdf; a new one.")
flags.DEFINE_enum("over", "rounds", list(OVER), "What the curves of --plot are drawn over.")
flags.DEFINE_list(
    "methods", [], "Methods that are run on each configuration file; empty is that of the file."
)
flags.DEFINE_integer(
    "seeds",
    1,
    "Runs of each method on each file, with seeds from that of the file on.",
    lower_bound=1,
)
flags.DEFINE_string(
    "out", None, "Folder of the runs' folders; by default a new one under runs/."
)
flags.DEFINE_bool("resume", False, "Do not repeat the runs in --out that have results.")


def main() -> int:
    to = new_file_of_flag(".json", ".csv", ".md", ".tex")
    if FLAGS.target is not None and not math.isfinite(FLAGS.target):
        raise ValueError(f"target={FLAGS.target} is no score; set a number such as 0.9")
    plot = new_file_of_flag(".png", ".svg", ".pdf", flag="plot")
    if FLAGS["over"].present and plot is None:
        raise ValueError(
            f"over={FLAGS.over} is not read without --plot; add it, or leave it out"
        )
    if not names_files():
        names = ("methods", "seeds", "out", "resume", "accept_changes")
        refuse_unread(*names, where="without a configuration file")
    folders = [Path(word) for word in FLAGS.folders if not is_file(word)]
    out = Path(FLAGS.out) if FLAGS.out else NewFolders(Path("runs", "compare"))
    plans = plans_of_flags(Path(out))
    planned = [path for plan in plans for path in plan.folders.values()]
    reasons = {path: why_no_run(path) for path in folders if path not in planned}
    usable = [path for path, why in reasons.items() if not why]
    if len(usable + planned) < 2:
        unusable = "".join(f", {path} {why}" for path, why in reasons.items() if why)
        kind = "run" if plans else "finished run"
        raise ValueError(
            f"folders={','.join(dict.fromkeys(FLAGS.folders))} has "
            f"{count_text(len(usable + planned), kind)}"
            f"{unusable}; name two or more, such as runs/a runs/b"
        )
    if plans:
        planned = make_runs(plans, out)
    runs = [*read_runs(usable), *map(read_run, planned)]
    content = comparison(runs, target=FLAGS.target)
    figure = plot and figure_of(runs, content)
    notes = [f"left out: {path} {why}" for path, why in reasons.items() if why]
    notes += notes_of(content)
    for table in tables(content):
        table.show(left=("field", "group", "first", "second", "metric"))
    for note in notes:
        say(note)
    if to is not None:
        write(to, content, notes)
        say(to)
    if plot is not None:
        image = io.BytesIO()
        figure.savefig(image, format=plot.suffix[1:], dpi=150)
        write_bytes(plot, image.getvalue())
        say(plot)
    return 0


def figure_of(runs: list[FinishedRun], content: dict) -> "Figure":
    """The curves of test scores at P of runs that did not diverge.

    Raises:
      ValueError: the runs have several metrics, or as `views.per_round`.
    """
    from graphfl_jax.commands.common.curves import Curve, draw_curves

    metrics = dict.fromkeys(setting["metric"] for setting in content["settings"])
    if len(metrics) > 1:
        raise ValueError(
            f"plot={FLAGS.plot} would have the metrics {' and '.join(metrics)} on one axis; "
            f"compare the runs of one data set"
        )
    names = {path: each["name"] for each in content["settings"] for path in each["runs"]}
    curves = []
    for run in runs:
        means = [
            (row["round"], row.get("test", {}).get("P", {})) for row in read_rows(run.path)
        ]
        scores = {played: at["mean"] for played, at in means if at}
        if not run.results["diverged"]:
            curves.append(Curve(names[str(run.path)], run.results, scores))
    axes = new_axes()
    draw_curves(axes, curves, over=FLAGS.over)
    return axes.figure


def is_file(word: str) -> bool:
    """Whether a word is a configuration file, and not the folder of a run."""
    return Path(word).suffix in (".py", *READERS) and not Path(word).is_dir()


def names_files() -> bool:
    """Whether a configuration file is compared."""
    return any(map(is_file, FLAGS.folders))


class PlannedRuns(NamedTuple):
    """The runs of one method on one configuration file."""

    name: str  # of the file and the method
    config: ConfigDict
    file: Path
    folders: dict[int, Path]  # by seed

    @property
    def begun(self) -> bool:
        """Whether a folder holds a run."""
        return any(map(content_of, self.folders.values()))

    def within(self, out: Path) -> "PlannedRuns":
        """The same runs with folders in another folder."""
        return self._replace(folders={s: out / path.name for s, path in self.folders.items()})


def plans_of_flags(out: Path) -> list[PlannedRuns]:
    """The runs on the configuration files, which are executed, with folders in `out`.

    Raises:
      ValueError: a file or a flag does not fit, or two runs are the same.
    """
    files = list(dict.fromkeys(filter(is_file, FLAGS.folders)))
    if not files:
        return []
    changes_accepted()
    if FLAGS.resume and not FLAGS.out:
        raise ValueError("resume=True needs the folder of the runs; add --out=DIR")
    plans = []
    for file, method in itertools.product(files, FLAGS.methods or [None]):
        words = [] if method is None else [method]
        config = with_data_root(configuration_in_file("folders", file, *words))
        name = f"{Path(file).stem}-{method or variant_of(config)}"
        seeds = range(config.seed, config.seed + FLAGS.seeds)
        folders = seed_folders(str(out / name), seeds)
        plans.append(PlannedRuns(name, config, Path(file), folders))
    for first, second in itertools.combinations(plans, 2):
        if first.name == second.name:
            raise ValueError(
                f"folders={','.join(files)} with methods={','.join(FLAGS.methods)} names "
                f"{second.name} twice; give each file another name, and name each method once"
            )
        # They may differ in their first seed alone.
        values, others = (values_of(plan.config)[0] | {"seed": 0} for plan in (first, second))
        if first.folders.keys() & second.folders.keys() and values == others:
            raise ValueError(
                f"folders={second.file} has the configuration of {first.file}; leave one of "
                f"them out"
            )
    if FLAGS.resume and not any(plan.begun for plan in plans):
        raise ValueError(
            f"out={out} holds no run to resume; leave --resume out, or correct --out"
        )
    return plans


def make_runs(plans: list[PlannedRuns], out: Path | NewFolders) -> list[Path]:
    """Makes the runs that have no results, after all have been checked; shows the progress.

    Args:
      out: the folder that has their folders.

    Returns:
      The folders of all planned runs.
    """
    with progress_bar() as bar:
        total = sum(plan.config.rounds * len(plan.folders) for plan in plans)
        task = bar.add_task("", total=total)

        def play(function, plan):
            def report(runs):
                bar.update(task, description=plan.name, advance=plan.config.rounds * runs)

            function(
                plan.config,
                plan.folders,
                resume=FLAGS.resume and plan.begun,
                accept_changes=changes_accepted(),
                report=report,
                keep_in=compiled_folder(),
                config_file=plan.file,
            )

        for plan in plans:
            play(prepare_seeds, plan)
        if isinstance(out, NewFolders):
            (made,) = out.make()
            plans = [plan.within(made) for plan in plans]
        paths = [path for plan in plans for path in plan.folders.values()]
        resumable("--resume", f"--out={paths[0].parent}", marker=paths[0] / "config.json")
        for plan in plans:
            play(run_seeds, plan)
    return paths


def notes_of(content: dict) -> list[str]:
    """What a comparison leaves out, and what its scores hide."""
    notes = [
        f"not paired: {pair['first']} and {pair['second']}, since {pair['why']}"
        for pair in content["unpaired"]
    ]
    notes += [
        f"the data of {setting['name']} differ between seeds: the seed decides them, or a file "
        f"has changed"
        for setting in content["settings"]
        if len({*setting["data_sha256"]}) > 1
    ]
    notes += [
        f"{setting['name']}: {setting['sample']}"
        for setting in content["settings"]
        if setting["sample"]
    ]
    return notes


def tables(content: dict, *, scores: bool = True) -> list[TextTable]:
    """The tables of a comparison, without empty ones; also that of the scores, or not."""
    parts = (field_table, *[score_table] * scores, metric_table, target_table, pair_table)
    return [table for part in parts if len((table := part(content)).rows) > 1]


def field_table(content: dict) -> TextTable:
    """The fields that differ, with their value in each group."""
    settings = content["settings"]
    heads = ["field", *(setting["name"] for setting in settings)]
    rows = [
        [name, *(value_text(setting["fields"][name]) for setting in settings)]
        for name in content["fields"]
    ]
    caption = "- where a group does not read the field"
    return TextTable("fields that differ", caption, [heads, *rows])


def score_table(content: dict) -> TextTable:
    """The test scores of each group."""
    settings = content["settings"]
    private = any(setting["epsilon"] is not None for setting in settings)
    rows = [["group", "data", "metric", "seeds", *["epsilon"] * private, *POINTS]]
    for setting, data in zip(settings, data_texts(settings), strict=True):
        cells = [f"{setting['diverged']} diverged"] * len(POINTS)
        if setting["scores"] is not None:
            cells = [mean_text(setting["scores"][point]) for point in POINTS]
        seeds, epsilon = str(len(setting["seeds"])), setting["epsilon"]
        if private:
            cells.insert(0, "-" if epsilon is None else f"{epsilon:.3g}")
        rows.append([setting["name"], data, setting["metric"], seeds, *cells])
    better = {"higher" if setting["higher_is_better"] else "lower" for setting in settings}
    direction = f"{better.pop()} is better; " if len(better) == 1 else ""
    caption = f"{direction}mean ± 95 % interval over seeds"
    return TextTable("test scores after the last round", caption, rows)


def metric_table(content: dict) -> TextTable:
    """The further metrics of each group."""
    rows = [
        [setting["name"], name, *(mean_text(scores[point]) for point in POINTS)]
        for setting in content["settings"]
        for name, scores in setting["metrics"].items()
    ]
    title, heads = "further metrics after the last round", ["group", "metric", *POINTS]
    caption = "clients for which a metric is defined; mean ± 95 % interval over seeds"
    return TextTable(title, caption, [heads, *rows])


def target_table(content: dict) -> TextTable:
    """What each group takes to reach the target."""
    rows = [["group", "seeds", "rounds", "MB", "seconds"]]
    for setting in content["settings"] if content["target"] is not None else ():
        reached = [costs for costs in setting["reached"] if costs is not None]
        cells = [f"{len(reached)} of {len(setting['seeds'])}"]
        for name, factor in (("round", 1), ("bytes", 1e-6), ("seconds", 1)):
            values = [factor * costs[name] for costs in reached]
            cells.append(f"{sum(values) / len(values):.4g}" if values else "-")
        rows.append([setting["name"], *cells])
    title = f"until a mean test score at P of {content['target']}"
    caption = (
        "means over the seeds that reached it at an evaluation; MB sent and received by all "
        "clients; seconds of training"
    )
    return TextTable(title, caption, rows)


def pair_table(content: dict) -> TextTable:
    """The paired tests over clients."""
    rows = [["first", "second", "seeds", "clients", "difference", "better", "p", "p (Holm)"]]
    for pair in content["pairs"]:
        at = pair["points"]["P"]
        rows.append(
            [
                pair["first"],
                pair["second"],
                str(len(pair["seeds"])),
                str(pair["clients"]),
                f"{at['difference']:+.4g}",
                str(at["better"]),
                f"{at['p']:.3g}",
                f"{at['p_holm']:.3g}",
            ]
        )
    caption = (
        "second - first at P, means over clients; clients for which the second is better; "
        "Wilcoxon's signed-rank test over clients, Holm's correction for all pairs"
    )
    return TextTable("paired by clients", caption, rows)


def mean_text(score: dict | None) -> str:
    """The mean and the half width of its interval; None is undefined."""
    if score is None:
        return "none"
    interval = "" if score["half_width"] is None else f"±{score['half_width']:.2g}"
    return f"{score['mean']:.4g}{interval}"


def write(path: Path, content: dict, notes: list[str]) -> None:
    """Writes a comparison in the format of the file's name."""
    if path.suffix == ".json":
        write_json(path, with_null(content))
    elif path.suffix == ".csv":
        write_text(path, csv_text(content))
    elif path.suffix == ".tex":
        write_text(path, paper_tables.latex_text(content))
    else:
        parts = [paper_tables.markdown_text(content)]
        parts += [table.markdown() for table in tables(content, scores=False)]
        parts += ["".join(f"- {note}\n" for note in notes)] if notes else []
        write_text(path, "\n".join(parts))


def csv_text(content: dict) -> str:
    """The scores: a line for each group, metric and point, with all digits."""
    text = io.StringIO()
    heads = ("name", "method", "data", "source", "extent", "metric", "seeds", "diverged")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["group", *heads[1:], *content["fields"], "point", "mean", "half_width"])
    for setting in content["settings"]:
        cells = setting | {"seeds": len(setting["seeds"])}
        values = [setting["fields"][name] for name in content["fields"]]
        by_metric = {setting["metric"]: setting["scores"] or {}, **setting["metrics"]}
        for (metric, scores), point in itertools.product(by_metric.items(), POINTS):
            score = scores.get(point) or {}
            named = [(cells | {"metric": metric})[name] for name in heads]
            writer.writerow(
                [*named, *values, point, score.get("mean"), score.get("half_width")]
            )
    return text.getvalue()


def start() -> None:
    """Reads the flags, and runs the command."""
    launch(main, keep_compiled=names_files, configured=False)
