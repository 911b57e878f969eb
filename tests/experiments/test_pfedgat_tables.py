"""Tables and figures of pFedGAT: sizes, the choice of the point, averages, drawings."""

import json

import numpy as np
import pytest

from experiments.common.score_plots import draw_panels, draw_shares
from experiments.paper import cached_runs as cache
from experiments.paper.cached_runs import Cache, cached_runs, place_text
from experiments.paper.columns import size_list
from experiments.paper.configurations import paper_config
from experiments.paper.figure_lines import (
    Joining,
    allocation_rows,
    by_labels,
    joining_rows,
    label_counts,
    new_client_panels,
)
from experiments.paper.pfedgat import (
    BETTER,
    EQUAL,
    EXACT,
    METHODS,
    PUBLISHED,
    SETTINGS,
    TABLES,
    better_point,
    cell,
    cells_of,
    table_row,
    text_of,
    with_averages,
)
from graphfl_jax.build import load_federation
from graphfl_jax.configs import change, fl60
from graphfl_jax.configs.base import variant_of
from graphfl_jax.runs.batch import Outcome
from graphfl_jax.runs.environment import environment
from tests.commands import launched, shrunk, tiny
from tests.core.test_images import write_cifar
from tests.federations import COST, two_clusters

# ------------------------------------------------------------------------------- what is run


@pytest.mark.parametrize(
    "method, averages",
    [
        ("local", (91.48, 73.70, 32.11, 38.46)),
        ("fedavg", (91.46, 65.97, 29.22, 29.68)),
        ("sfl-star", (92.96, 76.55, 38.64, 42.21)),
        ("cfl", (92.90, 74.24, 35.25, 39.36)),
        ("fedrod", (92.69, 75.75, 32.98, 38.37)),
        ("pfedgat-paper", (93.66, 77.57, 39.93, 43.45)),
    ],
)
def test_published_accuracies_have_the_averages_that_the_paper_prints(method, averages):
    """Of Tables 1 and 2. That of local in Table 2 is printed as 48.46."""
    rows = [(dataset, TABLES["pfedgat_1"][dataset]) for dataset in PUBLISHED]
    rows.append(("cifar100", TABLES["pfedgat_2"]["cifar100"]))
    computed = [
        np.mean([PUBLISHED[dataset][method][setting] for setting in settings])
        for dataset, settings in rows
    ]
    np.testing.assert_allclose(computed, averages, atol=0.0101)


def test_every_published_accuracy_is_in_a_table():
    """The paper prints 13 methods in Tables 1 to 3, and two in Table 4."""
    cells = {
        (of_table.dataset, of_table.setting)
        for table in TABLES
        for of_table in cells_of(table, "full")
    }
    printed = {
        (dataset, setting)
        for dataset, methods in PUBLISHED.items()
        for settings in methods.values()
        for setting in settings
    }
    equal = {(dataset, f"{s}{EQUAL}") for dataset, s in printed if s.startswith("Dirichlet")}
    assert cells == printed | equal
    for table in ("pfedgat_1", "pfedgat_2", "pfedgat_3"):
        for dataset, settings in TABLES[table].items():
            full = [
                m
                for m, accuracies in PUBLISHED[dataset].items()
                if set(settings) <= set(accuracies)
            ]
            assert len(set(full) - {"pfedgat-direct-paper"}) == 13
    assert set(TABLES["pfedgat_4"]["cifar100"]) == {
        s for s in SETTINGS if "N=" not in s and EQUAL not in s
    }


@pytest.mark.parametrize(
    "dataset, setting, profile, expected",
    [
        # 600 examples, a tenth for validation: 540 / 64 is 8.4
        ("fashion_mnist", "IID", "small", (10, 6000, 8)),
        ("cifar10", "Dirichlet 0.1 N=25", "small", (25, 6000, 3)),  # 216 / 64
        ("cifar10", "Dirichlet 0.1 N=50", "full", (50, 0, 70)),  # 5 x 900 / 64
        ("fashion_mnist", "pathological", "full", (10, 0, 422)),  # 5 x 5400 / 64
    ],
)
def test_a_cell_trains_as_many_steps_as_epochs_take(dataset, setting, profile, expected):
    config = paper_config(cell(dataset, setting, profile), "fedavg", source="simulated")
    assert (config.data.clients, config.data.examples, config.local_steps) == expected
    assert config.data.cap == 0
    assert config.cohort_size == config.data.clients and config.data.val_fraction == 0.1
    assert config.eval_every == config.rounds == {"small": 30, "full": 50}[profile]


