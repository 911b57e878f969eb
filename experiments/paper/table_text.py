"""From the runs of a table to its rows, and from rows to text."""

import jax
import numpy as np
from rich import box
from rich.table import Table

from experiments.paper.published import OUT_OF_REACH, UNITS, published
from graphfl_jax.build import variant_of
from graphfl_jax.runs.results import POINTS

COMMON = ("data", "method", "P", "sd clients", "sd seeds", "worst decile", "Jain", "G")


def table_row(table: str, config, runs: list[dict]) -> dict:
    """One row: scores in the unit of print, or how many runs diverged."""
    variant = variant_of(config)
    scale, unit = UNITS[runs[0]["metric"]]
    paper = published(config, variant, runs[0]["dataset"], table)
    row = {
        "data": config.data.name,
        "method": variant,
        "unit": unit,
        "seeds": len(runs),
        "hparams": runs[0]["hparams"],
        "diverged": sum(map(diverged, runs)),
        "published": paper and paper._asdict(),
        "out_of_reach": OUT_OF_REACH.get((table, variant, config.data.name)),
        "scores": None,
        "errors": None,
        "source": runs[0]["dataset"]["source"],
        "extent": runs[0]["dataset"]["extent"],
    }
    if row["diverged"]:
        return row
    if runs[0]["errors"] and table != "panacea_3":  # they are of clients that train
        row["units"] = runs[0]["errors"]["units"]
        row["errors"] = {
            point: jax.tree.map(
                lambda *seeds: float(np.mean(seeds)), *(run["errors"][point] for run in runs)
            )
            for point in POINTS
        }
    if table != "panacea_3":
        return row | {"scores": _scores([run["scores"]["final"] for run in runs], scale)}
    curves = [run["new_clients"]["curve"] for run in runs]
    adapted = [_scores([curve[k] for curve in curves], scale) for k in range(len(curves[0]))]
    return row | {"scores": adapted[0], "adapted": adapted}


def diverged(run: dict) -> bool:
    """Whether a run lacks a score: of the clients that trained, or of new clients."""
    return run["diverged"] or (
        run["new_clients"] is not None and run["new_clients"]["diverged_at"] >= 0
    )


def forecast_row(dataset: str, told: dict, units: str) -> dict:
    """A row of a forecast that needs no federation, as `naive.naive_rows` tells it."""
    return {"data": dataset, "method": told["method"], "units": units} | {
        "mse": told["scores"]["mean"],
        "errors": {"P": told["errors"]},
    }


def error_cell(told: dict) -> str:
    """MAE, RMSE and MAPE of one horizon, over targets that are not missing."""
    return f"{told['mae_seen']:.2f}/{told['rmse_seen']:.2f}/{told['mape_seen']:.1f}"


def error_lines(rows: list[dict]) -> list[list[str]]:
    """Heads, and a line for each method at G and P, of errors at every horizon."""
    ahead = list(rows[0]["errors"]["P"])
    text = [["data", "method", "at", "1e-3 MSE", *ahead]]
    for row in rows:
        for point in ("G", "P"):
            told = row["errors"].get(point)
            if told is None or (point == "G" and told == row["errors"]["P"]):
                continue
            mse = 1e3 * row["mse"] if "mse" in row else row["scores"][point]["mean"]
            cached_runs = [error_cell(told[horizon]) for horizon in ahead]
            text.append([row["data"], row["method"], point, f"{mse:.1f}", *cached_runs])
    return text


def _scores(summaries, scale):
    """Of summaries at G, L and P, one per seed: means over seeds, and the spread over them."""
    scores = {}
    for point in POINTS:
        own = {
            name: np.array([summary[point][name] for summary in summaries])
            for name in ("mean", "std_clients", "worst_decile", "jain")
        }
        scores[point] = {
            "mean": scale * own["mean"].mean(),
            "std_clients": scale * own["std_clients"].mean(),
            "std_seeds": scale * own["mean"].std(),
            "worst_decile": scale * own["worst_decile"].mean(),
            "jain": own["jain"].mean(),
            "seeds": (scale * own["mean"]).tolist(),
        }
    return scores


