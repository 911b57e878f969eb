"""The entry experiments.run: the files that it leaves, its output, and its refusals."""

import concurrent.futures
import io
import json
import re
import subprocess

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

import graphfl_jax
from experiments.common.command_line import field_table
from graphfl_jax import configs
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import changed, parsed
from graphfl_jax.configs.values import values_of
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.runs.debug import DebugSession
from graphfl_jax.runs.results import final_scores
from tests.entries import ENVIRONMENT, ROOT, Ended, command, entry, launched
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
        words += ["--config.rounds", "4", "--data_root=data", "--out=out/here"]
        ended = subprocess.run(
            command("run", f"{TPT48}:fedavg", *words),
            cwd=simulated,
            env=ENVIRONMENT,
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


def test_a_good_run_leaves_four_files_and_status_zero(good):
    ended, folder, out = good
    assert ended.status == 0, ended.stderr
    assert {path.name for path in out.iterdir()} == {
        *("config.json", "metrics.jsonl", "results.json", "checkpoints")
    }
    assert f"{out.relative_to(folder)}/results.json\n" in ended.stdout


def test_results_have_their_fields_and_no_others(good):
    results = read(good[2])
    assert set(results) == {
        *("algorithm", "variant", "dataset", "seed", "rounds", "hparams", "diverged", "metric"),
        *("higher_is_better", "scores", "errors", "new_clients", "attack", "defence", "timing"),
        *("allocation", "communication", "device", "versions", "git_commit"),
    }
    assert set(results["dataset"]) == {"name", "source", "extent", "sha256"}
    assert set(results["timing"]) == {
        *("compile_s", "train_s", "evaluate_s", "new_clients_s", "client_steps_per_s")
    }
    assert results["hparams"] == {"client_lr": 0.05}  # and none that FedAvg does not read
    assert results["diverged"] is False
    assert results["rounds"] == read(good[2], "config.json")["rounds"]
    for absent in ("new_clients", "attack", "defence", "allocation"):
        assert results[absent] is None
    assert set(results["scores"]) == {"final", "validation", "best_val"}
    assert set(results["communication"]) == {"up_bytes", "down_bytes"}
    assert {"jax", "python", "graphfl_jax"} <= set(results["versions"])


def test_config_json_has_the_fields_that_are_read_and_no_others(runs):
    config = read(runs["tpt48"][1] / OUTPUTS["tpt48"], "config.json")
    assert config["rounds"] == 4 and config["hparams"] == {"client_lr": 0.05}
    assert set(config["model"]) == {"name", "hidden"}
    assert config["algorithm"] == {"name": "fedavg"}
    assert config["attack"] == config["defence"] == {"name": ""}


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


def test_metrics_have_a_line_per_evaluation_and_end_at_the_final_scores(good):
    rows, results = lines(good[2]), read(good[2])
    assert [row["round"] for row in rows] == list(range(2, results["rounds"] + 1, 2))
    assert rows[-1]["test"] == results["scores"]["final"]
    assert rows[-1].get("val") == results["scores"]["validation"]


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
    assert re.fullmatch(r"warning: tpt48: no file data/.*simulated.*\n", ended.stderr)
    assert "data: simulated" in ended.stdout
    assert read(folder / OUTPUTS["tpt48"])["dataset"]["source"] == "simulated"


@pytest.mark.parametrize("name", OUTPUTS)
def test_output_that_is_not_a_terminal_gets_no_progress_bar(runs, name):
    ended, _ = runs[name]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", ended.stdout + ended.stderr)
    assert name == "tpt48" or ended.stderr == ""


def test_python_gets_the_scores_of_the_entry_and_writes_nothing(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = configs.tpt48.get_config("fedavg")
    result = graphfl_jax.run(changed(config, SMALL | {"data.source": "simulated"}))
    written = read(runs["tpt48"][1] / OUTPUTS["tpt48"])
    for name in ("scores", "hparams", "communication", "dataset", "device", "versions"):
        assert result.results[name] == written[name]
    assert list(tmp_path.iterdir()) == []


def test_a_diverged_run_names_round_and_floats_and_has_no_score(runs):
    ended, folder = runs["diverged"]
    out = folder / OUTPUTS["diverged"]
    assert ended.status == 1
    printed = re.search(
        r"diverged in round (\d+) with client_lr=20; .* in runs/.*-2\n", ended.stdout
    )
    results, rows = read(out), lines(out)
    assert (results["diverged"], results["scores"]) == (True, None)
    last = rows[-1]["round"]
    assert last == int(printed[1]) - 1  # it was evaluated every round
    state = ocp.load((out / "checkpoints" / f"{last:08d}").absolute())["state"]
    assert all(np.isfinite(leaf).all() for leaf in state.values())
    assert sorted(path.stem for path in out.glob("checkpoints/*.json"))[-1] == f"{last:08d}"


# -------------------------------------------------------------------------------------- fields


# The configuration, fields as text, and what the error must say: the field, its value, what is
# wrong, and the remedy.
BAD_FIELDS = [
    # what is no field
    (
        "fl60",
        {"round": "5"},
        "^round=5 is not a field; perhaps rounds is meant; .* seed, rounds",
    ),
    (
        "fl60",
        {"data.nmae": "fl60"},
        "^data.nmae=fl60 .*perhaps data.name is meant; .*data.graph",
    ),
    # what the configuration does not read
    (
        "tpt48:fedavg",
        {"hparams.mu": "0.3"},
        "^hparams.mu=0.3 is not read .*algorithm.name=fedprox; .* are hparams.client_lr$",
    ),
    ("fl60", {"hparams.attack_ratio": "0.1"}, "^hparams.attack_ratio=0.1 .*belongs to attack"),
    ("fl60", {"attack.clients": "3"}, "^attack.clients=3 .*attack.name; .* are attack.name$"),
    ("fl60", {"data.download": "false"}, "^data.download=false .*belongs to data.name=tpt48"),
    ("fl60", {"new_clients.rounds": "1"}, "^new_clients.rounds=1 .*new_clients.fraction"),
    ("fl60", {"tuning.epochs": "1"}, "^tuning.epochs=1 .*belongs to tuning.part"),
    ("fl60", {"defence.attackers": "1"}, "^defence.attackers=1 .*defence.name=krum"),
    ("fl60", {"data.neighbours": "4"}, "^data.neighbours=4 .*data.graph=knn"),
    ("fl60", {"hparams.client_momentum": "0.9"}, "client_momentum=0.9 .*client_optimizer=mom"),
    # text that is not of the field's type
    ("fl60", {"rounds": "abc"}, "^rounds=abc is not of type int; its values are >= 1$"),
    ("fl60", {"rounds": "1.5"}, "^rounds=1.5 is not of type int"),
    ("fl60", {"hparams.client_lr": "x"}, "^hparams.client_lr=x is not of type float"),
    ("tpt48", {"data.download": "maybe"}, "^data.download=maybe .*type bool; .*true, false$"),
    (
        "fl60",
        {"data.graph": "knn", "data.neighbours": "few"},
        "^data.neighbours=few .*type int",
    ),
    # unknown choices
    ("fl60", {"algorithm.name": "fedsgd"}, "^algorithm.name='fedsgd' .*choose from .*fedavg"),
    ("fl60", {"data.name": "mnist60"}, "^data.name='mnist60' .*fl60.*tpt48"),
    ("fl60", {"model.name": "cnn99"}, "^model.name='cnn99' .*mlp"),
    ("fl60", {"client_optimizer": "lion"}, "^client_optimizer='lion' .*sgd"),
    ("fl60", {"server_optimizer": "lion"}, "^server_optimizer='lion' .*sgd"),
    ("fl60", {"algorithm.layer": "gat"}, "^algorithm.layer='gat' .*sage, mean, gcn$"),
    ("fl60", {"algorithm.output": "half"}, "^algorithm.output='half' .*direct, .*lora$"),
    ("fl60:sfl", {"algorithm.sfl_rule": "no"}, "^algorithm.sfl_rule='no' .*as_released"),
    ("fl60", {"tuning.part": "tail"}, "^tuning.part='tail' .*whole, head, .*empty for none$"),
    ("fl60", {"attack.name": "gas"}, "^attack.name='gas' .*label_flip.*min_max"),
    ("fl60", {"defence.name": "wall"}, "^defence.name='wall' .*clip.*krum"),
    ("fl60", {"data.graph": "near"}, "^data.graph='near' .*own, knn$"),
    ("compcars", {"data.car_relations": "all"}, "^data.car_relations='all' .*nearby, adjacent"),
    (
        "compcars",
        {"model.lowering": "fft"},
        "^model.lowering='fft' .*auto, rows, .*, xla$",
    ),
    (
        "fl60",
        {"new_clients.fraction": "0.2", "new_clients.graph": "no"},
        "^new_clients.graph='no' .*inductive, transductive$",
    ),
    (
        "fl60",
        {"new_clients.fraction": "0.2", "algorithm.new_client_embedding": "no"},
        "^algorithm.new_client_embedding='no' .*neighbours, ",
    ),
    ("fl60", {"eval.points": "G,Q"}, "^eval.points=G,Q: 'Q' is unknown; choose from G, L, P$"),
    # values outside their range
    (
        "fl60",
        {"client_chunk": "-1"},
        "^client_chunk=-1 must be at least 0; set --config.client",
    ),
    ("fl60", {"cohort_size": "0"}, "^cohort_size=0 must be at least 1; set --config.cohort_s"),
    ("fl60", {"batch_size": "0"}, "^batch_size=0 must be at least 1"),
    ("fl60", {"local_steps": "0"}, "^local_steps=0 must be at least 1"),
    ("fl60", {"rounds": "-5"}, "^rounds=-5 must be at least 1"),
    ("fl60", {"clients_per_eval": "-1"}, "^clients_per_eval=-1 must be at least 0"),
    ("fl60", {"seed": "-1"}, r"^seed=-1 is not in \[0, "),
    ("pems_bay", {"data.sensors": "-1"}, "^data.sensors=-1 must be at least 0"),
    (
        "fl60",
        {"hparams.client_lr": "-0.1"},
        "^hparams.client_lr=-0.1 must be finite .*0 or more",
    ),
    ("fl60", {"hparams.client_lr": "nan"}, "^hparams.client_lr=nan must be finite"),
    (
        "fl60",
        {"hparams.embedding_dropout": "1.5"},
        r"^hparams.embedding_dropout=1.5 .*\[0, 1\]$",
    ),
    (
        "fl60",
        {"data.val_fraction": "0.9"},
        r"^data.val_fraction=0.9 is not in \[0, 0.8\]; set ",
    ),
    (
        "fl60",
        {"attack.name": "label_flip", "hparams.attack_ratio": "1.5"},
        r"^hparams.attack_ratio=1.5 is not in \[0, 1\]",
    ),
    (
        "fl60",
        {"new_clients.fraction": "0.2", "new_clients.rounds": "-1"},
        "^new_clients.rounds=-1 must be at least 0",
    ),
    ("fl60", {"tuning.part": "head", "tuning.epochs": "-1"}, "^tuning.epochs=-1 must be at"),
    ("fl60", {"data.graph": "knn", "data.neighbours": "0"}, "^data.neighbours=0 .*at least 1"),
    (
        "fl60",
        {"defence.name": "krum", "defence.attackers": "-1"},
        "^defence.attackers=-1 must be at least",
    ),
]


@pytest.mark.parametrize("file, texts, message", BAD_FIELDS)
def test_a_bad_field_is_refused_in_one_line(file, texts, message):
    name, _, method = file.partition(":")
    config = getattr(configs, name).get_config(*[method] * bool(method))
    with pytest.raises(ValueError, match=message) as caught:
        parsed(config, texts)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["20", 2.5, True, None])
def test_a_value_of_another_type_is_refused_in_python(value):
    with pytest.raises(
        ValueError, match=f"^rounds={value!r} is of type .*--config.rounds to an"
    ):
        changed(configs.fl60.get_config(), {"rounds": value})


OLD_NAMES = {
    "novel_fraction=0.2": "new_clients.fraction=0.2",
    "novel.rounds=2": "new_clients.rounds=2",
    "novel.graph=transductive": "new_clients.graph=transductive",
    "novel.code=random": "algorithm.new_client_embedding=random",
    "server_steps=3": "algorithm.server_steps=3",
    "eval_block=64": "eval_batch_size=64",
    "eval_clients=4": "clients_per_eval=4",
    "algorithm.profile=full": "algorithm.output=residual",
    "algorithm.profile=whole": "algorithm.output=direct",
    "algorithm.profile=lowrank": "algorithm.output=lora",
    "algorithm.profile=head": "algorithm.output=head",
    "hparams.code_dropout=0.3": "hparams.embedding_dropout=0.3",
    "hparams.novel_lr=7.0": "hparams.new_client_lr=7.0",
}


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_sets_the_new_field_and_warns(old):
    config = changed(configs.fl60.get_config(), {"new_clients.fraction": 0.2})
    new = OLD_NAMES[old]
    with pytest.warns(FutureWarning, match=f"^{old} is now {new}; the old form"):
        renamed = parsed(config, dict([old.split("=")]))
    assert renamed == parsed(config, dict([new.split("=")]))


def test_help_lists_the_fields_with_their_values_and_meanings():
    words = ["--config.novel_fraction=0.2", "--config.server_steps=3", "--help"]
    status, printed, errors = launched("run", f"{FL60}:panacea", *words, cwd=ROOT)
    assert status == 0
    for flag in ("--out", "--config", "--data_root", "--[no]distributed", "--[no]debug"):
        assert f"  {flag}: " in printed
    assert re.search(r"\n rounds +│ 800 +│ Rounds of the run\. .*\n .*>= 1", printed)
    assert re.search(r"\n new_clients\.fraction +│ 0\.2 ", printed)
    assert re.search(r"\n algorithm\.server_steps +│ 3 ", printed)
    assert " hparams.mu " not in printed
    assert [line.split(";")[0] for line in errors.splitlines()] == [
        "warning: novel_fraction=0.2 is now new_clients.fraction=0.2",
        "warning: server_steps=3 is now algorithm.server_steps=3",
    ]


def test_help_without_a_configuration_names_the_remedy():
    status, printed, errors = launched("run", "--help", cwd=ROOT)
    assert (status, errors) == (0, "")
    assert "  --out: " in printed and "Add --config=FILE" in printed


def test_help_has_a_row_for_every_field_of_every_method():
    for method in configs.methods():
        config = configs.fl60.get_config(method)
        table = field_table(config)
        assert table.row_count == len(values_of(config)[0])


# ------------------------------------------------------------------------------------ refusals


def npz(**changes):
    """A file of six clients with five examples each, as text; a change to None leaves out."""
    arrays = {"x": np.ones((30, 2)), "y": np.arange(30) % 2, "client": np.repeat(range(6), 5)}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue().decode("latin1")


# The files in the working folder of every refusal.
FILES = {
    "good.npz": npz(),
    "images.npz": npz(x=np.zeros((30, 8, 8, 3), np.uint8), y=np.arange(30) % 4),
    "torn.npz": npz()[:500],
    "objects.npz": npz(client=np.array(["ann", "bob"] * 15, object)),
    "lacking.npz": npz(client=None),
    "typo.npz": npz(edge=[(0, 1)]),
    "lengths.npz": npz(y=np.arange(29)),
    "split.npz": npz(split=["train"] * 29 + ["tset"]),
    "marked.npz": npz(split=["train", "test", "test", "train", "train"] * 6),
    "stranger.npz": npz(edges=[(0, 1), (5, 6)]),
    "itself.npz": npz(client=np.repeat(list("abcdef"), 5), edges=[("b", "b")]),
    "file": "",
    "run/config.json": "{}",
    "text.pkl": "no pickle\n",
    "no.safetensors": "no tensors\n",
    "torn.pkl": "\x80\x04\x95\x00\x00",
    "torn.txt": "0010021895  44.00  38.00  55.10\n",
    "short.txt": "0010021895" + "  44.00" * 12 + "\n",
    "broken.py": "def get_config(:",
    "empty.py": "",
    "number.py": "def get_config(): return 3",
}


def user_file(name, *settings):
    """Flags that read one of the files above."""
    words = [f"data.path={name}.npz", *settings]
    return [CUSTOM, *(f"--config.{word}" for word in words)]


IMAGES = user_file("images", "model.name=resnet18", "model.width=8")
IMAGES[0] += ":fedavg"
BACKDOOR = [*IMAGES, "--config.attack.name=backdoor"]
# Flags, and what the line must say.
BAD_FLAGS = [
    # flags and configuration files
    ([], "config is not set; add --config=configs/tpt48.py"),
    (
        ["--config=nowhere.py", "--config.rounds=4"],
        "config=nowhere.py is not a file; .*tpt48.py",
    ),
    (["--config=broken.py"], "config=broken.py cannot be loaded .SyntaxError: .*; correct"),
    (["--config=empty.py"], "config=empty.py has no get_config"),
    (
        ["--config=number.py"],
        "config=number.py: get_config.. returns a int; return a ConfigDict",
    ),
    ([f"{FL60}:fedsgd"], "method='fedsgd' is unknown; choose from panacea, .*fedavg-finetune"),
    ([FL60, "stray"], "'stray' is not a flag; flags begin with --"),
    ([FL60, "--nosuchflag=1"], "nosuchflag"),
    ([FL60, "--config.rounds"], "config.rounds has no value; add --config.rounds=VALUE"),
    ([FL60, "--config.rounds", "--resume"], "config.rounds has no value"),
    ([FL60, "--config.rounds", "1.5"], "rounds=1.5 is not of type int"),
    ([f"{TPT48}:fedavg", "--config.hparams.mu=0.3"], "hparams.mu=0.3 is not read .*fedprox"),
    ([FL60, "--help", "--config.round=5"], "round=5 is not a field"),
    # folders
    ([FL60, "--out=file"], "out=file cannot be written; choose another"),
    ([FL60, "--out=file/below"], "out=file/below cannot be written; choose another"),
    ([FL60, "--out=run"], "out=run already holds a run; add --resume"),
    (
        [FL60, "--out=run", "--resume"],
        "data.name='fl60' differs from 'tpt48' in .* run; resume",
    ),
    ([FL60, "--resume"], "resume=True needs the folder of the run; add --out=DIR"),
    ([FL60, "--resume", "--out="], "resume=True needs the folder of the run; add --out=DIR"),
    ([FL60, "--out=a[1]"], r"out=a\[1\] has a bracket"),
    # fields that do not fit the data
    ([FL60, "--config.cohort_size=61"], "cohort_size=61 exceeds the 60 clients .*=60 or less"),
    ([FL60, "--config.model.hidden=()"], r"model.hidden=\(\).*16,16"),
    ([FL60, "--config.model.name=gru"], "model.name='gru' forecasts series"),
    (
        [FL60, "--config.new_clients.fraction=0.01"],
        "new_clients.fraction=0.01 makes 0 of the 60 clients",
    ),
    (
        [FL60, "--config.new_clients.fraction=1"],
        r"new_clients.fraction=1.0 makes 60 .*set it in \[0.0167",
    ),
    (
        [FL60, "--config.new_clients.fraction=0.95"],
        "cohort_size=5 exceeds the 3 clients that train",
    ),
    ([*FLIP, "--config.attack.clients=60"], "attack.clients has 60, .*numbers from 0 to 59"),
    ([*FLIP, "--config.attack.clients=('Ann','Bo')"], "attack.clients has 'Ann', .*fl60"),
    (
        [*FLIP, "--config.attack.clients=3", "--config.hparams.attack_ratio=0.1"],
        "attack.clients=3 and hparams.attack_ratio=0.1 both choose .*; leave one out",
    ),
    ([FL60, "--config.attack.name=backdoor"], "backdoor' needs images .*; use compcars"),
    (
        [TPT48, SIMULATED, "--config.attack.name=label_flip_wrong"],
        "needs classes, .*name=label_flip",
    ),
    (
        [*ROADS, "--config.attack.name=label_flip"],
        "label_flip' cannot change targets .*name=poisoning",
    ),
    ([*BACKDOOR, "--config.attack.trigger_size=9"], "trigger_size=9 .*8 x 8; .*in .0, 8"),
    ([*BACKDOOR, "--config.attack.target=4"], r"attack.target=4 is not a label; .*\[0, 3\]"),
    ([FL60, "--config.defence.name=median"], "'median' makes one model .*clip, krum"),
    ([f"{FL60}:local", "--config.defence.name=clip"], "'clip' has no effect.*leave it empty"),
    (
        [FL60, "--config.defence.name=krum", "--config.defence.attackers=2"],
        "defence.attackers=2 is too many for krum in a cohort of 5; .*cohort_size=7",
    ),
    ([*ROADS, "--config.data.steps=20"], "20 steps are too few .*24"),
    ([*ROADS, "--config.model.hidden=(3,3)"], r"model.hidden=\(3, 3\).*one width"),
    ([*ROADS, "--config.model.name=resnet18"], "takes images of shape"),
    (
        [FL60, "--config.data.graph=knn", "--config.data.neighbours=60"],
        r"neighbours=60 .*clients, 60; set .*\[1, 59\]",
    ),
    (
        user_file("good"),
        "algorithm.name='panacea' needs .* custom has none; .*--config.data.graph=knn",
    ),
    # files
    ([FL60, "--config.data.source=real", "--data_root=none"], "none/dg60/toy_d60_spiral.pkl"),
    ([CARS, "--config.data.source=real", "--data_root=none"], "none/compcars/car-images.txt"),
    (
        [FL60, "--config.data.source=file", "--config.data.path=torn.pkl"],
        "torn.pkl: .*complete",
    ),
    (
        [FL60, "--config.data.source=file", "--config.data.path=text.pkl"],
        "text.pkl: .*complete",
    ),
    ([TPT48, "--config.data.path=nowhere.txt"], "data.path='nowhere.txt' is not a file"),
    ([TPT48, "--config.data.path=torn.txt"], "torn.txt: line 1 is not"),
    ([TPT48, "--config.data.path=short.txt"], "short.txt: .*incomplete .* Alabama 1896"),
    ([TPT48, "--config.data.path=text.pkl"], "text.pkl: line 1 is not"),
    ([PEMS, "--config.data.path=nowhere.h5"], "data.path='nowhere.h5' is not a file"),
    ([PEMS, "--config.data.path=text.pkl"], "text.pkl: .*fixed format.*DCRNN"),
    ([*IMAGES, "--config.model.weights=no.pth"], "model.weights='no.pth' does not exist"),
    ([*IMAGES, "--config.model.weights=text.pkl"], "text.pkl' .*ends in .safetensors or .pth"),
    ([*IMAGES, "--config.model.weights=no.safetensors"], "no.safetensors' is damaged .*again"),
    ([CUSTOM], "data.path is empty; set --config.data.path"),
    (user_file("nowhere"), "data.path='nowhere.npz' is not a file"),
    ([CUSTOM, "--config.data.path=text.pkl"], "text.pkl: .*not a complete npz.*np.savez"),
    (user_file("torn"), "torn.npz: .*not a complete npz file.*np.savez"),
    (user_file("objects"), "objects.npz: the array 'client' .*strings and not as objects"),
    (user_file("lacking"), "lacking.npz: there is no array 'client'; add it"),
    (user_file("typo"), "typo.npz: the array 'edge' is unknown; choose from x, .*edges"),
    (user_file("lengths"), r"lengths.npz: .*y has shape \(29,\) and x has \(30, 2\); give one"),
    (user_file("split"), "split.npz: .*split has 'tset' at example 29; use train, val, test"),
    (
        user_file("marked", "data.val_fraction=0.1"),
        "marked.npz: data.val_fraction=0.1 .*set it to 0",
    ),
    (
        user_file("stranger"),
        r"stranger.npz: .*number 1, \(5, 6\), names client 6, .*no examples",
    ),
    (user_file("itself"), r"itself.npz: .*number 0, \('b', 'b'\), joins a client to itself"),
]


def contents(folder):
    return {
        str(path.relative_to(folder)): path.is_file() and path.read_text("latin1")
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with `FILES`, and its contents."""
    folder = tmp_path_factory.mktemp("workplace")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, "latin1")
    return folder, contents(folder)


@pytest.mark.parametrize(
    "words, message",
    BAD_FLAGS,
    ids=[" ".join(words).replace(f"{ROOT}/", "") or "no flags" for words, _ in BAD_FLAGS],
)
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(workplace, words, message):
    folder, before = workplace
    status, printed, errors = launched("run", *words, cwd=folder)
    assert (status, printed) == (2, "")
    assert re.fullmatch(r"(warning: .*\n)?error: .*\n", errors)
    assert re.search(message, errors), errors
    assert contents(folder) == before


def test_debug_shows_the_traceback_before_the_line(workplace):
    words = [FL60, "--config.cohort_size=61", "--debug"]
    status, printed, errors = launched("run", *words, cwd=workplace[0])
    *trace, last = errors.splitlines()
    assert (status, printed) == (2, "")
    assert trace[0].startswith("Traceback") and last.startswith("error: cohort_size=61 exceeds")


# --------------------------------------------------------------------------------------- debug


def test_debug_names_round_client_and_stage_in_which_training_diverges(tmp_path):
    words = ["--config.hparams.client_lr=1e30", "--debug", "--out=out"]
    status, printed, errors = entry("run", *words, cwd=tmp_path, file="fl60.py:fedavg")
    assert (status, printed) == (2, "")
    assert re.fullmatch(
        r"error: round 1, client 'domain \d+' \(number \d+\), local training: a number is not "
        r"finite; lower the learning rate.*",
        errors.splitlines()[-1],
    )


TINY = {"cohort_size": 2, "local_steps": 1, "batch_size": 2, "rounds": 1}
FAULTS = {
    "download": "client 'client .' .number .., download",
    "local": "client 'client .' .number .., local training",
    "begin_round": "the server, begin_round",
    "defend": "the server, attack and defence",
    "aggregate": "the server, aggregation",
    "personalize": "client 'client 0' .number 0., evaluation",
}


@pytest.mark.parametrize("function", FAULTS)
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
        pytest.param("panacea", {}, marks=pytest.mark.slow),
        pytest.param("ditto", {"rounds": 2, "eval_every": 2}, marks=pytest.mark.slow),
        pytest.param(
            *("fedavg", {"attack__name": "sign_flip", "attack__clients": (0, 1)}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("fedavg", {"attack__name": "label_flip", "attack__clients": (2,)}),
            marks=pytest.mark.slow,
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
