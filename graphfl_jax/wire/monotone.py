"""A defence that compares each client's updates with its own earlier ones.

For every client, the server remembers the model x_s that it last sent, as the vector that the
client would upload untrained, and the update u_s that came back. When client i, with the
neighbours N(i), answers x_t with u_t,

    m_i = cos(u_t - u_s, x_t - x_s)                                     monotony
    a_i = cos(u_t, sum_{j in N(i), trusted} u_j / |u_j|)                agreement
    s_i <- rho s_i + (1 - rho) (m_i - beta a_i)                         s_i = theta at the start
    d_i = E|u_t| E|x_t - x_s|^2 / E[-<u_t - u_s, x_t - x_s>]            reach
    u_t <- u_t min(1, c med / |u_t|)

where u_j is the last update of client j, E is a running mean over the client's comparisons with
the memory rho, and med is the lower median of the norms of the last updates of all clients with
the same architecture that have been in a cohort. Neighbours with another architecture do not
count in a_i. A client is trusted while s_i <= theta and d_i <= R med_d, where med_d is the
lower median of d_j over all clients with the same architecture that have been compared. A d_i
whose denominator is not positive is the largest number. Before its first comparison, a client
has no d_i and no m_i, and s_i stays, so it is trusted. While its model does not move, d_i
stays.

The upload of a client that is not trusted counts as untrained. For a server that averages, its
clipped update counts as the mean of those of the trusted clients of the cohort, weighted by
numbers of examples, even if the server weights all clients equally. What the server keeps for
this client alone, such as an initial embedding, becomes the mean over its trusted neighbours
that have been in a cohort, or over all such clients if no neighbour is one. A server that holds
a different model for each client still sees the untrained upload: Panacea's steps go towards
the model that it sent, and SFL replaces the client's last model by it. A client whose update
has a norm that is not finite gets s_i = 2, more than any threshold. The server does not
remember this update, and its norm is not among those of the median.

Why m_i is negative for a benign client: let it take K steps of full gradient descent on a
quadratic loss with the Hessian H and the minimum x*, with a learning rate eta. Then

    u(x) = -C (x - x*),    C = I - (I - eta H)^K

and with eta <= 2 / |H| the eigenvalues of C are not negative, so u_t - u_s = -C (x_t - x_s) has
no positive product with x_t - x_s. With the condition number k of C, m_i <= -2 sqrt(k) / (1 +
k) (Kantorovich's inequality) while the model changes. So with beta = 0.5, theta = 0 and k <=
13.9, a client with exact updates has s_i <= theta whatever its neighbours do. A client that
uploads -lambda u has m_i of the opposite sign.

Noise of batches makes m_i uncertain, and hides attackers. Let an update be u + n, where n is
noise of mean 0, independent over rounds, and let the server move the model along the update,
x_t - x_s = gamma (u_s + n_s). With C = c I, the share r = E|n|^2 / E|u_s + n_s|^2 of noise, and
in many dimensions,

    m_i = -(gamma c + r) / sqrt((gamma c)^2 + 2 gamma c r + 2 r)

which is negative, but can be above -1/2, so that neighbours who all disagree can have a benign
client rejected. An attacker with -lambda c in place of c has a positive m_i only while r <
gamma lambda c. If the model moves independently of n_s, as when other clients move it, there is
neither r in the numerator nor gamma c r in the root: m_i comes close to 0, and keeps its sign.
Updates that shrink because learning rates fall hide attackers as noise does.

Losses that are not convex can have a positive m_i. Near a saddle point, as at the start of the
training of a network with hidden layers, a client's update grows along its own direction, so
benign clients have m_i > 0 and attackers m_i < 0. On FL-60 without attackers, the models leave
the saddle within two visits of a client. With many attackers they stay there longer, and benign
clients are rejected in the meantime; the running mean over visits is to average this out.

The update is supposed to depend on the model that was sent, and on nothing else that changes.
An upload that is more than a model, as SCAFFOLD's with the change of a control, and a client
that keeps a memory, weaken m_i for benign clients and attackers alike.

It needs neither the number of attackers nor data, and nothing more from clients. Attackers who
follow an objective of their own, such as training on changed labels or going to parameters that
they chose, are monotone too. Where m_i <= -1/2, they pass this test whatever their neighbours
do, and only the norm and the reach limit them. The reach is how far away the minimum is from
which such updates come. With k the condition number of C, the quadratic client above has

    |x_t - x*| / k  <=  |u_t| |x_t - x_s|^2 / -<u_t - u_s, x_t - x_s>  <=  k |x_t - x*|

since |u_t| is between the smallest and the largest eigenvalue of C times |x_t - x*|, and the
product is between the same two times |x_t - x_s|^2. An attacker who goes to c has exactly
|x_t - c|, whatever share of the way a step is. It can send shorter updates, but then these
hardly answer to a model that moves. Noise makes updates longer, and where the model moves along
it, also the product larger, for benign clients and attackers alike.

The reach does not stop attackers whose minimum is as near as those of benign clients, such as 0
for small models; nor those who keep an honest answer and add to it what does not depend on the
model, about R times as long, as `drift`, `dead_units` and `shrinkage` of `upload_attacks`; nor
a majority of attackers among the compared clients, since the median is then theirs. Clients
whose uploads are not finite are not compared, so half of all clients can be that majority. A
benign client that is still far from its minimum when the others are near theirs is rejected,
and can stay so, since it learns nothing meanwhile.

See docs/results/robustness.md.
"""

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array
from graphfl_jax.data import relations
from graphfl_jax.data.sparse import SparseMatrix
from graphfl_jax.rounds import Group
from graphfl_jax.settings import LARGEST_FLOAT, Real
from graphfl_jax.wire.updates import floats_of, shorten

