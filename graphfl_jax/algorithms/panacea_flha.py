"""Panacea's encoder with FLHA-GHN's decoder: a hypernetwork on two graphs.

This method is from no paper. It combines Panacea (Lan et al., IEEE TDSC 2025), see `panacea`,
and FLHA-GHN (Litany et al., 2022, https://arxiv.org/abs/2201.08459), see `flha_ghn`. One graph
is that of the relations between clients, the other that of the layers of a client's network, so
that related clients with different networks learn from each other.

    z   = E(H0, A)                     encoder on the relations A, with H0 [N, E0] learned
    c_i = z_i P                        P [width, F] learned, from 0
    theta_i = theta(A_i; W, s c_i)     decoder on the graph A_i of the layers of client i

theta(A; W, 0) is that of FLHA-GHN with a graph network. It generates the parameters of a node v
from its state h_v [F] after the graph network, with D and d of its type, see
`hypernets.architecture_ghn`. Here, s c_i is added to the states of all nodes:

    [theta, r] = C leaky_relu(D (h_v + s c_i) + d) + c

A client gets W and c_i, and trains both. The server averages one part, and fits the other by
K_s steps of Panacea, in which c_i has the place of the generated models:

    (W_i, c~_i) = K_c steps of SGD on (W, c) -> F_i(theta(A_i; W, s c)), from (W, c_i)
    W <- 1/|T| sum_{i in T} W_i
    J(H0, E, P) = 1/|T| sum_{i in T} 1/2 ||c~_i - c_i||^2 + lambda_d BCE(sigma(<z_u, z_v>), A)

So a message and an upload have F floats more than those of FLHA-GHN. A new client gets its
initial embedding from its neighbours, as with Panacea, and begins with theta(A_i; W, s c_i),
whose architecture no other client needs to have. Then it trains this model, as with FLHA-GHN,
and neither W nor any embedding changes. G, L and P are those of FLHA-GHN.

Special cases:
  * s = 0 is FLHA-GHN.
  * With K_c = K_s = 1, plain SGD, the server's rate 1, no dropout, all examples in a step and
    one architecture, it is Panacea whose generator M is theta(A; W, s z P), up to the graph
    generator: here, it compares z, and there the hidden layer of M.

Departures: there is no paper; these are from the two parents.
  * Of Panacea: M is the linear map P, and its graph generator compares z itself. It has the
    other departures of `panacea`; its layers and weights of relations can be chosen likewise.
    New clients do not fit their embeddings. W is averaged, and not fitted by the server.
  * Of FLHA-GHN: there is always a graph hypernetwork, and no table of types. Its other
    departures hold.
"""

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import core
from graphfl_jax.algorithms.flha_ghn import (
    VALUES,
    HeadEpochs,
    HeadOptimizer,
    Joined,
    NewClientOptimizer,
    flha_ghn,
)
from graphfl_jax.algorithms.hyper import HyperServer, ServerFit, server_fit
from graphfl_jax.algorithms.method import facts
from graphfl_jax.algorithms.panacea import Dropout, Weight, panacea
from graphfl_jax.hypernets.architecture_ghn import architecture_ghn
from graphfl_jax.hypernets.generator import EmbeddingDim, Generator
from graphfl_jax.hypernets.layer_types import ModelGenerator
from graphfl_jax.hypernets.relation_gnn import RelationEncoder, relation_encoder
from graphfl_jax.settings import Part, Real
from graphfl_jax.trainers import Train

NEEDS = core.Needs(relations=True, layers=True)


class Conditioned(NamedTuple):
    """What a client trains: a message, and an upload."""

    weights: Any  # W, of the decoder
    offset: core.Array  # c_i, [F]


class Both(NamedTuple):
    """The state of the server."""

    decoder: Any  # W, or `Joined` after new clients have joined
    encoder: HyperServer  # H0, E and P


# Weights are stated, so that results name a run with them, as in
# "panacea-flha+edge_weights=True".
@facts(needs=NEEDS, values=VALUES | {"algorithm.edge_weights": False})
def panacea_flha(
    models: tuple[core.ClientModel, ...],
    train: Train,
    *,
    decoder: Annotated[ModelGenerator, Part(architecture_ghn)],
    encoder: Annotated[RelationEncoder, Part(relation_encoder)],
    fit: Annotated[ServerFit, Part(server_fit)],
    panacea_flha_scale: Annotated[
        core.Array,
        Real("Weight s of clients' embeddings in the decoder of panacea-flha; 0 is FLHA-GHN."),
    ] = 1.0,
    embedding_dim: EmbeddingDim = 100,
    lambda_d: Weight = 0.01,
    embedding_dropout: Dropout = 0.1,
    flha_head_optimizer: HeadOptimizer,
    flha_head_epochs: HeadEpochs = 1,
    new_client_optimizer: NewClientOptimizer,
    batch_size: int,
    local_steps: int,
    unseen: tuple[core.ClientModel, ...] = (),
) -> core.Algorithm:
    """Builds Panacea's encoder with FLHA-GHN's decoder.

    A message and an upload are `Conditioned`, the server's state is `Both`. After new clients
    have joined, messages are those of `flha_ghn`.

    Args:
      models: of all architectures.
      train: trains the decoder's weights and a client's offset.
      decoder: of `models`.
      encoder: of the clients' relations.
      fit: of the encoder.
      panacea_flha_scale: s.
      embedding_dim: E0.
      lambda_d: as in `panacea`, like `embedding_dropout`.
      flha_head_optimizer: as in `flha_ghn`, like the parameters after it.
    """
    flha = flha_ghn(
        models,
        train,
        flha_generator=conditioned_generator(decoder, panacea_flha_scale),
        flha_head_optimizer=flha_head_optimizer,
        flha_head_epochs=flha_head_epochs,
        new_client_optimizer=new_client_optimizer,
        batch_size=batch_size,
        local_steps=local_steps,
        unseen=unseen,
    )
    start = jax.eval_shape(decoder.init, jax.eval_shape(jax.random.key, 0))
    _, size, _ = start["hidden"]["kernel"].shape
    encoding = panacea(
        models[0],
        train,
        encoder=encoder,
        generator=projection(embedding_dim, encoder.width, size),
        fit=fit,
        lambda_d=lambda_d,
        embedding_dropout=embedding_dropout,
    )
    needs = NEEDS._replace(edge_weights=encoder.edge_weights)
    server = server_of_both(decoder, flha.server, encoding.server)
    return dataclasses.replace(flha, server=server, needs=needs, averages=False)


