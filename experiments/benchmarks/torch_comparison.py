"""``bench --against=torch``: rounds in PyTorch, verified against JAX and then timed.

First, each variant of `torch_player` starts from JAX's initial weights and plays `ROUNDS`
rounds with the cohorts, batches and dropped embeddings that the compiled program draws. After
each round, the loss and the weights of the server must agree with JAX's; otherwise nothing is
timed. In the timed rounds, each library draws with its own generator.
"""

import contextlib
import importlib.util
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from experiments.benchmarks.recorded_rounds import Round, play_in_jax
from experiments.benchmarks.report import Report, show, write
from experiments.benchmarks.timing import compile_rounds, cost, interleaved, player, spread
from experiments.common.flag_values import check_names
from experiments.common.plots import draw_rates
from graphfl_jax.build import build_experiment, variant_of
from graphfl_jax.configs.values import values_of
from graphfl_jax.data.federation import Federation
from graphfl_jax.devices import client_mesh
from graphfl_jax.runs.results import environment
from graphfl_jax.runs.session import cohort_divisor

JAX = "graphfl_jax"
VARIANTS = ("eager", "compile", "vmap", "vmap+compile")
# Values that `torch_player` supports, by field; the others are checked for Panacea only.
SUPPORTED = {
    "algorithm.name": ("panacea", "fedavg"),
    "tuning.part": ("",),
    "attack.name": ("",),
    "defence.name": ("",),
    "model.name": ("mlp", "gru", "lenet", "cnn", "resnet18"),
    "client_optimizer": ("sgd", "adam"),
    "client_schedule": ("constant",),
}
SUPPORTED_PANACEA = {
    "algorithm.layer": ("sage",),
    "algorithm.output": ("direct",),
    "server_optimizer": ("polyak_sgd", "sgd", "adam"),
    "server_schedule": ("constant",),
}
ROUNDS = 3
# Largest relative difference of a loss. The libraries add in different orders, which costs
# about ten float32 roundings of 6e-8 per step, and at most 1e-4 over 3 rounds of 60 steps in
# sequence. Measured: 2e-7 with SGD, 4e-6 with Adam.
LOSS_TOLERANCE = 1e-4
# Largest difference of the server's weights, relative to their change since the start, which is
# small compared with the weights. Measured: 1e-6 with SGD. Adam divides a gradient near 0 by
# its own size, which amplifies its rounding error: 7e-5, and 1e-3 on tiny federations. Errors
# cause more: 3e-2 without Panacea's penalty at lambda_d = 0.01, and at least 0.2 with a wrong
# embedding or weight.
SERVER_TOLERANCE = 5e-3


def against_torch(
    config: ConfigDict,
    variants: list[str],
    *,
    load: Callable[[ConfigDict], Federation],
    threads: int | None,
    repeats: int,
    rounds_each: int,
    out: Path,
) -> int:
    """Prints, draws and writes the time of a round in JAX and in PyTorch.

    Args:
      config: of the rounds.
      variants: some of `VARIANTS`.
      load: makes the federation of a configuration.
      threads: of PyTorch; None keeps its own choice.
      repeats: timed repeats of each library and variant.
      rounds_each: rounds in a repeat.
      out: output folder.

    Raises:
      ValueError: a field or a flag does not fit, PyTorch is not installed, or the rounds of a
        variant differ from JAX's.
    """
    check(config, variants)
    torch_player = import_torch_player(threads)
    experiment = build_experiment(config, load(config))
    with cost() as spent:
        mesh = client_mesh(cohort_divisor(experiment))
        rounds = compile_rounds(experiment, config, mesh=mesh)
        jax.block_until_ready(player(rounds, 1)())
    costs, players = {JAX: spent()}, {JAX: player(rounds, rounds_each)}
    start, played = play_in_jax(experiment, config, rounds, ROUNDS)
    differences, failed = {}, {}
    with _empty_compile_cache():
        for variant in variants:
            try:
                with cost() as spent:
                    torch_rounds = torch_player.Player(experiment, config, variant)
                    torch_rounds.start(start)
                    torch_rounds.play(torch_player.as_tensors(played[0].draws))
            except torch_player.CompileError as error:
                failed[variant] = str(error).splitlines()[0]
                continue
            costs[variant] = spent()
            differences[variant] = verify(torch_player, torch_rounds, start, played, variant)
            players[variant] = _play_several(torch_rounds, rounds_each)
        times = interleaved(players, repeats)

    rows = [
        {
            "name": name,
            "s_per_round": [took / rounds_each for took in spread(times[name])],
            "time_ratio": statistics.median(times[name]) / statistics.median(times[JAX]),
            "setup_s": costs[name].seconds,
            "memory_bytes": costs[name].memory,
            "differences": differences.get(name),
        }
        for name in players
    ]
    results = {
        "config": config.to_dict(),
        "repeats": repeats,
        "rounds_each": rounds_each,
        "client_steps": rounds.client_steps,
        "torch": torch_player.environment(),
        **environment(),
        "rows": rows,
        "not_measured": failed,
    }
    title = f"{variant_of(config)}, {config.model.name} on {experiment.federation.name}"
    report = _report(results, title)
    console = Console()
    show(report, console)
    matplotlib.use("Agg")  # needs no screen
    figure = draw_rates({row["name"]: row["s_per_round"] for row in rows}, title)
    for path in write(report, out, "bench", results, figure):
        console.print(path, highlight=False, soft_wrap=True)
    return 0


