"""``bench --suite``: every measurement of docs/results/speed.md, one after the other.

Each measurement is one or more commands in processes of their own, so that its peak memory is
its own and each can have its own number of devices. A command gets a budget of seconds. What
fails, or exceeds its budget, is listed with its error, and the others still run.

The suite needs nothing but the checkout: all data are generated or simulated. On CPUs, it also
compares with PyTorch, if that is installed.
"""

import datetime
import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from experiments.benchmarks import suite_tables
from experiments.benchmarks.report import Report, markdown, show
from experiments.benchmarks.suite_commands import (
    Failure,
    bench,
    resume,
    run_command,
    scaling_over,
    start_up,
)
from experiments.common import pages
from experiments.common.flag_values import check_names
from experiments.common.provenance import provenance
from graphfl_jax.commands.common.interrupts import temporary_folder, unfinished
from graphfl_jax.runs.checkpoint import write_json, write_text

MANY_CORES = 8  # on which long measurements are made


class Machine(NamedTuple):
    """Where the suite runs."""

    environment: dict  # of `runs.results`, with the devices that JAX uses by default
    cores: int  # that this process may use
    torch: bool  # whether PyTorch is installed

    @property
    def is_cpu(self) -> bool:
        return " cpu:" in self.environment["device"]


class Measurement(NamedTuple):
    """One row of `MEASUREMENTS`.

    Attributes:
      name: of the measurement.
      table: the table of `suite_tables.TABLES` that it is a part of.
      measure: (words, folder, seconds) -> its numbers.
      words: of its command line.
      seconds: budget of each of its commands.
      needs: "torch" needs PyTorch and no accelerator; "power" needs an accelerator or
        `MANY_CORES`; "devices" needs several devices.
    """

    name: str
    table: str
    measure: Callable[..., Any]
    words: tuple[str, ...]
    seconds: int
    needs: str = ""


def measure_all(only: list[str], out: Path, page: str | None, argv: list[str]) -> int:
    """Runs the measurements, prints and writes their tables, and returns the exit status.

    Args:
      only: names of measurements; empty is all.
      out: folder of suite.json and suite.md, which are written after every measurement, so that
        an interrupted suite leaves what it has measured.
      page: a Markdown page whose blocks are replaced by the tables that were measured.
      argv: command line of the suite, for the tables.

    Raises:
      ValueError: a name is unknown, or the page lacks a block.
    """
    chosen = selected(only)
    for table in dict.fromkeys(one.table for one in chosen) if page else ():
        pages.around(page, suite_tables.TABLES[table].block)
    out.mkdir(parents=True, exist_ok=True)
    unfinished(out / "suite.json")
    console, progress = Console(), Console(stderr=True)
    where = machine()
    found, failed, skipped, spent = {}, {}, {}, {}
    for number, one in enumerate(chosen, start=1):
        why = reason_to_skip(one, where)
        if why:
            skipped[one.name] = why
        else:
            began = time.perf_counter()
            try:
                found[one.name] = measured(one)
            except Failure as failure:
                failed[one.name] = str(failure)
            spent[one.name] = time.perf_counter() - began
        state = skipped.get(one.name) or failed.get(one.name) or f"{spent[one.name]:.0f} s"
        line = f"[{number}/{len(chosen)}] {one.name}: {state}"
        pages.print_line(progress, line)
        results = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "cores": where.cores,
            **where.environment,
            "seconds": spent,
            "measurements": found,
            "failed": failed,
            "not_measured": skipped,
        }
        made = provenance(argv, seconds=sum(spent.values()), where=where.environment)
        made += f" Date {results['date'][:10]}, usable CPU cores: {where.cores}."
        tables = list(reports(chosen[:number], found, failed, skipped))
        write_json(out / "suite.json", results)
        texts = [f"## {markdown(report)}" for report, _ in tables]
        write_text(out / "suite.md", "\n".join([f"# Speed\n\n{made}\n", *texts]))

    for report, block in tables:
        show(report, console)
        if page and len(report.rows) > 1:
            pages.update(page, block, f"{made}\n\n{markdown(report)}")
    pages.print_line(console, f"{out}/suite.json\n{out}/suite.md")
    return 1 if failed else 0


