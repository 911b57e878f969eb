"""The tables of ``bench --suite``, from the numbers of its measurements."""

from collections.abc import Callable
from typing import Any, NamedTuple

from experiments.benchmarks import rehearsal

Cells = list[list[str]]  # the heads are the first row


class Table(NamedTuple):
    """A table of docs/results/speed.md."""

    title: str
    block: str  # of the page
    rows: Callable[[dict[str, Any]], Cells]  # numbers by name of the measurement -> cells
    note: str = ""


def rounds(results):
    """Times of rounds and evaluations, one row for each client model."""
    cells = [
        ["client model", "ms per round", "fastest", "slowest", "client-steps/s"]
        + ["ms per evaluation", "compile s", "peak MiB", "share of product rate"]
    ]
    for numbers in results.values():
        median, *_ = numbers["s_per_round"]
        rate = numbers["products_flop"] / median / numbers["peak_flop_per_s"]
        cells.append(
            [
                f"{model_of(numbers)}, {numbers['variant']} on {numbers['data']}",
                *map(milliseconds, numbers["s_per_round"]),
                f"{numbers['client_steps'] / median:,.0f}",
                milliseconds(numbers["s_per_evaluation"][0]),
                f"{numbers['compile_s']:.1f}",
                f"{numbers['peak_memory_bytes'] / 2**20:,.0f}",
                f"{rate:.1%}",
            ]
        )
    return cells


def comparisons(results):
    """Times of several configurations, compared with the first."""
    cells = [["method", "ms per round", "fastest", "slowest", "ratio", "ratio of products"]]
    for numbers in results.values():
        for row in numbers["rows"]:
            ratios = (f"{row[name]:.2f}" for name in ("time_ratio", "products_ratio"))
            cells.append([row["name"], *map(milliseconds, row["s_per_round"]), *ratios])
    return cells


def clients(results):
    """Times over numbers of clients."""
    cells = [["clients", "ms per round", "fastest", "slowest", "client-steps/s"]]
    for row in _sizes(results):
        rate = f"{row['client_steps'] / row['s_per_round'][0]:,.0f}"
        cells.append([f"{row['size']:,}", *map(milliseconds, row["s_per_round"]), rate])
    return cells


def runs(results):
    """Times over numbers of runs, per run and relative to a single run."""
    cells = [["runs at once", "ms per round of all", "fastest", "slowest", "ms per run"]]
    cells[0].append("relative to one run")
    for row in (sizes := _sizes(results)):
        per_run, single = (each["s_per_round"][0] / each["size"] for each in (row, sizes[0]))
        times = (*row["s_per_round"], per_run)
        cells.append([f"{row['size']}", *map(milliseconds, times), f"{per_run / single:.2f}"])
    return cells


def devices(results):
    """Times over numbers of devices, and how many times as fast as one."""
    cells = [["devices", "ms per round", "fastest", "slowest", "speed-up"]]
    for row in (sizes := _sizes(results)):
        gain = sizes[0]["s_per_round"][0] / row["s_per_round"][0]
        cells.append([f"{row['size']}", *map(milliseconds, row["s_per_round"]), f"{gain:.2f}"])
    return cells


def lowerings(results):
    """Times of the ways to compute convolutions."""
    cells = [["client model", "ms per round", "fastest", "slowest", "ratio"]]
    for numbers in results.values():
        for row in numbers["rows"]:
            name = f"{model_of(numbers)}, {row['name'].partition('=')[2]}"
            times = map(milliseconds, row["s_per_round"])
            cells.append([name, *times, f"{row['time_ratio']:.2f}"])
    return cells


def start(results):
    """Times of the first and second start, and whether a resumed run has the same bytes."""
    cells = [["measured", "result"]]
    for name, seconds in results.get("start-up", {}).items():
        cells.append([f"{name} start, to the end of 20 rounds, s", f"{seconds:.1f}"])
    if "resume" in results:  # otherwise it failed
        cells.append(["stopped at round 20 of 40 and resumed", "same bytes of metrics.jsonl"])
    return cells


def agreement(results):
    """Scores on an accelerator, compared with those on a CPU."""
    cells = [["run", "float32", "tensorfloat32", "a second run"]]
    for name, numbers in results.items():
        differences = (f"{numbers[name]:.0e}" for name in ("float32", "tensorfloat32"))
        again = "same bytes" if numbers["same_bytes"] else "other bytes"
        cells.append([name.partition("-")[2], *differences, again])
    return cells


def torch(results):
    """Rounds per second in JAX and PyTorch."""
    cells = [["client model", "library", "rounds/s", "fastest", "slowest", "ratio", "setup s"]]
    for numbers in results.values():
        for row in numbers["rows"]:
            rates = (f"{1 / took:.3g}" for took in row["s_per_round"])
            last = f"{row['time_ratio']:.1f}", f"{row['setup_s']:.1f}"
            cells.append([model_of(numbers), row["name"], *rates, *last])
        cells += [
            [model_of(numbers), name, "not measured", *[""] * 4]
            for name in numbers["not_measured"]
        ]
    return cells


def rehearsals(results):
    """Launches of the rounds that were compiled for a GPU."""
    cells = [["client model", *rehearsal.HEADS]]
    for numbers in results.values():
        name = f"{model_of(numbers)}, {numbers['variant']} on {numbers['data']}"
        cells += [[name, *rehearsal.cells(row)] for row in numbers["rows"]]
    return cells


