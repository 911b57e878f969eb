"""MOON: features are pulled to those of the server's model, away from those of the last one.

Li, He, Song. Model-Contrastive Federated Learning. CVPR 2021. https://arxiv.org/abs/2103.16257

With the features z of the body of w_i, z_g of the server's w, and z_p of the client's last
trained model, which its last round uploaded,

    l_i = -log(e^{cos(z, z_g) / tau} / (e^{cos(z, z_g) / tau} + e^{cos(z, z_p) / tau}))
    w_i = K_c steps of SGD on F_i(w_i) + mu mean l_i, from w
    w  <- sum_i n_i w_i / sum_i n_i

G and P are w, L is w_i. In the first round of a client z_p = z_g, so that l_i has no gradient.

Departures: a fixed number of local steps, not epochs. z are the features of the client model's
body; the authors train two further layers of a projection, and compute the outputs from their
features. A cosine with features that are all 0 is 0. If a batch has fewer examples than others,
those are repeated in the statistics of batch normalisation.
"""

import dataclasses
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.fedavg import fedavg
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Array, ClientModel, Needs, Params
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train

SMALLEST_SQUARE = 1e-16  # of features; shorter ones count as longer
NEEDS = Needs(parts=True, head=True)


class Last(NamedTuple):
    """The memory of a client."""

    model: Params  # which it has last trained
    trained: Array  # [] bool, whether there is one; if not, `model` is no such model


@facts(needs=NEEDS)
def moon(
    model: ClientModel,
    train: Train,
    *,
    moon_mu: Annotated[
        Array, Real("Weight mu of MOON's contrast between features; 0 is FedAvg.")
    ] = 1.0,
    moon_tau: Annotated[
        Array, Real("Temperature tau of MOON's contrast between features.", low=1e-3)
    ] = 0.5,
) -> Algorithm:
    """Builds MOON. Message and upload are a model, and the memory of a client is a `Last`."""

    def local(w, memory, data, key):
        last = tree.where(memory.trained, memory.model, w)

        def outputs_and_contrast(params, batch, key):
            z, z_g, z_p = (model.body(held["body"], batch.x) for held in (params, w, last))
            further = cosine(z, z_p) - cosine(z, z_g)
            return model.head(params["head"], z), jax.nn.softplus(further / moon_tau)

        def with_contrast(outputs, y):
            outputs, contrast = outputs
            return model.task.loss(outputs, y) + moon_mu * contrast

        contrasting = dataclasses.replace(
            model,
            task=model.task._replace(loss=with_contrast),
            train_forward=outputs_and_contrast,
        )
        w_i, metrics = train(contrasting.objective, w, data.train, key)
        return Last(w_i, jnp.bool_(True)), w_i, metrics

    return fedavg(model, train).replacing(
        local=local, enroll=lambda w, key: Last(w, jnp.bool_(False)), needs=NEEDS
    )


def cosine(a: Array, b: Array) -> Array:
    """The cosines of the angles between rows of features [B, F]: [B]."""

    def norm(rows):
        return jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(rows), axis=-1), SMALLEST_SQUARE))

    return jnp.sum(a * b, axis=-1) / (norm(a) * norm(b))
