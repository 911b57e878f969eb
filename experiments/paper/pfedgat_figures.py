"""Figures of the pFedGAT paper: who gets whose model, and clients that join."""

from typing import NamedTuple

import numpy as np

from experiments.paper.cached_runs import Cache, cached_runs
from experiments.paper.figure_lines import ConfigOf, line_of, new_client_curves
from experiments.paper.pfedgat import ALLOCATED_METHODS, NEW_CLIENT_METHODS, cell
from experiments.paper.row_text import spread_text
from graphfl_jax.build import load_federation
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.configs import change
from graphfl_jax.data.federation import Federation
from graphfl_jax.evaluation import POINTS


class Allocations(NamedTuple):
    """The shares of all models in each client's model, a heat map for each method and round."""

    dataset: str
    setting: str
    evaluations: int  # at equal distances, the last after the last round
    methods: tuple[str, ...] = ALLOCATED_METHODS


class Joining(NamedTuple):
    """Scores of new clients over their rounds, a panel for each data set."""

    datasets: tuple[str, ...]
    setting: str
    rounds: int  # without the new clients
    new_rounds: int
    methods: tuple[str, ...] = NEW_CLIENT_METHODS


def allocation_lines(
    figure: Allocations, methods: list[str], config_of: ConfigOf, cache: Cache
) -> list[dict]:
    """A line for each method, of seed 0.

    A line has the ``name``, the rounds ``x``, the matrices ``allocations`` [x, N, N] with the
    clients in the order of `by_labels`, their names as ``clients`` in this order, and of each
    client its ``twin``: the place in this order of the client with the most similar labels.

    Raises:
      ValueError: a method does not mix the clients' models, or its run diverged.
    """
    lines = []
    for method in methods:
        config = config_of(cell(figure.dataset, figure.setting), method)
        every = -(-config.rounds // figure.evaluations)
        chosen = {"eval_every": every, "eval.points": ("G",), "eval.splits": ("test",)}
        config = change(config, chosen)
        (run,) = cached_runs(config, [config.seed], cache, at_once=1)
        if run["diverged"] or not all("allocation" in row for row in run["curve"]):
            raise ValueError(
                f"methods={method} has no allocation, since it diverged or its server does not "
                f"mix the clients' models; leave it out"
            )
        federation = load_federation(config)
        order, twins = by_labels(label_shares(federation))
        place = np.argsort(order)
        lines.append(
            {
                "name": method,
                "x": [row["round"] for row in run["curve"]],
                "allocations": [
                    np.array(row["allocation"])[np.ix_(order, order)].tolist()
                    for row in run["curve"]
                ],
                "clients": [federation.clients[i] for i in order],
                "twins": place[twins[order]].tolist(),
            }
        )
    return lines


def label_shares(federation: Federation) -> np.ndarray:
    """The share of each class in the training examples of each client: [N, C]."""
    train, classes = federation.data.train, federation.outputs
    counts = np.stack(
        [
            np.bincount(train.y[i, :count], minlength=classes)
            for i, count in enumerate(train.count)
        ]
    )
    return counts / counts.sum(axis=1, keepdims=True)


def by_labels(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An order in which clients with similar labels are neighbours.

    Args:
      shares: of the classes of each client, [N, C] with N of at least 2.

    Returns:
      The order [N] of the leaves of a hierarchical clustering, and for each client [N] the
      other client whose shares are nearest.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import pdist, squareform

    distances = pdist(shares, "cityblock")
    order = leaves_list(linkage(distances, "average", optimal_ordering=True))
    square = squareform(distances)
    np.fill_diagonal(square, np.inf)
    return order, square.argmin(axis=1)


def allocation_rows(lines: list[dict]) -> list[list[str]]:
    """The mean shares of each method in every round, in %, as text.

    They are the shares of a client's own model, of that with the most similar labels, and of
    each other one.
    """
    rows = [["method", "round", "own, %", "most similar, %", "each other, %"]]
    for line in lines:
        for played, matrix in zip(line["x"], line["allocations"], strict=True):
            shares = 100 * np.array(matrix)
            self_share = np.diag(shares).mean()
            twin = shares[np.arange(len(shares)), line["twins"]].mean()
            left = shares.sum(axis=1).mean() - self_share - twin
            each_other = left / max(len(shares) - 2, 1)
            numbers = [f"{share:.1f}" for share in (self_share, twin, each_other)]
            rows.append([line["name"], str(played), *numbers])
    return rows


def joining_panels(
    figure: Joining, methods: list[str], seeds: list[int], config_of: ConfigOf, cache: Cache
) -> dict[str, list[dict]]:
    """A line for each method on each data set, without diverged runs.

    A line has the ``name``, ``metric``, the new clients' rounds ``x``, and the scores of every
    seed at each point, means over the new clients; those at P are ``seeds``.
    """
    panels = {}
    for dataset in figure.datasets:
        whole = cell(dataset, figure.setting)
        part = whole._replace(changes=whole.changes | _new_clients(figure, whole))
        panels[dataset] = []
        for method in methods:
            runs = cached_runs(config_of(part, method), seeds, cache, at_once=1)
            curves = new_client_curves(runs)
            scores = {
                point: [[row[point]["mean"] for row in curve] for curve in curves]
                for point in POINTS
            }
            line = line_of(method, runs, curves, "rounds")
            panels[dataset].append(line | {"seeds": scores["P"], **scores})
    return panels


def _new_clients(figure, whole):
    """A fifth of the clients join after the others have trained."""
    fraction = 0.2
    return {
        "cohort_size": round((1 - fraction) * whole.changes["data.clients"]),
        "rounds": figure.rounds,
        "eval_every": figure.rounds,
        "new_clients.fraction": fraction,
        "new_clients.rounds": figure.new_rounds,
    }


def joining_rows(panels: dict[str, list[dict]]) -> list[list[str]]:
    """The scores of each method after each of the new clients' rounds, as text."""
    first = next(iter(panels.values()))[0]
    scale, unit = UNITS[first["metric"]]
    heads = [f"{point}, {unit}" for point in POINTS]
    rows = [["data", "method", "rounds", *heads, "sd seeds at P"]]
    for dataset, lines in panels.items():
        for line in lines:
            for k, played in enumerate(line["x"]):
                scores = {p: scale * np.array([curve[k] for curve in line[p]]) for p in POINTS}
                numbers = [f"{scores[p].mean():.2f}" for p in POINTS]
                spread = spread_text(scores["P"])
                rows.append([dataset, line["name"], str(played), *numbers, spread])
    return rows
