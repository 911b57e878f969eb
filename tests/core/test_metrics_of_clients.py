"""Further metrics of `config.metrics`, compared with a few lines of NumPy."""

import jax
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax import metrics
from graphfl_jax.commands.common import trackers
from graphfl_jax.metrics import CLASSIFICATION, metric_summary, with_metrics
from tests.federations import small_config, two_clusters

pytestmark = pytest.mark.usefixtures("shared_programs")


def compiled(name, outputs, y, real):
    return float(jax.jit(metrics.METRICS[name])(np.float32(outputs), y, np.array(real)))


def by_pairs(score, positive):
    """The AUC as the share of pairs that are in order."""
    pairs = [(a > b) + 0.5 * (a == b) for a in score[positive] for b in score[~positive]]
    return np.mean(pairs)


def classes_case(classes, padding=4, seed=0):
    """Outputs with equal and extreme ones, labels without the last class, and the real rows."""
    rng = np.random.default_rng(seed)
    outputs = np.round(8 * rng.normal(size=(30, classes))) / 8
    outputs[0] *= 100.0  # its probability rounds to 1
    y = rng.integers(0, classes - (classes > 2), size=30)
    outputs = np.concatenate([outputs, np.full((padding, classes), 7.0)])
    y = np.concatenate([y, np.zeros(padding, int)]).astype(np.int32)
    return outputs, y, np.arange(30 + padding) < 30


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_of_a_classification_are_those_of_numpy(classes):
    outputs, y, real = classes_case(classes)
    own, labels = outputs[real], y[real]
    predicted = own.argmax(axis=1)
    there = np.unique(labels)
    recalls = [np.mean(predicted[labels == c] == c) for c in there]
    f1 = []
    for c in np.union1d(there, predicted):
        hits = np.sum((predicted == c) & (labels == c))
        f1.append(2 * hits / (np.sum(predicted == c) + np.sum(labels == c)))
    # The log-odds, which order as probabilities do, in double precision.
    others = np.array([np.delete(own, c, axis=1) for c in range(classes)])
    odds = own - np.log(np.exp(others).sum(axis=2)).T
    areas = [by_pairs(np.round(odds[:, c], 5), labels == c) for c in there]
    expected = {
        "balanced_accuracy": np.mean(recalls),
        "macro_f1": np.mean(f1),
        "auc": np.mean(areas),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(compiled(name, outputs, y, real), value, rtol=1e-6)


def test_metrics_of_a_regression_are_those_of_numpy():
    rng = np.random.default_rng(0)
    y, outputs = 50.0 + rng.normal(size=(2, 20, 3)).astype(np.float32)
    real = np.arange(20) < 17
    t, f = (np.float64(values[real]) for values in (y, outputs))
    expected = {
        "rmse": np.sqrt(np.mean((t - f) ** 2)),
        "mae": np.mean(np.abs(t - f)),
        "r2": np.mean(1 - ((t - f) ** 2).sum(0) / ((t - t.mean(0)) ** 2).sum(0)),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(compiled(name, outputs, y, real), value, rtol=1e-4)


def test_what_is_undefined_is_nan_and_never_a_number():
    rng = np.random.default_rng(0)
    real, outputs = np.arange(9) < 7, rng.normal(size=(9, 2))
    one_class = np.where(real, 1, 0).astype(np.int32)  # padding must not be a second class
    assert np.isnan(compiled("auc", outputs, one_class, real))
    recall = np.mean(outputs[:7].argmax(axis=1) == 1)
    assert compiled("balanced_accuracy", outputs, one_class, real) == np.float32(recall)
    constant = np.float32(np.where(real[:, None], [[0.1, 3.0]], 5.0))
    constant[:, 1] += np.arange(9)
    assert np.isnan(compiled("r2", outputs, constant, real))
    assert compiled("rmse", outputs, constant, real) > 0
    for name, y in (*dict.fromkeys(("rmse", "mae", "r2"), constant).items(),):
        assert np.isnan(compiled(name, outputs, y, np.zeros(9, bool)))
    for name in ("balanced_accuracy", "macro_f1", "auc"):
        assert np.isnan(compiled(name, outputs, one_class, np.zeros(9, bool)))


def test_a_summary_is_over_the_clients_with_the_metric():
    found = metric_summary(np.float32([0.5, 0.0, 1.0]), np.array([True, False, True]))
    assert found == {"mean": 0.75, "clients": 2, "per_client": [0.5, None, 1.0]}
    nobody = metric_summary(np.float32([0.0]), np.array([False]))
    assert nobody == {"mean": None, "clients": 0, "per_client": [None]}


def test_metrics_of_another_task_are_refused():
    with pytest.raises(ValueError, match="metrics=r2 does not fit shops, .* choose from bal"):
        with_metrics(CLASSIFICATION, ("r2",), of="classification", data="shops")
    with pytest.raises(ValueError, match="metrics=f2: 'f2' is unknown; choose from balanced"):
        small_config("fedavg", metrics=("f2",))


def test_a_run_has_the_metrics_of_each_client_and_the_same_scores():
    """One client has a single class in its test examples, so it has no AUC."""
    whole = two_clusters()
    test = whole.data.evals["test"]
    y = test.y.copy()
    y[2] = 1
    data = whole.data._replace(evals=whole.data.evals | {"test": test._replace(y=y)})
    whole = whole._replace(data=data)

    lines = []

    def results(**fields):
        config = small_config("fedavg", rounds=2, eval_every=2, **fields)
        return graphfl_jax.run(config, whole, report=lines.append).results

    with_them, without = results(metrics=("auc", "macro_f1")), results()
    assert without["metrics"] is None
    assert lines[0]["metrics"] == with_them["metrics"] and "metrics" not in lines[1]
    written = dict(trackers.scalars(lines[0]))
    for name, own in with_them["metrics"]["P"].items():
        assert written[f"metrics/P/{name}"] == own["mean"]
    assert with_them["scores"] == without["scores"]
    for point in ("G", "L", "P"):
        own = with_them["metrics"][point]
        assert own["auc"]["per_client"][2] is None and own["auc"]["clients"] == 6
        values = [value for value in own["auc"]["per_client"] if value is not None]
        assert own["auc"]["mean"] == pytest.approx(np.mean(values))
        assert own["macro_f1"]["clients"] == 7


def test_trackers_get_the_numbers_of_evaluations_with_uploads_that_are_not_finite():
    scores = dict.fromkeys(trackers.SUMMARIES, 0.5)
    unknown = {"P": dict.fromkeys(trackers.SUMMARIES)}  # of a client that is not finite
    row = {"round": 2, "train": {"loss": None}, "test": {"P": scores}, "val": unknown}
    row |= {"not_finite": {"Oslo": 2}, "allocation": [[1.0]], "metrics": {"P": {}}}
    assert dict(trackers.scalars(row)) == {f"test/P/{name}": 0.5 for name in scores}


@pytest.mark.slow
def test_a_resumed_run_has_the_metrics_of_the_whole_run(tmp_path):
    def play(name, rounds):
        config = small_config("fedavg", rounds=rounds, eval_every=1, metrics=("auc",))
        resume = (tmp_path / name).exists()
        graphfl_jax.run(config, two_clusters(), out=tmp_path / name, resume=resume)
        return (tmp_path / name / "metrics.jsonl").read_text()

    play("cut", 2)
    assert play("cut", 3) == play("whole", 3)
