"""Several seeds of one configuration by one command: a folder each, and their mean."""

import json
import re

import numpy as np
import pytest

from tests.commands import launched_small


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_each_seed_has_a_folder_of_a_run_and_finished_ones_are_not_repeated(tmp_path):
    words = ["--config.rounds=2", "--config.eval_every=1", "--config.seed=3"]
    words += ["--seeds=2", "--out=runs/mine"]
    ended = launched_small("run", *words, cwd=tmp_path, file="fl60.py:local")
    assert ended.status == 0, ended.stderr
    folders = [tmp_path / f"runs/mine-seed{seed}" for seed in (3, 4)]
    assert sorted((tmp_path / "runs").iterdir()) == folders
    means = []
    for seed, folder in zip((3, 4), folders, strict=True):
        assert {path.name for path in folder.iterdir()} == {
            *("config.json", "identity.json", "metrics.jsonl", "results.json", ".lock"),
            *("federation.json", "convergence.svg", "clients.csv"),
        }
        results = json.loads((folder / "results.json").read_text())
        assert json.loads((folder / "config.json").read_text())["seed"] == seed
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
        assert [row["round"] for row in rows] == [1, 2]
        assert rows[-1]["test"] == results["scores"]["final"]
        means.append(results["scores"]["final"]["P"]["mean"])
    shown = re.search(r"│ P +│ +([\d.]+) ", ended.stdout)
    np.testing.assert_allclose(float(shown[1]), np.mean(means), rtol=1e-3)

    before = contents(tmp_path)
    again = launched_small("run", *words, cwd=tmp_path, file="fl60.py:local")
    assert again.status == 2 and "already holds a run; add --resume" in again.stderr
    (folders[1] / "results.json").unlink()
    again = launched_small("run", *words, "--resume", cwd=tmp_path, file="fl60.py:local")
    assert (again.status, again.stdout) == (0, ended.stdout), again.stderr
    after = contents(tmp_path)
    first, second = (folder / "results.json" for folder in folders)
    assert after[first] == before[first]  # with its times
    scores = [json.loads(files[second])["scores"] for files in (before, after)]
    assert scores[0]["final"]["P"]["mean"] == scores[1]["final"]["P"]["mean"]
