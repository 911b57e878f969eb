"""FedAMP: each client is pulled to a mixture of all models, mostly of those near its own.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. Personalized Cross-Silo Federated Learning on Non-IID
Data. AAAI 2021. https://arxiv.org/abs/2007.03797

    u_i  = xi_ii w_i + sum_{j != i} xi_ij w_j,      xi_ii = 1 - sum_{j != i} xi_ij
    xi_ij = alpha A'(||w_i - w_j||^2),              A(x) = 1 - exp(-x / sigma)
    w_i <- argmin_w F_i(w) + lambda / (2 alpha) ||w - u_i||^2

HeurFedAMP (`heurfedamp`) keeps a fixed share xi_ii of the own model, and

    xi_ij = (1 - xi_ii) softmax_{j != i}(sigma cos(w_i, w_j))

P is w_i after local training, L the same after one more round, and G is u_i. A client that was
not sampled takes part in the mixtures with its last w_i.

Departures:
  * The argmin is K_c steps of SGD from u_i, where the authors' method only requires a solution.
  * sigma is in units of the median of the positive squared distances between two models: in
    the units of the weights, exp(-x / sigma) is 0 for networks, and FedAMP is local training.
  * ``fedamp_share`` is alpha A'(0) (N - 1), the share of a model that the others would have if
    all were equal. At most 1, it keeps xi_ii from becoming negative.
  * ``fedamp_lambda`` is lambda / alpha. In a common public implementation, this term has no
    gradient and clients never receive u_i, which is local training.
  * A new client starts from the mean of the known clients' models. Its own first model then
    takes part in its mixture; the mixtures of the known clients do not change.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Params, Predictor, Server
from graphfl_jax.data import relations
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train

Pull = Annotated[
    Array, Real("Weight lambda / alpha of FedAMP's distance to the mixture; 0 is no such term.")
]


class MixingServer(NamedTuple):
    """The state of a server that mixes models."""

    uploads: Params  # the last model w_i of every client, or more of it, [N, ...]
    mixing: Array  # xi, [N, N]; its rows sum to one
    first: Any = ()  # the first upload, if the mixing reads it
    # [N], the number of examples of each client, 0 before its first upload, if it is read
    sizes: Any = ()


def fedamp(
    model: ClientModel,
    train: Train,
    *,
    num_clients: int,
    fedamp_lambda: Pull = 0.1,
    fedamp_share: Annotated[
        Array,
        Real(
            "Weight of the others in FedAMP's mixture of equal models; 0 mixes none.", high=1.0
        ),
    ] = 0.5,
    fedamp_sigma: Annotated[
        Array, Real("FedAMP's sigma, in median squared distances of two models.", low=1e-6)
    ] = 1.0,
) -> Algorithm:
    """Builds FedAMP."""

    def mixing(server):
        others = attention(server.uploads, fedamp_share, fedamp_sigma)
        diagonal = 1.0 - jnp.sum(others, axis=1)  # xi_ii
        return others + jnp.diag(diagonal)

    pull = _pull(fedamp_lambda)
    return mixing_method("fedamp", model, train, num_clients, mixing, pull)


def heurfedamp(
    model: ClientModel,
    train: Train,
    *,
    num_clients: int,
    fedamp_lambda: Pull = 0.1,
    heurfedamp_own: Annotated[
        Array, Real("Share xi_ii of the own model in HeurFedAMP's mixture.", high=1.0)
    ] = 0.3,
    heurfedamp_sigma: Annotated[
        Array, Real("Factor sigma of HeurFedAMP's cosines; 0 mixes all others equally.")
    ] = 10.0,
) -> Algorithm:
    """Builds HeurFedAMP."""

    def mixing(server):
        rows, _ = tree.as_matrix(server.uploads)  # [N, d]
        if len(rows) == 1:
            return jnp.ones((1, 1))
        norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / jnp.maximum(norms, jnp.finfo(rows.dtype).tiny)
        diagonal = jnp.eye(len(rows))
        cosines = jnp.where(diagonal > 0, -jnp.inf, heurfedamp_sigma * (rows @ rows.T))
        others = jax.nn.softmax(cosines, axis=1)
        return heurfedamp_own * diagonal + (1.0 - heurfedamp_own) * others

    pull = _pull(fedamp_lambda)
    return mixing_method("heurfedamp", model, train, num_clients, mixing, pull)


def _pull(weight):
    """(w, u) -> weight / 2 ||w - u||^2."""
    return lambda w, u: 0.5 * weight * tree.sq_dist(w, u)


def attention(models: Params, share: Array, sigma: Array) -> Array:
    """xi of FedAMP between different models [N, ...]: [N, N] with a diagonal of zeros."""
    rows, _ = tree.as_matrix(models)
    squares = tree.sq_dists(rows)  # [N, N]
    scale = jnp.nanmedian(jnp.where(squares > 0, squares, jnp.nan))
    # ||w_i - w_j||^2 in units of their median
    relative = squares / jnp.where(scale > 0, scale, 1.0)  # NaN > 0 is false: all are equal
    each = share / max(len(rows) - 1, 1)
    return each * jnp.exp(-relative / sigma) * (1.0 - jnp.eye(len(rows)))


def mixing_method(
    name: str,
    model: ClientModel,
    train: Train,
    num_clients: int,
    mixing: Callable[[MixingServer], Array],
    pull: Callable[[Params, Params], Array],
    *,
    remembers: tuple[str, ...] = (),
) -> Algorithm:
    """A method whose server sends each client a mixture u_i of all models.

    Args:
      model: of all clients.
      train: from u_i.
      pull: (w, u_i) -> what is added to the objective.

    The others are those of `mixing_server`.
    """

    def local(u, w, data, key):
        def near_u(w, batch, key):
            return model.objective(w, batch, key) + pull(w, u)

        w, metrics = train(near_u, u, data.train, key)
        return w, w, metrics

    server = mixing_server(name, num_clients, model.init, mixing, remembers=remembers)
    client = Client(
        model,
        local,
        enroll=lambda u, key: u,
        personalize=lambda u, w, data, key: Predictor(w),
    )
    return Algorithm(server, (client,))


def mixing_server(
    name: str,
    num_clients: int,
    first: Callable[[Array], Any],
    mixing: Callable[[MixingServer], Array],
    *,
    sent: Callable[[Any], Any] = lambda uploads: uploads,
    remembers: tuple[str, ...] = (),
) -> Server:
    """A server that sends each client a mixture of the last uploads of all.

    Args:
      name: of the method, for errors.
      num_clients: N.
      first: key -> what stands for the upload of a client before its first one.
      mixing: the server, whose `mixing` is not read -> the shares of the uploads, [N, N].
      sent: the uploads [N, ...] -> the part of them that is mixed and sent.
      remembers: the fields "first" and "sizes" of `MixingServer` that `mixing` reads.

    Raises:
      ValueError: there are too many clients for N x N numbers.
    """
    relations.check_number_of_pairs(num_clients, name)

    def mix(server):
        return server._replace(mixing=mixing(server))

    def init(key, graph):
        upload = first(key)
        uploads = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_clients), upload)
        could = {"first": upload, "sizes": jnp.zeros(num_clients)}
        return mix(MixingServer(uploads, (), **{field: could[field] for field in remembers}))

    def download(server, i):
        return tree.mean(sent(server.uploads), server.mixing[i])

    def learn(server, cohort, uploads):
        models = tree.put(server.uploads, cohort.ids, uploads)
        sizes = jax.tree.map(lambda n: n.at[cohort.ids].set(cohort.weights), server.sizes)
        return server._replace(uploads=models, sizes=sizes)

    def aggregate(server, cohort, uploads, key):
        return mix(learn(server, cohort, uploads))

    def admit(server, new_clients, graph, key):
        known, added = len(server.mixing), len(new_clients)
        mean = tree.mean(server.uploads, jnp.ones(known))
        uploads = jax.tree.map(
            lambda old, new: jnp.concatenate([old, jnp.stack([new] * added)]),
            server.uploads,
            mean,
        )
        mixed = jnp.eye(known + added).at[:known, :known].set(server.mixing)
        sizes = jax.tree.map(lambda n: jnp.pad(n, (0, added)), server.sizes)
        return server._replace(uploads=uploads, mixing=mixed, sizes=sizes)

    def adapt_new_clients(server, cohort, uploads, key):
        server = learn(server, cohort, uploads)
        rows = mixing(server)[cohort.ids]
        return server._replace(mixing=server.mixing.at[cohort.ids].set(rows))

    return Server.of_one(
        init,
        download,
        aggregate,
        admit=admit,
        adapt_new_clients=adapt_new_clients,
        allocation=lambda server: server.mixing,
    )