def columns(table: str) -> tuple[str, ...]:
    """The heads of a table; new clients are scored again after the last of their rounds."""
    return (*COMMON, "P later" if table == "panacea_3" else "L", "published")


def lines(table: str, rows: list[dict]) -> list[list[str]]:
    """The rows as text, in the order of `columns`."""
    text = []
    for row in rows:
        line = [row["data"], row["method"]]
        if row["scores"] is None:
            count = len(columns(table)) - len(line) - 2
            line += [f"{row['diverged']} of {row['seeds']} diverged", *[""] * count]
        else:
            own = row["scores"]["P"]
            numbers = ("mean", "std_clients", "std_seeds", "worst_decile")
            line += [f"{own[name]:.2f}" for name in numbers] + [f"{own['jain']:.3f}"]
            later = row["adapted"][-1]["P"] if table == "panacea_3" else row["scores"]["L"]
            line += [f"{score['mean']:.2f}" for score in (row["scores"]["G"], later)]
        paper = row["published"]
        mark = "*" if row["out_of_reach"] else ""
        line.append(f"{paper['mean']}±{paper['spread']}{mark}" if paper else "")
        text.append(line)
    return text


def console_table(table: str, rows: list[dict]) -> Table:
    """The rows of one data set, narrow enough for eighty columns."""
    first = rows[0]
    title = f"{table} on {first['data']}, {first['unit']}, {first['seeds']} seeds"
    heads = [column.replace(" ", "\n") for column in columns(table)]
    text = _without_data([heads, *lines(table, rows)])
    if not any(row["published"] for row in rows):
        text = [line[:-1] for line in text]
    return narrow(title, text)


def error_table(rows: list[dict]) -> Table:
    """The lines of `error_lines` of one data set."""
    title = f"MAE/RMSE ({rows[0]['units']})/MAPE (%) on {rows[0]['data']}"
    text = _without_data(error_lines(rows))
    return narrow(title, text, caption="missing targets left out")


def _without_data(text):
    """Without the first column, which the title tells."""
    return [line[1:] for line in text]


def narrow(
    title: str,
    text: list[list[str]],
    *,
    left: tuple[str, ...] = ("method",),
    caption: str | None = None,
) -> Table:
    """Lines of cells, of which the first are heads; the columns of `left` begin on the left."""
    head, *body = text
    drawn = Table(
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        title=title,
        caption=caption,
    )
    body = [[cell.replace("±", " ±") for cell in line] for line in body]
    for column, *cached_runs in zip(head, *body, strict=True):
        if column in left:
            drawn.add_column(column, no_wrap=True)
        else:  # where lines are too long, intervals go below their numbers
            words = " ".join([column, *cached_runs]).split()
            drawn.add_column(column, justify="right", min_width=max(map(len, words)))
    for line in body:
        drawn.add_row(*line)
    return drawn


def markdown(table: str, rows: list[dict]) -> str:
    """The table and its notes, for a README."""
    return markdown_table([list(columns(table)), *lines(table, rows)]) + "".join(
        f"\n{note}\n" for note in notes(rows)
    )


def markdown_table(text: list[list[str]]) -> str:
    """Lines of cells, of which the first are heads."""
    head, *body = text
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *body])


def notes(rows: list[dict]) -> list[str]:
    """What data a table is of, and what is to be known of printed scores with a mark."""
    parts = {}
    for row in rows:
        if row["source"] == "simulated" or row["extent"]:
            parts[row["data"]] = row["extent"] or "simulated"
    told = [f"{data}: {part}; no printed score compares." for data, part in parts.items()]
    return told + [
        f"* {row['method']} on {row['data']}: out of reach, {row['out_of_reach']}"
        for row in rows
        if row["out_of_reach"] and row["published"]
    ]
