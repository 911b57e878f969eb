"""Comparing finished runs: settings, intervals over seeds, paired tests, refusals."""

import csv
import json
import os
import re

import numpy as np
import pytest
from scipy.stats import wilcoxon

from graphfl_jax.commands.common.comparison import comparison, holm, reach
from graphfl_jax.commands.common.finished_runs import read_rows, read_run, read_runs
from graphfl_jax.commands.common.paper_tables import cells_of, latex_text, markdown_text
from graphfl_jax.commands.common.statistics import wilcoxon_p
from graphfl_jax.intervals import critical_value, half_width
from graphfl_jax.metrics import summary
from tests.commands import scripted
from tests.federations import small_config

CLIENTS = 12
# `graphfl` in a process that has imported the package.
GRAPHFL = """
import runpy
runpy.run_module("graphfl_jax", run_name="__main__", alter_sys=True)
"""


def scores_of(method, seed):
    shift = {"fedavg": 0.0, "ditto": 0.1, "local": 0.1}[method]
    draws = np.random.default_rng([seed, len(method)]).normal(0.6 + shift, 0.1, CLIENTS)
    return draws.astype(np.float32)


def write_run(
    path,
    method,
    seed,
    *,
    data="a",
    arrays=None,
    diverged=False,
    metrics=None,
    scores=None,
    source="drawn",
    extent="",
    new_clients=None,
    **changes,
):
    """A folder as a run leaves it, with drawn scores or those of `scores`."""
    config = small_config(method, seed=seed, **changes)
    scores = scores_of(method, seed) if scores is None else np.float32(scores)
    own = {at: summary(scores, higher_is_better=True) for at in "GLP"}
    results = {
        "variant": method,
        "dataset": {"name": f"set {data}", "source": source, "extent": extent, "sha256": data},
        "seed": seed,
        "rounds": config.rounds,
        "metric": "accuracy",
        "higher_is_better": True,
        "diverged": diverged,
        "new_clients": new_clients,
        "attack": None,
        "timing": {},
        "metrics": metrics and dict.fromkeys("GLP", metrics),
        "scores": None if diverged else {"final": own, "validation": None, "best_val": None},
        "identity": {"data": data, "arrays": arrays or f"{data}{seed}"},
    }
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config.to_dict()))
    (path / "results.json").write_text(json.dumps(results))
    (path / "metrics.jsonl").write_text("")
    return path


def compared(*paths):
    return comparison([read_run(path) for path in paths])


def test_settings_have_means_over_seeds_and_clients_are_paired(tmp_path):
    paths = [
        write_run(tmp_path / f"{method}-{seed}", method, seed)
        for method, seeds in (("fedavg", (0, 1, 2)), ("ditto", (1, 2, 3)))
        for seed in seeds
    ]
    found = compared(*paths)
    fedavg, ditto = found["settings"]
    assert (fedavg["name"], fedavg["seeds"], ditto["seeds"]) == ("fedavg", [0, 1, 2], [1, 2, 3])
    assert found["fields"] == ["algorithm.name", "hparams.ditto_lambda"]
    assert fedavg["fields"]["hparams.ditto_lambda"] is None
    means = [scores_of("fedavg", seed).mean(dtype=np.float64) for seed in (0, 1, 2)]
    half = critical_value(3, missed=0.05) * np.std(means, ddof=1) / np.sqrt(3)
    got = fedavg["scores"]["P"]
    np.testing.assert_allclose([got["mean"], got["half_width"]], [np.mean(means), half], 1e-5)
    (pair,) = found["pairs"]
    change = np.mean([scores_of("ditto", s) - scores_of("fedavg", s) for s in (1, 2)], axis=0)
    assert (pair["seeds"], pair["clients"], found["unpaired"]) == ([1, 2], CLIENTS, [])
    at = pair["points"]["P"]
    np.testing.assert_allclose(at["difference"], change.mean(), 1e-5)
    assert at["better"] == np.sum(change > 0)
    assert at["p"] == at["p_holm"] == pytest.approx(wilcoxon(change.astype(float)).pvalue)


