"""Methods as users write them: published ones that the package does not have.

Each uses what others do not: a choice by the client's data (IFCA), and a cohort that the server
draws along the relations (gossip). They are simplified, and stand for their kinds.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Client, Needs, Predictor, Server
from graphfl_jax.data import relations
from graphfl_jax.optimizers import Optimizer
from graphfl_jax.settings import Integer
from graphfl_jax.trainers import Train

ClientOptimizer = Annotated[
    optax.GradientTransformation, Optimizer("client", meaning="Learning rate of the clients.")
]


def ifca(
    model,
    train: Train,
    *,
    ifca_clusters: Annotated[int, Integer("Models of IFCA.", low=2)] = 2,
) -> Algorithm:
    """IFCA: a client trains the one of k models that has the least loss on its data."""

    def choice(models, data):
        everything = data.train.rows(jnp.arange(data.train.size))
        everything = everything._replace(count=data.train.count)

        def loss(params):
            return model.objective(params, everything, jax.random.key(0))

        return jnp.argmin(jax.lax.map(loss, models)).astype(jnp.int32)

    def local(models, memory, data, key):
        chosen = choice(models, data)
        params, metrics = train(model.objective, tree.take(models, chosen), data.train, key)
        return memory, (params, chosen), metrics

    def untrained(models, memory, data):
        chosen = choice(models, data)
        return tree.take(models, chosen), chosen

    def deploy(sent, memory, data):
        if isinstance(sent, tuple):  # an upload: a model and its number
            return Predictor(sent[0])
        return Predictor(tree.take(sent, choice(sent, data)))

    def aggregate(models, cohort, uploads, key):
        trained, chosen = uploads
        weights = jax.nn.one_hot(chosen, ifca_clusters).T * cohort.weights  # [k, M]
        total = jnp.sum(weights, axis=1)
        shares = weights / jnp.where(total > 0, total, 1.0)[:, None]

        def mean(old, new):
            means = jnp.tensordot(shares, new, axes=1)
            return jnp.where(total.reshape([-1] + [1] * (means.ndim - 1)) > 0, means, old)

        return jax.tree.map(mean, models, trained)

    server = Server.of_one(
        init=lambda key, graph: jax.vmap(model.init)(jax.random.split(key, ifca_clusters)),
        download=lambda models, i: models,
        aggregate=aggregate,
    )
    return Algorithm(server, (Client(model, local, deploy=deploy, untrained=untrained),))


class Peers(NamedTuple):
    """The models of clients that have no server."""

    models: Any  # leaves [N, ...]
    related: Array  # [N, N]: 1 for neighbours and for a client itself


def gossip(model, train: Train) -> Algorithm:
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


METHODS = {
    "ifca": ifca,
    "gossip": gossip,
}
