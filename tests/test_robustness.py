"""Methods under attack: what the entry tells, and how it pairs runs."""

import json

import numpy as np
import pytest
from scipy import stats

from experiments.common.plots import draw_robustness
from experiments.paper.robustness_statistics import behind, over_seeds, row, shares, tables_of
from tests.entries import entry


def run(scores, ids=(), success=None, higher=True):
    """As results.json holds it, of clients with these scores of whom `ids` attack."""
    benign = np.delete(scores, list(ids)).mean() if len(ids) < len(scores) else None
    told = {"mean": float(np.mean(scores)), "per_client": list(scores)}
    attack = {"ids": list(ids), "benign": None, "success": None}
    if benign is not None:
        attack["benign"] = {point: {"mean": benign} for point in "GLP"}
    if success is not None:
        attack["success"] = dict.fromkeys("GLP", success)
    return {
        "metric": "accuracy" if higher else "mse",
        "higher_is_better": higher,
        "diverged": False,
        "new_clients": None,
        "scores": {"final": dict.fromkeys("GLP", told)},
        "attack": attack,
    }


CLEAN = [run([0.9, 0.8, 0.7]), run([0.6, 0.9, 0.9])]
HIT = [run([0.1, 0.6, 0.7], [0], 0.25), run([0.5, 0.0, 0.8], [1], 0.75)]


def test_losses_are_of_the_same_honest_clients_in_the_same_seed():
    """Of seed 0 clients 1 and 2: 75 to 65 %; of seed 1 clients 0 and 2: 75 to 65 %."""
    told = row(HIT, CLEAN)["points"]["P"]
    np.testing.assert_allclose(told["lost"]["seeds"], [10.0, 10.0])
    np.testing.assert_allclose(told["benign"]["seeds"], [65.0, 65.0])
    np.testing.assert_allclose(told["all"]["seeds"], [140 / 3, 130 / 3])
    np.testing.assert_allclose(told["success"]["mean"], 50.0)
    worse = row([run([0.004, 0.002], [0], higher=False)], [run([0.003, 0.001], higher=False)])
    np.testing.assert_allclose(worse["points"]["G"]["lost"]["mean"], 1.0)


def test_intervals_are_students():
    numbers = [1.0, 2.0, 4.0, 4.5, 7.0]
    low, high = stats.t.interval(0.95, 4, np.mean(numbers), stats.sem(numbers))
    told = over_seeds(numbers)
    np.testing.assert_allclose(
        (told["mean"] - told["half"], told["mean"] + told["half"]), (low, high)
    )
    assert over_seeds([3.0])["half"] is None


def test_what_diverged_or_has_nobody_honest_has_no_score():
    assert row([CLEAN[0] | {"diverged": True}, HIT[1]], CLEAN)["points"] is None
    assert row([run([0.1, 0.1, 0.1], [0, 1, 2])] * 2, CLEAN)["points"] is None


def test_methods_are_compared_seed_by_seed_with_the_first():
    about = {"attack": "alie", "ratio": 0.3}
    worse = [run([0.1, 0.5, 0.5], [0]), run([0.5, 0.0, 0.6], [1])]
    rows = [
        {"method": "first", **about, **row(HIT, CLEAN)},
        {"method": "other", **about, **row(worse, CLEAN)},
    ]
    (told,) = behind(rows, "first")
    np.testing.assert_allclose(told["points"]["P"]["behind"]["seeds"], [15.0, 10.0])
    tables = dict(tables_of(rows))
    assert "alie: what the others lost more than first, accuracy at P, %" in tables
    assert "alie: success at P, % of honest clients' triggered images" in tables
    assert all(text[0] == ["method", "0.3"] for text in tables.values())
    rows[0] |= {"points": None, "diverged": 2}
    tables = dict(tables_of(rows))
    assert tables["alie: accuracy at P, %, of all clients"][1][1] == "2 diverged"
    assert not any("lost more than" in title for title in tables)


def test_a_cross_is_where_a_run_diverged():
    broken = [CLEAN[0], HIT[1] | {"diverged": True}]
    rows = [
        {"method": "m", "attack": "alie", "ratio": ratio, **row(runs, CLEAN)}
        for ratio, runs in ((0.0, CLEAN), (0.2, broken))
    ]
    (axes,) = draw_robustness(rows, "").axes
    line, cross = (axes.lines[i].get_xydata() for i in (0, 1))
    np.testing.assert_allclose(line, [[0.0, 80.0], [20.0, np.nan]])
    np.testing.assert_allclose(cross, [[20.0, 0.03]])  # near the bottom, as more is better


@pytest.mark.parametrize("words", [["0", "1.5"], ["-0.1"], ["half"], ["nan"]])
def test_ratios_are_shares(words):
    with pytest.raises(ValueError, match=f"ratios={','.join(words)} must be in"):
        shares(words)
    assert shares(["0.5", "0.1"]) == [0.0, 0.1, 0.5]


def test_the_entry_leaves_tables_and_makes_no_run_twice(tmp_path):
    words = ["--methods=fedavg", "--attacks=sign_flip", "--ratios=0.5", "--seeds=2"]
    status, told, errors = entry("robustness", *words, "--out=out", cwd=tmp_path)
    assert status == 0, errors
    assert "4 runs made, 0 found" in told
    assert "sign_flip: what honest clients lost" in (tmp_path / "out/robustness.md").read_text()
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {
        "cells",
        *(f"robustness.{suffix}" for suffix in ("json", "md", "png", "svg")),
    }
    before = json.loads((tmp_path / "out/robustness.json").read_text())
    assert [(one["ratio"], one["attackers"]) for one in before["rows"]] == [(0.0, 0), (0.5, 30)]
    assert before["rows"][0]["points"]["P"]["lost"]["seeds"] == [0.0, 0.0]
    status, told, errors = entry("robustness", *words, "--out=out", cwd=tmp_path)
    assert status == 0 and "0 runs made, 4 found" in told, errors
    assert json.loads((tmp_path / "out/robustness.json").read_text()) == before


def test_an_attack_that_is_none_is_refused_in_one_line(tmp_path):
    status, told, errors = entry("robustness", "--attacks=gas", cwd=tmp_path)
    assert (status, told, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: attacks='gas' is unknown; choose from label_flip")
    assert not any(tmp_path.iterdir())
