"""The program: starts a federation, plays rounds, evaluates, admits new clients.

``make_program`` turns an algorithm into a few compiled functions. The local steps of all
sampled clients, the server's steps, and all rounds between two evaluations are one XLA program.
Whole runs may be vmapped on top, over keys, hyperparameters and data.
"""

import functools
from collections.abc import Callable, Sequence
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
from graphfl_jax.rounds import Group, Poison, members, play_round, train_cohort

ROUNDS_PER_EXECUTION = 20  # at most, see `play_rounds`


class Log(NamedTuple):
    """Training metrics between two evaluations."""

    metrics: dict[str, Array]  # means over cohort and rounds of the metrics of `local`
    diverged_at: Array  # [] int32, the first round that left a non-finite number, or -1


class Program(NamedTuple):
    """A compiled federation. All arguments are traced: none of their values recompiles."""

    start: Callable  # (key, hparams, data) -> State
    advance: Callable  # (state, key, hparams, data, rounds) -> (State, Log); donates state
    evaluate: Callable  # (state, key, hparams, data) -> `evaluation.Evaluated`
    evaluate_chosen: Callable  # the same for the chosen points and splits
    admit: Callable  # (state, key, hparams, data of all) -> State with the new clients
    adapt: Callable  # (state, key, hparams, data of all) -> State after a round of these
    evaluate_joined: Callable  # `evaluate` of the new clients after `admit`, with all data
    # (state, key, hparams, data) -> `evaluation.predictors_of_clients`, as `evaluate` has them
    predictors: Callable | None = None
    predictors_joined: Callable | None = None  # the same after `admit`, with the data of all
    # (server, key, hparams, data) -> State before the first round, of a given server's state
    start_from: Callable | None = None