@pytest.mark.slow
def test_private_groups_have_their_epsilon(tmp_path):
    paths = []
    for method, seed, epsilon in (("fedavg", 0, 1.0), ("fedavg", 1, 2.0), ("ditto", 0, None)):
        paths.append(write_run(tmp_path / f"{method}-{seed}", method, seed))
        results = json.loads((paths[-1] / "results.json").read_text())
        known = {"delta": 1e-5, "accountant": "rdp", "noise_multiplier": 1.0, "clip": 1.0}
        private = epsilon and {"name": "central", "epsilon": epsilon, **known}
        (paths[-1] / "results.json").write_text(json.dumps(results | {"privacy": private}))
    assert [setting["epsilon"] for setting in compared(*paths)["settings"]] == [1.5, None]
    ended = scripted(GRAPHFL, "compare", *map(str, paths), cwd=tmp_path)
    assert ended.status == 0, ended.stderr
    assert re.findall(r"^ *fedavg .*? 2 +1\.5 +0\.", ended.stdout, re.MULTILINE), ended.stdout
    assert re.findall(r"^ *ditto .*? 1 +- +0\.", ended.stdout, re.MULTILINE), ended.stdout
    others = write_run(tmp_path / "local-0", "local", 0), paths[2]
    assert "epsilon" not in scripted(GRAPHFL, "compare", *map(str, others), cwd=tmp_path).stdout


def three_settings(tmp_path):
    """On one data set: local is far better than fedavg, and ditto hardly better than local."""
    base = np.linspace(0.3, 0.6, CLIENTS)
    shifts = {"fedavg": 0.0, "local": 0.2, "ditto": 0.2}
    slope = np.where(np.arange(CLIENTS) % 2, 0.011, -0.01)  # in both directions
    return compared(
        *(
            write_run(
                tmp_path / f"{method}{seed}",
                method,
                seed,
                scores=base + shift + 0.001 * seed + slope * (method == "ditto"),
            )
            for method, shift in shifts.items()
            for seed in (0, 1)
        ),
        write_run(tmp_path / "apart", "fedavg", 0, data="b", scores=base),
    )


@pytest.mark.slow
def test_the_table_of_a_paper_has_the_best_in_bold_and_marks_of_tests(tmp_path):
    """A setting alone on its data is not the best."""
    content = three_settings(tmp_path)
    cells = {
        (setting["name"], setting["data"]): row[2]
        for setting, row in zip(content["settings"], cells_of(content), strict=True)
    }
    marks = {key: (cell.is_best, cell.is_worse) for key, cell in cells.items()}
    assert marks == {
        ("ditto", "set a"): (True, False),
        ("local", "set a"): (False, False),
        ("fedavg (1)", "set a"): (False, True),
        ("fedavg (2)", "set b"): (False, False),
    }
    latex, markdown = latex_text(content), markdown_text(content)
    assert latex.count(r"\mathbf") == markdown.count("**") / 2 == 3  # at G, L and P
    assert latex.count(r"\dagger}") == 3 and markdown.count(" † |") == 3
    assert latex.splitlines()[0] == r"\begin{tabular}{lllrrr}"
    assert r"95 \% interval" in latex and not re.search(r"(?<!\\)%(?! )", latex)


def test_a_better_setting_is_not_marked_where_the_test_is_the_other_way(tmp_path):
    """Over the seed that both have, fedavg is better; over its seeds, ditto is."""
    low, high = np.linspace(0.1, 0.2, CLIENTS), np.linspace(0.7, 0.8, CLIENTS)
    paths = [
        write_run(tmp_path / f"{method}{seed}", method, seed, scores=scores)
        for method, seed, scores in (
            ("fedavg", 0, low + 0.2),
            ("ditto", 0, low),
            ("ditto", 1, high),
        )
    ]
    content = compared(*paths)
    marks = {
        setting["name"]: (row[2].is_best, row[2].is_worse)
        for setting, row in zip(content["settings"], cells_of(content), strict=True)
    }
    assert content["pairs"][0]["points"]["P"]["p_holm"] < 0.05
    assert marks == {"ditto": (True, False), "fedavg": (False, False)}


