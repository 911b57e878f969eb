"""Scores of compared groups as a table of a paper: the best in bold, with marks of tests."""

from typing import NamedTuple

from graphfl_jax.commands.common.comparison import data_texts
from graphfl_jax.commands.common.text_tables import escape, markdown_table
from graphfl_jax.evaluation import POINTS

LEVEL = 0.05  # of the tests whose results are marked
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SPECIAL |= {letter: f"\\{letter}" for letter in "&%$#_{}"}
NOTE = (
    "mean and 95 % interval over seeds after the last round; bold: the best mean on its data; "
    "{mark}: worse than the best by Wilcoxon's signed-rank test over clients, p < {level} with "
    "Holm's correction for all pairs"
)


class Cell(NamedTuple):
    """A score."""

    mean: str  # empty where a run diverged
    half_width: str  # empty for one seed
    is_best: bool
    is_worse: bool  # than the best, by the test


def cells_of(content: dict) -> list[list[Cell]]:
    """The cells at G, L and P of each setting of a `comparison.comparison`."""
    settings, texts = content["settings"], data_texts(content["settings"])
    kinds = [(text, setting["metric"]) for text, setting in zip(texts, settings, strict=True)]
    rows = []
    for setting, kind in zip(settings, kinds, strict=True):
        rivals = [other for other, same in zip(settings, kinds, strict=True) if same == kind]
        rows.append([_cell(setting, rivals, content["pairs"], point) for point in POINTS])
    return rows


def _cell(setting, rivals, pairs, point):
    if setting["scores"] is None:
        return Cell("", "", is_best=False, is_worse=False)
    sign = 1 if setting["higher_is_better"] else -1
    means = {
        other["name"]: sign * other["scores"][point]["mean"]
        for other in rivals
        if other["scores"] is not None
    }
    best = max(means.values())
    score = setting["scores"][point]
    width = score["half_width"]
    return Cell(
        f"{score['mean']:.4g}",
        "" if width is None else f"{width:.2g}",
        is_best=len(means) > 1 and means[setting["name"]] == best,
        is_worse=any(
            _is_worse(setting["name"], name, pairs, point, sign)
            for name, mean in means.items()
            if mean == best
        ),
    )


def _is_worse(name, other, pairs, point, sign):
    """Whether a setting is worse than another by the test, over the seeds that both have."""
    for pair in pairs:
        if (pair["first"], pair["second"]) in ((name, other), (other, name)):
            at = pair["points"][point]
            gain = sign * at["difference"] * (1 if pair["second"] == name else -1)
            return gain < 0 and at["p_holm"] < LEVEL
    return False


def markdown_text(content: dict) -> str:
    """The table in Markdown."""
    rows = [["group", "data", "metric", *POINTS]]
    for setting, data, cells in _lines(content):
        shown = []
        for cell in cells:
            text = " ± ".join(filter(None, [cell.mean, cell.half_width])) or "diverged"
            text = f"**{text}**" if cell.is_best else text
            shown.append(text + (" †" if cell.is_worse else ""))
        rows.append([escape(setting["name"]), escape(data), setting["metric"], *shown])
    return f"Test scores: {NOTE.format(mark='†', level=LEVEL)}\n\n{markdown_table(rows)}"


def latex_text(content: dict) -> str:
    """The table in LaTeX, for the package booktabs."""
    lines = [r"\begin{tabular}{lllrrr}", r"\toprule"]
    lines += [" & ".join(["group", "data", "metric", *POINTS]) + r" \\", r"\midrule"]
    for setting, data, cells in _lines(content):
        shown = []
        for cell in cells:
            text = rf"{cell.mean} \pm {cell.half_width}" if cell.half_width else cell.mean
            text = rf"\mathbf{{{text}}}" if cell.is_best else text
            text += r"^{\dagger}" if cell.is_worse else ""
            shown.append(f"${text}$" if text else "diverged")
        names = map(_latex, (setting["name"], data, setting["metric"]))
        lines.append(" & ".join([*names, *shown]) + r" \\")
    note = _latex(NOTE.format(mark="DAGGER", level=LEVEL)).replace("DAGGER", r"$\dagger$")
    lines += [r"\bottomrule", r"\end{tabular}", f"% {note}"]
    return "\n".join(lines) + "\n"


def _lines(content):
    """Each setting with the text of its data, and its cells."""
    settings = content["settings"]
    return zip(settings, data_texts(settings), cells_of(content), strict=True)


def _latex(text):
    return "".join(SPECIAL.get(letter, letter) for letter in text)
