"""Configurations, and the commands tables, figures and bench."""

import ast
import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import graphfl_jax
from experiments.benchmarks import suite
from experiments.benchmarks.timing import matmul_flops
from experiments.common import pages
from experiments.common.pages import command, provenance
from experiments.common.score_plots import draw_lines
from experiments.paper import cached_runs, columns, same_clients
from experiments.paper.columns import SPREAD
from experiments.paper.configurations import Cell, paper_config
from experiments.paper.methods import with_best
from experiments.paper.panacea_text import error_text, notes, table_row, text_of
from experiments.paper.pfedgat import CAPTION
from experiments.paper.tables import TABLES
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.commands.common.text_tables import markdown_table, narrow
from graphfl_jax.configs import (
    change,
    chest_xray,
    cifar10,
    cifar100,
    compcars,
    custom,
    fashion_mnist,
    femnist,
    fl60,
    flha_cifar10,
    for_any_task,
    har,
    methods,
    metr_la,
    mnist,
    pems_bay,
    shakespeare,
    tpt48,
    two_networks,
)
from graphfl_jax.configs.base import needing, variant_of
from graphfl_jax.configs.published import PUBLISHED, published_score
from graphfl_jax.configs.values import values_of
from graphfl_jax.metrics import OWN, summary
from graphfl_jax.models import gru
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group
from tests.commands import ROOT, launched, launched_small, shrunk, small_words
from tests.core.test_traffic import write_matrix, write_series
from tests.federations import COST, small_config, two_clusters

FILES = (custom, fl60, tpt48, metr_la, pems_bay, compcars)
REGRESSIONS = (tpt48, metr_la, pems_bay)
DIVIDED = (fashion_mnist, cifar10, cifar100)
PERCEPTRONS = (custom, fl60, tpt48)  # GRU and ResNet-18 do not describe their layers


def fitting(file):
    """The methods that fit the task and the client model of a file."""
    if file in REGRESSIONS and file not in PERCEPTRONS:
        return for_any_task()
    unfit = needing("labels") if file in REGRESSIONS else []
    unfit += needing("layers") if file not in PERCEPTRONS else []
    return [method for method in methods() if method not in unfit]


@pytest.fixture(scope="module")
def user_file(tmp_path_factory):
    """A user's file, whose clients have validation examples."""
    path = tmp_path_factory.mktemp("user") / "federation.npz"
    x, client = np.random.default_rng(0).normal(size=(60, 2)), np.repeat(range(6), 10)
    split = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    edges = [(i, i + 1) for i in range(5)]
    np.savez(path, x=x, y=x[:, 0] > 0, client=client, split=split * 6, edges=edges)
    return path


LOADED = {}


def federation_of(file, config):
    """The federation of a file's configurations, whose data are the same for all methods.

    Only methods that train on validation examples take some of the training examples for them.
    """
    settings = config.data.to_dict()
    validated = variant_of(config) in needing("held_out") and file is not custom
    if (file, validated) not in LOADED:
        LOADED[file, validated] = settings, load_federation(config)
    expected, federation = LOADED[file, validated]
    assert settings == expected
    assert ("val" in federation.data.evals) == (
        validated or file in (custom, metr_la, pems_bay)
    )
    return federation


def built(file, method, user_file):
    """The configuration of a file with small data, and its experiment."""
    config = file.get_config(method)
    changes = {"data.source": "generated" if config.data.name == "fl60" else "simulated"}
    if config.model.name == "gru":
        changes |= {"data.sensors": 8, "data.steps": 300}
    if config.model.name == "lstm":
        changes |= {"data.clients": 10, "model.hidden": (16,)}
    if config.data.name == "compcars":
        changes |= {"data.image_size": 8}
    if file in DIVIDED:  # by half the clients, and fewer images: the steps of a round stay
        changes |= {"data.clients": 5, "cohort_size": 5, "data.cap": 500}
    if config.data.name == "custom":
        changes = {"data.path": str(user_file)}
    config = change(config, changes)
    return config, build_experiment(config, federation_of(file, config))


@pytest.mark.parametrize("file", FILES)
def test_every_configuration_of_a_file_is_the_method_of_its_name(file):
    for method in fitting(file):
        assert variant_of(file.get_config(method)) == method


@pytest.mark.parametrize("method", methods())
@pytest.mark.filterwarnings("ignore:.*trains on test examples")
def test_every_method_is_built(method, user_file):
    config, experiment = built(custom, method, user_file)
    stated = ALGORITHMS[config.algorithm.name].needs
    if config.algorithm.get("paper_mode"):
        stated = stated._replace(held_out="test")
    assert experiment.build(experiment.hparams, 0).needs == stated


