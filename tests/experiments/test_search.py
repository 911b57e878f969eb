"""The command that searches rates on validation."""

import json
import types

import pytest

from experiments.paper import flha, pfedgat
from experiments.paper import rate_search as search
from graphfl_jax import configs
from tests.commands import ROOT, launched

SEARCHES = json.loads(search.SEARCHES.read_text())


@pytest.mark.parametrize("name", SEARCHES["searches"])
def test_a_search_names_axes_that_methods_read(name):
    axes = SEARCHES["axes"][SEARCHES["searches"][name]["axes"]]
    file = getattr(configs, name)
    hparams = {method: file.get_config(method).hparams for method in configs.methods()}
    assert all(any(axis in of for of in hparams.values()) for axis in axes["all"])
    for method, special in axes.items():
        assert method == "all" or set(special) <= set(hparams[method])
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


@pytest.mark.slow
def test_a_search_extends_its_axes_and_continues_from_its_log(tmp_path):
    words = [f"--config={ROOT}/configs/fl60.py", "--config.rounds=2", "--config.local_steps=5"]
    words += ["--methods=local", "--seeds=1", "--out=here", "--at_once=4", "--extensions=1"]

    def searched():
        ended = launched("search", *words, cwd=tmp_path)
        assert ended.status == 0, ended.stderr
        (row,) = json.loads((tmp_path / "here/search.json").read_text())["searched"]
        log = (tmp_path / "here/local/trials.jsonl").read_text().splitlines()
        return row, log, ended.stdout

    row, log, printed = searched()
    assert row["axes"] == {"hparams.client_lr": [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]}
    assert row["added"] == {"hparams.client_lr": 1}
    assert len(log) == len(row["rows"]) == 6
    best = min(row["rows"], key=lambda row: (-row["validation"], row["loss"]))
    assert row["chosen"] == best["point"] == {"hparams.client_lr": 0.3}
    assert row["at_edge"] == ["hparams.client_lr"]
    where = "local: the best hparams.client_lr is at the edge of 0.001,0.003,0.01,0.03,0.1"
    assert f"{where}; 0.3 is added" in printed
    assert f"{where},0.3; the limit is reached" in printed
    assert "| local | client_lr 0.3 |" in (tmp_path / "here/search.md").read_text()
    again, same, _ = searched()
    assert again == row and same == log  # no run is repeated


def test_a_method_that_does_not_fit_is_left_out_of_all_and_refused_by_name(monkeypatch):
    def plan_of(method, design):
        def groups(axes):
            if method.startswith("un"):
                raise ValueError(f"{method} needs labels")
            return []

        return search.Plan(method, {}, groups)

    monkeypatch.setattr(search, "plan_of", plan_of)
    monkeypatch.setattr(search.configs, "methods", lambda: ["unfit", "fedavg", "unfit-too"])
    monkeypatch.setattr(search, "FLAGS", types.SimpleNamespace(methods=["all"]))
    with pytest.warns(RuntimeWarning, match="^unfit(-too)? is left out: unfit"):
        plans, left_out = search.fitting({})
    assert [plan.method for plan in plans] == ["fedavg"]
    assert left_out == {name: f"{name} needs labels" for name in ("unfit", "unfit-too")}
    monkeypatch.setattr(search, "FLAGS", types.SimpleNamespace(methods=["fedavg", "unfit"]))
    with pytest.raises(ValueError, match="^unfit needs labels$"):
        search.fitting({})
    monkeypatch.setattr(search.configs, "methods", lambda: ["unfit"])
    monkeypatch.setattr(search, "FLAGS", types.SimpleNamespace(methods=["all"]))
    with pytest.raises(ValueError, match="^unfit needs labels$"):
        search.fitting({})
