"""Reports: what they state of the files of runs, comparisons, escaping, and refusals."""

import contextlib
import json
import re
import shutil

import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.commands.reporting.comparison import compared, summary_of
from graphfl_jax.commands.reporting.folders import in_readable_units, read_run
from graphfl_jax.commands.reporting.page import number, rendered, write_report
from graphfl_jax.commands.reporting.places import map_of
from tests.entries import launched, scripted
from tests.federations import small_config, two_clusters

SCRIPT = "<script>alert(1)</script>"


def nothing_published(*run):
    return None


def read(path):
    return read_run(path, nothing_published)


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
    (run,) = content(rendered([read(path)], None))["runs"]
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


def test_new_clients_have_their_last_scores(folders):
    run = read(folders["new"])
    results = json.loads((folders["new"] / "results.json").read_text())
    new = results["new_clients"]
    assert [c["name"] for c in run["clients"] if c["new"]] == new["clients"]
    count = len(new["clients"])
    assert run["scores"]["P"][-count:] == new["curve"][-1]["P"]["per_client"]
    assert [row["x"] for row in run["new_clients"]["rows"]] == [0, 1, 2]


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
        results["rejected"] = {"honest": 0.25, "malicious": 0.5, "per_client": []}
    kinds = read(copy)["attack"]["kinds"]
    scores = results["scores"]["final"]["P"]["per_client"]
    assert kinds["malicious"]["scores"]["P"] == scores[2] and kinds["malicious"]["clients"] == 1
    assert kinds["honest"]["scores"]["P"] == pytest.approx(np.delete(scores, 2).mean())
    assert kinds["honest"]["rejected"] == 0.25


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
    page = rendered([run], None)
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
    assert "There is no map" in rendered([run], None)


def test_keys_of_the_last_release_are_read(folders, tmp_path):
    copy = tmp_path / "old"
    shutil.copytree(folders["new"], copy)
    with edited(copy / "results.json") as results:
        results["novel"] = results.pop("new_clients")
        results["timing"]["novel_s"] = results["timing"].pop("new_clients_s")
        for name in ("allocation", "rejected", "defence", "architectures"):
            del results[name]
    found = read(copy)
    assert found["new_clients"]["count"] == 1 and found["timing"]["new_clients_s"] > 0


def test_a_method_that_is_not_registered_is_reported_without_defaults(folders, tmp_path):
    copy = tmp_path / "own"
    shutil.copytree(folders["fedavg-0"], copy)
    with edited(copy / "config.json") as config:
        config["algorithm"]["name"] = "mine"
    found = read(copy)
    page = rendered([found], None)
    assert found["scores"] == read(folders["fedavg-0"])["scores"]
    assert "The defaults are not known here: algorithm.name" in page


def test_numbers_are_short_and_units_the_same_for_the_same_data(folders):
    assert [number(v) for v in (2.1, 0.5, 18611.3)] == ["2.100", "0.5000", "18611"]
    assert number(-0.04, 100, 2) == "−4.0"
    runs = [read(folders[name]) | {"metric": "mse"} for name in ("fedavg-0", "ditto-0")]
    for run, mean in zip(runs, (0.5, 1.5), strict=True):
        run |= {"unit": "× 10⁻³", "factor": 1000, "main": {"mean": mean}}
    assert {(run["factor"], run["unit"]) for run in in_readable_units(runs)} == {(1, "")}
    assert in_readable_units(runs[:1]) == runs[:1]


def test_simulated_data_are_stated(folders):
    run = read(folders["fedavg-0"])
    page = rendered([run | {"source": "simulated"}], None)
    assert '<strong class="not-real">simulated</strong>' in page
    assert '<strong class="not-real">' not in rendered([run | {"source": "real"}], None)


def test_runs_that_differ_only_in_the_seed_are_one_group(folders):
    names = ("fedavg-0", "ditto-1", "fedavg-1", "ditto-0")
    runs = [read(folders[name]) for name in names]
    found = compared(runs)
    assert [(g["name"], g["seeds"]) for g in found["groups"]] == [
        ("fedavg", [0, 1]),
        ("ditto", [1, 0]),
    ]
    means = [np.mean(runs[i]["scores"]["P"]) for i in (0, 2)]
    assert found["groups"][0]["scores"]["P"]["mean"] == pytest.approx(np.mean(means))
    (pair,) = found["pairs"]
    scores = [
        np.mean([runs[i]["scores"]["P"] for i in own], axis=0) for own in ((0, 2), (1, 3))
    ]
    difference = scores[0] - scores[1]
    assert pair["mean"] == pytest.approx(difference.mean()) and pair["clients"] == 7
    page = rendered(runs, found)
    assert "fedavg − ditto" in page and len(content(page)["runs"]) == 4


