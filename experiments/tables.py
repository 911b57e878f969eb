"""The papers' tables: methods by data sets over several seeds, beside what is printed.

    python -m experiments.tables --table=panacea_2 --data_root=DIR
    python -m experiments.tables --table=panacea_3 --data_root=DIR

panacea_2 scores the clients that train; panacea_3 new clients, a fifth of all, drawn anew with
every seed; panacea_4 compares Panacea with its parts. Each method is scored after the last
round, on test, at P, its own predictor. Settings are those of configs/, chosen on validation,
and the split is the papers' 80/20. Runs that are in the folder of --out already are not made
again. Two spreads stand apart: over clients (the mean over seeds of each run's), and over seeds
(of each run's mean over clients). Where targets have units, errors in them stand apart, beside
those of forecasts that need no federation.
"""

from pathlib import Path

from absl import flags
from ml_collections import ConfigDict
from rich.console import Console

from experiments.common.command_line import FLAGS, launch, progress_bar
from experiments.paper.cached_runs import CONFIGS, cached_runs, paper_config
from experiments.paper.forecast_baselines import forecast_rows
from experiments.paper.published import PUBLISHED
from experiments.paper.table_text import (
    console_table,
    error_lines,
    error_table,
    markdown,
    markdown_table,
    forecast_row,
    notes,
    table_row,
)
from graphfl_jax.build import build_experiment, load_federation, pick
from graphfl_jax.runs.checkpoint import write_json, write_text

NEW_CLIENT_ROUNDS = 5  # for which new clients adapt in panacea_3

flags.DEFINE_enum("table", "panacea_2", list(PUBLISHED), "The table to make.")
flags.DEFINE_list("datasets", ["fl60", "tpt48"], f"Of {', '.join(CONFIGS)}.")
flags.DEFINE_enum("source", "real", ["real", "simulated"], "Of data that the papers measured.")
flags.DEFINE_list("methods", [], "Methods of those files; by default the table's.")
flags.DEFINE_integer("seeds", 5, "Runs of every method, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_integer(
    "at_once",
    0,
    "Seeds whose runs are one program; 0: all. 1 is faster where a run fills the machine.",
    lower_bound=0,
)
flags.DEFINE_integer("rounds", None, "Fewer rounds, for a quick look.", lower_bound=1)
flags.DEFINE_string("out", "runs/tables", "Folder of the runs and of the table.")


def main() -> int:
    files = {name: pick(CONFIGS, name, "datasets") for name in FLAGS.datasets}
    methods = FLAGS.methods or list(PUBLISHED[FLAGS.table])
    for file in files.values():
        for method in methods:
            pick(file.METHODS, method, "methods")
    out = Path(FLAGS.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"out={out} is no folder; choose another --out")

    forecast = []
    for name in files:  # a file that is missing is told now, not after an hour
        config = table_config(FLAGS.table, name, methods[0])
        federation = load_federation(config)
        if federation.units and FLAGS.table != "panacea_3":
            task = build_experiment(config, federation).model.task
            units = federation.units.name
            forecast += [
                forecast_row(name, row, units) for row in forecast_rows(federation, task)
            ]

    wanted = [(name, method) for name in files for method in methods]
    rows, made = [], 0
    with progress_bar("methods") as bar:
        task = bar.add_task("", total=len(wanted))
        for name, method in wanted:
            bar.update(task, description=f"{method} on {name}")
            config = table_config(FLAGS.table, name, method)
            runs, new = cached_runs(
                config, list(range(FLAGS.seeds)), out / "cells", at_once=FLAGS.at_once
            )
            rows.append(table_row(FLAGS.table, config, runs))
            made += new
            bar.advance(task)

    console = Console()
    for name in files:
        console.print(console_table(FLAGS.table, [row for row in rows if row["data"] == name]))
    for note in notes(rows):
        console.print(note, soft_wrap=True)
    written = markdown(FLAGS.table, rows)
    told = forecast + [row for row in rows if row["errors"]]
    for name in files:
        forecasts = [row for row in told if row["data"] == name]
        if forecasts:
            console.print(error_table(forecasts))
            written += "\n" + markdown_table(error_lines(forecasts))
    write_json(out / f"{FLAGS.table}.json", rows + forecast)
    write_text(out / f"{FLAGS.table}.md", written)
    console.print(
        f"{made} runs made, {len(wanted) * FLAGS.seeds - made} found; "
        f"{out}/{FLAGS.table}.md and .json",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def table_config(table: str, dataset: str, method: str) -> ConfigDict:
    """The configuration of a table's row."""
    config = paper_config(
        dataset, method, source=FLAGS.source, root=FLAGS.data_root, rounds=FLAGS.rounds
    )
    if table == "panacea_3":
        config.new_clients.fraction = 0.2
        config.new_clients.rounds = NEW_CLIENT_ROUNDS
    return config


if __name__ == "__main__":
    launch(main, many_runs=True)
