"""FedProto: clients of any architecture share the mean features of each class, the prototypes.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. FedProto: Federated Prototype Learning across
Heterogeneous Clients. AAAI 2022. https://arxiv.org/abs/2105.00243

Client i has a model of its own with parameters theta_i, and f_i(x) are the F features of its
body. It has n_ic examples (x, y) with y = c:

    theta_i <- K_c steps of SGD on F_i(theta) + lambda mean_(x, y) 1/F ||f_i(x) - C_y||^2
    m_ic     = mean of f_i(x) over (x, y) with y = c
    C_c     <- sum_i n_ic m_ic / sum_i n_ic, over the clients i of the cohort

Models stay with their clients. F is the same in all architectures. As long as no client with
class c has been in a cohort, examples of this class have no second term.

G, L and P are the client's own model. With ``fedproto_predict=prototypes``, P predicts the
class whose C_c is nearest to f_i(x), as in the paper, among the classes that have one.

Departures:
  * The paper's second term is a distance between m_ic and C_c. Here it is the mean of those of
    the examples, squared and per feature, as in the authors' code.
  * The paper's equation of C_c also divides by the number of clients that have class c, so that
    C_c would become smaller with more clients. This factor is left out.
  * The mean of C_c over clients is weighted by n_ic, as in the paper. Public code weights all
    clients equally.
  * A class that no client of a cohort has keeps its C_c. In the paper, all clients take part.
  * P is the own model by default, which needs no prototype of each class.
"""

import dataclasses
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import core
from graphfl_jax.algorithms.fedavg import of_all_architectures
from graphfl_jax.algorithms.knnper import features
from graphfl_jax.algorithms.method import facts
from graphfl_jax.examples import Examples
from graphfl_jax.settings import Choice, Real
from graphfl_jax.trainers import Train

NEEDS = core.Needs(labels=True, parts=True, head=True)


class ClassMeans(NamedTuple):
    """Means of D numbers over the examples of each of C classes."""

    mean: core.Array  # [C, D]; 0 for a class without examples
    count: core.Array  # [C] int32, number of examples


@facts(needs=NEEDS)
def fedproto(
    models: tuple[core.ClientModel, ...],
    train: Train,
    *,
    inputs: tuple[int, ...],
    classes: int,
    unseen: tuple[core.ClientModel, ...] = (),
    fedproto_predict: Annotated[
        str,
        Choice(
            "What FedProto predicts with at P: the client's model, or the nearest prototype.",
            ("model", "prototypes"),
        ),
    ] = "model",
    fedproto_lambda: Annotated[
        core.Array,
        Real("Weight of FedProto's distance to the prototypes; 0 is local training."),
    ] = 1.0,
) -> core.Algorithm:
    """Builds FedProto. The memory of a client is its model.

    Server state, message and upload are `ClassMeans` of the features.

    Args:
      models: of each architecture.
      train: trains body and head.
      inputs: shape of an example.
      classes: number of classes C.
      unseen: of the architectures that only new clients have.
      fedproto_predict: "model" or "prototypes".
      fedproto_lambda: lambda.

    Raises:
      ValueError: the architectures have features of different sizes.
    """
    size = feature_size("fedproto", (*models, *unseen), inputs)

    def client(model):
        def local(prototypes, theta, data, key):
            pulled = near_means(model, prototypes, fedproto_lambda)
            theta, metrics = train(pulled.objective, theta, data.train, key)
            return theta, mean_features(model, theta, data.train, classes), metrics

        def predict(predictor, x):
            params, prototypes = predictor
            if not isinstance(prototypes, ClassMeans):
                return model.apply(params, x)
            hidden = model.body(params["body"], x)[:, None]  # [B, 1, F]
            square = jnp.sum(jnp.square(hidden - prototypes.mean[None]), axis=2)
            known = prototypes.count[None] > 0
            return jnp.where(known, -square, jnp.finfo(square.dtype).min)  # [B, C]

        def nearest(prototypes, theta, data, key):
            return core.Predictor(theta, prototypes)

        return core.Client(
            model,
            local,
            predict=predict,
            enroll=lambda prototypes, key: model.init(key),
            deploy=lambda means, theta, data: core.Predictor(theta),
            untrained=no_examples,
            personalize=nearest if fedproto_predict == "prototypes" else None,
        )

    server = core.Server(
        init=lambda key, graph: empty(classes, size),
        download=lambda prototypes, group, i: prototypes,
        aggregate=lambda prototypes, cohorts, uploads, key: average(
            prototypes, of_all_architectures(cohorts, uploads)[1]
        ),
    )
    clients = tuple(map(client, (*models, *unseen)))
    return core.Algorithm(server, clients, needs=NEEDS)


