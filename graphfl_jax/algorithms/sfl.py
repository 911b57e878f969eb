"""SFL: each client's model is smoothed over the relations between clients.

Chen, Long, Wu, Zhou, Jiang. Personalized Federated Learning With a Graph. IJCAI 2022.
https://arxiv.org/abs/2203.00829

    v_i <- K_c steps of SGD on F_i(v) + lambda / 2 (||v - u_i||^2 + ||v - w||^2), from w
    u_i  = a sum_j (A^^L)_ij v_j + (1 - a) v_i,      A^ = D^-1 (A + I),  L = 3
    w    = 1/N sum_i u_i

P is u_i, and so is G. A client that was not sampled is smoothed with its last upload.

SFL* (`sfl_star`) adds learned relations: the rows of A' are those of (1 - s) A^ + s A_learned
divided by their sums, which are below 1 where A_learned has a row of 0, with

    B = tanh(E1 E2^T - E2 E1^T),     A_learned = the 30 largest of ReLU(B) in a row, normalised,

where E1 and E2 are tanh of the clients' models, centred and scaled, times matrices. These
matrices are newly drawn in every round and take 10 steps of SGD that bring A_learned's rows
near the rows of the similarities exp(-||v_i - v_j||^2 / mean ||v_i - v_j||^2).

Departures:
  * The regularisers are squared norms, and they have a gradient: the released code computes
    both from detached weights, so that they have none. It also smooths the uploads of clients
    that were not sampled again in each round. ``sfl_rule="as_released"`` does both as released.
  * The released learner of SFL* imitates distances between models, which joins the clients that
    differ most; here it imitates similarities, but with ``as_released`` distances. Its
    embeddings are tables of free vectors; here they are functions of the models, so that a
    client's number has no effect. Its loss compares all scores of a row, not only the 30
    largest; it divides a row by its Euclidean norm, and uses tanh(3 x) in place of tanh(x).
    Here the loss compares A_learned.
  * When a new client joins, the mean of the known clients' uploads by its row of A^^L takes the
    place of its own upload until it uploads. Its neighbours are smoothed with both. With a
    transductive graph, it counts with the initial model until it joins. SFL* learns no
    relations any more when new clients have joined, and smooths all clients over the given
    ones.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from graphfl_jax import core, tree
from graphfl_jax.algorithms.method import facts
from graphfl_jax.data import relations
from graphfl_jax.data.sparse import SparseMatrix
from graphfl_jax.devices import call_for_all
from graphfl_jax.settings import Choice, Integer, Part, Real
from graphfl_jax.trainers import Train

NEEDS = core.Needs(relations=True)
RULES = ("intended", "as_released")
DEGREE = 30  # largest number of learned relations of a client
EMBEDDING = 10  # size of the embeddings that relations are learned with


class SmoothingServer(NamedTuple):
    """The state of SFL's server."""

    uploads: core.Params  # the last upload of every client, [N, ...]
    relations: core.Array | SparseMatrix  # A^ of the given relations, [N, N]
    # Row i holds the shares of all uploads in u_i, [N, N]; (), if the relations are sparse.
    mixing: Any


class Smoothing(NamedTuple):
    """How models are smoothed over relations."""

    layers: int  # L
    rule: str  # one of `RULES`
    weight: core.Array  # lambda
    share: core.Array  # a


def smoothing(
    *,
    sfl_layers: Annotated[int, Integer("Number L of SFL's averages over neighbours.")] = 3,
    sfl_rule: Annotated[
        str, Choice("SFL as intended, or with the faults of the released code.", RULES)
    ] = "intended",
    sfl_lambda: Annotated[
        core.Array,
        Real("Weight of SFL's distances to the smoothed model and to the mean model."),
    ] = 0.3,
    sfl_share: Annotated[
        core.Array,
        Real("Weight a of SFL's smoothed model; 0 keeps the client's own.", high=1.0),
    ] = 1.0,
) -> Smoothing:
    """Assembles a `Smoothing`."""
    return Smoothing(sfl_layers, sfl_rule, sfl_lambda, sfl_share)


@facts(needs=NEEDS)
def sfl(
    model: core.ClientModel, train: Train, *, smoothing: Annotated[Smoothing, Part(smoothing)]
) -> core.Algorithm:
    """Builds SFL."""
    return _with_relations(model, train, smoothing, relations.propagation)


