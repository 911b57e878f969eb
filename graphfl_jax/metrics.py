"""What a prediction costs and earns, and how scores of many clients are summed up."""

import jax.numpy as jnp
import numpy as np
import optax

from graphfl_jax.core import Task


def _cross_entropy(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y)


def _correct(outputs, y):
    return (jnp.argmax(outputs, axis=-1) == y).astype(jnp.float32)


def _squared_error(outputs, y):
    return jnp.mean(jnp.square(outputs - y), axis=-1)


CLASSIFICATION = Task(_cross_entropy, _correct, "accuracy", higher_is_better=True)
REGRESSION = Task(_squared_error, _squared_error, "mse", higher_is_better=False)
TASKS = {"classification": CLASSIFICATION, "regression": REGRESSION}


def summary(per_client: np.ndarray, *, higher_is_better: bool) -> dict:
    """Sums up one score of N clients.

    Returns:
      ``mean`` and ``std_clients`` (population) over clients, each client counting once;
      ``worst_decile``, the mean over the ceil(N / 10) worst clients; ``jain``, the index
      (sum s)^2 / (N sum s^2) of fairness, 1 where all clients have the same (Jain, Chiu, Hawe.
      A Quantitative Measure of Fairness and Discrimination. DEC-TR-301, 1984); ``per_client``,
      the N scores themselves.
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
