"""FedNova: FedAvg of updates that are divided by the number of steps that their client took.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization. NeurIPS 2020. https://arxiv.org/abs/2007.07481

    w <- w + tau sum_i p_i (w_i - w) / ||a_i||_1,      p_i = n_i / sum_j n_j
    tau = sum_i p_i ||a_i||_1,                         w_i = tau_i steps of SGD on F_i, from w

Client i moves by eta sum_k a_ik g_ik if its gradients are g_ik. With plain SGD, all a_ik are 1,
and ||a_i||_1 is its number tau_i of steps. With momentum rho, a_ik is (1 - rho^(tau_i - k)) /
(1 - rho) for k = 0, 1, ...; weight decay shrinks the earlier ones. If all clients take the same
number of steps, FedNova is FedAvg. It differs with `stragglers.name`, a clock that shortens,
or `local_epochs` of clients with different numbers of examples.

A client uploads w_i and eta ||a_i||_1, which is how far its optimiser moves one number in so
many steps if the gradient of this number is always 1. P is G.

Departures:
  * tau is that of the authors' code. The paper's default is the mean of the tau_i; both are the
    same for plain SGD.
  * The sums are over the clients of the cohort. A client sends w_i and a number, and the server
    divides: the division is the same, and L is w_i.
  * Optimisers with other steps than the paper's, such as Adam, have the ||a_i||_1 of this
    number, too. Clipped gradients count as if they were not.
  * Local steps draw batches with replacement. There is no momentum of the server.
"""

import jax
import jax.numpy as jnp

from graphfl_jax.core import Algorithm, Client, ClientModel, Predictor, Server
from graphfl_jax.trainers import Train


def fednova(model: ClientModel, train: Train) -> Algorithm:
    """Builds FedNova. A message is (w,), an upload (w_i, eta ||a_i||_1)."""

    def moved(data):
        """eta ||a_i||_1; 0 where it is not finite."""

        def slope_1(number, batch, key):
            return 1.0 + number - jax.lax.stop_gradient(number)

        end, _ = train(slope_1, jnp.float32(0.0), data.train, jax.random.key(0))
        return jnp.where(jnp.isfinite(end), -end, 0.0)

    def local(message, memory, data, key):
        (w,) = message
        w, metrics = train(model.objective, w, data.train, key)
        return memory, (w, moved(data)), metrics

    def aggregate(w, cohort, uploads, key):
        trained, lengths = uploads
        shares = cohort.weights / jnp.sum(cohort.weights)
        each = jnp.where(lengths > 0, shares / jnp.where(lengths > 0, lengths, 1.0), 0.0)
        scale = jnp.sum(shares * lengths) * each

        def step(w, trained):
            return w + jnp.tensordot(scale, trained - w[None], axes=1)

        return jax.tree.map(step, w, trained)

    server = Server.of_one(
        init=lambda key, graph: model.init(key),
        download=lambda w, i: (w,),
        aggregate=aggregate,
    )
    client = Client(
        model,
        local,
        deploy=lambda sent, memory, data: Predictor(sent[0]),
        untrained=lambda message, memory, data: (*message, moved(data)),
    )
    return Algorithm(server, (client,))
