"""Rounds as JAX plays them, as arrays for another library: draws, losses, weights."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from ml_collections import ConfigDict

from experiments.benchmarks.timing import Rounds, compile_rounds
from graphfl_jax.algorithms.hyper import HyperServer
from graphfl_jax.architecture import layer_of
from graphfl_jax.build import Experiment
from graphfl_jax.core import Algorithm, Client, Server
from graphfl_jax.trainers import draw_indices


class Draws(NamedTuple):
    """Everything that a round draws at random."""

    ids: Any  # [M] the cohort, ascending; with several architectures, those of each in turn
    indices: Any  # [M, K_c, B] examples of each step of each client
    # [N, 1] bool, clients whose initial embedding is replaced by the mean of their neighbours'
    dropped: Any


class Round(NamedTuple):
    """A round that JAX has played."""

    draws: Draws
    loss: float  # mean over the clients' steps
    weights: dict[str, np.ndarray]  # of the server after the round, by PyTorch's names


def play_in_jax(
    experiment: Experiment, config: ConfigDict, rounds: Rounds, count: int
) -> tuple[dict[str, np.ndarray], list[Round]]:
    """The weights of the server at the start, and the first `count` rounds."""

    def weights_of(state):
        return export_weights(jax.device_get(state.server), experiment, config)

    state = jax.tree.map(jnp.copy, rounds.state)
    start, played = weights_of(state), []
    for draws in draws_of(experiment, config, count):
        state, log = rounds.advance(state, jnp.int32(1))
        played.append(Round(draws, float(log.metrics["loss"]), weights_of(state)))
    return start, played


def draws_of(experiment: Experiment, config: ConfigDict, count: int) -> list[Draws]:
    """The random draws of the first `count` rounds.

    They come from the program itself, for an algorithm that records them and does not train.
    """

    def build(hparams, played):
        return recorder_of(experiment.build(hparams, played), config)

    rounds = compile_rounds(experiment._replace(build=build), config)
    state, draws = rounds.state, []
    for _ in range(count):
        state, _ = rounds.advance(state, jnp.int32(1))
        draws.append(jax.device_get(state.server[1]))
    return draws


def recorder_of(algorithm: Algorithm, config: ConfigDict) -> Algorithm:
    """The algorithm without training, whose server records the draws of the last round.

    The state of the server is a pair: the initial state of the algorithm's own server, and the
    `Draws`.
    """
    server, shape = algorithm.server, (config.local_steps, config.batch_size)

    def init(key, graph):
        ids = jnp.zeros((config.cohort_size,), jnp.int32)  # of all architectures
        indices = jnp.zeros((config.cohort_size, *shape), jnp.int32)
        dropped = jnp.zeros((graph.nodes.shape[0], 1), bool)
        return server.init(key, graph), Draws(ids, indices, dropped)

    def begin_round(state, key):
        initial, draws = state
        begun = server.begin_round(initial, key)
        if isinstance(begun, HyperServer):
            draws = draws._replace(dropped=begun.dropped)
        return initial, draws

    def local(message, memory, data, key):
        indices = draw_indices(key, shape, data.train.count)  # as `trainers.sgd_trainer` does
        return memory, indices, {"loss": jnp.float32(0.0)}

    def aggregate(state, cohorts, indices, key):
        initial, draws = state
        ids = jnp.concatenate([cohort.ids for cohort in cohorts])
        return initial, Draws(ids, jnp.concatenate(indices), draws.dropped)

    def download(state, group, i):
        return jnp.zeros(shape, jnp.int32)

    recorder = Server(init, download, aggregate, begin_round=begin_round)
    return Algorithm(
        recorder, tuple(Client(client.model, local) for client in algorithm.clients)
    )


def export_weights(server, experiment: Experiment, config: ConfigDict) -> dict[str, np.ndarray]:
    """The weights of a JAX server, by PyTorch's names and in its layout."""
    if config.model.name == LAYERED_MODEL:
        return dict(_generator_of_layers(server))

    def flat(params):
        return np.concatenate([np.ravel(leaf) for leaf in LAYOUTS[config.model.name](params)])

    if not isinstance(server, HyperServer):
        return {"theta": flat(server)}
    vector, unravel = ravel_pytree(experiment.model.init(jax.random.key(0)))
    # The generator's outputs are the parameters of a model: the place of each of PyTorch's
    # parameters among them.
    order = flat(unravel(jnp.arange(len(vector), dtype=vector.dtype))).astype(int)
    weights, depth = server.weights, config.algorithm.depth
    named = {"embeddings": weights["embeddings"]}
    for i in range(depth):
        neighbours, itself = (weights["encoder"][f"Dense_{2 * i + j}"] for j in (0, 1))
        named[f"encoder.{i}.neighbours.weight"] = neighbours["kernel"].T
        named[f"encoder.{i}.neighbours.bias"] = neighbours["bias"]
        named[f"encoder.{i}.own.weight"] = itself["kernel"].T
    for i in range(depth - 1):
        layer = weights["trunk"][f"Dense_{i}"]
        named[f"trunk.{2 * i}.weight"] = layer["kernel"].T
        named[f"trunk.{2 * i}.bias"] = layer["bias"]
    output = weights["output"]["linear"]["Dense_0"]
    named["output.weight"] = output["kernel"].T[order]
    named["output.bias"] = output["bias"][order]
    return {name: np.asarray(leaf) for name, leaf in named.items()}


