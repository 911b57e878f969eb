"""Interrupts runs at random moments, and checks that nothing is lost.

    python -m experiments.soak --runs=200 --calls=1000
    python -m experiments.soak --runs=20 --fields=data.storage=host,compression.name=top_k

Every run is a tiny federation in processes of its own, with one to three faults that a seed
draws: SIGKILL, SIGTERM or SIGINT at a random moment, a write that ends in its middle as on a
full disk, a damaged file of the run, or a damaged compiled program. Then the run is resumed. It
must end with the bytes of an uninterrupted run, apart from times, or be refused in one line.
Afterwards one process calls `graphfl_jax.run` many times, and its memory is measured after a
fifth of the calls and after all.

Writes soak.json into the folder of --out. The exit status is 1 if a run had other results or
ended in another way, or if the memory grew by more than a tenth; with fewer than about 100
calls, it grows because the first calls load modules. It needs Linux.
"""

import collections
import shutil
import time
from pathlib import Path

import numpy as np
import psutil
from absl import flags
from rich.console import Console

import graphfl_jax
from experiments.benchmarks import interrupted_runs
from experiments.benchmarks.interrupted_runs import IDENTICAL, REFUSED, SETTINGS, WRONG
from graphfl_jax.commands.common.command_line import FLAGS, launch, progress_bar, refuse_unread
from graphfl_jax.commands.common.interrupts import temporary_folder
from graphfl_jax.commands.common.text_tables import narrow
from graphfl_jax.configs import change, fl60
from graphfl_jax.runs.checkpoint import write_json
from graphfl_jax.runs.store import check_folder

flags.DEFINE_integer("runs", 200, "Interrupted runs.", lower_bound=0)
flags.DEFINE_integer("calls", 1000, "Calls of graphfl_jax.run in one process.", lower_bound=0)
flags.DEFINE_list("fields", [], "Fields of the runs, such as compression.name=top_k.")
flags.DEFINE_integer("seed", 0, "Seed of the faults.", lower_bound=0)
flags.DEFINE_string("out", "runs/soak", "Output folder of soak.json.")

GROWTH = 1.1  # largest factor of the memory from a fifth of the calls to all


def main() -> int:
    refuse_unread("data_root")
    out = Path(FLAGS.out)
    check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    with temporary_folder("work-", out.absolute()) as work:
        with progress_bar("runs") as bar:
            outcomes = (
                play_interrupted(work, bar.track(range(FLAGS.runs))) if FLAGS.runs else []
            )
        memory = memory_of_calls(FLAGS.calls, work)
    title = f"{len(outcomes)} interrupted runs, seed {FLAGS.seed}"
    console.print(narrow(title, rows(outcomes), left=("runs with",)))
    for size in memory:
        console.print(
            f"after {size['calls']} calls: {size['bytes'] / 1e6:.0f} MB, {size['maps']} maps"
        )
    wrong = [outcome for outcome in outcomes if outcome.verdict == WRONG]
    for outcome in wrong:
        console.print(
            f"{', '.join(outcome.faults)}: {outcome.why}", markup=False, soft_wrap=True
        )
    runs = [outcome._asdict() for outcome in outcomes]
    write_json(out / "soak.json", {"seed": FLAGS.seed, "runs": runs, "memory": memory})
    console.print(f"{out}/soak.json", highlight=False, markup=False)
    grown = [
        what
        for what in ("bytes", "maps")
        if memory and memory[-1][what] > GROWTH * memory[0][what]
    ]
    if grown:
        console.print(f"{' and '.join(grown)} grew by more than a tenth")
    return int(bool(wrong or grown))


def play_interrupted(work: Path, numbers) -> list[interrupted_runs.Outcome]:
    """The outcomes of interrupted runs. The seed and the number of a run determine its faults.

    Raises:
      ValueError: the run without an interruption fails.
    """
    interrupted_runs.write_data(work)
    runs, first = interrupted_runs.Runs(work, FLAGS.fields), work / "whole"
    for folder in (work / "unmeasured", first):  # the second finds the compiled programs
        began = time.perf_counter()
        end = interrupted_runs.wait_for(interrupted_runs.start_run(runs, folder))
        if end.status or end.lines:
            raise ValueError(f"out={folder}: {' '.join(end.lines)}; correct this first")
    seconds, whole = time.perf_counter() - began, interrupted_runs.outputs_of(first)
    outcomes = []
    for number in numbers:
        rng = np.random.default_rng([FLAGS.seed, number])
        folder = work / f"run-{number}"
        outcomes.append(interrupted_runs.play_with_faults(rng, runs, folder, whole, seconds))
        shutil.rmtree(folder, ignore_errors=True)
    return outcomes


def memory_of_calls(calls: int, work: Path) -> list[dict]:
    """The memory and memory maps of this process after a fifth of the calls, and after all."""
    changes = SETTINGS | {"rounds": 2, "model.hidden": (4,)}
    config = change(fl60.get_config("fedavg"), changes)
    measured = []
    for call in range(1, calls + 1):
        graphfl_jax.run(change(config, {"seed": call % 3}), keep_in=work / "kept")
        if call in (max(1, calls // 5), calls):
            maps = Path("/proc/self/maps").read_text().count("\n")
            size = psutil.Process().memory_info().rss
            measured.append({"calls": call, "bytes": size, "maps": maps})
    return measured


def rows(outcomes: list[interrupted_runs.Outcome]) -> list[list[str]]:
    """For each fault, the number of runs that had it, by what became of them."""
    counts = collections.Counter(
        (fault, outcome.verdict) for outcome in outcomes for fault in set(outcome.faults)
    )
    verdicts = (IDENTICAL, REFUSED, WRONG)
    table = [["runs with", *verdicts]]
    for fault in interrupted_runs.FAULTS:
        table.append([fault, *(str(counts[fault, verdict]) for verdict in verdicts)])
    total = collections.Counter(outcome.verdict for outcome in outcomes)
    return [*table, ["all runs", *(str(total[verdict]) for verdict in verdicts)]]


if __name__ == "__main__":
    launch(main, configured=False)
