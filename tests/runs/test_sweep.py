"""Sweeps: many runs as one program, written as they end, on this host or on a cluster."""

import copy
import dataclasses
import fcntl
import functools
import json
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.commands.common.statistics import diverged
from graphfl_jax.commands.sweeping import ray_backend
from graphfl_jax.commands.sweeping.grid import (
    extended,
    extreme_points,
    points_of,
    points_of_file,
    take_axes,
)
from graphfl_jax.commands.sweeping.leaderboard import leaderboards, ranked_rows
from graphfl_jax.commands.sweeping.trial_log import TrialLog, merged_logs, read_log
from graphfl_jax.configs import change, fl60
from graphfl_jax.configs.values import adjust
from graphfl_jax.data.new_clients import hold_out
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.runs import batch, executables
from graphfl_jax.runs.batch import Trial, next_size, run_trials, with_seed
from graphfl_jax.runs.environment import processor
from graphfl_jax.runs.identity import digest_of_json
from graphfl_jax.runs.results import as_json, new_client_scores
from graphfl_jax.runs.store import LineStore
from graphfl_jax.runs.sweep import groups_of
from graphfl_jax.runs.views import PLOT, TABLE
from tests.commands import ENVIRONMENT, command, launched, launched_small, small_words, tiny
from tests.federations import small_config, two_clusters


@pytest.mark.release
def test_the_memory_of_a_batch_is_that_of_a_run_and_has_that_of_the_last_evaluation(
    monkeypatch,
):
    """It has all points and splits, and so may need more than those before it.

    Each of two devices has two of four runs.
    """
    seen = []
    bytes_held = batch.bytes_held

    def see(program):
        seen.append(bytes_held(program))
        return seen[-1]

    monkeypatch.setattr(batch, "bytes_held", see)
    config = tiny_config("local", **{"eval__points": ("P",), "eval__splits": ("val",)})
    experiment = build_experiment(config, two_clusters())
    player = batch._Player(
        *(config, experiment, {0: two_clusters()}),
        devices=jax.local_devices()[:2],
        alone=False,
        executables=None,
    )
    trials = [Trial({}, 0)] * 3
    before = player.time(trials, 4, evaluated=False)
    assert len(seen) == 3 and before.bytes == max(seen) // 2
    cost = player.time(trials, 4, evaluated=True)
    assert len(seen) == 7 and cost.bytes == max(seen[3:]) // 2 > before.bytes
    outcomes = player.play(trials, 4, lambda runs: None)
    assert len(outcomes) == 3


class Timed:
    """Plays no runs. Of two devices, a run takes the seconds of its batch's size."""

    devices = 2

    def __init__(self, seconds):
        self.seconds, self.timed, self.played = seconds, [], []

    def whole(self, size):
        return max(size, 2)

    def time(self, trials, size, *, evaluated):
        self.timed.append((size, len(trials), evaluated))
        return batch.Cost(self.seconds[size], compiling=1.0, bytes=40)

    def play(self, trials, size, report, hooks):
        self.played.append((size, len(trials)))
        return [None] * len(trials)


def test_a_batch_may_take_half_of_the_free_memory_of_all_devices(monkeypatch):
    """Of 400 bytes of each of two devices, for runs of 40 bytes: five runs on each device."""
    monkeypatch.setattr(batch, "free_memory", lambda: 400)
    player = Timed({2: 5.0, 8: 4.0, 10: 3.0})
    assert len(list(batch._batches(player, [Trial({}, 0)] * 50, 0, None, batch.NO_HOOKS))) == 50
    assert [size for size, *_ in player.timed] == [2, 8, 10]
    assert player.played == [(10, 10)] * 5


def test_batches_have_the_size_that_is_fastest_per_run(monkeypatch):
    """As measured: runs of eight take 0.6 of the time, and runs of 30 are slower again."""
    monkeypatch.setattr(batch, "free_memory", lambda: 10**9)
    player = Timed({2: 5.0, 8: 3.0, 30: 4.0})
    assert [
        i for i, _ in batch._batches(player, [Trial({}, 0)] * 90, 0, None, batch.NO_HOOKS)
    ] == [*range(90)]
    assert player.timed == [(2, 2, True), (8, 8, False), (30, 30, False)]
    assert player.played == [(8, 8)] * 11 + [(8, 2)]


def tiny_config(method="panacea", **changes):
    """FL-60 at tiny sizes with a validation split; `changes` with __ for the dots."""
    settings = {name.replace("__", "."): value for name, value in changes.items()}
    settings = {"rounds": 3, "data.val_fraction": 0.1} | settings
    return change(tiny(fl60.get_config(method)), settings)


def outcomes(config, points, seeds, **options):
    """Outcomes of points x seeds, in the order of points, then seeds."""
    trials = [Trial(point, seed) for point in points for seed in seeds]
    federations = {seed: load_federation(with_seed(config, seed)) for seed in seeds}
    by_trial = dict(run_trials(config, federations, trials, **options))
    assert sorted(by_trial) == list(range(len(trials)))
    return [by_trial[i] for i in range(len(trials))]


