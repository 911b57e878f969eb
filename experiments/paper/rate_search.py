"""The search of the rates of methods on validation, see `experiments.search`."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from experiments.common.flag_values import check_list, check_names
from graphfl_jax import configs
from graphfl_jax.commands.common.accept_changes import changes_accepted
from graphfl_jax.commands.common.command_line import (
    FLAGS,
    compiled_folder,
    progress_bar,
)
from graphfl_jax.commands.common.configuration import (
    OVERRIDES,
    configuration_file,
    file_configuration,
    refuse_overrides,
)
from graphfl_jax.commands.common.text_tables import markdown_table, say, score_text
from graphfl_jax.commands.sweeping import grid
from graphfl_jax.commands.sweeping.leaderboard import leaderboards
from graphfl_jax.commands.sweeping.trial_log import TrialLog, log_of
from graphfl_jax.configs import change
from graphfl_jax.configs.values import adjust
from graphfl_jax.runs.batch import run_trials
from graphfl_jax.runs.sweep import TrialGroup, groups_of

SEARCHES = Path(__file__).parents[1] / "searches.json"
ALL = "all"
KEPT = ("point", "runs", "validation", "sd_seeds", "loss")  # of a row; test scores are not


class Plan(NamedTuple):
    """The search of a method."""

    method: str
    axes: dict[str, list[str]]  # as of `grid.take_axes`
    groups: Callable[[dict], list[TrialGroup]]  # axes -> the runs of all their points


def design_of_flags() -> dict:
    """The search of --config, an entry of `SEARCHES`.

    Raises:
      ValueError: there is none, or --config or --methods does not fit.
    """
    file_configuration()  # fails early without --config
    path, _, method = FLAGS.config.partition(":")
    if method:
        raise ValueError(
            f"config={FLAGS.config} names the method {method}, and --methods names those that "
            f"are searched; leave :{method} out"
        )
    searches = json.loads(SEARCHES.read_text(encoding="utf-8"))
    designs = searches["searches"]
    if Path(path).stem not in designs:
        raise ValueError(
            f"config={FLAGS.config} has no search in {SEARCHES.name}; choose from "
            f"{', '.join(designs)}, or use graphfl sweep"
        )
    check_list("methods", FLAGS.methods)
    if FLAGS.methods != [ALL]:
        check_names("methods", FLAGS.methods, configs.methods())
    design = designs[Path(path).stem]
    return design | {"axes": searches["axes"][design["axes"]]}


def fitting(design: dict) -> tuple[list[Plan], dict[str, str]]:
    """The searches of all methods, and why methods are left out if all are asked for.

    Raises:
      ValueError: a method that is named does not fit, or none does.
    """
    plans, left_out = [], {}
    every = FLAGS.methods == [ALL]
    names = list(configs.methods()) if every else FLAGS.methods
    last = names[-1]
    for method in names:
        try:
            plan = plan_of(method, design)
            plan.groups(plan.axes)  # not kept, since they hold the data of all methods
        except ValueError as why:
            if not every or method == last and not plans:
                raise
            left_out[method] = str(why)
            warnings.warn(f"{method} is left out: {why}", RuntimeWarning, stacklevel=2)
        else:
            plans.append(plan)
    return plans, left_out


def plan_of(method: str, design: dict) -> Plan:
    """The search of a method."""

    def configure(point):
        fields = {**design["fields"], **design.get("of_methods", {}).get(method, {})}
        fields = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        config = change(file_configuration(method), fields)
        changes = dict(point)
        if FLAGS.data_root is not None and "root" in config.data:
            changes["data.root"] = FLAGS.data_root
        return adjust(config, OVERRIDES, changes)

    config, _ = configure({})
    axes = {
        f"--grid.hparams.{name}": [f"{value:g}" for value in values]
        for name, values in {**design["axes"]["all"], **design["axes"].get(method, {})}.items()
        if name in config.hparams and f"hparams.{name}" not in configs.methods()[method]
    }
    refuse_overrides(dict.fromkeys(map(grid.dotted_field, axes), "the search chooses it"))
    seeds = list(range(FLAGS.seeds or design["seeds"]))

    def groups(axes):
        return grid.evaluate_as_ranked(groups_of(grid.points_of(axes, 0), seeds, configure))

    return Plan(method, axes, groups)


def searched(plan: Plan, out: Path) -> dict:
    """Makes the runs of a search that its folder lacks; what search.json says of it."""
    log = TrialLog(
        out,
        plan.groups(plan.axes),
        resume=log_of(out, None).exists(),
        accept_changes=changes_accepted(),
        config_file=configuration_file(),
    )
    log.growing = True  # the log may have runs that are planned later
    axes, added, edge = dict(plan.axes), dict.fromkeys(plan.axes, 0), []
    with log, progress_bar("runs") as bar:
        task = bar.add_task(plan.method, total=len(log.planned), completed=len(log.records))
        while True:
            make_runs(log, lambda runs: bar.advance(task, runs))
            (board,) = leaderboards(log.lines())
            if not board["rows"]:
                break
            longer = grid.extended(axes, board["rows"][0]["point"])
            edge = [axis for axis in longer if added[axis] == FLAGS.extensions]
            more = {axis: values for axis, values in longer.items() if axis not in edge}
            for axis in longer:
                say(edge_text(plan.method, axis, longer[axis], axis in edge))
            if not more:
                break
            axes |= more
            added |= {axis: added[axis] + 1 for axis in more}
            log.plan(plan.groups(axes))
            bar.update(task, total=len(log.planned), completed=len(log.records))
    return {
        "method": plan.method,
        **{name: board[name] for name in ("data", "source", "metric", "higher_is_better")},
        "axes": {axis.removeprefix("--grid."): list(map(float, axes[axis])) for axis in axes},
        "added": {axis.removeprefix("--grid."): number for axis, number in added.items()},
        "at_edge": [axis.removeprefix("--grid.") for axis in edge],
        "rows": [{name: row[name] for name in KEPT} for row in board["rows"]],
        "diverged": board["diverged"],
        "chosen": board["rows"][0]["point"] if board["rows"] else None,
    }


def make_runs(log: TrialLog, report: Callable[[int], None]) -> None:
    """Makes the planned runs that a log lacks."""
    for group in log.unfinished():
        outcomes = run_trials(
            group.config,
            group.federations,
            [run.trial for run in group.planned],
            at_once=FLAGS.at_once,
            report=report,
            keep_in=compiled_folder(),
        )
        for i, outcome in outcomes:
            log.write(group, group.planned[i], outcome)


def edge_text(method: str, axis: str, values: list[str], ended: bool) -> str:
    """What is said of an axis at whose edge the best value is."""
    field = axis.removeprefix("--grid.")
    where = f"{method}: the best {field} is at the edge of {','.join(values[:-1])}; "
    return where + ("the limit is reached" if ended else f"{values[-1]} is added")


def text_of(rows: list[dict]) -> str:
    """The choices in Markdown."""
    heads = ["method", "chosen", "validation", "loss", "points", "diverged", "at an edge"]
    text = [heads]
    for row in rows:
        best = row["rows"][0] if row["rows"] else {}
        point = (row["chosen"] or {}).items()
        chosen = ", ".join(f"{field.removeprefix('hparams.')} {v:g}" for field, v in point)
        scores = [score_text(best[name]) if best else "" for name in ("validation", "loss")]
        counts = [str(len(row["rows"])), str(len(row["diverged"]))]
        edge = ", ".join(field.removeprefix("hparams.") for field in row["at_edge"])
        text.append([row["method"], chosen, *scores, *counts, edge])
    return markdown_table(text)
