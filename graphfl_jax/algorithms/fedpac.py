"""FedPAC: one body, features near common means of classes, and heads that are combined.

Xu, Tong, Huang. Personalized Federated Learning with Feature Alignment and Classifier
Collaboration. ICLR 2023. https://openreview.net/forum?id=SXZr8aDKia

A client receives the body b, a head h_i, and the mean features C_c of the classes c. It has
n_ic examples of class c among n_i, and f(x) are the F features of the body:

    h_i <- K_h steps of SGD on the loss, with the received body
    b_i  = K_c - K_h steps of SGD on the loss + lambda mean_(x, y) 1/F ||f(x) - C_y||^2, from b
    b   <- sum_i n_i b_i / sum_i n_i
    C_c <- sum_i n_ic m_ic / sum_i n_ic,   m_ic = mean of f(x) over class c, with b_i
    h_i <- sum_j a_ij h_j,                 over the clients j of the cohort
    a_i  = argmin_a sum_j a_j^2 V_j + ||sum_j a_j (H_j - H_i)||^2,   a_j >= 0, sum_j a_j = 1
    H_ic = n_ic / n_i times the mean of f(x) over class c, with the received body
    V_i  = (mean of ||f(x)||^2 - ||H_i||^2) / n_i, the variance of H_i

So a client takes heads of clients whose classes look alike. G and P are the body and the
client's combined head.

Departures:
  * The distance to C_c is per feature, as in the authors' code. K_h is half of all local steps
    by default, as in `fedrep`, and steps are on batches drawn with replacement. The paper has
    an epoch for the head, and the authors' code a rate of 0.1 for it, whatever that of the
    body is.
  * Heads are combined among the clients of the cohort. A client outside of it keeps the last
    head that was combined for it; all have the same one at first.
  * a_i are STEPS steps of an accelerated projected gradient, not those of a general solver.
    The authors' code also sets small eigenvalues and small a_ij to 0.
  * A new client starts with the mean of the known clients' heads. Heads of new clients are
    combined among those of their round.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.fedproto import (
    ClassMeans,
    average,
    class_means,
    empty,
    feature_size,
    mean_features,
    near_means,
    no_examples,
)
from graphfl_jax.algorithms.fedrep import head_steps_of, train_parts
from graphfl_jax.algorithms.knnper import features
from graphfl_jax.algorithms.method import facts
from graphfl_jax.algorithms.pfedgraph import project
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
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import ClientOptimizer

NEEDS = Needs(labels=True, parts=True, head=True)
STEPS = 500  # of the projected gradient


class SharedBody(NamedTuple):
    """The state of the server."""

    body: Params  # b
    heads: Params  # of each client, [N, ...]
    means: ClassMeans  # C


class Message(NamedTuple):
    """What a client receives."""

    body: Params  # b
    head: Params  # h_i
    means: ClassMeans  # C


class Upload(NamedTuple):
    """What a client sends."""

    body: Params  # b_i
    head: Params  # h_i
    means: ClassMeans  # m_i
    shares: Array  # H_i, [C, F]
    variance: Array  # V_i, []


@facts(needs=NEEDS)
def fedpac(
    model: ClientModel,
    *,
    client_optimizer: ClientOptimizer,
    local_steps: int,
    batch_size: int | None,
    num_clients: int,
    inputs: tuple[int, ...],
    classes: int,
    fedpac_head_steps: Annotated[
        int,
        Integer(
            "First local steps K_h, which train the head; the others train the body. -1: "
            "half of local_steps.",
            low=-1,
        ),
    ] = -1,
    fedpac_lambda: Annotated[
        Array, Real("Weight lambda of FedPAC's distance to the means of classes.")
    ] = 1.0,
) -> Algorithm:
    """Builds FedPAC.

    Args:
      model: of all clients.
      client_optimizer: its state starts anew for the head and for the body.
      local_steps: K_c, steps of head and body together.
      batch_size: examples in a step; None takes all.
      num_clients: N.
      inputs: shape of an example.
      classes: number of classes C.
      fedpac_head_steps: K_h.
      fedpac_lambda: lambda.

    Raises:
      ValueError: K_h is larger than K_c.
    """
    head_steps = head_steps_of("fedpac_head_steps", fedpac_head_steps, local_steps)
    steps = {"head": head_steps, "body": local_steps - head_steps}
    size = feature_size("fedpac", (model,), inputs)

    def init(key, graph):
        params = model.init(key)
        heads = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_clients), params["head"])
        return SharedBody(params["body"], heads, empty(classes, size))

    def download(server, i):
        return Message(server.body, tree.take(server.heads, i), server.means)

    def local(message, memory, data, key):
        received = {"body": message.body, "head": message.head}
        statistics = shares_of_classes(model, received, data.train, classes)
        pulled = near_means(model, message.means, fedpac_lambda)
        train = train_parts(pulled, client_optimizer, steps=steps, batch_size=batch_size)
        params, metrics = train(received, data.train, key)
        means = mean_features(model, params, data.train, classes)
        return memory, Upload(params["body"], params["head"], means, *statistics), metrics

    def untrained(message, memory, data):
        nothing = no_examples(message.means, memory, data)
        return Upload(message.body, message.head, nothing, nothing.mean, jnp.float32(0.0))

    def combined(server, cohort, uploads):
        trained = jnp.sum(uploads.means.count, axis=1) > 0
        shares = combine(tree.as_matrix(uploads.shares)[0], uploads.variance, trained)

        def mix(heads):
            mixed = jnp.tensordot(shares, heads, axes=1)
            return jnp.where(trained.reshape([-1] + [1] * (heads.ndim - 1)), mixed, heads)

        heads = jax.tree.map(mix, uploads.head)
        return server._replace(heads=tree.put(server.heads, cohort.ids, heads))

    def aggregate(server, cohort, uploads, key):
        return combined(server, cohort, uploads)._replace(
            body=tree.mean(uploads.body, cohort.weights),
            means=average(server.means, uploads.means),
        )

    def admit(server, new_clients, graph, key):
        added = len(new_clients)
        heads = jax.tree.map(
            lambda leaf: jnp.concatenate([leaf, jnp.stack([jnp.mean(leaf, axis=0)] * added)]),
            server.heads,
        )
        return server._replace(heads=heads)

    server = Server.of_one(
        init,
        download,
        aggregate,
        admit=admit,
        adapt_new_clients=lambda server, cohort, uploads, key: combined(
            server, cohort, uploads
        ),
    )
    client = Client(
        model,
        local,
        deploy=lambda sent, memory, data: Predictor({"body": sent.body, "head": sent.head}),
        untrained=untrained,
    )
    return Algorithm(server, (client,), needs=NEEDS)


def shares_of_classes(
    model: ClientModel, params: Params, examples: Examples, classes: int
) -> tuple[Array, Array]:
    """H [C, F] of a client, and V []."""
    params = model.recalibrate(params, examples)
    hidden = features(model, params, examples)  # [S, F]
    means = class_means(hidden, examples, classes)
    number = jnp.maximum(examples.count, 1).astype(jnp.float32)
    shares = means.mean * (means.count.astype(jnp.float32) / number)[:, None]
    real = jnp.arange(examples.size) < examples.count
    squares = jnp.where(real, jnp.sum(jnp.square(hidden), axis=1), 0.0)
    variance = jnp.sum(squares) / number - jnp.sum(jnp.square(shares))
    return shares, variance / number


def combine(points: Array, variances: Array, chosen: Array) -> Array:
    """The rows a_i of M clients, [M, M]; they sum to one.

    Args:
      points: H of each, [M, D].
      variances: V of each, [M].
      chosen: bool [M]; the shares of the others are 0.
    """
    # The sum of a row is 1, so the rows H_j may be moved together, and the projection does not
    # change if the same number is added to all of a row.
    number = jnp.maximum(jnp.sum(chosen.astype(jnp.float32)), 1.0)
    points = jnp.where(chosen[:, None], points, 0.0)
    centre = jnp.sum(points, axis=0, keepdims=True) / number
    points = jnp.where(chosen[:, None], points - centre, 0.0)
    variances = jnp.where(chosen, jnp.maximum(variances, 0.0), 0.0)
    products = jnp.matmul(points, points.T, precision=jax.lax.Precision.HIGHEST)
    largest = jnp.max(variances) + jnp.trace(products)  # curvature, at most
    largest = jnp.maximum(largest, jnp.finfo(products.dtype).tiny)

    def step(carry, number):
        last, ahead = carry
        slope = ahead * variances[None] + ahead @ products - products
        shares = project(ahead - slope / largest, chosen)
        return (shares, shares + number / (number + 3.0) * (shares - last)), None

    start = jnp.eye(len(points))
    (shares, _), _ = jax.lax.scan(step, (start, start), jnp.arange(float(STEPS)))
    return shares