BROKEN = 2.0  # s of a client whose update is not finite
NEVER = -1.0  # norm of the update of a client that has not been in a cohort


class Seen(NamedTuple):
    """What the server remembers of the n clients of an architecture."""

    sent: Array  # [n, d]: what they last got, as they would have uploaded it untrained
    updates: Array  # [n, d]: with what they answered
    norms: Array  # [n]: the norms of these
    distrust: Array  # [n]: s
    visits: Array  # [n] int32: rounds in which they were in the cohort
    rejections: Array  # [n] int32: rounds in which they were not trusted
    # [n, 4]: running means of 1, |u_t|, |x_t - x_s|^2 and -<u_t - u_s, x_t - x_s>, from 0
    compared: Array


class Guarded(NamedTuple):
    """The state of a server, and what it remembers for its defence."""

    server: Any
    seen: tuple[Seen, ...]  # for each architecture
    related: Any  # adjacency matrix of the clients [N, N]


class Monotone(NamedTuple):
    """The floats of the defence."""

    threshold: Array  # theta
    memory: Array  # rho
    agreement: Array  # beta
    norm: Array  # c
    reach: Array  # R


def monotone(
    *,
    defence_threshold: Annotated[
        Array,
        Real(
            "Largest running statistic of a trusted client; all clients begin with it.",
            low=-1.5,
            high=1.5,
        ),
    ] = 0.0,
    defence_memory: Annotated[
        Array, Real("Weight of earlier rounds in the running statistic.", high=1.0)
    ] = 0.7,
    defence_agreement: Annotated[
        Array, Real("Weight of the agreement with trusted neighbours.")
    ] = 0.5,
    defence_norm: Annotated[
        Array, Real("Largest norm of an update, relative to the median of the last norms.")
    ] = 2.0,
    defence_reach: Annotated[
        Array,
        Real("Largest reach of a trusted client, relative to the median; 0: no limit."),
    ] = 6.0,
) -> Monotone:
    """Rejects clients whose updates do not answer to the model that they get."""
    reach = jnp.where(defence_reach > 0, defence_reach, jnp.inf)
    return Monotone(defence_threshold, defence_memory, defence_agreement, defence_norm, reach)


def cosines(a, b):
    """Of the rows of [M, d] and [M, d]: [M]; 0 where one of the two is 0."""
    norms = jnp.linalg.norm(a, axis=1) * jnp.linalg.norm(b, axis=1)
    return jnp.sum(a * b, axis=1) / jnp.where(norms > 0, norms, 1.0)