def conditioned_generator(decoder: ModelGenerator, scale: core.Array) -> ModelGenerator:
    """The decoder as a function of `Conditioned`: D (h + s c) + d is D h + (d + s D c)."""

    def weights_of(held):
        hidden = held.weights["hidden"]
        added = jnp.einsum("e,teh->th", scale * held.offset, hidden["kernel"])
        return held.weights | {"hidden": hidden | {"bias": hidden["bias"] + added}}

    def for_architecture(model):
        start = decoder.for_architecture(model)
        return lambda held, key: start(weights_of(held), key)

    return ModelGenerator(
        decoder.init,
        lambda held, k=None: decoder.generate(weights_of(held), k),
        for_architecture,
    )


def projection(embedding_dim: int, width: int, size: int) -> Generator:
    """P in the place of Panacea's generator: an embedding [width] to an offset [size]."""
    return Generator(
        embedding_dim,
        width,
        init=lambda key, width: {"projection": jnp.zeros((width, size))},
        hidden=lambda weights, embedding: embedding,
        decode=lambda weights, embedding: embedding @ weights["projection"],
    )


def server_of_both(
    decoder: ModelGenerator, flha: core.Server, panacea: core.Server
) -> core.Server:
    """The server with `Both`.

    Args:
      decoder: whose weights the clients average.
      flha: of `Conditioned`, or of `Joined` with these.
      panacea: whose models are the clients' offsets.
    """

    def key_of_encoder(key):
        return jax.random.fold_in(key, 1)

    def init(key, graph):
        return Both(decoder.init(key), panacea.init(key_of_encoder(key), graph))

    def with_offset(server, i):
        """What FLHA-GHN's server would hold if all clients had the offset of client i."""
        offset, held = panacea.download(server.encoder, 0, i), server.decoder
        if isinstance(held, Joined):
            return held._replace(weights=Conditioned(held.weights, offset))
        return Conditioned(held, offset)

    def aggregate(server, cohorts, uploads, key):
        weights, offsets = zip(*uploads, strict=True)
        everyone = together(cohorts)
        encoder = panacea.aggregate(
            server.encoder, (everyone,), (jnp.concatenate(offsets),), key
        )
        return Both(flha.aggregate(server.decoder, cohorts, weights, key), encoder)

    def admit(server, new_clients, graph, key):
        everyone = jnp.concatenate(new_clients)
        server = server._replace(
            encoder=panacea.admit(server.encoder, (everyone,), graph, key_of_encoder(key))
        )

        def models_of(group):
            def model_of(i):
                alone = [ids[:0] for ids in new_clients]
                alone[group] = i[None]
                joined = flha.admit(with_offset(server, i), tuple(alone), graph, key)
                return jax.tree.map(lambda leaf: leaf[0], joined.models[group])

            return jax.vmap(model_of)(new_clients[group])

        models = tuple(map(models_of, range(len(new_clients))))
        return server._replace(decoder=Joined(server.decoder, new_clients, models))

    def adapt_new_clients(server, *trained):
        return server._replace(decoder=flha.adapt_new_clients(server.decoder, *trained))

    within = panacea.within(
        lambda server: server.encoder, lambda server, part: server._replace(encoder=part)
    )
    return core.Server(
        init=init,
        download=lambda server, group, i: flha.download(with_offset(server, i), group, i),
        aggregate=aggregate,
        begin_round=within.begin_round,
        admit=admit,
        adapt_new_clients=adapt_new_clients,
        plays_on=flha.plays_on,
        substitute=within.substitute,
        moved=lambda server, key: within.moved(server, key_of_encoder(key)),
    )


def together(cohorts: tuple[core.Cohort, ...]) -> core.Cohort:
    """One cohort of the clients of all architectures."""
    ids, weights, present, *_ = zip(*cohorts, strict=True)
    everywhere = None if present[0] is None else jnp.concatenate(present)
    return core.Cohort(jnp.concatenate(ids), jnp.concatenate(weights), everywhere)
