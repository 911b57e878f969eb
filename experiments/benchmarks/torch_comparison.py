"""``bench --against=torch``: the same rounds in PyTorch, verified, then timed.

Before anything is timed, every variant starts from JAX's initial weights and plays `ROUNDS`
rounds with the cohorts, batches and code dropout that the compiled program draws. The losses of
every round must agree, and what the server knows after it; else nothing is timed. The timed
rounds are then drawn on each side by its own generator.
"""

import contextlib
import functools
import importlib.util
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import matplotlib
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.recorded_rounds import Round, play_in_jax
from experiments.benchmarks.timing import compile_rounds, cost, interleaved, player, spread
from experiments.common.plots import draw_rates
from graphfl_jax.build import build_experiment, load_federation, variant_of
from graphfl_jax.program import client_mesh
from graphfl_jax.runs.checkpoint import write_json
from graphfl_jax.runs.results import environment

HERE = "graphfl_jax"
VARIANTS = ("eager", "compile", "vmap", "vmap+compile")
# What `experiments.pytorch` has, by the field that chooses it; PANACEAS of Panacea alone.
WRITTEN = {
    "algorithm.name": ("panacea", "fedavg"),
    "tuning.part": ("",),
    "model.name": ("mlp", "gru"),
    "client_optimizer": ("sgd", "adam"),
}
PANACEAS = {
    "algorithm.layer": ("sage",),
    "algorithm.profile": ("whole",),
    "server_optimizer": ("polyak_sgd", "sgd", "adam"),
}
ROUNDS = 3
# By how much a loss may differ, as a share of it. A step adds in other orders, which costs
# about ten float32 roundings of 6e-8; 3 rounds of 60 steps one after the other 1e-4. Seen are
# 2e-7 with SGD and 4e-6 with Adam.
LOSS_TOLERANCE = 1e-4
# By how much a server may, as a share of the way it has come, which is small against its
# weights. Seen are 1e-6 with SGD; with Adam, which divides a gradient near 0 by its own size
# and so shows its rounding in full, 7e-5, and 1e-3 on tiny federations. Without Panacea's
# penalty at lambda_d = 0.01 it is 3e-2, with a wrong code or weight 0.2 or more.
SERVER_TOLERANCE = 5e-3


def against_torch(
    config: ConfigDict,
    variants: list[str],
    *,
    threads: int | None,
    repeats: int,
    rounds_each: int,
    out: Path,
) -> int:
    """Prints, draws and writes what rounds cost here and in PyTorch."""
    check(config, variants)
    pytorch = torch_players(threads)
    experiment = build_experiment(config, load_federation(config))
    with cost() as spent:
        rounds = compile_rounds(experiment, config, mesh=client_mesh(config.cohort_size))
        jax.block_until_ready(player(rounds, 1)())
    costs, players = {HERE: spent()}, {HERE: player(rounds, rounds_each)}
    start, played = play_in_jax(experiment, config, rounds, ROUNDS)
    apart, failed = {}, {}
    with _own_cache():
        for variant in variants:
            try:
                with cost() as spent:
                    torch_player = pytorch.Player(experiment, config, variant)
                    torch_player.start(start)
                    torch_player.play(pytorch.drawn(*played[0].draws))
            except pytorch.CompileError as error:
                failed[variant] = str(error).splitlines()[0]
                continue
            costs[variant] = spent()
            apart[variant] = verify(torch_player, pytorch.drawn, start, played, variant)
            players[variant] = _several(torch_player, rounds_each)
        times = interleaved(players, repeats)

    rows = [
        {
            "name": name,
            "s_per_round": [took / rounds_each for took in spread(times[name])],
            "times_as_long": statistics.median(times[name]) / statistics.median(times[HERE]),
            "ready_s": costs[name].seconds,
            "memory_bytes": costs[name].memory,
            "apart": apart.get(name),
        }
        for name in players
    ]
    told = {
        "config": config.to_dict(),
        "repeats": repeats,
        "rounds_each": rounds_each,
        "client_steps": rounds.client_steps,
        "torch": pytorch.environment(),
        **environment(),
        "rows": rows,
        "not_measured": failed,
    }
    title = f"{variant_of(config)} on {config.data.name}"
    _print(told, title)
    _write(told, title, out)
    return 0


def check(config: ConfigDict, variants: list[str]) -> None:
    """Refuses what `experiments.pytorch` does not have."""
    for variant in variants:
        if variant not in VARIANTS:
            raise ValueError(
                f"variants={variant!r} is unknown; choose from {', '.join(VARIANTS)}"
            )
    written = WRITTEN | (PANACEAS if config.algorithm.name == "panacea" else {})
    for field, choices in written.items():
        value = functools.reduce(getattr, field.split("."), config)
        if value not in choices:
            raise ValueError(
                f"{field}={value!r} is not written in PyTorch; set --config.{field} to one of "
                f"{', '.join(map(repr, choices))}, or take configs/tpt48.py or metr_la.py"
            )
    if jax.default_backend() != "cpu":
        raise ValueError(
            f"against=torch compares on CPUs, and JAX has a {jax.default_backend()} here; set "
            f"JAX_PLATFORMS=cpu"
        )


