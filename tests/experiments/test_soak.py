"""The soak: how it judges runs, and a few interrupted runs."""

import json
import signal

import pytest

from experiments.benchmarks import interrupted_runs
from experiments.benchmarks.interrupted_runs import REFUSED, WRONG, Ended
from tests.commands import launched


@pytest.mark.parametrize(
    "fault, end, resumed, verdict",
    [
        ("SIGTERM", Ended(143, ["interrupted"]), False, ""),
        ("SIGINT", Ended(130, ["interrupted"]), True, ""),
        ("SIGKILL", Ended(-signal.SIGKILL, []), True, ""),
        ("SIGTERM", Ended(0, []), False, ""),  # it had ended before
        ("full disk", Ended(2, ["error: a cannot be written"]), True, ""),
        ("SIGTERM", Ended(2, ["error: config.json is damaged"]), True, REFUSED),
        ("SIGTERM", Ended(2, ["error: config.json is damaged"]), False, WRONG),
        ("SIGTERM", Ended(-signal.SIGTERM, []), False, WRONG),
        ("SIGINT", Ended(130, ["Traceback", "KeyboardInterrupt"]), False, WRONG),
        ("SIGINT", Ended(0, ["Exception ignored"]), False, WRONG),
        ("full disk", Ended(1, ["Traceback"]), True, WRONG),
        ("full disk", Ended(2, ["error: one", "error: two"]), True, WRONG),
    ],
)
def test_the_end_of_a_process_is_judged(fault, end, resumed, verdict):
    assert interrupted_runs._after(fault, end, resumed)[0] == verdict


def test_what_differs_between_runs_is_named(tmp_path):
    """Times and the commit of the checkout may differ."""
    results = {"timing": 1, "git_commit": "a", "scores": [1, 2], "seed": 0}
    (tmp_path / "metrics.jsonl").write_text("1")
    (tmp_path / "results.json").write_text(json.dumps(results))
    whole = interrupted_runs.outputs_of(tmp_path)
    changes = {"timing": 2, "git_commit": "b", "scores": [1, 3], "left": True}
    (tmp_path / "results.json").write_text(json.dumps(results | changes))
    other = interrupted_runs.outputs_of(tmp_path)
    assert interrupted_runs.differences(whole, whole) == []
    assert interrupted_runs.differences(other, whole) == ["left", "scores"]
    assert interrupted_runs.differences((b"2", whole[1]), whole) == ["metrics.jsonl"]


@pytest.mark.release
def test_interrupted_runs_end_like_an_uninterrupted_one(tmp_path):
    ended = launched("soak", "--runs=2", "--calls=20", "--out=out", cwd=tmp_path)
    assert ended.status == 0, ended.stdout + ended.stderr
    results = json.loads((tmp_path / "out" / "soak.json").read_text())
    assert len(results["runs"]) == 2
    assert [size["calls"] for size in results["memory"]] == [4, 20]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["soak.json"]
