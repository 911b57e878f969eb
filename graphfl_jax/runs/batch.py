"""Many runs as one program: trials that differ in seeds and in floats, vmapped."""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from graphfl_jax import memory, tree
from graphfl_jax.build import build_experiment
from graphfl_jax.configs.values import as_text, change, complete, current_values, values_of
from graphfl_jax.core import State
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation
from graphfl_jax.memory import bytes_of
from graphfl_jax.program import NOBODY, ROUNDS_PER_EXECUTION, in_total, play_rounds
from graphfl_jax.runs import stopping, views
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.executables import open_kept, private_folder
from graphfl_jax.runs.identity import (
    PATHS,
    digest_of_arrays,
    digest_of_config,
    digests_of_code,
    identity_of,
)
from graphfl_jax.runs.initial import check_not_single
from graphfl_jax.runs.models import LARGEST
from graphfl_jax.runs.results import (
    Course,
    names_scored,
    new_client_scores,
    new_seconds,
    results_of,
    row_of,
)
from graphfl_jax.runs.session import (
    Inputs,
    RunsData,
    Session,
    batch_program,
    clock,
    ended_at,
    fetch,
    mesh_of,
    play,
    program_of,
    scope_of,
    traffic_of,
)

GROWTH = 4  # factor from one size of a batch to the next
GAIN = 0.9  # largest time per run of a larger batch, relative to the smaller one
TRIED = 0.02  # share of a run's rounds that are played to time a size
MEMORY = 0.5  # largest share of the free memory that a batch takes
# Fields that change where data are and when a run is saved, but not its results.
ELSEWHERE = {"checkpoint_every", *PATHS}


class Trial(NamedTuple):
    """A run of a batch."""

    hparams: dict[str, float]  # values of fields of ``hparams``; the others stay
    seed: int  # of the split, the initial weights, the new clients and all draws


@dataclasses.dataclass(frozen=True, repr=False)
class Outcome(views.Viewed):
    """The outcome of a trial."""

    # As in results.json of a single run, with NaN for null; times are shares of a batch's
    results: dict
    rows: list[dict]  # as in `single.Result`
    # Scores of the new clients after 0, 1, ... of their rounds, {split: {point: [m]}}
    new_clients: list[dict]
    final: dict | None  # as in `single.Result`; in ``results``, the scores of such are NaN
    clients: tuple[str, ...] = ()  # as in `single.Result`
    models: tuple = ()  # if they were asked for, what `models.groups_of` takes


class Watched(NamedTuple):
    """A run of a batch after an evaluation."""

    index: int  # of its trial
    rows: list[dict]  # its evaluations so far, as in `single.Result`
    ends: bool  # whether it has ended
    seconds: dict[str, float]  # its share of the times so far
    state: Callable[[], State]  # computes its state, on the host


class Hooks(NamedTuple):
    """What a caller does after each evaluation of runs that are played together."""

    # Before the last round: gets evaluations of the runs, as in `single.Result`, by the indices
    # of their trials; says why some of them end now
    judge: Callable[[dict[int, list[dict]]], dict[int, str]] | None = None
    # Gets the runs that have finite numbers
    watch: Callable[[Iterator[Watched]], None] = lambda runs: None

    def since(self, begin: int) -> "Hooks":
        """The same for trials that are counted from `begin` on."""

        def judge(rows):
            whys = self.judge({begin + i: of_run for i, of_run in rows.items()})
            return {i - begin: why for i, why in whys.items()}

        def watch(runs):
            self.watch(run._replace(index=begin + run.index) for run in runs)

        return Hooks(self.judge and judge, watch)


NO_HOOKS = Hooks()


class Cost(NamedTuple):
    """What batches of one size take."""

    playing: float  # seconds of a run, without evaluations
    compiling: float  # seconds, with the first state
    bytes: int  # memory of a device per run


