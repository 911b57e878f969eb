"""Fed-RoD: a generic head trained with a balanced loss, and a personal head on top of it.

Chen, Chao. On Bridging Generic and Personalized Federated Learning for Image Classification.
ICLR 2022. https://arxiv.org/abs/2107.00778

Client i has n_ic examples of class c. With features f of the body, the logits of the generic
head g and those of the personal head p_i,

    body, g <- steps of SGD on CE(g(f(x)) + log n_ic, y)      (balanced softmax)
    p_i     <- steps of SGD on CE(g(f(x)) + p_i(f(x)), y), where body and g are constants

The server averages body and g, weighted by examples. G and L predict with g(f(x)), and P with
g(f(x)) + p_i(f(x)).

With ``fedrod_head=linear``, p_i stays with its client. With ``hyper``, a hypernetwork of all
clients generates it from the client's shares of classes:

    p_i = sum_c q_c n_ic / n_i,      q_c <- steps of SGD through p_i

It is linear, so it has a head q_c for each class. The server averages the q_c as body and g,
and a new client has a personal head as soon as it joins.

Departures:
  * The hypernetwork is linear, and takes steps of the learning rate of the other parameters.
  * Personal heads and the q_c start at 0, so that a client that was never sampled predicts as G
    at P, with ``hyper`` only before the first round. In a round, one step on the sum of both
    losses changes all parameters, which is the same as two steps with gradients from the same
    batch. Optimisers that combine all parameters, such as one that clips the gradient, see
    both.
  * For a class without examples, n_ic is ABSENT, which is small, so that log n_ic is finite.
  * A new client trains body and both heads in its rounds, as all clients do, and keeps p_i
    alone. With ``hyper`` it keeps nothing.
  * Public implementations keep the generic head at the client, or predict with p_i alone.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Array, ClientModel, Needs, Predictor
from graphfl_jax.examples import Examples
from graphfl_jax.settings import Choice
from graphfl_jax.trainers import Train

ABSENT = 1e-12
NEEDS = Needs(labels=True, parts=True, head=True)


@facts(needs=NEEDS)
def fedrod(
    model: ClientModel,
    train: Train,
    *,
    classes: int,
    fedrod_head: Annotated[
        str,
        Choice(
            "Fed-RoD's personal head: one that its client keeps, or one that a shared "
            "hypernetwork generates from the client's shares of classes.",
            ("linear", "hyper"),
        ),
    ] = "linear",
) -> Algorithm:
    """Builds Fed-RoD.

    The memory of a client is its personal head. With ``hyper`` it is empty, and the state of
    the server, the message and the upload have the heads q_c under "personal", whose leaves
    are [classes, ...].

    Args:
      model: its head gives one logit per class.
      train: trains body and both heads.
      classes: number of classes.
      fedrod_head: "linear" or "hyper".
    """
    hyper = fedrod_head == "hyper"

    def init(key, graph):
        w = model.init(key)
        if not hyper:
            return w
        zeros = jax.tree.map(lambda leaf: jnp.zeros((classes, *leaf.shape)), w["head"])
        return w | {"personal": zeros}

    def personal_head(personal, counts):
        return tree.mean(personal, counts) if hyper else personal

    def local(w, memory, data, key):
        counts = class_counts(data.train, classes)
        prior = jnp.log(counts)

        def logits_of_both(params, batch, key):
            features = model.body(params["body"], batch.x)
            generic = model.head(params["head"], features)
            constant, features = jax.lax.stop_gradient((generic, features))
            head = personal_head(params["personal"], counts)
            return generic, constant + model.head(head, features)

        def both(logits, y):
            generic, personal = logits
            return cross_entropy(generic + prior[None], y) + cross_entropy(personal, y)

        task = model.task._replace(loss=both)
        with_both = dataclasses.replace(model, task=task, train_forward=logits_of_both)
        params = w if hyper else w | {"personal": memory}
        params, metrics = train(with_both.objective, params, data.train, key)
        if not hyper:
            memory = params.pop("personal")
        return memory, params, metrics

    def deploy(w, memory, data):
        return Predictor({"body": w["body"], "head": w["head"]})

    def personalize(w, memory, data, key):
        personal = w["personal"] if hyper else memory
        head = personal_head(personal, class_counts(data.train, classes))
        return deploy(w, memory, data)._replace(extra={"head": head})

    def predict(predictor, x):
        if not predictor.extra:  # of the message or an upload
            return model.apply(predictor.params, x)
        features = model.body(predictor.params["body"], x)
        return model.head(predictor.params["head"], features) + model.head(
            predictor.extra["head"], features
        )

    def enroll(w, key):
        return () if hyper else jax.tree.map(jnp.zeros_like, w["head"])

    return fedavg(model, train).replacing(
        init=init,
        local=local,
        predict=predict,
        enroll=enroll,
        deploy=deploy,
        personalize=personalize,
        needs=NEEDS,
    )


def class_counts(examples: Examples, classes: int) -> Array:
    """n_c of a client's examples, and ABSENT of a class without any: [classes]."""
    real = jnp.arange(examples.size) < examples.count
    rows = jax.nn.one_hot(examples.y, classes) * real[:, None].astype(jnp.float32)
    return jnp.maximum(jnp.sum(rows, axis=0), ABSENT)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """[B] for logits [B, classes] and labels [B]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
