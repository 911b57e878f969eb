"""Fed-RoD: a generic head trained with a balanced loss, and a personal head on top of it.

Chen, Chao. On Bridging Generic and Personalized Federated Learning for Image Classification.
ICLR 2022. https://arxiv.org/abs/2107.00778

Client i has n_ic examples of class c. With features f of the body, the logits of the generic
head g and those of the personal head p_i,

    body, g <- steps of SGD on CE(g(f(x)) + log n_ic, y)      (balanced softmax)
    p_i     <- steps of SGD on CE(g(f(x)) + p_i(f(x)), y), where body and g are constants

The server averages body and g, weighted by examples. G and L predict with g(f(x)), and P with
g(f(x)) + p_i(f(x)).

Departures:
  * Linear personal heads only. The paper also generates them from the client's shares of
    classes by a hypernetwork.
  * Personal heads start at 0, so that a client that was never sampled predicts as G at P. In a
    round, one step on the sum of both losses changes all parameters, which is the same as two
    steps with gradients from the same batch. Optimisers that combine all parameters, such as
    one that clips the gradient, see both.
  * Of a class without examples, log n_ic is that of ABSENT examples, which is finite.
  * Public implementations keep the generic head at the client, or predict with p_i alone.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.core import Algorithm, Array, ClientModel, Needs, Predictor
from graphfl_jax.examples import Examples
from graphfl_jax.trainers import Train

ABSENT = 1e-12


def fedrod(model: ClientModel, train: Train, *, classes: int) -> Algorithm:
    """Builds Fed-RoD. The memory of a client is its personal head.

    Args:
      model: its head gives one logit per class.
      train: trains body and both heads.
      classes: number of classes.
    """

    def logits_of_both(params, batch, key):
        features = model.body(params["body"], batch.x)
        generic = model.head(params["head"], features)
        constant, features = jax.lax.stop_gradient((generic, features))
        return generic, constant + model.head(params["personal"], features)

    def local(w, personal, data, key):
        prior = log_counts(data.train, classes)

        def both(logits, y):
            generic, own = logits
            return cross_entropy(generic + prior[None], y) + cross_entropy(own, y)

        task = model.task._replace(loss=both)
        with_both = dataclasses.replace(model, task=task, train_forward=logits_of_both)
        params, metrics = train(
            with_both.objective, w | {"personal": personal}, data.train, key
        )
        return params.pop("personal"), params, metrics

    def predict(predictor, x):
        if not predictor.extra:  # of the message or an upload
            return model.apply(predictor.params, x)
        features = model.body(predictor.params["body"], x)
        return model.head(predictor.params["head"], features) + model.head(
            predictor.extra["head"], features
        )

    return fedavg(model, train).replacing(
        local=local,
        predict=predict,
        enroll=lambda w, key: jax.tree.map(jnp.zeros_like, w["head"]),
        personalize=lambda w, personal, data, key: Predictor(w, {"head": personal}),
        needs=Needs(labels=True, parts=True),
    )


def log_counts(examples: Examples, classes: int) -> Array:
    """log n_c of a client's examples: [classes]."""
    real = jnp.arange(examples.size) < examples.count
    rows = jax.nn.one_hot(examples.y, classes) * real[:, None].astype(jnp.float32)
    return jnp.log(jnp.maximum(jnp.sum(rows, axis=0), ABSENT))


def cross_entropy(logits: Array, labels: Array) -> Array:
    """[B] for logits [B, classes] and labels [B]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
