"""``bench --rehearse=...``: compiles rounds for a GPU that this machine lacks, and counts.

The plugin of JAX for CUDA compiles a program from the description of a card alone, without a
driver. The text of the compiled program says what a round would launch: kernels, calls of a
library, copies and collectives. A loop counts as often as it repeats, of the branches of a
condition the largest numbers count, and what a kernel fuses counts as that kernel.

It does not say how long a round takes. Without a card, XLA cannot try which kernel is the
fastest (autotuning), so it chooses by rules, and the card may get other kernels. A call of
a library and a sort count once, and may launch several kernels. On a card, XLA also records
launches that follow each other as a CUDA graph, which starts at once; they count one by one.
"""

import contextlib
import functools
import importlib.util
import operator
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from experiments.benchmarks.report import Report
from experiments.benchmarks.timing import inputs_of_runs
from graphfl_jax.build import Experiment, build_experiment
from graphfl_jax.configs.base import variant_of
from graphfl_jax.data.federation import Federation
from graphfl_jax.devices import client_mesh
from graphfl_jax.runs.batch import bytes_held
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.session import batch_program, inputs_of, program_of

HEADS = ["runs", "GPUs", "launches", "in loops", "collectives", "callbacks", "MiB", "compile s"]
NOTE = "Of a round, on each GPU. Nothing was executed, so times of rounds are unknown."
RUNS, GPUS = 64, 4  # of the programs of several runs, and of several GPUs


class Card(NamedTuple):
    """Public figures of a GPU, which decide how XLA compiles for it."""

    name: str
    capability: str  # compute capability
    processors: int  # streaming multiprocessors
    lanes: int  # units for float32 of each
    shared: int  # KiB of shared memory of each, of which a block can have all but one
    cache: int  # MiB of the second level
    memory: int  # GiB
    bandwidth: int  # GB/s of this memory
    clock: float  # GHz, the highest


CARDS = {
    "h100": Card("NVIDIA H100 80GB HBM3", "9.0", 132, 128, 228, 50, 80, 3352, 1.98),
    "a100": Card("NVIDIA A100-SXM4-80GB", "8.0", 108, 64, 164, 40, 80, 2039, 1.41),
}
# The fields of XLA's GpuTargetConfigProto. The second part is the same for both cards.
TARGET = """
platform_name: "CUDA"
device_description_str: "{name}"
dnn_version_info {{ major: 9 minor: 8 }}
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  core_count: {processors}
  fpus_per_core: {lanes}
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {most_shared}
  l2_cache_size: {cache}
  device_memory_size: {memory}
  memory_bandwidth: {bandwidth}
  clock_rate_ghz: {clock}

  shared_memory_per_block: 49152
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
"""

# ---------------------------------------------------------------------------------- counting

