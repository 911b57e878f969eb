"""Sweeps: many runs as one program, kept as they end, here or on a cluster."""

import copy
import fcntl
import functools
import json
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import graphfl_jax
from experiments.common.statistics import diverged
from experiments.sweeping import ray_backend
from experiments.sweeping.grid import points_of, points_of_file, take_axes
from graphfl_jax.build import load_federation
from graphfl_jax.configs import base, fl60
from graphfl_jax.runs.batch import Trial, next_size, run_trials, with_seed
from tests.entries import ENVIRONMENT, command, entry, small_words
from tests.federations import SMALL


def tiny(rounds=3):
    config = fl60.get_config("panacea")
    config.update_from_flattened_dict(SMALL | {"rounds": rounds, "data.val_fraction": 0.1})
    return config


def outcomes(config, points, seeds, **options):
    """Outcomes of points x seeds, in the order of points, then seeds."""
    trials = [Trial(point, seed) for point in points for seed in seeds]
    federations = {seed: load_federation(with_seed(config, seed)) for seed in seeds}
    told = dict(run_trials(config, federations, trials, **options))
    assert sorted(told) == list(range(len(trials)))
    return [told[place] for place in range(len(trials))]


def without_times(results):
    return {
        k: v
        for k, v in results.items()
        if k not in ("timing", "scores", "new_clients", "errors")
    }


def test_a_trial_is_the_run_of_the_same_settings():
    """Two seeds and two rates in one program, each against the single run, all that it tells.

    With new clients, whose relations number more or fewer by the seed, and on four of the
    simulated devices.
    """
    points = [{"client_lr": 0.1}, {"client_lr": 0.02}]
    settings = tiny()
    settings.eval_every = 2
    settings.new_clients.fraction, settings.new_clients.rounds = 0.2, 2
    told = outcomes(settings, points, [0, 4], at_once=4)
    assert [outcome.results["seed"] for outcome in told] == [0, 4, 0, 4]
    for results, rows, _ in (told[1], told[2]):
        config = copy.deepcopy(settings)
        config.seed = results["seed"]
        config.hparams.client_lr = results["hparams"]["client_lr"]
        alone = graphfl_jax.run(config)
        assert without_times(results) == without_times(alone.results)
        assert [int(row["round"]) for row in rows] == [2, 3]
        for row, expected in zip(rows, alone.rows, strict=True):
            close = functools.partial(np.testing.assert_allclose, atol=1e-5)
            jax.tree.map(close, row, expected)
        for name in ("scores", "new_clients"):
            jax.tree.map(
                lambda a, b: (
                    np.testing.assert_allclose(a, b, atol=1e-5)
                    if isinstance(a, float)
                    else None
                ),
                results[name],
                alone.results[name],
            )
        assert [row["rounds"] for row in results["new_clients"]["curve"]] == [0, 1, 2]
        assert len(results["new_clients"]["clients"]) == 12  # a fifth of sixty


def test_a_trial_that_diverges_tells_the_same_as_alone():
    config = tiny()
    config.eval_every = 1
    config.client_optimizer, config.server_optimizer = "sgd", "sgd"
    config.hparams.client_lr = 1e30
    (results, rows, _), (alive, *_) = outcomes(config, [{}, {"client_lr": 0.1}], [0])
    alone = graphfl_jax.run(config)
    assert without_times(results) == without_times(alone.results)
    assert (results["diverged"], results["scores"]) == (True, None)
    assert len(rows) == len(alone.rows) < 3
    assert not alive["diverged"] and alive["scores"]["final"]["P"]["mean"] > 0


def test_newcomers_who_diverge_are_told_and_have_no_score():
    config = tiny()
    config.new_clients.fraction, config.new_clients.rounds = 0.2, 3
    config.server_optimizer, config.hparams.new_client_lr = "sgd", 1e30
    alone = graphfl_jax.run(config).results
    assert alone["new_clients"]["diverged_at"] in (1, 2)
    assert len(alone["new_clients"]["curve"]) == alone["new_clients"]["diverged_at"]
    results = outcomes(config, [{}], [0])[0].results
    assert results["new_clients"]["diverged_at"] == alone["new_clients"]["diverged_at"]
    assert diverged(results) and diverged(alone) and not results["diverged"]


