"""The robustness command: statistics of runs under attack, tables and figure."""

import copy
import json
import math

import numpy as np
import pytest
from scipy import stats

from experiments.common.flag_values import shares
from experiments.paper.robustness_plots import draw_neighbours, draw_robustness
from experiments.paper.robustness_statistics import (
    choice_table,
    defence_choices,
    excess_losses,
    robustness_row,
    robustness_tables,
)
from graphfl_jax.commands.common.statistics import over_seeds
from tests.commands import ROOT, launched


def run(scores, ids=(), success=None, higher=True, neighbours=None, rejected=None):
    """A run in the format of results.json: clients with these scores, of which `ids` attack.

    Args:
      neighbours: ids of benign clients by the share of malicious ones among their neighbours.
      rejected: shares of rejected uploads of benign and of malicious clients.
    """
    benign = np.delete(scores, list(ids)).mean() if len(ids) < len(scores) else None
    summary = {"mean": float(np.mean(scores)), "per_client": list(scores)}
    attack = {"ids": list(ids), "benign": None, "success": None}
    attack["benign_by_malicious_neighbours"] = neighbours and [
        {
            "share": share,
            "ids": numbers,
            "scores": dict.fromkeys("GLP", np.mean(scores, where=at)),
        }
        for share, numbers in neighbours.items()
        for at in [np.isin(range(len(scores)), numbers)]
    ]
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
        "rejected": rejected and dict(zip(("honest", "malicious"), rejected, strict=True)),
    }


SUFFIXES = ("png", "svg")
CONFIG = f"--config={ROOT}/configs/fl60.py"
CLEAN = [run([0.9, 0.8, 0.7]), run([0.6, 0.9, 0.9])]
ATTACKED = [run([0.1, 0.6, 0.7], [0], 0.25), run([0.5, 0.0, 0.8], [1], 0.75)]
# The same with relations and a defence.
RELATED = [
    run([0.1, 0.6, 0.7], [0], neighbours={"none": [2], "up to half": [1]}, rejected=[0.1, 0.9]),
    run([0.5, 0.0, 0.8], [1], neighbours={"up to half": [0, 2]}, rejected=[0.3, 1.0]),
]


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
    np.testing.assert_allclose(row["points"]["G"]["increase"]["mean"], 100.0)
    assert "increase" not in scores


def test_losses_are_split_by_the_share_of_malicious_neighbours():
    """Seed 0: client 2 loses nothing, and client 1 falls from 80 to 60 %. Seed 1: as above."""
    row = robustness_row(RELATED, CLEAN)
    assert list(row["neighbours"]) == ["none", "up to half"]
    losses = {share: points["P"] for share, points in row["neighbours"].items()}
    np.testing.assert_allclose(losses["none"]["seeds"], [0.0], atol=1e-12)
    np.testing.assert_allclose(losses["up to half"]["seeds"], [20.0, 10.0])
    np.testing.assert_allclose(row["rejected"]["honest"]["seeds"], [10.0, 30.0])
    np.testing.assert_allclose(row["rejected"]["malicious"]["mean"], 95.0)
    rows = [row | {"method": "m", "attack": "alie", "ratio": 0.3}]
    tables = dict(robustness_tables(rows))
    title = "loss of benign clients by their malicious neighbours, accuracy at P, %"
    cells = {name: cell.partition("±")[0] for _, name, cell in tables[title][1:]}
    few = "0.00 (1 of 2 seeds)"
    assert cells == {"m, none": few, "m, up to half": "15.00", "m, more than half": ""}
    assert not any("seeds)" in cell for _, name, cell in tables[title][1:] if name != "m, none")
    cells = {name: cell.partition("±")[0] for _, name, cell in tables["rejected uploads, %"]}
    assert cells == {"method": "0.3", "m, benign": "20.00", "m, malicious": "95.00"}
    (axes,) = draw_neighbours(rows, "").axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.0, 15.0, np.nan], atol=1e-12)


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


def test_a_score_that_is_not_finite_counts_as_divergence_of_benign_clients_alone():
    whole = robustness_row(ATTACKED, CLEAN)
    for missing in (None, math.nan):
        of_attacker = copy.deepcopy(ATTACKED)
        of_attacker[0]["scores"]["final"]["L"] = {
            "mean": missing,
            "per_client": [missing, 0.6, 0.7],
        }
        row = robustness_row(of_attacker, CLEAN)
        assert row["diverged"] == 0 and len(row["points"]["L"]["all"]["seeds"]) == 1
        assert row["points"]["L"]["benign"] == whole["points"]["L"]["benign"]
        of_benign = copy.deepcopy(ATTACKED)
        of_benign[0]["attack"]["benign"]["G"] = {"mean": missing}
        row = robustness_row(of_benign, CLEAN)
        assert row["diverged"] == 0 and len(row["points"]["G"]["benign"]["seeds"]) == 1
        assert row["points"]["P"] == whole["points"]["P"]
        of_benign[0]["attack"]["benign"]["P"] = {"mean": missing}
        assert robustness_row(of_benign, CLEAN)["diverged"] == 1


