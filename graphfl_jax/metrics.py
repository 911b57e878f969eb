"""Losses and scores of predictions, and summaries of scores over clients."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from graphfl_jax.core import Task


class Units(NamedTuple):
    """Converts standardised targets to physical units: mean + std * target."""

    name: str  # "mph"
    mean: float
    std: float
    step: float  # minutes between the targets of an example
    missing: float  # value in these units that marks a missing reading


def _cross_entropy(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y)


def _correct(outputs, y):
    return (jnp.argmax(outputs, axis=-1) == y).astype(jnp.float32)


def _squared_error(outputs, y):
    return jnp.mean(jnp.square(outputs - y), axis=-1)


CLASSIFICATION = Task(_cross_entropy, _correct, "accuracy", higher_is_better=True)
REGRESSION = Task(_squared_error, _squared_error, "mse", higher_is_better=False)
TASKS = {"classification": CLASSIFICATION, "regression": REGRESSION}
HORIZONS = (15, 30, 60)  # minutes ahead


def task_of(name: str, units: Units | None) -> Task:
    """The task of that name, with errors in physical units if the targets have units.

    The task's extra metrics are forecast errors e at each of `HORIZONS`, averaged over the
    examples of each client and then over clients. ``mae`` is the mean of |e| and ``rmse`` the
    root of the mean of e^2, in the targets' units. ``mae_seen``, ``rmse_seen`` and
    ``mape_seen``, the mean of |e / target| in %, are over the targets that are not missing.
    """
    task = TASKS[name]
    if units is None:
        return task
    steps = np.array([round(minutes / units.step) - 1 for minutes in HORIZONS])
    # Computed as by the data loader, so that equality with stored targets is exact.
    missing = standardised(np.float32(units.missing), units)

    def extra_metrics(outputs, y):
        outputs, y = outputs[:, steps], y[:, steps]  # [B, horizons]
        seen = (y != missing).astype(jnp.float32)
        error = jnp.abs(outputs - y) * units.std
        value = jnp.where(seen > 0, units.mean + units.std * y, 1.0)
        return {
            "abs": error,
            "square": jnp.square(error),
            "seen": seen,
            "abs_seen": seen * error,
            "square_seen": seen * jnp.square(error),
            "share_seen": seen * error / value,
        }

    return task._replace(extra_metrics=extra_metrics, summarize=_summarize)


def standardised(values: np.ndarray, units: Units) -> np.ndarray:
    """Physical values as standardised targets: float32 of the same shape."""
    return (values.astype(np.float32) - np.float32(units.mean)) / np.float32(units.std)


def _summarize(extras):
    """Errors by horizon from the clients' means {name: [N, horizons]}, equally weighted."""
    mean = {name: np.asarray(value, np.float64).mean(axis=0) for name, value in extras.items()}
    errors = {
        "mae": mean["abs"],
        "rmse": np.sqrt(mean["square"]),
        "mae_seen": mean["abs_seen"] / mean["seen"],
        "rmse_seen": np.sqrt(mean["square_seen"] / mean["seen"]),
        "mape_seen": 100 * mean["share_seen"] / mean["seen"],
    }
    return {
        f"{minutes} min": {name: float(value[i]) for name, value in errors.items()}
        for i, minutes in enumerate(HORIZONS)
    }


def summary(per_client: np.ndarray, *, higher_is_better: bool) -> dict:
    """Summary of one score over N clients, equally weighted.

    Returns:
      ``mean`` and ``std_clients`` (population) over clients; ``worst_decile``, the mean over
      the ceil(N / 10) worst clients; ``jain``, the fairness index (sum s)^2 / (N sum s^2), 1 if
      all scores are equal (Jain, Chiu, Hawe. A Quantitative Measure of Fairness and
      Discrimination. DEC-TR-301, 1984); ``per_client``, the N scores.
    """
    scores = np.asarray(per_client, np.float64)
    worst_first = np.sort(scores) if higher_is_better else np.sort(scores)[::-1]
    squares = float(np.sum(scores**2))
    return {
        "mean": float(scores.mean()),
        "std_clients": float(scores.std()),
        "worst_decile": float(worst_first[: -(-len(scores) // 10)].mean()),
        "jain": float(scores.sum() ** 2 / (len(scores) * squares)) if squares > 0 else 1.0,
        "per_client": scores.tolist(),
    }