MIXED = ("local", "flha-ghn", "flha-ghn-no-gnn", "flha-ghn-table", "distillation", "pfedhn-het")
EVERY = [(file, method) for file in FILES for method in fitting(file)]
EVERY += [(file, name) for file in DIVIDED for name in methods()]
EVERY += [(chest_xray, name) for name in methods() if name not in needing("labels")]
EVERY += [(file, name) for file in (flha_cifar10, two_networks) for name in MIXED]
EVERY += [(two_networks, "panacea-flha")]
EVERY += [
    (file, name)
    for file in (femnist, har, mnist, shakespeare)
    for name in ("panacea", "ditto", "fedrod")
]


@pytest.mark.release
@pytest.mark.parametrize("file, method", EVERY)
@pytest.mark.filterwarnings("ignore:.*trains on test examples")
def test_ten_rounds_of_every_configuration_are_finite(file, method, user_file):
    """With the rates, steps and batches that are shipped, on simulated data."""
    config, experiment = built(file, method, user_file)
    config = change(config, {"rounds": 10, "eval_every": 10})
    result = graphfl_jax.run(config, experiment.federation)
    assert not result.results["diverged"]
    for scores in result.results["scores"]["final"].values():
        assert np.isfinite(scores["per_client"]).all()


def test_a_method_that_does_not_fit_the_model_or_the_task_is_refused(user_file):
    with pytest.raises(ValueError, match="^model.name='gru' does not describe its layers, and"):
        built(metr_la, "flha-ghn", user_file)
    for method in needing("labels"):
        needs = f"^algorithm.name='{method}' needs labels, and tpt48 is a regression; choose"
        with pytest.raises(ValueError, match=needs):
            built(tpt48, method, user_file)


@pytest.mark.parametrize(
    "file, method",
    [(file, method) for file in FILES[:-1] for method in ("panacea", "perfedavg")]
    # JAX traces the derivatives of a large network for seconds.
    + [
        pytest.param(compcars, method, marks=pytest.mark.release)
        for method in ("panacea", "panacea-full", "perfedavg")
    ],
)
def test_a_configuration_scores_every_client(file, method, user_file, monkeypatch):
    monkeypatch.setattr(gru, "UNROLL", 1)  # it is traced faster
    config, experiment = built(file, method, user_file)
    program = Program(experiment.build, groups=(Group(5),)).compiled()
    key, data = jax.random.key(0), experiment.federation.data
    hparams = {name: jnp.float32(value) for name, value in experiment.hparams.items()}
    state = jax.eval_shape(program.start, key, hparams, data)
    scores, extras, *_ = jax.eval_shape(program.evaluate, state, key, hparams, data)
    assert bool(extras["G"]) == (config.model.name == "gru")
    assert scores["test"]["G"].shape == (len(experiment.federation.clients),)


REAL = {"source": "real", "extent": ""}
SIMULATED = {"source": "simulated", "extent": ""}
PART = {"source": "real", "extent": "a half"}


@pytest.mark.parametrize(
    "field, value",
    [
        ("rounds", 799),
        ("cohort_size", 6),
        ("local_steps", 10),
        ("algorithm.server_steps", 1),
        ("data.val_fraction", 0.1),
        ("data.protocol", "windows"),
        ("data.graph", "knn"),
        ("new_clients.fraction", 0.2),
        ("attack.name", "sign_flip"),
        ("defence.name", "clip"),
    ],
)
def test_published_scores_are_only_for_the_papers_protocol(field, value):
    config = tpt48.get_config("panacea-paper")
    assert published_score(config, "panacea-paper", REAL) == (2.6, 0.7)
    for dataset in (SIMULATED, PART):
        assert published_score(config, "panacea-paper", dataset) is None
    assert published_score(change(config, {field: value}), "panacea-paper", REAL) is None


def test_the_papers_protocol_of_pfedhn_takes_one_server_step():
    config = tpt48.get_config("pfedhn")
    assert published_score(config, "pfedhn", REAL) == (2.7, 1.1)
    config = change(config, {"algorithm.server_steps": 10})
    assert published_score(config, "pfedhn", REAL) is None


def test_published_scores_of_new_clients_need_a_fifth_of_new_clients():
    config = tpt48.get_config("panacea-paper")
    assert published_score(config, "panacea-paper", REAL, "panacea_3") is None
    config = change(config, {"new_clients.fraction": 0.2})
    assert published_score(config, "panacea-paper", REAL, "panacea_3") == (2.8, 0.9)


