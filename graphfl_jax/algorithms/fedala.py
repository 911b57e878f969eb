"""FedALA: a client starts from its last model, moved elementwise towards the server's.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: Adaptive Local Aggregation for Personalized
Federated Learning. AAAI 2023. https://arxiv.org/abs/2212.01197

Client i keeps theta_i and weights W_i in [0, 1], both of the last p tensors of the model alone.
With the model w of the server, and products * elementwise:

    m    = theta_i + (w - theta_i) * W_i   on the last p tensors, and w on the others
    W_i <- clip(W_i - eta dF_i(m)/dm * (w - theta_i), 0, 1)      K_c times, with m anew
    w_i  = K_c steps of SGD on F_i, from m
    w   <- sum_i n_i w_i / sum_i n_i,                            theta_i <- w_i

P is m after K_c steps of W_i, before it is trained. G is w, and L is w_i.

Departures:
  * W_i takes K_c steps in every round, on batches drawn with replacement from all examples. The
    authors' code passes once over s % of them, a slice in stored order, and in the second
    round without a bound, until the loss no longer changes.
  * All clients start with the server's first model as theta_i, and with W_i = 1. In the first
    round w = theta_i, so W_i stays. A client that is first drawn later fits W_i between the
    server's first model and its present one.
  * The steps of W_i for P are not kept. In every round, the authors mix for all clients.
"""

import functools
from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import parts
from graphfl_jax.algorithms.fedavg import averaging_server
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Metrics, Params, Predictor
from graphfl_jax.examples import Examples, Windows
from graphfl_jax.optimizers import projected_sgd
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import Train, sgd_trainer


class OwnPart(NamedTuple):
    """The memory of a client."""

    part: Params  # theta_i
    shares: Params  # W_i, of the server's part in the mixed one


def fedala(
    model: ClientModel,
    train: Train,
    *,
    local_steps: int,
    batch_size: int | None,
    fedala_tensors: Annotated[
        int,
        Integer("Last tensors p of the model that FedALA mixes; 2 are a dense head."),
    ] = 2,
    fedala_eta: Annotated[
        Array, Real("Learning rate eta of FedALA's weights; 0 is FedAvg.")
    ] = 1.0,
) -> Algorithm:
    """Builds FedALA. Server state, message and upload are a model; the memory is an `OwnPart`.

    Args:
      model: of all clients.
      train: trains the mixed model.
      local_steps: K_c, of the weights.
      batch_size: examples in a step of the weights; None takes all.
      fedala_tensors: p; if the model has fewer, all are mixed.
      fedala_eta: eta, of plain projected gradient steps.
    """
    return mixing(
        model,
        parts.last_tensors(fedala_tensors),
        functools.partial(train, model.objective),
        steps=local_steps,
        batch_size=batch_size,
        rate=fedala_eta,
    )


def mixing(
    model: ClientModel,
    rule: parts.Rule,
    train: Callable[[Params, Examples | Windows, Array], tuple[Params, Metrics]],
    *,
    steps: int,
    batch_size: int | None,
    rate: Array,
) -> Algorithm:
    """FedAvg whose clients train from the server's model, mixed in a part with their last one.

    Args:
      model: of all clients.
      rule: of the part.
      train: trains the mixed model: (params, examples, key) -> (params, metrics).
      steps: of the shares of the server's part, before the model is trained.
      batch_size: examples in a step of the shares; None takes all.
      rate: of these steps.
    """
    fit = sgd_trainer(projected_sgd(rate), steps=steps, batch_size=batch_size)

    def part_of(params):
        return parts.split(params, rule)[0]

    def start(w, memory):
        part, others = parts.split(w, rule)
        mixed = jax.tree.map(lambda w, theta, share: theta + (w - theta) * share, part, *memory)
        return parts.merge(mixed, others)

    def with_fitted_shares(w, memory, data, key):
        if not steps:
            return memory

        def objective(shares, batch, key):
            # By the chain rule its gradient is that by the mixed part, times w - theta_i.
            return model.objective(start(w, memory._replace(shares=shares)), batch, key)

        return memory._replace(shares=fit(objective, memory.shares, data.train, key)[0])

    def local(w, memory, data, key):
        key_shares, key_train = jax.random.split(key)
        memory = with_fitted_shares(w, memory, data, key_shares)
        params, metrics = train(start(w, memory), data.train, key_train)
        return memory._replace(part=part_of(params)), params, metrics

    def personalize(w, memory, data, key):
        return Predictor(start(w, with_fitted_shares(w, memory, data, key)))

    client = Client(
        model,
        local,
        enroll=lambda w, key: OwnPart(part_of(w), jax.tree.map(jnp.ones_like, part_of(w))),
        untrained=lambda w, memory, data: start(w, memory),
        personalize=personalize,
    )
    return Algorithm(averaging_server(model), (client,), averages=True)
