"""Panacea's theorems in the linear case: printed, derived, and trained.

    python -m experiments.theory
    python -m experiments.theory --graphs= --config=configs/tpt48.py

For each graph, each normalisation of G~, and each of three things that clients may want, the
risk of pFedHN and of Panacea where some clients are attacked: by the closed forms of
`linear_theory.closed_form`, on codes that are trained, and as theorems III.2 and III.3 print it. The
interval about what is measured decides which formula holds. --config adds the relations of a
configuration's clients. Writes theory.json, with all numbers, and the risk over the share of
attacked clients, columns of G~ having sum one, as theory.png and theory.svg.
"""

import zlib
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from absl import flags
from rich.console import Console

from experiments.common.command_line import FLAGS, configuration, launch, progress_bar
from experiments.common.plots import draw_risks
from experiments.linear_theory import closed_form, simulation
from experiments.linear_theory.verdicts import NAMES, findings, graph_table, risk_table
from graphfl_jax.build import load_federation, pick
from graphfl_jax.runs.checkpoint import write_json

flags.DEFINE_list("graphs", list(closed_form.GRAPHS), f"Of {', '.join(closed_form.GRAPHS)}.")
flags.DEFINE_integer("clients", 20, "Clients n of those graphs.")
flags.DEFINE_float("density", 0.2, "Share of pairs that the random graph joins.")
flags.DEFINE_integer("layers", 1, "L: how often Panacea averages.")
flags.DEFINE_float("attacked", 0.2, "Share of attacked clients, the first ones.")
flags.DEFINE_integer("params", 40, "Numbers d in a client's model.")
flags.DEFINE_integer("code", 5, "Numbers k in a client's code.")
flags.DEFINE_integer("draws", 4000, "Of generators, wishes and first codes.")
flags.DEFINE_integer("steps", 0, "Of gradient descent; 0: to its end.")
flags.DEFINE_integer("seed", 0, "Of the random graph and of the draws.")
flags.DEFINE_string("out", "runs/theory", "Folder of theory.json and the plot.")

PLOTTED = np.linspace(0, 0.5, 11)  # shares of attacked clients
SIZES = ("clients", "layers", "params", "code", "draws", "steps", "seed")
LEAST = {"clients": 2, "draws": 2, "steps": 0, "seed": 0}  # and of the other sizes 1
SHARES = ("attacked", "density")
ROUNDING = 1e-9  # numbers that differ by less, as a share of 2dk, are equal


class Case(NamedTuple):
    """Clients who average over their neighbours."""

    graph: str
    normalisation: str  # "both" where rows and columns sum to one
    step: np.ndarray  # G~ [n, n]


def main() -> int:
    matplotlib.use("Agg")  # writes files, and needs no screen
    check()
    cases = cases_of(relations())
    drawn = [case for case in cases if case.normalisation != "row"]
    out = Path(FLAGS.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out={out} cannot be written; choose another --out") from error
    numbers = len(cases) * len(closed_form.REGIMES) * len(closed_form.METHODS)
    within = simulation.interval(FLAGS.draws, missed=0.001, numbers=numbers)
    graphs, rows, curves = [], [], []
    with progress_bar("cases") as bar:
        task = bar.add_task("tables", total=len(cases) + len(drawn))
        for case in cases:
            graphs.append(conditions(case))
            rows += risks(case, graphs[-1]["attacked"], within)
            bar.advance(task)
        bar.update(task, description="plot")
        for case in drawn:
            curves += curves_of(case, within)
            bar.advance(task)
    worst = [closed_form.extremes(4, directed=True), closed_form.extremes(6, directed=False)]

    console = Console()
    console.print(graph_table(graphs))
    for regime in closed_form.REGIMES:
        console.print(risk_table(regime, [row for row in rows if row["regime"] == regime]))
    found = findings(rows, graphs, worst, within=within, steps=FLAGS.steps)
    for line in found:
        console.print(line, highlight=False, soft_wrap=True)
    written = {
        "settings": {name: FLAGS[name].value for name in ("graphs", *SIZES, *SHARES)},
        "findings": found,
        "graphs": graphs,
        "risks": rows,
        "extremes": worst,
        "curves": curves,
    }
    write_json(out / "theory.json", written)
    figure = draw_risks(curves, NAMES)
    for suffix in ("png", "svg"):
        figure.savefig(out / f"theory.{suffix}", dpi=150)
    console.print(f"{out}/theory.json, .png and .svg", highlight=False, soft_wrap=True)
    return 0


def check() -> None:
    """Refuses settings that cannot be."""
    for name in SIZES:
        value, least = FLAGS[name].value, LEAST.get(name, 1)
        if value < least:
            raise ValueError(
                f"{name}={value} must be at least {least}; set --{name}={least} or more"
            )
    for name in SHARES:
        value = FLAGS[name].value
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value} is a share; set --{name} in [0, 1]")
    if FLAGS.code > FLAGS.params:
        raise ValueError(
            f"code={FLAGS.code} exceeds params={FLAGS.params}, and models would not tell "
            f"codes; set --code to at most {FLAGS.params}"
        )
    if not FLAGS.graphs and FLAGS.config is None:
        raise ValueError(f"graphs= is empty; choose from {', '.join(closed_form.GRAPHS)}")


