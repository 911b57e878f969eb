"""Theorems of the Panacea paper in the linear case: as stated, as derived, and simulated.

    python -m experiments.theory
    python -m experiments.theory --graphs= --config=tpt48

Computes the risk of pFedHN and of Panacea under attack for each graph, each normalisation of
G~ and each of three kinds of target models: by the closed forms of
`linear_theory.closed_form`, by training embeddings, and as theorems III.2 and III.3 state it.
The confidence interval of the trained risk decides which formula holds. --config adds the
relations of a configuration's clients.

Writes theory.json with all numbers, theory.md with the tables and a verdict on each statement,
and the risk over the share of attacked clients, with columns of G~ that sum to one, as
theory.png and theory.svg.
"""

import time
import zlib
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from absl import flags
from rich.console import Console

from experiments.common import pages
from experiments.common.flag_values import check_names
from experiments.common.score_plots import draw_risks
from experiments.linear_theory import closed_form, simulation
from experiments.linear_theory.verdicts import NAMES, TARGETS, graph_rows, risk_rows, verdicts
from graphfl_jax.build import load_federation
from graphfl_jax.commands.common.command_line import FLAGS, launch, progress_bar, refuse_unread
from graphfl_jax.commands.common.configuration import configuration, refuse_configuration
from graphfl_jax.commands.common.plots import save_figure
from graphfl_jax.commands.common.text_tables import escape, markdown_table, narrow
from graphfl_jax.intervals import critical_value
from graphfl_jax.memory import check_memory
from graphfl_jax.runs.store import check_folder

flags.DEFINE_list(
    "graphs", list(closed_form.GRAPHS), f"Graphs, of {', '.join(closed_form.GRAPHS)}."
)
flags.DEFINE_integer("clients", 20, "Clients n of those graphs.")
flags.DEFINE_float("density", 0.2, "Probability of each edge of the random graph.")
flags.DEFINE_integer("layers", 1, "Averaging layers L of Panacea.")
flags.DEFINE_float(
    "attacked", 0.2, "Share of attacked clients; the first clients are attacked."
)
flags.DEFINE_integer("params", 40, "Parameters d of a client's model.")
flags.DEFINE_integer("embedding", 5, "Size k of a client's embedding.")
flags.DEFINE_integer("draws", 4000, "Random draws of generators, targets and embeddings.")
flags.DEFINE_integer("steps", 0, "Steps of gradient descent; 0 computes the limit.")
flags.DEFINE_integer("seed", 0, "Seed of the random graph and of the draws.")
flags.DEFINE_string("out", "runs/theory", "Output folder.")

PLOTTED = np.linspace(0, 0.5, 11)  # shares of attacked clients
SIZES = ("clients", "layers", "params", "embedding", "draws", "steps", "seed")
LEAST = {"clients": 2, "draws": 2, "steps": 0, "seed": 0}  # 1 for the other sizes
SHARES = ("attacked", "density")
FLOAT64 = 8  # bytes
ROUNDING = 1e-9  # relative to 2dk; numbers that differ by less are equal


class Case(NamedTuple):
    """A graph with one normalisation."""

    graph: str
    normalisation: str  # "both" if rows and columns sum to one
    step: np.ndarray  # G~ [n, n]


def main() -> int:
    started = time.perf_counter()
    matplotlib.use("Agg")  # needs no screen
    check_flags()
    pages.check_page()
    out = Path(FLAGS.out)
    check_folder(out)
    cases = cases_of(adjacencies())
    plotted = [case for case in cases if case.normalisation != "row"]
    means = len(cases) * len(closed_form.REGIMES) * len(closed_form.METHODS)
    within = critical_value(FLAGS.draws, missed=0.001, means=means)
    graphs, risks, curves = [], [], []
    with progress_bar("cases") as bar:
        task = bar.add_task("tables", total=len(cases) + len(plotted))
        for case in cases:
            attacked = round(FLAGS.attacked * len(case.step))
            names = {"graph": case.graph, "normalisation": case.normalisation}
            graphs.append(names | closed_form.conditions(case.step, FLAGS.layers, attacked))
            risks += risks_of(case, attacked, within)
            bar.advance(task)
        bar.update(task, description="plot")
        for case in plotted:
            curves += curves_of(case, within)
            bar.advance(task)
    worst = [closed_form.extremes(4, directed=True), closed_form.extremes(6, directed=False)]

    console = Console()
    tables = [("G~ with rows or columns that sum to one", graph_rows(graphs))]
    for regime, targets in TARGETS.items():
        rows = risk_rows([risk for risk in risks if risk["regime"] == regime])
        tables.append((f"Risk for {regime} targets, {targets}", rows))
    for title, rows in tables:
        console.print(narrow(title, rows, left=("graph", "G~", "method")))
    lines = verdicts(risks, graphs, worst, within=within, steps=FLAGS.steps)
    for line in lines:
        pages.print_line(console, line)
    results = {
        "settings": {name: FLAGS[name].value for name in ("graphs", *SIZES, *SHARES)},
        "verdicts": lines,
        "graphs": graphs,
        "risks": risks,
        "extremes": worst,
        "curves": curves,
    }
    pages.write_results(out, "theory", results, page(tables, lines), since=started)
    save_figure(draw_risks(curves, NAMES), out / "theory")
    pages.print_line(console, f"{out}/theory.json, .md, .png and .svg")
    return 0


