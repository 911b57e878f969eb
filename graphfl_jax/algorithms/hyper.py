"""Federations whose server holds a hypernetwork: what pFedHN and Panacea share.

The server generates client i's parameters theta_i = decode(encode(psi, relations)_i; psi), the
cohort T trains them to theta~_i, and the server takes K_s steps on

    J(psi) = 1/|T| sum_{i in T} 1/2 ||theta~_i - theta_i(psi)||^2 + penalty(psi)

with the targets theta~_i held fixed, so that the residual shrinks from step to step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, ClientModel
from graphfl_jax.local import Train


class HyperNetwork(NamedTuple):
    """A generator of client models, as pure functions."""

    relate: Callable  # (graph) -> relations, what is kept of the graph; any tree
    init: Callable  # (key, num_clients) -> weights
    encode: Callable  # (weights, relations) -> codes [N, E]
    decode: Callable  # (weights, code [E]) -> the parameters of one client
    penalty: Callable  # (weights, codes [N, E], relations) -> scalar


class HyperServer(NamedTuple):
    """What the server of a hypernetwork knows."""

    weights: Any
    memory: Any  # of the optimiser
    relations: Any


def hyper_federation(
    model: ClientModel,
    train: Train,
    hyper: HyperNetwork,
    *,
    server_optimizer: optax.GradientTransformation,
    server_steps: int,
) -> Algorithm:
    """Builds the federation of one hypernetwork; clients remember nothing."""
    optimizer = optax.with_extra_args_support(server_optimizer)

    def init(key: Array, graph) -> HyperServer:
        weights = hyper.init(key, graph.nodes.shape[0])
        return HyperServer(weights, optimizer.init(weights), hyper.relate(graph))

    def download(server, i):
        codes = hyper.encode(server.weights, server.relations)
        return hyper.decode(server.weights, codes[i])

    def local(theta, client, examples, key):
        theta, metrics = train(model.objective, theta, examples, key)
        return client, theta, metrics

    def aggregate(server, cohort, uploads, key):
        def objective(weights):
            codes = hyper.encode(weights, server.relations)
            sent = jax.vmap(hyper.decode, (None, 0))(weights, codes[cohort.ids])
            gap = 0.5 * tree.sq_dist(uploads, sent) / jnp.float32(cohort.ids.shape[0])
            return gap + hyper.penalty(weights, codes, server.relations), gap

        def step(carry, _):
            weights, memory = carry
            (_, gap), gradient = jax.value_and_grad(objective, has_aux=True)(weights)
            # Of the gap the least value is known, 0, as an optimiser may ask of a value.
            updates, memory = optimizer.update(gradient, memory, weights, value=gap)
            return (optax.apply_updates(weights, updates), memory), None

        start = (server.weights, server.memory)
        (weights, memory), _ = jax.lax.scan(step, start, length=server_steps)
        return HyperServer(weights, memory, server.relations)

    return Algorithm(init, download, local, aggregate, model.apply)
