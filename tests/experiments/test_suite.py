"""``bench --suite`` and generated images: what is measured, skipped, refused and written."""

import ast
import json
import os
import re
import sys
import time

import numpy as np
import pytest

from experiments.bench import FLAGS
from experiments.benchmarks import (
    million,
    processes,
    scaling,
    suite,
    suite_tables,
    torch_comparison,
)
from graphfl_jax.configs import PRESETS, custom, parse, tpt48
from tests.commands import ROOT, launched

CPU = suite.Machine(
    {
        "device": "1 x cpu: cpu",
        "versions": {"python": "3", "jax": "0"},
        "git_commit": "a" * 40,
    },
    cores=2,
    torch=True,
    plugin=True,
)
GPU = CPU._replace(environment=CPU.environment | {"device": "1 x gpu: one"})
LINE = {
    "work": "w1",
    "library": "fedjax",
    "version": "0.0.17",
    "parameters": 486,
    "ready_s": 1.0,
    "first_round_s": 2.0,
    "round_s": 0.02,
    "rounds": 50,
    "peak_mib": 300.0,
}
SIZES = {"rows": [{"size": n, "s_per_round": [n / 10] * 3, "client_steps": 5} for n in (1, 4)]}


# ------------------------------------------------------------------------- generated images


def test_generated_images_have_all_classes_and_a_ring_of_clients():
    federation = scaling.image_federation((5, 4, 3), 3, 10, 4)
    data = federation.data
    assert data.train.x.shape == (3, 10, 5, 4, 3) and data.train.x.dtype == np.uint8
    assert data.train.count.tolist() == [10] * 3
    assert data.evals["test"].count.tolist() == [2] * 3
    assert federation.outputs == 4 and len(data.graph.senders) == 6
    labels = np.concatenate([data.train.y.ravel(), data.evals["test"].y.ravel()])
    assert np.bincount(labels).tolist() == [9] * 4
    # Images of a class are alike: half of an image's variance is that of its class's pattern.
    rows = data.train.x[data.train.y == 0].reshape(-1, 60).astype(float)
    of_another = data.train.x[data.train.y == 1].reshape(-1, 60).astype(float)
    assert (
        np.corrcoef(rows[0], rows[1])[0, 1] > 0.25 > np.corrcoef(rows[0], of_another[0])[0, 1]
    )


def test_invalid_images_are_refused():
    for text in ("28x28", "0x2x1", "28x28xone"):
        with pytest.raises(ValueError, match=f"^images={text} is not HEIGHTxWIDTHxCHANNELS"):
            scaling.shape_of(text)
    with pytest.raises(ValueError, match=r"^classes=13 is not in \[2, 12\]"):
        scaling.image_federation((2, 2, 1), 2, 5, 13)
    for config in (tpt48.get_config(), parse(custom.get_config(), {"data.path": "mine.npz"})):
        with pytest.raises(
            ValueError, match="^images=2x2x1 replaces the file of --config=custom"
        ):
            scaling.load_images(config, "2x2x1", clients=2, examples=5, classes=2)


# ------------------------------------------------------------------------------ measurements


def test_the_words_of_all_measurements_are_flags_and_fields():
    assert len(set(suite.names())) == len(suite.MEASUREMENTS)
    assert {measurement.table for measurement in suite.MEASUREMENTS} == set(suite_tables.TABLES)
    for measurement in suite.MEASUREMENTS:
        if measurement.table in ("peers", "million"):  # words of scripts
            continue
        overrides = {}
        for word in measurement.words:
            name, value = re.fullmatch(r"--([\w.]+)=(.*)", word).groups()
            if name == "config":
                path, _, method = value.partition(":")
            elif name.startswith("config."):
                overrides[name.removeprefix("config.")] = value
            else:
                FLAGS[name].parser.parse(value)
        config = parse(PRESETS[path](*filter(None, [method])), overrides)
        assert config.cohort_size > 1, measurement.name
        if measurement.table == "torch":
            torch_comparison.check(config, ["eager"])


