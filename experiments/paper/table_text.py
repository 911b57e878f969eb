"""Rows of Panacea's tables from runs, and their text."""

import jax
import numpy as np
from rich.table import Table

from experiments.paper.configurations import Cell
from experiments.paper.row_text import SPREAD, common_row, spread_text
from graphfl_jax.commands.common.result_tables import error_cell
from graphfl_jax.commands.common.text_tables import escaped, markdown_table, narrow
from graphfl_jax.commands.common.units import UNITS
from graphfl_jax.configs.published import OUT_OF_REACH, published_score
from graphfl_jax.evaluation import POINTS
from graphfl_jax.metrics import OWN

HEADS = ("data", "method", "P", "sd clients", "sd seeds", "worst decile", "Jain", "G")


def table_row(table: str, config, runs: list[dict]) -> dict:
    """One row of a table: scores in the printed unit, or the number of diverged runs.

    Args:
      table: a key of `published.PUBLISHED`.
      config: configuration of the runs.
      runs: one per seed, in the format of results.json.
    """
    row = common_row(config, runs)
    variant, scale = row["method"], UNITS[row["metric"]][0]
    score = published_score(config, variant, runs[0]["dataset"], table)
    row |= {
        "published": score and score._asdict(),
        "out_of_reach": OUT_OF_REACH.get((table, variant, config.data.name)),
        "scores": None,
        "errors": None,
    }
    if row["diverged"]:
        return row
    errors = runs[0]["errors"]  # without new clients
    if errors and errors["units"] != OWN and table != "panacea_3":
        row["units"] = errors["units"]
        row["errors"] = {
            point: jax.tree.map(
                lambda *seeds: None if None in seeds else float(np.mean(seeds)),
                *(run["errors"][point] for run in runs),
                is_leaf=lambda value: value is None,
            )
            for point in POINTS
        }
    if table != "panacea_3":
        return row | {"scores": _scores([run["scores"]["final"] for run in runs], scale)}
    curves = [run["new_clients"]["curve"] for run in runs]
    adapted = [_scores([curve[k] for curve in curves], scale) for k in range(len(curves[0]))]
    return row | {"scores": adapted[0], "adapted": adapted}


def _scores(summaries, scale):
    """`over_seeds` at G, L and P, from one summary of each point per seed."""
    return {point: over_seeds([one[point] for one in summaries], scale) for point in POINTS}


def over_seeds(summaries: list[dict], scale: float) -> dict:
    """Means over seeds and their spread, in the printed unit.

    Args:
      summaries: one per seed, as in results.json.
      scale: factor of the printed unit.
    """
    values = {
        name: np.array([summary[name] for summary in summaries])
        for name in ("mean", "std_clients", "worst_decile", "jain")
    }
    return {
        "mean": scale * values["mean"].mean(),
        "std_clients": scale * values["std_clients"].mean(),
        "std_seeds": scale * values["mean"].std(),
        "worst_decile": scale * values["worst_decile"].mean(),
        "jain": values["jain"].mean(),
        "seeds": (scale * values["mean"]).tolist(),
    }


def forecast_row(cell: Cell, forecast: dict, units: str) -> dict:
    """A row of a forecast baseline, from an element of `forecast_baselines.forecast_rows`."""
    return {
        "data": cell.dataset,
        "setting": cell.setting,
        "method": forecast["method"],
        "units": units,
        "mse": forecast["scores"]["mean"],
        "errors": {"P": forecast["errors"]},
    }


def error_rows(rows: list[dict]) -> list[list[str]]:
    """Heads, and the errors of each method at G and P at every horizon, as text.

    Rows of several configuration files have a column with the file's name.
    """
    horizons = list(rows[0]["errors"]["P"])
    named = any(map(_setting, rows))
    text = [["data", *["configuration"] * named, "method", "at", "1e-3 MSE", *horizons]]
    for row in rows:
        for point in ("G", "P"):
            errors = row["errors"].get(point)
            if errors is None or (point == "G" and errors == row["errors"]["P"]):
                continue
            mse = 1e3 * row["mse"] if "mse" in row else row["scores"][point]["mean"]
            cells = [error_cell(errors[horizon]) for horizon in horizons]
            setting = [_setting(row)] * named
            text.append([row["data"], *setting, row["method"], point, f"{mse:.1f}", *cells])
    return text


