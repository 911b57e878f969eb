"""One round: sample a cohort, send, train locally, collect, aggregate.

Clients of different architectures form groups. Every round samples a fixed number of clients
from each group; the local steps of each group are one vmap.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Cohort, State, check_local
from graphfl_jax.devices import all_gather_rows, fill_up, map_clients, replicate
from graphfl_jax.draws import draw_clients


class Group(NamedTuple):
    """Clients of one architecture."""

    cohort_size: int  # clients in a round; after new clients have joined, their number
    ids: np.ndarray | None = None  # [n] int32, ascending; None is all clients
    at_once: int = 0  # clients that a device trains at once; 0 is all
    name: str = ""  # of the architecture, where there are several
    scored: np.ndarray | None = (
        None  # [k] int32, places of those that evaluations score, or all
    )


class Poison(NamedTuple):
    """What malicious clients do."""

    # (data, key) -> data; the key is the same throughout a run
    data: Callable | None = None
    # (cohorts, untrained uploads, uploads, data.attack_rank, rounds played, key) -> uploads
    uploads: Callable | None = None


def rows_of(group: Group, rows):
    """Those rows [n, ...] of all clients [N, ...] that are of the clients of a group."""
    return rows if group.ids is None else tree.take(rows, group.ids)


def ids_at(group: Group, places: Array) -> Array:
    """The ids of clients by their places among those of their group."""
    return places if group.ids is None else jnp.asarray(group.ids)[places]


def scored_ids(groups: Sequence[Group], num_clients: int) -> np.ndarray:
    """The ids [K] int32 of the clients of groups that evaluations score, ascending."""
    everyone = np.arange(num_clients, dtype=np.int32)
    ids = [
        rows_of(group, everyone)[slice(None) if group.scored is None else group.scored]
        for group in groups
    ]
    return np.sort(np.concatenate(ids))


def with_sample(groups: Sequence[Group], num_clients: int, sample: int) -> tuple[Group, ...]:
    """Groups of which evaluations score `sample` clients, of each group in proportion.

    They are drawn at random, but are the same for all seeds and methods, so that runs are
    compared over the same clients. If there are not more clients, all are scored.
    """
    counts = [num_clients if group.ids is None else len(group.ids) for group in groups]
    if sample >= sum(counts):
        return tuple(groups)
    rng = np.random.default_rng(0)
    sizes = divide_cohort(sample, counts, field="eval.clients")
    drawn = (rng.choice(n, k, replace=False) for n, k in zip(counts, sizes, strict=True))
    return tuple(
        group._replace(scored=np.sort(places).astype(np.int32))
        for group, places in zip(groups, drawn, strict=True)
    )


def divide_cohort(
    cohort_size: int, counts: Sequence[int], *, field: str = "cohort_size"
) -> list[int]:
    """Divides a cohort over groups of `counts` clients in proportion, at least one for each.

    After the first, each place goes to the group with the largest count / (2 places + 1) that
    has clients left (the method of Sainte-Lague); among equals, to the first.

    Args:
      field: that has the size, for the error.

    Raises:
      ValueError: there are fewer places than groups.
    """
    if cohort_size < len(counts):
        raise ValueError(
            f"{field}={cohort_size} is less than the {len(counts)} architectures, of which "
            f"each needs a client; set --config.{field}={len(counts)} or more"
        )
    places = [1] * len(counts)
    for _ in range(cohort_size - len(counts)):
        left = [g for g, count in enumerate(counts) if places[g] < count]
        places[max(left, key=lambda g: counts[g] / (2 * places[g] + 1))] += 1
    return places


def group_clients(names: Sequence[str], training: int, cohort_size: int) -> tuple[tuple, tuple]:
    """The clients of each architecture: those that train, and all after new ones have joined.

    Args:
      names: of the architectures of all clients; those of the new clients are last.
      training: number of clients that train.
      cohort_size: of all architectures together.

    Returns:
      Groups of the clients that train, in the order in which architectures first occur, and
      the groups for the argument `joined` of `program.Program`; () without new clients.

    Raises:
      ValueError: as `divide_cohort`.
    """
    clients, several = np.array(names), len(set(names)) > 1
    named = [
        (name if several else "", np.flatnonzero(clients == name).astype(np.int32))
        for name in dict.fromkeys(names)
    ]
    trained = [(name, ids[ids < training]) for name, ids in named if ids[0] < training]
    sizes = divide_cohort(cohort_size, [len(ids) for _, ids in trained])
    groups = tuple(
        Group(size, ids if len(trained) > 1 else None, name=name)
        for size, (name, ids) in zip(sizes, trained, strict=True)
    )
    joined = tuple(
        Group(int(np.sum(ids >= training)), ids if several else None, name=name)
        for name, ids in named
    )
    return groups, joined if training < len(names) else ()


def draw_cohort(key: Array, counts: Array, size: int) -> Cohort:
    """Draws `size` of the n clients by `draw_clients`; all of them are not drawn."""
    everyone = counts.shape[0]
    if size == everyone:
        return Cohort(jnp.arange(size, dtype=jnp.int32), counts.astype(jnp.float32))
    ids = draw_clients(key, everyone, size)
    return Cohort(ids, counts[ids].astype(jnp.float32))


def call_plainly(stage: str, function: Callable, *arguments: Any) -> Any:
    """The result of a function of the server; `stage` is what it does in a round."""
    return function(*arguments)


def play_round(
    algorithm: Algorithm,
    data,
    state: State,
    key: Array,
    *,
    groups,
    mesh,
    poison: Poison,
    train: Callable | None = None,
    call: Callable = call_plainly,
):
    """Plays one round: draw, begin, download, train, upload, attack, defend, aggregate.

    Args:
      train: in place of `train_cohort`, with the same arguments.
      call: in place of `call_plainly`.

    Returns:
      The next state; the metrics of every client of the cohort, a dictionary of [M]; the cohort
      of all architectures; and whether [M] a client kept and sent finite numbers. If not, it
      counts as untrained.
    """
    server, train = algorithm.server, train or train_cohort
    key_cohort, key_begin, key_local, key_server = jax.random.split(key, 4)
    drawn = call("sampling", sample_cohorts, algorithm, state.server, data, key_cohort, groups)
    places, cohorts = replicate(drawn, mesh)
    begun = call("begin_round", server.begin_round, state.server, key_begin)
    state = state._replace(server=begun)
    results = [
        train(algorithm, data, state, g, places[g], cohort.ids, key_local, mesh, group.at_once)
        for g, (group, cohort) in enumerate(zip(groups, cohorts, strict=True))
    ]
    results = map(_cut, all_gather_rows(results, mesh), cohorts)
    trained, uploads, metrics, finite = zip(*results, strict=True)
    clients = tuple(map(tree.put, state.clients, places, trained))
    received = (algorithm, poison, state, places, cohorts, uploads, data, key_server)
    learned, uploads, sent = call("attack and defence", receive, *received)
    learned = call("aggregation", server.aggregate, learned, cohorts, uploads, key_server)
    join = functools.partial(jax.tree.map, lambda *parts: jnp.concatenate(parts))
    finite = (jnp.concatenate(finite) > 0) & jnp.concatenate(sent)
    return State(learned, clients, state.round + 1), join(*metrics), join(*cohorts), finite


def sample_cohorts(
    algorithm: Algorithm, server, data, key: Array, groups: Sequence[Group]
) -> tuple[tuple, tuple]:
    """Draws the cohort of each group, by `Server.sample` of the method if it has one.

    Returns:
      For each group the places [M] of the clients among those of the group, and the `Cohort`
      with their ids among all clients.
    """
    keys = [key, *(jax.random.fold_in(key, g) for g in range(1, len(groups)))]
    drawn, sample = [], algorithm.server.sample
    for key, group in zip(keys, groups, strict=True):
        counts = rows_of(group, data.train.count)
        if sample is None:
            drawn.append(draw_cohort(key, counts, group.cohort_size))
        else:
            ids = sample(server, counts, group.cohort_size, key)
            drawn.append(Cohort(ids, counts[ids].astype(jnp.float32)))
    cohorts = tuple(
        cohort._replace(ids=ids_at(group, cohort.ids))
        for cohort, group in zip(drawn, groups, strict=True)
    )
    return tuple(cohort.ids for cohort in drawn), cohorts


def train_cohort(
    algorithm: Algorithm,
    data,
    state: State,
    group: int,
    places,
    ids,
    key: Array,
    mesh=None,
    at_once: int = 0,
):
    """Trains clients of one group on the messages that they receive.

    A client that would keep or send a number that is not finite counts as untrained: it keeps
    what it had, and sends what it would send untrained. Its metrics stay as they are: to look
    at those of each client would change how their mean is rounded.

    Args:
      group: number of their architecture.
      places: [M] of the clients among those of the group.
      ids: [M] of the clients among all.
      at_once: clients that a device trains at once; 0 is all.

    Returns:
      The cohort's next memories [M, ...], uploads [M, ...] and metrics [M], and [M] float32, 1
      where the first two were finite and 0 elsewhere. Over a mesh, the rows are split, and the
      last is repeated until the devices have equal numbers of them.
    """
    client = algorithm.clients[group]

    def one_client(shared, i, rows):
        server, key = shared
        memory, data_of_client = rows
        message = algorithm.server.download(server, group, i)
        trained = client.local(message, memory, data_of_client, jax.random.fold_in(key, i))
        instead = [memory, client.untrained(message, memory, data_of_client)]
        check_local(client.local, trained, *instead)
        *kept, metrics = trained
        finite = tree.all_finite(kept)
        # As a float, so that it travels with the other floats between devices.
        return *tree.where(finite, kept, instead), metrics, finite.astype(jnp.float32)

    devices = 1 if mesh is None else mesh.size
    rows = (
        tree.take(state.clients[group], fill_up(places, devices)),
        tree.take(algorithm.client_data(data), fill_up(ids, devices)),
    )
    mapped = map_clients(one_client, mesh, at_once)
    return mapped((state.server, key), fill_up(ids, devices), rows)


def _cut(rows, cohort):
    """The rows of a cohort, without the repeated ones."""
    return jax.tree.map(lambda leaf: leaf[: len(cohort.ids)], rows)


def receive(
    algorithm: Algorithm,
    poison: Poison,
    state: State,
    places,
    cohorts,
    uploads: tuple,
    data,
    key,
) -> tuple[Any, tuple, tuple]:
    """The server's state and the uploads from which it learns, after attacks and a defence.

    Also, for each architecture, whether [M] the uploads were finite. Those of attackers that
    were not count as untrained; `train_cohort` has replaced those of all others.

    Args:
      state: of this round, with the memories from before it.
      places: of the cohort of each architecture, as from `sample_cohorts`.
      uploads: of each architecture, every leaf [M, ...].
      key: of the attackers' draws.
    """
    finite = tuple(jnp.ones(len(cohort.ids), bool) for cohort in cohorts)
    if poison.uploads is None and algorithm.defend is None:
        return state.server, uploads, finite
    untrained = untrained_uploads(algorithm, state, places, cohorts, data)
    if poison.uploads is not None:
        rank = data.attack_rank
        uploads = poison.uploads(cohorts, untrained, uploads, rank, state.round, key)
        finite = tuple(  # also of clients that upload nothing
            jax.vmap(tree.all_finite, axis_size=len(cohort.ids))(upload)
            for cohort, upload in zip(cohorts, uploads, strict=True)
        )
        uploads = tuple(map(jax.vmap(tree.where), finite, uploads, untrained))
    if algorithm.defend is None:
        return state.server, uploads, finite
    return *algorithm.defend(state.server, cohorts, untrained, uploads), finite


def untrained_uploads(algorithm: Algorithm, state: State, places, cohorts, data) -> tuple:
    """What the clients of each cohort would send untrained; arguments as of `receive`."""

    def of_group(group, places, cohort):
        def of_client(i, memory, rows):
            message = algorithm.server.download(state.server, group, i)
            return algorithm.clients[group].untrained(message, memory, rows)

        memories = tree.take(state.clients[group], places)
        rows = tree.take(algorithm.client_data(data), cohort.ids)
        return jax.vmap(of_client)(cohort.ids, memories, rows)

    return tuple(of_group(group, places[group], cohort) for group, cohort in enumerate(cohorts))


def message_bytes(
    algorithm: Algorithm, state: State, data, group: int = 0
) -> tuple[float, float]:
    """Bytes of one client's messages and of its uploads in one round (down, up).

    They are means over clients, where their relations decide on the number of messages.

    Args:
      group: number of the client's architecture.
    """

    def one_client(server, memories, rows):
        memory, data_of_client = tree.take((memories, rows), 0)
        message = algorithm.server.download(server, group, 0)
        local = algorithm.clients[group].local
        _, upload, _ = local(message, memory, data_of_client, jax.random.key(0))
        return message, upload

    shapes = jax.eval_shape(
        one_client, state.server, state.clients[group], algorithm.client_data(data)
    )
    messages = messages_per_client(algorithm, data)
    down, up = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(part)) * messages
        for part in shapes
    )
    return down, up


def messages_per_client(algorithm: Algorithm, data) -> float:
    """Messages that a client receives, and sends, in its round, as a mean over clients."""
    if algorithm.server.messages is None:
        return 1
    return float(jnp.mean(algorithm.server.messages(data.graph).astype(jnp.float32)))
