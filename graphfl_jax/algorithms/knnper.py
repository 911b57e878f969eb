"""kNN-Per: a model's probabilities mixed with those of the nearest examples of the client.

Marfoq, Neglia, Kameni, Vidal. Personalized Federated Learning through Local Memorization.
ICML 2022. https://arxiv.org/abs/2111.09360

With the features f of the model's body and the k training examples (x_j, y_j) of the client
that are nearest to x in them,

    p_knn(y | x) ~ sum_j exp(-||f(x) - f(x_j)||^2 / (F s)) 1[y_j = y],      F features
    p_i(y | x)   = lambda p_knn(y | x) + (1 - lambda) p_model(y | x)

The model is FedAvg's; `with_neighbours` adds this to any method that trains a classifier. G and
L are the method's own. P is argmax_y p_i(y | x). With lambda = 0, P is the model.

With ``algorithm.knnper_choices`` = n > 0, each client chooses its lambda among 0, 1/n, ..., 1
times ``hparams.knnper_lambda``: that with the best score on its validation examples, and among
equals the smallest.

Departures:
  * Probabilities are mixed. By default, the authors' code mixes probabilities with logits.
  * lambda is never chosen on test examples, as by the authors' script.
  * All training examples are in the store; the paper also limits their number.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Array, ClientModel, Needs, Params, Predictor
from graphfl_jax.evaluation import score_client
from graphfl_jax.examples import Examples
from graphfl_jax.settings import Integer, Part, Real
from graphfl_jax.trainers import Train

NEEDS = Needs(labels=True, head=True)
BATCH = 512  # examples of a client that its model computes at once


class Neighbours(NamedTuple):
    """How neighbours change a prediction."""

    number: int  # k
    choices: int  # n
    weight: Array  # lambda
    scale: Array  # s


class Store(NamedTuple):
    """What a predictor at P holds beside the parameters of the client model."""

    extra: Any  # of the method's own predictor
    examples: Examples  # the client's training examples
    weight: Array  # lambda


def neighbours(
    *,
    knnper_k: Annotated[int, Integer("Nearest examples k of kNN-Per.")] = 10,
    knnper_choices: Annotated[
        int,
        Integer(
            "Equal steps from 0 to kNN-Per's lambda; each client chooses one of these values "
            "on its validation examples; 0: all clients use lambda.",
            low=0,
        ),
    ] = 0,
    knnper_lambda: Annotated[
        Array, Real("Share lambda of the neighbours in kNN-Per; 0 is FedAvg.", high=1.0)
    ] = 0.5,
    knnper_scale: Annotated[
        Array, Real("Scale s of squared distances per feature in kNN-Per.", low=1e-6)
    ] = 1.0,
) -> Neighbours:
    """Assembles `Neighbours`."""
    return Neighbours(knnper_k, knnper_choices, knnper_lambda, knnper_scale)


@facts(needs=NEEDS)
def knnper(
    model: ClientModel, train: Train, *, neighbours: Annotated[Neighbours, Part(neighbours)]
) -> Algorithm:
    """Builds kNN-Per over FedAvg."""
    return with_neighbours(fedavg(model, train), neighbours)


def with_neighbours(algorithm: Algorithm, neighbours: Neighbours) -> Algorithm:
    """A method whose predictor at P is mixed with the labels of nearest examples.

    Args:
      algorithm: the method; all clients have one architecture, and outputs are logits.
      neighbours: settings of the mixture.
    """
    client = algorithm.client
    model, own_predict = client.model, client.predict or client.model.predict

    def predict(predictor, x):
        """Logarithms of p_i at P; the method's own outputs elsewhere."""
        if not isinstance(predictor.extra, Store):
            return own_predict(predictor, x)
        store, params = predictor.extra, predictor.params
        outputs = own_predict(Predictor(params, store.extra), x)
        stored = features(model, params, store.examples)
        nearest = vote(
            model.body(params["body"], x),
            stored,
            store.examples.y,
            store.examples.count,
            outputs.shape[-1],
            neighbours.number,
            neighbours.scale,
        )
        mixed = store.weight * nearest + (1.0 - store.weight) * jax.nn.softmax(outputs)
        return jnp.log(jnp.maximum(mixed, jnp.finfo(mixed.dtype).tiny))

    def personalize(message, memory, data, key):
        if client.personalize is None:
            predictor = client.deploy(message, memory, data)
        else:
            predictor = client.personalize(message, memory, data, key)
        stored = predictor._replace(extra=Store(predictor.extra, data.train, neighbours.weight))
        if not neighbours.choices:
            return stored
        ready = stored._replace(params=model.recalibrate(stored.params, data.train))
        shares = jnp.linspace(0.0, 1.0, neighbours.choices + 1) * neighbours.weight

        def score_of(share):
            tried = ready._replace(extra=ready.extra._replace(weight=share))
            return score_client(lambda x: predict(tried, x), model.task.score, data.val, BATCH)

        best = shares[jnp.argmax(jax.lax.map(score_of, shares))]
        return stored._replace(extra=stored.extra._replace(weight=best))

    return algorithm.replacing(
        predict=predict,
        personalize=personalize,
        needs=algorithm.needs._replace(
            labels=True,
            head=True,
            held_out="val" if neighbours.choices else algorithm.needs.held_out,
        ),
    )


def features(model: ClientModel, params: Params, examples: Examples) -> Array:
    """Features [S, F] of all of a client's examples, BATCH at a time."""
    size = min(BATCH, examples.size)

    def of_batch(first):
        places = jnp.minimum(first + jnp.arange(size), examples.size - 1)
        return model.body(params["body"], examples.rows(places).x)

    batches = jax.lax.map(of_batch, jnp.arange(0, examples.size, size))
    return batches.reshape(-1, batches.shape[-1])[: examples.size]


def vote(
    queries: Array,
    stored: Array,
    labels: Array,
    count: Array,
    classes: int,
    number: int,
    scale: Array,
) -> Array:
    """p_knn of queries [B, F]: [B, classes].

    Args:
      queries: features.
      stored: features [S, F], of which the first `count` are real.
      labels: [S].
      count: [], at least 1.
      classes: number of classes.
      number: k; without as many examples, all have a vote.
      scale: s.
    """
    real = jnp.arange(len(stored)) < count
    # Padding may hold any value. Features near the origin lose fewer digits in the products.
    stored = jnp.where(real[:, None], stored, 0.0)
    centre = jnp.sum(stored, axis=0, keepdims=True) / count.astype(stored.dtype)
    queries, stored = queries - centre, stored - centre
    squares = (
        jnp.sum(jnp.square(queries), axis=1, keepdims=True)
        + jnp.sum(jnp.square(stored), axis=1)[None]
        - 2.0 * jnp.matmul(queries, stored.T, precision=jax.lax.Precision.HIGHEST)
    )
    near = jnp.where(real[None], -jnp.maximum(squares, 0.0), -jnp.inf)
    near, places = jax.lax.top_k(near, min(number, len(stored)))  # [B, k]
    votes = jax.nn.softmax(near / (queries.shape[1] * scale), axis=1)
    return jnp.einsum("bk,bkc->bc", votes, jax.nn.one_hot(labels[places], classes))
