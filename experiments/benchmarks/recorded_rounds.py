"""Rounds as JAX plays them, in arrays for another library: draws, losses, weights."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from ml_collections import ConfigDict

from experiments.benchmarks.timing import Rounds, compile_rounds
from graphfl_jax.algorithms.hyper import HyperServer
from graphfl_jax.build import Experiment
from graphfl_jax.core import Algorithm
from graphfl_jax.trainers import draw_indices


class Draws(NamedTuple):
    """What a round leaves to chance, in arrays."""

    ids: Any  # [M] the cohort, ascending
    indices: Any  # [M, K_c, B] examples of each client's steps
    forgotten: Any  # [N, 1] bool, whose code the round takes from its neighbours


class Round(NamedTuple):
    """A round as JAX played it."""

    draws: Draws
    loss: float  # mean over the clients' steps
    weights: dict[str, np.ndarray]  # what the server then knows, by PyTorch's names


def play_in_jax(
    experiment: Experiment, config: ConfigDict, rounds: Rounds, count: int
) -> tuple[dict[str, np.ndarray], list[Round]]:
    """What the server knows at the start, and the first `count` rounds, as JAX plays them."""

    def known(state):
        return exported(jax.device_get(state.server), experiment, config)

    state = jax.tree.map(jnp.copy, rounds.state)
    start, played = known(state), []
    for draws in recorded(experiment, config, count):
        state, log = rounds.advance(state, jnp.int32(1))
        played.append(Round(draws, float(log.metrics["loss"]), known(state)))
    return start, played


def recorded(experiment: Experiment, config: ConfigDict, count: int) -> list[Draws]:
    """What the first `count` rounds of the configuration's program leave to chance.

    The program itself draws them, for an algorithm in which nobody trains.
    """

    def build(hparams, played):
        return recording(experiment.build(hparams, played), config)

    idle = experiment._replace(build=build)
    rounds = compile_rounds(idle, config)
    state, draws = rounds.state, []
    for _ in range(count):
        state, _ = rounds.advance(state, jnp.int32(1))
        draws.append(jax.device_get(state.server[1]))
    return draws


def recording(algorithm: Algorithm, config: ConfigDict) -> Algorithm:
    """The algorithm without training, whose server keeps what the last round drew.

    The server is the algorithm's own, as it was at the start, and the `Draws`.
    """
    shape = (config.local_steps, config.batch_size)

    def init(key, graph):
        ids = jnp.zeros((config.cohort_size,), jnp.int32)
        indices = jnp.zeros((config.cohort_size, *shape), jnp.int32)
        forgotten = jnp.zeros((graph.nodes.shape[0], 1), bool)
        return algorithm.init(key, graph), Draws(ids, indices, forgotten)

    def prepare(server, key):
        own, draws = server
        prepared = algorithm.prepare(own, key)
        if isinstance(own, HyperServer):
            draws = draws._replace(forgotten=prepared.mask)
        return own, draws

    def local(message, client, examples, key):
        return client, draw_indices(key, shape, examples.count), {"loss": jnp.float32(0.0)}

    def aggregate(server, cohort, indices, key):
        own, draws = server
        return own, Draws(cohort.ids, indices, draws.forgotten)

    return Algorithm(
        init=init,
        prepare=prepare,
        download=lambda server, i: (),
        local=local,
        aggregate=aggregate,
        predict=algorithm.predict,
    )


def exported(server, experiment: Experiment, config: ConfigDict) -> dict[str, np.ndarray]:
    """What a JAX server knows, by PyTorch's names and in its layout."""

    def flat(params):
        return np.concatenate([np.ravel(leaf) for leaf in LAYOUTS[config.model.name](params)])

    if not isinstance(server, HyperServer):
        return {"theta": flat(server)}
    vector, unravel = ravel_pytree(experiment.model.init(jax.random.key(0)))
    # The generator's outputs are the numbers of a model: where each of PyTorch's is among them.
    order = flat(unravel(jnp.arange(len(vector), dtype=vector.dtype))).astype(int)
    weights, depth = server.weights, config.algorithm.depth
    named = {"embeddings": weights["embeddings"]}
    for i in range(depth):
        neighbours, own = (weights["encoder"][f"Dense_{2 * i + j}"] for j in (0, 1))
        named[f"encoder.{i}.neighbours.weight"] = neighbours["kernel"].T
        named[f"encoder.{i}.neighbours.bias"] = neighbours["bias"]
        named[f"encoder.{i}.own.weight"] = own["kernel"].T
    for i in range(depth - 1):
        layer = weights["trunk"][f"Dense_{i}"]
        named[f"trunk.{2 * i}.weight"] = layer["kernel"].T
        named[f"trunk.{2 * i}.bias"] = layer["bias"]
    output = weights["output"]["linear"]["Dense_0"]
    named["output.weight"] = output["kernel"].T[order]
    named["output.bias"] = output["bias"][order]
    return {name: np.asarray(leaf) for name, leaf in named.items()}


def _perceptron(params):
    layers = [params["body"][f"Dense_{i}"] for i in range(len(params["body"]))]
    for layer in (*layers, params["head"]["Dense_0"]):
        yield from (layer["kernel"].T, layer["bias"])


def _forecaster(params):
    for cell in (params["body"]["Cell_0"], params["head"]["Cell_0"]):
        yield from (cell["input_kernel"].T, cell["hidden_kernel"].T)
        yield from (cell["input_bias"], cell["hidden_bias"])
    yield from (params["head"]["kernel"], params["head"]["bias"])


# A model's arrays in the order in which the PyTorch module holds them.
LAYOUTS = {"mlp": _perceptron, "gru": _forecaster}
