"""Several seeds of one configuration by one command: a folder each, and their mean."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file

import graphfl_jax
from graphfl_jax.commands.common import seeded_runs, trackers
from graphfl_jax.commands.common.seeded_runs import run_seeds, seeds_table
from graphfl_jax.configs import change, fl60
from graphfl_jax.runs import batch, identity, models
from graphfl_jax.runs.batch import with_seed
from graphfl_jax.runs.store import NewFolders
from tests.commands import launched_small, tiny


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
            *("federation.json", "convergence.svg", "clients.csv", "models.safetensors"),
            "checkpoints",
        }
        results = json.loads((folder / "results.json").read_text())
        assert json.loads((folder / "config.json").read_text())["seed"] == seed
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
        assert [row["round"] for row in rows] == [1, 2]
        assert rows[-1]["test"] == results["scores"]["final"]
        means.append(results["scores"]["final"]["P"]["mean"])
    shown = re.search(r"(?m)^(?:[GL] and )?P +([\d.]+) ", ended.stdout)
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


@pytest.mark.parametrize("diverged", [0, 1])
def test_the_table_has_the_new_clients_of_all_seeds(diverged):
    def run(mean, ended):
        summary = {point: {"mean": mean, "std_clients": 0.1} for point in "GLP"}
        curve = [{"rounds": k, **summary} for k in range(3 if ended else 1)]
        return {
            **{"variant": "sfl", "dataset": {"name": "fl60", "source": "generated"}},
            **{"diverged": False, "higher_is_better": True, "metric": "accuracy", "rounds": 4},
            **{"scores": {"final": summary}, "new_clients": {"curve": curve}},
        }

    table = seeds_table([run(0.5, True), run(0.7, True), *[run(0.9, False)] * diverged])
    rows = {row[0]: row[1] for row in table.rows[1:]}
    kept = {f"{point}, new clients, {k} rounds": "0.6" for k in (0, 2) for point in "GLP"}
    assert {name: mean for name, mean in rows.items() if "new" in name} == kept
    assert ("new clients of 1 seed diverged" in table.caption) == bool(diverged)


def test_the_table_has_seeds_without_a_score_at_g():
    """One client's model is not finite there, and all are at P."""

    def run(mean_at_g):
        means = {"G": mean_at_g, "L": 0.5, "P": 0.5}
        final = {point: {"mean": m, "std_clients": m} for point, m in means.items()}
        return {
            **{"variant": "sfl", "dataset": {"name": "fl60", "source": "generated"}},
            **{"diverged": False, "higher_is_better": True, "metric": "accuracy", "rounds": 4},
            **{"scores": {"final": final}, "new_clients": None},
        }

    rows = {row[0]: row[1:4] for row in seeds_table([run(float("nan")), run(0.5)]).rows}
    assert rows["G"] == ["nan", "± nan", "nan"] and rows["P"] == ["0.5", "± 0", "0"]


@pytest.mark.slow
def test_seeds_that_diverge_end_with_status_one_and_a_remedy(tmp_path):
    words = ["--config.rounds=2", "--seeds=2", "--config.hparams.client_lr=1e30"]
    ended = launched_small("run", *words, cwd=tmp_path, file="fl60.py:local")
    assert ended.status == 1, ended.stderr
    assert "2 of 2 runs diverged; lower the learning rates\n" in ended.stdout


class Cut(BaseException):
    """Ends a batch in these tests."""


def begun(tmp_path, monkeypatch, during=lambda config, folders: None, **options):
    """A configuration with two folders, whose batch ended before its first round."""
    config = tiny(fl60.get_config("fedavg"))
    folders = {seed: tmp_path / f"mine-seed{seed}" for seed in (0, 1)}

    def run_trials(*arguments, **options):
        def outcomes():
            during(config, folders)
            raise Cut
            yield

        return outcomes()

    monkeypatch.setattr(seeded_runs, "run_trials", run_trials)
    with pytest.raises(Cut):
        run_seeds(config, folders, **options)
    return config, folders


def test_jobs_that_begin_together_have_different_folders(tmp_path, monkeypatch):
    new = [NewFolders(tmp_path / "a", ("-seed0", "-seed1")) for _ in range(2)]
    for folders in new:
        begun(tmp_path, monkeypatch, new=folders)
    names = ["a-2-seed0", "a-2-seed1", "a-seed0", "a-seed1"]
    assert sorted(path.parent.name for path in tmp_path.glob("*/config.json")) == names
    assert [path.name for path in new[1].paths] == names[:2]


def identity_in(folder):
    return json.loads((folder / "identity.json").read_text())["identity"]


def results_of(config, folder):
    """What is read of results.json, of a run that diverged."""
    data = dict.fromkeys(("name", "source", "extent", "sha256"), "")
    known = {"rounds": config.rounds, "identity": identity_in(folder), "dataset": data}
    known |= {"seed": config.seed, "metric": "", "variant": "", "timing": {}}
    known |= {"diverged": True, "higher_is_better": True}
    return dict.fromkeys(("scores", "new_clients", "attack")) | known


def test_folders_are_locked_before_the_first_round(tmp_path, monkeypatch):
    def during(config, folders):
        for resume in (False, True):
            begins = "out=.*mine-seed0:? (another process writes|already holds a run; add)"
            with pytest.raises(ValueError, match=begins):
                run_seeds(config, folders, resume=resume)

    config, folders = begun(tmp_path, monkeypatch, during)
    with pytest.raises(Cut):  # the locks are gone, and the runs go on
        run_seeds(config, folders, resume=True)


