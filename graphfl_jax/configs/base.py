"""Methods, and how the configuration of a method on a data set is made."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.configs.fields import NOTHING
from graphfl_jax.configs.values import configuration

# Values of fields that make a method, by the name of the method. Every registered algorithm is
# a method; the others are variants.
METHODS = {name.replace("_", "-"): {"algorithm.name": name} for name in ALGORITHMS}
METHODS["pfedhn"] |= {"client_optimizer": "momentum", "server_optimizer": "momentum"}
METHODS |= {
    "panacea-gn": METHODS["panacea"] | {"hparams.lambda_d": 0.0},
    "panacea-mean": METHODS["panacea"]
    | {"algorithm.layer": "mean", "hparams.embedding_dropout": 0.0},
    "fedavg-finetune": METHODS["fedavg"] | {"tuning.part": "whole"},
}


def configured(
    method: str,
    data: str,
    *,
    tuned: Mapping[str, Mapping[str, float]] = NOTHING,
    settings: Mapping[str, Any] = NOTHING,
) -> ConfigDict:
    """The configuration of a method on a data set.

    Args:
      method: one of `METHODS`.
      data: the name of the data set.
      tuned: floats of ``hparams`` that were chosen for some methods.
      settings: other settings of the data set, each for the methods that read it.

    Raises:
      ValueError: the method is unknown.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; choose from {', '.join(METHODS)}")
    hparams = {f"hparams.{name}": value for name, value in tuned.get(method, {}).items()}
    return configuration(METHODS[method] | {"data.name": data} | hparams, settings)