def test_the_bound_is_the_better_of_two_runs_without_attackers():
    """In the first run client 0 attacks, in the second client 1."""
    alone = [run([0.1, 0.9, 0.8]), run([0.5, 0.0, 0.6])]
    scores = robustness_row(ATTACKED, CLEAN, [CLEAN, alone])["points"]["P"]
    # Alone 0.85 and clean 0.75, then alone 0.55 and clean 0.75; attacked 0.65 in both.
    assert scores["bound"]["seeds"] == pytest.approx([20.0, 10.0])
    errors = [run([0.1, 0.5, 0.7], [0], higher=False)]
    clean, alone = ([run(e, higher=False)] for e in ([0.9, 0.4, 0.6], [0.9, 0.4, 0.4]))
    scores = robustness_row(errors, clean, [clean, alone])["points"]["P"]
    assert scores["bound"]["seeds"] == pytest.approx([50.0])  # 0.6 is half more than 0.4
    assert "bound" not in robustness_row(errors, clean)["points"]["P"]


def test_tables_of_the_bound_name_the_worst_attack():
    """The better of clean and alone are 0.75 and 0.9 for the benign clients of both runs."""
    alone = [run([0.1, 0.9, 0.9]), run([0.9, 0.0, 0.9])]
    better = robustness_row(ATTACKED, CLEAN, [CLEAN, alone])
    worse = robustness_row(
        [run([0.1, 0.5, 0.5], [0]), run([0.5, 0.0, 0.5], [1])], CLEAN, [CLEAN, alone]
    )
    lost = better | {"points": None, "diverged": 2}
    rows = [
        {"attack": attack, "method": method, "ratio": 0.3, **row}
        for method, rows_of_attacks in (("a", (better, worse, better)), ("b", (worse, lost)))
        for attack, row in zip(("alie", "ipm", "drift"), rows_of_attacks, strict=False)
    ]
    tables = dict(robustness_tables(rows))
    score, bound, by_attack = tables.values()
    assert [line[0] for line in score] == ["method", "a", "b"]
    assert score[1][1].startswith("ipm 50.00") and bound[1][1].startswith("ipm 40.00")
    assert score[2][1] == bound[2][1] == "ipm 2 diverged"
    assert [line[:2] for line in by_attack[1:]] == [
        ["alie", "a"],
        ["alie", "b"],
        ["ipm", "a"],
        ["ipm", "b"],
        ["drift", "a"],
    ]
    errors = [run([0.1, 0.5, 0.7], [0], higher=False)]
    clean = [run([0.9, 0.4, 0.4], higher=False)]
    row = robustness_row(errors, clean, [clean])
    (_, score), (title, bound), *_ = robustness_tables(
        [{"attack": "alie", "method": "a", "ratio": 0.3, **row}]
    )
    assert title.startswith("benign clients at P below the bound, %")
    assert bound[1][1].startswith("alie 50.00")


def test_scores_are_shown_without_losses_if_only_a_clean_run_diverged():
    broken = [CLEAN[0] | {"diverged": True, "scores": None}, CLEAN[1]]
    row = robustness_row(RELATED, broken)
    expected = robustness_row(RELATED, CLEAN)
    for point, statistics in expected["points"].items():
        assert row["points"][point] == {name: statistics[name] for name in ("benign", "all")}
    assert row["neighbours"] == {} and row["rejected"] == expected["rejected"]
    names = {"attack": "alie", "ratio": 0.3}
    rows = [{"method": "first", **names, **row}, {"method": "other", **names, **expected}]
    tables = dict(robustness_tables(rows))
    cells = {title.split(", ")[-1]: text[1] for title, text in tables.items()}
    assert cells["benign clients"][2].startswith("65.00")
    assert tables["loss of benign clients, accuracy at P, %"][1] == ["alie", "first", ""]
    assert not any("minus that" in title for title in tables)
    (axes,) = draw_robustness(rows, "").axes
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[30.0, 65.0]])
    assert not len(axes.lines[1].get_xydata())  # no cross