def test_every_published_row_is_a_method_of_its_data_set():
    for table, rows in PUBLISHED.items():
        for method, scores in rows.items():
            for dataset in scores:
                (cell,) = (c for c in TABLES[table].cells["full"] if c.dataset == dataset)
                config = paper_config(cell, method)
                assert variant_of(config) == method
                if config.model.name == "mlp":
                    assert published_score(config, method, REAL, table) == scores[dataset]


def test_layers_are_compared_with_and_without_weights_of_relations():
    table = TABLES["panacea_weights"]
    for cell in table.cells["full"] + table.cells["small"]:
        weighted = "+edge_weights=True" * (cell.setting == "weighted")
        for method in table.methods:
            assert variant_of(paper_config(cell, method)) == method + weighted


def test_every_cell_of_the_tables_of_uploads_is_a_configuration():
    """Its part of the wire is that of its name, and only some methods have local privacy."""
    for cell in TABLES["compression"].cells["small"]:
        for method in TABLES["compression"].methods:
            config = paper_config(cell, method)
            assert (config.compression.name == "") == (cell.setting == "whole")
    for cell in TABLES["privacy"].cells["small"]:
        for method in TABLES["privacy"].methods:
            privacy = paper_config(cell, method).privacy.name
            private = cell.setting != "no privacy" and method != "local"
            assert privacy == private * ("local" if method == "panacea" else "central")


def test_every_cell_of_the_table_of_relations_is_a_configuration():
    """With the relations of its name; only one method can learn some."""
    table = TABLES["relations"]
    for cell in table.cells["small"]:
        for method in cell.methods or table.methods:
            config = paper_config(cell, method)
            assert config.data.graph == cell.setting
            assert config.data.get("neighbours", 5) == 5
            assert cell.setting != "learned" or method == "sfl"


def test_every_cell_of_the_table_of_methods_is_a_configuration():
    """All clients that train are in a cohort of images, and every method has its name."""
    table = TABLES["methods"]
    for cell in table.cells["small"]:
        for method in cell.methods:
            config = paper_config(cell, method)
            assert variant_of(config) == method
            known = round(config.data.get("clients", 48) * (1 - config.new_clients.fraction))
            assert config.get("cohort_size", 1) <= known
            assert method != "fedbuff" or config.cohort_size < known
    regression = {cell.dataset: cell.methods for cell in table.cells["small"]}["tpt48"]
    assert set(table.methods) - set(regression) == {
        *(
            "fedgh",
            "feddistill",
            "knnper",
            "fedproto",
            "fml",
            "distillation",
            "fedpac",
            "fedas",
        ),
        "fedrod",
    }


def test_large_numbers_of_a_table_have_a_power_of_ten():
    numbers = [1.005, 999_999.0, 2e11, -2e11, None]
    assert [columns.number_text(number) for number in numbers] == [
        *("1.00", "999999.00", "2.0e+11", "-2.0e+11", ""),
    ]


def test_methods_are_sorted_and_compared_with_the_best_by_seeds():
    def row(method, *seeds):
        names = {"data": "d", "setting": "s", "method": method, "higher_is_better": False}
        scores = {"P": {"mean": float(np.mean(seeds)), "seeds": list(seeds)}} if seeds else None
        return names | {"scores": scores, "behind": None}

    rows = with_best([row("broken"), row("second", 3.0, 2.0), row("first", 1.0, 1.5)])
    assert [each["method"] for each in rows] == ["first", "second", "broken"]
    assert [each["behind"] and each["behind"]["seeds"] for each in rows] == [
        None,
        [2.0, 0.5],
        None,
    ]


def test_every_cell_of_the_table_of_two_graphs_is_a_configuration():
    """Methods of one architecture have one, and relations are the nearest or random ones."""
    table = TABLES["two_graphs"]
    played = [(c, m) for c in table.cells["small"] for m in c.methods or table.methods]
    for cell, method in played:
        config = paper_config(cell, method)
        factory = ALGORITHMS[config.algorithm.name].factory
        several = len(config.model.architectures) > 1
        assert "models" in inspect.signature(factory).parameters or not several
        assert config.data.graph == ("random" if cell.setting.startswith("random") else "knn")
        assert several == (cell.setting != "one network")
    assert {method for _, method in played} == set(table.methods)


def test_small_tables_have_drawn_cars_and_few_sensors():
    fields = {"compcars": "rounds", "metr_la": "data.sensors", "pems_bay": "data.sensors"}
    for table in ("panacea_2", "panacea_3", "panacea_4"):
        cells = TABLES[table].cells["small"]
        assert [cell.dataset for cell in cells] == list(fields)
        for cell in cells:
            (full,) = (c for c in TABLES[table].cells["full"] if c.dataset == cell.dataset)
            config, full = (values_of(paper_config(c, "local"))[0] for c in (cell, full))
            assert config[fields[cell.dataset]] < (full[fields[cell.dataset]] or 1000)
            assert config["data.source"] == (
                "simulated" if cell.dataset == "compcars" else "real"
            )
            assert config["new_clients.fraction"] == full["new_clients.fraction"]


