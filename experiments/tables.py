"""The papers' tables: methods by data sets over several seeds, beside what is printed.

    python -m experiments.tables --table=panacea_2 --data_root=DIR
    python -m experiments.tables --table=panacea_3 --data_root=DIR

panacea_2 scores the clients that train; panacea_3 newcomers, a fifth of all, drawn anew with
every seed; panacea_4 compares Panacea with its parts. Each method is scored after the last
round, on test, at P, its own predictor. Settings are those of configs/, chosen on validation,
and the split is the papers' 80/20. Runs that are in the folder of --out already are not made
again. Two spreads stand apart: over clients (the mean over seeds of each run's), and over seeds
(of each run's mean over clients).
"""

from pathlib import Path

import numpy as np
from absl import flags
from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from experiments.cells import CONFIGS, cells, papers_config
from experiments.entry import FLAGS, launch, progress_bar
from experiments.published import OUT_OF_REACH, PUBLISHED, UNITS, published
from graphfl_jax.build import load_federation, pick, variant_of
from graphfl_jax.checkpoint import write_json, write_text

NOVEL_ROUNDS = 5  # for which newcomers adapt in panacea_3

COMMON = ("data", "method", "P", "sd clients", "sd seeds", "worst decile", "Jain", "G", "L")
ADAPTED = (f"P after {NOVEL_ROUNDS}",)

flags.DEFINE_enum("table", "panacea_2", list(PUBLISHED), "The table to make.")
flags.DEFINE_list("datasets", list(CONFIGS), "Files of configs/ to run.")
flags.DEFINE_list("methods", [], "Methods of those files; by default the table's.")
flags.DEFINE_integer("seeds", 5, "Runs of every method, with seeds 0, 1, ...", lower_bound=1)
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

    for name in files:  # a file that is missing is told now, not after an hour
        load_federation(table_config(FLAGS.table, name, methods[0]))

    wanted = [(name, method) for name in files for method in methods]
    rows, made = [], 0
    with progress_bar("methods") as bar:
        task = bar.add_task("", total=len(wanted))
        for name, method in wanted:
            bar.update(task, description=f"{method} on {name}")
            config = table_config(FLAGS.table, name, method)
            runs, new = cells(config, list(range(FLAGS.seeds)), out / "cells")
            rows.append(table_row(FLAGS.table, config, runs))
            made += new
            bar.advance(task)

    console = Console()
    console.print(console_table(FLAGS.table, rows))
    for note in notes(rows):
        console.print(note, soft_wrap=True)
    write_json(out / f"{FLAGS.table}.json", rows)
    write_text(out / f"{FLAGS.table}.md", markdown(FLAGS.table, rows))
    console.print(
        f"{made} runs made, {len(wanted) * FLAGS.seeds - made} found; "
        f"{out}/{FLAGS.table}.md and .json",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def table_config(table: str, dataset: str, method: str) -> ConfigDict:
    """The configuration of a table's row."""
    config = papers_config(dataset, method, root=FLAGS.data_root)
    if table == "panacea_3":
        config.novel_fraction = 0.2
        config.novel.rounds = NOVEL_ROUNDS
    return config


def table_row(table: str, config, runs: list[dict]) -> dict:
    """One row: scores in the unit of print, or how many runs diverged."""
    variant = variant_of(config)
    scale, unit = UNITS[runs[0]["metric"]]
    paper = published(config, variant, runs[0]["dataset"]["source"], table)
    row = {
        "data": config.data.name,
        "method": variant,
        "unit": unit,
        "seeds": len(runs),
        "hparams": runs[0]["hparams"],
        "diverged": sum(run["diverged"] for run in runs),
        "published": paper and paper._asdict(),
        "out_of_reach": OUT_OF_REACH.get((table, variant, config.data.name)),
        "scores": None,
    }
    if row["diverged"]:
        return row
    if table != "panacea_3":
        return row | {"scores": _scores([run["scores"] for run in runs], scale)}
    curves = [run["novel"]["curve"] for run in runs]
    adapted = [_scores([curve[k] for curve in curves], scale) for k in range(len(curves[0]))]
    return row | {"scores": adapted[0], "adapted": adapted}


def _scores(summaries, scale):
    """Of summaries at G, L and P, one per seed: means over seeds, and the spread over them."""
    scores = {}
    for point in ("G", "L", "P"):
        own = {
            name: np.array([summary[point][name] for summary in summaries])
            for name in ("mean", "std_clients", "worst_decile", "jain")
        }
        scores[point] = {
            "mean": scale * own["mean"].mean(),
            "std_clients": scale * own["std_clients"].mean(),
            "std_seeds": scale * own["mean"].std(),
            "worst_decile": scale * own["worst_decile"].mean(),
            "jain": own["jain"].mean(),
            "seeds": (scale * own["mean"]).tolist(),
        }
    return scores


def columns(table: str) -> tuple[str, ...]:
    return (*COMMON, *(ADAPTED if table == "panacea_3" else ()), "published")


def lines(table: str, rows: list[dict]) -> list[list[str]]:
    """The rows as text, in the order of `columns`."""
    text = []
    for row in rows:
        line = [row["data"], row["method"]]
        if row["scores"] is None:
            count = len(columns(table)) - len(line) - 2
            line += [f"{row['diverged']} of {row['seeds']} diverged", *[""] * count]
        else:
            own = row["scores"]["P"]
            numbers = ("mean", "std_clients", "std_seeds", "worst_decile")
            line += [f"{own[name]:.2f}" for name in numbers] + [f"{own['jain']:.3f}"]
            line += [f"{row['scores'][point]['mean']:.2f}" for point in ("G", "L")]
            if table == "panacea_3":
                line.append(f"{row['adapted'][-1]['P']['mean']:.2f}")
        paper = row["published"]
        mark = "*" if row["out_of_reach"] else ""
        line.append(f"{paper['mean']}±{paper['spread']}{mark}" if paper else "")
        text.append(line)
    return text


def console_table(table: str, rows: list[dict]) -> Table:
    drawn = Table(
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        title=f"{table}, {rows[0]['seeds']} seeds; {_units(rows)}",
    )
    for i, column in enumerate(columns(table)):
        head = column.replace(" ", "\n")
        drawn.add_column(head, justify="left" if i < 2 else "right", no_wrap=True)
    for line, row in zip(lines(table, rows), rows, strict=True):
        drawn.add_row(*line, end_section=row is rows[-1])
    return drawn


def markdown(table: str, rows: list[dict]) -> str:
    """The table and its notes, for a README."""
    head = columns(table)
    all_lines = [head, ["---"] * len(head), *lines(table, rows)]
    drawn = "".join(f"| {' | '.join(line)} |\n" for line in all_lines)
    return drawn + "".join(f"\n{note}\n" for note in notes(rows))


def notes(rows: list[dict]) -> list[str]:
    """What is to be known of the printed scores that carry a mark."""
    return [
        f"* {row['method']} on {row['data']}: out of reach, {row['out_of_reach']}"
        for row in rows
        if row["out_of_reach"] and row["published"]
    ]


def _units(rows):
    return ", ".join(sorted({f"{row['data']} in {row['unit']}" for row in rows}))


if __name__ == "__main__":
    launch(main)
