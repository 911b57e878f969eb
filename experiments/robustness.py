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
import numpy as np
from absl import flags
from rich.console import Console

from experiments.cells import cells
from experiments.charts import draw_robustness
from experiments.entry import FLAGS, configuration, launch, progress_bar
from experiments.montecarlo import interval
from experiments.published import UNITS
from experiments.report import diverged, markdown_table, narrow
from experiments.search import configured
from graphfl_jax.attacks import ATTACKS
from graphfl_jax.build import pick
from graphfl_jax.checkpoint import write_json, write_text
from graphfl_jax.results import POINTS
from graphfl_jax.runs import check_folder

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
            runs, new = cells(
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
        console.print(narrow(title, text), "")
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


def shares(words: list[str]) -> list[float]:
    """Ratios in ascending order, with 0.

    Raises:
      ValueError: one is no share.
    """
    try:
        ratios = {float(word) for word in words}
    except ValueError:
        ratios = {-1.0}
    if not all(0 <= ratio <= 1 for ratio in ratios):
        raise ValueError(
            f"ratios={','.join(words)} must be in [0, 1]; set --ratios=0,0.1,0.2 or so"
        )
    return sorted({0.0, *ratios})


def row(runs: list[dict], clean: list[dict]) -> dict:
    """Scores at G, L and P in the unit of print, of runs and of those without attackers.

    Of each point ``benign``, ``all``, ``lost`` and ``success``: a ``mean`` over seeds, the
    ``half`` width of its interval, and the ``seeds``. None where a run diverged, or nobody is
    honest.
    """
    metric = runs[0]["metric"]
    scale, unit = UNITS[metric]
    told = {
        "metric": metric,
        "unit": unit,
        "attackers": len(runs[0]["attack"]["ids"]),
        "diverged": sum(map(diverged, runs)),
        "points": None,
    }
    if any(map(diverged, runs + clean)) or any(not run["attack"]["benign"] for run in runs):
        return told
    sign = scale if runs[0]["higher_is_better"] else -scale
    told["points"] = {}
    for point in POINTS:
        numbers = {"benign": [], "all": [], "lost": [], "success": []}
        for run, before in zip(runs, clean, strict=True):
            final, first = (one["scores"]["final"][point] for one in (run, before))
            honest = np.delete(first["per_client"], run["attack"]["ids"]).mean()
            benign = run["attack"]["benign"][point]["mean"]
            numbers["benign"].append(scale * benign)
            numbers["all"].append(scale * final["mean"])
            numbers["lost"].append(sign * (honest - benign))
            if run["attack"]["success"]:
                numbers["success"].append(100 * run["attack"]["success"][point])
        told["points"][point] = {name: over_seeds(own) for name, own in numbers.items() if own}
    return told


def over_seeds(numbers: list[float]) -> dict:
    """A mean, the half width of its interval, None of one number, and the numbers."""
    half = None
    if len(numbers) > 1:
        error = np.std(numbers, ddof=1) / np.sqrt(len(numbers))
        half = float(interval(len(numbers), missed=0.05) * error)
    return {"mean": float(np.mean(numbers)), "half": half, "seeds": list(map(float, numbers))}


def tables_of(rows: list[dict]) -> list[tuple[str, list[list[str]]]]:
    """For each attack tables of methods by ratios, at P: titles and cells."""
    tables = []
    for attack in dict.fromkeys(one["attack"] for one in rows):
        own = [one for one in rows if one["attack"] == attack]
        unit = f"{own[0]['metric']} at P, {own[0]['unit']}"
        titles = {
            "benign": f"{attack}: {unit}, of honest clients",
            "all": f"{attack}: {unit}, of all clients",
            "lost": f"{attack}: what honest clients lost, {unit}",
        }
        if any("success" in one["points"]["P"] for one in own if one["points"]):
            titles["success"] = f"{attack}: success at P, % of honest clients' triggered images"
        tables += [(title, grid(own, name)) for name, title in titles.items()]
        first = own[0]["method"]
        if own[-1]["method"] != first:
            title = f"{attack}: what the others lost more than {first}, {unit}"
            tables.append((title, grid(behind(own, first), "behind")))
    return tables


def behind(rows: list[dict], first: str) -> list[dict]:
    """The rows of all methods but the first, with what they lost more than it, seed by seed."""
    base = {one["ratio"]: one["points"] for one in rows if one["method"] == first}
    compared = []
    for one in rows:
        points, against = one["points"], base[one["ratio"]]
        if one["method"] == first or one["ratio"] == 0:
            continue
        if points and against:
            pairs = (points["P"]["lost"]["seeds"], against["P"]["lost"]["seeds"])
            points = {"P": {"behind": over_seeds(np.subtract(*pairs).tolist())}}
        compared.append(one | {"points": points and against and points})
    return compared


def grid(rows: list[dict], name: str) -> list[list[str]]:
    """Cells of one number: heads, and a line for each method."""
    ratios = list(dict.fromkeys(one["ratio"] for one in rows))
    lines = {}
    for one in rows:
        lines.setdefault(one["method"], []).append(cell(one, name))
    return [
        ["method", *(f"{ratio:g}" for ratio in ratios)],
        *([m, *c] for m, c in lines.items()),
    ]


def cell(one: dict, name: str) -> str:
    if one["diverged"]:
        return f"{one['diverged']} diverged"
    if one["points"] is None or name not in one["points"]["P"]:
        return ""
    told = one["points"]["P"][name]
    return f"{told['mean']:.2f}" + (f"±{told['half']:.2f}" if told["half"] is not None else "")


if __name__ == "__main__":
    launch(main, many_runs=True)