def test_measurements_that_a_machine_does_not_allow_are_skipped():
    def skipped(machine):
        return {
            measurement.name
            for measurement in suite.MEASUREMENTS
            if suite.reason_to_skip(measurement, machine)
        }

    torch = {name for name in suite.names() if name.startswith("torch-")}
    agree = {name for name in suite.names() if name.startswith("agree-")}
    large = agree | {"clients-large"}
    assert len(torch) == len(agree) == 6 and skipped(CPU) == large
    assert skipped(CPU._replace(cores=16, torch=False)) == torch | agree
    rehearsed = {name for name in suite.names() if name.startswith("h100-")}
    assert skipped(CPU._replace(plugin=False)) == rehearsed | large
    assert skipped(GPU) == {"devices", "w1", "w2", "million"}
    assert skipped(GPU._replace(torch=False)) == torch | {"devices", "w1", "w2", "million"}
    assert skipped(CPU._replace(cores=1)) == {"devices"} | large


def test_scores_on_an_accelerator_are_compared_with_those_on_a_cpu(monkeypatch, tmp_path):
    """The runs differ in what the environment says, and the numbers in what a run wrote."""
    scores = {
        "cpu": (1.0, 3.0, 4.0),
        "float32": (1.0, 3.0, 4.5),
        "tensorfloat32": (1.2, 3.0, 4.0),
    }
    scores["again"] = scores["float32"]
    played = {}

    def play(words, seconds, *, variables):
        (out,) = (word.removeprefix("--out=") for word in words if word.startswith("--out="))
        name = out.rpartition("/")[2]
        (precision,) = (w.partition("precision=")[2] for w in words if "precision=" in w)
        played[name] = variables.get("JAX_PLATFORMS"), precision
        loss, *of_clients = scores[name]
        test = {"G": {"mean": 9.0, "per_client": of_clients}}
        line = {"round": 3, "train": {"loss": loss}, "test": test}
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(line) + "\n")

    monkeypatch.setattr(suite, "run_command", play)
    numbers = suite.agreement(("--config=tpt48",), tmp_path, 10)
    assert numbers == {
        "rounds": 3,
        "float32": pytest.approx(0.5 / 5),
        "tensorfloat32": pytest.approx(0.2),
        "same_bytes": True,
    }
    assert played.pop("cpu") == ("cpu", "float32")
    precisions = {"float32": "float32", "tensorfloat32": "tensorfloat32", "again": "float32"}
    assert played == {name: (None, precision) for name, precision in precisions.items()}
    table = suite_tables.agreement({"agree-mlp": numbers})
    assert table[1] == ["mlp", "1e-01", "2e-01", "same bytes"]


def fake(name, table, measure):
    return suite.Measurement(name, table, measure, (), 10)


def broken(words, folder, seconds):
    raise suite.Failure("no memory is left")


@pytest.fixture
def suite_of(monkeypatch, tmp_path):
    """A function that runs a suite of given measurements, and returns its status."""
    monkeypatch.setattr(suite, "machine", lambda: CPU)

    def run(measurements, page=None, only=()):
        monkeypatch.setattr(suite, "MEASUREMENTS", measurements)
        argv = ["bench.py", "--suite"]
        return suite.measure_all(list(only), {}, tmp_path / "out", page, argv)

    return run


def test_a_failed_measurement_is_listed_and_the_others_run(suite_of, tmp_path, capsys):
    measurements = [
        fake("first", "devices", broken),
        fake("second", "devices", lambda *arguments: SIZES),
    ]
    assert suite_of(measurements) == 1
    results = json.loads((tmp_path / "out" / "suite.json").read_text())
    assert results["failed"] == {"first": "no memory is left"}
    assert list(results["measurements"]) == ["second"] and results["cores"] == 2
    text = (tmp_path / "out" / "suite.md").read_text()
    assert "first failed: no memory is left" in text
    # Four devices take four times as long as one.
    assert "| 4 | 400.00 | 400.00 | 400.00 | 0.25 |" in text
    assert "[1/2] first: no memory is left" in capsys.readouterr().err
    assert suite_of(measurements, only=["second"]) == 0


def test_a_page_gets_the_tables_that_were_measured(suite_of, tmp_path):
    page = tmp_path / "page.md"
    names = [suite_tables.TABLES[name].block for name in ("devices", "runs")]
    page.write_text("".join(f"<!-- begin {n} -->\nold\n<!-- end {n} -->\n" for n in names))
    measurements = [
        fake("first", "devices", lambda *arguments: SIZES),
        fake("second", "runs", broken),
    ]
    assert suite_of(measurements, str(page)) == 1
    begun, kept = page.read_text().split("<!-- begin bench-tpt48-scaling-runs -->")
    assert "Made by `python -m experiments.bench --suite` at commit aaaaaaa on 1 x cpu" in begun
    assert "| 4 | 400.00 |" in begun and kept.startswith("\nold\n")
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="^page=.* has no block bench-devices"):
        suite_of(measurements, str(page))


