"""The command experiments.run: the files that it leaves, its output, and its refusals."""

import concurrent.futures
import contextlib
import json
import os
import pty
import re
import subprocess

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

import graphfl_jax
from graphfl_jax import configs
from graphfl_jax.build import build_experiment
from graphfl_jax.commands.common.help_text import field_table
from graphfl_jax.configs import base, change, fl60, har
from graphfl_jax.configs.values import values_of
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.runs.debug import DebugSession
from graphfl_jax.runs.results import final_scores
from tests.commands import (
    ENVIRONMENT,
    ROOT,
    Ended,
    command,
    launched,
    launched_small,
    small_words,
)
from tests.federations import small_config, two_clusters

FL60, TPT48, CUSTOM, PEMS, CARS = (
    f"--config={ROOT}/configs/{name}.py"
    for name in ("fl60", "tpt48", "custom", "pems_bay", "compcars")
)
SIMULATED = "--config.data.source=simulated"
ROADS = [PEMS, SIMULATED, "--config.data.sensors=6", "--config.data.steps=100"]
FLIP = [FL60, "--config.attack.name=label_flip"]
SMALL = {
    "rounds": 4,
    "eval_every": 2,
    "local_steps": 2,
    "cohort_size": 8,
    "batch_size": 8,
    "hparams.client_lr": 0.05,
}


def flags_of(settings):
    return [f"--config.{field}={value}" for field, value in settings.items()]


# ---------------------------------------------------------------------------------- good runs


