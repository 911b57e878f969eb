"""Federations whose server holds a hypernetwork: the common part of pFedHN and Panacea.

The server generates client i's parameters theta_i = decode(encode(psi, relations)_i; psi). The
cohort T trains them to theta~_i, and the server takes K_s steps on

    J(psi) = 1/|T| sum_{i in T} 1/2 ||theta~_i - theta_i(psi)||^2 + penalty(psi)

with the targets theta~_i held fixed, so that the residual shrinks from step to step; for the
other reading of a repeated difference, see `hyper_federation`. What a network drops at random,
as dropout does, is dropped for a whole round: in the download and in the server's steps. Models
are evaluated without dropout.

Few steps move the initial embeddings much, since layers reduce their effect on the models: in
800 rounds on TPT-48, Panacea's move by 2e-4 of their norm. ``embeddings_moved`` in results.json
has this number, and with ``separate_embedding_lr`` their learning rate is ``embedding_lr``.

A new client is admitted with an untrained initial embedding, chosen by
``algorithm.new_client_embedding``:

    random      drawn like all embeddings at the start
    zero        0
    mean        the mean of all known clients' embeddings
    neighbours  the mean of its known neighbours' embeddings; of all known clients without any
    neighbour   the embedding of one known neighbour, drawn at random; of any known client
                without any

In a directed graph, these neighbours are the senders and the receivers of the client's edges.
The layers and the embedding dropout of Panacea take senders alone.

It adapts by K_s steps on sum_i 1/2 ||theta~_i - theta_i||^2 over the new clients. These steps
change its embedding only; the hypernetwork and the known clients' embeddings stay. They are
steps of `optimizers.polyak_sgd`, whatever the optimiser of the hypernetwork is, so that there
is neither momentum nor weight decay.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Server
from graphfl_jax.data import relations
from graphfl_jax.data.new_clients import CHOSEN_BY
from graphfl_jax.devices import call_for_all
from graphfl_jax.optimizers import Optimizer, WithoutMemory, polyak_sgd
from graphfl_jax.settings import Choice, Integer, Real, Switch
from graphfl_jax.trainers import Train

SCHEMES = ("neighbours", "random", "zero", "mean", "neighbour")  # of new clients' embeddings


class ServerFit(NamedTuple):
    """How a server fits its hypernetwork to the clients' trained models."""

    optimizer: optax.GradientTransformation
    steps: int  # K_s
    new_client_optimizer: optax.GradientTransformation  # of new clients' embeddings
    new_client_embedding: str  # one of `SCHEMES`


def server_fit(
    *,
    server_optimizer: Annotated[
        optax.GradientTransformation,
        Optimizer(
            "server",
            (("kind", "polyak_sgd"), ("lr", 0.03), ("weight_decay", 1e-3)),
            meaning="Learning rate of the hypernetwork.",
        ),
    ],
    server_steps: Annotated[
        int, Integer("Optimiser steps K_s of the hypernetwork in a round.")
    ] = 10,
    separate_embedding_lr: Annotated[
        bool, Switch("Whether the initial embeddings have another learning rate.")
    ] = False,
    embedding_lr: Annotated[
        Array,
        Real(
            "Learning rate of initial embeddings with separate_embedding_lr, as a multiple of "
            "server_lr; 0: they stay.",
            when=("algorithm.separate_embedding_lr",),
        ),
    ] = 1.0,
    new_client_lr: Annotated[
        Array,
        Real(
            "Largest step size of new clients' embeddings, by Polyak's rule.",
            when=CHOSEN_BY,
        ),
    ] = 100.0,
    new_client_embedding: Annotated[
        str,
        Choice("Initial embedding of a new client.", SCHEMES, when=CHOSEN_BY),
    ] = "neighbours",
) -> ServerFit:
    """Assembles a `ServerFit`."""
    if separate_embedding_lr:
        server_optimizer = with_embedding_lr(server_optimizer, embedding_lr)
    of_new = polyak_sgd(lr=new_client_lr)
    return ServerFit(server_optimizer, server_steps, of_new, new_client_embedding)


