"""Many runs as one program: trials that differ in seeds and in floats, vmapped."""

import copy
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from graphfl_jax import tree
from graphfl_jax.build import build_experiment
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation
from graphfl_jax.program import message_bytes, play_rounds
from graphfl_jax.runs.folder import PATHS, as_text
from graphfl_jax.runs.results import environment, new_client_scores
from graphfl_jax.runs.single import clock, diverged_at, program_of, results_of

GROWTH = 8  # of a batch, from one that is tried to the next
GAIN = 0.9  # of the time per run that a larger batch must not exceed
MEMORY = 0.5  # of what is free, that a batch may take
# Fields that say where data lie or when a run is saved, and not what it computes.
ELSEWHERE = {"checkpoint_every", *PATHS}


class Trial(NamedTuple):
    """What one run has of its own."""

    hparams: dict[str, float]  # values for fields of ``hparams``; the others stay as they are
    seed: int  # of the split, the initial weights, the new clients and all draws


class Outcome(NamedTuple):
    """What became of a trial."""

    results: dict  # as results.json of a single run holds them; times are shares of a batch's
    rows: list[dict]  # as `experiment.Result` has them
    new_clients: list[
        dict
    ]  # new clients' scores after 0, 1, ... rounds at home, {split: {point: [m]}}


class Played(NamedTuple):
    """A batch of trials, and what it cost."""

    outcomes: list[Outcome]
    compiling: float  # seconds, also to begin
    playing: float  # seconds
    bytes: int  # of a device's memory that a run takes


def run_trials(
    config: ConfigDict,
    federations: dict[int, Federation],
    trials: list[Trial],
    *,
    at_once: int = 0,
    report: Callable[[float], None] = lambda runs: None,
) -> Iterator[tuple[int, Outcome]]:
    """Runs trials in batches, each batch as one program split over the devices of this host.

    Args:
      config: the run that the trials vary.
      federations: of every seed, as `load_federation` of `with_seed` gives it.
      trials: in the order in which they are run.
      at_once: runs in a batch at most; 0 finds a number that is fast and fits into memory.
      report: called after every evaluation of a batch with the runs' worth that it played.

    Yields:
      The place of a trial and its outcome, batch by batch.

    Raises:
      ValueError: a field or the data does not fit, or a trial has a float that the method does
        not read; before anything runs.
    """
    if not trials:
        return iter(())
    federations = {seed: federations[seed] for seed in sorted({one.seed for one in trials})}
    experiment = build_experiment(config, next(iter(federations.values())))
    unread = sorted(
        {name for trial in trials for name in trial.hparams} - set(experiment.hparams)
    )
    if unread:
        raise ValueError(
            f"hparams.{unread[0]} is not read by {config.algorithm.name}; "
            f"its floats are {', '.join(experiment.hparams)}"
        )
    player = _Player(config, experiment, federations, jax.local_devices()[: len(trials)])
    return _batches(player, trials, at_once, report)


def _batches(player, trials, at_once, report):
    tried, begin = [], 0
    size = _even(len(trials), at_once) if at_once else 1
    while begin < len(trials):
        size = player.whole(size)
        batch = trials[begin : begin + size]
        new = size not in player.compiled
        played = player.play(batch, size, report)
        yield from enumerate(played.outcomes, begin)
        begin += len(batch)
        if at_once:
            continue
        if new:
            tried.append((size, played.playing / size, played.compiling))
        limit = int(MEMORY * free_memory() / played.bytes) * player.devices
        size = next_size(tried, len(trials) - begin, max(1, limit))


def next_size(tried: list[tuple[int, float, float]], left: int, limit: int) -> int:
    """How many runs the next batch should have.

    Batches grow as long as that makes runs faster, fits into memory, and saves more than
    compiling another program costs, if it were to halve the time of the runs that are left.

    Args:
      tried: of each size so far its runs, seconds per run, and seconds to compile it.
      left: runs to come.
      limit: runs that fit into memory.
    """
    size, took, compiling = tried[-1]
    if size > limit:
        return limit
    if len(tried) > 1 and took > GAIN * tried[-2][1]:
        return tried[-2][0]
    larger = min(GROWTH * size, limit)
    if larger <= size or left <= size or left * took / 2 < compiling:
        return size
    return _even(left, larger)