def test_a_small_table_leaves_out_the_largest_data_set():
    datasets = [of_table.dataset for of_table in cells_of("pfedgat_1", "small")]
    assert datasets == ["fashion_mnist"] * 4 + ["cifar10"] * 4
    assert len(cells_of("pfedgat_4", "small")) == 5 + 3
    for of_table in cells_of("pfedgat_4", "small"):
        assert "pfedgat-direct" in of_table.methods and not {*EXACT} & {*of_table.methods}
    assert {of_table.methods for of_table in cells_of("pfedgat_4", "full")} == {()}


def test_sizes_of_clients_differ_in_the_partition_of_the_paper_alone():
    def sizes_in(setting):
        config = paper_config(cell("cifar10", setting), "fedavg", source="simulated")
        small = {"data.examples": 400, "data.image_size": 8, "model.name": "mlp"}
        return np.sort(load_federation(change(config, small)).data.train.count)

    paper, equal = map(sizes_in, ("Dirichlet 0.1", f"Dirichlet 0.1{EQUAL}"))
    assert paper[-1] > 3 * paper[0] and equal[0] == equal[-1] == 36  # of 40, without validation
    assert abs(paper.sum() - 360) <= 5


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_tables_has_a_configuration(method):
    config = paper_config(cell("cifar100", "pathological"), method)
    assert (variant_of(config), config.data.classes_per_client) == (method, 20)
    assert config.data.source == "real"


# ------------------------------------------------------------------------------------ rows


def run_of(test, val, *, seed=0, better=True):
    """A run whose two clients have the given scores at G and L, and 0.5 at P."""

    def summary(scores):
        return {
            "mean": float(np.mean(scores)),
            "std_clients": float(np.std(scores)),
            "worst_decile": min(scores),
            "jain": 1.0,
        }

    def points(scores):
        return {
            point: summary(of_clients)
            for point, of_clients in {**scores, "P": [0.5, 0.5]}.items()
        }

    return {
        "metric": "accuracy",
        "higher_is_better": better,
        "hparams": {},
        "diverged": False,
        "new_clients": None,
        "seed": seed,
        "dataset": {"source": "real", "extent": "at most 600 images"},
        "scores": {"final": points(test), "validation": points(val), "best_val": None},
        **COST,
    }


WORSE_ON_TEST = run_of({"G": [0.7, 0.9], "L": [0.2, 0.4]}, {"G": [0.1, 0.1], "L": [0.3, 0.1]})
AT_G = run_of({"G": [0.6, 0.6], "L": [0.9, 0.9]}, {"G": [0.5, 0.5], "L": [0.4, 0.5]})
CELL = cell("cifar10", "IID")
TEXT = text_of("pfedgat_1")


def test_validation_chooses_the_point_whose_test_score_counts():
    assert [better_point(run) for run in (WORSE_ON_TEST, AT_G)] == ["L", "G"]
    equal = run_of({"G": [0, 0], "L": [1, 1]}, {"G": [0.2, 0.4], "L": [0.3, 0.3]})
    assert better_point(equal) == "G"
    for point, loss in (("G", 0.7), ("L", 0.6)):
        equal["scores"]["validation"][point]["loss"] = loss
    assert better_point(equal) == "L"
    errors = run_of({"G": [0, 0], "L": [1, 1]}, {"G": [2, 2], "L": [1, 2]}, better=False)
    assert better_point(errors) == "L"


