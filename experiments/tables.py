"""Tables of the papers: methods by data sets over several seeds, beside published scores.

    python -m experiments.tables --table=panacea_2 --data_root=DIR
    python -m experiments.tables --table=panacea_3 --data_root=DIR

panacea_2 scores the clients that train. panacea_3 scores new clients, a fifth of all clients,
drawn with every seed. panacea_4 compares Panacea with its parts. Scores are test scores after
the last round at P, the method's own predictor. Hyperparameters are those of the
configurations, chosen on validation; data are split 80/20 as in the papers. There are two
spreads: over clients (mean over seeds of the standard deviation over clients) and over seeds
(standard deviation of the mean over clients). For forecasts in physical units a second table
has errors in these units, beside forecast baselines.

Writes TABLE.md and TABLE.json into the folder of --out. Runs that are cached there are not
repeated.
"""

import sys
import time
from pathlib import Path

from absl import flags
from rich.console import Console

from experiments.common import pages
from experiments.common.command_line import FLAGS, launch, progress_bar
from experiments.common.flag_values import check_names
from experiments.common.provenance import provenance
from experiments.paper.cached_runs import cached_runs
from experiments.paper.configurations import CONFIGS, paper_config
from experiments.paper.forecast_baselines import forecast_rows
from experiments.paper.published import PUBLISHED
from experiments.paper.table_text import (
    console_table,
    error_markdown,
    error_table,
    forecast_row,
    markdown,
    notes,
    table_row,
)
from graphfl_jax import configs
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.runs.checkpoint import write_json, write_text
from graphfl_jax.runs.folder import check_folder

flags.DEFINE_enum("table", "panacea_2", list(PUBLISHED), "Table to make.")
flags.DEFINE_list("datasets", ["fl60", "tpt48"], f"Data sets, of {', '.join(CONFIGS)}.")
flags.DEFINE_enum(
    "source", "real", ["real", "simulated"], "Source of data that the papers measured."
)
flags.DEFINE_list("methods", [], "Methods; empty is all methods of the table.")
flags.DEFINE_integer("seeds", 5, "Runs of every method, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_integer(
    "at_once",
    0,
    "Seeds that run in one program; 0 is all. 1 is faster if one run uses the whole machine.",
    lower_bound=0,
)
flags.DEFINE_integer("rounds", None, "Rounds, for a quick look.", lower_bound=1)
flags.DEFINE_string("out", "runs/tables", "Output folder, with a cache of runs.")


def main() -> int:
    started = time.perf_counter()
    datasets = FLAGS.datasets
    check_names("datasets", datasets, CONFIGS)
    methods = FLAGS.methods or list(PUBLISHED[FLAGS.table])
    check_names("methods", methods, configs.methods())
    out = Path(FLAGS.out)
    check_folder(out)
    baselines = baseline_rows(datasets, methods[0])  # also finds missing files at once

    planned = [(name, method) for name in datasets for method in methods]
    rows, new_runs = [], 0
    with progress_bar("methods") as bar:
        task = bar.add_task("", total=len(planned))
        for name, method in planned:
            bar.update(task, description=f"{method} on {name}")
            config = table_config(name, method)
            seeds = list(range(FLAGS.seeds))
            runs, new = cached_runs(config, seeds, out, at_once=FLAGS.at_once)
            rows.append(table_row(FLAGS.table, config, runs))
            new_runs += new
            bar.advance(task)

    console = Console()
    for name in datasets:
        console.print(console_table(FLAGS.table, [row for row in rows if row["data"] == name]))
    for note in notes(rows):
        console.print(note, soft_wrap=True)
    parts = [markdown(FLAGS.table, rows)]
    with_errors = baselines + [row for row in rows if row["errors"]]
    for name in datasets:
        forecasts = [row for row in with_errors if row["data"] == name]
        if forecasts:
            console.print(error_table(forecasts))
            parts.append(error_markdown(forecasts))
    write_json(out / f"{FLAGS.table}.json", rows + baselines)
    made = provenance(sys.argv, seconds=time.perf_counter() - started)
    counts = f"{new_runs} new runs, {len(planned) * FLAGS.seeds - new_runs} from the cache"
    page = "\n".join([f"{made} {counts}.\n", *parts])
    write_text(out / f"{FLAGS.table}.md", page)
    pages.publish(page)
    console.print(
        f"{counts}; {out}/{FLAGS.table}.md and .json", highlight=False, soft_wrap=True
    )
    return 0


def baseline_rows(datasets: list[str], method: str) -> list[dict]:
    """Rows of the forecast baselines of data sets with physical units."""
    rows = []
    for name in datasets:
        config = table_config(name, method)
        federation = load_federation(config)
        if federation.units and FLAGS.table != "panacea_3":
            task = build_experiment(config, federation).model.task
            units = federation.units.name
            rows += [forecast_row(name, row, units) for row in forecast_rows(federation, task)]
    return rows


def table_config(dataset: str, method: str):
    """The configuration of a row of the table."""
    return paper_config(
        dataset,
        method,
        table=FLAGS.table,
        source=FLAGS.source,
        root=FLAGS.data_root,
        rounds=FLAGS.rounds,
    )


if __name__ == "__main__":
    launch(main)
