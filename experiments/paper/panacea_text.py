"""Rows of Panacea's tables from runs, their text, and forecast baselines."""

from operator import itemgetter

import jax
import numpy as np

from experiments.paper import columns
from experiments.paper.columns import Column, Row, TableText, number_text, spread_text
from graphfl_jax import tree
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.commands.common.text_tables import count_text
from graphfl_jax.configs.published import published_score
from graphfl_jax.core import Task
from graphfl_jax.data.federation import Federation
from graphfl_jax.evaluation import POINTS
from graphfl_jax.examples import Windows
from graphfl_jax.metrics import OWN

NEW_CLIENTS = "panacea_3"  # the table of new clients
# (table, variant, data set) -> why the described method does not reach the published score
OUT_OF_REACH = {
    ("panacea_3", "panacea-mlp", "tpt48"): (
        "reached only with algorithm.new_client_embedding=neighbour, which gives 2.55"
    )
}


def table_row(table: str, config, runs: list[dict]) -> Row:
    """A row of a table of `published.PUBLISHED`, as `tables.Table.row`."""
    row = columns.common_row(config, runs)
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
    if table == NEW_CLIENTS:
        curves = [run["new_clients"]["curve"] for run in runs]
        adapted = [_scores(summaries, scale) for summaries in zip(*curves, strict=True)]
        return row | {"scores": adapted[0], "adapted": adapted}
    errors = runs[0]["errors"]  # without new clients
    if errors and errors["units"] != OWN:
        row["units"] = errors["units"]
        row["errors"] = {
            point: jax.tree.map(
                lambda *seeds: None if None in seeds else float(np.mean(seeds)),
                *(run["errors"][point] for run in runs),
                is_leaf=lambda value: value is None,
            )
            for point in POINTS
        }
    return row | {"scores": _scores([run["scores"]["final"] for run in runs], scale)}


def _scores(summaries, scale):
    """`seed_statistics` at G, L and P, from the summaries of all points of each seed."""
    return {
        point: columns.seed_statistics([points[point] for points in summaries], scale)
        for point in POINTS
    }


def _score(head, name="mean", *, point="P", digits=2):
    """The column of a statistic of the scores."""
    return Column(head, lambda row: number_text(row["scores"][point][name], digits))


def _published_text(row):
    star = "*" if row["out_of_reach"] else ""
    score = row["published"]
    return f"{score['mean']}±{score['spread']}{star}" if score else ""


def text_of(table: str) -> TableText:
    """The text of a table. New clients have a second score after their rounds."""
    adapted = Column("P\nadapted", lambda row: number_text(row["adapted"][-1]["P"]["mean"]))
    return TableText(
        columns=(
            columns.DATA,
            columns.METHOD,
            _score("P"),
            _score("sd\nclients", "std_clients"),
            Column("sd\nseeds", lambda row: spread_text(row["scores"]["P"]["seeds"])),
            _score("worst\ndecile", "worst_decile"),
            _score("Jain", "jain", digits=3),
            _score("G", point="G"),
            adapted if table == NEW_CLIENTS else _score("L", point="L"),
            *columns.COST,
            Column("published", _published_text, scored=False, optional=True),
        ),
        title=lambda row: (
            f"{table} on {row['data']}, {row['unit']}, {count_text(row['seeds'], 'seed')}"
        ),
        introduction=introduction,
        notes=notes,
    )


def introduction(rows: list[Row]) -> list[str]:
    """Metrics, seeds and their spread, in a sentence."""
    return [
        f"Test scores of {count_text(rows[0]['seeds'], 'seed')}; {columns.metrics_text(rows)}. "
        f"{columns.SPREAD} {columns.COSTS}\n"
    ]


def notes(rows: list[Row]) -> list[str]:
    """Notes on simulated and partial data, and on published scores marked by a star."""
    parts = {}
    for row in rows:
        simulated = "simulated" if row["source"] == "simulated" else ""
        parts[row["data"]] = ", ".join(filter(None, [simulated, row["extent"]]))
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


