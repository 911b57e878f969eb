"""Models that leave for PyTorch and ONNX predict as they do here."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.build import build_experiment
from graphfl_jax.program import Program
from graphfl_jax.runs import models
from tests.federations import small_config

torch = pytest.importorskip("torch")
CLIENTS = ["Bergen", "Oslo", "Bari"]
SMALL = {"cohort_size": 3}
IMAGES = {"hidden": None}


def federation(shape, targets=0, dtype=float, **changes):
    """Three clients with five examples each: of three classes, or with targets."""
    rng = np.random.default_rng(0)
    x = rng.normal(40, 20, size=(15, *shape)).astype(dtype)
    y = rng.normal(1000, 50, size=(15, targets)) if targets else np.arange(15) % 3
    arrays = {"x": x, "y": y, "client": np.repeat(CLIENTS, 5), "name": "small"}
    return graphfl_jax.from_arrays(**arrays | changes)


def fleet_of(path, data, method="fedavg", **changes):
    """The models of a federation before its first round."""
    config = small_config(method, cohort_size=3, **changes)
    experiment = build_experiment(config, data)
    program = Program(experiment.build, experiment.groups, experiment.joined)
    hparams = {name: np.float32(value) for name, value in experiment.hparams.items()}

    @jax.jit
    def predictors(key, data):
        state = program.start(key, hparams, data)
        return program.predictors(state, key, hparams, data)

    made = jax.device_get(predictors(jax.random.key(1), data.data))
    facts = models.facts_of(experiment, config, 0, None)
    models.write(path, models.groups_of(experiment, made), facts)
    return graphfl_jax.load(path)


SCALED = {"scale": "standard", "scale_by": "client"}
FLEETS = {
    "mlp": (((3,),), {"targets": 2} | SCALED, {}),
    "mlp of classes": (((3,),), SCALED, {}),
    "lenet": (((16, 16, 1),), {"dtype": np.uint8}, {"model.name": "lenet"}),
    "resnet": (
        ((8, 8, 3),),
        {"dtype": np.uint8},
        {"model.name": "resnet18", "model.width": 1},
    ),
    "gru": (((5, 2),), {"targets": 2} | SCALED, {"model.name": "gru", "model.hidden": (4,)}),
}
