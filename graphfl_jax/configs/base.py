"""Methods, and how the configuration of a method on a data set is made."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.configs.fields import NOTHING
from graphfl_jax.configs.values import configuration
from graphfl_jax.settings import perhaps

FLHA = {
    "algorithm.name": "flha_ghn",
    "client_optimizer": "momentum",
    "client_schedule": "cosine",
    "hparams.client_lr": 0.009,
}

ADAM = {"server_optimizer": "adam", "hparams.server_lr": 0.2}
# Values that make a method, beyond its algorithm.
VARIANTS = {
    "pfedhn": {"client_optimizer": "momentum", "server_optimizer": "momentum"},
    "pfedhn-het": {"client_optimizer": "momentum", "server_optimizer": "momentum"},
    "flha-ghn": FLHA,
    "flha-ghn-no-gnn": FLHA | {"algorithm.ghn_depth": 0},
    "flha-ghn-table": FLHA | {"algorithm.flha_generator": "table"},
    "panacea-gn": {"algorithm.name": "panacea", "hparams.lambda_d": 0.0},
    "panacea-mean": {
        "algorithm.name": "panacea",
        "algorithm.layer": "mean",
        "hparams.embedding_dropout": 0.0,
    },
    "fedavg-finetune": {"algorithm.name": "fedavg", "tuning.part": "whole"},
    "pfedgat-v2": {"algorithm.name": "pfedgat", "algorithm.attention": "v2"},
    "pfedgat-direct": {"algorithm.name": "pfedgat", "algorithm.attention": "direct"} | ADAM,
    "pfedgat-dot": {"algorithm.name": "pfedgat", "algorithm.attention": "dot"} | ADAM,
}

# Methods that need one label per example: other tasks than classification refuse them.
CLASSIFIERS = (
    *("fedrod", "knnper"),
    *("fedproto", "feddistill", "fml", "fedgh", "distillation"),
)
# Methods that need a client model that describes its layers.
LAYERED = ("flha-ghn", "flha-ghn-no-gnn", "flha-ghn-table")
# Algorithms that train on validation examples, and the share of these.
VALIDATED = {"pfedgat": {"data.val_fraction": 0.1}}


def methods() -> dict[str, dict[str, Any]]:
    """The values of fields that make each method, by its name: all algorithms and variants."""
    made = {name.replace("_", "-"): {"algorithm.name": name} for name in ALGORITHMS}
    for name, values in VARIANTS.items():
        made[name] = made.get(name, {}) | values
    return made


def for_any_task() -> list[str]:
    """The names of the methods that fit every task with every client model."""
    return [name for name in methods() if name not in (*CLASSIFIERS, *LAYERED)]


def configured(
    method: str,
    data: str,
    *,
    tuned: Mapping[str, Mapping[str, float]] = NOTHING,
    settings: Mapping[str, Any] = NOTHING,
) -> ConfigDict:
    """The configuration of a method on a data set.

    Args:
      method: one of `methods`.
      data: the name of the data set.
      tuned: floats of ``hparams`` that were chosen for some methods.
      settings: other settings of the data set, each for the methods that read it.

    Raises:
      ValueError: the method is unknown.
    """
    known = methods()
    if not isinstance(method, str) or method not in known:
        near = perhaps(str(method), known)
        raise ValueError(f"method={method!r} is unknown{near}; choose from {', '.join(known)}")
    hparams = {f"hparams.{name}": value for name, value in tuned.get(method, {}).items()}
    settings = VALIDATED.get(known[method]["algorithm.name"], {}) | dict(settings)
    return configuration(known[method] | {"data.name": data} | hparams, settings)