def test_trials_do_not_depend_on_how_many_run_at_once():
    points = [{"client_lr": rate} for rate in np.linspace(0.02, 0.1, 17)]
    run_synchronized = outcomes(tiny(), points, [0], at_once=17)
    chosen = outcomes(tiny(), points, [0])
    for a, b in zip(run_synchronized, chosen, strict=True):
        assert a.results["hparams"] == b.results["hparams"]
        np.testing.assert_allclose(
            a.rows[-1]["scores"]["test"]["L"], b.rows[-1]["scores"]["test"]["L"], atol=1e-5
        )


def test_seeds_may_differ_in_the_number_of_their_relations():
    config, edges = tiny(rounds=1), set()
    config.update_from_flattened_dict({"algorithm.name": "fedavg", "data.graph": "knn"})
    for config.seed in (0, 4):
        edges.add(len(load_federation(config).data.graph.senders))
    assert len(edges) == 2
    told = outcomes(config, [{"client_lr": 0.1}, {"client_lr": 0.02}], [0, 4])
    told = [(one.results["hparams"]["client_lr"], one.results["seed"]) for one in told]
    assert told == [(0.1, 0), (0.1, 4), (0.02, 0), (0.02, 4)]


def test_a_rate_that_the_method_does_not_read_is_no_axis_of_a_grid():
    config = tiny()
    config.algorithm.name = "fedavg"
    with pytest.raises(ValueError, match="hparams.server_lr is not read by fedavg"):
        run_trials(config, {0: load_federation(config)}, [Trial({"server_lr": 0.1}, 0)])


@pytest.mark.parametrize(
    "tried, left, limit, size",
    [
        ([(1, 5.0, 4.0)], 90, 999, 8),  # 90 x 5 / 2 s to save, 4 to compile
        ([(1, 5.0, 4.0)], 12, 999, 6),  # two equal batches
        ([(1, 5.0, 4.0)], 0, 999, 1),
        ([(1, 0.1, 4.0)], 70, 999, 1),  # 3.5 s at best to save, 4 to compile
        ([(1, 5.0, 4.0)], 90, 5, 5),
        ([(1, 5.0, 4.0), (8, 4.0, 4.0)], 80, 999, 40),
        ([(1, 5.0, 4.0), (8, 4.9, 4.0)], 80, 999, 1),  # eight at once gain nothing
        ([(1, 5.0, 4.0), (8, 4.0, 4.0), (40, 3.9, 4.0)], 40, 999, 8),
        ([(1, 5.0, 4.0), (8, 4.0, 4.0)], 80, 3, 3),  # memory that others took meanwhile
    ],
)
def test_batches_grow_while_that_pays(tried, left, limit, size):
    assert next_size(tried, left, limit) == size


def test_a_grid_is_crossed_and_its_values_are_of_their_fields_kinds():
    words = ["--x=1", "--grid.hparams.client_lr=0.1,1e-3", "--grid.rounds=5"]
    rest, axes = take_axes([*words, "--grid.algorithm=panacea,ditto"])
    assert rest == ["--x=1"]
    assert points_of(base.get_config(), axes, 0) == [
        {"hparams.client_lr": rate, "rounds": 5, "algorithm": method}
        for rate in (0.1, 1e-3)
        for method in ("panacea", "ditto")
    ]