OUTPUTS = {
    "tpt48": "out/here",
    "fl60": "runs/fl60-fedavg-seed0",
    "diverged": "runs/tpt48-fedavg-seed0-2",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs, (how it ended, working folder): TPT-48 as a process of its own with --out;
    FL-60 and a run that diverges without --out."""
    simulated = tmp_path_factory.mktemp("simulated")
    default = tmp_path_factory.mktemp("default")
    (default / OUTPUTS["diverged"].removesuffix("-2")).mkdir(parents=True)  # taken

    def as_a_user_starts_it():
        """With both forms of setting a field."""
        words = flags_of(SMALL | {"data.download": False})
        words += ["--config.rounds", "4", "--out=out/here"]
        ended = subprocess.run(
            command("run", f"{TPT48}:fedavg", *words),
            cwd=simulated,
            env={**ENVIRONMENT, "GRAPHFL_DATA": "", "XDG_CACHE_HOME": str(simulated)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        process = pool.submit(as_a_user_starts_it)
        validated = flags_of(SMALL | {"rounds": 6, "data.val_fraction": 0.2})
        fl60 = launched("run", f"{FL60}:fedavg", *validated, cwd=default)
        # The squared error grows over several rounds, so there is a checkpoint before the end.
        wild = SMALL | {"data.source": "simulated", "hparams.client_lr": 20.0, "local_steps": 1}
        wild |= {"rounds": 200, "eval_every": 1, "checkpoint_every": 1}
        diverged = launched("run", f"{TPT48}:fedavg", *flags_of(wild), cwd=default)
    return {
        "tpt48": (process.result(), simulated),
        "fl60": (fl60, default),
        "diverged": (diverged, default),
    }


@pytest.fixture(params=["tpt48", "fl60"])
def good(request, runs):
    """A run that ended with a result: how it ended, its working folder and its output."""
    ended, folder = runs[request.param]
    return ended, folder, folder / OUTPUTS[request.param]


def read(out, name="results.json"):
    return json.loads((out / name).read_text())


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_good_run_leaves_its_files_and_status_zero(good):
    ended, folder, out = good
    assert ended.status == 0, ended.stderr
    assert {path.name for path in out.iterdir()} == {
        *("config.json", "identity.json", "metrics.jsonl", "results.json", "checkpoints"),
        *("federation.json", "models.safetensors", ".lock", "convergence.svg", "clients.csv"),
    }
    assert f"{out.relative_to(folder)}/results.json\n" in ended.stdout


def test_results_have_their_fields_and_no_others(good):
    results = read(good[2])
    assert set(results) == {
        *("algorithm", "variant", "dataset", "seed", "rounds", "hparams", "diverged", "metric"),
        *("not_finite", "rounds_trained", "trained_only", "sample"),
        *("higher_is_better", "scores", "errors", "new_clients", "attack", "defence", "timing"),
        *("labels", "metrics", "allocation", "rejected", "architectures", "communication"),
        *("scaling", "stopped", "means_by_examples", "embeddings_moved", "privacy"),
        "simulated_seconds",
        *("device", "versions", "git_commit", "identity", "accepted_changes"),
    }
    assert set(results["dataset"]) == {"name", "source", "extent", "sha256"}
    assert set(results["timing"]) == {
        *("compile_s", "train_s", "evaluate_s", "new_clients_s", "client_steps_per_s")
    }
    steps = np.prod([read(good[2], "config.json")[of] for of in ("cohort_size", "local_steps")])
    timing = results["timing"]
    speed = results["rounds"] * steps / timing["train_s"]
    assert timing["client_steps_per_s"] == pytest.approx(speed)
    assert results["hparams"] == {"client_lr": 0.05}  # and none that FedAvg does not read
    assert results["diverged"] is False
    assert results["rounds"] == read(good[2], "config.json")["rounds"]
    absents = ("labels", "new_clients", "attack", "defence", "allocation")
    absents += ("metrics", "rejected", "architectures", "scaling", "stopped")
    absents += ("embeddings_moved", "simulated_seconds")
    for absent in absents:
        assert results[absent] is None
    assert set(results["scores"]) == {"final", "validation", "best_val"}
    assert set(results["communication"]) == {"up_bytes", "down_bytes", "clients"}
    assert {"jax", "python", "graphfl_jax"} <= set(results["versions"])


def test_config_json_has_the_fields_that_are_read_and_no_others(runs):
    config = read(runs["tpt48"][1] / OUTPUTS["tpt48"], "config.json")
    assert config["rounds"] == 4 and config["hparams"] == {"client_lr": 0.05}
    assert set(config["model"]) == {"name", "hidden"}
    assert config["algorithm"] == {"name": "fedavg"}
    assert config["attack"] == {"name": ""}
    assert config["defence"] == {"name": "", "veto": False}


def test_scores_are_in_their_range_and_summarise_the_clients(good):
    results = read(good[2])
    kind = {"tpt48": ("mse", False, 48), "fl60": ("accuracy", True, 60)}
    metric, higher, clients = kind[results["dataset"]["name"]]
    assert (results["metric"], results["higher_is_better"]) == (metric, higher)
    assert set(results["scores"]["final"]) == {"G", "L", "P"}
    for scores in results["scores"]["final"].values():
        assert set(scores) == {"mean", "std_clients", "worst_decile", "jain", "per_client"}
        assert len(scores["per_client"]) == clients
        np.testing.assert_allclose(scores["mean"], np.mean(scores["per_client"]))
        np.testing.assert_allclose(scores["std_clients"], np.std(scores["per_client"]))
        assert min(scores["per_client"]) >= 0
        assert metric == "mse" or max(scores["per_client"]) <= 1
    described = read(good[2], "federation.json")["clients"]
    examples = np.array([client["examples"]["test"] for client in described])
    for point, mean in results["means_by_examples"].items():
        of_clients = results["scores"]["final"][point]["per_client"]
        np.testing.assert_allclose(mean, (examples * of_clients).sum() / examples.sum())


def test_metrics_have_a_line_per_evaluation_and_end_at_the_final_scores(good):
    rows, results = lines(good[2]), read(good[2])
    assert [row["round"] for row in rows] == list(range(2, results["rounds"] + 1, 2))
    assert rows[-1]["test"] == results["scores"]["final"]
    validation = results["scores"]["validation"]
    for summary in (validation or {}).values():
        assert summary.pop("loss") > 0
    assert rows[-1].get("val") == validation


def test_best_by_validation_is_the_best_row(runs):
    out = runs["fl60"][1] / OUTPUTS["fl60"]
    best, rows = read(out)["scores"]["best_val"], lines(out)
    chosen = max(rows, key=lambda row: row["val"]["P"]["mean"])  # the first of equals
    assert best == {"round": chosen["round"], **chosen["test"]}


def test_without_a_validation_split_no_round_is_best(runs):
    assert read(runs["tpt48"][1] / OUTPUTS["tpt48"])["scores"]["best_val"] is None


@pytest.mark.parametrize("task, best", [(CLASSIFICATION, 4), (REGRESSION, 2)])
def test_validation_at_p_chooses_and_test_scores_are_reported(task, best):
    def row(played, val, test):
        others = np.full(2, 1.0 - val)  # at G and L, which do not decide
        val, test = (dict.fromkeys("GL", others) | {"P": np.full(2, p)} for p in (val, test))
        return {"round": played, "scores": {"val": val, "test": test}}

    rows = [row(2, 0.25, 0.8), row(4, 0.75, 0.1), row(6, 0.75, 0.9), row(8, 0.5, 0.3)]
    scores = final_scores(rows, rows[-1]["scores"], task)
    assert scores["best_val"]["round"] == best
    assert scores["best_val"]["P"]["mean"] == {2: 0.8, 4: 0.1}[best]
    assert scores["final"]["P"]["mean"] == 0.3


def test_simulated_data_are_named_as_such_everywhere(runs):
    ended, folder = runs["tpt48"]
    assert re.fullmatch(r"warning: tpt48: no file .*simulated.*\n", ended.stderr)
    assert "data: simulated" in ended.stdout
    assert read(folder / OUTPUTS["tpt48"])["dataset"]["source"] == "simulated"


@pytest.mark.parametrize("name", OUTPUTS)
def test_output_that_is_not_a_terminal_gets_no_progress_bar(runs, name):
    ended, _ = runs[name]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", ended.stdout + ended.stderr)
    assert name == "tpt48" or ended.stderr == ""


@pytest.mark.slow
def test_a_terminal_shows_rounds_loss_and_score_while_a_run_goes_on(tmp_path):
    ours, theirs = pty.openpty()
    words = [*small_words("fl60.py:local"), "--config.eval_every=1", "--out=mine"]
    process = subprocess.Popen(
        command("run", *words),
        cwd=tmp_path,
        env=ENVIRONMENT | {"TERM": "xterm", "COLUMNS": "120"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError), os.fdopen(ours, "rb") as terminal:  # EIO at its end
        while some := terminal.read1():
            written += some
    assert process.wait() == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode())
    last = [line for line in re.split(r"[\r\n]+", shown) if line.strip()][-1]
    row = lines(tmp_path / "mine")[-1]
    assert re.match(r"local ━+ 3/3 [\d,.]+ rounds/(s|min)", last), last
    loss, score = row["train"]["loss"], row["test"]["P"]["mean"]
    assert f"loss {loss:.4g}, test P {score:.4g}" in last


def test_python_gets_the_scores_of_the_command_and_writes_nothing(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = configs.tpt48.get_config("fedavg")
    result = graphfl_jax.run(change(config, SMALL | {"data.source": "simulated"}))
    written = read(runs["tpt48"][1] / OUTPUTS["tpt48"])
    for name in ("scores", "hparams", "communication", "dataset", "device", "versions"):
        assert result.results[name] == written[name]
    assert list(tmp_path.iterdir()) == []


def test_a_diverged_run_names_round_and_floats_and_has_no_score(runs):
    ended, folder = runs["diverged"]
    out = folder / OUTPUTS["diverged"]
    assert ended.status == 1
    printed = re.search(
        r"diverged in round (\d+)(, first client \w+ in round \d+,)? with client_lr=20; .* in "
        r"runs/.*-2\n",
        ended.stdout,
    )
    results, rows = read(out), lines(out)
    assert (results["diverged"], results["scores"]) == (True, None)
    last = rows[-1]["round"]
    assert last == int(printed[1]) - 1  # it was evaluated every round
    state = ocp.load((out / "checkpoints" / f"{last:08d}").absolute())["state"]
    assert all(np.isfinite(leaf).all() for leaf in state.values())
    assert sorted(path.stem for path in out.glob("checkpoints/*.json"))[-1] == f"{last:08d}"


# -------------------------------------------------------------------------------------- fields


@pytest.mark.parametrize("value", ["20", 2.5, True, None])
def test_a_value_of_another_type_is_refused_in_python(value):
    with pytest.raises(
        ValueError, match=f"^rounds={value!r} is of type .*--config.rounds to an"
    ):
        change(configs.fl60.get_config(), {"rounds": value})


def test_help_lists_the_fields_with_their_values_and_meanings():
    words = ["--config.new_clients.fraction=0.2", "--config.algorithm.server_steps=3", "--help"]
    status, printed, errors = launched("run", f"{FL60}:panacea", *words, cwd=ROOT)
    assert status == 0
    for flag in ("--out", "--config", "--data_root", "--[no]distributed", "--[no]debug"):
        assert f"  {flag}: " in printed
    assert re.search(r"\n rounds +│ 800 +│ Rounds of the run\. .*\n .*>= 1", printed)
    assert re.search(r"\n new_clients\.fraction +│ 0\.2 ", printed)
    assert re.search(r"\n algorithm\.server_steps +│ 3 ", printed)
    assert " hparams.mu " not in printed
    assert errors == ""


def test_help_without_a_configuration_names_the_remedy():
    status, printed, errors = launched("run", "--help", cwd=ROOT)
    assert (status, errors) == (0, "")
    assert "  --out: " in printed and "Add a configuration" in printed


def test_help_has_a_row_for_every_field_of_every_method():
    for method in configs.methods():
        config = configs.fl60.get_config(method)
        table = field_table(config)
        assert table.row_count == len(values_of(config)[0])


# --------------------------------------------------------------------------------------- debug


def test_debug_shows_the_traceback_before_the_line(tmp_path):
    words = [FL60, "--config.cohort_size=61", "--debug"]
    status, printed, errors = launched("run", *words, cwd=tmp_path)
    *trace, last = errors.splitlines()
    assert (status, printed) == (2, "")
    assert trace[0].startswith("Traceback") and last.startswith("error: cohort_size=61 exceeds")


@pytest.mark.release
def test_debug_names_round_client_and_stage_in_which_training_diverges(tmp_path):
    words = ["--config.hparams.client_lr=1e30", "--debug", "--out=out"]
    status, printed, errors = launched_small("run", *words, cwd=tmp_path, file="fl60.py:fedavg")
    assert (status, printed) == (2, "")
    assert re.fullmatch(
        r"error: round 1, client 'domain \d+' \(number \d+\), local training: a number is not "
        r"finite; lower the learning rate.*",
        errors.splitlines()[-1],
    )


TINY = {"cohort_size": 2, "local_steps": 1, "batch_size": 2, "rounds": 1}
FAULTS = {
    "sample": "the server, sampling",
    "download": "client 'client .' .number .., download",
    "local": "client 'client .' .number .., local training",
    "begin_round": "the server, begin_round",
    "defend": "the server, attack and defence",
    "aggregate": "the server, aggregation",
    "personalize": "client 'client 0' .number 0., evaluation",
}


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "local" else pytest.mark.release)
        for name in FAULTS
    ],
)
def test_debug_names_where_a_function_of_the_method_fails(function):
    def broken(*arguments):
        raise KeyError("weights")

    config = small_config("fedavg", **TINY)
    experiment = build_experiment(config, two_clusters(3))
    session = DebugSession(experiment, config)

    def build(hparams, played):
        return experiment.build(hparams, played).replacing(**{function: broken})

    session.experiment = experiment._replace(build=build)
    with pytest.raises(ValueError, match=f"^round 1, {FAULTS[function]}: KeyError: 'weights'$"):
        session.evaluate(session.advance(session.state, 1)[0])


@pytest.mark.parametrize(
    "method, changes",
    [
        pytest.param("panacea", {}, marks=pytest.mark.release),
        pytest.param("ditto", {"rounds": 2, "eval_every": 2}, marks=pytest.mark.release),
        pytest.param(
            *("fedavg", {"attack__name": "sign_flip", "attack__clients": (0, 1)}),
            marks=pytest.mark.release,
        ),
        pytest.param(
            *("fedavg", {"attack__name": "label_flip", "attack__clients": (2,)}),
            marks=pytest.mark.release,
        ),
    ],
)
def test_debug_computes_what_the_compiled_run_does(tmp_path, method, changes):
    config = small_config(method, **TINY | changes)
    debugged = graphfl_jax.run(config, two_clusters(3), debug=True, out=tmp_path)
    compiled = graphfl_jax.run(config, two_clusters(3))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        (debugged.rows, debugged.state),
        (compiled.rows, compiled.state),
    )
    (line,) = lines(tmp_path)
    np.testing.assert_allclose(
        line["train"]["loss"], compiled.rows[0]["train"]["loss"], rtol=1e-4
    )


@pytest.mark.slow
def test_a_method_whose_rates_nobody_has_chosen_says_so(tmp_path):
    hint = (
        "the rates of fedrod were not searched on mnist; to search for a learning rate: graphfl"
    )
    rate = "--config.hparams.client_lr="
    words = [word for word in small_words("mnist.py:fedrod") if not word.startswith(rate)]
    ended = launched("run", *words, "--out=a", cwd=tmp_path, GRAPHFL_DATA="")
    assert ended.status == 0 and hint in ended.stdout, ended.stderr
    ended = launched("run", *words, f"{rate}0.2", "--out=b", cwd=tmp_path, GRAPHFL_DATA="")
    assert ended.status == 0 and hint not in ended.stdout, ended.stderr


def test_methods_whose_rates_were_chosen_exist():
    assert {name for names in base.SEARCHED.values() for name in names} <= base.methods().keys()
    assert base.was_searched(fl60.get_config("ditto"))
    assert not base.was_searched(har.get_config("fedrod"))
