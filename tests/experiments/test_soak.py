"""The soak: how it judges runs, and a few interrupted runs."""

import json
import signal

import numpy as np
import pytest

from experiments.benchmarks import interrupted_runs
from experiments.benchmarks.interrupted_runs import REFUSED, WRONG, Ended
from experiments.benchmarks.repeated_calls import growing
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


def test_a_run_is_resumed_from_what_is_left_of_it(tmp_path):
    assert interrupted_runs._resume(tmp_path / "absent") == []
    assert interrupted_runs._resume(tmp_path) == []
    (tmp_path / "metrics.jsonl").touch()  # and config.json is lost
    assert interrupted_runs._resume(tmp_path) == ["--resume"]


def test_what_differs_between_runs_is_named(tmp_path):
    """Times and the commit of the checkout may differ."""
    results = {"timing": 1, "git_commit": "a", "scores": [1, 2], "seed": 0}
    (tmp_path / "metrics.jsonl").write_text("1")
    (tmp_path / "results.json").write_text(json.dumps(results))
    whole = interrupted_runs.written(tmp_path)
    changes = {"timing": 2, "git_commit": "b", "scores": [1, 3], "left": True}
    (tmp_path / "results.json").write_text(json.dumps(results | changes))
    own = interrupted_runs.written(tmp_path)
    assert interrupted_runs.differing(whole, whole) == []
    assert interrupted_runs.differing(own, whole) == ["left", "scores"]
    assert interrupted_runs.differing((b"2", whole[1]), whole) == ["metrics.jsonl"]


def test_one_file_is_damaged_in_one_way(tmp_path):
    kinds = set()
    for seed in range(30):
        (tmp_path / "a").mkdir(exist_ok=True)
        before = {"a/b": bytes(range(99)), "c": b"1234"}
        for name, content in before.items():
            (tmp_path / name).write_bytes(content)
        interrupted_runs._damage(np.random.default_rng(seed), tmp_path)
        after = {
            name: (tmp_path / name).read_bytes() if (tmp_path / name).exists() else None
            for name in before
        }
        ((old, new),) = [
            (before[name], after[name]) for name in before if before[name] != after[name]
        ]
        kinds.add("gone" if new is None else "cut" if len(new) < len(old) else "flipped")
    assert kinds == {"gone", "cut", "flipped"}


def test_memory_grows_if_it_ends_more_than_a_tenth_larger():
    first = {"calls": 1, "bytes": 100, "maps": 50}
    assert growing([]) == growing([first]) == []
    assert growing([first, first | {"bytes": 109, "maps": 54}]) == []
    assert growing([first, first | {"bytes": 111}]) == ["bytes"]
    assert growing([first, first | {"bytes": 111, "maps": 56}]) == ["bytes", "maps"]


@pytest.mark.release
def test_interrupted_runs_end_like_an_uninterrupted_one(tmp_path):
    ended = launched("soak", "--runs=2", "--calls=20", "--out=out", cwd=tmp_path)
    assert ended.status == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "out" / "soak.json").read_text())
    assert len(found["runs"]) == 2
    assert [one["calls"] for one in found["memory"]] == [4, 20]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["soak.json"]
