"""Panacea's theorems in the linear case: closed forms, trained codes, and the entry."""

import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.linear_theory import closed_form, simulation
from graphfl_jax.data import relations
from tests.test_entry import ENVIRONMENT, FORKS, PEMS
from tests.test_experiments import launched

SIZES = {"params": 8, "code": 3}
SCALE = SIZES["params"] * SIZES["code"]


def graph_of(name, n, normalisation="column", *, density=0.2):
    hears = closed_form.GRAPHS[name](n, np.random.default_rng(0), density)
    return closed_form.averaging(hears, normalisation)


def random_steps(count, *, directed, normalisation):
    """G~ of random graphs of 3 to 9 clients, each with a number of attacked clients."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        n = rng.integers(3, 10)
        hears = rng.random((n, n)) < rng.random()
        hears = (hears if directed else hears | hears.T) & ~np.eye(n, dtype=bool)
        yield closed_form.averaging(hears, normalisation), rng.integers(1, n)


def lemma(graph, m):
    """r / m with M as the paper has it."""
    attacked, benign = graph[:, :m], graph[:, m:]
    fitted = benign @ np.linalg.lstsq(benign, attacked, rcond=1e-10)[0]
    return np.sum((attacked - fitted) ** 2) / m


def pfedhn(wish, m):
    return closed_form.risk(np.eye(len(wish)), wish, m, **SIZES)


def panacea(graph, wish, m):
    return closed_form.risk(graph, wish, m, **SIZES)


# ------------------------------------------------------------------------------------- graphs


def test_graphs_are_what_they_are_called():
    joined = {
        name: make(5, np.random.default_rng(0), 1.0)
        for name, make in closed_form.GRAPHS.items()
    }
    complete = 1 - np.eye(5)
    star = np.zeros((5, 5))
    star[0, 1:] = star[1:, 0] = 1
    ring = np.roll(np.eye(5), 1, axis=0) + np.roll(np.eye(5), -1, axis=0)
    expected = {"empty": 0 * complete, "clique": complete, "ring": ring, "star": star}
    for name, matrix in (expected | {"random": complete}).items():
        np.testing.assert_array_equal(joined[name], matrix)
    np.testing.assert_array_equal(closed_form.GRAPHS["ring"](2, None, None), 1 - np.eye(2))


def test_averaging_is_the_mean_layer_and_its_transpose():
    graph = relations.from_edges(4, [(0, 1), (2, 1), (3, 0)], [0.0, 1.0, 2.0], directed=True)
    hears = closed_form.heard(graph)
    rows = relations.propagation(graph, "mean")
    np.testing.assert_allclose(closed_form.averaging(hears, "row"), rows, rtol=1e-6)
    np.testing.assert_allclose(closed_form.averaging(hears, "column"), rows.T, rtol=1e-6)


def test_without_relations_both_methods_are_the_same():
    step = graph_of("empty", 6)
    assert closed_form.conditions(step, 3, 2)["r"] == 2
    for wish in closed_form.wishes(step, 3):
        assert panacea(step, wish, 2) == pfedhn(wish, 2) == pytest.approx(2 * SCALE * 2 / 6)
    told = trained(step, 2, draws=10)
    np.testing.assert_allclose(told.mean[:, 0], told.mean[:, 1], rtol=1e-12)


@pytest.mark.parametrize("m", [1, 3, 5])
def test_in_a_clique_a_benign_client_tells_all(m):
    step = graph_of("clique", 6)
    assert closed_form.conditions(step, 1, m)["r"] < 1e-25
    for wish in closed_form.wishes(step, 1)[:2]:
        assert panacea(step, wish, m) < 1e-25


def test_when_all_are_attacked_nothing_is_learned():
    step = graph_of("star", 4)
    assert closed_form.conditions(step, 1, 4)["r"] == pytest.approx(np.sum(step**2))


# --------------------------------------------------------------- III.1, its properties, III.4


def test_a_clique_has_rank_one_so_that_other_codes_give_the_same_models():
    for step, rank in ((graph_of("clique", 7), 1), (graph_of("ring", 6), 4)):
        assert closed_form.conditions(step, 1, 1)["rank"] == rank
        codes = np.random.default_rng(0).normal(size=(2, len(step)))
        unseen = np.linalg.svd(step)[0][:, -1]  # unseen' G~ = 0
        others = codes + 10 * unseen
        np.testing.assert_allclose(others @ step, codes @ step, atol=1e-12)
    assert closed_form.conditions(graph_of("clique", 2), 1, 1)["rank"] == 1
    assert closed_form.conditions(graph_of("star", 7), 1, 1)["rank"] == 7


def test_consistent_codes_are_equal_where_there_is_a_gap():
    ring = graph_of("ring", 8)
    gap = closed_form.conditions(ring, 1, 1)["gap"]
    assert gap == pytest.approx(
        1 - (1 + np.sqrt(2)) / 3
    )  # eigenvalues (1 + 2 cos(2 pi j / 8)) / 3
    codes = np.random.default_rng(0).normal(size=(3, 8))
    power = int(np.log(1e-9) / np.log(1 - gap))
    recalibrated = codes @ np.linalg.matrix_power(ring, power)
    np.testing.assert_allclose(recalibrated, recalibrated[:, :1] @ np.ones((1, 8)), atol=1e-7)
    assert closed_form.conditions(graph_of("empty", 8), 1, 1)["gap"] == 0


def test_consistent_wishes_are_fixed_under_averaging():
    for normalisation in closed_form.NORMALISATIONS:
        for step, _ in random_steps(50, directed=True, normalisation=normalisation):
            c = closed_form.consistent(step)
            np.testing.assert_allclose(c @ step, c, atol=1e-9)
            assert c.mean() == pytest.approx(1)
            assert normalisation == "row" or np.all(c == 1)
    degrees = np.array([5, 2, 2, 2, 2])  # of a star, with oneself
    told = closed_form.consistent(graph_of("star", 5, "row"))
    np.testing.assert_allclose(told, degrees / degrees.mean(), atol=1e-9)


def test_the_hub_of_a_star_is_heard_too_much_if_rows_sum_to_one():
    assert closed_form.conditions(graph_of("star", 20, "row"), 1, 4)[
        "largest_column"
    ] == pytest.approx(0.05**2 + 19 * 0.5**2)
    assert closed_form.conditions(graph_of("star", 20), 1, 4)[
        "largest_column"
    ] == pytest.approx(0.5)


@pytest.mark.parametrize("directed", [False, True])
def test_the_lemma_holds_with_columns_of_sum_one(directed):
    for step, m in random_steps(200, directed=directed, normalisation="column"):
        for layers in (1, 3):
            told = closed_form.conditions(step, layers, m)
            assert told["r"] <= m + 1e-9
            power = np.linalg.matrix_power(step, layers)
            assert told["r"] / m == pytest.approx(lemma(power, m), abs=1e-7)


def test_the_lemma_fails_with_rows_of_sum_one_and_directed_relations():
    told = closed_form.extremes(4, directed=True)
    assert told["graphs"] == 2**12
    assert told["r_per_attacked"]["row"] == pytest.approx(13 / 11)
    assert told["r_per_attacked"]["column"] == pytest.approx(1)
    hears = np.zeros((4, 4), bool)
    hears[tuple(np.transpose(told["hears"]))] = True
    step = closed_form.averaging(hears, "row")
    assert lemma(step, told["attacked"]) == pytest.approx(13 / 11)


def test_no_undirected_graph_of_five_breaks_the_lemma():
    told = closed_form.extremes(5, directed=False)
    assert told["graphs"] == 2**10
    assert max(told["r_per_attacked"].values()) == pytest.approx(1)
    assert told["panacea_per_pfedhn"] == pytest.approx(1)


# -------------------------------------------------------------------------------------- risks


@pytest.mark.parametrize("name", ["ring", "random", "star"])
@pytest.mark.parametrize("normalisation", closed_form.NORMALISATIONS)
def test_closed_forms_are_their_three_cases(name, normalisation):
    n, m, layers = 9, 3, 2
    step = graph_of(name, n, normalisation, density=0.4)
    graph = np.linalg.matrix_power(step, layers)
    repaired, consistent, unrelated = closed_form.wishes(step, layers)
    attacked, benign = graph[:, :m], graph[:, m:]
    coefficients = np.linalg.pinv(benign, rtol=1e-10) @ attacked
    missed, c = attacked - benign @ coefficients, closed_form.consistent(step)
    r = np.sum(missed**2)
    assert panacea(graph, repaired, m) == pytest.approx(2 * SCALE * r / n)
    assert pfedhn(repaired, m) == pytest.approx(SCALE / n * (m + np.sum(attacked**2)))
    expected = SCALE / n * (r + np.sum((c @ missed) ** 2))
    assert panacea(graph, consistent, m) == pytest.approx(expected)
    assert pfedhn(consistent, m) == pytest.approx(SCALE / n * (m + np.sum(c[:m] ** 2)))
    misfit = n - np.linalg.matrix_rank(benign, rtol=1e-10)
    expected = SCALE / n * (r + np.sum(coefficients**2) + misfit)
    assert panacea(graph, unrelated, m) == pytest.approx(expected)
    assert pfedhn(unrelated, m) == pytest.approx(2 * SCALE * m / n)


def test_a_random_graph_of_twenty_has_known_risks():
    """G(20, 0.2), four attacked, d = 40, k = 5."""
    step, sizes = graph_of("random", 20), {"params": 40, "code": 5}
    wishes = closed_form.wishes(step, 1)
    told = [closed_form.risk(step, wish, 4, **sizes) for wish in wishes]
    np.testing.assert_allclose(told, [4.85, 2.91, 668.3], rtol=2e-3)
    alone = [closed_form.risk(np.eye(20), wish, 4, **sizes) for wish in wishes]
    np.testing.assert_allclose(alone, [50.8, 80.0, 80.0], rtol=1e-3)
    assert closed_form.printed(step, 4, **sizes) == {
        "pfedhn": 80.0,
        "panacea": pytest.approx(4.854, abs=5e-4),
    }


def trained(step, m, *, layers=1, draws=3000, steps=0):
    wishes = closed_form.wishes(step, layers)
    return simulation.simulate(wishes[0], wishes, m, **SIZES, draws=draws, steps=steps, seed=0)


@pytest.fixture(scope="module", params=["ring", "random", "star"])
def measured(request):
    """Per normalisation: G, what clients want, and the measured risks with their margins."""
    told = {}
    for normalisation in closed_form.NORMALISATIONS:
        step = graph_of(request.param, 9, normalisation, density=0.4)
        risks = trained(step, 3)
        # Of 54 means, none is off by more than this in 999 of 1000 runs.
        margin = simulation.interval(3000, missed=0.001, numbers=54) * risks.error
        told[normalisation] = (closed_form.wishes(step, 1), risks.mean, margin)
    return told


@pytest.mark.parametrize("normalisation", closed_form.NORMALISATIONS)
def test_trained_codes_have_the_risk_of_the_closed_forms(measured, normalisation):
    wishes, mean, margin = measured[normalisation]
    expected = [[pfedhn(wish, 3), panacea(wishes[0], wish, 3)] for wish in wishes]
    assert np.all(np.abs(mean - expected) < margin)
    assert np.all(margin < 0.15 * mean)  # narrow enough to tell


@pytest.mark.parametrize("normalisation", closed_form.NORMALISATIONS)
def test_trained_codes_refute_what_is_printed(measured, normalisation):
    wishes, mean, margin = measured[normalisation]
    stated = closed_form.printed(wishes[0], 3, **SIZES)
    off = np.abs(mean - [stated["pfedhn"], stated["panacea"]]) > margin
    repaired, consistent, unrelated = off
    assert not repaired[1] and not unrelated[0]  # where III.3 and III.2 are right
    assert repaired[0] and unrelated[1]  # and where each is wrong
    assert consistent[0] <= (normalisation == "row")


def test_the_interval_has_its_width():
    assert simulation.interval(10**6, missed=0.05) == pytest.approx(1.96, abs=1e-3)
    assert simulation.interval(2, missed=0.05) == pytest.approx(12.706, abs=1e-3)
    assert simulation.interval(10**6, missed=0.05, numbers=50) == pytest.approx(3.29, abs=2e-3)


def test_gradient_descent_ends_where_least_squares_does():
    step = graph_of("star", 5)
    end, long, short = (trained(step, 2, draws=20, steps=steps) for steps in (0, 1500, 5))
    np.testing.assert_allclose(long.mean, end.mean, rtol=1e-3)
    assert np.all(np.abs(short.mean - end.mean) > 5 * np.abs(long.mean - end.mean))


def test_a_federation_with_attackers_ends_there_on_average():
    """Clients upload gradients; the attacked upload noise of mean zero."""
    rng = np.random.default_rng(0)
    n, m, steps, runs, rate = 5, 2, 3000, 400, 0.05
    graph = graph_of("star", n)
    generator, start = rng.normal(size=(6, 2)), rng.normal(size=(2, n))
    models = generator @ rng.normal(size=(2, n))

    def federation(noise):
        """Codes [runs, k, n] after all rounds, and the models' squared errors."""
        codes = np.repeat(start[None], runs if noise else 1, axis=0)
        for _ in range(steps):
            change = np.zeros_like(codes)
            for i, hears in enumerate(graph.T):
                apart = codes @ hears @ generator.T - models[:, i]  # [runs, d]
                if i < m:
                    apart = noise * rng.normal(size=apart.shape)
                change += (apart @ generator)[:, :, None] * hears
            codes = codes - rate * change
        return codes, np.sum((generator @ codes @ graph - models) ** 2, axis=(1, 2))

    with jax.enable_x64(True):
        benign = (np.arange(n) >= m)[None].astype(float)
        expected = np.asarray(simulation.fit(generator, start, graph, models, benign))
    quiet, least = federation(noise=0.0)
    np.testing.assert_allclose(quiet[0], expected, atol=1e-6)
    noisy, errors = federation(noise=0.02)
    error = noisy.std(axis=0) / np.sqrt(runs)
    assert np.all(np.abs(noisy.mean(axis=0) - expected) < 5 * error)
    assert errors.mean() > least[0]  # noise adds