def without_times(results):
    left_out = ("timing", "scores", "new_clients", "errors")
    return {name: value for name, value in results.items() if name not in left_out}


def assert_close(ours, theirs):
    def close(a, b):
        if isinstance(a, float):
            np.testing.assert_allclose(a, b, atol=1e-5)

    jax.tree.map(close, ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [4, pytest.param(1, marks=pytest.mark.release)])
def test_a_run_of_a_sweep_is_the_single_run(at_once):
    """Two points with two seeds: in one program, or each on devices that share its clients.

    Four of the simulated devices take part. The method uses relations, and because of the new
    clients their number depends on the seed.
    The second of the four runs is compared with a single run.
    """
    points = [{"hparams.client_lr": 0.1}, {"hparams.client_lr": 0.02}]
    settings = {"eval_every": 2, "new_clients__fraction": 0.2, "new_clients__rounds": 2}
    config = tiny_config("sfl", **settings, algorithm__sfl_layers=1)
    runs = list(graphfl_jax.sweep(config, points, seeds=[0, 4], at_once=at_once))
    assert [(point, seed) for point, seed, _ in runs] == [
        (point, seed) for point in points for seed in (0, 4)
    ]
    for point, seed, outcome in runs:
        results = outcome.results
        assert (results["seed"], results["hparams"]["client_lr"]) == (seed, *point.values())
    point, seed, outcome = runs[1]
    results, rows = outcome.results, outcome.rows
    alone = graphfl_jax.run(change(with_seed(config, seed), point))
    assert without_times(results) == without_times(alone.results)
    assert [int(row["round"]) for row in rows] == [2, 3]
    for row, expected in zip(rows, alone.rows, strict=True):
        close = functools.partial(np.testing.assert_allclose, atol=1e-5)
        jax.tree.map(close, row, expected)
    for name in ("scores", "new_clients"):
        assert_close(results[name], alone.results[name])
    assert [row["rounds"] for row in results["new_clients"]["curve"]] == [0, 1, 2]
    assert len(results["new_clients"]["clients"]) == 12  # a fifth of sixty


@pytest.mark.release
def test_points_that_differ_in_structure_are_separate_programs():
    """Points that differ in a field that their method does not read count once."""
    points = [
        {"algorithm.name": "local", "hparams.mu": 0.2},
        {"algorithm.name": "local", "hparams.mu": 0.3},
        {"algorithm.name": "fedprox", "hparams.mu": 0.2},
    ]
    config = tiny_config("local", rounds=1)
    runs = list(graphfl_jax.sweep(config, points))
    assert [point for point, _, _ in runs] == [{"algorithm.name": "local"}, points[2]]
    alone = graphfl_jax.run(change(config, points[2]))
    assert_close(runs[1][2].results["scores"], alone.results["scores"])


def test_a_field_that_no_run_reads_is_refused():
    with pytest.raises(ValueError, match=r"^hparams\.mu=0.1 is not read by any run of this"):
        list(graphfl_jax.sweep(tiny_config("fedavg"), [{"hparams.mu": 0.1}]))


@pytest.mark.release
def test_a_sweep_without_seeds_has_that_of_its_configuration():
    config = tiny_config("local", rounds=1, seed=3)
    ((point, seed, outcome),) = graphfl_jax.sweep(config, [{}])
    assert (point, seed) == ({}, 3)
    assert outcome.results["seed"] == 3


@pytest.mark.release
def test_batches_of_one_size_share_all_programs(monkeypatch):
    """Also those after the last round: complete evaluations, and those of new clients."""
    compiled = []

    def compile_one(lowered):
        compiled.append(lowered.name)
        return compile_as_before(lowered)

    compile_as_before = executables._compiled
    monkeypatch.setattr(executables, "_compiled", compile_one)
    config = tiny_config("local", rounds=1, new_clients__fraction=0.3, eval__points=("P",))
    assert len(outcomes(config, [{}], range(2), at_once=1)) == 2
    assert len(compiled) == len(set(compiled)) > 5  # also the three that play rounds


def test_a_seed_in_a_point_is_refused():
    with pytest.raises(
        ValueError, match=r"^seed=1 cannot be a field of a candidate; .* by --seed"
    ):
        list(graphfl_jax.sweep(tiny_config("fedavg"), [{"seed": 1}, {"seed": 2}]))


@pytest.mark.release
def test_a_diverged_run_has_the_results_of_the_single_run():
    config = tiny_config("fedavg", eval_every=1, hparams__client_lr=1e30)
    broken, learned = outcomes(config, [{}, {"client_lr": 0.1}], [0])
    results, rows, alive = broken.results, broken.rows, learned.results
    alone = graphfl_jax.run(config)
    assert without_times(as_json(results)) == without_times(as_json(alone.results))
    assert results["diverged"] and np.isnan(results["scores"]["final"]["P"]["mean"])
    assert as_json(results)["scores"] is None
    assert len(rows) == len(alone.rows) < 3
    assert not alive["diverged"] and alive["scores"]["final"]["P"]["mean"] > 0