def depends_on(function: Callable, argument) -> Any:
    """For each leaf of ``function(argument)``, whether it depends on an array in `argument`."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(argument)
    outputs = range(len(program.jaxpr.outvars))
    used = [
        any(partial_eval.dce_jaxpr(program.jaxpr, [i == k for i in outputs])[1])
        for k in outputs
    ]
    return jax.tree.unflatten(jax.tree.structure(shapes), used)


def make_program(
    build: Callable[[dict, Array], Algorithm],
    *,
    cohort_size: int = 0,
    groups: Sequence[Group] = (),
    eval_batch_size: int = 512,
    clients_per_eval: int = 0,
    scope: Scope = EVERYTHING,
    mesh: Mesh | None = None,
    joined: Sequence[Group] = (),
    poison: Callable[[dict], Poison] = lambda hparams: Poison(),
    models: int = 0,
) -> Program:
    """Compiles a federated algorithm.

    Args:
      build: (hparams, rounds played) -> Algorithm. It is called inside the trace, with traced
        numbers, so that another learning rate never recompiles, and a grid of them is a vmap.
      cohort_size: M, clients in a round, where all clients have one architecture.
      groups: otherwise, the clients of each architecture that train, in the order of
        `Algorithm.clients`.
      eval_batch_size: examples scored at once, per client.
      clients_per_eval: clients evaluated at once; 0 is all.
      scope: points and splits of `Program.evaluate_chosen`.
      mesh: devices over which a cohort is split, from `client_mesh`.
      joined: the clients of each of `Algorithm.clients` after `admit`. Of each group, the last
        `cohort_size` clients are those that it adds.
      poison: hparams -> what malicious clients do.
      models: bytes up to which `Program.evaluate` returns the predictors of all clients too.
    """
    groups, joined = tuple(groups) or (Group(cohort_size),), tuple(joined)

    def streams(key):
        """Independent keys for a run's start, rounds, evaluations, new clients, attackers."""
        return jax.random.split(key, 5)

    def with_poison(data, key, hparams):
        change = poison(hparams).data
        return data if change is None else change(data, streams(key)[4])

    def enrolled(algorithm, server, group, ids, key):
        """The memories of clients `ids` after they have received their first message."""

        def enroll(i):
            message = algorithm.download(server, group, i)
            return algorithm.clients[group].enroll(message, jax.random.fold_in(key, i))

        return jax.vmap(enroll)(ids)

    def start(key, hparams, data):
        algorithm = build(hparams, jnp.int32(0))
        key_server, key_clients = jax.random.split(streams(key)[0])
        server = algorithm.server.init(key_server, data.graph)
        return with_clients(algorithm, server, key_clients, data)

    def start_from(server, key, hparams, data):
        algorithm = build(hparams, jnp.int32(0))
        key_server, key_clients = jax.random.split(streams(key)[0])

        def init(graph):
            return algorithm.server.init(key_server, graph)

        # What the server computes of the relations is that of this run's relations.
        own = jax.tree.map(
            lambda given, fresh, related: fresh if related else given,
            *(server, init(data.graph), depends_on(init, data.graph)),
        )
        return with_clients(algorithm, own, key_clients, data)

    def with_clients(algorithm, server, key_clients, data):
        """The state before the first round, in which all clients have enrolled."""
        everyone = jnp.arange(data.train.count.shape[0], dtype=jnp.int32)
        clients = tuple(
            enrolled(algorithm, server, g, members(everyone, group), key_clients)
            for g, group in enumerate(groups)
        )
        return State(server, clients, jnp.int32(0))

    def advance(state, key, hparams, data, rounds):
        key_rounds = streams(key)[1]
        data = with_poison(data, key, hparams)

        @jax.jit  # so that it is traced once, for its shapes and for the loop
        def one_round(state):
            algorithm = build(hparams, state.round)
            key_round = jax.random.fold_in(key_rounds, state.round)
            state, metrics = play_round(
                *(algorithm, data, state, key_round),
                groups=groups,
                mesh=mesh,
                poison=poison(hparams),
            )
            return state, jax.tree.map(jnp.mean, metrics)

        def step(_, carry):
            state, sums, diverged_at = carry
            state, metrics = one_round(state)
            sums = jax.tree.map(jnp.add, sums, metrics)
            broken = (diverged_at < 0) & ~tree.all_finite((state.server, metrics))
            return state, sums, jnp.where(broken, state.round, diverged_at)

        _, shapes = jax.eval_shape(one_round, state)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        # The number of rounds is traced, so that one executable serves every interval, and a
        # run in pieces computes the same bits as a whole one.
        state, sums, diverged_at = jax.lax.fori_loop(
            0, rounds, step, (state, zeros, jnp.int32(-1))
        )
        means = jax.tree.map(lambda leaf: leaf / rounds.astype(leaf.dtype), sums)
        return state, Log(means, diverged_at)

    def key_of_evaluation(state, key):
        return jax.random.fold_in(streams(key)[2], state.round)

    def predictors(state, key, hparams, data, *, groups=groups):
        data = with_poison(data, key, hparams)
        return predictors_of_clients(
            *(build(hparams, state.round), data, state, key_of_evaluation(state, key)),
            groups=groups,
            at_once=clients_per_eval,
            mesh=mesh,
        )

    def evaluate(state, key, hparams, data, *, groups=groups, scope=EVERYTHING, models=0):
        data = with_poison(data, key, hparams)
        key_evaluation = key_of_evaluation(state, key)
        return evaluate_clients(
            *(build(hparams, state.round), data, state, key_evaluation),
            groups=groups,
            batch_size=eval_batch_size,
            at_once=clients_per_eval,
            mesh=mesh,
            scope=scope,
            models=models,
        )

    def last(data):
        """Of each group that has been joined, the places and the ids of its new clients."""
        sizes = [len(members(data.train.count, group)) for group in joined]
        places = [
            jnp.arange(size - group.cohort_size, size, dtype=jnp.int32)
            for size, group in zip(sizes, joined, strict=True)
        ]
        ids = [members(*own, of=True) for own in zip(places, joined, strict=True)]
        return tuple(places), tuple(ids)

    def admit(state, key, hparams, data):
        algorithm = build(hparams, state.round)
        key_server, key_clients = jax.random.split(streams(key)[3])
        _, ids = last(data)
        server = algorithm.admit(state.server, ids, data.graph, key_server)
        clients = list(state.clients)
        for g, group in enumerate(joined):
            if not group.cohort_size:
                continue
            added = enrolled(algorithm, server, g, ids[g], key_clients)
            if g < len(groups):
                clients[g] = jax.tree.map(
                    lambda old, new: jnp.concatenate([old, new]), clients[g], added
                )
            else:
                clients.append(added)
        return State(server, tuple(clients), state.round)

    def adapt(state, key, hparams, data):
        algorithm = build(hparams, state.round)
        key_round = jax.random.fold_in(streams(key)[3], state.round)
        key_local, key_server = jax.random.split(key_round)
        places, ids = last(data)
        clients, uploads = list(state.clients), [None] * len(joined)
        for g, group in enumerate(joined):
            if group.cohort_size:
                # New clients are few, and their number need not be a multiple of the devices.
                clients[g], uploads[g], _ = train_cohort(
                    *(algorithm, data, state, g, places[g], ids[g], key_local),
                    mesh=None,
                    at_once=group.at_once,
                )
        cohorts = tuple(Cohort(own, data.train.count[own].astype(jnp.float32)) for own in ids)
        server = algorithm.adapt_new_clients(state.server, cohorts, tuple(uploads), key_server)
        return State(server, tuple(clients), state.round + 1)

    def evaluate_joined(state, key, hparams, data):
        places, _ = last(data)
        of_new = state._replace(clients=tuple(map(tree.take, state.clients, places)))
        everyone = np.arange(len(data.train.count), dtype=np.int32)
        ids = [members(everyone, group) for group in joined]
        groups = tuple(
            group._replace(ids=own[len(own) - group.cohort_size :])
            for own, group in zip(ids, joined, strict=True)
        )
        return evaluate(of_new, key, hparams, data, groups=groups)

    everywhere = None if mesh is None else NamedSharding(mesh, P())
    # The text of a program, by which executables are kept, must have all its arguments.
    whole = {"out_shardings": everywhere, "keep_unused": True}
    complete = chosen = jax.jit(functools.partial(evaluate, models=models), **whole)
    if scope != EVERYTHING:
        chosen = jax.jit(functools.partial(evaluate, scope=scope), **whole)
    return Program(
        start=jax.jit(start, **whole),
        advance=jax.jit(advance, donate_argnums=0, **whole),
        evaluate=complete,
        evaluate_chosen=chosen,
        admit=jax.jit(admit, **whole),
        adapt=jax.jit(adapt, **whole),
        evaluate_joined=jax.jit(evaluate_joined, **whole),
        predictors=jax.jit(predictors, **whole),
        predictors_joined=jax.jit(
            functools.partial(predictors, groups=joined), out_shardings=everywhere
        ),
        start_from=jax.jit(start_from, out_shardings=everywhere),
    )


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
    diverged = np.stack([log.diverged_at for log in logs])
    first = np.take_along_axis(diverged, np.argmax(diverged >= 0, axis=0)[None], axis=0)[0]
    return state, Log(metrics, first)
