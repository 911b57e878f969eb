"""Federations whose server holds a hypernetwork: what pFedHN and Panacea share.

The server generates client i's parameters theta_i = decode(encode(psi, relations)_i; psi), the
cohort T trains them to theta~_i, and the server takes K_s steps on

    J(psi) = 1/|T| sum_{i in T} 1/2 ||theta~_i - theta_i(psi)||^2 + penalty(psi)

with the targets theta~_i held fixed, so that the residual shrinks from step to step. What a
network leaves out at random, in the manner of dropout, is left out of a whole round: of what is
sent and of the steps towards what comes back. Models are evaluated with everything in place.

A newcomer is admitted with an initial code in which nothing is trained, by ``novel.code``:

    random      drawn as all codes were at the start
    zero        0
    mean        the mean of all known clients' codes
    neighbours  the mean of its known neighbours' codes; of all where it has none
    neighbour   the code of one known neighbour, drawn; of anyone known where it has none

and adapts by K_s steps on sum_i 1/2 ||theta~_i - theta_i||^2 over the newcomers, in which its
code moves and the hypernetwork and the known clients' codes do not.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, ClientModel
from graphfl_jax.data import relations
from graphfl_jax.trainers import Train

CODES = ("random", "zero", "mean", "neighbours", "neighbour")


def _no_mask(relations, key):
    return ()


class HyperNetwork(NamedTuple):
    """A generator of client models, as pure functions."""

    relate: Callable  # (graph) -> relations, what is kept of the graph; any tree
    init: Callable  # (key, num_clients) -> weights, with initial codes under "codes" [N, E0]
    encode: Callable  # (weights, relations, mask) -> codes [N, E]
    decode: Callable  # (weights, code [E]) -> the parameters of one client
    penalty: Callable  # (weights, codes [N, E], relations) -> scalar
    mask: Callable = _no_mask  # (relations, key) -> what a round leaves out; () is nothing


class HyperServer(NamedTuple):
    """What the server of a hypernetwork knows."""

    weights: Any
    memory: Any  # of the optimiser
    relations: Any
    mask: Any = ()  # what the round being played leaves out


def hyper_federation(
    model: ClientModel,
    train: Train,
    hyper: HyperNetwork,
    *,
    server_optimizer: optax.GradientTransformation,
    server_steps: int,
    novel_optimizer: optax.GradientTransformation,
    novel_code: str,
) -> Algorithm:
    """Builds the federation of one hypernetwork; clients remember nothing.

    Args:
      model: generated whole.
      train: local trainer.
      hyper: the generator.
      server_optimizer: of its weights.
      server_steps: K_s.
      novel_optimizer: of newcomers' codes when they adapt.
      novel_code: one of `CODES`, where newcomers' codes begin.

    Raises:
      ValueError: an unknown novel_code.
    """
    if novel_code not in CODES:
        raise ValueError(
            f"novel.code={novel_code!r} is unknown; choose from {', '.join(CODES)}"
        )
    optimizer = optax.with_extra_args_support(server_optimizer)
    novel_optimizer = optax.with_extra_args_support(novel_optimizer)

    def init(key: Array, graph) -> HyperServer:
        weights = hyper.init(key, graph.nodes.shape[0])
        return HyperServer(weights, optimizer.init(weights), hyper.relate(graph))

    def prepare(server, key):
        return server._replace(mask=hyper.mask(server.relations, key))

    def download(server, i):
        codes = hyper.encode(server.weights, server.relations, server.mask)
        return hyper.decode(server.weights, codes[i])

    def local(theta, client, examples, key):
        theta, metrics = train(model.objective, theta, examples, key)
        return client, theta, metrics

    def aggregate(server, cohort, uploads, key):
        def objective(weights):
            codes = hyper.encode(weights, server.relations, server.mask)
            sent = jax.vmap(hyper.decode, (None, 0))(weights, codes[cohort.ids])
            gap = 0.5 * tree.sq_dist(uploads, sent) / jnp.float32(cohort.ids.shape[0])
            return gap + hyper.penalty(weights, codes, server.relations), gap

        start = (server.weights, server.memory)
        weights, memory = _descend(objective, start, optimizer, server_steps)
        return HyperServer(weights, memory, server.relations)

    def admit(server, newcomers, graph, key):
        codes = server.weights["codes"]
        added = (relations.num_clients(graph) - len(codes), codes.shape[1])
        codes = jnp.concatenate([codes, jax.random.normal(key, added)])
        if novel_code != "random":
            start = _initial_codes(codes, newcomers, graph, novel_code, key)
            codes = codes.at[newcomers].set(start)
        # From here on only the newcomers' codes are optimised.
        memory = novel_optimizer.init(codes[newcomers])
        return HyperServer(server.weights | {"codes": codes}, memory, hyper.relate(graph))

    def adapt(server, cohort, uploads, key):
        def weights_with(own):
            codes = server.weights["codes"].at[cohort.ids].set(own)
            return server.weights | {"codes": codes}

        def objective(own):
            weights = weights_with(own)
            codes = hyper.encode(weights, server.relations, ())[cohort.ids]
            sent = jax.vmap(hyper.decode, (None, 0))(weights, codes)
            gap = 0.5 * tree.sq_dist(uploads, sent)
            return gap, gap

        start = (server.weights["codes"][cohort.ids], server.memory)
        own, memory = _descend(objective, start, novel_optimizer, server_steps)
        return HyperServer(weights_with(own), memory, server.relations)

    return Algorithm(
        init=init,
        prepare=prepare,
        download=download,
        local=local,
        aggregate=aggregate,
        predict=model.apply,
        admit=admit,
        adapt=adapt,
    )


def _descend(objective, start, optimizer, steps):
    """Steps from (parameters, memory) on ``objective(parameters) -> (value, gap)``."""

    def step(carry, _):
        parameters, memory = carry
        (_, gap), gradient = jax.value_and_grad(objective, has_aux=True)(parameters)
        # Of the gap the least value is known, 0, as an optimiser may ask of a value.
        updates, memory = optimizer.update(gradient, memory, parameters, value=gap)
        return (optax.apply_updates(parameters, updates), memory), None

    end, _ = jax.lax.scan(step, start, length=steps)
    return end


def _initial_codes(codes, newcomers, graph, scheme, key):
    """Codes [m, E0] of newcomers by any scheme but "random", from codes [N, E0]."""
    if scheme == "zero":
        return jnp.zeros_like(codes[newcomers])
    is_known = jnp.ones((1, len(codes))).at[:, newcomers].set(0.0)
    near = jnp.broadcast_to(is_known, (len(newcomers), len(codes)))
    if scheme != "mean":
        related = relations.adjacency(graph)[newcomers] * is_known
        near = jnp.where(jnp.sum(related, axis=1, keepdims=True) > 0, related, near)
    if scheme == "neighbour":
        return codes[jax.random.categorical(key, jnp.log(near), axis=1)]
    return near @ codes / jnp.sum(near, axis=1, keepdims=True)