def run_trials(
    config: ConfigDict,
    federations: dict[int, Federation],
    trials: list[Trial],
    *,
    at_once: int = 0,
    report: Callable[[float], None] = lambda runs: None,
    keep_in: str | os.PathLike | bool | None = None,
    models: float = 0,
    hooks: Hooks = NO_HOOKS,
) -> Iterator[tuple[int, Outcome]]:
    """Runs trials in batches, each batch as one program split over the devices of this host.

    The devices share the runs of a batch, or with ``at_once=1`` the clients of a run.

    Args:
      config: the run that the trials vary.
      federations: for every seed, as `load_federation` of `with_seed` gives it.
      trials: in the order in which they are run.
      at_once: largest number of runs in a batch, rounded up to the number of devices; 0 finds
        one that is fast and fits into memory.
      report: called after every evaluation of a batch, with the number of runs that the played
        rounds amount to.
      keep_in: as in `single.run`.
      models: outcomes have the models of all clients, if those of a run have at most so many
        bytes.
      hooks: with indices of trials.

    Yields:
      The index of a trial and its outcome, batch by batch.

    Raises:
      ValueError: before anything runs, if a field or the data does not fit, or a trial has a
        float that the method does not read.
    """
    if not trials:
        return iter(())
    config = complete(config)
    federations = {seed: federations[seed] for seed in sorted({trial.seed for trial in trials})}
    experiment = build_experiment(config, next(iter(federations.values())))
    check_not_single(config, on_host=experiment.on_host)
    _check_hparams(config, experiment, trials)
    player = _Player(
        config,
        experiment,
        federations,
        devices=jax.local_devices()[: len(trials)],
        alone=at_once == 1,
        executables=private_folder(keep_in),
        models=models,
    )
    return _batches(player, trials, at_once, report, hooks)


def _check_hparams(config, experiment, trials):
    """Refuses a trial with a float that the method does not read."""
    names = {name for trial in trials for name in trial.hparams}
    if unread := sorted(names - set(experiment.hparams)):
        raise ValueError(
            f"hparams.{unread[0]} is not read by {config.algorithm.name}; "
            f"its floats are {', '.join(experiment.hparams)}"
        )


def _batches(player, trials, at_once, report, hooks):
    size = _even_size(len(trials), at_once) if at_once else _fastest_size(player, trials)
    size = player.whole(size)
    for begin in range(0, len(trials), size):
        outcomes = player.play(trials[begin : begin + size], size, report, hooks.since(begin))
        yield from enumerate(outcomes, begin)


def _fastest_size(player, trials):
    """The number of runs of a batch with which a run takes the least time.

    A few rounds of batches of 1, 4, 16, ... runs on each device are timed. Large batches can be
    slower than small ones: on CPUs, the state of few runs stays in the cache.
    """
    tried, size, held = [], 1, 0
    while True:
        size = player.whole(size)
        cost = player.time(trials[:size], size, evaluated=not tried)
        tried.append((size, cost.playing, cost.compiling))
        held = max(held, cost.bytes)
        limit = int(MEMORY * free_memory() / held) * player.devices
        following = next_size(tried, len(trials), max(1, limit))
        if following <= size:
            return following
        size = following


