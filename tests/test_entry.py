"""The entry as a user starts it: what it leaves behind, and how it says no."""

import concurrent.futures
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

import graphfl_jax
from graphfl_jax.configs import tpt48
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.runs.results import final_scores

ROOT = Path(__file__).resolve().parent.parent
FL60, TPT48, CUSTOM, PEMS, CARS = (
    f"--config={ROOT}/configs/{name}.py"
    for name in ("fl60", "tpt48", "custom", "pems_bay", "compcars")
)
ROADS = [PEMS, "--config.data.source=simulated", "--config.data.sensors=6"]
ROADS += ["--config.data.steps=100"]
DRAWN = [CARS, "--config.data.source=simulated", "--config.data.image_size=8"]
FLIP = [FL60, "--config.attack.name=label_flip"]
BACKDOOR = [*DRAWN, "--config.attack.name=backdoor"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
SMALL = {
    "rounds": 4,
    "eval_every": 2,
    "local_steps": 2,
    "cohort_size": 8,
    "batch_size": 8,
    "hparams.client_lr": 0.05,
    "data.download": False,
}


class Outcome(NamedTuple):
    """How a process ended, and where."""

    status: int
    stdout: str
    stderr: str
    folder: Path


def flags_of(settings):
    return [f"--config.{field}={value}" for field, value in settings.items()]


def start(folder, *flags) -> Outcome:
    command = [sys.executable, "-m", "experiments.run", *flags]
    ended = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    return Outcome(ended.returncode, ended.stdout, ended.stderr, folder)


# ---------------------------------------------------------------------------------- good runs


FOLDERS = {
    "tpt48": "out/here",
    "fl60": "runs/fl60-fedavg-seed0",
    "diverged": "runs/tpt48-fedavg-seed0-2",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs: simulated TPT-48 into a folder; FL-60, then a diverging one, into none."""
    simulated, default = (
        tmp_path_factory.mktemp("simulated"),
        tmp_path_factory.mktemp("default"),
    )
    (default / FOLDERS["diverged"].removesuffix("-2")).mkdir(parents=True)  # taken

    def without_out():
        small = flags_of(SMALL | {"rounds": 6, "data.val_fraction": 0.2})
        first = start(default, f"{FL60}:fedavg", *small)
        # Mean squared error grows without bound, over some rounds: there is a good checkpoint.
        wild = {"data.source": "simulated", "hparams.client_lr": 20.0, "local_steps": 1}
        often = {"rounds": 200, "eval_every": 1, "checkpoint_every": 1}
        return first, start(default, f"{TPT48}:fedavg", *flags_of(SMALL | wild | often))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        others = pool.submit(without_out)
        words = ("--data_root=data", "--out=out/here")
        tpt48_run = start(simulated, f"{TPT48}:fedavg", *flags_of(SMALL), *words)
        return {"tpt48": tpt48_run} | dict(
            zip(("fl60", "diverged"), others.result(), strict=True)
        )


@pytest.fixture(params=["tpt48", "fl60"])
def good(request, runs):
    """A run that ended well, and its folder."""
    return runs[request.param], runs[request.param].folder / FOLDERS[request.param]


def read(out, name="results.json"):
    return json.loads((out / name).read_text())


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_good_run_leaves_its_four_files_and_status_zero(good):
    run, out = good
    assert run.status == 0, run.stderr
    left = {path.name for path in out.iterdir()}
    assert left == {"config.json", "metrics.jsonl", "results.json", "checkpoints"}
    assert f"{out.relative_to(run.folder)}/results.json\n" in run.stdout


def test_results_have_their_fields_and_no_others(good):
    results = read(good[1])
    assert set(results) == {
        *("algorithm", "variant", "dataset", "seed", "rounds", "hparams", "diverged", "metric"),
        *("higher_is_better", "scores", "errors", "new_clients", "attack", "defence", "timing"),
        "communication",
        *("device", "versions", "git_commit"),
    }
    assert set(results["dataset"]) == {"name", "source", "extent", "sha256"}
    assert set(results["timing"]) == {
        *("compile_s", "train_s", "evaluate_s", "novel_s", "client_steps_per_s")
    }
    assert results["hparams"] == {"client_lr": 0.05}  # and none that FedAvg does not read
    told = ("diverged", "new_clients", "attack", "defence", "rounds")
    assert tuple(results[name] for name in told) == (
        *(False, None, None, None),
        read(good[1], "config.json")["rounds"],
    )
    assert set(results["scores"]) == {"final", "best_val"}
    assert set(results["communication"]) == {"up_bytes", "down_bytes"}
    assert {"jax", "python", "graphfl_jax"} <= set(results["versions"])


def test_scores_are_of_their_kind_and_sum_up_the_clients(good):
    results = read(good[1])
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
    rows, results = lines(good[1]), read(good[1])
    assert [row["round"] for row in rows] == list(range(2, results["rounds"] + 1, 2))
    assert rows[-1]["test"] == results["scores"]["final"]


def test_best_by_validation_is_the_best_row(runs):
    out = runs["fl60"].folder / FOLDERS["fl60"]
    best, rows = read(out)["scores"]["best_val"], lines(out)
    chosen = max(rows, key=lambda row: row["val"]["P"]["mean"])  # the first of equals
    assert best == {"round": chosen["round"], **chosen["test"]}


def test_without_validation_nothing_is_best_by_it(runs):
    assert read(runs["tpt48"].folder / FOLDERS["tpt48"])["scores"]["best_val"] is None


@pytest.mark.parametrize("task, best", [(CLASSIFICATION, 4), (REGRESSION, 2)])
def test_validation_at_p_chooses_and_test_scores_are_told(task, best):
    def row(played, val, test):
        others = np.full(2, 1.0 - val)  # at G and L: they decide nothing
        val, test = (dict.fromkeys("GL", others) | {"P": np.full(2, p)} for p in (val, test))
        return {"round": played, "scores": {"val": val, "test": test}}

    rows = [row(2, 0.25, 0.8), row(4, 0.75, 0.1), row(6, 0.75, 0.9), row(8, 0.5, 0.3)]
    scores = final_scores(rows, task)
    assert scores["best_val"]["round"] == best
    assert scores["best_val"]["P"]["mean"] == {2: 0.8, 4: 0.1}[best]
    assert scores["final"]["P"]["mean"] == 0.3


def test_simulated_data_are_called_so_everywhere(runs):
    run = runs["tpt48"]
    assert re.fullmatch(r"warning: tpt48: no file data/.*simulated\.\n", run.stderr)
    assert "data: simulated" in run.stdout
    assert read(run.folder / FOLDERS["tpt48"])["dataset"]["source"] == "simulated"


@pytest.mark.parametrize("name", FOLDERS)
def test_output_that_is_no_terminal_gets_no_progress_bar(runs, name):
    run = runs[name]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", run.stdout + run.stderr)
    assert name == "tpt48" or run.stderr == ""


def test_python_gets_the_scores_of_the_entry_and_writes_nothing(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = tpt48.get_config("fedavg")
    config.update_from_flattened_dict(SMALL | {"data.source": "simulated"})
    result = graphfl_jax.run(config)
    told = read(runs["tpt48"].folder / FOLDERS["tpt48"])
    same = ("scores", "hparams", "communication", "dataset", "device", "versions")
    assert {name: result.results[name] for name in same} == {name: told[name] for name in same}
    assert list(tmp_path.iterdir()) == []


def test_diverged_run_says_when_and_with_what_and_has_no_score(runs):
    run, out = runs["diverged"], runs["diverged"].folder / FOLDERS["diverged"]
    assert run.status == 1
    said = re.search(
        r"diverged in round (\d+) with client_lr=20; .* in runs/.*-2\n", run.stdout
    )
    results, rows = read(out), lines(out)
    assert (results["diverged"], results["scores"]) == (True, None)
    last = rows[-1]["round"]
    assert last == int(said[1]) - 1  # evaluated every round, and the last is the broken one
    state = ocp.load((out / "checkpoints" / f"{last:08d}").absolute())["state"]
    assert all(np.isfinite(leaf).all() for leaf in state.values())
    assert sorted(path.stem for path in out.glob("checkpoints/*.json"))[-1] == f"{last:08d}"


# ---------------------------------------------------------------------------------- bad input

# Imports once what takes seconds to import; then every case is a process of its own, forked
# before JAX starts, in a folder of its own, and runs the entry as `python -m` does.
FORKS = """
import gc, json, os, runpy, sys
import experiments.common.command_line, experiments.paper.published, graphfl_jax
gc.freeze()  # so that a child does not copy what it clears at its end
status = []
for i, words in enumerate(json.load(sys.stdin)):
    child = os.fork()
    if not child:
        os.chdir(str(i))
        for number, name in ((1, "../stdout"), (2, "../stderr")):
            os.dup2(os.open(f"{name}{i}", os.O_CREAT | os.O_WRONLY), number)
        sys.argv = ["experiments.run", *words]
        runpy.run_module("experiments.run", run_name="__main__", alter_sys=True)
    status.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
json.dump(status, sys.stdout)
"""


def npz(**changes):
    """A file of six clients with five examples each, as text; a change to None leaves out."""
    arrays = {"x": np.ones((30, 2)), "y": np.arange(30) % 2, "client": np.repeat(range(6), 5)}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue().decode("latin1")


# What each folder holds before.
FILES = {
    "own.npz": npz(),
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
}


def own(file, *settings):
    """Flags that read one of the files with the defaults but for some settings."""
    return [
        CUSTOM,
        f"--config.data.path={file}.npz",
        *(f"--config.{word}" for word in settings),
    ]


# Flags, and what the line must say: the field or file, its value, and often the remedy.
BAD = [
    ([FL60, "--config.round=5"], "'round'.*'rounds'"),
    ([FL60, "--config.data.nmae=fl60"], "'nmae'.*'name'"),
    ([FL60, "--config.rounds=abc"], "config.rounds=abc"),
    ([FL60, "--config.rounds=1.5"], "config.rounds=1.5"),
    ([FL60, "--config.hparams.client_lr=x"], "config.hparams.client_lr=x"),
    ([FL60, "--config.data.download=maybe"], "config.data.download=maybe"),
    ([FL60, "--config.model.hidden=()"], r"model.hidden=\(\).*16,16"),
    ([FL60, "--config.algorithm.name=fedsgd"], "algorithm.name='fedsgd'.*fedavg.*pfedhn"),
    ([f"{FL60}:fedsgd"], "'fedsgd' is no method of the configuration file"),
    ([FL60, "--config.data.name=mnist60"], "data.name='mnist60'.*fl60.*tpt48"),
    ([FL60, "--config.algorithm.layer=gat"], "algorithm.layer='gat'.*mean, sage, gcn"),
    ([FL60, "--config.client_optimizer=lion"], "client_optimizer='lion'.*sgd"),
    ([FL60, "--config.server_optimizer=lion"], "server_optimizer='lion'.*sgd"),
    ([FL60, "--config.model.name=cnn99"], "model.name='cnn99'.*mlp"),
    ([FL60, "--config.cohort_size=61"], "cohort_size=61 .*60 clients.*at most 60"),
    ([FL60, "--config.cohort_size=0"], "cohort_size=0 .*at least 1"),
    ([FL60, "--config.batch_size=0"], "batch_size=0 .*at least 1"),
    ([FL60, "--config.local_steps=0"], "local_steps=0 .*at least 1"),
    ([FL60, "--config.rounds=-5"], "rounds=-5 .*at least 1"),
    ([FL60, "--config.hparams.client_lr=-0.1"], "hparams.client_lr=-0.1 .*0 or more"),
    ([FL60, "--config.hparams.client_lr=nan"], "hparams.client_lr=nan .*finite"),
    ([FL60, "--config.data.val_fraction=0.9"], r"val_fraction=0.9 .*set it in \[0, 0.8\)"),
    ([FL60, "--config.seed=-1"], "seed=-1 "),
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
    (
        [FL60, "--config.new_clients.fraction=0.2", "--config.new_clients.graph=no"],
        "new_clients.graph='no'.*tive",
    ),
    (
        [FL60, "--config.hparams.embedding_dropout=1.5"],
        r"embedding_dropout=1.5 is a share; .*\[0, 1\]",
    ),
    (
        [FL60, "--config.new_clients.embedding=no"],
        "new_clients.embedding='no' is unknown.*neighbours",
    ),
    ([FL60, "--config.new_clients.rounds=-1"], "new_clients.rounds=-1 is negative"),
    ([FL60, "--config.tuning.part=tail"], "tuning.part='tail' is unknown.*whole, head, new"),
    ([FL60, "--config.tuning.epochs=-1"], "tuning.epochs=-1 is negative"),
    ([f"{FL60}:sfl", "--config.algorithm.sfl_rule=no"], "sfl_rule='no' is unknown.*as_rele"),
    ([FL60, "--config.attack.name=gas"], "attack.name='gas' is unknown.*label_flip.*min_max"),
    ([*FLIP, "--config.hparams.attack_ratio=1.5"], r"attack_ratio=1.5 is a share; .*\[0, 1\]"),
    ([*FLIP, "--config.hparams.attack_ratio=-0.1"], "attack_ratio=-0.1 must .*not negative"),
    ([*FLIP, "--config.attack.clients=60"], "attack.clients has 60, who.*0 to 59"),
    ([*FLIP, "--config.attack.clients=('Ann','Bo')"], "attack.clients has 'Ann', who.*fl60"),
    (
        [*FLIP, "--config.attack.clients=3", "--config.hparams.attack_ratio=0.1"],
        "attack.clients=3 and hparams.attack_ratio=0.1 both say",
    ),
    ([FL60, "--config.hparams.attack_ratio=0.1"], "attack_ratio=0.1 without an attack; .*flip"),
    ([FL60, "--config.attack.clients=3"], "attack.clients=3 without an attack"),
    ([FL60, "--config.attack.name=backdoor"], "backdoor' needs images .*not; take compcars"),
    ([TPT48, "--config.attack.name=label_flip_wrong"], "needs classes, .*label_flip"),
    (
        [*ROADS, "--config.attack.name=label_flip"],
        "label_flip' cannot change targets .*name=poisoning",
    ),
    ([*BACKDOOR, "--config.attack.trigger_size=9"], "trigger_size=9 .*8 x 8; .*in .0, 8"),
    ([*BACKDOOR, "--config.attack.target=4"], r"attack.target=4 is no label; .*\[0, 3\]"),
    ([FL60, "--config.defence.name=wall"], "defence.name='wall' is unknown; .*clip.*krum"),
    ([FL60, "--config.defence.name=median"], "'median' makes one model .*clip, krum"),
    ([f"{FL60}:local", "--config.defence.name=clip"], "'clip' means nothing"),
    ([FL60, "--config.defence.attackers=-1"], "defence.attackers=-1 is negative"),
    (
        [FL60, "--config.defence.name=krum", "--config.defence.attackers=2"],
        "defence.attackers=2 in a cohort of 5 .*krum can bear; .*cohort_size=7",
    ),
    ([FL60, "--config.data.source=real", "--data_root=none"], "none/dg60/toy_d60_spiral.pkl"),
    ([FL60, "--config.data.source=file", "--config.data.path=torn.pkl"], "torn.pkl .*whole"),
    ([FL60, "--config.data.source=file", "--config.data.path=text.pkl"], "text.pkl .*whole"),
    ([TPT48, "--config.data.path=nowhere.txt"], "data.path='nowhere.txt' is no file"),
    ([TPT48, "--config.data.path=torn.txt"], "torn.txt, line 1 is not"),
    ([TPT48, "--config.data.path=short.txt"], "short.txt lacks .* Alabama 1896.*cut short"),
    ([TPT48, "--config.data.path=text.pkl"], "text.pkl, line 1 is not"),
    ([PEMS, "--config.data.path=nowhere.h5"], "pems-bay: no file nowhere.h5.*DCRNN"),
    ([PEMS, "--config.data.path=text.pkl"], "text.pkl is not a frame of speeds.*fixed format"),
    ([PEMS, "--config.data.sensors=-1"], "data.sensors=-1"),
    ([*ROADS, "--config.data.steps=20"], "20 steps are too few: an example takes 24"),
    ([*ROADS, "--config.model.hidden=(3,3)"], r"model.hidden=\(3, 3\).*one width"),
    ([*ROADS, "--config.model.name=resnet18"], "takes images of shape"),
    ([*ROADS, "--config.algorithm.output=half"], "algorithm.output='half'.*lowrank"),
    ([FL60, "--config.model.name=gru"], "model.name=gru forecasts series"),
    ([FL60, "--config.clients_per_eval=-1"], "clients_per_eval=-1 is negative"),
    ([CARS, "--config.data.source=real", "--data_root=none"], "none/compcars/car-images.txt"),
    ([*DRAWN, "--config.model.weights=no.pth"], "model.weights='no.pth' is no file"),
    ([*DRAWN, "--config.model.weights=text.pkl"], "text.pkl' must end in .safetensors or"),
    ([*DRAWN, "--config.model.weights=no.safetensors"], "not a whole .safetensors file"),
    ([*DRAWN, "--config.model.lowering=fft"], "model.lowering='fft'.*patches, grouped"),
    ([*DRAWN, "--config.data.car_relations=all"], "car_relations='all'.*nearby, adjacent"),
    ([CUSTOM], "data.path is empty; set --config.data.path"),
    (own("nowhere"), "data.path='nowhere.npz' is no file"),
    ([CUSTOM, "--config.data.path=text.pkl"], "text.pkl is no whole npz file.*np.savez"),
    (own("torn"), "torn.npz is no whole npz file.*np.savez"),
    (own("objects"), "objects.npz: the array 'client' .*strings and not as objects"),
    (own("lacking"), "lacking.npz: there is no array 'client'; add it"),
    (own("typo"), "typo.npz: the array 'edge' is unknown; choose from x, .*edges"),
    (own("lengths"), r"lengths.npz: .*y has shape \(29,\) and x has \(30, 2\); give one"),
    (own("split"), "split.npz: .*split has 'tset' at example 29; use train, val, test"),
    (own("marked", "data.val_fraction=0.1"), "marked.npz: .*data.val_fraction=0.1 .*to 0"),
    (own("stranger"), r"stranger.npz: .*number 1, \(5, 6\), names 6, who has no examples"),
    (own("itself"), r"itself.npz: .*number 0, \('b', 'b'\), joins a client to itself"),
    (
        own("own"),
        "algorithm.name='panacea' needs .* custom has none; .*--config.data.graph=knn",
    ),
    (own("own", "data.graph=near"), "data.graph='near' is unknown; choose from own, knn"),
    (own("own", "data.graph=knn", "data.neighbours=0"), "data.neighbours=0 .*at least 1"),
    (own("own", "data.graph=knn", "data.neighbours=6"), "data.neighbours=6 .*clients, 6; set"),
    ([FL60, "--config.data.graph=knn", "--config.data.neighbours=60"], "neighbours=60 .*60"),
    ([FL60, "--config.data.neighbours=few"], "config.data.neighbours=few"),
    ([FL60, "--out=file"], "out=file cannot be written; choose another"),
    ([FL60, "--out=file/below"], "out=file/below cannot be written; choose another"),
    ([FL60, "--out=run"], "out=run already holds a run; add --resume"),
    ([FL60, "--out=run", "--resume"], "is None in the run of run; resume with that, or"),
    ([FL60, "--resume"], "--resume needs .*add --out"),
    ([FL60, "--resume", "--out="], "--resume needs .*add --out"),
    ([FL60, "stray"], "'stray' is no flag"),
    ([FL60, "--nosuchflag=1"], "nosuchflag"),
    ([FL60, "--out=a[1]"], r"out=a\[1\] has a bracket"),
    (["--config=nowhere.py", "--config.rounds=4"], "nowhere.py.*configs/tpt48.py"),
    (["--config=broken.py"], "broken.py"),
    ([], "no configuration; add --config"),
]
NAMES = [" ".join(flags).replace(f"{ROOT}/", "") or "no flags" for flags, _ in BAD]
DEBUG = [FL60, "--config.batch_size=0", "--debug"]


def contents(folder):
    return {
        str(path.relative_to(folder)): path.is_file() and path.read_text("latin1")
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """The outcomes of the cases of `BAD` and of `DEBUG`, and what each folder held before."""
    root = tmp_path_factory.mktemp("bad")
    for i in range(len(BAD) + 1):
        for name, text in FILES.items():
            path = root / str(i) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "latin1")
    before = contents(root / "0")
    told = subprocess.run(
        [sys.executable, "-c", FORKS],
        input=json.dumps([*(flags for flags, _ in BAD), DEBUG]),
        cwd=root,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    outcomes = [
        Outcome(
            status,
            (root / f"stdout{i}").read_text(),
            (root / f"stderr{i}").read_text(),
            root / str(i),
        )
        for i, status in enumerate(json.loads(told.stdout))
    ]
    return dict(zip([*NAMES, "debug"], outcomes, strict=True)), before


@pytest.mark.parametrize(
    "name, says", [(name, case[1]) for name, case in zip(NAMES, BAD, strict=True)]
)
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(refusals, name, says):
    outcomes, before = refusals
    refused = outcomes[name]
    assert refused.status == 2, refused.stderr
    assert refused.stdout == ""
    assert re.fullmatch(r"(warning: .*\n)?error: .*\n", refused.stderr)
    assert re.search(says, refused.stderr)
    assert contents(refused.folder) == before


def test_debug_shows_the_trace(refusals):
    ended = refusals[0]["debug"]
    assert ended.status not in (0, 2)
    assert "Traceback" in ended.stderr and "batch_size=0" in ended.stderr