def test_an_unknown_measurement_is_refused():
    with pytest.raises(ValueError, match="^only='speed' is unknown; choose from mlp, gru, "):
        suite.chosen_measurements(["speed"])
    assert [chosen.name for chosen in suite.chosen_measurements(["gru", "mlp"])] == [
        "mlp",
        "gru",
    ]


def test_the_page_has_a_block_for_each_table():
    text = (ROOT / "docs/results/speed.md").read_text()
    for table in suite_tables.TABLES.values():
        assert (
            f"<!-- begin {table.block}{'-gpu' * (table.block == 'bench-agreement')} -->" in text
        )


# --------------------------------------------------------------------------- other libraries


def test_the_line_of_a_script_is_read_from_its_last_line():
    assert suite.read_line("fedjax", f"a note\n{json.dumps(LINE)}\n") == LINE
    less = {name: value for name, value in LINE.items() if name != "peak_mib"}
    for last in ("", "not JSON", "7", json.dumps(less)):
        with pytest.raises(
            suite.Failure, match="^fedjax: its last line is '.*', not JSON with"
        ):
            suite.read_line("fedjax", f"{json.dumps(LINE)}\n{last}\n")
    with pytest.raises(
        suite.Failure, match="^fedjax: its last line is '', not JSON with work, "
    ):
        suite.read_line("fedjax", "")


def test_rows_of_libraries_have_medians_and_ratios():
    def summary(**changed):
        names = {"round_s": "s", "first_round_s": "start", "peak_mib": "peak"}
        values = zip(*(changed[short] for short in names.values()), strict=True)
        return suite.summary([LINE | dict(zip(names, each, strict=True)) for each in values])

    ours = summary(s=(0.004, 0.002, 0.001), start=(3, 9, 2), peak=(400, 500, 300))
    theirs = summary(s=(0.02, 0.08, 0.01), start=(1.5, 1, 2), peak=(320, 200, 320))
    rows = [
        {"name": "graphfl_jax", "cores": 2, **ours},
        {"name": "fedjax", "cores": 2, **theirs},
        {"name": "graphfl_jax", "cores": 1, **theirs},
        {"name": "fedjax", "cores": 1, **theirs},
    ]
    cells = suite_tables.peers({"w1": {"rows": rows, "not_measured": ["fluke"]}})
    assert [row[0] for row in cells[1:]] == [
        "w1, 2, graphfl_jax 0.0.17",
        "w1, 2, fedjax 0.0.17",
        "w1, 1, graphfl_jax 0.0.17",
        "w1, 1, fedjax 0.0.17",
        "w1, fluke",
    ]
    assert cells[1][1:] == ["2.00", "1.00", "4.00", "1.00", "3.0", "1.00", "400", "1.00"]
    assert cells[2][1:] == ["20.00", "10.00", "80.00", "0.10", "1.5", "2.00", "320", "1.25"]
    assert cells[4][4::2] == ["1.00"] * 3  # compared on the same number of cores
    assert cells[5][1:] == ["not measured"] + [""] * 7


@pytest.fixture
def played(monkeypatch):
    """The script, words and cores of each process that is started, which prints `LINE`."""
    calls = []

    def run_command(words, seconds, python):
        calls.append((python, words[0].rpartition("/")[2], words[1:], os.sched_getaffinity(0)))
        return json.dumps(LINE | {"parameters": 7 if python == "wrong" else 486})

    monkeypatch.setattr(suite, "run_command", run_command)
    return calls


def test_processes_of_libraries_are_in_turn_on_all_cores_and_on_a_single_core(played, tmp_path):
    cores = os.sched_getaffinity(0)
    numbers = suite.compare_peers(("w1", "fluke=python"), tmp_path, 10)
    assert os.sched_getaffinity(0) == cores
    counts = list(dict.fromkeys((len(cores), 1)))
    names = ["graphfl_jax", "second start of graphfl_jax", "fluke"]
    assert [(row["cores"], row["name"]) for row in numbers["rows"]] == [
        (count, name) for count in counts for name in names
    ]
    assert numbers["not_measured"] == ["fedjax"]
    scripts = ["graphfl_round.py", "graphfl_round.py", "fluke_round.py"]
    assert [call[1] for call in played] == scripts * 3 * len(counts)
    assert [len(call[3]) for call in played] == [count for count in counts for _ in range(9)]
    kept = [call[2] for call in played if call[0] == sys.executable]
    assert kept[::2] == kept[1::2]  # the second start has the folder of the first one
    assert len({tuple(words) for words in kept}) == 3 * len(counts)
    assert all(call[2] == ["--work=w1"] for call in played if call[0] == "python")


