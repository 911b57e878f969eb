"""Reports: what they state of the files of runs, comparisons, escaping, and refusals."""

import contextlib
import json
import re
import shutil
import subprocess
from importlib.resources import files

import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.commands.common.finished_runs import read_run
from graphfl_jax.commands.common.styles import styles_of, svg_dashes
from graphfl_jax.commands.reporting import folders as report_folders
from graphfl_jax.commands.reporting.comparison import comparison_facts
from graphfl_jax.commands.reporting.folders import THOUSANDTHS, in_readable_units, run_facts
from graphfl_jax.commands.reporting.page import number, render, write_report
from graphfl_jax.commands.reporting.places import map_of
from graphfl_jax.configs.published import Score
from tests.commands import launched, scripted
from tests.federations import small_config, two_clusters

SCRIPT = "<script>alert(1)</script>"


def read(path):
    return run_facts(read_run(path))


def read_and_compared(*paths):
    facts = [read(path) for path in paths]
    return facts, comparison_facts([read_run(path) for path in paths], facts)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of two runs, the second with new clients, and of copies with other scores."""
    root = tmp_path_factory.mktemp("runs")
    federation = two_clusters()
    made = {name: root / name for name in ("fedavg-0", "new")}
    own = small_config("fedavg", rounds=4, eval_every=2)
    graphfl_jax.run(own, federation, out=made["fedavg-0"])
    new = small_config("fedavg", rounds=2, new_clients__fraction=0.2, new_clients__rounds=2)
    graphfl_jax.run(new, federation, out=made["new"])
    for name in ("fedavg-1", "ditto-0", "ditto-1"):
        made[name] = root / name
        as_other_run(made["fedavg-0"], made[name])
    return made


def as_other_run(path, other):
    """A copy of a run as that of another method and seed, METHOD-SEED, with other scores."""
    method, seed = other.name.split("-")
    shutil.copytree(path, other)
    rng = np.random.default_rng([len(method), int(seed)])
    with edited(other / "config.json") as config:
        config["seed"], config["algorithm"]["name"] = int(seed), method
    with edited(other / "results.json") as results:
        results |= {"seed": int(seed), "algorithm": method, "variant": method}
        for scores in results["scores"]["final"].values():
            scores["per_client"] = rng.uniform(size=7).tolist()
            scores["mean"] = float(np.mean(scores["per_client"]))


def shorten(run):
    """Makes a run look as if it were writing its second evaluation."""
    (run / "results.json").unlink()
    lines = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(lines[:-5])


def empty(run):
    shutil.rmtree(run)
    run.mkdir()


@contextlib.contextmanager
def edited(path):
    """The content of a file of JSON, which is written back."""
    found = json.loads(path.read_text())
    yield found
    path.write_text(json.dumps(found))


def content(page):
    """The data in a page."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])


@pytest.mark.slow
def test_numbers_are_those_of_the_files(folders):
    path = folders["fedavg-0"]
    results = json.loads((path / "results.json").read_text())
    described = json.loads((path / "federation.json").read_text())
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    (run,) = content(render([read(path)], None))["runs"]
    final = results["scores"]["final"]
    assert run["scores"] == {point: final[point]["per_client"] for point in "GLP"}
    assert run["main"]["mean"] == final["P"]["mean"]
    assert [c["name"] for c in run["clients"]] == [c["name"] for c in described["clients"]]
    pairs = {frozenset(relation[:2]) for relation in described["relations"]}
    assert len(run["map"]["edges"]) == len(pairs)
    assert {frozenset(edge[:2]) for edge in run["map"]["edges"]} == pairs
    assert [row["x"] for row in run["curve"]["rows"]] == [line["round"] for line in lines]
    worst = [[line["test"]["G"][key] for key in ("mean", "worst_decile")] for line in lines]
    assert [row["G"] for row in run["curve"]["rows"]] == worst
    assert run["labels"]["counts"] == [c["labels"]["train"] for c in described["clients"]]


@pytest.mark.slow
def test_new_clients_have_their_last_scores(folders):
    run = read(folders["new"])
    results = json.loads((folders["new"] / "results.json").read_text())
    new = results["new_clients"]
    assert [c["name"] for c in run["clients"] if c["new"]] == new["clients"]
    count = len(new["clients"])
    assert run["scores"]["P"][-count:] == new["curve"][-1]["P"]["per_client"]
    assert [row["x"] for row in run["new_clients"]["rows"]] == [0, 1, 2]


