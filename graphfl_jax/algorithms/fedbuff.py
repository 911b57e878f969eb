"""FedBuff: clients train asynchronously, and the server learns from a buffer of K uploads.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba. Federated Learning with Buffered
Asynchronous Aggregation. AISTATS 2022. https://arxiv.org/abs/2106.06639

    w <- w + eta_g / K sum_i s(tau_i) (w_i - w_(i)),      s(tau) = 1 / sqrt(1 + tau)

C clients (``algorithm.fedbuff_concurrency``) train at any time, each from the model w_(i) that
it received. When one has uploaded, another begins with the model of then. After K uploads
(``cohort_size``), the server takes a step. tau_i is the number of its steps since client i
received its model. How long clients take, and so who uploads when, is a matter of the clock
(see `graphfl_jax.wire.clock`). A round lasts from one step of the server to the next.

The server plans the K next uploads after each step: the events are played in the order of time.
The K clients are trained in the round, from the models that they had received; when they train
changes nothing.

Departures: a client that has uploaded begins again only after the next step of the server, so
that a buffer has no client twice. The time of an upload is that of all its numbers, also where
they are compressed.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax import tree
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Params, Server
from graphfl_jax.draws import draw_clients
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import Train
from graphfl_jax.wire.clock import Clock


class Training(NamedTuple):
    """The clients that train at some time; every leaf has a leading axis."""

    ids: Array  # [C] int32
    left: Array  # [C] float32, seconds until each uploads
    steps: Array  # [C] int32, steps of the server before each received its model
    models: Params  # these models, [C, ...]


class BufferedServer(NamedTuple):
    """The state of the server."""

    model: Params  # w
    steps: Array  # [] int32, that it has taken
    training: Training  # after the K next uploads
    uploads: Training  # the K next uploads in the order of `ids`; `left` is from the last step
    playing: Array  # [] bool, whether a round is being played


@facts(values={"clock.name": "devices"})
def fedbuff(
    model: ClientModel,
    train: Train,
    *,
    clock: Clock | None,
    num_clients: int,
    cohort_size: int,
    local_steps: int,
    fedbuff_concurrency: Annotated[
        int,
        Integer(
            "Clients C that train at the same time; 0: twice a cohort, or as many as are left.",
            low=0,
        ),
    ] = 0,
    server_lr: Annotated[Array, Real("Server step eta_g; 1 takes the mean.")] = 1.0,
) -> Algorithm:
    """Builds FedBuff. A message and an upload are one model each.

    Args:
      clock: how long clients take.
      num_clients: N.
      cohort_size: K.
      local_steps: of a client.

    Raises:
      ValueError: there is no clock, or there are fewer than C + K clients.
    """
    if clock is None:
        raise ValueError(
            "algorithm.name='fedbuff' needs to know how long clients take; set "
            "--config.clock.name=devices"
        )
    left = num_clients - cohort_size
    concurrency = fedbuff_concurrency or min(2 * cohort_size, left)
    if left < 1:
        raise ValueError(
            f"cohort_size={cohort_size} leaves none of {num_clients} clients that could train "
            f"while others upload; set --config.cohort_size={max(num_clients // 2, 1)} or less"
        )
    if concurrency > left:
        raise ValueError(
            f"algorithm.fedbuff_concurrency={concurrency} and cohort_size={cohort_size} "
            f"together are more than {num_clients} clients; set "
            f"--config.algorithm.fedbuff_concurrency={left}"
        )
    shapes = jax.eval_shape(model.init, jax.eval_shape(jax.random.key, 0))
    sent = 2.0 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))

    def begin(ids, w, steps):
        """Clients `ids` [n] that begin with a model."""
        seconds = clock.seconds(ids, jnp.full(len(ids), float(local_steps)), sent)
        models = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(ids)), w)
        return Training(ids, seconds, jnp.full(len(ids), steps), models)

    def plan(w, steps, training, key):
        """The K next uploads, and who trains after them."""

        def upload(carry, key):
            training, busy, before = carry
            place = jnp.argmin(training.left)
            done = tree.take(training, place)
            order = jax.random.uniform(key, (num_clients,)) + busy
            following = jnp.argmin(order).astype(jnp.int32)[None]
            begun = begin(following, w, steps)
            begun = begun._replace(left=begun.left + done.left)  # both from the last step
            training = tree.put(training, place[None], begun)
            return (training, busy.at[following].set(1.0), done.left), done

        busy = jnp.zeros(num_clients).at[training.ids].set(1.0)
        carry = (training, busy, jnp.float32(0.0))
        keys = jax.random.split(key, cohort_size)
        (training, _, last), uploads = jax.lax.scan(upload, carry, keys)
        training = training._replace(left=training.left - last)
        return training, tree.take(uploads, jnp.argsort(uploads.ids))

    def server_of(w, steps, training, key):
        return BufferedServer(w, steps, *plan(w, steps, training, key), jnp.bool_(False))

    def init(key, graph):
        key_model, key_clients, key_plan = jax.random.split(key, 3)
        w, ids = (
            model.init(key_model),
            draw_clients(key_clients, num_clients, concurrency),
        )
        return server_of(w, jnp.int32(0), begin(ids, w, jnp.int32(0)), key_plan)

    def download(server, i):
        """The newest model; while a round is played, the one that the client had received."""
        place = jnp.argmax(server.uploads.ids == i)
        received = tree.take(server.uploads.models, place)
        return tree.where(server.playing, received, server.model)

    def local(w, memory, data, key):
        w, metrics = train(model.objective, w, data.train, key)
        return memory, w, metrics

    def aggregate(server, cohort, uploads, key):
        stale = (server.steps - server.uploads.steps).astype(jnp.float32)
        shares = server_lr / cohort_size * jax.lax.rsqrt(1.0 + stale)

        def step(w, sent, trained):
            return w + jnp.tensordot(shares, trained - sent, axes=1)

        w = jax.tree.map(step, server.model, server.uploads.models, uploads)
        return server_of(w, server.steps + 1, server.training, key)

    def begin_round(server: BufferedServer, key: Array) -> Any:
        return server._replace(playing=jnp.bool_(True))

    server = Server.of_one(
        init,
        download,
        aggregate,
        begin_round=begin_round,
        sample=lambda server, counts, size, key: server.uploads.ids,
        seconds=lambda server: jnp.max(server.uploads.left),
    )
    return Algorithm(server, (Client(model, local),))
