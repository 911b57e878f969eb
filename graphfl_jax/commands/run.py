"""Trains and scores one federation, and writes its results into a folder.

    graphfl run tpt48
    graphfl run fl60:ditto --config.seed=3 --out=runs/mine
    graphfl run --resume --out=runs/mine
    graphfl run tpt48:fedavg --seeds=5 --out=runs/fedavg

The word after the command is the configuration, as with --config, and the word after the colon
is the method; `graphfl list` prints both. Any field can be set, as in --config.rounds=40;
--help with a configuration lists the fields. With --debug, clients are computed one by one and
without jit, and an error names the round, the client and the stage.

With --resume, the run in the folder of --out is continued; the configuration may be left out,
but not with --seeds or --distributed. If the code has changed since, --accept_changes is
needed.

With --seeds=5, the configuration is run with five seeds, from its own seed on, as one program.
Each run has a folder, the one of --out followed by -seed0 and so on, which is written when the
program has ended, without checkpoints. The table has means over the seeds and their spread.
With --resume, seeds whose folders have results are not repeated.

Exit status: 0 if a valid result was written, 1 if the run diverged, 2 if a flag, a field, the
data or the output folder does not fit. Of several processes (--distributed), only the first
writes and prints, and all exit with the same status, or with 3 if a process failed alone or
lost another.
"""

import shlex
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

import graphfl_jax
from graphfl_jax.commands.common import result_tables
from graphfl_jax.commands.common.accept_changes import changes_accepted
from graphfl_jax.commands.common.command_line import (
    FLAGS,
    OVERRIDES,
    compiled_folder,
    launch,
    out_folder,
    progress_bar,
)
from graphfl_jax.commands.common.configuration import configuration, configuration_file
from graphfl_jax.commands.common.finished_runs import write_views
from graphfl_jax.commands.common.interrupts import resumable
from graphfl_jax.commands.common.processes import join_processes
from graphfl_jax.commands.common.seeded_runs import run_seeds, seed_folders, seeds_table
from graphfl_jax.commands.common.text_tables import say
from graphfl_jax.commands.common.trackers import TRACKERS, check_trackers
from graphfl_jax.configs.base import variant_of, was_searched
from graphfl_jax.configs.fields import SPLITS
from graphfl_jax.configs.published import published_score
from graphfl_jax.configs.values import values_of
from graphfl_jax.data.federation import input_range, score_of_constant
from graphfl_jax.runs import models
from graphfl_jax.runs.folder import configuration_in
from graphfl_jax.runs.multihost import is_first
from graphfl_jax.runs.single import Result
from graphfl_jax.runs.store import NewFolders
from graphfl_jax.runs.views import REPORT

CLIENT_LR = "hparams.client_lr"
RATES = "0.003,0.01,0.03,0.1,0.3"  # of the sweep that a run offers

flags.DEFINE_string("out", None, "Folder of the results; by default a new one under runs/.")
flags.DEFINE_integer("seeds", 1, "Runs, with seeds from that of --config on.", lower_bound=1)
flags.DEFINE_list("track", [], f"Services that get the evaluations: {', '.join(TRACKERS)}.")
flags.DEFINE_bool(
    "resume",
    False,
    "Continue the run in --out; without --config, with its configuration. With --seeds or "
    "--distributed, --config is needed.",
)
flags.DEFINE_bool(
    "save_models",
    False,
    f"Write {models.FILE} also if it has more than {models.LARGEST // 10**6} MB.",
)
flags.DEFINE_bool("report", False, "Write report.html, a report of the run, into its folder.")


def main() -> int:
    if FLAGS.resume and not FLAGS.out:
        raise ValueError("resume=True needs the folder of the run; add --out=DIR")
    changes_accepted()
    check_trackers("track", FLAGS.track)
    for flag in ("debug", "distributed"):
        if FLAGS.seeds > 1 and FLAGS[flag].value:
            raise ValueError(
                f"{flag}={FLAGS[flag].value} is not possible with seeds={FLAGS.seeds}; leave "
                f"one of them out"
            )
    recorded = None
    # Of several processes, only the first may have the folder, so all need --config.
    if FLAGS.resume and FLAGS.config is None and not FLAGS.distributed and FLAGS.seeds == 1:
        recorded = configuration_in(Path(FLAGS.out))
    config = configuration(default=recorded)
    with join_processes():
        return run_and_print(config) if FLAGS.seeds == 1 else run_and_print_seeds(config)