def test_what_it_takes_to_reach_a_target_is_that_of_the_first_evaluation(tmp_path):
    rows = {2: 0.5, 4: 0.7, 6: 0.6, 8: 0.9}
    path = write_run(tmp_path / "a", "fedavg", 0, rounds=8, cohort_size=3)
    results = json.loads((path / "results.json").read_text())
    results |= {"timing": {"train_s": 4.0}}
    results |= {"communication": {"up_bytes": 10, "down_bytes": 30}}
    (path / "results.json").write_text(json.dumps(results))
    lines = [
        {
            "round": n,
            "train": {},
            "test": {at: summary(np.array([m]), higher_is_better=True) for at in "GLP"},
        }
        for n, m in rows.items()
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(path)
    assert reach(run, 0.65) == {"round": 4, "bytes": 4 * 3 * 40, "seconds": 2.0}
    assert reach(run, 0.9)["round"] == 8 and reach(run, 0.91) is None
    broken = run._replace(results=run.results | {"diverged": True})
    assert reach(broken, 0.65) is None
    few = run._replace(fields=run.fields | {"cohort_size": 100})  # of 12 clients
    assert reach(few, 0.65)["bytes"] == 4 * CLIENTS * 40
    lower = run._replace(results=run.results | {"higher_is_better": False})
    assert reach(lower, 0.5)["round"] == 2 and reach(lower, 0.4) is None
    other = write_run(tmp_path / "b", "ditto", 0)
    settings = comparison([run, read_run(other)], target=0.65)["settings"]
    reached = {setting["method"]: setting["reached"] for setting in settings}
    assert reached == {"fedavg": [reach(run, 0.65)], "ditto": [None]}


def test_rounding_of_float32_makes_no_client_differ(tmp_path):
    """0.9 and 0.7 have the mean of 0.8 and 0.8, in float32 only nearly."""
    paths = [
        write_run(tmp_path / f"{method}{seed}", method, seed, scores=[score] * CLIENTS)
        for method, scores in (("fedavg", (0.8, 0.8)), ("ditto", (0.9, 0.7)))
        for seed, score in enumerate(scores)
    ]
    at = compared(*paths)["pairs"][0]["points"]["P"]
    assert (at["better"], at["worse"], at["difference"], at["p"]) == (0, 0, 0, 1)


@pytest.mark.parametrize("examples", [20, 128, 7])
def test_differences_of_shares_of_test_examples_have_the_ties_of_integers(tmp_path, examples):
    counts = np.random.default_rng(0).integers(0, examples + 1, (2, 5, 60))  # runs, seeds
    paths = [
        write_run(tmp_path / f"{method}{seed}", method, seed, scores=own[seed] / examples)
        for method, own in zip(("fedavg", "ditto"), counts, strict=True)
        for seed in range(5)
    ]
    at = compared(*paths)["pairs"][0]["points"]["P"]
    change = (counts[1] - counts[0]).sum(axis=0)
    assert (at["better"], at["worse"]) == (np.sum(change > 0), np.sum(change < 0))
    assert at["p"] == pytest.approx(wilcoxon(change[change != 0]).pvalue, abs=1e-12)
    np.testing.assert_allclose(at["difference"], change.mean() / (5 * examples), atol=1e-6)


def test_small_errors_are_compared_in_their_own_unit(tmp_path):
    errors = np.linspace(1e-9, 2e-9, CLIENTS)
    paths = [
        write_run(tmp_path / method, method, 0, scores=own)
        for method, own in (("fedavg", errors), ("ditto", 1.001 * errors))
    ]
    at = compared(*paths)["pairs"][0]["points"]["P"]
    assert (at["better"], at["worse"]) == (CLIENTS, 0)
    assert at["p"] == pytest.approx(2 / 2**CLIENTS)  # all signs agree


def test_intervals_and_p_values_are_those_of_tables():
    assert half_width([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.776445 * (2.5 / 5) ** 0.5)
    assert half_width([1.0]) is None
    assert wilcoxon_p(np.arange(1.0, 6.0)) == pytest.approx(2 / 2**5)  # all signs agree
    assert wilcoxon_p(np.zeros(4)) == 1


@pytest.mark.parametrize("differing", [3, 4, 6])
def test_clients_without_a_difference_do_not_make_the_test_approximate(differing):
    """Of 60 clients few differ, all in one direction: the p value counts signs exactly."""
    differences = np.zeros(60)
    differences[:differing] = np.linspace(0.01, 0.02, differing)
    assert wilcoxon_p(differences) == pytest.approx(2 / 2**differing)


def test_settings_of_one_method_are_numbered_and_the_fields_name_them(tmp_path):
    found = compared(
        write_run(tmp_path / "a", "ditto", 0),
        write_run(tmp_path / "b", "ditto", 0, local_steps=7),
        write_run(tmp_path / "c", "ditto", 1, local_steps=7, checkpoint_every=3),
        write_run(tmp_path / "d", "fedavg", 0),
    )
    assert [one["name"] for one in found["settings"]] == ["ditto (1)", "ditto (2)", "fedavg"]
    assert found["settings"][1]["fields"]["local_steps"] == 7
    assert found["settings"][1]["seeds"] == [0, 1]  # checkpoints do not change the results
    assert found["settings"][0]["scores"]["P"]["half_width"] is None  # one seed
    same = found["pairs"][0]["points"]["P"]  # the drawn scores do not depend on the field
    assert (same["difference"], same["p"]) == (0, 1)


@pytest.mark.parametrize(
    "other, why",
    [
        ({"data": "b"}, "their data sets differ"),
        ({"arrays": "z"}, "their splits, new clients or attackers differ with seed 0"),
        ({"seed": 4}, "no seed is common to both"),
        ({"diverged": True}, "a run diverged"),
    ],
)
def test_runs_that_cannot_be_paired_have_no_test_and_the_reason(tmp_path, other, why):
    first = write_run(tmp_path / "a", "fedavg", 0)
    second = write_run(tmp_path / "b", "local", **({"seed": 0} | other))
    found = compared(first, second)
    assert found["pairs"] == []
    assert found["unpaired"] == [{"first": "fedavg", "second": "local", "why": why}]
    if "diverged" in other:
        assert found["settings"][1]["scores"] is None and found["settings"][1]["diverged"] == 1


def test_a_run_that_does_not_record_its_split_is_not_paired(tmp_path):
    paths = [write_run(tmp_path / method, method, 0) for method in ("fedavg", "local")]
    file = paths[1] / "results.json"
    results = json.loads(file.read_text())
    del results["identity"]
    file.write_text(json.dumps(results))
    assert compared(*paths)["unpaired"][0]["why"] == "a run does not record its split"


def test_runs_of_a_method_that_is_not_registered_are_compared(tmp_path):
    paths = [write_run(tmp_path / f"{seed}", "local", seed) for seed in (0, 1)]
    paths.append(write_run(tmp_path / "other", "fedavg", 0))
    for path in paths[:2]:
        text = (path / "config.json").read_text()
        (path / "config.json").write_text(text.replace('"name": "local"', '"name": "mine"'))
    found = compared(*paths)
    assert [one["seeds"] for one in found["settings"]] == [[0, 1], [0]]
    assert found["fields"] == ["algorithm.name"] and len(found["pairs"]) == 1


def with_data(path, digest):
    text = (path / "results.json").read_text()
    (path / "results.json").write_text(text.replace('"sha256": "a"', f'"sha256": "{digest}"'))
    return path


def test_other_data_of_one_name_are_told_apart(tmp_path):
    """Those of a common seed have a digest. Those of the seeds of a setting are pointed out."""
    runs = ("fedavg", 0, "a"), ("ditto", 0, "b"), ("local", 1, "c"), ("local", 2, "a")
    paths = [
        with_data(write_run(tmp_path / f"{method}-{seed}", method, seed), digest)
        for method, seed, digest in runs
    ]
    ended = scripted(GRAPHFL, "compare", *map(str, paths), "--to=all.md", cwd=tmp_path)
    assert ended.status == 0, ended.stderr
    text = (tmp_path / "all.md").read_text()
    assert "| fedavg | set a, data a |" in text and "| ditto | set a, data b |" in text
    assert "| local | set a |" in text
    note = (
        "the data of local differ between seeds: the seed decides them, or a file has changed"
    )
    assert f"- {note}\n" in text and text.count("differ between seeds") == 1
    other = with_data(write_run(tmp_path / "other", "fedavg", 0), "b")
    with pytest.raises(ValueError, match="the seed of .*fedavg-0, and other data; leave one"):
        compared(paths[0], other)


def test_new_clients_that_diverge_cost_no_other_scores(tmp_path):
    broken = {"diverged_at": 1, "clients": ["a"], "curve": []}
    found = compared(
        write_run(tmp_path / "a", "fedavg", 0, new_clients=broken),
        write_run(tmp_path / "b", "local", 0),
    )
    assert [one["diverged"] for one in found["settings"]] == [0, 0]
    assert found["settings"][0]["scores"] and len(found["pairs"]) == 1


@pytest.mark.parametrize(
    "checkpoints, remedy",
    [
        ((), "metrics.jsonl is missing or damaged (line 1); leave the run out, or run it"),
        (("8.json",), "line 1 is damaged; graphfl run --resume --out="),
    ],
)
def test_a_damaged_evaluation_has_a_remedy_that_works(tmp_path, checkpoints, remedy):
    """A run without checkpoints, as of several seeds, cannot be resumed at its end."""
    path = write_run(tmp_path / "a", "fedavg", 0)
    (path / "metrics.jsonl").write_text("{\n")
    (path / "checkpoints").mkdir()
    for name in checkpoints:
        (path / "checkpoints" / name).write_text("{}")
    with pytest.raises(ValueError, match=re.escape(remedy)):
        read_rows(path)


def test_further_metrics_have_means_over_seeds(tmp_path):
    """One is undefined for all clients with one of the seeds."""
    paths = []
    for seed, mean, other in ((0, 0.5, None), (1, 0.7, 0.9)):
        own = {"auc": {"mean": mean}, "macro_f1": {"mean": other}}
        paths.append(write_run(tmp_path / f"{seed}", "local", seed, metrics=own))
    (setting,) = compared(*paths)["settings"]
    assert setting["metrics"]["macro_f1"] == dict.fromkeys("GLP")
    found = setting["metrics"]["auc"]["P"]
    half = critical_value(2, missed=0.05) * 0.1  # sd 0.2 / sqrt 2, over sqrt 2
    assert (found["mean"], found["half_width"]) == pytest.approx((0.6, half))


def test_two_runs_of_one_configuration_and_seed_are_refused(tmp_path):
    paths = [write_run(tmp_path / name, "fedavg", 0) for name in "ab"]
    with pytest.raises(
        ValueError, match="b has the configuration and the seed of .*a; leave one of them out"
    ):
        compared(*paths)


def test_holms_correction_is_that_of_the_definition():
    np.testing.assert_allclose(holm([0.04, 0.01, 0.03]), [0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1, 1] and holm([]) == []


def test_runs_are_ordered_by_their_method_however_they_are_named(tmp_path):
    paths = [write_run(tmp_path / name, name, 0) for name in ("fedavg", "local", "ditto")]
    for order in (paths, paths[::-1]):
        assert [run.path.name for run in read_runs(order)] == ["ditto", "fedavg", "local"]


@pytest.mark.slow
def test_the_command_prints_and_writes_the_comparison(tmp_path):
    for method, metrics in (("fedavg", None), ("ditto", {"auc": {"mean": 0.5}})):
        for seed in (0, 1):
            write_run(tmp_path / f"runs/{method}-{seed}", method, seed, metrics=metrics)
    write_run(
        tmp_path / "runs/other", "local", 0, data="b", source="simulated", extent="a half"
    )
    (tmp_path / "runs/unfinished").mkdir()
    (tmp_path / "runs/unfinished/config.json").write_text("{}")
    folders = sorted(f"runs/{path.name}" for path in (tmp_path / "runs").iterdir())

    def graphfl(*words):
        return scripted(GRAPHFL, "compare", *words, cwd=tmp_path)

    for name in ("all.json", "all.csv", "all.md"):
        status, printed, errors = graphfl(*folders, f"--to={name}")
        assert (status, errors) == (0, "")
    assert "left out: runs/unfinished has no results yet" in printed
    assert "not paired: ditto and local, since their data sets differ" in printed
    found = json.loads((tmp_path / "all.json").read_text())
    assert [one["name"] for one in found["settings"]] == ["ditto", "fedavg", "local"]
    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    assert len(rows) == 12 and rows[2]["point"] == "P"
    assert float(rows[2]["mean"]) == found["settings"][0]["scores"]["P"]["mean"]
    assert [rows[k]["metric"] for k in (0, 3, 6)] == ["accuracy", "auc", "accuracy"]
    text = (tmp_path / "all.md").read_text()
    assert "| local | set b (simulated, a half) | accuracy |" in text
    assert "(simulated, a " in printed and " half) " in printed
    assert (rows[-1]["source"], rows[-1]["extent"]) == ("simulated", "a half")
    assert "| ditto | set a | accuracy |" in text
    assert "| ditto | fedavg | 2 | 12 |" in text and "| ditto | auc | 0.5±0 | 0.5±0 |" in text

    for name in ("old", "/old"):
        text = (tmp_path / "runs/other/config.json").read_text()
        config = json.loads(text)
        config["data"]["path"] = f"[{name}]"
        (tmp_path / "runs/other/config.json").write_text(json.dumps(config))
        status, printed, errors = graphfl(*folders)
        assert (status, errors) == (0, "") and f"[{name}]" in printed

    refused = [
        (folders[:1], "folders=runs/ditto-0 has 1 finished run; name two or more"),
        ([], "folders= has 0 finished runs; name two or more"),
        ([*folders, "runs/none"], "runs/none is not a folder; name folders of runs"),
        ([*folders, "--to=all.md"], "to=all.md exists; remove it"),
        ([*folders, "--to=all.pdf"], "to=all.pdf has no known format; let it end with .json"),
        ([*folders, "--cores=1"], "cores=1 is not read by this command; leave it out"),
        ([*folders, "--data_root=a"], "data_root=a is not read by this command; leave it out"),
        ([*folders, "--methods=local"], "methods=local is not read without a configuration f"),
        ([*folders, "--seeds=2"], "seeds=2 is not read without a configuration file; leave it"),
        ([*folders, "--resume"], "resume is not read without a configuration file; leave it"),
        ([*folders, "--config.seed=2"], "config.seed=2 is not read, since compare has no"),
        ([*folders, "--to=no/a.md"], "to=no/a.md cannot be written (.*no is no folder)"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for words, message in refused:
        status, printed, errors = graphfl(*words)
        assert (status, printed) == (2, "") and errors.count("\n") == 1, errors
        assert errors.startswith("error: ") and message.split("(")[0] in errors
    assert sorted(tmp_path.rglob("*")) == before


# ------------------------------------------------------------------------- configuration files

MINE = """
import graphfl_jax as g

def get_config(method="local"):
    settings = {SETTINGS, "data.source": "generated", "local_steps": 1, "cohort_size": 3}
    return g.configs.configure(method, "fl60", settings=settings)
"""


@pytest.fixture
def files(tmp_path):
    """Configuration files of two and of three rounds."""
    for name, rounds in (("mine", 2), ("other", 3)):
        text = MINE.replace("SETTINGS", f'"rounds": {rounds}')
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def comparing(folder, *words):
    return scripted(GRAPHFL, "compare", *words, cwd=folder)


def changed_at(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_methods_on_files_are_run_once_and_compared_with_folders(files):
    words = ["mine.py", "--methods=local,fedavg", "--seeds=2", "--out=runs/made"]
    ended = comparing(files, *words)
    assert ended.status == 0, ended.stderr
    names = [f"mine-{method}-seed{seed}" for method in ("fedavg", "local") for seed in (0, 1)]
    assert sorted(path.name for path in (files / "runs/made").iterdir()) == names
    assert re.search(r"^local +fedavg +2 +60 ", ended.stdout, re.MULTILINE)
    before = changed_at(files)
    again = comparing(files, *words)
    assert again.status == 2 and "already holds a run; add --resume" in again.stderr

    mixed = ["other.py", "runs/made/mine-local-seed0", "--seeds=1", "--out=runs/more"]
    ended = comparing(files, *mixed, "--to=both.json")
    assert ended.status == 0, ended.stderr
    content = json.loads((files / "both.json").read_text())
    made = [setting["runs"] for setting in content["settings"]]
    assert made == [["runs/made/mine-local-seed0"], ["runs/more/other-local-seed0"]]
    assert "rounds" in content["fields"] and len(content["pairs"]) == 1

    resumed = comparing(files, *words[:2], "--seeds=3", "--out=runs/made", "--resume")
    assert (resumed.status, resumed.stderr) == (0, "")
    after = changed_at(files)
    results = [path for path in before if path.name == "results.json"]
    assert len(results) == 4 and all(after[path] == before[path] for path in results)
    assert (files / "runs/made/mine-fedavg-seed2/results.json").exists()

    with (files / "mine.py").open("a") as file:
        file.write("# another code\n")
    words += ["--resume"]
    refused = comparing(files, *words)
    assert refused.status == 2 and "the code changed since its results" in refused.stderr
    accepted = comparing(files, *words, "--accept_changes")
    assert accepted.status == 0 and "2 of the 2 seeds with results are of other code" in (
        accepted.stderr
    )


def test_files_that_do_not_fit_are_refused_before_a_run(files):
    (files / "copy.py").write_text((files / "mine.py").read_text())
    (files / "below").mkdir()
    (files / "below/mine.py").write_text((files / "other.py").read_text())
    refused = [
        (["mine.py"], "folders=mine.py has 1 run; name two or more"),
        (["none.py"], "folders=none.py is not a file; choose a Python file, such as mine.py"),
        (["mine.py", "copy.py"], "folders=copy.py has the configuration of mine.py; leave one"),
        (
            ["mine.py", "--methods=local,local"],
            "folders=mine.py with methods=local,local names",
        ),
        (["mine.py", "below/mine.py"], "folders=mine.py,below/mine.py with methods= names"),
        (["mine.py", "--methods=fedvag"], "method='fedvag' is unknown; perhaps fedavg,"),
        (["mine.py", "other.py", "--resume"], "resume=True needs the folder of the runs; add"),
        (["mine.py", "other.py", "--resume", "--out=a"], "out=a holds no run to resume; leave"),
        (
            ["mine.py", "other.py", "--accept_changes"],
            "accept_changes=True is not read without",
        ),
        (["mine.py", "--methods=local,fedproto", "--out=mine.py"], "out=mine.py/mine-local-se"),
    ]
    before = sorted(files.rglob("*"))
    for words, message in refused:
        status, printed, errors = comparing(files, *words)
        assert (status, printed) == (2, "") and errors.startswith(f"error: {message}"), errors
        assert errors.count("\n") == 1 and "; " in errors
    assert sorted(files.rglob("*")) == before


def test_comparing_folders_starts_no_device_and_keeps_no_program(tmp_path):
    folders = [write_run(tmp_path / str(seed), "local", seed) for seed in (0, 1)]
    script = """
import sys
from pathlib import Path
import jax
from jax._src import xla_bridge
from graphfl_jax.__main__ import main
try:
    main()
finally:
    assert not xla_bridge.backends_are_initialized()
    assert jax.config.jax_compilation_cache_dir == CACHE
"""
    cache = os.environ["JAX_COMPILATION_CACHE_DIR"]
    ended = scripted(script.replace("CACHE", repr(cache)), "compare", *folders, cwd=tmp_path)
    assert ended.status == 0, ended.stderr
