"""Leaderboards of a sweep: points ranked by validation scores, with test scores beside them."""

import json

import numpy as np
from rich.console import Console
from rich.table import Table

from graphfl_jax.commands.common.statistics import diverged
from graphfl_jax.commands.common.text_tables import markdown_table, narrow


def leaderboards(lines: list[dict]) -> list[dict]:
    """A leaderboard for each data set.

    Args:
      lines: lines of the trial log.

    Returns:
      For each data set ``data``, ``source``, ``metric``, ``higher_is_better``, the ``fields``
      of the points, the numbers of ``runs`` and ``points``, the number of runs of
      ``other_code`` that was accepted, the ``rows``, best first, and the ``diverged`` runs. A
      row has a ``point``, the number of its ``runs``, ``validation``, ``sd_seeds`` and
      ``test``. With new clients it also has their validation scores at the start,
      ``new_clients``, and after their rounds, ``later``. Further metrics are added by their
      names after ``test_``, None where no client has one. A point with a diverged run has no
      row.
    """
    boards = {}
    for line in lines:
        board = (line["dataset"]["name"], line["metric"])
        boards.setdefault(board, []).append(line)
    return [_board(data, metric, lines) for (data, metric), lines in boards.items()]


def _board(data, metric, lines):
    fields = list(dict.fromkeys(field for line in lines for field in line["point"]))
    points = {}
    for line in lines:
        points.setdefault(json.dumps(line["point"]), []).append(line)
    rows = [_row(runs) for runs in points.values() if not any(map(diverged, runs))]
    better = lines[0]["higher_is_better"]
    rows.sort(key=lambda row: row["validation"], reverse=better)
    return {
        "data": data,
        "source": lines[0]["dataset"]["source"],
        "metric": metric,
        "higher_is_better": better,
        "fields": fields,
        "runs": len(lines),
        "points": len(points),
        "other_code": sum(bool(line["accepted_changes"]) for line in lines),
        "rows": rows,
        "diverged": [
            {"point": line["point"], "seed": line["seed"]} for line in lines if diverged(line)
        ],
    }


def _row(runs):
    """Means at P over clients and seeds."""
    validation = [run["validation"]["final"]["P"]["mean"] for run in runs]
    row = {
        "point": runs[0]["point"],
        "runs": len(runs),
        "validation": float(np.mean(validation)),
        "sd_seeds": float(np.std(validation)),
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
    names = dict.fromkeys(name for row in board["rows"] for name in row)
    numbers = [name for name in names if name not in left_out]
    heads = [field.removeprefix("hparams.") for field in fields]
    text = [[*heads, *(name.replace("_", " ") for name in numbers)]]
    for row in board["rows"][:top]:
        values = [row["point"].get(field, "") for field in fields]
        cells = [f"{v:g}" if isinstance(v, float) else str(v) for v in values]
        scores = map(row.get, numbers)
        text.append([*cells, *("none" if v is None else f"{v:.4g}" for v in scores)])
    return text


def _title_and_caption(board):
    counts = sorted({row["runs"] for row in board["rows"]} or {0})
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else counts[0]
    better = "higher" if board["higher_is_better"] else "lower"
    return (
        f"{board['metric']} at P on {board['data']}, data: {board['source']}",
        f"{len(board['rows'])} of {board['points']} points ranked, {seeds} seeds; ranked by "
        f"validation, {better} is better; test scores do not affect the ranking"
        + f"; {board['other_code']} runs are of other code"
        * bool(board["other_code"]),
    )


def ranked_table(board: dict, top: int) -> Table:
    """The `top` points for a console."""
    title, caption = _title_and_caption(board)
    return narrow(title, ranked_rows(board, top), left=("algorithm",), caption=caption)


def print_boards(console: Console, boards: list[dict], top: int) -> None:
    """Prints the `top` points of each leaderboard, and the diverged runs."""
    for board in boards:
        console.print(ranked_table(board, top), crop=False)
        for run in board["diverged"]:
            line = f"  diverged: seed {run['seed']}, {run['point']}"
            console.print(line, highlight=False, markup=False)


def markdown(board: dict, top: int) -> str:
    """The `top` points in Markdown."""
    title, caption = _title_and_caption(board)
    return f"{title}: {caption}\n\n" + markdown_table(ranked_rows(board, top))
