"""FedAS: each client moves the received body towards its last one, and Fisher traces weight.

Yang, Huang, Ye. FedAS: Bridging Inconsistency in Personalized Federated Learning. CVPR 2024.
https://cvpr.thecvf.com/virtual/2024/poster/31300

Client i keeps its last body b_i and its head h_i. f(x) are the F features of a body:

    m_c        = mean of f(x) over the examples of class c, with the last b_i
    b'         = steps of SGD on mean_(x, y) 1/F ||f(x) - m_y||^2, from the received b
    (b_i, h_i) <- K_c steps of SGD on F_i(b, h), from (b', h_i)
    t_i        = mean over the examples of ||d loss(x, y) / d (b, h)||^2, at (b_i, h_i)
    b         <- sum_i t_i b_i / sum_i t_i

t_i is the trace of the empirical Fisher information of a client's model. It is that of single
examples, and does not depend on batches. A client uploads b_i and t_i. Without training it
uploads t_i = 0, so that it has no weight, and a negative t_i counts as 0.

G is the server's body with the client's head, P is (b_i, h_i), as the authors score, and L the
same after one more round. Without steps of alignment, and with equal t_i, FedAS is FedPer with
equal weights.

Departures:
  * In the authors' code, t_i is a sum over batches of the squared gradient of a batch's mean,
    which depends on the number and the size of batches.
  * The distance to the means is that of the mean example. In the authors' code it is the sum
    over the classes of a batch of their mean distances. Its steps are one epoch.
  * A fixed number of local steps, on batches drawn with replacement. Heads start as each client
    draws them, and b_i as the server's first body, also of a client that is first drawn later.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.fedproto import mean_features
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
from graphfl_jax.examples import Examples
from graphfl_jax.optimizers import sgd
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import Train, sgd_trainer

NEEDS = Needs(labels=True, parts=True, head=True)
AT_ONCE = 8  # examples of a client whose gradients are computed at once


class Upload(NamedTuple):
    """What a client sends."""

    body: Params  # b_i
    trace: Array  # t_i, []


@facts(needs=NEEDS)
def fedas(
    model: ClientModel,
    train: Train,
    *,
    batch_size: int | None,
    classes: int,
    fedas_steps: Annotated[
        int,
        Integer("Steps with which FedAS aligns the received body; 0 aligns nothing.", low=0),
    ] = 10,
    fedas_lr: Annotated[
        Array, Real("Learning rate of FedAS's alignment; 0 aligns nothing.")
    ] = 0.01,
) -> Algorithm:
    """Builds FedAS. A message is (b,), and the memory of a client is its last model.

    Args:
      model: of all clients.
      train: of body and head, after the alignment.
      batch_size: examples in a step of the alignment; None takes all.
      classes: number of classes.
      fedas_steps: of the alignment, in every round.
      fedas_lr: of plain gradient steps.
    """
    align = sgd_trainer(sgd(lr=fedas_lr), steps=fedas_steps, batch_size=batch_size)

    def aligned(body, last, examples, key):
        if not fedas_steps:
            return body
        means = mean_features(model, last, examples, classes).mean

        def apart(body, batch, key):
            gaps = model.body(body, batch.x) - means[batch.y]
            each = jnp.mean(jnp.square(gaps), axis=1)
            real = jnp.arange(len(each)) < batch.count
            total = jnp.sum(jnp.where(real, each, 0.0))
            return total / jnp.maximum(batch.count, 1).astype(each.dtype)

        return align(apart, body, examples, key)[0]

    def local(message, last, data, key):
        key_align, key_train = jax.random.split(key)
        body = aligned(*message, last, data.train, key_align)
        start = {"body": body, "head": last["head"]}
        params, metrics = train(model.objective, start, data.train, key_train)
        return params, Upload(params["body"], fisher_trace(model, params, data.train)), metrics

    def aggregate(body, cohort, uploads, key):
        traces = jnp.maximum(uploads.trace, 0.0)
        some = jnp.any(traces > 0)
        return tree.where(some, tree.mean(uploads.body, jnp.where(some, traces, 1.0)), body)

    server = Server.of_one(
        init=lambda key, graph: model.init(key)["body"],
        download=lambda body, i: (body,),
        aggregate=aggregate,
    )
    client = Client(
        model,
        local,
        enroll=lambda message, key: {"body": message[0], "head": model.init(key)["head"]},
        # Messages and uploads begin with a body.
        deploy=lambda sent, last, data: Predictor({"body": sent[0], "head": last["head"]}),
        untrained=lambda message, last, data: Upload(*message, jnp.float32(0.0)),
        personalize=lambda message, last, data, key: Predictor(last),
    )
    return Algorithm(server, (client,), needs=NEEDS)


def fisher_trace(model: ClientModel, params: Params, examples: Examples) -> Array:
    """t_i of the docstring, [] float32: the mean squared gradient of a client's examples."""
    ready = model.recalibrate(params, examples)
    # Statistics that the model computes of the examples are no parameters.
    trained = {path for path, _ in jax.tree_util.tree_leaves_with_path(params)}

    def squared(place):
        row = examples.rows(place[None])

        def loss(params):
            return jnp.sum(model.task.loss(model.apply(params, row.x), row.y))

        gradient = jax.tree_util.tree_leaves_with_path(jax.grad(loss)(ready))
        return sum(jnp.sum(jnp.square(leaf)) for path, leaf in gradient if path in trained)

    squares = jax.lax.map(squared, jnp.arange(examples.size), batch_size=AT_ONCE)
    real = jnp.arange(examples.size) < examples.count
    number = jnp.maximum(examples.count, 1).astype(squares.dtype)
    return jnp.sum(jnp.where(real, squares, 0.0)) / number
