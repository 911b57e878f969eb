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
from graphfl_jax.configs.base import for_any_task, methods
from graphfl_jax.configs.values import changed, checked, configuration, parsed

__all__ = [
    "changed",
    "checked",
    "chest_xray",
    "cifar10",
    "cifar100",
    "compcars",
    "configuration",
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
