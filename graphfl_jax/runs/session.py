"""Sessions: a compiled program with its inputs, for one run or a batch of runs.

A single run splits its cohorts over a mesh of clients. A batch is vmapped over runs, and split
over a mesh of runs. Both are compiled, played and evaluated here.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from graphfl_jax import tree
from graphfl_jax.build import Experiment
from graphfl_jax.core import State
from graphfl_jax.declarations import NOTHING
from graphfl_jax.devices import client_mesh
from graphfl_jax.evaluation import EVERYTHING, POINTS, Evaluated, Scope, not_finite
from graphfl_jax.program import Compiled, Log, Participation, Program, compile_all, play_rounds
from graphfl_jax.rounds import message_bytes
from graphfl_jax.runs.executables import Kept


class Inputs(NamedTuple):
    """The inputs of a program: of one run, or with a leading axis of runs."""

    key: jax.Array
    hparams: dict[str, jax.Array]
    data: Any  # `FederatedData`, or `RunsData` of a batch


class RunsData(NamedTuple):
    """The data of a batch of runs."""

    which: Any  # [runs] int32, the federation of each run
    federations: Any  # `FederatedData`, every leaf [federations, ...]; of one, without the axis


class Evaluation(NamedTuple):
    """What is known after an evaluation. In a batch, every leaf begins with [runs]."""

    played: int  # rounds
    state: State
    log: Log  # since the last evaluation
    chosen: Evaluated  # of the chosen splits and points
    final: Evaluated | None  # everything, after the last round
    models: tuple  # `Evaluated.models` after the last round, on the devices


class Session:
    """Functions of the state, with the program's inputs bound.

    Attributes:
      state: before the first round.
      advance: (state, rounds) -> (state, log); donates the state.
      evaluate: (state) -> `Evaluated`.
      evaluate_chosen: the same for the splits and points of `scope`.
      chosen_is_all: whether these are all.
    """

    def __init__(
        self,
        program: Compiled,
        inputs: Inputs,
        *,
        scope: Scope | None = EVERYTHING,
        kept: Kept | None = None,
    ):
        """Makes the first state, and compiles what is not kept, see `Kept.begin`.

        Args:
          scope: what the evaluations before the last round compute; None: there is none.
          kept: of sessions with inputs of the same shapes.
        """
        self.program, self.inputs, self.kept = program, inputs, kept or Kept()
        self.chosen_is_all = scope == EVERYTHING
        self.state = jax.block_until_ready(self.kept.begin(program, inputs, scope))

    def start(self, server: Any = None) -> State:
        """The state before the first round; also from the state of another run's server."""
        return self.program.start(*self.inputs, server)

    def saved(self) -> dict[str, Any]:
        """What a checkpoint has beside the state."""
        return {}

    def restore(self, saved: dict[str, Any]) -> None:
        """Continues from `saved`."""

    def advance(self, state, rounds):
        return self.kept.executable("advance")(state, *self.inputs, rounds)

    def evaluate_chosen(self, state):
        return self.kept.executable("evaluate_chosen")(state, *self.inputs)

    def evaluate(self, state):
        if self.chosen_is_all:
            return self.evaluate_chosen(state)
        return self.kept.call("evaluate", self.program.evaluate, state, self.inputs)

    def predictors(self, state):
        """`evaluation.predictors_of_clients` of a single run."""
        return self.kept.call("predictors", self.program.predictors, state, self.inputs)

    def join(self, state, everyone, rounds: int) -> Iterator[tuple[State, dict]]:
        """The state after new clients have joined and after each of their rounds; their scores.

        Args:
          everyone: data of all clients, the new ones last.
        """
        program, call = self.program, self.kept.call
        inputs = self.inputs._replace(data=everyone)
        state = call("admit", program.admit, state, inputs)
        for played in range(rounds + 1):
            if played:
                state = call("adapt", program.adapt, state, inputs)
            evaluated = call("evaluate_joined", program.evaluate, state, inputs, joined=True)
            yield state, jax.device_get(evaluated).scores


def play(
    session: Session, config: ConfigDict, state: State, seconds: dict[str, float]
) -> Iterator[Evaluation]:
    """Plays to the last round of a configuration, and evaluates every ``eval_every`` rounds.

    Args:
      state: to start from, in which all runs have played the same number of rounds.
      seconds: to which the times of ``train`` and ``evaluate`` are added.
    """
    played = int(np.max(jax.device_get(state.round)))
    while played < config.rounds:
        step = min(config.eval_every - played % config.eval_every, config.rounds - played)
        with clock(seconds, "train"):
            state, log = jax.block_until_ready(play_rounds(session.advance, state, step))
        played += step
        with clock(seconds, "compile"):
            session.kept.wait()
        with clock(seconds, "evaluate"):
            chosen, models = fetch(session.evaluate_chosen(state))
            final = chosen
            if played < config.rounds:
                final, models = None, ()
            elif not session.chosen_is_all:
                final, models = fetch(session.evaluate(state))
        yield Evaluation(played, state, log, chosen, final, models)


def fetch(evaluated: Evaluated) -> tuple[Evaluated, tuple]:
    """What an evaluation gives, on the host; and the models, which stay on the devices."""
    return jax.device_get(evaluated._replace(models=())), evaluated.models


def program_of(
    experiment: Experiment, config: ConfigDict, mesh: Mesh | None = None, *, models: int = 0
) -> Compiled:
    """The compiled `program_at_sizes`."""
    return program_at_sizes(experiment, config, mesh, models=models).compiled()


