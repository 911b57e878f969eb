"""Statistics over runs: divergence, means over seeds and a test."""

import numpy as np

from graphfl_jax.intervals import half_width


def over_seeds(values: list[float]) -> dict:
    """Summary of one number per seed.

    Returns:
      ``mean``; ``half_width`` of its 95 % interval, None with a single seed; and the values
      themselves as ``seeds``.
    """
    return {
        "mean": float(np.mean(values)),
        "half_width": half_width(values),
        "seeds": list(map(float, values)),
    }


def wilcoxon_p(differences: np.ndarray) -> float:
    """The two-sided p value of Wilcoxon's signed-rank test; 1 if all differences are 0.

    Differences of 0 are left out before the test. With them, SciPy takes the normal
    approximation for more than 13 numbers, although few of them may differ from 0.
    """
    from scipy.stats import wilcoxon

    nonzero = differences[differences != 0]
    return float(wilcoxon(nonzero).pvalue) if len(nonzero) else 1.0


def diverged(run: dict) -> bool:
    """Whether training or the adaptation of new clients diverged in a run.

    Args:
      run: in the format of results.json.
    """
    return run["diverged"] or (
        run["new_clients"] is not None and run["new_clients"]["diverged_at"] >= 0
    )
