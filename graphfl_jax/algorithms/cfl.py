"""CFL: clusters of clients with a model each, split where their clients' updates disagree.

Sattler, Mueller, Samek. Clustered Federated Learning: Model-Agnostic Distributed Multitask
Optimization Under Privacy Constraints. IEEE TNNLS 2021. https://arxiv.org/abs/1910.01991

    w_c <- w_c + 1/|c| sum_{i in c} u_i,      u_i = K_c steps of SGD on F_i from w_c, minus w_c

A cluster c of more than two clients is split in two after the warm-up, if

    ||1/|c| sum_{i in c} u_i|| < epsilon_1 r    and    max_{i in c} ||u_i|| > epsilon_2 r

where r is the largest ||u_i|| of the first round; that is, if its model is nearly stationary,
but not for each of its clients. The two parts are those of complete linkage: the two groups of
clients whose least similar members are the most similar, by the cosine of their updates, become
one group, until two are left. A cluster is split before its model moves, so each part moves by
its own mean, as in the authors' code.
Without a split, CFL is FedAvg with equal weights. P is G, the model of the client's cluster.

Departures:
  * The paper has norms epsilon_1 and epsilon_2, to be set by those of a first run, and its code
    0.4, 1.6 and a warm-up of 20 rounds for one network and rate. The norms differ between
    networks and rates, so here both are in units of r, as ``hparams.cfl_mean_norm`` and
    ``hparams.cfl_max_norm``. Their defaults were chosen on validation.
  * At most ``algorithm.cfl_clusters`` clusters; then none is split.
  * In a round, not all clients of a cluster need to be in the cohort. Those that are move the
    model. The criteria and the similarities take the last update of every client, and a cluster
    is split only after each of its clients has trained its model, since its last split.
  * The paper also splits optimally by similarities; complete linkage is that of the authors'
    code. In it, clusters are split by the places of clients within the cluster instead of
    by their numbers, which is wrong from the second split on; here clients keep their numbers.
  * A new client starts from the last model that all clients shared, and then joins the cluster
    whose model has moved from there in the most similar direction. The paper sends it down the
    tree of all splits.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Params, Server
from graphfl_jax.data import relations
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import Train

SMALLEST = 3  # clients of a cluster that may be split
UNKNOWN = -1  # the cluster of a new client that has not trained


class ClusterServer(NamedTuple):
    """The state of CFL's server. C is the largest number of clusters."""

    models: Params  # of the clusters, [C, ...]; only the first `count` are used
    root: Params  # the model that was last sent to all clients, before the first split
    clusters: Array  # the cluster of each client, [N] int32
    count: Array  # clusters that exist, [] int32
    updates: Array  # the last update of each client, [N, d]
    unit: Array  # r, [] float32; 0 before the first round
    # [N] bool: whether a client has trained the model of its cluster since its last split
    trained: Array


