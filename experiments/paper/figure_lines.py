"""Lines of figures from runs, and the tables of their numbers.

``runs_of`` gives the runs of a method in a cell, one per seed.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments.paper import pfedgat
from experiments.paper.cached_runs import Cache, cached_runs
from experiments.paper.columns import (
    Row,
    interval_text,
    new_client_curves,
    number_text,
    spread_text,
)
from experiments.paper.configurations import Cell
from experiments.paper.flha import (
    LAYERED,
    SHOWN,
    unseen_cell,
    with_divisor,
    with_examples,
    with_steps,
)
from graphfl_jax.build import load_federation
from graphfl_jax.commands.common.statistics import diverged, over_seeds
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.configs import change
from graphfl_jax.evaluation import POINTS
from graphfl_jax.examples import Examples

ConfigOf = Callable[[Cell, str], ConfigDict]  # (cell, method) -> configuration
RunsOf = Callable[[Cell, str], list[dict]]  # (cell, method) -> runs


def name_with(method: str, lost: int) -> str:
    """The name of a method's line, with the number of its diverged runs."""
    return f"{method} ({lost} diverged)" if lost else method


def line_of(method: str, runs: list[dict], curves: list[list[dict]], x: str) -> dict:
    """The ``name`` of a method's line, its ``metric``, and its ``x``.

    `curves` are those of the runs that did not diverge, and `x` is a key of their elements.
    """
    return {
        "name": name_with(method, len(runs) - len(curves)),
        "metric": runs[0]["metric"],
        "x": [row[x] for row in curves[0]] if curves else [],
    }


class Series(NamedTuple):
    """Scores at P in federations that differ in one number, a line for each method."""

    cell: Callable[[int, str], Cell]  # (number, size) -> cell
    numbers: Mapping[str, tuple[int, ...]]  # by size
    label: str
    split: str  # that is scored: "test" or "balanced"
    methods: tuple[str, ...]  # the others are compared with the first two
    clients: slice = slice(None)  # that are scored


EXAMPLES = {"small": (125, 500, 2000, 8000), "full": (125, 250, 500, 1000, 2000, 4000, 8000)}
DIVISORS = {"small": (1, 4), "full": (1, 2, 4)}
STEPS = {"small": (5, 25, 100), "full": (195, 390, 975, 1950, 3900)}
SERIES = {
    "flha_7": Series(with_steps, STEPS, "local steps per round", "test", LAYERED),
    "flha_examples": Series(
        with_examples, EXAMPLES, "training examples per client", "balanced", (*LAYERED, "local")
    ),
    "flha_once": Series(
        with_divisor,
        DIVISORS,
        "divisor of the width of arch0",
        "test",
        (*LAYERED, "local"),
        clients=slice(1),  # the one with arch0
    ),
}
SERIES["flha_once_others"] = SERIES["flha_once"]._replace(clients=slice(1, None))


def series_lines(figure: Series, methods: list[str], size: str, runs_of: RunsOf) -> list[dict]:
    """A line for each method, without the numbers at which a run diverged.

    A line has the ``name``, the ``metric``, the numbers ``x``, and the scores there of every
    seed, ``seeds`` [seeds, x], means over the clients that are scored.
    """
    split = "final" if figure.split == "test" else figure.split
    lines = [{"name": method, "x": [], "seeds": []} for method in methods]
    lost = dict.fromkeys(methods, 0)
    for number in figure.numbers[size]:  # whose data are loaded once for all methods
        for line, method in zip(lines, methods, strict=True):
            runs = runs_of(figure.cell(number, size), method)
            line["metric"] = runs[0]["metric"]
            broken = sum(run["diverged"] for run in runs)
            lost[method] += broken
            if not broken:
                line["x"].append(number)
                scores = [run["scores"][split]["P"]["per_client"] for run in runs]
                line["seeds"].append([np.mean(clients[figure.clients]) for clients in scores])
    for line in lines:
        line["name"] = name_with(line["name"], lost[line["name"]])
        line["seeds"] = np.array(line["seeds"]).T.tolist()
    return lines


