"""Panacea's theorems in the linear case: closed forms, simulation, and the command."""

import json
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.linear_theory import closed_form, simulation
from graphfl_jax.data import relations
from graphfl_jax.intervals import critical_value
from tests.commands import ROOT, launched

SIZES = {"params": 8, "embedding": 3}
SCALE = SIZES["params"] * SIZES["embedding"]


def graph_of(name, n, normalisation="column", *, density=0.2):
    adjacency = closed_form.GRAPHS[name](n, np.random.default_rng(0), density)
    return closed_form.averaging(adjacency, normalisation)


def random_steps(count, *, directed, normalisation):
    """G~ of random graphs of 3 to 9 clients, each with a number of attacked clients."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        n = rng.integers(3, 10)
        edges = rng.random((n, n)) < rng.random()
        adjacency = (edges if directed else edges | edges.T) & ~np.eye(n, dtype=bool)
        yield closed_form.averaging(adjacency, normalisation), rng.integers(1, n)


def lemma(graph, m):
    """r / m with M as the paper defines it."""
    attacked, benign = graph[:, :m], graph[:, m:]
    fitted = benign @ np.linalg.lstsq(benign, attacked, rcond=1e-10)[0]
    return np.sum((attacked - fitted) ** 2) / m


def pfedhn(target, m):
    return closed_form.risk(np.eye(len(target)), target, m, **SIZES)


def panacea(graph, target, m):
    return closed_form.risk(graph, target, m, **SIZES)


# ------------------------------------------------------------------------------------- graphs


def test_graphs_have_the_edges_of_their_names():
    graphs = {
        name: make(5, np.random.default_rng(0), 1.0)
        for name, make in closed_form.GRAPHS.items()
    }
    complete = 1 - np.eye(5)
    star = np.zeros((5, 5))
    star[0, 1:] = star[1:, 0] = 1
    ring = np.roll(np.eye(5), 1, axis=0) + np.roll(np.eye(5), -1, axis=0)
    expected = {"empty": 0 * complete, "clique": complete, "ring": ring, "star": star}
    for name, matrix in (expected | {"random": complete}).items():
        np.testing.assert_array_equal(graphs[name], matrix)
    np.testing.assert_array_equal(closed_form.GRAPHS["ring"](2, None, None), 1 - np.eye(2))


def test_averaging_is_the_mean_layer_or_its_transpose():
    graph = relations.from_edges(4, [(0, 1), (2, 1), (3, 0)], [0.0, 1.0, 2.0], directed=True)
    adjacency = closed_form.adjacency_of(graph)
    rows = relations.propagation(graph, "mean")
    np.testing.assert_allclose(closed_form.averaging(adjacency, "row"), rows, rtol=1e-6)
    np.testing.assert_allclose(closed_form.averaging(adjacency, "column"), rows.T, rtol=1e-6)


def test_without_relations_both_methods_are_the_same():
    step = graph_of("empty", 6)
    assert closed_form.conditions(step, 3, 2)["r"] == 2
    for target in closed_form.targets(step, 3):
        assert panacea(step, target, 2) == pfedhn(target, 2) == pytest.approx(2 * SCALE * 2 / 6)
    risks = trained(step, 2, draws=10)
    np.testing.assert_allclose(risks.mean[:, 0], risks.mean[:, 1], rtol=1e-12)


@pytest.mark.parametrize("m", [1, 3, 5])
def test_in_a_clique_one_benign_client_determines_all_models(m):
    step = graph_of("clique", 6)
    assert closed_form.conditions(step, 1, m)["r"] < 1e-25
    for target in closed_form.targets(step, 1)[:2]:
        assert panacea(step, target, m) < 1e-25


def test_without_benign_clients_the_residual_is_the_whole_graph():
    step = graph_of("star", 4)
    assert closed_form.conditions(step, 1, 4)["r"] == pytest.approx(np.sum(step**2))


# --------------------------------------------------------------- III.1, its properties, III.4


def test_with_a_singular_graph_other_embeddings_give_the_same_models():
    for step, rank in ((graph_of("clique", 7), 1), (graph_of("ring", 6), 4)):
        assert closed_form.conditions(step, 1, 1)["rank"] == rank
        embeddings = np.random.default_rng(0).normal(size=(2, len(step)))
        null = np.linalg.svd(step)[0][:, -1]  # null' G~ = 0
        moved = embeddings + 10 * null
        np.testing.assert_allclose(moved @ step, embeddings @ step, atol=1e-12)
    assert closed_form.conditions(graph_of("clique", 2), 1, 1)["rank"] == 1
    assert closed_form.conditions(graph_of("star", 7), 1, 1)["rank"] == 7


def test_repeated_averaging_makes_embeddings_equal_if_the_gap_is_positive():
    ring = graph_of("ring", 8)
    gap = closed_form.conditions(ring, 1, 1)["gap"]
    assert gap == pytest.approx(
        1 - (1 + np.sqrt(2)) / 3
    )  # eigenvalues (1 + 2 cos(2 pi j / 8)) / 3
    embeddings = np.random.default_rng(0).normal(size=(3, 8))
    power = int(np.log(1e-9) / np.log(1 - gap))
    averaged = embeddings @ np.linalg.matrix_power(ring, power)
    np.testing.assert_allclose(averaged, averaged[:, :1] @ np.ones((1, 8)), atol=1e-7)
    assert closed_form.conditions(graph_of("empty", 8), 1, 1)["gap"] == 0


def test_consistent_targets_are_fixed_under_averaging():
    for normalisation in closed_form.NORMALISATIONS:
        for step, _ in random_steps(50, directed=True, normalisation=normalisation):
            c = closed_form.consistent(step)
            np.testing.assert_allclose(c @ step, c, atol=1e-9)
            assert c.mean() == pytest.approx(1)
            assert normalisation == "row" or np.all(c == 1)
    degrees = np.array([5, 2, 2, 2, 2])  # of a star, with self-loops
    c = closed_form.consistent(graph_of("star", 5, "row"))
    np.testing.assert_allclose(c, degrees / degrees.mean(), atol=1e-9)


def test_the_hub_of_a_star_has_a_large_column_if_rows_sum_to_one():
    rows, columns = (
        closed_form.conditions(graph_of("star", 20, normalisation), 1, 4)
        for normalisation in closed_form.NORMALISATIONS
    )
    assert rows["largest_column"] == pytest.approx(0.05**2 + 19 * 0.5**2)
    assert columns["largest_column"] == pytest.approx(0.5)


@pytest.mark.parametrize("directed", [False, True])
def test_the_lemma_holds_if_columns_sum_to_one(directed):
    for step, m in random_steps(200, directed=directed, normalisation="column"):
        for layers in (1, 3):
            r = closed_form.conditions(step, layers, m)["r"]
            assert r <= m + 1e-9
            power = np.linalg.matrix_power(step, layers)
            assert r / m == pytest.approx(lemma(power, m), abs=1e-7)


def test_the_lemma_fails_for_a_directed_graph_if_rows_sum_to_one():
    worst = closed_form.extremes(4, directed=True)
    assert worst["graphs"] == 2**12
    assert worst["r_per_attacked"]["row"] == pytest.approx(13 / 11)
    assert worst["r_per_attacked"]["column"] == pytest.approx(1)
    adjacency = np.zeros((4, 4), bool)
    adjacency[tuple(np.transpose(worst["edges"]))] = True
    step = closed_form.averaging(adjacency, "row")
    assert lemma(step, worst["attacked"]) == pytest.approx(13 / 11)


def test_the_lemma_holds_for_all_undirected_graphs_of_five():
    worst = closed_form.extremes(5, directed=False)
    assert worst["graphs"] == 2**10
    assert max(worst["r_per_attacked"].values()) == pytest.approx(1)
    assert worst["panacea_per_pfedhn"] == pytest.approx(1)


# -------------------------------------------------------------------------------------- risks


@pytest.mark.parametrize("name", ["ring", "random", "star"])
@pytest.mark.parametrize("normalisation", closed_form.NORMALISATIONS)
def test_the_risk_equals_the_closed_form_of_each_kind_of_targets(name, normalisation):
    n, m, layers = 9, 3, 2
    step = graph_of(name, n, normalisation, density=0.4)
    graph = np.linalg.matrix_power(step, layers)
    averaged, consistent, unrelated = closed_form.targets(step, layers)
    attacked, benign = graph[:, :m], graph[:, m:]
    coefficients = np.linalg.pinv(benign, rtol=1e-10) @ attacked
    missed, c = attacked - benign @ coefficients, closed_form.consistent(step)
    r = np.sum(missed**2)
    assert panacea(graph, averaged, m) == pytest.approx(2 * SCALE * r / n)
    assert pfedhn(averaged, m) == pytest.approx(SCALE / n * (m + np.sum(attacked**2)))
    expected = SCALE / n * (r + np.sum((c @ missed) ** 2))
    assert panacea(graph, consistent, m) == pytest.approx(expected)
    assert pfedhn(consistent, m) == pytest.approx(SCALE / n * (m + np.sum(c[:m] ** 2)))
    misfit = n - np.linalg.matrix_rank(benign, rtol=1e-10)
    expected = SCALE / n * (r + np.sum(coefficients**2) + misfit)
    assert panacea(graph, unrelated, m) == pytest.approx(expected)
    assert pfedhn(unrelated, m) == pytest.approx(2 * SCALE * m / n)


def test_a_random_graph_of_twenty_has_known_risks():
    """G(20, 0.2), four attacked, d = 40, k = 5."""
    step, sizes = graph_of("random", 20), {"params": 40, "embedding": 5}
    targets = closed_form.targets(step, 1)
    risks = [closed_form.risk(step, target, 4, **sizes) for target in targets]
    np.testing.assert_allclose(risks, [4.85, 2.91, 668.3], rtol=2e-3)
    risks = [closed_form.risk(np.eye(20), target, 4, **sizes) for target in targets]
    np.testing.assert_allclose(risks, [50.8, 80.0, 80.0], rtol=1e-3)
    assert closed_form.stated_risks(step, 4, **sizes) == {
        "pfedhn": 80.0,
        "panacea": pytest.approx(4.854, abs=5e-4),
    }


def trained(step, m, *, layers=1, draws=3000, steps=0):
    targets = closed_form.targets(step, layers)
    sizes = {**SIZES, "draws": draws, "steps": steps}
    return simulation.simulate(targets[0], targets, m, **sizes, seed=0)


@pytest.fixture(scope="module", params=["ring", "random", "star"])
def measured(request):
    """Per normalisation: C of all regimes, and the simulated risks with their margins."""
    results = {}
    for normalisation in closed_form.NORMALISATIONS:
        step = graph_of(request.param, 9, normalisation, density=0.4)
        risks = trained(step, 3)
        # The tests compare 54 means with this margin.
        margin = critical_value(3000, missed=0.001, means=54) * risks.error
        results[normalisation] = (closed_form.targets(step, 1), risks.mean, margin)
    return results


@pytest.mark.parametrize("normalisation", closed_form.NORMALISATIONS)
def test_trained_embeddings_have_the_risk_of_the_closed_forms(measured, normalisation):
    targets, mean, margin = measured[normalisation]
    expected = [[pfedhn(target, 3), panacea(targets[0], target, 3)] for target in targets]
    assert np.all(np.abs(mean - expected) < margin)
    assert np.all(margin < 0.15 * mean)  # precise enough to reject other formulas


@pytest.mark.parametrize("normalisation", closed_form.NORMALISATIONS)
def test_trained_embeddings_refute_the_stated_risks(measured, normalisation):
    targets, mean, margin = measured[normalisation]
    stated = closed_form.stated_risks(targets[0], 3, **SIZES)
    differs = np.abs(mean - [stated["pfedhn"], stated["panacea"]]) > margin
    averaged, consistent, unrelated = differs  # each for III.2 (pFedHN) and III.3 (Panacea)
    assert not averaged[1] and not unrelated[0]
    assert averaged[0] and unrelated[1]
    assert consistent[0] <= (normalisation == "row")


def test_critical_values_are_those_of_students_t():
    assert critical_value(10**6, missed=0.05) == pytest.approx(1.96, abs=1e-3)
    assert critical_value(2, missed=0.05) == pytest.approx(12.706, abs=1e-3)
    assert critical_value(10**6, missed=0.05, means=50) == pytest.approx(3.29, abs=2e-3)


@pytest.mark.slow
def test_gradient_descent_converges_to_the_least_squares_solution():
    step = graph_of("star", 5)
    end, long, short = (trained(step, 2, draws=20, steps=steps) for steps in (0, 1500, 5))
    np.testing.assert_allclose(long.mean, end.mean, rtol=1e-3)
    assert np.all(np.abs(short.mean - end.mean) > 5 * np.abs(long.mean - end.mean))


def test_a_federation_with_attackers_converges_to_it_on_average():
    """Benign clients upload gradients; attacked clients upload noise of mean zero."""
    rng = np.random.default_rng(0)
    n, m, steps, runs, rate = 5, 2, 3000, 400, 0.05
    graph = graph_of("star", n)
    generator, start = rng.normal(size=(6, 2)), rng.normal(size=(2, n))
    models = generator @ rng.normal(size=(2, n))

    def federation(noise):
        """Embeddings [runs, k, n] after all rounds, and the models' squared errors."""
        embeddings = np.repeat(start[None], runs if noise else 1, axis=0)
        for _ in range(steps):
            change = np.zeros_like(embeddings)
            for i, weights in enumerate(graph.T):
                error = embeddings @ weights @ generator.T - models[:, i]  # [runs, d]
                if i < m:
                    error = noise * rng.normal(size=error.shape)
                change += (error @ generator)[:, :, None] * weights
            embeddings = embeddings - rate * change
        outputs = generator @ embeddings @ graph
        return embeddings, np.sum((outputs - models) ** 2, axis=(1, 2))

    with jax.enable_x64(True):
        benign = (np.arange(n) >= m)[None].astype(float)
        expected = np.asarray(simulation.fit(generator, start, graph, models, benign))
    quiet, least = federation(noise=0.0)
    np.testing.assert_allclose(quiet[0], expected, atol=1e-6)
    noisy, errors = federation(noise=0.02)
    error = noisy.std(axis=0) / np.sqrt(runs)
    assert np.all(np.abs(noisy.mean(axis=0) - expected) < 5 * error)
    assert errors.mean() > least[0]  # noise adds to the risk