def test_a_row_has_the_chosen_scores_and_their_spreads():
    config = paper_config(CELL, "fedavg")
    row = table_row(CELL, config, [WORSE_ON_TEST, AT_G])
    assert row["at"] == ["L", "G"] and row["published"] == 67.09
    scores = row["scores"]
    assert scores["G"]["mean"] == pytest.approx(100 * (0.8 + 0.6) / 2)
    assert scores["L"]["mean"] == pytest.approx(100 * (0.3 + 0.9) / 2)
    assert scores[BETTER]["seeds"] == pytest.approx([30, 60])
    assert scores[BETTER]["std_seeds"] == pytest.approx(15)
    assert scores[BETTER]["std_clients"] == pytest.approx((10 + 0) / 2)
    _, cells = TEXT.cells([row])
    expected = "cifar10|IID|fedavg|70.00|60.00|50.00|45.00|G, L|15.00|5.00"
    expected += "|50|9000.00|2.00|67.09"
    assert cells == expected.split("|")
    _, cells = TEXT.cells([table_row(CELL, config, [AT_G])])
    assert cells[-6:-4] == ["", "0.00"]  # one seed has no spread over seeds


@pytest.mark.parametrize(
    "method, changes, printed",
    [
        ("pfedgat-paper", {}, 67.17),
        ("pfedgat-paper", {"model.name": "lenet"}, None),
        ("pfedgat-paper", {"hparams.client_lr": 0.1}, None),
        ("pfedgat-paper", {"client_optimizer": "momentum"}, None),
        ("pfedgat-paper", {"algorithm.paper_mode": False}, None),
        ("pfedgat", {}, None),
        ("fedavg", {}, 67.09),
    ],
)
def test_a_published_score_is_beside_the_row_that_is_the_method(method, changes, printed):
    config = change(paper_config(CELL, method), changes)
    assert table_row(CELL, config, [AT_G])["published"] == printed


def test_the_paper_is_trained_for_epochs_by_plain_descent_on_test_examples():
    for method in EXACT:
        config = paper_config(cell("cifar10", "IID", "full"), method)
        assert (config.model.name, config.local_epochs) == ("conv3", 5)
        assert config.client_optimizer == config.server_optimizer == "sgd"
        assert config.hparams.to_dict() == {"client_lr": 0.01, "server_lr": 0.01}
        assert config.algorithm.paper_mode


def test_a_row_of_simulated_images_has_no_published_score():
    run = WORSE_ON_TEST | {"dataset": {"source": "simulated", "extent": ""}}
    row = table_row(CELL, paper_config(CELL, "fedavg"), [run])
    assert row["published"] is None
    assert "cifar10: simulated; not comparable with published scores" in TEXT.markdown([row])


def rows_of(method, *runs):
    """Rows of a method in the settings of the table; a run for each."""
    cells = cells_of("pfedgat_1", "small")[4:7]
    config = paper_config(CELL, method)
    return [
        table_row(of_table, config, of_cell)
        for of_table, of_cell in zip(cells, runs, strict=True)
    ]


def test_averages_are_over_the_settings_of_a_data_set():
    """The seeds of fedavg are at 30 and 60, then 60 and 30, then both at 60."""
    ups, downs = [WORSE_ON_TEST, AT_G], [AT_G, WORSE_ON_TEST]
    rows = rows_of("fedavg", ups, downs, [AT_G, AT_G])
    broken = [AT_G, AT_G | {"diverged": True, "scores": None}]
    rows += rows_of("local", ups, broken, ups)
    complete = with_averages(rows)
    assert complete[:-1] == rows  # none of local
    other = rows[0] | {"setting": f"IID{EQUAL}"}
    assert with_averages([*rows, other])[-1] == complete[-1]
    average = complete[-1]
    assert (average["setting"], average["method"]) == ("average", "fedavg")
    assert average["scores"][BETTER]["seeds"] == pytest.approx([50, 50])
    assert average["scores"][BETTER]["std_seeds"] == pytest.approx(0, abs=1e-9)
    assert average["scores"][BETTER]["std_clients"] == pytest.approx((5 + 5 + 0) / 3)
    assert average["published"] == 65.97
    text = TEXT.cells(complete)[1:]
    assert text[4][3] == "1 of 2 diverged" and text[4][-1] == "91.05"
    assert text[-1][7] == ""  # no point: the settings may differ in it


