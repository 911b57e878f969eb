"""Configurations: each data set's file has ``get_config(method)``, a locked ConfigDict."""

from graphfl_jax.configs import (
    chest_xray,
    cifar10,
    cifar100,
    compcars,
    custom,
    fashion_mnist,
    fl60,
    flha_cifar10,
    metr_la,
    pems_bay,
    tpt48,
)
from graphfl_jax.configs.base import configured, for_any_task, methods
from graphfl_jax.configs.values import changed, checked, configuration, parsed

# The functions that make the configurations of the data sets, by name.
PRESETS = {
    "chest_xray": chest_xray.get_config,
    "cifar10": cifar10.get_config,
    "cifar100": cifar100.get_config,
    "compcars": compcars.get_config,
    "custom": custom.get_config,
    "fashion_mnist": fashion_mnist.get_config,
    "fl60": fl60.get_config,
    "flha_cifar10": flha_cifar10.get_config,
    "metr_la": metr_la.get_config,
    "pems_bay": pems_bay.get_config,
    "tpt48": tpt48.get_config,
}

__all__ = [
    "PRESETS",
    "changed",
    "checked",
    "chest_xray",
    "cifar10",
    "cifar100",
    "compcars",
    "configuration",
    "configured",
    "custom",
    "fashion_mnist",
    "fl60",
    "flha_cifar10",
    "for_any_task",
    "methods",
    "metr_la",
    "parsed",
    "pems_bay",
    "tpt48",
]