def test_random_labels_have_zero_mean_gradient_only_for_uniform_predictions():
    logits = jnp.array([2.0, 0.0, -1.0])
    gradients = jax.vmap(jax.grad(lambda x, y: -jax.nn.log_softmax(x)[y]), (None, 0))
    mean = gradients(logits, jnp.arange(3)).mean(axis=0)
    np.testing.assert_allclose(mean, jax.nn.softmax(logits) - 1 / 3, atol=1e-6)
    np.testing.assert_allclose(gradients(jnp.ones(3), jnp.arange(3)).mean(axis=0), 0, atol=1e-7)


# ---------------------------------------------------------------------------------- the command


@pytest.mark.release
def test_the_command_writes_numbers_verdicts_and_a_plot(tmp_path):
    words = ["--clients=5", "--params=6", "--embedding=2", "--draws=60", "--graphs=clique,star"]
    words += [
        f"--config={ROOT}/configs/pems_bay.py",
        "--config.data.source=simulated",
        "--config.data.sensors=6",
    ]
    words += ["--config.data.steps=100", "--out=here/theory"]
    status, printed, errors = launched("theory", *words, cwd=tmp_path)
    assert status == 0, errors
    verdict = "2dk m/n (pFedHN), unrelated targets: holds for clique, star, pems_bay.\n"
    assert f"Theorem III.2, {verdict}" in printed
    assert "Theorem III.1 assumes rank G~ = n: fails for clique (rank 1 of 5)" in printed
    assert "1.182 if rows do (m = 1; receivers and senders: 1 from 0" in printed
    assert max(map(len, printed.split("± is")[0].splitlines())) <= 80
    out = tmp_path / "here" / "theory"
    names = {f"theory.{suffix}" for suffix in ("json", "md", "png", "svg")}
    assert {path.name for path in out.iterdir()} == names
    results = json.loads((out / "theory.json").read_text())
    assert results["settings"]["clients"] == 5 and results["settings"]["embedding"] == 2
    assert results["verdicts"][0].startswith("±")
    cases = [("clique", "both"), ("star", "row"), ("star", "column")]
    cases += [("pems_bay", "row"), ("pems_bay", "column")]
    assert [(row["graph"], row["normalisation"]) for row in results["graphs"]] == cases
    assert results["graphs"][-1]["clients"] == 6
    assert len(results["risks"]) == 5 * 3 * 2 and len(results["curves"]) == 3 * 3
    assert all(row["closed_form_holds"] for row in results["risks"])
    assert results["curves"][0]["shares"] == [0.0, 0.2, 0.4]
    page = (out / "theory.md").read_text().splitlines()
    assert page[0].startswith("Made by `python -m experiments.theory --clients=5 ")
    assert "pems_bay.py --config.data.source=simulated" in page[0]
    assert "--out" not in page[0] and str(ROOT) not in page[0]
    assert f"- Theorem III.2, {verdict}".strip() in page
    assert sum(line.startswith("| star | column | panacea |") for line in page) == 3


