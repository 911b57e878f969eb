"""Debug mode: rounds client by client, without ``jit``, so that an error has a place.

Every function of the method is called by itself on concrete arrays. An exception, or a number
that is not finite, is raised as one line with the round, the client and the stage.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax import tree
from graphfl_jax.build import Experiment
from graphfl_jax.core import Algorithm, State
from graphfl_jax.evaluation import (
    EVERYTHING,
    Evaluated,
    allocation_and_rejected,
    score_points,
    split_results,
    splits_in,
)
from graphfl_jax.program import Log, streams_of
from graphfl_jax.rounds import ids_at, receive, rows_of, sample_cohorts
from graphfl_jax.runs.executables import Kept
from graphfl_jax.runs.session import Inputs, Session, inputs_of, program_of, scope_of

SERVER = "the server"


class DebugSession:
    """A `session.Session` whose rounds and evaluations run client by client without ``jit``."""

    def __init__(self, experiment: Experiment, config: ConfigDict):
        self.experiment, self.config = experiment, config
        self.chosen_is_all = scope_of(config) == EVERYTHING
        self.program = program_of(experiment, config)
        self.inputs: Inputs = inputs_of(experiment, config.seed)
        self.state: State = self.program.start(*self.inputs)
        self.kept = Kept()
        self.streams = streams_of(self.inputs.key)
        self.poison = experiment.poison(self.inputs.hparams)
        self.data = jax.tree.map(jnp.asarray, self.inputs.data)
        if self.poison.data is not None:
            self.data = self.poison.data(self.data, self.streams.attackers)

    def advance(self, state, rounds):
        """Plays rounds; the log has the means over cohort and rounds."""
        logged = []
        for _ in range(int(rounds)):
            with jax.disable_jit():
                state, metrics = self.play_round(state)
            logged += metrics
        means = jax.tree.map(lambda *values: jnp.mean(jnp.stack(values)), *logged)
        return state, Log(means, jnp.int32(-1))

    def play_round(self, state: State):
        """The next state, and the metrics of all clients of the cohort."""
        algorithm, data = self._algorithm(state), self.data
        key_round = jax.random.fold_in(self.streams.rounds, state.round)
        key_cohort, key_begin, key_local, key_server = jax.random.split(key_round, 4)
        call = functools.partial(self._call, int(state.round) + 1)
        places, cohorts = call(
            SERVER,
            "sampling",
            sample_cohorts,
            algorithm,
            state.server,
            data,
            key_cohort,
            self.experiment.groups,
        )
        server = call(
            SERVER, "begin_round", algorithm.server.begin_round, state.server, key_begin
        )
        memories, uploads, metrics = list(state.clients), [], []
        for g, cohort in enumerate(cohorts):
            trained = []
            for place, i in zip(places[g].tolist(), cohort.ids.tolist(), strict=True):
                memory, rows = self._rows(algorithm, memories[g], place, i)
                message = call(i, "download", algorithm.server.download, server, g, i)
                key = jax.random.fold_in(key_local, i)
                local = algorithm.clients[g].local
                trained.append(call(i, "local training", local, message, memory, rows, key))
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trained)
            memories[g] = tree.put(memories[g], places[g], stacked[0])
            uploads.append(stacked[1])
            metrics += [metric for _, _, metric in trained]
        server, uploads = call(
            SERVER,
            "attack and defence",
            receive,
            algorithm,
            self.poison,
            state._replace(server=server),
            places,
            cohorts,
            tuple(uploads),
            data,
            key_server,
        )
        aggregate = algorithm.server.aggregate
        server = call(SERVER, "aggregation", aggregate, server, cohorts, uploads, key_server)
        return State(server, tuple(memories), state.round + 1), metrics

    def evaluate(self, state):
        """Everything, as `evaluation.evaluate_clients`."""
        return self._evaluate(state, EVERYTHING)

    def evaluate_chosen(self, state):
        """The same for the chosen splits and points."""
        return self._evaluate(state, scope_of(self.config))

    join, predictors = Session.join, Session.predictors  # compiled

    def _evaluate(self, state, scope):
        algorithm = self._algorithm(state)
        key = jax.random.fold_in(self.streams.evaluations, state.round)
        evals, shared = (
            splits_in(scope, splits) for splits in (self.data.evals, self.data.shared)
        )
        results = {}
        for g, group in enumerate(self.experiment.groups):
            score = functools.partial(
                score_points, algorithm, g, self.config.eval_batch_size, scope.points
            )
            for place in range(len(rows_of(group, self.data.train.count))):
                i = int(ids_at(group, jnp.int32(place)))
                memory, data = self._rows(algorithm, state.clients[g], place, i)
                with jax.disable_jit():
                    results[i], _ = self._call(
                        int(state.round),
                        i,
                        "evaluation",
                        score,
                        (state.server, key, shared),
                        i,
                        (memory, (data, tree.take(evals, i))),
                    )
        ordered = [results[i] for i in sorted(results)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *ordered)
        scores = split_results(stacked, scope.points)
        return Evaluated(*scores, *allocation_and_rejected(algorithm, state))

    def _algorithm(self, state) -> Algorithm:
        return self.experiment.build(self.inputs.hparams, state.round)

    def _rows(self, algorithm, memories, place, i):
        """The memory and the data of one client."""
        return tree.take(memories, place), tree.take(algorithm.client_data(self.data), i)

    def _call(self, number, who, stage, function, *arguments):
        """Calls a function; raises a ValueError that names round, client and stage."""
        if who != SERVER:
            who = f"client {self.experiment.federation.clients[who]!r} (number {who})"
        try:
            result = function(*arguments)
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"round {number}, {who}, {stage}: {why}") from error
        if not tree.all_finite(_floats(result)):
            raise ValueError(
                f"round {number}, {who}, {stage}: a number is not finite; lower the learning "
                f"rate, or check the inputs of this client"
            )
        return result


def _floats(values):
    """The leaves that may be other than finite."""
    leaves = jax.tree.leaves(values)
    return [leaf for leaf in leaves if np.issubdtype(jnp.asarray(leaf).dtype, np.floating)]