def test_random_points_lie_in_their_ranges_and_more_of_them_begin_with_the_same():
    """Half of a loguniform law on [0.001, 0.1] lies below 0.01: four errors of 400 draws."""
    words = ["--loguniform.hparams.client_lr=0.001,0.1", "--uniform.hparams.mu=-1,3"]
    _, axes = take_axes([*words, "--grid.algorithm=fedavg,fedprox"])
    points = points_of(base.get_config(), axes, 400)
    assert points_of(base.get_config(), axes, 7) == points[:7]
    rates = np.array([point["hparams.client_lr"] for point in points])
    mus = np.array([point["hparams.mu"] for point in points])
    assert (
        rates.min() >= 0.001 and rates.max() <= 0.1 and abs((rates < 0.01).mean() - 0.5) < 0.1
    )
    assert mus.min() >= -1 and mus.max() <= 3 and abs((mus < 1).mean() - 0.5) < 0.1
    assert abs(np.mean([point["algorithm"] == "fedavg" for point in points]) - 0.5) < 0.1
    assert abs(np.corrcoef(rates, mus)[0, 1]) < 0.2  # axes are drawn apart


@pytest.mark.parametrize(
    "words, samples, says",
    [
        (["--grid.hparams.client_lr="], 0, "has no values"),
        (["--grid.rounds=1,,2"], 0, "has no values"),
        (["--grid.rounds=1", "--grid.rounds=2"], 0, "given twice"),
        (["--grid.hparams.rate=1"], 0, "no field 'hparams.rate'"),
        (["--grid.rounds.x=1"], 0, "no field 'rounds.x'"),
        (["--grid.rounds=1.5"], 0, "rounds=1.5 is not of its kind, int"),
        (["--grid.data.download=maybe"], 0, "data.download=maybe is not of its kind, bool"),
        (["--grid.model.hidden=5"], 0, "model.hidden=5 is not of its kind, tuple"),
        (["--grid.seed=1,2"], 0, "set --seeds"),
        (["--uniform.hparams.mu=0,1"], 0, "--samples"),
        (["--uniform.hparams.mu=0,1,2"], 3, "no range of floats"),
        (["--uniform.hparams.mu=1,0"], 3, "no range of floats"),
        (["--uniform.rounds=1,10"], 3, "no range of floats"),
        (["--loguniform.hparams.mu=0,1"], 3, "must begin above 0"),
    ],
)
def test_what_is_no_axis_is_refused(words, samples, says):
    with pytest.raises(ValueError, match=says):
        points_of(base.get_config(), take_axes(words)[1], samples)


def test_points_come_from_a_file_of_python(tmp_path):
    path = tmp_path / "points.py"
    path.write_text("def get_points():\n    return [{'model.hidden': (4, 4)}, {'rounds': 2}]\n")
    assert points_of_file(str(path)) == [{"model.hidden": (4, 4)}, {"rounds": 2}]
    path.write_text("def get_points():\n    return {'rounds': 2}\n")
    with pytest.raises(ValueError, match="must return a list"):
        points_of_file(str(path))


VALIDATED = "--config.data.val_fraction=0.1"


