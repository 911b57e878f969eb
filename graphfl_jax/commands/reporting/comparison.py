"""The comparison of several runs as a report shows it: with curves, and names that say more."""

from typing import Any

import numpy as np

from graphfl_jax.commands.common.comparison import comparison, data_texts, differing
from graphfl_jax.commands.common.finished_runs import FinishedRun
from graphfl_jax.commands.common.result_tables import distinct_points
from graphfl_jax.commands.common.styles import styles_of, svg_dashes
from graphfl_jax.evaluation import POINTS

ALL_PAIRS = 4  # groups up to which each is shown with each, else with the first


def comparison_facts(runs: list[FinishedRun], stated: list[dict[str, Any]]) -> dict[str, Any]:
    """What a report states of several runs, beside what `run_facts` states of each.

    Returns:
      ``points``, the points with names of their heads, as `distinct_points`;
      ``groups``, runs that differ only in the seed, with means and 95 % intervals over seeds,
      whether their data ``changes`` with the seed, and the ``style`` of their line: colour and
      dashes of the method, and a mark of their own;
      ``pairs`` of groups as `comparison` gives them, those that are shown, with the unit of
      their differences; ``tests``, the number of all pairs; and ``unpaired``.

    Raises:
      ValueError: two runs have the same settings and the same seed.
    """
    compared_runs, by_path = comparison(runs), {run["path"]: run for run in stated}
    settings, groups, units = compared_runs["settings"], [], {}
    names = {setting["name"]: _name(setting, settings) for setting in settings}
    marks = sorted(names, key=names.get)
    styles = styles_of([setting["method"] for setting in settings])
    for setting, style, text in zip(settings, styles, data_texts(settings), strict=True):
        runs_of_setting = [by_path[path] for path in setting["runs"]]
        units[setting["name"]] = {key: runs_of_setting[0][key] for key in ("factor", "unit")}
        groups.append(
            {key: setting[key] for key in ("metric", "seeds", "diverged", "scores")}
            | {
                "name": names[setting["name"]],
                "data": text,
                "curve": _mean_curve(runs_of_setting),
                "higher": setting["higher_is_better"],
                "changes": len({*setting["data_sha256"]}) > 1,
                "style": [style["color"], svg_dashes(style), marks.index(setting["name"])],
            }
            | units[setting["name"]]
        )
    shown = [
        pair | {key: names[pair[key]] for key in ("first", "second")} | units[pair["first"]]
        for pair in compared_runs["pairs"] + compared_runs["unpaired"]
        if len(groups) <= ALL_PAIRS or pair["first"] == settings[0]["name"]
    ]
    scores = {point: [g["scores"] and g["scores"][point] for g in groups] for point in POINTS}
    return {
        "points": distinct_points(scores),
        "groups": groups,
        "pairs": [pair for pair in shown if "points" in pair],
        "unpaired": [pair for pair in shown if "why" in pair],
        "tests": len(compared_runs["pairs"]),
    }


def _name(setting, settings):
    """The method, and where it has several settings, the fields in which these differ."""
    fields = [other["fields"] for other in settings if other["method"] == setting["method"]]
    choices = [f"{name}={setting['fields'][name]}" for name in differing(fields)]
    return f"{setting['method']} ({', '.join(choices)})" if choices else setting["name"]


def _mean_curve(runs):
    """Means over seeds after the rounds that all of them evaluated; None if one diverged."""
    splits = {run["curve"]["split"] for run in runs}
    if len(splits) > 1 or any(run["scores"] is None for run in runs):
        return None
    by_round = [{row["x"]: row for row in run["curve"]["rows"]} for run in runs]
    rounds = sorted(set.intersection(*map(set, by_round)))
    rows = []
    for x in rounds:
        means = {
            point: np.mean([rows[x][point] for rows in by_round], axis=0).tolist()
            for point in POINTS
            if all(point in rows[x] for rows in by_round)
        }
        rows.append({"x": x, **means})
    return {"split": splits.pop(), "rows": rows}