@pytest.mark.slow
def test_settings_that_differ_are_listed(folders):
    settings = {one["name"]: one for one in read(folders["fedavg-1"])["settings"]}
    assert settings["rounds"] == {"name": "rounds", "value": 4, "default": 800}
    assert "seed" not in settings and "precision" not in settings


def test_malicious_clients_have_a_row_of_their_own(folders, tmp_path):
    copy = tmp_path / "attacked"
    shutil.copytree(folders["fedavg-0"], copy)
    with edited(copy / "federation.json") as described:
        described["clients"][2]["malicious"] = True
    with edited(copy / "results.json") as results:
        results["attack"] = {"name": "label_flip", "success": None}
        results["attack"]["benign_by_malicious_neighbours"] = [
            {"share": "none", "ids": [1, 3], "scores": dict.fromkeys("GLP", 0.7)},
            {"share": "up to half", "ids": [0], "scores": dict.fromkeys("GLP", 0.7)},
        ]
        results["rejected"] = {
            "honest": 0.25,
            "malicious": 0.5,
            "per_client": [None, 0.1, 0.5, 0.3],
        }
    kinds = read(copy)["attack"]["kinds"]
    scores = results["scores"]["final"]["P"]["per_client"]
    assert kinds["malicious"]["scores"]["P"] == scores[2] and kinds["malicious"]["clients"] == 1
    assert kinds["benign"]["scores"]["P"] == pytest.approx(np.delete(scores, 2).mean())
    assert kinds["benign"]["rejected"] == 0.25
    part = kinds["benign, no neighbour malicious"]
    assert part["clients"] == 2 and part["scores"]["P"] == 0.7
    assert part["rejected"] == pytest.approx(0.2)
    assert kinds["benign, up to half malicious"]["rejected"] is None  # it was in no cohort


PRIVACY = {
    "name": "central",
    "epsilon": 0.98,
    "delta": 1e-5,
    "accountant": "rdp",
    "noise_multiplier": 1.0,
    "clip": 0.3,
}
DEPLOYED = {"rounds": 200, "cohort": 5000.0, "population": 1_000_000}
SEEN = ["protects a client from", "those who see the models that the server sends"]
SHOWN = [
    ["mechanism", "central, noise of the server"],
    SEEN,
    ["epsilon at delta 1e-05", "0.98 (accountant rdp)"],
    ["noise multiplier z", "1"],
    ["clip C, or the first one", "0.3"],
]


@pytest.mark.parametrize(
    "privacy, rows",
    [
        (PRIVACY, SHOWN),  # of an older release
        (
            PRIVACY | DEPLOYED,
            [
                *SHOWN,
                ["counted rounds", "200"],
                ["clients in a counted round", "5,000 of 1,000,000"],
            ],
        ),
        (
            PRIVACY | {"name": "local", "epsilon": None},
            [
                ["mechanism", "local, noise of each client"],
                [SEEN[0], "the server and those who see its models"],
                [SHOWN[2][0], "infinite, since there is no noise (accountant rdp)"],
                *SHOWN[3:],
            ],
        ),
        (
            dict.fromkeys(PRIVACY | DEPLOYED) | {"name": "laplace"},
            [["mechanism", "laplace, of your own"], ["epsilon", "not known"]],
        ),
    ],
)
def test_privacy_and_what_it_costs_are_stated(folders, tmp_path, privacy, rows):
    shutil.copytree(folders["fedavg-0"], copy := tmp_path / "private")
    with edited(copy / "results.json") as results:
        results["privacy"] = privacy
    with edited(copy / "config.json") as config:
        config["compression"] = {"name": "sign", "feedback": False}
    run = read(copy)
    assert run["privacy"] == rows and run["traffic"]["compressed"] == "sign"
    before = read(folders["fedavg-0"])
    assert before["privacy"] == [] and before["traffic"]["compressed"] == ""


