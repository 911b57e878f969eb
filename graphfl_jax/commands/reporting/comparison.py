"""Comparisons of runs: means over seeds, curves, and paired differences over clients."""

import itertools
from typing import Any

import numpy as np

from graphfl_jax.commands.common.statistics import over_seeds, wilcoxon_p
from graphfl_jax.configs.values import as_text
from graphfl_jax.evaluation import POINTS
from graphfl_jax.runs.batch import ELSEWHERE

ALL_PAIRS = 4  # groups up to which each is compared with each, else with the first


def compared(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The comparison of runs from `folders.read_run`.

    Returns:
      ``groups``, runs that differ only in the seed, with means and 95 % intervals over seeds;
      ``pairs``, differences over clients between two groups; and ``unpaired``, why others are
      missing.

    Raises:
      ValueError: two runs have the same settings and the same seed.
    """
    groups = _grouped(runs)
    for group in groups:
        own = [runs[i] for i in group["runs"]]
        scored = [run for run in own if run["scores"] is not None]
        group["seeds"] = [run["seed"] for run in own]
        group["diverged"] = len(own) - len(scored)
        group["scores"] = scored and {
            point: over_seeds([_mean(run, point) for run in scored]) for point in POINTS
        }
        group["curve"] = _mean_curve(scored)
    chosen = itertools.combinations(range(len(groups)), 2)
    if len(groups) > ALL_PAIRS:
        chosen = ((0, other) for other in range(1, len(groups)))
    pairs, unpaired = [], []
    for a, b in chosen:
        found = _paired(
            *([runs[i] for i in groups[g]["runs"] if runs[i]["scores"]] for g in (a, b))
        )
        names = {"a": groups[a]["name"], "b": groups[b]["name"]}
        if isinstance(found, str):
            unpaired.append(names | {"why": found})
        else:
            pairs.append(names | found)
    return {"groups": groups, "pairs": pairs, "unpaired": unpaired}


def _grouped(runs):
    """Groups of runs that differ only in the seed, in the order of their first runs."""
    groups, seen = {}, {}
    for i, run in enumerate(runs):
        text = as_text(run["values"], without=ELSEWHERE | {"seed"})
        text += run["sha256"] * (run["data"] == "custom")
        before = seen.setdefault((text, run["seed"]), run)
        if before is not run:
            raise ValueError(
                f"folders={run['path']} has the settings and the seed of {before['path']}; "
                f"name one of them"
            )
        groups.setdefault(text, []).append(i)
    named = [{"runs": members} for members in groups.values()]
    methods = [runs[group["runs"][0]]["method"] for group in named]
    for group, method in zip(named, methods, strict=True):
        run = runs[group["runs"][0]]
        group["name"] = method
        if methods.count(method) > 1:
            group["name"] += f" ({_difference(run, runs, method)})"
        group |= {key: run[key] for key in ("data", "metric", "factor", "unit", "higher")}
    return named


def _difference(run, runs, method):
    """The settings in which a run differs from other runs of its method, as text."""
    others = [other["values"] for other in runs if other["method"] == method]
    names = sorted(set(itertools.chain.from_iterable(others)) - ELSEWHERE - {"seed"})
    found = [
        f"{name}={run['values'].get(name)}"
        for name in names
        if any(other.get(name) != run["values"].get(name) for other in others)
    ]
    return ", ".join(found) or run["name"]


def _training(run):
    return [i for i, client in enumerate(run["clients"]) if not client["new"]]


def _mean(run, point):
    return float(np.mean([run["scores"][point][i] for i in _training(run)]))


def _mean_curve(runs):
    """Means over seeds after the rounds that all of them evaluated."""
    if not runs or len({run["curve"]["split"] for run in runs}) > 1:
        return None
    own = [{row["x"]: row for row in run["curve"]["rows"]} for run in runs]
    rounds = sorted(set.intersection(*map(set, own)))
    rows = []
    for x in rounds:
        points = [point for point in POINTS if all(point in rows[x] for rows in own)]
        means = {
            point: np.mean([rows[x][point] for rows in own], axis=0).tolist()
            for point in points
        }
        rows.append({"x": x, **means})
    return {"split": runs[0]["curve"]["split"], "rows": rows}


def _paired(first, second):
    """Differences a - b at P over clients, or why there are none.

    The score of a client is its mean over the seeds that both have.
    """
    if not first or not second:
        return "no run has a score"
    by_seed = [{run["seed"]: run for run in runs} for runs in (first, second)]
    seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
    if not seeds:
        return "they have no seed in common"
    a, b = ([own[seed] for seed in seeds] for own in by_seed)
    if len({(run["data"], run["sha256"], run["metric"]) for run in (*a, *b)}) > 1:
        return "their data differ"
    if any(one["split"] != other["split"] for one, other in zip(a, b, strict=True)):
        return "their splits, new clients or attackers differ"
    if len({str(_tested(run)) for run in (*a, *b)}) > 1:
        return "their clients or the test examples of these differ"
    scores = np.array(
        [[np.take(r["scores"]["P"], _training(r)) for r in own] for own in (a, b)]
    )
    difference = np.float64(scores[0] - scores[1]).mean(axis=0)
    units = {key: a[0][key] for key in ("higher", "factor", "unit")}
    return {"seeds": seeds} | summary_of(difference) | units


def _tested(run):
    """The clients that train, with their numbers of test examples."""
    return [
        (run["clients"][i]["name"], run["clients"][i]["examples"].get("test"))
        for i in _training(run)
    ]


def summary_of(difference: np.ndarray) -> dict[str, Any]:
    """Mean difference over clients, its 95 % interval, and Wilcoxon's signed-rank test.

    Args:
      difference: [N], of the clients.

    Returns:
      ``mean``; ``half_width``, by Student's t, None for a single client; ``p``, two-sided, None
      if no client differs; ``clients``; and how many are ``above`` and ``below`` zero.
    """
    interval = over_seeds(list(difference))  # here, over clients
    return {
        "mean": interval["mean"],
        "half_width": interval["half_width"],
        "p": wilcoxon_p(difference) if np.any(difference) else None,
        "clients": len(difference),
        "above": int(np.sum(difference > 0)),
        "below": int(np.sum(difference < 0)),
    }