def cfl(
    model: ClientModel,
    train: Train,
    *,
    played: Array,
    num_clients: int,
    cfl_clusters: Annotated[int, Integer("Largest number of CFL's clusters.")] = 8,
    cfl_warmup: Annotated[int, Integer("Rounds before CFL's first possible split.", low=0)] = 8,
    cfl_mean_norm: Annotated[
        Array,
        Real(
            "CFL's epsilon_1: a cluster whose mean update has this norm or more stays whole; "
            "in units of the largest norm of an update in the first round."
        ),
    ] = 0.25,
    cfl_max_norm: Annotated[
        Array,
        Real(
            "CFL's epsilon_2: a cluster whose updates all have this norm or less stays whole; "
            "in the same units."
        ),
    ] = 0.3,
) -> Algorithm:
    """Builds CFL. A message and an upload are one model each.

    Raises:
      ValueError: there are too many clients for N x N numbers.
    """
    relations.check_number_of_pairs(num_clients, "cfl")

    def init(key, graph):
        root = model.init(key)
        size = sum(leaf.size for leaf in jax.tree.leaves(root))
        return ClusterServer(
            models=jax.tree.map(lambda leaf: jnp.stack([leaf] * cfl_clusters), root),
            root=root,
            clusters=jnp.zeros(num_clients, jnp.int32),
            count=jnp.int32(1),
            updates=jnp.zeros((num_clients, size)),
            unit=jnp.float32(0.0),
            trained=jnp.zeros(num_clients, bool),
        )

    def download(server, i):
        cluster = server.clusters[i]
        sent = tree.take(server.models, jnp.maximum(cluster, 0))
        return jax.tree.map(
            lambda leaf, root: jnp.where(cluster == UNKNOWN, root, leaf), sent, server.root
        )

    def local(w, memory, data, key):
        w, metrics = train(model.objective, w, data.train, key)
        return memory, w, metrics

    def aggregate(server, cohort, uploads, key):
        sent = tree.take(server.models, server.clusters[cohort.ids])
        updates = server.updates.at[cohort.ids].set(
            tree.as_matrix(uploads)[0] - tree.as_matrix(sent)[0]  # u_i
        )
        trained = server.trained.at[cohort.ids].set(True)
        largest = jnp.max(jnp.linalg.norm(updates, axis=1))  # only those of the first round
        unit = jnp.where(server.unit > 0, server.unit, largest)
        server = server._replace(updates=updates, unit=unit, trained=trained)
        server = split(server, ready_clusters(server))
        # [M]; that of an absent client is unknown
        clusters = server.clusters.at[cohort.ids].get(mode="fill", fill_value=UNKNOWN)
        members = (jnp.arange(cfl_clusters)[:, None] == clusters[None]).astype(jnp.float32)
        models = cluster_means(server.models, uploads, members)
        whole = server.count == 1
        root = jax.tree.map(lambda old, new: jnp.where(whole, new[0], old), server.root, models)
        return server._replace(models=models, root=root)

    def ready_clusters(server):
        """The clusters to be split: bool [C]."""
        members = jnp.arange(cfl_clusters)[:, None] == server.clusters[None]  # [C, N]
        sizes = jnp.sum(members, axis=1)
        sums = members.astype(jnp.float32) @ server.updates  # [C, d]
        # ||1/|c| sum_{i in c} u_i||
        mean_norms = jnp.linalg.norm(sums, axis=1) / jnp.maximum(sizes, 1).astype(jnp.float32)
        norms = jnp.linalg.norm(server.updates, axis=1)
        largest = jnp.max(jnp.where(members, norms[None], 0.0), axis=1)  # max_{i in c} ||u_i||
        ready = mean_norms < cfl_mean_norm * server.unit
        ready &= largest > cfl_max_norm * server.unit
        ready &= (sizes >= SMALLEST) & (played >= cfl_warmup)
        ready &= jnp.all(server.trained[None] | ~members, axis=1)
        # As many as there is place for, in the order of their numbers.
        return ready & (jnp.cumsum(ready) <= cfl_clusters - server.count)

    def split(server, ready):
        leaving = jax.lax.cond(
            jnp.any(ready),
            lambda: bipartition(server.updates, server.clusters, ready),
            lambda: jnp.zeros(len(server.clusters), bool),
        )
        number = server.count + jnp.cumsum(ready) - 1  # [C], of the second part of a cluster
        new = jnp.where(leaving, number[server.clusters], server.clusters).astype(jnp.int32)
        # Where each model comes from: a new cluster's from that which was split.
        numbers = jnp.arange(cfl_clusters)
        source = numbers.at[jnp.where(ready, number, cfl_clusters)].set(numbers, mode="drop")
        return server._replace(
            models=tree.take(server.models, source),
            clusters=new,
            count=server.count + jnp.sum(ready, dtype=jnp.int32),
            trained=server.trained & ~ready[server.clusters],
        )

    def admit(server, new_clients, graph, key):
        added = len(new_clients)
        return server._replace(
            clusters=jnp.pad(server.clusters, (0, added), constant_values=UNKNOWN),
            updates=jnp.pad(server.updates, ((0, added), (0, 0))),
            trained=jnp.pad(server.trained, (0, added)),
        )

    def adapt_new_clients(server, cohort, uploads, key):
        root = tree.as_matrix(jax.tree.map(lambda leaf: leaf[None], server.root))[0]  # [1, d]
        moved = tree.as_matrix(server.models)[0] - root  # [C, d]
        similar = cosines(tree.as_matrix(uploads)[0] - root, moved)  # [m, C]
        exists = jnp.arange(cfl_clusters) < server.count
        best = jnp.argmax(jnp.where(exists[None], similar, -jnp.inf), axis=1)
        old = server.clusters[cohort.ids]
        joined = jnp.where(old == UNKNOWN, best.astype(jnp.int32), old)
        return server._replace(clusters=server.clusters.at[cohort.ids].set(joined))

    def allocation(server):
        """Equal shares of the clients of the cluster."""
        same = (server.clusters[:, None] == server.clusters[None]).astype(jnp.float32)
        return same / jnp.sum(same, axis=1, keepdims=True)

    server = Server.of_one(
        init,
        download,
        aggregate,
        admit=admit,
        adapt_new_clients=adapt_new_clients,
        allocation=allocation,
        plays_on=False,  # a new client has no cluster before it has trained
    )
    return Algorithm(server, (Client(model, local),))


