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
from graphfl_jax.configs.fields import setting_of
from graphfl_jax.configs.values import adjust
from graphfl_jax.runs.batch import run_trials
from graphfl_jax.runs.checkpoint import write_json, write_text
from graphfl_jax.runs.sweep import Point, TrialGroup, groups_of

SEARCHES = Path(__file__).parents[1] / "searches.json"
KEPT_RESULTS = Path(__file__).parents[1] / "searched"
TUNED, SEARCHED = (
    Path(configs.__file__).with_name(name) for name in ("tuned.json", "searched.json")
)
ALL, MISSING = "all", "missing"  # values of --methods
GAIN = 1e-4  # a share of a score or a loss
NATS = 1e-3  # which the loss must gain beside accuracies
FINALISTS = 3  # points of a final
KEPT = ("point", "runs", "validation", "sd_seeds", "loss")  # of a row; test scores are not


class Plan(NamedTuple):
    """The search of a method."""

    method: str
    starts: list[Point]  # the search goes on from the best of them
    groups: Callable[[list[Point], int], list[TrialGroup]]  # points, seeds -> their runs
    seeds: int  # runs of a point
    final_seeds: int  # the same of the best points at the end
    stable: bool = False  # whether points beside a diverged run are passed over


def searches_of_file() -> dict:
    """What `SEARCHES` holds; a search with `after` has the settings of the one named there."""
    searches = json.loads(SEARCHES.read_text(encoding="utf-8"))
    designs = searches["searches"]
    for name, design in designs.items():
        if "after" in design:
            designs[name] = designs[design["after"]] | design
    return searches