# Instructions that only name or order values.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
FREE |= {"after-all", "add-dependency", "opt-barrier", "domain"}
COLLECTIVES = {"all-gather", "all-reduce", "all-to-all", "ragged-all-to-all", "reduce-scatter"}
COLLECTIVES |= {"collective-broadcast", "collective-permute"}
HOST = {"infeed", "outfeed", "send", "recv"}
OPCODE = re.compile(r"\s+(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\(")
HEAD = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\{$")
CALLED = re.compile(r"(?:calls|to_apply|true_computation|false_computation)=%?([\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
REPEATS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


class Loop(NamedTuple):
    """A loop of a round."""

    repeats: int
    launches: int  # of one repeat


class Round(NamedTuple):
    """What a round of a compiled program does on each GPU."""

    launches: int
    collectives: int
    callbacks: int  # of the host
    loops: list[Loop]  # not those inside others; they have a part of the launches


def count_round(text: str) -> Round:
    """Counts in the text of a compiled `Program.advance`.

    Raises:
      ValueError: it has no single loop over rounds, or another loop repeats an unknown number
        of times.
    """
    computations, entry = _computations(text)
    rounds = [
        line
        for opcode, line in computations[entry]
        if opcode == "while" and not REPEATS.search(line)
    ]
    if len(rounds) != 1:
        raise ValueError(
            f"the compiled program has {len(rounds)} loops over rounds instead of 1; count "
            f"with another release of JAX"
        )
    body = _name(rounds[0], "body")
    total = _count(body, computations) + _count(_name(rounds[0], "condition"), computations)
    loops = [
        Loop(_repeats(line), _count(_name(line, "body"), computations)["launches"])
        for opcode, line in computations[body]
        if opcode == "while"
    ]
    return Round(total["launches"], total["collectives"], total["callbacks"], loops)


def _computations(text):
    """The opcodes and lines of all instructions, by computation; and the name of the first."""
    computations, entry, name = {}, "", ""
    for line in text.splitlines():
        if head := HEAD.match(line):
            name = head[2]
            computations[name] = []
            entry = name if head[1] else entry
        elif name and (instruction := OPCODE.match(line)):
            computations[name].append((instruction[1], line))
    return computations, entry


def _count(name, computations):
    """The numbers of a computation, with what it calls."""
    parts = (_count_instruction(*part, computations) for part in computations[name])
    return functools.reduce(operator.add, parts, Counter())


def _count_instruction(opcode, line, computations):
    if opcode == "while":
        of_body, repeats = _count(_name(line, "body"), computations), _repeats(line)
        return Counter({kind: repeats * number for kind, number in of_body.items()})
    if opcode == "conditional":
        branches = (_count(called, computations) for called in _called(line))
        return functools.reduce(operator.or_, branches)
    if opcode in ("call", "async-start"):
        parts = (_count(called, computations) for called in _called(line))
        return functools.reduce(operator.add, parts, Counter())
    if opcode in FREE or opcode.endswith(("-done", "-update")):
        return Counter()
    kind = opcode.removesuffix("-start")
    is_callback = kind in HOST or (kind == "custom-call" and "callback" in _target(line))
    return Counter(launches=1, collectives=kind in COLLECTIVES, callbacks=is_callback)


def _called(line):
    names = CALLED.findall(line)
    for listed in BRANCHES.findall(line):
        names += [name.strip().lstrip("%") for name in listed.split(",")]
    return names


def _name(line, attribute):
    return re.search(rf"\b{attribute}=%?([\w.-]+)", line)[1]


def _target(line):
    return re.search(r'custom_call_target="([^"]*)"', line)[1]


def _repeats(line):
    repeats = REPEATS.search(line)
    if repeats is None:
        name = line.split(" = ")[0].strip()
        raise ValueError(
            f"the loop {name} of a round repeats an unknown number of times; choose another "
            f"configuration"
        )
    return int(repeats[1])


# --------------------------------------------------------------------------------- compiling


def target_devices(card: str, count: int) -> list[jax.Device]:
    """So many GPUs of one of `CARDS` in one host, for which programs can be compiled.

    Raises:
      ValueError: the plugin of JAX for CUDA is not installed.
    """
    # Before any device is used: otherwise the plugin asks for all libraries of CUDA.
    jax.config.update("jax_platforms", "cpu")
    try:
        topology = topologies.get_topology_desc(
            card, "cuda", target_config=target_config(CARDS[card]), topology=f"1x1x{count}"
        )
    except NotImplementedError:  # of an unknown platform
        raise ValueError(f"rehearse={card} needs {remedy()}") from None
    return list(topology.devices)


def is_installed() -> bool:
    """Whether there is a plugin of JAX for CUDA."""
    return any(importlib.util.find_spec(f"jax_cuda{major}_plugin") for major in (12, 13))


def remedy() -> str:
    """What is missing without the plugin, and how it is installed."""
    parts = " ".join(f"jax-cuda12-{part}=={version('jax')}" for part in ("plugin", "pjrt"))
    return f"JAX's plugin for CUDA; run pip install --no-deps {parts}"


def target_config(card: Card) -> str:
    """The description of a card, as XLA reads it."""
    major, minor = card.capability.split(".")
    sizes = {
        "shared": card.shared * 2**10,
        "most_shared": (card.shared - 1) * 2**10,
        "cache": card.cache * 2**20,
        "memory": card.memory * 2**30,
        "bandwidth": card.bandwidth * 10**9,
    }
    return TARGET.format(**card._asdict() | sizes, major=major, minor=minor)


@contextlib.contextmanager
def choices_of_gpus() -> Iterator[None]:
    """A block in which what is built and traced chooses as on a GPU, such as convolutions."""
    before = jax.default_backend
    jax.default_backend = lambda: "gpu"
    try:
        yield
    finally:
        jax.default_backend = before


def compile_round(
    experiment: Experiment, config: ConfigDict, devices: list[jax.Device], runs: int = 1
):
    """Compiles `Program.advance` for devices that need not exist.

    Args:
      experiment: built with `choices_of_gpus`.
      devices: those over which the cohort is split; a batch of runs has a single one.
      runs: number of vmapped runs with different seeds.

    Returns:
      The compiled program, and the number of devices that it uses.
    """
    cohorts = [group.cohort_size for group in experiment.groups]
    mesh = client_mesh(*cohorts, devices=devices)
    program = program_of(experiment, config, mesh)
    if runs > 1:
        program = batch_program(program, mesh=None, federations=1)
        inputs = inputs_of_runs(experiment, config, None, runs)
    else:
        inputs = inputs_of(experiment, config.seed)
    whole = NamedSharding(mesh, P()) if mesh else SingleDeviceSharding(devices[0])

    def on_devices(values):
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), values
        )

    with choices_of_gpus():
        inputs = on_devices(inputs)
        state = on_devices(jax.eval_shape(program.start, *inputs))
        lowered = program.advance.lower(state, *inputs, on_devices(jnp.int32(1)))
        compiled = lowered.compile({"xla_gpu_autotune_level": 0})
    return compiled, mesh.size if mesh else 1


