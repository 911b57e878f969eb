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
from graphfl_jax.commands.common.interrupts import mark_unfinished, temporary_folder
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
    chosen = chosen_measurements(only)
    for table in dict.fromkeys(measurement.table for measurement in chosen) if page else ():
        pages.around(page, suite_tables.TABLES[table].block)
    out.mkdir(parents=True, exist_ok=True)
    mark_unfinished(out / "suite.json")
    console, progress = Console(), Console(stderr=True)
    where = machine()
    numbers, failed, skipped, spent = {}, {}, {}, {}
    for number, measurement in enumerate(chosen, start=1):
        why = reason_to_skip(measurement, where)
        if why:
            skipped[measurement.name] = why
        else:
            began = time.perf_counter()
            try:
                numbers[measurement.name] = numbers_of(measurement)
            except Failure as failure:
                failed[measurement.name] = str(failure)
            spent[measurement.name] = time.perf_counter() - began
        state = (
            skipped.get(measurement.name)
            or failed.get(measurement.name)
            or f"{spent[measurement.name]:.0f} s"
        )
        pages.print_line(progress, f"[{number}/{len(chosen)}] {measurement.name}: {state}")
        results = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "cores": where.cores,
            **where.environment,
            "seconds": spent,
            "measurements": numbers,
            "failed": failed,
            "not_measured": skipped,
        }
        made = provenance(argv, seconds=sum(spent.values()), where=where.environment)
        made += f" Date {results['date'][:10]}, usable CPU cores: {where.cores}."
        tables = list(reports(chosen[:number], numbers, failed, skipped))
        write_json(out / "suite.json", results)
        texts = [f"## {markdown(report)}" for report, _ in tables]
        write_text(out / "suite.md", "\n".join([f"# Speed\n\n{made}\n", *texts]))

    for report, block in tables:
        show(report)
        if page and len(report.rows) > 1:
            pages.update(page, block, f"{made}\n\n{markdown(report)}")
    pages.print_line(console, f"{out}/suite.json\n{out}/suite.md")
    return 1 if failed else 0


def names() -> list[str]:
    """The names of all measurements."""
    return [measurement.name for measurement in MEASUREMENTS]


def chosen_measurements(only: list[str]) -> list[Measurement]:
    """The measurements with these names, in the order of `MEASUREMENTS`; all for none.

    Raises:
      ValueError: there is no such measurement.
    """
    check_names("only", only, names())
    return [measurement for measurement in MEASUREMENTS if measurement.name in only or not only]


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


def reason_to_skip(measurement: Measurement, where: Machine) -> str:
    """Why a measurement is not made on this machine; empty if it is."""
    if measurement.needs == "torch" and not where.is_cpu:
        return "not measured: PyTorch is compared on CPUs"
    if measurement.needs == "torch" and not where.torch:
        return "not measured: PyTorch is not installed; run pip install torch"
    if measurement.needs == "power" and where.is_cpu and where.cores < MANY_CORES:
        return f"not measured: it takes minutes on {where.cores} cores"
    single = where.environment["device"].startswith("1 x")
    if measurement.needs == "devices" and single and not (where.is_cpu and where.cores > 1):
        return "not measured: there is one device"
    return ""


def numbers_of(measurement: Measurement) -> Any:
    """The numbers of a measurement.

    Raises:
      Failure: one of its commands failed.
    """
    try:
        with temporary_folder("graphfl-suite-") as folder:
            return measurement.measure(measurement.words, folder, measurement.seconds)
    except (OSError, KeyError, ValueError) as error:
        raise Failure(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def reports(chosen, results, failed, skipped):
    """For each table of the chosen measurements, its report and the block of the page."""
    for name, table in suite_tables.TABLES.items():
        members = [member.name for member in chosen if member.table == name]
        if not members:
            continue
        rows = table.rows({member: results[member] for member in members if member in results})
        lines = [table.note] if table.note else []
        lines += [
            f"{member} failed: {failed[member]}" for member in members if member in failed
        ]
        lines += [f"{member} is {skipped[member]}" for member in members if member in skipped]
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


def _rounds(name, seconds, *words, table="rounds"):
    return Measurement(name, table, bench, words, seconds)


def _over(what, seconds, *words, name="", needs=""):
    """Times over numbers of clients, relations, runs or devices."""
    return Measurement(name or what, what, scaling_over(what), words, seconds, needs)


def _torch(name, seconds, *words):
    return Measurement(name, "torch", bench, (*words, "--against=torch"), seconds, "torch")


TPT48 = _config("tpt48", SIMULATED)
FEDAVG = _config("tpt48:fedavg", "--repeats=3")
LOWERINGS = "--vary=model.lowering=im2col,rows,xla"
MEASUREMENTS = [
    _rounds("mlp", 90, *TPT48, *SOME),
    # Its evaluation, which trains 207 sensors for L, takes as long as 40 rounds.
    _rounds("gru", 360, *GRU, "--repeats=1", "--rounds_each=3"),
    _rounds("lenet", 120, *LENET, *FEW),
    _rounds("cnn", 360, *CNN, *ONE),
    _rounds("resnet-cars", 360, *CARS, *FEW),
    _rounds("resnet", 360, *RESNET, *ONE),
    _rounds("layered", 360, *LAYERED, *ONE),
    _rounds("architectures", 360, *LAYERED, "--against=fedavg", *ONE, table="architectures"),
    _rounds(
        "methods",
        240,
        *TPT48,
        f"--methods={METHODS}",
        "--repeats=5",
        "--rounds_each=10",
        table="methods",
    ),
    _over("clients", 240, *FEDAVG, "--sizes=5,30,100,300,1000"),
    _over(
        "clients",
        240,
        *_config("tpt48:fedavg", "--repeats=2"),
        "--sizes=3000,10000",
        name="clients-large",
        needs="power",
    ),
    _over("relations", 240, *_config("tpt48", "--sizes=1000,10000,100000"), *FEW),
    _over("runs", 180, *TPT48, "--sizes=1,8,64", "--repeats=3"),
    _over("devices", 240, *FEDAVG, needs="devices"),
    _rounds("lowering-resnet", 240, *CARS, LOWERINGS, *ONE, table="lowerings"),
    _rounds("lowering-lenet", 240, *LENET, LOWERINGS, *ONE, table="lowerings"),
    Measurement("start-up", "start", start_up, (*TPT48, "--config.rounds=20"), 120),
    Measurement("resume", "start", resume, (*TPT48, "--config.eval_every=10"), 120),
    _torch("torch-mlp", 240, *TPT48, "--repeats=3", "--rounds_each=10"),
    _torch("torch-gru", 240, *GRU, "--variants=eager,vmap", *ONE),
    _torch("torch-lenet", 240, *LENET, *ONE),
    _torch("torch-cnn", 240, *CNN, "--variants=eager", *ONE),
    _torch("torch-resnet", 240, *CARS, "--variants=eager,vmap", *ONE),
    _torch(
        "torch-layered",
        360,
        *LAYERED,
        "--config.client_schedule=constant",
        "--variants=eager",
        *ONE,
    ),
]