def selected(only: list[str]) -> list[Measurement]:
    """The measurements with these names, in the order of `MEASUREMENTS`; all for none.

    Raises:
      ValueError: there is no such measurement.
    """
    check_names("only", only, [one.name for one in MEASUREMENTS])
    return [one for one in MEASUREMENTS if one.name in only or not only]


def machine() -> Machine:
    """The devices of this machine, found in another process.

    This process never uses an accelerator, so that each measurement has all of its memory.

    Raises:
      ValueError: JAX cannot be started.
    """
    script = (
        "import json; from graphfl_jax.runs.environment import environment; "
        "print(json.dumps(environment()))"
    )
    try:
        printed = run_command(["-c", script], 300)
    except Failure as failure:
        raise ValueError(f"suite=True cannot start JAX ({failure}); correct this") from failure
    allowed = getattr(os, "sched_getaffinity", lambda process: range(os.cpu_count()))
    torch = importlib.util.find_spec("torch") is not None
    return Machine(json.loads(printed.splitlines()[-1]), len(allowed(0)), torch)


def reason_to_skip(one: Measurement, where: Machine) -> str:
    """Why a measurement is not made on this machine; empty if it is."""
    if one.needs == "torch" and not where.is_cpu:
        return "not measured: PyTorch is compared on CPUs"
    if one.needs == "torch" and not where.torch:
        return "not measured: PyTorch is not installed; run pip install torch"
    if one.needs == "power" and where.is_cpu and where.cores < MANY_CORES:
        return f"not measured: it takes minutes on {where.cores} cores"
    single = where.environment["device"].startswith("1 x")
    if one.needs == "devices" and single and not (where.is_cpu and where.cores > 1):
        return "not measured: there is one device"
    return ""