def test_scores_of_new_clients_end_where_one_is_not_finite():
    federation = load_federation(tiny_config("local", new_clients__fraction=0.2))
    finite, broken = np.ones(12), np.r_[np.ones(11), np.nan]
    after = [{"test": dict.fromkeys("GLP", scores)} for scores in (finite, finite, broken)]
    result = new_client_scores(federation, after, CLASSIFICATION)
    assert result["diverged_at"] == 2 and len(result["curve"]) == 2
    assert diverged({"diverged": False, "new_clients": result})


@pytest.mark.release
def test_new_clients_that_diverge_are_reported_and_have_neither_score_nor_model(tmp_path):
    """Examples of the new clients are so large that their training overflows."""
    settings = {"new_clients__fraction": 0.3, "new_clients__rounds": 2, "rounds": 1}
    config, whole = small_config("fedavg", **settings), two_clusters()
    new = hold_out(whole, fraction=0.3, seed=0).clients[5:]
    large = np.where(np.isin(whole.clients, new), np.float32(1e30), np.float32(1.0))
    train = whole.data.train._replace(x=whole.data.train.x * large[:, None, None])
    whole = whole._replace(data=whole.data._replace(train=train))
    alone = graphfl_jax.run(config, whole, out=tmp_path / "run").results
    assert alone["new_clients"]["diverged_at"] == 0  # L is scored when they join
    assert not set(new) & set(graphfl_jax.load(tmp_path / "run").clients)
    assert not alone["new_clients"]["curve"]
    ((_, outcome),) = run_trials(
        config, {0: hold_out(whole, fraction=0.3, seed=0)}, [Trial({}, 0)]
    )
    results = outcome.results
    assert results["new_clients"]["diverged_at"] == 0
    assert diverged(results) and diverged(alone) and not results["diverged"]


@pytest.mark.release
def test_runs_do_not_depend_on_how_many_are_in_a_program():
    points = [{"client_lr": rate} for rate in np.linspace(0.02, 0.1, 17)]
    config = tiny_config("local", rounds=1)
    together = outcomes(config, points, [0], at_once=17)
    chosen = outcomes(config, points, [0])
    for a, b in zip(together, chosen, strict=True):
        assert a.results["hparams"] == b.results["hparams"]
        np.testing.assert_allclose(
            a.rows[-1]["scores"]["test"]["L"], b.rows[-1]["scores"]["test"]["L"], atol=1e-5
        )


@pytest.mark.release
def test_seeds_may_differ_in_the_number_of_their_relations():
    config = tiny_config("sfl", rounds=1, data__graph="knn", algorithm__sfl_layers=1)
    edges = [len(load_federation(with_seed(config, s)).data.graph.senders) for s in (0, 4)]
    assert edges[0] != edges[1]
    runs = outcomes(config, [{"client_lr": 0.1}, {"client_lr": 0.02}], [0, 4])
    order = [(run.results["hparams"]["client_lr"], run.results["seed"]) for run in runs]
    assert order == [(0.1, 0), (0.1, 4), (0.02, 0), (0.02, 4)]


def test_a_trial_with_a_float_that_the_method_does_not_read_is_refused():
    config = tiny_config("fedavg")
    with pytest.raises(ValueError, match="hparams.server_lr is not read by fedavg"):
        run_trials(config, {0: load_federation(config)}, [Trial({"server_lr": 0.1}, 0)])


@pytest.mark.parametrize(
    "tried, left, limit, size",
    [
        ([(1, 5.0, 4.0)], 90, 999, 4),  # 90 x 5 / 2 s to save, 4 to compile
        ([(1, 5.0, 4.0)], 6, 999, 3),  # two equal batches
        ([(1, 5.0, 4.0)], 1, 999, 1),
        ([(1, 0.1, 4.0)], 70, 999, 1),  # at most 3.5 s to save, 4 to compile
        ([(1, 5.0, 4.0)], 90, 3, 3),
        ([(1, 5.0, 4.0), (8, 4.0, 4.0)], 80, 999, 27),
        ([(1, 5.0, 4.0), (8, 4.9, 4.0)], 80, 999, 1),  # eight in a program gain nothing
        ([(1, 5.0, 4.0), (8, 4.0, 4.0), (40, 3.9, 4.0)], 40, 999, 8),
        ([(1, 5.0, 4.0), (8, 4.0, 4.0)], 80, 3, 3),  # less memory is free than before
    ],
)
def test_batches_grow_while_that_saves_time(tried, left, limit, size):
    assert next_size(tried, left, limit) == size


# -------------------------------------------------------------------------------------- points