def test_learned_shares_are_lines_where_there_are_no_relations():
    described = {
        "clients": [{"position": None}] * 3,
        "relations": [],
        "axes": None,
    }
    found = map_of(described, [[0.5, 0.4, 0.1], [0.4, 0.5, 0.1], [0.3, 0.3, 0.4]])
    assert found["learned"] and found["edges"] == [[0, 1, 0.4]] and found["relations"] == 2
    assert len({tuple(place) for place in found["positions"]}) == 3
    assert found == map_of(described, [[0.5, 0.4, 0.1], [0.4, 0.5, 0.1], [0.3, 0.3, 0.4]])


def test_degrees_have_equal_distances():
    described = {
        "clients": [{"position": [0.0, 59.0]}, {"position": [2.0, 61.0]}],
        "relations": [[0, 1, 0.5], [1, 0, 2.0]],
        "axes": ["longitude", "latitude"],
    }
    found = map_of(described, None)
    assert found["positions"][1] == pytest.approx([1.0, 61.0], abs=1e-4)  # cos 60° is 1/2
    assert found["edges"] == [[0, 1, 2.0]] and found["relations"] == 2


def test_names_cannot_end_the_script_element(folders, tmp_path):
    copy = tmp_path / "named"
    shutil.copytree(folders["fedavg-0"], copy)
    with edited(copy / "federation.json") as described:
        described["clients"][0]["name"] = SCRIPT
    run = read(copy) | {"path": SCRIPT}
    page = render([run], None)
    assert SCRIPT not in page and "&lt;script&gt;alert(1)" in page
    assert content(page)["runs"][0]["clients"][0]["name"] == SCRIPT
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_a_folder_without_a_description_has_no_map_and_says_so(folders, tmp_path):
    copy = tmp_path / "old"
    shutil.copytree(folders["new"], copy)
    (copy / "federation.json").unlink()
    run = read(copy)
    assert run["map"] is None and "federation.json" in run["why_no_map"]
    assert [c["new"] for c in run["clients"]] == [False] * 6 + [True]
    assert run["scores"] == read(folders["new"])["scores"]
    assert "There is no map" in render([run], None)


def test_a_method_that_is_not_registered_is_reported_without_defaults(folders, tmp_path):
    copy = tmp_path / "own"
    shutil.copytree(folders["fedavg-0"], copy)
    with edited(copy / "config.json") as config:
        config["algorithm"]["name"] = "mine"
    found = read(copy)
    page = render([found], None)
    assert found["scores"] == read(folders["fedavg-0"])["scores"]
    assert "The defaults are not known here: algorithm.name" in page


def test_numbers_are_short_and_units_the_same_for_the_same_data(folders):
    assert [number(v) for v in (2.1, 0.5, 18611.3)] == ["2.100", "0.5000", "18611"]
    assert number(-0.04, 100, 2) == "−4.0"
    assert [number(99.6, 1, 2), number(9999.7), number(9.96, 1, 2)] == ["100", "10000", "10"]
    runs = [read(folders[name]) | {"metric": "mse"} for name in ("fedavg-0", "ditto-0")]
    for run, mean in zip(runs, (0.5, 1.5), strict=True):
        run |= {"unit": THOUSANDTHS, "factor": 1000, "main": {"mean": mean}}
    assert {(run["factor"], run["unit"]) for run in in_readable_units(runs)} == {(1, "")}
    assert in_readable_units(runs[:1]) == runs[:1]


@pytest.mark.parametrize("count", [6, 7, 60])
def test_equal_shares_are_no_lines_of_a_map(count):
    described = {"relations": [], "axes": [], "clients": [{}] * count}
    equal = np.full((count, count), 1 / count).round(6)
    assert map_of(described, equal.tolist())["edges"] == []
    equal[0, 1] += 1e-5
    assert map_of(described, equal.tolist())["edges"] == [[0, 1, equal[0, 1]]]


def test_groups_state_the_form_of_their_data(folders, tmp_path):
    as_other_run(folders["fedavg-0"], other := tmp_path / "ditto-0")
    with edited(other / "results.json") as results:
        results["dataset"] |= {"source": "simulated", "extent": "a half"}
    _, found = read_and_compared(folders["fedavg-0"], other)
    name = results["dataset"]["name"]
    assert [one["data"] for one in found["groups"]] == [name, f"{name} (simulated, a half)"]


