"""Scores under attack and losses of benign clients: rows and tables of `graphfl robustness`."""

import numpy as np

from graphfl_jax.commands.common.statistics import diverged, over_seeds
from graphfl_jax.commands.common.units import UNITS
from graphfl_jax.evaluation import POINTS
from graphfl_jax.runs.attack_results import NEIGHBOURS


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
      backdoor in %. ``points`` is None if a run diverged or has no benign clients; without
      ``loss`` if only a clean run diverged.
      ``neighbours`` has the ``loss`` at each point of the benign clients with each of
      `NEIGHBOURS` as their share of malicious neighbours, where there are such clients and
      losses.
      ``rejected`` has the shares of rejected uploads of ``honest`` and ``malicious`` clients
      in %, where a defence rejects uploads.
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
        "neighbours": {},
        "rejected": {},
    }
    if row["diverged"] or any(not run["attack"]["benign"] for run in runs):
        return row
    with_loss = not any(map(diverged, clean))
    sign = scale if runs[0]["higher_is_better"] else -scale
    row["points"] = {}
    for point in POINTS:
        values = {"benign": [], "all": [], "loss": [], "success": []}
        for run, clean_run in zip(runs, clean, strict=True):
            attack = run["attack"]
            benign = attack["benign"][point]["mean"]
            values["benign"].append(scale * benign)
            values["all"].append(scale * run["scores"]["final"][point]["mean"])
            if with_loss:
                before = clean_run["scores"]["final"][point]["per_client"]
                clean_benign = np.delete(before, attack["ids"]).mean()
                values["loss"].append(sign * (clean_benign - benign))
            if attack["success"]:
                values["success"].append(100 * attack["success"][point])
        row["points"][point] = {name: over_seeds(own) for name, own in values.items() if own}
    if with_loss:
        row["neighbours"] = _by_neighbours(runs, clean, sign)
    for kind in ("honest", "malicious"):
        shares = [(run["rejected"] or {}).get(kind) for run in runs]
        if None not in shares:
            row["rejected"][kind] = over_seeds([100 * share for share in shares])
    return row


def _by_neighbours(runs, clean, sign):
    """The losses of benign clients by the share of malicious ones among their neighbours."""
    losses = {}
    for run, clean_run in zip(runs, clean, strict=True):
        for own in run["attack"]["benign_by_malicious_neighbours"] or ():
            of_share = losses.setdefault(own["share"], {point: [] for point in POINTS})
            for point, score in own["scores"].items():
                before = np.array(clean_run["scores"]["final"][point]["per_client"])
                of_share[point].append(sign * (before[own["ids"]].mean() - score))
    return {
        share: {point: over_seeds(values) for point, values in losses[share].items()}
        for share in NEIGHBOURS
        if share in losses
    }


def _validation(runs):
    """The mean over runs of the mean validation score at P, if all have one."""
    if any(map(diverged, runs)):
        return None
    scores = [run["scores"].get("validation") for run in runs]
    if not all(scores):
        return None
    return float(np.mean([own["P"]["mean"] for own in scores]))


NO_VALIDATION = (
    "best_defences chooses by validation, and there is no validation split; set "
    "--config.data.val_fraction=0.2"
)


def with_best_defences(rows: list[dict]) -> list[dict]:
    """The rows of one defence for each method: the most stable, then the best on validation.

    The most stable defences of a method are those with the fewest diverged runs. Their
    validation scores are means over the attacks and shares with which none of them diverged; if
    there are none, over those with which the defence itself did not diverge. Runs without
    attackers count once, and not for every attack.

    Args:
      rows: of `robustness_row`, with ``attack``, ``ratio``, ``method``, and ``undefended``, its
        name without defence.

    Raises:
      ValueError: runs that did not diverge have no validation score.
    """
    if any(row["validation"] is None and not row["diverged"] for row in rows):
        raise ValueError(NO_VALIDATION)
    by_method = {}
    for row in rows:
        cell = (row["attack"] if row["ratio"] else "", row["ratio"])
        own = by_method.setdefault(row["undefended"], {}).setdefault(row["method"], {})
        own[cell] = row
    best = [_best(of_methods) for of_methods in by_method.values()]
    return [row for row in rows if row["method"] in best]


def _best(rows):
    """The defence of {defence: {(attack, share): row}} that `with_best_defences` keeps."""
    broken = {name: sum(row["diverged"] for row in own.values()) for name, own in rows.items()}
    stable = [name for name in rows if broken[name] == min(broken.values())]
    lost = {cell for name in stable for cell, row in rows[name].items() if row["diverged"]}

    def score(name):
        whole = {cell: row for cell, row in rows[name].items() if not row["diverged"]}
        common = [row["validation"] for cell, row in whole.items() if cell not in lost]
        chosen = common or [row["validation"] for row in whole.values()]
        sign = 1 if next(iter(rows[name].values()))["higher_is_better"] else -1
        return sign * float(np.mean(chosen)) if chosen else -np.inf

    return max(stable, key=score)


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
        parts = {
            f"loss of benign clients by their malicious neighbours, {unit}": by_neighbours,
            "rejected uploads, %": by_rejected,
        }
        for title, split in parts.items():
            own = split(chosen)
            if any(row["points"] for row in own):
                tables.append((f"{attack}: {title}", text_rows(own, "part")))
        first = chosen[0]["method"]
        compared = excess_losses(chosen, first)
        if any(row["points"] for row in compared):
            title = f"{attack}: loss of benign clients minus that with {first}, {unit}"
            tables.append((title, text_rows(compared, "excess_loss")))
    return tables


def by_neighbours(rows: list[dict]) -> list[dict]:
    """A row for each share of malicious neighbours, with the losses at P as ``part``."""
    return [
        _of_part(row, share, row["neighbours"].get(share, {}).get("P"))
        for row in rows
        for share in NEIGHBOURS
    ]


def by_rejected(rows: list[dict]) -> list[dict]:
    """Rows for honest and malicious clients, with the rejected uploads as ``part``."""
    rejecting = {row["method"] for row in rows if row["rejected"]}
    return [
        _of_part(row, kind, row["rejected"].get(kind))
        for row in rows
        if row["method"] in rejecting
        for kind in ("honest", "malicious")
    ]


def _of_part(row, name, statistic):
    """The row of a part of the clients, with a statistic of `over_seeds` or None."""
    points = {"P": {"part": statistic}} if statistic else None
    return row | {"method": f"{row['method']}, {name}", "points": points}


def excess_losses(rows: list[dict], first: str) -> list[dict]:
    """Rows of all methods but `first`: their losses minus its losses, seed by seed."""
    reference = {row["ratio"]: row["points"] for row in rows if row["method"] == first}
    compared = []
    for row in rows:
        if row["method"] == first or row["ratio"] == 0:
            continue
        pair = [
            points and points["P"].get("loss")
            for points in (row["points"], reference[row["ratio"]])
        ]
        excess = None
        if all(pair):
            changes = np.subtract(*(loss["seeds"] for loss in pair)).tolist()
            excess = {"P": {"excess_loss": over_seeds(changes)}}
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