def check_flags() -> None:
    """Checks the values of the flags.

    Raises:
      ValueError: a value is out of range.
    """
    for name in SIZES:
        value, least = FLAGS[name].value, LEAST.get(name, 1)
        if value < least:
            raise ValueError(
                f"{name}={value} is less than {least}; set --{name}={least} or more"
            )
    for name in SHARES:
        value = FLAGS[name].value
        if not 0 <= value <= 1:
            raise ValueError(
                f"{name}={value} is outside [0, 1]; set --{name}=0.2 or another share"
            )
    if FLAGS.embedding > FLAGS.params:
        raise ValueError(
            f"embedding={FLAGS.embedding} exceeds params={FLAGS.params}, so that different "
            f"embeddings give the same model; set --embedding to at most {FLAGS.params}"
        )
    drawn = min(FLAGS.draws, simulation.AT_ONCE)
    for name, numbers in (
        ("draws", FLAGS.draws),
        ("params", drawn * FLAGS.params * FLAGS.embedding),  # of the generators
        ("clients", FLAGS.clients * max(FLAGS.clients, drawn * FLAGS.params)),
    ):
        check_memory(f"{name}={FLAGS[name].value}", FLOAT64 * numbers)
    if not FLAGS.graphs and FLAGS.config is None:
        raise ValueError(f"graphs= is empty; choose from {', '.join(closed_form.GRAPHS)}")


def adjacencies() -> dict[str, np.ndarray]:
    """The adjacency of each graph that the flags name."""
    check_names("graphs", FLAGS.graphs, closed_form.GRAPHS)
    graphs = {}
    for name in FLAGS.graphs:
        rng = np.random.default_rng(FLAGS.seed)
        graphs[name] = closed_form.GRAPHS[name](FLAGS.clients, rng, FLAGS.density)
    if FLAGS.config is None:
        refuse_configuration("no --config names a federation")
        refuse_unread("data_root")
        return graphs
    federation = load_federation(configuration())
    adjacency = closed_form.adjacency_of(federation.data.graph)
    if not adjacency.any():
        raise ValueError(
            f"data.name={federation.name} has no relations; add --config.data.graph=knn"
        )
    return graphs | {federation.name: adjacency}


def cases_of(graphs: dict[str, np.ndarray]) -> list[Case]:
    """Both normalisations of each graph, or one case where they are equal."""
    cases = []
    for name, adjacency in graphs.items():
        steps = {
            norm: closed_form.averaging(adjacency, norm) for norm in closed_form.NORMALISATIONS
        }
        if np.allclose(steps["row"], steps["column"]):
            steps = {"both": steps["column"]}
        cases += [Case(name, norm, step) for norm, step in steps.items()]
    return cases


def risks_of(case: Case, attacked: int, within: float) -> list[dict]:
    """A row for each kind of targets and each method: derived, simulated and stated risks."""
    sizes = {"params": FLAGS.params, "embedding": FLAGS.embedding}
    targets = closed_form.targets(case.step, FLAGS.layers)
    graph = targets[0]
    # Every case and number of attacked clients has a seed of its own, so that errors differ.
    simulated = simulation.simulate(
        graph,
        targets,
        attacked,
        **sizes,
        draws=FLAGS.draws,
        steps=FLAGS.steps,
        seed=zlib.crc32(f"{FLAGS.seed} {case.graph} {case.normalisation} {attacked}".encode()),
    )
    stated = closed_form.stated_risks(graph, attacked, **sizes)
    interval = critical_value(FLAGS.draws, missed=0.05)
    rows = []
    for i, regime in enumerate(closed_form.REGIMES):
        for j, method in enumerate(closed_form.METHODS):
            through = np.eye(len(graph)) if method == "pfedhn" else graph
            closed = closed_form.risk(through, targets[i], attacked, **sizes)
            mean, error = float(simulated.mean[i, j]), float(simulated.error[i, j])
            margin = within * error + ROUNDING * 2 * FLAGS.params * FLAGS.embedding
            rows.append(
                {
                    "graph": case.graph,
                    "normalisation": case.normalisation,
                    "regime": regime,
                    "method": method,
                    "attacked": attacked,
                    "closed_form": closed,
                    "mean": mean,
                    "half_width": interval * error,
                    "margin": margin,
                    "stated": stated[method],
                    "closed_form_holds": abs(mean - closed) <= margin,
                    "stated_holds": abs(mean - stated[method]) <= margin,
                }
            )
    return rows


def curves_of(case: Case, within: float) -> list[dict]:
    """A panel for each kind of targets: risks over the share of attacked clients."""
    n = len(case.step)
    counts = list(dict.fromkeys(round(share * n) for share in PLOTTED))
    rows = [row for m in counts for row in risks_of(case, m, within)]

    def risk(name, regime, method):
        return [row[name] for row in rows if (row["regime"], row["method"]) == (regime, method)]

    names = ("closed_form", "stated", "mean", "half_width")
    return [
        {"graph": case.graph, "regime": regime, "shares": [m / n for m in counts]}
        | {name: {method: risk(name, regime, method) for method in NAMES} for name in names}
        for regime in closed_form.REGIMES
    ]


def page(tables: list[tuple[str, list[list[str]]]], lines: list[str]) -> str:
    """The tables and the verdicts in Markdown."""
    parts = [f"{escape(title)}:\n\n{markdown_table(rows)}" for title, rows in tables]
    return "\n".join([*parts, "".join(f"- {escape(line)}\n" for line in lines)])


if __name__ == "__main__":
    launch(main)
