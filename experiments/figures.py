"""Figures of the papers, from the same runs as the tables.

    python -m experiments.figures --figure=panacea_3a --data_root=DIR
    python -m experiments.figures --figure=partition --config=cifar10 \\
        --config.data.partition=dirichlet

panacea_fig2: histograms of the speeds that 16 sensors of PEMS-BAY measured, training split.
panacea_3a to panacea_3e: test scores of all methods over rounds, on FL-60, drawn cars, TPT-48,
METR-LA and PEMS-BAY. panacea_3f and panacea_3g: Panacea on TPT-48 over the number of local
steps K_c, and over the number of server steps K_s; panacea_3h and panacea_3i: on drawn cars.
Cars and traffic have the small size of the tables. Lines are means over clients and seeds at P;
bands are one standard deviation over seeds.
pfedgat_3: the shares of all clients' models in the model that each client gets, seed 0. Clients
with similar labels are neighbours. pfedgat_4: scores of new clients, over the rounds after they
have joined. Both have the small size of the tables.
flha_3 and flha_depths: clients that join with an architecture that nobody trained, over their
rounds of local training; flha_depths has plain networks of other depths.
flha_7: FLHA-GHN and its controls over the number of local steps per round, with as many steps
in all. flha_examples: the same and local training over the number of training examples per
client. flha_once: the same for a client some of whose types of layers nobody else has, over
the divisor of its width; flha_once_others: for the other clients. flha_6: histograms of the
weights that FLHA-GHN generates after training, beside those with which client models start,
seed 0. --profile is their size.
compression and privacy: scores at P of the runs of the tables of these names, over the
kilobytes that a client sends in a round, and over epsilon. A point is a setting, and a bar one
standard deviation over seeds. A line joins the settings that no other one of the method beats
at the same cost or less. The epsilon of central privacy is of the deployment whose noise is
added.
partition: how many examples of each class every client of --config has, by default of
fashion_mnist. architectures: the graphs of the client models of --config, by default of
flha_cifar10, with the types of their layers.

Writes FIGURE.png, FIGURE.svg, FIGURE.json with the plotted numbers and FIGURE.md with a table
of them into the folder of --out; if there is a table FIGURE, the files are figure_FIGURE. Runs
that are cached there are not repeated. --page also writes the table into a page.
"""

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from absl import flags
from rich.console import Console

from experiments.common import pages, score_plots
from experiments.common.flag_values import check_names, refuse_flag
from experiments.paper import figure_lines
from experiments.paper.architecture_graphs import (
    architecture_graphs,
    draw_architectures,
    graph_rows,
)
from experiments.paper.cached_runs import Cache, cached_runs
from experiments.paper.columns import SPREAD, spread_text
from experiments.paper.configurations import Cell, paper_config, remedy_of_source
from experiments.paper.figure_lines import (
    SERIES,
    Allocations,
    Costs,
    Joining,
    Series,
    Unseen,
)
from experiments.paper.flha import PLAIN, RESIDUAL, SIZES, cells_of
from experiments.paper.tables import SMALL, TABLES
from experiments.paper.weight_histograms import draw_weights, weight_lines, weight_rows
from graphfl_jax import configs, load, run
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.commands.common.accept_changes import changes_accepted
from graphfl_jax.commands.common.command_line import FLAGS, launch, progress_bar
from graphfl_jax.commands.common.configuration import configuration, refuse_configuration
from graphfl_jax.commands.common.plots import save_figure
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.commands.common.text_tables import markdown_table
from graphfl_jax.configs import change, methods
from graphfl_jax.configs.published import PUBLISHED


class Histograms(NamedTuple):
    """The distribution of values of the first clients, a panel each."""

    dataset: str
    clients: int


class Curves(NamedTuple):
    """Scores over rounds, a line for each method."""

    cell: Cell
    methods: tuple[str, ...] = tuple(PUBLISHED["panacea_2"])


class Ablation(NamedTuple):
    """Panacea's final score over values of a field, one line."""

    cell: Cell
    field: str
    values: tuple[int, ...]
    label: str


class Weights(NamedTuple):
    """The weights of generated and of initial models, a panel for each architecture."""

    method: str


class Holdings(NamedTuple):
    """The numbers of examples of each class, a column for each client."""

    dataset: str  # whose configuration is used without --config


class Graphs(NamedTuple):
    """The graphs of the client models' architectures, a panel each."""

    dataset: str  # whose configuration is used without --config


