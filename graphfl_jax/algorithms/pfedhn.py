"""pFedHN: a hypernetwork with one embedding per client generates the clients' models.

Shamsian, Navon, Fetaya, Chechik. Personalized Federated Learning using Hypernetworks.
ICML 2021. https://arxiv.org/abs/2103.04628

    theta_i = h(e_i; phi)
    (e, phi) <- (e, phi)
                - optimizer( mean_{i in T} (d theta_i / d(e, phi))^T (theta_i - theta~_i) )

h is a perceptron of four linear layers with ReLU between them (the trunk) and one linear layer
per parameter tensor of the client.

With ``step_per_client``, the server takes its steps for the clients i of the cohort T one after
the other, in a random order, and theta_i is h(e_i; phi) at that step. With a cohort of one
client, both are the paper's step. docs/developer/decisions.md compares them.

Departures: the paper visits one client per round; here the clients of a cohort train from the
same hypernetwork. The authors' code applies momentum and weight decay to the embeddings of
clients that were not sampled; here those embeddings stay. The authors' optimiser is SGD with
momentum 0.9, weight decay 1e-3 and clipped gradients, as in the variant ``pfedhn``; the default
of ``algorithm.name=pfedhn`` is `optimizers.polyak_sgd`. The paper takes K_s = 1.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms import hyper
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, ClientModel
from graphfl_jax.hypernets.output import Output, output_layer
from graphfl_jax.models.mlp import MLP
from graphfl_jax.settings import Integer, Part, Switch
from graphfl_jax.trainers import Train


@facts(values={"client_optimizer": "momentum", "server_optimizer": "momentum"})
def pfedhn(
    model: ClientModel,
    train: Train,
    *,
    embedding_dim: Annotated[
        int, Integer("Size of a client's embedding; 0 takes the authors' 1 + N // 4.", low=0)
    ] = 0,
    width: Annotated[int, Integer("Width of the hidden layers.")] = 100,
    step_per_client: Annotated[
        bool, Switch("Whether the server takes its steps for one client after the other.")
    ] = False,
    output: Annotated[Output, Part(output_layer)],
    fit: Annotated[hyper.ServerFit, Part(hyper.server_fit, server_steps=1)],
) -> Algorithm:
    """Builds pFedHN: embeddings, trunk, output layers, and the server's optimisation."""
    trunk = MLP((width,) * 4)

    def init(key, num_clients):
        key_embeddings, key_trunk, key_output = jax.random.split(key, 3)
        dim = embedding_dim or 1 + num_clients // 4
        return {
            "embeddings": jax.random.normal(key_embeddings, (num_clients, dim)),
            "trunk": trunk.init(key_trunk, jnp.zeros((dim,)))["params"],
            "output": output.init(key_output, width),
        }

    def decode(weights, embedding):
        hidden = trunk.apply({"params": weights["trunk"]}, embedding)
        return output.decode(weights["output"], hidden)

    dense = hyper.hyper_federation(model, train, hyper.without_relations(init, decode), fit)

    def aggregate(server, cohorts, uploads, key):
        (cohort,) = cohorts

        def steps(sampled, clients, models):
            return dense.server.aggregate(sampled, (clients,), (models,), key)

        if step_per_client:
            return in_turn(server, cohort, *uploads, steps, key)
        rows = cohort._replace(ids=jnp.arange(len(cohort.ids), dtype=jnp.int32))
        return on_sampled(server, cohort.ids, lambda sampled: steps(sampled, rows, *uploads))

    return dense.replacing(aggregate=aggregate)


def in_turn(server, cohort, uploads, steps, key):
    """The server after steps for each client of a cohort, one after the other.

    Their order is that of their embeddings along a random direction. So it does not depend on
    the clients' numbers, and renamed clients get the same models.

    Args:
      server: a `HyperServer`.
      cohort: of M clients.
      uploads: their models, leaves [M, ...].
      steps: (a server with the embedding of a client alone; the cohort of this client, which
        is number 0; its upload [1, ...]) -> the same after the steps.
      key: of the direction.
    """
    embeddings = server.weights["embeddings"][cohort.ids]
    order = jnp.argsort(embeddings @ jax.random.normal(key, embeddings.shape[1:]))

    def of_client(server, row):
        client, upload = row
        renamed = client._replace(ids=jnp.zeros(1, jnp.int32))
        after = on_sampled(server, client.ids, lambda alone: steps(alone, renamed, upload))
        if client.present is not None:
            after = tree.where(client.present[0], after, server)
        return after, None

    rows = jax.tree.map(lambda leaf: leaf[order][:, None], (cohort, uploads))
    return jax.lax.scan(of_client, server, rows)[0]


def on_sampled(server, ids, steps):
    """The server after steps that know the embeddings of sampled clients alone.

    Those of all other clients stay, and so does the optimiser's state of them.

    Args:
      server: a `HyperServer`.
      ids: [M] of the sampled clients, each once.
      steps: a server with their M embeddings -> the same after the steps.
    """

    def of_embeddings(change, server, *others):
        def rows(path, leaf, *others):
            # The optimiser state mirrors the weights, so its leaves have the same names. More
            # names are of layers of a client model, of which one can be called embeddings too.
            names = [key for key in path if isinstance(key, jax.tree_util.DictKey)]
            if names != [jax.tree_util.DictKey("embeddings")]:
                return others[0] if others else leaf
            return change(leaf, *others)

        return jax.tree_util.tree_map_with_path(rows, server, *others)

    after = steps(of_embeddings(lambda leaf: leaf[ids], server))
    return of_embeddings(lambda leaf, new: leaf.at[ids].set(new), server, after)
