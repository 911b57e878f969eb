"""``bench --against=torch``: rounds in PyTorch, verified against JAX and then timed.

First, each variant of `torch_player` starts from JAX's initial weights and plays `ROUNDS`
rounds with the cohorts, batches and dropped embeddings that the compiled program draws. After
each round, the loss and the weights of the server must agree with JAX's; otherwise nothing is
timed. In the timed rounds, each library draws with its own generator.

Networks for images are verified in rounds of one local step, each from JAX's weights, because
further steps amplify rounding too much (`IMAGE_MODELS`). What several steps add
is the same for all client models.
"""

import importlib.util
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.benchmarks.recorded_rounds import LAYERED_MODEL, Round, play_in_jax
from experiments.benchmarks.report import Report, draw_rates, show, write
from experiments.benchmarks.timing import (
    Cost,
    compile_rounds,
    cost,
    player,
    spread,
    time_interleaved,
)
from experiments.common.flag_values import check_names
from graphfl_jax.build import build_experiment
from graphfl_jax.configs.base import variant_of
from graphfl_jax.configs.values import change, values_of
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.session import mesh_of

JAX = "graphfl_jax"
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
VARIANTS = ("eager", "compile", "vmap", "vmap+compile")
# Networks for images, which have many units with a kink: ReLU and max pooling. A unit within
# rounding of its kink passes the gradient in one library and not in the other. This changes the
# gradient of one of n images by at most about itself. Gradients of images are nearly
# independent, so the mean over n changes by up to 1 / sqrt(n) of itself. Further steps amplify
# the change: after a round of 8 steps, PyTorch in float32 and in float64 differ by 4e-3 of the
# change with LeNet at learning rate 0.1, and by 0.3 with a ResNet of width 8 at 0.01. So rounds
# have one step, all differ by at most 1 / sqrt(n), and one by at most
# `SERVER_TOLERANCE`. Measured: 2e-5 if no unit is at its kink; a ResNet with
# n = 192 had 1e-2 in one of 3 rounds.
IMAGE_MODELS = ("lenet", "cnn", "resnet18", LAYERED_MODEL)
# Values that `torch_player` supports, by field; the others are checked for Panacea only.
SUPPORTED = {
    "algorithm.name": ("panacea", "fedavg"),
    "tuning.part": ("",),
    "attack.name": ("",),
    "defence.name": ("",),
    "model.name": ("mlp", "gru", *IMAGE_MODELS),
    "client_optimizer": ("sgd", "adam"),
    "client_schedule": ("constant",),
}
SUPPORTED_IMAGES = {"algorithm.name": ("fedavg",)}
SUPPORTED_LAYERED = {
    "algorithm.name": ("flha_ghn",),
    "algorithm.flha_generator": ("ghn",),
    "client_optimizer": ("momentum",),
}
LAYERED_VARIANTS = ("eager",)  # clients with different networks cannot be vmapped
UNPOOLED = ("arch", "hybrid")  # beginnings of the names of architectures without pooling
SUPPORTED_PANACEA = {
    "algorithm.layer": ("sage",),
    "algorithm.edge_weights": (False,),
    "algorithm.output": ("direct",),
    "server_optimizer": ("polyak_sgd", "sgd", "adam"),
    "server_schedule": ("constant",),
}


