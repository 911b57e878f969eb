"""Calls of factories: their arguments from a configuration.

A factory of a method, model, data set, attack or defence gets the settings that it declares in
its signature (see `settings`), the parts that it declares, and by name what the builder
supplies, such as the client model.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from graphfl_jax.configs.fields import rate_field
from graphfl_jax.optimizers import OPTIMIZERS, SCHEDULES
from graphfl_jax.settings import Optimizer, Part, Real, Variant, parameters


def made(factory, config, section, supplied, hparams=None):
    """What a factory makes from its settings, its parts, and what is supplied by name."""
    return factory(**arguments(factory, config, section, supplied, hparams))


def arguments(factory, config, section, supplied, hparams=None, *, skip=0):
    """The arguments of a factory, without the first `skip`.

    Floats come from `hparams`, if it is given, and else from the section.
    """
    found = {}
    for name, declared, default in parameters(factory)[skip:]:
        if isinstance(declared, Part):
            found[name] = made(declared.factory, config, section, supplied, hparams)
        elif isinstance(declared, Optimizer):
            played = supplied.get("played", 0)
            found[name] = _optimizer(declared, config, hparams, played)
        elif isinstance(declared, Variant):
            chosen = declared.factories.get(config[section][name])
            found[name] = chosen and made(chosen, config, section, supplied, hparams)
        elif declared is not None:
            own = hparams if isinstance(declared, Real) and hparams is not None else None
            values = config[section] if own is None else own
            if not declared.when or name in values:
                found[name] = values[name]
        elif name in supplied:
            found[name] = supplied[name]
        elif default is inspect.Parameter.empty:
            raise ValueError(
                f"{factory.__name__} has a parameter {name!r} that is neither declared nor "
                f"supplied; annotate it with one of graphfl_jax.settings"
            )
    return found


def floats_of(factory, side: str, hparams: Mapping[str, Any]) -> dict[str, Any]:
    """The floats of an optimiser or a schedule of a side, from ``hparams``."""
    return {
        name: hparams[f"{side}_{name}"]
        for name, setting, _ in parameters(factory)
        if setting is not None
    }


def _optimizer(declared: Optimizer, config: ConfigDict, hparams: Mapping[str, Any], played):
    """The optimiser of a side, with its learning rate in this round."""
    side = declared.side
    factory = OPTIMIZERS[config[f"{side}_optimizer"]]
    lr = hparams[rate_field(declared).removeprefix("hparams.")]
    if not declared.rate:
        schedule = SCHEDULES[config[f"{side}_schedule"]]
        lr = schedule(lr, played, **floats_of(schedule, side, hparams))
    return factory(lr=lr, **floats_of(factory, side, hparams))
