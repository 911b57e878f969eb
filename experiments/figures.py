"""The papers' figures, from the same runs as the tables.

    python -m experiments.figures --figure=panacea_3a --data_root=DIR

panacea_fig2: histograms of the speeds that 16 sensors of PEMS-BAY measured, for training.
panacea_3a and panacea_3c: test scores of all methods over rounds, on FL-60 and on TPT-48.
panacea_3f and panacea_3g: Panacea on TPT-48 with other numbers of local steps K_c, and of
server steps K_s. Lines are means over clients and seeds at P, bands one standard deviation over
seeds. Writes FIGURE.png, FIGURE.svg and, with the numbers that are drawn, FIGURE.json. Runs
that are in the folder of --out already are not made again.
"""

from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from absl import flags
from ml_collections import ConfigDict
from rich.console import Console

from experiments.common.command_line import FLAGS, launch, progress_bar
from experiments.common.plots import draw, draw_histograms
from experiments.paper.cached_runs import cached_runs, paper_config
from graphfl_jax.build import load_federation, pick
from graphfl_jax.configs import base
from graphfl_jax.runs.checkpoint import write_json


class Histograms(NamedTuple):
    """How the values of clients are distributed, a panel for each of the first so many."""

    dataset: str
    clients: int


class Curves(NamedTuple):
    """Scores over rounds, a line for each method."""

    dataset: str


class Ablation(NamedTuple):
    """The last score over values of a field, one line."""

    dataset: str
    method: str
    field: str
    values: tuple[int, ...]
    label: str


FIGURES = {
    "panacea_fig2": Histograms("pems_bay", 16),
    "panacea_3a": Curves("fl60"),
    "panacea_3c": Curves("tpt48"),
    "panacea_3f": Ablation(
        "tpt48", "panacea", "local_steps", (1, 10, 25, 50, 100), "local steps $K_c$"
    ),
    "panacea_3g": Ablation(
        "tpt48", "panacea", "server_steps", (1, 5, 10, 20), "server steps $K_s$"
    ),
}
flags.DEFINE_enum("figure", "panacea_3c", list(FIGURES), "The figure to draw.")
flags.DEFINE_list("methods", [], "Lines of a figure over rounds; by default all methods.")
flags.DEFINE_integer("seeds", 5, "Runs of every point, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_integer("rounds", None, "Fewer rounds, for a quick look.", lower_bound=1)
flags.DEFINE_string("out", "runs/tables", "Folder of the runs and of the figure.")


def main() -> int:
    matplotlib.use("Agg")  # writes files, and needs no screen
    figure = FIGURES[FLAGS.figure]
    for method in FLAGS.methods:
        pick(base.METHODS, method, "methods")
    if FLAGS.methods and not isinstance(figure, Curves):
        raise ValueError(
            f"methods={','.join(FLAGS.methods)}: {FLAGS.figure} does not compare methods"
        )
    out = Path(FLAGS.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"out={out} is no folder; choose another --out")
    if isinstance(figure, Histograms):
        lines, unit = histograms(figure)
        drawn = draw_histograms(lines, unit)
    elif isinstance(figure, Curves):
        lines = curves(figure, FLAGS.methods or list(base.METHODS), out)
        drawn = draw(lines, "round")
    else:
        lines = ablation(figure, out)
        drawn = draw(lines, figure.label)
    out.mkdir(parents=True, exist_ok=True)
    for suffix in ("png", "svg"):
        drawn.savefig(out / f"{FLAGS.figure}.{suffix}", dpi=150)
    write_json(out / f"{FLAGS.figure}.json", lines)
    console = Console()
    for suffix in ("png", "svg", "json"):
        console.print(f"{out}/{FLAGS.figure}.{suffix}", highlight=False, soft_wrap=True)
    return 0


def config_of(dataset: str, method: str) -> ConfigDict:
    return paper_config(dataset, method, root=FLAGS.data_root, rounds=FLAGS.rounds)


def histograms(figure: Histograms) -> tuple[list[dict], str]:
    """Of each client its name, the edges of bins, and the share of values in each; the unit."""
    federation = load_federation(config_of(figure.dataset, "fedavg"))
    units = federation.units
    values = units.mean + units.std * federation.data.train.series[: figure.clients, :, 0]
    edges = np.linspace(0, np.ceil(values.max() / 10) * 10, 41)
    lines = []
    for name, own in zip(federation.clients, values, strict=False):
        shares = np.histogram(own, edges)[0] / len(own)
        lines.append({"name": name, "edges": edges.tolist(), "shares": shares.tolist()})
    return lines, units.name


def curves(figure: Curves, methods: list[str], out: Path) -> list[dict]:
    """A line for each method: its name, the rounds, and per seed the scores at P."""
    lines = []
    with progress_bar("methods") as bar:
        for method in bar.track(methods, description=FLAGS.figure):
            config = config_of(figure.dataset, method)
            runs, _ = cached_runs(config, list(range(FLAGS.seeds)), out / "cells")
            alive = [run for run in runs if not run["diverged"]]
            lines.append(
                {
                    "name": method
                    + f" ({len(runs) - len(alive)} diverged)" * (len(alive) < len(runs)),
                    "metric": runs[0]["metric"],
                    "x": [row["round"] for row in alive[0]["curve"]] if alive else [],
                    "seeds": [[row["P"] for row in run["curve"]] for run in alive],
                }
            )
    return lines


def ablation(figure: Ablation, out: Path) -> list[dict]:
    """One line over the values of a field; a value at which a run diverged has no score."""
    values, scores = [], []
    with progress_bar("values") as bar:
        for value in bar.track(figure.values, description=FLAGS.figure):
            config = config_of(figure.dataset, figure.method)
            config[figure.field] = value
            runs, _ = cached_runs(config, list(range(FLAGS.seeds)), out / "cells")
            metric = runs[0]["metric"]
            if not any(run["diverged"] for run in runs):
                values.append(value)
                scores.append([run["scores"]["final"]["P"]["mean"] for run in runs])
    by_seed = np.array(scores).T.tolist()
    return [{"name": figure.method, "metric": metric, "x": values, "seeds": by_seed}]


if __name__ == "__main__":
    launch(main, many_runs=True)