def test_provenance_states_command_commit_and_versions():
    words = ["--table=panacea_2", "--data_root=/data", "--out", "/tmp/here", "--seeds=5"]
    words += [f"--config={ROOT}/configs/tpt48.py:panacea", "--config.data.path=/data/x.npz"]
    argv = [f"{ROOT}/experiments/tables.py", *words]
    expected = "python -m experiments.tables --table=panacea_2 --seeds=5 "
    assert command(argv) == expected + "--config=configs/tpt48.py:panacea"
    argv_of_spaces = ["/home/ann/my work/experiments/tables.py", *argv[1:]]
    assert command(argv_of_spaces) == command(argv)
    assert command(["experiments.tables", "--config.model.weights=/data/r18.pth"]) == (
        "python -m experiments.tables --config.model.weights=r18.pth"
    )
    words = ["--out=/tmp/here", "tpt48", "--page", "a.md", "--methods=all"]
    benched = command(["experiments.bench", *words])
    assert benched == "python -m experiments.bench tpt48 --methods=all"
    line = provenance(argv, seconds=12.4)
    assert line.startswith(f"Made by `{expected}") and line.endswith(", in 12 s.")
    assert f"JAX {jax.__version__}" in line and "\n" not in line


def test_markdown_cells_have_no_bars_no_html_and_no_line_breaks():
    text = markdown_table([["rank\nG~", "|g|"], ["1", "<b>2"]])
    assert text == "| rank G~ | \\|g\\| |\n| --- | --- |\n| 1 | &lt;b>2 |\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_page_keeps_its_line_ends(tmp_path, end):
    page, lines = tmp_path / "page.md", ["a", *pages.markers("one"), "\u2028b", ""]
    page.write_bytes(end.join(lines).encode())
    pages.update(page, "one", "c\nd\n")
    lines[2:2] = ["c", "d"]
    assert page.read_bytes() == end.join(lines).encode()


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

    def branched(some, a, b):
        return jax.lax.cond(some, lambda: (a @ b).sum(), lambda: jnp.float32(0))

    assert matmul_flops(jax.make_jaxpr(branched)(True, a, b).jaxpr) == product


@pytest.mark.slow
def test_the_benchmark_writes_its_measures(tmp_path):
    """In a process of its own, as the suite starts it."""
    words = [*small_words("fl60.py:fedavg"), "--repeats=1", "--rounds_each=2"]
    results = suite.bench(words, tmp_path, seconds=300)
    assert results["client_steps"] > 0 < results["products_flop"] and results["compile_s"] > 0
    page = (tmp_path / "bench.md").read_text()
    for measure in ("ms per round", "client-steps/s", "compile", "peak memory", "GFLOP/s"):
        assert measure in page
    assert page.startswith("Made by `python -m experiments.bench --config=configs/fl60.py:")


@pytest.mark.release
def test_methods_are_compared_with_fedavg(tmp_path):
    words = ["--repeats=1", "--rounds_each=2", "--methods=ditto,local"]
    status, printed, errors = launched_small("bench", *words, cwd=tmp_path)
    assert status == 0, errors
    rows = [line.split("\u2502") for line in printed.splitlines() if "\u2502" in line]
    ratios = {row[1].strip(): (float(row[5]), float(row[7])) for row in rows}
    assert list(ratios) == ["fedavg", "ditto", "local"]
    assert ratios["fedavg"] == (1.0, 1.0)
    # Ditto trains two models of equal cost; the mean of uploads costs little.
    assert 1.9 < ratios["ditto"][1] < 2.0
    assert 0.9 < ratios["local"][1] < 1.0


@pytest.mark.release
def test_values_of_a_field_are_compared_with_the_first(tmp_path):
    words = ["--repeats=1", "--rounds_each=2", "--vary=algorithm.server_steps=1,20"]
    status, printed, errors = launched_small("bench", *words, cwd=tmp_path)
    assert status == 0, errors
    rows = [line.split("\u2502") for line in printed.splitlines() if "\u2502" in line]
    work = {row[1].strip(): float(row[7]) for row in rows}
    assert list(work) == ["algorithm.server_steps=1", "algorithm.server_steps=20"]
    assert 1 < work["algorithm.server_steps=20"] < 20  # the clients' work is the same