def _even(left: int, limit: int) -> int:
    """The size of equal batches of at most `limit`, so that the last one is nearly full."""
    return math.ceil(left / math.ceil(left / limit)) if left else limit


def free_memory() -> int:
    """Bytes that every device of this host has left."""
    devices = jax.local_devices()
    told = [device.memory_stats() for device in devices]
    if all(told):
        return min(one["bytes_limit"] - one["bytes_in_use"] for one in told)
    return psutil.virtual_memory().available // len(devices)  # they share the host's


class _Compiled(NamedTuple):
    """The program for batches of one size."""

    advance: Callable
    evaluate: Callable
    bytes: int  # of a device's memory that a run takes
    traffic: tuple[int, int]  # bytes down and up, of one client in a round


class _Player:
    """Plays batches of trials; keeps a program for every size of them."""

    def __init__(self, config, experiment, federations, devices):
        self.config, self.experiment = config, experiment
        self.federations = federations
        self.seeds = list(federations)
        self.new_clients = experiment.federation.new_clients
        self.devices = len(devices)
        self.mesh = None
        if self.devices > 1:
            auto = (AxisType.Auto,)
            self.mesh = jax.make_mesh((self.devices,), ("runs",), auto, devices=devices)
        program = program_of(experiment, config)
        own = self._own_data
        self.begin = self._everywhere(lambda run, data: program.start(*own(run, data)), 0, None)
        self.advance = self._everywhere(
            lambda state, run, data, rounds: program.advance(state, *own(run, data), rounds),
            *(0, 0, None, None),
            donate=0,
        )
        self.evaluate, self.admit, self.adapt = (
            self._everywhere(
                lambda state, run, data, verb=verb: verb(state, *own(run, data)), 0, 0, None
            )
            for verb in (program.evaluate, program.admit, program.adapt)
        )
        self.data = self._put(_stacked([one.data for one in federations.values()]), P())
        self.compiled = {}
        self.where = environment()

    def _own_data(self, run, data):
        """The key, floats and data of one run; of one seed, all runs share the data."""
        key, hparams, which = run
        return key, hparams, data if len(self.seeds) == 1 else tree.take(data, which)

    def _everywhere(self, function, *axes, donate=()):
        """`function` for all runs of a batch, split over the devices."""
        many = jax.vmap(function, axes)
        if self.mesh is not None:
            many = jax.shard_map(
                many,
                mesh=self.mesh,
                in_specs=tuple(P() if axis is None else P("runs") for axis in axes),
                out_specs=P("runs"),
                check_vma=False,  # runs have nothing in common, so that nothing is ever summed
            )
        return jax.jit(many, donate_argnums=donate)

    def _put(self, leaves, spec):
        where = None if self.mesh is None else NamedSharding(self.mesh, spec)
        return jax.device_put(leaves, where)

    def whole(self, size):
        """The smallest number of runs, from `size` on, that the devices share evenly."""
        return -(-size // self.devices) * self.devices

    def play(self, batch, size, report) -> Played:
        """Plays a batch, filled up to `size` with its last trial."""
        filled = batch + batch[-1:] * (size - len(batch))
        hparams = {
            name: jnp.array([one.hparams.get(name, value) for one in filled], jnp.float32)
            for name, value in self.experiment.hparams.items()
        }
        keys = jnp.stack([jax.random.key(trial.seed) for trial in filled])
        which = jnp.array([self.seeds.index(trial.seed) for trial in filled], jnp.int32)
        run = self._put((keys, hparams, which), P("runs"))
        seconds = {"compile": 0.0, "train": 0.0, "evaluate": 0.0, "new_clients": 0.0}
        with clock(seconds, "compile"):
            state = jax.block_until_ready(self.begin(run, self.data))
            if size not in self.compiled:
                self.compiled[size] = self._compile(size, state, run)
        program, config = self.compiled[size], self.config

        played, told = 0, []
        while played < config.rounds:
            step = min(config.eval_every, config.rounds - played)
            with clock(seconds, "train"):
                state, log = play_rounds(
                    lambda state, rounds: program.advance(state, run, self.data, rounds),
                    state,
                    step,
                )
            with clock(seconds, "evaluate"):
                scores, extras = jax.device_get(program.evaluate(state, run, self.data))
            played += step
            told.append((played, log, scores))
            report(len(batch) * step / config.rounds)
        new_clients = []
        if self.new_clients:
            with clock(seconds, "new_clients"):
                new_clients = self._join(state, run)
        share = {what: spent / size for what, spent in seconds.items()}
        outcomes = []
        for i, trial in enumerate(batch):
            own = jax.tree.map(
                lambda leaf: leaf[i], ([t[1:] for t in told], extras, new_clients)
            )  # noqa: B023
            rounds = [stop for stop, *_ in told]
            outcomes.append(self._outcome(trial, rounds, *own, share, program.traffic))
        compiling = seconds.pop("compile")
        return Played(outcomes, compiling, sum(seconds.values()), program.bytes)

    def _compile(self, size, state, run):
        advance = self.advance.lower(state, run, self.data, jnp.int32(1)).compile()
        evaluate = self.evaluate.lower(state, run, self.data).compile()
        held = max(_held(compiled) for compiled in (advance, evaluate))
        algorithm = self.experiment.build(self.experiment.hparams, 0)
        traffic = message_bytes(algorithm, tree.take(state, 0), self.experiment.federation.data)
        return _Compiled(advance, evaluate, held * self.devices // size, traffic)

    def _join(self, state, run):
        """Scores of the new clients after 0, 1, ... rounds at home, every leaf [runs, ...]."""
        everyone = [one.everyone for one in self.federations.values()]
        everyone = self._put(_stacked(everyone), P())
        state = self.admit(state, run, everyone)
        new_clients = []
        for played in range(self.config.new_clients.rounds + 1):
            state = self.adapt(state, run, everyone) if played else state
            scores, _ = jax.device_get(self.evaluate(state, run, everyone))
            new_clients.append(
                jax.tree.map(lambda leaf: leaf[..., -self.new_clients :], scores)
            )
        return new_clients

    def _outcome(self, trial, rounds, told, extras, new_clients, seconds, traffic) -> Outcome:
        """What became of one run of a batch: the same as alone it would have told."""
        config = with_seed(self.config, trial.seed)
        config.hparams.update(trial.hparams)
        experiment = self.experiment._replace(
            federation=self.federations[trial.seed],
            hparams={**self.experiment.hparams, **trial.hparams},
        )
        rows, broken = [], -1
        for played, (log, scores) in zip(rounds, told, strict=True):
            broken = diverged_at(log, scores, played)
            if broken >= 0:
                break
            row = {"round": np.int32(played), "train": log.metrics, "scores": scores}
            rows.append(row)
        joined = None
        if new_clients:
            joined = new_client_scores(
                experiment.federation, new_clients, experiment.model.task
            )
        results = results_of(
            config,
            experiment,
            rows,
            extras,
            joined,
            diverged=broken >= 0,
            seconds=seconds,
            played=played,
            traffic=traffic,
            where=self.where,
        )
        return Outcome(results, rows, new_clients)


def _held(compiled) -> int:
    """Bytes of a device that a compiled program holds while it runs."""
    told = compiled.memory_analysis()
    given = told.argument_size_in_bytes + told.output_size_in_bytes
    return given + told.temp_size_in_bytes - told.alias_size_in_bytes


def _stacked(data):
    """The data of several federations on a leading axis; of one, as they are."""
    if len(data) == 1:
        return data[0]
    edges = max(len(one.graph.senders) for one in data)
    data = [one._replace(graph=relations.padded(one.graph, edges)) for one in data]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *data)


def identity(config: ConfigDict) -> str:
    """What a run follows from, but for the data: its fields, as text."""
    return as_text(config, without=ELSEWHERE)


def with_seed(config: ConfigDict, seed: int) -> ConfigDict:
    """A copy of a configuration with another seed."""
    config = copy.deepcopy(config)
    config.seed = seed
    return config