def read(folder):
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def test_a_sweep_ranks_by_validation_and_counts_what_diverged(tmp_path):
    """Over methods, of which one does not read a float, so that it has fewer points."""
    words = [VALIDATED, "--grid.algorithm=panacea,fedavg", "--grid.hparams.lambda_d=0,0.1"]
    words += ["--grid.hparams.client_lr=0.1,1e30", "--seeds=2", "--out=here"]
    words += ["--config.new_clients.fraction=0.2", "--config.new_clients.rounds=1"]
    status, told, errors = entry("sweep", *words, cwd=tmp_path)
    assert status == 0, errors
    assert "3 of 6 points ranked, 2 seeds" in " ".join(told.split())
    assert "12 runs in" in told and "6 diverged" in told
    assert "new_clients" in told and "later" in told
    lines = read(tmp_path / "here")
    assert len({line["trial"] for line in lines}) == len(lines) == 12
    assert sorted(line["variant"] for line in lines) == (
        ["fedavg"] * 4 + ["panacea"] * 4 + ["panacea-gn"] * 4
    )
    for line in lines:
        assert line["diverged"] == (line["point"]["hparams.client_lr"] == 1e30)
        assert (line["scores"] is None) == (line["validation"] is None) == line["diverged"]
    (board,) = json.loads((tmp_path / "here/leaderboard.json").read_text())
    assert len(board["diverged"]) == 6
    for row in board["rows"]:
        runs = [line for line in lines if line["point"] == row["point"]]
        assert len(runs) == row["runs"] == 2
        val = [run["validation"]["final"]["P"]["mean"] for run in runs]
        test = [run["scores"]["final"]["P"]["mean"] for run in runs]
        np.testing.assert_allclose(row["validation"], np.mean(val))
        np.testing.assert_allclose(row["test"], np.mean(test))
    scores = [row["validation"] for row in board["rows"]]
    assert scores == sorted(scores, reverse=True)  # accuracy: higher is better
    assert "| panacea | 0 | 0.1 |" in (tmp_path / "here/leaderboard.md").read_text()
    assert (tmp_path / "here/scores-fl60.png").read_bytes()[:4] == b"\x89PNG"


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path):
    """No run is lost, made again or written twice; a torn line counts for nothing."""
    words = [*small_words(rounds=60), VALIDATED, "--at_once=8", "--seeds=3", "--out=here"]
    words += [
        "--config.eval_every=60",
        "--grid.hparams.client_lr=0.1,0.05,0.03,0.02,0.01,0.005",
    ]
    path = tmp_path / "here/trials.jsonl"
    first = subprocess.Popen(
        command("sweep", *words), env=ENVIRONMENT, cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    while first.poll() is None and not (path.exists() and path.read_text().count("\n")):
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = path.read_text()
    whole = before[: before.rfind("\n") + 1]
    kept = whole.splitlines()
    assert 0 < len(kept) <= 18
    path.write_text(whole + kept[0][:100])

    status, _, errors = entry("sweep", *words[len(small_words()) :], cwd=tmp_path)
    assert status == 2 and "already holds a sweep; add --resume" in errors
    done = subprocess.run(
        command("sweep", *words, "--resume"),
        env=ENVIRONMENT,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"line {len(kept) + 1} is damaged" in done.stderr
    assert f"{18 - len(kept)} runs in" in done.stdout and f"{len(kept)} found" in done.stdout
    after = path.read_text()
    assert after.startswith(whole)
    marks = [line["trial"] for line in read(tmp_path / "here")]
    assert len(marks) == len(set(marks)) == 18


def test_a_folder_takes_one_sweep_at_a_time_and_only_its_own(tmp_path):
    words = [VALIDATED, "--grid.hparams.client_lr=0.1", "--out=here", "--resume"]
    (tmp_path / "here").mkdir()
    with open(tmp_path / "here/trials.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, _, errors = entry("sweep", *words, cwd=tmp_path)
    assert status == 2 and "another process writes here/trials.jsonl" in errors
    status, _, errors = entry("sweep", *words, cwd=tmp_path)
    assert status == 0, errors
    before = (tmp_path / "here/trials.jsonl").read_bytes()
    words[1] = "--grid.hparams.client_lr=0.2"
    status, _, errors = entry("sweep", *words, cwd=tmp_path)
    assert status == 2 and "has a run that this sweep has not" in errors
    assert (tmp_path / "here/trials.jsonl").read_bytes() == before
    words[1] = "--grid.hparams.client_lr=0.2,0.1"
    status, told, errors = entry("sweep", *words, cwd=tmp_path)
    assert status == 0 and "1 runs in" in told and "1 found" in told, errors


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A user's file, whose clients have validation examples."""
    path = tmp_path_factory.mktemp("own") / "federation.npz"
    x, client = np.random.default_rng(0).normal(size=(60, 2)), np.repeat(range(6), 10)
    split = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    np.savez(path, x=x, y=x[:, 0] > 0, client=client, split=split * 6)
    return path


def test_a_sweep_takes_the_validation_examples_of_a_users_file(tmp_path, own):
    """And splits runs over the cores that it is given."""
    words = [f"--config.data.path={own}", "--grid.hparams.client_lr=0.1,0.2,0.3", "--cores=3"]
    quick = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
    status, told, errors = entry(
        "sweep", *words, cwd=tmp_path, file="custom.py:fedavg", **quick
    )
    assert status == 0, errors
    assert "3 of 3 points ranked" in " ".join(told.split())
    lines = read(tmp_path / "runs/sweep-custom")
    assert [line["device"] for line in lines] == ["3 x cpu: cpu"] * 3


@pytest.mark.parametrize(
    "words, named",
    [
        (["--grid.hparams.client_lr=0.1"], "data.val_fraction=0"),
        ([VALIDATED], "nothing to search"),
        ([VALIDATED, "--grid.hparams.client_lr=a,b"], "client_lr=a is not of its kind"),
        ([VALIDATED, "--grid.hparams.client_lr=-1"], "hparams.client_lr=-1.0 must be finite"),
        ([VALIDATED, "--grid.hparams.mu=0.1"], "hparams.mu is not read by panacea"),
        ([VALIDATED, "--grid.algorithm=fedsgd"], "grid.algorithm='fedsgd' is unknown"),
        ([VALIDATED, "--grid.local_steps=" + ",".join(map(str, range(1, 22)))], "add --yes"),
        ([VALIDATED, "--points=nowhere.py"], "no file nowhere.py"),
        ([VALIDATED, "--grid.rounds=1", "--resume"], "add --out=DIR"),
    ],
)
def test_a_sweep_refuses_what_it_cannot_search(tmp_path, words, named):
    status, _, errors = entry("sweep", *words, cwd=tmp_path)
    assert status == 2 and named in errors and errors.count("\n") == 1, errors
    assert not list(tmp_path.iterdir())


def test_without_ray_the_remedy_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install -e '.\[ray\]'"):
        ray_backend.connect("auto")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:99999"])
def test_an_address_that_does_not_answer_is_named(address):
    pytest.importorskip("ray", reason="Ray, an extra, is not installed")
    with pytest.raises(ValueError, match=f"ray_address={address} does not answer"):
        ray_backend.connect(address)


def test_a_cluster_loses_a_node_and_no_run(tmp_path, monkeypatch):
    """Two nodes of one core each; one is killed when the first run has ended."""
    pytest.importorskip("ray", reason="Ray, an extra, is not installed")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # beside busy tests its 15 would starve them
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        doomed = nodes.add_node(num_cpus=1)
        nodes.add_node(num_cpus=1)
        words = [*small_words(), VALIDATED, "--grid.hparams.client_lr=0.1,0.05,0.02,0.01"]
        words += ["--seeds=2", "--at_once=2", "--out=here"]
        words += ["--launcher=ray", f"--ray_address={nodes.address}"]
        path = tmp_path / "here/trials.jsonl"
        sweep = subprocess.Popen(
            command("sweep", *words),
            env=ENVIRONMENT,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while sweep.poll() is None and not (path.exists() and path.read_text()):
            time.sleep(0.05)
        nodes.remove_node(doomed, allow_graceful=False)
        told, _ = sweep.communicate(timeout=300)
        assert sweep.returncode == 0, told
    finally:
        nodes.shutdown()
    lines = read(tmp_path / "here")
    assert len({line["trial"] for line in lines}) == len(lines) == 8
    config = tiny()
    config.data.val_fraction, config.hparams.client_lr = 0.1, 0.05
    alone = graphfl_jax.run(config).results
    (same,) = (x for x in lines if x["point"] == {"hparams.client_lr": 0.05} and x["seed"] == 0)
    np.testing.assert_allclose(
        same["scores"]["final"]["L"]["per_client"],
        alone["scores"]["final"]["L"]["per_client"],
        atol=1e-5,
    )