def test_a_grid_is_the_product_of_its_axes_with_values_of_the_fields_types():
    words = ["--x=1", "--grid.hparams.client_lr=0.1,1e-3", "--grid.rounds=5"]
    rest, axes = take_axes([*words, "--grid.algorithm=panacea,ditto"])
    assert rest == ["--x=1"]
    assert points_of(axes, 0) == [
        {"hparams.client_lr": rate, "rounds": 5, "algorithm": method}
        for rate in (0.1, 1e-3)
        for method in ("panacea", "ditto")
    ]


def test_random_points_are_in_their_ranges_and_the_first_are_the_same_for_more_samples():
    """Half of a loguniform law on [0.001, 0.1] is below 0.01; 0.1 is four standard errors."""
    words = ["--loguniform.hparams.client_lr=0.001,0.1", "--uniform.hparams.mu=-1,3"]
    _, axes = take_axes([*words, "--grid.algorithm=fedavg,fedprox"])
    points = points_of(axes, 400)
    assert points_of(axes, 7) == points[:7]
    rates = np.array([point["hparams.client_lr"] for point in points])
    mus = np.array([point["hparams.mu"] for point in points])
    assert rates.min() >= 0.001 and rates.max() <= 0.1
    assert abs((rates < 0.01).mean() - 0.5) < 0.1
    assert mus.min() >= -1 and mus.max() <= 3 and abs((mus < 1).mean() - 0.5) < 0.1
    assert abs(np.mean([point["algorithm"] == "fedavg" for point in points]) - 0.5) < 0.1
    assert abs(np.corrcoef(rates, mus)[0, 1]) < 0.2  # axes are drawn independently


@pytest.mark.parametrize(
    "words, samples, message",
    [
        (["--grid.hparams.client_lr="], 0, "^--grid.hparams.client_lr= lacks a value; write"),
        (["--grid.rounds=1,,2"], 0, "lacks a value"),
        (["--grid.rounds=1", "--grid.rounds=2"], 0, "repeats an axis; give all its values"),
        (["--grid.hparams.rate=1"], 0, "^hparams.rate is not a field"),
        (["--grid.rounds.x=1"], 0, "^rounds.x is not a field"),
        (["--grid.rounds=1.5"], 0, "^rounds=1.5 is not of type int"),
        (["--grid.data.download=maybe"], 0, "^data.download=maybe is not of type bool"),
        (["--grid.seed=1,2"], 0, "^--grid.seed=1,2 is not an axis; set --seeds"),
        (["--uniform.hparams.mu=0,1"], 0, "^samples=0 .*range of hparams.mu; set --samples"),
        (["--uniform.hparams.mu=0,1,2"], 3, "is not a range of a float"),
        (["--uniform.hparams.mu=1,0"], 3, "is not a range of a float"),
        (["--uniform.rounds=1,10"], 3, "is not a range of a float"),
        (["--loguniform.hparams.mu=0,1"], 3, "must begin above 0"),
    ],
)
def test_an_invalid_axis_is_refused(words, samples, message):
    with pytest.raises(ValueError, match=message):
        points_of(take_axes(words)[1], samples)


def test_extreme_points_have_all_names_and_the_largest_numbers():
    """So a field that only one of the defences reads is read in one of them."""
    words = ["--grid.defence.name=clip,krum", "--grid.defence.attackers=3,10,2"]
    _, axes = take_axes([*words, "--grid.attack.clients=4,Ann", "--uniform.hparams.mu=-1,3"])
    assert extreme_points(axes) == [
        {
            **{"defence.name": name, "defence.attackers": 10},
            **{"attack.clients": clients, "hparams.mu": 3.0},
        }
        for name in ("clip", "krum")
        for clients in ((4,), ("Ann",))
    ]


def test_points_come_from_a_python_file(tmp_path):
    path = tmp_path / "points.py"
    path.write_text("def get_points():\n    return [{'model.hidden': (4, 4)}, {'rounds': 2}]\n")
    assert points_of_file(str(path)) == [{"model.hidden": (4, 4)}, {"rounds": 2}]
    other = tmp_path / "other.py"
    other.write_text("def get_points():\n    return {'rounds': 2}\n")
    with pytest.raises(ValueError, match="other.py: get_points.. returns no dictionaries"):
        points_of_file(str(other))


# ----------------------------------------------------------------------------------- trial log


def planned(*points, config=None):
    """The groups of a sweep with one seed."""
    config = config or tiny_config("local", rounds=1)
    return groups_of(list(points), [0], lambda point: adjust(config, {}, point))


def play(out, groups):
    """Makes the runs of a sweep that its log does not have; the log's lines."""
    with TrialLog(out, groups, resume=(out / "trials.jsonl").exists()) as log:
        for group in log.unfinished():
            trials = [run.trial for run in group.planned]
            for i, outcome in run_trials(group.config, group.federations, trials, at_once=4):
                log.write(group, group.planned[i], outcome)
    return log.lines()


