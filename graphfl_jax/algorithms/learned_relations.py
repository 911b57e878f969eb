"""Relations that the server learns: similar uploads join their clients.

    c_ij = cos(v_i - mean v, v_j - mean v),   of clients that have uploaded
    i ~ j, if c_ij is among the k largest c_i. or among the k largest c_j.

v_i is the last upload of client i, as the server gets it after compression, attacks, defences
and noise; or the last update, the upload minus what the client would have sent untrained. k is
``data.neighbours``. The relations are computed after every ``data.learned_every`` rounds; until
then nobody is related, and so are clients that have not uploaded. The relations of the data are
not read.

A new client is alone until its first upload, as its method has it without relations. With it,
it receives from its k most similar known clients. Their relations do not change, unless
``new_clients.join`` is together; then all are computed every ``data.learned_every`` rounds.

It fits methods whose server has `core.Server.relate`.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array
from graphfl_jax.data import relations
from graphfl_jax.data.graphs import Learning


class LearnedServer(NamedTuple):
    """The state of a server that learns relations between N clients."""

    server: Any  # of the method
    rows: Array  # [N, d], what is compared; 0 of clients that have not uploaded
    seen: Array  # [N] bool, who has uploaded
    related: Array  # [N, N] bool, at [i, j] whether client i receives from client j


def learn_relations(
    algorithm: Algorithm, learning: Learning, *, method: str, num_clients: int, played: Array
) -> Algorithm:
    """A method whose server learns the relations that it mixes over.

    Args:
      algorithm: the method.
      learning: how it learns them.
      method: its name, for errors.
      num_clients: N, clients that train.
      played: [] int32, number of past rounds.

    Raises:
      ValueError: the method reads no relations that change, or there are too few clients for
        the neighbours, or too many for N x N numbers.
    """
    server, client = algorithm.server, algorithm.clients[0]
    if server.relate is None:
        raise ValueError(
            f"data.graph='learned' needs a server that mixes over relations, and that of "
            f"algorithm.name={method!r} does not, or learns its own; choose sfl, sfl_star or "
            f"pfedgat with algorithm.attention=given, or set --config.data.graph=knn"
        )
    relations.check_neighbours(learning.neighbours, num_clients)
    relations.check_number_of_pairs(
        num_clients, "learned", field="data.graph", other="data.graph"
    )

    def relate(inner, related):
        return server.relate(inner, related.astype(jnp.float32))

    def untrained(inner, i):
        return client.untrained(server.download(inner, 0, i), (), None)

    def rows_with(state, cohort, upload):
        """What is compared after the uploads of a cohort."""
        rows, _ = tree.as_matrix(upload)
        if learning.compared == "update":
            before = jax.vmap(untrained, (None, 0))(state.server, cohort.ids)
            rows -= tree.as_matrix(before)[0]
        return state.rows.at[cohort.ids].set(rows)

    def init(key, graph):
        inner, total = server.init(key, graph), relations.num_clients(graph)
        nobody = jnp.zeros((total, total), bool)
        sent = jax.tree.leaves(jax.eval_shape(untrained, inner, jnp.int32(0)))
        rows = jnp.zeros((total, sum(leaf.size for leaf in sent)))
        return LearnedServer(relate(inner, nobody), rows, jnp.zeros(total, bool), nobody)

    def aggregate(state, cohorts, uploads, key):
        (cohort,), (upload,) = cohorts, uploads
        rows = rows_with(state, cohort, upload)
        seen = state.seen.at[cohort.ids].set(True)

        def anew():
            nearest = most_similar(rows, seen, learning.neighbours) & seen[:, None]
            related = nearest | nearest.T
            return relate(state.server, related), related

        due = (played + 1) % learning.every == 0
        inner, related = jax.lax.cond(due, anew, lambda: (state.server, state.related))
        inner = server.aggregate(inner, cohorts, uploads, key)
        return LearnedServer(inner, rows, seen, related)

    def admit(state, ids, graph, key):
        inner = server.admit(state.server, ids, graph, key)
        added = relations.num_clients(graph) - len(state.seen)
        related = jnp.pad(state.related, (0, added))
        rows, seen = jnp.pad(state.rows, ((0, added), (0, 0))), jnp.pad(state.seen, (0, added))
        return LearnedServer(relate(inner, related), rows, seen, related)

    def adapt_new_clients(state, cohorts, uploads, key):
        (cohort,), (upload,) = cohorts, uploads
        rows, ids = rows_with(state, cohort, upload), cohort.ids
        known = state.seen.at[ids].set(False)
        nearest = most_similar(rows, known, learning.neighbours)[ids]
        related = state.related.at[ids].set(nearest)
        inner = relate(state.server, related)
        inner = server.adapt_new_clients(inner, cohorts, uploads, key)
        return LearnedServer(inner, rows, state.seen.at[ids].set(True), related)

    within = server.within(
        lambda state: state.server, lambda state, inner: state._replace(server=inner)
    )
    steps = {"init": init, "aggregate": aggregate, "admit": admit}
    within = dataclasses.replace(
        within, adapt_new_clients=adapt_new_clients, relate=None, **steps
    )
    needs = algorithm.needs._replace(relations=False)  # those of the data
    return dataclasses.replace(algorithm, server=within, needs=needs)


def most_similar(rows: Array, candidates: Array, neighbours: int) -> Array:
    """Which clients are most similar to each: [N, N] bool.

    Args:
      rows: [N, d], what is compared.
      candidates: [N] bool, who can be similar to others, and whose mean is subtracted.
      neighbours: largest number of candidates of a row; less than N.
    """
    number = jnp.maximum(jnp.sum(candidates), 1).astype(rows.dtype)
    mean = jnp.sum(jnp.where(candidates[:, None], rows, 0.0), axis=0) / number
    centred = rows - mean[None]
    norms = jnp.linalg.norm(centred, axis=1, keepdims=True)
    unit = centred / jnp.maximum(norms, jnp.finfo(rows.dtype).tiny)
    allowed = candidates[None, :] & ~jnp.eye(len(rows), dtype=bool)
    cosines = jnp.where(allowed, unit @ unit.T, -jnp.inf)
    _, places = jax.lax.top_k(cosines, neighbours)
    chosen = jnp.zeros(allowed.shape, bool).at[jnp.arange(len(rows))[:, None], places].set(True)
    return chosen & allowed
