"""Figures of speeds and of times."""

import numpy as np
from matplotlib import pyplot
from matplotlib.figure import Figure

from graphfl_jax.commands.common.styles import DASHES
from graphfl_jax.runs.views import COLOURS


def draw_rates(times: dict[str, list[float]], title: str) -> Figure:
    """Rounds per second as bars, with each bar's time per round relative to the first.

    Args:
      times: label of each bar -> median, fastest and slowest seconds per round.
      title: title of the figure.
    """
    figure, axes = pyplot.subplots(figsize=(7.2, 0.8 + 0.5 * len(times)), layout="constrained")
    first, *_ = next(iter(times.values()))
    for i, (median, fastest, slowest) in enumerate(times.values()):
        rate = 1 / median
        reach = [[rate - 1 / slowest], [1 / fastest - rate]]
        axes.barh(i, rate, color=COLOURS[min(i, 1)])
        axes.errorbar(rate, i, xerr=reach, color=COLOURS[-1], capsize=3)
        ratio = f", {median / first:.1f} times the time per round" if i else ""
        axes.annotate(
            f"{rate:.3g}/s{ratio}",
            (1 / fastest, i),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(times)), list(times))
    axes.set(xlabel="rounds per second", title=title)
    axes.set_xlim(0, 1.45 / min(fastest for _, fastest, _ in times.values()))
    axes.invert_yaxis()
    return figure


def draw_power(sizes: list[int], times: list, fit, labels: tuple[str, str], title: str):
    """Times over sizes on logarithmic axes, with the fitted power law.

    Args:
      sizes: positions on the x axis.
      times: median, fastest and slowest time of each size.
      fit: ``factor`` and ``exponent`` of a power law and the ``sizes`` that it was fitted to,
        or None.
      labels: labels of the two axes.
      title: title of the figure.
    """
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    median, fastest, slowest = np.array(times).T
    reach = [median - fastest, slowest - median]
    axes.errorbar(sizes, median, yerr=reach, marker="o", capsize=3, color=COLOURS[0])
    if fit is not None:
        fitted = np.array(fit.sizes, float)
        axes.plot(
            fitted,
            fit.factor * fitted**fit.exponent,
            color=COLOURS[1],
            linestyle=DASHES[1],
            label=f"exponent {fit.exponent:.2f}",
        )
        axes.legend(frameon=False)
    axes.set(xscale="log", yscale="log", xlabel=labels[0], ylabel=labels[1], title=title)
    axes.grid(alpha=0.3, which="both")
    return figure
