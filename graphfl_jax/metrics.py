"""Losses, scores and further metrics of predictions, and their summaries over clients."""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
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
    masked: bool = False  # whether missing readings count neither in losses nor in scores


OWN = "own"  # units that only the user knows


class OwnUnits(NamedTuple):
    """Converts errors of scaled targets to the targets' own units: scale * error."""

    scale: tuple[tuple[float, ...], ...]  # [K, O]: of all clients (K = 1), or of each
    name: str = OWN

    def of(self, clients: np.ndarray) -> "OwnUnits":
        """The units of some clients [n], in their order."""
        if len(self.scale) == 1:
            return self
        return self._replace(scale=tuple(self.scale[i] for i in clients))

    def errors(self, extras: dict[str, np.ndarray], names: Sequence = ()) -> dict:
        """``mae`` and ``rmse`` of each target, in own units.

        Args:
          extras: of `task_of`, the clients' means of ``abs`` and ``square`` [N, O].
          names: of the O targets; () if they have none.
        """
        scale = np.array(self.scale)
        mae = np.mean(np.asarray(extras["abs"], np.float64) * scale, axis=0)
        square = np.mean(np.asarray(extras["square"], np.float64) * scale**2, axis=0)
        names = names or [f"target {o}" for o in range(len(mae))]
        return {
            name: {"mae": float(mae[o]), "rmse": float(np.sqrt(square[o]))}
            for o, name in enumerate(names)
        }


def _correct(outputs, y):
    return (jnp.argmax(outputs, axis=-1) == y).astype(jnp.float32)


def _squared_error(outputs, y):
    return jnp.mean(jnp.square(outputs - y), axis=-1)


def areas(outputs, y, real):
    """Areas under the receiver operating characteristics (AUC) of one client.

    The AUC of a label is the share of pairs of a positive and a negative example in which the
    positive one has the larger output; a pair with equal outputs counts one half. So it is
    (R - n (n + 1) / 2) / (n m) for n positive and m negative examples, where R is the sum of
    the positive examples' ranks, and equal outputs have the mean of their ranks (Hanley,
    McNeil. The Meaning and Use of the Area under a Receiver Operating Characteristic (ROC)
    Curve. Radiology 143(1), 1982).

    Args:
      outputs: [S, O], finite where `real`.
      y: [S, O], 1 for positive and 0 for negative examples.
      real: [S], whether a row counts.

    Returns:
      The areas [O], 0 for a label without positive or without negative examples, and [O]
      float32, 0 for these labels and 1 for the others.
    """

    def of_label(outputs, positive):
        positive, negative = real & positive, real & ~positive
        n, m = jnp.sum(positive), jnp.sum(negative)
        losers = jnp.sort(jnp.where(negative, outputs, jnp.inf))  # the first m count
        # Twice the pairs that each example wins: smaller outputs twice, and equal ones once.
        wins = jnp.searchsorted(losers, outputs) + jnp.searchsorted(losers, outputs, "right")
        share = wins.astype(jnp.float32) / (2 * jnp.maximum(m, 1)).astype(jnp.float32)
        total = jnp.sum(jnp.where(positive, share, 0.0))
        return total / jnp.maximum(n, 1).astype(jnp.float32), (n > 0) & (m > 0)

    area, scored = jax.vmap(of_label, in_axes=1)(outputs, y > 0)
    return jnp.where(scored, area, 0.0), scored.astype(jnp.float32)


def _binary_cross_entropy(outputs, y):
    return jnp.mean(optax.sigmoid_binary_cross_entropy(outputs, y), axis=-1)


def _mean_area(outputs, y, real):
    """The mean AUC over the labels that have one; NaN if there is none."""
    area, scored = areas(outputs, y, real)
    return jnp.sum(area) / jnp.sum(scored)


def _areas_by_label(outputs, y, real):
    area, scored = areas(outputs, y, real)
    return {"area": area, "scored": scored}


CLASSIFICATION = Task(
    optax.softmax_cross_entropy_with_integer_labels, _correct, "accuracy", higher_is_better=True
)
REGRESSION = Task(_squared_error, _squared_error, "mse", higher_is_better=False)
MULTI_LABEL = Task(
    _binary_cross_entropy,
    _mean_area,
    "auc",
    higher_is_better=True,
    extra_metrics=_areas_by_label,
    of_all_examples=True,
)
TASKS = {
    "classification": CLASSIFICATION,
    "regression": REGRESSION,
    "multi-label classification": MULTI_LABEL,
}
HORIZONS = (15, 30, 60)  # minutes ahead