def _with_relations(model, train, smoothing, propagation):
    """SFL, whose A^ is propagation(graph, "mean")."""

    def server_of(uploads, propagator):
        if isinstance(propagator, SparseMatrix):
            return SmoothingServer(uploads, propagator, ())
        return SmoothingServer(
            uploads, propagator, _powers(propagator, smoothing.layers, smoothing.share)
        )

    def init(key, graph):
        model_0 = model.init(key)
        propagator = propagation(graph, "mean")
        uploads = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(propagator)), model_0)
        return server_of(uploads, propagator)

    def smooth(server, models):
        """All models [N, ...], smoothed."""
        if isinstance(server.relations, SparseMatrix):
            return _smooth(server.relations, models, smoothing)
        return _mix(server.mixing, models)

    def download(server, i):
        if isinstance(server.relations, SparseMatrix):
            equal = jnp.full(len(server.relations), 1 / len(server.relations))
            # The shares of all uploads in w, the mean of the u_i
            mean = _smooth(server.relations, equal, smoothing, transposed=True)
            u_i = smoothed_models((server, smoothing.share), jnp.asarray(i))
            return u_i, tree.mean(server.uploads, mean)
        u_i = tree.mean(server.uploads, server.mixing[i])
        return u_i, tree.mean(server.uploads, jnp.mean(server.mixing, axis=0))

    @call_for_all
    def smoothed_models(shared, ids):
        server, share = shared
        propagator, shared_smoothing = server.relations, smoothing._replace(share=share)
        numbers = sum(leaf[0].size for leaf in jax.tree.leaves(server.uploads))
        if len(ids) > numbers:  # then smoothing all models costs less than M rows of shares
            return tree.take(_smooth(propagator, server.uploads, shared_smoothing), ids)
        chosen = jnp.zeros((len(propagator), len(ids))).at[ids, jnp.arange(len(ids))].set(1.0)
        shares = _smooth(propagator, chosen, shared_smoothing, transposed=True)  # [N, M]
        return jax.vmap(tree.mean, (None, 1))(server.uploads, shares)

    def local(message, memory, data, key):
        u_i, w = message

        def near_both(v, batch, key):
            # lambda / 2 (||v - u_i||^2 + ||v - w||^2)
            pull = 0.5 * smoothing.weight * (tree.sq_dist(v, u_i) + tree.sq_dist(v, w))
            return model.objective(v, batch, key) + pull

        released = smoothing.rule == "as_released"
        v, metrics = train(model.objective if released else near_both, w, data.train, key)
        return memory, (v,), metrics

    def aggregate(server, cohort, uploads, key):
        last_uploads = server.uploads
        if smoothing.rule == "as_released":
            last_uploads = smooth(server, last_uploads)
        return server._replace(uploads=tree.put(last_uploads, cohort.ids, uploads[0]))

    def admit(server, new_clients, graph, key):
        known = len(server.relations)
        propagator = propagation(graph, "mean")
        added = len(propagator) - known
        uploads = jax.tree.map(
            lambda leaf: jnp.pad(leaf, [(0, added)] + [(0, 0)] * (leaf.ndim - 1)),
            server.uploads,
        )
        admitted = server_of(uploads, propagator)
        if isinstance(propagator, SparseMatrix):
            is_known = jnp.ones(len(propagator)).at[new_clients].set(0.0)
            # The share of the known clients in each row, by which it is divided
            totals = smooth(admitted, is_known)[new_clients]
            known = jax.tree.map(lambda leaf: jax.vmap(jnp.multiply)(leaf, is_known), uploads)
            sums = tree.take(smooth(admitted, known), new_clients)
            mean = tree.mean(uploads, is_known / jnp.sum(is_known))
            first = jax.tree.map(_quotients(totals), sums, mean)
        else:
            is_known = jnp.ones((1, len(propagator))).at[:, new_clients].set(0.0)
            shares = admitted.mixing[new_clients] * is_known  # [new clients, N]
            total = jnp.sum(shares, axis=1, keepdims=True)
            # A new client without a path to a known one gets the mean of all.
            shares = jnp.where(total > 0, shares, is_known)
            shares = shares / jnp.sum(shares, axis=1, keepdims=True)
            first = _mix(shares, uploads)
        return admitted._replace(uploads=tree.put(uploads, new_clients, first))

    def adapt_new_clients(server, cohort, uploads, key):
        return server._replace(uploads=tree.put(server.uploads, cohort.ids, uploads[0]))

    server = core.Server.of_one(
        init,
        download,
        aggregate,
        admit=admit,
        adapt_new_clients=adapt_new_clients,
        allocation=lambda server: server.mixing,
        relate=lambda server, related: server_of(
            server.uploads, relations.mean_over_related(related)
        ),
    )
    client = core.Client(
        model,
        local,
        # Messages and uploads begin with a model.
        deploy=lambda sent, memory, data: core.Predictor(sent[0]),
        personalize=lambda message, memory, data, key: core.Predictor(message[0]),
        untrained=lambda message, memory, data: message[1:],  # local training starts from w
    )
    return core.Algorithm(server, (client,), needs=NEEDS)