def rehearse(
    config: ConfigDict, card: str, *, load: Callable[[ConfigDict], Federation]
) -> tuple[Report, dict[str, Any]]:
    """Compiles a round of one run, of `RUNS` runs, and of one run on `GPUS` GPUs.

    Raises:
      ValueError: as `target_devices`.
    """
    devices = target_devices(card, GPUS)
    federation = load(config)
    with choices_of_gpus():
        experiment = build_experiment(config, federation)
    rows = []
    for runs, count in ((1, 1), (RUNS, 1), (1, GPUS)):
        began = time.perf_counter()
        compiled, used = compile_round(experiment, config, devices[:count], runs)
        took = time.perf_counter() - began
        if used == 1 < count:  # each architecture has one client in a round
            continue
        rows.append(
            {
                "runs": runs,
                "gpus": used,
                **count_round(compiled.as_text())._asdict(),
                "memory_bytes": bytes_held(compiled),
                "compile_s": took,
            }
        )
    results = {
        "variant": variant_of(config),
        "data": federation.name,
        "config": config.to_dict(),
        "card": CARDS[card].name,
        **environment(),
        "rows": rows,
    }
    return _report(results), results


def cells(row: dict[str, Any]) -> list[str]:
    """The cells of a row of `rehearse`, below `HEADS`."""
    loops = " + ".join(f"{repeats} x {launches}" for repeats, launches in row["loops"])
    return [
        f"{row['runs']}",
        f"{row['gpus']}",
        f"{row['launches']:,}",
        loops,
        f"{row['collectives']}",
        f"{row['callbacks']}",
        f"{row['memory_bytes'] / 2**20:,.0f}",
        f"{row['compile_s']:.0f}",
    ]


def _report(results):
    lines = [NOTE]
    if all(row["gpus"] == 1 for row in results["rows"]):
        lines.append("A round of this cohort is not split over several GPUs.")
    title = f"{results['variant']} on {results['data']}, compiled for {results['card']}"
    return Report(title, [HEADS, *map(cells, results["rows"])], lines)
