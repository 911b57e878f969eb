"""FedDBE: FedAvg whose clients keep the bias of their features, so that means are alike.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan. Eliminating Domain Bias for Federated Learning in
Representation Space. NeurIPS 2023. https://arxiv.org/abs/2311.14975

With features f(x) of the body and a vector z_i that client i keeps, outputs are those of the
head on f(x) + z_i. In each local step on a batch,

    r      <- (1 - mu) r + mu mean of f(x) over the batch
    w, z_i <- a step of SGD on the loss + kappa 1/F ||r - zbar||^2,      F features
    w      <- sum_i n_i w_i / sum_i n_i

zbar is a mean of features of all clients. In the term with kappa, the earlier r is a constant.
z_i starts at 0. G and P are the server's model with the client's z_i.

Departures:
  * In the paper, zbar is the mean over all clients with the first model, from a pass before the
    first round, and it stays. Here a client uploads the mean of f(x) over its examples with
    each model that it receives, and zbar is the running mean over the cohorts of all rounds,
    weighted by the numbers of examples. The first round has no term with kappa. In the
    authors' code, clients train in that pass, and the term has a further factor of 1/2.
  * r starts at the mean of the client's features with the received model, not at 0.
  * z_i and w have one optimiser. A fixed number of steps, on batches drawn with replacement.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.algorithms.fedproto import feature_size
from graphfl_jax.algorithms.knnper import features
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import (
    Algorithm,
    Array,
    Client,
    ClientModel,
    Needs,
    Params,
    Predictor,
    Server,
)
from graphfl_jax.settings import Real
from graphfl_jax.trainers import ClientOptimizer, train_steps

NEEDS = Needs(parts=True, head=True)


class Shared(NamedTuple):
    """The state of the server, and a message."""

    model: Params  # w
    mean: Array  # zbar, [F]
    number: Array  # [] float32, of the examples that it is of; 0: there is none yet


@facts(needs=NEEDS)
def feddbe(
    model: ClientModel,
    *,
    client_optimizer: ClientOptimizer,
    local_steps: int,
    batch_size: int | None,
    inputs: tuple[int, ...],
    feddbe_kappa: Annotated[
        Array, Real("Weight kappa of the distance of FedDBE's mean features to those of all.")
    ] = 1.0,
    feddbe_momentum: Annotated[
        Array, Real("Share mu of a batch in FedDBE's running mean of features.", high=1.0)
    ] = 1.0,
) -> Algorithm:
    """Builds FedDBE. The memory of a client is z_i [F]; an upload is (w_i, mean features [F]).

    Args:
      model: of all clients.
      client_optimizer: of w and z_i; its state starts anew in every round.
      local_steps: K_c.
      batch_size: examples in a step; None takes all.
      inputs: shape of an example.
      feddbe_kappa: kappa.
      feddbe_momentum: mu.
    """
    optimizer = optax.with_extra_args_support(client_optimizer)
    size = feature_size("feddbe", (model,), inputs)

    def mean_of(hidden, count):
        real = jnp.arange(len(hidden)) < count
        total = jnp.sum(jnp.where(real[:, None], hidden, 0.0), axis=0)
        return total / jnp.maximum(count, 1).astype(hidden.dtype)

    def local(message, z, data, key):
        ready = model.recalibrate(message.model, data.train)
        received = mean_of(features(model, ready, data.train), data.train.count)
        received = jnp.where(data.train.count > 0, received, message.mean)

        # Of the whole batch at once, since the mean of the features mixes its examples.
        def objective(trained, running, batch):
            params, z = trained
            hidden = model.body(params["body"], batch.x)
            loss = model.mean_loss(model.head(params["head"], hidden + z[None]), batch)
            mean = mean_of(hidden, batch.count)
            running = (1.0 - feddbe_momentum) * running + feddbe_momentum * mean
            apart = jnp.mean(jnp.square(running - message.mean))
            return loss + feddbe_kappa * jnp.where(message.number > 0, apart, 0.0), running

        def step(carry, batch, key):
            trained, opt_state, running = carry
            (loss, running), gradient = jax.value_and_grad(objective, has_aux=True)(
                trained, running, batch
            )
            updates, opt_state = optimizer.update(gradient, opt_state, trained, value=loss)
            return (optax.apply_updates(trained, updates), opt_state, running), loss

        start = (message.model, z)
        ((w, z), *_), metrics = train_steps(
            step,
            (start, optimizer.init(start), received),
            data.train,
            key,
            steps=local_steps,
            batch_size=batch_size,
        )
        return z, (w, received), metrics

    def aggregate(server, cohort, uploads, key):
        w, mean = tree.mean(uploads, cohort.weights)
        added = jnp.sum(cohort.weights)
        number = server.number + added
        return Shared(w, server.mean + added / number * (mean - server.mean), number)

    def predict(predictor, x):
        hidden = model.body(predictor.params["body"], x)
        return model.head(predictor.params["head"], hidden + predictor.extra[None])

    server = Server.of_one(
        init=lambda key, graph: Shared(model.init(key), jnp.zeros(size), jnp.float32(0.0)),
        download=lambda server, i: server,
        aggregate=aggregate,
    )
    client = Client(
        model,
        local,
        predict=predict,
        enroll=lambda message, key: jnp.zeros(size),
        # Messages and uploads begin with a model.
        deploy=lambda sent, z, data: Predictor(sent[0], z),
        untrained=lambda message, z, data: (message.model, message.mean),
    )
    return Algorithm(server, (client,), averages=True, needs=NEEDS)
