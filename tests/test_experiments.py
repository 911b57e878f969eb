"""Configurations, and the programs around the main entry: tables, figures, bench."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from experiments.bench import matmul_flops
from experiments.common.plots import draw
from experiments.paper.cached_runs import paper_config
from experiments.paper.published import PUBLISHED, published
from experiments.paper.table_text import columns, lines, narrow, table_row
from graphfl_jax.build import arguments, build_experiment, load_federation, variant_of
from graphfl_jax.configs import compcars, custom, fl60, metr_la, pems_bay, tpt48
from graphfl_jax.program import make_program
from tests.entries import ROOT, entry, launched, shrunk
from tests.test_traffic import write_matrix, write_series

CONFIGS = [
    (file, method)
    for file in (custom, fl60, tpt48, metr_la, pems_bay, compcars)
    for method in file.METHODS
] + [(compcars, "panacea-full")]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A user's file, whose clients have validation examples."""
    path = tmp_path_factory.mktemp("own") / "federation.npz"
    x, client = np.random.default_rng(0).normal(size=(60, 2)), np.repeat(range(6), 10)
    split = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    edges = [(i, i + 1) for i in range(5)]
    np.savez(path, x=x, y=x[:, 0] > 0, client=client, split=split * 6, edges=edges)
    return path


@pytest.mark.parametrize("file, method", CONFIGS)
def test_every_configuration_builds_the_method_of_its_name(file, method, own):
    config = file.get_config(method)
    config.data.source = "generated" if config.data.name == "fl60" else "simulated"
    if config.model.name == "gru":
        config.data.sensors, config.data.steps = 8, 300
    if config.data.name == "compcars":
        config.data.image_size = 8
    config.data.path = str(own) if config.data.name == "custom" else ""
    experiment = build_experiment(config, load_federation(config))
    assert variant_of(config) == method.removesuffix("-full")
    if config.model.name != "mlp" and method not in ("panacea", "perfedavg", "panacea-full"):
        return  # the program of the others is the same but for sizes
    program = make_program(experiment.build, experiment.model, cohort_size=5)
    key, data = jax.random.key(0), experiment.federation.data
    hparams = {name: jnp.float32(value) for name, value in experiment.hparams.items()}
    state = jax.eval_shape(program.start, key, hparams, data)
    scores, extras = jax.eval_shape(program.evaluate, state, key, hparams, data)
    assert bool(extras["G"]) == (config.model.name == "gru")
    assert scores["test"]["G"].shape == (len(experiment.federation.clients),)


def test_a_factory_that_wants_what_no_field_offers_is_named():
    def factory(model, train, *, temperature):
        return None

    with pytest.raises(ValueError, match="factory wants 'temperature'"):
        arguments(factory, {"mu": 0.1})


REAL = {"source": "real", "extent": ""}
SIMULATED = {"source": "simulated", "extent": ""}
PART = {"source": "real", "extent": "a half"}


@pytest.mark.parametrize(
    "field, value",
    [
        ("rounds", 799),
        ("cohort_size", 6),
        ("local_steps", 10),
        ("data.val_fraction", 0.1),
        ("data.graph", "knn"),
        ("new_clients.fraction", 0.2),
    ],
)
def test_published_numbers_stand_only_beside_the_papers_protocol(field, value):
    config = tpt48.get_config("panacea")
    assert published(config, "panacea", REAL) == (2.6, 0.7)
    config.update_from_flattened_dict({field: value})
    assert published(config, "panacea", REAL) is None
    for dataset in (SIMULATED, PART):
        assert published(tpt48.get_config("panacea"), "panacea", dataset) is None


def test_published_newcomers_are_a_fifth():
    config = tpt48.get_config("panacea")
    assert published(config, "panacea", REAL, "panacea_3") is None
    config.new_clients.fraction = 0.2
    assert published(config, "panacea", REAL, "panacea_3") == (2.8, 0.9)


def test_every_printed_row_is_a_method_of_its_data_set():
    for rows in PUBLISHED.values():
        for method, cached_runs in rows.items():
            for dataset in cached_runs:
                assert variant_of(paper_config(dataset, method)) == method


def test_matrix_products_are_counted_with_their_loops():
    """[3, 4] x [4, 5] is 2 * 60 operations, alone, under vmap and in a scan of seven."""
    a, b = jnp.zeros((3, 4)), jnp.zeros((4, 5))
    product = 2 * 3 * 4 * 5
    assert matmul_flops(jax.make_jaxpr(jnp.matmul)(a, b).jaxpr) == product
    many = jax.vmap(jnp.matmul, (0, None))
    assert matmul_flops(jax.make_jaxpr(many)(jnp.zeros((6, 3, 4)), b).jaxpr) == 6 * product

    @jax.jit
    def looped(a, b):
        return jax.lax.scan(lambda carry, _: (carry + (a @ b).sum(), None), 0.0, length=7)

    assert matmul_flops(jax.make_jaxpr(looped)(a, b).jaxpr) == 7 * product