def test_random_labels_leave_a_gradient_unless_predictions_are_uniform():
    logits = jnp.array([2.0, 0.0, -1.0])
    gradients = jax.vmap(jax.grad(lambda x, y: -jax.nn.log_softmax(x)[y]), (None, 0))
    mean = gradients(logits, jnp.arange(3)).mean(axis=0)
    np.testing.assert_allclose(mean, jax.nn.softmax(logits) - 1 / 3, atol=1e-6)
    np.testing.assert_allclose(gradients(jnp.ones(3), jnp.arange(3)).mean(axis=0), 0, atol=1e-7)


# ---------------------------------------------------------------------------------- the entry


def test_the_entry_tells_what_holds_and_leaves_numbers_and_plot(tmp_path):
    words = ["--clients=5", "--params=6", "--code=2", "--draws=60", "--graphs=clique,star"]
    words += [PEMS, "--config.data.source=simulated", "--config.data.sensors=6"]
    words += ["--config.data.steps=100", "--out=here/theory"]
    status, told, errors = launched("theory", *words, cwd=tmp_path)
    assert status == 0, errors
    assert "III.2, 2dk m/n (pFedHN), unrelated: holds for clique, star, pems_bay.\n" in told
    assert "III.1 asks for rank G~ = n: clique has 1 of 5" in told
    assert "1.182 with rows (m = 1; 1 hears 0" in told
    assert max(map(len, told.split("±")[0].splitlines())) <= 80
    out = tmp_path / "here" / "theory"
    assert {path.name for path in out.iterdir()} == {"theory.json", "theory.png", "theory.svg"}
    left = json.loads((out / "theory.json").read_text())
    assert left["settings"]["clients"] == 5 and left["findings"][0].startswith("±")
    cases = [("clique", "both"), ("star", "row"), ("star", "column")]
    cases += [("pems_bay", "row"), ("pems_bay", "column")]
    assert [(row["graph"], row["normalisation"]) for row in left["graphs"]] == cases
    assert left["graphs"][-1]["clients"] == 6
    assert len(left["risks"]) == 5 * 3 * 2 and len(left["curves"]) == 3 * 3
    assert all(row["closed_form_holds"] for row in left["risks"])
    assert left["curves"][0]["shares"] == [0.0, 0.2, 0.4]


