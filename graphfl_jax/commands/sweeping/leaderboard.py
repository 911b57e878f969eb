"""Leaderboards of a sweep: points ranked by validation scores, with test scores beside them."""

import itertools
import json
from pathlib import Path

import numpy as np

from graphfl_jax.commands.common.statistics import diverged
from graphfl_jax.commands.common.text_tables import (
    TextTable,
    count_text,
    say,
    score_text,
    value_text,
)
from graphfl_jax.metrics import mean_loss, rank
from graphfl_jax.runs.checkpoint import write_json, write_text
from graphfl_jax.runs.stopping import is_pruned


def leaderboards(lines: list[dict]) -> list[dict]:
    """A leaderboard for each data set of the lines of a trial log.

    Returns:
      For each data set ``data``, ``source``, ``metric``, ``higher_is_better``, the ``fields``
      that name a point, the numbers of ``runs`` and ``points``, the number of runs of
      ``other_code`` that was accepted, the ``rows``, best first, the ``diverged`` runs, and
      the number of ``pruned`` points. A row has a ``point``, the number of its ``runs``,
      ``validation``, ``sd_seeds``, None for one run, the ``loss`` on validation, None if a run
      has none, and ``test``. With new clients it also has their validation scores at the start,
      ``new_clients``, and after their rounds, ``later``. Further metrics are added by their
      names after ``test_``, None where no client has one. A point with a diverged or pruned run
      has no row.

    Raises:
      ValueError: lines do not fit together.
    """
    boards = {}
    for line in lines:
        board = (line["dataset"]["name"], line["metric"])
        boards.setdefault(board, []).append(line)
    try:
        return [_board(data, metric, lines) for (data, metric), lines in boards.items()]
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"folders have runs that do not fit together ({type(error).__name__}: {error}); "
            f"leave a folder out, or make the sweep again"
        ) from error


def _board(data, metric, lines):
    groups, rows, lost, pruned = _points(lines), [], [], 0
    for point, runs in groups:
        if any(map(is_pruned, runs)):
            pruned += 1
            continue
        seeds = [run["seed"] for run in runs if diverged(run)]
        lost += [{"point": point, "seed": seed} for seed in seeds]
        if not seeds:
            rows.append(_row(point, runs))
    better = lines[0]["higher_is_better"]
    rows.sort(key=lambda row: rank(row["validation"], row["loss"], higher_is_better=better))
    return {
        "data": data,
        "source": ", ".join(dict.fromkeys(line["dataset"]["source"] for line in lines)),
        "metric": metric,
        "higher_is_better": better,
        "fields": list(dict.fromkeys(field for point, _ in groups for field in point)),
        "runs": len(lines),
        "points": len(groups),
        "other_code": sum(bool(line["accepted_changes"]) for line in lines),
        "rows": rows,
        "diverged": lost,
        "pruned": pruned,
    }


def _points(lines):
    """Points with their runs, which differ only in the seed.

    Several sweeps may have the same point, with other values of fields that are no axes. Their
    points then have these fields too.
    """
    groups = {}
    for line in lines:
        settings = {k: v for k, v in json.loads(line["trial"]).items() if k != "seed"}
        groups.setdefault(json.dumps(settings, sort_keys=True), (settings, []))[1].append(line)
    axes = dict.fromkeys(field for line in lines for field in line["point"])
    same = {}
    for settings, runs in groups.values():
        known = settings | runs[0]["point"]
        point = {field: known[field] for field in axes if field in known}
        same.setdefault(json.dumps(point), []).append((point, settings, runs))
    points = []
    for several in same.values():
        pairs = itertools.combinations([settings for _, settings, _ in several], 2)
        different = sorted(
            {
                field
                for settings, other in pairs
                for field in settings.keys() & other.keys()
                if settings[field] != other[field]
            }
        )
        for point, settings, runs in several:
            differing = {field: settings[field] for field in different if field in settings}
            points.append((point | differing, runs))
    return points