def with_embedding_lr(
    optimizer: optax.GradientTransformation, factor: Array
) -> optax.GradientTransformation:
    """An optimiser of weights whose rate for "embeddings" is `factor` times the others'.

    Its updates of them are multiplied. That is not enough for an optimiser `WithoutMemory`,
    whose step size may depend on the gradient, as Polyak's does: such a one gets the gradient
    in coordinates embeddings / sqrt(factor), in which one rate for all weights is the same.
    """
    before, after = jnp.float32(1.0), jnp.asarray(factor, jnp.float32)
    if isinstance(optimizer, WithoutMemory):
        before = after = jnp.sqrt(after)
    optimizer = optax.with_extra_args_support(optimizer)

    def multiply(weights, factor):
        return weights | {"embeddings": factor * weights["embeddings"]}

    def update(gradient, memory, params=None, **others):
        updates, memory = optimizer.update(multiply(gradient, before), memory, params, **others)
        return multiply(updates, after), memory

    return type(optimizer)(optimizer.init, update)


class HyperNetwork(NamedTuple):
    """A generator of client models, as pure functions."""

    relate: Callable  # (graph) -> relations: what it uses of the graph; any tree
    init: Callable  # (key, N) -> weights, with initial embeddings as "embeddings" [N, E0]
    encode: Callable  # (weights, relations, drawn) -> embeddings [N, E]
    decode: Callable  # (weights, embedding [E]) -> the parameters of one client
    penalty: Callable  # (weights, embeddings of those it reads, relations) -> scalar
    # (relations, key) -> what a round drops or draws; () is nothing
    draw: Callable = lambda relations, key: ()
    # (drawn) -> [K] ids of the clients whose embeddings the penalty reads; None is all clients
    drawn_clients: Callable = lambda drawn: None
    # (relations, drawn, ids [K]) -> None, or (whether the next two can be used; the different
    # clients `used` [n] whose initial embeddings decide, N for none; encode_some), where
    # encode_some(weights with these initial embeddings [n, E0] alone) -> [K, E] are the rows
    # `ids` of `encode` at a lower cost.
    encode_near: Callable = lambda relations, drawn, ids: None


def without_relations(init: Callable, decode: Callable) -> HyperNetwork:
    """A generator that reads the initial embeddings themselves, without a penalty."""
    return HyperNetwork(
        relate=lambda graph: (),
        init=init,
        encode=lambda weights, relations, dropped: weights["embeddings"],
        decode=decode,
        penalty=lambda weights, embeddings, relations: jnp.float32(0.0),
    )


class HyperServer(NamedTuple):
    """The state of a server with a hypernetwork."""

    weights: Any
    opt_state: Any
    relations: Any
    dropped: Any = ()  # what the current round draws


