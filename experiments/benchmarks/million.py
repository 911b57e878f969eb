"""Times a federation of `configs.million` over its number of clients, for ``bench --suite``.

    python -m experiments.benchmarks.million fedavg 1000000

is a process that answers each line of its input by a line of JSON:

    start   when the experiment was built, by the clock that all processes share; it has then
            also been compiled
    rounds  the seconds of a round
    end     the seconds of an evaluation and of a checkpoint, and the peak memory in MiB

The first evaluation compiles and the first checkpoint imports Orbax, so that both times are
those of the second one. There is one device, as with --cores=1, so that a federation on the
device is in the memory once.
"""

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from experiments.benchmarks import timing
from experiments.benchmarks.processes import answering
from graphfl_jax import configs
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.program import ROUNDS_PER_EXECUTION
from graphfl_jax.runs import checkpoint
from graphfl_jax.runs.single import compile_session

# Where the clients of each method are. The embeddings of Panacea's are on the server.
STORAGE = {"fedavg": "host", "ditto": "host", "panacea": "device"}
EXECUTIONS = 3  # timed in a repeat, after the first, during which their clients are gathered
REPEATS = 5


def compare_sizes(method: str, sizes: list[int], seconds: float) -> list[dict[str, Any]]:
    """The numbers of a method with each number of clients, each in a new process.

    Their repeats are in turn, so that a slow period of the machine affects all of them.

    Raises:
      Failure: a process failed, or took longer than so many seconds.
    """
    with contextlib.ExitStack() as stack:
        asked, rows = [], []
        for size in sizes:
            words = ["-m", "experiments.benchmarks.million", method, str(size)]
            began = time.monotonic()
            asked.append(stack.enter_context(answering(words, seconds)))
            ready = asked[-1]("start")["ready_at"] - began
            rows.append({"method": method, "clients": size, "ready_s": ready})
        times = [[ask("rounds")["s_per_round"] for ask in asked] for _ in range(REPEATS)]
        for row, ask, of_row in zip(rows, asked, zip(*times, strict=True), strict=True):
            row |= {"s_per_round": timing.spread(of_row), **ask("end")}
    return rows


def configuration(method: str, clients: int):
    """The configuration, whose rounds do not end before the measurement."""
    changes = {"data.clients": clients, "data.storage": STORAGE[method], "rounds": 1_000_000}
    return configs.change(configs.million.get_config(method), changes)


def answer(method: str, clients: int) -> None:
    """Answers the lines of the standard input."""
    config = configuration(method, clients)
    experiment = build_experiment(config, load_federation(config))
    ready, session = {"ready_at": time.monotonic()}, compile_session(experiment, config)
    play = timing.player(session, ROUNDS_PER_EXECUTION)
    play()  # compiles
    for line in map(str.strip, sys.stdin):
        if line == "start":
            reply = ready
        elif line == "rounds":
            play()
            took = timing.seconds(lambda: [play() for _ in range(EXECUTIONS)][-1])
            reply = {"s_per_round": took / (EXECUTIONS * ROUNDS_PER_EXECUTION)}
        else:
            reply = last_numbers(session, play())
        print(json.dumps(reply), flush=True)


def last_numbers(session, state) -> dict[str, float]:
    """The answer to "end"."""

    def evaluate():
        return jax.device_get(session.evaluate_chosen(state).scores)

    def save():
        with tempfile.TemporaryDirectory() as folder:
            whole = checkpoint.Checkpoint(state, {}, {}, session.saved())
            checkpoint.save(Path(folder, "checkpoints"), whole)

    _, evaluation = timing.seconds(evaluate), timing.seconds(evaluate)
    _, saving = timing.seconds(save), timing.seconds(save)
    return {
        "evaluation_s": evaluation,
        "checkpoint_s": saving,
        "peak_mib": timing.size_of_process("VmHWM") / 2**20,
    }


if __name__ == "__main__":
    answer(sys.argv[1], int(sys.argv[2]))
