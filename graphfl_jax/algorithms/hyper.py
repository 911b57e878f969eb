"""Federations whose server holds a hypernetwork: what pFedHN and Panacea share.

The server generates client i's parameters theta_i = decode(encode(psi, relations)_i; psi), the
cohort T trains them to theta~_i, and the server takes K_s steps on

    J(psi) = 1/|T| sum_{i in T} 1/2 ||theta~_i - theta_i(psi)||^2 + penalty(psi)

with the targets theta~_i held fixed, so that the residual shrinks from step to step. What a
network leaves out at random, in the manner of dropout, is left out of a whole round: of what is
sent and of the steps towards what comes back. Models are evaluated with everything in place.

A new client is admitted with an initial code in which nothing is trained, by ``new_clients.embedding``:

    random      drawn as all codes were at the start
    zero        0
    mean        the mean of all known clients' codes
    neighbours  the mean of its known neighbours' codes; of all where it has none
    neighbour   the code of one known neighbour, drawn; of anyone known where it has none

and adapts by K_s steps on sum_i 1/2 ||theta~_i - theta_i||^2 over the new clients, in which its
code moves and the hypernetwork and the known clients' codes do not.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, ClientModel
from graphfl_jax.data import relations
from graphfl_jax.trainers import Train

EMBEDDING_SCHEMES = ("random", "zero", "mean", "neighbours", "neighbour")


def _no_mask(relations, key):
    return ()


class HyperNetwork(NamedTuple):
    """A generator of client models, as pure functions."""

    relate: Callable  # (graph) -> relations, what is kept of the graph; any tree
    init: Callable  # (key, num_clients) -> weights, with initial codes under "codes" [N, E0]
    encode: Callable  # (weights, relations, mask) -> codes [N, E]
    decode: Callable  # (weights, code [E]) -> the parameters of one client
    penalty: Callable  # (weights, codes [N, E], relations) -> scalar
    mask: Callable = _no_mask  # (relations, key) -> what a round leaves out; () is nothing


class HyperServer(NamedTuple):
    """What the server of a hypernetwork knows."""

    weights: Any
    memory: Any  # of the optimiser
    relations: Any
    mask: Any = ()  # what the round being played leaves out


def hyper_federation(
    model: ClientModel,
    train: Train,
    hyper: HyperNetwork,
    *,
    server_optimizer: optax.GradientTransformation,
    server_steps: int,
    new_client_optimizer: optax.GradientTransformation,
    new_client_embedding: str,
) -> Algorithm:
    """Builds the federation of one hypernetwork; clients remember nothing.

    Args:
      model: generated whole.
      train: local trainer.
      hyper: the generator.
      server_optimizer: of its weights.
      server_steps: K_s.
      novel_optimizer: of new clients' codes when they adapt.
      novel_code: one of `CODES`, where new clients' codes begin.

    Raises:
      ValueError: an unknown novel_code.
    """
    if new_client_embedding not in EMBEDDING_SCHEMES:
        raise ValueError(
            f"new_clients.embedding={novel_code!r} is unknown; choose from {', '.join(CODES)}"
        )
    optimizer = optax.with_extra_args_support(server_optimizer)
    new_client_optimizer = optax.with_extra_args_support(new_client_optimizer)

    def init(key: Array, graph) -> HyperServer:
        weights = hyper.init(key, graph.nodes.shape[0])
        return HyperServer(weights, optimizer.init(weights), hyper.relate(graph))

    def prepare(server, key):
        return server._replace(mask=hyper.mask(server.relations, key))

    def download(server, i):
        embeddings = hyper.encode(server.weights, server.relations, server.mask)
        return hyper.decode(server.weights, embeddings[i])

    def local(theta, client, examples, key):
        theta, metrics = train(model.objective, theta, examples, key)
        return client, theta, metrics

    def aggregate(server, cohort, uploads, key):
        def objective(weights):
            embeddings = hyper.encode(weights, server.relations, server.mask)
            sent = jax.vmap(hyper.decode, (None, 0))(weights, embeddings[cohort.ids])
            gap = 0.5 * tree.sq_dist(uploads, sent) / jnp.float32(cohort.ids.shape[0])
            return gap + hyper.penalty(weights, embeddings, server.relations), gap

        start = (server.weights, server.memory)
        weights, memory = _descend(objective, start, optimizer, server_steps)
        return HyperServer(weights, memory, server.relations)

    def admit(server, new_clients, graph, key):
        embeddings = server.weights["embeddings"]
        added = (relations.num_clients(graph) - len(embeddings), embeddings.shape[1])
        embeddings = jnp.concatenate([embeddings, jax.random.normal(key, added)])
        if new_client_embedding != "random":
            start = _initial_embeddings(
                embeddings, new_clients, graph, new_client_embedding, key
            )
            embeddings = embeddings.at[new_clients].set(start)
        # From here on only the new clients' codes are optimised.
        memory = new_client_optimizer.init(embeddings[new_clients])
        return HyperServer(
            server.weights | {"embeddings": embeddings}, memory, hyper.relate(graph)
        )

    def adapt(server, cohort, uploads, key):
        def weights_with(own):
            embeddings = server.weights["embeddings"].at[cohort.ids].set(own)
            return server.weights | {"embeddings": embeddings}

        def objective(own):
            weights = weights_with(own)
            embeddings = hyper.encode(weights, server.relations, ())[cohort.ids]
            sent = jax.vmap(hyper.decode, (None, 0))(weights, embeddings)
            gap = 0.5 * tree.sq_dist(uploads, sent)
            return gap, gap

        start = (server.weights["embeddings"][cohort.ids], server.memory)
        own, memory = _descend(objective, start, new_client_optimizer, server_steps)
        return HyperServer(weights_with(own), memory, server.relations)

    return Algorithm(
        init=init,
        prepare=prepare,
        download=download,
        local=local,
        aggregate=aggregate,
        predict=model.apply,
        admit=admit,
        adapt=adapt,
    )


def _descend(objective, start, optimizer, steps):
    """Steps from (parameters, memory) on ``objective(parameters) -> (value, gap)``."""

    def step(carry, _):
        parameters, memory = carry
        (_, gap), gradient = jax.value_and_grad(objective, has_aux=True)(parameters)
        # Of the gap the least value is known, 0, as an optimiser may ask of a value.
        updates, memory = optimizer.update(gradient, memory, parameters, value=gap)
        return (optax.apply_updates(parameters, updates), memory), None

    end, _ = jax.lax.scan(step, start, length=steps)
    return end


def _initial_embeddings(embeddings, new_clients, graph, scheme, key):
    """Codes [m, E0] of new clients by any scheme but "random", from codes [N, E0]."""
    if scheme == "zero":
        return jnp.zeros_like(embeddings[new_clients])
    is_known = jnp.ones((1, len(embeddings))).at[:, new_clients].set(0.0)
    near = jnp.broadcast_to(is_known, (len(new_clients), len(embeddings)))
    if scheme != "mean":
        related = relations.adjacency(graph)[new_clients] * is_known
        near = jnp.where(jnp.sum(related, axis=1, keepdims=True) > 0, related, near)
    if scheme == "neighbour":
        return embeddings[jax.random.categorical(key, jnp.log(near), axis=1)]
    return near @ embeddings / jnp.sum(near, axis=1, keepdims=True)