def series_rows(lines: list[dict], label: str) -> list[list[str]]:
    """The score of each method at each number, and how far it is below those of the first two.

    The differences are those of runs with the same seed. All have the half widths of their
    95 % intervals over seeds.
    """
    scale, unit = UNITS[lines[0]["metric"]]
    references = lines[:2]
    gaps = [f"{line['name'].partition(' (')[0]} minus it" for line in references]
    rows = [["method", label, f"P, {unit}", *gaps]]
    for place, line in enumerate(lines):
        for number, scores in _by_number(line).items():
            higher = [_by_number(before).get(number) for before in references[:place]]
            gaps = [
                "" if high is None else interval(scale * (high - scores)) for high in higher
            ]
            gaps += [""] * (len(references) - len(gaps))
            rows.append([line["name"], str(number), interval(scale * scores), *gaps])
    return rows


def _by_number(line):
    """The scores [seeds] of a line at each of its numbers."""
    return dict(zip(line["x"], np.array(line["seeds"]).T, strict=True))


def interval(values: np.ndarray) -> str:
    """The mean of one number per seed with the half width of its 95 % interval, as text."""
    return interval_text(over_seeds(values.tolist()))


class Costs(NamedTuple):
    """Scores at P over what the settings of a table cost, a line for each method.

    There is a panel for each data set.
    """

    table: str
    cost: str  # in its rows; None where a setting costs nothing
    label: str
    methods: tuple[str, ...]


def cost_panels(figure: Costs, rows: list[Row]) -> dict[str, list[dict]]:
    """A line for each method in each data set, without settings with which a run diverged.

    A line has the ``name`` and the ``metric``; of each setting its name, in ``settings``, its
    ``parts`` of the wire, its cost ``x``, and the scores ``seeds`` [settings, seeds] in the
    printed unit; and ``front``, the numbers of the settings that no other one beats at the same
    cost or less, by cost. Settings without a part are one.
    """
    panels, lost = {}, {}
    for row in rows:
        lines = panels.setdefault(row["data"], {})
        empty = {"settings": [], "parts": [], "x": [], "seeds": []}
        line = lines.setdefault(row["method"], {key: row[key] for key in ROW} | empty)
        place = row["data"], row["method"]
        lost[place] = lost.get(place, 0) + row["diverged"]
        if row["scores"] and (row["part"] or "" not in line["parts"]):
            scores = row["scores"]["P"]["seeds"]
            of_setting = row["setting"], row["part"], row[figure.cost], scores
            for values, value in zip(empty, of_setting, strict=True):
                line[values].append(value)
    for data, lines in panels.items():
        for method, line in lines.items():
            line |= {"name": name_with(method, lost[data, method]), "front": _front(line)}
    return {data: list(lines.values()) for data, lines in panels.items()}


ROW = ("metric", "unit", "higher_is_better")  # of a line, from the rows of its table


def _front(line):
    """The places of the settings that beat all that cost the same or less, by cost."""
    sign = 1 if line["higher_is_better"] else -1
    gains = [sign * np.mean(scores) for scores in line["seeds"]]
    costing = [i for i, cost in enumerate(line["x"]) if cost is not None]
    best, front = -np.inf, []
    for i in sorted(costing, key=lambda i: (line["x"][i], -gains[i])):
        if gains[i] > best:
            best = gains[i]
            front.append(i)
    return front


def cost_rows(panels: dict[str, list[dict]], label: str) -> list[list[str]]:
    """The score of each method with each setting, as text."""
    rows = [["data", "method", "setting", label, "P", "sd seeds"]]
    for data, lines in panels.items():
        for line in lines:
            points = zip(line["settings"], line["x"], line["seeds"], strict=True)
            for setting, cost, scores in points:
                numbers = [number_text(cost), f"{np.mean(scores):.2f} {line['unit']}"]
                rows.append([data, line["name"], setting, *numbers, spread_text(scores)])
    return rows


