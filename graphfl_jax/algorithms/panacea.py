"""Panacea: a graph hypernetwork over the client relation graph generates the clients' models.

Lan et al. Panacea (IEEE TDSC 2025), after the anonymous ICLR 2024 submission of that name.

    Z = E(H0, A)                       graph encoder, 3 layers, H0 [N, 100] learned
    theta_i = M(z_i)                   generator, a 3-layer perceptron
    A^_uv = sigmoid(<z^_u, z^_v>)      graph generator; z^ = hidden pre-activation of M at z
    J = 1/|T| sum_{i in T} 1/2 ||theta~_i - theta_i||^2  +  lambda_d BCE(A^, A)     (eq. 3-5)

The server takes K_s steps on J. BCE is the mean over all ordered pairs u != v. M's weights are
constants in it, so that it trains the encoder and H0 only (eq. 8).

Panacea-GN is ``lambda_d=0``; Panacea-MLP is `panacea_mlp`.

The method of the papers is the variant ``panacea-paper`` (``panacea-paper-gn`` without the
second loss). Of these departures, it has the first four, where the papers contradict
themselves, and the last.

Departures:
  * Alg. 1 prints psi - alpha J^T (theta~ - theta), which ascends eq. (4). Here the sign is
    corrected.
  * theta~ stays fixed during the K_s steps while theta moves, as the text of eq. (4) says. The
    printed algorithm repeats the difference theta~ - theta of the round's beginning in each
    step, with J at the current weights: ``difference=printed``, in ``panacea-paper-printed``.
  * Targets are averaged over the cohort. Eq. (4) divides by the number of all clients, of which
    only the cohort has targets.
  * Directed relations are made symmetric for BCE, since an inner product is symmetric.
  * The encoder's layers are GraphSAGE by default. In each round, a random tenth of the clients
    uses the mean of its neighbours' initial embeddings instead of its own. Trained clients gain
    from GraphSAGE compared with the papers' mean over neighbours and self; with this dropout,
    new clients lose nothing. ``panacea-mean`` has neither.
  * New clients start with the mean of their neighbours' embeddings, and not a random one.
  * <z^_u, z^_v> is divided by the width of z^. The plain product of 100 numbers grows with the
    embeddings, and its loss diverged at large lambda_d and server learning rates.
  * The server's default optimiser is `optimizers.polyak_sgd`, not plain SGD: it caps the
    learning rate by eq. (4) / ||grad J||^2. The largest server learning rate of the papers'
    grid, 0.1, is too large for the generator in some rounds, and plain SGD then diverges. Where
    the learning rate is stable, both optimisers are the same.
  * The layers `gcn` and `attention`, and `edge_weights`, are not the papers'. Weights count in
    the encoder's layers alone.
  * In a sparse graph (`relations.is_sparse`), the server's steps estimate BCE from clients and
    relations that are drawn once in a round; see `drawn_graph_loss`.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax.algorithms.hyper import (
    HyperNetwork,
    ServerFit,
    hyper_federation,
    server_fit,
    without_relations,
)
from graphfl_jax.algorithms.method import facts, variant
from graphfl_jax.core import Algorithm, Array, ClientModel, Needs
from graphfl_jax.data import relations
from graphfl_jax.data.sparse import SparseMatrix
from graphfl_jax.draws import draw_clients
from graphfl_jax.hypernets import neighbourhoods
from graphfl_jax.hypernets.generator import Generator, generator
from graphfl_jax.hypernets.relation_gnn import RelationEncoder, relation_encoder
from graphfl_jax.settings import Choice, Part, Real
from graphfl_jax.trainers import Train

# Drawn in a round of a sparse graph: 240 ordered pairs of clients, and relations, which have a
# small share in the loss. The time of a step grows with DRAWN_CLIENTS + 2 DRAWN_RELATIONS, the
# clients that it encodes beside the cohort.
NEEDS = Needs(relations=True)
DRAWN_CLIENTS, DRAWN_RELATIONS = 16, 8
# Settings that `panacea_flha` shares.
Weight = Annotated[Array, Real("Weight of Panacea's graph generator; 0 is Panacea-GN.")]
Dropout = Annotated[
    Array,
    Real(
        "Probability that, in a round, the mean of its neighbours' initial embeddings "
        "replaces a client's own.",
        high=1.0,
    ),
]


class Drawn(NamedTuple):
    """What a round draws in a sparse graph."""

    key: Array  # of `dropped_of`
    # [S + 2 R] int32: S different clients, then the first and the second clients of R relations
    clients: Array


# Stated, so that results name a run with weights, as in "panacea+edge_weights=True".
@facts(needs=NEEDS, values={"algorithm.edge_weights": False})
def panacea(
    model: ClientModel,
    train: Train,
    *,
    encoder: Annotated[RelationEncoder, Part(relation_encoder)],
    generator: Annotated[Generator, Part(generator)],
    fit: Annotated[ServerFit, Part(server_fit)],
    lambda_d: Weight = 0.01,
    embedding_dropout: Dropout = 0.1,
    inner_product: Annotated[
        str,
        Choice(
            "Inner product of Panacea's graph generator: divided by the width, or plain.",
            ("scaled", "plain"),
        ),
    ] = "scaled",
    difference: Annotated[
        str,
        Choice(
            "Difference of trained and generated models in Panacea's server steps: with held "
            "targets, or, as printed, that of the round's beginning in each step.",
            ("held", "printed"),
        ),
    ] = "held",
) -> Algorithm:
    """Builds Panacea: encoder E, generator M, and the server's optimisation of both."""

    def relate(graph):
        if relations.is_sparse(graph) and not len(graph.senders):
            raise ValueError(
                f"data.graph='none' gives algorithm.name='panacea' nothing to draw from, as it "
                f"does with {relations.num_clients(graph)} clients; set "
                f"--config.data.graph=random, or choose fewer clients"
            )
        neighbours = relations.propagation(graph, "sage")
        return encoder.relate(graph), relations.adjacency(graph), neighbours

    def init(key, num_clients):
        key_embeddings, key_encoder, key_generator = jax.random.split(key, 3)
        embeddings = jax.random.normal(key_embeddings, (num_clients, generator.embedding_dim))
        # The values do not depend on the number of clients.
        start = (embeddings[:1], encoder.relate(relations.from_edges(1, [])))
        return {
            "embeddings": embeddings,
            "encoder": encoder.module.init(key_encoder, *start)["params"],
            **generator.init(key_generator, encoder.width),
        }

    def draw(related, key):
        _, adjacency, neighbours = related
        if isinstance(adjacency, SparseMatrix):
            clients = draw_for_loss(adjacency, jax.random.fold_in(key, 1))
            return Drawn(jax.random.fold_in(key, 2), clients)
        dropped = jax.random.bernoulli(key, embedding_dropout, (len(neighbours), 1))
        return dropped & (jnp.sum(neighbours, axis=1, keepdims=True) > 0)

    def dropped_of(key, ids, neighbours):
        """Which [n] of some clients are dropped. The draws of two clients are independent."""
        draw = lambda i: jax.random.bernoulli(jax.random.fold_in(key, i), embedding_dropout)  # noqa: E731
        return jax.vmap(draw)(ids) & (neighbours.degrees[ids] > 0)

    def drawn_clients(drawn):
        return drawn.clients if isinstance(drawn, Drawn) else None

    def encode(weights, related, drawn):
        embeddings, dropped = weights["embeddings"], drawn
        if isinstance(drawn, Drawn):
            everyone = jnp.arange(len(embeddings), dtype=jnp.int32)
            dropped = dropped_of(drawn.key, everyone, related[2])[:, None]
        if len(dropped):
            embeddings = jnp.where(dropped, related[2] @ embeddings, embeddings)
        return encoder.module.apply({"params": weights["encoder"]}, embeddings, related[0])

    def encode_near(related, drawn, clients):
        propagation, _, neighbours = related
        steps = len(encoder.module.widths)
        if not isinstance(neighbours, SparseMatrix):
            return None
        if neighbourhoods.sizes_of(neighbours, len(clients), steps)[-1] >= len(neighbours):
            return None
        dropped = None
        if isinstance(drawn, Drawn):
            dropped = lambda ids: dropped_of(drawn.key, ids, neighbours)  # noqa: E731
        near = neighbourhoods.of_clients(neighbours, clients, steps, dropped)
        layers = [neighbourhoods.part(propagation, near, level) for level in range(steps)]
        if dropped is not None:
            last = near.nodes[: near.sizes[steps]]
            replaced, instead = dropped(last), neighbourhoods.part(neighbours, near, steps)

        def encode_some(weights):
            embeddings = weights["embeddings"]
            if dropped is not None:
                mixed, before = instead @ embeddings, embeddings[: len(last)]
                embeddings = jnp.where(replaced[:, None], mixed, before)
            network = {"params": weights["encoder"]}
            encoded = encoder.module.apply(network, embeddings, tuple(reversed(layers)))
            return encoded[near.places]

        return near.fit, near.nodes, encode_some

    def penalty(weights, embeddings, related):
        # M's weights are constants here: only the encoder learns to keep clients distinct.
        hidden = generator.hidden(jax.lax.stop_gradient(weights), embeddings)
        loss = drawn_graph_loss if isinstance(related[1], SparseMatrix) else graph_loss
        divisor = hidden.shape[1] if inner_product == "scaled" else 1
        return lambda_d * loss(hidden, related[1], divisor)

    functions = (relate, init, encode, generator.decode, penalty, draw)
    hyper = HyperNetwork(*functions, drawn_clients, encode_near)
    needs = NEEDS._replace(edge_weights=encoder.edge_weights)
    return hyper_federation(model, train, hyper, fit, difference).replacing(needs=needs)


