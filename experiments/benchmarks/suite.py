"""``bench --suite``: every measurement of docs/results/speed.md, one after the other.

Each measurement is one or more commands in processes of their own, so that its peak memory is
its own and each can have its own number of devices. A command gets a budget of seconds. What
fails, or exceeds its budget, is listed with its error, and the others still run.

The suite needs nothing but the checkout: all data are generated or simulated. It also compares
with PyTorch, if that is installed, and on CPUs with the libraries of `experiments/peers` whose
Python a flag names. On an accelerator, it also compares scores with those of a CPU.
"""

import contextlib
import datetime
import importlib.util
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from experiments.benchmarks import million, rehearsal, suite_tables, timing
from experiments.benchmarks.processes import Failure, run_command
from experiments.benchmarks.report import Report, markdown, show
from experiments.common import pages
from experiments.common.flag_values import check_names
from graphfl_jax.commands.common.interrupts import mark_unfinished, temporary_folder
from graphfl_jax.runs.checkpoint import write_json, write_text

MANY_CORES = 8  # on which long measurements are made
# Rounds of a timed repeat on an accelerator, by table. PyTorch's rounds take longer.
ROUNDS_ON_ACCELERATORS = {"torch": 2} | dict.fromkeys(
    ("rounds", "methods", "architectures", "lowerings", "clients", "relations", "runs"), 10
)
# Libraries with a script in `SCRIPTS`, and the tables in which they are.
PEERS = {"fedjax": ("peers", "million"), "fluke": ("peers",)}
SCRIPTS = pages.ROOT / "experiments" / "peers"
PROCESSES = 3  # of each library, in turn
SECOND = "second start of graphfl_jax"
# The names in the line that a script of `SCRIPTS` prints.
LINE = ["work", "library", "version", "parameters", "ready_s", "first_round_s", "round_s"]
LINE += ["rounds", "peak_mib"]


class Machine(NamedTuple):
    """Where the suite runs."""

    environment: dict  # of `runs.results`, with the devices that JAX uses by default
    cores: int  # that this process may use
    torch: bool  # whether PyTorch is installed
    plugin: bool  # whether JAX's plugin for CUDA is installed

    @property
    def is_cpu(self) -> bool:
        return " cpu:" in self.environment["device"]


class Measurement(NamedTuple):
    """One row of `MEASUREMENTS`."""

    name: str
    table: str  # of `suite_tables.TABLES`, that it is a part of
    measure: Callable[..., Any]  # (words, folder, seconds) -> its numbers
    words: tuple[str, ...]  # of its command line
    seconds: int  # budget of each of its commands
    # "torch" is PyTorch, "power" an accelerator or `MANY_CORES`, "devices" are several,
    # "plugin" is JAX's for CUDA, and "linux" is Linux and no accelerator.
    needs: str = ""


def measure_all(
    only: list[str], pythons: dict[str, str], out: Path, page: str | None, argv: list[str]
) -> int:
    """Runs the measurements, prints and writes their tables, and returns the exit status.

    suite.json and suite.md are written after every measurement, so that an interrupted suite
    leaves what it has measured.

    Args:
      pythons: the Python with each of `PEERS` that is measured.

    Raises:
      ValueError: a name is unknown, a Python cannot be used, or the page lacks a block.
    """
    chosen = with_peers(chosen_measurements(only), pythons)
    progress, where = Console(stderr=True), machine()
    if not where.is_cpu:
        chosen = [with_rounds(measurement) for measurement in chosen]
    for table in dict.fromkeys(measurement.table for measurement in chosen) if page else ():
        pages.around(page, block_of(table, where))
    out.mkdir(parents=True, exist_ok=True)
    mark_unfinished(out / "suite.json")
    numbers, failed, skipped, spent = {}, {}, {}, {}
    for number, measurement in enumerate(chosen, start=1):
        name, state = measurement.name, reason_to_skip(measurement, where)
        if state:
            skipped[name] = state
        else:
            began = time.perf_counter()
            try:
                numbers[name] = numbers_of(measurement)
            except Failure as failure:
                failed[name] = str(failure)
            spent[name] = time.perf_counter() - began
            state = failed.get(name) or f"{spent[name]:.0f} s"
        pages.print_line(progress, f"[{number}/{len(chosen)}] {name}: {state}")
        results = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "cores": where.cores,
            **where.environment,
            "seconds": spent,
            "measurements": numbers,
            "failed": failed,
            "not_measured": skipped,
        }
        made = pages.provenance(argv, seconds=sum(spent.values()), where=where.environment)
        made += f" Date {results['date'][:10]}, usable CPU cores: {where.cores}."
        tables = list(reports(chosen[:number], numbers, failed, skipped))
        write_json(out / "suite.json", results)
        texts = [f"## {markdown(report)}" for report, _ in tables]
        write_text(out / "suite.md", "\n".join([f"# Speed\n\n{made}\n", *texts]))

    for report, table in tables:
        show(report)
        if page and len(report.rows) > 1:
            pages.update(page, block_of(table, where), f"{made}\n\n{markdown(report)}")
    pages.print_line(Console(), f"{out}/suite.json\n{out}/suite.md")
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