def test_the_benchmark_prints_its_measures(tmp_path):
    status, told, errors = entry("bench", "--repeats=1", "--rounds_each=2", cwd=tmp_path)
    assert status == 0, errors
    for measure in ("ms per round", "client-steps/s", "compile", "peak memory", "GFLOP/s"):
        assert measure in told


def test_methods_are_compared_with_fedavg(tmp_path):
    words = ["--repeats=1", "--rounds_each=2", "--methods=ditto,local"]
    status, told, errors = entry("bench", *words, cwd=tmp_path)
    assert status == 0, errors
    rows = [line.split("\u2502") for line in told.splitlines() if "\u2502" in line]
    ratios = {row[1].strip(): (float(row[5]), float(row[7])) for row in rows}
    assert list(ratios) == ["fedavg", "ditto", "local"]
    assert ratios["fedavg"] == (1.0, 1.0)
    # Of matrix products: two models of equal work, and the mean of uploads, which is small.
    assert 1.9 < ratios["ditto"][1] < 2.0
    assert 0.9 < ratios["local"][1] < 1.0


def test_values_of_a_field_are_compared_with_the_first(tmp_path):
    words = ["--repeats=1", "--rounds_each=2", "--vary=server_steps=1,20"]
    status, told, errors = entry("bench", *words, cwd=tmp_path)
    assert status == 0, errors
    rows = [line.split("\u2502") for line in told.splitlines() if "\u2502" in line]
    work = {row[1].strip(): float(row[7]) for row in rows}
    assert list(work) == ["server_steps=1", "server_steps=20"]
    assert 1 < work["server_steps=20"] < 20  # the clients' steps stay


def test_convolutions_are_counted_as_the_products_that_they_are():
    """A kernel of 3 x 3 x 2 inputs and 4 outputs at each of 5 x 7 places of 2 images; two
    clients with kernels of their own make two groups, and twice the work."""

    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    x, kernel = jnp.zeros((2, 5, 7, 2)), jnp.zeros((3, 3, 2, 4))
    once = 2 * (3 * 3 * 2) * 4 * (2 * 5 * 7)
    assert matmul_flops(jax.make_jaxpr(convolve)(x, kernel).jaxpr) == once
    both = jax.make_jaxpr(jax.vmap(convolve))(x[None].repeat(2, 0), kernel[None].repeat(2, 0))
    assert matmul_flops(both.jaxpr) == 2 * once


def test_a_table_of_traffic_stands_beside_forecasts_without_a_federation(tmp_path):
    names = [f"40000{i}" for i in range(6)]
    speeds = 40 + np.random.default_rng(0).uniform(0, 30, (100, 6))
    write_series(tmp_path / "data/pems-bay/pems-bay.h5", speeds, names)
    chain = np.eye(6) + np.eye(6, k=1)
    write_matrix(tmp_path / "data/pems-bay/adj_mx_bay.pkl", names, chain)
    common = ["--data_root=data", "--out=here"]
    words = ["--datasets=pems_bay", "--methods=fedavg", "--rounds=1", "--seeds=1", *common]
    words = ["--table=panacea_2", *words]
    status, told, errors = shrunk("tables", *words, cwd=tmp_path, file="pems_bay")
    assert status == 0, errors
    assert "pems_bay: 6 of 325 sensors, 100 of 52116 steps; no printed score compares." in told
    assert "MAE/RMSE (mph)/MAPE (%)" in told and "linear regression" in told
    rows = json.loads((tmp_path / "here/panacea_2.json").read_text())
    assert [row["method"] for row in rows] == ["fedavg", "persistence", "linear regression"]
    assert rows[0]["published"] is None
    drawn = (tmp_path / "here/panacea_2.md").read_text()
    mae = rows[1]["errors"]["P"]["15 min"]["mae_seen"]
    assert f"| pems_bay | persistence | P | {1e3 * rows[1]['mse']:.1f} | {mae:.2f}/" in drawn

    status, _, errors = launched("figures", "--figure=panacea_fig2", *common, cwd=tmp_path)
    assert status == 0, errors
    lines = json.loads((tmp_path / "here/panacea_fig2.json").read_text())
    assert [line["name"] for line in lines] == names
    np.testing.assert_allclose([sum(line["shares"]) for line in lines], 1)


