"""Runs and sweeps that are read from their folders."""

import matplotlib
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax import configs
from graphfl_jax.build import load_federation
from graphfl_jax.commands.sweeping.trial_log import TrialLog
from graphfl_jax.runs.batch import run_trials
from graphfl_jax.runs.sweep import groups_of
from tests.commands import scripted
from tests.federations import small_config, two_clusters
from tests.runs.test_compare import GRAPHFL

matplotlib.use("Agg")
pytestmark = pytest.mark.usefixtures("shared_programs")


def configure(method, **fields):
    return small_config(method, rounds=5, eval_every=2, data__val_fraction=0.1, **fields)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By their folders: two methods with two seeds."""
    base, results = tmp_path_factory.mktemp("runs"), {}
    for method in ("fedavg", "ditto"):
        for seed in (0, 1):
            folder, config = base / f"{method}{seed}", configure(method, seed=seed)
            results[folder] = graphfl_jax.run(config, two_clusters(), out=folder)
    return results


@pytest.mark.slow
def test_a_run_reads_as_what_it_returned(runs):
    for folder, result in runs.items():
        found = graphfl_jax.read(str(folder))
        assert found.clients == result.clients and found.diverged_at == -1
        assert found.per_client == result.per_client
        assert list(found.per_client) == list(two_clusters().clients)
        assert [row["round"] for row in found.rows] == [2, 4, 5]
        for row, written in zip(found.rows, result.rows, strict=True):
            for split, points in row["scores"].items():
                for point, scores in points.items():
                    np.testing.assert_array_equal(scores, written["scores"][split][point])
        assert found._repr_html_() == result._repr_html_()
        drawn, expected = (run.plot().lines for run in (found, result))
        for line, other in zip(drawn, expected, strict=True):
            np.testing.assert_array_equal(line.get_xydata(), other.get_xydata())


@pytest.mark.slow
def test_frames_of_runs_have_their_settings(runs):
    pytest.importorskip("pandas", reason="frame() needs pandas")
    folder, result = next(iter(runs.items()))
    alone = graphfl_jax.read(folder).frame()
    assert alone.equals(result.frame())
    frame = graphfl_jax.read(runs).frame()
    assert list(frame.columns[:4]) == ["run", "method", "data", "seed"]
    assert len(frame) == sum(len(result.frame()) for result in runs.values())
    assert set(zip(frame["method"], frame["seed"], strict=True)) == {
        (method, seed) for method in ("fedavg", "ditto") for seed in (0, 1)
    }
    assert set(frame.loc[frame["method"] == "ditto", "hparams.ditto_lambda"]) == {
        configure("ditto").hparams.ditto_lambda
    }


def test_curves_are_drawn_over_what_rounds_take(runs):
    """A round has two clients with two steps each; they send what the results say."""
    some = graphfl_jax.read(list(runs)[:2])
    sent = some[0].results["communication"]
    steps = configure("fedavg").local_steps * configure("fedavg").cohort_size
    takes = {"rounds": 1, "steps": steps}
    takes["bytes"] = sent["clients"] * (sent["up_bytes"] + sent["down_bytes"])
    takes["seconds"] = np.mean([run.results["timing"]["train_s"] / 5 for run in some])
    for over, of_round in takes.items():
        (line,) = some.plot(over=over).lines
        np.testing.assert_allclose(line.get_xdata(), of_round * np.array([2, 4, 5]), rtol=1e-6)
    assert some[0].plot(over="bytes").get_xlabel().startswith("bytes")
    with pytest.raises(ValueError, match="over=hours is unknown; choose from rounds"):
        some.plot(over="hours")
    del some[0].results["communication"]["clients"]
    with pytest.raises(ValueError, match="over=bytes needs the number of clients in a round"):
        some.plot(over="bytes")


@pytest.mark.slow
def test_a_comparison_draws_the_curves_of_its_settings(runs, tmp_path):
    words = ["compare", *map(str, runs), "--plot=curves.svg", "--over=steps"]
    ended = scripted(GRAPHFL, *words, cwd=tmp_path)
    assert ended.status == 0, ended.stderr
    picture = (tmp_path / "curves.svg").read_text()
    assert all(f"<!-- {text} -->" in picture for text in ("fedavg", "ditto"))
    again = scripted(GRAPHFL, *words, cwd=tmp_path)
    assert again.status == 2 and "error: plot=curves.svg exists; remove it" in again.stderr


def test_a_plot_of_runs_has_the_mean_and_the_spread_over_seeds(runs):
    axes = graphfl_jax.read(runs).plot(point="G")
    assert len(axes.lines) == len(axes.collections) == 2
    for line, band, method in zip(
        axes.lines, axes.collections, ("fedavg", "ditto"), strict=True
    ):
        assert line.get_label().split(",")[0] == method
        of_seeds = np.array(
            [
                [row["scores"]["test"]["G"].mean(dtype=np.float64) for row in run.rows]
                for folder, run in runs.items()
                if folder.name.startswith(method)
            ]
        )
        np.testing.assert_allclose(line.get_ydata(), of_seeds.mean(axis=0))
        heights = band.get_paths()[0].vertices[:, 1]
        mean, half = of_seeds.mean(axis=0), np.abs(of_seeds[0] - of_seeds[1]) / np.sqrt(2)
        np.testing.assert_allclose(heights.max(), (mean + half).max())
        np.testing.assert_allclose(heights.min(), (mean - half).min())


@pytest.mark.slow
def test_a_sweep_reads_as_its_runs(tmp_path):
    pytest.importorskip("pandas", reason="frame() needs pandas")
    config = configs.change(configs.fl60.get_config("fedavg"), {"rounds": 2, "eval_every": 2})
    config = configs.change(config, {"data.val_fraction": 0.1, "model.hidden": (4,)})
    points = [{"hparams.client_lr": rate} for rate in (0.1, 0.2)]
    (group,) = groups_of(points, [0], lambda point: (configs.change(config, point), {}))
    federations = {0: load_federation(config)}
    with TrialLog(tmp_path, [group], resume=False) as log:
        trials = [planned.trial for planned in group.planned]
        outcomes = [outcome for _, outcome in run_trials(config, federations, trials)]
        for planned, outcome in zip(group.planned, outcomes, strict=True):
            log.write(group, planned, outcome)
    found = graphfl_jax.read(tmp_path)
    frame = found.frame()
    assert [run.results["hparams"]["client_lr"] for run in found] == pytest.approx([0.1, 0.2])
    for number, outcome in enumerate(outcomes):
        of_run = frame[(frame["run"] == number) & (frame["point"] == "L")]
        np.testing.assert_array_equal(of_run["score"], outcome.final["test"]["L"])
        assert set(of_run["hparams.client_lr"]) == {points[number]["hparams.client_lr"]}
        assert set(of_run["round"]) == {2}
        assert len(outcome.frame()) > len(of_run) and len(outcome.per_client) == 60


def test_what_is_no_run_is_refused(runs, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(FileNotFoundError, match="run is not a folder; name folders of runs"):
        graphfl_jax.read(folder)
    folder.mkdir()
    with pytest.raises(ValueError, match="^folders=.*run holds no run; leave it out"):
        graphfl_jax.read([folder, *runs])
    with pytest.raises(ValueError, match="is named twice; name each folder once"):
        graphfl_jax.read([*runs, next(iter(runs))])
    source = next(iter(runs))
    for name in ("config.json", "results.json", "metrics.jsonl"):
        (folder / name).write_bytes((source / name).read_bytes())
    found = graphfl_jax.read(folder)  # as of a release that described no clients
    assert list(found.per_client) == [str(i) for i in range(7)]
    (folder / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="metrics.jsonl is missing or damaged .line 1."):
        graphfl_jax.read(folder)
