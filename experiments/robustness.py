"""Methods under attack: what honest clients lose, over the share of malicious ones.

    python -m experiments.robustness --config=configs/tpt48.py --attacks=poisoning \\
        --ratios=0,0.1,0.2,0.3,0.4,0.5 --methods=panacea,pfedhn,fedavg --seeds=5

Every method of the configuration's file is trained with each share of malicious clients, who
are the same for all methods and drawn anew with every seed; those of a smaller share are among
those of a larger one. All shares and seeds of a method are one program. Scores are those of
test after the last round. What a method lost is told over the clients that are honest under the
attack: their mean score in the run without attackers less that in the attacked one of the same
seed, the other way round where lower is better. Intervals hold the mean over seeds with 95 %,
by Student's t. ``--simple_tuning`` scores each method a second time, with heads that clients
train anew.

Any setting may be given, such as --config.hparams.attack_lambda=1 or
--config.defence.name=krum. Writes robustness.json, robustness.md, robustness.png and .svg into
the folder of --out. Runs that are there already are not made again.
"""

from pathlib import Path

import matplotlib
from absl import flags
from rich.console import Console

from experiments.common.command_line import FLAGS, configuration, launch, progress_bar
from experiments.common.plots import draw_robustness
from experiments.paper.cached_runs import cached_runs
from experiments.paper.robustness_statistics import row, shares, tables_of
from experiments.paper.table_text import markdown_table, narrow
from experiments.sweeping.grid import configured
from graphfl_jax.build import pick
from graphfl_jax.robustness.attacks import ATTACKS
from graphfl_jax.runs.checkpoint import write_json, write_text
from graphfl_jax.runs.folder import check_folder

# Fields of the second score of a method; ten passes are what the defence's authors take.
SIMPLE_TUNING = {"tuning.part": "new_head", "tuning.epochs": 10}

flags.DEFINE_list("attacks", ["poisoning"], f"Of {', '.join(ATTACKS)}.")
flags.DEFINE_list("ratios", "0,0.1,0.2,0.3,0.4,0.5", "Shares of malicious clients; 0 is added.")
flags.DEFINE_list("methods", ["panacea", "pfedhn", "fedavg"], "Methods of the file.")
flags.DEFINE_integer("seeds", 5, "Runs of every share, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_integer(
    "at_once", 0, "Runs that are one program; 0: all of a method.", lower_bound=0
)
flags.DEFINE_bool("simple_tuning", False, "Add every method with Simple-Tuning.")
flags.DEFINE_string("out", "runs/robustness", "Folder of the runs and of the table.")


def main() -> int:
    matplotlib.use("Agg")  # writes files, and needs no screen
    configuration()
    for attack in FLAGS.attacks:
        pick(ATTACKS, attack, "attacks")
    ratios = shares(FLAGS.ratios)
    out = Path(FLAGS.out)
    check_folder(out)
    tunings = [("", {}), *[("+simple-tuning", SIMPLE_TUNING)] * FLAGS.simple_tuning]
    wanted = [
        (attack, method + suffix, {"algorithm": method, "attack.name": attack, **fields})
        for attack in FLAGS.attacks
        for method in FLAGS.methods
        for suffix, fields in tunings
    ]
    planned = [(*names, configured(point)) for *names, point in wanted]

    rows, made = [], 0
    with progress_bar("methods") as bar:
        task = bar.add_task("", total=len(planned))
        for attack, method, config in planned:
            bar.update(task, description=f"{method}, {attack}")
            config.eval_every = config.rounds  # scores of the last round are all that is told
            points = [{"attack_ratio": ratio} for ratio in ratios]
            seeds = list(range(FLAGS.seeds))
            runs, new = cached_runs(
                config, seeds, out / "cells", points=points, at_once=FLAGS.at_once
            )
            clean = runs[: len(seeds)]
            for i, ratio in enumerate(ratios):
                own = runs[i * len(seeds) : (i + 1) * len(seeds)]
                rows.append(
                    {"attack": attack, "method": method, "ratio": ratio, **row(own, clean)}
                )
            made += new
            bar.advance(task)

    console = Console()
    tables = tables_of(rows)
    for title, text in tables:
        console.print(narrow(title, text), "", crop=False)  # many shares may be wider
    data = runs[0]["dataset"]
    note = f"{data['name']}, data: {data['source']}" + f", {data['extent']}" * bool(
        data["extent"]
    )
    write_json(out / "robustness.json", {"dataset": data, "rows": rows})
    write_text(
        out / "robustness.md",
        f"{note}\n" + "".join(f"\n{title}\n\n{markdown_table(text)}" for title, text in tables),
    )
    figure = draw_robustness(rows, note)
    for suffix in ("png", "svg"):
        figure.savefig(out / f"robustness.{suffix}", dpi=150)
    console.print(
        f"{note}; {made} runs made, {len(rows) * FLAGS.seeds - made} found\n"
        f"{out}/robustness.json, .md, .png and .svg",
        highlight=False,
        soft_wrap=True,
    )
    return 0


if __name__ == "__main__":
    launch(main, many_runs=True)