panacea_gn = variant(panacea, {"hparams.lambda_d": 0.0})
panacea_mean = variant(panacea, {"algorithm.layer": "mean", "hparams.embedding_dropout": 0.0})
panacea_gcn = variant(panacea, {"algorithm.layer": "gcn"})
panacea_attention = variant(panacea, {"algorithm.layer": "attention"})
PAPER = {
    **panacea_mean.values,
    "algorithm.inner_product": "plain",
    "algorithm.new_client_embedding": "random",
    "server_optimizer": "sgd",
}
panacea_paper = variant(panacea, PAPER)
panacea_paper_gn = variant(panacea, PAPER | {"hparams.lambda_d": 0.0})
panacea_paper_printed = variant(panacea, PAPER | {"algorithm.difference": "printed"})


def panacea_mlp(
    model: ClientModel,
    train: Train,
    *,
    generator: Annotated[Generator, Part(generator)],
    fit: Annotated[ServerFit, Part(server_fit)],
) -> Algorithm:
    """Builds Panacea-MLP, the ablation whose generator reads the initial embeddings.

    It has no encoder and no graph generator, so it does not use the relations.
    """

    def init(key, num_clients):
        key_embeddings, key_generator = jax.random.split(key)
        size = (num_clients, generator.embedding_dim)
        return {
            "embeddings": jax.random.normal(key_embeddings, size),
            **generator.init(key_generator, generator.embedding_dim),
        }

    return hyper_federation(model, train, without_relations(init, generator.decode), fit)


