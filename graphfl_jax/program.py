"""The verbs: start a federation, play rounds, evaluate, admit. All loops over clients are here.

``make_program`` turns an algorithm into a few compiled functions. All sampled clients' local
steps, the server's steps and every round between two evaluations are one XLA program; whole
runs may be vmapped on top, over keys, hyperparameters and data.
"""

import functools
import itertools
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from graphfl_jax import tree
from graphfl_jax.core import (
    Algorithm,
    Array,
    ClientModel,
    Cohort,
    Examples,
    State,
    Windows,
    use_message,
    use_model,
)


class Log(NamedTuple):
    """What is told of the rounds between two evaluations."""

    metrics: dict[str, Array]  # means over cohort and rounds of what `local` reports
    diverged_at: Array  # [] int32, the first round that left a non-finite number, or -1


ROUNDS_PER_EXECUTION = 20  # rounds of one execution at most, see `play_rounds`


class Program(NamedTuple):
    """A federation, compiled. All arguments are traced: none of their values recompiles."""

    start: Callable  # (key, hparams, data) -> State
    advance: Callable  # (state, key, hparams, data, rounds) -> (State, Log); donates state
    evaluate: Callable  # (state, key, hparams, data) -> scores and tallies: `evaluate_clients`
    admit: Callable  # (state, key, hparams, data of all) -> State with the new clients
    adapt: Callable  # (state, key, hparams, data of all) -> State after their round at home


def client_mesh(cohort_size: int, devices: list[jax.Device] | None = None) -> Mesh | None:
    """A mesh over the most devices that divide the cohort; None if that is one.

    Of several processes each has devices in it, since a computation needs all processes. Warns
    of devices that are left out.

    Args:
      cohort_size: clients in a round.
      devices: all that may be used, of this process; by default those of all processes.

    Raises:
      ValueError: no mesh over all processes divides the cohort.
    """
    processes = jax.process_count()
    if devices is None:
        own = [jax.local_devices(process_index=i) for i in range(processes)]
        devices = [device for turn in itertools.zip_longest(*own) for device in turn if device]
    sizes = range(processes, len(devices) + 1)
    size = max((n for n in sizes if cohort_size % n == 0), default=0)
    if not size:
        raise ValueError(
            f"cohort_size={cohort_size} does not divide over {processes} processes; "
            f"set --config.cohort_size to a multiple of {processes}, or start fewer processes"
        )
    if size < len(devices):
        warnings.warn(
            f"cohort_size={cohort_size} does not divide over {len(devices)} devices, of which "
            f"only {size} will train; set --config.cohort_size to a multiple of {len(devices)} "
            f"to use all",
            RuntimeWarning,
            stacklevel=2,
        )
    if size == 1:
        return None
    chosen = sorted(devices[:size], key=lambda device: device.process_index)
    return jax.make_mesh((size,), ("clients",), (AxisType.Auto,), devices=chosen)


def map_clients(one_client: Callable, mesh: Mesh | None) -> Callable:
    """Maps ``one_client(shared, i, rows)`` over ids [M] and rows [M, ...].

    A vmap, split over the devices of `mesh` if there is one; M must be a multiple of its size.
    """
    many = jax.vmap(one_client, in_axes=(None, 0, 0))
    if mesh is None:
        return many

    def on_one_device(shared, ids, rows):
        # A gradient with respect to a value that is the same on all devices would be summed
        # over the devices, and each client would train on the others' examples too.
        shared = jax.lax.pcast(shared, "clients", to="varying")
        return many(shared, ids, rows)

    whole, split = P(), P("clients")
    return jax.shard_map(
        on_one_device, mesh=mesh, in_specs=(whole, split, split), out_specs=split
    )


def replicate(values, mesh: Mesh | None):
    """The same values, of which every device of `mesh` is to hold all.

    Where the compiler is not told so it goes on splitting what comes before and after a
    cohort's training, and has the devices add up the gradients of each of a server's steps.
    """
    if mesh is None:
        return values
    return jax.lax.with_sharding_constraint(values, NamedSharding(mesh, P()))


