"""Configurations: each data set's file has ``get_config(method)``, a locked ConfigDict."""

from graphfl_jax.configs import compcars, custom, fl60, metr_la, pems_bay, tpt48
from graphfl_jax.configs.base import for_any_task, methods
from graphfl_jax.configs.values import changed, checked, configuration, parsed

__all__ = [
    "changed",
    "checked",
    "compcars",
    "configuration",
    "custom",
    "fl60",
    "for_any_task",
    "methods",
    "metr_la",
    "parsed",
    "pems_bay",
    "tpt48",
]
