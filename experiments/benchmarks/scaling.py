"""``bench --scaling=...``: how the time of a round grows with the size of a federation.

clients: generated federations of 5 to 10,000 clients with perceptrons. All clients train in
    every round. Each has `EXAMPLES` examples, and the relations form a ring.
relations: generated federations of 1,000 to 100,000 clients, of which a cohort of the
    configuration's size trains. Clients are random points in a square, and the nearest pairs
    of them are related, five times as many as there are clients.
runs: a configuration with 1 to 64 seeds in one vmapped program, as sweeps run them. They are
    split over the devices of this host, as far as these divide their number.
devices: one such generated federation on more and more devices of this host.

A power law is fitted to the sizes from a tenth of the largest on, at least three. Smaller
sizes do not fill a device, and their time hardly grows.

Images are generated for ``bench --images``.
"""

import re
from collections.abc import Callable
from math import lcm
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType
from ml_collections import ConfigDict
from scipy.spatial import cKDTree

from experiments.benchmarks import timing
from experiments.benchmarks.report import Report, draw_power, show, write
from graphfl_jax.build import arrange, build_experiment, load_federation
from graphfl_jax.configs import change
from graphfl_jax.configs.base import variant_of
from graphfl_jax.data import relations
from graphfl_jax.data.custom import from_arrays
from graphfl_jax.data.federation import Federation, federate
from graphfl_jax.data.splits import RandomSplit
from graphfl_jax.devices import client_mesh
from graphfl_jax.runs.environment import environment

TEST = 5  # training examples of a client with generated images per test example
EXAMPLES = 100  # of a generated client
FEW_EXAMPLES = 10  # of a client in a federation of which a cohort trains
RELATIONS = 5  # undirected ones per client there
NUMBERS = 6  # in an example and in its target, as in TPT-48
AT_LEAST = 960  # clients of the federation that is split over devices
REPEAT = 0.5  # seconds that a repeat may take, if it has more than one round


class Power(NamedTuple):
    """A power law, time = factor * size ** exponent, fitted by least squares of logarithms."""

    factor: float
    exponent: float
    sizes: list[int]  # that it is fitted to


def scale(
    config: ConfigDict,
    over: str,
    sizes: list[str],
    *,
    repeats: int,
    rounds_each: int,
    out: Path,
) -> int:
    """Prints, draws and writes the time of a round over one of `SCALINGS`.

    Args:
      sizes: the numbers, as text; empty for the default ones.
      rounds_each: largest number of rounds in a repeat.

    Raises:
      ValueError: a field or a size does not fit.
    """
    defaults, prepare = SCALINGS[over]
    sizes = numbers(sizes) or defaults(config)
    compile_for = prepare(config, sizes)
    players, rounds, steps = {}, {}, {}
    for size in sizes:
        compiled = compile_for(size)
        once = timing.player(compiled, 1)
        timing.seconds(once)  # warms up
        rounds[size] = max(1, min(rounds_each, int(REPEAT / timing.seconds(once))))
        players[size] = timing.player(compiled, rounds[size])
        steps[size] = compiled.client_steps
    times = timing.time_interleaved(players, repeats)
    times = [[took / rounds[size] for took in timing.spread(times[size])] for size in sizes]
    fit = power(sizes, [median for median, *_ in times])
    results = {
        "over": over,
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
        "peak_memory_bytes": timing.peak_memory(),
    }
    report = _report(results, fit)
    show(report)
    title = f"{variant_of(config)}, {results['device']}"
    figure = draw_power(sizes, times, fit, (over, "seconds per round"), title)
    write(report, out, f"scaling_{over}", results, figure)
    return 0


def numbers(words: list[str]) -> list[int]:
    """Positive integers from text, in ascending order.

    Raises:
      ValueError: a word is not a positive integer.
    """
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(
            f"sizes={','.join(words)} has a value that is not a positive integer; set "
            f"--sizes=10,100 or other numbers"
        )
    return sorted({int(word) for word in words})


def power(sizes: list[int], times: list[float]) -> Power | None:
    """Fits a power law to the upper sizes; None if there is only one size."""
    if len(sizes) < 2:
        return None
    upper = sum(size >= max(sizes) / 10 for size in sizes)
    upper = max(upper, min(3, len(sizes)))
    logs = np.log(sizes[-upper:]), np.log(times[-upper:])
    exponent, offset = np.polyfit(*logs, 1)
    return Power(float(np.exp(offset)), float(exponent), sizes[-upper:])


