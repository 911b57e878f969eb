"""Debug mode: rounds client by client, without ``jit``, so that an error has a place.

Every function of the method is called by itself on concrete arrays. An exception, or a number
that is not finite, is raised as one line with the round, the client and the stage.
"""

import functools

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from graphfl_jax import tree
from graphfl_jax.build import Experiment
from graphfl_jax.core import Algorithm, State
from graphfl_jax.evaluation import EVERYTHING, evaluate_clients
from graphfl_jax.program import Log, Participation, key_of_init, streams_of
from graphfl_jax.rounds import draw_round, ids_at, play_round, rows_of
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
        logged, participation = [], Participation.nothing(len(self.data.train.count))
        for _ in range(int(rounds)):
            key = jax.random.fold_in(self.streams.rounds, state.round)
            call = functools.partial(self._call, int(state.round) + 1)
            algorithm, groups = self._algorithm(state), self.experiment.groups
            with jax.disable_jit():
                state, metrics, *took_part = play_round(
                    algorithm,
                    state,
                    key,
                    draw=functools.partial(draw_round, algorithm, self.data, groups, None),
                    groups=groups,
                    mesh=None,
                    poison=self.poison,
                    rank=self.data.attack_rank,
                    train=functools.partial(self._train_cohort, call),
                    call=functools.partial(call, SERVER),
                )
            logged.append(metrics)
            participation = participation.add(*took_part, state.round)
        means = jax.tree.map(lambda *values: jnp.mean(jnp.concatenate(values)), *logged)
        return state, Log(means, jnp.int32(-1), participation)

    def _train_cohort(self, call, algorithm, state, group, places, cohort, rows, key, *sizes):
        """`rounds.train_cohort`, client by client."""
        client, memories = algorithm.clients[group], tree.take(state.clients[group], places)
        trained = []
        for m, i in enumerate(cohort.ids.tolist()):
            message = call(i, "download", algorithm.server.download, state.server, group, i)
            memory, data = tree.take((memories, rows), m)
            arguments = (message, memory, data, jax.random.fold_in(key, i))
            trained.append(call(i, "local training", client.local, *arguments))
        # What is not finite has been refused.
        return *stack(trained), jnp.ones(len(trained))

    def evaluate(self, state):
        """Everything, as `evaluation.evaluate_clients`."""
        return self._evaluate(state, EVERYTHING)

    def evaluate_chosen(self, state):
        """The same for the chosen splits and points."""
        return self._evaluate(state, scope_of(self.config))

    join, predictors, start = Session.join, Session.predictors, Session.start  # compiled
    saved, restore = Session.saved, Session.restore

    def _evaluate(self, state, scope):
        return evaluate_clients(
            self._algorithm(state),
            self.data,
            state,
            jax.random.fold_in(self.streams.evaluations, state.round),
            groups=self.experiment.groups,
            batch_size=self.config.eval_batch_size,
            at_once=0,
            mesh=None,
            scope=scope,
            key_of_init=key_of_init(self.inputs.key),
            map_groups=functools.partial(self._map_groups, int(state.round)),
        )

    def _map_groups(
        self, played, of_client, shared, memories, groups, everyone, *sizes, places
    ):
        """`evaluation.map_clients_of_groups`, client by client."""
        for g, group in enumerate(groups):
            results, chosen = [], places[g]
            if chosen is None:
                chosen = range(len(rows_of(group, self.data.train.count)))
            for place in map(int, chosen):
                i = int(ids_at(group, jnp.int32(place)))
                rows = (tree.take(memories[g], place), tree.take(everyone, i))
                with jax.disable_jit():
                    score = functools.partial(of_client, g, shared, i, rows)
                    results.append(self._call(played, i, "evaluation", score))
            yield stack(results)

    def _algorithm(self, state) -> Algorithm:
        return self.experiment.build(self.inputs.hparams, state.round)

    def _call(self, number, who, stage, function, *arguments):
        """Calls a function; raises a ValueError that names round, client and stage."""
        if who != SERVER:
            who = f"client {self.experiment.federation.clients[who]!r} (number {who})"
        try:
            result = function(*arguments)
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"round {number}, {who}, {stage}: {why}") from error
        if not tree.all_finite(result):
            raise ValueError(
                f"round {number}, {who}, {stage}: a number is not finite; lower the learning "
                f"rate, or check the inputs of this client"
            )
        return result


def stack(results):
    """The results of several clients on a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)
