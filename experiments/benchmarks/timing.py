"""Measurements of time, memory and matrix products; rounds compiled without evaluations."""

import functools
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from graphfl_jax.build import Experiment
from graphfl_jax.core import State
from graphfl_jax.rounds import draw_round, play_round
from graphfl_jax.runs.executables import options_of_architectures, options_of_one_call
from graphfl_jax.runs.session import (
    Inputs,
    RunsData,
    Session,
    batch_program,
    inputs_of,
    program_of,
)


def time_interleaved(functions: dict[str, Callable], repeats: int) -> dict[str, list[float]]:
    """Seconds of every call of every function, by name.

    The functions are called in turn, so that a slow period of the machine affects all of them.
    """
    times = {name: [] for name in functions}
    for repeat in range(repeats + 1):
        for name, function in functions.items():
            took = seconds(function)
            if repeat:  # the first call warms up
                times[name].append(took)
    return times


def seconds(function: Callable) -> float:
    """Wall-clock time of a call, including its computation on devices."""
    began = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - began


def spread(times: list[float]) -> tuple[float, float, float]:
    """The median, the smallest and the largest of some times."""
    return statistics.median(times), min(times), max(times)


def peak_memory() -> int:
    """Most bytes in use so far: on an accelerator, or else of this process."""
    if statistics_of_device := jax.devices()[0].memory_stats():
        return statistics_of_device["peak_bytes_in_use"]
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Cost(NamedTuple):
    """Time and memory that a block takes."""

    seconds: float
    memory: int | None  # bytes by which the resident size rose at its peak; None if unknown


@contextmanager
def cost() -> Iterator[Callable[[], Cost]]:
    """Measures a block. It yields a function that returns the cost after the block has ended.

    Memory is the rise over the resident size at the start; memory that was free for reuse does
    not count. It is known on Linux only, where a process can reset its peak.
    """
    began = time.perf_counter()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = size_of_process("VmRSS")
    except OSError:
        before = None
    measured = []
    yield lambda: measured[0]
    took = time.perf_counter() - began
    measured.append(
        Cost(took, None if before is None else max(0, size_of_process("VmHWM") - before))
    )


def size_of_process(field: str) -> int:
    """A size in bytes from the status of this process: VmRSS, or VmHWM, which is its peak.

    Unlike `peak_memory`, it is not that of the process that started this one.

    Raises:
      OSError: this is not Linux.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


class Rounds(NamedTuple):
    """Rounds of a configuration, compiled without evaluations."""

    state: State  # before the first round
    advance: Callable[[State, Any], Any]  # (state, rounds) -> (State, Log); donates the state
    client_steps: int  # in a round, of all runs


def compile_rounds(
    experiment: Experiment, config: ConfigDict, *, mesh: Mesh | None = None, runs: int = 0
) -> Rounds:
    """Compiles the rounds of an experiment.

    Args:
      mesh: devices over which the cohort is split, or with `runs` the runs, as the axis "runs".
      runs: number of runs in one program, with different seeds; 0 is a single run.
    """
    if runs:
        program = batch_program(program_of(experiment, config), mesh=mesh, federations=1)
        inputs = inputs_of_runs(experiment, config, mesh, runs)
    else:
        program = program_of(experiment, config, mesh)
        inputs = inputs_of(experiment, config.seed, mesh)
    # With the options that a run compiles with.
    start = program.start.lower(*inputs).compile(options_of_one_call())
    state = jax.block_until_ready(start(*inputs))
    options = options_of_architectures(len(state.clients))
    executable = program.advance.lower(state, *inputs, jnp.int32(1)).compile(options)
    return Rounds(
        state,
        lambda state, rounds: executable(state, *inputs, rounds),
        config.cohort_size * config.local_steps * max(1, runs),
    )


def inputs_of_runs(experiment, config, mesh, runs):
    """The inputs of a batch of runs that differ in their seeds."""
    single = inputs_of(experiment, config.seed)
    hparams = {name: jnp.broadcast_to(value, (runs,)) for name, value in single.hparams.items()}
    per_run = jax.random.split(single.key, runs), hparams, jnp.zeros(runs, jnp.int32)
    split, whole = (mesh and NamedSharding(mesh, spec) for spec in (P("runs"), P()))
    key, hparams, which = jax.device_put(per_run, split)
    return Inputs(key, hparams, RunsData(which, jax.device_put(single.data, whole)))


def player(rounds: Rounds | Session, count: int) -> Callable[[], State]:
    """A function that plays `count` rounds; each call continues where the last one ended."""
    state = jax.tree.map(jnp.copy, rounds.state)  # `advance` donates its argument

    def play():
        nonlocal state
        state, _ = rounds.advance(state, jnp.int32(count))
        return state

    return play


def matmul_chain():
    """A function that multiplies large matrices, and the number of operations of a call."""
    size, products = 1024 if jax.default_backend() == "cpu" else 8192, 8
    a = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5

    @jax.jit
    def chain(a):
        return jax.lax.fori_loop(0, products, lambda _, b: b @ a, a)

    return lambda: chain(a), 2 * size**3 * products


def round_flops(experiment, state) -> int:
    """Operations in the matrix products of one round, counted in its trace."""

    def one_round(state, data, key):
        algorithm = experiment.build(experiment.hparams, 0)
        poison, groups = experiment.poison(experiment.hparams), experiment.groups
        draw = functools.partial(draw_round, algorithm, data, groups, None)
        return play_round(
            algorithm, state, key, draw=draw, groups=groups, mesh=None, poison=poison
        )

    trace = jax.make_jaxpr(one_round)(state, experiment.federation.data, jax.random.key(0))
    return matmul_flops(trace.jaxpr)


def matmul_flops(jaxpr: jex_core.Jaxpr) -> int:
    """Operations in all matrix products and convolutions of a trace.

    Those in a loop count as often as the loop repeats them, and of the branches of a condition
    the one with most counts.
    """
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, result = equation.invars[0].aval, equation.outvars[0].aval
            total += 2 * math.prod(left.shape[axis] for axis in contracted) * result.size
        if equation.primitive.name == "conv_general_dilated":
            kernel, result = equation.invars[1].aval, equation.outvars[0].aval
            outputs = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
            zeros = math.prod(equation.params["lhs_dilation"])  # inserted into the input
            total += 2 * kernel.size // outputs * result.size // zeros
        inner = [
            part if isinstance(part, jex_core.Jaxpr) else part.jaxpr
            for part in equation.params.values()
            if isinstance(part, jex_core.Jaxpr | jex_core.ClosedJaxpr)
        ]
        times = equation.params.get("length", 1)  # of a scan
        total += times * sum(map(matmul_flops, inner))
        branches = equation.params.get("branches", ())
        total += max((matmul_flops(branch.jaxpr) for branch in branches), default=0)
    return total