def read(folder):
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_folder_takes_one_sweep_at_a_time_and_only_its_own(tmp_path):
    first, second = {"hparams.client_lr": 0.1}, {"hparams.client_lr": 0.2}
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match=f"^out={tmp_path}: another process writes into"):
            play(tmp_path, planned(first))
    assert [line["point"] for line in play(tmp_path, planned(first))] == [first]
    before = (tmp_path / "trials.jsonl").read_bytes()
    with pytest.raises(ValueError, match="already holds a sweep; add --resume"):
        TrialLog(tmp_path, planned(first), resume=False)
    with pytest.raises(
        ValueError, match="has a run that is not in this sweep, .*0.1.* seed 0;"
    ):
        play(tmp_path, planned(second))
    assert (tmp_path / "trials.jsonl").read_bytes() == before
    assert [line["point"] for line in play(tmp_path, planned(second, first))] == [second, first]
    assert (tmp_path / "trials.jsonl").read_bytes().startswith(before)


@pytest.mark.slow
def test_an_incomplete_line_is_dropped_and_its_run_repeated(tmp_path):
    groups = planned({"hparams.client_lr": 0.1}, {"hparams.client_lr": 0.2})
    lines = play(tmp_path, groups)
    path = tmp_path / "trials.jsonl"
    path.write_text(path.read_text()[:-100])
    with pytest.warns(RuntimeWarning, match="trials.jsonl: line 2 is damaged; its run is rep"):
        again = play(tmp_path, groups)
    assert [line["scores"] for line in again] == [line["scores"] for line in lines]
    assert len(read(tmp_path)) == 2


@pytest.mark.slow
def test_a_run_with_a_score_before_p_that_is_not_finite_is_kept(tmp_path):
    """It has not diverged, since its scores at P are finite."""
    (group,) = planned({"hparams.client_lr": 0.1}, config=tiny_config("local", rounds=1))
    ((_, outcome),) = run_trials(group.config, group.federations, [group.planned[0].trial])
    scores = copy.deepcopy(outcome.results["scores"])
    for part in ("final", "validation"):
        scores[part]["L"]["mean"] = np.nan
    outcome = dataclasses.replace(outcome, results=outcome.results | {"scores": scores})
    with TrialLog(tmp_path, [group], resume=False) as log:
        log.write(group, group.planned[0], outcome)
    ((line,), damaged) = read_log(tmp_path / "trials.jsonl")
    assert damaged == [] and line["validation"]["final"]["L"]["mean"] is None
    assert [row["runs"] for row in leaderboards([line])[0]["rows"]] == [1]


