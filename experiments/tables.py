"""Tables of the papers: methods by data sets over several seeds, beside published scores.

    python -m experiments.tables --table=panacea_2 --data_root=DIR
    python -m experiments.tables --table=pfedgat_1 --at_once=1 --data_root=DIR

panacea_2 scores the clients that train. panacea_3 scores new clients, a fifth of all clients,
drawn with every seed. panacea_4 compares Panacea with its parts and
with other layers of its encoder, and panacea_weights these layers with and without the weights
of relations, on traffic. --profile=small has drawn cars, and 16 sensors of each traffic data
set with fewer rounds. Scores are test scores after
the last round at P, the method's own predictor. Hyperparameters are those of the
configurations, chosen on validation; data are split 80/20 as in the papers. There are two
spreads: over clients (mean over seeds of the standard deviation over clients) and over seeds
(standard deviation of the mean over clients). For forecasts in physical units a second table
has errors in these units, beside forecast baselines.

pfedgat_1 to pfedgat_4 are the tables of pFedGAT: images of three data sets that are divided in
several ways, class shares from Dirichlet distributions, numbers of clients, and the paper's
attention against free shares. They have test scores at G, L and P, and that of G or L which is
better on validation. --profile is their size.

flha_1 to flha_b are those of FLHA-GHN: clients with networks of different architectures, with
test scores of each architecture and the floats that a client receives and sends in a round.
flha_layers compares the layers of the hypernetwork's graph network. flha_large has all
examples, images at their size and networks twice as wide as in the small size. --profile is
their size. The small one has CIFAR-10 with 4 clients and, in tables that have them, with 16;
flha_3 has chest radiographs with 4 clients. --datasets and --clients name others.

compression and privacy have uploads in fewer bits, and with noise, see graphfl_jax/wire.
relations has methods with none, random, given, nearest and learned relations.
methods has all methods on four data sets, with known and new clients.
two_graphs has related clients with different networks.
public_code has the scores that PFLlib publishes for its code beside those of runs here.
same_clients has runs here beside those of public code on the same clients, from the lines in
experiments/peers/scores.jsonl.

Writes TABLE.md and TABLE.json into the folder of --out. Runs that are cached there are not
repeated; those of other code are made again, unless --accept_changes is set.
"""

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict
from rich.console import Console

from experiments.common import pages
from experiments.common.flag_values import check_names, flag_text, refuse_flag
from experiments.paper.cached_runs import Cache, cached_runs, load_federations
from experiments.paper.columns import Row
from experiments.paper.configurations import Cell, paper_config, remedy_of_source
from experiments.paper.panacea_text import error_text, forecast_rows
from experiments.paper.pfedgat import SIZES
from experiments.paper.tables import TABLES, Table
from graphfl_jax import configs
from graphfl_jax.build import build_experiment
from graphfl_jax.commands.common.accept_changes import changes_accepted
from graphfl_jax.commands.common.command_line import FLAGS, launch, progress_bar
from graphfl_jax.metrics import Units

flags.DEFINE_enum("table", "panacea_2", list(TABLES), "Table to make.")
flags.DEFINE_list(
    "datasets", [], "Data sets, such as cifar10; empty is those of the table and its size."
)
flags.DEFINE_list(
    "clients", [], "Numbers of clients, such as 4,16; empty is those of the table and its size."
)
flags.DEFINE_multi_string(
    "setting",
    [],
    "A setting of the table, such as pathological, and others if the flag is repeated; without "
    "it, all. With it, rows that follow from several settings are left out.",
)
flags.DEFINE_enum(
    "profile",
    None,
    list(SIZES),
    "Size of a table; by default full for Panacea, and small for pFedGAT and FLHA-GHN, whose "
    "full size is for a GPU.",
)
flags.DEFINE_enum(
    "source", "real", ["real", "simulated"], "Source of data that the papers measured."
)
flags.DEFINE_list("methods", [], "Methods; empty is all methods of the table.")
flags.DEFINE_integer(
    "seeds",
    None,
    "Runs of every method, with seeds 0, 1, ...; by default 5, and 3 in the tables of pFedGAT "
    "and FLHA-GHN.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "at_once",
    0,
    "Seeds that run in one program; 0 is all. With 1, the devices share the clients of a run, "
    "which is faster if one run uses the whole machine.",
    lower_bound=0,
)
flags.DEFINE_integer("rounds", None, "Rounds, for a quick look.", lower_bound=1)
flags.DEFINE_string("out", "runs/tables", "Output folder, with a cache of runs.")


class Plan(NamedTuple):
    """A row of a table before its runs."""

    cell: Cell
    method: str
    config: ConfigDict


