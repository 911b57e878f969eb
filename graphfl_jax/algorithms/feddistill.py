"""FedDistill: clients of any architecture share their mean prediction for each class.

Jeong, Oh, Kim, Park, Bennis, Kim. Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data. 2018. https://arxiv.org/abs/1811.11479

Client i has a model of its own with parameters theta_i, whose outputs have the probabilities
p_i(x) by softmax. Its mean for class c is over its examples (x, y) with y = c:

    theta_i <- K_c steps of SGD on F_i(theta) + gamma mean_(x, y) H(Q_iy, p_i(x))
    q_ic     = mean of p_i(x) over (x, y) with y = c
    Q_ic     = mean of q_jc over all clients j other than i that have class c

H(Q, p) = - sum_k Q_k log p_k is the cross-entropy. The own mean is left out, so that a client
learns from the others only. The paper calls the probabilities logit vectors. As long as the
server knows no other client with class c, examples of this class have no second term. Models
stay with their clients.

G, L and P are the client's own model.

Departures:
  * q_ic is the mean after a round, over all examples of the client. In the paper, it is over
    the batches of the local steps.
  * A client that was not sampled takes part in the means with its last q_ic. In the paper, all
    clients are in every round.
  * A new client receives the mean of all known clients, and does not change what these receive.
  * The paper's augmentation by a generative model is left out.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import of_all_architectures
from graphfl_jax.algorithms.fedproto import ClassMeans, class_means, empty, no_examples
from graphfl_jax.algorithms.knnper import features
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Needs, Predictor, Server
from graphfl_jax.data import relations
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train

NEEDS = Needs(labels=True)


@facts(needs=NEEDS)
def feddistill(
    models: tuple[ClientModel, ...],
    train: Train,
    *,
    num_clients: int,
    classes: int,
    unseen: tuple[ClientModel, ...] = (),
    feddistill_gamma: Annotated[
        Array,
        Real("Weight of the other clients' predictions in FedDistill; 0 is local training."),
    ] = 1.0,
) -> Algorithm:
    """Builds FedDistill. The memory of a client is its model.

    The state of the server is the last upload of each client, leaves [N, ...]. Message and
    upload are `ClassMeans` of probabilities, [C, C]; in a message, the counts are of clients.

    Args:
      models: of each architecture; their outputs are logits.
      train: trains the whole model.
      num_clients: N, clients that train.
      classes: number of classes C.
      unseen: of the architectures that only new clients have.
      feddistill_gamma: gamma.
    """

    def no_means(clients):
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * clients), empty(classes, classes))

    def download(known, group, i):
        has = (known.count > 0).astype(jnp.float32)  # [N, C]
        number = jnp.sum(has, axis=0) - has[i]
        total = jnp.einsum("nc,ncd->cd", has, known.mean)
        others = total - has[i][:, None] * known.mean[i]
        means = others / jnp.maximum(number, 1.0)[:, None]
        return ClassMeans(means, number.astype(jnp.int32))

    def aggregate(known, cohorts, uploads, key):
        cohort, uploads = of_all_architectures(cohorts, uploads)
        return tree.put(known, cohort.ids, uploads)

    def admit(known, new_clients, graph, key):
        added = no_means(relations.num_clients(graph) - len(known.count))
        return jax.tree.map(lambda old, new: jnp.concatenate([old, new]), known, added)

    def client(model):
        def local(others, theta, data, key):
            def distill(outputs, y):
                apart = optax.softmax_cross_entropy(outputs, others.mean[y])
                term = jnp.where(others.count[y] > 0, apart, 0.0)
                return model.task.loss(outputs, y) + feddistill_gamma * term

            task = model.task._replace(loss=distill)
            pulled = dataclasses.replace(model, task=task)
            theta, metrics = train(pulled.objective, theta, data.train, key)
            ready = model.recalibrate(theta, data.train)
            outputs = model.head(ready["head"], features(model, ready, data.train))
            means = class_means(jax.nn.softmax(outputs), data.train, classes)
            return theta, means, metrics

        return Client(
            model,
            local,
            enroll=lambda others, key: model.init(key),
            deploy=lambda means, theta, data: Predictor(theta),
            untrained=no_examples,
        )

    server = Server(
        init=lambda key, graph: no_means(num_clients),
        download=download,
        aggregate=aggregate,
        admit=admit,
    )
    clients = tuple(map(client, (*models, *unseen)))
    return Algorithm(server, clients, needs=NEEDS)
