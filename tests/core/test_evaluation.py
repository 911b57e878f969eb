"""What evaluations compute, and what they leave out."""

import functools
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.build import build_experiment
from graphfl_jax.commands.common.finished_runs import read_run
from graphfl_jax.commands.common.result_tables import not_finite_text
from graphfl_jax.core import State
from graphfl_jax.evaluation import EVERYTHING, Scope, allocation_and_rejected, score_split
from graphfl_jax.examples import Examples
from graphfl_jax.metrics import CLASSIFICATION, MULTI_LABEL
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group
from tests.federations import small_config, two_clusters

KEY = jax.random.key(3)


def scores_of(experiment, scope):
    program = Program(experiment.build, groups=(Group(4),)).compiled()
    inputs = (KEY, jax.tree.map(jnp.float32, experiment.hparams), experiment.federation.data)
    state = program.start(*inputs)
    chosen, *_ = program.evaluate(state, *inputs, scope=scope)
    return chosen, program.evaluate(state, *inputs)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [pytest.param("panacea", marks=pytest.mark.release), "ditto"]
)  # P is G; P is another model
@pytest.mark.parametrize(
    "scope", [Scope(("P",), ("val",)), Scope(("G", "L"), ("test",)), Scope(("L", "P"))]
)
def test_chosen_scores_are_those_of_a_complete_evaluation(method, scope):
    experiment = build_experiment(small_config(method), two_clusters())
    chosen, complete = scores_of(experiment, scope)
    assert set(chosen) == set(scope.splits or complete)
    for split, scores in chosen.items():
        assert set(scores) == set(scope.points)
        for point, values in scores.items():
            np.testing.assert_allclose(values, complete[split][point], rtol=1e-6)


def test_clients_train_locally_only_for_the_points_that_need_it():
    experiment = build_experiment(small_config("panacea"), two_clusters())

    def build(hparams, played):
        def refuse(message, memory, data, key):
            raise AssertionError("local training")

        return experiment.build(hparams, played).replacing(local=refuse)

    def evaluate(points):
        program = Program(build, groups=(Group(4),)).compiled()
        hparams = jax.tree.map(jnp.float32, experiment.hparams)
        inputs = (KEY, hparams, experiment.federation.data)
        state = jax.eval_shape(program.start, *inputs)
        evaluate = functools.partial(program.evaluate, scope=Scope(points, ()))
        return jax.eval_shape(evaluate, state, *inputs)

    evaluate(("G", "P"))
    with pytest.raises(AssertionError, match="local training"):
        evaluate(("L",))


@pytest.mark.parametrize(
    "task, labels",
    [(CLASSIFICATION, [0, 2, 1, 1, 0]), (MULTI_LABEL, np.eye(3)[[0, 2, 1, 1, 0]])],
)
def test_the_loss_on_validation_is_that_of_the_predictors_outputs(task, labels):
    """Five real examples of seven, two at once; the predictor has outputs of its own."""
    outputs = np.float32(np.random.default_rng(0).normal(size=(7, 3)))
    y = np.concatenate([labels, np.zeros((2, *np.shape(labels)[1:]))])
    y = y.astype(np.int32 if task is CLASSIFICATION else np.float32)
    model = types.SimpleNamespace(task=task, predict=None)
    client = types.SimpleNamespace(model=model, predict=lambda predictor, x: predictor * x)
    examples = Examples(*map(jnp.asarray, (outputs, y, np.int32(5))))
    of_split = [score_split(client, 2.0, split, examples, 2)[1] for split in ("val", "test")]
    logits = 2.0 * outputs[:5].astype(np.float64)
    if task is CLASSIFICATION:
        per_example = np.log(np.exp(logits).sum(1)) - logits[np.arange(5), y[:5]]
        assert of_split[1] == {}
    else:
        per_example = np.mean(np.log1p(np.exp(logits)) - logits * y[:5], axis=1)
    np.testing.assert_allclose(of_split[0], per_example.mean(), rtol=1e-5)


