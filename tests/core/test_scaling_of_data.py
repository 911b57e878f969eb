"""Scaling of own data: fitted on training examples, saved with the run, undone in errors."""

import json
import re
import shlex

import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.configs import change
from graphfl_jax.configs import custom as configuration
from graphfl_jax.data import from_arrays
from graphfl_jax.data.custom import custom
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.metrics import OwnUnits, task_of
from tests.commands import ROOT, launched

CLIENTS, SIZE = 5, 12
CLIENT = np.repeat(np.arange(CLIENTS), SIZE)
SPLIT = np.tile([*["train"] * 8, "val", "val", "test", "test"], CLIENTS)


def raw(labels=False):
    """Inputs and targets in raw units; the last input is the same everywhere."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(CLIENT), 3)) * [1e4, 1e-3, 0] + [1e6, 7, 0.1]
    x = x + 1e5 * CLIENT[:, None] * [1, 0, 0]
    y = 500 * x[:, :2] @ [[1e-4, 1e-6], [1.0, 0.0]] + 3e4 + CLIENT[:, None]
    return x, CLIENT % 2 if labels else y


def rows_of(part):
    return [part.x[i, :count] for i, count in enumerate(part.count)], [
        part.y[i, :count] for i, count in enumerate(part.count)
    ]


def expected(values, kind, by):
    """The scaled rows of each client, by the formulas, one number of an example at a time."""
    scaled = np.empty_like(values)
    for i in range(CLIENTS):
        fitted = (SPLIT == "train") & ((i == CLIENT) | (by == "federation"))
        for j in range(values.shape[1]):
            rows, train = values[i == CLIENT, j], values[fitted, j]
            if train.max() == train.min():
                scaled[i == CLIENT, j] = 0
            elif kind == "standard":
                scaled[i == CLIENT, j] = (rows - np.mean(train)) / np.std(train)
            else:
                scaled[i == CLIENT, j] = (rows - min(train)) / (max(train) - min(train))
    return scaled


@pytest.mark.parametrize("by", ["federation", "client"])
@pytest.mark.parametrize("kind", ["standard", "minmax"])
def test_examples_are_scaled_by_the_training_examples(kind, by):
    x, y = raw()
    made = from_arrays(x, y, CLIENT, split=SPLIT, scale=kind, scale_by=by)
    parts = {"train": made.data.train, **made.data.evals}
    for part, examples in parts.items():
        for unscaled, actual in zip((x, y), rows_of(examples), strict=True):
            rows = expected(unscaled, kind, by)[part == SPLIT]
            np.testing.assert_allclose(np.concatenate(actual), rows, rtol=1e-5, atol=1e-6)


def test_a_random_split_is_that_without_scaling_and_test_examples_do_not_decide():
    x, y = raw()
    plain = from_arrays(x, y, CLIENT, val_fraction=0.2, seed=3)
    made = from_arrays(x, y, CLIENT, val_fraction=0.2, seed=3, scale="standard")
    offset, scale = made.scaling.inputs
    train = np.concatenate(rows_of(plain.data.train)[0]).astype(float)
    np.testing.assert_allclose(offset[0], train.mean(0), rtol=1e-6)
    np.testing.assert_allclose(scale[0, :2], train.std(0)[:2], rtol=1e-3)
    for part in ("val", "test"):
        rows = rows_of(plain.data.evals[part])[0]
        for unscaled, actual in zip(rows, rows_of(made.data.evals[part])[0], strict=True):
            back = actual * scale[0] + offset[0]
            np.testing.assert_allclose(back, unscaled, rtol=1e-4)


def test_labels_stay_and_the_hash_depends_on_the_scaling():
    x, y = raw(labels=True)
    pairs = (("none", "federation"), ("standard", "client"), ("standard", "federation"))
    made = [
        from_arrays(x, y, CLIENT, split=SPLIT, scale=scale, scale_by=by) for scale, by in pairs
    ]
    assert len({loaded.sha256 for loaded in made}) == 3
    for loaded in made:
        np.testing.assert_array_equal(loaded.data.train.y, made[0].data.train.y)
        assert loaded.units is None
    assert made[0].scaling is None and made[1].scaling.targets is None


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"scale": "log"}, "data.scale='log' is unknown; choose from none, standard, minmax"),
        ({"scale": "minmax", "scale_by": "row"}, "data.scale_by='row' is unknown; choose from"),
        (
            {"x": np.zeros((60, 3), np.uint8), "scale": "minmax"},
            "not for x of type uint8",
        ),
    ],
)
def test_scalings_that_do_not_fit_are_refused(changes, named):
    x, y = raw()
    with pytest.raises(ValueError, match=named):
        from_arrays(**{"x": x, "y": y, "client": CLIENT} | changes)


def small(**changes):
    settings = {"rounds": 2, "eval_every": 2, "cohort_size": 3, "local_steps": 2}
    settings |= {"batch_size": 4, "model.hidden": (3,), "hparams.client_lr": 0.01}
    return change(configuration.get_config("fedavg"), settings | changes)


@pytest.mark.release
@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize("by", ["federation", "client"])
def test_errors_are_in_the_units_of_the_targets(by):
    """By one scale, the mean square errors of two targets give the score back."""
    x, y = raw()
    made = from_arrays(x, y, CLIENT, split=SPLIT, scale="standard", scale_by=by)
    results = graphfl_jax.run(small(), made).results
    recorded = results["scaling"]
    assert recorded["kind"] == "standard"
    assert recorded["clients"] == ([] if by == "federation" else [*"01234"])
    scale = np.array(recorded["targets"]["scale"])
    assert scale.shape == (1 if by == "federation" else CLIENTS, 2)
    for point in "GLP":
        errors = results["errors"][point]
        assert set(errors) == {"target 0", "target 1"}
        rmse = np.array([errors[target]["rmse"] for target in errors])
        mae = np.array([errors[target]["mae"] for target in errors])
        assert (mae > 0).all() and (mae <= rmse).all()
        if by == "federation":
            score = np.mean((rmse / scale[0]) ** 2)
            np.testing.assert_allclose(results["scores"]["final"][point]["mean"], score, 1e-5)


def test_errors_of_each_client_have_its_own_units():
    """Errors of 1 in scaled units are the scale in own units, also beside new clients."""
    x, y = raw()
    made = from_arrays(x, y, CLIENT, split=SPLIT, scale="standard", scale_by="client")
    scale = made.scaling.targets[1]
    ones = {"abs": np.ones((CLIENTS, 2)), "square": np.ones((CLIENTS, 2))}
    errors = made.units.errors(ones)
    for target in range(2):
        scales = scale[:, target]
        np.testing.assert_allclose(errors[f"target {target}"]["mae"], np.mean(scales))
        rmse = np.sqrt(np.mean(scales**2))
        np.testing.assert_allclose(errors[f"target {target}"]["rmse"], rmse)
    held = hold_out(made, fraction=0.4, seed=0)
    training = [int(name) for name in held.clients[:-2]]
    np.testing.assert_array_equal(held.units.scale, scale[training])


@pytest.mark.parametrize("graph", ["inductive", "transductive"])
@pytest.mark.parametrize("kind", ["standard", "minmax"])
def test_clients_that_join_later_do_not_decide_on_the_scaling(kind, graph):
    """It is that of a federation without them; they are scaled by it as well."""
    x, y = raw()

    def held(x):
        made = from_arrays(x, y, CLIENT, split=SPLIT, scale=kind)
        return hold_out(made, fraction=0.4, graph=graph, seed=0)

    first = held(x)
    known = np.isin(CLIENT.astype(str), first.clients[:-2])
    alone = from_arrays(x[known], y[known], CLIENT[known], split=SPLIT[known], scale=kind)
    other = held(np.where(known[:, None], x, x + 1000))
    for made in (first, other):
        np.testing.assert_array_equal(made.data.train.x, alone.data.train.x)
        np.testing.assert_array_equal(made.data.evals["test"].y, alone.data.evals["test"].y)
        np.testing.assert_array_equal(made.scaling.inputs, alone.scaling.inputs)
        assert made.units == alone.units
    assert not np.array_equal(first.everyone.train.x[-2:], other.everyone.train.x[-2:])
    assert first.sha256 != other.sha256


def test_errors_of_each_target_are_absolute_and_squared():
    """Of one client with two targets, whose errors are 3 and -2 in scaled units."""
    units = OwnUnits(scale=((10.0, 0.5),))
    task = task_of("regression", units)
    extras = task.extra_metrics(np.float32([[4.0, 1.0]]), np.float32([[1.0, 3.0]]))
    np.testing.assert_array_equal(extras["abs"], [[3.0, 2.0]])
    np.testing.assert_array_equal(extras["square"], [[9.0, 4.0]])
    assert units.errors(extras) == {
        "target 0": {"mae": 30.0, "rmse": 30.0},
        "target 1": {"mae": 1.0, "rmse": 1.0},
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    x, y = raw()
    path = tmp_path_factory.mktemp("raw") / "raw.npz"
    np.savez(path, x=x, y=y, client=CLIENT, split=SPLIT)
    return path


def test_a_file_gives_the_same_as_its_arrays(file):
    x, y = raw()
    loaded = custom(path=str(file), seed=0, scale="minmax", scale_by="client")
    made = from_arrays(x, y, CLIENT, split=SPLIT, scale="minmax", scale_by="client")
    assert loaded.sha256 == made.sha256
    np.testing.assert_array_equal(loaded.data.train.x, made.data.train.x)


@pytest.mark.release
def test_raw_units_diverge_with_a_remedy_that_works(file, tmp_path):
    words = [f"--config={ROOT}/configs/custom.py:fedavg", f"--config.data.path={file}"]
    words += ["--config.rounds=2", "--config.eval_every=2", "--config.cohort_size=3"]
    words += ["--config.local_steps=10", "--config.batch_size=8"]
    bare = [*words, "--config.client_optimizer=sgd"]
    status, printed, _ = launched("run", *bare, "--out=raw", cwd=tmp_path)
    assert status == 1
    high = raw()[0][SPLIT == "train"].max()
    remedy = f"the inputs range from 0.1 to {high:.3g}: set --config.data.scale=standard, or"
    assert remedy in printed
    scaled = [*words, "--config.data.scale=standard", "--out=scaled"]
    status, printed, errors = launched("run", *scaled, cwd=tmp_path)
    assert status == 0, errors
    assert "errors in the targets' own units" in printed
    results = json.loads((tmp_path / "scaled/results.json").read_text())
    assert results["errors"]["units"] == "own" and results["scaling"]["kind"] == "standard"
    assert results["errors"]["P"]["target 0"]["mae"] > 1


@pytest.mark.release
def test_a_run_no_better_than_a_constant_offers_a_sweep_that_learns(file, tmp_path):
    """Inputs of millions: with the defaults, the run is finite, and learns nothing."""
    words = [f"--config={ROOT}/configs/custom.py:fedavg", f"--config.data.path={file}"]
    words += ["--config.rounds=5", "--config.eval_every=5", "--config.local_steps=10"]
    status, printed, errors = launched("run", *words, "--out=raw", cwd=tmp_path)
    assert status == 0, errors
    _, y = raw()
    test, mean = SPLIT == "test", y[SPLIT == "train"].mean(0)
    constant = np.mean(np.square(y[test] - mean))
    stated = f"the mean of the training targets, {constant:.4g}; to search for a"
    hint = re.search(re.escape(stated) + r" learning rate: graphfl (.*)\n", printed)[1]
    name, *words = shlex.split(hint)
    status, printed, errors = launched(name, *words, "--out=swept", cwd=tmp_path)
    assert status == 0, errors
    assert "--config.data.scale=standard" in words
    best = json.loads((tmp_path / "swept/leaderboard.json").read_text())[0]["rows"][0]
    assert best["test"] < 0.6  # in scaled units, in which the constant has about 1
