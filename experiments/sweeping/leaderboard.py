"""From the runs of a sweep to its leaderboard: validation decides, test stands apart."""

import json

import numpy as np
from rich.table import Table

from experiments.paper.table_text import diverged, markdown_table, narrow


def leaderboards(lines: list[dict]) -> list[dict]:
    """A leaderboard for each data set, of the runs in a ledger.

    Returns:
      Of each its ``data``, ``metric``, ``higher_is_better``, the ``fields`` of its points, its
      ``rows``, best first, and the ``diverged`` runs. A row is a ``point`` with the number of
      its ``runs``, ``validation``, ``sd_seeds`` and ``test``, and where new clients joined their
      validation scores ``new clients`` and ``later``.
    """
    boards = {}
    for line in lines:
        mark = (line["dataset"]["name"], line["metric"])
        boards.setdefault(mark, []).append(line)
    return [_board(data, metric, own) for (data, metric), own in boards.items()]


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
        "rows": rows,
        "diverged": [
            {"point": line["point"], "seed": line["seed"]} for line in lines if diverged(line)
        ],
    }


def _row(runs):
    """Means at P over clients and seeds."""
    told = [run["validation"]["final"]["P"]["mean"] for run in runs]
    row = {
        "point": runs[0]["point"],
        "runs": len(runs),
        "validation": float(np.mean(told)),
        "sd_seeds": float(np.std(told)),
    }
    if runs[0]["new_clients"]:
        for name, played in (("new_clients", 0), ("later", -1)):
            scores = [run["validation"]["new_clients"][played] for run in runs]
            row[name] = float(np.mean(scores))
    test = [run["scores"]["final"]["P"]["mean"] for run in runs]
    return row | {"test": float(np.mean(test))}


def ranked_lines(board: dict, top: int) -> list[list[str]]:
    """Heads, and the best points of a leaderboard."""
    fields = board["fields"]
    numbers = [name for name in (board["rows"] or [{}])[0] if name not in ("point", "runs")]
    heads = [field.removeprefix("hparams.") for field in fields]
    text = [[*heads, *(name.replace("_", " ") for name in numbers)]]
    for row in board["rows"][:top]:
        values = [row["point"].get(field, "") for field in fields]
        told = [f"{v:g}" if isinstance(v, float) else str(v) for v in values]
        text.append([*told, *(f"{row[name]:.4g}" for name in numbers)])
    return text


def _titles(board):
    """What is ranked, and how."""
    seeds = board["runs"] // max(1, board["points"])
    better = "higher" if board["higher_is_better"] else "lower"
    return (
        f"{board['metric']} at P on {board['data']}, data: {board['source']}",
        f"{len(board['rows'])} of {board['points']} points ranked, {seeds} seeds; by "
        f"validation, {better} is better; test decides nothing",
    )


def ranked_table(board: dict, top: int) -> Table:
    """The best points, for a console."""
    what, how = _titles(board)
    return narrow(what, ranked_lines(board, top), left=("algorithm",), caption=how)


def markdown(board: dict, top: int) -> str:
    """The best points, for a README."""
    what, how = _titles(board)
    return f"{what}: {how}\n\n" + markdown_table(ranked_lines(board, top))
