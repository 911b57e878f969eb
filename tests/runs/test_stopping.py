"""Runs that end before their last round, by validation scores or by their caller."""

import functools
import json

import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.configs import change, custom, fl60
from graphfl_jax.metrics import CLASSIFICATION, REGRESSION
from graphfl_jax.runs.batch import Trial, run_trials, with_seed
from graphfl_jax.runs.stopping import stops
from tests.commands import launched_small

pytestmark = pytest.mark.usefixtures("shared_programs")
SMALL = {
    "rounds": 16,
    "eval_every": 2,
    "checkpoint_every": 100,
    "cohort_size": 4,
    "local_steps": 2,
    "batch_size": 4,
    "model.hidden": (4,),
    "data.val_fraction": 0.2,
    "hparams.client_lr": 0.5,
}


def configure(**fields):
    changes = {name.replace("__", "."): value for name, value in fields.items()}
    return change(fl60.get_config("fedavg"), SMALL | changes)


def course(means, every=10):
    """Rows with such validation scores of two clients at P."""
    return [
        {"round": every * (i + 1), "scores": {"val": {"P": np.array([mean - 1, mean + 1])}}}
        for i, mean in enumerate(means)
    ]


@pytest.mark.parametrize(
    "means, fields, task, end",
    [
        ([5, 4, 4, 3, 3, 3, 1], {"patience": 20}, REGRESSION, 60),
        ([5, 4, 4, 3, 3, 3, 1], {"patience": 21}, REGRESSION, None),
        ([5, 4, 4, 3, 3, 3, 1], {"patience": 10}, REGRESSION, 30),
        ([5, 4, 4, 3, 3, 3, 1], {"patience": 1}, REGRESSION, 30),
        ([1, 3, 2, 3, 4], {"patience": 20}, CLASSIFICATION, 40),
        ([1, np.nan, np.nan, 2], {"patience": 20}, CLASSIFICATION, 30),
        ([np.inf, np.inf, 9, 8], {"patience": 30}, REGRESSION, None),
        ([5, 4, 4, 3, 3, 3, 1], {"target": 3.0}, REGRESSION, 40),
        ([1, 2, 3, 2], {"target": 2.5}, CLASSIFICATION, 30),
        ([1, 2, 3, 2], {"target": 3.5}, CLASSIFICATION, None),
        ([1, 2, 2, 3], {"target": 3.0, "patience": 10}, CLASSIFICATION, 30),
        ([1, 2, 2, 3], {}, CLASSIFICATION, None),
        ([5, 5], {"patience": 10}, REGRESSION, None),  # at the last round
    ],
)
def test_a_run_ends_when_the_best_score_is_old_or_reaches_the_target(means, fields, task, end):
    config = configure(rounds=10 * len(means), **{f"stop__{k}": v for k, v in fields.items()})
    rows = course(means)
    ends = [row["round"] for i, row in enumerate(rows) if stops(config, rows[: i + 1], task)]
    assert ends[:1] == ([] if end is None else [end])


def expected_end(rows, patience):
    """The round in which a run ends, from the scores of one that played all rounds."""
    best, best_round = -1.0, 0
    for row in rows:
        mean = float(np.mean(np.asarray(row["scores"]["val"]["P"], np.float64)))
        if mean > best:
            best, best_round = mean, row["round"]
        if row["round"] - best_round >= patience:
            return int(row["round"])
    raise AssertionError("it does not end early")