def test_convolutions_are_counted_as_matrix_products():
    """A 3 x 3 x 2 kernel with 4 outputs at each of 5 x 7 positions of 2 images.

    Two clients with different kernels need twice the operations.
    """

    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    x, kernel = jnp.zeros((2, 5, 7, 2)), jnp.zeros((3, 3, 2, 4))
    once = 2 * (3 * 3 * 2) * 4 * (2 * 5 * 7)
    assert matmul_flops(jax.make_jaxpr(convolve)(x, kernel).jaxpr) == once
    both = jax.make_jaxpr(jax.vmap(convolve))(x[None].repeat(2, 0), kernel[None].repeat(2, 0))
    assert matmul_flops(both.jaxpr) == 2 * once


@pytest.mark.release
def test_a_table_of_traffic_has_forecast_baselines(tmp_path):
    names = [f"40000{i}" for i in range(6)]
    speeds = 40 + np.random.default_rng(0).uniform(0, 30, (100, 6))
    write_series(tmp_path / "data/pems-bay/pems-bay.h5", speeds, names)
    chain = np.eye(6) + np.eye(6, k=1)
    write_matrix(tmp_path / "data/pems-bay/adj_mx_bay.pkl", names, chain)
    common = ["--data_root=data", "--out=here"]
    words = ["--datasets=pems_bay", "--methods=fedavg", "--rounds=1", "--seeds=1", *common]
    words = ["--table=panacea_2", *words]
    status, printed, errors = shrunk("tables", *words, cwd=tmp_path, file="pems_bay")
    assert status == 0, errors
    note = (
        "pems_bay: 6 of 325 sensors, 100 of 52116 steps; not comparable with published scores"
    )
    assert note in printed
    assert "MAE/RMSE (mph)/MAPE (%)" in printed and "linear regression" in printed
    rows = json.loads((tmp_path / "here/panacea_2.json").read_text())
    assert [row["method"] for row in rows] == ["fedavg", "persistence", "linear regression"]
    assert rows[0]["published"] is None
    page = (tmp_path / "here/panacea_2.md").read_text()
    assert note in page and "MAE/RMSE (mph)/MAPE (%) on pems_bay" in page
    mae = rows[1]["errors"]["P"]["15 min"]["mae_seen"]
    assert f"| pems_bay | persistence | P | {1e3 * rows[1]['mse']:.1f} | {mae:.2f}/" in page

    status, _, errors = launched("figures", "--figure=panacea_fig2", *common, cwd=tmp_path)
    assert status == 0, errors
    lines = json.loads((tmp_path / "here/panacea_fig2.json").read_text())
    assert [line["name"] for line in lines] == names
    np.testing.assert_allclose([sum(line["shares"]) for line in lines], 1)
    page = (tmp_path / "here/panacea_fig2.md").read_text().splitlines()
    assert page[0].startswith("Made by `python -m experiments.figures --figure=panacea_fig2`")
    assert page[2] == "| client | mean, mph | sd, mph |" and len(page) == 4 + len(names)


def test_the_table_of_a_figure_gets_into_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- begin one -->\nold\n<!-- end one -->\nb\n")
    words = ["--config.data.source=simulated", "--config.data.cap=20", "--out=here"]
    words = ["--figure=partition", *words, "--page=page.md#one"]
    status, _, errors = launched("figures", *words, cwd=tmp_path)
    assert status == 0, errors
    table = (tmp_path / "here/partition.md").read_text()
    assert table.startswith("Made by `python -m experiments.figures --figure=partition ")
    assert "| client |" in table
    assert page.read_text() == f"a\n<!-- begin one -->\n{table}<!-- end one -->\nb\n"