@pytest.mark.release
def test_only_the_last_evaluation_of_a_run_is_complete(tmp_path):
    everything = small_config("ditto", rounds=4, eval_every=2)
    some = small_config(
        "ditto", rounds=4, eval_every=2, eval__points=("P",), eval__splits=("val",)
    )
    whole = graphfl_jax.run(everything, two_clusters())
    part = graphfl_jax.run(some, two_clusters(), out=tmp_path / "part")
    for row in part.rows:
        assert {split: set(scores) for split, scores in row["scores"].items()} == {"val": {"P"}}
    assert set(part.final) == {"val", "test"} and set(part.final["test"]) == {"G", "L", "P"}
    for point, scores in part.results["scores"]["final"].items():
        expected = whole.results["scores"]["final"][point]["per_client"]
        np.testing.assert_allclose(scores["per_client"], expected, rtol=1e-6)
    assert whole.results["scores"]["best_val"] is not None
    assert part.results["scores"]["best_val"] is None
    again = graphfl_jax.run(some, two_clusters(), out=tmp_path / "part", resume=True)
    assert again.results["scores"] == part.results["scores"]
    assert len((tmp_path / "part/metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_results_have_how_far_embeddings_have_moved():
    """With a rate of 0 of their own they stay, so that these are those of the start."""
    fields = {"rounds": 2, "eval_every": 1, "algorithm__separate_embedding_lr": True}
    still, moved = (
        graphfl_jax.run(
            small_config("panacea", **fields, hparams__embedding_lr=factor), two_clusters()
        )
        for factor in (0.0, 100.0)
    )
    first, last = (run.state.server.weights["embeddings"] for run in (still, moved))
    expected = np.linalg.norm(last - first) / np.linalg.norm(first)
    assert still.results["embeddings_moved"] == 0.0 and expected > 1e-4
    assert moved.results["embeddings_moved"] == pytest.approx(expected, rel=1e-5)


def one_client_too_large():
    """Seven clients; the inputs of client 3 make its training overflow in every round."""
    whole = two_clusters()
    x = whole.data.train.x.copy()
    x[3] *= np.float32(1e30)
    train = whole.data.train._replace(x=x)
    return whole._replace(data=whole.data._replace(train=train))


@pytest.mark.slow
@pytest.mark.parametrize("defence", ["", "median"])
def test_one_client_that_is_not_finite_does_not_end_a_run(tmp_path, defence):
    config = small_config("fedavg", rounds=4, eval_every=2, defence__name=defence)
    result = graphfl_jax.run(config, one_client_too_large(), out=tmp_path)
    found, final = result.results["not_finite"], result.results["scores"]["final"]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    drawn = sum(line.get("not_finite", {}).get("client 3", 0) for line in lines)
    assert 1 <= drawn <= 4 and found["uploads"] == {"client 3": drawn}
    assert found["first"]["client"] == "client 3" and found["scores"] == ["client 3"]
    assert np.isnan(final["L"]["per_client"]).tolist() == [i == 3 for i in range(7)]
    assert np.isnan(final["L"]["mean"]) and not result.results["diverged"]
    others = np.delete(final["L"]["per_client"], 3)
    assert found["others"]["L"] == pytest.approx(others.mean())
    assert not np.isnan(final["P"]["mean"]) and result.diverged_at == -1
    text = not_finite_text(result.results)
    assert text.startswith(
        f"{drawn} uploads were not finite, and those clients counted as untrained in these "
        f"rounds: client 3 ({drawn})"
    )
    assert (
        "; the scores of client 3 are not finite; means of accuracy over the 6 others" in text
    )
    written = read_run(tmp_path).results
    np.testing.assert_equal(written["scores"], result.results["scores"])
    assert (
        written["not_finite"] == found and "NaN" not in (tmp_path / "results.json").read_text()
    )
    again = graphfl_jax.run(config, one_client_too_large(), out=tmp_path, resume=True)
    np.testing.assert_equal(again.results["scores"], result.results["scores"])
    assert again.results["not_finite"] == found


@pytest.mark.slow
def test_a_score_at_p_that_is_not_finite_is_of_the_round_of_its_client():
    """Fine-tuning overflows as local training does, in the first round already."""
    sizes = {"rounds": 2, "eval_every": 2, "cohort_size": 7}
    config = small_config("fedavg", **sizes, tuning__part="whole")
    result = graphfl_jax.run(config, one_client_too_large())
    assert result.results["diverged"] and result.final is not None
    assert result.diverged_at == result.results["not_finite"]["first"]["round"] == 1


@pytest.mark.parametrize("client_lr, finite", [(0.1, True), (1e30, False)])
def test_a_run_that_diverged_has_no_last_scores(client_lr, finite):
    config = small_config("fedavg", rounds=2, eval_every=2, hparams__client_lr=client_lr)
    result = graphfl_jax.run(config, two_clusters())
    assert result.unsaved == 0  # nothing is to be written
    if finite:
        assert result.diverged_at == -1 and set(result.final) == {"val", "test"}
    else:
        assert 1 <= result.diverged_at <= 2 and result.final is None
        assert result.results["not_finite"]["first"]["round"] == result.diverged_at


@pytest.mark.release
def test_debugging_evaluates_the_same_scores():
    config = small_config("ditto", rounds=1, eval__points=("P",), eval__splits=("val",))
    compiled = graphfl_jax.run(config, two_clusters())
    debugged = graphfl_jax.run(config, two_clusters(), debug=True)
    for found, expected in ((debugged.rows, compiled.rows), (debugged.final, compiled.final)):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected
        )


@pytest.mark.parametrize("clients, kept", [(100, (100, 100)), (101, (0,))])
def test_allocations_are_kept_of_at_most_a_hundred_clients(clients, kept):
    experiment = build_experiment(small_config("fedavg"), two_clusters())
    algorithm = experiment.build(experiment.hparams, 0)
    algorithm = algorithm.replacing(allocation=lambda server: server)
    shares, _ = allocation_and_rejected(algorithm, State(np.eye(clients), (), 0))
    assert np.shape(shares) == kept


def test_an_empty_choice_is_everything():
    config = small_config("ditto")
    assert (config.eval.points, config.eval.splits) == ((), ())
    assert Scope(("G", "L", "P"), ()) == EVERYTHING


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"eval__points": ("G", "X")},
            r"^eval.points=G,X: 'X' is unknown; choose from G, L, P$",
        ),
        ({"eval__splits": ("train",)}, r"^eval.splits=train: 'train' is unknown; choose from "),
    ],
)
def test_unknown_points_and_splits_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small_config("ditto", **changes)


def test_a_split_that_the_data_lack_is_refused():
    config, made = small_config("ditto", eval__splits=("val",)), two_clusters()
    without = {"test": made.data.evals["test"]}
    made = made._replace(data=made.data._replace(evals=without))
    message = "^eval.splits=val: .* no split 'val' .*choose from test, or .*val_fraction=0.1$"
    with pytest.raises(ValueError, match=message):
        build_experiment(config, made)