class Timed(NamedTuple):
    """What is timed."""

    play: Callable  # several rounds
    cost: Cost  # to build, to compile and to play the first round
    differences: dict[str, float] | None  # from JAX, of `verify`


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

    Raises:
      ValueError: a field or a flag does not fit, relations are sparse, PyTorch is not
        installed, or the rounds of a variant differ from JAX's.
    """
    check(config, variants)
    torch_player = import_torch_player(threads)
    # As in PyTorch; by default, a GPU computes products of float32 with fewer bits.
    jax.config.update("jax_default_matmul_precision", "highest")
    experiment = build_experiment(config, load(config))
    _check_dense(experiment.federation)
    with cost() as spent:
        rounds = compile_rounds(experiment, config, mesh=mesh_of(experiment))
        jax.block_until_ready(player(rounds, 1)())
    timed = {JAX: Timed(player(rounds, rounds_each), spent(), None)}
    verification, failed = _verification(experiment, config, rounds), {}
    with tempfile.TemporaryDirectory() as empty:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty  # so that it compiles, as XLA does
        for variant in variants:
            try:
                timed[variant] = _verify(
                    torch_player, experiment, config, variant, verification, rounds_each
                )
            except torch_player.CompileError as error:
                failed[variant] = str(error).splitlines()[0]
        times = time_interleaved({name: each.play for name, each in timed.items()}, repeats)

    rows = [_row(name, each, times, rounds_each) for name, each in timed.items()]
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
    figure = draw_rates({row["name"]: row["s_per_round"] for row in rows}, title)
    show(report := _report(results, title))
    write(report, out, "bench", results, figure)
    return 0


def _row(name, each, times, rounds_each):
    return {
        "name": name,
        "s_per_round": [took / rounds_each for took in spread(times[name])],
        "time_ratio": statistics.median(times[name]) / statistics.median(times[JAX]),
        "setup_s": each.cost.seconds,
        "memory_bytes": each.cost.memory,
        "differences": each.differences,
    }


def _verify(torch_player, experiment, config, variant, verification, rounds_each):
    """A variant after its verification.

    Raises:
      CompileError: torch.compile fails.
      ValueError: as `verify`.
    """
    start, played = verification
    with cost() as spent:
        rounds = torch_player.player_of(experiment, config, variant)
        rounds.start(start)
        rounds.play(rounds.draw())
        torch_player.wait()
    images = images_of(config)
    differences = verify(torch_player, rounds, start, played, variant, images=images)

    def play():
        for _ in range(rounds_each):
            rounds.play(rounds.draw())
        torch_player.wait()

    return Timed(play, spent(), differences)


def import_torch_player(threads: int | None) -> Any:
    """The module `torch_player`, prepared for JAX's device and for a number of threads, if any.

    Raises:
      ValueError: PyTorch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise ValueError(
            "against=torch needs PyTorch, which is not installed; run pip install torch"
        )
    from experiments.benchmarks import torch_player

    if threads is not None:
        torch_player.torch.set_num_threads(threads)
    torch_player.prepare(on_gpu=jax.default_backend() == "gpu")
    return torch_player


def images_of(config: ConfigDict) -> int:
    """Images in a verified round; 0 if the client model is none of `IMAGE_MODELS`."""
    return config.cohort_size * config.batch_size * (config.model.name in IMAGE_MODELS)


def _verification(experiment, config, rounds):
    """The weights of the server at the start, and JAX's rounds to verify."""
    if images_of(config):
        config = change(config, {"local_steps": 1})
        experiment = build_experiment(config, experiment.federation)
        rounds = compile_rounds(experiment, config)
    return play_in_jax(experiment, config, rounds, ROUNDS)


