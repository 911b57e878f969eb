"""The program of a federation whose examples and memories of clients are on the host.

The host draws the cohorts of the next rounds from the run's key, by the function that rounds on
the device use. It sends the examples of these clients, and what they keep between rounds. An
execution of the program plays the rounds, and returns what the clients then keep. All numbers
have the same bits as if all clients were on the device.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Array, ClientData, Cohort, State
from graphfl_jax.devices import replicate
from graphfl_jax.evaluation import EVERYTHING, Scope
from graphfl_jax.program import Participation, Program, compile_all, key_of_round
from graphfl_jax.rounds import Drawn, Group, keys_of_round, sample_cohorts


class Counts(NamedTuple):
    """Takes the place of the training examples of all clients on the device."""

    count: Array  # [N] int32


class Round(NamedTuple):
    """What a round needs of its M clients; or several rounds, with a leading axis."""

    places: Array  # [M] int32, among the memories of the clients of all these rounds
    cohort: Cohort
    rows: ClientData  # every leaf [M, ...]


class Segment(NamedTuple):
    """The rounds of one execution."""

    played: Array  # [] int32, rounds before the first of them
    rounds: Round  # every leaf [R, M, ...]


class Some(NamedTuple):
    """Some clients, for an evaluation."""

    ids: Array  # [C] int32
    data: Any  # their `FederatedData`, without relations


class Remembered(NamedTuple):
    """What is known of the memories of some clients."""

    ids: Array  # [C] int32
    memories: Any  # every leaf [C, ...]
    known: Array  # [C] bool; the others have only enrolled


class Streamed(NamedTuple):
    """The compiled functions of a `StreamedProgram`."""

    start: Any
    plan: Any
    recall: Any
    advance: Any  # donates the state
    evaluate: Any
    predictors: Any


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedProgram:
    """Functions of a state whose memories are those of the clients that a function needs.

    Where an argument `data` has all clients, these are their relations, the numbers of their
    examples (`Counts`) and the order of attackers.

    Attributes:
      program: of clients of one architecture.
      rounds: R, the most in one execution.
    """

    program: Program
    rounds: int

    def start(self, key: Array, hparams: dict, data, server: Any = None) -> State:
        """As `Program.start`, without the memories of the clients."""
        first = self.program.first_server(key, hparams, data, server)
        return State(first, ((),), jnp.int32(0), self.program.first_seconds(hparams))

    def plan(self, state: State, key: Array, hparams: dict, data) -> Cohort:
        """The cohorts of R rounds, [R, M].

        Args:
          data: numbers [N] of examples, and rounds played before.
        """
        counts, played = data
        algorithm = self.program.build(hparams, played)

        def of_round(played):
            keys = keys_of_round(key_of_round(key, played))
            groups = self.program.groups
            before = State((), (), played)
            _, (cohort,) = sample_cohorts(algorithm, before, counts, keys.cohort, groups)
            return cohort

        return jax.lax.map(of_round, played + jnp.arange(self.rounds, dtype=jnp.int32))

    def recall(self, state: State, key: Array, hparams: dict, data: Remembered) -> Any:
        """The memories of some clients: what they keep, or what they had when they enrolled.

        Args:
          state: from `start`.
        """
        memories = self.program.enrolled(state.server, key, hparams, 0, data.ids)

        def choose(kept, first):
            known = data.known.reshape(-1, *[1] * (first.ndim - 1))
            return jnp.where(known, kept, first)

        return jax.tree.map(choose, data.memories, memories)

    def advance(self, state: State, key: Array, hparams: dict, data, rounds: Array):
        """As `Program.advance`; the entries of the participation are [R * M], by round.

        Args:
          state: with the memories of the clients of the segment.
          data: of all clients, and the `Segment`.
        """
        everyone, segment = data

        def draw(algorithm, state):
            now = tree.take(segment.rounds, state.round - segment.played)
            places, cohort = replicate((now.places, now.cohort), self.program.mesh)
            drawn = Drawn((places,), (cohort,), (now.rows,))
            return lambda state, key: drawn

        def one_round(state):
            number, (_, size) = state.round - segment.played, segment.rounds.places.shape
            state, metrics, cohort, finite = self.program.one_round(
                key, hparams, draw, everyone.attack_rank, state
            )
            entries = number * size + jnp.arange(size, dtype=jnp.int32)
            return state, metrics, cohort._replace(ids=entries), finite

        nothing = Participation.nothing(segment.rounds.places.size)
        return self.program.play(one_round, state, rounds, nothing)

    def evaluate(
        self, state: State, key: Array, hparams: dict, data: Some, *, scope: Scope = EVERYTHING
    ):
        """As `Program.evaluate`, of some clients, whose memories the state has."""
        return self._of(data).evaluate(state, key, hparams, data.data, scope=scope)

    def predictors(self, state: State, key: Array, hparams: dict, data: Some):
        """As `Program.predictors`, of some clients, whose memories the state has."""
        return self._of(data).predictors(state, key, hparams, data.data)

    def compiled(self) -> Streamed:
        """The functions compiled, with results that are whole on each device of the mesh."""
        functions = functools.partial(getattr, self)
        static = {"evaluate": ("scope",)}
        return compile_all(functions, Streamed, static=static, mesh=self.program.mesh)

    def _of(self, some):
        """The program of some clients."""
        (group,) = self.program.groups
        here = Group(group.cohort_size, some.ids, group.at_once, held=True)
        return dataclasses.replace(self.program, groups=(here,))
