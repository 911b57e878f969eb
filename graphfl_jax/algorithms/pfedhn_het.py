"""pFedHN for clients of different architectures: a shared trunk, and an output for each.

Shamsian, Navon, Fetaya, Chechik. Personalized Federated Learning using Hypernetworks.
ICML 2021. https://arxiv.org/abs/2103.04628. The outputs per architecture are the baseline of
Litany, Maron, Acuna, Kautz, Chechik, Fidler. Federated Learning with Heterogeneous
Architectures using Graph HyperNetworks. 2022. https://arxiv.org/abs/2201.08459

    theta_i = O_k(t(e_i); phi)        k: architecture of client i
    (e, phi) <- (e, phi)
                - optimizer( mean_{i in T} (d theta_i / d(e, phi))^T (theta_i - theta~_i) )

t is the trunk of `pfedhn`, and O_k one linear layer, whose size is that of a model of
architecture k. So clients of different architectures have the trunk in common. With one
architecture, this is `pfedhn` with another default of the width. New clients are those of
`hyper`, each with the O_k of its architecture, which does not change.

Departures: those of `pfedhn`. The second paper does not describe the network of this baseline;
its width is 32 by default, because O_k has (width + 1) d numbers if a model has d.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax

from graphfl_jax import tree
from graphfl_jax.algorithms import hyper
from graphfl_jax.algorithms.method import facts
from graphfl_jax.algorithms.pfedhn import on_sampled
from graphfl_jax.core import Algorithm, ClientModel
from graphfl_jax.hypernets.output import output_layer
from graphfl_jax.models.mlp import MLP
from graphfl_jax.settings import Integer, Part
from graphfl_jax.trainers import Train


@facts(values={"client_optimizer": "momentum", "server_optimizer": "momentum"})
def pfedhn_het(
    models: tuple[ClientModel, ...],
    train: Train,
    *,
    embedding_dim: Annotated[
        int, Integer("Size of a client's embedding; 0 takes the authors' 1 + N // 4.", low=0)
    ] = 0,
    width: Annotated[int, Integer("Width of the hidden layers.")] = 32,
    fit: Annotated[hyper.ServerFit, Part(hyper.server_fit, server_steps=1)],
) -> Algorithm:
    """Builds pFedHN with an output layer for each of `models`.

    The weights of the hypernetwork hold "embeddings", "trunk", and "outputs", one for each
    architecture.
    """
    trunk = MLP((width,) * 4)
    outputs = [output_layer(model) for model in models]

    def init(key, num_clients):
        key_embeddings, key_trunk, key_outputs = jax.random.split(key, 3)
        dim = embedding_dim or 1 + num_clients // 4
        keys = jax.random.split(key_outputs, len(outputs))
        return {
            "embeddings": jax.random.normal(key_embeddings, (num_clients, dim)),
            "trunk": trunk.init(key_trunk, jnp.zeros((dim,)))["params"],
            "outputs": [
                output.init(key, width) for key, output in zip(keys, outputs, strict=True)
            ],
        }

    def decoder(k):
        def decode(weights, embedding):
            hidden = trunk.apply({"params": weights["trunk"]}, embedding)
            return outputs[k].decode(weights["outputs"][k], hidden)

        return decode

    optimizer = optax.with_extra_args_support(fit.optimizer)
    decoders = [decoder(k) for k in range(len(models))]
    of_each = [
        hyper.hyper_federation(model, train, hyper.without_relations(init, decode), fit)
        for model, decode in zip(models, decoders, strict=True)
    ]

    def distance(weights, cohorts, uploads):
        """Half the sum of the squared distances of sent and trained models."""

        def sent(decode, cohort, models):
            sent = jax.vmap(decode, (None, 0))(weights, weights["embeddings"][cohort.ids])
            if cohort.present is None:
                return sent
            return jax.vmap(tree.where)(cohort.present, sent, models)  # others have no distance

        return 0.5 * sum(
            tree.sq_dist(models, sent(decode, cohort, models))
            for decode, cohort, models in zip(decoders, cohorts, uploads, strict=True)
            if models is not None
        )

    def aggregate(server, cohorts, uploads, key):
        ids = jnp.concatenate([cohort.ids for cohort in cohorts])
        ends = np.cumsum([len(cohort.ids) for cohort in cohorts])
        places = np.split(np.arange(len(ids), dtype=np.int32), ends[:-1])
        of_rows = [
            cohort._replace(ids=rows) for cohort, rows in zip(cohorts, places, strict=True)
        ]
        number = sum(jnp.sum(cohort.answers.astype(jnp.float32)) for cohort in cohorts)

        def objective(weights):
            gap = distance(weights, of_rows, uploads) / jnp.maximum(number, 1.0)
            return gap, gap

        def steps(sampled):
            start = (sampled.weights, sampled.opt_state)
            end = hyper.minimise(objective, start, optimizer, fit.steps)
            return hyper.HyperServer(*end, server.relations)

        return on_sampled(server, ids, steps)

    def admit(server, new_clients, graph, key):
        return of_each[0].server.admit(server, (jnp.concatenate(new_clients),), graph, key)

    def adapt_new_clients(server, cohorts, uploads, key):
        ids = jnp.concatenate([cohort.ids for cohort in cohorts])
        return hyper.fit_embeddings(
            server, ids, lambda weights: distance(weights, cohorts, uploads), fit
        )

    server = dataclasses.replace(
        of_each[0].server,
        download=lambda server, group, i: of_each[group].server.download(server, 0, i),
        aggregate=aggregate,
        admit=admit,
        adapt_new_clients=adapt_new_clients,
    )
    return Algorithm(server, tuple(method.client for method in of_each))