def with_curve(cell: Cell) -> Cell:
    """A cell that is evaluated ten times, on the test split."""
    rounds = cell.changes["rounds"]
    changes = {"eval_every": rounds // 10, "eval.points": ("P",), "eval.splits": ("test",)}
    return cell._replace(changes={**cell.changes, **changes})


LOCAL_STEPS = "local_steps", (1, 10, 25, 50, 100), "local steps $K_c$"
SERVER_STEPS = "algorithm.server_steps", (1, 5, 10, 20), "server steps $K_s$"
FIGURES = {
    "architectures": Graphs("flha_cifar10"),
    "partition": Holdings("fashion_mnist"),
    "panacea_fig2": Histograms("pems_bay", 16),
    "panacea_3a": Curves(Cell("fl60")),
    "panacea_3b": Curves(with_curve(SMALL["compcars"])),
    "panacea_3c": Curves(Cell("tpt48")),
    "panacea_3d": Curves(with_curve(SMALL["metr_la"])),
    "panacea_3e": Curves(with_curve(SMALL["pems_bay"])),
    "panacea_3f": Ablation(Cell("tpt48"), *LOCAL_STEPS),
    "panacea_3g": Ablation(Cell("tpt48"), *SERVER_STEPS),
    "panacea_3h": Ablation(SMALL["compcars"], *LOCAL_STEPS),
    "panacea_3i": Ablation(SMALL["compcars"], *SERVER_STEPS),
    "pfedgat_3": Allocations("cifar10", "pathological", evaluations=3),
    "pfedgat_4": Joining(("cifar10", "cifar100"), "Dirichlet 0.1", rounds=40, new_rounds=3),
    "flha_3": Unseen(RESIDUAL),
    "flha_depths": Unseen(PLAIN),
    "flha_6": Weights("flha-ghn"),
    "compression": Costs(
        "compression", "up", "kB that a client sends in a round", TABLES["compression"].methods
    ),
    "privacy": Costs("privacy", "epsilon", "epsilon", TABLES["privacy"].methods),
} | SERIES
CONFIGURED = (Holdings, Graphs)  # figures of --config
SIZED = (Series, Unseen, Weights)  # figures in two sizes
COMPARING = (
    Curves,
    Allocations,
    Joining,
    Series,
    Unseen,
    Costs,
)  # figures that compare methods
READERS = {  # by flag: the kinds of figures that read it, and what holds for the others
    "methods": (COMPARING, "does not compare methods"),
    "profile": (SIZED, "has one size"),
    "rounds": ((*COMPARING, Ablation, Weights), "plays no rounds"),
    "seeds": ((Curves, Joining, Ablation, Series, Unseen, Costs), "has no seeds"),
}
flags.DEFINE_enum("figure", "panacea_3c", list(FIGURES), "Figure to draw.")
flags.DEFINE_list(
    "methods", [], "Methods of a figure that compares some; empty is those of the figure."
)
flags.DEFINE_enum(
    "profile",
    None,
    list(SIZES),
    "Size of a figure of FLHA-GHN; by default small. full is for a GPU.",
)
flags.DEFINE_integer("seeds", 5, "Runs of every point, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_integer("rounds", None, "Rounds, for a quick look.", lower_bound=1)
flags.DEFINE_string("out", "runs/tables", "Output folder, with a cache of runs.")


def main() -> int:
    started = time.perf_counter()
    pages.check_page()
    matplotlib.use("Agg")  # needs no screen
    figure = FIGURES[FLAGS.figure]
    for name, (kinds, why) in READERS.items():
        if not isinstance(figure, kinds):
            refuse_flag(name, f", since {FLAGS.figure} {why}; leave --{name} out")
    configured = isinstance(figure, CONFIGURED)
    if not configured:
        refuse_configuration(f"{FLAGS.figure} has its own configurations")
    check_names("methods", FLAGS.methods, methods())
    out = Path(FLAGS.out)
    cache = Cache(out, accept_changes=changes_accepted())
    with contextlib.nullcontext() if configured else remedy_of_source(""):
        lines, drawn, rows = KINDS[type(figure)](figure, cache)
    out.mkdir(parents=True, exist_ok=True)
    # A table can have the same name and folder.
    name = f"figure_{FLAGS.figure}" if FLAGS.figure in TABLES else FLAGS.figure
    save_figure(drawn, out / name)
    pages.write_results(
        out,
        name,
        lines,
        (f"{SPREAD}\n\n" if any(head.startswith("sd seeds") for head in rows[0]) else "")
        + markdown_table(rows),
        since=started,
        note=f" {cache.counts()}." if cache.made or cache.reused else "",
    )
    pages.print_line(Console(), f"{out}/{name}.png, .svg, .json and .md")
    return 0


def config_of(cell: Cell, method: str):
    """The configuration of a method in a cell."""
    return paper_config(cell, method, root=FLAGS.data_root, rounds=FLAGS.rounds)


def methods_of(figure) -> list[str]:
    """The methods that a figure compares."""
    return FLAGS.methods or list(figure.methods)


def runs_of(cache: Cache):
    """`figure_lines.RunsOf` of the flags."""
    seeds = list(range(FLAGS.seeds))
    return lambda cell, method: cached_runs(config_of(cell, method), seeds, cache, at_once=1)


def plot_histograms(figure, cache):
    """A line for each of the first clients.

    A line has the client's ``name``, ``mean`` and ``std``, the ``edges`` of bins, and the
    ``shares`` of values in them.
    """
    federation = load_federation(config_of(Cell(figure.dataset), "fedavg"))
    units = federation.units
    values = units.mean + units.std * federation.data.train.series[: figure.clients, :, 0]
    edges = np.linspace(0, np.ceil(values.max() / 10) * 10, 41)
    lines = [
        {
            "name": name,
            "mean": float(series.mean()),
            "std": float(series.std()),
            "edges": edges.tolist(),
            "shares": (np.histogram(series, edges)[0] / len(series)).tolist(),
        }
        for name, series in zip(federation.clients, values, strict=False)
    ]
    rows = [[line["name"], f"{line['mean']:.2f}", f"{line['std']:.2f}"] for line in lines]
    heads = ["client", f"mean, {units.name}", f"sd, {units.name}"]
    return lines, score_plots.draw_histograms(lines, units.name), [heads, *rows]


def plot_holdings(figure, cache):
    """A line for each client.

    A line has the client's ``name``, the ``source`` of the data, and for each split the number
    of its examples of every class.

    Raises:
      ValueError: the data have no classes.
    """
    config = configuration(default=getattr(configs, figure.dataset).get_config())
    federation = load_federation(config)
    if federation.task != "classification":
        raise ValueError(
            f"figure={FLAGS.figure} shows classes, and {federation.name} is a "
            f"{federation.task}; choose a configuration of a classification"
        )
    data = federation.everyone or federation.data
    counts = {
        split: figure_lines.label_counts(part, federation.outputs).tolist()
        for split, part in {"train": data.train, **data.evals}.items()
    }
    lines, rows = [], []
    for name, *of_client in zip(federation.clients, *counts.values(), strict=True):
        by_split = dict(zip(counts, of_client, strict=True))
        lines.append({"name": name, "source": federation.source, **by_split})
        numbers = [*map(sum, of_client), np.count_nonzero(by_split["train"])]
        rows.append([name, federation.source, *map(str, numbers)])
    extent = f", {federation.extent}" if federation.extent else ""
    title = f"{federation.name}, data: {federation.source}{extent}"
    heads = ["client", "data", *(f"{split} examples" for split in counts), "classes"]
    return lines, score_plots.draw_holdings(lines, title), [heads, *rows]


def plot_graphs(figure, cache):
    config = configuration(default=getattr(configs, figure.dataset).get_config())
    experiment = build_experiment(config, load_federation(config))
    lines, title = architecture_graphs(experiment, config.model.name)
    return lines, draw_architectures(lines, title), graph_rows(lines)


def plot_curves(figure, cache):
    """A line for each method: its name, the rounds, and the scores of every seed at P."""
    lines = []
    with progress_bar("methods") as bar:
        for method in bar.track(methods_of(figure), description=FLAGS.figure):
            config = config_of(figure.cell, method)
            runs = cached_runs(config, list(range(FLAGS.seeds)), cache)
            whole = [run["curve"] for run in runs if not run["diverged"]]
            scores = [[row["P"] for row in curve] for curve in whole]
            lines.append(figure_lines.line_of(method, runs, whole, "round") | {"seeds": scores})
    rows = [["method", "round", *_score_heads(lines[0])]]
    for line in lines:
        last = [scores[-1] for scores in line["seeds"]]
        rows.append([line["name"], str(line["x"][-1]) if last else "", *_spread(line, last)])
    return lines, score_plots.draw_lines(lines, "round", figure.cell.dataset), rows


def plot_ablation(figure, cache):
    """One line over the values of a field; values with a diverged run are left out."""
    line = {"name": "panacea", "metric": None, "x": [], "seeds": []}
    rows = []
    with progress_bar("values") as bar:
        for value in bar.track(figure.values, description=FLAGS.figure):
            config = change(config_of(figure.cell, "panacea"), {figure.field: value})
            runs = cached_runs(config, list(range(FLAGS.seeds)), cache)
            line["metric"] = runs[0]["metric"]
            if not any(run["diverged"] for run in runs):
                scores = [run["scores"]["final"]["P"]["mean"] for run in runs]
                line["x"].append(value)
                line["seeds"].append(scores)
                rows.append([str(value), *_spread(line, scores)])
    line["seeds"] = np.array(line["seeds"]).T.tolist()
    drawn = score_plots.draw_lines([line], figure.label, figure.cell.dataset)
    return [line], drawn, [[figure.field, *_score_heads(line)], *rows]


def plot_allocations(figure, cache):
    lines = figure_lines.allocation_lines(figure, methods_of(figure), config_of, cache)
    return lines, score_plots.draw_shares(lines), figure_lines.allocation_rows(lines)


def plot_series(figure, cache):
    size = FLAGS.profile or "small"
    lines = figure_lines.series_lines(figure, methods_of(figure), size, runs_of(cache))
    drawn = score_plots.draw_panels(
        {"cifar10": lines}, figure.label, ticks=figure.numbers[size]
    )
    return lines, drawn, figure_lines.series_rows(lines, figure.label)


def plot_costs(figure, cache):
    table, rows = TABLES[figure.table], []
    ((*cells,),) = table.cells.values()
    with progress_bar("settings") as bar:
        for cell in bar.track(cells, description=FLAGS.figure):
            for method in methods_of(figure):
                config = config_of(cell, method)
                runs = cached_runs(config, list(range(FLAGS.seeds)), cache)
                rows.append(table.row(cell, config, runs))
    panels = figure_lines.cost_panels(figure, rows)
    return (
        panels,
        score_plots.draw_costs(panels, figure.label),
        figure_lines.cost_rows(panels, figure.label),
    )


def plot_joining(figure, cache):
    panels = figure_lines.new_client_panels(
        figure.cells(), methods_of(figure), runs_of(cache), "P"
    )
    return (
        panels,
        score_plots.draw_panels(panels, "rounds of the new clients"),
        figure_lines.joining_rows(panels),
    )


def plot_unseen(figure, cache):
    cells = figure.cells(FLAGS.profile or "small")
    panels = figure_lines.new_client_panels(cells, methods_of(figure), runs_of(cache), "G")
    drawn = score_plots.draw_panels(panels, "rounds of the new client", title="cifar10")
    return panels, drawn, figure_lines.unseen_rows(panels)


def plot_weights(figure, cache):
    """Lines of `weight_histograms`. The run is kept in a folder beside the cache."""
    cell, *_ = cells_of("flha_1", FLAGS.profile or "small")
    config = config_of(cell, figure.method)
    folder = Path(FLAGS.out) / f"{FLAGS.figure}-run"
    run(
        config,
        out=folder,
        resume=folder.exists(),
        accept_changes=changes_accepted(),
        save_models=True,
    )
    lines = weight_lines(load(folder), build_experiment(config, load_federation(config)))
    return lines, draw_weights(lines), weight_rows(lines)


# (figure, cache) -> the lines, the drawn figure and the rows of text, of each kind.
KINDS = {
    Histograms: plot_histograms,
    Holdings: plot_holdings,
    Graphs: plot_graphs,
    Curves: plot_curves,
    Ablation: plot_ablation,
    Allocations: plot_allocations,
    Joining: plot_joining,
    Series: plot_series,
    Costs: plot_costs,
    Unseen: plot_unseen,
    Weights: plot_weights,
}


def _score_heads(line):
    return f"test {line['metric']} at P, {UNITS[line['metric']][1]}", "sd seeds"


def _spread(line, scores):
    """Mean and standard deviation over seeds, as text."""
    if not scores:
        return "", ""
    values = UNITS[line["metric"]][0] * np.array(scores)
    return f"{values.mean():.2f}", spread_text(values)


if __name__ == "__main__":
    launch(main)