def design_of_flags() -> dict:
    """The search of --config, one of `searches_of_file`.

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
    searches = searches_of_file()
    designs = searches["searches"]
    if Path(path).stem not in designs:
        raise ValueError(
            f"config={FLAGS.config} has no search in {SEARCHES.name}; choose from "
            f"{', '.join(designs)}, or use graphfl sweep"
        )
    check_list("methods", FLAGS.methods)
    if FLAGS.methods not in ([ALL], [MISSING]):
        check_names("methods", FLAGS.methods, configs.methods())
    design = designs[Path(path).stem]
    starts = searches["starts"][design["starts"]]
    starts |= {ALL: starts[ALL] | design.get("start", {})}
    return design | {
        "name": Path(path).stem,
        "starts": starts,
        "printed": searches["printed"],
    }


def fitting(design: dict) -> tuple[list[Plan], dict[str, str]]:
    """The searches of --methods, and why unnamed methods are left out.

    Raises:
      ValueError: a method that is named does not fit, or none does.
    """
    plans, left_out = [], {}
    every = FLAGS.methods in ([ALL], [MISSING])
    names = list(configs.methods()) if every else FLAGS.methods
    if every:
        same = design.get("rates_of", {})
        left_out = {method: f"it has the rates of {other}" for method, other in same.items()}
        names = [method for method in names if method not in left_out]
    if FLAGS.methods == [MISSING]:
        kept = {row["method"] for row in kept_results(design["name"])["searched"]}
        names = [method for method in names if method not in kept]
    last = names[-1] if names else ""
    for method in names:
        try:
            plan = plan_of(method, design)
            # Not kept, since they hold the data of all methods.
            plan.groups(plan.starts, plan.seeds)
        except ValueError as why:
            none_fits = method == last and not plans and FLAGS.methods == [ALL]
            if not every or none_fits:
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
    start = {
        f"hparams.{name}": float(value)
        for name, value in {**design["starts"][ALL], **design["starts"].get(method, {})}.items()
        if name in config.hparams and not is_fixed(name, method, design)
    }
    start |= {
        name: chosen for name, chosen in earlier_choice(method, design).items() if name in start
    }
    refuse_overrides(dict.fromkeys(start, "the search chooses it"))
    seeds = FLAGS.seeds or design["seeds"]
    final = 0 if method in design.get("without_final", ()) else design.get("final_seeds", 0)

    def groups(points, seeds):
        return grid.evaluate_as_ranked(groups_of(points, list(range(seeds)), configure))

    return Plan(
        method,
        starts_of(start, design),
        groups,
        seeds,
        max(seeds, final),
        design.get("stable", False),
    )


def starts_of(start: Point, design: dict) -> list[Point]:
    """The points that a search compares first: a start, or one for each value of `scan`."""
    field, values = design.get("scan", ("", []))
    name = f"hparams.{field}"
    return [start | {name: float(value)} for value in values] if name in start else [start]


def earlier_choice(method: str, design: dict) -> Point:
    """What the search that goes before this one has chosen for a method."""
    if "after" not in design:
        return {}
    rows = kept_results(design["after"])["searched"]
    return next((row["chosen"] for row in rows if row["method"] == method), None) or {}


def is_fixed(name: str, method: str, design: dict) -> bool:
    """Whether a method states a float of `hparams`, and no search changes it.

    Rates are fixed only where a paper prints them; a weight of 0 is what makes some variants.
    """
    stated = f"hparams.{name}" in configs.methods()[method]
    return stated and (method in design["printed"] or not name.endswith("_lr"))


def searched(plan: Plan, out: Path) -> dict:
    """Makes the runs of a search that its folder lacks; what search.json says of it."""
    log = TrialLog(
        out,
        plan.groups(plan.starts, plan.seeds),
        resume=log_of(out, None).exists(),
        accept_changes=changes_accepted(),
        config_file=configuration_file(),
    )
    log.growing = True  # the log may have runs that are planned later
    path: list[Point] = []
    with log, progress_bar("runs") as bar:
        task = bar.add_task(plan.method)

        def play(points, seeds):
            log.plan(plan.groups(points, seeds))
            bar.update(task, total=len(log.planned), completed=len(log.records))
            make_runs(log, plan.seeds, lambda runs: bar.advance(task, runs))
            # The final of an earlier command may have made runs with more seeds.
            (board,) = leaderboards(line for line in log.lines() if line["seed"] < seeds)
            return board

        while True:
            points = [path[-1], *neighbours(path[-1])] if path else plan.starts
            board = play(points, plan.seeds)
            rows = stable_rows(board) if plan.stable else board["rows"]
            if not path:
                path.append(first(rows, plan.starts))
                continue
            best = step(rows, path[-1], NATS if board["higher_is_better"] else 0.0)
            ended = best == path[-1]
            if ended or len(path) > FLAGS.moves:
                break
            say(f"{plan.method}: {point_text(path[-1])} -> {point_text(best)}")
            path.append(best)
        if ended and plan.final_seeds > plan.seeds:
            board = final(board | {"rows": rows}, plan.final_seeds, play)
            rows = board["rows"]
            best = rows[0]["point"] if rows else best
    if not ended:
        say(f"{plan.method}: has not ended after --moves={FLAGS.moves}; increase --moves")
    return {
        "method": plan.method,
        **{name: board[name] for name in ("data", "source", "metric", "higher_is_better")},
        "path": path,
        "ended": ended,
        "rows": [{name: row[name] for name in KEPT} for row in board["rows"]],
        "diverged": board["diverged"],
        "chosen": best if rows else None,
    }


def final(board: dict, seeds: int, play: Callable[[list[Point], int], dict]) -> dict:
    """The board with the best points first that have runs with all seeds.

    The first `FINALISTS` points get these runs; if some diverge with each of them, the next.

    Args:
      board: of the points with fewer runs, best first.
      play: makes the runs of points with numbers of seeds, and returns a board of all.
    """
    points, whole = [row["point"] for row in board["rows"]], []
    while points and not whole:
        compared, points = points[:FINALISTS], points[FINALISTS:]
        board = play(compared, seeds)
        whole = [row for row in board["rows"] if row["runs"] == seeds]
    others = [row for row in board["rows"] if row not in whole]
    return board | {"rows": whole + others}


def stable_rows(board: dict) -> list[dict]:
    """The rows of a leaderboard whose points are not beside one with a diverged run."""
    beside = [point for run in board["diverged"] for point in neighbours(run["point"])]
    return [row for row in board["rows"] if row["point"] not in beside]


def first(rows: list[dict], starts: list[Point]) -> Point:
    """The best of the starts; if all their runs diverged, the first.

    Args:
      rows: of a leaderboard, best first, also of other points.
    """
    return next((row["point"] for row in rows if row["point"] in starts), starts[0])


def step(rows: list[dict], point: Point, least: float = 0.0) -> Point:
    """Where a search goes on from a point: the best one, or the same if it gains too little.

    The score or the loss must be better by a share of `GAIN`. Some penalties are best without:
    their weights would fall for ever, for less and less. So would a loss beside 100 %.

    Args:
      rows: of a leaderboard, best first.
      least: what a loss must gain at least.
    """
    if not rows:
        return lowered(point)
    best, before = rows[0], next((row for row in rows if row["point"] == point), None)
    if before is None:  # it diverged
        return best["point"]
    for name, smallest in (("validation", 0.0), ("loss", least)):
        old, new = before[name], best[name]
        if old is not None and abs(old - new) > max(GAIN * abs(old), smallest):
            return best["point"]
    return point


def neighbours(point: Point) -> list[Point]:
    """The points that differ in one number, which is the next lower or higher half decade."""
    points = []
    for field, value in point.items():
        setting = setting_of(field)
        for steps in (-1, 1):
            other = grid.half_decade(value, steps)
            if setting.low <= other <= setting.high:
                points.append(point | {field: other})
    return points


def lowered(point: Point) -> Point:
    """A point with lower values, since all runs with these ones diverge."""
    return {field: grid.half_decade(value, -1) for field, value in point.items()}


def make_runs(log: TrialLog, seeds: int, report: Callable[[int], None]) -> None:
    """Makes the planned runs that a log lacks.

    One program plays the `seeds` of a point, so that it is compiled once for all points.
    """
    for group in log.unfinished():
        outcomes = run_trials(
            group.config,
            group.federations,
            [run.trial for run in group.planned],
            at_once=FLAGS.at_once or seeds,
            report=report,
            keep_in=compiled_folder(),
        )
        for i, outcome in outcomes:
            log.write(group, group.planned[i], outcome)


def point_text(point: Point) -> str:
    """The values of a point."""
    items = point.items()
    return ", ".join(f"{field.removeprefix('hparams.')} {value:g}" for field, value in items)


def kept_results(name: str) -> dict:
    """What is kept of the searches of a configuration."""
    file = KEPT_RESULTS / f"{name}.json"
    if not file.exists():
        return {"searched": [], "left_out": {}}
    return json.loads(file.read_text(encoding="utf-8"))


def keep(results: dict, design: dict) -> dict:
    """Keeps the results of a search, and gives its rates to the configuration.

    Results and rates of other methods stay as they are.

    Args:
      results: what search.json says.
      design: of `design_of_flags`.

    Returns:
      All results that are kept.
    """
    name, before = design["name"], kept_results(design["name"])
    rows = {row["method"]: row for row in before["searched"] + results["searched"]}
    order = [method for method in configs.methods() if method in rows]
    left_out = before["left_out"] | results["left_out"]
    kept = {
        "searched": [rows[method] for method in order],
        "left_out": {method: why for method, why in left_out.items() if method not in rows},
    }
    write_json(KEPT_RESULTS / f"{name}.json", kept)
    rates = rates_of(kept, design)
    tuned, of_searches = (
        json.loads(path.read_text(encoding="utf-8")) for path in (TUNED, SEARCHED)
    )
    # Methods that no search had yet keep the rates of older grids.
    write_text(TUNED, as_lines(tuned | {name: tuned.get(name, {}) | rates}))
    write_text(SEARCHED, as_lines(of_searches | {name: sorted(rates)}))
    return kept


def as_lines(contents: dict) -> str:
    """JSON with a line for each method, or for each list of methods."""
    parts = []
    for name, content in contents.items():
        text = json.dumps(content)
        if isinstance(content, dict):
            lines = [f"    {json.dumps(key)}: {json.dumps(content[key])}" for key in content]
            text = "{\n" + ",\n".join(lines) + "\n  }"
        parts.append(f"  {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def rates_of(results: dict, design: dict) -> dict[str, dict[str, float]]:
    """The rates that a search chose, by method and float of `hparams`.

    Methods that were not searched have those of another one, but for what they state.

    Args:
      results: what search.json says.
      design: of `design_of_flags`.
    """
    rates = {
        row["method"]: {
            field.removeprefix("hparams."): value for field, value in row["chosen"].items()
        }
        for row in results["searched"]
        if row["chosen"] is not None
    }
    for method, other in design.get("rates_of", {}).items():
        if other in rates:
            rates[method] = {
                name: value
                for name, value in rates[other].items()
                if not is_fixed(name, method, design)
            }
    return rates


def text_of(rows: list[dict]) -> str:
    """The choices in Markdown."""
    heads = ["method", "chosen", "validation", "loss", "seeds", "points", "diverged runs"]
    text = [[*heads, "ended"]]
    for row in rows:
        best = next((each for each in row["rows"] if each["point"] == row["chosen"]), {})
        scores = [score_text(best[name]) if best else "" for name in ("validation", "loss")]
        numbers = [best.get("runs", ""), len(row["rows"]), len(row["diverged"])]
        counts = list(map(str, numbers))
        ended = "yes" if row["ended"] else "no"
        text.append([row["method"], point_text(row["chosen"] or {}), *scores, *counts, ended])
    return markdown_table(text)
