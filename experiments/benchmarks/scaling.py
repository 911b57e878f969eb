"""``bench --scaling=...``: how the time of a round grows with what it is made of.

clients: federations of perceptrons of 5 to 10,000 clients, all of whom train in every round.
    They are drawn, with `EXAMPLES` examples each, in a ring of relations.
runs: a configuration with 1 to 64 seeds at once, vmapped, as sweeps run them.
devices: one such drawn federation over more and more of this host's devices.

A power is fitted to the sizes from a tenth of the largest on, to three at least: where a device
is not full yet, time hardly grows.
"""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import matplotlib
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.timing import (
    Rounds,
    compile_rounds,
    interleaved,
    player,
    seconds,
    spread,
)
from experiments.common.plots import draw_power
from graphfl_jax.build import build_experiment, load_federation, variant_of
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation, federate
from graphfl_jax.program import client_mesh
from graphfl_jax.runs.checkpoint import write_json
from graphfl_jax.runs.results import environment

EXAMPLES = 100  # of a drawn client
NUMBERS = 6  # in an example and in its target, as in TPT-48
AT_LEAST = 960  # clients in the federation that is split over devices
REPEAT = 0.5  # seconds that a repeat takes at most, if a round does not take longer


class Power(NamedTuple):
    """A law time = factor * size ** exponent, fitted by least squares of logarithms."""

    factor: float
    exponent: float
    sizes: list[int]  # that it is fitted to


def scale(
    config: ConfigDict,
    what: str,
    sizes: list[str],
    *,
    repeats: int,
    rounds_each: int,
    out: Path,
) -> int:
    """Prints, draws and writes the time of a round over the numbers of clients, runs or
    devices."""
    defaults, prepare = SCALINGS[what]
    sizes = numbers(sizes) or defaults(config)
    compile_for = prepare(config, sizes)
    players, rounds, steps = {}, {}, {}
    for size in sizes:
        compiled = compile_for(size)
        once = player(compiled, 1)
        seconds(once)
        rounds[size] = max(1, min(rounds_each, int(REPEAT / seconds(once))))
        players[size] = player(compiled, rounds[size])
        steps[size] = compiled.client_steps
    times = interleaved(players, repeats)
    times = [[took / rounds[size] for took in spread(times[size])] for size in sizes]
    fit = power(sizes, [median for median, *_ in times])
    told = {
        "over": what,
        "variant": variant_of(config),
        "config": config.to_dict(),
        "repeats": repeats,
        **environment(),
        "rows": [
            {
                "size": size,
                "s_per_round": took,
                "rounds_each": rounds[size],
                "client_steps": steps[size],
            }
            for size, took in zip(sizes, times, strict=True)
        ],
        "power": fit and fit._asdict(),
    }
    _print(told)
    _write(told, fit, out)
    return 0


def numbers(told: list[str]) -> list[int]:
    """Sizes from words, ascending."""
    if not all(word.isdecimal() and int(word) > 0 for word in told):
        raise ValueError(f"sizes={','.join(told)} are no numbers; give some such as 10,100")
    return sorted({int(word) for word in told})


def power(sizes: list[int], times: list[float]) -> Power | None:
    """Fits the upper sizes; None where there is one size alone."""
    if len(sizes) < 2:
        return None
    upper = sum(size >= max(sizes) / 10 for size in sizes)
    upper = max(upper, min(3, len(sizes)))
    logs = np.log(sizes[-upper:]), np.log(times[-upper:])
    exponent, offset = np.polyfit(*logs, 1)
    return Power(float(np.exp(offset)), float(exponent), sizes[-upper:])