def peers(results):
    """Rounds, starts and peak memory of several libraries, compared with graphfl_jax."""
    cells = [["work, cores, library", "ms per round", "fastest", "slowest", "ratio"]]
    cells[0] += ["start s", "ratio", "peak MiB", "ratio"]
    for work, numbers in results.items():
        for row in numbers["rows"]:
            first, median = _first_of(numbers, row["cores"]), row["s_per_round"][0]
            cells.append(
                [
                    f"{work}, {row['cores']}, {row['name']} {row['version']}",
                    *map(milliseconds, row["s_per_round"]),
                    f"{first['s_per_round'][0] / median:.2f}",
                    f"{row['start_s']:.1f}",
                    f"{first['start_s'] / row['start_s']:.2f}",
                    f"{row['peak_mib']:,.0f}",
                    f"{first['peak_mib'] / row['peak_mib']:.2f}",
                ]
            )
        for name in numbers["not_measured"]:
            cells.append([f"{work}, {name}", "not measured"] + [""] * 7)
    return cells


def million(results):
    """Numbers of clients, compared with few of them, and FedJAX compared with graphfl_jax."""
    cells = [["clients, method", "ready s", "ms per round", "fastest", "slowest", "ratio"]]
    cells[0] += ["evaluation s", "checkpoint s", "peak MiB"]
    for numbers in results.values():
        rows, peers = numbers["rows"], numbers["peers"]
        for row in rows:
            first = next(each for each in rows if each["method"] == row["method"])
            both = (f"{row[name]:.2f}" for name in ("evaluation_s", "checkpoint_s"))
            name = f"{row['clients']:,}, {row['method']}"
            cells.append([name, *_compared(row, first), *both, f"{row['peak_mib']:,.0f}"])
        for row in peers:
            name = f"{row['clients']:,}, fedavg of {row['name']} {row['version']}"
            cells.append([name, *_compared(row, peers[0]), "", "", f"{row['peak_mib']:,.0f}"])
        if not peers:
            cells.append(["fedavg of fedjax", "not measured"] + [""] * 7)
    return cells


def _compared(row, first):
    """When a federation is ready, the time of its round, and this relative to the first."""
    ratio = row["s_per_round"][0] / first["s_per_round"][0]
    times = map(milliseconds, row["s_per_round"])
    return [f"{row['ready_s']:.1f}", *times, f"{ratio:.2f}"]


def _first_of(numbers, cores):
    """The row of graphfl_jax on so many cores."""
    return next(row for row in numbers["rows"] if row["cores"] == cores)


def model_of(numbers):
    """The client model of a measurement."""
    return numbers["config"]["model"]["name"]


def milliseconds(seconds):
    return f"{1e3 * seconds:,.2f}"


def _sizes(results):
    return [row for numbers in results.values() for row in numbers["rows"]]


MEDIANS = "Medians, with the fastest and the slowest repeat."
TABLES = {
    "rounds": Table(
        "Rounds and evaluations of each client model",
        "bench-tpt48",
        rounds,
        f"{MEDIANS} Product rate: of large float32 matrices. MiB: of the process on a CPU, "
        f"of the device on an accelerator.",
    ),
    "methods": Table("Ten methods on TPT-48", "bench-tpt48-methods", comparisons, MEDIANS),
    "architectures": Table(
        "FLHA-GHN with four architectures, and FedAvg's round with each of them alone",
        "bench-architectures",
        comparisons,
        f"{MEDIANS} Ratio: relative to the first row.",
    ),
    "agreement": Table(
        "Scores on an accelerator and on a CPU, after three rounds",
        "bench-agreement",
        agreement,
        "The largest relative difference of a loss, or of the scores of all clients. The "
        "second run compiles its programs again.",
    ),
    "torch": Table(
        "Compared with PyTorch",
        "bench-torch",
        torch,
        f"{MEDIANS} Ratio: time per round relative to graphfl_jax.",
    ),
    "peers": Table(
        "Compared with other libraries",
        "bench-peers",
        peers,
        "Medians of three processes of each library, which are started in turn, with the "
        "fastest and the slowest process. Start: from the start of the process to the end of "
        "the first round. Ratio: graphfl_jax relative to the row.",
    ),
    "million": Table(
        "A million clients",
        "bench-million",
        million,
        "Medians of five repeats of 60 rounds, with the fastest and the slowest, of both "
        "numbers of clients in turn; of each library, medians of three processes, started in "
        "turn. "
        "Ready: from the start of the process until the federation is loaded and built. "
        "Evaluation and checkpoint: the second one of the process; 1,000 clients are scored. "
        "Ratio: relative to 1,000 clients, and fedjax relative to graphfl_jax.",
    ),
    "clients": Table(
        "FedAvg over generated clients that all train",
        "bench-tpt48-scaling-clients",
        clients,
        MEDIANS,
    ),
    "relations": Table(
        "Panacea on generated federations with five relations per client",
        "bench-relations",
        clients,
        f"{MEDIANS} Five clients train in a round.",
    ),
    "runs": Table(
        "Panacea on TPT-48, several runs at once",
        "bench-tpt48-scaling-runs",
        runs,
        f"{MEDIANS} On CPUs, each core is a device.",
    ),
    "devices": Table(
        "FedAvg on a generated federation, split over devices",
        "bench-devices",
        devices,
        f"{MEDIANS} On CPUs, each core is a device.",
    ),
    "lowerings": Table(
        "Ways to compute convolutions", "bench-convolutions", lowerings, MEDIANS
    ),
    "rehearsal": Table(
        "Rounds compiled for an NVIDIA H100", "bench-rehearsal", rehearsals, rehearsal.NOTE
    ),
    "start": Table("Starts and resumed runs, Panacea on TPT-48", "bench-start", start),
}
