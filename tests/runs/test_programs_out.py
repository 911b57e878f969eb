"""Models that leave for PyTorch and ONNX predict there as they do here."""

import itertools
import json
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.build import build_experiment
from graphfl_jax.models import MODELS as MODELS_OF_PACKAGE
from graphfl_jax.program import Program
from graphfl_jax.runs import models
from tests.federations import small_config

CLIENTS = ["Bergen", "Oslo", "Bari"]


def inputs(rng, rows, shape, dtype):
    if dtype == np.uint8:
        return rng.integers(0, 256, (rows, *shape), dtype)
    return rng.normal(40, 20, (rows, *shape)).astype(dtype)


def federation(*shape, targets=0, dtype=float, **changes):
    """Three clients with ten examples each: of three classes, or with targets."""
    rng = np.random.default_rng(0)
    x = inputs(rng, 30, shape, dtype)
    y = rng.normal(1000, 50, size=(30, targets)) if targets else np.arange(30) % 3
    arrays = {"x": x, "y": y, "client": np.repeat(CLIENTS, 10), "name": "small"}
    return graphfl_jax.from_arrays(**arrays | changes)


def fleet_of(path, data, method="fedavg", rounds=0, **changes):
    """The models of all clients after so many rounds."""
    config = small_config(method, **{"cohort_size": 3, **changes})
    experiment = build_experiment(config, data)
    program = Program(experiment.build, experiment.groups, experiment.joined)
    hparams = {name: np.float32(value) for name, value in experiment.hparams.items()}

    @jax.jit
    def predictors(key, data):
        state = program.start(key, hparams, data)
        if rounds:
            state, _ = program.advance(state, key, hparams, data, np.int32(rounds))
        return program.predictors(state, key, hparams, data)

    made = jax.device_get(predictors(jax.random.key(1), data.data))
    facts = models.facts_of(experiment, config, 0, None)
    models.write(path, models.groups_of(experiment, made), facts)
    return graphfl_jax.load(path)


def in_torch(path, x):
    import torch

    return torch.export.load(path).module()(torch.from_numpy(x)).numpy()


def in_onnx(path, x):
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    return session.run(["outputs"], {"x": x})[0]


RUNTIMES = {"pt2": in_torch, "onnx": in_onnx}
PACKAGES = {"pt2": "torch", "onnx": "onnxscript"}


def assert_same_predictions(fleet, folder, kind, at="P", rtol=1e-5):
    """Of an export, for several numbers of rows, up to rounding."""
    for package in ("torch", *(["onnxscript"] if kind == "onnx" else [])):
        pytest.importorskip(package)
    path, model = folder / f"oslo.{kind}", fleet.facts["model"]
    fleet.export("Oslo", path, at)
    rng = np.random.default_rng(1)
    for rows in (1, 2, 6):
        x = inputs(rng, rows, model["inputs"], np.dtype(model["type"]))
        predicted = fleet.predict("Oslo", x, at)
        expected = predicted.get("y", predicted.get("outputs"))
        outputs = RUNTIMES[kind](path, x)
        assert outputs.dtype == np.float32 and np.ptp(expected) > 0
        np.testing.assert_allclose(outputs, expected, rtol, rtol * np.abs(expected).max())
    return path


SCALED = {"scale": "standard", "scale_by": "client"}
# Name of a client model: shape of an example, what else the data are, and fields.
MODELS = {
    "mlp": ((3,), {"targets": 2, **SCALED}, {}),
    "classes": ((3,), SCALED, {}),
    "lenet": ((16, 16, 1), {"dtype": np.uint8}, {"model__name": "lenet"}),
    "gru": ((5, 2), {"targets": 2, **SCALED}, {"model__name": "gru", "model__hidden": (4,)}),
    "resnet18": (
        (32, 32, 3),
        {"dtype": np.uint8},
        {"model__name": "resnet18", "model__width": 4},
    ),
}


LONG = {("gru", "onnx"), ("resnet18", "onnx")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, kind",
    [
        pytest.param(*row, marks=[pytest.mark.release] if row in LONG else [])
        for row in itertools.product(MODELS, RUNTIMES)
    ],
)
def test_predictions_are_the_same_elsewhere(tmp_path, name, kind):
    shape, data, fields = MODELS[name]
    fleet = fleet_of(tmp_path / models.FILE, federation(*shape, **data), **fields)
    assert_same_predictions(fleet, tmp_path, kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, fields",
    [("knnper", {}), ("fedproto", {"algorithm__fedproto_predict": "prototypes"})],
)
def test_what_a_method_predicts_with_is_exported(tmp_path, method, fields):
    """At P with neighbours or prototypes, and at G without."""
    fleet = fleet_of(tmp_path / models.FILE, federation(3, **SCALED), method, 1, **fields)
    assert fleet.predictor("Oslo", "P").extra
    for at in ("P", "G"):
        (tmp_path / at).mkdir()
        assert_same_predictions(fleet, tmp_path / at, "pt2", at)


class Many(nn.Module):
    """Layers of many kinds."""

    @nn.compact
    def __call__(self, x):
        x = nn.gelu(nn.GroupNorm(2)(nn.Conv(4, (3, 3), strides=2)(x)))
        x = nn.avg_pool(nn.max_pool(x, (2, 2)), (2, 2), padding="SAME")
        x = nn.LayerNorm()(nn.silu(x) + nn.elu(x) + nn.softplus(x))
        rows = x.reshape(len(x), -1, 4)
        rows = nn.MultiHeadDotProductAttention(2)(rows, rows)
        table = self.param("table", nn.initializers.normal(), (4, 3))
        token = table[jnp.argmax(rows[:, -1], axis=1)]
        return jnp.concatenate([rows.mean(1), token, rows[:, 0, ::-1], rows[:, 1, :3:2]], 1)


