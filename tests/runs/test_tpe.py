"""A sweep by TPE: what it asks for, its continuation, and the folders of the best runs."""

import json

import pytest

from graphfl_jax.runs.fleet import load
from tests.commands import launched_small

pytest.importorskip("optuna", reason="--sampler=tpe needs Optuna: pip install optuna")

from graphfl_jax.commands.sweeping.tpe import Search

AXES = {"--loguniform.hparams.client_lr": ["0.001", "1"], "--grid.algorithm": ["a", "b"]}


def line(score, *, diverged=False):
    scores = None if diverged else {"final": {"P": {"mean": score}}}
    return {
        **{"diverged": diverged, "new_clients": None, "validation": scores},
        **{"higher_is_better": True},
    }


def score(point):
    return 1 - abs(point["hparams.client_lr"] - 0.03) - 0.1 * (point["algorithm"] == "b")


def asked(search, batches):
    """The points of some batches, whose scores it gets."""
    found = []
    for _ in range(batches):
        points = search.ask()
        found.append(points)
        search.record([[line(score(p), diverged=p["hparams.client_lr"] > 0.8)] for p in points])
    return found


def test_points_depend_only_on_the_scores_and_approach_the_best():
    first, second = (asked(Search(AXES, 60, 10), 6) for _ in range(2))
    assert first == second
    rates = [point["hparams.client_lr"] for batch in first for point in batch]
    assert all(0.001 <= rate <= 1 for rate in rates) and len(set(rates)) > 50
    distance = [abs(rate - 0.03) for rate in rates]
    assert sum(distance[-20:]) < sum(distance[:20])
    methods = [point["algorithm"] for batch in first for point in batch]
    assert methods[-20:].count("a") > 10
    longer = Search(AXES, 65, 10)
    assert asked(longer, 6) == first and len(longer.ask()) == 5 and longer.left == 0


@pytest.mark.slow
def test_a_sweep_continues_as_if_it_had_not_ended_and_keeps_the_best(tmp_path):
    words = ["--config.data.val_fraction=0.1", "--config.rounds=2", "--config.eval_every=1"]
    words += ["--loguniform.hparams.client_lr=0.001,0.3", "--sampler=tpe", "--samples=6"]
    words += ["--batch=2", "--at_once=2"]

    def sweep(*more):
        return launched_small("sweep", *words, *more, cwd=tmp_path, file="fl60.py:local")

    ended = sweep("--out=whole", "--keep_best=1")
    assert ended.status == 0, ended.stderr
    path = tmp_path / "whole/trials.jsonl"
    texts = path.read_text().splitlines(keepends=True)
    lines = [json.loads(text) for text in texts]
    assert len(lines) == 6
    for one in lines:
        assert [row["round"] for row in one["curve"]] == [1, 2]
        assert one["curve"][-1]["P"] == pytest.approx(one["validation"]["final"]["P"]["mean"])
    best = max(lines, key=lambda one: one["validation"]["final"]["P"]["mean"])
    (folder,) = (tmp_path / "whole/best").iterdir()
    config = json.loads((folder / "config.json").read_text())
    assert config["hparams"]["client_lr"] == best["point"]["hparams.client_lr"]
    assert load(folder).clients

    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/trials.jsonl").write_text("".join(texts[:3]))  # in the second batch
    again = sweep("--out=cut", "--resume")
    assert again.status == 0, again.stderr
    points = [json.loads(text)["point"] for text in (tmp_path / "cut/trials.jsonl").open()]
    assert points == [one["point"] for one in lines]

    more = sweep("--out=cut", "--resume", "--seeds=2")
    assert more.status == 2 and "error: seeds=2 is not the number of seeds in " in more.stderr
    assert [json.loads(text)["point"] for text in (tmp_path / "cut/trials.jsonl").open()] == (
        points
    )

    (tmp_path / "torn").mkdir()
    torn = texts[0][:100] + "\n" + "".join(texts[1:])
    (tmp_path / "torn/trials.jsonl").write_text(torn)
    again = sweep("--out=torn", "--resume")
    assert again.status == 0, again.stderr
    assert "line 1 is damaged; its run is repeated" in again.stderr
    assert "1 run in" in again.stdout and "5 were in trials.jsonl" in again.stdout
    points = [json.loads(text)["point"] for text in (tmp_path / "torn/trials.jsonl").open()]
    assert points == [one["point"] for one in (lines[1], lines[0], *lines[2:])]