def test_methods_are_compared_with_the_first_seed_by_seed():
    names = {"attack": "alie", "ratio": 0.3}
    worse = [run([0.1, 0.5, 0.5], [0]), run([0.5, 0.0, 0.6], [1])]
    rows = [
        {"method": "first", **names, **robustness_row(ATTACKED, CLEAN)},
        {"method": "other", **names, **robustness_row(worse, CLEAN)},
    ]
    ((_, method, excess),) = excess_losses(rows, "first")
    np.testing.assert_allclose(excess["seeds"], [15.0, 10.0])
    assert method == "other"
    tables = dict(robustness_tables(rows))
    assert "loss of benign clients minus that with first, accuracy at P, %" in tables
    assert "success at P, % of benign clients' triggered images" in tables
    assert all(text[0] == ["attack", "method", "0.3"] for text in tables.values())
    rows[0] |= {"points": None, "diverged": 2}
    tables = dict(robustness_tables(rows))
    assert tables["accuracy at P, %, benign clients"][1] == ["alie", "first", "2 diverged"]
    assert not any(part in title for title in tables for part in ("minus that", "neighbours"))
    assert not any("rejected" in title for title in tables)


def test_tables_have_a_row_for_each_attack_and_method():
    """An attack without one of the shares has an empty cell."""
    rows = [
        {"attack": attack, "method": method, "ratio": ratio, **robustness_row(ATTACKED, CLEAN)}
        for attack, ratio in (("alie", 0.1), ("ipm", 0.1), ("ipm", 0.2))
        for method in ("a", "b")
    ]
    (_, table), *_ = robustness_tables(rows)
    assert table[0] == ["attack", "method", "0.1", "0.2"]
    assert [row[:2] for row in table[1:]] == [[x, y] for x in ("alie", "ipm") for y in "ab"]
    assert [bool(row[3]) for row in table[1:]] == [False, False, True, True]


def chosen(rows):
    """The best defences of all methods."""
    return [choice["method"] for choice in defence_choices(rows) if choice["chosen"]]


def test_the_best_defence_has_the_fewest_diverged_runs_and_then_the_best_validation():
    """Of three, one has a diverged run and the best scores; test scores play no part."""

    rows = [
        *rows_of_defence("one", 0.9, None),
        *rows_of_defence("one+clip", 0.5, 0.7),
        *rows_of_defence("one+monotone", 0.4, 0.7),
        *rows_of_defence("two", 0.3, higher=False),
        *rows_of_defence("two+clip", 0.2, higher=False),
    ]
    assert chosen(rows) == ["one+clip", "two+clip"]
    title, table = choice_table(defence_choices(rows), "accuracy")
    assert title == "choice of defences: validation accuracy at P, %"
    assert table[1:] == [
        ["one", "1", "", ""],
        ["one+clip", "0", "60.00", "yes"],
        ["one+monotone", "0", "55.00", ""],
        ["two", "0", "30.00", ""],
        ["two+clip", "0", "20.00", "yes"],
    ]
    rows[-2] |= {"validation": 0.2, "validation_loss": 0.6}
    assert chosen(rows) == ["one+clip", "two"]  # the other has no loss
    rows[-1]["validation_loss"] = 0.5
    assert chosen(rows) == ["one+clip", "two+clip"]
    rows[-1]["validation"] = None
    with pytest.raises(
        ValueError, match="^best_defences chooses by validation, .*val_fraction"
    ):
        defence_choices(rows)


def test_a_defence_does_not_gain_by_diverging_where_scores_are_low():
    """Both have one diverged run. The first is worse where neither diverged."""
    rows = [*rows_of_defence("m", 0.8, 0.7, None), *rows_of_defence("m+clip", 0.9, None, 0.3)]
    assert chosen(rows) == ["m+clip"]


def test_a_defence_that_diverges_often_leaves_no_attack_out_for_the_others():
    """Without attackers, clipping is slightly better; the attacks decide."""
    rows = []
    for attack in ("alie", "ipm"):
        for method, scores in (
            ("m", (0.99, None)),
            ("m+clip", (0.99, 0.58)),
            ("m+monotone", (0.98, 0.97)),
        ):
            rows += [row | {"attack": attack} for row in rows_of_defence(method, *scores)]
    assert chosen(rows) == ["m+monotone"]


def test_runs_without_attackers_count_once():
    """Two attacks. Runs without attackers are the same for both."""
    rows = []
    for attack in ("alie", "ipm"):
        rows += [
            row | {"attack": attack}
            for method, scores in (("m", (0.8, 0.5)), ("m+clip", (0.6, 0.65)))
            for row in rows_of_defence(method, *scores)
        ]
    # m: (0.8 + 0.5 + 0.5) / 3 = 0.6, and 0.65 with 0.8 twice; m+clip: 0.633, and 0.625
    assert chosen(rows) == ["m+clip"]


