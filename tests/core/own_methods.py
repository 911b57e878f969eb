"""Methods as users write them: published ones that the package does not have.

Each uses what others do not: a frozen part (FedBABU), a step function (APFL), the last tensors
(FedALA), normalisation layers (FedBN), and a cohort that the server draws along the relations
(gossip). They are simplified, and stand for their kinds.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import parts, tree
from graphfl_jax.algorithms.fedavg import averaging_server
from graphfl_jax.core import Algorithm, Array, Client, Needs, Predictor, Server
from graphfl_jax.data import relations
from graphfl_jax.optimizers import Optimizer
from graphfl_jax.settings import Integer, Real
from graphfl_jax.trainers import Train, sgd_trainer, train_steps

ClientOptimizer = Annotated[
    optax.GradientTransformation, Optimizer("client", meaning="Learning rate of the clients.")
]


def keeping(model, train, rule) -> Algorithm:
    """FedAvg of the parameters outside of a part; the part stays with its client.

    Server state, message and upload are the shared parameters; the memory has the part.
    """

    def local(shared, personal, data, key):
        params, metrics = train(model.objective, parts.merge(personal, shared), data.train, key)
        personal, shared = parts.split(params, rule)
        return personal, shared, metrics

    client = Client(
        model,
        local,
        enroll=lambda shared, key: parts.split(model.init(key), rule)[0],
        deploy=lambda shared, personal, data: Predictor(parts.merge(personal, shared)),
    )
    return Algorithm(averaging_server(model), (client,), averages=True).replacing(
        init=lambda key, graph: parts.split(model.init(key), rule)[1]
    )


def fedbn(model, train: Train) -> Algorithm:
    """FedBN: normalisation layers stay with their clients."""
    return keeping(model, train, parts.normalisation)


def fedbabu(
    model, *, client_optimizer: ClientOptimizer, local_steps: int, batch_size: int
) -> Algorithm:
    """FedBABU: clients train the body; all have one random head, which nothing trains."""
    frozen = parts.optimizer_of_parts(parts.head, optax.set_to_zero(), client_optimizer)
    train = sgd_trainer(frozen, steps=local_steps, batch_size=batch_size)

    def local(w, memory, data, key):
        w, metrics = train(model.objective, w, data.train, key)
        return memory, w, metrics

    return Algorithm(
        averaging_server(model), (Client(model, local),), averages=True, needs=Needs(head=True)
    )


class Mixed(NamedTuple):
    """The memory of a client of APFL."""

    personal: Any  # v_i
    share: Array  # alpha_i


def apfl(
    model,
    *,
    client_lr: Annotated[Array, Real("Learning rate of w_i and v_i.")] = 0.1,
    apfl_lr: Annotated[Array, Real("Learning rate of APFL's share alpha_i.")] = 0.1,
    local_steps: int,
    batch_size: int,
) -> Algorithm:
    """APFL: a step of w_i, of v_i and of alpha_i on each batch.

    w_i <- w_i - eta grad F(w_i),  m = alpha v_i + (1 - alpha) w_i
    v_i <- v_i - eta alpha grad F(m),  alpha <- clip(alpha - rate <grad F(m), v_i - w_i>, 0, 1)
    """

    def mixed(share, v, w):
        return jax.tree.map(lambda a, b: share * a + (1.0 - share) * b, v, w)

    def step(carry, batch, key):
        w, v, share = carry
        loss, gradient = jax.value_and_grad(model.objective)(w, batch, key)
        at_mean = jax.grad(model.objective)(mixed(share, v, w), batch, key)
        slope = sum(
            jnp.sum(g * (a - b))
            for g, a, b in zip(*map(jax.tree.leaves, (at_mean, v, w)), strict=True)
        )
        w = jax.tree.map(lambda p, g: p - client_lr * g, w, gradient)
        v = jax.tree.map(lambda p, g: p - client_lr * share * g, v, at_mean)
        return (w, v, jnp.clip(share - apfl_lr * slope, 0.0, 1.0)), loss

    def local(w, memory, data, key):
        (w, *mixture), metrics = train_steps(
            step, (w, *memory), data.train, key, steps=local_steps, batch_size=batch_size
        )
        return Mixed(*mixture), w, metrics

    client = Client(
        model,
        local,
        enroll=lambda w, key: Mixed(w, jnp.float32(0.5)),
        personalize=lambda w, memory, data, key: Predictor(
            mixed(memory.share, memory.personal, w)
        ),
    )
    return Algorithm(averaging_server(model), (client,), averages=True)


def fedala(
    model,
    train: Train,
    *,
    local_steps: int,
    batch_size: int,
    fedala_eta: Annotated[Array, Real("Learning rate of FedALA's weights.")] = 1.0,
    fedala_tensors: Annotated[int, Integer("Last tensors that FedALA mixes.", low=0)] = 2,
) -> Algorithm:
    """FedALA: a client starts from its last model, moved elementwise towards the received one.

    m = theta_i + (w - theta_i) * W on the last tensors, and w elsewhere
    W <- clip(W - eta grad_m F_i * (w - theta_i), 0, 1)
    """
    rule = parts.last_tensors(fedala_tensors)

    def mixed(w, memory):
        theta, weights = memory
        personal, _ = parts.split(theta, rule)
        received, shared = parts.split(w, rule)
        start = jax.tree.map(lambda a, b, s: a + (b - a) * s, personal, received, weights)
        return parts.merge(start, shared)

    def project(gradient, weight):
        return jnp.clip(weight - fedala_eta * gradient, 0.0, 1.0) - weight

    fit = sgd_trainer(
        optax.stateless(lambda gradients, weights: jax.tree.map(project, gradients, weights)),
        steps=local_steps,
        batch_size=batch_size,
    )

    def fitted(w, memory, data, key):
        theta, weights = memory

        def objective(weights, batch, key):
            return model.objective(mixed(w, (theta, weights)), batch, key)

        return theta, fit(objective, weights, data.train, key)[0]

    def local(w, memory, data, key):
        key_weights, key_train = jax.random.split(key)
        memory = fitted(w, memory, data, key_weights)
        theta, metrics = train(model.objective, mixed(w, memory), data.train, key_train)
        return (theta, memory[1]), theta, metrics

    def enroll(w, key):
        return w, jax.tree.map(jnp.ones_like, parts.split(w, rule)[0])

    client = Client(
        model,
        local,
        enroll=enroll,
        untrained=lambda w, memory, data: mixed(w, memory),
        personalize=lambda w, memory, data, key: Predictor(
            mixed(w, fitted(w, memory, data, key))
        ),
    )
    return Algorithm(averaging_server(model), (client,), averages=True)


class Peers(NamedTuple):
    """The models of clients that have no server."""

    models: Any  # leaves [N, ...]
    related: Array  # [N, N]: 1 for neighbours and for a client itself


def gossip(model, train: Train) -> Algorithm:
    """Decentralised averaging: a client and its neighbours play a round.

    Each gets the models of all its neighbours, and trains their mean.
    """

    def neighbourhood(peers, i):
        row = peers.related[i]
        return jax.tree.map(
            lambda leaf: jnp.tensordot(row / jnp.sum(row), leaf, axes=1), peers.models
        )

    def init(key, graph):
        total = relations.num_clients(graph)
        related = jnp.minimum(relations.adjacency(graph) + jnp.eye(total), 1.0)
        first = model.init(key)
        models = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (total, *leaf.shape)), first)
        return Peers(models, related)

    def sample(peers, counts, size, key):
        key_first, key_order = jax.random.split(key)
        first = jax.random.randint(key_first, (), 0, len(counts))
        order = jax.random.uniform(key_order, (len(counts),)) - peers.related[first]
        order = order.at[first].set(-2.0)
        return jnp.sort(jnp.argsort(order)[:size]).astype(jnp.int32)

    def aggregate(peers, cohort, uploads, key):
        return peers._replace(models=tree.put(peers.models, cohort.ids, uploads))

    def admit(peers, new_clients, graph, key):
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), peers.models)
        total = relations.num_clients(graph)
        rows = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (len(new_clients), *leaf.shape)), mean
        )
        models = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), peers.models, rows)
        return Peers(models, jnp.minimum(relations.adjacency(graph) + jnp.eye(total), 1.0))

    def messages(graph):
        return jnp.sum(relations.adjacency(graph) > 0, axis=1)

    def local(w, memory, data, key):
        w, metrics = train(model.objective, w, data.train, key)
        return memory, w, metrics

    server = Server.of_one(
        init,
        neighbourhood,
        aggregate,
        admit=admit,
        adapt_new_clients=aggregate,
        sample=sample,
        messages=messages,
    )
    return Algorithm(server, (Client(model, local),), needs=Needs(relations=True))


METHODS = {
    "fedbn": fedbn,
    "fedbabu": fedbabu,
    "apfl": apfl,
    "fedala": fedala,
    "gossip": gossip,
}