def test_the_page_states_the_sizes_and_the_control():
    rows = rows_of("fedavg", [AT_G], [AT_G], [AT_G])
    assert size_list(with_averages(rows)) == (
        "- cifar10, IID; pathological; Dirichlet 0.5: 30 rounds of all 10 clients, 8 steps of "
        "64 images with lenet, at most 600 images\n"
    )
    page = TEXT.markdown(rows)
    text = " ".join(page.split())
    assert "over clients and 1 seed." in text and "FedAvg at max(G, L) is the control" in text
    assert page.count("\n| cifar10 |") == 3
    table = TEXT.console(rows[:1])
    assert str(table.title) == "pfedgat_1 on cifar10, IID, %, 1 seed"


# ------------------------------------------------------------------------------ cached runs


def outcome_of(trial, rows=()):
    results = environment() | {"seed": trial.seed, "diverged": False, "accepted_changes": []}
    results["scores"] = {"final": dict.fromkeys("GLP", {"per_client": [0.0]})}
    return Outcome(results, list(rows), [], None)


@pytest.fixture
def planned(monkeypatch):
    """The trials that were asked for; the second of them is interrupted."""
    asked = []

    def run_trials(config, federations, trials, *, at_once, report):
        asked.append([trial.seed for trial in trials])
        for i, trial in enumerate(trials):
            if len(asked) == 1 and i == 1:
                raise KeyboardInterrupt
            shares = np.full((2, 2), 0.5, np.float32)
            scores = {"test": {"G": np.array([0.25, 0.75])}}
            row = {"round": np.int32(3), "scores": scores, "allocation": shares}
            yield i, outcome_of(trial, [row, {"round": np.int32(6), "scores": {}}])

    monkeypatch.setattr(cache, "run_trials", run_trials)
    return asked


def test_finished_seeds_of_an_interrupted_cell_are_kept(tmp_path, planned):
    config = tiny(fl60.get_config("fedavg"))
    with pytest.raises(KeyboardInterrupt):
        cached_runs(config, [0, 1, 2], Cache(tmp_path), at_once=1)
    cache_again = Cache(tmp_path)
    runs = cached_runs(config, [0, 1, 2], cache_again, at_once=1)
    assert planned == [[0, 1, 2], [1, 2]]
    assert cache_again.counts() == "2 new runs, 1 from the cache"
    assert [run["seed"] for run in runs] == [0, 1, 2]
    curve = [{"round": 3, "G": 0.5, "allocation": [[0.5, 0.5], [0.5, 0.5]]}, {"round": 6}]
    assert [run["curve"] for run in runs] == [curve] * 3


def test_a_table_states_where_cached_runs_were_made(tmp_path, planned):
    planned.append([])  # nothing is interrupted
    config = tiny(fl60.get_config("fedavg"))
    here, on_gpu = Cache(tmp_path), Cache(tmp_path)
    cached_runs(config, [0, 1], here)
    on_gpu.here = "1 x gpu: H100 with JAX 0.11.2"
    cached_runs(config, [0, 1, 2], on_gpu)
    assert on_gpu.counts() == (
        f"1 new runs, 2 from the cache, 2 of them made on {place_text(environment())}"
    )


def test_methods_of_a_cell_share_the_data_that_are_loaded(tmp_path, planned, monkeypatch):
    loaded = []

    def load_federation(config):
        loaded.append(config.seed)
        return two_clusters()

    monkeypatch.setattr(cache, "load_federation", load_federation)
    monkeypatch.setattr(cache, "LOADED", {})
    planned.append([])  # nothing is interrupted
    for method in ("fedavg", "local"):
        cached_runs(tiny(fl60.get_config(method)), [0, 1], Cache(tmp_path))
    assert loaded == [0, 1]
    other = change(tiny(fl60.get_config("fedavg")), {"data.val_fraction": 0.1})
    cached_runs(other, [1], Cache(tmp_path))
    assert loaded == [0, 1, 1]


# --------------------------------------------------------------------------------- figures


def test_clients_with_similar_labels_are_neighbours():
    """Clients 0 and 3 have the first class, 1 and 4 the second; 2 is between its two."""
    shares = np.array([[1, 0, 0], [0, 1, 0], [0, 0.2, 0.8], [0.9, 0, 0.1], [0, 0.95, 0.05]])
    order, twins = by_labels(shares)
    assert sorted(order) == list(range(5))
    place = np.argsort(order)
    assert abs(place[0] - place[3]) == abs(place[1] - place[4]) == 1
    assert twins.tolist() == [3, 4, 4, 0, 1]