BAD = [
    (["--attacked=1.5"], r"attacked=1.5 is a share; set --attacked in \[0, 1\]"),
    (["--attacked=nan"], "attacked=nan is a share"),
    (["--density=-1"], r"density=-1.0 .*\[0, 1\]"),
    (["--code=41"], "code=41 exceeds params=40.*--code to at most 40"),
    (["--clients=1"], "clients=1 must be at least 2; set --clients=2"),
    (["--draws=1"], "draws=1 must be at least 2"),
    (["--layers=0"], "layers=0 must be at least 1"),
    (["--steps=-1"], "steps=-1 must be at least 0"),
    (["--graphs=torus"], "graphs='torus' is unknown; choose from empty, clique, ring"),
    (["--graphs="], "graphs= is empty; choose from empty"),
    (["--out=file"], "out=file cannot be written; choose another"),
    (["--out=file/below"], "out=file/below cannot be written"),
]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    root = tmp_path_factory.mktemp("bad")
    for i in range(len(BAD)):
        (root / str(i)).mkdir()
        (root / str(i) / "file").touch()
    forks = (
        "import experiments.linear_theory.verdicts, experiments.linear_theory.simulation, matplotlib.pyplot"
        + FORKS
    )
    forks = forks.replace("experiments.run", "experiments.theory")
    flags = json.dumps([words for words, _ in BAD])
    told = subprocess.run(
        [sys.executable, "-c", forks],
        input=flags,
        cwd=root,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return root, json.loads(told.stdout)


@pytest.mark.parametrize("i", range(len(BAD)), ids=[words[0] for words, _ in BAD])
def test_bad_flags_are_refused_in_one_line(refusals, i):
    root, statuses = refusals
    assert statuses[i] == 2
    assert (root / f"stdout{i}").read_text() == ""
    line = (root / f"stderr{i}").read_text()
    assert re.fullmatch(f"error: {BAD[i][1]}.*\n", line), line
    assert os.listdir(root / str(i)) == ["file"]
