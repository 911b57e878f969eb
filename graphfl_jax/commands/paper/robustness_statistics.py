"""Scores under attack and losses of benign clients: rows and tables of the robustness entry."""

import numpy as np

from graphfl_jax.commands.common.statistics import diverged, over_seeds
from graphfl_jax.commands.common.units import UNITS
from graphfl_jax.evaluation import POINTS


def robustness_row(runs: list[dict], clean: list[dict]) -> dict:
    """Statistics of attacked runs at G, L and P, in the printed unit.

    Args:
      runs: with attackers, one per seed.
      clean: without attackers, with the same seeds.

    Returns:
      ``metric``, ``unit``, ``higher_is_better``, the number of ``attackers`` and of
      ``diverged`` runs, ``validation``, the mean score of all clients at P on validation, None
      without it or if a run diverged, and for each of the ``points`` G, L and P summaries by
      `over_seeds`:
      ``benign`` and ``all``, mean scores of benign and of all clients; ``loss``, how much worse
      the clients that are benign in a run score than in the clean run; and ``success`` of a
      backdoor in %. ``points`` is None if a run diverged or has no benign clients.
    """
    metric = runs[0]["metric"]
    scale, unit = UNITS[metric]
    row = {
        "metric": metric,
        "unit": unit,
        "higher_is_better": runs[0]["higher_is_better"],
        "attackers": len(runs[0]["attack"]["ids"]),
        "diverged": sum(map(diverged, runs)),
        "validation": _validation(runs),
        "points": None,
    }
    if any(map(diverged, runs + clean)) or any(not run["attack"]["benign"] for run in runs):
        return row
    sign = scale if runs[0]["higher_is_better"] else -scale
    row["points"] = {}
    for point in POINTS:
        values = {"benign": [], "all": [], "loss": [], "success": []}
        for run, clean_run in zip(runs, clean, strict=True):
            attack = run["attack"]
            final, clean_final = (one["scores"]["final"][point] for one in (run, clean_run))
            benign = attack["benign"][point]["mean"]
            clean_benign = np.delete(clean_final["per_client"], attack["ids"]).mean()
            values["benign"].append(scale * benign)
            values["all"].append(scale * final["mean"])
            values["loss"].append(sign * (clean_benign - benign))
            if attack["success"]:
                values["success"].append(100 * attack["success"][point])
        row["points"][point] = {name: over_seeds(own) for name, own in values.items() if own}
    return row


def _validation(runs):
    """The mean over runs of the mean validation score at P, if all have one."""
    if any(map(diverged, runs)):
        return None
    scores = [run["scores"].get("validation") for run in runs]
    if not all(scores):
        return None
    return float(np.mean([own["P"]["mean"] for own in scores]))


def with_best_defences(rows: list[dict]) -> list[dict]:
    """The rows of one defence for each method: the most stable, then the best on validation.

    Args:
      rows: of `robustness_row`, with ``method``, and ``undefended``, its name without defence.

    Raises:
      ValueError: runs that did not diverge have no validation score.
    """

    def rank(method):
        own = [row for row in rows if row["method"] == method]
        scores = [row["validation"] for row in own if not row["diverged"]]
        if None in scores:
            raise ValueError(
                "best_defences chooses by validation, and there is no validation split; set "
                "--config.data.val_fraction=0.2"
            )
        sign = 1 if own[0]["higher_is_better"] else -1
        broken = sum(row["diverged"] for row in own)
        return -broken, sign * float(np.mean(scores)) if scores else -np.inf

    best = []
    for undefended in dict.fromkeys(row["undefended"] for row in rows):
        of_all = [row["method"] for row in rows if row["undefended"] == undefended]
        best.append(max(dict.fromkeys(of_all), key=rank))
    return [row for row in rows if row["method"] in best]


def robustness_tables(rows: list[dict]) -> list[tuple[str, list[list[str]]]]:
    """Titles and text rows of the tables of each attack, methods by ratios, at P."""
    tables = []
    for attack in dict.fromkeys(row["attack"] for row in rows):
        chosen = [row for row in rows if row["attack"] == attack]
        unit = f"{chosen[0]['metric']} at P, {chosen[0]['unit']}"
        titles = {
            "benign": f"{attack}: {unit}, benign clients",
            "all": f"{attack}: {unit}, all clients",
            "loss": f"{attack}: loss of benign clients, {unit}",
        }
        if any("success" in row["points"]["P"] for row in chosen if row["points"]):
            titles["success"] = f"{attack}: success at P, % of benign clients' triggered images"
        tables += [(title, text_rows(chosen, name)) for name, title in titles.items()]
        first = chosen[0]["method"]
        compared = excess_losses(chosen, first)
        if any(row["points"] for row in compared):
            title = f"{attack}: loss of benign clients minus that with {first}, {unit}"
            tables.append((title, text_rows(compared, "excess_loss")))
    return tables


def excess_losses(rows: list[dict], first: str) -> list[dict]:
    """Rows of all methods but `first`: their losses minus its losses, seed by seed."""
    reference = {row["ratio"]: row["points"] for row in rows if row["method"] == first}
    compared = []
    for row in rows:
        if row["method"] == first or row["ratio"] == 0:
            continue
        points, first_points = row["points"], reference[row["ratio"]]
        excess = None
        if points and first_points:
            pair = (points["P"]["loss"]["seeds"], first_points["P"]["loss"]["seeds"])
            excess = {"P": {"excess_loss": over_seeds(np.subtract(*pair).tolist())}}
        compared.append(row | {"points": excess})
    return compared


def text_rows(rows: list[dict], name: str) -> list[list[str]]:
    """One statistic as text: heads with the ratios, and a row for each method."""
    ratios = list(dict.fromkeys(row["ratio"] for row in rows))
    cells = {}
    for row in rows:
        cells.setdefault(row["method"], []).append(_cell(row, name))
    return [
        ["method", *(f"{ratio:g}" for ratio in ratios)],
        *([method, *own] for method, own in cells.items()),
    ]


def _cell(row, name):
    """Mean and half width of the interval, the number of diverged runs, or nothing."""
    if row["diverged"]:
        return f"{row['diverged']} diverged"
    if row["points"] is None or name not in row["points"]["P"]:
        return ""
    value = row["points"]["P"][name]
    half_width = value["half_width"]
    return f"{value['mean']:.2f}" + ("" if half_width is None else f"±{half_width:.2f}")
