"""The command that searches rates on validation."""

import json
import types

import pytest

from experiments.paper import flha, pfedgat
from experiments.paper import rate_search as search
from graphfl_jax import configs
from tests.commands import ROOT, launched

SEARCHES = search.searches_of_file()


@pytest.mark.parametrize("name", SEARCHES["searches"])
def test_a_search_starts_at_values_that_methods_read(name):
    design = SEARCHES["searches"][name]
    starts = SEARCHES["starts"][design["starts"]]
    file = getattr(configs, name)
    hparams = {method: file.get_config(method).hparams for method in configs.methods()}
    for field in starts["all"] | design.get("start", {}):
        assert any(field in of for of in hparams.values())
    for method, special in starts.items():
        assert method == "all" or set(special) <= set(hparams[method])
    for method, other in design.get("rates_of", {}).items():
        assert hparams[method].keys() == hparams[other].keys()
    assert all("client_lr" in of for of in hparams.values())  # so every method has an axis


@pytest.mark.parametrize(
    "name, cell, more",
    [
        ("fashion_mnist", pfedgat.cell("fashion_mnist", "pathological"), {}),
        ("cifar10", pfedgat.cell("cifar10", "pathological"), {}),
        ("flha_cifar10", flha.cells_of("flha_1", "small")[0], {"data.val_fraction": 0.1}),
    ],
)
def test_searches_on_images_are_in_the_setting_of_the_small_tables(name, cell, more):
    design = SEARCHES["searches"][name]
    as_json = json.loads(json.dumps({"fields": {**cell.changes, **more}, **cell._asdict()}))
    assert design["fields"] == as_json["fields"]
    assert design["of_methods"] == as_json["of_methods"]


def test_a_search_tries_the_next_values_within_the_range_of_a_field():
    assert search.neighbours({"hparams.client_lr": 0.1, "hparams.knnper_lambda": 1.0}) == [
        {"hparams.client_lr": 0.03, "hparams.knnper_lambda": 1.0},
        {"hparams.client_lr": 0.3, "hparams.knnper_lambda": 1.0},
        {"hparams.client_lr": 0.1, "hparams.knnper_lambda": 0.3},
    ]
    assert search.neighbours({}) == []
    diverged = {"hparams.client_lr": 10.0, "hparams.mu": 0.01}
    assert search.lowered(diverged) == {"hparams.client_lr": 3.0, "hparams.mu": 0.003}


def test_a_move_needs_a_gain_in_score_or_loss():
    def rows(validation, loss):
        start = {"point": {"mu": 1.0}, "validation": 0.5, "loss": 0.4}
        return [{"point": {"mu": 0.3}, "validation": validation, "loss": loss}, start]

    before, after = {"mu": 1.0}, {"mu": 0.3}
    assert search.step(rows(0.50004, 0.39999), before) == before
    assert search.step(rows(0.50006, 0.4), before) == after
    assert search.step(rows(0.5, 0.39), before) == after
    assert search.step(rows(0.5, 0.3991), before, 0.001) == before
    assert search.step(rows(0.5, 0.3989), before, 0.001) == after
    assert search.step(rows(0.50006, 0.4), before, 0.001) == after
    assert search.step(rows(0.5, 0.4)[:1], before) == after  # all runs of the start diverged
    assert search.step([], before) == {"mu": 0.3}  # all runs did


def test_a_search_starts_at_the_best_of_its_scan():
    starts = search.starts_of({"hparams.mu": 1.0, "hparams.lr": 2.0}, {"scan": ["mu", [3, 4]]})
    assert starts == [{"hparams.mu": mu, "hparams.lr": 2.0} for mu in (3.0, 4.0)]
    fixed = {"hparams.lr": 2.0}
    assert search.starts_of(fixed, {"scan": ["mu", [3, 4]]}) == [fixed]
    assert search.starts_of(starts[0], {}) == starts[:1]
    best_first = [{"point": point} for point in ({"hparams.mu": 9.0}, *reversed(starts))]
    assert search.first(best_first, starts) == starts[1]
    assert search.first([], starts) == starts[0]


def test_a_stable_point_is_not_beside_a_diverged_run():
    """The values are half decades; that of the diverged run is 1, with `mu` 0.1."""

    def point(rate, mu):
        return {"hparams.client_lr": rate, "hparams.mu": mu}

    points = [point(0.3, 0.1), point(0.1, 0.1), point(1.0, 0.3), point(0.3, 0.3)]
    board = {
        "rows": [{"point": each} for each in points],
        "diverged": [{"point": point(1.0, 0.1), "seed": 3}],
    }
    assert [row["point"] for row in search.stable_rows(board)] == [points[1], points[3]]
    assert search.stable_rows(board | {"diverged": []}) == board["rows"]