def all_gather_rows(rows, mesh: Mesh | None):
    """Rows [M, ...] of any types, whole on every device of `mesh` that held a part of them.

    All rows of a type travel together: between hosts a message takes longer to begin than to
    send.
    """
    if mesh is None:
        return rows
    leaves, structure = jax.tree.flatten(rows)
    told = list(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):  # in one order on all hosts
        own = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        flat = [jax.vmap(jnp.ravel)(leaves[i]) for i in own]
        ends = np.cumsum([leaf.shape[1] for leaf in flat])
        parts = jnp.split(replicate(jnp.concatenate(flat, axis=1), mesh), ends[:-1], axis=1)
        for i, part in zip(own, parts, strict=True):
            told[i] = replicate(part.reshape(leaves[i].shape), mesh)
    return jax.tree.unflatten(structure, told)


def draw_cohort(key: Array, counts: Array, size: int, rank: Array | None = None) -> Cohort:
    """Draws `size` of the N clients without replacement, all equally likely."""
    ids = jax.random.permutation(key, counts.shape[0])[:size]
    # Ascending, so that a cohort is gathered and summed in one order however it was drawn.
    ids = jnp.sort(ids).astype(jnp.int32)
    return Cohort(ids, counts[ids].astype(jnp.float32), None if rank is None else rank[ids])


def play_round(algorithm: Algorithm, data, state: State, key: Array, *, cohort_size, mesh):
    """Plays one round: draw, prepare, download, train locally, upload, aggregate.

    Returns:
      The next state, and what every client of the cohort reported: a dictionary of [M].
    """
    key_cohort, key_prepare, key_local, key_server = jax.random.split(key, 4)
    cohort = draw_cohort(key_cohort, data.train.count, cohort_size, data.rank)
    cohort = replicate(cohort, mesh)
    state = state._replace(server=algorithm.prepare(state.server, key_prepare))
    clients, uploads, metrics = train_cohort(
        algorithm, data, state, cohort.ids, key_local, mesh=mesh
    )
    server = algorithm.aggregate(state.server, cohort, uploads, key_server)
    return State(server, clients, state.round + 1), metrics


