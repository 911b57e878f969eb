"""The end of a run before its last round, by its validation scores or by its caller."""

from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.core import Task
from graphfl_jax.runs.multihost import from_first

PRUNED = "pruned"  # begins why a sweep ended a run; such a run is not ranked


def is_set(config: ConfigDict) -> bool:
    """Whether validation scores may end a run."""
    return bool(config.stop.patience or config.stop.target)


def stops(config: ConfigDict, rows: Sequence[Mapping], task: Task) -> str:
    """Why a run ends after the last of its evaluations; empty if it goes on.

    What counts is the mean over clients of the validation scores at ``stop.point``. The run
    ends with the first mean that reaches ``stop.target``, and as soon as the best mean is
    ``stop.patience`` rounds old. Of equal means, the first is the best.

    Args:
      rows: the evaluations so far, as in `single.Result`.
    """
    stop = config.stop
    if not is_set(config) or not rows or rows[-1]["round"] >= config.rounds:
        return ""
    means = [np.mean(row["scores"]["val"][stop.point], dtype=np.float64) for row in rows]
    sign = 1.0 if task.higher_is_better else -1.0
    gains = np.where(np.isfinite(means), sign * np.array(means), -np.inf)
    what = f"{stop.point} on validation"
    if stop.target and (gains >= sign * stop.target).any():
        return f"{what} has reached {stop.target:g}"
    waited = int(rows[-1]["round"] - rows[int(gains.argmax())]["round"])
    if 0 < stop.patience <= waited:
        return f"{what} has not improved for {waited} rounds"
    return ""


def is_pruned(results: Mapping) -> bool:
    """Whether a sweep ended a run since others were better."""
    return (results.get("stopped") or "").startswith(PRUNED)


def is_asked(answer: object) -> bool:
    """Whether the answer of the caller's report, in the first process, ends the run."""
    return from_first({"asked": answer is True})["asked"]
