"""Figures of FLHA-GHN: scores over numbers of steps, of examples, and of types of layers."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from experiments.paper.cached_runs import Cache, cached_runs
from experiments.paper.configurations import Cell
from experiments.paper.figure_lines import ConfigOf, name_with
from experiments.paper.flha import LAYERED, with_divisor, with_examples, with_steps
from graphfl_jax.commands.common.statistics import over_seeds
from graphfl_jax.commands.common.styles import UNITS


class Series(NamedTuple):
    """Scores at P in federations that differ in one number, a line for each method."""

    cell: Callable[[int, str], Cell]  # (number, size) -> cell
    numbers: Mapping[str, tuple[int, ...]]  # by size
    label: str
    split: str  # that is scored: "test" or "balanced"
    methods: tuple[str, ...]  # the others are compared with the first two
    clients: slice = slice(None)  # that are scored


EXAMPLES = {
    "small": (125, 500, 2000, 8000),
    "full": (125, 250, 500, 1000, 2000, 4000, 8000),
}
DIVISORS = {"small": (1, 4), "full": (1, 2, 4)}
STEPS = {"small": (5, 25, 100), "full": (195, 390, 975, 1950, 3900)}
SERIES = {
    "flha_7": Series(with_steps, STEPS, "local steps per round", "test", LAYERED),
    "flha_examples": Series(
        with_examples,
        EXAMPLES,
        "training examples per client",
        "balanced",
        (*LAYERED, "local"),
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


def series_lines(
    figure: Series,
    methods: list[str],
    seeds: list[int],
    size: str,
    config_of: ConfigOf,
    cache: Cache,
) -> list[dict]:
    """A line for each method, without the numbers at which a run diverged.

    A line has the ``name``, the ``metric``, the numbers ``x``, and the scores there of every
    seed, ``seeds`` [seeds, x], means over the clients that are scored.
    """
    split = "final" if figure.split == "test" else figure.split
    lines = [{"name": method, "x": [], "seeds": []} for method in methods]
    lost = dict.fromkeys(methods, 0)
    for number in figure.numbers[size]:  # whose data are loaded once for all methods
        for line, method in zip(lines, methods, strict=True):
            config = config_of(figure.cell(number, size), method)
            runs = cached_runs(config, seeds, cache, at_once=1)
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
    summary = over_seeds(values.tolist())
    half_width = "" if summary["half_width"] is None else f"±{summary['half_width']:.2f}"
    return f"{summary['mean']:.2f}{half_width}"
