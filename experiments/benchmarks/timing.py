"""What is measured, and how: times of functions in turn, memory, and rounds compiled alone."""

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
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from graphfl_jax.build import Experiment
from graphfl_jax.core import State
from graphfl_jax.runs.single import Compiled, program_of


def interleaved(measured: dict[str, Callable], repeats: int) -> dict[str, list[float]]:
    """Times of all functions, one after the other, so that a slow spell slows all of them."""
    times = {name: [] for name in measured}
    for repeat in range(repeats + 1):
        for name, function in measured.items():
            took = seconds(function)
            if repeat:  # the first one warms up
                times[name].append(took)
    return times


def seconds(function: Callable) -> float:
    """Wall-clock time of a call, to the end of its computation."""
    began = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - began


def spread(times: list[float]) -> tuple[float, float, float]:
    return statistics.median(times), min(times), max(times)


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Cost(NamedTuple):
    """What it took to make something ready."""

    seconds: float
    memory: int | None  # bytes by which the resident size rose at its peak; None: not told


@contextmanager
def cost() -> Iterator[Callable[[], Cost]]:
    """Measures a block; the function that it gives tells the cost afterwards.

    Memory is the rise over what was resident before, and says nothing of what was there to be
    used again. Only Linux lets a process forget its old peak.
    """
    began = time.perf_counter()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
    except OSError:
        before = None
    told = []
    yield lambda: told[0]
    took = time.perf_counter() - began
    told.append(Cost(took, None if before is None else max(0, _status("VmHWM") - before)))


def _status(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status tells no {field}")


class Rounds(NamedTuple):
    """Rounds of a configuration, compiled without evaluations."""

    state: State  # before the first round
    advance: Callable[[State, Any], Any]  # (state, rounds) -> (State, Log); takes the state
    client_steps: int  # in a round, of all runs


def compile_rounds(
    experiment: Experiment, config: ConfigDict, *, mesh: Mesh | None = None, runs: int = 0
) -> Rounds:
    """Compiles rounds for a mesh of devices; `runs` of them at once, with seeds of their own,
    if that is not 0."""
    program = program_of(experiment, config, mesh)
    key = jax.random.key(config.seed)
    hparams = {name: jnp.float32(value) for name, value in experiment.hparams.items()}
    start, advance = program.start, program.advance
    if runs:
        key = jax.random.split(key, runs)
        start = jax.jit(jax.vmap(start, (0, None, None)))
        advance = jax.jit(jax.vmap(advance, (0, 0, None, None, None)), donate_argnums=0)
    everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    inputs = jax.device_put((key, hparams, experiment.federation.data), everywhere)
    state = jax.block_until_ready(start(*inputs))
    compiled = advance.lower(state, *inputs, jnp.int32(1)).compile()
    return Rounds(
        state,
        lambda state, rounds: compiled(state, *inputs, rounds),
        config.cohort_size * config.local_steps * max(1, runs),
    )


def player(rounds: Rounds | Compiled, count: int) -> Callable[[], State]:
    """A function that plays `count` rounds, each call from where the last one ended."""
    state = jax.tree.map(jnp.copy, rounds.state)

    def play():
        nonlocal state
        state, _ = rounds.advance(state, jnp.int32(count))
        return state

    return play