def seen(folder):
    results = json.loads((folder / "results.json").read_text())
    parts = ("scores", "rounds", "stopped", "rounds_trained", "diverged")
    return [results[part] for part in parts], (folder / "metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_a_stopped_run_is_the_begin_of_the_whole_one_and_goes_on_when_resumed(tmp_path):
    whole = graphfl_jax.run(configure(), out=tmp_path / "whole")
    end = expected_end(whole.rows, 4)
    assert end < 16
    out = tmp_path / "stopped"
    stopped = graphfl_jax.run(configure(stop__patience=4), out=out)
    assert stopped.results["rounds"] == end == int(stopped.state.round)
    reason = "P on validation has not improved for 4 rounds"
    assert stopped.results["stopped"] == reason
    lines = (tmp_path / "whole/metrics.jsonl").read_text().splitlines(keepends=True)
    assert (out / "metrics.jsonl").read_text() == "".join(lines[: end // 2])
    last = stopped.results["scores"]["final"]["P"]["per_client"]
    assert last == json.loads(lines[end // 2 - 1])["test"]["P"]["per_client"]

    before = seen(out)
    again = graphfl_jax.run(configure(stop__patience=4), out=out, resume=True)
    assert (seen(out), int(again.state.round)) == (before, end)
    graphfl_jax.run(configure(), out=out, resume=True)
    assert seen(out) == seen(tmp_path / "whole")


def test_a_report_ends_a_run_that_can_be_resumed(tmp_path):
    out = tmp_path / "run"
    result = graphfl_jax.run(configure(), out=out, report=lambda row: row["round"] >= 6)
    assert (result.results["rounds"], len(result.rows)) == (6, 3)
    assert result.results["stopped"] == "report returned True"
    # Anything but True does not end a run.
    graphfl_jax.run(configure(), out=out, resume=True, report=lambda row: row)
    graphfl_jax.run(configure(), out=tmp_path / "whole")
    assert seen(out) == seen(tmp_path / "whole")


@pytest.mark.slow
def test_runs_of_a_batch_end_as_single_ones():
    seeds, config = (0, 1, 2), configure(stop__patience=4, hparams__client_lr=0.1)
    federations = {seed: load_federation(with_seed(config, seed)) for seed in seeds}
    trials = [Trial({}, seed) for seed in seeds]
    played = []
    outcomes = dict(run_trials(config, federations, trials, at_once=3, report=played.append))
    ends = set()
    for i, seed in enumerate(seeds):
        alone, batched = graphfl_jax.run(with_seed(config, seed)), outcomes[i]
        for part in ("rounds", "stopped", "rounds_trained"):
            assert batched.results[part] == alone.results[part]
        assert [row["round"] for row in batched.rows] == [row["round"] for row in alone.rows]
        np.testing.assert_allclose(
            batched.results["scores"]["final"]["P"]["per_client"],
            alone.results["scores"]["final"]["P"]["per_client"],
            atol=1e-6,  # shares of examples in float32
        )
        ends.add(alone.results["rounds"])
    assert len(ends) > 1 and max(ends) < 16
    assert sum(played) == pytest.approx(3)


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"stop__patience": 4, "data__val_fraction": 0.0},
            "^stop.patience=4 needs scores of the validation split at P; set "
            "--config.data.val_fraction=0.1$",
        ),
        (
            {"stop__target": 0.5, "eval__splits": ("test",)},
            "^stop.target=0.5 needs .* set --config.eval.splits=test,val$",
        ),
        (
            {"stop__patience": 4, "stop__point": "G", "eval__points": ("P",)},
            "^stop.patience=4 needs .* at G; set --config.eval.points=P,G$",
        ),
    ],
)
def test_what_decides_must_be_evaluated(fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        graphfl_jax.run(configure(**fields), out=tmp_path / "run")
    assert not any(tmp_path.iterdir())


def test_the_remedy_for_arrays_of_a_validation_split_works():
    config = change(custom.get_config("fedavg"), {"stop.patience": 4, "rounds": 1})
    x = np.random.default_rng(0).normal(size=(80, 2)).astype(np.float32)
    make = functools.partial(
        graphfl_jax.from_arrays, x, (x[:, 0] > 0).astype(int), np.repeat(np.arange(4), 20)
    )
    with pytest.raises(ValueError, match="at P; give val_fraction=0.1 to from_arrays$"):
        build_experiment(config, make())
    build_experiment(config, make(val_fraction=0.1))


@pytest.mark.slow
def test_commands_say_where_runs_have_stopped_and_do_not_repeat_them(tmp_path):
    words = [
        f"--config.{name}={value}" for name, value in SMALL.items() if name != "model.hidden"
    ]
    words += ["--config.stop.patience=4", "--seeds=2", "--out=runs/mine"]
    ended = launched_small("run", *words, cwd=tmp_path, file="fl60.py:fedavg")
    assert ended.status == 0, ended.stderr
    text = "results.json; stopped at round "
    assert ended.stdout.count(text) == 2
    folder = tmp_path / "runs/mine-seed0"
    times = (folder / "results.json").stat().st_mtime_ns
    again = launched_small("run", *words, "--resume", cwd=tmp_path, file="fl60.py:fedavg")
    assert (again.status, again.stdout) == (0, ended.stdout), again.stderr
    assert (folder / "results.json").stat().st_mtime_ns == times
    more = [word for word in words if "patience" not in word]
    whole = launched_small("run", *more, "--resume", cwd=tmp_path, file="fl60.py:fedavg")
    assert whole.status == 0 and text not in whole.stdout, whole.stderr
