"""Weights that a graph hypernetwork generates, beside those with which models start."""

import jax
import numpy as np
from matplotlib.figure import Figure

from graphfl_jax.build import Experiment
from graphfl_jax.commands.common.plots import grid_of_axes
from graphfl_jax.runs.fleet import Fleet

BINS = 61


def weight_lines(fleet: Fleet, experiment: Experiment) -> list[dict]:
    """A line for each architecture, of the kernels of its first client's model.

    A line has the architecture's ``name``, the ``edges`` of bins, and for the ``generated``
    kernels (G) and for ``initial`` ones, as the client model draws them, the ``shares`` of
    weights in the bins, their ``std``, and their excess ``kurtosis``, 0 for a normal law.
    """
    lines = []
    for client, group in zip(
        experiment.build(experiment.hparams, 0).clients, experiment.groups, strict=True
    ):
        number = 0 if group.ids is None else int(group.ids[0])
        kernels = {
            "generated": fleet.params(fleet.clients[number], at="G"),
            "initial": client.model.init(jax.random.key(0)),
        }
        weights = {name: kernels_of(params) for name, params in kernels.items()}
        largest = max(np.quantile(np.abs(values), 0.995) for values in weights.values())
        edges = np.linspace(-largest, largest, BINS + 1)
        line = {"name": client.model.architecture.name, "edges": edges.tolist()}
        for name, values in weights.items():
            inside = np.clip(values, *edges[[0, -1]])  # the outer bins have the rest
            deviations = (values - values.mean()) / values.std()
            line[name] = {
                "shares": (np.histogram(inside, edges)[0] / len(values)).tolist(),
                "std": float(values.std()),
                "kurtosis": float(np.mean(deviations**4) - 3),
            }
        lines.append(line)
    return lines


def kernels_of(params) -> np.ndarray:
    """The weights of all kernels of a model, [d]: its leaves with at least two axes."""
    kernels = [np.ravel(leaf) for leaf in jax.tree.leaves(params) if np.ndim(leaf) > 1]
    return np.concatenate(kernels).astype(np.float64)


def weight_rows(lines: list[dict]) -> list[list[str]]:
    """The moments of the weights of each architecture, as text."""
    rows = [["architecture", "weights", "sd", "excess kurtosis"]]
    for line in lines:
        for name in ("generated", "initial"):
            numbers = line[name]
            moments = [f"{numbers['std']:.3f}", f"{numbers['kurtosis']:.1f}"]
            rows.append([line["name"], name, *moments])
    return rows


def draw_weights(lines: list[dict]) -> Figure:
    """A panel for each architecture, with the two histograms."""
    figure, panels = grid_of_axes(1, len(lines), 3.0, sharey=True)
    for line, axes in zip(lines, panels[0], strict=True):
        for name, fill in (("initial", True), ("generated", False)):
            shares = [100 * share for share in line[name]["shares"]]
            style = {"alpha": 0.35} if fill else {"lw": 1.5, "color": "C1"}
            axes.stairs(shares, line["edges"], fill=fill, label=name, **style)
        axes.set_title(line["name"], fontsize="medium")
        tick = float(f"{0.7 * line['edges'][-1]:.1g}")
        axes.set_xticks([-tick, 0, tick])
        axes.grid(alpha=0.3)
    figure.supxlabel("weight", fontsize="medium")
    panels[0, 0].set_ylabel("% of weights, log scale")
    panels[0, 0].set_yscale("log")
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize="small")
    return figure
