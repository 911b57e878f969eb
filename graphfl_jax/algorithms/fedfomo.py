"""FedFomo: each client moves to those other models that have a lower loss on its validation.

Zhang, Sapra, Fidler, Yeung, Alvarez. Personalized Federated Learning with First Order Model
Optimization. ICLR 2021. https://arxiv.org/abs/2012.08565

Client i has a model theta_i, and receives the models of M others. With the mean loss V_i on
its validation examples,

    w_in     = max(0, V_i(theta_i) - V_i(theta_n)) / ||theta_n - theta_i||
    s_in     = w_in / sum_n w_in
    theta_i <- K_c steps of SGD on F_i, from theta_i + sum_n s_in (theta_n - theta_i)
    P_in    <- P_in + s_in

If no w_in is positive, client i trains alone. The server keeps the last model of each client,
and P, which starts at 0. Each of the M places of a message is, with probability epsilon, for a
model that is drawn at random; the others are for the clients n with the largest P_in.

P is theta_i after local training, L the same after one more round, and G is the mixture. An
evaluation takes the M models with the largest P_in.

Departures:
  * In the paper, the models n are compared with the one from which client i began its last
    round, and the one that it then trained is one of them. Here the others are compared with
    the trained one.
  * The probability epsilon is the same in all rounds.
  * P adds up the shares s_in and not the w_in, whose unit changes from round to round. Among
    equal P_in the draw is at random.
  * A fixed number of local steps. A client that was never sampled has its first model, and
    others may receive it.
  * A new client starts from the mean of the first models that it receives, those of known
    clients that are drawn at random. In its rounds, the known clients receive no model of it.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.knnper import BATCH
from graphfl_jax.algorithms.method import facts
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
from graphfl_jax.data import relations
from graphfl_jax.evaluation import score_client
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import Train

NEEDS = Needs(held_out="val")


class SelectingServer(NamedTuple):
    """The state of the server."""

    models: Params  # the last theta_i of every client, [N, ...]
    preferences: Array  # P, [N, N]
    # [N, N] bool, whether client i receives the model of client n; at most M in each row
    sent: Array


class Mixed(NamedTuple):
    """An upload."""

    model: Params  # theta_i
    shares: Array  # s_in of the M models that were received, [M]


@facts(needs=NEEDS)
def fedfomo(
    model: ClientModel,
    train: Train,
    *,
    num_clients: int,
    fedfomo_models: Annotated[
        int, Integer("Models M that FedFomo sends to a client; at most those of all others.")
    ] = 5,
    fedfomo_epsilon: Annotated[
        Array,
        Real("Probability that FedFomo sends a random model, not a preferred one.", high=1.0),
    ] = 0.3,
) -> Algorithm:
    """Builds FedFomo. A message is M models [M, ...]; the memory of a client is theta_i.

    Raises:
      ValueError: there is one client, or there are too many for N x N numbers.
    """
    relations.check_number_of_pairs(num_clients, "fedfomo")
    if num_clients < 2:
        raise ValueError(
            "algorithm.name='fedfomo' sends models of other clients, and there is one client; "
            "set --config.algorithm.name=local"
        )

    def size(rows):
        """M, for [N, N] rows; N is larger after new clients have joined."""
        return min(fedfomo_models, len(rows) - 1)

    def choose(preferences, key, explored=0):
        return select(preferences, size(preferences), explored, key)

    def received(sent, i):
        """The clients whose models client i receives, [M]. If they are fewer, then its last
        model takes the other places, which has no effect."""
        return jnp.nonzero(sent[i], size=size(sent), fill_value=i)[0]

    def init(key, graph):
        key_model, key_sent = jax.random.split(key)
        models = jax.tree.map(
            lambda leaf: jnp.stack([leaf] * num_clients), model.init(key_model)
        )
        preferences = jnp.zeros((num_clients, num_clients))
        return SelectingServer(models, preferences, choose(preferences, key_sent))

    def begin_round(server, key):
        key_number, key_sent = jax.random.split(key)
        places = jax.random.uniform(key_number, (len(server.sent), size(server.sent)))
        explored = jnp.sum(places < fedfomo_epsilon, axis=1, keepdims=True)
        return server._replace(sent=choose(server.preferences, key_sent, explored))

    def download(server, i):
        return tree.take(server.models, received(server.sent, i))

    def enroll(models, key):
        # If all are equal, it has the same bits.
        return jax.tree.map(lambda leaf: leaf[0] + jnp.mean(leaf - leaf[:1], axis=0), models)

    def mix(models, theta, data):
        def loss(params):
            ready = model.recalibrate(params, data.train)
            predict = lambda x: model.apply(ready, x)  # noqa: E731
            return score_client(predict, model.task.loss, data.val, BATCH)

        gain = loss(theta) - jax.lax.map(loss, models)
        far = jnp.sqrt(jax.vmap(tree.sq_dist, (0, None))(models, theta))
        better = (gain > 0) & (far > 0) & jnp.isfinite(gain)
        weights = jnp.where(better, gain / jnp.where(better, far, 1.0), 0.0)
        total = jnp.sum(weights)
        shares = weights / jnp.where(total > 0, total, 1.0)

        def move(theta, models):
            return theta + jnp.tensordot(shares, models - theta[None], axes=1)

        return Mixed(jax.tree.map(move, theta, models), shares)

    def local(models, theta, data, key):
        start, shares = mix(models, theta, data)
        theta, metrics = train(model.objective, start, data.train, key)
        return theta, Mixed(theta, shares), metrics

    def deploy(sent, theta, data):
        mixed = sent if isinstance(sent, Mixed) else mix(sent, theta, data)
        return Predictor(mixed.model)

    def learn(server, cohort, uploads):
        senders = jax.vmap(received, (None, 0))(server.sent, cohort.ids)  # [m, M]
        added = server.preferences.at[cohort.ids[:, None], senders].add(uploads.shares)
        models = tree.put(server.models, cohort.ids, uploads.model)
        return server._replace(models=models, preferences=added)

    def aggregate(server, cohort, uploads, key):
        server = learn(server, cohort, uploads)
        return server._replace(sent=choose(server.preferences, key))

    def admit(server, new_clients, graph, key):
        known, added = len(server.sent), len(new_clients)
        models = jax.tree.map(
            lambda leaf: jnp.concatenate([leaf, jnp.stack([jnp.mean(leaf, axis=0)] * added)]),
            server.models,
        )
        preferences = jnp.pad(server.preferences, (0, added))
        is_known = (jnp.arange(known + added) < known).astype(jnp.float32)
        known_first = jnp.broadcast_to(is_known[None], preferences.shape)
        drawn = select(known_first, min(size(preferences), known), 0, key)
        sent = drawn.at[:known].set(jnp.pad(server.sent, ((0, 0), (0, added))))
        return SelectingServer(models, preferences, sent)

    def adapt_new_clients(server, cohort, uploads, key):
        server = learn(server, cohort, uploads)
        rows = choose(server.preferences, key)[cohort.ids]
        return server._replace(sent=server.sent.at[cohort.ids].set(rows))

    server = Server.of_one(
        init,
        download,
        aggregate,
        begin_round=begin_round,
        admit=admit,
        adapt_new_clients=adapt_new_clients,
    )
    client = Client(
        model,
        local,
        enroll=enroll,
        deploy=deploy,
        untrained=lambda models, theta, data: mix(models, theta, data),
        personalize=lambda models, theta, data, key: Predictor(theta),
    )
    return Algorithm(server, (client,), needs=NEEDS)


def select(preferences: Array, number: int, explored: Array | int, key: Array) -> Array:
    """Whose models clients receive: `explored` random ones, and the preferred ones.

    Args:
      preferences: [N, N]; that for a client itself has no effect.
      number: M, below N.
      explored: at most M, for all or of each client, [N, 1] int32.

    Returns:
      Bool [N, N], with M in each row.
    """

    def places(order):  # of each client in its row
        return jnp.argsort(order, axis=1)

    itself = jnp.eye(len(preferences)) > 0
    draws = jnp.where(itself, 2.0, jax.random.uniform(key, preferences.shape))
    best_first = jnp.lexsort((draws, jnp.where(itself, jnp.inf, -preferences)), axis=1)
    preferred = places(best_first) < number - explored
    return places(jnp.argsort(jnp.where(preferred, -1.0, draws), axis=1)) < number
