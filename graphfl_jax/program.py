"""The verbs: start a federation, play rounds, evaluate, admit. All loops over clients are here.

``make_program`` turns an algorithm into a few compiled functions. All sampled clients' local
steps, the server's steps and every round between two evaluations are one XLA program; whole
runs may be vmapped on top, over keys, hyperparameters and data.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, ClientModel, Cohort, Examples, State


class Log(NamedTuple):
    """What is told of the rounds between two evaluations."""

    metrics: dict[str, Array]  # means over cohort and rounds of what `local` reports
    diverged_at: Array  # [] int32, the first round that left a non-finite number, or -1


class Program(NamedTuple):
    """A federation, compiled. All arguments are traced: none of their values recompiles."""

    start: Callable  # (key, hparams, data) -> State
    advance: Callable  # (state, key, hparams, data, rounds) -> (State, Log); donates state
    evaluate: Callable  # (state, key, hparams, data) -> {split: {"G" | "L" | "P": [N]}}
    admit: Callable  # (state, key, hparams, data of all) -> State with the newcomers
    adapt: Callable  # (state, key, hparams, data of all) -> State after their round at home


def client_mesh(cohort_size: int) -> Mesh | None:
    """A mesh over the most local devices that divide the cohort; None if that is one."""
    devices = jax.local_devices()
    size = max(n for n in range(1, len(devices) + 1) if cohort_size % n == 0)
    if size == 1:
        return None
    return jax.make_mesh((size,), ("clients",), (AxisType.Auto,), devices=devices[:size])


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


def draw_cohort(key: Array, counts: Array, size: int) -> Cohort:
    """Draws `size` of the N clients without replacement, all equally likely."""
    ids = jax.random.permutation(key, counts.shape[0])[:size]
    # Ascending, so that a cohort is gathered and summed in one order however it was drawn.
    ids = jnp.sort(ids).astype(jnp.int32)
    return Cohort(ids, counts[ids].astype(jnp.float32))


def play_round(algorithm: Algorithm, data, state: State, key: Array, *, cohort_size, mesh):
    """Plays one round: draw, prepare, download, train locally, upload, aggregate.

    Returns:
      The next state, and what every client of the cohort reported: a dictionary of [M].
    """
    key_cohort, key_prepare, key_local, key_server = jax.random.split(key, 4)
    cohort = draw_cohort(key_cohort, data.train.count, cohort_size)
    state = state._replace(server=algorithm.prepare(state.server, key_prepare))
    clients, uploads, metrics = train_cohort(
        algorithm, data, state, cohort.ids, key_local, mesh=mesh
    )
    server = algorithm.aggregate(state.server, cohort, uploads, key_server)
    return State(server, clients, state.round + 1), metrics


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
    trained, uploads, metrics = map_clients(one_client, mesh)((state.server, key), ids, rows)
    return tree.put(state.clients, ids, trained), uploads, metrics


def score_client(algorithm, model, predictor, examples: Examples, block: int) -> Array:
    """One client's mean score over its real examples, `block` at a time: a scalar.

    NaN where an output is not finite: an argmax over NaN logits would pass for a prediction.
    """
    size = examples.y.shape[0]
    block = min(block, size)
    blocks = -(-size // block)
    padding = blocks * block - size

    def in_blocks(leaf):
        leaf = jnp.pad(leaf, [(0, padding)] + [(0, 0)] * (leaf.ndim - 1))
        return leaf.reshape(blocks, block, *leaf.shape[1:])

    def one_block(total, part):
        x, y, real = part
        outputs = algorithm.predict(predictor, x)
        scores = model.task.score(outputs, y)  # [block]
        finite = jnp.isfinite(outputs).reshape(block, -1).all(axis=1)
        scores = jnp.where(finite, scores, jnp.nan)
        return total + jnp.sum(jnp.where(real, scores, 0.0)), None

    real = jnp.arange(size) < examples.count
    parts = jax.tree.map(in_blocks, (examples.x, examples.y, real))
    # A zero that varies over devices as the examples do.
    zero = jnp.zeros_like(examples.count, jnp.float32)
    total, _ = jax.lax.scan(one_block, zero, parts)
    return total / examples.count.astype(jnp.float32)


def evaluate_clients(algorithm, model, data, state: State, key: Array, *, block, mesh):
    """Scores every client on every evaluation split, at three points.

    G is the model as the server sends it, L the same after one round's local training, P the
    method's own predictor. The local training is thrown away.

    Returns:
      ``{split: {"G": [N], "L": [N], "P": [N]}}``.
    """

    def one_client(shared, i, rows):
        server, key = shared
        client, train, evals = rows
        key_local, key_personal = jax.random.split(jax.random.fold_in(key, i))
        message = algorithm.download(server, i)
        trained, upload, _ = algorithm.local(message, client, train, key_local)
        predictors = {
            "G": algorithm.deploy(message, client),
            "L": algorithm.deploy(upload, trained),
            "P": algorithm.personalize(message, client, train, key_personal),
        }
        return {
            split: {
                point: score_client(algorithm, model, predictor, examples, block)
                for point, predictor in predictors.items()
            }
            for split, examples in evals.items()
        }

    num_clients = data.train.count.shape[0]
    ids = jnp.arange(num_clients, dtype=jnp.int32)
    rows = (state.clients, data.train, data.evals)
    if mesh is not None:
        # The last client is scored again until the devices are full, and cut off below.
        full = -(-num_clients // mesh.size) * mesh.size
        ids = jnp.minimum(jnp.arange(full, dtype=jnp.int32), num_clients - 1)
        rows = tree.take(rows, ids)
    scores = map_clients(one_client, mesh)((state.server, key), ids, rows)
    return jax.tree.map(lambda leaf: leaf[:num_clients], scores)


def make_program(
    build: Callable[[dict], Algorithm],
    model: ClientModel,
    *,
    cohort_size: int,
    block: int = 512,
    mesh: Mesh | None = None,
    newcomers: int = 0,
) -> Program:
    """Compiles a federated algorithm.

    Args:
      build: hparams -> Algorithm. Called inside the trace, with traced floats, so that a change
        of a learning rate never recompiles and a grid of them is a vmap.
      model: what the clients train; its task scores them.
      cohort_size: M, clients in a round.
      block: examples scored at once, per client.
      mesh: devices over which a cohort is split, from `client_mesh`.
      newcomers: clients that `admit` adds, the last of the data given to it.
    """

    def streams(key):
        """Independent keys for a run's start, rounds, evaluations and newcomers."""
        return jax.random.split(key, 4)

    def enrolled(algorithm, server, ids, key):
        """The memories of clients `ids` once they have received their first message."""

        def enroll(i):
            message = algorithm.download(server, i)
            return algorithm.enroll(message, jax.random.fold_in(key, i))

        return jax.vmap(enroll)(ids)

    def start(key, hparams, data):
        algorithm = build(hparams)
        key_server, key_clients = jax.random.split(streams(key)[0])
        server = algorithm.init(key_server, data.graph)
        ids = jnp.arange(data.train.count.shape[0], dtype=jnp.int32)
        clients = enrolled(algorithm, server, ids, key_clients)
        return State(server, clients, jnp.int32(0))

    def advance(state, key, hparams, data, rounds):
        algorithm = build(hparams)
        key_rounds = streams(key)[1]

        def one_round(state):
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
        algorithm = build(hparams)
        key_evaluation = jax.random.fold_in(streams(key)[2], state.round)
        return evaluate_clients(
            algorithm, model, data, state, key_evaluation, block=block, mesh=mesh
        )

    def last_ids(data):
        total = data.train.count.shape[0]
        return jnp.arange(total - newcomers, total, dtype=jnp.int32)

    def admit(state, key, hparams, data):
        algorithm = build(hparams)
        key_server, key_clients = jax.random.split(streams(key)[3])
        ids = last_ids(data)
        server = algorithm.admit(state.server, ids, data.graph, key_server)
        added = enrolled(algorithm, server, ids, key_clients)
        clients = jax.tree.map(
            lambda old, new: jnp.concatenate([old, new]), state.clients, added
        )
        return State(server, clients, state.round)

    def adapt(state, key, hparams, data):
        algorithm = build(hparams)
        key_round = jax.random.fold_in(streams(key)[3], state.round)
        key_local, key_server = jax.random.split(key_round)
        ids = last_ids(data)
        # Newcomers need not divide the devices, and are few.
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