def test_other_data_of_one_name_are_told_apart(folders, tmp_path):
    for name, digest in {"ditto-0": "f" * 64, "local-1": "e" * 64}.items():
        as_other_run(folders["fedavg-0"], tmp_path / name)
        with edited(tmp_path / name / "results.json") as results:
            results["dataset"]["sha256"], own = digest, results["dataset"]["sha256"]
    name = results["dataset"]["name"]
    paths = [folders["fedavg-0"], tmp_path / "ditto-0", tmp_path / "local-1"]
    runs, found = read_and_compared(*paths)
    data = [f"{name}, data {own[:8]}", f"{name}, data ffffffff", name]  # seed 1 is of one run
    assert [one["data"] for one in found["groups"]] == data
    assert "differ between seeds" not in render(runs, found)
    as_other_run(paths[2], tmp_path / "local-0")
    with edited(tmp_path / "local-0" / "results.json") as results:
        results["dataset"]["sha256"] = own
    assert "differ between seeds" in render(*read_and_compared(paths[2], tmp_path / "local-0"))


def test_simulated_data_are_stated(folders):
    run = read(folders["fedavg-0"])
    page = render([run | {"source": "simulated"}], None)
    assert '<strong class="not-real">simulated</strong>' in page
    assert '<strong class="not-real">' not in render([run | {"source": "real"}], None)


def test_the_head_has_the_published_score_where_there_is_one(folders, monkeypatch):
    def published(config, variant, dataset):
        assert (config.seed, variant, dataset["name"]) == (0, "fedavg", run["data"])
        return Score(81.5, 0.25)

    run = read(folders["fedavg-0"])
    monkeypatch.setattr(report_folders, "published_score", published)
    page = render([read(folders["fedavg-0"])], None)
    unit = f" {run['unit']}" if run["unit"] else ""
    assert f"The published score is 81.5 ± 0.25{unit}." in page
    assert "published" not in render([run], None).partition("<dl>")[0]


def test_a_diverged_run_has_no_total_of_its_traffic(folders, tmp_path):
    """It played fewer rounds than its configuration has."""
    assert read(folders["fedavg-0"])["traffic"]["total"] > 0
    as_other_run(folders["fedavg-0"], other := tmp_path / "fedavg-2")
    with edited(other / "results.json") as results:
        results |= {"diverged": True, "scores": None}
    found = read(other)["traffic"]
    assert found["total"] is None and found["up"] > 0


def test_runs_that_differ_only_in_the_seed_are_one_group(folders):
    names = ("fedavg-0", "ditto-1", "fedavg-1", "ditto-0")
    runs, found = read_and_compared(*(folders[name] for name in names))
    assert [(g["name"], g["seeds"]) for g in found["groups"]] == [
        ("fedavg", [0, 1]),
        ("ditto", [0, 1]),
    ]
    means = [np.mean(runs[i]["scores"]["P"]) for i in (0, 2)]
    assert found["groups"][0]["scores"]["P"]["mean"] == pytest.approx(np.mean(means))
    (pair,) = found["pairs"]
    scores = [
        np.mean([runs[i]["scores"]["P"] for i in own], axis=0) for own in ((0, 2), (1, 3))
    ]
    change = scores[1] - scores[0]
    assert pair["points"]["P"]["difference"] == pytest.approx(change.mean())
    page = render(runs, found)
    shown = number(change.mean(), found["pairs"][0]["factor"])
    assert re.search(f"ditto − fedavg</th>\n<td>{re.escape(shown)}", page)
    assert len(content(page)["runs"]) == 4
    assert f"fedavg: {np.sum(change < 0)}, ditto: {np.sum(change > 0)}" in page


def test_groups_of_one_method_are_named_by_what_differs(folders):
    _, found = read_and_compared(folders["fedavg-0"], folders["new"])
    assert "new_clients.fraction=0.2" in found["groups"][1]["name"]
    assert "rounds=4" in found["groups"][0]["name"]
    assert found["unpaired"][0]["why"].startswith("their splits")


def test_a_line_has_the_colour_of_its_method_in_any_order_and_a_mark_of_its_own(folders):
    names = ["fedavg-0", "ditto-0", "new"]
    styles = []
    for order in (names, names[::-1]):
        runs, found = read_and_compared(*(folders[name] for name in order))
        groups = content(render(runs, found))["groups"]
        styles.append({group["name"]: tuple(group["style"]) for group in groups})
    assert styles[0] == styles[1]
    for name, (colour, dashes, _) in styles[0].items():
        (style,) = styles_of([name])
        assert (colour, dashes) == (style["color"], svg_dashes(style))
    assert sorted(mark for *_, mark in styles[0].values()) == [0, 1, 2]