def _row(point, runs):
    """Means at P over clients and seeds."""
    at_end = [run["validation"]["final"]["P"] for run in runs]
    validation = [summary["mean"] for summary in at_end]
    row = {
        "point": point,
        "runs": len(runs),
        "validation": float(np.mean(validation)),
        "sd_seeds": float(np.std(validation)) if len(runs) > 1 else None,
        "loss": mean_loss(summary.get("loss") for summary in at_end),
    }
    if runs[0]["new_clients"]:
        for name, rounds in (("new_clients", 0), ("later", -1)):
            scores = [run["validation"]["new_clients"][rounds] for run in runs]
            row[name] = float(np.mean(scores))
    test = [run["scores"]["final"]["P"]["mean"] for run in runs]
    row["test"] = float(np.mean(test))
    for name in (runs[0].get("metrics") or {"P": ()})["P"]:
        means = [run["metrics"]["P"][name]["mean"] for run in runs]
        row[f"test_{name}"] = None if None in means else float(np.mean(means))
    return row


def ranked_rows(board: dict, top: int) -> list[list[str]]:
    """Heads, and the `top` points of a leaderboard, as text."""
    fields = board["fields"]
    same = len({row["runs"] for row in board["rows"]}) == 1
    left_out = {"point", "runs"} if same else {"point"}
    if all(row.get("loss") in (None, row.get("validation")) for row in board["rows"]):
        left_out.add("loss")  # the score is the loss
    names = dict.fromkeys(name for row in board["rows"] for name in row)
    numbers = [name for name in names if name not in left_out]
    heads = [field.removeprefix("hparams.") for field in fields]
    text = [[*heads, *(name.replace("_", " ") for name in numbers)]]
    for row in board["rows"][:top]:
        values = [row["point"].get(field, "") for field in fields]
        scores = map(row.get, numbers)
        text.append([*map(value_text, values), *map(score_text, scores)])
    return text


def ranked_table(board: dict, top: int) -> TextTable:
    """The `top` points of a leaderboard."""
    counts = sorted({row["runs"] for row in board["rows"]} or {0})
    fewest = f"{counts[0]} to " if len(counts) > 1 else ""
    seeds = fewest + count_text(counts[-1], "seed")
    better = "higher" if board["higher_is_better"] else "lower"
    other = board["other_code"]
    code = f"; {other} runs are of other code" if other else ""
    pruned = f", {board['pruned']} were pruned" if board["pruned"] else ""
    title = f"{board['metric']} at P on {board['data']}, data: {board['source']}"
    caption = (
        f"{len(board['rows'])} of {board['points']} candidates ranked{pruned}, {seeds}; "
        f"ranked by validation, {better} is better, and among equals by its loss; test scores "
        f"do not affect the ranking{code}"
    )
    return TextTable(title, caption, ranked_rows(board, top))


def print_boards(boards: list[dict], top: int) -> None:
    """Prints the `top` points of each leaderboard, and the diverged runs."""
    for board in boards:
        table = ranked_table(board, top)
        table.show(left=table.rows[0][: len(board["fields"])])
        for run in board["diverged"]:
            say(f"  diverged: seed {run['seed']}, {run['point']}")


def markdown(boards: list[dict], top: int) -> str:
    """The `top` points of each leaderboard in Markdown."""
    return "\n".join(ranked_table(board, top).markdown() for board in boards)


def write_boards(boards: list[dict], out: Path, top: int) -> str:
    """Writes leaderboards and plots of their scores into a folder; the names of the files."""
    # Matplotlib takes half a second, for which `graphfl leaderboard` should not wait.
    from graphfl_jax.commands.common.plots import draw_search, save_figure

    write_json(out / "leaderboard.json", boards)
    write_text(out / "leaderboard.md", markdown(boards, top))
    searched = [board for board in boards if board["fields"]]
    for board in searched:
        name = board["data"].replace("/", "-")
        save_figure(draw_search(board), out / f"scores-{name}")
    return "leaderboard.md and .json" + (", scores-*.png and .svg" if searched else "")