def test_labels_are_counted_in_real_examples_only():
    train = two_clusters(padding=3).data.train
    expected = [train.y[i, :count].sum() for i, count in enumerate(train.count)]
    counts = label_counts(train, 2)
    np.testing.assert_array_equal(counts[:, 1], expected)
    np.testing.assert_array_equal(counts.sum(1), train.count)


MATRIX = [[0.5, 0.4, 0.1], [0.3, 0.7, 0.0], [0.2, 0.2, 0.6]]
LINE = {"name": "mixed", "x": [5], "allocations": [MATRIX], "twins": [1, 0, 1]}


def test_mean_shares_distinguish_clients_with_similar_labels():
    """Own: 0.5, 0.7, 0.6; most similar: 0.4, 0.3, 0.2; the third: 0.1, 0.0, 0.2."""
    heads, row = allocation_rows([LINE])
    assert row == ["mixed", "5", "60.0", "30.0", "10.0"] and len(heads) == len(row)


def test_a_heat_map_shows_the_matrix_of_each_round():
    other = {"name": "other", "x": [5, 9], "allocations": [MATRIX, np.eye(3).tolist()]}
    figure = draw_shares([LINE, other])
    drawn = [axes for axes in figure.axes if axes.get_title()]
    titles = [axes.get_title() for axes in drawn]
    assert titles == ["mixed, round 5", "other, round 5", "other, round 9"]
    for axes, matrix in zip(drawn, [MATRIX, MATRIX, np.eye(3)], strict=True):
        (image,) = axes.images
        np.testing.assert_array_equal(image.get_array(), matrix)
    assert [axes.images[0].get_clim() for axes in drawn] == [(0, 0.7), (0, 1), (0, 1)]


def new_client_run(scores, diverged_at=-1):
    """A run whose new clients have these mean scores at P, and 0 at G and L."""
    curve = [
        {"rounds": k, "G": {"mean": 0.0}, "L": {"mean": 0.0}, "P": {"mean": score}}
        for k, score in enumerate(scores)
    ]
    joined = {"curve": curve, "diverged_at": diverged_at}
    return {"metric": "accuracy", "seed": 0, "diverged": False, "new_clients": joined}


def test_scores_of_new_clients_are_means_over_finished_runs():
    made = {
        "local": [new_client_run([0.2, 0.4]), new_client_run([0.4, 0.8])],
        "fedamp": [new_client_run([0.5, 0.5]), new_client_run([0.5], diverged_at=1)],
    }
    seen = []

    def runs_of(of_figure, method):
        seen.append(paper_config(of_figure, method))
        return made[method]

    figure = Joining(("cifar10", "cifar100"), "Dirichlet 0.1", rounds=40, new_rounds=1)
    panels = new_client_panels(figure.cells(), ["local", "fedamp"], runs_of, "P")
    assert [config.data.name for config in seen] == ["cifar10"] * 2 + ["cifar100"] * 2
    for config in seen:
        assert (config.rounds, config.eval_every, config.cohort_size) == (40, 40, 8)
        assert dict(config.new_clients)["fraction"] == 0.2 and config.new_clients.rounds == 1
    heads, *rows = joining_rows(panels)
    assert rows[:2] == [
        ["cifar10", "local", "0", "0.00", "0.00", "30.00", "10.00"],
        ["cifar10", "local", "1", "0.00", "0.00", "60.00", "20.00"],
    ]
    assert rows[2] == ["cifar10", "fedamp (1 diverged)", "0", *["0.00"] * 2, "50.00", ""]
    assert len(rows) == 8 and {len(row) for row in rows} == {len(heads)}
    drawn = draw_panels(panels, "rounds")
    assert [axes.get_title() for axes in drawn.axes] == ["cifar10", "cifar100"]
    lines = drawn.axes[1].get_lines()
    np.testing.assert_allclose(lines[0].get_ydata(), [30, 60])
    assert [line.get_label() for line in lines] == ["local", "fedamp (1 diverged)"]