@facts(needs=NEEDS)
def sfl_star(
    model: core.ClientModel,
    train: Train,
    *,
    smoothing: Annotated[Smoothing, Part(smoothing)],
    sfl_graph_steps: Annotated[
        int, Integer("Steps of SFL*'s learner of relations in a round.")
    ] = 10,
    sfl_graph_share: Annotated[
        core.Array, Real("Learned share s of SFL*'s relations.", high=1.0)
    ] = 0.05,
    sfl_graph_lr: Annotated[
        core.Array, Real("Learning rate of SFL*'s learner of relations.")
    ] = 0.01,
) -> core.Algorithm:
    """Builds SFL*, which learns relations from the clients' models."""
    base = _with_relations(model, train, smoothing, _small_propagation)

    def aggregate(server, cohorts, uploads, key):
        server = base.server.aggregate(server, cohorts, uploads, key)
        learned = _learn_relations(
            server.uploads,
            key,
            steps=sfl_graph_steps,
            rate=sfl_graph_lr,
            apart=smoothing.rule == "as_released",
        )
        # A': the rows of (1 - s) A^ + s A_learned, divided by their sums
        both = (1.0 - sfl_graph_share) * server.relations + sfl_graph_share * learned
        both = both / jnp.sum(both, axis=1, keepdims=True)
        return server._replace(mixing=_powers(both, smoothing.layers, smoothing.share))

    return base.replacing(aggregate=aggregate)


def _small_propagation(graph, layer):
    """`relations.propagation_array` of a graph that is not too large for SFL*."""
    relations.check_number_of_pairs(relations.num_clients(graph), "sfl_star")
    return relations.propagation_array(graph, layer)


def _smooth(propagator, rows, smoothing, transposed=False):
    """a A^L rows + (1 - a) rows for rows [N, ...] and a sparse A, or its transpose."""

    def of_leaf(leaf):
        result = leaf
        for _ in range(smoothing.layers):
            result = propagator.transposed_times(result) if transposed else propagator @ result
        return smoothing.share * result + (1.0 - smoothing.share) * leaf

    return jax.tree.map(of_leaf, rows)


def _quotients(totals):
    """(sums [m, ...], mean [...]) -> sums / totals [m], and the mean where a total is 0."""

    def divide(sums, mean):
        per_client = totals.reshape([-1] + [1] * mean.ndim)
        quotient = sums / jnp.where(per_client > 0, per_client, 1.0)
        return jnp.where(per_client > 0, quotient, mean[None])

    return divide


def _powers(propagator, layers, share):
    """a A^L + (1 - a) I for a matrix A of rows that sum to one."""
    smoothed = jnp.linalg.matrix_power(propagator, layers)
    return share * smoothed + (1.0 - share) * jnp.eye(len(propagator))


def _mix(shares, models):
    """Rows of `shares` [M, N] applied to models [N, ...]."""
    return jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, axes=1), models)


def _learn_relations(models, key, *, steps, rate, apart):
    """A_learned [N, N] of the docstring; from distances with `apart`, as released."""
    rows = jax.vmap(lambda model: ravel_pytree(model)[0])(models)  # [N, d]
    rows = rows - jnp.mean(rows, axis=0, keepdims=True)
    norms = jnp.sum(jnp.square(rows), axis=1, keepdims=True)
    squares = jnp.maximum(norms + norms.T - 2 * rows @ rows.T, 0.0)  # ||v_i - v_j||^2
    tiny = jnp.finfo(jnp.float32).tiny
    # exp(-||v_i - v_j||^2 / mean ||v_i - v_j||^2)
    similar = jnp.exp(-squares / jnp.maximum(jnp.mean(squares), tiny))
    target = _normalise(jnp.sqrt(squares) if apart else similar)
    features = rows * jax.lax.rsqrt(jnp.maximum(jnp.mean(norms), tiny))
    degree = min(DEGREE, len(rows))

    def graph_of(weights):
        e1, e2 = (jnp.tanh(features @ part) for part in weights)
        scores = jax.nn.relu(jnp.tanh(e1 @ e2.T - e2 @ e1.T))  # ReLU(B)
        least = jax.lax.top_k(scores, degree)[0][:, -1:]  # the 30th largest of a row
        return _normalise(jnp.where(scores >= least, scores, 0.0))

    def step(weights, _):
        loss = lambda weights: jnp.mean(jnp.square(graph_of(weights) - target))  # noqa: E731
        gradient = jax.grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - rate * g, weights, gradient), None

    weights = jax.random.normal(key, (2, rows.shape[1], EMBEDDING))
    weights, _ = jax.lax.scan(step, weights, length=steps)
    return graph_of(weights)


def _normalise(matrix):
    """Rows that sum to one; a row of zeros stays."""
    total = jnp.sum(matrix, axis=1, keepdims=True)
    return matrix / jnp.where(total > 0, total, 1.0)