def test_libraries_that_train_models_of_other_sizes_are_a_failure(played, tmp_path):
    message = "^fluke trains 7 weights, and graphfl_jax 486$"
    with pytest.raises(suite.Failure, match=message):
        suite.compare_peers(("w1", "fluke=wrong"), tmp_path, 10)


def test_the_failure_of_a_library_names_it(tmp_path):
    with pytest.raises(suite.Failure, match="^fedjax: ModuleNotFoundError: .*fedjax"):
        suite.peer_line("fedjax", sys.executable, ["--work=w1"], 60)


def test_scripts_of_other_libraries_need_nothing_of_this_repository():
    for name in suite.PEERS:
        tree = ast.parse((suite.SCRIPTS / f"{name}_round.py").read_text())
        modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules += [alias.name for alias in node.names]
        packages = {module.partition(".")[0] for module in modules}
        assert "measured" in packages and name in packages
        assert not packages & {"graphfl_jax", "experiments", "configs", "tests"}


# --------------------------------------------------------------------------- a million clients


def test_only_a_measurement_that_compares_with_a_library_gets_its_python():
    chosen = suite.chosen_measurements(["mlp", "w1", "million"])
    pythons = dict.fromkeys(suite.PEERS, sys.executable)
    mlp, w1, many = (
        set(after.words) - set(before.words)
        for before, after in zip(chosen, suite.with_peers(chosen, pythons), strict=True)
    )
    fedjax, fluke = (f"{name}={sys.executable}" for name in ("fedjax", "fluke"))
    assert (mlp, w1, many) == (set(), {fedjax, fluke}, {fedjax})


def test_many_clients_are_compared_with_few_and_with_another_library(monkeypatch, played):
    asked = []

    def compare_sizes(method, sizes, seconds):
        asked.append((method, sizes))
        numbers = {"ready_s": 3.0, "evaluation_s": 0.5, "checkpoint_s": 0.25, "peak_mib": 600.0}
        return [
            {"method": method, "clients": size, "s_per_round": [took] * 3, **numbers}
            for size, took in zip(sizes, (0.01, 0.012), strict=True)
        ]

    monkeypatch.setattr(suite.million, "compare_sizes", compare_sizes)
    words = ("clients=1000,2000", "clients_of_w3=500")
    cells = suite_tables.million({"million": suite.measure_million(words, None, 10)})
    assert asked == [(name, [1000, 2000]) for name in ("fedavg", "ditto", "panacea")]
    assert not played and cells[-1] == ["fedavg of fedjax", "not measured"] + [""] * 7
    assert cells[4][0] == "2,000, ditto" and cells[4][2:6] == ["12.00"] * 3 + ["1.20"]

    words = (*words, "fedjax=python")
    cells = suite_tables.million({"million": suite.measure_million(words, None, 10)})
    assert [call[1] for call in played] == ["graphfl_round.py", "fedjax_round.py"] * 3
    assert all(call[2] == ["--work=w3", "--clients=500"] for call in played)
    assert [row[0] for row in cells[-2:]] == [
        "500, fedavg of graphfl_jax 0.0.17",
        "500, fedavg of fedjax 0.0.17",
    ]
    with pytest.raises(suite.Failure, match="^fedjax trains 7 weights, and graphfl_jax 486$"):
        suite.measure_million((*words[:2], "fedjax=wrong"), None, 10)


@pytest.mark.release
def test_few_clients_are_measured_as_a_million_are(tmp_path):
    for row in million.compare_sizes("ditto", [1000, 2000], 300):
        median, fastest, slowest = row["s_per_round"]
        assert row["method"] == "ditto" and 0 < fastest <= median <= slowest < 10
        assert min(row[name] for name in ("ready_s", "evaluation_s", "checkpoint_s")) > 0
        assert 100 < row["peak_mib"] < 2000
    words = ["--work=w3", "--clients=2000", "--rounds=2"]
    line = suite.peer_line("graphfl", sys.executable, words, 300)
    assert line["parameters"] == 486 and 0 < line["ready_s"] < line["first_round_s"]