def next_size(tried: list[tuple[int, float, float]], left: int, limit: int) -> int:
    """The number of runs of a batch that is timed next; the largest tried or less ends it.

    Batches grow as long as runs become faster, fit into memory, and the time saved exceeds the
    time to compile another program, if all runs took half their time.

    Args:
      tried: for each size so far, its runs, seconds per run, and seconds to compile.
      left: runs to be played.
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
    return _even_size(left, larger)


def _even_size(left: int, limit: int) -> int:
    """The size of equal batches of at most `limit`, so that the last one is nearly full."""
    return math.ceil(left / math.ceil(left / limit)) if left else limit


def free_memory() -> int:
    """Free bytes of the device of this host that has the least."""
    devices = jax.local_devices()
    stats = [device.memory_stats() for device in devices]
    if all(stats):
        return min(each["bytes_limit"] - each["bytes_in_use"] for each in stats)
    import psutil

    # The devices share the host's memory, of which a container can have a part.
    left = memory.host_memory() - psutil.Process().memory_info().rss
    return max(0, min(psutil.virtual_memory().available, left)) // len(devices)


class _Player:
    """Plays batches of trials; has what is `Kept` of every size of them."""

    def __init__(
        self, config, experiment, federations, *, devices, alone, executables, models=0
    ):
        """Compiles nothing yet.

        Args:
          devices: to split runs over.
          alone: whether one run at a time is played, with its clients split over all devices.
          models: as of `run_trials`.
        """
        self.models, self.compiling = models, 0.0  # seconds, the most that a batch took
        self.config, self.experiment = config, experiment
        self.federations, self.folder = federations, executables
        self.seeds = list(federations)
        self.devices = 1 if alone else len(devices)
        clients = mesh_of(experiment) if alone else None
        runs = None
        if self.devices > 1:
            auto = (AxisType.Auto,)
            runs = jax.make_mesh((self.devices,), ("runs",), auto, devices=devices)
        self.mesh = clients if alone else runs
        program = program_of(experiment, config, clients, models=int(min(models, LARGEST)))
        self.program = batch_program(program, mesh=runs, federations=len(self.seeds))
        self.data = self._put(_stack([whole.data for whole in federations.values()]), P())
        self.kept = {}  # by number of runs
        self.where = environment()
        code = digests_of_code()
        self.identities = {
            seed: identity_of(config, federation, digest_of_arrays(federation), code)
            for seed, federation in federations.items()
        }

    def _put(self, leaves, spec):
        return jax.device_put(leaves, self.mesh and NamedSharding(self.mesh, spec))

    def whole(self, size):
        """The smallest number of runs, not below `size`, that the devices share equally."""
        return -(-size // self.devices) * self.devices

    def inputs(self, trials) -> Inputs:
        """The inputs of a batch."""
        hparams = {
            name: jnp.array([trial.hparams.get(name, value) for trial in trials], jnp.float32)
            for name, value in self.experiment.hparams.items()
        }
        keys = jnp.stack([jax.random.key(trial.seed) for trial in trials])
        which = jnp.array([self.seeds.index(trial.seed) for trial in trials], jnp.int32)
        split = P("runs") if self.devices > 1 else P()
        keys, hparams, which = self._put((keys, hparams, which), split)
        return Inputs(keys, hparams, RunsData(which, self.data))

    def time(self, batch, size, *, evaluated) -> Cost:
        """Times a few rounds of a batch, which is filled up as in `play`.

        Args:
          evaluated: whether evaluations are compiled and called too, since the last one, which
            has all points and splits, may need the most memory.
        """
        seconds, rounds = new_seconds(), self.config.rounds
        with clock(seconds, "compile"):
            scope = scope_of(self.config) if evaluated else None
            session = self._session(batch, size, scope)
            session.kept.wait()
        self.compiling = max(self.compiling, seconds["compile"])
        state, few = session.state, min(max(1, round(TRIED * rounds)), ROUNDS_PER_EXECUTION)
        times = []
        for _ in range(2):
            seconds["train"] = 0.0
            with clock(seconds, "train"):
                state, _ = jax.block_until_ready(play_rounds(session.advance, state, few))
            times.append(seconds["train"])
        if evaluated:
            jax.block_until_ready(session.evaluate(state))
        held = max(map(bytes_held, session.kept.ready.values())) * self.devices // size
        return Cost(min(times) / few * rounds / size, seconds["compile"], held)

    def _session(self, batch, size, scope):
        """The session of a batch, filled up to `size` with its last trial."""
        inputs = self.inputs(batch + batch[-1:] * (size - len(batch)))
        if size not in self.kept:
            self.kept[size] = open_kept(self.folder, self.experiment, self.config, inputs)
        return Session(self.program, inputs, scope=scope, kept=self.kept[size])

    def play(self, batch, size, report, hooks=NO_HOOKS) -> list[Outcome]:
        """Plays a batch, filled up to `size` with its last trial.

        When many of its runs have ended early, the others go on in a smaller batch.

        Args:
          hooks: with indices in `batch`.
        """
        config, seconds, largest = self.config, new_seconds(), size
        courses = {i: _Course() for i in range(len(batch))}
        ends, before, left, start = {}, 0, list(courses), None
        while len(ends) < len(batch):
            with clock(seconds, "compile"):
                session = self._session([batch[i] for i in left], size, scope_of(config))
            start = session.state if start is None else start
            for evaluation in play(session, config, start, seconds):
                played, state, log, chosen, final, _ = evaluation
                log, going = jax.device_get(log), [i for i in left if i not in ends]
                for i in going:
                    of_run = _results_at(left.index(i), (log, chosen, final or chosen))
                    courses[i].add(played, *of_run)
                ending = self._ending({i: courses[i] for i in going}, played, hooks.judge)
                at_end = self._at_end(session, evaluation, ending, courses, seconds)
                for i, why in ending.items():
                    ends[i] = courses[i], *_results_at(left.index(i), at_end), played, why
                share = {what: spent / largest for what, spent in seconds.items()}
                hooks.watch(_watched(going, left, courses, ending, state, share))
                rounds = config.rounds if len(ends) == len(batch) else played
                report(len(batch) * (rounds - before) / config.rounds)
                before = rounds
                rows = [row for row, i in enumerate(left) if i not in ends]
                smaller = self._smaller(len(rows), size, played, seconds)
                if not rows or smaller < size:
                    break
            if rows:
                start = self._rows(state, rows, smaller)
            left, size = [left[row] for row in rows], smaller
        share = {what: spent / largest for what, spent in seconds.items()}
        return [
            self._outcome(
                trial,
                *ends[i],
                share,
                traffic_of(session.kept, self.experiment, trial.hparams),
            )
            for i, trial in enumerate(batch)
        ]

    def _at_end(self, session, evaluation, ending, courses, seconds):
        """What is computed for all runs of a batch when some end: all scores, those of the new
        clients, and models. Nothing if those that end have diverged."""
        _, state, _, _, final, predictors = evaluation
        whole = [i for i in ending if courses[i].ended < 0]
        if not whole:
            return (), [], ()
        if final is None:
            final, predictors = fetch(session.evaluate(state))
        last, joined = self._join(session, state, seconds)
        return final, joined, self._models(session, state, last, predictors)

    def _smaller(self, left, size, played, seconds):
        """The size with which a batch goes on when so many of its runs are left.

        Another size is at most half of the present one. It has a program, or the time that it
        saves exceeds the time to compile one.
        """
        self.compiling = max(self.compiling, seconds["compile"])
        ready = [known for known in self.kept if left <= known <= size // 2]
        if ready:
            return min(ready)
        smaller = self.whole(left)
        rest = seconds["train"] / played * (self.config.rounds - played)
        worth = rest * (1 - smaller / size) > self.compiling
        return smaller if 2 * smaller <= size and worth else size

    def _rows(self, state, rows, size):
        """The state of the runs in some rows, filled up to `size` with the last one."""
        chosen = tree.take(state, np.array(rows + rows[-1:] * (size - len(rows))))
        return self._put(chosen, P("runs") if self.devices > 1 else P())

    def _ending(self, courses, played, judge) -> dict[int, str]:
        """Why runs of a batch end after their last evaluation, by their places."""
        config, task = self.config, self.experiment.model.task
        whys = {i: "" for i, course in courses.items() if course.ended >= 0}
        if played == config.rounds:
            return dict.fromkeys(courses, "")
        rows = {i: course.rows for i, course in courses.items() if i not in whys}
        stopped = {i: stopping.stops(config, of_run, task) for i, of_run in rows.items()}
        whys |= {i: why for i, why in stopped.items() if why}
        if judge is not None:
            whys |= judge({i: of_run for i, of_run in rows.items() if i not in whys})
        return whys

    def _join(self, session, state, seconds):
        """The state with the new clients, None without any, and their scores after 0, 1, ... of
        their rounds, every leaf [runs, ...]."""
        if not self.experiment.federation.new_clients:
            return None, []
        with clock(seconds, "new_clients"):
            rounds = self.config.new_clients.rounds
            states, scores = zip(
                *session.join(state, self._everyone(session), rounds), strict=True
            )
            return states[-1], list(scores)

    def _everyone(self, session):
        """The data of all clients, the new ones last."""
        everyone = [whole.everyone for whole in self.federations.values()]
        return RunsData(session.inputs.data.which, self._put(_stack(everyone), P()))

    def _models(self, session, state, last, predictors):
        """The predictors of the training clients and of all, on the host; () if they are too
        many, or were not asked for."""
        predict, inputs = session.program.predictors, session.inputs
        if not self.models:
            return ()
        if not predictors:
            most = self.models * len(inputs.key)
            if bytes_of(jax.eval_shape(predict, state, *inputs)) > most:
                return ()
            predictors = session.predictors(state)
        parts = [jax.device_get(predictors)]
        if last is not None:
            inputs = inputs._replace(data=self._everyone(session))
            parts.append(jax.device_get(predict(last, *inputs, joined=True)))
        return tuple(parts)

    def _outcome(
        self, trial, course, final, joined, models, played, stopped, seconds, traffic
    ) -> Outcome:
        """The outcome of one run of a batch, the same as of the single run."""
        config = config_of(self.config, trial)
        experiment = self.experiment._replace(
            federation=self.federations[trial.seed],
            hparams={**self.experiment.hparams, **trial.hparams},
        )
        ended = course.ended
        if stopped and ended < 0:
            ended = ended_at(None, course.participation, final, played)
        final = final if ended < 0 else None
        new_clients = None
        if joined and final:
            task = experiment.model.task
            new_clients = new_client_scores(
                experiment.federation, joined, task, experiment.joined
            )
        fields = {"config": digest_of_config(config.to_dict())}
        origin = {"identity": self.identities[trial.seed] | fields, "accepted_changes": []}
        whole = Course(
            course.rows,
            course.participation,
            final,
            new_clients,
            played,
            seconds,
            traffic,
            stopped,
        )
        results = results_of(config, experiment, whole, self.where | origin)
        names = names_scored(experiment)
        models = models if final else ()
        scores = final and final.scores
        return Outcome(results, course.rows, joined, scores, names, models)


class _Course:
    """The course of a run of a batch.

    Attributes:
      rows: its evaluations, as in `single.Result`.
      participation: of all its rounds.
      ended: the round that ended it, or -1, as `ended_at` gives it.
    """

    def __init__(self):
        self.rows, self.participation, self.ended = [], NOBODY, -1

    def add(self, played, log, chosen, complete):
        """Adds an evaluation: its rounds since the last one, what it chose, and all of it."""
        self.participation = in_total([self.participation, log.participation.sparse()])
        self.ended = ended_at(log, self.participation, complete, played)
        if self.ended < 0:
            self.rows.append(jax.tree.map(np.asarray, row_of(played, log, chosen)))


def _watched(going, left, courses, ending, state, seconds):
    """Yields `Watched` of the runs that have finite numbers.

    Args:
      going: their places in the batch.
      left: the places of the runs in the rows of the state.
    """
    host = functools.cache(lambda: jax.device_get(state))
    for i in going:
        if courses[i].ended < 0:
            of_run = functools.partial(lambda row: _results_at(row, host()), left.index(i))
            yield Watched(i, courses[i].rows, i in ending, seconds, of_run)


def _results_at(place, results):
    """The results of one run of a batch; numbers of rounds are those of all."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, int) else leaf[place], results)


