"""From risks to tables and sentences: where printed theorems hold, and what holds instead."""

import itertools

from rich.table import Table

from experiments.linear_theory.closed_form import METHODS, REGIMES
from experiments.paper.table_text import narrow

NAMES = {"pfedhn": "pFedHN", "panacea": "Panacea"}
STATED = {"pfedhn": "III.2, 2dk m/n", "panacea": "III.3, 2dk r/n"}
WANTED = {
    "repaired": "Theta* = W V* G, V* at random",
    "consistent": "Theta* = W V*, V* = V* G~",
    "unrelated": "Theta* = W V*, V* at random",
}
DERIVED = {
    ("repaired", "pfedhn"): "dk/n times the sum of 1 + |g_i|^2 over attacked clients",
    ("repaired", "panacea"): "2dk r/n",
    ("consistent", "pfedhn"): "dk/n times the sum of 1 + c_i^2 over attacked clients",
    ("consistent", "panacea"): "dk/n (r + |c'M|^2)",
    ("unrelated", "pfedhn"): "2dk m/n",
    ("unrelated", "panacea"): "dk/n (r + |P^+ Q|^2 + n - rank P)",
}
ROUNDING = 1e-9
PREMISE = (
    "That attacked clients have no gradient is assumed: with random labels, cross-entropy's is "
    "on average the predictions less uniform ones, and zero for these only."
)


def graph_table(graphs: list[dict]) -> Table:
    """What the theorems take for granted of a graph, and what is so."""
    heads = ["graph", "G~", "n", "m", "rank\nG~", "gap", "column\nsums", "largest\n|g_i|^2"]
    heads += ["r", "r/m"]
    text = [
        [
            *(row["graph"], row["normalisation"], f"{row['clients']}", f"{row['attacked']}"),
            *(f"{row['rank']}", f"{row['gap']:.3f}"),
            " to ".join(dict.fromkeys(f"{end:.2f}" for end in row["column_sums"])),
            *(f"{row['largest_column']:.2f}", f"{row['r']:.3f}"),
            f"{row['r'] / row['attacked']:.3f}" if row["attacked"] else "",
        ]
        for row in graphs
    ]
    title = "G~ with rows or columns of sum one"
    return narrow(title, [heads, *text], left=("graph", "G~"))


def risk_table(regime: str, rows: list[dict]) -> Table:
    """Derived, measured and printed risks of one regime."""
    heads = ["graph", "G~", "method", "closed form", "trained", "holds", "printed", "holds"]
    text = [
        [
            *(row["graph"], row["normalisation"], row["method"], _number(row["closed_form"])),
            f"{_number(row['mean'])}±{_number(row['half_width'])}",
            *(_answer(row["closed_form_holds"]), _number(row["printed"])),
            _answer(row["printed_holds"]),
        ]
        for row in rows
    ]
    title = f"risk, {regime}: {WANTED[regime]}"
    return narrow(title, [heads, *text], left=("graph", "G~", "method"))


def findings(
    rows: list[dict], graphs: list[dict], worst: list[dict], *, within: float, steps: int
) -> list[str]:
    """What the tables say, a line for each statement.

    `within` is the number of standard errors by which a formula that holds may be off.
    """
    return [
        "± is a 95 % interval. A formula holds if it is off by no more than "
        f"{within:.1f} standard errors, as {len(rows)} true ones are in 999 of 1000 runs.",
        _about_closed_forms(rows, steps),
        *(_about_printed(rows, *which) for which in itertools.product(METHODS, REGIMES)),
        *(line for regime in REGIMES for line in _about_advantage(rows, regime)),
        *_about_graphs(graphs),
        *(_about_all(case) for case in worst),
        PREMISE,
    ]


def _about_closed_forms(rows, steps):
    wrong = [row for row in rows if not row["closed_form_holds"]]
    line = f"The closed forms hold {f'but for {_listed(wrong)}' if wrong else 'everywhere'}."
    if steps:
        line += f" They are of training's end; here it stops after {steps} steps."
    return line


def _about_printed(rows, method, regime):
    own = [row for row in rows if (row["method"], row["regime"]) == (method, regime)]
    right = [row for row in own if row["printed_holds"]]
    wrong = [row for row in own if not row["printed_holds"]]
    parts = [f"holds for {_listed(right)}"] if right else []
    if wrong:
        fails = "not" if right else "does not hold"
        told = "holds" if all(row["closed_form_holds"] for row in wrong) else "fails too"
        parts.append(f"{fails} for {_listed(wrong)}, where {DERIVED[regime, method]} {told}")
    return f"{STATED[method]} ({NAMES[method]}), {regime}: {'; '.join(parts)}."


def _about_advantage(rows, regime):
    own = [row for row in rows if row["regime"] == regime]
    worse = [
        panacea
        for pfedhn, panacea in zip(own[::2], own[1::2], strict=True)  # as `METHODS`
        if panacea["mean"] - panacea["margin"] > pfedhn["mean"] + pfedhn["margin"]
    ]
    return [f"Panacea's risk exceeds pFedHN's, {regime}: {_listed(worse)}."] if worse else []


def _about_graphs(graphs):
    singular = [row for row in graphs if row["rank"] < row["clients"]]
    ranks = {row["graph"]: f"{row['rank']} of {row['clients']}" for row in singular}
    told = ", ".join(f"{graph} has {rank}" for graph, rank in ranks.items())
    told = f"{told}; other codes give the same models" if told else "so it is for all of these"
    yield f"III.1 asks for rank G~ = n: {told}."
    split = [row for row in graphs if row["gap"] < ROUNDING]
    told = f"all but {_listed(split)}" if split else "all of these"
    yield f"V = V G~ leaves one code, up to a factor for each client, where gap > 0: {told}."
    long = [row for row in graphs if row["largest_column"] > 1 + ROUNDING]
    if long:
        sizes = ", ".join(f"{_listed([row])} has {row['largest_column']:.2f}" for row in long)
        yield f"|g_i|^2 <= 1 (property III.3): {sizes}; columns of sum one always have it."
    broken = [row for row in graphs if row["r"] > row["attacked"] + ROUNDING]
    told = f"all but {_listed(broken)}" if broken else "all of these"
    yield f"III.4, r <= m: {told}; columns of sum one always have it."


def _about_all(case):
    kind = "directed" if case["directed"] else "undirected"
    row, column = (case["r_per_attacked"][name] for name in ("row", "column"))
    line = f"III.4 over all {case['graphs']} {kind} graphs of {case['clients']} clients: "
    line += f"r/m is at most {column:.3f} with columns of sum one, {row:.3f} with rows"
    if row > 1 + ROUNDING:
        pairs = ", ".join(f"{i} hears {j}" for i, j in case["hears"])
        line += f" (m = {case['attacked']}; {pairs})"
    line += ". Where all want one model, with columns, Panacea has up to "
    return f"{line}{case['panacea_per_pfedhn']:.3f} of pFedHN's risk."


def _listed(rows):
    """The graphs of rows, each with its normalisation if the other is not among them."""
    found = {}
    for row in rows:
        found.setdefault(row["graph"], []).append(row["normalisation"])
    return ", ".join(
        f"{graph} ({norms[0]})" if set(norms) in ({"row"}, {"column"}) else graph
        for graph, norms in found.items()
    )


def _number(value):
    short = 0.1 <= value < 1e6 or value < 1e-9
    return f"{value:.2f}" if short else f"{value:.2g}"


def _answer(holds):
    return "yes" if holds else "no"
