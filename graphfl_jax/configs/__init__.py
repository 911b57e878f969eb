"""Configurations: each data set's file has ``get_config(method)``, a locked ConfigDict."""

# A new file is one line here: its name makes it a preset.
from graphfl_jax.configs import chest_xray as chest_xray
from graphfl_jax.configs import cifar10 as cifar10
from graphfl_jax.configs import cifar100 as cifar100
from graphfl_jax.configs import compcars as compcars
from graphfl_jax.configs import custom as custom
from graphfl_jax.configs import fashion_mnist as fashion_mnist
from graphfl_jax.configs import femnist as femnist
from graphfl_jax.configs import fl60 as fl60
from graphfl_jax.configs import flha_cifar10 as flha_cifar10
from graphfl_jax.configs import har as har
from graphfl_jax.configs import metr_la as metr_la
from graphfl_jax.configs import million as million
from graphfl_jax.configs import mnist as mnist
from graphfl_jax.configs import pems_bay as pems_bay
from graphfl_jax.configs import shakespeare as shakespeare
from graphfl_jax.configs import tpt48 as tpt48
from graphfl_jax.configs import two_networks as two_networks
from graphfl_jax.configs.base import configure, for_any_task, methods
from graphfl_jax.configs.values import change, complete, configuration, parse

# The functions that make the configurations of the data sets, by name.
PRESETS = {
    name: module.get_config
    for name, module in sorted(globals().items())
    if hasattr(module, "get_config")
}

__all__ = [
    "PRESETS",
    "change",
    "complete",
    "configuration",
    "configure",
    "for_any_task",
    "methods",
    "parse",
]