def with_peers(chosen: list[Measurement], pythons: dict[str, str]) -> list[Measurement]:
    """Adds NAME=PYTHON of each peer to the words of the measurements that compare with peers.

    Raises:
      ValueError: there is no such program, or no such measurement.
    """
    for name, python in pythons.items():
        if not shutil.which(python):
            raise ValueError(
                f"{name}={python} is not a program; set --{name} to the Python of the "
                f"environment that {name} is installed in"
            )
        if not any(measurement.table in PEERS[name] for measurement in chosen):
            of = [each.name for each in MEASUREMENTS if each.table in PEERS[name]]
            raise ValueError(
                f"{name}={python} is not read without {', '.join(of[:-1])} or {of[-1]} in "
                f"--only; add one"
            )
    return [
        measurement._replace(
            words=measurement.words
            + tuple(
                f"{name}={python}"
                for name, python in pythons.items()
                if measurement.table in PEERS[name]
            )
        )
        for measurement in chosen
    ]


def with_rounds(measurement: Measurement) -> Measurement:
    """The measurement on an accelerator, whose rounds are short: it times more of them."""
    rounds = ROUNDS_ON_ACCELERATORS.get(measurement.table)
    more = (f"--rounds_each={rounds}",) if rounds else ()
    return measurement._replace(words=measurement.words + more)


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
    where = json.loads(printed.splitlines()[-1])
    return Machine(where, len(allowed(0)), torch, rehearsal.is_installed())


def reason_to_skip(measurement: Measurement, where: Machine) -> str:
    """Why a measurement is not made on this machine; empty if it is."""
    if measurement.needs == "accelerator" and where.is_cpu:
        return "not measured: there is no accelerator"
    if measurement.needs == "torch" and not where.torch:
        return "not measured: PyTorch is not installed; run pip install torch"
    if measurement.needs == "power" and where.is_cpu and where.cores < MANY_CORES:
        return f"not measured: it takes minutes on {where.cores} cores"
    if measurement.needs == "linux" and not where.is_cpu:
        return "not measured: other libraries are compared on CPUs"
    if measurement.needs == "linux" and not sys.platform.startswith("linux"):
        return "not measured: the start and the memory of a process are read on Linux only"
    single = where.environment["device"].startswith("1 x")
    if measurement.needs == "devices" and single and not (where.is_cpu and where.cores > 1):
        return "not measured: there is one device"
    if measurement.needs == "plugin" and not where.plugin:
        return f"not measured: it needs {rehearsal.remedy()}"
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
    """For each table of the chosen measurements, its report and its name."""
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
        yield Report(table.title, rows, lines), name


def block_of(table: str, where: Machine) -> str:
    """The block of the page with a table of this machine; accelerators have their own."""
    return suite_tables.TABLES[table].block + ("" if where.is_cpu else "-gpu")


# ----------------------------------------------------------------------------------- commands


def bench(words, folder, seconds):
    """The numbers that `python -m experiments.bench` writes."""
    run_command(["-m", "experiments.bench", *words, f"--out={folder}"], seconds)
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


def start_up(words, folder, seconds):
    """Seconds from the command to the end of a run, without and with kept programs."""
    took = {}
    for name in ("first", "second"):
        began = time.perf_counter()
        _run([*words, f"--out={folder / name}"], folder, seconds)
        took[name] = time.perf_counter() - began
    return took