@pytest.mark.release
def test_tables_and_figures_share_cached_runs(tmp_path):
    """Runs of two rounds are not compared with published scores."""
    quick = ["--rounds=2", "--seeds=2", "--out=here"]
    words = ["--table=panacea_3", "--datasets=fl60", "--methods=panacea", *quick]
    status, printed, errors = shrunk("tables", *words, cwd=tmp_path, file="fl60")
    assert status == 0, errors
    assert "2 new runs, 0 from the cache" in printed
    row = json.loads((tmp_path / "here/panacea_3.json").read_text())[0]
    assert (row["method"], row["seeds"], row["published"]) == ("panacea", 2, None)
    assert len(row["adapted"]) == 6 and row["adapted"][0] == row["scores"]
    scores = row["scores"]["P"]
    np.testing.assert_allclose(scores["mean"], np.mean(scores["seeds"]))
    np.testing.assert_allclose(scores["std_seeds"], np.std(scores["seeds"]))
    made, _, title, _, *lines = (tmp_path / "here/panacea_3.md").read_text().splitlines()
    assert made.startswith("Made by `python -m experiments.tables --table=panacea_3 ")
    assert made.endswith("2 new runs, 0 from the cache.")
    assert title == f"Test scores of 2 seeds; fl60: accuracy, %. {SPREAD}"
    assert len({line.count("|") for line in lines}) == 1 and len(lines) == 3
    assert f"{scores['mean']:.2f}" in lines[2].split(" | ")
    status, printed, _ = shrunk("tables", *words, cwd=tmp_path, file="fl60")
    assert (status, "0 new runs, 2 from the cache" in printed) == (0, True)

    words = ["--figure=panacea_3a", "--methods=fedavg,local", *quick]
    status, printed, errors = shrunk("figures", *words, cwd=tmp_path, file="fl60")
    assert status == 0, errors
    lines = json.loads((tmp_path / "here/panacea_3a.json").read_text())
    assert [(line["name"], line["x"], len(line["seeds"])) for line in lines] == [
        ("fedavg", [2], 2),
        ("local", [2], 2),
    ]
    assert (tmp_path / "here/panacea_3a.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (tmp_path / "here/panacea_3a.svg").read_text()
    page = (tmp_path / "here/panacea_3a.md").read_text()
    mean = 100 * np.mean([scores[-1] for scores in lines[0]["seeds"]])
    assert f"| fedavg | 2 | {mean:.2f} | " in page and page.splitlines()[2] == SPREAD
    words = ["--table=panacea_2", "--datasets=fl60", "--methods=fedavg,local", *quick]
    _, printed, _ = shrunk("tables", *words, cwd=tmp_path, file="fl60")
    assert "0 new runs, 4 from the cache" in printed


@pytest.mark.slow
def test_cached_runs_of_a_federation_of_any_name_are_found_again(tmp_path, monkeypatch):
    named = two_clusters()._replace(name="a/b [c]*")
    monkeypatch.setattr(cached_runs, "load_federation", lambda config: named)
    config = small_config("local", rounds=1)
    for reused in (0, 1):
        cached_runs.LOADED.clear()
        cache = cached_runs.Cache(tmp_path)
        (run,) = cached_runs.cached_runs(config, [0], cache)
        assert (run["dataset"]["name"], cache.reused) == ("a/b [c]*", reused)
    cached_runs.LOADED.clear()
    (path,) = (tmp_path / "cached_runs").iterdir()
    assert path.name.startswith("a-b [c]*-local-seed0-")


@pytest.mark.slow
def test_verdicts_have_the_name_of_a_federation_as_it_is(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "import graphfl_jax as g\n"
        "def mine(*, seed):\n"
        "    client, edges = np.repeat(range(4), 10), [(0, 1), (1, 2), (2, 3)]\n"
        "    x = np.random.default_rng(0).normal(size=(40, 2))\n"
        "    y = x[:, 0] > 0\n"
        "    return g.from_arrays(x, y, client, edges=edges, seed=seed, name='[b]x')\n"
        "g.register.dataset('mine', mine)\n"
        "def get_config():\n"
        "    return g.configs.configuration({'data.name': 'mine', 'algorithm.name': 'local'})\n"
    )
    words = ["--graphs=", "--config=mine.py", "--params=4", "--embedding=2", "--draws=20"]
    ended = launched("theory", *words, "--out=here", cwd=tmp_path)
    assert ended.status == 0, ended.stderr
    verdicts = ended.stdout.split("± is")[1]
    assert "[b]x" in verdicts


def test_a_line_without_scores_is_in_the_legend():
    line = {"name": "finished", "metric": "mse", "x": [1, 2], "seeds": [[0.3, 0.1], [0.5, 0.1]]}
    lost = {"name": "lost (2 diverged)", "metric": "mse", "x": [], "seeds": []}
    (legend,) = draw_lines([line, lost], "round", "fl60").legends
    assert [text.get_text() for text in legend.get_texts()] == ["finished", "lost (2 diverged)"]


def test_the_axis_of_a_single_line_includes_its_spread():
    line = {"name": "m", "metric": "mse", "x": [1, 2], "seeds": [[0.3, 0.1], [0.5, 0.1]]}
    low, high = draw_lines([line], "steps", "fl60").axes[0].get_ylim()
    assert low < 100 and high > 500  # 0.4 +- 0.1 in 1e-3


@pytest.mark.parametrize(
    "name, words, message",
    [
        ("tables", ["--table=panacea_9"], "panacea_9"),
        ("tables", ["--datasets=mnist"], "datasets='mnist' is unknown"),
        ("tables", ["--methods=fedsgd"], "methods='fedsgd' is unknown"),
        ("tables", ["--datasets=tpt48", "--data_root=nowhere"], "no file nowhere/tpt48/"),
        ("figures", ["--figure=panacea_3g", "--methods=fedavg"], "not compare methods"),
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
def test_invalid_flags_are_refused_in_one_line(tmp_path, name, words, message):
    status, _, errors = launched(name, *words, cwd=tmp_path)
    assert status == 2 and message in errors and errors.count("\n") == 1, errors
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
            **COST,
        }
        for broken in (False, True, True)
    ]
    config = paper_config(Cell("tpt48"), "fedavg")
    row = table_row("panacea_2", config, runs)
    heads, cells = text_of("panacea_2").cells([row])
    assert cells[:3] == ["tpt48", "fedavg", "2 of 3 diverged"]
    assert len(cells) == len(heads) and cells[-1] == "2.6\u00b10.9"


def run_with(**results):
    """What a table reads of a run with the score 0.5 at all points."""
    scores = {at: summary(np.full(2, 0.5), higher_is_better=False) for at in "GLP"}
    return {
        "metric": "mse",
        "hparams": {},
        "diverged": False,
        "scores": {"final": scores},
        "errors": None,
        "new_clients": None,
        "dataset": REAL,
        **COST,
    } | results


def test_a_row_of_a_table_of_uploads_has_its_part_and_its_cost():
    table, costs = TABLES["privacy"], []
    for cell in table.cells["small"][:2]:
        config = paper_config(cell, "panacea")
        private = config.privacy.name and {"name": config.privacy.name, "epsilon": 3.0}
        run = run_with(privacy=private or None, higher_is_better=False)
        costs.append(table.row(cell, config, [run, run]))
    assert [(row["part"], row["epsilon"]) for row in costs] == [
        ("", None),
        ("local privacy", 3.0),
    ]
    parts = []
    for cell in TABLES["compression"].cells["small"]:
        config = paper_config(cell, "fedavg")
        run = run_with(privacy=None, higher_is_better=False)
        parts.append(TABLES["compression"].row(cell, config, [run]))
    assert {row["up"] for row in parts} == {4000.0}
    assert [row["part"] for row in parts[:2]] == ["", "quantise"]
    assert [row["part"] for row in parts[-3:]] == ["sign", "sign, feedback", "sketch"]


def test_scores_of_public_code_are_beside_runs_with_its_rate_and_batches():
    table = TABLES["public_code"]
    (small,), (full,) = (table.cells[size] for size in ("small", "full"))
    for method in table.methods:
        configs = [paper_config(cell, method) for cell in (small, full)]
        for config in configs:
            assert (config.hparams.client_lr, config.batch_size) == (0.005, 10)
            assert config.cohort_size == config.data.clients == 20
        assert [config.rounds for config in configs] == [100, 2000]
    rows = []
    for source in ("real", "simulated"):
        run = run_with(privacy=None, higher_is_better=True, dataset=REAL | {"source": source})
        rows.append(table.row(small, paper_config(small, "fedala", source=source), [run]))
    assert [row["published"] for row in rows] == [99.57, None]


def test_scores_of_public_code_on_the_same_clients_are_paired_by_seed(tmp_path, monkeypatch):
    lines = [
        {"library": "peer", "version": "1", "method": "fedala", "seed": seed, "accuracy": score}
        for seed, score in ((0, 51.0), (1, 47.0))
    ]
    file = tmp_path / "scores.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(same_clients, "SCORES", file)
    table = TABLES["same_clients"]
    (cell,) = table.cells["small"]
    config = paper_config(cell, "fedala")
    runs = [run_with(seed=seed, metric="accuracy") for seed in range(3)]
    row = table.row(cell, config, runs)
    assert (row["scores"]["mean"], row["public"]["mean"], row["difference"]["mean"]) == (
        50,
        49,
        1,
    )
    assert table.text.cells([row])[1][2:] == [
        "fedala",
        "50.00",
        "49.00",
        "1.00±25.41",
        "peer 1",
    ]
    config.rounds = 5
    row = table.row(cell, config, runs)
    assert table.text.cells([row])[1][2:] == ["fedala", "50.00", "", "", "peer 1"]


def test_scripts_of_public_code_have_the_settings_of_the_table():
    """The scripts run without this repository, so they state these numbers themselves."""

    def constants(name):
        body = ast.parse((same_clients.SCORES.parent / name).read_text()).body
        assigned = [node for node in body if isinstance(node, ast.Assign)]
        return {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in assigned}

    fashion, methods = same_clients.FASHION, same_clients.OF_METHODS
    scored = constants("scored.py")
    stated = [fashion[name] for name in ("rounds", "batch_size", "hparams.client_lr")]
    assert ast.literal_eval(scored["(ROUNDS, BATCH, RATE)"]) == tuple(stated)
    fluke = constants("fluke_scores.py")
    rates = {
        name: values["hparams.client_lr"]
        for name, values in methods.items()
        if "hparams.client_lr" in values
    }
    assert ast.literal_eval(fluke["RATES"]) == rates
    assert float(fluke["TUNING_RATE"]) == methods["fedbabu"]["hparams.tuning_lr"]
    alpha = methods["pfedgraph"]["hparams.pfedgraph_alpha"]
    assert float(constants("pfedgraph_scores.py")["ALPHA"]) == alpha


def test_one_seed_has_no_spread_over_seeds():
    config = paper_config(Cell("tpt48"), "fedavg")
    for runs, spread in ((1, ""), (2, "0.00")):
        row = table_row("panacea_2", config, [run_with()] * runs)
        cells = dict(zip(*text_of("panacea_2").cells([row]), strict=True))
        assert cells["sd\nseeds"] == spread


def test_tables_state_the_divisor_of_the_spread_over_seeds():
    row = table_row("own", paper_config(Cell("tpt48"), "fedavg"), [run_with()] * 2)
    assert SPREAD.endswith("; its divisor is the number of seeds.")
    assert f"tpt48: mse, 1e-3. {SPREAD} *Steps* are" in text_of("panacea_2").markdown([row])
    assert "whose divisor is the number of seeds" in CAPTION.replace("\n", " ")


def test_a_table_of_own_files_has_errors_only_in_physical_units():
    config = custom.get_config("fedavg")
    errors = {"target 0": {"mae": 1.0, "rmse": 2.0}}
    run = run_with(errors={"units": OWN, **dict.fromkeys("GLP", errors)})
    row = table_row("own", config, [run])
    assert row["errors"] is None and row["scores"]["P"]["mean"] == 500
    speeds = dict.fromkeys("GLP", {"15 min": {"mae_seen": 1.0}})
    row = table_row("own", config, [run_with(errors={"units": "mph", **speeds})])
    assert (row["units"], row["errors"]) == ("mph", speeds)


@pytest.mark.parametrize(
    ("source", "extent", "form"),
    [
        ("simulated", "20 per class", "simulated, 20 per class"),
        ("real", "a half", "a half"),
        ("simulated", "", "simulated"),
        ("real", "", ""),
    ],
)
def test_notes_state_the_form_of_data_that_are_not_the_whole_real_ones(source, extent, form):
    run = run_with(dataset={"source": source, "extent": extent})
    row = table_row("panacea_2", fl60.get_config("fedavg"), [run])
    expected = [f"fl60: {form}; not comparable with published scores"] if form else []
    assert notes([row]) == expected


def test_errors_of_forecasts_and_of_methods_are_rows_of_one_table():
    errors = {"15 min": {"mae_seen": 1.0, "rmse_seen": 2.0, "mape_seen": 3.0}}
    forecast = {"data": "metr_la", "method": "persistence", "mse": 0.5, "units": "mph"}
    run = run_with(errors={"units": "mph", **dict.fromkeys("GLP", errors)})
    rows = [
        forecast | {"errors": {"P": errors}},
        table_row("panacea_2", metr_la.get_config("fedavg"), [run]),
    ]
    heads, *lines = error_text(rows).cells(rows)
    assert heads[1:] == ["method", "at", "1e-3 MSE", "15 min"]
    cells = ["P", "500.0", "1.00/2.00/3.0"]
    assert lines == [["metr_la", method, *cells] for method in ("persistence", "fedavg")]


@pytest.mark.slow
def test_brackets_in_a_console_table_are_printed():
    rows = [["[bold]head", "[x]"], ["[/old]/x.npz", "[old]"]]
    title, caption = "runs/[red]", "a [link]"
    console = Console(width=80)
    with console.capture() as capture:
        console.print(narrow(title, rows, caption=caption))
    printed = capture.get()
    assert all(cell in printed for row in rows for cell in row)
    assert title in printed and caption in printed


@pytest.mark.parametrize("columns", [6, 11])
def test_a_narrow_console_shows_all_digits(columns):
    """Six columns fit into 80 characters if intervals are folded; eleven do not fit."""
    numbers = range(11, 11 + columns)
    heads = ["method", *map(str, numbers)]
    cells = ["fedavg-finetune", *(f"{number}.25\u00b10.{number}" for number in numbers)]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(narrow("a title", [heads, cells]), crop=False)
    printed = capture.get()
    assert (max(map(len, printed.splitlines())) <= 80) == (columns == 6)
    words = printed.split()
    assert all(f"{n}.25" in words and f"\u00b10.{n}" in words for n in numbers)
