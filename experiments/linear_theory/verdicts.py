"""Tables of risks, and a verdict on each statement of the theorems."""

import itertools

from experiments.linear_theory.closed_form import METHODS, REGIMES

NAMES = {"pfedhn": "pFedHN", "panacea": "Panacea"}
STATED = {"pfedhn": "Theorem III.2, 2dk m/n", "panacea": "Theorem III.3, 2dk r/n"}
TARGETS = {
    "averaged": "Theta* = W V* G, random V*",
    "consistent": "Theta* = W V*, V* = V* G~",
    "unrelated": "Theta* = W V*, random V*",
}
DERIVED = {
    ("averaged", "pfedhn"): "dk/n times the sum of 1 + |g_i|^2 over attacked clients",
    ("averaged", "panacea"): "2dk r/n",
    ("consistent", "pfedhn"): "dk/n times the sum of 1 + c_i^2 over attacked clients",
    ("consistent", "panacea"): "dk/n (r + |c'M|^2)",
    ("unrelated", "pfedhn"): "2dk m/n",
    ("unrelated", "panacea"): "dk/n (r + |P^+ Q|^2 + n - rank P)",
}
ROUNDING = 1e-9
PREMISE = (
    "All results assume that attacked clients have zero gradient on average. With random "
    "labels the expected gradient of the cross-entropy is the prediction minus the uniform "
    "distribution, which is zero only for uniform predictions."
)


def graph_rows(graphs: list[dict]) -> list[list[str]]:
    """The properties that the theorems assume, one row for each graph."""
    heads = ["graph", "G~", "n", "m", "rank\nG~", "gap", "column\nsums", "largest\n|g_i|^2"]
    heads += ["r", "r/m"]
    rows = [
        [
            graph["graph"],
            graph["normalisation"],
            f"{graph['clients']}",
            f"{graph['attacked']}",
            f"{graph['rank']}",
            f"{graph['gap']:.3f}",
            " to ".join(dict.fromkeys(f"{end:.2f}" for end in graph["column_sums"])),
            f"{graph['largest_column']:.2f}",
            f"{graph['r']:.3f}",
            f"{graph['r'] / graph['attacked']:.3f}" if graph["attacked"] else "",
        ]
        for graph in graphs
    ]
    return [heads, *rows]


def risk_rows(risks: list[dict]) -> list[list[str]]:
    """Risks by the closed form, by simulation and as the theorems state them."""
    heads = ["graph", "G~", "method", "closed form", "trained", "holds", "stated", "holds"]
    rows = [
        [
            risk["graph"],
            risk["normalisation"],
            risk["method"],
            _number(risk["closed_form"]),
            f"{_number(risk['mean'])}±{_number(risk['half_width'])}",
            _answer(risk["closed_form_holds"]),
            _number(risk["stated"]),
            _answer(risk["stated_holds"]),
        ]
        for risk in risks
    ]
    return [heads, *rows]


def verdicts(
    risks: list[dict], graphs: list[dict], worst: list[dict], *, within: float, steps: int
) -> list[str]:
    """Sentences that say where each statement holds.

    Args:
      risks: rows of `theory.risks_of`.
      graphs: `closed_form.conditions` of each graph.
      worst: results of `closed_form.extremes`.
      within: standard errors by which a true formula may differ from the simulated mean.
    """
    return [
        "± is a 95 % confidence interval. A formula holds if it differs from the simulated "
        f"mean by at most {within:.1f} standard errors; {len(risks)} true formulas all pass "
        "this test with a probability of at least 0.999.",
        _about_closed_forms(risks, steps),
        *(_about_theorem(risks, *which) for which in itertools.product(METHODS, REGIMES)),
        *(line for regime in REGIMES for line in _about_advantage(risks, regime)),
        *_about_graphs(graphs),
        *(_about_extremes(case) for case in worst),
        PREMISE,
    ]


def _about_closed_forms(risks, steps):
    wrong = [risk for risk in risks if not risk["closed_form_holds"]]
    where = f"for all graphs except {_names_of(wrong)}" if wrong else "in all cases"
    line = f"The closed forms agree with the simulation {where}."
    if steps:
        line += f" They describe the limit of training; here it stops after {steps} steps."
    return line


