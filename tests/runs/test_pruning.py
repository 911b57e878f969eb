"""Sweeps that end bad runs early: the rule, batches that shrink, the log and the ranking."""

import json

import jax
import numpy as np
import pytest

from graphfl_jax.build import load_federation
from graphfl_jax.commands.sweeping.pruning import Halving
from graphfl_jax.configs import change, fl60
from graphfl_jax.runs import batch
from graphfl_jax.runs.batch import Hooks, Trial, run_trials
from graphfl_jax.runs.results import new_seconds
from tests.commands import launched_small

SMALL = {
    "rounds": 10,
    "eval_every": 2,
    "cohort_size": 4,
    "local_steps": 2,
    "batch_size": 4,
    "model.hidden": (4,),
    "data.val_fraction": 0.2,
}


def rows(*scores):
    """Runs with a mean score at P in each of their evaluations."""
    return {
        i: [{"round": 1, "scores": {"val": {"P": np.array([s - 1.0, s + 1.0])}}} for s in run]
        for i, run in enumerate(scores)
    }


@pytest.mark.parametrize(
    "runs, higher, ended",
    [
        ([[8], [7], [6], [5], [4], [3], [2], [1]], False, range(6)),
        ([[8], [7], [6], [5], [4], [3], [2], [1]], True, range(2, 8)),
        ([[3], [1], [2]], False, [0, 2]),
        ([[np.nan], [1], [2], [np.inf]], False, [0, 2, 3]),
        ([[1], [1], [1]], False, []),
        ([[5, 1], [9, 9]], False, []),  # after two evaluations there is no rung
        ([[5, 1, 1, 1], [9, 9, 9, 9]], False, [1]),
    ],
)
def test_a_quarter_goes_on_at_a_rung(runs, higher, ended):
    judged = Halving(higher_is_better=higher).judge(rows(*runs))
    assert sorted(judged) == list(ended)
    assert all(why.startswith("pruned") for why in judged.values())


def test_later_runs_are_compared_with_earlier_ones():
    halving = Halving(higher_is_better=False)
    halving.add([3.0, 2.0])
    halving.add([4.0, None])
    assert sorted(halving.judge(rows([5], [2.5]))) == [0]
    assert sorted(halving.judge(rows([2.7], [2.8], [2.4], [2.6]))) == [0, 1, 3]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_programs")
def test_a_batch_goes_on_with_the_runs_that_are_left_and_their_results_are_the_same(
    monkeypatch,
):
    """The seed of a run decides in which evaluation it ends; the whole runs are the oracle.

    The time of training is made long, so that another program is worth it.
    """
    devices, sizes, open_session = jax.devices()[:2], [], batch._Player._session
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    config = change(fl60.get_config("fedavg"), SMALL)
    seeds = range(4)
    federations = {seed: load_federation(change(config, {"seed": seed})) for seed in seeds}
    trials = [Trial({"client_lr": 0.1 * (seed + 1)}, seed) for seed in seeds]
    whole = dict(run_trials(config, federations, trials, at_once=4))
    ends, widths = {0: 1, 2: 2, 3: 2}, []

    def judge(runs):
        widths.append(sorted(runs))
        return {i: "pruned" for i, of_run in runs.items() if ends.get(i) == len(of_run)}

    def session_of(player, trials, size, scope):
        sizes.append(size)
        return open_session(player, trials, size, scope)

    monkeypatch.setattr(batch._Player, "_session", session_of)
    monkeypatch.setattr(batch, "new_seconds", lambda: new_seconds() | {"train": 1e9})
    cut = dict(run_trials(config, federations, trials, at_once=4, hooks=Hooks(judge)))
    assert widths == [[0, 1, 2, 3], [1, 2, 3], [1], [1]]
    assert sizes == [4, 2]
    for i in seeds:
        count = ends.get(i, 5)
        assert cut[i].results["rounds"] == 2 * count
        assert cut[i].results["stopped"] == ("pruned" if i in ends else None)
        for row, expected in zip(cut[i].rows, whole[i].rows[:count], strict=True):
            np.testing.assert_array_equal(
                row["scores"]["test"]["P"], expected["scores"]["test"]["P"]
            )
        np.testing.assert_array_equal(
            cut[i].final["test"]["P"], whole[i].rows[count - 1]["scores"]["test"]["P"]
        )


@pytest.mark.slow
def test_pruned_points_are_not_ranked_and_stay_so_in_a_resumed_sweep(tmp_path):
    words = ["--config.data.val_fraction=0.1", "--config.rounds=4", "--config.eval_every=1"]
    words += ["--grid.hparams.client_lr=0.0001,0.001,0.01,0.3", "--pruner=asha", "--out=swept"]
    swept = launched_small("sweep", *words, "--at_once=4", cwd=tmp_path, file="fl60.py:local")
    assert swept.status == 0, swept.stderr
    assert "3 were pruned" in swept.stdout
    lines = [json.loads(line) for line in (tmp_path / "swept/trials.jsonl").open()]
    assert sorted(line["rounds"] for line in lines) == [1, 1, 1, 4]
    (board,) = json.loads((tmp_path / "swept/leaderboard.json").read_text())
    assert len(board["rows"]) == 1 and board["pruned"] == 3
    words[3] = "--grid.hparams.client_lr=0.0001,0.001,0.01,0.3,0.0002"
    more = launched_small("sweep", *words, "--resume", cwd=tmp_path, file="fl60.py:local")
    assert more.status == 0, more.stderr
    assert "1 run in" in more.stdout and "4 were pruned" in more.stdout
