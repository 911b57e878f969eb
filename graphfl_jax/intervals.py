"""Confidence intervals of means, by Student's t."""

from collections.abc import Sequence

import numpy as np


def critical_value(samples: int, *, missed: float, means: int = 1) -> float:
    """Half width, in standard errors, of simultaneous confidence intervals by Student's t.

    Args:
      samples: independent samples behind each mean.
      missed: probability that at least one interval does not contain its true mean.
      means: number of intervals (Bonferroni's correction).
    """
    from scipy.special import stdtrit

    return float(-stdtrit(samples - 1, missed / (2 * means)))


def half_width(values: Sequence[float], *, of: float = np.inf) -> float | None:
    """Half of the 95 % confidence interval of the mean of a sample; None for one value.

    Args:
      of: size of the population, from which the sample was drawn without replacement. The
        variance of the mean is then s^2 / K (1 - K / N) (Cochran. Sampling Techniques, third
        edition, 1977, theorem 2.2).
    """
    count = len(values)
    if count < 2:
        return None
    error = np.std(values, ddof=1) * np.sqrt((1 - count / of) / count)
    return float(critical_value(count, missed=0.05) * error)