def test_the_final_has_more_seeds_for_the_best_points():
    """Points 0 to 4 have one run, best first. With more seeds, 0 to 2 diverge or get worse."""
    before = {"rows": [{"point": point, "runs": 1} for point in range(5)]}
    played = []

    def play_with(diverging, order):
        def play(points, seeds):
            played.append(points)
            runs = dict.fromkeys(range(5), 1) | dict.fromkeys(points, seeds)
            rows = [{"point": i, "runs": runs[i]} for i in order if i not in diverging]
            return {"rows": rows, "diverged": len(diverging)}

        return play

    board = search.final(before, 3, play_with({0}, (4, 2, 0, 1, 3)))
    assert played == [[0, 1, 2]] and board["diverged"] == 1
    assert [row["point"] for row in board["rows"]] == [2, 1, 4, 3]
    played.clear()
    board = search.final(before, 3, play_with({0, 1, 2}, (3, 4)))
    assert played == [[0, 1, 2], [3, 4]]
    assert [row["point"] for row in board["rows"]] == [3, 4]
    assert search.final(before, 3, play_with(set(range(5)), ()))["rows"] == []


@pytest.mark.slow
def test_a_search_moves_to_a_point_without_a_better_neighbour_and_continues(tmp_path):
    words = [f"--config={ROOT}/configs/fl60.py", "--config.rounds=2", "--config.local_steps=5"]
    words += ["--methods=ditto", "--seeds=1", "--out=here"]

    def searched(*more):
        ended = launched("search", *words, *more, cwd=tmp_path)
        assert ended.status == 0, ended.stderr
        (row,) = json.loads((tmp_path / "here/search.json").read_text())["searched"]
        log = (tmp_path / "here/ditto/trials.jsonl").read_text().splitlines()
        return row, log, ended.stdout

    def points(row):
        return [tuple(each["point"].values()) for each in row["rows"]]

    row, log, printed = searched("--moves=1")
    first, second = (tuple(point.values()) for point in row["path"])
    assert first == (1, 0.1) and second == (1, 0.03)  # client_lr, ditto_lambda
    scan = {(rate, 0.1) for rate in (0.001, 0.01, 0.1, 1)}
    around = {(0.3, 0.1), (3, 0.1), (1, 0.3), (1, 0.03)}
    assert set(points(row)) == scan | around | {(0.3, 0.03), (3, 0.03), (1, 0.01)}
    assert not row["ended"] and len(log) == 11
    assert "ditto: client_lr 1, ditto_lambda 0.1 -> client_lr 1, ditto_lambda 0.03" in printed
    assert "ditto: has not ended after --moves=1; increase --moves" in printed

    row, more, printed = searched()
    assert row["ended"] and more[:11] == log  # no run is repeated
    chosen = row["chosen"]
    assert search.step(row["rows"], chosen, search.NATS) == chosen == row["path"][-1]
    for i in range(2):  # the choice is not at the edge of what was tried
        tried = sorted(point[i] for point in points(row))
        assert tried[0] < tuple(chosen.values())[i] < tried[-1]
    assert (
        f"| ditto | {search.point_text(chosen)} |" in (tmp_path / "here/search.md").read_text()
    )


def test_a_method_that_does_not_fit_is_left_out_of_all_and_refused_by_name(monkeypatch):
    def plan_of(method, design):
        def groups(points, seeds):
            if method.startswith("un"):
                raise ValueError(f"{method} needs labels")
            return []

        return search.Plan(method, [{}], groups, 1, 1)

    monkeypatch.setattr(search, "plan_of", plan_of)
    monkeypatch.setattr(
        search.configs, "methods", lambda: ["unfit", "fedavg", "fedavg-gn", "unfit-too"]
    )
    monkeypatch.setattr(search, "FLAGS", types.SimpleNamespace(methods=["all"]))
    with pytest.warns(RuntimeWarning, match="^unfit(-too)? is left out: unfit"):
        plans, left_out = search.fitting({"rates_of": {"fedavg-gn": "fedavg"}})
    assert [plan.method for plan in plans] == ["fedavg"]
    assert left_out.pop("fedavg-gn") == "it has the rates of fedavg"
    assert left_out == {name: f"{name} needs labels" for name in ("unfit", "unfit-too")}
    kept = {"searched": [{"method": "fedavg"}]}
    monkeypatch.setattr(search, "kept_results", lambda name: kept)
    monkeypatch.setattr(search, "FLAGS", types.SimpleNamespace(methods=["missing"]))
    with pytest.warns(RuntimeWarning, match="^unfit(-too)? is left out: unfit"):
        plans, _ = search.fitting({"name": "fl60"})
    assert [plan.method for plan in plans] == ["fedavg-gn"]
    kept["searched"].append({"method": "fedavg-gn"})
    with pytest.warns(RuntimeWarning, match="^unfit(-too)? is left out: unfit"):
        assert search.fitting({"name": "fl60"})[0] == []  # none of those that fit is missing
    monkeypatch.setattr(search, "FLAGS", types.SimpleNamespace(methods=["fedavg", "unfit"]))
    with pytest.raises(ValueError, match="^unfit needs labels$"):
        search.fitting({})
    monkeypatch.setattr(search.configs, "methods", lambda: ["unfit"])
    monkeypatch.setattr(search, "FLAGS", types.SimpleNamespace(methods=["all"]))
    with pytest.raises(ValueError, match="^unfit needs labels$"):
        search.fitting({})


