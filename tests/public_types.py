"""How a user calls the public functions. Pyright checks the types; nothing runs this."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import graphfl_jax


def program() -> tuple[dict[str, Any], int]:
    """A run with a user's own data."""
    config: ConfigDict = graphfl_jax.configs.custom.get_config("fedavg")
    config = graphfl_jax.configs.changed(config, {"rounds": 2})
    federation = graphfl_jax.from_arrays([[0.0], [1.0]], np.arange(2), ["a", "b"], seed=3)
    result: graphfl_jax.Result = graphfl_jax.run(config, federation, out="runs/mine")
    return result.results, result.diverged_at


def search(config: ConfigDict) -> Iterator[int]:
    """The seeds of a sweep."""
    for _, seed, _ in graphfl_jax.sweep(config, [{"hparams.client_lr": 0.1}], seeds=range(2)):
        yield seed