def task_of(
    name: str, units: Units | OwnUnits | None, labels: tuple[str | int, ...] = ()
) -> Task:
    """The task of that name, with extra metrics of targets that have units or labels.

    With units, the extra metrics are forecast errors e at each of `HORIZONS` that is a multiple
    of the time step and is forecast, averaged over the examples of each client and then over
    clients. ``mae`` is the mean of |e| and ``rmse`` the
    root of the mean of e^2, in the targets' units. ``mae_seen``, ``rmse_seen`` and
    ``mape_seen``, the mean of |e / target| in %, are over the targets that are not missing,
    where each target has the same weight; None if all are missing. With units that are
    ``masked``, a missing target adds nothing to the loss, and the score of a client is its mean
    squared error over the targets that are not missing.

    With `OwnUnits`, the extra metrics are |e| and e^2 of each target, see `OwnUnits.errors`.

    With the names of O labels in a multi-label classification, they are for each label
    ``auc``, the mean over the clients that have positive and negative test examples of it, None
    if there are none; and ``clients``, the number of these clients.
    """
    task = TASKS[name]
    if labels and task is MULTI_LABEL:
        return task._replace(summarize=functools.partial(_by_label, labels))
    if units is None:
        return task
    if isinstance(units, OwnUnits):
        return task._replace(extra_metrics=_errors_by_target)
    # Computed as by the data loader, so that equality with stored targets is exact.
    missing = standardise(np.float32(units.missing), units)
    task = _forecasts(task, units, missing)
    return _masked(task, missing) if units.masked else task


def _forecasts(task, units, missing):
    """A task whose extra metrics are the errors of forecasts, if a horizon is forecast."""
    horizons = [minutes for minutes in HORIZONS if minutes % units.step == 0]
    if not horizons:
        return task
    after = np.array([int(minutes / units.step) - 1 for minutes in horizons])

    def extra_metrics(outputs, y):
        steps = after[after < outputs.shape[-1]]
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

    summarize = functools.partial(_by_horizon, horizons)
    return task._replace(extra_metrics=extra_metrics, summarize=summarize)


def _masked(task, missing):
    """A regression in which missing targets count neither in the loss nor in the score."""

    def loss(outputs, y):
        return jnp.mean(jnp.where(y == missing, 0.0, jnp.square(outputs - y)), axis=-1)

    def score(outputs, y, real):
        seen = (y != missing) & real[:, None]
        total = jnp.sum(jnp.where(seen, jnp.square(outputs - y), 0.0))
        return total / jnp.sum(seen).astype(jnp.float32)

    def extra_metrics(outputs, y, real):
        def mean(values):
            total = jnp.sum(jnp.where(real[:, None], values, 0.0), axis=0)
            return total / jnp.maximum(jnp.sum(real), 1).astype(jnp.float32)

        return jax.tree.map(mean, task.extra_metrics(outputs, y))

    extra = task.extra_metrics and extra_metrics
    return task._replace(loss=loss, score=score, extra_metrics=extra, of_all_examples=True)


def _errors_by_target(outputs, y):
    error = outputs - y
    return {"abs": jnp.abs(error), "square": jnp.square(error)}


def standardise(values: np.ndarray, units: Units) -> np.ndarray:
    """Physical values as standardised targets: float32 of the same shape."""
    return (values.astype(np.float32) - np.float32(units.mean)) / np.float32(units.std)


def _by_horizon(horizons, extras):
    """Errors from the clients' means {name: [N, forecast horizons]}, equally weighted.

    Args:
      horizons: in minutes. Those that are not forecast are the last ones.
      extras: of `task_of`.
    """
    mean = {name: np.asarray(value, np.float64).mean(axis=0) for name, value in extras.items()}
    seen = np.where(mean["seen"] > 0, mean["seen"], np.nan)
    errors = {
        "mae": mean["abs"],
        "rmse": np.sqrt(mean["square"]),
        "mae_seen": mean["abs_seen"] / seen,
        "rmse_seen": np.sqrt(mean["square_seen"] / seen),
        "mape_seen": 100 * mean["share_seen"] / seen,
    }
    undefined = np.isnan(seen)
    return {
        f"{minutes} min": {
            name: None if undefined[i] and name.endswith("_seen") else float(value[i])
            for name, value in errors.items()
        }
        for i, minutes in enumerate(horizons[: len(seen)])
    }


