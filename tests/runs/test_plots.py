"""Plots: one style per method, those of searches; and the tables and plot of a result."""

import builtins
import csv
import dataclasses
import os

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

import graphfl_jax
from graphfl_jax import configs
from graphfl_jax.commands.common.finished_runs import write_views
from graphfl_jax.commands.common.plots import draw_search, save_figure
from graphfl_jax.commands.common.styles import STYLES, styles_of, svg_dashes
from graphfl_jax.runs import views
from graphfl_jax.runs.batch import Outcome
from graphfl_jax.runs.disk import WriteError
from tests.federations import small_config, two_clusters

matplotlib.use("Agg")


@pytest.mark.parametrize(
    "name, save",
    [
        ("one.png", lambda folder: save_figure(Figure(), folder / "one")),
        (views.PLOT, lambda folder: write_views(folder, Outcome({}, [{}], [], None))),
    ],
)
def test_a_figure_is_replaced_in_one_step(tmp_path, monkeypatch, name, save):
    monkeypatch.setattr(views, "draw", lambda *arguments: None)
    (tmp_path / name).write_text("the old one")

    def stop(*paths):
        raise OSError("stopped")

    with monkeypatch.context() as stopped, pytest.raises(WriteError, match="stopped"):
        stopped.setattr(os, "replace", stop)  # the last step
        save(tmp_path)
    assert {path: path.read_text() for path in tmp_path.iterdir()} == {
        tmp_path / name: "the old one"
    }
    save(tmp_path)
    assert (tmp_path / name).stat().st_size > 100


def test_every_method_has_a_style_of_its_own():
    styles = [str(style) for style in STYLES]
    assert len(set(styles)) == len(styles) > len(configs.methods())
    assert styles_of(list(configs.methods())) == STYLES[: len(configs.methods())]


def test_a_method_with_other_values_has_the_style_of_the_method():
    assert styles_of(["panacea+layer=mean", "ditto (1)"]) == styles_of(["panacea", "ditto"])


def test_the_style_of_a_method_does_not_depend_on_the_others():
    alone = styles_of(["ditto (1 diverged)"])
    among = styles_of(["mine", "fedavg", "ditto", "yours"])
    assert among[2:3] == alone
    assert len({str(style) for style in among}) == 4
    assert among[0] not in styles_of(list(configs.methods()))


def test_the_style_of_another_name_is_that_of_its_letters():
    own = ["mine", "yours", "myprox"]
    together = dict(zip(own, styles_of(own), strict=True))
    assert dict(zip(own[::-1], styles_of(own[::-1]), strict=True)) == together
    assert styles_of(["mine"]) == styles_of(["ditto", "mine (1 diverged)"])[1:]
    assert len({str(style) for style in styles_of(["a", "b", "c", "d", "e", "f", "g"])}) == 7
    assert len({str(styles_of([name])) for name in "abcdefgh"}) > 3  # not one for all


def test_dashes_of_an_svg_are_those_of_figures():
    axes = Figure().subplots()
    for style in STYLES[:: len(views.COLOURS)]:
        (drawn,) = axes.plot([0, 1], lw=2, **style)
        _, lengths = drawn._dash_pattern
        assert [float(n) for n in svg_dashes(style).split()] == pytest.approx(lengths or [])


def test_categories_are_not_joined_and_numbers_are():
    rows = [
        {"point": {"algorithm": name, "hparams.client_lr": rate}, "validation": score}
        for name, rate, score in (
            ("fedavg", 0.1, 0.5),
            ("ditto", 0.1, 0.6),
            ("ditto", np.float64(0.2), 0.4),  # as from np.geomspace
        )
    ]
    board = {
        **{"fields": ["algorithm", "hparams.client_lr"], "rows": rows, "data": "fl60"},
        **{"source": "real", "metric": "accuracy", "higher_is_better": True},
    }
    figure = draw_search(board)
    names, rates = (axes.lines[-1] for axes in figure.axes)
    assert names.get_linestyle() == "None" and rates.get_linestyle() == "-"
    np.testing.assert_allclose(names.get_ydata(), [60, 50])
    assert figure.get_suptitle() == "fl60, data: real"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "a candidate",
        "the best",
    ]


def labels_of(values, scores=None):
    """The axes of a sweep over one field, and the labels below them, none over another."""
    points = [{"hparams.client_lr": value} for value in values]
    scores = scores or [0.5] * len(values)
    rows = [{"point": p, "validation": v} for p, v in zip(points, scores, strict=True)]
    board = {
        **{"fields": list(points[0]), "rows": rows, "data": "fl60", "source": "real"},
        **{"metric": "mse", "higher_is_better": False},
    }
    figure = draw_search(board)
    figure.canvas.draw()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert not any(a.overlaps(b) for a, b in zip(boxes, boxes[1:], strict=False))
    texts = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    shown = [label.get_text() for label in figure.axes[0].get_xticklabels(minor=True)]
    assert not any(shown)
    return figure.axes[0], texts