def main() -> int:
    started = time.perf_counter()
    pages.check_page()
    table, cells, methods = table_of_flags()
    seeds = list(range(FLAGS.seeds or table.seeds))
    out = Path(FLAGS.out)
    cache = Cache(out, accept_changes=changes_accepted())
    plans = [
        Plan(cell, method, table_config(cell, method))
        for cell, method in itertools.product(cells, methods)
        if method in (cell.methods or methods)
    ]
    check_methods_have_rows(plans)
    baselines = checked_baselines(plans, seeds[0])
    rows = played_rows(table, plans, seeds, cache)
    if not FLAGS.setting:
        rows = table.complete(rows)

    console = Console()
    for _, of_cell in itertools.groupby(
        rows, key=lambda row: (row["data"], row.get("setting"))
    ):
        console.print(table.text.console(list(of_cell)))
    for note in table.text.notes(rows):
        console.print(note, markup=False, soft_wrap=True)
    parts = [table.text.markdown(rows)]
    with_errors = baselines + [row for row in rows if row.get("errors")]
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        forecasts = [row for row in with_errors if row["data"] == dataset]
        if forecasts:
            errors = error_text(forecasts)
            console.print(errors.console(forecasts))
            parts.append(errors.markdown(forecasts))
    name, note = FLAGS.table, f" {cache.counts()}."
    pages.write_results(out, name, rows + baselines, "\n".join(parts), since=started, note=note)
    pages.print_line(console, f"{cache.counts()}; {out}/{name}.md and .json")
    return 0


def check_methods_have_rows(plans: list[Plan]) -> None:
    """Checks that each method of --methods has a row.

    Raises:
      ValueError: a method has none.
    """
    planned = {plan.method for plan in plans}
    without = [name for name in FLAGS.methods if name not in planned]
    if without:
        raise ValueError(
            f"methods={','.join(without)} is in no chosen cell of {FLAGS.table}; leave it out, "
            "or choose other data sets, settings or another --profile"
        )


def checked_baselines(plans: list[Plan], seed: int) -> list[Row]:
    """The forecast baselines of data with physical units, after a check that all rows fit.

    Raises:
      ValueError: something does not fit.
      FileNotFoundError: data files are missing.
    """
    baselines = []
    for cell, _, config in plans:
        with remedy_of_source("--source=simulated"):
            federation = load_federations(config, [seed])[seed]
        task = build_experiment(config, federation).model.task
        measured = isinstance(federation.units, Units) and not federation.new_clients
        if measured and cell.dataset not in {row["data"] for row in baselines}:
            rows = forecast_rows(federation, task)
            baselines += [{"data": cell.dataset, **row} for row in rows]
    return baselines


def played_rows(table: Table, plans: list[Plan], seeds: list[int], cache: Cache) -> list[Row]:
    """The rows of a table."""
    rows = []
    with progress_bar("rounds") as bar:
        rounds = sum(plan.config.rounds for plan in plans)
        task = bar.add_task("", total=rounds * len(seeds))
        for cell, method, config in plans:
            where = ", ".join(word for word in (cell.dataset, cell.setting) if word)
            bar.update(task, description=f"{method} on {where}")
            runs = cached_runs(
                config,
                seeds,
                cache,
                at_once=FLAGS.at_once,
                report=lambda rounds: bar.advance(task, rounds),
            )
            rows.append(table.row(cell, config, runs))
    return rows


def table_of_flags() -> tuple[Table, list[Cell], list[str]]:
    """The table, its cells and its methods that the flags choose.

    Raises:
      ValueError: the table has no settings or no numbers of clients, or none of these names, or
        no cell that all flags choose, or a method is unknown.
    """
    table = TABLES[FLAGS.table]
    first, *_ = table.cells
    size = FLAGS.profile or first
    if size not in table.cells:
        refuse_flag("profile", f", since {FLAGS.table} has one size; leave --profile out")
    cells = table.cells[size]
    numbers = list(dict.fromkeys(map(number_of_clients, cells)))
    if numbers == [""]:
        refuse_flag(
            "clients",
            f", since {FLAGS.table} has the clients of its data sets; leave --clients out",
        )
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    if settings == [""]:
        refuse_flag("setting", f", since {FLAGS.table} has no settings; leave --setting out")
    datasets = list(dict.fromkeys(cell.dataset for cell in cells))
    datasets = list_of("datasets", datasets, table.datasets if size == first else ())
    settings = list_of("setting", settings, ())
    default = table.clients if size == first and not FLAGS.setting else ()
    numbers = list_of("clients", numbers, default)
    methods = FLAGS.methods or list(table.methods)
    check_names("methods", methods, configs.methods())
    chosen = [
        cell
        for name in datasets
        for cell in cells
        if cell.dataset == name
        and cell.setting in settings
        and number_of_clients(cell) in numbers
    ]
    if not chosen:
        words = [
            flag_text(name) for name in ("datasets", "setting", "clients") if FLAGS[name].value
        ]
        raise ValueError(
            f"{' and '.join(words)} have nothing of {FLAGS.table} in common; leave one out"
        )
    return table, chosen, methods


def list_of(flag: str, choices: list[str], default: Sequence[str]) -> Sequence[str]:
    """The names that a flag lists; without any, the default ones, or else all.

    Raises:
      ValueError: a name is none of the choices.
    """
    check_names(flag, FLAGS[flag].value, choices)
    return FLAGS[flag].value or default or choices


def number_of_clients(cell: Cell) -> str:
    """The number of clients that a cell sets, as text; empty if it is the data set's."""
    return str(cell.changes.get("data.clients", ""))


def table_config(cell: Cell, method: str) -> ConfigDict:
    where = {"source": FLAGS.source, "root": FLAGS.data_root, "rounds": FLAGS.rounds}
    return paper_config(cell, method, **where)


if __name__ == "__main__":
    launch(main, configured=False)
