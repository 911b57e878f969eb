"""SFL: each client's model is smoothed over the relations between clients.

Chen, Long, Wu, Zhou, Jiang. Personalized Federated Learning With a Graph. IJCAI 2022.
https://arxiv.org/abs/2203.00829

    v_i <- K_c steps of SGD on F_i(v) + lambda / 2 (||v - u_i||^2 + ||v - w||^2), from w
    u_i  = a sum_j (A^^L)_ij v_j + (1 - a) v_i,      A^ = D^-1 (A + I),  L = 3
    w    = 1/N sum_i u_i

P is u_i, and so is G; a client that was not drawn is smoothed with its last upload.

SFL* (`sfl_star`) learns relations to add: A' = (1 - s) A^ + s A_learned, with

    B = tanh(E1 E2^T - E2 E1^T),     A_learned = the 30 largest of ReLU(B) in a row, normalised,

where E1 and E2 are tanh of the clients' models times matrices that start afresh in every round
and take 10 steps of SGD, so that A_learned's rows come near the rows of the similarities
exp(-||v_i - v_j||^2 / mean ||v_i - v_j||^2).

Departures:
  * The regularisers are squared norms, and they act: the released code computes both from
    detached weights, so that they have no gradient. It also smooths again, each round, what
    it smoothed before for clients that were not drawn. ``sfl_rule="as_released"`` does
    both as released.
  * The released learner of SFL* imitates distances between models, which joins the clients that
    differ most; here it imitates similarities. Its embeddings are tables of free vectors, here
    they are functions of the models, so that a client's number means nothing.
  * A new client stands in for its own upload with the mean of the known clients' by its row of
    A^^L, until it uploads.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, ClientModel, Params
from graphfl_jax.data import relations
from graphfl_jax.trainers import Train

RULES = ("intended", "as_released")
DEGREE = 30  # most learned relations of a client
EMBEDDING = 10  # size of the embeddings that a graph is learned with


class SmoothingServer(NamedTuple):
    """What the server of SFL knows."""

    uploads: Params  # every client's last, [N, ...]
    relations: Array  # A^ of the given relations, [N, N]
    mixing: Array  # row i holds what of each upload is in u_i, [N, N]


def sfl(
    model: ClientModel,
    train: Train,
    *,
    sfl_layers: int,
    sfl_rule: str,
    sfl_lambda: Array,
    sfl_share: Array,
) -> Algorithm:
    """Builds SFL.

    Args:
      model: of clients and server alike.
      train: local trainer.
      sfl_layers: L, how often the models are averaged over neighbours.
      sfl_rule: "intended" or "as_released".
      sfl_lambda: pull of a client to u_i and to w.
      sfl_share: a, what of u_i is smoothed; 0 leaves each client its own model.

    Raises:
      ValueError: an unknown rule.
    """
    if sfl_rule not in RULES:
        raise ValueError(
            f"algorithm.sfl_rule={sfl_rule!r} is unknown; choose from {', '.join(RULES)}"
        )

    def init(key, graph):
        model_0 = model.init(key)
        given = relations.propagation(graph, "mean")
        uploads = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(given)), model_0)
        return SmoothingServer(uploads, given, _powers(given, sfl_layers, sfl_share))

    def download(server, i):
        u_i = tree.mean(server.uploads, server.mixing[i])
        return u_i, tree.mean(server.uploads, jnp.mean(server.mixing, axis=0))

    def local(message, client, examples, key):
        u_i, w = message

        def near_both(v, batch):
            pull = 0.5 * sfl_lambda * (tree.sq_dist(v, u_i) + tree.sq_dist(v, w))
            return model.objective(v, batch) + pull

        released = sfl_rule == "as_released"
        v, metrics = train(model.objective if released else near_both, w, examples, key)
        return client, (v,), metrics

    def aggregate(server, cohort, uploads, key):
        standing = server.uploads
        if sfl_rule == "as_released":
            standing = _mixed(server.mixing, standing)
        return server._replace(uploads=tree.put(standing, cohort.ids, uploads[0]))

    def admit(server, new_clients, graph, key):
        known = len(server.mixing)
        given = relations.propagation(graph, "mean")
        mixing = _powers(given, sfl_layers, sfl_share)
        added = len(given) - known
        uploads = jax.tree.map(
            lambda leaf: jnp.pad(leaf, [(0, added)] + [(0, 0)] * (leaf.ndim - 1)),
            server.uploads,
        )
        is_known = jnp.ones((1, len(given))).at[:, new_clients].set(0.0)
        shares = mixing[new_clients] * is_known  # [new clients, N]
        total = jnp.sum(shares, axis=1, keepdims=True)
        # A new client without a path to anybody known gets the mean of all.
        shares = jnp.where(total > 0, shares, is_known)
        shares = shares / jnp.sum(shares, axis=1, keepdims=True)
        uploads = tree.put(uploads, new_clients, _mixed(shares, uploads))
        return SmoothingServer(uploads, given, mixing)

    def adapt(server, cohort, uploads, key):
        return server._replace(uploads=tree.put(server.uploads, cohort.ids, uploads[0]))

    return Algorithm(
        init=init,
        download=download,
        local=local,
        aggregate=aggregate,
        predict=model.apply,
        deploy=lambda sent, client: sent[0],  # message and upload both begin with a model
        personalize=lambda message, client, examples, key: message[0],
        admit=admit,
        adapt=adapt,
        untrained=lambda message: message[1:],  # local training starts from w
        relational=True,
    )


def sfl_star(
    model: ClientModel,
    train: Train,
    *,
    sfl_layers: int,
    sfl_rule: str,
    sfl_lambda: Array,
    sfl_share: Array,
    sfl_graph_steps: int,
    sfl_graph_share: Array,
    sfl_graph_lr: Array,
) -> Algorithm:
    """Builds SFL*, which learns relations from the clients' models.

    Args:
      sfl_graph_steps: steps of the learner in a round.
      sfl_graph_share: s, what of A' is learned.
      sfl_graph_lr: the learner's rate.

    The others are `sfl`'s.
    """
    base = sfl(
        model,
        train,
        sfl_layers=sfl_layers,
        sfl_rule=sfl_rule,
        sfl_lambda=sfl_lambda,
        sfl_share=sfl_share,
    )

    def aggregate(server, cohort, uploads, key):
        server = base.aggregate(server, cohort, uploads, key)
        learned = _learn_relations(
            server.uploads,
            key,
            steps=sfl_graph_steps,
            rate=sfl_graph_lr,
            apart=sfl_rule == "as_released",
        )
        both = (1.0 - sfl_graph_share) * server.relations + sfl_graph_share * learned
        both = both / jnp.sum(both, axis=1, keepdims=True)
        return server._replace(mixing=_powers(both, sfl_layers, sfl_share))

    return dataclasses.replace(base, aggregate=aggregate)


def _powers(given, layers, share):
    """a A^L + (1 - a) I for a matrix A of rows that sum to one."""
    smoothed = jnp.linalg.matrix_power(given, layers)
    return share * smoothed + (1.0 - share) * jnp.eye(len(given))


def _mixed(shares, models):
    """Rows of `shares` [M, N] applied to models [N, ...]."""
    return jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, axes=1), models)


def _learn_relations(models, key, *, steps, rate, apart):
    """A_learned [N, N] of the docstring; with `apart` from distances, as released."""
    rows = jax.vmap(lambda one: ravel_pytree(one)[0])(models)  # [N, d]
    rows = rows - jnp.mean(rows, axis=0, keepdims=True)
    norms = jnp.sum(jnp.square(rows), axis=1, keepdims=True)
    squares = jnp.maximum(norms + norms.T - 2 * rows @ rows.T, 0.0)  # ||v_i - v_j||^2
    tiny = jnp.finfo(jnp.float32).tiny
    near = jnp.exp(-squares / jnp.maximum(jnp.mean(squares), tiny))
    wanted = _normalised(jnp.sqrt(squares) if apart else near)
    features = rows * jax.lax.rsqrt(jnp.maximum(jnp.mean(norms), tiny))
    most = min(DEGREE, len(rows))

    def graph_of(weights):
        one, other = (jnp.tanh(features @ part) for part in weights)
        scores = jax.nn.relu(jnp.tanh(one @ other.T - other @ one.T))
        least = jax.lax.top_k(scores, most)[0][:, -1:]
        return _normalised(jnp.where(scores >= least, scores, 0.0))

    def step(weights, _):
        loss = lambda weights: jnp.mean(jnp.square(graph_of(weights) - wanted))  # noqa: E731
        gradient = jax.grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - rate * g, weights, gradient), None

    weights = jax.random.normal(key, (2, rows.shape[1], EMBEDDING))
    weights, _ = jax.lax.scan(step, weights, length=steps)
    return graph_of(weights)


def _normalised(matrix):
    """Rows that sum to one; a row of zeros stays one."""
    total = jnp.sum(matrix, axis=1, keepdims=True)
    return matrix / jnp.where(total > 0, total, 1.0)
