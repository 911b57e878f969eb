"""FedU: a server pulls the models of related clients towards each other.

Dinh, Vu, Tran, Dao, Zhang. A New Look and Convergence Rate of Federated Multi-Task Learning
with Laplacian Regularization. IEEE Transactions on Neural Networks and Learning Systems, 2022.
https://arxiv.org/abs/2102.07148

    v_i = K_c steps of SGD on F_i, from w_i
    w_i <- v_i - mu sum_j a_ij (v_i - v_j),      a_ij = 1 for related clients, else 0

P is w_i, and so is G. v_j of a client that is not in the round is its last w_j. With mu = 0,
all clients train alone; if all are related and in every round, mu = 1 / N makes all models the
mean.

Departures: mu stands for the paper's product of the local rate, the number of local steps and
its own mu. The weights and the directions of relations are not read. A new client begins with
the mean of the models of its related known clients, or where it has none of all of them; in its
rounds it trains alone.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Needs, Params, Server
from graphfl_jax.data import relations
from graphfl_jax.data.sparse import SparseMatrix
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train

NEEDS = Needs(relations=True)


class RelatedModels(NamedTuple):
    """The models of all clients, and who is related."""

    models: Params  # w_i, [N, ...]
    related: Array | SparseMatrix  # a_ij, [N, N]


@facts(needs=NEEDS)
def fedu(
    model: ClientModel,
    train: Train,
    *,
    fedu_mu: Annotated[Array, Real("FedU's step mu towards related models.")] = 0.05,
) -> Algorithm:
    """Builds FedU. A message and an upload are one model each."""

    def mix(server, cohort, uploads, key):
        models = tree.put(server.models, cohort.ids, uploads)
        sums, degrees = sums_over_related(server.related, models), degrees_of(server.related)

        def pulled(v, total):
            number = degrees.reshape([-1] + [1] * (v.ndim - 1))
            return v - fedu_mu * (number * v - total)

        return tree.take(jax.tree.map(pulled, models, sums), cohort.ids)

    return mixing_method(model, train, mix, NEEDS)


def mixing_method(
    model: ClientModel, train: Train, mix: Callable, needs: Needs, **functions: Any
) -> Algorithm:
    """A method in which each client has a model, and the models of a round are mixed.

    Args:
      mix: (`RelatedModels`, cohort, trained models [M, ...], key) -> the next ones, [M, ...].
      needs: of the method.
      **functions: other fields of `core.Server`.
    """

    def init(key, graph):
        number = relations.num_clients(graph)
        models = jax.tree.map(lambda leaf: jnp.stack([leaf] * number), model.init(key))
        return RelatedModels(models, relations.adjacency(graph))

    def local(w_i, memory, data, key):
        v_i, metrics = train(model.objective, w_i, data.train, key)
        return memory, v_i, metrics

    def put(server, cohort, models):
        return server._replace(models=tree.put(server.models, cohort.ids, models))

    def admit(server, new_clients, graph, key):
        related = relations.adjacency(graph)
        return RelatedModels(with_new_models(related, server.models, new_clients), related)

    server = Server.of_one(
        init,
        lambda server, i: tree.take(server.models, i),
        lambda server, cohort, uploads, key: put(
            server, cohort, mix(server, cohort, uploads, key)
        ),
        admit=admit,
        adapt_new_clients=lambda server, cohort, uploads, key: put(server, cohort, uploads),
        **functions,
    )
    return Algorithm(server, (Client(model, local),), needs=needs)


def sums_over_related(related: Array | SparseMatrix, rows: Any) -> Any:
    """The sum of the rows [N, ...] of the related clients of each client, [N, ...]."""
    if isinstance(related, SparseMatrix):
        return jax.tree.map(lambda leaf: related @ leaf, rows)
    return jax.tree.map(lambda leaf: jnp.tensordot(related, leaf, axes=1), rows)


def with_new_models(related: Array | SparseMatrix, models: Params, new_clients: Array) -> Any:
    """The models of known clients [n, ...], and those of new ones behind them.

    A new client has the mean of its related known clients, or without any the mean of all.

    Args:
      related: of all clients.
      new_clients: their ids [m], the last ones.
    """
    known = len(jax.tree.leaves(models)[0])
    added = len(related) - known
    numbers = sums_over_related(related, jnp.zeros(len(related)).at[:known].set(1.0))
    numbers = numbers[new_clients]
    mean = tree.mean(models, jnp.ones(known))
    padded = jax.tree.map(
        lambda leaf: jnp.pad(leaf, [(0, added)] + [(0, 0)] * (leaf.ndim - 1)), models
    )
    sums = tree.take(sums_over_related(related, padded), new_clients)

    def first(sums, mean):
        number = numbers.reshape([-1] + [1] * mean.ndim)
        return jnp.where(number > 0, sums / jnp.maximum(number, 1.0), mean[None])

    return tree.put(padded, new_clients, jax.tree.map(first, sums, mean))


def degrees_of(related: Array | SparseMatrix) -> Array:
    """The number of related clients of each, [N] float32."""
    return sums_over_related(related, jnp.ones(len(related)))