def hyper_federation(
    model: ClientModel,
    train: Train,
    hyper: HyperNetwork,
    fit: ServerFit,
    difference: str = "held",
) -> Algorithm:
    """Builds the federation of one hypernetwork. Clients have no memory.

    Args:
      model: all its parameters are generated.
      train: local trainer.
      hyper: the generator.
      fit: of its weights.
      difference: "held": theta~_i - theta_i(psi), with the targets held. "printed": that of the
        round's beginning, in each of the K_s steps.
    """
    optimizer = optax.with_extra_args_support(fit.optimizer)

    def init(key: Array, graph) -> HyperServer:
        weights = hyper.init(key, graph.nodes.shape[0])
        return HyperServer(weights, optimizer.init(weights), hyper.relate(graph))

    def begin_round(server, key):
        return server._replace(dropped=hyper.draw(server.relations, key))

    def download(server, i):
        if hyper.encode_near(server.relations, server.dropped, jnp.zeros(1, jnp.int32)):
            return hyper.decode(server.weights, embedding(server, jnp.asarray(i)))
        embeddings = hyper.encode(server.weights, server.relations, server.dropped)
        return hyper.decode(server.weights, embeddings[i])

    @call_for_all
    def embedding(server, ids):
        def encode_all(weights):
            return hyper.encode(weights, server.relations, server.dropped)[ids]

        near = hyper.encode_near(server.relations, server.dropped, ids)
        if near is None:
            return encode_all(server.weights)
        possible, used, encode_some = near
        encode_used = lambda weights: encode_some(_with_rows(weights, used))  # noqa: E731
        return jax.lax.cond(possible, encode_used, encode_all, server.weights)

    def local(theta, memory, data, key):
        theta, metrics = train(model.objective, theta, data.train, key)
        return memory, theta, metrics

    def aggregate(server, cohort, uploads, key):
        def descend(encode):
            """Steps with encode(weights) -> the cohort's embeddings, those of the penalty."""

            def send(weights):
                embeddings, read = encode(weights)
                sent = jax.vmap(hyper.decode, (None, 0))(weights, embeddings)
                if cohort.present is not None:  # the others have no distance
                    sent = jax.vmap(tree.where)(cohort.present, sent, uploads)
                return tree.pack(sent)[0], read

            def steps(start):
                targets = tree.pack(uploads)[0]
                if difference == "printed":
                    targets = jax.tree.map(jnp.subtract, targets, send(start[0])[0])

                def objective(weights):
                    sent, read = send(weights)
                    if difference == "printed":  # 0, with the derivative of what is sent
                        fixed = jax.lax.stop_gradient(sent)
                        sent = jax.tree.map(jnp.subtract, sent, fixed)
                    distance = tree.sq_dist(targets, sent)
                    gap = 0.5 * distance / cohort.number
                    return gap + hyper.penalty(weights, read, server.relations), gap

                return minimise(objective, start, optimizer, fit.steps)

            return steps

        drawn = hyper.drawn_clients(server.dropped)

        def encode_all(weights):
            embeddings = hyper.encode(weights, server.relations, server.dropped)
            return embeddings[cohort.ids], embeddings if drawn is None else embeddings[drawn]

        near, start = None, (server.weights, server.opt_state)
        if drawn is not None:
            ids = jnp.concatenate([cohort.ids, drawn])
            near = hyper.encode_near(server.relations, server.dropped, ids)
        if near is None:
            end = descend(encode_all)(start)
        else:
            possible, used, encode_some = near
            split = lambda weights: jnp.split(encode_some(weights), [len(cohort.ids)])  # noqa: E731
            if isinstance(optimizer, WithoutMemory):
                end = _on_rows(descend(split), start, used, possible)
                end = _unless(possible, descend(encode_all), end)
            else:  # it moves all embeddings
                few = descend(lambda weights: split(_with_rows(weights, used)))
                end = jax.lax.cond(possible, few, descend(encode_all), start)
        return HyperServer(*end, server.relations)

    def admit(server, new_clients, graph, key):
        embeddings = server.weights["embeddings"]
        added = (relations.num_clients(graph) - len(embeddings), embeddings.shape[1])
        embeddings = jnp.concatenate([embeddings, jax.random.normal(key, added)])
        scheme = fit.new_client_embedding
        if scheme != "random":
            start = _initial_embeddings(embeddings, new_clients, graph, scheme, key)
            embeddings = embeddings.at[new_clients].set(start)
        weights = server.weights | {"embeddings": embeddings}
        opt_state = tree.grow(server.opt_state, optimizer.init(weights))
        return HyperServer(weights, opt_state, hyper.relate(graph))

    def adapt_new_clients(server, cohort, uploads, key):
        def gap(weights):
            embeddings = hyper.encode(weights, server.relations, ())[cohort.ids]
            sent = jax.vmap(hyper.decode, (None, 0))(weights, embeddings)
            return 0.5 * tree.sq_dist(uploads, sent)

        return fit_embeddings(server, cohort.ids, gap, fit)

    def substitute(server, mean):
        embeddings = mean(server.weights["embeddings"])
        return server._replace(weights=server.weights | {"embeddings": embeddings})

    def moved(server, key):
        now = server.weights["embeddings"]
        first = hyper.init(key, len(now))["embeddings"]
        return jnp.sqrt(tree.sq_dist(now, first) / jnp.sum(jnp.square(first)))

    server = Server.of_one(
        init,
        download,
        aggregate,
        begin_round=begin_round,
        admit=admit,
        adapt_new_clients=adapt_new_clients,
        substitute=substitute,
        moved=moved,
    )
    return Algorithm(server, (Client(model, local),))


def fit_embeddings(
    server: HyperServer, ids: Array, gap: Callable[[Any], Array], fit: ServerFit
) -> HyperServer:
    """The server after it has fitted the embeddings of new clients, and nothing else.

    Args:
      server: as `hyper_federation` admits new clients.
      ids: [m] of the new clients.
      gap: weights -> how far the models generated for them are from their own.
      fit: of the server.
    """

    def weights_with(rows):
        embeddings = server.weights["embeddings"].at[ids].set(rows)
        return server.weights | {"embeddings": embeddings}

    def objective(rows):
        value = gap(weights_with(rows))
        return value, value

    optimizer, rows = fit.new_client_optimizer, server.weights["embeddings"][ids]
    rows, _ = minimise(objective, (rows, optimizer.init(rows)), optimizer, fit.steps)
    return server._replace(weights=weights_with(rows))


def _with_rows(weights, used):
    """The weights with some initial embeddings alone; used [n], where N is padding."""
    return weights | {"embeddings": weights["embeddings"][used]}