def run_and_print_seeds(config: ConfigDict) -> int:
    """Runs the configuration with several seeds, and returns the exit status."""
    variant, first = variant_of(config), config.seed
    seeds, new = range(first, first + FLAGS.seeds), None

    def known(path):
        out = str(path).removesuffix(f"-seed{first}")
        resumable("--resume", f"--out={out}", marker=path / "config.json")

    if FLAGS.out:
        folders = seed_folders(FLAGS.out.rstrip("/"), seeds)
        known(folders[first])
    else:
        base = Path("runs", f"{config.data.name}-{variant}")
        new = NewFolders(base, [f"-seed{seed}" for seed in seeds], known=known)
        folders = dict(zip(seeds, new.paths, strict=True))
    with progress_bar() as bar:
        task = bar.add_task(variant, total=config.rounds * len(folders))
        runs = run_seeds(
            config,
            folders,
            new=new,
            resume=FLAGS.resume,
            accept_changes=changes_accepted(),
            report=lambda played: bar.advance(task, config.rounds * played),
            keep_in=compiled_folder(),
            config_file=configuration_file(),
            save_models=FLAGS.save_models,
            track=FLAGS.track,
        )
    seeds_table(runs).show()
    for path, run in zip(new.paths if new else folders.values(), runs, strict=True):
        if FLAGS.report:
            report_on(path)
        ended = "diverged" if run["diverged"] else result_tables.stopped_text(run)
        say(f"{path}/results.json{ended and '; ' + ended}")
        if text := result_tables.trained_text(run):
            say(text)
        if run.get("not_finite") and not run["diverged"]:
            say(result_tables.not_finite_text(run), "red")
    lost = sum(run["diverged"] for run in runs)
    if lost:
        say(
            f"{lost} of {len(runs)} runs diverged; {result_tables.divergence_remedy(config)}",
            "red",
        )
    return int(lost > 0)


def run_and_print(config: ConfigDict) -> int:
    """Runs the federation, prints its results, and returns the exit status."""
    name = f"{config.data.name}-{variant_of(config)}-seed{config.seed}"

    def known(out):
        resumable("--resume", f"--out={out}", marker=out / "config.json")

    out = out_folder(name, known)
    trackers = []

    def report(row):
        bar.update(task, completed=row["round"], note=note_of(row))
        if not trackers and is_first():  # now the folder exists
            fields = values_of(config)[0]
            trackers.extend(TRACKERS[name](Path(out), fields) for name in FLAGS.track)
        for tracker in trackers:
            tracker.write(row)

    with progress_bar(shown=is_first()) as bar:
        task = bar.add_task(variant_of(config), total=config.rounds)
        result = graphfl_jax.run(
            config,
            out=out,
            resume=FLAGS.resume,
            accept_changes=changes_accepted(),
            config_file=configuration_file(),
            debug=FLAGS.debug,
            report=report,
            keep_in=compiled_folder(),
            save_models=FLAGS.save_models,
        )
    for tracker in trackers:
        tracker.close()
    return finish(config, result, Path(out))


def finish(config: ConfigDict, result: Result, out: Path) -> int:
    """Writes the views of a result and prints it, in the first process; the exit status."""
    diverged = result.results["diverged"]
    if is_first():
        write_views(out, result)
        if FLAGS.report:
            report_on(out)
        if result.final is None:
            say(divergence(config, result, out), "red")
        else:
            print_results(config, result, out)
    return int(diverged)


def report_on(out: Path) -> None:
    """Writes the report of a run into its folder."""
    from graphfl_jax.commands.reporting.page import write_report  # with its templates

    write_report([out], out / REPORT)