def resume(words, folder, seconds):
    """Compares a run with one that stops at half of its rounds and is resumed.

    Raises:
      Failure: the files of metrics differ.
    """
    parts = (("whole", 40, ()), ("resumed", 20, ()), ("resumed", 40, ("--resume",)))
    for name, rounds, more in parts:
        part = (f"--config.rounds={rounds}", f"--out={folder / name}", *more)
        _run([*words, *part], folder, seconds)
    whole, resumed = ((folder / n / "metrics.jsonl").read_bytes() for n in ("whole", "resumed"))
    if whole != resumed:
        raise Failure("metrics.jsonl of the resumed run differs from that of the whole run")
    return {"rounds": 40, "bytes": len(whole), "equal": True}


def agreement(words, folder, seconds):
    """Compares the scores of a run on an accelerator with those on a CPU.

    Returns:
      The largest differences of a loss or of the scores of all clients, relative to their
      norms: in float32, and in TensorFloat-32. And whether a second run on the accelerator has
      the same bytes.
    """
    # No run shares the folder of compiled programs with another one.
    on_cpu, files = {"JAX_PLATFORMS": "cpu"}, {}
    for name in ("cpu", "float32", "again", "tensorfloat32"):
        precision = name if name == "tensorfloat32" else "float32"
        more = (f"--config.precision={precision}", f"--out={folder / name}")
        variables = on_cpu if name == "cpu" else {}
        _run([*words, *more], folder / f"of {name}", seconds, variables)
        files[name] = (folder / name / "metrics.jsonl").read_bytes()
    played = {name: json.loads(file.splitlines()[-1]) for name, file in files.items()}
    return {
        "rounds": played["cpu"]["round"],
        "float32": largest_difference(played["float32"], played["cpu"]),
        "tensorfloat32": largest_difference(played["tensorfloat32"], played["cpu"]),
        "same_bytes": files["float32"] == files["again"],
    }


def largest_difference(line, expected):
    """The largest relative difference of two lines of metrics.jsonl.

    Scores of clients are compared as vectors, so that one near 0 does not decide.
    """
    differences = [0.0]
    for name, value in expected.items():
        if isinstance(value, dict):
            differences.append(largest_difference(line[name], value))
        elif name in ("loss", "per_client"):
            value, other = np.asarray(value, float), np.asarray(line[name], float)
            differences.append(np.linalg.norm(other - value) / np.linalg.norm(value))
    return float(np.max(differences))


def compare_peers(words, folder, seconds):
    """Compares a work of `SCRIPTS` in several libraries, on all cores and on a single core.

    The processes are in turn, so that a slow period of the machine affects all of them.

    Args:
      words: the work, and NAME=PYTHON of each library.

    Raises:
      Failure: a process failed, or the libraries do not train models of the same size.
    """
    work, *pythons = words
    pythons = dict(word.split("=", 1) for word in pythons)
    rows = []
    for cores in dict.fromkeys((len(os.sched_getaffinity(0)), 1)):
        with on_cores(cores):
            lines = lines_of_peers(work, pythons, folder / f"cores-{cores}", seconds)
        rows += [{"cores": cores, "name": name, **summary(of)} for name, of in lines.items()]
    check_parameters(rows)
    missing = [name for name in PEERS if name not in pythons]
    return {"work": work, "processes": PROCESSES, "rows": rows, "not_measured": missing}


def check_parameters(rows):
    """Checks that libraries train models of the size that graphfl_jax, the first, trains.

    Raises:
      Failure: a library does not.
    """
    for row in rows:
        if row["parameters"] != rows[0]["parameters"]:
            raise Failure(
                f"{row['name']} trains {row['parameters']} weights, and graphfl_jax "
                f"{rows[0]['parameters']}"
            )


def lines_of_peers(work, pythons, folder, seconds):
    """The lines of all processes, by library and start; this library first."""
    starts = {"graphfl_jax": sys.executable, SECOND: sys.executable} | pythons
    lines = {name: [] for name in starts}
    for turn in range(PROCESSES):
        for name, python in starts.items():
            script, words = name, [f"--work={work}"]
            if name not in pythons:  # the second start finds what the first one has kept
                script, words = "graphfl", [*words, f"--kept={folder}-{turn}"]
            lines[name].append(peer_line(script, python, words, seconds))
    return lines