def test_groups_of_one_method_are_named_by_what_differs(folders):
    found = compared([read(folders[name]) for name in ("fedavg-0", "new")])
    assert "new_clients.fraction=0.2" in found["groups"][1]["name"]
    assert "rounds=4" in found["groups"][0]["name"]
    assert found["unpaired"][0]["why"].startswith("their splits")


def test_clients_are_paired_only_on_the_same_test_examples(folders):
    first, second = (read(folders[name]) for name in ("fedavg-0", "ditto-0"))
    assert first["split"] == second["split"] is not None
    assert len(compared([first, second])["pairs"]) == 1
    other = second | {"split": "of another division of the same examples"}
    assert compared([first, other])["unpaired"][0]["why"].startswith("their splits")
    # Older releases do not record the split, but the numbers of test examples.
    clients = [client | {"examples": {"test": 1}} for client in second["clients"]]
    old = [first | {"split": None}, second | {"split": None, "clients": clients}]
    assert compared(old)["unpaired"][0]["why"].startswith("their clients")


def test_differences_have_known_statistics():
    found = summary_of(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert found["mean"] == 3 and found["p"] == pytest.approx(2 / 2**5)  # all signs agree
    assert found["half_width"] == pytest.approx(2.776445 * np.sqrt(2.5 / 5), rel=1e-6)
    assert summary_of(np.zeros(4))["p"] is None


def test_the_same_run_twice_is_refused(folders, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folders["fedavg-0"], copy)
    with pytest.raises(
        ValueError, match=r"has the settings and the seed of .*name one of them"
    ):
        compared([read(folders["fedavg-0"]), read(copy)])


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda run: shutil.rmtree(run), r"folders=\S+ holds no run; name the folder of a run"),
        (
            shorten,
            r"has no results\.json, only evaluations: 1, the last after round 2 of 4; wait",
        ),
        (
            lambda run: (run / "results.json").unlink(),
            r"has no results\.json, only evaluations: 2, the last after round 4 of 4; wait",
        ),
        (
            lambda run: (run / "results.json").write_text('{"algorithm"'),
            r"results\.json is missing or damaged; run it again",
        ),
        (
            lambda run: (run / "results.json").write_text('{"metric": "mse"}'),
            r"has files that do not fit together .*; run it again",
        ),
        (
            lambda run: (run / "metrics.jsonl").write_text('{"round": 2'),
            r"metrics\.jsonl is damaged; continue the run",
        ),
    ],
)
def test_bad_folders_are_refused_and_nothing_is_written(change, why, folders, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(folders["fedavg-0"], copy)
    change(copy)
    with pytest.raises(ValueError, match=why) as refused:
        write_report([copy], tmp_path / "report.html", nothing_published)
    assert "\n" not in str(refused.value) and not (tmp_path / "report.html").exists()


START = """
import sys
sys.argv = ["graphfl report", *sys.argv[1:]]
from graphfl_jax.commands.report import start
start()
"""


def test_the_command_writes_one_file_and_replaces_none(folders, tmp_path):
    words = (folders["fedavg-0"], folders["ditto-0"], "--to=made.html")
    ended = scripted(START, *words, cwd=tmp_path)
    assert ended.status == 0 and "made.html: a report of 2 runs" in ended.stdout, ended.stderr
    page = (tmp_path / "made.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and len(content(page)["runs"]) == 2
    for flag, why in {
        "--to=made.html": "to=made.html exists; remove it, or choose another --to",
        "--to=no/made.html": "is no folder); choose another --to",
    }.items():
        ended = scripted(START, folders["ditto-0"], flag, cwd=tmp_path)
        assert ended.status == 2 and why in ended.stderr and ended.stderr.count("\n") == 1
    ended = scripted(START, cwd=tmp_path)
    assert ended.status == 2 and "folders is not set; name the folder" in ended.stderr
    assert (tmp_path / "made.html").read_text() == page


def test_a_run_writes_its_report(tmp_path):
    words = ["--config.data.source=simulated", "--config.rounds=1", "--report", "--out=mine"]
    ended = launched("run", "--config=tpt48:local", *words, cwd=tmp_path)
    assert ended.status == 0 and ended.stdout.endswith("mine/report.html\n"), ended.stderr
    page = (tmp_path / "mine" / "report.html").read_text()
    assert '<strong class="not-real">simulated</strong>' in page
    assert len(content(page)["runs"][0]["clients"]) == 48
