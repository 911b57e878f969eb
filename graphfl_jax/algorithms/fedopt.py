"""Server optimisers: the server takes a step of momentum, Adam or Yogi towards the mean.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. Adaptive Federated Optimization.
ICLR 2021. https://arxiv.org/abs/2003.00295. FedAvgM is also in Hsu, Qi, Brown. Measuring the
Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019.
https://arxiv.org/abs/1909.06335

    D = w - w',   where w' is the server's model after its own aggregation: the clients' mean

    fedavgm   m <- beta m + D,                          w <- w - eta m
    fedadam   m <- beta_1 m + (1 - beta_1) D,           w <- w - eta m / (sqrt(v) + tau)
              v <- beta_2 v + (1 - beta_2) D^2
    fedyogi   as fedadam, with
              v <- v - (1 - beta_2) D^2 sign(v - D^2)

m starts at 0 and v at tau^2. `with_server_optimizer` gives such a server to any method whose
server averages models. The three registered methods are FedAvg with it. eta is
``hparams.server_lr``.

Departures: none in the server's equations; as in the paper, m and v have no bias correction,
unlike those of `optax.adam`. The paper's D is -Delta. Clients train as in `fedavg`, and their
mean is weighted by the numbers of examples, as in the paper's experiments.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.core import Algorithm, Array, ClientModel, Params, use_message
from graphfl_jax.settings import Part, Real
from graphfl_jax.trainers import Train


class OptimizedServer(NamedTuple):
    """The state of a server with an optimiser."""

    model: Any  # the state of the method's own server
    opt_state: Any


def with_server_optimizer(
    algorithm: Algorithm, optimizer: optax.GradientTransformation
) -> Algorithm:
    """A method whose server takes a step of an optimiser instead of its own.

    Args:
      algorithm: its server averages, and its state is the model that it sends.
      optimizer: gets the difference between the states before and after the aggregation of
        the method as a gradient; plain SGD of rate 1 is the method itself.

    Raises:
      ValueError: the method's server does not average the trained copies of what it sends.
    """
    if not algorithm.averages or any(
        client.untrained is not use_message for client in algorithm.clients
    ):
        raise ValueError(
            "algorithm has a server that does not average trained copies of its model; wrap a "
            "method with averages=True whose clients upload what they received and trained"
        )
    averaging = algorithm.server

    def init(key, graph):
        model = averaging.init(key, graph)
        return OptimizedServer(model, optimizer.init(model))

    def aggregate(server, cohorts, uploads, key):
        target = averaging.aggregate(server.model, cohorts, uploads, key)
        difference = jax.tree.map(jnp.subtract, server.model, target)
        updates, opt_state = optimizer.update(difference, server.opt_state, server.model)
        return OptimizedServer(optax.apply_updates(server.model, updates), opt_state)

    server = averaging.within(
        lambda server: server.model, lambda server, model: server._replace(model=model)
    )
    return dataclasses.replace(algorithm, server=server).replacing(
        init=init, aggregate=aggregate
    )


class Rates(NamedTuple):
    """The floats of an adaptive server optimiser."""

    lr: Array  # eta
    beta1: Array
    beta2: Array
    tau: Array


def adaptive_rates(
    *,
    server_lr: Annotated[
        Array, Real("Server learning rate eta of FedAdam and FedYogi.")
    ] = 0.03,
    fedopt_beta1: Annotated[Array, Real("Decay beta_1 of the first moment.", high=1.0)] = 0.9,
    fedopt_beta2: Annotated[Array, Real("Decay beta_2 of the second moment.", high=1.0)] = 0.99,
    fedopt_tau: Annotated[
        Array, Real("Tau, which is added to the root of the second moment.", low=1e-10)
    ] = 1e-3,
) -> Rates:
    """Assembles `Rates`."""
    return Rates(server_lr, fedopt_beta1, fedopt_beta2, fedopt_tau)


class Moments(NamedTuple):
    """The state of an adaptive server optimiser."""

    first: Params  # m
    second: Params  # v


def adaptive(rates: Rates, second_moment: Callable) -> optax.GradientTransformation:
    """An adaptive server optimiser without bias correction.

    Args:
      rates: its floats.
      second_moment: (v, square of the gradient, beta_2) -> v; `adam_moment` or `yogi_moment`.
    """
    lr, beta1, beta2, tau = rates

    def init(params):
        first = jax.tree.map(jnp.zeros_like, params)
        return Moments(first, jax.tree.map(lambda p: jnp.full_like(p, tau * tau), params))

    def update(gradient, moments, params=None):
        m = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, moments.first, gradient)
        v = jax.tree.map(
            lambda v, g: second_moment(v, jnp.square(g), beta2), moments.second, gradient
        )
        step = jax.tree.map(lambda m, v: -lr * m / (jnp.sqrt(v) + tau), m, v)
        return step, Moments(m, v)

    return optax.GradientTransformation(init, update)


def adam_moment(v: Array, square: Array, beta2: Array) -> Array:
    """The moving mean of the squares."""
    return beta2 * v + (1.0 - beta2) * square


def yogi_moment(v: Array, square: Array, beta2: Array) -> Array:
    """v changed by (1 - beta_2) of the square towards it, however far apart they are."""
    return v - (1.0 - beta2) * square * jnp.sign(v - square)


def fedavgm(
    model: ClientModel,
    train: Train,
    *,
    server_lr: Annotated[Array, Real("Server learning rate eta of FedAvgM.")] = 1.0,
    fedavgm_momentum: Annotated[
        Array, Real("Momentum beta of FedAvgM; with 0 and eta = 1 it is FedAvg.", high=1.0)
    ] = 0.9,
) -> Algorithm:
    """Builds FedAvgM."""
    return with_server_optimizer(fedavg(model, train), optax.sgd(server_lr, fedavgm_momentum))


def fedadam(
    model: ClientModel, train: Train, *, rates: Annotated[Rates, Part(adaptive_rates)]
) -> Algorithm:
    """Builds FedAdam."""
    return with_server_optimizer(fedavg(model, train), adaptive(rates, adam_moment))


def fedyogi(
    model: ClientModel, train: Train, *, rates: Annotated[Rates, Part(adaptive_rates)]
) -> Algorithm:
    """Builds FedYogi."""
    return with_server_optimizer(fedavg(model, train), adaptive(rates, yogi_moment))