# --------------------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["--table=pfedgat_1", "--datasets=cifar100"],
            "datasets='cifar100' is unknown; perhaps cifar10 is meant; choose",
        ),
        (["--table=pfedgat_2", "--data_root=nowhere"], "no file nowhere/cifar-100-binary/"),
        (
            ["--table=pfedgat_1", "--methods=local,pfedgat-paper"],
            "methods=pfedgat-paper is in no chosen cell of pfedgat_1; leave it out, or choose",
        ),
        (
            ["--table=pfedgat_1", "--setting=iid"],
            "setting='iid' is unknown; choose from IID, pathological, Dirichlet 0.5, Dir",
        ),
        (
            ["--table=panacea_2", "--setting=IID"],
            "setting=IID is not read, since panacea_2 has no settings; leave --setting out",
        ),
        (
            ["--table=pfedgat_3", "--setting=Dirichlet 0.1", "--clients=25"],
            "setting=Dirichlet 0.1 and clients=25 have nothing of pfedgat_3 in common; leave",
        ),
    ],
)
def test_a_table_that_cannot_be_made_is_refused_in_one_line(tmp_path, words, message):
    status, _, errors = launched("tables", *words, cwd=tmp_path)
    assert status == 2 and message in errors and errors.count("\n") == 1, errors
    assert not list(tmp_path.iterdir())


@pytest.mark.release
def test_a_table_of_images_goes_on_where_it_stopped(tmp_path):
    def made(methods, *more):
        words = ["--table=pfedgat_1", "--datasets=fashion_mnist", "--source=simulated"]
        words += ["--seeds=1", "--at_once=1", "--out=here", "--rounds=1", *more]
        ended = shrunk(
            "tables",
            *words,
            f"--methods={methods}",
            cwd=tmp_path,
            file="fashion_mnist",
            model__name="mlp",
        )
        assert ended.status == 0, ended.stderr
        return ended.stdout

    assert "4 new runs, 0 from the cache" in made("local")
    assert "4 new runs, 4 from the cache" in made("local,fedavg")
    rows = json.loads((tmp_path / "here/pfedgat_1.json").read_text())
    assert [row["method"] for row in rows] == ["local", "fedavg"] * 5
    settings = [row["setting"] for row in rows[::2]]
    assert settings == [
        "IID",
        "pathological",
        "Dirichlet 0.5",
        f"Dirichlet 0.5{EQUAL}",
        "average",
    ]
    for row in rows[:8]:
        (point,) = row["at"]
        assert row["scores"][BETTER] == row["scores"][point]
    page = (tmp_path / "here/pfedgat_1.md").read_text()
    assert "fashion_mnist: simulated; not comparable" in page
    two = "IID", f"Dirichlet 0.5{EQUAL}"
    assert "0 new runs, 2 from" in made("fedavg", *(f"--setting={name}" for name in two))
    some = json.loads((tmp_path / "here/pfedgat_1.json").read_text())
    assert some == [row for row in rows[1::2] if row["setting"] in two]


@pytest.mark.release
def test_the_figure_of_shares_is_drawn_from_the_runs(tmp_path):
    """With two classes each, clients i and i + 5 have the same."""
    write_cifar(tmp_path / "data", 10, "binary")

    def made(method):
        words = ["--figure=pfedgat_3", "--data_root=data", "--out=here", "--rounds=2"]
        return shrunk(
            "figures",
            *words,
            f"--methods={method}",
            cwd=tmp_path,
            file="cifar10",
            model__name="mlp",
        )

    ended = made("fedamp")
    assert ended.status == 0, ended.stderr
    (line,) = json.loads((tmp_path / "here/figure_pfedgat_3.json").read_text())
    assert line["x"] == [1, 2] and np.shape(line["allocations"]) == (2, 10, 10)
    np.testing.assert_allclose(np.sum(line["allocations"], axis=2), 1, atol=1e-5)
    numbers = [int(name.removeprefix("client ")) for name in line["clients"]]
    assert [numbers[twin] for twin in line["twins"]] == [(n + 5) % 10 for n in numbers]
    assert (tmp_path / "here/figure_pfedgat_3.png").read_bytes()[:4] == b"\x89PNG"
    ended = made("fedavg")
    assert ended.status == 2 and "methods=fedavg has no allocation" in ended.stderr