def verify(
    torch_player: Any,
    torch_rounds: Any,
    start: dict,
    played: list[Round],
    variant: str,
    *,
    images: int = 0,
) -> dict[str, float]:
    """Plays JAX's rounds in PyTorch and compares the results.

    Args:
      torch_rounds: a `torch_player.Player`.
      start: weights of the server before the first round.
      images: in a round, for a network for images. Then each round starts from JAX's weights.

    Returns:
      The largest difference of a ``loss``, relative to it, and of the ``server``'s weights,
      relative to their change since the start.

    Raises:
      ValueError: a difference is larger than rounding explains.
    """
    torch_rounds.start(start)
    tolerance = max(SERVER_TOLERANCE, images**-0.5 if images else 0.0)
    largest, smallest = {"loss": 0.0, "server": 0.0}, np.inf
    for number, expected in enumerate(played, start=1):
        loss = float(torch_rounds.play(torch_player.as_tensors(expected.draws)))
        change = _distance(start, expected.weights)
        differences = {
            "loss": abs(loss - expected.loss) / abs(expected.loss),
            "server": _distance(torch_rounds.weights(), expected.weights) / change,
        }
        smallest = min(smallest, differences["server"])
        if number == len(played) and smallest > SERVER_TOLERANCE:  # no round agrees closely
            tolerance = SERVER_TOLERANCE
        # With NaN, every comparison is false, so that it is refused too.
        if not (differences["loss"] <= LOSS_TOLERANCE and differences["server"] <= tolerance):
            raise ValueError(
                f"variants={variant} differs from JAX in round {number}, so nothing is timed: "
                f"its loss is {loss:.7g} and not {expected.loss:.7g}, and its server differs "
                f"by {differences['server']:.1e} of the change since the start, where rounding "
                f"explains {LOSS_TOLERANCE:.0e} of the loss and {tolerance:.0e} of the "
                f"change; lower the learning rates, or correct experiments/benchmarks"
            )
        largest = {name: max(largest[name], differences[name]) for name in largest}
        if images:
            start = expected.weights
            torch_rounds.start(start)
    return largest


def _distance(a, b):
    """Euclidean distance between the weights of two servers."""
    squares = (np.sum(np.square(a[name].astype(np.float64) - b[name])) for name in b)
    return float(np.sqrt(sum(squares)))


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
    verified = [row["differences"] for row in results["rows"] if row["differences"]]
    steps = " of one step" if results["config"]["model"]["name"] in IMAGE_MODELS else ""
    if verified:
        loss, server = (max(row[name] for row in verified) for name in ("loss", "server"))
        lines.append(
            f"Verified over {ROUNDS} rounds{steps} with the same draws: "
            f"losses differ by at most {loss:.0e}, relative to them, and servers by "
            f"{server:.0e} of their change."
        )
    return Report(title, cells, lines)


def check(config: ConfigDict, variants: list[str]) -> None:
    """Checks that `torch_player` supports a configuration and the variants.

    Raises:
      ValueError: it does not, or JAX uses neither CPUs nor GPUs.
    """
    check_names("variants", variants, VARIANTS)
    values, _ = values_of(config)
    is_panacea = config.algorithm.name == "panacea"
    supported = SUPPORTED | (SUPPORTED_PANACEA if is_panacea else {})
    if config.model.name == LAYERED_MODEL:
        supported |= SUPPORTED_LAYERED
        _check_layered(config, variants)
    elif config.model.name in IMAGE_MODELS:
        supported |= SUPPORTED_IMAGES
    if "model.augment" in values:
        supported |= {"model.augment": (False,)}
    for field, choices in supported.items():
        if values[field] not in choices:
            raise ValueError(
                f"{field}={values[field]!r} is not supported by --against=torch; set "
                f"--config.{field} to one of {', '.join(map(repr, choices))}, or use "
                f"--config=tpt48 or metr_la"
            )
    if jax.default_backend() not in ("cpu", "gpu"):
        raise ValueError(
            f"against=torch compares on CPUs and NVIDIA GPUs, but JAX uses a "
            f"{jax.default_backend()}; set JAX_PLATFORMS=cpu"
        )


def _check_layered(config, variants):
    for variant in variants:
        if variant not in LAYERED_VARIANTS:
            raise ValueError(
                f"variants={variant} is not supported with model.name={LAYERED_MODEL!r}, whose "
                f"clients have different networks; set --variants={','.join(LAYERED_VARIANTS)}"
            )
    for name in config.model.architectures:
        if not name.startswith(UNPOOLED):
            raise ValueError(
                f"model.architectures={name!r} is not supported by --against=torch, which has "
                f"no pooling; choose from arch0 to arch3 and hybrid0 to hybrid3"
            )


def _check_dense(federation):
    if relations.is_sparse(federation.data.graph):
        raise ValueError(
            f"data.name={federation.name!r} has {len(federation.clients)} clients with sparse "
            f"relations, which --against=torch does not support; use a smaller data set"
        )