def test_p_values_are_corrected_for_all_pairs_and_many_are_not_shown(folders, tmp_path):
    """All seven clients agree in all pairs, so p is 2 / 2^7."""
    paths = [folders["fedavg-0"]]
    for k, method in enumerate(("ditto", "local", "fedprox", "fedrep"), 1):
        paths.append(tmp_path / f"{method}-0")
        shutil.copytree(paths[0], paths[-1])
        with edited(paths[-1] / "config.json") as config:
            config["algorithm"]["name"] = method
        with edited(paths[-1] / "results.json") as results:
            results["variant"] = method
            own = results["scores"]["final"]["P"]["per_client"]
            own[:] = [score + k * i / 100 for i, score in enumerate(own, 1)]
    runs, found = read_and_compared(*paths[:3])
    points = [pair["points"]["P"] for pair in found["pairs"]]
    assert [at["p"] for at in points] == pytest.approx([1 / 64] * 3)
    assert [at["p_holm"] for at in points] == pytest.approx([3 / 64] * 3)
    page = render(runs, found)
    assert page.count("<td>0.047</td>") == 3 and "is corrected for the 3 pairs by" in page
    _, found = read_and_compared(*paths)
    assert [pair["first"] for pair in found["pairs"]] == ["fedavg"] * 4
    assert found["tests"] == 10


def test_results_beside_the_scores_are_tables(folders, tmp_path):
    copy = tmp_path / "rich"
    shutil.copytree(folders["new"], copy)
    scores = dict.fromkeys("GLP", 0.5)
    error = {"mae_seen": 1.234, "rmse_seen": 2.345, "mape_seen": 3.45}
    with edited(copy / "results.json") as results:
        small = {"clients": ["a", "b"], "scores": {"test": scores}}
        results["architectures"] = {"mlp": small | {"up_bytes": 1000, "down_bytes": 20}}
        metric = {"mean": None, "clients": 0}
        results["metrics"] = dict.fromkeys("GLP", {"macro_f1": metric | {"mean": 0.25}})
        results["metrics"]["P"] = {"macro_f1": metric | {"mean": 0.125}}
        results["errors"] = {"units": "mph", **dict.fromkeys("GLP", {"15 min": error})}
        results["labels"] = dict.fromkeys("GLP", {"mass": {"auc": None, "clients": 0}})
        curve = [{"rounds": 0, **scores}]
        joined = {"clients": ["c"], "trained": False, "curve": curve}
        results["new_clients"]["architectures"] = {"cnn": joined}
    tables = content(render([read(copy)], None))["runs"][0]["further"]
    titles, captions, texts = zip(*tables, strict=True)
    assert captions[0].startswith("means of accuracy (%) over clients")
    assert titles[2] == "errors of forecasts" and texts[2][0][2:] == [
        *("MAE (mph)", "RMSE (mph)", "MAPE (%)")
    ]
    assert [rows[1] for rows in texts] == [
        ["mlp", "2", "50", "20", "1,000"],
        ["macro_f1", "0.25", "0.125", "0"],
        ["15 min", "G and L and P", "1.23", "2.35", "3.5"],
        ["mass", "none", "0"],
        ["cnn", "no", "1", "0", "50"],
    ]
    assert content(render([read(folders["new"])], None))["runs"][0]["further"] == []


def without(*keys):
    """Removes a key of results.json."""

    def change(run):
        results = json.loads((run / "results.json").read_text())
        own = results
        for key in keys[:-1]:
            own = own[key]
        del own[keys[-1]]
        (run / "results.json").write_text(json.dumps(results))

    return change


