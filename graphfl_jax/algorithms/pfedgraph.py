"""pFedGraph: each client gets a mixture of models whose shares follow from similar training.

Ye, Ni, Wu, Chen, Wang. Personalized Federated Learning with Inferred Collaboration Graphs. ICML
2023. https://proceedings.mlr.press/v202/ye23b.html

    W_i = argmin_w sum_j w_j d_ij + alpha sum_j (w_j - p_j)^2,    w_j >= 0, sum_j w_j = 1
    d_ij = -cos(Delta_i, Delta_j),   Delta_i = theta_i - w_0,     p_j = n_j / sum_k n_k
    u_i = sum_j W_ij theta_j
    theta_i <- K_c steps of SGD on F_i(theta) - lambda cos(theta, u_i), from u_i

w_0 is the first model. W_i is the Euclidean projection of p - d_i / (2 alpha) onto the simplex,
which has a closed form. With a large alpha W_i is p, and with a small one each client is alone.

P is theta_i after local training, L the same after one more round, and G is u_i.

Departures:
  * A client that was not sampled takes part in the mixtures with its last theta_i. One that was
    never sampled has no share in them, and gets the mean with the shares p.
  * In the authors' code, lambda has the other sign, which pushes theta_i away from u_i, and
    the product with the mixture of models of norm 1 is in the place of its cosine. It has no
    such term in the first round. Cosines above 0.9 are 1, and only models of a round are mixed.
    Its quadratic program is solved by a general solver.
  * A fixed number of local steps. Scores are those of the last round, and not those of the
    round that is best on validation.
  * A new client starts from the mean of the known clients' models, as in `fedamp`.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.algorithms.cfl import cosines
from graphfl_jax.algorithms.fedamp import mixing_method
from graphfl_jax.core import Algorithm, Array, ClientModel
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train


def pfedgraph(
    model: ClientModel,
    train: Train,
    *,
    num_clients: int,
    pfedgraph_alpha: Annotated[
        Array,
        Real("Weight alpha of pFedGraph's distance to the shares of FedAvg.", low=1e-6),
    ] = 0.8,
    pfedgraph_lambda: Annotated[
        Array, Real("Weight lambda of the cosine with the mixture in pFedGraph; 0 has none.")
    ] = 0.01,
) -> Algorithm:
    """Builds pFedGraph."""

    def mixing(server):
        first = tree.as_matrix(jax.tree.map(lambda leaf: leaf[None], server.first))[0]
        moved = tree.as_matrix(server.uploads)[0] - first  # Delta, [N, d]
        shares = server.sizes / jnp.maximum(jnp.sum(server.sizes), 1.0)
        points = shares[None] + cosines(moved, moved) / (2.0 * pfedgraph_alpha)
        return project(points, server.sizes > 0)

    def pull(w, u):
        squares = optax.tree_utils.tree_vdot(w, w) * optax.tree_utils.tree_vdot(u, u)
        tiny = jnp.finfo(squares.dtype).tiny
        cosine = optax.tree_utils.tree_vdot(w, u) * jax.lax.rsqrt(jnp.maximum(squares, tiny))
        return -pfedgraph_lambda * cosine

    remembers = ("first", "sizes")
    return mixing_method(
        "pfedgraph", model, train, num_clients, mixing, pull, remembers=remembers
    )


def project(points: Array, chosen: Array) -> Array:
    """The nearest point of the simplex to each row: [N, N], rows that sum to one.

    Args:
      points: [N, N].
      chosen: bool [N]; the others are 0. If none is, all are.
    """
    # The projection is the same if the entries of a row change by the same number, and those
    # that are smaller than the largest by 1 or more are 0 in it.
    largest = jnp.max(jnp.where(chosen[None], points, -jnp.inf), axis=1, keepdims=True)
    points = jnp.where(chosen[None], points - largest, -2.0)
    with jax.numpy_dtype_promotion("standard"):  # the strict one refuses Optax's counts
        return jax.vmap(optax.projections.projection_simplex)(points)