def torch_players(threads: int | None):
    """The module `experiments.pytorch`, with so many threads if that is not None."""
    if importlib.util.find_spec("torch") is None:
        raise ValueError(
            "against=torch needs PyTorch, which is not installed; in a checkout "
            ".venv/bin/pip install -e '.[torch]', else pip install 'graphfl_jax[torch]'"
        )
    from experiments import pytorch

    if threads is not None:
        pytorch.torch.set_num_threads(threads)
    return pytorch


def verify(torch_player, drawn: Callable, start, played: list[Round], variant: str) -> dict:
    """Plays JAX's rounds in PyTorch.

    Returns:
      The largest difference of a ``loss``, as a share of it, and of the ``server``'s weights,
      as a share of the way that they have come in JAX.

    Raises:
      ValueError: a difference is larger than rounding explains.
    """
    torch_player.start(start)
    largest = {"loss": 0.0, "server": 0.0}
    for number, told in enumerate(played, start=1):
        loss = float(torch_player.play(drawn(*told.draws)))
        weights = torch_player.weights()
        gap = _distance(weights, told.weights) / _distance(start, told.weights)
        differences = {"loss": abs(loss - told.loss) / abs(told.loss), "server": gap}
        # Written so that NaN, for which every comparison is false, is refused.
        if not (differences["loss"] <= LOSS_TOLERANCE and gap <= SERVER_TOLERANCE):
            raise ValueError(
                f"variant {variant} in round {number}: its loss is {loss:.7g}, JAX's "
                f"{told.loss:.7g}, and servers are {gap:.1e} of their way apart, which is more "
                f"than rounding ({LOSS_TOLERANCE:.0e}, {SERVER_TOLERANCE:.0e}); not timed; "
                f"lower the learning rates, or correct experiments/pytorch.py"
            )
        largest = {name: max(largest[name], differences[name]) for name in largest}
    return largest


def _distance(a, b):
    squares = (np.sum(np.square(a[name].astype(np.float64) - b[name])) for name in b)
    return float(np.sqrt(sum(squares)))


def _several(torch_player, count):
    """A function that plays `count` rounds, drawn by PyTorch."""

    def play():
        for _ in range(count):
            torch_player.play(torch_player.draw())

    return play


@contextlib.contextmanager
def _own_cache() -> Iterator[None]:
    """Gives torch.compile an empty cache, as XLA has none, so that it compiles."""
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
            if before is not None:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


def _print(told, title):
    pytorch = told["torch"]
    table = Table(
        title=f"{title}, {told['device']}; PyTorch {pytorch['version']} with "
        f"{pytorch['threads']} threads"
    )
    table.add_column("", no_wrap=True)
    columns = ("rounds/s", "fastest", "slowest", "client steps/s", "ratio", "ready s", "MiB")
    for column in columns:
        table.add_column(column, justify="right")
    for row in told["rows"]:
        rates = [1 / took for took in row["s_per_round"]]
        memory = row["memory_bytes"]
        table.add_row(
            row["name"],
            *(f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}" for rate in rates),
            f"{told['client_steps'] * rates[0]:,.0f}",
            f"{row['times_as_long']:.1f}",
            f"{row['ready_s']:.1f}",
            "?" if memory is None else f"{memory / 2**20:,.0f}",
        )
    for name in told["not_measured"]:
        table.add_row(name, "not measured")
    console = Console(highlight=False)
    console.print(table)
    for name, why in told["not_measured"].items():
        console.print(f"{name} is not measured: {why}", markup=False)
    console.print(
        f"Medians of {told['repeats']} interleaved repeats of {told['rounds_each']} rounds. "
        f"ratio: how many times as long a round takes as here. ready: to build, compile and "
        f"play the first round. MiB: by how much the process grew for that, at its peak."
    )
    found = [row["apart"] for row in told["rows"] if row["apart"]]
    if found:
        loss, server = (max(apart[name] for apart in found) for name in ("loss", "server"))
        console.print(
            f"Verified over {ROUNDS} rounds of the same draws: losses agree to {loss:.0e} of "
            f"themselves, servers to {server:.0e} of their way."
        )


def _write(told, title, out):
    matplotlib.use("Agg")  # writes files, and needs no screen
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "bench.json", told)
    drawn = draw_rates({row["name"]: row["s_per_round"] for row in told["rows"]}, title)
    for suffix in ("png", "svg"):
        drawn.savefig(out / f"bench.{suffix}", dpi=150)
    for suffix in ("png", "svg", "json"):
        Console().print(f"{out}/bench.{suffix}", highlight=False, soft_wrap=True)
