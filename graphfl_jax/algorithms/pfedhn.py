"""pFedHN: a hypernetwork with one embedding per client generates the clients' models.

Shamsian, Navon, Fetaya, Chechik. Personalized Federated Learning using Hypernetworks.
ICML 2021. https://arxiv.org/abs/2103.04628

    theta_i = h(e_i; phi)
    (e, phi) <- (e, phi) - optimizer( (d theta_i / d(e, phi))^T (theta_i - theta~_i) )

h is a perceptron of four linear layers with ReLU between them (the trunk) and one linear layer
per parameter tensor of the client.

Departures: the paper visits one client per round, here the cohort's products are averaged. The
authors' code applies momentum and weight decay to the embeddings of clients that took no part;
here those embeddings rest.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from graphfl_jax.algorithms.hyper import HyperNetwork, hyper_federation
from graphfl_jax.core import Algorithm, ClientModel
from graphfl_jax.hypernets.output import output_layer
from graphfl_jax.models.mlp import MLP
from graphfl_jax.trainers import Train


def pfedhn(
    model: ClientModel,
    train: Train,
    *,
    server_optimizer: optax.GradientTransformation,
    server_steps: int,
    new_client_optimizer: optax.GradientTransformation,
    new_client_embedding: str,
    embedding_dim: int,
    width: int,
    profile: str,
    rank: int,
) -> Algorithm:
    """Builds pFedHN.

    Args:
      model: generated whole.
      train: local trainer.
      server_optimizer: of the hypernetwork and the embeddings.
      server_steps: optimiser steps per round with the clients' results as fixed targets; the
        paper takes 1.
      novel_optimizer: of new clients' codes.
      novel_code: where new clients' codes begin, see `hyper`.
      embedding_dim: size of a client's embedding; 0 takes the authors' floor(1 + N / 4).
      width: of the trunk's layers.
      profile: which parameters are generated, and how, see `hypernets.output`.
      rank: of what the profile "lowrank" adds to kernels.

    Raises:
      ValueError: a negative embedding_dim.
    """
    if embedding_dim < 0:
        raise ValueError(
            f"algorithm.embedding_dim={embedding_dim} must be at least 1, or 0 for 1 + N // 4"
        )
    trunk = MLP((width,) * 4)
    output = output_layer(model, profile=profile, rank=rank)

    def init(key, num_clients):
        key_embeddings, key_trunk, key_output = jax.random.split(key, 3)
        dim = embedding_dim or 1 + num_clients // 4
        return {
            "embeddings": jax.random.normal(key_embeddings, (num_clients, dim)),
            "trunk": trunk.init(key_trunk, jnp.zeros((dim,)))["params"],
            "output": output.init(key_output, width),
        }

    def decode(weights, code):
        hidden = trunk.apply({"params": weights["trunk"]}, code)
        return output.decode(weights["output"], hidden)

    hyper = HyperNetwork(
        relate=lambda graph: (),
        init=init,
        encode=lambda weights, relations, mask: weights["embeddings"],
        decode=decode,
        penalty=lambda weights, embeddings, relations: jnp.float32(0.0),
    )
    dense = hyper_federation(
        model,
        train,
        hyper,
        server_optimizer=server_optimizer,
        server_steps=server_steps,
        new_client_optimizer=new_client_optimizer,
        new_client_embedding=new_client_embedding,
    )

    def aggregate(server, cohort, uploads, key):
        learned = dense.aggregate(server, cohort, uploads, key)
        return _rest_unsampled(server, learned, cohort.ids)

    return dataclasses.replace(dense, aggregate=aggregate)


def _rest_unsampled(old, new, ids):
    """Keeps the embeddings and the optimiser's memory of them for clients not in `ids`."""

    def rows(path, before, after):
        # The optimiser's memory mirrors the weights, so its leaves carry the same names.
        if jax.tree_util.DictKey("embeddings") not in path:
            return after
        return before.at[ids].set(after[ids])

    return jax.tree_util.tree_map_with_path(rows, old, new)