def _generator_of_layers(weights):
    """The weights of a hypernetwork, in which generated kernels have PyTorch's layout."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(weights)[0]:
        names, leaf = [entry.key for entry in path], np.asarray(leaf)
        if names[0] == "heads":
            shape = layer_of(names[1]).kernel
            order, begin = np.arange(leaf.shape[-1]), 2 * shape[-1]  # after biases and r
            kernel = order[begin : begin + np.prod(shape)].reshape(shape)
            order[begin : begin + np.prod(shape)] = _outputs_first(kernel).ravel()
            leaf = leaf[..., order]
        yield "/".join(names), leaf


def _perceptron(params):
    layers = [params["body"][f"Dense_{i}"] for i in range(len(params["body"]))]
    for layer in (*layers, params["head"]["Dense_0"]):
        yield from (layer["kernel"].T, layer["bias"])


def _forecaster(params):
    for cell in (params["body"]["Cell_0"], params["head"]["Cell_0"]):
        yield from (cell["input_kernel"].T, cell["hidden_kernel"].T)
        yield from (cell["input_bias"], cell["hidden_bias"])
    yield from (params["head"]["kernel"], params["head"]["bias"])


def _convolutional(params):
    body = params["body"]
    for layer in (*(body[name] for name in sorted(body)), params["head"]):  # conv1, ..., dense1
        yield from (_outputs_first(layer["kernel"]), layer["bias"])


def _residual(params):
    body = params["body"]
    pairs = [(body["conv1"], body["bn1"])]
    for name in sorted(name for name in body if name.startswith("layer")):
        block = body[name]
        pairs += [(block["conv1"], block["bn1"]), (block["conv2"], block["bn2"])]
        if "downsample_0" in block:
            pairs.append((block["downsample_0"], block["downsample_1"]))
    for convolution, norm in pairs:
        yield from (_outputs_first(convolution["kernel"]), norm["scale"], norm["bias"])
    yield from (_outputs_first(params["head"]["kernel"]), params["head"]["bias"])


def _outputs_first(kernel):
    """A kernel [..., inputs, outputs] as PyTorch's weight [outputs, inputs, ...]."""
    return np.moveaxis(kernel, (-1, -2), (0, 1))


LAYERED_MODEL = "architectures"  # the model of several networks, which a hypernetwork generates
# The arrays of a model in the order of the PyTorch module's parameters.
LAYOUTS = {
    "mlp": _perceptron,
    "gru": _forecaster,
    "lenet": _convolutional,
    "cnn": _convolutional,
    "resnet18": _residual,
}