def test_a_table_and_a_figure_share_their_runs(tmp_path):
    """New clients too; the published numbers stay away from a run of two rounds."""
    quick = ["--rounds=2", "--seeds=2", "--out=here"]
    words = ["--table=panacea_3", "--datasets=fl60", "--methods=panacea", *quick]
    status, told, errors = shrunk("tables", *words, cwd=tmp_path, file="fl60")
    assert status == 0, errors
    assert "2 runs made, 0 found" in told
    row = json.loads((tmp_path / "here/panacea_3.json").read_text())[0]
    assert (row["method"], row["seeds"], row["published"]) == ("panacea", 2, None)
    assert len(row["adapted"]) == 6 and row["adapted"][0] == row["scores"]
    scores = row["scores"]["P"]
    np.testing.assert_allclose(scores["mean"], np.mean(scores["seeds"]))
    np.testing.assert_allclose(scores["std_seeds"], np.std(scores["seeds"]))
    drawn = (tmp_path / "here/panacea_3.md").read_text().splitlines()
    assert len({line.count("|") for line in drawn}) == 1 and len(drawn) == 3
    assert f"{scores['mean']:.2f}" in drawn[2].split(" | ")
    status, told, _ = shrunk("tables", *words, cwd=tmp_path, file="fl60")
    assert (status, "0 runs made, 2 found" in told) == (0, True)

    words = ["--figure=panacea_3a", "--methods=fedavg,local", *quick]
    status, told, errors = shrunk("figures", *words, cwd=tmp_path, file="fl60")
    assert status == 0, errors
    drawn = json.loads((tmp_path / "here/panacea_3a.json").read_text())
    assert [(line["name"], line["x"], len(line["seeds"])) for line in drawn] == [
        ("fedavg", [2], 2),
        ("local", [2], 2),
    ]
    assert (tmp_path / "here/panacea_3a.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (tmp_path / "here/panacea_3a.svg").read_text()
    words = ["--table=panacea_2", "--datasets=fl60", "--methods=fedavg,local", *quick]
    assert "0 runs made, 4 found" in shrunk("tables", *words, cwd=tmp_path, file="fl60")[1]


def test_a_line_without_a_run_is_named_and_one_line_is_seen_whole():
    line = {"name": "alive", "metric": "mse", "x": [1, 2], "seeds": [[0.3, 0.1], [0.5, 0.1]]}
    lost = {"name": "lost (2 diverged)", "metric": "mse", "x": [], "seeds": []}
    drawn = draw([line, lost], "round")
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == [
        "alive",
        "lost (2 diverged)",
    ]
    low, high = draw([line], "steps").axes[0].get_ylim()
    assert low < 100 and high > 500  # from the mean less the spread to the mean and the spread


@pytest.mark.parametrize(
    "name, words, named",
    [
        ("tables", ["--table=panacea_9"], "panacea_9"),
        ("tables", ["--datasets=mnist"], "datasets='mnist' is unknown"),
        ("tables", ["--methods=fedsgd"], "methods='fedsgd' is unknown"),
        ("tables", ["--datasets=tpt48", "--data_root=nowhere"], "no file nowhere/tpt48/"),
        ("figures", ["--figure=panacea_3g", "--methods=fedavg"], "does not compare methods"),
        (
            "figures",
            ["--figure=panacea_fig2", "--data_root=nowhere"],
            "no file nowhere/pems-bay/",
        ),
        (
            "bench",
            [f"--config={ROOT}/configs/fl60.py", "--vary=model.size=1,2"],
            "vary=model.si",
        ),
    ],
)
def test_tables_and_figures_refuse_what_they_cannot_make(tmp_path, name, words, named):
    status, _, errors = launched(name, *words, cwd=tmp_path)
    assert status == 2 and named in errors and errors.count("\n") == 1, errors
    assert not list(tmp_path.iterdir())


def test_a_diverged_method_has_no_score_in_a_table():
    runs = [
        {
            "metric": "mse",
            "hparams": {},
            "diverged": broken,
            "scores": None,
            "errors": None,
            "new_clients": None,
            "dataset": REAL,
        }
        for broken in (False, True, True)
    ]
    config = paper_config("tpt48", "fedavg")
    row = table_row("panacea_2", config, runs)
    line = lines("panacea_2", [row])[0]
    assert line[:3] == ["tpt48", "fedavg", "2 of 3 diverged"]
    assert len(line) == len(columns("panacea_2")) and line[-1] == "2.6\u00b10.9"


@pytest.mark.parametrize("shares", [6, 11])
def test_a_narrow_console_loses_no_digit(shares):
    """Six intervals are wider than eighty columns unless folded, eleven are in any case."""
    numbers = range(11, 11 + shares)
    heads = ["method", *map(str, numbers)]
    cached_runs = ["fedavg-finetune", *(f"{number}.25\u00b10.{number}" for number in numbers)]
    console = Console(width=80)
    with console.capture() as told:
        console.print(narrow("a title", [heads, cached_runs]), crop=False)
    lines = told.get().splitlines()
    assert (max(map(len, lines)) <= 80) == (shares == 6)
    words = told.get().split()
    assert all(f"{n}.25" in words and f"\u00b10.{n}" in words for n in numbers)
