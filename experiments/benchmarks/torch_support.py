"""What ``bench --against=torch`` supports."""

import jax
from ml_collections import ConfigDict

from experiments.benchmarks.recorded_rounds import LAYERED_MODEL
from experiments.common.flag_values import check_names
from graphfl_jax.configs.values import values_of
from graphfl_jax.data import relations
from graphfl_jax.data.federation import Federation

VARIANTS = ("eager", "compile", "vmap", "vmap+compile")
# Networks for images, which have many units with a kink: ReLU and max pooling. A unit within
# rounding of its kink passes the gradient in one library and not in the other. This changes the
# gradient of one of n images by at most about itself. Gradients of images are nearly
# independent, so the mean over n changes by up to 1 / sqrt(n) of itself. Further steps amplify
# the change: after a round of 8 steps, PyTorch in float32 and in float64 differ by 4e-3 of the
# change with LeNet at learning rate 0.1, and by 0.3 with a ResNet of width 8 at 0.01. So rounds
# have one step, all differ by at most 1 / sqrt(n), and one by at most
# `torch_comparison.SERVER_TOLERANCE`. Measured: 2e-5 if no unit is at its kink; a ResNet with
# n = 192 had 1e-2 in one of 3 rounds.
IMAGE_MODELS = ("lenet", "cnn", "resnet18", LAYERED_MODEL)
# Values that `torch_player` supports, by field; the others are checked for Panacea only.
SUPPORTED = {
    "algorithm.name": ("panacea", "fedavg"),
    "tuning.part": ("",),
    "attack.name": ("",),
    "defence.name": ("",),
    "model.name": ("mlp", "gru", *IMAGE_MODELS),
    "client_optimizer": ("sgd", "adam"),
    "client_schedule": ("constant",),
}
SUPPORTED_IMAGES = {"algorithm.name": ("fedavg",)}
SUPPORTED_LAYERED = {
    "algorithm.name": ("flha_ghn",),
    "algorithm.flha_generator": ("ghn",),
    "client_optimizer": ("momentum",),
}
LAYERED_VARIANTS = ("eager",)  # clients with different networks cannot be vmapped
UNPOOLED = ("arch", "hybrid")  # beginnings of the names of architectures without pooling
SUPPORTED_PANACEA = {
    "algorithm.layer": ("sage",),
    "algorithm.output": ("direct",),
    "server_optimizer": ("polyak_sgd", "sgd", "adam"),
    "server_schedule": ("constant",),
}


def check(config: ConfigDict, variants: list[str]) -> None:
    """Checks that `torch_player` supports a configuration and the variants.

    Raises:
      ValueError: it does not, or JAX does not use the CPU.
    """
    check_names("variants", variants, VARIANTS)
    values, _ = values_of(config)
    is_panacea = config.algorithm.name == "panacea"
    supported = SUPPORTED | (SUPPORTED_PANACEA if is_panacea else {})
    if config.model.name == LAYERED_MODEL:
        supported |= SUPPORTED_LAYERED
        _check_layered(config, variants)
    elif config.model.name in IMAGE_MODELS:
        supported |= SUPPORTED_IMAGES
    if "model.augment" in values:
        supported |= {"model.augment": (False,)}
    for field, choices in supported.items():
        if values[field] not in choices:
            raise ValueError(
                f"{field}={values[field]!r} is not supported by --against=torch; set "
                f"--config.{field} to one of {', '.join(map(repr, choices))}, or use "
                f"--config=tpt48 or metr_la"
            )
    if jax.default_backend() != "cpu":
        raise ValueError(
            f"against=torch compares on CPUs, but JAX uses a {jax.default_backend()}; set "
            f"JAX_PLATFORMS=cpu"
        )


def _check_layered(config, variants):
    for variant in variants:
        if variant not in LAYERED_VARIANTS:
            raise ValueError(
                f"variants={variant} is not supported with model.name={LAYERED_MODEL!r}, whose "
                f"clients have different networks; set --variants={','.join(LAYERED_VARIANTS)}"
            )
    for name in config.model.architectures:
        if not name.startswith(UNPOOLED):
            raise ValueError(
                f"model.architectures={name!r} is not supported by --against=torch, which has "
                f"no pooling; choose from arch0 to arch3 and hybrid0 to hybrid3"
            )


def check_dense(federation: Federation) -> None:
    """Checks that the relations of a federation are a matrix.

    Raises:
      ValueError: they are sparse.
    """
    if relations.is_sparse(federation.data.graph):
        raise ValueError(
            f"data.name={federation.name!r} has {len(federation.clients)} clients with sparse "
            f"relations, which --against=torch does not support; use a smaller data set"
        )