def _about_theorem(risks, method, regime):
    chosen = [risk for risk in risks if (risk["method"], risk["regime"]) == (method, regime)]
    right = [risk for risk in chosen if risk["stated_holds"]]
    wrong = [risk for risk in chosen if not risk["stated_holds"]]
    parts = [f"holds for {_names_of(right)}"] if right else []
    if wrong:
        derived = "holds" if all(risk["closed_form_holds"] for risk in wrong) else "fails too"
        parts.append(f"fails for {_names_of(wrong)}, where {DERIVED[regime, method]} {derived}")
    return f"{STATED[method]} ({NAMES[method]}), {regime} targets: {'; '.join(parts)}."


def _about_advantage(risks, regime):
    chosen = [risk for risk in risks if risk["regime"] == regime]
    worse = [
        panacea
        for pfedhn, panacea in zip(chosen[::2], chosen[1::2], strict=True)  # as `METHODS`
        if panacea["mean"] - panacea["margin"] > pfedhn["mean"] + pfedhn["margin"]
    ]
    if not worse:
        return []
    return [f"Panacea's risk exceeds pFedHN's, {regime} targets: {_names_of(worse)}."]


def _about_graphs(graphs):
    everywhere = "holds for all of these graphs"
    singular = [graph for graph in graphs if graph["rank"] < graph["clients"]]
    ranks = {
        graph["graph"]: f"rank {graph['rank']} of {graph['clients']}" for graph in singular
    }
    listed = ", ".join(f"{name} ({rank})" for name, rank in ranks.items())
    result = f"fails for {listed}, where other embeddings give the same models"
    yield f"Theorem III.1 assumes rank G~ = n: {result if singular else everywhere}."
    split = [graph for graph in graphs if graph["gap"] < ROUNDING]
    where = f"all graphs except {_names_of(split)}" if split else "all of these graphs"
    yield (
        "If the spectral gap is positive, V = V G~ makes all embeddings multiples of one "
        f"vector. It is positive for {where}."
    )
    long = [graph for graph in graphs if graph["largest_column"] > 1 + ROUNDING]
    if long:
        sizes = ", ".join(
            f"{_names_of([graph])}: {graph['largest_column']:.2f}" for graph in long
        )
        yield (
            f"Property III.3, |g_i|^2 <= 1: fails for {sizes}. It always holds if columns sum "
            "to one."
        )
    broken = [graph for graph in graphs if graph["r"] > graph["attacked"] + ROUNDING]
    result = f"fails for {_names_of(broken)}" if broken else everywhere
    yield f"Lemma III.4, r <= m: {result}. It always holds if columns sum to one."


def _about_extremes(case):
    kind = "directed" if case["directed"] else "undirected"
    row, column = (case["r_per_attacked"][name] for name in ("row", "column"))
    line = f"Lemma III.4 over all {case['graphs']} {kind} graphs of {case['clients']} clients: "
    line += f"r/m is at most {column:.3f} if columns sum to one, {row:.3f} if rows do"
    if row > 1 + ROUNDING:
        edges = ", ".join(f"{i} from {j}" for i, j in case["edges"])
        line += f" (m = {case['attacked']}; receivers and senders: {edges})"
    line += ". If all clients have the same target model and columns sum to one, Panacea's risk"
    return f"{line} is at most {case['panacea_per_pfedhn']:.3f} times pFedHN's."


def _names_of(rows):
    """The graphs of rows, each with its normalisation if the other one is not among them."""
    normalisations = {}
    for row in rows:
        normalisations.setdefault(row["graph"], []).append(row["normalisation"])
    return ", ".join(
        f"{graph} ({norms[0]})" if set(norms) in ({"row"}, {"column"}) else graph
        for graph, norms in normalisations.items()
    )


def _number(value):
    short = 0.1 <= value < 1e6 or value < 1e-9
    return f"{value:.2f}" if short else f"{value:.2g}"


def _answer(holds):
    return "yes" if holds else "no"
