"""Figures of scores: limits of bands, ticks, and legends."""

import matplotlib

from experiments.common.score_plots import draw_lines, draw_panels
from graphfl_jax.commands.common.styles import styles_of

matplotlib.use("Agg")


def line(name, seeds, metric="accuracy"):
    return {"name": name, "metric": metric, "x": [1, 2, 3], "seeds": seeds}


def test_bands_end_at_the_limits_of_the_score_and_rounds_are_integers():
    lines = [line("fedavg", [[0.5, 0.9, 1.0], [0.1, 0.3, 0.1]]), line("local", [[0.0] * 3])]
    (axes,) = draw_lines(lines, "round", "fl60").axes
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() >= 0 and heights.max() <= 100
    wide = [line("fedavg", [[0.9] * 3, [0.1] * 3, [1.0] * 3, [1.0] * 3])]
    (axes_of_one,) = draw_lines(wide, "round", "fl60").axes
    assert axes_of_one.collections[0].get_paths()[0].vertices[:, 1].max() == 100
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    assert axes.get_title() == "fl60"
    assert axes.lines[0].get_color() == styles_of(["fedavg"])[0]["color"]


def test_the_legend_of_panels_says_in_which_of_them_runs_diverged():
    scores = [[0.5, 0.9, 1.0]]
    panels = {
        "arch0": [line("fedavg", scores), line("local (2 diverged)", scores)],
        "arch1": [line("fedavg (1 diverged)", scores), line("local", scores)],
        "arch2": [line("fedavg", scores), line("local (3 diverged)", [])],
    }
    (legend,) = draw_panels(panels, "rounds").legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "fedavg\narch1: 1 diverged",
        "local\narch0: 2 diverged\narch2: 3 diverged",
    ]