def generated_federation(
    clients: int, *, edges: np.ndarray | None = None, examples: int = EXAMPLES
) -> Federation:
    """A regression whose targets differ by an offset per client.

    Args:
      clients: N.
      edges: [m, 2] undirected relations; None is a ring.
      examples: of a client.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients, examples, NUMBERS))
    y = np.tanh(x @ rng.normal(size=(NUMBERS, NUMBERS)))
    y += rng.normal(size=(clients, 1, NUMBERS))
    edges = ring(clients) if edges is None else edges
    return federate(
        [f"client {i}" for i in range(clients)],
        x=x,
        y=y,
        graph=relations.from_edges(clients, edges),
        task="regression",
        outputs=NUMBERS,
        name="generated",
        source="generated",
        split=RandomSplit(seed=0),
    )


def nearest_pairs(clients: int, pairs: int) -> np.ndarray:
    """The nearest pairs among random points of the unit square, [pairs, 2] indices of points.

    Args:
      clients: number of points.
      pairs: at most half of all pairs.
    """
    points = np.random.default_rng(0).random((clients, 2))
    tree, pairs_within, near = cKDTree(points), np.zeros((0, 2), int), 1.0
    while len(pairs_within) < pairs:
        near *= 1.2  # a circle of this radius holds about 2 near^2 pairs / clients points
        radius = near * np.sqrt(2 * pairs / np.pi) / clients
        pairs_within = tree.query_pairs(radius, output_type="ndarray")
    gaps = np.sum((points[pairs_within[:, 0]] - points[pairs_within[:, 1]]) ** 2, axis=1)
    return pairs_within[np.argsort(gaps, kind="stable")[:pairs]]


def ring(clients: int) -> list[tuple[int, int]]:
    """The edges of a ring; of two clients, the one between them."""
    return [(i, (i + 1) % clients) for i in range(clients if clients > 2 else clients - 1)]


def shape_of(text: str) -> tuple[int, int, int]:
    """Height, width and channels from text such as 28x28x1.

    Raises:
      ValueError: the text is not three positive integers.
    """
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text)
    if match is None:
        raise ValueError(
            f"images={text} is not HEIGHTxWIDTHxCHANNELS; set --images=28x28x1 or other sizes"
        )
    height, width, channels = map(int, match.groups())
    return height, width, channels


def load_images(
    config: ConfigDict, text: str, *, clients: int, examples: int, classes: int
) -> Federation:
    """The `image_federation` of a size as text, in place of the file of custom data.

    Raises:
      ValueError: the configuration names other data, or a number does not fit.
    """
    if config.data.name != "custom" or config.data.path or config.data.val_fraction:
        raise ValueError(
            f"images={text} replaces the file of --config=custom, and the configuration has "
            f"other data; set --config=custom, and leave data.path and "
            f"data.val_fraction out"
        )
    return arrange(config, image_federation(shape_of(text), clients, examples, classes))


def image_federation(
    shape: tuple[int, int, int], clients: int, examples: int, classes: int
) -> Federation:
    """A classification of byte images on a ring of clients, which have all classes.

    An image is the mean of its class's pattern and of noise, both uniform from 0 to 255. So
    equal neighbouring pixels are rare: in max pooling, libraries give the gradient of equal
    maxima to different places.

    Args:
      shape: height, width and channels of an image.
      examples: training examples of each. Each has a fifth as many for test, at least one.

    Raises:
      ValueError: there are fewer than two classes, or more of them than images.
    """
    each = examples + max(1, examples // TEST)
    total = clients * each
    if not 2 <= classes <= total:
        raise ValueError(
            f"classes={classes} is not in [2, {total}] for {total} generated images; set "
            f"--classes, --clients or --examples"
        )
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(total) % classes)
    patterns = rng.integers(256, size=(classes, *shape), dtype=np.uint16)
    noise = rng.integers(256, size=(total, *shape), dtype=np.uint16)
    split = np.where(np.arange(each) < examples, "train", "test")
    return from_arrays(
        ((patterns[labels] + noise) // 2).astype(np.uint8),
        labels,
        np.repeat(np.arange(clients), each),
        split=np.tile(split, clients),
        edges=ring(clients),
        name=f"generated images {'x'.join(map(str, shape))}",
    )


# Functions of a configuration and of the sizes, which return one that compiles a size.


def over_clients(config: ConfigDict, sizes: list[int]) -> Callable[[int], timing.Rounds]:
    return lambda clients: _all_clients_train(config, clients)


def over_relations(config: ConfigDict, sizes: list[int]) -> Callable[[int], timing.Rounds]:
    """One cohort in a large federation.

    Raises:
      ValueError: a size is smaller than 20 clients, or than the cohort.
    """
    least = max(20, config.cohort_size)
    if min(sizes) < least:
        raise ValueError(f"sizes={min(sizes)} is too small; set --sizes to at least {least}")

    def compile_for(clients):
        edges = nearest_pairs(clients, RELATIONS * clients)
        federation = generated_federation(clients, edges=edges, examples=FEW_EXAMPLES)
        return timing.compile_rounds(_experiment_of(config, federation), config)

    return compile_for


def over_devices(config: ConfigDict, sizes: list[int]) -> Callable[[int], timing.Rounds]:
    """Numbers of devices.

    Raises:
      ValueError: this host has only one device, or fewer than the largest size.
    """
    devices = jax.local_devices()
    if len(devices) == 1:
        raise ValueError(
            "scaling=devices needs several devices, and this host has one; on a CPU, set "
            "XLA_FLAGS=--xla_force_host_platform_device_count=4 to simulate four"
        )
    if max(sizes) > len(devices):
        raise ValueError(
            f"sizes={max(sizes)} exceeds the {len(devices)} devices of this host; set --sizes "
            f"to at most {len(devices)}"
        )
    multiple = lcm(*sizes)
    clients = multiple * -(-AT_LEAST // multiple)
    return lambda size: _all_clients_train(config, clients, devices[:size])


def over_runs(config: ConfigDict, sizes: list[int]) -> Callable[[int], timing.Rounds]:
    experiment = build_experiment(config, load_federation(config))
    return lambda runs: timing.compile_rounds(experiment, config, mesh=mesh_of(runs), runs=runs)


def mesh_of(runs):
    """The largest number of devices that divides a number of runs; None if that is one."""
    devices = jax.local_devices()
    size = max(count for count in range(1, len(devices) + 1) if runs % count == 0)
    if size == 1:
        return None
    return jax.make_mesh((size,), ("runs",), (AxisType.Auto,), devices=devices[:size])


def _all_clients_train(config, clients, devices=None):
    """Rounds of a generated federation in which all clients train."""
    config = change(config, {"cohort_size": clients})
    experiment = _experiment_of(config, generated_federation(clients))
    mesh = client_mesh(clients, devices=devices) if devices else None
    return timing.compile_rounds(experiment, config, mesh=mesh)


def _experiment_of(config, federation):
    """The experiment of a generated federation."""
    if config.model.name != "mlp":
        raise ValueError(
            f"model.name={config.model.name} does not fit generated clients, which have "
            f"perceptrons; set --config.model.name=mlp, or use --config=tpt48"
        )
    return build_experiment(config, arrange(config, federation))


def _numbers_of_clients(config):
    config = change(config, {"cohort_size": 5})
    experiment = _experiment_of(config, generated_federation(5))
    relational = experiment.build(experiment.hparams, 0).needs.relations
    numbers = [5, 10, 30, 100, 300, 1000]
    return numbers if relational else [*numbers, 3000, 10000]


def _powers_of_two(most):
    return [2**i for i in range(most.bit_length())]


def _report(results, fit):
    over = results["over"]
    rows = [[over, "ms per round", "fastest", "slowest", "client-steps/s"]]
    for row in results["rows"]:
        median, *extremes = row["s_per_round"]
        times = (f"{1e3 * took:,.2f}" for took in (median, *extremes))
        rows.append([f"{row['size']:,}", *times, f"{row['client_steps'] / median:,.0f}"])
    memory = results["peak_memory_bytes"] / 2**20
    lines = [
        f"Medians of {results['repeats']} interleaved repeats; peak memory {memory:,.0f} MiB."
    ]
    if fit is not None:
        fitted = ", ".join(f"{size:,}" for size in fit.sizes)
        lines.append(
            f"The time grows as {over} to the power {fit.exponent:.2f}, by least squares of "
            f"logarithms at {fitted} {over}."
        )
    return Report(f"{results['variant']} over {over}, {results['device']}", rows, lines)


# For each: (config) -> default sizes, and (config, sizes) -> a function that compiles a size.
SCALINGS = {
    "clients": (_numbers_of_clients, over_clients),
    "relations": (lambda config: [1000, 10_000, 100_000], over_relations),
    "runs": (lambda config: _powers_of_two(64), over_runs),
    "devices": (lambda config: _powers_of_two(len(jax.local_devices())), over_devices),
}
