"""FedDyn: a term that changes with every round makes local optima agree with the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic
Regularization. ICLR 2021. https://arxiv.org/abs/2111.04263

    w_i  = K_c steps of SGD on F_i(w_i) + alpha (1/2 ||w_i - w||^2 - <g_i, w_i>), from w
    g_i <- g_i - (w_i - w)
    h   <- h - 1/N sum_{i in S} (w_i - w)
    w   <- 1/|S| sum_{i in S} w_i - h

N clients train, S are those of a round, and all g_i and h start at 0; they are those of the
paper divided by alpha. G and P are w. L is w_i; the g_i keep it near the model of all clients,
so FedDyn is not a personal method. In the first round, local training is FedProx with
mu = alpha.

Departures: a fixed number of local steps, not epochs. The authors' code has alpha / 2 ||w_i||^2
in the weight decay of the optimiser, clips gradients at the norm 10, and divides alpha by a
client's share of all examples. Here weight decay and clipping are those of the client's
optimiser, and alpha is the same for all, as in the paper. A new client has g_i = 0, and does
not change h.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Params, Server
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train


class Shifted(NamedTuple):
    """The state of the server."""

    model: Params  # w
    shift: Params  # h


def feddyn(
    model: ClientModel,
    train: Train,
    *,
    num_clients: int,
    feddyn_alpha: Annotated[
        Array, Real("Weight alpha of FedDyn's distance to the server's model.")
    ] = 0.01,
) -> Algorithm:
    """Builds FedDyn. Message and upload are a model, and the memory of a client is its g_i.

    Args:
      model: of the server and the clients.
      train: trains the model with the two further terms.
      num_clients: N, clients that train.
      feddyn_alpha: alpha.
    """

    def zeros(params):
        return jax.tree.map(jnp.zeros_like, params)

    def init(key, graph):
        w = model.init(key)
        return Shifted(w, zeros(w))

    def local(w, g, data, key):
        def regularised(w_i, batch, key):
            products = jax.tree.map(lambda g, w_i: jnp.sum(g * w_i), g, w_i)
            term = 0.5 * tree.sq_dist(w_i, w) - sum(jax.tree.leaves(products))
            return model.objective(w_i, batch, key) + feddyn_alpha * term

        w_i, metrics = train(regularised, w, data.train, key)
        g = jax.tree.map(lambda g, w_i, w: g - (w_i - w), g, w_i, w)
        return g, w_i, metrics

    def aggregate(server, cohort, uploads, key):
        mean = tree.mean(uploads, jnp.ones_like(cohort.weights))
        share = cohort.number / num_clients
        h = jax.tree.map(
            lambda h, mean, w: h - share * (mean - w), server.shift, mean, server.model
        )
        return Shifted(jax.tree.map(jnp.subtract, mean, h), h)

    server = Server.of_one(init, lambda server, i: server.model, aggregate)
    client = Client(model, local, enroll=lambda w, key: zeros(w))
    return Algorithm(server, (client,), averages=True)