def relations() -> dict[str, np.ndarray]:
    """Who hears whom in each graph that the flags name."""
    makers = {name: pick(closed_form.GRAPHS, name, "graphs") for name in FLAGS.graphs}
    made = {
        name: make(FLAGS.clients, np.random.default_rng(FLAGS.seed), FLAGS.density)
        for name, make in makers.items()
    }
    if FLAGS.config is None:
        return made
    federation = load_federation(configuration())
    hears = closed_form.heard(federation.data.graph)
    if not hears.any():
        raise ValueError(f"{federation.name} has no relations; add --config.data.graph=knn")
    return made | {federation.name: hears}


def cases_of(relations) -> list[Case]:
    """Both normalisations of each graph, or the one that they are."""
    cases = []
    for name, hears in relations.items():
        steps = {
            norm: closed_form.averaging(hears, norm) for norm in closed_form.NORMALISATIONS
        }
        if np.allclose(steps["row"], steps["column"]):
            steps = {"both": steps["column"]}
        cases += [Case(name, norm, step) for norm, step in steps.items()]
    return cases


def conditions(case: Case) -> dict:
    attacked = round(FLAGS.attacked * len(case.step))
    about = {"graph": case.graph, "normalisation": case.normalisation}
    return about | closed_form.conditions(case.step, FLAGS.layers, attacked)


def risks(case: Case, attacked: int, within: float) -> list[dict]:
    """A row for each regime and method: derived, measured, printed, and what holds."""
    sizes = {"params": FLAGS.params, "code": FLAGS.code}
    wishes = closed_form.wishes(case.step, FLAGS.layers)
    graph = wishes[0]
    # Others for every case and number of attacked clients, since errors would be the same too.
    told = simulation.simulate(
        *(graph, wishes, attacked),
        **sizes,
        draws=FLAGS.draws,
        steps=FLAGS.steps,
        seed=zlib.crc32(f"{FLAGS.seed} {case.graph} {case.normalisation} {attacked}".encode()),
    )
    printed = closed_form.printed(graph, attacked, **sizes)
    interval = simulation.interval(FLAGS.draws, missed=0.05)
    rows = []
    for i, regime in enumerate(closed_form.REGIMES):
        for j, method in enumerate(closed_form.METHODS):
            through = np.eye(len(graph)) if method == "pfedhn" else graph
            closed = closed_form.risk(through, wishes[i], attacked, **sizes)
            mean, error = float(told.mean[i, j]), float(told.error[i, j])
            margin = within * error + ROUNDING * 2 * FLAGS.params * FLAGS.code
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
                    "printed": printed[method],
                    "closed_form_holds": abs(mean - closed) <= margin,
                    "printed_holds": abs(mean - printed[method]) <= margin,
                }
            )
    return rows


def curves_of(case: Case, within: float) -> list[dict]:
    """A panel for each regime: risks over the share of attacked clients."""
    n = len(case.step)
    counts = list(dict.fromkeys(round(share * n) for share in PLOTTED))
    rows = [row for m in counts for row in risks(case, m, within)]

    def risk(name, regime, method):
        return [row[name] for row in rows if (row["regime"], row["method"]) == (regime, method)]

    names = ("closed_form", "printed", "mean", "half_width")
    return [
        {"graph": case.graph, "regime": regime, "shares": [m / n for m in counts]}
        | {name: {method: risk(name, regime, method) for method in NAMES} for name in names}
        for regime in closed_form.REGIMES
    ]


if __name__ == "__main__":
    launch(main)