def check(config: ConfigDict, variants: list[str]) -> None:
    """Checks that `torch_player` supports a configuration and the variants.

    Raises:
      ValueError: it does not, or JAX does not use the CPU.
    """
    check_names("variants", variants, VARIANTS)
    values, _ = values_of(config)
    is_panacea = config.algorithm.name == "panacea"
    for field, choices in (SUPPORTED | (SUPPORTED_PANACEA if is_panacea else {})).items():
        if values[field] not in choices:
            raise ValueError(
                f"{field}={values[field]!r} is not supported by --against=torch; set "
                f"--config.{field} to one of {', '.join(map(repr, choices))}, or use "
                f"configs/tpt48.py or metr_la.py"
            )
    if jax.default_backend() != "cpu":
        raise ValueError(
            f"against=torch compares on CPUs, but JAX uses a {jax.default_backend()}; set "
            f"JAX_PLATFORMS=cpu"
        )


def import_torch_player(threads: int | None) -> Any:
    """The module `torch_player`, after the number of PyTorch's threads is set.

    Args:
      threads: that number; None keeps PyTorch's own.

    Raises:
      ValueError: PyTorch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise ValueError(
            "against=torch needs PyTorch, which is not installed; run .venv/bin/pip install -e "
            "'.[torch]' in a checkout, or pip install 'graphfl_jax[torch]'"
        )
    from experiments.benchmarks import torch_player

    if threads is not None:
        torch_player.torch.set_num_threads(threads)
    return torch_player


def verify(
    torch_player: Any, torch_rounds: Any, start: dict, played: list[Round], variant: str
) -> dict[str, float]:
    """Plays JAX's rounds in PyTorch and compares the results.

    Args:
      torch_player: the module.
      torch_rounds: its `Player`.
      start: weights of the server before the first round.
      played: rounds that JAX has played.
      variant: of the player, for the error.

    Returns:
      The largest difference of a ``loss``, relative to it, and of the ``server``'s weights,
      relative to their change since the start.

    Raises:
      ValueError: a difference is larger than rounding explains.
    """
    torch_rounds.start(start)
    largest = {"loss": 0.0, "server": 0.0}
    for number, expected in enumerate(played, start=1):
        loss = float(torch_rounds.play(torch_player.as_tensors(expected.draws)))
        change = _distance(start, expected.weights)
        found = {
            "loss": abs(loss - expected.loss) / abs(expected.loss),
            "server": _distance(torch_rounds.weights(), expected.weights) / change,
        }
        # With NaN, every comparison is false, so that it is refused too.
        if not (found["loss"] <= LOSS_TOLERANCE and found["server"] <= SERVER_TOLERANCE):
            raise ValueError(
                f"variants={variant} differs from JAX in round {number}, so nothing is timed: "
                f"its loss is {loss:.7g} and not {expected.loss:.7g}, and its server differs "
                f"by {found['server']:.1e} of the change since the start, where rounding "
                f"explains {LOSS_TOLERANCE:.0e} of the loss and {SERVER_TOLERANCE:.0e} of the "
                f"change; lower the learning rates, or correct experiments/benchmarks"
            )
        largest = {name: max(largest[name], found[name]) for name in largest}
    return largest


def _distance(a, b):
    """Euclidean distance between the weights of two servers."""
    squares = (np.sum(np.square(a[name].astype(np.float64) - b[name])) for name in b)
    return float(np.sqrt(sum(squares)))


def _play_several(torch_rounds, count):
    """A function that plays `count` rounds with draws of PyTorch."""

    def play():
        for _ in range(count):
            torch_rounds.play(torch_rounds.draw())

    return play


@contextlib.contextmanager
def _empty_compile_cache() -> Iterator[None]:
    """Gives torch.compile an empty cache, so that it compiles, as XLA does."""
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
            if before is not None:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


def _report(results, title):
    pytorch = results["torch"]
    title = (
        f"{title}, {results['device']}, PyTorch {pytorch['version']}, threads of PyTorch: "
        f"{pytorch['threads']}"
    )
    heads = ["", "rounds/s", "fastest", "slowest", "client steps/s", "ratio", "setup s", "MiB"]
    cells = [heads]
    for row in results["rows"]:
        rates = [1 / took for took in row["s_per_round"]]
        memory = row["memory_bytes"]
        cells.append(
            [
                row["name"],
                *(f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}" for rate in rates),
                f"{results['client_steps'] * rates[0]:,.0f}",
                f"{row['time_ratio']:.1f}",
                f"{row['setup_s']:.1f}",
                "?" if memory is None else f"{memory / 2**20:,.0f}",
            ]
        )
    cells += [[name, "not measured", *[""] * 6] for name in results["not_measured"]]
    lines = [f"{name} is not measured: {why}" for name, why in results["not_measured"].items()]
    lines += [
        f"Medians of {results['repeats']} interleaved repeats of {results['rounds_each']} "
        f"rounds.",
        f"Ratio: time per round relative to {JAX}.",
        "Setup: time to build, to compile and to play the first round; MiB: largest growth of "
        "the process during it.",
    ]
    found = [row["differences"] for row in results["rows"] if row["differences"]]
    if found:
        loss, server = (max(one[name] for one in found) for name in ("loss", "server"))
        lines.append(
            f"Verified over {ROUNDS} rounds with the same draws: losses differ by at most "
            f"{loss:.0e}, relative to them, and servers by {server:.0e} of their change."
        )
    return Report(title, cells, lines)
