"""Scores under attack and losses of benign clients: rows and tables of `robustness`."""

from collections.abc import Sequence

import numpy as np

from experiments.paper.columns import interval_text
from graphfl_jax.commands.common.statistics import diverged, over_seeds
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.evaluation import POINTS
from graphfl_jax.metrics import mean_loss, rank
from graphfl_jax.runs.results import NEIGHBOURS


def robustness_row(
    runs: list[dict], clean: list[dict], references: Sequence[list[dict]] = ()
) -> dict:
    """Statistics of attacked runs at G, L and P, beside clean ones with the same seeds.

    Args:
      references: runs without attackers of the methods of the bound, each with the same seeds;
        without them there is no bound.

    Returns, in the printed unit:
      ``metric``, ``unit``, ``higher_is_better``, the numbers of ``seeds``, of ``attackers`` and
      of ``diverged`` runs, ``validation``, the mean score of all clients at P on validation,
      None without it or if a run diverged, ``validation_loss``, the same of the loss, and for
      each of the ``points`` G, L and P summaries by `over_seeds`:
      ``benign`` and ``all``, mean scores of benign and of all clients; ``loss``, how much worse
      the clients that are benign in a run score than in the clean run; ``increase``, the same
      in % of their score in the clean run, if lower scores are better; and ``success`` of a
      backdoor in %; and, with `references`, ``bound``, how much worse the benign clients score
      than the same clients in the best of them, which is at P alone, and in % if lower scores
      are better. Scores that are not finite at G or L are left out. ``points`` is None
      if a run diverged or has no benign clients; without ``loss`` and ``increase`` if only a
      clean run diverged.
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
        "seeds": len(runs),
        "attackers": len(runs[0]["attack"]["ids"]),
        "diverged": sum(map(_lost, runs)),
        "validation": _validation(runs, "mean"),
        "validation_loss": _validation(runs, "loss"),
        "points": None,
        "neighbours": {},
        "rejected": {},
    }
    if row["diverged"] or any(not run["attack"]["benign"] for run in runs):
        return row
    with_loss = not any(map(_lost, clean))
    sign = scale if runs[0]["higher_is_better"] else -scale
    row["points"] = {
        point: _scores_at(point, runs, clean if with_loss else [None] * len(runs), sign)
        for point in POINTS
    }
    if references and not any(_lost(run) for others in references for run in others):
        row["points"]["P"]["bound"] = over_seeds(_bounds(runs, references, sign))
    if with_loss:
        row["neighbours"] = _by_neighbours(runs, clean, sign)
    for kind in ("honest", "malicious"):
        shares = [(run["rejected"] or {}).get(kind) for run in runs]
        if None not in shares:
            row["rejected"][kind] = over_seeds([100 * share for share in shares])
    return row


def _lost(run):
    """Whether a run diverged, or its benign clients have no finite score at P."""
    benign = run["attack"]["benign"] if run["attack"] else run["scores"]["final"]
    return diverged(run) or bool(benign and not _finite(benign["P"]["mean"]))


def _finite(number):
    return number is not None and np.isfinite(number)


def _scores_at(point, runs, clean, sign):
    """The statistics of `robustness_row` at a point; without losses if `clean` has no runs."""
    values = {name: [] for name in ("benign", "all", "loss", "increase", "success")}
    for run, clean_run in zip(runs, clean, strict=True):
        attack = run["attack"]
        benign = attack["benign"][point]["mean"]
        if not _finite(benign):  # as at G, where clients have a veto
            continue
        values["benign"].append(abs(sign) * benign)
        every = run["scores"]["final"][point]["mean"]
        if _finite(every):  # attackers can have scores that are not
            values["all"].append(abs(sign) * every)
        if clean_run is not None:
            before = clean_run["scores"]["final"][point]["per_client"]
            clean_benign = np.delete(before, attack["ids"]).mean()
            values["loss"].append(sign * (clean_benign - benign))
            if sign < 0:
                values["increase"].append(100 * (benign / clean_benign - 1))
        if attack["success"]:
            values["success"].append(100 * attack["success"][point])
    return {name: over_seeds(seeds) for name, seeds in values.items() if seeds}


def _bounds(runs, references, sign):
    """For each seed, how much worse benign clients score at P than in the best reference."""
    bounds = []
    for run, *others in zip(runs, *references, strict=True):
        ids, now = run["attack"]["ids"], run["attack"]["benign"]["P"]["mean"]
        before = [other["scores"]["final"]["P"]["per_client"] for other in others]
        means = [np.delete(scores, ids).mean() for scores in before]
        bounds.append(sign * (max(means) - now) if sign > 0 else 100 * (now / min(means) - 1))
    return bounds


def _by_neighbours(runs, clean, sign):
    """The losses of benign clients by the share of malicious ones among their neighbours."""
    losses = {}
    for run, clean_run in zip(runs, clean, strict=True):
        for part in run["attack"]["benign_by_malicious_neighbours"] or ():
            of_share = losses.setdefault(part["share"], {point: [] for point in POINTS})
            for point, score in part["scores"].items():
                if not _finite(score):
                    continue
                before = np.array(clean_run["scores"]["final"][point]["per_client"])
                of_share[point].append(sign * (before[part["ids"]].mean() - score))
    return {
        share: {point: over_seeds(values) for point, values in losses[share].items() if values}
        for share in NEIGHBOURS
        if share in losses
    }


def _validation(runs, name):
    """The mean over runs of the mean validation score or loss at P, if all have one."""
    if any(map(_lost, runs)):
        return None
    scores = [run["scores"].get("validation") for run in runs]
    if not all(scores):
        return None
    return mean_loss(points["P"].get(name) for points in scores)


NO_VALIDATION = (
    "best_defences chooses by validation, and there is no validation split; set "
    "--config.data.val_fraction=0.2"
)


def defence_choices(rows: list[dict]) -> list[dict]:
    """Which defence of each method is best: the most stable, then `rank` on validation.

    The most stable defences of a method are those with the fewest diverged runs. Their
    validation scores and losses are means over the attacks and shares with which none of them
    diverged; if there are none, over those with which the defence itself did not diverge. Runs
    without attackers count once, and not for every attack.

    Args:
      rows: of `robustness_row`, with ``attack``, ``ratio``, ``method``, and ``undefended``, its
        name without defence.

    Returns:
      For each method and defence, its name as ``method``; the number of ``diverged`` runs; the
      ``validation`` score as above, None for a defence that is not among the most stable; and
      whether it is ``chosen``.

    Raises:
      ValueError: runs that did not diverge have no validation score.
    """
    if any(row["validation"] is None and not row["diverged"] for row in rows):
        raise ValueError(NO_VALIDATION)
    by_method = {}
    for row in rows:
        cells = by_method.setdefault(row["undefended"], {}).setdefault(row["method"], {})
        cells[row["attack"] if row["ratio"] else "", row["ratio"]] = row
    return [choice for defences in by_method.values() for choice in _choices(defences)]


def _choices(rows):
    """The `defence_choices` of one method, from {defence: {(attack, share): row}}."""
    broken = {
        name: sum(row["diverged"] for row in cells.values()) for name, cells in rows.items()
    }
    stable = [name for name in rows if broken[name] == min(broken.values())]
    lost = {cell for name in stable for cell, row in rows[name].items() if row["diverged"]}
    scores, places, last = {}, {}, (np.inf, np.inf)
    for name in stable:
        whole = {cell: row for cell, row in rows[name].items() if not row["diverged"]}
        counted = [row for cell, row in whole.items() if cell not in lost]
        counted = counted or list(whole.values())
        scores[name], places[name] = None, last
        if counted:
            scores[name] = float(np.mean([row["validation"] for row in counted]))
            loss = mean_loss(row.get("validation_loss") for row in counted)
            better = counted[0]["higher_is_better"]
            places[name] = rank(scores[name], loss, higher_is_better=better)
    best = min(stable, key=places.get)
    return [
        {"method": name, "diverged": broken[name], "validation": scores.get(name)}
        | {"chosen": name == best}
        for name in rows
    ]


def choice_table(choices: list[dict], metric: str) -> tuple[str, list[list[str]]]:
    """The title and the text rows of `defence_choices`."""
    scale, unit = UNITS[metric]
    heads = ["method", "diverged runs", "validation", "chosen"]
    text = [
        [
            choice["method"],
            str(choice["diverged"]),
            "" if choice["validation"] is None else f"{scale * choice['validation']:.2f}",
            "yes" if choice["chosen"] else "",
        ]
        for choice in choices
    ]
    return f"choice of defences: validation {metric} at P, {unit}", [heads, *text]


def robustness_tables(rows: list[dict]) -> list[tuple[str, list[list[str]]]]:
    """Titles and text rows of the tables, attacks and methods by ratios, at P.

    Rows with a bound have the tables of `bound_tables`.
    """
    if any(_at_p(row, "bound") for row in rows):
        return bound_tables(rows)
    metric, first = rows[0]["metric"], rows[0]["method"]
    unit, loss = f"{metric} at P, {rows[0]['unit']}", "loss of benign clients"
    of_statistics = {
        "benign": f"{unit}, benign clients",
        "loss": f"{loss}, {unit}",
        "increase": f"increase of the {metric} of benign clients at P, %",
        "success": "success at P, % of benign clients' triggered images",
    }
    # By title: (row, method, statistic of `over_seeds` or None) of each cell.
    tables = {
        title: [(row, row["method"], _at_p(row, name)) for row in rows]
        for name, title in of_statistics.items()
    }
    tables[f"{loss} by their malicious neighbours, {unit}"] = [
        (row, f"{row['method']}, {share}", row["neighbours"].get(share, {}).get("P"))
        for row in rows
        for share in NEIGHBOURS
    ]
    rejecting = {row["method"] for row in rows if row["rejected"]}
    tables["rejected uploads, %"] = [
        (row, f"{row['method']}, {kind}", row["rejected"].get(key))
        for row in rows
        if row["method"] in rejecting
        for kind, key in (("benign", "honest"), ("malicious", "malicious"))
    ]
    tables[f"{loss} minus that with {first}, {unit}"] = excess_losses(rows, first)
    return [
        (title, text_rows(cells))
        for title, cells in tables.items()
        if title == of_statistics["benign"] or any(statistic for _, _, statistic in cells)
    ]


def bound_tables(rows: list[dict]) -> list[tuple[str, list[list[str]]]]:
    """Scores of benign clients under the worst attack; the bound under this and each one."""
    score = f"{rows[0]['metric']} at P, {rows[0]['unit']}, benign clients"
    bound = "benign clients at P below the bound, "
    bound += "points" if rows[0]["higher_is_better"] else "%"
    return [
        (f"{score}, under the worst attack", worst_text_rows(rows, "benign")),
        (f"{bound}, under the worst attack", worst_text_rows(rows, "bound")),
        (bound, text_rows([(row, row["method"], _at_p(row, "bound")) for row in rows])),
    ]


def worst_text_rows(rows: list[dict], name: str) -> list[list[str]]:
    """A statistic under the attack with which most runs diverge, else with the worst mean."""
    sign = -1 if name == "benign" and rows[0]["higher_is_better"] else 1

    def badness(row):
        statistic = _at_p(row, name)
        return row["diverged"], sign * statistic["mean"] if statistic else -np.inf

    ratios = list(dict.fromkeys(row["ratio"] for row in rows))
    cells = {}
    for row in rows:
        cells.setdefault((row["method"], row["ratio"]), []).append(row)
    worst = {cell: max(of_attacks, key=badness) for cell, of_attacks in cells.items()}
    texts = {}
    for (method, ratio), row in worst.items():
        text = _cell(row, _at_p(row, name))
        texts[method, ratio] = f"{row['attack']} {text}" if ratio else text
    lines = [["method", *(f"{ratio:g}" for ratio in ratios)]]
    for method in dict.fromkeys(row["method"] for row in rows):
        lines.append([method, *(texts.get((method, ratio), "") for ratio in ratios)])
    return lines


def _at_p(row, name):
    return row["points"] and row["points"]["P"].get(name)


def excess_losses(rows: list[dict], first: str) -> list[tuple[dict, str, dict | None]]:
    """The cells of all methods but `first`: their losses minus its losses, seed by seed."""
    reference = {
        (row["attack"], row["ratio"]): _at_p(row, "loss")
        for row in rows
        if row["method"] == first
    }
    cells = []
    for row in rows:
        if row["method"] != first and row["ratio"]:
            pair = [_at_p(row, "loss"), reference[row["attack"], row["ratio"]]]
            excess = None
            if all(pair):
                excess = over_seeds(np.subtract(*(loss["seeds"] for loss in pair)).tolist())
            cells.append((row, row["method"], excess))
    return cells


def text_rows(cells: list[tuple[dict, str, dict | None]]) -> list[list[str]]:
    """Statistics as text: heads with the ratios, and a row for each attack and method."""
    ratios = list(dict.fromkeys(row["ratio"] for row, *_ in cells))
    lines = {}
    for row, method, statistic in cells:
        of_ratios = lines.setdefault(row["attack"], {}).setdefault(method, {})
        of_ratios[row["ratio"]] = _cell(row, statistic)
    return [
        ["attack", "method", *(f"{ratio:g}" for ratio in ratios)],
        *(
            [attack, method, *(of_ratios.get(ratio, "") for ratio in ratios)]
            for attack, methods in lines.items()
            for method, of_ratios in methods.items()
        ),
    ]


def _cell(row, statistic):
    """Mean and half width of the interval, the number of diverged runs, or nothing.

    With some seeds, there may be no clients of a kind. Then the cell says how many seeds count.
    """
    if row["diverged"]:
        return f"{row['diverged']} diverged"
    if not statistic:
        return ""
    seeds, every = len(statistic["seeds"]), row["seeds"]
    part = f" ({seeds} of {every} seeds)" if seeds < every else ""
    return interval_text(statistic) + part
