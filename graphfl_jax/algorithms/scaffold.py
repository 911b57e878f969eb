"""SCAFFOLD: control variates correct the drift of local training.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020. https://arxiv.org/abs/1910.06378

    y_i  <- y_i - eta_l (g_i(y_i) - c_i + c),          K_c times, from x
    c_i+  = 1/K_c sum_k g_i(y_i)                       over the steps; for SGD, option II:
            c_i - c + (x - y_i) / (K_c eta_l)
    x    <- x + eta_g 1/|S| sum_{i in S} (y_i - x)
    c    <- c + 1/N sum_{i in S} (c_i+ - c_i),         c_i <- c_i+ for i in S

All controls start at 0, so c stays the mean of the c_i of the N clients that train. A client
uploads y_i and c_i+ - c_i. L is y_i; the controls keep it near the model of all clients, so
SCAFFOLD is not a personal method.

Departures: none in the equations; clients have equal weights, as in the paper. c_i+ is the mean
of the gradients: that is option II with SGD, and also fits another optimiser of the clients. If
y_i = x, as with eta_l = 0, where option II is 0 / 0, the controls stay. A new client has
c_i = 0 and changes c_i only. eta_l is ``hparams.client_lr``, eta_g ``hparams.server_lr``.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Params, Predictor, Server
from graphfl_jax.optimizers import Optimizer
from graphfl_jax.settings import Real
from graphfl_jax.trainers import steps_taken, train_steps


class Controlled(NamedTuple):
    """A model with a control: the server's state, a message, or an upload."""

    model: Params  # x, or y_i in an upload
    control: Params  # c, or c_i+ - c_i in an upload


def scaffold(
    model: ClientModel,
    *,
    num_clients: int,
    local_steps: int,
    batch_size: int | None,
    client_optimizer: Annotated[
        optax.GradientTransformation,
        Optimizer("client", meaning="Learning rate eta_l of a local step."),
    ],
    server_lr: Annotated[Array, Real("Server step eta_g; 1 takes the mean.")] = 1.0,
) -> Algorithm:
    """Builds SCAFFOLD. The memory of a client is its control c_i.

    Args:
      model: of the server and the clients.
      num_clients: N, clients that train.
      local_steps: K_c.
      batch_size: examples in a step; None takes all.
      client_optimizer: its gradients are corrected; its state starts anew in every round.
      server_lr: eta_g.
    """
    optimizer = optax.with_extra_args_support(client_optimizer)

    def zeros(params):
        return jax.tree.map(jnp.zeros_like, params)

    def init(key, graph):
        x = model.init(key)
        return Controlled(x, zeros(x))

    def local(message, c_i, data, key):
        x, c = message
        correction = jax.tree.map(jnp.subtract, c, c_i)

        def step(carry, batch, key):
            y, opt_state, total = carry
            loss, gradient = jax.value_and_grad(model.objective)(y, batch, key)
            total = jax.tree.map(jnp.add, total, gradient)
            corrected = jax.tree.map(jnp.add, gradient, correction)
            updates, opt_state = optimizer.update(corrected, opt_state, y, value=loss)
            return (optax.apply_updates(y, updates), opt_state, total), loss

        start = (x, optimizer.init(x), zeros(x))
        (y, _, total), metrics = train_steps(
            step, start, data.train, key, steps=local_steps, batch_size=batch_size
        )
        differs = jax.tree.map(lambda x, y: jnp.any(x != y), x, y)
        moved = jnp.any(jnp.stack(jax.tree.leaves(differs)))
        steps = jnp.float32(steps_taken(data.train, local_steps))
        change = jax.tree.map(  # c_i+ - c_i
            lambda total, c_i: jnp.where(moved, total / steps - c_i, 0.0), total, c_i
        )
        return jax.tree.map(jnp.add, c_i, change), Controlled(y, change), metrics

    def aggregate(server, cohort, uploads, key):
        x, c = server
        y, change = tree.mean(uploads, jnp.ones_like(cohort.weights))
        share = cohort.number / num_clients
        return Controlled(
            jax.tree.map(lambda x, y: x + server_lr * (y - x), x, y),
            jax.tree.map(lambda c, change: c + share * change, c, change),
        )

    server = Server.of_one(init, lambda server, i: server, aggregate)
    client = Client(
        model,
        local,
        enroll=lambda message, key: zeros(message.model),
        deploy=lambda sent, c_i, data: Predictor(sent.model),
        untrained=lambda message, c_i, data: Controlled(message.model, zeros(message.control)),
    )
    return Algorithm(server, (client,), averages=True)
