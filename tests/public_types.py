"""How a user calls the public functions. Pyright checks the types; nothing runs this."""

from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import numpy as np
from ml_collections import ConfigDict

import graphfl_jax
from graphfl_jax.core import Algorithm, Array, ClientModel, Params, Task
from graphfl_jax.data.federation import Federation


def program() -> tuple[dict[str, Any], int]:
    """A run with a user's own data."""
    config: ConfigDict = graphfl_jax.configs.custom.get_config("fedavg")
    config = graphfl_jax.configs.change(config, {"rounds": 2})
    federation = graphfl_jax.from_arrays([[0.0], [1.0]], np.arange(2), ["a", "b"], seed=3)
    result: graphfl_jax.Result = graphfl_jax.run(config, federation, out="runs/mine")
    return result.results, result.diverged_at


def search(config: ConfigDict) -> Iterator[int]:
    """The seeds of a sweep."""
    for _, seed, _ in graphfl_jax.sweep(config, [{"hparams.client_lr": 0.1}], seeds=range(2)):
        yield seed


def saved() -> tuple[tuple[str, ...], dict[str, np.ndarray], Params]:
    """Predictions with the models of a run."""
    fleet: graphfl_jax.Fleet = graphfl_jax.load("runs/mine")
    fleet.export("Oslo", "oslo.safetensors", at="G")
    return fleet.clients, fleet.predict("Oslo", [[0.0]]), fleet.params("Oslo")


def net(*, inputs: tuple[int, ...], outputs: int, task: Task) -> ClientModel:
    return graphfl_jax.client_model(
        body=nn.Dense(8), head=nn.Dense(outputs), inputs=inputs, task=task
    )


def registered(
    method: Callable[..., Algorithm],
    shops: Callable[..., Federation],
    sure: Callable[[Array, Array, Array], Array],
) -> None:
    """Parts of the user's own, and the checks of a method."""
    graphfl_jax.register.model("net", net)
    graphfl_jax.register.algorithm("myprox", method)
    graphfl_jax.register.dataset("shops", shops)
    graphfl_jax.register.metric("sure", sure)
    graphfl_jax.testing.check_algorithm("myprox", settings={"hparams.mu": 0.1}, report=print)