def graph_loss(hidden: Array, adjacency: Array, divisor: int) -> Array:
    """Mean binary cross-entropy of sigma(<h_u, h_v> / divisor) over ordered pairs u != v.

    Args:
      hidden: [N, width].
      adjacency: [N, N] of 0 and 1, symmetric.
      divisor: of the inner products.
    """
    num_clients = len(hidden)
    logits = hidden @ hidden.T / divisor  # [N, N]
    losses = optax.sigmoid_binary_cross_entropy(logits, adjacency)
    losses = losses * (1.0 - jnp.eye(num_clients))
    return jnp.sum(losses) / (num_clients * (num_clients - 1))


def draw_for_loss(adjacency: SparseMatrix, key: Array) -> Array:
    """Draws the clients of `drawn_graph_loss`: [S + 2 R] int32.

    S different clients come first, then the first and the second clients of R related pairs.
    """
    key_clients, key_relations = jax.random.split(key)
    size = min(DRAWN_CLIENTS, len(adjacency))
    clients = draw_clients(key_clients, len(adjacency), size)
    places = jax.random.randint(key_relations, (DRAWN_RELATIONS,), 0, adjacency.starts[-1])
    return jnp.concatenate([clients, adjacency.senders[places], adjacency.receivers[places]])


def drawn_graph_loss(hidden: Array, adjacency: SparseMatrix, divisor: int) -> Array:
    """An unbiased estimate of `graph_loss` from drawn clients and drawn relations.

    With logits l and BCE(l, 1) = BCE(l, 0) - l, the loss over the N (N - 1) ordered pairs is

        mean_{u != v} BCE(l_uv, 0) - n / (N (N - 1)) mean_{(u, v) related} l_uv

    where n ordered pairs are related. Each mean is estimated by that over a uniform sample: the
    first one over the S (S - 1) ordered pairs of S different clients, related or not, and the
    second one over R related pairs, drawn with replacement.

    Args:
      hidden: [S + 2 R, width], of the clients of `draw_for_loss`.
      adjacency: the undirected relations between all N clients.
      divisor: of the inner products.
    """
    ends = len(hidden) - 2 * DRAWN_RELATIONS
    clients, first, second = jnp.split(hidden, [ends, ends + DRAWN_RELATIONS])
    unrelated = graph_loss(clients, jnp.zeros((ends, ends)), divisor)
    logits = jnp.sum(first * second, axis=1) / divisor
    total = jnp.float32(len(adjacency))
    share = adjacency.starts[-1].astype(jnp.float32) / (total * (total - 1.0))
    return unrelated - share * jnp.mean(logits)