class Allocations(NamedTuple):
    """The shares of all models in each client's model, a heat map for each method and round."""

    dataset: str
    setting: str
    evaluations: int  # at equal distances, the last after the last round
    methods: tuple[str, ...] = pfedgat.ALLOCATED_METHODS


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
        config = config_of(pfedgat.cell(figure.dataset, figure.setting), method)
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
        counts = label_counts(federation.data.train, federation.outputs)
        order, twins = by_labels(counts / counts.sum(axis=1, keepdims=True))
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


def label_counts(part: Examples, classes: int) -> np.ndarray:
    """The number of examples of each class that each client has in a split: [N, C]."""
    counts = [
        np.bincount(y[:count], minlength=classes)
        for y, count in zip(part.y, part.count, strict=True)
    ]
    return np.stack(counts)


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


class Joining(NamedTuple):
    """Scores of new clients over their rounds with all others, a panel for each data set."""

    datasets: tuple[str, ...]
    setting: str
    rounds: int  # without the new clients
    new_rounds: int
    methods: tuple[str, ...] = pfedgat.NEW_CLIENT_METHODS

    def cells(self) -> dict[str, Cell]:
        """A fifth of the clients join after the others have trained."""
        fraction, cells = 0.2, {}
        for dataset in self.datasets:
            whole = pfedgat.cell(dataset, self.setting)
            cells[dataset] = whole._replace(
                changes=whole.changes
                | {
                    "cohort_size": round((1 - fraction) * whole.changes["data.clients"]),
                    "rounds": self.rounds,
                    "eval_every": self.rounds,
                    "new_clients.fraction": fraction,
                    "new_clients.rounds": self.new_rounds,
                    "new_clients.join": "together",
                }
            )
        return cells


class Unseen(NamedTuple):
    """Scores of new clients over their rounds, a panel for each architecture that they have."""

    names: tuple[str, ...]
    methods: tuple[str, ...] = (*LAYERED, "local")  # the others are compared with the first

    def cells(self, size: str) -> dict[str, Cell]:
        return {name: unseen_cell(name, size) for name in self.names}


def new_client_panels(
    cells: dict[str, Cell], methods: list[str], runs_of: RunsOf, point: str
) -> dict[str, list[dict]]:
    """A line for each method in each cell, without diverged runs.

    A line has the ``name``, the ``metric``, the new clients' rounds ``x``, the ``kept`` seeds,
    and their scores at each point, means over the new clients, [seeds, x]; those at `point` are
    also ``seeds``.
    """
    panels = {}
    for name, cell in cells.items():
        panels[name] = []
        for method in methods:
            runs = runs_of(cell, method)
            curves = new_client_curves(runs)
            line = line_of(method, runs, curves, "rounds")
            line["kept"] = [run["seed"] for run in runs if not diverged(run)]
            for at in POINTS:
                line[at] = [[row[at]["mean"] for row in curve] for curve in curves]
            panels[name].append(line | {"seeds": line[point]})
    return panels


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


def unseen_rows(panels: dict[str, list[dict]]) -> list[list[str]]:
    """The scores of each method after the rounds that the table shows, as text.

    The last column has the mean of the first method's score minus the method's, over the seeds
    with which neither diverged, and the half width of its 95 % interval.
    """
    first, *_ = next(iter(panels.values()))
    scale, unit = UNITS[first["metric"]]
    name = first["name"].partition(" (")[0]
    rows = [["unseen", "method", "rounds", f"G, {unit}", "sd seeds", f"{name} minus it"]]
    for unseen_name, lines in panels.items():
        reference = _by_seed(lines[0])
        for line in lines:
            scores = _by_seed(line)
            gaps = [reference[seed] - scores[seed] for seed in scores if seed in reference]
            for place, played in enumerate(line["x"]):
                if played in SHOWN:
                    values = [scale * score[place] for score in scores.values()]
                    gap = ""
                    if line is not lines[0] and gaps:
                        gap = interval(scale * np.array(gaps)[:, place])
                    cells = [unseen_name, line["name"], str(played), f"{np.mean(values):.2f}"]
                    rows.append([*cells, spread_text(values), gap])
    return rows


def _by_seed(line):
    """The scores [x] of a line with each seed that it has."""
    return dict(zip(line["kept"], np.array(line["seeds"]), strict=True))
