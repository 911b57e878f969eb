"""Tables and plots of a finished run: its scores per round, client, split and point."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfl_jax.evaluation import POINTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that colour-blind readers can distinguish.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
TABLE, PLOT, REPORT = "clients.csv", "convergence.svg", "report.html"  # files of a run


def rounds_with_scores(
    rows: Sequence[Mapping], final: Mapping | None
) -> Iterator[tuple[int, Mapping]]:
    """The rounds with their scores, {split: {point: [N]}}; the last one with all its scores.

    `rows` and `final`, here and below, are those of `single.Result`.
    """
    for i, row in enumerate(rows):
        last = final is not None and i == len(rows) - 1
        yield int(row["round"]), final if last else row["scores"]


def client_table(
    final: Mapping, clients: Sequence[str], trained: Sequence[int] | None = None
) -> str:
    """The scores of each client after the last round, as CSV: a column per split and point.

    The last column has the rounds in which each client trained, if they are known.
    """
    columns = {
        f"{split} {point}": values
        for split, points in final.items()
        for point, values in points.items()
    }
    if trained is not None:
        columns["rounds trained"] = trained
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", *columns])
    count = max(map(len, columns.values()), default=0)
    for i, name in enumerate(clients[:count]):
        scores = [
            np.asarray(values)[i].item() if i < len(values) else ""
            for values in columns.values()
        ]
        writer.writerow([name, *scores])
    return text.getvalue()


def draw(
    axes: "Axes", rows: Sequence[Mapping], final: Mapping | None, results: Mapping[str, Any]
) -> None:
    """Draws what `single.Result.plot` does."""
    from matplotlib.ticker import MaxNLocator

    splits = {split for row in rows for split in row["scores"]}
    split = "test" if "test" in splits or not splits else "val"
    # P is dashed, since it is G in some methods.
    for point, colour, dashes in zip(POINTS, COLOURS, ("-", "-", "--"), strict=False):
        curve = [
            (played, np.mean(scores[split][point], dtype=np.float64))
            for played, scores in rounds_with_scores(rows, final)
            if point in scores.get(split, {})
        ]
        if curve:
            style = {"color": colour, "linestyle": dashes, "marker": "o", "ms": 3}
            axes.plot(*zip(*curve, strict=True), label=point, **style)
    data = results["dataset"]
    axes.set(
        xlabel="round",
        ylabel=f"{split} {results['metric']}, mean over clients",
        title=f"{results['variant']} on {data['name']}, data: {data['source']}",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if splits:
        axes.legend(frameon=False)