def _by_label(labels, extras):
    """Means of ``area`` [N, O] over the clients whose ``scored`` [N, O] is 1, by label.

    A client whose predictions are not finite is none of them.
    """
    area, scored = (
        np.nan_to_num(np.asarray(extras[name], np.float64)) for name in ("area", "scored")
    )
    clients = scored.sum(axis=0).astype(int)
    return {
        label: {"auc": float(total / count) if count else None, "clients": int(count)}
        for label, total, count in zip(labels, area.sum(axis=0), clients, strict=True)
    }


# ------------------------------------------------------------- metrics beside the task's own


def balanced_accuracy(outputs, y, real):
    """The mean of the recalls of those classes that the client has examples of."""
    there, _, hits = _by_class(outputs, y, real)
    return jnp.sum(hits / jnp.maximum(there, 1.0)) / _number(there > 0)


def macro_f1(outputs, y, real):
    """The mean F1 over the classes that occur among the labels or the predictions."""
    there, predicted, hits = _by_class(outputs, y, real)
    either = there + predicted
    return jnp.sum(2.0 * hits / jnp.maximum(either, 1.0)) / _number(either > 0)


def auc(outputs, y, real):
    """The mean AUC of each class against the others; NaN if the client has one class only.

    It is over the classes of the client. Examples are ranked by the class's probability; with
    two classes, this is the usual AUC. See `areas`.
    """
    return _mean_area(_log_odds(outputs), jax.nn.one_hot(y, outputs.shape[-1]), real)


def rmse(outputs, y, real):
    """The root of the mean squared error over examples and targets."""
    return jnp.sqrt(_mean(jnp.mean(jnp.square(outputs - y), axis=-1), real))


def mae(outputs, y, real):
    """The mean absolute error over examples and targets."""
    return _mean(jnp.mean(jnp.abs(outputs - y), axis=-1), real)


def r2(outputs, y, real):
    """The mean over targets of 1 - sum (y - f)^2 / sum (y - mean y)^2.

    NaN if one of the targets is constant.
    """
    rows = real[:, None]
    low = jnp.min(jnp.where(rows, y, jnp.inf), axis=0)
    high = jnp.max(jnp.where(rows, y, -jnp.inf), axis=0)
    centre = jnp.sum(jnp.where(rows, y, 0.0), axis=0, keepdims=True) / _number(real)
    total = jnp.sum(jnp.where(rows, jnp.square(y - centre), 0.0), axis=0)
    errors = jnp.sum(jnp.where(rows, jnp.square(y - outputs), 0.0), axis=0)
    # Of equal targets, the mean may differ from them in the last bit.
    return jnp.where((high > low).all(), jnp.mean(1.0 - errors / total), jnp.nan)


def _mean(values, real):
    """The mean over the real examples; NaN without any."""
    return jnp.sum(jnp.where(real, values, 0.0)) / _number(real)


def _number(conditions):
    """How many conditions hold, as a float32."""
    return jnp.sum(conditions).astype(jnp.float32)


def _by_class(outputs, y, real):
    """The numbers of examples, predictions and correct predictions of each class [O]."""
    classes, rows = outputs.shape[-1], real[:, None].astype(jnp.float32)
    labels = jax.nn.one_hot(y, classes) * rows
    predicted = jax.nn.one_hot(jnp.argmax(outputs, axis=-1), classes) * rows
    return labels.sum(axis=0), predicted.sum(axis=0), (labels * predicted).sum(axis=0)


def _log_odds(outputs):
    """log p - log (1 - p) for the probability p of each class; it orders them as p does.

    Unlike p, it differs between examples whose p rounds to 1.
    """
    if outputs.shape[-1] == 2:
        return outputs - outputs[:, ::-1]  # without rounding, which would break ties
    largest = jax.nn.one_hot(jnp.argmax(outputs, axis=-1), outputs.shape[-1]) > 0
    without = jax.nn.logsumexp(jnp.where(largest, -jnp.inf, outputs), axis=-1, keepdims=True)
    total = jax.nn.logsumexp(outputs, axis=-1, keepdims=True)
    small = jnp.where(largest, -jnp.inf, outputs - total)  # p of at most 1/2
    return outputs - jnp.where(largest, without, total + jnp.log1p(-jnp.exp(small)))