def test_a_store_of_lines_refuses_numbers_that_json_has_not(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        LineStore(tmp_path / "lines").add({"score": np.nan})


@pytest.mark.release
def test_scores_of_new_clients_that_diverge_are_not_written(tmp_path):
    """They are not finite, and JSON has no such numbers."""
    config = tiny_config("local", rounds=1, new_clients__fraction=0.2, new_clients__rounds=2)
    (group,) = planned({"hparams.client_lr": 0.1}, config=config)
    ((_, outcome),) = run_trials(config, group.federations, [group.planned[0].trial])
    after = [*outcome.new_clients]
    after[1] = jax.tree.map(lambda scores: scores + np.nan, after[1])
    (federation,) = group.federations.values()
    broken = new_client_scores(federation, after, CLASSIFICATION)
    assert broken["diverged_at"] == 1
    outcome = dataclasses.replace(
        outcome, results=outcome.results | {"new_clients": broken}, new_clients=after
    )
    with TrialLog(tmp_path, [group], resume=False) as log:
        log.write(group, group.planned[0], outcome)
    assert "NaN" not in (tmp_path / "trials.jsonl").read_text()
    assert len(read(tmp_path)[0]["validation"]["new_clients"]) == 1


@pytest.mark.slow
def test_logs_of_different_data_of_one_name_are_not_ranked_together(tmp_path):
    """As those of two files of a user. The logs have no run in common."""
    play(tmp_path / "a", planned({"hparams.client_lr": 0.1}))
    (line,) = read(tmp_path / "a")
    del line["sha256"]
    line["trial"] = line["trial"].replace(
        '"hparams.client_lr": 0.1', '"hparams.client_lr": 0.2'
    )
    line["identity"]["data"] = "0" * 64

    def write(name, line):
        (tmp_path / name).mkdir(exist_ok=True)
        text = json.dumps(line | {"sha256": digest_of_json(line)})
        (tmp_path / name / "trials.jsonl").write_text(text + "\n")

    write("b", line)
    with pytest.raises(
        ValueError,
        match=r"a/trials.jsonl and .*b/trials.jsonl have different data of the name fl60 "
        r"\(sha256 \w{12} and 000000000000 with seed 0\); leave one of them out$",
    ):
        merged_logs([tmp_path / "a", tmp_path / "b"])
    write(
        "b", line | {"trial": line["trial"].replace('val_fraction": 0.1', 'val_fraction": 0.2')}
    )
    assert len(merged_logs([tmp_path / "a", tmp_path / "b"])[0]) == 2  # by a field


def test_metrics_that_some_points_do_not_have_are_none_in_a_leaderboard():
    rows = [{"point": {"a": k}, "runs": 1, "test": 0.5} for k in (1, 2)]
    rows[1]["test_macro_f1"] = 0.25
    assert ranked_rows({"fields": ["a"], "rows": rows}, 10) == [
        ["a", "test", "test macro f1"],
        ["1", "0.5", "none"],
        ["2", "0.5", "0.25"],
    ]


def line_of(rate, mean, loss, *, data="fl60", metric="accuracy", better=True):
    """What a leaderboard reads of a run with a rate, in the log of a sweep."""
    at_end = {"final": {"P": {"mean": mean} | ({} if loss is None else {"loss": loss})}}
    point = {"hparams.client_lr": rate}
    return {
        "trial": json.dumps(point | {"data.name": data, "seed": 0}),
        "point": point,
        "seed": 0,
        "dataset": {"name": data, "source": "real"},
        "accepted_changes": [],
        "metric": metric,
        "higher_is_better": better,
        "diverged": False,
        "validation": at_end,
        "scores": {"final": {"P": {"mean": 0.5}}},
        "new_clients": None,
    }


def test_candidates_with_equal_scores_are_ranked_by_their_loss():
    """A candidate without a loss, of an older release, is the last of equal ones."""
    sums = (0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1)  # they differ in the last bit
    assert sums[0] != sums[1]
    lines = [
        line_of(0.001, sums[0], None),
        line_of(0.01, sums[0], 0.3),
        line_of(0.1, sums[1], 0.2),
        line_of(1.0, 0.7, 0.9),
    ]
    (board,) = leaderboards(lines)
    assert [row["point"]["hparams.client_lr"] for row in board["rows"]] == [
        1.0,
        0.1,
        0.01,
        0.001,
    ]
    assert [row["loss"] for row in board["rows"]] == [0.9, 0.2, 0.3, None]
    assert ranked_rows(board, 10)[0] == ["client_lr", "validation", "sd seeds", "loss", "test"]
    errors = [line_of(0.1, e, e, metric="mse", better=False) for e in (0.2,)]
    (board,) = leaderboards(errors)
    assert ranked_rows(board, 10)[0] == ["client_lr", "validation", "sd seeds", "test"]


@pytest.mark.parametrize(
    "values, best, beyond",
    [
        ("0.001,0.003,0.01,0.03,0.1", 0.1, "0.3"),
        ("0.001,0.003,0.01,0.03,0.1", 0.001, "0.0003"),
        ("0.1,0.03,0.3", 0.3, "1"),
        ("0.2,0.4,0.8", 0.8, "1.6"),
        ("0.01,0.1,1", 1.0, "10"),
        ("0.1,1e20", 0.1, "0.03"),  # there is much between the two
        ("0.01,0.03,0.1", 0.03, None),
        ("0,0.1,0.3", 0.0, None),
        ("0,0.1", 0.1, None),  # 0 is no step of a ratio
        ("0.1", 0.1, None),  # no grid
    ],
)
def test_an_axis_is_extended_where_the_best_value_is_at_its_edge(values, best, beyond):
    axis, others = "--grid.hparams.client_lr", {"--grid.algorithm": ["fedavg", "local"]}
    axes = {axis: values.split(","), **others, "--loguniform.hparams.mu": ["0.1", "1"]}
    point = {"hparams.client_lr": best, "algorithm": "fedavg", "hparams.mu": 1.0}
    expected = {} if beyond is None else {axis: [*axes[axis], beyond]}
    assert extended(axes, point) == expected


def test_an_axis_is_not_extended_beyond_what_its_field_takes():
    axes = {"--grid.hparams.knnper_lambda": ["0.25", "0.5"]}
    assert extended(axes, {"hparams.knnper_lambda": 0.5}) == {
        "--grid.hparams.knnper_lambda": ["0.25", "0.5", "1"]
    }
    axes = {"--grid.hparams.knnper_lambda": ["0.3", "1"]}
    assert extended(axes, {"hparams.knnper_lambda": 1.0}) == {}
    assert extended({"--grid.local_steps": ["2", "4"]}, {"local_steps": 4}) == {}


# ------------------------------------------------------------------------------------- command


VALIDATED = "--config.data.val_fraction=0.1"


def test_a_sweep_ranks_by_validation_and_counts_diverged_runs(tmp_path):
    """Over methods, of which one does not read a float and so has fewer points."""
    words = [VALIDATED, "--grid.algorithm=fedprox,fedavg", "--grid.hparams.mu=0,0.1"]
    words += ["--grid.hparams.client_lr=0.1,1e30", "--seeds=2", "--out=here", "--at_once=8"]
    words += ["--config.rounds=1"]
    small = [word.replace(":fedavg", "") for word in small_words("fl60.py:fedavg", words=words)]
    status, printed, errors = launched("sweep", *small, *words, cwd=tmp_path)
    assert status == 0, errors
    assert "3 of 6 candidates ranked, 2 seeds" in " ".join(printed.split())
    assert "12 runs in" in printed and "6 diverged" in printed
    assert (  # 1e30 was tried and diverged
        "the best hparams.client_lr, 0.1, is at the edge of its grid; to extend it: "
        "--grid.hparams.client_lr=0.1,1e30,0.03 --resume --out=here"
        in " ".join(printed.split())
    )
    lines = read(tmp_path / "here")
    assert len({line["trial"] for line in lines}) == len(lines) == 12
    assert sorted(line["variant"] for line in lines) == ["fedavg"] * 4 + ["fedprox"] * 8
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
        losses = [run["validation"]["final"]["P"]["loss"] for run in runs]
        np.testing.assert_allclose(row["loss"], np.mean(losses))
        assert row["loss"] > 0
    scores = [row["validation"] for row in board["rows"]]
    assert scores == sorted(scores, reverse=True)  # accuracy: higher is better
    assert "| fedprox | 0 | 0.1 |" in (tmp_path / "here/leaderboard.md").read_text()
    assert (tmp_path / "here/scores-fl60.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_a_sweep_of_which_no_candidate_is_ranked_says_so_and_ends_with_status_1(tmp_path):
    words = [VALIDATED, "--grid.hparams.client_lr=1e30,1e31", "--config.rounds=1", "--out=here"]
    small = small_words("fl60.py:fedavg", words=words)
    status, printed, errors = launched("sweep", *small, *words, cwd=tmp_path)
    assert (status, errors) == (1, "")
    assert "no candidate is ranked, since runs of all diverged; lower the" in printed


@pytest.mark.slow
def test_a_search_that_continues_with_another_axis_is_refused_before_training(tmp_path):
    pytest.importorskip("optuna", reason="Optuna, an extra, is not installed")
    words = [VALIDATED, "--sampler=tpe", "--samples=3", "--batch=2", "--at_once=2"]
    words += ["--config.rounds=1", "--out=here"]

    def sweep(*more):
        return launched_small("sweep", *words, *more, cwd=tmp_path, file="fl60.py:local")

    ended = sweep("--loguniform.hparams.client_lr=0.001,0.3")
    assert ended.status == 0, ended.stderr
    before = (tmp_path / "here/trials.jsonl").read_bytes()
    other = sweep("--loguniform.hparams.client_lr=0.001,0.2", "--resume")
    assert (other.status, other.stdout) == (2, "")
    assert re.fullmatch(
        r"error: out=here has a run that this search does not choose, .* with seed 0; set all "
        r"flags as before, such as --samples, --batch and the axes, or choose another --out\n",
        other.stderr,
    )
    assert (tmp_path / "here/trials.jsonl").read_bytes() == before


@pytest.mark.release
def test_a_sweep_of_a_federation_of_any_name_has_its_plots(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "import graphfl_jax as g\n"
        "def mine(*, seed):\n"
        "    x = np.random.default_rng(0).normal(size=(60, 2))\n"
        "    client = np.repeat(range(6), 10)\n"
        "    return g.from_arrays(\n"
        "        x, x[:, 0] > 0, client, seed=seed, val_fraction=0.2, name='a/b [c]'\n"
        "    )\n"
        "g.register.dataset('mine', mine)\n"
        "def get_config():\n"
        "    values = {'data.name': 'mine', 'algorithm.name': 'local', 'rounds': 1}\n"
        "    return g.configs.configuration(values)\n"
    )
    words = ["--config=mine.py", "--grid.hparams.client_lr=0.1,0.2", "--out=here"]
    ended = launched("sweep", *words, "--config.local_steps=1", cwd=tmp_path)
    assert ended.status == 0, ended.stderr
    assert (tmp_path / "here/scores-a-b [c].png").read_bytes()[:4] == b"\x89PNG"
    assert "P on a/b [c], data: own" in " ".join(ended.stdout.split())


@pytest.mark.release
def test_the_best_runs_are_kept_with_and_without_attackers(tmp_path):
    words = [VALIDATED, "--config.attack.name=label_flip", "--grid.hparams.attack_ratio=0,0.3"]
    words += ["--config.rounds=1", "--keep_best=2", "--out=here", "--at_once=2"]
    ended = launched_small("sweep", *words, cwd=tmp_path, file="fl60.py:local")
    assert ended.status == 0, ended.stderr
    folders = [*(tmp_path / "here/best").iterdir()]
    assert all((folder / name).exists() for folder in folders for name in (TABLE, PLOT))
    runs = [json.loads((folder / "results.json").read_text()) for folder in folders]
    assert sorted(len(run["attack"]["ids"]) for run in runs) == [0, 18]  # of sixty


@pytest.mark.slow
def test_a_killed_sweep_continues_where_it_stopped(tmp_path):
    """No run is lost, repeated or written twice, and an incomplete line is dropped."""
    words = [VALIDATED, "--at_once=8", "--seeds=3", "--out=here", "--config.eval_every=60"]
    words += ["--config.rounds=60"]
    words += ["--grid.hparams.client_lr=0.1,0.05,0.03,0.02,0.01,0.005"]
    path = tmp_path / "here/trials.jsonl"
    first = subprocess.Popen(
        command("sweep", *small_words("fl60.py:local", words=words), *words),
        env=ENVIRONMENT,
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    while first.poll() is None and not (path.exists() and path.read_text().count("\n")):
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = path.read_text()
    complete = before[: before.rfind("\n") + 1]
    kept = complete.splitlines()
    assert 0 < len(kept) <= 18
    path.write_text(complete + kept[0][:100])

    status, _, errors = launched_small("sweep", *words, cwd=tmp_path, file="fl60.py:local")
    assert status == 2 and "already holds a sweep; add --resume" in errors
    status, printed, errors = launched_small(
        *("sweep", *words, "--resume"), cwd=tmp_path, file="fl60.py:local"
    )
    assert status == 0, errors
    assert f"line {len(kept) + 1} is damaged" in errors
    assert f"{18 - len(kept)} runs in" in printed and f"{len(kept)} were in trials" in printed
    after = path.read_text()
    assert after.startswith(complete)
    identities = [line["trial"] for line in read(tmp_path / "here")]
    assert len(identities) == len(set(identities)) == 18


@pytest.mark.release
def test_a_sweep_takes_the_validation_examples_of_a_users_file_and_the_given_cores(tmp_path):
    x, client = np.random.default_rng(0).normal(size=(60, 2)), np.repeat(range(6), 10)
    split = (["train"] * 6 + ["val"] * 2 + ["test"] * 2) * 6
    np.savez(tmp_path / "user.npz", x=x, y=x[:, 0] > 0, client=client, split=split)
    words = ["--config.data.path=user.npz", "--grid.hparams.client_lr=0.1,0.2,0.3", "--cores=3"]
    status, printed, errors = launched_small(
        *("sweep", *words, "--at_once=3", "--config.rounds=1"),
        cwd=tmp_path,
        file="custom.py:local",
        XLA_FLAGS="--xla_backend_optimization_level=0",
    )
    assert status == 0, errors
    assert "3 of 3 candidates ranked" in " ".join(printed.split())
    lines = read(tmp_path / "runs/sweep-custom")
    assert [line["device"] for line in lines] == [f"3 x cpu: cpu ({processor()})"] * 3


# ----------------------------------------------------------------------------------------- Ray


def test_without_ray_the_error_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"^launcher=ray needs Ray.*pip install ray"):
        ray_backend.connect("auto")


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:99999"])
def test_an_address_that_does_not_answer_is_named(address):
    pytest.importorskip("ray", reason="Ray, an extra, is not installed")
    with pytest.raises(ValueError, match=f"^ray_address={address} does not answer"):
        ray_backend.connect(address)


@pytest.mark.release
def test_a_cluster_loses_a_node_and_no_run(tmp_path, monkeypatch):
    """Two nodes of one core each; one is killed when the first run has ended."""
    pytest.importorskip("ray", reason="Ray, an extra, is not installed")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # with Ray's 15, busy tests would starve it
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        lost = nodes.add_node(num_cpus=1)
        nodes.add_node(num_cpus=1)
        words = [VALIDATED, "--grid.hparams.client_lr=0.1,0.05,0.02,0.01"]
        words += ["--seeds=2", "--at_once=2", "--out=here"]
        words += ["--launcher=ray", f"--ray_address={nodes.address}"]
        path = tmp_path / "here/trials.jsonl"
        sweep = subprocess.Popen(
            command("sweep", *small_words(words=words), *words),
            env=ENVIRONMENT,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while sweep.poll() is None and not (path.exists() and path.read_text()):
            time.sleep(0.05)
        nodes.remove_node(lost, allow_graceful=False)
        printed, _ = sweep.communicate(timeout=300)
        assert sweep.returncode == 0, printed
    finally:
        nodes.shutdown()
    lines = read(tmp_path / "here")
    assert len({line["trial"] for line in lines}) == len(lines) == 8
    alone = graphfl_jax.run(tiny_config(hparams__client_lr=0.05)).results
    (same,) = (x for x in lines if x["point"] == {"hparams.client_lr": 0.05} and x["seed"] == 0)
    np.testing.assert_allclose(
        same["scores"]["final"]["L"]["per_client"],
        alone["scores"]["final"]["L"]["per_client"],
        atol=1e-5,
    )


@pytest.mark.parametrize(("ratio", "part"), [(0.5, False), (0.0, True)])
def test_some_points_of_a_sweep_may_have_no_attackers(ratio, part):
    """Others of the sweep have them, in another group or in another part of its points."""
    config = change(tiny(fl60.get_config("local")), {"attack.name": "label_flip"})
    points = [
        {"local_steps": 1, "hparams.attack_ratio": 0.0},
        {"local_steps": 2, "hparams.attack_ratio": ratio},
    ]
    groups = groups_of(points, [0], lambda point: adjust(config, {}, point), part=part)
    assert len(groups) == 2