class Sorting(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.sort(nn.Dense(3)(x), axis=1)


class Centring(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x) / jnp.float32(len(x))


def registered(monkeypatch, body):
    """The name of a client model with this body, for one test."""

    def factory(*, inputs, outputs, task):
        return graphfl_jax.client_model(
            body=body, head=nn.Dense(outputs), inputs=inputs, task=task
        )

    monkeypatch.setitem(MODELS_OF_PACKAGE, "own_net", factory)
    return {"model__name": "own_net"}


@pytest.mark.slow
def test_a_model_of_the_users_own_is_exported(tmp_path, monkeypatch):
    own = registered(monkeypatch, Many())
    with jax.numpy_dtype_promotion("standard"):  # which Flax needs
        fleet = fleet_of(tmp_path / models.FILE, federation(8, 8, 1), **own)
        for kind in RUNTIMES:
            assert_same_predictions(fleet, tmp_path, kind)


@pytest.mark.parametrize(
    "body, message",
    [
        (Sorting(), "it computes 'sort'"),
        (Centring(), "it computes with the number of rows"),
    ],
)
def test_what_cannot_be_translated_is_refused(tmp_path, monkeypatch, body, message):
    pytest.importorskip("torch")
    own = registered(monkeypatch, body)
    fleet = fleet_of(tmp_path / models.FILE, federation(3), **own)
    expected = f"^to=.*/oslo.pt2: the model cannot be translated, since {message}; write the"
    with pytest.raises(ValueError, match=expected):
        fleet.export("Oslo", tmp_path / "oslo.pt2")
    assert [path.name for path in tmp_path.iterdir()] == [models.FILE]


def test_a_translation_that_differs_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from graphfl_jax.runs import torch_programs

    fleet = fleet_of(tmp_path / models.FILE, federation(3))
    wrong = torch_programs.OPERATIONS["sub"]  # in place of the sums with biases
    monkeypatch.setitem(torch_programs.OPERATIONS, "add", wrong)
    with pytest.raises(ValueError, match="since its outputs differ by [0-9.]+; write the"):
        fleet.export("Oslo", tmp_path / "oslo.pt2")
    assert [path.name for path in tmp_path.iterdir()] == [models.FILE]


def test_other_endings_and_missing_packages_are_refused(tmp_path, monkeypatch):
    fleet = fleet_of(tmp_path / models.FILE, federation(3))
    with pytest.raises(
        ValueError, match="to=a.pt has no known format; let it end with .safetensors or .pt2"
    ):
        fleet.export("Oslo", "a.pt")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "graphfl_jax.runs.torch_programs", raising=False)
    monkeypatch.delattr("graphfl_jax.runs.torch_programs", raising=False)
    for kind, packages in (("pt2", "torch"), ("onnx", "torch onnxscript")):
        with pytest.raises(ValueError, match=f"not all installed; run pip install {packages}$"):
            fleet.export("Oslo", tmp_path / f"a.{kind}")
    assert [path.name for path in tmp_path.iterdir()] == [models.FILE]


READ = """
import sys, torch
facts = {"graphfl_jax": ""}
program = torch.export.load(sys.argv[1], extra_files=facts)
assert program.module()(torch.zeros(4, 3)).shape == (4, 2)
assert not {"jax", "graphfl_jax"} & sys.modules.keys()
print(facts["graphfl_jax"])
"""


@pytest.mark.slow
def test_files_need_neither_jax_nor_this_package_and_say_what_they_are(tmp_path):
    data = federation(3, targets=2, **SCALED)
    fleet = fleet_of(tmp_path / models.FILE, data)
    path = assert_same_predictions(fleet, tmp_path, "pt2")
    text = subprocess.check_output([sys.executable, "-c", READ, path], text=True)
    facts = json.loads(text)
    assert facts["client"] == "Oslo" and facts["method"] == "fedavg"
    assert facts["model"]["units"] == "own" and facts["model"]["task"] == "regression"
    onnx = pytest.importorskip("onnx")
    path = assert_same_predictions(fleet, tmp_path, "onnx")
    (entry,) = onnx.load(path).metadata_props
    assert entry.key == "graphfl_jax" and json.loads(entry.value) == facts
    for path in (tmp_path / "oslo.pt2", tmp_path / "oslo.onnx"):
        content = path.read_bytes()
        assert not any(word.encode() in content for word in ("Bergen", "Bari", __file__[:8]))


def test_the_file_of_one_client_names_no_other(tmp_path):
    fields = {"attack__name": "label_flip", "attack__clients": ("Bari",)}
    fields |= {"new_clients__clients": ("Bergen",), "cohort_size": 2}
    fleet = fleet_of(tmp_path / models.FILE, federation(3, **SCALED), **fields)
    fleet.export("Oslo", tmp_path / "oslo.safetensors")
    content = (tmp_path / "oslo.safetensors").read_bytes()
    assert b"Oslo" in content and b"Bari" not in content and b"Bergen" not in content
    alone, x = graphfl_jax.load(tmp_path / "oslo.safetensors"), np.full((2, 3), 45.0)
    assert alone.clients == ("Oslo",) and alone.rounds_trained("Oslo") is None
    outputs = [loaded.predict("Oslo", x)["outputs"] for loaded in (alone, fleet)]
    np.testing.assert_array_equal(*outputs)