def _on_rows(steps, start, used, possible):
    """Steps of an optimiser `WithoutMemory`, which change some of the initial embeddings alone.

    If they are not possible, it is the start. A condition would copy all embeddings.
    """
    weights, opt_state = start
    before = _with_rows(weights, used)
    after, _ = steps((before, opt_state))
    after = tree.where(possible, after, before)
    embeddings = weights["embeddings"].at[used].set(after["embeddings"], mode="drop")
    return after | {"embeddings": embeddings}, opt_state


def _unless(done, steps, start):
    """The end of steps, unless that is done; a loop, which copies nothing, for a condition."""

    def once(carry):
        return steps(carry[0]), jnp.bool_(True)

    end, _ = jax.lax.while_loop(lambda carry: ~carry[1], once, (start, done))
    return end


def minimise(objective, start, optimizer, steps):
    """Steps from (parameters, opt_state) on ``objective(parameters) -> (value, gap)``.

    Args:
      objective: its gap is the part of the value whose minimum is 0.
      start: (parameters, opt_state).
      optimizer: takes extra arguments.
      steps: their number.
    """
    # On an accelerator, the small tensors of each are one vector.
    (start, unpack), (memory, unpack_memory) = map(tree.pack, start)

    def step(carry, _):
        packed, memory = carry
        parameters = unpack(packed)
        (_, gap), gradient = jax.value_and_grad(objective, has_aux=True)(parameters)
        # The gap is the part of the value whose minimum is known to be 0, as some optimisers
        # require.
        updates, memory = optimizer.update(
            gradient, unpack_memory(memory), parameters, value=gap
        )
        packed = optax.apply_updates(packed, tree.pack(updates)[0])
        return (packed, tree.pack(memory)[0]), None

    (end, memory), _ = jax.lax.scan(step, (start, memory), length=steps)
    return unpack(end), unpack_memory(memory)


def _initial_embeddings(embeddings, new_clients, graph, scheme, key):
    """Embeddings [m, E0] of new clients by any scheme except "random".

    Args:
      embeddings: of all clients, [N, E0].
      new_clients: [m] ids.
      graph: relations between the N clients.
      scheme: one of `SCHEMES`.
      key: of the draw of "neighbour".
    """
    if scheme == "zero":
        return jnp.zeros_like(embeddings[new_clients])
    if relations.is_sparse(graph):
        return _initial_sparse(embeddings, new_clients, graph, scheme, key)
    is_known = jnp.ones((1, len(embeddings))).at[:, new_clients].set(0.0)
    sources = jnp.broadcast_to(is_known, (len(new_clients), len(embeddings)))
    if scheme != "mean":
        related = relations.adjacency(graph)[new_clients] * is_known
        sources = jnp.where(jnp.sum(related, axis=1, keepdims=True) > 0, related, sources)
    if scheme == "neighbour":
        return embeddings[jax.random.categorical(key, jnp.log(sources), axis=1)]
    return sources @ embeddings / jnp.sum(sources, axis=1, keepdims=True)


def _initial_sparse(embeddings, new_clients, graph, scheme, key):
    """`_initial_embeddings` of "mean", "neighbours" and "neighbour" in a sparse graph."""
    total, added = len(embeddings), len(new_clients)
    is_known = jnp.ones((total, 1)).at[new_clients].set(0.0)
    if scheme == "mean":
        mean = jnp.sum(embeddings * is_known, axis=0) / jnp.sum(is_known)
        return jnp.broadcast_to(mean, (added, len(mean)))
    related = relations.adjacency(graph)
    if scheme == "neighbours":
        sums = related @ jnp.concatenate([embeddings * is_known, is_known], axis=1)
        near, count = sums[new_clients, :-1], sums[new_clients, -1:]
        mean = _initial_sparse(embeddings, new_clients, graph, "mean", key)
        return jnp.where(count > 0, near / jnp.maximum(count, 1.0), mean)
    # A random number for each edge: the known sender with the largest one is drawn.
    key_edges, key_any = jax.random.split(key)
    size = (len(related.senders),)
    usable = (related.weights > 0) & (is_known[related.senders, 0] > 0)
    numbers = jnp.where(usable, jax.random.uniform(key_edges, size, minval=0.5), 0.0)
    largest = jax.ops.segment_max(numbers, related.receivers, total, indices_are_sorted=True)
    first = usable & (numbers == largest[related.receivers])
    senders = jnp.where(first, related.senders, -1)
    drawn = jax.ops.segment_max(senders, related.receivers, total, indices_are_sorted=True)
    drawn = drawn[new_clients]
    anyone = jax.random.randint(key_any, (added,), 0, total - added)  # new clients are last
    return embeddings[jnp.where(drawn >= 0, drawn, anyone)]
