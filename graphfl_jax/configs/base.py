"""Methods by name, and how the configuration of a method on a data set is made."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from graphfl_jax.algorithms import ALGORITHMS, FILES, VARIANTS
from graphfl_jax.algorithms.tuning import PARTS
from graphfl_jax.configs.fields import fields_of
from graphfl_jax.configs.values import configuration, values_of
from graphfl_jax.declarations import NOTHING
from graphfl_jax.settings import Choice, perhaps

TUNING = "tuning.part"
# Settings of the data for methods that train on a split of it.
SPLITS = {"val": {"data.val_fraction": 0.1}}
# Floats of ``hparams`` by data set and method. docs/developer/decisions.md lists those that
# were chosen on validation; the others were not searched.
CLIPPED = {  # plain gradient descent with clipped gradients
    "client_optimizer": "momentum",
    "hparams.client_momentum": 0.0,
    "hparams.client_weight_decay": 0.0,
    "hparams.client_clip": 1.0,
}
TUNED = json.loads(Path(__file__).with_name("tuned.json").read_text())
# By data set, or configuration, the methods whose learning rates were chosen on validation.
SEARCHED = json.loads(Path(__file__).with_name("searched.json").read_text())
# The searches on data sets whose clients have networks of `models.architectures`.
OF_ARCHITECTURES = {"cifar10": "flha_cifar10", "fashion_mnist": "two_networks"}


def searched(
    name: str, otherwise: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Floats of ``hparams`` by method: those that a search chose, and others where it did not.

    Args:
      name: of the search, see `SEARCHED`.
      otherwise: floats of methods.
    """
    chosen = TUNED.get(name, NOTHING)
    names = dict.fromkeys([*otherwise, *chosen])
    return {method: {**otherwise.get(method, {}), **chosen.get(method, {})} for method in names}


def methods() -> dict[str, dict[str, Any]]:
    """The values of fields that make each method, by its name: all algorithms and variants.

    The order is that of the colours in plots.
    """
    values = {}
    for name in dict.fromkeys([*FILES, *ALGORITHMS]):
        method = ALGORITHMS.get(name) or VARIANTS[name]
        algorithm = name if name in ALGORITHMS else method.factory.__name__
        values[name.replace("_", "-")] = {"algorithm.name": algorithm, **method.values}
    return values


def needing(need: str) -> list[str]:
    """The names of the methods that need something, a field of `core.Needs`."""
    return [
        name
        for name, values in methods().items()
        if getattr(ALGORITHMS[values["algorithm.name"]].needs, need)
    ]


def for_any_task() -> list[str]:
    """The names of the methods that fit every task with every client model."""
    special = {*needing("labels"), *needing("layers")}
    return [name for name in methods() if name not in special]


def configure(
    method: str,
    data: str,
    *,
    tuned: Mapping[str, Mapping[str, float]] = NOTHING,
    settings: Mapping[str, Any] = NOTHING,
) -> ConfigDict:
    """The configuration of a method on a data set.

    Args:
      tuned: floats of ``hparams`` that were chosen for some methods.
      settings: other settings of the data set, each for the methods that read it.

    Raises:
      ValueError: the method is unknown.
    """
    choices = methods()
    if not isinstance(method, str) or method not in choices:
        near, names = perhaps(str(method), choices), ", ".join(choices)
        raise ValueError(f"method={method!r} is unknown{near}; choose from {names}")
    values = choices[method]
    hparams = {f"hparams.{name}": value for name, value in tuned.get(method, {}).items()}
    split = ALGORITHMS[values["algorithm.name"]].needs.held_out
    settings = {**rate_alone(tuned, settings), **SPLITS.get(split, {}), **settings}
    # Values of a variant for new clients are read when some join.
    fields = fields_of(values | {"data.name": data}, settings)
    later = {name: value for name, value in values.items() if name not in fields}
    now = {name: value for name, value in values.items() if name in fields}
    return configuration(now | {"data.name": data} | hparams, settings | later)


def rate_alone(
    tuned: Mapping[str, Mapping[str, float]], settings: Mapping[str, Any]
) -> dict[str, float]:
    """The rate of what clients with a veto train alone: that of `local`."""
    default = settings.get("hparams.client_lr")
    rate = tuned.get("local", NOTHING).get("client_lr", default)
    return {} if rate is None else {"hparams.veto_lr": rate}


def was_searched(config: ConfigDict) -> bool:
    """Whether the learning rates of a method were chosen for the data set of a configuration.

    True for own data, for which none are.
    """
    data = config.data.name
    if config.model.name == "architectures":
        data = OF_ARCHITECTURES.get(data, "flha_cifar10")
    return data not in SEARCHED or variant_of(config) in SEARCHED[data]


def variant_of(config: ConfigDict) -> str:
    """The name that results give a configuration's method.

    It is the one of `methods` whose defining values the configuration has. Learning rates
    define none. Where a value departs from those of all variants, the name of the nearest is
    followed by it, as in "panacea+layer=mean"; it is then no name of `methods`. A suffix states
    the fine-tuned part, see `PARTS`, unless the method states one itself.
    """
    values, _ = values_of(config)
    algorithm = values["algorithm.name"]
    tunes = TUNING in ALGORITHMS[algorithm].values
    variants = {
        name: defined
        for name, defined in methods().items()
        if defined["algorithm.name"] == algorithm and (TUNING not in defined or tunes)
    }
    fields = {field for defined in variants.values() for field in defined}
    declared = fields_of(values)

    def departs(field, defined):
        value = values[field]
        if field in defined:
            return value != defined[field]
        if "." not in field:
            return False  # an optimiser or a schedule
        if isinstance(declared[field].setting, Choice):
            return value != declared[field].default
        # A number is free, but for those that define other variants.
        return any(value == other.get(field) for other in variants.values())

    def departures(defined):
        names = sorted(field for field in fields & values.keys() if not field.endswith("_lr"))
        return [field for field in names if departs(field, defined)]

    nearest = min(variants, key=lambda name: len(departures(variants[name])))
    name = nearest + ("" if tunes else PARTS.get(values[TUNING], ""))
    for field in departures(variants[nearest]):
        name += f"+{field.rpartition('.')[2]}={values[field]}"
    return name