def bytes_held(compiled) -> int:
    """Bytes of a device that a compiled program holds while it runs."""
    sizes = compiled.memory_analysis()
    arguments = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    return arguments + sizes.temp_size_in_bytes - sizes.alias_size_in_bytes


def _stack(data):
    """The data of several federations on a leading axis; of one, without it."""
    if len(data) == 1:
        return jax.tree.map(np.asarray, data[0])  # all rows of `OnDemand`
    edges = max(len(federation.graph.senders) for federation in data)
    rows, splits = [], []  # of clients, and those that all clients share
    for federation in data:
        graph = relations.pad_edges(federation.graph, edges)
        rows.append(federation._replace(graph=graph, shared={}))
        splits.append(federation.shared)
    shared = jax.tree.map(functools.partial(_pad_and_stack, 0), *splits)
    return jax.tree.map(functools.partial(_pad_and_stack, 1), *rows)._replace(shared=shared)


def _pad_and_stack(axis, *leaves):
    """Arrays of examples, stacked with zeros up to the largest number; others are stacked.

    The number of examples differs where the seed decides how many a client, or all, have.

    Args:
      axis: of the examples: 1 of clients [N, S, ...], and 0 of a split that all share [S, ...].
    """
    if len({leaf.shape for leaf in leaves}) > 1:
        size = max(leaf.shape[axis] for leaf in leaves)
        padded = []
        for leaf in leaves:
            widths = [(0, 0)] * leaf.ndim
            widths[axis] = (0, size - leaf.shape[axis])
            padded.append(np.pad(leaf, widths))
        leaves = padded
    return np.stack(leaves)


def fields_text(config: ConfigDict) -> str:
    """The fields that determine a run, as text: its name in a sweep."""
    return as_text(values_of(config)[0], without=ELSEWHERE)


def current_fields_text(text: str) -> str:
    """The `fields_text` of a run of an older release, with the fields that came later.

    It stays as it is where a method, a model or the like of the run is not known here.
    """
    try:
        return as_text(current_values(json.loads(text)), without=ELSEWHERE)
    except ValueError:
        return text


def with_seed(config: ConfigDict, seed: int) -> ConfigDict:
    """A copy of a configuration with another seed."""
    return change(config, {"seed": seed})


def config_of(config: ConfigDict, trial: Trial) -> ConfigDict:
    """The configuration of one run of a batch."""
    hparams = {f"hparams.{name}": value for name, value in trial.hparams.items()}
    return change(with_seed(config, trial.seed), hparams)