def _setting(row):
    """The name of the configuration file of a row; empty in tables of papers."""
    return row.get("setting", "")


def heads_of(table: str) -> tuple[str, ...]:
    """The heads of a table. New clients have a second score after their rounds."""
    return (*HEADS, "P adapted" if table == "panacea_3" else "L", "published")


def score_rows(table: str, rows: list[dict]) -> list[list[str]]:
    """The rows as text, in the order of `heads_of`."""
    text = []
    for row in rows:
        cells = [row["data"], row["method"]]
        if row["scores"] is None:
            empty = len(heads_of(table)) - len(cells) - 2
            cells += [f"{row['diverged']} of {row['seeds']} diverged", *[""] * empty]
        else:
            score = row["scores"]["P"]
            cells += [f"{score[name]:.2f}" for name in ("mean", "std_clients")]
            cells += [spread_text(score["seeds"]), f"{score['worst_decile']:.2f}"]
            cells.append(f"{score['jain']:.3f}")
            last = row["adapted"][-1]["P"] if table == "panacea_3" else row["scores"]["L"]
            cells += [f"{score['mean']:.2f}" for score in (row["scores"]["G"], last)]
        paper = row["published"]
        star = "*" if row["out_of_reach"] else ""
        cells.append(f"{paper['mean']}±{paper['spread']}{star}" if paper else "")
        text.append(cells)
    return text


def console_table(table: str, rows: list[dict]) -> Table:
    """The rows of one data set for a console of 80 columns."""
    first = rows[0]
    title = f"{table} on {first['data']}, {first['unit']}, {first['seeds']} seeds"
    heads = [head.replace(" ", "\n") for head in heads_of(table)]
    text = _without_data([heads, *score_rows(table, rows)])
    if not any(row["published"] for row in rows):
        text = [cells[:-1] for cells in text]
    return narrow(title, text)


def error_table(rows: list[dict]) -> Table:
    """The errors of `error_rows` of one data set, for a console."""
    title = _error_title(rows)
    return narrow(
        title,
        _without_data(error_rows(rows)),
        left=("configuration", "method"),
        caption="without missing targets",
    )


def _error_title(rows):
    return f"MAE/RMSE ({rows[0]['units']})/MAPE (%) on {rows[0]['data']}"


def _without_data(text):
    """The rows without the first column, the data set, which the title states."""
    return [cells[1:] for cells in text]


def markdown(table: str, rows: list[dict]) -> str:
    """The table in Markdown, with a line on metrics and seeds, and notes."""
    metrics = dict.fromkeys(f"{row['data']}: {row['metric']}, {row['unit']}" for row in rows)
    parts = [
        f"Test scores of {rows[0]['seeds']} seeds; {'; '.join(metrics)}. {SPREAD}\n",
        markdown_table([list(heads_of(table)), *score_rows(table, rows)]),
        *(f"{escaped(note)}\n" for note in notes(rows)),
    ]
    return "\n".join(parts)


def error_markdown(rows: list[dict]) -> str:
    """The errors of `error_rows` of one data set in Markdown."""
    title = f"{_error_title(rows)}, without missing targets"
    return f"{title}:\n\n{markdown_table(error_rows(rows))}"


def notes(rows: list[dict]) -> list[str]:
    """Notes on simulated and partial data, and on published scores marked by a star."""
    parts = {}
    for row in rows:
        simulated = "simulated" * (row["source"] == "simulated")
        data = " on ".join(filter(None, [_setting(row), row["data"]]))
        parts[data] = ", ".join(filter(None, [simulated, row["extent"]]))
    data_notes = [
        f"{data}: {part}; not comparable with published scores"
        for data, part in parts.items()
        if part
    ]
    return data_notes + [
        f"* {row['method']} on {row['data']}: {row['out_of_reach']}"
        for row in rows
        if row["out_of_reach"] and row["published"]
    ]