BAD = [
    (["--attacked=1.5"], r"attacked=1.5 is outside \[0, 1\]; set --attacked=0.2"),
    (["--attacked=nan"], "attacked=nan is outside"),
    (["--density=-1"], r"density=-1.0 .*\[0, 1\]"),
    (["--embedding=41"], "embedding=41 exceeds params=40.*--embedding to at most 40"),
    (["--clients=1"], "clients=1 is less than 2; set --clients=2"),
    (["--draws=1"], "draws=1 is less than 2"),
    (["--layers=0"], "layers=0 is less than 1"),
    (["--steps=-1"], "steps=-1 is less than 0"),
    (["--graphs=torus"], "graphs='torus' is unknown; choose from empty, clique, ring"),
    (["--graphs="], "graphs= is empty; choose from empty"),
    (["--out=file"], "out=file cannot be written .*is a file.; choose another"),
    (["--out=file/below"], "out=file/below cannot be written .*is a file.; choose"),
]


@pytest.mark.parametrize("words, message", BAD, ids=[words[0] for words, _ in BAD])
def test_invalid_flags_exit_with_a_one_line_error(tmp_path, words, message):
    (tmp_path / "file").touch()
    status, printed, errors = launched("theory", *words, cwd=tmp_path)
    assert (status, printed) == (2, "")
    assert re.fullmatch(f"error: {message}.*\n", errors), errors
    assert os.listdir(tmp_path) == ["file"]