def divergence(config: ConfigDict, result: Result, out: Path) -> str:
    """When a run ended, with which values, which client was the first, and what may help."""
    numbers = ", ".join(f"{k}={v:g}" for k, v in result.results["hparams"].items())
    low, high = input_range(result.federation)
    saved = any(out.glob("checkpoints/*.json"))
    first, where = result.results["not_finite"]["first"], ""
    if first and first["round"] <= result.diverged_at:  # and not only after the server
        where = f", first client {first['client']} in round {first['round']},"
    return (
        f"diverged in round {result.diverged_at}{where} with {numbers}; the inputs range from "
        f"{low:.3g} to {high:.3g}: {result_tables.divergence_remedy(config)}; "
        + (f"the last checkpoint is in {out}" if saved else "there is no checkpoint")
    )


def print_results(config: ConfigDict, result: Result, out: Path) -> None:
    """Prints the tables of a result, and where it is."""
    variant, dataset = result.results["variant"], result.results["dataset"]
    tables = [
        result_tables.score_table(result.results, published_score(config, variant, dataset))
    ]
    tables += result_tables.further_tables(result.results)
    if result.results["new_clients"]:
        tables.append(result_tables.new_clients_table(result.results))
        if "architectures" in result.results["new_clients"]:
            tables.append(result_tables.new_architectures_table(result.results))
    if result.results["attack"]:
        tables.append(result_tables.attack_table(result.results))
    for table in tables:
        table.show(left=(table.rows[0][0], "scored at"))
    if result.results["rejected"] and not result.results["attack"]:
        say(result_tables.rejected_text(result.results))
    for text_of in (
        result_tables.stopped_text,
        result_tables.weighted_text,
        result_tables.privacy_text,
        result_tables.clock_text,
        result_tables.sample_text,
        result_tables.trained_text,
    ):
        if text := text_of(result.results):
            say(text)
    if result.results["not_finite"]:
        say(result_tables.not_finite_text(result.results), "red")
    if result.unsaved:
        say(
            f"the models have {result.unsaved / 1e6:,.0f} MB and were not written; to write "
            f"them: --out={out} --resume --save_models"
        )
    untrained = result_tables.none_trained(result.results)  # no rate would change its scores
    if FLAGS.config and not untrained and (hint := search_hint(config, result)):
        say(hint)
    say(result_tables.cost_text(result.results, result.seconds))
    say(f"{out}/results.json")
    if FLAGS.report:
        say(f"{out}/{REPORT}")


def note_of(row: dict[str, Any]) -> str:
    """What the progress shows of an evaluation: the losses, and a mean score over clients."""
    parts = [f"{name} {value:.4g}" for name, value in row["train"].items()]
    split = "test" if "test" in row else next(name for name in row if name in SPLITS)
    point = "P" if "P" in row[split] else next(iter(row[split]))
    return ", ".join([*parts, f"{split} {point} {row[split][point]['mean']:.4g}"])


def search_hint(config: ConfigDict, result: Result) -> str:
    """A sweep of the learning rate to paste, where it may help; else empty.

    It may if the run is no better than a constant prediction, or if the method's rates were
    not chosen for the data set.
    """
    results, sample = result.results, result.results["sample"]
    constant = score_of_constant(result.federation, sample and sample["ids"])
    score, higher = results["scores"]["final"]["P"]["mean"], results["higher_is_better"]
    what = "most frequent class" if higher else "mean of the training targets"
    fields = {name: text for name, text in OVERRIDES.items() if name != CLIENT_LR}
    if constant is not None and (score <= constant if higher else score >= constant):
        why = f"P {score:.4g} is no better than always predicting the {what}, {constant:.4g}"
        if config.data.get("scale") == "none" and not higher:
            fields["data.scale"] = "standard"
    elif not was_searched(config) and not any(name.endswith("_lr") for name in OVERRIDES):
        why = f"the rates of {results['variant']} were not searched on {config.data.name}"
    else:
        return ""
    if results["scores"]["validation"] is None:
        fields["data.val_fraction"] = "0.1"
    if config.data.storage == "host":  # which batches of runs cannot have
        fields["data.storage"] = "device"
    words = ["graphfl", "sweep", FLAGS.config, f"--grid.{CLIENT_LR}={RATES}"]
    words += [f"--config.{name}={value}" for name, value in fields.items()]
    return f"{why}; to search for a learning rate: {shlex.join(words)}"


def start() -> None:
    """Reads the flags, and runs the command."""
    launch(main)