@pytest.mark.parametrize(
    "values, scale, labels",
    [
        ((0.003, 0.01, 0.03, 0.1), "log", ["0.003", "0.01", "0.03", "0.1"]),
        ((0, 0.01, 0.1, 1), "symlog", ["0", "0.01", "0.1", "1"]),
        ((0.1, 0.2, 0.3), "linear", ["0.1", "0.2", "0.3"]),
        ((20, 30, 50), "linear", ["20", "30", "50"]),
        ((0.01, 0.0101, 1, 100), "log", ["0.01", "1", "100"]),  # too near for two labels
        (("fedavg-finetune", "flha-ghn-no-gnn", "panacea-mean", "pfedhn"), "linear", None),
        (np.geomspace(1e-3, 1e-1, 30), "log", None),
        (np.geomspace(1e-6, 1e2, 30), "log", None),
        ([1e-4, *np.linspace(0.01, 0.5, 30)], "linear", None),
    ],
)
def test_ticks_of_a_sweep_are_the_values_and_do_not_overlap(values, scale, labels):
    axes, shown = labels_of(values)
    assert axes.get_xscale() == scale
    assert labels is None or shown == labels
    if scale == "log" and labels is None:
        assert "0.01" in shown and len(shown) < 15


def test_of_many_numbers_the_best_is_marked_and_far_scores_are_logarithmic():
    rates = np.geomspace(1e-3, 1e-1, 30)
    axes, _ = labels_of(rates, [0.002, *[0.003] * 28, 0.1])
    best = axes.lines[-1]
    assert list(best.get_xdata()) == [rates[0]] and best.get_marker() == "o"
    assert axes.get_yscale() == "log"
    heights = [label.get_text() for label in axes.get_yticklabels()]
    assert {"3", "10", "30", "100"} <= {*heights}


@pytest.fixture(scope="module")
def result():
    config = small_config(
        "fedavg", rounds=3, eval_every=2, eval__points=("G",), eval__splits=("val",)
    )
    return graphfl_jax.run(config, two_clusters())


@pytest.mark.slow
def test_a_frame_has_the_score_of_each_client_at_each_evaluation(result):
    pytest.importorskip("pandas", reason="frame() needs pandas")
    found = result.frame()
    first = found[found["round"] == 2]
    assert set(first["split"]) == {"val"} and set(first["point"]) == {"G"}
    last = found[(found["round"] == 3) & (found["split"] == "test") & (found["point"] == "L")]
    assert list(last["client"]) == [f"client {i}" for i in range(7)]
    np.testing.assert_array_equal(last["score"], result.final["test"]["L"])


def test_a_frame_of_a_run_that_diverged_says_that_scores_are_missing(result):
    pytest.importorskip("pandas", reason="frame() needs pandas")
    lost = dataclasses.replace(result, results=result.results | {"diverged": True}, final=None)
    with pytest.warns(RuntimeWarning, match="fedavg with seed 0 diverged, and its frame"):
        assert len(lost.frame()) < len(result.frame())


def test_without_pandas_the_error_names_the_remedy(result, monkeypatch):
    whole = builtins.__import__

    def without(name, *args, **options):
        if name == "pandas":
            raise ImportError(name)
        return whole(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="^frame.. needs pandas, .*; run pip install pandas"):
        result.frame()


def test_the_plot_the_table_and_the_html_have_the_scores(result):
    axes = result.plot()
    drawn = {one.get_label(): one for one in axes.lines}
    means = {point: values.mean() for point, values in result.final["val"].items()}
    assert set(drawn) == {"G", "L", "P"} and axes.get_title().startswith("fedavg on two_clu")
    for point, mean in means.items():
        np.testing.assert_allclose(drawn[point].get_ydata()[-1], mean, 1e-6)
    assert axes.get_ylabel() == "val accuracy, mean over clients"  # which all evaluations have
    rows = list(csv.DictReader(views.client_table(result).splitlines()))
    assert [row["client"] for row in rows] == list(result.clients)
    np.testing.assert_allclose(
        [float(row["test P"]) for row in rows], result.final["test"]["P"]
    )
    shown = result._repr_html_()
    assert (
        f"<td>{result.final['test']['P'].mean():.4g}</td>" in shown
        and "<caption>fedavg on two_clus" in shown
    )
    title, heads, *lines = repr(result).splitlines()
    assert title in shown and heads.split()[:2] == ["accuracy", "mean"]
    assert [line.split()[0] for line in lines] == ["G", "L", "P"]
    assert lines[2].split()[1] == f"{result.final['test']['P'].mean():.4g}"
    diverged = dataclasses.replace(result, results=result.results | {"diverged": True})
    assert repr(diverged) == f"{title}: diverged"