# ------------------------------------------------------------------------ errors of forecasts


def error_text(rows: list[Row]) -> TableText:
    """The text of the ``errors`` in rows of one data set, at G and P at every horizon."""
    title = f"MAE/RMSE ({rows[0]['units']})/MAPE (%) on {rows[0]['data']}"
    return TableText(
        columns=(
            columns.DATA,
            columns.METHOD,
            Column("at", itemgetter("at")),
            Column("1e-3 MSE", lambda row: f"{row['mse']:.1f}"),
            *(
                Column(horizon, lambda row, at=horizon: _error_cell(row["horizons"][at]))
                for horizon in rows[0]["errors"]["P"]
            ),
        ),
        title=lambda row: title,
        introduction=lambda rows: [f"{title}, without missing targets:\n"],
        lines=_errors_at_points,
        caption="without missing targets",
    )


def _error_cell(errors: dict) -> str:
    """MAE, RMSE and MAPE at one horizon, over targets that are not missing."""
    if errors["mae_seen"] is None:
        return "none"
    return f"{errors['mae_seen']:.2f}/{errors['rmse_seen']:.2f}/{errors['mape_seen']:.1f}"


def _errors_at_points(row):
    """A row for P, and one for G if its errors are others."""
    for point in ("G", "P"):
        horizons = row["errors"].get(point)
        if horizons is None or (point == "G" and horizons == row["errors"]["P"]):
            continue
        mse = 1e3 * row["mse"] if "mse" in row else row["scores"][point]["mean"]
        yield row | {"diverged": 0, "at": point, "mse": mse, "horizons": horizons}


# ------------------------------------------------------------------------ forecast baselines
# Forecasts without training of models put a mean squared error in standardised units into
# perspective: speeds change little in a quarter of an hour, so that repeating the last one
# forecasts well.


def persistence(train: Windows, test: Windows) -> np.ndarray:
    """Repeats the last value."""
    return np.repeat(_rows(test).x[:, test.past - 1 : test.past, 0], test.future, axis=1)


def linear(train: Windows, test: Windows) -> np.ndarray:
    """Least squares from the client's own past to each of its next steps."""
    inputs, targets = _inputs(train), _targets(train)
    coefficients, *_ = np.linalg.lstsq(inputs, targets, rcond=None)
    return _inputs(test) @ coefficients


FORECASTS = {"persistence": persistence, "linear regression": linear}


def forecast_rows(federation: Federation, task: Task) -> list[dict]:
    """A row of `error_text` for each of `FORECASTS`, on the test split.

    Scores and errors are computed in the same way as for the predictor of a run.
    """
    data = federation.data
    rows = []
    for name, forecast in FORECASTS.items():
        scores, extras = [], []
        for i in range(len(federation.clients)):
            train, test = tree.take((data.train, data.evals["test"]), i)
            outputs = forecast(train, test).astype(np.float32)
            y = _targets(test)
            scores.append(np.mean(task.score(outputs, y)))
            extra = task.extra_metrics(outputs, y)
            extras.append(jax.tree.map(lambda leaf: np.mean(leaf, axis=0), extra))
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *extras)
        rows.append(
            {
                "method": name,
                "units": federation.units.name,
                "mse": float(np.mean(scores, dtype=np.float64)),
                "errors": {"P": task.summarize(stacked)},
            }
        )
    return rows


def _rows(windows):
    return windows.rows(np.arange(windows.count))


def _targets(windows):
    return _rows(windows).y


def _inputs(windows):
    """Past values, sine and cosine of the time features, and one: [S, past + 2 (F - 1) + 1]."""
    x = _rows(windows).x
    angle = 2 * np.pi * x[:, windows.past - 1, 1:]
    constant = np.ones((len(x), 1), np.float32)
    return np.concatenate(
        [x[:, : windows.past, 0], np.sin(angle), np.cos(angle), constant], axis=1
    )
