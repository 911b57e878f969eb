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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jax.flatten_util import ravel_pytree
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from experiments.charts import draw_rates
from experiments.measuring import compile_rounds, cost, interleaved, player, spread
from graphfl_jax.algorithms.hyper import HyperServer
from graphfl_jax.build import Experiment, build_experiment, load_federation, variant_of
from graphfl_jax.checkpoint import write_json
from graphfl_jax.core import Algorithm
from graphfl_jax.local import draw_indices
from graphfl_jax.program import client_mesh
from graphfl_jax.results import environment

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


class Draws(NamedTuple):
    """What a round leaves to chance, in arrays."""

    ids: Any  # [M] the cohort, ascending
    indices: Any  # [M, K_c, B] examples of each client's steps
    forgotten: Any  # [N, 1] bool, whose code the round takes from its neighbours


class Round(NamedTuple):
    """A round as JAX played it."""

    draws: Draws
    loss: float  # mean over the clients' steps
    weights: dict[str, np.ndarray]  # what the server then knows, by PyTorch's names


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


def play_in_jax(experiment: Experiment, config: ConfigDict, rounds, count: int):
    """What the server knows at the start, and the first `count` rounds, as JAX plays them."""

    def known(state):
        return exported(jax.device_get(state.server), experiment, config)

    state = jax.tree.map(jnp.copy, rounds.state)
    start, played = known(state), []
    for draws in recorded(experiment, config, count):
        state, log = rounds.advance(state, jnp.int32(1))
        played.append(Round(draws, float(log.metrics["loss"]), known(state)))
    return start, played


def recorded(experiment: Experiment, config: ConfigDict, count: int) -> list[Draws]:
    """What the first `count` rounds of the configuration's program leave to chance.

    The program itself draws them, for an algorithm in which nobody trains.
    """

    def build(hparams, played):
        return recording(experiment.build(hparams, played), config)

    idle = experiment._replace(build=build)
    rounds = compile_rounds(idle, config)
    state, draws = rounds.state, []
    for _ in range(count):
        state, _ = rounds.advance(state, jnp.int32(1))
        draws.append(jax.device_get(state.server[1]))
    return draws


def recording(algorithm: Algorithm, config: ConfigDict) -> Algorithm:
    """The algorithm without training, whose server keeps what the last round drew.

    The server is the algorithm's own, as it was at the start, and the `Draws`.
    """
    shape = (config.local_steps, config.batch_size)

    def forgotten(server, clients):
        mask = server.mask if isinstance(server, HyperServer) else ()
        return mask if len(mask) else jnp.zeros((clients, 1), bool)

    def init(key, graph):
        server = algorithm.init(key, graph)
        nobody = jnp.zeros((config.cohort_size,), jnp.int32)
        nothing = jnp.zeros((config.cohort_size, *shape), jnp.int32)
        clients = graph.nodes.shape[0]
        return server, Draws(nobody, nothing, jnp.zeros((clients, 1), bool))

    def prepare(server, key):
        own, draws = server
        return algorithm.prepare(own, key), draws

    def local(message, client, examples, key):
        return client, draw_indices(key, shape, examples.count), {"loss": jnp.float32(0.0)}

    def aggregate(server, cohort, indices, key):
        own, draws = server
        told = Draws(cohort.ids, indices, forgotten(own, len(draws.forgotten)))
        if isinstance(own, HyperServer):
            own = own._replace(mask=())
        return own, told

    return Algorithm(
        init=init,
        prepare=prepare,
        download=lambda server, i: (),
        local=local,
        aggregate=aggregate,
        predict=algorithm.predict,
    )


def exported(server, experiment: Experiment, config: ConfigDict) -> dict[str, np.ndarray]:
    """What a JAX server knows, by PyTorch's names and in its layout."""

    def flat(params):
        return np.concatenate([np.ravel(leaf) for leaf in LAYOUTS[config.model.name](params)])

    if not isinstance(server, HyperServer):
        return {"theta": flat(server)}
    vector, unravel = ravel_pytree(experiment.model.init(jax.random.key(0)))
    # The generator's outputs are the numbers of a model: where each of PyTorch's is among them.
    order = flat(unravel(jnp.arange(len(vector), dtype=vector.dtype))).astype(int)
    weights, depth = server.weights, config.algorithm.depth
    named = {"codes": weights["codes"]}
    for i in range(depth):
        neighbours, own = (weights["encoder"][f"Dense_{2 * i + j}"] for j in (0, 1))
        named[f"encoder.{i}.neighbours.weight"] = neighbours["kernel"].T
        named[f"encoder.{i}.neighbours.bias"] = neighbours["bias"]
        named[f"encoder.{i}.own.weight"] = own["kernel"].T
    for i in range(depth - 1):
        layer = weights["trunk"][f"Dense_{i}"]
        named[f"trunk.{2 * i}.weight"] = layer["kernel"].T
        named[f"trunk.{2 * i}.bias"] = layer["bias"]
    output = weights["output"]["linear"]["Dense_0"]
    named["output.weight"] = output["kernel"].T[order]
    named["output.bias"] = output["bias"][order]
    return {name: np.asarray(leaf) for name, leaf in named.items()}


def _perceptron(params):
    layers = [params["body"][f"Dense_{i}"] for i in range(len(params["body"]))]
    for layer in (*layers, params["head"]["Dense_0"]):
        yield from (layer["kernel"].T, layer["bias"])


def _forecaster(params):
    for cell in (params["body"]["Cell_0"], params["head"]["Cell_0"]):
        yield from (cell["input_kernel"].T, cell["hidden_kernel"].T)
        yield from (cell["input_bias"], cell["hidden_bias"])
    yield from (params["head"]["kernel"], params["head"]["bias"])


# A model's arrays in the order in which the PyTorch module holds them.
LAYOUTS = {"mlp": _perceptron, "gru": _forecaster}


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
