"""What malicious clients cost the others: rows and tables of `experiments.robustness`."""

import numpy as np

from experiments.linear_theory.simulation import interval
from experiments.paper.published import UNITS
from experiments.paper.table_text import diverged
from graphfl_jax.runs.results import POINTS


def shares(words: list[str]) -> list[float]:
    """Ratios in ascending order, with 0.

    Raises:
      ValueError: one is no share.
    """
    try:
        ratios = {float(word) for word in words}
    except ValueError:
        ratios = {-1.0}
    if not all(0 <= ratio <= 1 for ratio in ratios):
        raise ValueError(
            f"ratios={','.join(words)} must be in [0, 1]; set --ratios=0,0.1,0.2 or so"
        )
    return sorted({0.0, *ratios})


def row(runs: list[dict], clean: list[dict]) -> dict:
    """Scores at G, L and P in the unit of print, of runs and of those without attackers.

    Of each point ``benign``, ``all``, ``lost`` and ``success``: a ``mean`` over seeds, the
    ``half`` width of its interval, and the ``seeds``. None where a run diverged, or nobody is
    honest.
    """
    metric = runs[0]["metric"]
    scale, unit = UNITS[metric]
    told = {
        "metric": metric,
        "unit": unit,
        "higher_is_better": runs[0]["higher_is_better"],
        "attackers": len(runs[0]["attack"]["ids"]),
        "diverged": sum(map(diverged, runs)),
        "points": None,
    }
    if any(map(diverged, runs + clean)) or any(not run["attack"]["benign"] for run in runs):
        return told
    sign = scale if runs[0]["higher_is_better"] else -scale
    told["points"] = {}
    for point in POINTS:
        numbers = {"benign": [], "all": [], "lost": [], "success": []}
        for run, before in zip(runs, clean, strict=True):
            final, first = (one["scores"]["final"][point] for one in (run, before))
            honest = np.delete(first["per_client"], run["attack"]["ids"]).mean()
            benign = run["attack"]["benign"][point]["mean"]
            numbers["benign"].append(scale * benign)
            numbers["all"].append(scale * final["mean"])
            numbers["lost"].append(sign * (honest - benign))
            if run["attack"]["success"]:
                numbers["success"].append(100 * run["attack"]["success"][point])
        told["points"][point] = {name: over_seeds(own) for name, own in numbers.items() if own}
    return told


def over_seeds(numbers: list[float]) -> dict:
    """A mean, the half width of its interval, None of one number, and the numbers."""
    half = None
    if len(numbers) > 1:
        error = np.std(numbers, ddof=1) / np.sqrt(len(numbers))
        half = float(interval(len(numbers), missed=0.05) * error)
    return {"mean": float(np.mean(numbers)), "half": half, "seeds": list(map(float, numbers))}


def tables_of(rows: list[dict]) -> list[tuple[str, list[list[str]]]]:
    """For each attack tables of methods by ratios, at P: titles and cells."""
    tables = []
    for attack in dict.fromkeys(one["attack"] for one in rows):
        own = [one for one in rows if one["attack"] == attack]
        unit = f"{own[0]['metric']} at P, {own[0]['unit']}"
        titles = {
            "benign": f"{attack}: {unit}, of honest clients",
            "all": f"{attack}: {unit}, of all clients",
            "lost": f"{attack}: what honest clients lost, {unit}",
        }
        if any("success" in one["points"]["P"] for one in own if one["points"]):
            titles["success"] = f"{attack}: success at P, % of honest clients' triggered images"
        tables += [(title, grid(own, name)) for name, title in titles.items()]
        first = own[0]["method"]
        compared = behind(own, first)
        if any(one["points"] for one in compared):
            title = f"{attack}: what the others lost more than {first}, {unit}"
            tables.append((title, grid(compared, "behind")))
    return tables


def behind(rows: list[dict], first: str) -> list[dict]:
    """The rows of all methods but the first, with what they lost more than it, seed by seed."""
    base = {one["ratio"]: one["points"] for one in rows if one["method"] == first}
    compared = []
    for one in rows:
        points, against = one["points"], base[one["ratio"]]
        if one["method"] == first or one["ratio"] == 0:
            continue
        if points and against:
            pairs = (points["P"]["lost"]["seeds"], against["P"]["lost"]["seeds"])
            points = {"P": {"behind": over_seeds(np.subtract(*pairs).tolist())}}
        compared.append(one | {"points": points and against and points})
    return compared


def grid(rows: list[dict], name: str) -> list[list[str]]:
    """Cells of one number: heads, and a line for each method."""
    ratios = list(dict.fromkeys(one["ratio"] for one in rows))
    lines = {}
    for one in rows:
        lines.setdefault(one["method"], []).append(cell(one, name))
    return [
        ["method", *(f"{ratio:g}" for ratio in ratios)],
        *([m, *c] for m, c in lines.items()),
    ]


def cell(one: dict, name: str) -> str:
    if one["diverged"]:
        return f"{one['diverged']} diverged"
    if one["points"] is None or name not in one["points"]["P"]:
        return ""
    told = one["points"]["P"][name]
    return f"{told['mean']:.2f}" + (f"±{told['half']:.2f}" if told["half"] is not None else "")
