"""Clients that join with an architecture that nobody trained: a table and figures of FLHA-GHN.

A new client gets a generated model, and then trains all its layers by itself, which changes
nothing for others. With local training it starts from a random model.
"""

from typing import NamedTuple

import numpy as np

from experiments.paper.cached_runs import Cache, cached_runs
from experiments.paper.columns import Column, Row, TableText, number_text
from experiments.paper.configurations import Cell
from experiments.paper.figure_lines import ConfigOf, line_of, new_client_curves
from experiments.paper.flha import LAYERED, REFINING, UNSEEN, unseen_cell
from experiments.paper.flha_figures import interval
from experiments.paper.flha_text import DOWN, FLOAT, UP, size_note, size_of
from experiments.paper.row_text import (
    DATA,
    METHOD,
    PUBLISHED,
    SETTING,
    common_row,
    simulated_notes,
    size_list,
    spread_text,
)
from graphfl_jax.commands.common.statistics import diverged
from graphfl_jax.commands.common.units import UNITS

SHOWN = (0, 1, 5, REFINING)  # rounds of a new client
CAPTION = """\
Test {metric} in % of the new client, means over {seeds} seeds. The columns *after* have the
accuracy of its model (G) after this number of its rounds of local training: at 0 it is as it
was generated, or random with local. *sd seeds* is the standard deviation of the last of them
over seeds; its divisor is the number of seeds. P is after the last round too, when the head has
been refined once more. *M down* and *M up* are the millions of numbers that one of the other
clients receives and sends in a round; where architectures differ in them, this is the mean over
these clients. With local, the other clients train for one round only, since they do not affect
the new client. The paper does not state how long its new clients train.
"""


class Unseen(NamedTuple):
    """Scores of new clients over their rounds, a panel for each architecture that they have."""

    names: tuple[str, ...]
    methods: tuple[str, ...] = (*LAYERED, "local")  # the others are compared with the first


def unseen_panels(
    figure: Unseen,
    methods: list[str],
    seeds: list[int],
    size: str,
    config_of: ConfigOf,
    cache: Cache,
) -> dict[str, list[dict]]:
    """A line for each method, by architecture, without diverged runs.

    A line has the ``name``, the ``metric``, the new client's rounds ``x``, the ``kept`` seeds,
    and their scores there at G, ``seeds`` [seeds, x].
    """
    panels = {name: [] for name in figure.names}
    for name, lines in panels.items():
        for method in methods:
            config = config_of(unseen_cell(name, size), method)
            runs = cached_runs(config, seeds, cache, at_once=1)
            curves = new_client_curves(runs)
            kept = [seed for seed, run in zip(seeds, runs, strict=True) if not diverged(run)]
            line = line_of(method, runs, curves, "rounds") | {"kept": kept}
            line["seeds"] = [[row["G"]["mean"] for row in curve] for curve in curves]
            lines.append(line)
    return panels


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


def table_row(cell: Cell, config, runs: list[dict]) -> Row:
    """A row of the table, as `tables.Table.row`."""
    (name,) = config.new_clients.architectures
    row = common_row(config, runs)
    scale, traffic = UNITS[row["metric"]][0], runs[0]["communication"]
    printed = UNSEEN.get(row["method"], {}).get(name)
    row |= {
        "setting": cell.setting,
        "width": config.model.width,
        "size": f"{size_of(config)}; then {config.new_clients.rounds} rounds of the new client",
        "floats": {way: traffic[f"{way}_bytes"] / FLOAT for way in ("down", "up")},
        "published": None if row["source"] == "simulated" else printed,
        "scores": None,
    }
    if not row["diverged"]:
        row["scores"] = {
            point: [
                [scale * scores[point]["mean"] for scores in curve]
                for curve in new_client_curves(runs)
            ]
            for point in ("G", "P")
        }
    return row


def _after(rounds):
    """The column of the score after a number of rounds of the new client."""
    return Column(
        f"after\n{rounds}", lambda row: number_text(_scores(row, "G")[:, rounds].mean())
    )


def _scores(row, point):
    """[seeds, rounds] of a row."""
    return np.array(row["scores"][point])


TEXT = TableText(
    columns=(
        DATA,
        SETTING,
        METHOD,
        *map(_after, SHOWN),
        Column("sd\nseeds", lambda row: spread_text(_scores(row, "G")[:, -1])),
        Column("P", lambda row: number_text(_scores(row, "P")[:, -1].mean())),
        DOWN,
        UP,
        PUBLISHED,
    ),
    title=lambda row: (
        f"flha_6 on {row['data']}, {row['setting']}, {row['metric']} in {row['unit']}, "
        f"{row['seeds']} seeds"
    ),
    introduction=lambda rows: [
        CAPTION.format(metric=rows[0]["metric"], seeds=rows[0]["seeds"]),
        size_note(rows[0]),
        size_list(rows),
    ],
    notes=simulated_notes,
)
