"""The program: starts a federation, plays rounds, evaluates, admits new clients.

A `Program` turns an algorithm into pure functions of a `State`, and `Program.compiled` compiles
them. The local steps of all sampled clients, the server's steps, and all rounds between two
evaluations are one XLA program. Whole runs may be vmapped, over keys, hyperparameters and
data.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Cohort, State
from graphfl_jax.evaluation import EVERYTHING, Scope, evaluate_clients, predictors_of_clients
from graphfl_jax.rounds import (
    Group,
    Poison,
    draw_round,
    ids_at,
    play_round,
    rows_of,
    train_cohort,
)

ROUNDS_PER_EXECUTION = 20  # at most, see `play_rounds`


class Participation(NamedTuple):
    """How clients took part in rounds.

    On devices there is an entry for each of the N clients. On the host, those of clients that
    took no part can be left out, which of a million clients are most.
    """

    trained: Array  # [n] int32, rounds in which each trained
    not_finite: Array  # [n] int32, rounds in which it did not, since a number was not finite
    # [2] int32, of all these the first round and its first client; -1 without any
    first: Array
    ids: Array | None = None  # [n] int32, ascending, the clients of the entries; None is all N

    @property
    def since(self) -> int:
        """The first round in which a number of a client was not finite, or -1."""
        return int(self.first[0])

    def sparse(self) -> "Participation":
        """The same with `ids`, without the clients that took no part, in NumPy arrays."""
        trained, not_finite = np.asarray(self.trained), np.asarray(self.not_finite)
        places = np.flatnonzero((trained != 0) | (not_finite != 0))
        ids = places if self.ids is None else np.asarray(self.ids)[places]
        first = np.asarray(self.first)
        return Participation(trained[places], not_finite[places], first, ids.astype(np.int32))

    def rounds_trained(self, clients: np.ndarray) -> np.ndarray:
        """The rounds in which each of some clients trained, [n]."""
        trained = np.asarray(self.trained)
        if self.ids is None:
            return trained[clients]
        return _spread(trained, np.asarray(self.ids), clients)

    def not_finite_rounds(self) -> dict[int, int]:
        """By client the rounds in which a number was not finite, of those that have some."""
        rounds = np.asarray(self.not_finite)
        places = np.flatnonzero(rounds)
        ids = places if self.ids is None else np.asarray(self.ids)[places]
        return dict(zip(ids.tolist(), rounds[places].tolist(), strict=True))

    @classmethod
    def nothing(cls, clients: int) -> "Participation":
        """Before the first round."""
        none = jnp.zeros(clients, jnp.int32)
        return cls(none, none, jnp.full(2, -1))

    def add(self, cohort: Cohort, finite: Array, played: Array) -> "Participation":
        """With one more round, after which as many have been played as `played` says."""
        trained = finite & (cohort.weights > 0)
        broken = jnp.stack([played, jnp.min(jnp.where(finite, len(self.trained), cohort.ids))])
        return Participation(
            self.trained.at[cohort.ids].add(trained.astype(jnp.int32)),
            self.not_finite.at[cohort.ids].add((~finite).astype(jnp.int32)),
            jnp.where((self.first[0] < 0) & ~jnp.all(finite), broken, self.first),
        )


# Before the first round, on the host.
NOBODY = Participation(*np.zeros((2, 0), np.int32), np.full(2, -1), np.zeros(0, np.int32))


class Log(NamedTuple):
    """What is known of the rounds between two evaluations."""

    metrics: dict[str, Array]  # means over cohort and rounds of the metrics of `local`
    diverged_at: Array  # [] int32, the first round that left a non-finite server, or -1
    participation: Participation


class Streams(NamedTuple):
    """Independent keys of a run. Their order decides all random numbers."""

    start: Array
    rounds: Array
    evaluations: Array
    new_clients: Array
    attackers: Array


class Compiled(NamedTuple):
    """The compiled functions of a `Program`, with the same arguments.

    All arguments but `scope` and `joined` are traced: none of their values recompiles.
    """

    start: Callable
    advance: Callable  # donates the state
    evaluate: Callable
    predictors: Callable
    admit: Callable
    adapt: Callable


def streams_of(key: Array) -> Streams:
    """The streams of a run with this key."""
    return Streams(*jax.random.split(key, len(Streams._fields)))


def key_of_init(key: Array) -> Array:
    """The key that `Server.init` gets in a run with this key."""
    return jax.random.split(streams_of(key).start)[0]


def key_of_round(key: Array, played: Array) -> Array:
    """The key of the next round of a run with this key, after as many have been played."""
    return jax.random.fold_in(streams_of(key).rounds, played)


def depends_on(function: Callable, argument) -> Any:
    """For each leaf of ``function(argument)``, whether it depends on an array in `argument`."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(argument)
    outputs = range(len(program.jaxpr.outvars))
    used = [
        any(partial_eval.dce_jaxpr(program.jaxpr, [i == k for i in outputs])[1])
        for k in outputs
    ]
    return jax.tree.unflatten(jax.tree.structure(shapes), used)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A federated algorithm as pure functions of the state, of one run.

    Attributes:
      build: (hparams, rounds played) -> Algorithm. It is called inside the trace, with traced
        numbers, so that another learning rate never recompiles, and a grid of them is a vmap.
      groups: the clients of each architecture that train, in the order of `Algorithm.clients`.
      joined: the clients of each of `Algorithm.clients` after `admit`. Of each group, the last
        `cohort_size` clients are those that it adds.
      together: the program of all clients, of which new ones play ordinary rounds; None: they
        adapt alone.
      poison: hparams -> what malicious clients do.
      eval_batch_size: examples scored at once, per client.
      clients_per_eval: clients evaluated at once; 0 is all.
      mesh: devices over which a cohort is split, from `client_mesh`.
      models: bytes up to which a complete evaluation returns the predictors of all clients too.
      precision: of products, see `with_products`.
    """

    build: Callable[[dict, Array], Algorithm]
    groups: Sequence[Group]
    joined: Sequence[Group] = ()
    together: "Program | None" = None
    poison: Callable[[dict], Poison] = lambda hparams: Poison()
    eval_batch_size: int = 512
    clients_per_eval: int = 0
    mesh: Mesh | None = None
    models: int = 0
    precision: str = "float32"

    def start(self, key: Array, hparams: dict, data, server: Any = None) -> State:
        """The state before the first round, in which all clients have enrolled.

        Args:
          server: the state of a server from which the run begins. What the server computes of
            the relations is that of this run's relations. None: the method's own.
        """
        first = self.first_server(key, hparams, data, server)
        everyone = jnp.arange(data.train.count.shape[0], dtype=jnp.int32)
        clients = tuple(
            self.enrolled(first, key, hparams, g, rows_of(group, everyone))
            for g, group in enumerate(self.groups)
        )
        return State(first, clients, jnp.int32(0), self.first_seconds(hparams))

    def first_seconds(self, hparams: dict) -> Any:
        """`State.seconds` before the first round."""
        return jnp.float32(0) if self.build(hparams, jnp.int32(0)).clocked else ()

    def first_server(self, key: Array, hparams: dict, data, server: Any) -> Any:
        """The state of the server before the first round; arguments as of `start`."""
        algorithm = self.build(hparams, jnp.int32(0))
        init = functools.partial(algorithm.server.init, key_of_init(key))
        first = init(data.graph)
        if server is None:
            return first
        related = depends_on(init, data.graph)
        return jax.tree.map(
            lambda old, new, changes: new if changes else old, server, first, related
        )

    def enrolled(self, first: Any, key: Array, hparams: dict, group: int, ids: Array) -> Any:
        """The memories of clients `ids` of a group before the first round.

        Args:
          first: from `first_server`.
        """
        _, key_clients = jax.random.split(streams_of(key).start)
        return enroll(self.build(hparams, jnp.int32(0)), first, group, ids, key_clients)

    def advance(self, state: State, key: Array, hparams: dict, data, rounds: Array):
        """The state after `rounds` more rounds, and their `Log`."""
        data = self._with_poison(key, hparams, data)

        def draw(algorithm, state):
            return functools.partial(draw_round, algorithm, data, self.groups, self.mesh)

        nothing = Participation.nothing(data.train.count.shape[0])
        one_round = functools.partial(self.one_round, key, hparams, draw, data.attack_rank)
        return self.play(one_round, state, rounds, nothing)

    def play(self, one_round: Callable, state: State, rounds: Array, nothing: Participation):
        """The state after `rounds` more rounds, and their `Log`.

        Args:
          one_round: `one_round` with all arguments but the state; it may change the ids of the
            cohort that it returns to their places in the `Participation`.
          nothing: from `Participation.nothing`.
        """
        one_round = jax.jit(one_round)  # traced once, for its shapes and for the loop

        def step(_, carry):
            state, sums, diverged_at, participation = carry
            state, metrics, *took_part = one_round(state)
            sums = jax.tree.map(jnp.add, sums, metrics)
            broken = (diverged_at < 0) & ~tree.all_finite(state.server)
            diverged_at = jnp.where(broken, state.round, diverged_at)
            return state, sums, diverged_at, participation.add(*took_part, state.round)

        _, shapes, *_ = jax.eval_shape(one_round, state)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        # The number of rounds is traced, so that one executable serves every interval, and a
        # run in pieces computes the same bits as a whole one.
        state, sums, *log = jax.lax.fori_loop(
            0, rounds, step, (state, zeros, jnp.int32(-1), nothing)
        )
        means = jax.tree.map(lambda leaf: leaf / rounds.astype(leaf.dtype), sums)
        return state, Log(means, *log)

    def one_round(self, key: Array, hparams: dict, draw: Callable, rank: Any, state: State):
        """The state after one more round, the means of its metrics, and who took part.

        Args:
          draw: (algorithm, state) -> the argument `draw` of `rounds.play_round`.
          rank: `FederatedData.attack_rank`.
        """
        algorithm = self.build(hparams, state.round)
        state, metrics, *took_part = play_round(
            algorithm,
            state,
            key_of_round(key, state.round),
            draw=draw(algorithm, state),
            groups=self.groups,
            mesh=self.mesh,
            poison=self.poison(hparams),
            rank=rank,
        )
        cohort, _ = took_part

        def mean(values):
            if cohort.present is None:
                return jnp.mean(values)
            return jnp.sum(jnp.where(cohort.present, values, 0.0)) / cohort.number

        return state, jax.tree.map(mean, metrics), *took_part

    def evaluate(
        self,
        state: State,
        key: Array,
        hparams: dict,
        data,
        *,
        scope: Scope = EVERYTHING,
        joined: bool = False,
    ):
        """The `evaluation.Evaluated` of a round; with `joined` of the new clients alone."""
        state, groups = self._new_clients(state, data) if joined else (state, self.groups)
        some = any(group.scored is not None for group in groups)
        return evaluate_clients(
            self.build(hparams, state.round),
            self._with_poison(key, hparams, data),
            state,
            self._key_of_evaluation(state, key),
            groups=groups,
            batch_size=self.eval_batch_size,
            at_once=self.clients_per_eval,
            mesh=self.mesh,
            scope=scope,
            models=self.models if scope == EVERYTHING and not (joined or some) else 0,
            key_of_init=key_of_init(key) if scope == EVERYTHING and not joined else None,
        )

    def predictors(
        self, state: State, key: Array, hparams: dict, data, *, joined: bool = False
    ):
        """`evaluation.predictors_of_clients`; with `joined` of all clients after `admit`."""
        return predictors_of_clients(
            self.build(hparams, state.round),
            self._with_poison(key, hparams, data),
            state,
            self._key_of_evaluation(state, key),
            groups=self.joined if joined else self.groups,
            at_once=self.clients_per_eval,
            mesh=self.mesh,
        )

    def admit(self, state: State, key: Array, hparams: dict, data) -> State:
        """The state with the new clients. `data` are those of all clients."""
        algorithm = self.build(hparams, state.round)
        key_server, key_clients = jax.random.split(streams_of(key).new_clients)
        _, ids = self._places_of_new(data)
        server = algorithm.server.admit(state.server, ids, data.graph, key_server)
        clients = list(state.clients)
        for g, group in enumerate(self.joined):
            if not group.cohort_size:
                continue
            added = enroll(algorithm, server, g, ids[g], key_clients)
            if g < len(self.groups):
                clients[g] = jax.tree.map(
                    lambda old, new: jnp.concatenate([old, new]), clients[g], added
                )
            else:
                clients.append(added)
        return state._replace(server=server, clients=tuple(clients))

    def adapt(self, state: State, key: Array, hparams: dict, data) -> State:
        """The state after a round of the new clients. `data` are those of all clients."""
        if self.together:
            return self.together.advance(state, key, hparams, data, jnp.int32(1))[0]
        algorithm = self.build(hparams, state.round).replacing(send=None)
        key_round = jax.random.fold_in(streams_of(key).new_clients, state.round)
        key_local, key_server = jax.random.split(key_round)
        places, ids = self._places_of_new(data)
        clients, uploads = list(state.clients), [None] * len(self.joined)
        cohorts = tuple(Cohort(new, data.train.count[new].astype(jnp.float32)) for new in ids)
        for g, group in enumerate(self.joined):
            if group.cohort_size:
                # New clients are few, and their number need not be a multiple of the devices.
                trained, uploads[g], *_ = train_cohort(
                    algorithm,
                    state,
                    g,
                    places[g],
                    cohorts[g],
                    tree.take(algorithm.client_data(data), ids[g]),
                    key_local,
                    at_once=group.at_once,
                )
                clients[g] = tree.put(clients[g], places[g], trained)
        server = algorithm.server.adapt_new_clients(
            state.server, cohorts, tuple(uploads), key_server
        )
        return State(server, tuple(clients), state.round + 1, state.seconds)

    def compiled(self) -> Compiled:
        """The functions compiled, with results that are whole on each device of the mesh."""
        return compile_all(
            lambda name: with_products(getattr(self, name), self.precision), mesh=self.mesh
        )

    def _with_poison(self, key, hparams, data):
        """The data after the attackers have changed theirs."""
        change = self.poison(hparams).data
        return data if change is None else change(data, streams_of(key).attackers)

    def _key_of_evaluation(self, state, key):
        return jax.random.fold_in(streams_of(key).evaluations, state.round)

    def _places_of_new(self, data):
        """Of each group that has been joined, the places and the ids of its new clients."""
        places = []
        for group in self.joined:
            size = len(rows_of(group, data.train.count))
            places.append(jnp.arange(size - group.cohort_size, size, dtype=jnp.int32))
        ids = [ids_at(group, new) for group, new in zip(self.joined, places, strict=True)]
        return tuple(places), tuple(ids)

    def _new_clients(self, state, data):
        """The state with the memories of the new clients alone, and their groups."""
        places, _ = self._places_of_new(data)
        memories = tuple(map(tree.take, state.clients, places))
        everyone, groups = np.arange(len(data.train.count), dtype=np.int32), []
        for group in self.joined:
            ids = rows_of(group, everyone)
            new = ids[len(ids) - group.cohort_size :]
            groups.append(group._replace(ids=new, scored=None))
        return state._replace(clients=memories), tuple(groups)


STATIC = {"evaluate": ("scope", "joined"), "predictors": ("joined",)}


def compile_all(
    function_of: Callable[[str], Callable],
    kind: Any = Compiled,
    *,
    static: Mapping[str, Sequence[str]] = STATIC,
    mesh: Mesh | None = None,
) -> Any:
    """Compiles functions with the arguments of those of a `Program`.

    Args:
      function_of: the name of one of them -> function.
      kind: the named tuple of the result.
      static: the names of their arguments that are not traced.
      mesh: on each device of which the results are whole.
    """
    whole = {} if mesh is None else {"out_shardings": NamedSharding(mesh, P())}
    special = {name: {"static_argnames": names} for name, names in static.items()}
    special["advance"] = {"donate_argnums": 0}
    # The text of a program, by which executables are kept, must have all its arguments.
    return kind(
        **{
            name: jax.jit(function_of(name), keep_unused=True, **special.get(name, {}), **whole)
            for name in kind._fields
        }
    )


def with_products(function: Callable, precision: str) -> Callable:
    """A function whose products of float32 have all bits, or those of TensorFloat-32.

    Without this, JAX computes them on a GPU in TensorFloat-32, with 10 bits of the mantissa
    instead of 23. CPUs always have all bits.

    Args:
      precision: one of `models.objectives.PRECISIONS`. With "bfloat16", the products that are
        not of bfloat16 have all bits.
    """
    of_jax = "tensorfloat32" if precision == "tensorfloat32" else "highest"

    @functools.wraps(function)
    def computed(*arguments, **static):
        with jax.default_matmul_precision(of_jax):
            return function(*arguments, **static)

    return computed


def enroll(algorithm: Algorithm, server: Any, group: int, ids: Array, key: Array) -> Any:
    """The memories of clients `ids` of a group after they have received their first message."""

    def enroll_one(i):
        message = algorithm.server.download(server, group, i)
        return algorithm.clients[group].enroll(message, jax.random.fold_in(key, i))

    return jax.vmap(enroll_one)(ids)


def play_rounds(advance: Callable, state, rounds: int) -> tuple[State, Log]:
    """Plays rounds in executions of ``advance(state, rounds)``.

    Each execution has at most `ROUNDS_PER_EXECUTION` rounds: in JAX 0.12 on CPUs, the memory of
    matrix products is freed only when an execution ends, which is 12 MB per round of a GRU.

    Returns:
      The state, and the log of all rounds, on the host.
    """
    logs, counts = [], []
    while rounds:
        counts.append(min(rounds, ROUNDS_PER_EXECUTION))
        state, log = advance(state, jnp.int32(counts[-1]))
        logs.append(jax.device_get(log))
        rounds -= counts[-1]
    if len(logs) == 1:
        return state, logs[0]
    shares = np.float32(counts) / np.float32(sum(counts))
    metrics = jax.tree.map(
        lambda *leaves: sum(share * leaf for share, leaf in zip(shares, leaves, strict=True)),
        *(log.metrics for log in logs),
    )
    participation = in_total([log.participation for log in logs])
    return state, Log(metrics, _first([log.diverged_at for log in logs]), participation)


def in_total(participations: Sequence[Participation]) -> Participation:
    """The participation of several runs of rounds, in their order.

    It has an entry for each client if all have, and else the `Participation.ids`.
    """
    trained, not_finite, first, ids = zip(*participations, strict=True)
    if all(some is None for some in ids):
        return Participation(sum(trained), sum(not_finite), _first(first))
    parts = [part if part.ids is not None else part.sparse() for part in participations]
    ids = np.unique(np.concatenate([part.ids for part in parts]))

    def add(name):
        return sum(_spread(getattr(part, name), part.ids, ids) for part in parts)

    return Participation(add("trained"), add("not_finite"), _first(first), ids)


def _spread(values, ids, clients):
    """The values [n] of clients `ids`, ascending, for each of some clients; 0 of others."""
    if not len(ids):
        return np.zeros(len(clients), values.dtype)
    places = np.minimum(np.searchsorted(ids, clients), len(ids) - 1)
    return np.where(ids[places] == clients, values[places], 0)


def _first(values):
    """The first of several values that is not negative, element by element; -1 if all are."""
    values = np.stack(values)
    return np.take_along_axis(values, np.argmax(values >= 0, axis=0)[None], axis=0)[0]