@pytest.mark.slow
def test_seeds_that_were_cut_go_on_from_their_checkpoints(tmp_path, monkeypatch):
    """The second cut is among the single runs, which play the last rounds."""
    changes = {"rounds": 4, "eval_every": 1, "checkpoint_every": 2}
    config = change(tiny(fl60.get_config("ditto")), changes)
    whole, cut = (
        {seed: tmp_path / f"{name}{seed}" for seed in (0, 1)} for name in ("whole", "cut")
    )
    expected = run_seeds(config, whole)
    played = []

    def until_three(runs):
        played.append(runs)
        if sum(played) > 1.25:  # of two runs with four rounds each
            raise Cut

    with pytest.raises(Cut):
        run_seeds(config, cut, report=until_three)
    for folder in cut.values():
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
        assert (folder / "checkpoints/00000002.json").exists()
    results = run_seeds(config, cut, resume=True)
    for of_run, before, folder in zip(results, expected, cut.values(), strict=True):
        assert of_run["rounds_trained"] == before["rounds_trained"]
        for point in "GLP":
            scores = [each["scores"]["final"][point]["per_client"] for each in (of_run, before)]
            # Products of vmapped runs round otherwise than those of single ones.
            np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4
    longer = change(config, {"rounds": 6})
    for of_run in run_seeds(longer, cut, resume=True):
        assert of_run["rounds"] == 6 and len(of_run["rounds_trained"]) == 60


@pytest.mark.parametrize("text, why", [("{}", "it has no scores"), ("", "Expecting value.*")])
def test_damaged_results_are_refused_with_their_file(tmp_path, monkeypatch, text, why):
    config, folders = begun(tmp_path, monkeypatch)
    file = folders[1] / "results.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"^{file} is missing or damaged \({why}\); leave"):
        run_seeds(config, folders, resume=True)


def test_results_of_another_run_are_refused(tmp_path, monkeypatch):
    config, folders = begun(tmp_path, monkeypatch)
    file, made = folders[1] / "results.json", identity_in(folders[1])
    results = results_of(config, folders[1])
    file.write_text(json.dumps(results | {"identity": made | {"arrays": "0" * 64}}))
    with pytest.raises(ValueError, match=rf"^{file} is missing or damaged \(it is of another"):
        run_seeds(config, folders, resume=True)
    file.write_text(json.dumps(results))
    with pytest.raises(Cut):  # the other seed is played
        run_seeds(config, folders, resume=True)


def test_finished_seeds_of_other_code_lead_to_a_warning(tmp_path, monkeypatch):
    config, folders = begun(tmp_path, monkeypatch)
    results = [results_of(config, folder) for folder in folders.values()]
    for folder, content in zip(folders.values(), results, strict=True):
        (folder / "results.json").write_text(json.dumps(content))
    monkeypatch.setattr(seeded_runs, "run_trials", lambda *arguments, **options: iter(()))
    assert run_seeds(config, folders, resume=True) == results
    monkeypatch.setattr(identity, "SOURCE", "e" * 64)  # as if the package had been edited
    with pytest.raises(ValueError, match="the code changed since its results were made"):
        run_seeds(config, folders, resume=True)
    with pytest.warns(RuntimeWarning, match="^2 of the 2 seeds with results are of other code"):
        assert run_seeds(config, folders, resume=True, accept_changes=True) == results


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"new_clients.fraction": 0.2, "new_clients.rounds": 1}])
def test_models_of_a_seed_are_those_of_the_single_run(tmp_path, fields, monkeypatch):
    """Also of new clients. Large models are written only if asked for."""
    config = change(tiny(fl60.get_config("ditto")), {"rounds": 2} | fields)
    folders = {seed: tmp_path / f"seed{seed}" for seed in (0, 1)}
    run_seeds(config, folders)
    for seed, folder in folders.items():
        alone = tmp_path / f"alone{seed}"
        graphfl_jax.run(with_seed(config, seed), out=alone)
        tensors, expected = (load_file(path / "models.safetensors") for path in (folder, alone))
        assert tensors.keys() == expected.keys()
        for name, tensor in tensors.items():
            # Products of vmapped runs round otherwise; two rounds of training add to it.
            np.testing.assert_allclose(tensor, expected[name], rtol=1e-4, atol=1e-5)
        fleet = graphfl_jax.load(folder)
        assert list(fleet.clients) == list(graphfl_jax.load(alone).clients)
    if fields:
        return
    monkeypatch.setattr(models, "LARGEST", 1)
    monkeypatch.setattr(batch, "LARGEST", 1)
    with pytest.warns(RuntimeWarning, match="not written; to have them, run with --save"):
        run_seeds(config, {0: tmp_path / "small"})
    assert not (tmp_path / "small/models.safetensors").exists()
    run_seeds(config, {0: tmp_path / "large"}, save_models=True)
    written = load_file(tmp_path / "large/models.safetensors")
    for name, tensor in load_file(folders[0] / "models.safetensors").items():
        np.testing.assert_allclose(written[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_evaluations_of_seeds_are_tracked(tmp_path, monkeypatch):
    sent = {}

    class Tracker:
        def __init__(self, out, fields):
            self.rows = sent[out.name, fields["seed"]] = []

        def write(self, row):
            self.rows.append(row)

        def close(self):
            self.rows.append("closed")

    monkeypatch.setitem(trackers.TRACKERS, "mine", Tracker)
    config = change(tiny(fl60.get_config("local")), {"rounds": 2, "eval_every": 1})
    run_seeds(config, {seed: tmp_path / f"s{seed}" for seed in (3, 4)}, track=["mine"])
    assert sent.keys() == {("s3", 3), ("s4", 4)}
    for seed in (3, 4):
        *rows, last = sent[f"s{seed}", seed]
        lines = (tmp_path / f"s{seed}/metrics.jsonl").read_text().splitlines()
        assert last == "closed" and rows == [json.loads(line) for line in lines]