def cluster_means(models: Params, uploads: Params, weights: Array) -> Params:
    """The weighted means of M clients' models in each of C clusters.

    Args:
      models: [C, ...], which clusters keep where all weights are 0.
      uploads: [M, ...].
      weights: [C, M]; those of the clients of other clusters are 0.
    """
    total = jnp.sum(weights, axis=1)  # [C]
    some = total > 0
    shares = weights / jnp.where(some, total, 1.0)[:, None]

    def move(models, uploads):
        means = jnp.tensordot(shares, uploads, axes=1)
        return jnp.where(some.reshape([-1] + [1] * (means.ndim - 1)), means, models)

    return jax.tree.map(move, models, uploads)


def cosines(a: Array, b: Array) -> Array:
    """Cosines between the rows of two matrices [n, d] and [m, d]: [n, m]; 0 for a row of 0."""

    def normalise(rows):
        norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
        return rows / jnp.where(norms > 0, norms, 1.0)

    return normalise(a) @ normalise(b).T


def bipartition(updates: Array, clusters: Array, ready: Array) -> Array:
    """Splits clusters in two by complete linkage of the cosines between updates.

    All clusters are split in one sequence of merges: groups of different clusters are never
    merged, and no group of a cluster of which two are left. It takes at most N - 2 merges, each
    in a time that is proportional to N^2.

    Args:
      updates: [N, d].
      clusters: number of the cluster of each client, [N] int32.
      ready: which clusters are split, bool [C]; each has at least three clients.

    Returns:
      Which clients leave their cluster for a new one, bool [N]: those that are not in a group
      with the first client of their cluster. None leave a cluster that is not split.
    """
    total, numbers = len(clusters), jnp.arange(len(clusters))
    splitting = ready[clusters]  # [N]
    together = (clusters[:, None] == clusters[None]) & splitting[:, None]
    linkage = jnp.where(together, 1.0 - cosines(updates, updates), jnp.inf)
    linkage = jnp.where(numbers[:, None] == numbers[None], jnp.inf, linkage)

    def mergeable(linkage, groups):
        """The linkage [N, N] of the groups that may be merged, and infinity elsewhere."""
        first = groups == numbers
        left = jnp.sum(together & first[None], axis=1)  # [N]: groups of a client's cluster
        return jnp.where((left > 2)[:, None], linkage, jnp.inf)

    def merge(carry):
        linkage, groups, candidates = carry
        place = jnp.argmin(candidates)
        i, j = jnp.sort(jnp.stack([place // total, place % total]))
        row = jnp.maximum(linkage[i], linkage[j])  # complete linkage; inf at i and at j
        linkage = linkage.at[i].set(row).at[:, i].set(row)
        linkage = linkage.at[j].set(jnp.inf).at[:, j].set(jnp.inf)
        groups = jnp.where(groups == j, i, groups)
        return linkage, groups, mergeable(linkage, groups)

    _, groups, _ = jax.lax.while_loop(
        lambda carry: jnp.any(jnp.isfinite(carry[2])),
        merge,
        # A group has the number of its first client.
        (linkage, numbers, mergeable(linkage, numbers)),
    )
    first = jnp.argmax(together, axis=1)  # the first client of a client's cluster
    return splitting & (groups != groups[first])