def play_rounds(advance: Callable, state, rounds: int) -> tuple[State, Log]:
    """Plays rounds by executions of ``advance(state, rounds)``, each of at most `AT_ONCE`.

    In JAX 0.12 on CPUs, matrix products take memory that is given back only when an execution
    ends: 12 MB with every round of a GRU.

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
    broken = np.stack([log.diverged_at for log in logs])
    first = np.take_along_axis(broken, np.argmax(broken >= 0, axis=0)[None], axis=0)[0]
    return state, Log(metrics, first)


def train_cohort(algorithm: Algorithm, data, state: State, ids, key: Array, *, mesh):
    """Lets the clients `ids` [M] train at home on what they are sent.

    Returns:
      All clients' memories, the cohort's uploads [M, ...] and metrics [M].
    """

    def one_client(shared, i, rows):
        server, key = shared
        client, examples = rows
        message = algorithm.download(server, i)
        return algorithm.local(message, client, examples, jax.random.fold_in(key, i))

    rows = tree.take((state.clients, data.train), ids)
    told = map_clients(one_client, mesh)((state.server, key), ids, rows)
    trained, uploads, metrics = all_gather_rows(told, mesh)
    return tree.put(state.clients, ids, trained), uploads, metrics


def score_client(predict, score, examples: Examples | Windows, block: int):
    """Means over one client's real examples of what `score` tells of each, `block` at a time.

    NaN where an output is not finite: an argmax over NaN logits would pass for a prediction.

    Args:
      predict: x [B, ...] -> outputs [B, O].
      score: (outputs, y) -> a tree of [B, ...].

    Returns:
      The same tree of [...].
    """
    block = min(block, examples.size)

    def of_block(first):
        indices = first + jnp.arange(block)
        real = indices < examples.count
        batch = examples.rows(jnp.minimum(indices, examples.size - 1))
        outputs = predict(batch.x)
        finite = jnp.isfinite(outputs).reshape(block, -1).all(axis=1)

        def summed(scores):
            scores = jnp.where(finite, jnp.moveaxis(scores, 0, -1), jnp.nan)
            return jnp.sum(jnp.where(real, scores, 0.0), axis=-1)

        return jax.tree.map(summed, score(outputs, batch.y))

    sums = jax.lax.map(of_block, jnp.arange(0, examples.size, block))
    count = jnp.maximum(examples.count, 1).astype(jnp.float32)
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0) / count, sums)


def evaluate_clients(
    algorithm: Algorithm, model, data, state: State, key: Array, *, block, group, mesh
):
    """Scores every client on every evaluation split, at three points.

    G is the model as the server sends it, L the same after one round's local training, P the
    method's own predictor. The local training is thrown away.

    Args:
      block: examples scored at once, per client.
      group: clients trained and scored at once; 0 is all.

    Returns:
      ``{split: {"G": [N], "L": [N], "P": [N]}}``, and of the test split the means of what the
      model's task tallies, ``{"G" | "L" | "P": {name: [N, ...]}}``, {} if it tallies nothing.
    """
    task = model.task

    def score(split):
        def told(outputs, y):
            extra_metrics = (
                task.extra_metrics(outputs, y) if task.extra_metrics and split == "test" else {}
            )
            return task.score(outputs, y), extra_metrics

        return told

    def one_client(shared, i, rows):
        server, key = shared
        client, train, evals = rows
        key_local, key_personal = jax.random.split(jax.random.fold_in(key, i))
        message = algorithm.download(server, i)
        trained, upload, _ = algorithm.local(message, client, train, key_local)
        predictors = {
            "G": algorithm.deploy(message, client),
            "L": algorithm.deploy(upload, trained),
        }
        if not only_sends:
            personal = algorithm.personalize(message, client, train, key_personal)
            predictors["P"] = personal
        recalibrated = {
            point: model.recalibrate(predictor, train)
            for point, predictor in predictors.items()
        }
        return {
            split: {
                point: score_client(
                    functools.partial(algorithm.predict, predictor),
                    score(split),
                    examples,
                    block,
                )
                for point, predictor in recalibrated.items()
            }
            for split, examples in evals.items()
        }

    # P is then G, and need not be scored again.
    only_sends = algorithm.personalize is use_message and algorithm.deploy is use_model
    num_clients = data.train.count.shape[0]
    size = min(group or num_clients, num_clients)
    if mesh is not None:
        size = -(-size // mesh.size) * mesh.size
    # The last client is scored again until the last group is full, and cut off below.
    full = -(-num_clients // size) * size
    ids = jnp.minimum(jnp.arange(full, dtype=jnp.int32), num_clients - 1)
    everyone = (state.clients, data.train, data.evals)

    def of_group(ids):
        rows = everyone if size == num_clients else tree.take(everyone, ids)
        return map_clients(one_client, mesh)((state.server, key), ids, rows)

    told = jax.lax.map(of_group, ids.reshape(-1, size))
    told = jax.tree.map(lambda leaf: leaf.reshape(full, *leaf.shape[2:])[:num_clients], told)
    if only_sends:
        told = {split: points | {"P": points["G"]} for split, points in told.items()}
    scores = {
        split: {point: pair[0] for point, pair in points.items()}
        for split, points in told.items()
    }
    return scores, {point: pair[1] for point, pair in told["test"].items()}


def make_program(
    build: Callable[[dict, Array], Algorithm],
    model: ClientModel,
    *,
    cohort_size: int,
    block: int = 512,
    group: int = 0,
    mesh: Mesh | None = None,
    new_clients: int = 0,
) -> Program:
    """Compiles a federated algorithm.

    Args:
      build: (hparams, rounds played) -> Algorithm. Called inside the trace, with traced
        numbers, so that a change of a learning rate never recompiles and a grid of them is a
        vmap.
      model: what the clients train; its task scores them.
      cohort_size: M, clients in a round.
      block: examples scored at once, per client.
      group: clients evaluated at once; 0 is all.
      mesh: devices over which a cohort is split, from `client_mesh`.
      new clients: clients that `admit` adds, the last of the data given to it.
    """

    def streams(key):
        """Independent keys for a run's start, rounds, evaluations, new clients and attackers."""
        return jax.random.split(key, 5)

    def enrolled(algorithm, server, ids, key):
        """The memories of clients `ids` once they have received their first message."""

        def enroll(i):
            message = algorithm.download(server, i)
            return algorithm.enroll(message, jax.random.fold_in(key, i))

        return jax.vmap(enroll)(ids)

    def start(key, hparams, data):
        algorithm = build(hparams, jnp.int32(0))
        key_server, key_clients = jax.random.split(streams(key)[0])
        server = algorithm.init(key_server, data.graph)
        ids = jnp.arange(data.train.count.shape[0], dtype=jnp.int32)
        clients = enrolled(algorithm, server, ids, key_clients)
        return State(server, clients, jnp.int32(0))

    def advance(state, key, hparams, data, rounds):
        key_rounds = streams(key)[1]
        data = build(hparams, state.round).poison_data(data, streams(key)[4])

        @jax.jit  # so that it is traced once, for its shapes and for the loop
        def one_round(state):
            algorithm = build(hparams, state.round)
            key_round = jax.random.fold_in(key_rounds, state.round)
            state, metrics = play_round(
                algorithm, data, state, key_round, cohort_size=cohort_size, mesh=mesh
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
        # The number of rounds is traced, so that one executable serves every interval and a
        # run cut anywhere computes the same bits as an uncut one.
        state, sums, diverged_at = jax.lax.fori_loop(
            0, rounds, step, (state, zeros, jnp.int32(-1))
        )
        means = jax.tree.map(lambda leaf: leaf / rounds.astype(leaf.dtype), sums)
        return state, Log(means, diverged_at)

    def evaluate(state, key, hparams, data):
        algorithm = build(hparams, state.round)
        data = algorithm.poison_data(data, streams(key)[4])
        key_evaluation = jax.random.fold_in(streams(key)[2], state.round)
        return evaluate_clients(
            algorithm, model, data, state, key_evaluation, block=block, group=group, mesh=mesh
        )

    def last_ids(data):
        total = data.train.count.shape[0]
        return jnp.arange(total - new_clients, total, dtype=jnp.int32)

    def admit(state, key, hparams, data):
        algorithm = build(hparams, state.round)
        key_server, key_clients = jax.random.split(streams(key)[3])
        ids = last_ids(data)
        server = algorithm.admit(state.server, ids, data.graph, key_server)
        added = enrolled(algorithm, server, ids, key_clients)
        clients = jax.tree.map(
            lambda old, new: jnp.concatenate([old, new]), state.clients, added
        )
        return State(server, clients, state.round)

    def adapt(state, key, hparams, data):
        algorithm = build(hparams, state.round)
        key_round = jax.random.fold_in(streams(key)[3], state.round)
        key_local, key_server = jax.random.split(key_round)
        ids = last_ids(data)
        # New clients need not divide the devices, and are few.
        clients, uploads, _ = train_cohort(algorithm, data, state, ids, key_local, mesh=None)
        cohort = Cohort(ids, data.train.count[ids].astype(jnp.float32))
        server = algorithm.adapt(state.server, cohort, uploads, key_server)
        return State(server, clients, state.round + 1)

    everywhere = None if mesh is None else NamedSharding(mesh, P())
    return Program(
        start=jax.jit(start, out_shardings=everywhere),
        advance=jax.jit(advance, donate_argnums=0, out_shardings=everywhere),
        evaluate=jax.jit(evaluate, out_shardings=everywhere),
        admit=jax.jit(admit, out_shardings=everywhere),
        adapt=jax.jit(adapt, out_shardings=everywhere),
    )


def message_bytes(algorithm: Algorithm, state: State, data) -> tuple[int, int]:
    """Bytes of one client's message and of its upload in one round (down, up)."""

    def one_client(server, clients, examples):
        key = jax.random.key(0)
        client, examples = tree.take((clients, examples), 0)
        message = algorithm.download(server, 0)
        _, upload, _ = algorithm.local(message, client, examples, key)
        return message, upload

    shapes = jax.eval_shape(one_client, state.server, state.clients, data.train)
    down, up = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(part))
        for part in shapes
    )
    return down, up
