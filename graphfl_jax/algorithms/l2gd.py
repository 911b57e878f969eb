"""L2GD: clients train alone, and at random times all models move towards their mean.

Hanzely, Richtarik. Federated Learning of a Mixture of Global and Local Models. 2020.
https://arxiv.org/abs/2002.05516

    min sum_i F_i(x_i) + lambda / 2 sum_i ||x_i - mean_j x_j||^2

    v_i = K_c steps of SGD on F_i, from x_i
    x_i <- (1 - a) v_i + a mean_j v_j    with the probability p, the same draw for all clients
    x_i <- v_i                           otherwise

The mean is over the clients of the round. P is x_i, and so is G. With p = 0 or a = 0, all
clients train alone. With p = 1, it is `gossip` with the share a, and `fedu` with mu = a / N, if
all clients are related and in every round; with a = 1 too, all models are the mean.

Departures:
  * In the paper, a step is either one gradient step of all clients, with the probability 1 - p,
    or a move to the mean. So a geometric number of gradient steps is between two moves. Here
    the number is K_c times a geometric one, and at least K_c.
  * a stands for the paper's alpha lambda / (n p), which its theory bounds by 1/2.
  * In the paper, all clients take part, and nothing is sent unless the models move. Here the
    traffic that is reported has a model in both directions in every round.
  * A new client begins with the mean of its related known clients, or where it has none of all
    of them, and trains alone in its rounds, as in `fedu`.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.fedu import mixing_method
from graphfl_jax.core import Algorithm, Array, ClientModel, Needs
from graphfl_jax.draws import draw_uniform
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train


def l2gd(
    model: ClientModel,
    train: Train,
    *,
    l2gd_probability: Annotated[
        Array, Real("Probability p that a round of L2GD moves models to their mean.", high=1.0)
    ] = 0.5,
    l2gd_share: Annotated[
        Array, Real("Share a of the way to the mean in such a round of L2GD.", high=1.0)
    ] = 0.5,
) -> Algorithm:
    """Builds L2GD. A message and an upload are one model each."""

    def mix(server, cohort, uploads, key):
        share = jnp.where(draw_uniform(key, ()) < l2gd_probability, l2gd_share, 0.0)
        mean = tree.mean(uploads, cohort.answers.astype(jnp.float32) / cohort.number)
        return jax.tree.map(lambda v, m: (1.0 - share) * v + share * m[None], uploads, mean)

    return mixing_method(model, train, mix, Needs())
