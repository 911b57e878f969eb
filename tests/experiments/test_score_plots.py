"""Figures of scores: limits of bands, ticks, and legends."""

import matplotlib
import numpy as np

from experiments.common.score_plots import MARKS, draw_costs, draw_lines, draw_panels
from experiments.paper.figure_lines import Costs, cost_panels, cost_rows
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


# ---------------------------------------------------------------------------- scores over costs

PRIVACY = Costs("privacy", "epsilon", "epsilon", ())


def row(data, method, setting, part, epsilon, scores, higher=True):
    """A row of a table; without scores, a run has diverged."""
    metric, unit = ("accuracy", "%") if higher else ("mse", "1e-3")
    return {
        **{"data": data, "method": method, "setting": setting, "part": part},
        **{"metric": metric, "unit": unit, "higher_is_better": higher, "epsilon": epsilon},
        "diverged": 0 if scores else 2,
        "scores": scores and {"P": {"seeds": scores}},
    }


ROWS = [
    row("images", "fedavg", "no privacy", "", None, [90.0, 92.0]),
    row("images", "fedavg", "z 0.5", "central privacy", 6.0, [80.0, 82.0]),
    row("images", "fedavg", "z 1", "central privacy", 2.0, [84.0, 86.0]),  # better for less
    row("images", "fedavg", "z 2", "central privacy", 0.5, [60.0, 62.0]),
    row("images", "fedavg", "z 4", "central privacy", 0.2, None),
    row("images", "local", "no privacy", "", None, [70.0, 71.0]),
    row("images", "local", "z 0.5", "", None, [70.0, 71.0]),
    row("months", "fedavg", "no privacy", "", None, [2.0, 2.2], higher=False),
    row("months", "fedavg", "z 1", "local privacy", 900.0, [3.0, 3.2], higher=False),
    row("months", "fedavg", "z 4", "central privacy", 2.0, [30.0, 31.0], higher=False),
    row("months", "fedavg", "z 8", "local privacy", 4.0, [1e9, 3e9], higher=False),
    row("months", "local", "no privacy", "", None, [3.0, 3.0], higher=False),
]


def test_a_line_joins_the_settings_that_no_other_beats_for_less():
    panels = cost_panels(PRIVACY, ROWS)
    fedavg, local = panels["images"]
    assert fedavg["name"] == "fedavg (2 diverged)" and fedavg["x"] == [None, 6.0, 2.0, 0.5]
    assert [fedavg["settings"][i] for i in fedavg["front"]] == ["z 2", "z 1"]
    assert local["settings"] == ["no privacy"] and local["front"] == []
    (months, _) = panels["months"]  # of which less is better
    assert [months["settings"][i] for i in months["front"]] == ["z 4", "z 1"]
    heads, *rows = cost_rows(panels, PRIVACY.label)
    assert heads == ["data", "method", "setting", "epsilon", "P", "sd seeds"]
    name = "fedavg (2 diverged)"
    assert rows[0] == ["images", name, "no privacy", "", "91.00 %", "1.00"]
    assert rows[1][2:] == ["z 0.5", "6.00", "81.00 %", "1.00"] and len(rows) == 10


def test_settings_without_a_cost_are_at_the_right_end():
    figure = draw_costs(cost_panels(PRIVACY, ROWS), PRIVACY.label)
    images, months = figure.axes
    joined, level = (
        next(drawn for drawn in images.get_lines() if drawn.get_label().startswith(name))
        for name in ("fedavg", "local")
    )
    np.testing.assert_allclose(joined.get_xydata(), [[0.5, 61], [2, 85]])
    np.testing.assert_allclose(level.get_ydata(), 70.5)
    free = [drawn for drawn in images.get_lines() if drawn.get_marker() == MARKS[0]]
    assert [drawn.get_xdata().tolist() for drawn in free] == [[24.0], [24.0]]
    assert images.get_xticklabels()[-1].get_text() == "none"
    assert (images.get_yscale(), months.get_yscale()) == ("linear", "log")
    ends = [drawn.get_ydata()[0] for drawn in months.get_lines() if 4.0 in drawn.get_xdata()]
    np.testing.assert_allclose(ends, 210)  # a hundred times the best error
    assert months.get_ylim()[1] < 300
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    parts = ["none", "central privacy", "local privacy"]
    assert names == ["fedavg\nimages: 2 diverged", "local", *parts]
