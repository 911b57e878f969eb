"""The robustness entry: statistics of runs under attack, tables and figure."""

import json

import numpy as np
import pytest
from scipy import stats

from graphfl_jax.commands.common.flag_values import shares
from graphfl_jax.commands.common.plots import draw_robustness
from graphfl_jax.commands.common.statistics import over_seeds
from graphfl_jax.commands.paper.robustness_statistics import (
    excess_losses,
    robustness_row,
    robustness_tables,
    with_best_defences,
)
from tests.entries import ROOT, launched


def run(scores, ids=(), success=None, higher=True):
    """A run in the format of results.json: clients with these scores, of which `ids` attack."""
    benign = np.delete(scores, list(ids)).mean() if len(ids) < len(scores) else None
    summary = {"mean": float(np.mean(scores)), "per_client": list(scores)}
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
        "scores": {"final": dict.fromkeys("GLP", summary)},
        "attack": attack,
    }


CONFIG = f"--config={ROOT}/configs/fl60.py"
CLEAN = [run([0.9, 0.8, 0.7]), run([0.6, 0.9, 0.9])]
ATTACKED = [run([0.1, 0.6, 0.7], [0], 0.25), run([0.5, 0.0, 0.8], [1], 0.75)]


def test_losses_compare_the_same_benign_clients_in_the_same_seed():
    """Seed 0, clients 1 and 2: from 75 to 65 %. Seed 1, clients 0 and 2: from 75 to 65 %."""
    scores = robustness_row(ATTACKED, CLEAN)["points"]["P"]
    np.testing.assert_allclose(scores["loss"]["seeds"], [10.0, 10.0])
    np.testing.assert_allclose(scores["benign"]["seeds"], [65.0, 65.0])
    np.testing.assert_allclose(scores["all"]["seeds"], [140 / 3, 130 / 3])
    np.testing.assert_allclose(scores["success"]["mean"], 50.0)
    attacked, clean = run([0.004, 0.002], [0], higher=False), run([0.003, 0.001], higher=False)
    row = robustness_row([attacked], [clean])
    np.testing.assert_allclose(row["points"]["G"]["loss"]["mean"], 1.0)


def test_intervals_over_seeds_are_those_of_students_t():
    numbers = [1.0, 2.0, 4.0, 4.5, 7.0]
    interval = stats.t.interval(0.95, 4, np.mean(numbers), stats.sem(numbers))
    summary = over_seeds(numbers)
    mean, half_width = summary["mean"], summary["half_width"]
    np.testing.assert_allclose((mean - half_width, mean + half_width), interval)
    assert over_seeds([3.0])["half_width"] is None


def test_without_benign_clients_or_with_a_diverged_run_there_is_no_score():
    diverged = [CLEAN[0] | {"diverged": True}, ATTACKED[1]]
    assert robustness_row(diverged, CLEAN)["points"] is None
    assert robustness_row([run([0.1, 0.1, 0.1], [0, 1, 2])] * 2, CLEAN)["points"] is None


def test_methods_are_compared_with_the_first_seed_by_seed():
    names = {"attack": "alie", "ratio": 0.3}
    worse = [run([0.1, 0.5, 0.5], [0]), run([0.5, 0.0, 0.6], [1])]
    rows = [
        {"method": "first", **names, **robustness_row(ATTACKED, CLEAN)},
        {"method": "other", **names, **robustness_row(worse, CLEAN)},
    ]
    (row,) = excess_losses(rows, "first")
    np.testing.assert_allclose(row["points"]["P"]["excess_loss"]["seeds"], [15.0, 10.0])
    tables = dict(robustness_tables(rows))
    assert "alie: loss of benign clients minus that with first, accuracy at P, %" in tables
    assert "alie: success at P, % of benign clients' triggered images" in tables
    assert all(text[0] == ["method", "0.3"] for text in tables.values())
    rows[0] |= {"points": None, "diverged": 2}
    tables = dict(robustness_tables(rows))
    assert tables["alie: accuracy at P, %, all clients"][1][1] == "2 diverged"
    assert not any("minus that with" in title for title in tables)


