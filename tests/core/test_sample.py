"""Evaluations of a drawn sample of the clients."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.build import build_experiment
from graphfl_jax.commands.common.comparison import comparison
from graphfl_jax.commands.common.finished_runs import read_run, write_views
from graphfl_jax.commands.common.result_tables import score_table
from graphfl_jax.commands.reporting.folders import run_facts
from graphfl_jax.intervals import half_width
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group, scored_ids, with_sample
from tests.federations import small_config, two_clusters

KEY = jax.random.key(3)


def test_a_sample_is_drawn_from_each_group_in_proportion():
    """Of 30 clients in groups of 20 and 10, 9 are 6 and 3; ids are ascending."""
    ids = np.random.default_rng(1).permutation(30).astype(np.int32)
    groups = (Group(1, np.sort(ids[:20])), Group(1, np.sort(ids[20:])))
    sampled = with_sample(groups, 30, 9)
    assert [len(group.scored) for group in sampled] == [6, 3]
    for group in sampled:
        assert (np.diff(group.scored) > 0).all()
    expected = np.concatenate([group.ids[group.scored] for group in sampled])
    np.testing.assert_array_equal(scored_ids(sampled, 30), np.sort(expected))
    assert with_sample(groups, 30, 30) == groups
    np.testing.assert_array_equal(scored_ids(groups, 30), np.arange(30))


def test_all_clients_are_equally_probable():
    """The places of 2,000 of 10,000 clients are uniform: their mean is within 4 errors."""
    (group,) = with_sample((Group(5),), 10_000, 2_000)
    error = 10_000 / np.sqrt(12 * 2_000)
    assert len(set(group.scored.tolist())) == 2_000
    assert abs(group.scored.mean() - 4_999.5) < 4 * error


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [0, 2])
def test_scores_of_a_sample_are_those_of_a_complete_evaluation(at_once):
    """Also where the last batch is filled up, and where a client is none of the first."""
    federation = two_clusters(7)
    experiment = build_experiment(small_config("ditto"), federation)
    inputs = (KEY, jax.tree.map(jnp.float32, experiment.hparams), federation.data)
    places = np.array([1, 4, 6], np.int32)

    def evaluated(scored):
        groups = (Group(4, scored=scored),)
        program = Program(experiment.build, groups, clients_per_eval=at_once).compiled()
        state = program.start(*inputs)
        return program.evaluate(state, *inputs)

    some, everyone = evaluated(places), evaluated(None)
    for split, points in some.scores.items():
        for point, values in points.items():
            expected = everyone.scores[split][point][places]
            np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_an_interval_of_a_sample_contains_the_mean_in_95_percent_of_draws():
    """Of skewed scores, 20 of 50 clients. Without the share 1 - K / N, it would be 99 %."""
    rng = np.random.default_rng(0)
    scores = rng.beta(5, 2, size=50)
    hits = 0
    for _ in range(4000):
        sample = rng.choice(scores, 20, replace=False)
        hits += abs(sample.mean() - scores.mean()) <= half_width(sample, of=50)
    assert 0.935 < hits / 4000 < 0.965


def test_the_interval_of_all_clients_is_nothing_and_of_one_is_unknown():
    assert half_width([1.0, 2.0, 4.0], of=3) == 0
    assert half_width([1.0], of=3) is None


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """The folder and the result of a run that scores 4 of 9 clients."""
    path = tmp_path_factory.mktemp("run") / "out"
    config = small_config("ditto", rounds=2, eval_every=1, eval__clients=4)
    result = graphfl_jax.run(config, two_clusters(9), out=path)
    write_views(path, result)
    return path, result


@pytest.mark.slow
def test_results_state_the_sample_and_its_interval(sampled):
    _, result = sampled
    sample, final = result.results["sample"], result.results["scores"]["final"]
    assert sample["of"] == 9 and len(sample["ids"]) == 4
    for point in "GLP":
        scores = final[point]["per_client"]
        assert len(scores) == 4
        # The 97.5 % quantile of Student's t with 3 degrees of freedom is 3.182446.
        width = 3.182446 * np.std(scores, ddof=1) / 2 * np.sqrt(1 - 4 / 9)
        np.testing.assert_allclose(sample["half_width"][point], width, rtol=1e-5, atol=1e-9)
    assert len(result.results["rounds_trained"]) == 4
    for row in result.rows:
        assert all(len(values) == 4 for values in row["scores"]["test"].values())


def test_the_same_clients_are_scored_with_every_seed_and_method(sampled):
    _, result = sampled
    config = small_config("local", rounds=1, seed=5, eval__clients=4)
    other = graphfl_jax.run(config, two_clusters(9)).results
    assert other["sample"]["ids"] == result.results["sample"]["ids"]


def test_tables_files_and_reports_of_a_sample_name_its_clients(sampled):
    path, result = sampled
    ids = result.results["sample"]["ids"]
    names = [result.federation.clients[i] for i in ids]
    rows = list(csv.DictReader((path / "clients.csv").read_text().splitlines()))
    assert [row["client"] for row in rows] == names == list(result.clients)
    trained = [str(rounds) for rounds in result.results["rounds_trained"]]
    assert [row["rounds trained"] for row in rows] == trained

    table = score_table(result.results, None)
    assert "over all 9 clients" in table.caption
    width = result.results["sample"]["half_width"]["L"]
    assert table.rows[2][1].endswith(f"± {width:.2g}")

    facts = run_facts(read_run(path))
    assert facts["sample"].startswith("4 of 9 clients were scored; the 95 % interval")
    final = result.results["scores"]["final"]
    at_p = dict(zip(ids, final["P"]["per_client"], strict=True))
    assert facts["scores"]["P"] == [at_p.get(i) for i in range(9)]


@pytest.mark.slow
def test_runs_are_paired_only_over_the_same_sample(sampled, tmp_path):
    path, _ = sampled
    whole, same = tmp_path / "whole", tmp_path / "same"
    config = small_config("local", rounds=1, eval_every=1)
    graphfl_jax.run(config, two_clusters(9), out=whole)
    config = small_config("local", rounds=1, eval_every=1, eval__clients=4)
    graphfl_jax.run(config, two_clusters(9), out=same)
    content = comparison([read_run(path), read_run(whole)])
    assert content["unpaired"][0]["why"] == "their numbers of clients differ"
    samples = {setting["method"]: setting["sample"] for setting in content["settings"]}
    assert samples["local"] == "" and samples["ditto"].startswith("4 of 9 clients were scored")
    content = comparison([read_run(path), read_run(same)])
    assert content["pairs"][0]["clients"] == 4

    results = json.loads((same / "results.json").read_text())
    others = set(range(9)).difference(results["sample"]["ids"])
    results["sample"]["ids"][0] = min(others)
    (same / "results.json").write_text(json.dumps(results))
    content = comparison([read_run(path), read_run(same)])
    assert content["unpaired"][0]["why"] == "they score other clients"


@pytest.mark.slow
def test_an_attack_counts_the_clients_that_were_scored(tmp_path):
    settings = {"rounds": 1, "eval_every": 1, "eval__clients": 6}
    config = small_config(
        "fedavg", attack__name="sign_flip", hparams__attack_ratio=0.5, **settings
    )
    results = graphfl_jax.run(config, two_clusters(12)).results
    malicious, ids = set(results["attack"]["ids"]), results["sample"]["ids"]
    final = dict(zip(ids, results["scores"]["final"]["P"]["per_client"], strict=True))
    benign = [score for i, score in final.items() if i not in malicious]
    assert len(malicious) == 6 and 0 < len(benign) < 6
    assert results["attack"]["benign"]["P"]["per_client"] == benign
    for part in results["attack"]["benign_by_malicious_neighbours"]:
        assert set(part["ids"]) <= set(ids) - malicious
        mean = np.mean([final[i] for i in part["ids"]])
        np.testing.assert_allclose(part["scores"]["P"], mean, rtol=1e-6)


@pytest.mark.release
def test_debug_mode_scores_the_same_sample(sampled):
    _, result = sampled
    config = small_config("ditto", rounds=1, eval_every=1, eval__clients=4)
    debugged = graphfl_jax.run(config, two_clusters(9), debug=True)
    for point, values in debugged.rows[0]["scores"]["test"].items():
        expected = result.rows[0]["scores"]["test"][point]
        np.testing.assert_allclose(values, expected, atol=1e-5)


def test_a_sample_of_more_clients_than_train_is_refused():
    message = (
        "^eval.clients=10 exceeds the 9 clients that train; set --config.eval.clients=9 or less"
    )
    with pytest.raises(ValueError, match=message):
        build_experiment(small_config("local", eval__clients=10), two_clusters(9))
    with pytest.raises(ValueError, match="^eval.clients=0 must be at least 1; set"):
        small_config("local", eval__clients=0)
    groups = (Group(1, np.arange(3)), Group(1, np.arange(3, 6)))
    with pytest.raises(ValueError, match="^eval.clients=1 is less than the 2 architectures"):
        with_sample(groups, 6, 1)
