"""Forecasts without training of models: persistence and linear regression.

They put a mean squared error in standardised units into perspective: speeds change little in a
quarter of an hour, so that repeating the last one forecasts well.
"""

import jax
import numpy as np

from graphfl_jax import tree
from graphfl_jax.core import Task
from graphfl_jax.data.federation import Federation
from graphfl_jax.examples import Windows


def persistence(train: Windows, test: Windows) -> np.ndarray:
    """Repeats the last value."""
    return np.repeat(_past(test)[:, -1:], test.future, axis=1)


def linear(train: Windows, test: Windows) -> np.ndarray:
    """Least squares from the client's own past to each of its next steps."""
    inputs, targets = _inputs(train), _targets(train)
    coefficients, *_ = np.linalg.lstsq(inputs, targets, rcond=None)
    return _inputs(test) @ coefficients


FORECASTS = {"persistence": persistence, "linear regression": linear}


def forecast_rows(federation: Federation, task: Task) -> list[dict]:
    """A row of `panacea_text.error_text` for each of `FORECASTS`, on the test split.

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


def _past(windows):
    return _rows(windows).x[:, : windows.past, 0]


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
