"""Methods by data sets over several seeds, beside the published numbers.

    python -m experiments.tables --seeds=5 --out=table.md

Runs the configurations as they stand, which is the papers' protocol with settings chosen on
validation, and scores the final round on test. Two spreads stand apart: over clients (the mean
over seeds of each run's) and over seeds (of each run's mean over clients). Simulated data are
refused where a published number stands beside them.
"""

from pathlib import Path

import numpy as np
from absl import flags
from rich import box
from rich.console import Console
from rich.table import Table

from configs import fl60, tpt48
from experiments.entry import FLAGS, launch
from experiments.published import PUBLISHED
from experiments.trials import run_trials
from graphfl_jax.build import pick, variant_of

CONFIGS = {"fl60": fl60, "tpt48": tpt48}

flags.DEFINE_list("datasets", list(CONFIGS), "Files of configs/ to run.")
flags.DEFINE_list("methods", [], "Methods of those files; by default all.")
flags.DEFINE_integer("seeds", 5, "Runs of every method, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_string("out", None, "File for the table in Markdown.")

COLUMNS = ("data", "method", "G", "sd clients", "sd seeds", "L", "P", "published")


def main() -> int:
    if FLAGS.out and not Path(FLAGS.out).absolute().parent.is_dir():
        raise ValueError(f"out={FLAGS.out} is in no folder; make the folder first")
    files = [pick(CONFIGS, dataset, "datasets") for dataset in FLAGS.datasets]
    for file in files:
        for method in FLAGS.methods:
            pick(file.METHODS, method, "methods")
    rows = [
        _row(file.get_config(method))
        for file in files
        for method in FLAGS.methods or file.METHODS
    ]
    table = Table(
        box=box.SIMPLE,
        title=f"final round, test, {FLAGS.seeds} seeds; accuracy in %, MSE x 1e-3",
    )
    for column in COLUMNS:
        justify = "left" if column in COLUMNS[:2] else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if FLAGS.out:
        lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
        Path(FLAGS.out).write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))
    return 0


def _row(config):
    if FLAGS.data_root is not None:
        config.data.root = FLAGS.data_root
    if config.data.source == "auto" and config.data.name == "tpt48":
        config.data.source = "real"
    trials, task = run_trials(config, [{}], list(range(FLAGS.seeds)))
    variant = variant_of(config)
    if any(trial.diverged for trial in trials):
        lost = sum(trial.diverged for trial in trials)
        return [config.data.name, variant, f"{lost} diverged", *[""] * 5]
    unit = 100 if task.metric == "accuracy" else 1000
    scores = {
        point: unit * np.stack([trial.scores["test"][point] for trial in trials])
        for point in ("G", "L", "P")
    }  # [seeds, N] each
    means = {point: values.mean() for point, values in scores.items()}
    paper = PUBLISHED.get((variant, config.data.name))
    return [
        config.data.name,
        variant,
        f"{means['G']:.2f}",
        f"{scores['G'].std(axis=1).mean():.2f}",
        f"{scores['G'].mean(axis=1).std():.2f}",
        f"{means['L']:.2f}",
        f"{means['P']:.2f}",
        f"{unit * paper[0]:.1f}±{unit * paper[1]:.1f}" if paper else "",
    ]


if __name__ == "__main__":
    launch(main)
