"""Panacea: a graph hypernetwork over the client relation graph generates the clients' models.

Lan et al. Panacea (IEEE TDSC 2025), after the anonymous ICLR 2024 submission of that name.

    Z = E(H0, A)                       graph encoder, 3 layers, H0 [N, 100] learned
    theta_i = M(z_i)                   generator, a 3-layer perceptron
    A^_uv = sigmoid(<z^_u, z^_v>)      graph generator; z^ = hidden pre-activation of M at z
    J = 1/|T| sum_{i in T} 1/2 ||theta~_i - theta_i||^2  +  lambda_d BCE(A^, A)     (eq. 3-5)

The server takes K_s steps on J. BCE is the mean over all ordered pairs u != v; M's weights are
constants in it, so that it trains the encoder only (eq. 8).

Panacea-GN is ``lambda_d=0``. Panacea-MLP is ``layer="none"``: no encoder, no graph generator.

Departures:
  * Alg. 1 prints psi - alpha J^T (theta~ - theta), which climbs eq. (4); the sign is corrected.
  * theta~ stays fixed during the K_s steps while theta moves, as the text of eq. (4) says; the
    printed algorithm repeats one difference, which overshoots.
  * Targets are averaged over the cohort, where eq. (4) divides by all clients.
  * <z^_u, z^_v> is divided by the width of z^. Raw products of 100 numbers grow with their
    square, and the loss diverged wherever lambda_d * server_lr >= 9e-4.
  * Directed relations are made symmetric for BCE, since an inner product is symmetric.
"""

import jax
import jax.numpy as jnp
import optax

from graphfl_jax.algorithms.hyper import HyperNetwork, hyper_federation
from graphfl_jax.core import Algorithm, Array, ClientModel
from graphfl_jax.data import relations
from graphfl_jax.hypernets.mlp import flat_layout
from graphfl_jax.hypernets.relation_gnn import RelationGNN
from graphfl_jax.local import Train
from graphfl_jax.models.mlp import MLP


def panacea(
    model: ClientModel,
    train: Train,
    *,
    server_optimizer: optax.GradientTransformation,
    server_steps: int,
    layer: str,
    embedding_dim: int,
    width: int,
    depth: int,
    lambda_d: Array,
) -> Algorithm:
    """Builds Panacea.

    Args:
      model: generated whole.
      train: local trainer.
      server_optimizer: of encoder, generator and initial embeddings.
      server_steps: K_s, optimiser steps per round.
      layer: of the encoder: "mean" (the paper's operator), "sage", "gcn", or "none".
      embedding_dim: size of a client's initial embedding.
      width: of all hidden layers.
      depth: layers of the encoder, and of the generator.
      lambda_d: weight of the graph generator's loss; 0 leaves only the encoder.
    """
    size, unravel = flat_layout(model)
    encoder = None if layer == "none" else RelationGNN((width,) * depth, layer)
    trunk, output = MLP((width,) * (depth - 1)), MLP((size,))

    def relate(graph):
        if encoder is None:
            return ()
        return relations.propagation(graph, layer), relations.adjacency(graph)

    def init(key, num_clients):
        key_codes, key_encoder, key_trunk, key_output = jax.random.split(key, 4)
        codes = jax.random.normal(key_codes, (num_clients, embedding_dim))
        code = jnp.zeros((embedding_dim if encoder is None else width,))
        weights = {
            "codes": codes,
            "trunk": trunk.init(key_trunk, code)["params"],
            "output": output.init(key_output, jnp.zeros((width,)))["params"],
        }
        if encoder is not None:
            eye = jnp.eye(num_clients)
            weights["encoder"] = encoder.init(key_encoder, codes, eye)["params"]
        return weights

    def encode(weights, related):
        if encoder is None:
            return weights["codes"]
        return encoder.apply({"params": weights["encoder"]}, weights["codes"], related[0])

    def hidden(weights, code):
        return trunk.apply({"params": weights["trunk"]}, code)

    def decode(weights, code):
        active = jax.nn.relu(hidden(weights, code))
        return unravel(output.apply({"params": weights["output"]}, active))

    def penalty(weights, codes, related):
        if encoder is None:
            return jnp.float32(0.0)
        frozen = jax.lax.stop_gradient(weights)
        return lambda_d * graph_loss(hidden(frozen, codes), related[1])

    hyper = HyperNetwork(relate, init, encode, decode, penalty)
    return hyper_federation(
        model, train, hyper, server_optimizer=server_optimizer, server_steps=server_steps
    )


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