# Of `config.metrics`. Each takes outputs [S, O], targets y [S, ...] and which rows are real [S]
# of all examples of one client, and returns a scalar, NaN if it is undefined.
METRICS = {f.__name__: f for f in (balanced_accuracy, macro_f1, auc, rmse, mae, r2)}
# Those of this package, by the task that they are for. All others are for any task.
METRICS_OF = {
    "classification": ("balanced_accuracy", "macro_f1", "auc"),
    "regression": ("rmse", "mae", "r2"),
    "multi-label classification": (),
}


def with_metrics(task: Task, names: Iterable[str], *, of: str, data: str) -> Task:
    """A task with further metrics.

    Args:
      names: of the metrics, keys of `METRICS`.
      of: the task's name.
      data: name of the federation, for the error.

    Raises:
      ValueError: a metric is for another task.
    """
    bound = {name for metrics in METRICS_OF.values() for name in metrics}
    misfits = bound - {*METRICS_OF[of]}
    for name in names:
        if name in misfits:
            fitting = ", ".join(metric for metric in METRICS if metric not in misfits)
            raise ValueError(
                f"metrics={name} does not fit {data}, which is a {of}; "
                + (f"choose from {fitting}" if fitting else "leave --config.metrics out")
            )
    return task._replace(metrics=tuple((name, METRICS[name]) for name in dict.fromkeys(names)))


def metric_summary(values: np.ndarray, defined: np.ndarray) -> dict:
    """Summary of one further metric over N clients, equally weighted.

    Returns:
      ``mean`` over the clients for which it is defined, None without any; ``clients``, their
      number; ``per_client``, the N values, None where it is undefined.
    """
    scores = np.asarray(values, np.float64)[defined]
    return {
        "mean": float(scores.mean()) if len(scores) else None,
        "clients": len(scores),
        "per_client": [
            float(value) if is_defined else None
            for value, is_defined in zip(values, defined, strict=True)
        ],
    }


def rank(score: float, loss: float | None, *, higher_is_better: bool) -> tuple[float, float]:
    """The place of a choice on validation; the smallest is the best.

    The better score is the better place, and of equal scores the smaller loss. Scores are equal
    as float32, since sums of the same numbers in another order differ in the last bits.

    Args:
      score: mean on validation.
      loss: mean of the task's loss on validation, the last of equal ones if it is None.
    """
    sign = -1.0 if higher_is_better else 1.0
    return sign * float(np.float32(score)), np.inf if loss is None else loss


def mean_loss(losses: Iterable[float | None]) -> float | None:
    """The mean of losses for `rank`; None if one is None."""
    losses = list(losses)
    return None if None in losses else float(np.mean(losses))


def summary(per_client: np.ndarray, *, higher_is_better: bool) -> dict:
    """Summary of one score over N clients, equally weighted.

    Returns:
      ``mean`` and ``std_clients`` (population) over clients; ``worst_decile``, the mean over
      the ceil(N / 10) worst clients; ``jain``, the fairness index (sum s)^2 / (N sum s^2), 1 if
      all scores are equal (Jain, Chiu, Hawe. A Quantitative Measure of Fairness and
      Discrimination. DEC-TR-301, 1984); ``per_client``, the N scores. A score that is not
      finite is NaN, and so are then all others but ``per_client``.
    """
    scores = np.asarray(per_client, np.float64)
    scores = np.where(np.isfinite(scores), scores, np.nan)
    if np.isnan(scores).any():
        numbers = ("mean", "std_clients", "worst_decile", "jain")
        return dict.fromkeys(numbers, np.nan) | {"per_client": scores.tolist()}
    worst_first = np.sort(scores) if higher_is_better else np.sort(scores)[::-1]
    squares = float(np.sum(scores**2))
    return {
        "mean": float(scores.mean()),
        "std_clients": float(scores.std()),
        "worst_decile": float(worst_first[: -(-len(scores) // 10)].mean()),
        "jain": float(scores.sum() ** 2 / (len(scores) * squares)) if squares > 0 else 1.0,
        "per_client": scores.tolist(),
    }
