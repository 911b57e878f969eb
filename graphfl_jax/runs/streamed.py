"""The session of a run with `data.storage=host`, see `graphfl_jax.streamed`.

While the device plays the rounds of an execution, a thread gathers the examples of the clients
of the next one. What clients keep is read just before an execution, and written just after it.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax import tree
from graphfl_jax.build import Experiment
from graphfl_jax.core import ClientData, Cohort, FederatedData, State
from graphfl_jax.devices import fill_up
from graphfl_jax.evaluation import EVERYTHING, Evaluated, Scope
from graphfl_jax.memory import bytes_of, device_memory
from graphfl_jax.program import ROUNDS_PER_EXECUTION, Log, Participation, Program
from graphfl_jax.rounds import scored_ids
from graphfl_jax.runs.executables import Kept, options_of_one_call
from graphfl_jax.runs.memories import Memories
from graphfl_jax.runs.session import Inputs, place, scope_of
from graphfl_jax.streamed import Counts, Remembered, Round, Segment, Some, StreamedProgram

SHARE = 1 / 8  # of the device's memory, for the data of clients that are evaluated at once


class Ahead(NamedTuple):
    """The clients of an execution that is yet to be played."""

    played: int  # rounds before it
    ids: np.ndarray  # [R, M] int32
    members: np.ndarray  # [R * M] int32: each client once, then the last of them repeated
    rounds: Round  # on the device, every leaf [R, M, ...]


class StreamedSession:
    """A `session.Session` of which the device has only the clients that it needs.

    The states have no memories of clients. Those after the last round that was played are in
    `memories`.

    Attributes:
      state: before the first round.
    """

    def __init__(
        self,
        program: Program,
        inputs: Inputs,
        experiment: Experiment,
        config: ConfigDict,
        kept: Kept | None = None,
    ):
        """Makes the first state.

        Args:
          inputs: of which the data are from `without_examples`.
          kept: of sessions with inputs of the same shapes.
        """
        self.inputs, self.kept, self.sharding = inputs, kept or Kept(), inputs.key.sharding
        self.scope = scope_of(config)
        self.chosen_is_all, self.rounds = self.scope == EVERYTHING, config.rounds
        at_most = min(ROUNDS_PER_EXECUTION, config.eval_every, config.rounds)
        self.program = StreamedProgram(program, at_most).compiled()
        # By these names, executables for other numbers of rounds are kept beside each other.
        self.playing, self.planning = f"advance {at_most}", f"plan {at_most}"
        self.data, algorithm = experiment.federation.data, experiment.build(inputs.hparams, 0)
        self.client_data: Callable[[FederatedData], ClientData] = algorithm.client_data
        everyone = len(self.data.train.count)
        (keeps,) = algorithm.first_exchange(self.data, 1).memories
        self.memories = Memories(keeps, everyone)
        self.scored = scored_ids(experiment.groups, everyone)
        each = (bytes_of((self.data.train, self.data.evals)) + bytes_of(keeps)) / everyone
        fitting = max(1, int(SHARE * device_memory() / each))
        self.at_once = config.clients_per_eval or fitting
        self.thread, self.ahead, self.some = ThreadPoolExecutor(1, "clients"), None, None
        self.state = self.start()
        self.ahead = (0, self._gather_later(0))
        of_rounds = self._arguments_of_rounds(self.state, self.ahead[1].result(), 1)
        of_some = self._arguments(self.state, self.scored[: self.at_once])
        name, evaluate = self._evaluation(self.scope), self.program.evaluate
        self.kept.prepare(self.playing, self.program.advance, of_rounds, inputs, {})
        self.kept.prepare(name, evaluate, of_some, inputs, {}, scope=self.scope)
        self.kept.executable(self.playing)

    def start(self, server: Any = None) -> State:
        """The state before the first round; also from the state of another run's server."""
        if server is None:
            self.first = self._call_once("start", self.program.start, *self.inputs)
        else:
            self.first = self.program.start(*self.inputs, server)
        return jax.tree.map(jnp.copy, self.first)  # since `advance` donates it

    def saved(self) -> dict[str, Any]:
        """What a checkpoint has beside the state; {} if clients keep nothing."""
        records = self.memories.saved()
        if not records:
            return {}
        return records | {"first": tree.leaves_by_name(jax.device_get(self.first.server))}

    def restore(self, saved: dict[str, Any]) -> None:
        """Continues from `saved`."""
        if not saved:
            return
        self.memories.restore({name: saved[name] for name in ("ids", "records")})
        names = tree.leaves_by_name(self.first.server)
        leaves = [place(saved["first"][name], leaf.sharding) for name, leaf in names.items()]
        structure = jax.tree.structure(self.first.server)
        self.first = self.first._replace(server=jax.tree.unflatten(structure, leaves))

    def advance(self, state: State, rounds: int) -> tuple[State, Log]:
        """As `Program.advance`, of at most as many rounds as an execution has."""
        played, count = int(state.round), int(rounds)
        if self.ahead is None or self.ahead[0] != played:
            self.ahead = (played, self._gather_later(played))
        ahead = self.ahead[1].result()
        self.ahead = None
        if played + count < self.rounds:
            self.ahead = (played + count, self._gather_later(played + count))
        advance = self.kept.executable(self.playing)
        state, log = advance(*self._arguments_of_rounds(state, ahead, count))
        log = jax.device_get(log)
        self._keep(ahead, count, *state.clients)
        return state._replace(clients=((),)), _of_clients(log, ahead.ids)

    def _arguments_of_rounds(self, state, ahead, count):
        """The arguments of `advance`."""
        data = (self.inputs.data, Segment(jnp.int32(ahead.played), ahead.rounds))
        held = state._replace(clients=(self.recall(ahead.members),))
        return held, *self.inputs._replace(data=data), jnp.int32(count)

    def evaluate_chosen(self, state: State) -> Evaluated:
        return self._evaluate(state, self.scope)

    def evaluate(self, state: State) -> Evaluated:
        return self._evaluate(state, EVERYTHING)

    def predictors(self, state: State) -> Any:
        """`evaluation.predictors_of_clients`, on the host."""
        everyone = np.arange(len(self.data.train.count), dtype=np.int32)
        parts = self._over("predictors", self.program.predictors, state, everyone)
        return _join(parts, len(everyone))

    def bytes_of_models(self, state: State) -> int:
        """Bytes of the predictors of all clients."""
        client = np.zeros(1, np.int32)
        arguments = self._arguments(state, client)
        shapes = jax.eval_shape(self.program.predictors, *arguments)
        return bytes_of(shapes) * len(self.data.train.count)

    def _evaluate(self, state: State, scope: Scope) -> Evaluated:
        function, name = self.program.evaluate, self._evaluation(scope)
        parts = list(self._over(name, function, state, self.scored, scope=scope))
        fields = ("scores", "extras", "metrics", "losses")
        joined = _join([[getattr(part, f) for f in fields] for part in parts], len(self.scored))
        return parts[0]._replace(**dict(zip(fields, joined, strict=True)))

    def _evaluation(self, scope):
        """The name of the executable of an evaluation."""
        return "evaluate" if scope == EVERYTHING else "evaluate_chosen"

    def _over(self, name, function, state, ids, **static) -> Iterator[Any]:
        """A function of clients `ids`, of as many at once as fit; results are on the host."""
        size = min(self.at_once, len(ids))
        for some in fill_up(ids, size).reshape(-1, size):
            arguments = self._arguments(state, some)
            called = self.kept.get(name, function, arguments, self.inputs, {}, **static)
            yield jax.device_get(called(*arguments))

    def _arguments(self, state, ids):
        """The arguments of a function of some clients. Their data stay on the device."""
        if self.some is None or not np.array_equal(self.some[0], ids):
            self.some = None  # so that the device has those of one part at a time
            rows = tree.take((self.data.train, self.data.evals), ids)
            some = Some(ids, FederatedData(*rows, (), None, self.data.shared))
            self.some = (ids, place(some, self.sharding))
        held = state._replace(clients=(self.recall(ids),))
        return held, *self.inputs._replace(data=self.some[1])

    def recall(self, ids: np.ndarray) -> Any:
        """What some clients keep, every leaf [C, ...] on the device."""
        if not self.memories.width:
            return place(self.memories.read(ids), self.sharding)
        known = Remembered(ids, self.memories.read(ids), self.memories.known[ids])
        known = place(known, self.sharding)
        arguments = (self.first, *self.inputs._replace(data=known))
        return self._call_once(f"recall {len(ids)}", self.program.recall, *arguments)

    def _keep(self, ahead, count, memories):
        """Writes what the clients of the first `count` rounds keep."""
        if self.memories.width:
            ids = np.unique(ahead.ids[:count])
            rows = tree.take(jax.device_get(memories), np.searchsorted(ahead.members, ids))
            self.memories.write(ids, rows)

    def _gather_later(self, played) -> Future:
        """`Ahead` after so many rounds. Its cohorts are drawn before the device goes on."""
        data = (self.inputs.data.train.count, jnp.int32(played))
        arguments = (self.first, *self.inputs._replace(data=data))
        cohort = self._call_once(self.planning, self.program.plan, *arguments)
        return self.thread.submit(self._gather, played, cohort)

    def _call_once(self, name, function, *arguments):
        """Calls a function of little work, compiled with `options_of_one_call`."""
        options = options_of_one_call()
        return self.kept.get(name, function, arguments, self.inputs, options)(*arguments)

    def _gather(self, played, cohort: Cohort) -> Ahead:
        ids = np.asarray(cohort.ids)
        members, places = np.unique(ids, return_inverse=True)
        rows = tree.take(self.client_data(self.data), ids.reshape(-1))
        rows = jax.tree.map(lambda leaf: leaf.reshape(*ids.shape, *leaf.shape[1:]), rows)
        places = places.reshape(ids.shape).astype(np.int32)
        rounds = place(Round(places, cohort, rows), self.sharding)
        return Ahead(played, ids, fill_up(members, ids.size), rounds)


def without_examples(data: FederatedData) -> FederatedData:
    """What the device has of all clients: no examples."""
    return data._replace(train=Counts(data.train.count), evals={}, shared={})


def _of_clients(log: Log, ids: np.ndarray) -> Log:
    """A log whose participation has entries of clients in place of those of rounds [R, M]."""
    rounds, flat = log.participation, ids.reshape(-1)
    clients, at = np.unique(flat, return_inverse=True)
    at = at.reshape(-1)  # of some versions of NumPy, it has the form of `ids`
    trained, not_finite = (
        np.bincount(at, values).astype(np.int32)
        for values in (rounds.trained, rounds.not_finite)
    )
    played, entry = rounds.first.tolist()
    first = np.array([played, flat[entry] if played > 0 else -1], np.int32)
    return log._replace(participation=Participation(trained, not_finite, first, clients))


def _join(parts, count):
    """The first rows of several trees together."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *parts)