def near_means(
    model: core.ClientModel, means: ClassMeans, weight: core.Array
) -> core.ClientModel:
    """A model whose features are pulled to the means of their classes in training.

    Args:
      model: of the client.
      means: of the features; those of classes without examples do not pull.
      weight: of the mean squared distance per feature, which is added to the loss.
    """

    def with_features(params, batch, key):
        hidden = model.body(params["body"], batch.x)
        return model.head(params["head"], hidden), hidden

    def loss(outputs, y):
        outputs, hidden = outputs
        apart = jnp.mean(jnp.square(hidden - means.mean[y]), axis=1)
        pull = jnp.where(means.count[y] > 0, apart, 0.0)
        return model.task.loss(outputs, y) + weight * pull

    task = model.task._replace(loss=loss)
    return dataclasses.replace(model, task=task, train_forward=with_features)


def empty(classes: int, size: int) -> ClassMeans:
    """Means of `size` numbers over no examples."""
    return ClassMeans(jnp.zeros((classes, size)), jnp.zeros(classes, jnp.int32))


def no_examples(means: ClassMeans, memory: core.Params, data: core.ClientData) -> ClassMeans:
    """A `Client.untrained` of clients that receive and upload `ClassMeans` of equal shapes.

    The untrained upload has 0 examples.
    """
    return jax.tree.map(jnp.zeros_like, means)


def class_means(values: core.Array, examples: Examples, classes: int) -> ClassMeans:
    """The means of values [S, D] over the real examples of each class of a client."""
    real = jnp.arange(examples.size) < examples.count
    rows = jax.nn.one_hot(examples.y, classes) * real[:, None].astype(jnp.float32)
    count = jnp.sum(rows, axis=0)
    values = jnp.where(real[:, None], values, 0.0)  # padding may hold any value
    means = rows.T @ values / jnp.maximum(count, 1.0)[:, None]
    return ClassMeans(means, count.astype(jnp.int32))


def mean_features(
    model: core.ClientModel, params: core.Params, examples: Examples, classes: int
) -> ClassMeans:
    """The mean features of each class of a client, as its model predicts with them."""
    params = model.recalibrate(params, examples)
    return class_means(features(model, params, examples), examples, classes)


def average(last: ClassMeans, uploads: ClassMeans) -> ClassMeans:
    """The means over all examples of M clients; a class without any keeps its last mean.

    Args:
      last: of the server.
      uploads: of the clients, leaves [M, ...].
    """
    count = jnp.sum(uploads.count, axis=0)
    some = count > 0
    total = jnp.einsum("mc,mcd->cd", uploads.count.astype(jnp.float32), uploads.mean)
    mean = total / jnp.maximum(count, 1).astype(jnp.float32)[:, None]
    return ClassMeans(
        jnp.where(some[:, None], mean, last.mean), jnp.where(some, count, last.count)
    )


def feature_size(
    method: str, models: tuple[core.ClientModel, ...], inputs: tuple[int, ...]
) -> int:
    """The number F of features, which is one in all architectures.

    Args:
      method: name of the method, for the error.
      models: of each architecture.
      inputs: shape of an example.

    Raises:
      ValueError: the architectures have features of different sizes.
    """

    def size(model):
        def of_random(key, x):
            return model.body(model.init(key)["body"], x)

        return jax.eval_shape(of_random, jax.random.key(0), jnp.zeros((1, *inputs))).shape[-1]

    sizes = [size(model) for model in models]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"algorithm.name={method!r} needs features of one size, and those of the "
            f"architectures have the sizes {', '.join(map(str, sizes))}; choose architectures "
            f"with equal features, or set --config.algorithm.name=feddistill"
        )
    return sizes[0]