def lower_median(norms):
    """Of those of norms [n] that are not `NEVER`; `NEVER` if all are."""
    missing = jnp.sum(norms == NEVER)  # and first in ascending order
    return jnp.sort(norms)[missing + (len(norms) - missing - 1) // 2]


def reaches(compared):
    """d [n] from running means [n, 4] as in `Seen`; `NEVER` without a comparison."""
    weight, length, square, product = compared.T
    answers = weight * product
    reach = length * square / jnp.where(answers > 0, answers, 1.0)
    reach = jnp.where(answers > 0, jnp.minimum(reach, LARGEST_FLOAT), LARGEST_FLOAT)
    return jnp.where(weight > 0, reach, NEVER)


def trusted_of(defence, seen):
    """Which of the n clients of an architecture are trusted: [n] bool."""
    reach = reaches(seen.compared)
    near = reach / defence.reach <= jnp.maximum(lower_median(reach), 0.0)
    return near & (seen.distrust <= defence.threshold)


def guard(
    algorithm: Algorithm,
    defence: Monotone,
    groups: tuple[Group, ...],
    upload_sizes: tuple[int, ...],
) -> Algorithm:
    """A method whose server has this defence. Its state is `Guarded`.

    Args:
      algorithm: the method; its server sends and receives models.
      defence: of `monotone`.
      groups: the clients of each architecture.
      upload_sizes: d, the floats in an upload of each architecture.
    """
    server = algorithm.server

    def init(key, graph):
        total = relations.num_clients(graph)
        counts = [total if group.ids is None else len(group.ids) for group in groups]
        seen = tuple(
            _nothing_seen(count, size, defence.threshold)
            for count, size in zip(counts, upload_sizes, strict=True)
        )
        return Guarded(server.init(key, graph), seen, relations.adjacency(graph))

    def defend(state, cohorts, untrained, uploads):
        rows = zip(groups, state.seen, cohorts, untrained, uploads, strict=True)
        judged = [
            _defend(defence, state.related, *row, averages=algorithm.averages) for row in rows
        ]
        seen, defended = zip(*judged, strict=True)
        return state._replace(seen=seen), defended

    def aggregate(state, cohorts, uploads, key):
        after = server.aggregate(state.server, cohorts, uploads, key)
        if server.substitute is not None:
            after = _substitute(server, after, state, groups, defence)
        return state._replace(server=after)

    def rejected(state):
        shares = [
            jnp.where(seen.visits > 0, seen.rejections / jnp.maximum(seen.visits, 1), -1.0)
            for seen in state.seen
        ]
        return _of_all(groups, shares, len(state.related), -1.0)

    within = server.within(
        lambda state: state.server, lambda state, inner: state._replace(server=inner)
    )
    # What it has seen has no rows of new clients.
    return dataclasses.replace(algorithm, server=within).replacing(
        init=init, aggregate=aggregate, rejected=rejected, defend=defend, plays_on=False
    )


def _nothing_seen(count, size, threshold):
    """`Seen` of `count` clients with uploads of `size` numbers before the first round."""
    rows, visits = jnp.zeros((count, size)), jnp.zeros(count, jnp.int32)
    norms, distrust = jnp.full(count, NEVER), jnp.full(count, threshold)
    return Seen(rows, rows, norms, distrust, visits, visits, jnp.zeros((count, 4)))


def _places(group, ids):
    """The places of clients among those of their group."""
    return ids if group.ids is None else jnp.searchsorted(jnp.asarray(group.ids), ids)


def _defend(defence, related, group, seen, cohort, untrained, uploads, *, averages):
    """What is remembered of a group after its cohort's uploads, and those that the server gets.

    Args:
      untrained: what the clients would have uploaded untrained, every leaf [M, ...].
      averages: whether the server averages uploads.
    """
    sent, received = (  # [M, d], without integers
        jax.vmap(lambda upload: floats_of(upload)[0])(rows) for rows in (untrained, uploads)
    )
    seen, updates, rejected = _judge(
        defence, seen, related, group, cohort.ids, sent, received - sent
    )
    updates = _without_rejected(updates, rejected, cohort.weights if averages else None)
    same = updates == received - sent
    changed = jnp.where(same, received, sent + updates)
    return seen, jax.vmap(lambda upload, row: floats_of(upload)[1](row))(uploads, changed)


def _judge(defence, seen, related, group, ids, sent, updates):
    """What is remembered after a cohort's updates [M, d], these clipped, and the rejected."""
    places = _places(group, ids)
    last = tree.take(seen, places)
    finite = jnp.isfinite(jnp.linalg.norm(updates, axis=1))
    updates = jnp.where(finite[:, None], updates, 0.0)
    answers, moves = updates - last.updates, sent - last.sent
    monotony = cosines(answers, moves)  # m_i
    trusted = (seen.visits > 0) & trusted_of(defence, seen)
    lengths = jnp.where(trusted & (seen.norms > 0), seen.norms, jnp.inf)
    voices = _sums(related, group, ids, seen.updates / lengths[:, None])
    statistic = monotony - defence.agreement * cosines(updates, voices)  # m_i - beta a_i
    statistic = defence.memory * last.distrust + (1.0 - defence.memory) * statistic  # s_i
    statistic = jnp.where(last.norms != NEVER, statistic, last.distrust)
    statistic = jnp.where(finite, statistic, BROKEN)
    norms = jnp.linalg.norm(updates, axis=1)
    every = seen.norms.at[places].set(jnp.where(finite, norms, last.norms))
    squares, products = jnp.sum(jnp.square(moves), axis=1), -jnp.sum(answers * moves, axis=1)
    means = jnp.stack([jnp.ones_like(norms), norms, squares, products], axis=1)
    means = defence.memory * last.compared + (1.0 - defence.memory) * means
    known = finite & (last.norms != NEVER) & (squares > 0)
    known &= jnp.all(jnp.isfinite(means), axis=1)
    after = Seen(
        seen.sent.at[places].set(jnp.where(finite[:, None], sent, last.sent)),
        seen.updates.at[places].set(jnp.where(finite[:, None], updates, last.updates)),
        every,
        seen.distrust.at[places].set(statistic),
        seen.visits.at[places].add(1),
        seen.rejections,
        seen.compared.at[places].set(jnp.where(known[:, None], means, last.compared)),
    )
    rejected = ~trusted_of(defence, after)[places]
    rejections = seen.rejections.at[places].add(rejected.astype(jnp.int32))
    updates = shorten(updates, defence.norm * jnp.maximum(lower_median(every), 0.0))
    return after._replace(rejections=rejections), updates, rejected


def _without_rejected(updates, rejected, weights):
    """Updates [M, d], in place of the rejected ones 0, or with weights [M] the others' mean."""
    instead = jnp.zeros_like(updates)
    if weights is not None:
        shares = jnp.where(rejected, 0.0, weights)
        instead += (shares @ updates / jnp.maximum(jnp.sum(shares), 1.0))[None]
    return jnp.where(rejected[:, None], instead, updates)


def _sums(related, group, ids, rows):
    """Sums over the neighbours of clients `ids` [M] in a group of its rows [n, ...]."""
    if group.ids is not None:
        rows = jnp.zeros((len(related), *rows.shape[1:])).at[group.ids].set(rows)
    if isinstance(related, SparseMatrix):
        return (related @ rows)[ids]
    return related[ids] @ rows


def _of_all(groups, parts, total, missing):
    """Values [N] of all clients from those of each group; `missing` for clients of no group."""
    if groups[0].ids is None:
        return parts[0]
    every = jnp.full(total, missing)
    for group, values in zip(groups, parts, strict=True):
        every = every.at[group.ids].set(values)
    return every


def _substitute(server, after, state, groups, defence):
    """The inner state `after`, in which clients that are not trusted have others' part."""
    total = len(state.related)
    now = [trusted_of(defence, seen).astype(jnp.float32) for seen in state.seen]
    trusted = _of_all(groups, now, total, 0.0)
    visits = [seen.visits for seen in state.seen]
    heard = jnp.where(_of_all(groups, visits, total, 0) > 0, trusted, 0.0)

    def mean(rows):
        """Means [N, E] over the trusted neighbours of the rows [N, E]."""
        weighted = jnp.concatenate([rows, jnp.ones((total, 1))], axis=1) * heard[:, None]
        sums, everyone = state.related @ weighted, jnp.sum(weighted, axis=0)
        sums = jnp.where(sums[:, -1:] > 0, sums, everyone[None])
        means = sums[:, :-1] / jnp.maximum(sums[:, -1:], 1.0)
        return jnp.where((trusted[:, None] > 0) | (everyone[-1] == 0), rows, means)

    return server.substitute(after, mean)