KEPT = sorted(path.stem for path in search.KEPT_RESULTS.glob("*.json"))


@pytest.mark.parametrize("name", KEPT)
def test_configurations_have_the_rates_that_their_search_chose(name):
    """A method without an entry, and without a reason for it, is one that came later."""
    results = json.loads((search.KEPT_RESULTS / f"{name}.json").read_text())
    design = SEARCHES["searches"][name] | {"printed": SEARCHES["printed"]}
    rates, file = search.rates_of(results, design), getattr(configs, name)
    assert {*rates, *results["left_out"]} <= configs.methods().keys()
    assert sorted(rates) == configs.base.SEARCHED[name]
    for method, chosen in rates.items():
        hparams = file.get_config(method).hparams
        assert {rate: hparams[rate] for rate in chosen} == chosen, method
    assert all(row["ended"] for row in results["searched"])


def test_a_method_that_is_searched_on_fashion_mnist_is_searched_on_cifar10():
    """Otherwise its rates on CIFAR-10 and CIFAR-100 would be those of no search."""
    searched = configs.base.SEARCHED
    assert set(searched["fashion_mnist"]) <= set(searched["cifar10"])


def test_a_method_with_the_rates_of_another_keeps_what_it_states():
    chosen = {"hparams.client_lr": 1.0, "hparams.lambda_d": 0.01}
    results = {"searched": [{"method": "panacea-paper", "chosen": chosen}]}
    others = ("panacea-paper-gn", "panacea-paper-printed")
    design = {"printed": [], "rates_of": dict.fromkeys(others, "panacea-paper")}
    assert search.rates_of(results, design) == {
        "panacea-paper": {"client_lr": 1.0, "lambda_d": 0.01},
        "panacea-paper-gn": {"client_lr": 1.0},
        "panacea-paper-printed": {"client_lr": 1.0, "lambda_d": 0.01},
    }


def test_kept_results_replace_those_of_the_same_methods(tmp_path, monkeypatch):
    for name in ("TUNED", "SEARCHED"):
        path = tmp_path / name
        of_a = {"local": {"client_lr": 1.0}, "apfl": {"client_lr": 5.0}}
        path.write_text(json.dumps({"a": of_a, "b": {"ditto": {}}}))
        monkeypatch.setattr(search, name, path)
    monkeypatch.setattr(search, "KEPT_RESULTS", tmp_path)

    def results(left_out, **rates):
        rows = [
            {"method": method, "chosen": {"hparams.client_lr": rate}}
            for method, rate in rates.items()
        ]
        return {"searched": rows, "left_out": dict.fromkeys(left_out, "why")}

    design = {"name": "a", "rates_of": {"cfl": "fedavg"}}
    search.keep(results(["sfl", "ditto"], local=0.1, fedavg=0.2), design)
    everything = search.keep(results([], local=0.3, ditto=0.4), design)
    assert everything == search.kept_results("a")
    kept = json.loads((tmp_path / "a.json").read_text())
    chosen = {row["method"]: row["chosen"]["hparams.client_lr"] for row in kept["searched"]}
    assert chosen == {"fedavg": 0.2, "local": 0.3, "ditto": 0.4}
    assert kept["left_out"] == {"sfl": "why"}
    tuned = json.loads((tmp_path / "TUNED").read_text())
    assert {method: rate["client_lr"] for method, rate in tuned["a"].items()} == (
        chosen | {"cfl": 0.2, "apfl": 5.0}
    )
    assert tuned["b"] == {"ditto": {}}
    assert json.loads((tmp_path / "SEARCHED").read_text())["a"] == [
        "cfl",
        "ditto",
        "fedavg",
        "local",
    ]


def test_a_search_after_another_starts_at_its_choices(monkeypatch):
    chosen = {"hparams.client_lr": 3.0}
    kept = {"fashion_mnist": {"searched": [{"method": "local", "chosen": chosen}]}}
    monkeypatch.setattr(search, "kept_results", kept.__getitem__)
    design = SEARCHES["searches"]["cifar10"]
    assert search.earlier_choice("local", design) == chosen
    assert search.earlier_choice("fedavg", design) == {}
    assert search.earlier_choice("local", {}) == {}


def test_rates_are_fixed_only_where_a_paper_prints_them():
    design = {"printed": SEARCHES["printed"]}
    assert search.is_fixed("client_lr", "flha-ghn-paper", design)
    assert search.is_fixed("flha_head_lr", "flha-ghn-no-gnn-paper", design)
    assert not search.is_fixed("client_lr", "flha-ghn", design)
    assert not search.is_fixed("server_lr", "pfedgat-dot", design)
    assert search.is_fixed("lambda_d", "panacea-gn", design)
    assert not search.is_fixed("lambda_d", "panacea", design)
    assert set(SEARCHES["printed"]) <= configs.methods().keys()