def measure_million(words, folder, seconds):
    """Compares federations of few and of many clients, and one with FedJAX's.

    Args:
      words: clients=FEW,MANY, clients_of_w3=NUMBER, and fedjax=PYTHON if FedJAX is measured.

    Raises:
      Failure: a process failed, or FedJAX does not train a model of the same size.
    """
    words = dict(word.split("=", 1) for word in words)
    sizes = [int(size) for size in words["clients"].split(",")]
    rows = []
    for method in million.STORAGE:
        rows += million.compare_sizes(method, sizes, seconds)
    peers, clients = [], int(words["clients_of_w3"])
    if "fedjax" in words:
        scripts = {"graphfl_jax": ("graphfl", sys.executable)}
        scripts["fedjax"] = ("fedjax", words["fedjax"])
        lines = {name: [] for name in scripts}
        for _ in range(PROCESSES):
            for name, script in scripts.items():
                of_work = ["--work=w3", f"--clients={clients}"]
                lines[name].append(peer_line(*script, of_work, seconds))
        for name, of in lines.items():
            peers.append({"name": name, "clients": clients, **summary(of)})
        check_parameters(peers)
    return {"rows": rows, "peers": peers}


@contextlib.contextmanager
def on_cores(number):
    """Lets this thread, and what it starts, use only the first of its cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def peer_line(name, python, words, seconds):
    """What the script of a library prints.

    Raises:
      Failure: it failed, or its last line is not the one of `peers/measured.py`.
    """
    script = str(SCRIPTS / f"{name}_round.py")
    try:
        printed = run_command([script, *words], seconds, python)
    except Failure as failure:
        raise Failure(f"{name}: {failure}") from failure
    return read_line(name, printed)


def read_line(name, printed):
    """The line of JSON at the end of what a script of `SCRIPTS` printed."""
    last = next(reversed(printed.splitlines()), "")
    try:
        line = json.loads(last)
    except json.JSONDecodeError:
        line = None
    if not isinstance(line, dict) or list(line) != LINE:
        raise Failure(f"{name}: its last line is {last!r}, not JSON with {', '.join(LINE)}")
    return line


def summary(lines):
    """Medians over the processes of a library, and the times of a round with their extremes."""
    return {
        "version": lines[0]["version"],
        "parameters": lines[0]["parameters"],
        "s_per_round": timing.spread([line["round_s"] for line in lines]),
        "ready_s": statistics.median(line["ready_s"] for line in lines),
        "start_s": statistics.median(line["first_round_s"] for line in lines),
        "peak_mib": statistics.median(line["peak_mib"] for line in lines),
    }


def _run(words, folder, seconds, variables=None):
    kept = f"--compilation_cache={folder / 'compiled'}"
    words = ["-m", "graphfl_jax", "run", *words, kept]
    run_command(words, seconds, variables=variables)


SIMULATED = "--config.data.source=simulated"
TPT48 = f"--config=tpt48 {SIMULATED}"
GRU = f"--config=metr_la {SIMULATED} --config.data.steps=600"
CARS = f"--config=compcars:fedavg {SIMULATED}"
LAYERED = f"--config=flha_cifar10 {SIMULATED}"
# FedAvg of ten of 20 clients with 500 images each, in rounds of one epoch.
IMAGES = (
    "--config=custom:fedavg --config.cohort_size=10 --config.local_steps=8 "
    "--config.batch_size=64 --config.client_optimizer=sgd --config.hparams.client_lr=0.1"
)
LENET = f"{IMAGES} --images=28x28x1 --config.model.name=lenet"
CNN = f"{IMAGES} --images=28x28x1 --config.model.name=cnn"
RESNET = f"{IMAGES} --images=32x32x3 --config.model.name=resnet18 --config.model.width=8"
# One of each cost; the others only change what is averaged, or how.
METHODS = "panacea,panacea-mlp,pfedhn,fedavg,fedprox,perfedavg,pfedme,ditto,sfl,scaffold"
FEW = "--repeats=3 --rounds_each=2"
ONE = "--repeats=3 --rounds_each=1"
FEDAVG = "--config=tpt48:fedavg --repeats=3"
LOWERINGS = "--vary=model.lowering=im2col,rows,xla"


def _rounds(name, seconds, words, *, table="rounds", measure=bench, needs=""):
    return Measurement(name, table, measure, tuple(words.split()), seconds, needs)


def _over(what, seconds, words, *, name="", needs=""):
    """Times over numbers of clients, relations, runs or devices."""
    words = f"{words} --scaling={what}"
    return _rounds(name or what, seconds, words, table=what, needs=needs)


def _peers(work):
    return Measurement(work, "peers", compare_peers, (work,), 300, "linux")


def _agreement(name, words):
    words = f"{words} --config.rounds=3 --config.eval_every=3"
    name = f"agree-{name}"
    return _rounds(name, 300, words, table="agreement", measure=agreement, needs="accelerator")


def _torch(name, seconds, words):
    return _rounds(name, seconds, f"{words} --against=torch", table="torch", needs="torch")


def _rehearsed(name, seconds, words):
    words = f"{words} --rehearse=h100"
    return _rounds(f"h100-{name}", seconds, words, table="rehearsal", needs="plugin")


MEASUREMENTS = [
    _rounds("mlp", 90, f"{TPT48} --repeats=5 --rounds_each=20"),
    # Its evaluation, which trains 207 sensors for L, takes as long as 40 rounds.
    _rounds("gru", 360, f"{GRU} --repeats=1 --rounds_each=3"),
    _rounds("lenet", 120, f"{LENET} {FEW}"),
    _rounds("cnn", 360, f"{CNN} {ONE}"),
    _rounds("resnet-cars", 360, f"{CARS} {FEW}"),
    _rounds("resnet", 360, f"{RESNET} {ONE}"),
    _rounds("layered", 360, f"{LAYERED} {ONE}"),
    _rounds("architectures", 360, f"{LAYERED} --against=fedavg {ONE}", table="architectures"),
    _rounds(
        "methods",
        240,
        f"{TPT48} --methods={METHODS} --repeats=5 --rounds_each=10",
        table="methods",
    ),
    _over("clients", 240, f"{FEDAVG} --sizes=5,30,100,300,1000"),
    _over(
        "clients",
        240,
        "--config=tpt48:fedavg --repeats=2 --sizes=3000,10000",
        name="clients-large",
        needs="power",
    ),
    _over("relations", 240, f"--config=tpt48 --sizes=1000,10000,100000 {FEW}"),
    _over("runs", 180, f"{TPT48} --sizes=1,8,64 --repeats=3"),
    _over("devices", 240, FEDAVG, needs="devices"),
    _rounds("lowering-resnet", 240, f"{CARS} {LOWERINGS} {ONE}", table="lowerings"),
    _rounds("lowering-lenet", 240, f"{LENET} {LOWERINGS} {ONE}", table="lowerings"),
    _rounds("start-up", 120, f"{TPT48} --config.rounds=20", table="start", measure=start_up),
    _rounds("resume", 120, f"{TPT48} --config.eval_every=10", table="start", measure=resume),
    _agreement("mlp", TPT48),
    _agreement("ditto", f"--config=tpt48:ditto {SIMULATED}"),
    _agreement("gru", f"{GRU} --config.eval.clients=8 --config.local_steps=5"),
    _agreement("lenet", f"--config=fashion_mnist:pfedgat {SIMULATED} --config.local_steps=3"),
    _agreement("resnet", f"{CARS} --config.local_steps=1"),
    _agreement("layered", f"{LAYERED} --config.local_steps=1"),
    _torch("torch-mlp", 240, f"{TPT48} --repeats=3 --rounds_each=10"),
    _torch("torch-gru", 240, f"{GRU} --variants=eager,vmap {ONE}"),
    _torch("torch-lenet", 240, f"{LENET} {ONE}"),
    _torch("torch-cnn", 240, f"{CNN} --variants=eager {ONE}"),
    _torch("torch-resnet", 240, f"{CARS} --variants=eager,vmap {ONE}"),
    _torch(
        "torch-layered",
        360,
        f"{LAYERED} --config.client_schedule=constant --variants=eager {ONE}",
    ),
    # In rounds of as many clients as four GPUs can share.
    _rehearsed("mlp", 600, f"{TPT48} --config.cohort_size=8"),
    _rehearsed("fedavg", 600, f"--config=tpt48:fedavg {SIMULATED} --config.cohort_size=8"),
    _rehearsed("gru", 900, f"{GRU} --config.cohort_size=8"),
    _rehearsed("lenet", 600, LENET),
    _rehearsed("pfedgat", 600, f"--config=fashion_mnist:pfedgat {SIMULATED}"),
    _rehearsed("cnn", 600, CNN),
    _rehearsed("resnet", 900, f"{CARS} --config.cohort_size=8"),
    _rehearsed("layered", 1800, f"{LAYERED} --config.data.clients=16 --config.cohort_size=16"),
    _peers("w1"),
    _peers("w2"),
    Measurement(
        "million",
        "million",
        measure_million,
        ("clients=1000,1000000", "clients_of_w3=100000"),
        900,
        "linux",
    ),
]