def program_at_sizes(
    experiment: Experiment, config: ConfigDict, mesh: Mesh | None = None, *, models: int = 0
) -> Program:
    """The program of an experiment at a configuration's sizes."""
    program = Program(
        experiment.build,
        experiment.groups,
        experiment.joined,
        poison=experiment.poison,
        eval_batch_size=config.eval_batch_size,
        clients_per_eval=config.clients_per_eval,
        mesh=mesh,
        models=models,
        precision=config.precision,
    )
    if experiment.together is None:
        return program
    build, groups = experiment.together
    # It plays few rounds, each of them whole on every device.
    whole = dataclasses.replace(program, build=build, groups=groups, joined=(), mesh=None)
    return dataclasses.replace(program, together=whole)


def scope_of(config: ConfigDict) -> Scope:
    """What the evaluations before the last round compute."""
    return Scope(config.eval.points or POINTS, config.eval.splits)


def mesh_of(experiment: Experiment) -> Mesh | None:
    """The mesh over which the cohorts of an experiment are split."""
    return client_mesh(*(group.cohort_size for group in experiment.groups))


def traffic_of(
    kept: Kept, experiment: Experiment, hparams: Mapping[str, float] = NOTHING
) -> list[tuple[float, float]]:
    """Bytes of one client's message and of its upload in a round, for each architecture.

    Args:
      kept: of the program, whose runs have the same shapes. The traffic is kept with it, unless
        it depends on floats.
      hparams: in place of those of `experiment`, on which the bits of an upload may depend.
    """

    def algorithm():
        return experiment.build({**experiment.hparams, **hparams}, 0)

    def count():
        return message_bytes(algorithm(), experiment.federation.data, len(experiment.groups))

    if kept.remember("compressed", lambda: algorithm().upload_bits is not None):
        return count()
    return kept.remember("traffic", count)


def inputs_of(
    experiment: Experiment, seed: int, mesh: Mesh | None = None, *, data: Any = None
) -> Inputs:
    """The inputs of a single run, held whole by every device of a mesh.

    Args:
      data: None is that of all clients.
    """
    data = experiment.federation.data if data is None else data
    everywhere = None if mesh is None else NamedSharding(mesh, P())
    key = jax.jit(jax.random.key, static_argnums=0, out_shardings=everywhere)(seed)
    hparams = {name: jnp.float32(value) for name, value in experiment.hparams.items()}
    # One array after another, of which `np.asarray` computes all rows if it is `OnDemand`.
    data = jax.tree.map(lambda leaf: place(np.asarray(leaf), everywhere), data)
    return Inputs(key, place(hparams, everywhere), data)


def batch_program(program: Compiled, *, mesh: Mesh | None, federations: int) -> Compiled:
    """The program of a batch: vmapped over runs, and split over the mesh ``runs``.

    Args:
      mesh: of the axis "runs"; None is one device.
      federations: number of federations in `RunsData`.
    """
    inputs = (0, 0, RunsData(0, None))
    axes = {"start": inputs, "advance": (0, *inputs, None)}  # of runs; None is shared

    def lift(name):
        def play(*arguments, **static):
            def play_one(*arguments):
                arguments = (_of_run(argument, federations) for argument in arguments)
                return getattr(program, name)(*arguments, **static)

            return _map_runs(play_one, axes.get(name, (0, *inputs)), mesh)(*arguments)

        return play

    return compile_all(lift)


def _map_runs(function, axes, mesh):
    """A function of one run, vmapped over runs and split over the mesh ``runs``."""
    many = jax.vmap(function, axes)
    if mesh is None:
        return many
    specs = jax.tree.map(
        lambda axis: P() if axis is None else P("runs"), axes, is_leaf=lambda axis: axis is None
    )
    return jax.shard_map(
        many,
        mesh=mesh,
        in_specs=specs,
        out_specs=P("runs"),
        check_vma=False,  # runs are independent, so nothing is ever summed over them
    )


def _of_run(argument, federations):
    """The argument of one run; of one federation, all runs share the data."""
    if not isinstance(argument, RunsData):
        return argument
    if federations == 1:
        return argument.federations
    return tree.take(argument.federations, argument.which)


def place(values, sharding):
    """Values that all processes have, on the devices of a sharding that splits none of them."""
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(values, sharding)

    def place_leaf(leaf):
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf)

    return jax.tree.map(place_leaf, values)


def ended_at(
    log: Log | None, participation: Participation, evaluated: Evaluated, played: int
) -> int:
    """The round that ended a run, since the server, or all clients at L or P, are not finite.

    -1 if none did. If it is the clients, it is the first round in which one was not finite.

    Args:
      log: of the rounds since the last evaluation, if there are any.
      participation: of all rounds.
      evaluated: what the evaluation gave.
      played: rounds before it.
    """
    if log is not None and int(log.diverged_at) >= 0:
        return int(log.diverged_at)
    of_server = (evaluated.allocation, evaluated.rejected)
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(of_server))
    if finite and not not_finite(evaluated.scores, ("L", "P")).all():
        return -1
    return participation.since if participation.since > 0 else played


@contextlib.contextmanager
def clock(seconds: dict[str, float], what: str):
    """Adds the time of a block to ``seconds[what]``."""
    began = time.perf_counter()
    yield
    seconds[what] += time.perf_counter() - began
