"""The memory of a process that calls `graphfl_jax.run` many times."""

from pathlib import Path

import psutil

import graphfl_jax
from experiments.benchmarks.interrupted_runs import SETTINGS
from graphfl_jax.configs import change, fl60

GROWTH = 1.1  # largest factor of the memory from a fifth of the calls to all


def memory_of_calls(calls: int, work: Path) -> list[dict]:
    """The memory and memory maps of this process after a fifth of the calls, and after all.

    Args:
      calls: of `graphfl_jax.run`, with three seeds in turn.
      work: folder in which the compiled programs are kept.
    """
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


def growing_numbers(memory: list[dict]) -> list[str]:
    """Which of the numbers of `memory_of_calls` grew by more than a tenth."""
    if not memory:
        return []
    return [what for what in ("bytes", "maps") if memory[-1][what] > GROWTH * memory[0][what]]
