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
from graphfl_jax.core import ABSENT, Algorithm, Array, Cohort, State, check_local
from graphfl_jax.devices import all_gather_rows, fill_up, map_clients, replicate
from graphfl_jax.draws import draw_clients, draw_those_up


class Group(NamedTuple):
    """Clients of one architecture."""

    cohort_size: int  # clients in a round; after new clients have joined, their number
    ids: np.ndarray | None = None  # [n] int32, ascending; None is all clients
    at_once: int = 0  # clients that a device trains at once; 0 is all
    name: str = ""  # of the architecture, where there are several
    # [k] int32, places of those that evaluations score; None is all
    scored: np.ndarray | None = None
    held: bool = False  # whether the data are those of its clients alone


class Drawn(NamedTuple):
    """The clients of a round, of each group."""

    places: tuple  # [M] among the memories of the clients of the group that the state has
    cohorts: tuple  # `Cohort`
    rows: tuple  # `ClientData`, every leaf [M, ...]


class Poison(NamedTuple):
    """What malicious clients do."""

    # (data, key) -> data; the key is the same throughout a run
    data: Callable | None = None
    # (cohorts, untrained uploads, uploads, data.attack_rank, rounds played, key) -> uploads
    uploads: Callable | None = None


def rows_of(group: Group, rows):
    """Those rows [n, ...] of all clients [N, ...] that are of the clients of a group."""
    return rows if group.ids is None or group.held else tree.take(rows, group.ids)


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
    distinct = list(dict.fromkeys(names))
    several, numbers = len(distinct) > 1, np.arange(len(names), dtype=np.int32)
    named = [("", numbers)]
    if several:
        clients = np.array(names)
        named = [(name, numbers[clients == name]) for name in distinct]
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