def with_value(value, *keys, file="results.json"):
    """Replaces a value of a file."""

    def change(run):
        with edited(run / file) as part:
            for key in keys[:-1]:
                part = part[key]
            part[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "change, why",
    [
        (empty, r"folders=\S+ holds no run; leave it out, or correct"),
        (
            shorten,
            r"has no results yet, only evaluations: 1, the last after round 2 \(graphfl run",
        ),
        (
            lambda run: (run / "results.json").unlink(),
            r"has no results yet, only evaluations: 2, the last after round 4 \(graphfl run",
        ),
        (
            lambda run: (run / "results.json").write_text('{"algorithm"'),
            r"results\.json is missing or damaged \(.*\); leave the run out, or run it again",
        ),
        (
            lambda run: (run / "results.json").write_text('{"metric": "mse"}'),
            r"results\.json is missing or damaged \(it has no scores\); leave the run out",
        ),
        (
            without("dataset", "source"),
            r"results\.json is missing or damaged \(it has no dataset\.source\); leave the run",
        ),
        (
            without("scores", "final", "P", "per_client"),
            r"\(it has no scores\.final\.P\.per_client\); leave the run out",
        ),
        (
            lambda run: (run / "federation.json").write_text('{"clients": 3}'),
            r"federation\.json is missing or damaged \(it has no task\); leave the run out",
        ),
        *(
            (with_value(value, *keys, file="federation.json"), rf"federation\.json .*\({why}\)")
            for keys, value, why in (
                (("outputs",), 10**9, "labels do not fit the outputs"),
                (("clients", 0, "labels", "train"), [1], "labels do not fit the outputs"),
                (("clients", 0, "position"), [1.5], "a position does not fit the axes"),
                (("relations", 0, 1), 7, "relations have clients that it does not have"),
                (("relations", 0, 1), -1, r"relations\[0\] is \[\d, -1, 1.0\]"),
                (("clients", 6, "new"), True, "it has other clients than results.json"),
                (("clients", 0, "name"), ["a"], r"clients\[0\].name is \[\"a\"\]"),
            )
        ),
        (
            lambda run: (run / "metrics.jsonl").write_text('{"round": 2'),
            r"metrics\.jsonl: line 1 is damaged; graphfl run --resume --out=\S+ writes",
        ),
        *(
            (
                lambda run, text=text: (run / "metrics.jsonl").write_text(text),
                r"metrics\.jsonl: line 1 is damaged; graphfl run --resume",
            )
            for text in (
                "[1]",
                '{"round": "2"}',
                '{"round": 2, "test": {"P": {"mean": NaN, "worst_decile": 1}}}',
                '{"round": 2, "test": {"P": {"mean": 1e999, "worst_decile": 1}}}',
                '{"round": 2, "test": [1]}',
            )
        ),
        (
            with_value([], "seed"),
            r"results\.json is missing or damaged \(seed is \[\]\); leave",
        ),
        (with_value(-1, "rounds"), r"\(rounds is -1\); leave the run out"),
        (with_value(10**30, "seed"), r"\(seed is 10*\); leave the run out"),
        (with_value({"name": []}, "attack"), r"\(attack.name is \[\]\); leave"),
        (with_value(float("nan"), "timing", "train_s"), r"\(NaN is no number of JSON\); leave"),
        (with_value([7], "new_clients"), r"\(new_clients is \[7\]\); leave the run out"),
        (
            with_value("x", "scores", "final", "P", "per_client"),
            r"per_client is \"x\"\); leave",
        ),
        (
            with_value([1], "scores", "final", "P", "per_client"),
            r"with no or with other clients",
        ),
        (with_value(None, "scores"), r"\(diverged and scores contradict each other\); leave"),
        (
            with_value(None, "scores", "final", "P", "mean"),
            r"\(scores.final.P.mean is null\); leave",
        ),
        (with_value(3, "rounds_trained"), r"\(rounds_trained is 3\); leave the run out"),
        (
            lambda run: (run / "results.json").write_text("[" * 700 + "]" * 700),
            r"results\.json is missing or damaged \(it is nested too deeply\); leave",
        ),
        (with_value({"P": 1}, "labels"), r"\(it has no labels\.G\); leave the run out"),
        (
            with_value({"units": "own", "G": {"a": {}}, "L": {}, "P": {}}, "errors"),
            r"folders=\S+ has files that do not fit together \(KeyError: .*run it again",
        ),
        (
            lambda run: (run / "metrics.jsonl").write_bytes(b'{"round": "\xff"}\n'),
            r"metrics\.jsonl: line 1 is damaged; graphfl run --resume --out=\S+ writes",
        ),
    ],
)
def test_bad_folders_are_refused_and_nothing_is_written(change, why, folders, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(folders["fedavg-0"], copy)
    change(copy)
    with pytest.raises(ValueError, match=why) as refused:
        write_report([copy], tmp_path / "report.html")
    assert "\n" not in str(refused.value) and not (tmp_path / "report.html").exists()


def test_a_run_of_which_one_client_has_no_score_is_read(folders, tmp_path):
    """It counts as diverged, and has the scores of the others."""
    copy = tmp_path / "run"
    shutil.copytree(folders["fedavg-0"], copy)
    with edited(copy / "results.json") as results:
        results["diverged"] = True
        final = results["scores"]["final"]["P"]
        final |= dict.fromkeys(("mean", "std_clients", "worst_decile", "jain"))
        final["per_client"][2] = None
    assert read(copy)["diverged"] and read(copy)["scores"] is read(copy)["main"] is None
    write_report([copy, folders["ditto-0"]], tmp_path / "report.html")
    assert "diverged, so there is no score" in (tmp_path / "report.html").read_text()


def of_script(expression):
    """The value of an expression that uses the functions of elements.js."""
    script = (files("graphfl_jax.commands.reporting") / "elements.js").read_text("utf-8")
    page = "const document = {getElementById: () => ({textContent: '{}'})};"
    words = ["node", "-e", f"{page}{script}console.log(JSON.stringify({expression}))"]
    return json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)


needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")


@needs_node
def test_lines_of_a_figure_have_different_styles():
    styles = of_script("Array.from({length: 36}, (_, k) => lineStyle(k))")
    assert len({tuple(style) for style in styles}) == 36
    for own in zip(*styles[:6], strict=True):  # by colour and by dashes alone
        assert len(set(own)) == 6


@needs_node
def test_the_range_of_many_values_is_found():
    """A function has fewer than so many arguments in browsers."""
    assert of_script("range(Array.from({length: 1e6}, (_, k) => k - 7))") == [-7, 999992]
    assert of_script("range([null, 2, null, -1])") == [-1, 2]
    assert of_script("range([null])") == [0, 0]


@needs_node
def test_the_only_evaluation_has_a_tick():
    assert of_script("[ticks(5, 5, 4), ticks(0, 4, 2)]") == [[5], [0, 2, 4]]


START = """
import sys
sys.argv = ["graphfl report", *sys.argv[1:]]
from graphfl_jax.commands.report import start
start()
"""


def test_the_command_writes_one_file_and_replaces_reports_alone(folders, tmp_path):
    words = (folders["fedavg-0"], folders["ditto-0"], "--to=made.html")
    ended = scripted(START, *words, cwd=tmp_path)
    assert ended.status == 0 and "made.html: a report of 2 runs" in ended.stdout, ended.stderr
    page = (tmp_path / "made.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and len(content(page)["runs"]) == 2
    ended = scripted(START, folders["ditto-0"], "--to=made.html", cwd=tmp_path)
    assert ended.status == 0, ended.stderr
    page = (tmp_path / "made.html").read_text()
    assert len(content(page)["runs"]) == 1
    (tmp_path / "mine.html").write_text("<title>graphfl_jax</title>")
    for flag, why in {
        "--to=mine.html": "to=mine.html exists and is no report; choose another --to",
        "--to=no/made.html": "is no folder); choose another --to",
    }.items():
        ended = scripted(START, folders["ditto-0"], flag, cwd=tmp_path)
        assert ended.status == 2 and why in ended.stderr and ended.stderr.count("\n") == 1
    ended = scripted(START, cwd=tmp_path)
    assert ended.status == 2 and "folders is not set; name the folder" in ended.stderr
    assert (tmp_path / "made.html").read_text() == page
    assert (tmp_path / "mine.html").read_text() == "<title>graphfl_jax</title>"


@pytest.mark.slow
def test_a_run_writes_its_report(tmp_path):
    words = ["--config.data.source=simulated", "--config.rounds=1", "--report", "--out=mine"]
    ended = launched("run", "--config=tpt48:local", *words, cwd=tmp_path)
    assert ended.status == 0 and ended.stdout.endswith("mine/report.html\n"), ended.stderr
    page = (tmp_path / "mine" / "report.html").read_text()
    assert '<strong class="not-real">simulated</strong>' in page
    assert len(content(page)["runs"][0]["clients"]) == 48