def measured(one: Measurement) -> Any:
    """The numbers of a measurement.

    Raises:
      Failure: one of its commands failed.
    """
    try:
        with temporary_folder("graphfl-suite-") as folder:
            return one.measure(one.words, folder, one.seconds)
    except (OSError, KeyError, ValueError) as error:
        raise Failure(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def reports(chosen, found, failed, skipped):
    """For each table of the chosen measurements, its report and the block of the page."""
    for name, table in suite_tables.TABLES.items():
        members = [one.name for one in chosen if one.table == name]
        if not members:
            continue
        rows = table.rows({member: found[member] for member in members if member in found})
        lines = [table.note] if table.note else []
        lines += [f"{one} failed: {failed[one]}" for one in members if one in failed]
        lines += [f"{one} is {skipped[one]}" for one in members if one in skipped]
        yield Report(table.title, rows, lines), table.block


def _config(name, *words):
    return (f"--config={name}", *words)


SIMULATED = "--config.data.source=simulated"
GRU = _config("metr_la", SIMULATED, "--config.data.steps=600")
CARS = _config("compcars:fedavg", SIMULATED)
LAYERED = _config("flha_cifar10", SIMULATED)


def _images(model, shape, *words):
    """FedAvg of ten of 20 clients with 500 images each, in rounds of one epoch."""
    return _config(
        "custom:fedavg",
        f"--images={shape}",
        f"--config.model.name={model}",
        "--config.cohort_size=10",
        "--config.local_steps=8",
        "--config.batch_size=64",
        "--config.hparams.client_lr=0.1",
        *words,
    )


LENET, CNN = _images("lenet", "28x28x1"), _images("cnn", "28x28x1")
RESNET = _images("resnet18", "32x32x3", "--config.model.width=8")
# One of each cost; the others only change what is averaged, or how.
METHODS = "panacea,panacea-mlp,pfedhn,fedavg,fedprox,perfedavg,pfedme,ditto,sfl,scaffold"
FEW = ("--repeats=3", "--rounds_each=2")
ONE = ("--repeats=3", "--rounds_each=1")
SOME = ("--repeats=5", "--rounds_each=20")

# name, table, function, words, seconds, needs
MEASUREMENTS = [
    Measurement("mlp", "rounds", bench, _config("tpt48", SIMULATED, *SOME), 90),
    # Its evaluation, which trains 207 sensors for L, takes as long as 40 rounds.
    Measurement("gru", "rounds", bench, (*GRU, "--repeats=1", "--rounds_each=3"), 360),
    Measurement("lenet", "rounds", bench, (*LENET, *FEW), 120),
    Measurement("cnn", "rounds", bench, (*CNN, *ONE), 360),
    Measurement("resnet-cars", "rounds", bench, (*CARS, *FEW), 360),
    Measurement("resnet", "rounds", bench, (*RESNET, *ONE), 360),
    Measurement("layered", "rounds", bench, (*LAYERED, *ONE), 360),
    Measurement(
        *("architectures", "architectures", bench),
        (*LAYERED, "--against=fedavg", *ONE),
        360,
    ),
    Measurement(
        *("methods", "methods", bench),
        _config("tpt48", SIMULATED, f"--methods={METHODS}", "--repeats=5", "--rounds_each=10"),
        240,
    ),
    Measurement(
        *("clients", "clients", scaling_over("clients")),
        _config("tpt48:fedavg", "--sizes=5,30,100,300,1000", "--repeats=3"),
        240,
    ),
    Measurement(
        *("clients-large", "clients", scaling_over("clients")),
        _config("tpt48:fedavg", "--sizes=3000,10000", "--repeats=2"),
        240,
        "power",
    ),
    Measurement(
        *("relations", "relations", scaling_over("relations")),
        _config("tpt48", "--sizes=1000,10000,100000", "--repeats=3", "--rounds_each=2"),
        240,
    ),
    Measurement(
        *("runs", "runs", scaling_over("runs")),
        _config("tpt48", SIMULATED, "--sizes=1,8,64", "--repeats=3"),
        180,
    ),
    Measurement(
        *("devices", "devices", scaling_over("devices")),
        _config("tpt48:fedavg", "--repeats=3"),
        240,
        "devices",
    ),
    Measurement(
        *("lowering-resnet", "lowerings", bench),
        (*CARS, "--vary=model.lowering=im2col,rows,xla", *ONE),
        240,
    ),
    Measurement(
        *("lowering-lenet", "lowerings", bench),
        (*LENET, "--vary=model.lowering=im2col,rows,xla", *ONE),
        240,
    ),
    Measurement(
        *("start-up", "start", start_up),
        _config("tpt48", SIMULATED, "--config.rounds=20"),
        120,
    ),
    Measurement(
        *("resume", "start", resume),
        _config("tpt48", SIMULATED, "--config.eval_every=10"),
        120,
    ),
    Measurement(
        *("torch-mlp", "torch", bench),
        _config("tpt48", SIMULATED, "--against=torch", "--repeats=3", "--rounds_each=10"),
        240,
        "torch",
    ),
    Measurement(
        *("torch-gru", "torch", bench),
        (*GRU, "--against=torch", "--variants=eager,vmap", *ONE),
        240,
        "torch",
    ),
    Measurement(
        *("torch-lenet", "torch", bench),
        (*LENET, "--against=torch", *ONE),
        240,
        "torch",
    ),
    Measurement(
        *("torch-cnn", "torch", bench),
        (*CNN, "--against=torch", "--variants=eager", *ONE),
        240,
        "torch",
    ),
    Measurement(
        *("torch-resnet", "torch", bench),
        (*CARS, "--against=torch", "--variants=eager,vmap", *ONE),
        240,
        "torch",
    ),
    Measurement(
        *("torch-layered", "torch", bench),
        (*LAYERED, "--config.client_schedule=constant", "--against=torch")
        + ("--variants=eager", *ONE),
        360,
        "torch",
    ),
]
