"""Panacea: a graph hypernetwork over the client relation graph generates the clients' models.

Lan et al. Panacea (IEEE TDSC 2025), after the anonymous ICLR 2024 submission of that name.

    Z = E(H0, A)                       graph encoder, 3 layers, H0 [N, 100] learned
    theta_i = M(z_i)                   generator, a 3-layer perceptron
    A^_uv = sigmoid(<z^_u, z^_v>)      graph generator; z^ = hidden pre-activation of M at z
    J = 1/|T| sum_{i in T} 1/2 ||theta~_i - theta_i||^2  +  lambda_d BCE(A^, A)     (eq. 3-5)

The server takes K_s steps on J. BCE is the mean over all ordered pairs u != v; M's weights are
constants in it, so that it trains the encoder only (eq. 8).

Panacea-GN is ``lambda_d=0``; Panacea-MLP is `panacea_mlp`.

Departures:
  * The configurations take GraphSAGE for the encoder's layers, and a tenth of the clients of a
    round, by chance, the mean of their neighbours' initial embeddings for their own. Trained
    clients keep what the first gains over the paper's mean over neighbours and self, and
    new clients lose nothing (BUILD.md has the numbers). ``layer="mean", embedding_dropout=0`` is the
    paper's.
  * Alg. 1 prints psi - alpha J^T (theta~ - theta), which climbs eq. (4); the sign is corrected.
  * theta~ stays fixed during the K_s steps while theta moves, as the text of eq. (4) says; the
    printed algorithm repeats one difference, which overshoots.
  * Targets are averaged over the cohort, where eq. (4) divides by all clients.
  * <z^_u, z^_v> is divided by the width of z^. A raw product of 100 numbers grows with them,
    and its loss diverged at large lambda_d and server rates.
  * The configurations step by `optimizers.polyak_sgd`, not plain SGD: the rate is capped by
    eq. (4) / ||grad J||^2. The largest server rate of the paper's grid, 0.1, is too much for
    the generator in some rounds (BUILD.md counts the runs that diverged); where a rate is
    stable the two are the same.
  * Directed relations are made symmetric for BCE, since an inner product is symmetric.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax.algorithms.hyper import HyperNetwork, hyper_federation
from graphfl_jax.core import Algorithm, Array, ClientModel
from graphfl_jax.data import relations
from graphfl_jax.hypernets.output import output_layer
from graphfl_jax.hypernets.relation_gnn import RelationGNN
from graphfl_jax.models.mlp import MLP
from graphfl_jax.trainers import Train


def panacea(
    model: ClientModel,
    train: Train,
    *,
    server_optimizer: optax.GradientTransformation,
    server_steps: int,
    new_client_optimizer: optax.GradientTransformation,
    new_client_embedding: str,
    layer: str,
    embedding_dim: int,
    width: int,
    depth: int,
    profile: str,
    rank: int,
    lambda_d: Array,
    embedding_dropout: Array,
) -> Algorithm:
    """Builds Panacea.

    Args:
      model: generated whole.
      train: local trainer.
      server_optimizer: of encoder, generator and initial embeddings.
      server_steps: K_s, optimiser steps per round.
      novel_optimizer: of new clients' codes.
      novel_code: where new clients' codes begin, see `hyper`.
      layer: of the encoder: "mean" (the paper's operator), "sage" or "gcn".
      embedding_dim: size of a client's initial embedding.
      width: of all hidden layers.
      depth: layers of the encoder, and of the generator.
      profile: which parameters are generated, and how, see `hypernets.output`.
      rank: of what the profile "lowrank" adds to kernels.
      lambda_d: weight of the graph generator's loss; 0 leaves only the encoder.
      embedding_dropout: probability with which, in a round, a client's initial embedding is replaced
        by the mean of its neighbours'.

    Raises:
      ValueError: an unknown layer, or an embedding or generator of no size.
    """
    if layer not in relations.LAYERS:
        choices = ", ".join(relations.LAYERS)
        raise ValueError(f"algorithm.layer={layer!r} is unknown; choose from {choices}")
    encoder = RelationGNN((width,) * depth, layer)
    generator = _generator(
        model,
        embedding_dim=embedding_dim,
        width=width,
        depth=depth,
        profile=profile,
        rank=rank,
    )

    def relate(graph):
        neighbours = relations.propagation(graph, "sage")
        return relations.propagation(graph, layer), relations.adjacency(graph), neighbours

    def init(key, num_clients):
        key_embeddings, key_encoder, key_generator = jax.random.split(key, 3)
        embeddings = jax.random.normal(key_embeddings, (num_clients, embedding_dim))
        return {
            "embeddings": embeddings,
            "encoder": encoder.init(key_encoder, embeddings, jnp.eye(num_clients))["params"],
            **generator.init(key_generator, width),
        }

    def mask(related, key):
        neighbours = related[2]
        forgotten = jax.random.bernoulli(key, embedding_dropout, (len(neighbours), 1))
        return forgotten & (jnp.sum(neighbours, axis=1, keepdims=True) > 0)

    def encode(weights, related, forgotten):
        embeddings = weights["embeddings"]
        if len(forgotten):
            embeddings = jnp.where(forgotten, related[2] @ embeddings, embeddings)
        return encoder.apply({"params": weights["encoder"]}, embeddings, related[0])

    def penalty(weights, embeddings, related):
        # M's weights are constants here, and only the encoder learns to tell clients apart.
        hidden = generator.hidden(jax.lax.stop_gradient(weights), embeddings)
        return lambda_d * graph_loss(hidden, related[1])

    federation = hyper_federation(
        model,
        train,
        HyperNetwork(relate, init, encode, generator.decode, penalty, mask),
        server_optimizer=server_optimizer,
        server_steps=server_steps,
        new_client_optimizer=new_client_optimizer,
        new_client_embedding=new_client_embedding,
    )
    return dataclasses.replace(federation, relational=True)


def panacea_mlp(
    model: ClientModel,
    train: Train,
    *,
    server_optimizer: optax.GradientTransformation,
    server_steps: int,
    new_client_optimizer: optax.GradientTransformation,
    new_client_embedding: str,
    embedding_dim: int,
    width: int,
    depth: int,
    profile: str,
    rank: int,
) -> Algorithm:
    """Builds Panacea-MLP, the ablation whose generator reads the initial embeddings.

    The arguments are `panacea`'s; there is no encoder and no graph generator, so the relations
    play no part.
    """
    generator = _generator(
        model,
        embedding_dim=embedding_dim,
        width=width,
        depth=depth,
        profile=profile,
        rank=rank,
    )

    def init(key, num_clients):
        key_embeddings, key_generator = jax.random.split(key)
        return {
            "embeddings": jax.random.normal(key_embeddings, (num_clients, embedding_dim)),
            **generator.init(key_generator, embedding_dim),
        }

    hyper = HyperNetwork(
        relate=lambda graph: (),
        init=init,
        encode=lambda weights, related, mask: weights["embeddings"],
        decode=generator.decode,
        penalty=lambda weights, embeddings, related: jnp.float32(0.0),
    )
    return hyper_federation(
        model,
        train,
        hyper,
        server_optimizer=server_optimizer,
        server_steps=server_steps,
        new_client_optimizer=new_client_optimizer,
        new_client_embedding=new_client_embedding,
    )


class _Generator(NamedTuple):
    """M, as functions of weights that hold "trunk" and "output"."""

    init: Callable  # (key, size of a code) -> weights
    hidden: Callable  # (weights, code [..., E]) -> [..., width], before the last ReLU
    decode: Callable  # (weights, code [E]) -> the parameters of one client


def _generator(model, *, embedding_dim, width, depth, profile, rank) -> _Generator:
    if embedding_dim < 1:
        raise ValueError(
            f"algorithm.embedding_dim={embedding_dim} must be at least 1; the paper takes 100"
        )
    if depth < 2:
        raise ValueError(f"algorithm.depth={depth} must be at least 2; the paper takes 3")
    trunk = MLP((width,) * (depth - 1))
    output = output_layer(model, profile=profile, rank=rank)

    def init(key, embedding_size):
        key_trunk, key_output = jax.random.split(key)
        return {
            "trunk": trunk.init(key_trunk, jnp.zeros((embedding_size,)))["params"],
            "output": output.init(key_output, width),
        }

    def hidden(weights, code):
        return trunk.apply({"params": weights["trunk"]}, code)

    def decode(weights, code):
        active = jax.nn.relu(hidden(weights, code))
        return output.decode(weights["output"], active)

    return _Generator(init, hidden, decode)


def graph_loss(hidden: Array, adjacency: Array) -> Array:
    """Mean binary cross-entropy of sigma(<h_u, h_v> / width) over ordered pairs u != v.

    Args:
      hidden: [N, width].
      adjacency: [N, N] of 0 and 1, symmetric.
    """
    num_clients, width = hidden.shape
    logits = hidden @ hidden.T / width  # [N, N]
    losses = optax.sigmoid_binary_cross_entropy(logits, adjacency)
    losses = losses * (1.0 - jnp.eye(num_clients))
    return jnp.sum(losses) / (num_clients * (num_clients - 1))
