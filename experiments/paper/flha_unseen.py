"""Clients that join with an architecture that nobody trained: a table and figures of FLHA-GHN.

A new client gets a generated model, and then trains all its layers by itself, which changes
nothing for others. With local training it starts from a random model.
"""

from typing import NamedTuple

import numpy as np
from rich.table import Table

from experiments.paper.cached_runs import Cache, cached_runs
from experiments.paper.configurations import Cell
from experiments.paper.flha import LAYERED, REFINING, unseen_cell
from experiments.paper.flha_figures import ConfigOf, interval
from experiments.paper.flha_published import UNSEEN
from experiments.paper.flha_text import (
    FLOAT,
    FULL,
    FULL_WIDTH,
    SMALL,
    size_of,
)
from experiments.paper.row_text import common_row, simulated_notes, sizes, spread_text
from graphfl_jax.commands.common.statistics import diverged
from graphfl_jax.commands.common.text_tables import escaped, markdown_table, narrow
from graphfl_jax.commands.common.units import UNITS

SHOWN = (0, 1, 5, REFINING)  # rounds of a new client
HEADS = (
    *("data", "setting", "method", *(f"after {played}" for played in SHOWN), "sd seeds"),
    *("P", "M down", "M up", "published"),
)
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


def curves(runs: list[dict]) -> list[list[dict]]:
    """The scores of the new clients in each run that did not diverge, by round and point."""
    return [run["new_clients"]["curve"] for run in runs if not diverged(run)]


def unseen(
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
            found = curves(runs)
            lost = len(runs) - len(found)
            lines.append(
                {
                    "name": f"{method} ({lost} diverged)" if lost else method,
                    "metric": runs[0]["metric"],
                    "x": [row["rounds"] for row in found[0]] if found else [],
                    "kept": [
                        seed for seed, run in zip(seeds, runs, strict=True) if not diverged(run)
                    ],
                    "seeds": [[row["G"]["mean"] for row in curve] for curve in found],
                }
            )
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
                    own = [scale * score[place] for score in scores.values()]
                    gap = ""
                    if line is not lines[0] and gaps:
                        gap = interval(scale * np.array(gaps)[:, place])
                    mean = f"{np.mean(own):.2f}"
                    cells = [unseen_name, line["name"], str(played), mean, spread_text(own)]
                    rows.append([*cells, gap])
    return rows


def _by_seed(line):
    """The scores [x] of a line with each seed that it has."""
    return dict(zip(line["kept"], np.array(line["seeds"]), strict=True))


def table_row(cell: Cell, config, runs: list[dict]) -> dict:
    """One row of the table: scores in %, or the number of diverged runs.

    Args:
      cell: of the table.
      config: configuration of the runs.
      runs: one per seed, in the format of results.json.
    """
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
            point: [[scale * one[point]["mean"] for one in curve] for curve in curves(runs)]
            for point in ("G", "P")
        }
    return row


def score_rows(rows: list[dict]) -> list[list[str]]:
    """The rows as text, in the order of `HEADS`."""
    text = []
    for row in rows:
        cells = [row["data"], row["setting"], row["method"]]
        if row["scores"] is None:
            empty = len(HEADS) - len(cells) - 2
            cells += [f"{row['diverged']} of {row['seeds']} diverged", *[""] * empty]
        else:
            own, refined = (np.array(row["scores"][point]) for point in ("G", "P"))
            cells += [f"{own[:, played].mean():.2f}" for played in SHOWN]
            cells += [spread_text(own[:, -1]), f"{refined[:, -1].mean():.2f}"]
            cells += [f"{row['floats'][way]:.3f}" for way in ("down", "up")]
        paper = row["published"]
        text.append([*cells, "" if paper is None else f"{paper:.2f}"])
    return text


def console_table(rows: list[dict]) -> Table:
    """The rows of one cell for a console."""
    first = rows[0]
    title = (
        f"flha_6 on {first['data']}, {first['setting']}, {first['metric']} in "
        f"{first['unit']}, {first['seeds']} seeds"
    )
    heads = [head.replace(" ", "\n") for head in HEADS]
    return narrow(title, [cells[2:] for cells in [heads, *score_rows(rows)]])


def markdown(rows: list[dict]) -> str:
    """The table in Markdown, with a caption, the sizes of the runs, and notes."""
    first = rows[0]
    parts = [
        CAPTION.format(metric=first["metric"], seeds=first["seeds"]),
        SMALL if first["width"] < FULL_WIDTH else FULL,
        "".join(f"- {line}\n" for line in sizes(rows)),
        markdown_table([list(HEADS), *score_rows(rows)]),
        *(f"{escaped(note)}\n" for note in simulated_notes(rows)),
    ]
    return "\n".join(parts)