def drawn_federation(clients: int) -> Federation:
    """A regression that every client of a ring poses alike, but for its own offsets."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients, EXAMPLES, NUMBERS))
    y = np.tanh(x @ rng.normal(size=(NUMBERS, NUMBERS)))
    y += rng.normal(size=(clients, 1, NUMBERS))
    ring = [(i, (i + 1) % clients) for i in range(clients if clients > 2 else clients - 1)]
    return federate(
        [f"client {i}" for i in range(clients)],
        x=x,
        y=y,
        graph=relations.from_edges(clients, ring),
        task="regression",
        name="drawn",
        source="generated",
        val_fraction=0.0,
        seed=0,
        outputs=NUMBERS,
    )


def over_clients(config: ConfigDict, sizes: list[int]) -> Callable[[int], Rounds]:
    """A function that compiles rounds of so many clients."""
    return lambda clients: _all_play(config, clients)


def over_devices(config: ConfigDict, sizes: list[int]) -> Callable[[int], Rounds]:
    """A function that compiles rounds on so many devices."""
    devices = jax.local_devices()
    if len(devices) == 1:
        raise ValueError(
            "scaling=devices needs more than the one device of this host; on a CPU set "
            "XLA_FLAGS=--xla_force_host_platform_device_count=4, which simulates four"
        )
    if max(sizes) > len(devices):
        raise ValueError(
            f"sizes={max(sizes)} exceeds the {len(devices)} devices of this host; give fewer"
        )
    shared = math.lcm(*sizes)
    clients = shared * -(-AT_LEAST // shared)
    return lambda size: _all_play(config, clients, devices[:size])


def over_runs(config: ConfigDict, sizes: list[int]) -> Callable[[int], Rounds]:
    """A function that compiles rounds of so many runs."""
    experiment = build_experiment(config, load_federation(config))
    return lambda runs: compile_rounds(experiment, config, runs=runs)


def _all_play(config, clients, devices=None):
    """Rounds of a drawn federation in which all clients train."""
    experiment, config = _drawn_experiment(config, clients)
    mesh = client_mesh(clients, devices) if devices else None
    return compile_rounds(experiment, config, mesh=mesh)


def _drawn_experiment(config, clients):
    if config.model.name != "mlp":
        raise ValueError(
            f"model.name={config.model.name}: clients are drawn for perceptrons alone; set "
            f"--config.model.name=mlp, or take configs/tpt48.py"
        )
    config = copy.deepcopy(config)
    config.cohort_size = clients
    return build_experiment(config, drawn_federation(clients)), config


def _numbers_of_clients(config):
    experiment, _ = _drawn_experiment(config, 5)
    relational = experiment.build(experiment.hparams, 0).relational
    return [5, 10, 30, 100, 300, 1000] + [3000, 10000] * (not relational)


def _numbers_of_devices(config):
    return _powers_of_two(len(jax.local_devices()))


def _numbers_of_runs(config):
    return _powers_of_two(64)


def _powers_of_two(most):
    return [2**i for i in range(most.bit_length())]


def _print(told):
    unit = told["over"]
    table = Table(title=f"{told['variant']} over {unit}, {told['device']}")
    for column in (unit, "ms per round", "fastest", "slowest", "client-steps/s"):
        table.add_column(column, justify="right")
    for row in told["rows"]:
        median, *others = row["s_per_round"]
        cached_runs = (f"{1e3 * took:,.2f}" for took in (median, *others))
        table.add_row(f"{row['size']:,}", *cached_runs, f"{row['client_steps'] / median:,.0f}")
    console = Console()
    console.print(table)
    fit = told["power"]
    if fit is not None:
        fitted = ", ".join(f"{size:,}" for size in fit["sizes"])
        console.print(
            f"time grows as {unit} to the power {fit['exponent']:.2f}, by least squares of "
            f"logarithms at {fitted} {unit}",
            highlight=False,
        )


def _write(told, fit, out):
    matplotlib.use("Agg")  # writes files, and needs no screen
    out.mkdir(parents=True, exist_ok=True)
    name = f"scaling_{told['over']}"
    write_json(out / f"{name}.json", told)
    drawn = draw_power(
        [row["size"] for row in told["rows"]],
        [row["s_per_round"] for row in told["rows"]],
        fit,
        (told["over"], "seconds per round"),
        f"{told['variant']}, {told['device']}",
    )
    for suffix in ("png", "svg"):
        drawn.savefig(out / f"{name}.{suffix}", dpi=150)
    for suffix in ("png", "svg", "json"):
        Console().print(f"{out}/{name}.{suffix}", highlight=False, soft_wrap=True)


# Of each, (config) -> the sizes unless others are told, and what compiles rounds of a size.
SCALINGS = {
    "clients": (_numbers_of_clients, over_clients),
    "runs": (_numbers_of_runs, over_runs),
    "devices": (_numbers_of_devices, over_devices),
}