def test_defences_that_diverged_everywhere_in_turn_are_compared_by_their_own_scores():
    rows = [*rows_of_defence("m", 0.8, None), *rows_of_defence("m+clip", None, 0.9)]
    assert chosen(rows) == ["m+clip"]


def rows_of_defence(method, *validation, higher=True):
    """Rows of rising shares with these scores; None is a diverged run."""
    return [
        {"method": method, "undefended": method.partition("+")[0], "attack": "alie"}
        | {"ratio": ratio, "validation": score, "diverged": int(score is None)}
        | {"higher_is_better": higher}
        for ratio, score in enumerate(validation)
    ]


def test_validation_scores_are_means_over_runs_at_p():
    runs = [clean_run | {"scores": dict(clean_run["scores"])} for clean_run in CLEAN]
    for clean_run, mean in zip(runs, (0.2, 0.6), strict=True):
        clean_run["scores"]["validation"] = {"P": {"mean": mean, "loss": 2 * mean}}
    assert robustness_row(runs, CLEAN)["validation"] == pytest.approx(0.4)
    assert robustness_row(runs, CLEAN)["validation_loss"] == pytest.approx(0.8)
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


@pytest.mark.release
def test_the_command_writes_tables_and_reads_runs_from_the_cache(tmp_path):
    """A defence that a method cannot have is left out, and attacks share runs without them."""
    words = [CONFIG, "--config.rounds=3", "--config.local_steps=5", "--config.model.hidden=5"]
    words += ["--methods=fedavg,local", "--attacks=sign_flip,ipm", "--ratios=0.5", "--seeds=2"]
    words += ["--defences=none,monotone", "--config.data.val_fraction=0.2"]
    status, printed, errors = launched("robustness", *words, "--out=out", cwd=tmp_path)
    assert status == 0, errors
    (warning,) = [line for line in errors.splitlines() if "warning" in line]
    assert "local+monotone is left out: defence.name='monotone' has no effect" in warning
    # Three methods with two seeds: without attackers, and for each attack with them.
    assert "18 new runs, 0 from the cache" in printed
    page = (tmp_path / "out/robustness.md").read_text()
    command = "python -m experiments.robustness --config=configs/fl60.py --config.rounds=3"
    assert page.startswith(f"Made by `{command}") and "--out" not in page
    assert "--methods=fedavg,local --attacks=sign_flip,ipm" in page
    assert "loss of benign clients, accuracy at P, %" in page and "| sign_flip |" in page
    figures = {f"{name}.{kind}" for name in ("robustness", "neighbours") for kind in SUFFIXES}
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"cached_runs", "robustness.json", "robustness.md", *figures}
    before = json.loads((tmp_path / "out/robustness.json").read_text())
    first, second, *_ = before["rows"]
    assert [(row["ratio"], row["attackers"]) for row in (first, second)] == [(0, 0), (0.5, 30)]
    assert first["points"]["P"]["loss"]["seeds"] == [0.0, 0.0]
    assert {row["method"] for row in before["rows"]} == {"fedavg", "fedavg+monotone", "local"}
    rejecting = {row["method"] for row in before["rows"] if row["rejected"]}
    assert rejecting == {"fedavg+monotone"}

    # The share 1 is trained with the best defence at the share 0.5, and with what --keep names.
    words += ["--best_defences", "--choose_at=0.5", "--ratios=0.5,1", "--keep=fedavg"]
    words += ["--attacks=sign_flip"]
    before = [row for row in before["rows"] if row["attack"] == "sign_flip"]
    status, printed, errors = launched("robustness", *words, "--out=out", cwd=tmp_path)
    assert status == 0, errors
    results = json.loads((tmp_path / "out/robustness.json").read_text())
    best = {choice["method"] for choice in results["choices"] if choice["chosen"]}
    assert best in ({"fedavg", "local"}, {"fedavg+monotone", "local"})
    methods = {row["method"] for row in results["rows"]}
    assert methods == best | {"fedavg"}
    for row in before:
        assert (row in results["rows"]) == (row["method"] in methods)
    # Two seeds for each method.
    assert f"{2 * len(methods)} new runs, 12 from the cache" in printed
    shares = [row["ratio"] for row in results["rows"]]
    assert shares == [share for share in (0, 0.5, 1) for _ in methods]