def test_the_best_defence_has_the_fewest_diverged_runs_and_then_the_best_validation():
    """Of three, one has a diverged run and the best scores; test scores play no part."""

    def row(undefended, defence, validation, diverged=0, higher=True):
        own = {"validation": validation, "diverged": diverged, "higher_is_better": higher}
        return own | {"method": undefended + defence, "undefended": undefended}

    rows = [
        *(row("one", "", 0.9), row("one", "", None, diverged=1)),
        *(row("one", "+clip", 0.5), row("one", "+clip", 0.7)),
        *(row("one", "+monotone", 0.4), row("one", "+monotone", 0.7)),
        *(row("two", "", 0.3, higher=False), row("two", "+clip", 0.2, higher=False)),
    ]
    names = [own["method"] for own in with_best_defences(rows)]
    assert names == ["one+clip", "one+clip", "two+clip"]
    with pytest.raises(
        ValueError, match="^best_defences chooses by validation, .*val_fraction"
    ):
        with_best_defences([row("one", "", None), row("one", "+clip", 0.5)])


def test_validation_scores_are_means_over_runs_at_p():
    runs = [one | {"scores": dict(one["scores"])} for one in CLEAN]
    for one, mean in zip(runs, (0.2, 0.6), strict=True):
        one["scores"]["validation"] = {"P": {"mean": mean}}
    assert robustness_row(runs, CLEAN)["validation"] == pytest.approx(0.4)
    assert robustness_row(CLEAN, CLEAN)["validation"] is None
    broken = [runs[0] | {"diverged": True}, runs[1]]
    assert robustness_row(broken, CLEAN)["validation"] is None


def test_a_cross_marks_a_ratio_with_a_diverged_run():
    broken = [CLEAN[0], ATTACKED[1] | {"diverged": True}]
    rows = [
        {"method": "m", "attack": "alie", "ratio": ratio, **robustness_row(runs, CLEAN)}
        for ratio, runs in ((0.0, CLEAN), (0.2, broken))
    ]
    (axes,) = draw_robustness(rows, "").axes
    line, cross = (axes.lines[i].get_xydata() for i in (0, 1))
    np.testing.assert_allclose(line, [[0.0, 80.0], [20.0, np.nan]])
    np.testing.assert_allclose(cross, [[20.0, 0.03]])  # near the bottom, since higher is better


@pytest.mark.parametrize("words", [["0", "1.5"], ["-0.1"], ["half"], ["nan"]])
def test_ratios_outside_the_unit_interval_are_refused(words):
    with pytest.raises(ValueError, match=f"ratios={','.join(words)} has a value outside"):
        shares("ratios", words)


def test_ratios_are_sorted_and_zero_is_added():
    assert shares("ratios", ["0.5", "0.1"]) == [0.0, 0.1, 0.5]


@pytest.mark.slow
def test_the_entry_writes_tables_and_reads_runs_from_the_cache(tmp_path):
    words = [CONFIG, "--config.rounds=3", "--config.local_steps=5", "--config.model.hidden=5"]
    words += ["--methods=fedavg", "--attacks=sign_flip", "--ratios=0.5", "--seeds=2"]
    status, printed, errors = launched("robustness", *words, "--out=out", cwd=tmp_path)
    assert status == 0, errors
    assert "4 new runs, 0 from the cache" in printed
    page = (tmp_path / "out/robustness.md").read_text()
    command = "python -m experiments.robustness --config=configs/fl60.py --config.rounds=3"
    assert page.startswith(f"Made by `{command}") and "--out" not in page
    assert "--methods=fedavg --attacks=sign_flip" in page
    assert "sign_flip: loss of benign clients, accuracy at P, %" in page
    names = {f"robustness.{suffix}" for suffix in ("json", "md", "png", "svg")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"cached_runs", *names}
    before = json.loads((tmp_path / "out/robustness.json").read_text())
    assert [(row["ratio"], row["attackers"]) for row in before["rows"]] == [(0.0, 0), (0.5, 30)]
    assert before["rows"][0]["points"]["P"]["loss"]["seeds"] == [0.0, 0.0]
    status, printed, errors = launched("robustness", *words, "--out=out", cwd=tmp_path)
    assert status == 0 and "0 new runs, 4 from the cache" in printed, errors
    assert json.loads((tmp_path / "out/robustness.json").read_text()) == before
