"""A method as users write it, which uses what those of the package do not.

The cohorts are drawn along the relations, and clients receive several messages.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Client, Needs, Server
from graphfl_jax.data import relations
from graphfl_jax.trainers import Train


class Peers(NamedTuple):
    """The models of clients that have no server."""

    models: Any  # leaves [N, ...]
    related: Array  # [N, N]: 1 for neighbours and for a client itself


def neighbourhoods(model, train: Train) -> Algorithm:
    """Decentralised averaging: a client and its neighbours play a round.

    Each gets the models of all its neighbours, and trains their mean.
    """

    def neighbourhood(peers, i):
        row = peers.related[i]
        return jax.tree.map(
            lambda leaf: jnp.tensordot(row / jnp.sum(row), leaf, axes=1), peers.models
        )

    def init(key, graph):
        total = relations.num_clients(graph)
        related = jnp.minimum(relations.adjacency(graph) + jnp.eye(total), 1.0)
        first = model.init(key)
        models = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (total, *leaf.shape)), first)
        return Peers(models, related)

    def sample(peers, counts, size, key):
        key_first, key_order = jax.random.split(key)
        first = jax.random.randint(key_first, (), 0, len(counts))
        order = jax.random.uniform(key_order, (len(counts),)) - peers.related[first]
        order = order.at[first].set(-2.0)
        return jnp.sort(jnp.argsort(order)[:size]).astype(jnp.int32)

    def aggregate(peers, cohort, uploads, key):
        return peers._replace(models=tree.put(peers.models, cohort.ids, uploads))

    def admit(peers, new_clients, graph, key):
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), peers.models)
        total = relations.num_clients(graph)
        rows = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (len(new_clients), *leaf.shape)), mean
        )
        models = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), peers.models, rows)
        return Peers(models, jnp.minimum(relations.adjacency(graph) + jnp.eye(total), 1.0))

    def messages(graph):
        return jnp.sum(relations.adjacency(graph) > 0, axis=1)

    def local(w, memory, data, key):
        w, metrics = train(model.objective, w, data.train, key)
        return memory, w, metrics

    server = Server.of_one(
        init,
        neighbourhood,
        aggregate,
        admit=admit,
        adapt_new_clients=aggregate,
        sample=sample,
        messages=messages,
    )
    return Algorithm(server, (Client(model, local),), needs=Needs(relations=True))


METHODS = {"neighbourhoods": neighbourhoods}