@pytest.mark.release
def test_the_second_start_of_a_script_finds_what_the_first_one_kept(tmp_path):
    words = ["--work=w1", "--rounds=2", f"--kept={tmp_path / 'kept'}"]
    lines, files = [], []
    for _ in range(2):
        lines.append(suite.peer_line("graphfl", sys.executable, words, 300))
        files.append(sorted(path.name for path in (tmp_path / "kept").rglob("*")))
    for line in lines:
        assert (line["work"], line["library"], line["parameters"]) == ("w1", "graphfl_jax", 486)
        assert line["rounds"] == 2 and 0 < line["round_s"] < line["first_round_s"] < 300
        assert 50 < line["peak_mib"] < 2000
    assert files[0] == files[1] and len(files[0]) > 3
    assert lines[1]["first_round_s"] < lines[0]["first_round_s"]


# ---------------------------------------------------------------------------------- commands


def test_the_error_of_a_command_is_its_last_line():
    script = "import sys; print('a', file=sys.stderr); sys.exit('error: x=1 is wrong')"
    with pytest.raises(suite.Failure, match="^error: x=1 is wrong$"):
        suite.run_command(["-c", script], 60)
    assert suite.run_command(["-c", "print(7)"], 60) == "7\n"


def test_a_process_answers_lines_until_it_fails_or_is_late():
    script = (
        "import sys, time\nfor line in sys.stdin:\n"
        "    if line == 'wait\\n': time.sleep(60)\n"
        "    if line == 'fail\\n': sys.exit('error: x=1 is wrong')\n"
        "    print(len(line), flush=True)"
    )
    with processes.answering(["-c", script], 60) as ask:
        assert [ask("one"), ask("three")] == [4, 6]
        for _ in range(2):  # also after it has ended
            with pytest.raises(suite.Failure, match="^error: x=1 is wrong$"):
                ask("fail")
    late = pytest.raises(suite.Failure, match="^it takes longer than its budget of 1 s$")
    with processes.answering(["-c", script], 1) as ask, late:
        ask("wait")


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_stopped_with_its_children(tmp_path):
    """The child would write a file after two seconds."""
    child = f"import time; time.sleep(2); open({str(tmp_path / 'late')!r}, 'w')"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with pytest.raises(suite.Failure, match="^it takes longer than its budget of 1 s$"):
        suite.run_command(["-c", script], 1)
    time.sleep(2.5)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words, message",
    [
        (["--suite", "--config=configs/tpt48.py"], "config=configs/tpt48.py is not read"),
        (["--suite", "--methods=all"], "methods=all excludes --suite"),
        (["--only=mlp"], "only=mlp is not read without --suite"),
        (["--suite", "--only=speed"], "only='speed' is unknown"),
        (["--fluke=python"], "fluke=python is not read without --suite; add it"),
        (["--suite", "--fluke=no/python"], "fluke=no/python is not a program; set --fluke to"),
        (
            ["--suite", "--only=mlp,gru", f"--fedjax={sys.executable}"],
            f"fedjax={sys.executable} is not read without w1, w2 or million in --only; add",
        ),
        ([f"--config={ROOT}/configs/tpt48.py", "--clients=3"], "clients=3 is not read without"),
        (["--against=fedavg", "--threads=1"], "threads=1 is not read without --against=torch"),
        (
            ["--config=tpt48", "--config.data.source=simulated", "--against=fedavg"],
            "against=fedavg compares several architectures, and all clients have one",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused_in_one_line(tmp_path, words, message):
    status, _, errors = launched("bench", *words, cwd=tmp_path)
    assert status == 2 and message in errors and errors.count("\n") == 1, errors
    assert not list(tmp_path.iterdir())


@pytest.mark.release
def test_the_suite_measures_one_measurement(tmp_path):
    status, printed, errors = launched(
        "bench", "--suite", "--only=resume", "--out=here", cwd=tmp_path
    )
    assert status == 0, errors
    assert "[1/1] resume: " in errors and "same bytes of metrics.jsonl" in printed
    results = json.loads((tmp_path / "here" / "suite.json").read_text())
    assert results["measurements"]["resume"]["equal"] and not results["failed"]