def groups_together(
    groups: Sequence[Group], joined: Sequence[Group], num_clients: int
) -> tuple[Group, ...]:
    """The groups of rounds in which new clients take part as all others do.

    A cohort has the same share of all clients as in training of those that train, rounded up.

    Args:
      groups, joined: from `group_clients`; an architecture of `joined` is one of `groups`.
      num_clients: of all.
    """
    counts = [num_clients if group.ids is None else len(group.ids) for group in joined]
    known = [n - group.cohort_size for n, group in zip(counts, joined, strict=True)]
    sizes = [
        -(-group.cohort_size * n // n_known)
        for group, n, n_known in zip(groups, counts, known, strict=True)
    ]
    return tuple(
        group._replace(cohort_size=size) for group, size in zip(joined, sizes, strict=True)
    )


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


PRESENT = 0x9E5  # folded into the key of a cohort, for who of it takes part


class Keys(NamedTuple):
    """The keys of a round."""

    cohort: Array
    begin: Array
    local: Array
    server: Array


def keys_of_round(key: Array) -> Keys:
    """The keys of a round with this key."""
    return Keys(*jax.random.split(key, len(Keys._fields)))


def play_round(
    algorithm: Algorithm,
    state: State,
    key: Array,
    *,
    draw: Callable[[State, Array], Drawn],
    groups,
    mesh,
    poison: Poison,
    rank: Array | None = None,
    train: Callable | None = None,
    call: Callable = call_plainly,
):
    """Plays one round: draw, begin, download, train, upload, attack, defend, aggregate.

    Args:
      draw: (state, key) -> the clients of the round; `draw_round` with its first arguments.
      rank: `FederatedData.attack_rank`.
      train: in place of `train_cohort`, with the same arguments.
      call: in place of `call_plainly`.

    Returns:
      The next state; the metrics of every client of the cohort, a dictionary of [M]; the cohort
      of all architectures; and whether [M] a client kept and sent finite numbers, or was not
      present. If not, it counts as untrained.
    """
    server, train = algorithm.server, train or train_cohort
    keys = keys_of_round(key)
    drawn = with_work(call("sampling", draw, state, keys.cohort))
    before = state.server
    begun = call("begin_round", server.begin_round, before, keys.begin)
    state = state._replace(server=begun)
    results = [
        train(algorithm, state, g, *of_group, keys.local, mesh, group.at_once)
        for g, (group, *of_group) in enumerate(zip(groups, *drawn, strict=True))
    ]
    places, cohorts, _ = drawn
    results = map(_cut, all_gather_rows(results, mesh), cohorts)
    trained, uploads, metrics, finite = zip(*results, strict=True)
    clients = tuple(map(tree.put, state.clients, places, trained))
    received = (algorithm, poison, state, drawn, uploads, rank, keys.server)
    learned, counted, uploads, sent = call("attack and defence", receive, *received)
    known = tuple(map(known_to_server, counted))
    learned = call("aggregation", server.aggregate, learned, known, uploads, keys.server)
    join = functools.partial(jax.tree.map, lambda *parts: jnp.concatenate(parts))
    cohort, finite = join(*cohorts), (jnp.concatenate(finite) > 0) & jnp.concatenate(sent)
    if cohort.present is not None and algorithm.release is None:
        learned = tree.where(jnp.any(cohort.present), learned, before)
    if algorithm.stays_finite:
        learned = tree.where(tree.all_finite(learned), learned, before)
    seconds = state.seconds
    if algorithm.clocked:
        seconds += jnp.max(cohort.seconds)
    return State(learned, clients, state.round + 1, seconds), join(*metrics), cohort, finite


def with_work(drawn: Drawn) -> Drawn:
    """The clients of a round, whose examples say which share of its steps each takes."""
    rows = tuple(
        rows._replace(train=rows.train.with_work(cohort.work))
        for rows, cohort in zip(drawn.rows, drawn.cohorts, strict=True)
    )
    return drawn._replace(rows=rows)


def draw_round(
    algorithm: Algorithm, data, groups: Sequence[Group], mesh, state: State, key: Array
) -> Drawn:
    """Draws the cohorts of a round, with their examples of `data`, which has all clients."""
    sampled = sample_cohorts(algorithm, state, data.train.count, key, groups)
    places, cohorts = replicate(sampled, mesh)
    everyone = algorithm.client_data(data)
    return Drawn(places, cohorts, tuple(tree.take(everyone, c.ids) for c in cohorts))


def sample_cohorts(
    algorithm: Algorithm, state: State, counts: Array, key: Array, groups: Sequence[Group]
) -> tuple[tuple, tuple]:
    """Draws the cohort of each group, by `Server.sample` of the method if it has one.

    Args:
      counts: [N] int32, numbers of training examples.

    Returns:
      For each group the places [M] of the clients among those of the group, and the `Cohort`
      with their ids among all clients.
    """
    keys = [key, *(jax.random.fold_in(key, g) for g in range(1, len(groups)))]
    places, cohorts, sizes = [], [], []
    for key_group, group in zip(keys, groups, strict=True):
        of_group = rows_of(group, counts)
        cohort = _draw_of_group(algorithm, state, of_group, key_group, group)
        places.append(cohort.ids)
        cohorts.append(cohort._replace(ids=ids_at(group, cohort.ids)))
        sizes.append(len(of_group))
    if algorithm.attend is not None:
        key_present = jax.random.fold_in(key, PRESENT)
        cohorts = algorithm.attend(key_present, tuple(cohorts), tuple(sizes), state.server)
    ordered = [
        (some, cohort) if cohort.present is None else present_first(some, cohort)
        for some, cohort in zip(places, cohorts, strict=True)
    ]
    return tuple(zip(*ordered, strict=True))


def _draw_of_group(algorithm, state, counts, key, group):
    """The `Cohort` of a group, with places among its clients for ids."""
    size, sample = group.cohort_size, algorithm.server.sample
    if algorithm.up is not None:
        everyone = jnp.arange(len(counts), dtype=jnp.int32)
        time = state.seconds if algorithm.clocked else state.round.astype(jnp.float32)
        up = algorithm.up(ids_at(group, everyone), time)
        places = draw_those_up(key, up, size)
        return Cohort(places, counts[places].astype(jnp.float32), up[places])
    if sample is not None:
        places = sample(state.server, counts, size, key)
        return Cohort(places, counts[places].astype(jnp.float32))
    return draw_cohort(key, counts, size)


def present_first(places: Array, cohort: Cohort) -> tuple[Array, Cohort]:
    """Clients of whom those who take part are first, and the others have the weight 0."""
    order = jnp.argsort(~cohort.present, stable=True)
    places, cohort = tree.take((places, cohort), order)
    return places, cohort._replace(weights=jnp.where(cohort.present, cohort.weights, 0.0))


def train_cohort(
    algorithm: Algorithm,
    state: State,
    group: int,
    places,
    cohort: Cohort,
    rows,
    key: Array,
    mesh=None,
    at_once: int = 0,
):
    """Trains clients of one group on the messages that they receive.

    A client that is not present, or would keep or send a number that is not finite, counts as
    untrained: it keeps what it had, and sends what it would send untrained. Its metrics stay as
    they are: to look at those of each client would change how their mean is rounded.

    Args:
      group: number of their architecture.
      places: [M] of the clients among those of the group.
      cohort: these clients.
      rows: their `ClientData`, every leaf [M, ...].
      at_once: clients that a device trains at once; 0 is all.

    Returns:
      The cohort's next memories [M, ...], uploads [M, ...] and metrics [M], and [M] float32, 1
      where the first two were finite and 0 elsewhere. Over a mesh, the rows are split, and the
      last is repeated until the devices have equal numbers of them.
    """
    client = algorithm.clients[group]

    def one_client(shared, i, rows):
        server, key = shared
        memory, data_of_client, present = rows
        message = algorithm.server.download(server, group, i)
        of_client = jax.random.fold_in(key, i)
        trained = client.local(message, memory, data_of_client, of_client)
        instead = [memory, client.untrained(message, memory, data_of_client)]
        check_local(client.local, trained, *instead)
        *kept, metrics = trained
        if client.send is not None:
            kept = [*client.send(kept[0], instead[1], kept[1], of_client)]
        finite = tree.all_finite(kept)
        counts = finite
        if present is not None:
            counts, finite = finite & present, finite | ~present
        # As a float, so that it travels with the other floats between devices.
        return *tree.where(counts, kept, instead), metrics, finite.astype(jnp.float32)

    devices = 1 if mesh is None else mesh.size
    if len(cohort.ids) % devices:
        rows = tree.take(rows, fill_up(np.arange(len(cohort.ids)), devices))
    memories = tree.take(state.clients[group], fill_up(places, devices))
    present = None if cohort.present is None else fill_up(cohort.present, devices)
    mapped = map_clients(one_client, mesh, at_once)
    return mapped((state.server, key), fill_up(cohort.ids, devices), (memories, rows, present))


def _cut(rows, cohort):
    """The rows of a cohort, without the repeated ones."""
    return jax.tree.map(lambda leaf: leaf[: len(cohort.ids)], rows)


def receive(
    algorithm: Algorithm,
    poison: Poison,
    state: State,
    drawn: Drawn,
    uploads: tuple,
    rank: Array | None,
    key,
) -> tuple[Any, tuple, tuple, tuple]:
    """The server's state, and the cohorts and uploads from which it learns.

    They are those after an attack, a defence, and noise. Also, for each architecture, whether
    [M] the uploads were finite. Those of attackers that
    were not count as untrained; `train_cohort` has replaced those of all others.

    Args:
      state: of this round, with the memories from before it.
      uploads: of each architecture, every leaf [M, ...].
      rank: `FederatedData.attack_rank`.
      key: of the draws of attackers and of noise.
    """
    cohorts, server = drawn.cohorts, state.server
    finite = tuple(jnp.ones(len(cohort.ids), bool) for cohort in cohorts)
    absent = cohorts[0].present is not None  # some clients may be
    parts = (poison.uploads, algorithm.defend, algorithm.release)
    if all(part is None for part in parts) and not absent:
        return server, cohorts, uploads, finite
    untrained = untrained_uploads(algorithm, state, drawn)
    if poison.uploads is not None:
        uploads = poison.uploads(cohorts, untrained, uploads, rank, state.round, key)
        finite = tuple(  # also of clients that upload nothing
            jax.vmap(tree.all_finite, axis_size=len(cohort.ids))(upload)
            for cohort, upload in zip(cohorts, uploads, strict=True)
        )
        uploads = tuple(map(jax.vmap(tree.where), finite, uploads, untrained))
    if absent:
        uploads = tuple(
            fill_absent(algorithm, *of_group)
            for of_group in zip(cohorts, untrained, uploads, strict=True)
        )
    if algorithm.defend is not None:
        server, uploads = algorithm.defend(server, cohorts, untrained, uploads)
    if algorithm.release is not None:
        released = algorithm.release(server, cohorts, untrained, uploads, key)
        server, cohorts, uploads = released
    return server, cohorts, uploads, finite


def known_to_server(cohort: Cohort) -> Cohort:
    """A cohort without the numbers of those who are absent."""
    if cohort.present is None:
        return cohort
    return cohort._replace(ids=jnp.where(cohort.present, cohort.ids, ABSENT))


def fill_absent(algorithm: Algorithm, cohort: Cohort, untrained: Any, uploads: Any) -> Any:
    """The uploads of a cohort, in which those who are absent have what does not count.

    That is what they would send untrained; or, where the server averages, with the mean of the
    others' updates, so that with their weights of 0, and without weights, the mean is that of
    the others.
    """
    present = cohort.present

    def fill(before, after):
        rows = present.reshape(-1, *[1] * (after.ndim - 1))
        if not algorithm.averages or not jnp.issubdtype(after.dtype, jnp.floating):
            return jnp.where(rows, after, before)
        updates = jnp.where(rows, after - before, 0.0)
        return jnp.where(rows, after, before + jnp.sum(updates, axis=0)[None] / cohort.number)

    return jax.tree.map(fill, untrained, uploads)


def untrained_uploads(algorithm: Algorithm, state: State, drawn: Drawn) -> tuple:
    """What the clients of each cohort would send untrained; arguments as of `receive`."""

    def of_group(group, places, cohort, rows):
        def of_client(i, memory, rows):
            message = algorithm.server.download(state.server, group, i)
            return algorithm.clients[group].untrained(message, memory, rows)

        memories = tree.take(state.clients[group], places)
        return jax.vmap(of_client)(cohort.ids, memories, rows)

    return tuple(of_group(g, *each) for g, each in enumerate(zip(*drawn, strict=True)))


def message_bytes(algorithm: Algorithm, data, groups: int = 1) -> list[tuple[float, float]]:
    """Bytes of one client's messages and of its uploads in one round, (down, up).

    They are means over clients, where their relations decide on the number of messages.

    Args:
      groups: number of architectures, of each of which the result has an entry.
    """
    exchange = algorithm.first_exchange(data, groups)
    messages = messages_per_client(algorithm, data)

    upload_bits = algorithm.upload_bits or bits_of
    sent = zip(exchange.messages, exchange.uploads, strict=True)
    return [
        (messages * bits_of(message) / 8, messages * upload_bits(upload) / 8)
        for message, upload in sent
    ]


def bits_of(values) -> int:
    """The bits of the numbers of a message or of an upload, shapes and types."""
    return sum(8 * leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(values))


def messages_per_client(algorithm: Algorithm, data) -> float:
    """Messages that a client receives, and sends, in its round, as a mean over clients."""
    if algorithm.server.messages is None:
        return 1
    with jax.ensure_compile_time_eval():  # also in the trace of a program
        return float(jnp.mean(algorithm.server.messages(data.graph).astype(jnp.float32)))
