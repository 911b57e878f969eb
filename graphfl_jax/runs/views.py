"""Tables and plots of a finished run: its scores per round, client, split and point."""

import csv
import html
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfl_jax.evaluation import POINTS

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingImports]  # of an extra
    from matplotlib.axes import Axes

# Colours that colour-blind readers can distinguish.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
# What a curve can be drawn over, with the label of the axis
OVER = {
    "rounds": "round",
    "steps": "local steps of all clients",
    "bytes": "bytes sent and received by all clients",
    "seconds": "seconds of training",
    "clock": "simulated seconds",
}
TABLE, PLOT, REPORT = "clients.csv", "convergence.svg", "report.html"  # files of a run


class Viewed:
    """A run that can be looked at.

    Attributes:
      results: what results.json holds, with NaN for null.
      rows: the evaluations, see `results.row_of`; () if they are not known.
      final: all scores after the last round, {split: {point: [K]}}; None for a run that ended
        before.
      clients: names of the K clients that were scored, and after them those of new clients.
    """

    results: dict[str, Any]
    rows: Sequence[Mapping]
    final: Mapping | None
    clients: Sequence[str]

    @property
    def per_client(self) -> dict[str, dict[str, float]]:
        """The test scores at G, L and P after the last round, by the name of the client."""
        scores = (self.final or {}).get("test", {})
        return {
            name: {point: float(values[i]) for point, values in scores.items()}
            for i, name in enumerate(self.clients)
            if scores and i < len(scores["P"])
        }

    def frame(self) -> "pandas.DataFrame":
        """A pandas data frame: a line for each round, split, point and client, with the score.

        A warning says if the run diverged, and so has no scores from then on.

        Raises:
          ImportError: pandas is not installed.
        """
        if self.results["diverged"]:
            warnings.warn(
                f"{self.results['variant']} with seed {self.results['seed']} diverged, and its "
                f"frame has no scores from then on",
                RuntimeWarning,
                stacklevel=2,
            )
        lines = [
            (played, split, point, client, float(score))
            for played, scores in rounds_with_scores(self)
            for split, points in scores.items()
            for point, values in points.items()
            for client, score in zip(self.clients, values, strict=False)
        ]
        columns = ["round", "split", "point", "client", "score"]
        return import_pandas().DataFrame(lines, columns=columns)

    def plot(self, axes: "Axes | None" = None, *, over: str = "rounds") -> "Axes":
        """Draws the mean scores over clients at G, L and P.

        Args:
          axes: of matplotlib; None makes a new figure.
          over: the axis of the rounds, one of `OVER`. Each round counts as the mean of all.

        Returns:
          The axes.

        Raises:
          ValueError: as `per_round`.
        """
        round_takes = per_round(self.results, over)
        axes = axes or new_axes()
        draw(axes, self, over, round_takes)
        return axes

    def __repr__(self) -> str:
        """The table of scores that `print` shows."""
        rows = self._cells()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        return "\n".join([self._title(), *lines])

    def _repr_html_(self) -> str:
        """The table of scores that a notebook shows."""
        title = html.escape(self._title())
        if not (rows := self._cells()):
            return f"<p>{title}</p>"
        heads = "".join(f"<th>{head}</th>" for head in rows[0])
        lines = ""
        for point, *numbers in rows[1:]:
            cells = "".join(f"<td>{number}</td>" for number in numbers)
            lines += f"<tr><th>{point}</th>{cells}</tr>"
        return f"<table><caption>{title}</caption><tr>{heads}</tr>{lines}</table>"

    def _title(self):
        results, data = self.results, self.results["dataset"]
        return (
            f"{results['variant']} on {data['name']}, data: {data['source']}, seed "
            f"{results['seed']}, {results['rounds']} rounds{': diverged' * results['diverged']}"
        )

    def _cells(self):
        """The rows of the table of test scores with their heads; none of a diverged run."""
        results, points = self.results, self.results["scores"]["final"]
        if results["diverged"]:
            return []
        rows = [(results["metric"], "mean", "sd over clients", "worst decile")]
        for point in POINTS:
            numbers = (points[point][name] for name in ("mean", "std_clients", "worst_decile"))
            rows.append((point, *(f"{number:.4g}" for number in numbers)))
        return rows


def import_pandas():
    """The module. Raises an ImportError that says how it is installed."""
    try:
        import pandas  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            "frame() needs pandas, which is not installed; run pip install pandas"
        ) from None
    return pandas


def per_round(results: Mapping[str, Any], over: str) -> float:
    """What a round of a run takes in the mean: rounds, steps, bytes or seconds.

    Args:
      over: one of `OVER`.

    Raises:
      ValueError: `over` is another word, or the run is of a release that did not record it.
    """
    timing, sent = results["timing"], results.get("communication") or {}
    if over not in OVER:
        raise ValueError(f"over={over} is unknown; choose from {', '.join(OVER)}")
    if over == "bytes" and "clients" not in sent:
        raise ValueError(
            f"over=bytes needs the number of clients in a round, which results of the run with "
            f"seed {results['seed']} of {results['variant']} lack; make the run again, or "
            f"choose rounds"
        )
    if over == "clock" and results.get("simulated_seconds") is None:
        raise ValueError(
            f"over=clock needs simulated seconds, which the run with seed {results['seed']} of "
            f"{results['variant']} lacks; make it with --config.clock.name=devices, or choose "
            f"rounds"
        )
    of_all = {
        "steps": lambda: timing["client_steps_per_s"] * timing["train_s"],
        "seconds": lambda: timing["train_s"],
        "clock": lambda: results["simulated_seconds"],
        "bytes": lambda: (
            results["rounds"] * sent["clients"] * (sent["up_bytes"] + sent["down_bytes"])
        ),
        "rounds": lambda: results["rounds"],
    }
    return of_all[over]() / max(results["rounds"], 1)


def new_axes() -> "Axes":
    """The axes of a new figure of Matplotlib."""
    from matplotlib import pyplot

    _, axes = pyplot.subplots(layout="constrained")
    return axes


def rounds_with_scores(run: Viewed) -> Iterator[tuple[int, Mapping]]:
    """The rounds with their scores, {split: {point: [K]}}; the last one with all its scores."""
    rounds = [(int(row["round"]), row["scores"]) for row in run.rows]
    if run.final is not None:
        rounds[-1:] = [(run.results["rounds"], run.final)]
    yield from rounds


def client_table(run: Viewed) -> str:
    """The scores of each client after the last round, as CSV: a column per split and point.

    The last column has the rounds in which each client trained, if they are known.
    """
    clients, trained = run.clients, run.results["rounds_trained"]
    columns = {
        f"{split} {point}": values
        for split, points in (run.final or {}).items()
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


def draw(axes: "Axes", run: Viewed, over: str = "rounds", round_takes: float = 1.0) -> None:
    """Draws what `Viewed.plot` does, with what a round takes."""
    from matplotlib.ticker import MaxNLocator

    results, splits = run.results, {split for row in run.rows for split in row["scores"]}
    split = "test" if "test" in splits or not splits else "val"
    # P is dashed, since it is G in some methods.
    for point, colour, dashes in zip(POINTS, COLOURS, ("-", "-", "--"), strict=False):
        curve = [
            (played * round_takes, np.mean(scores[split][point], dtype=np.float64))
            for played, scores in rounds_with_scores(run)
            if point in scores.get(split, {})
        ]
        if curve:
            style = {"color": colour, "linestyle": dashes, "marker": "o", "ms": 3}
            axes.plot(*zip(*curve, strict=True), label=point, **style)
    data = results["dataset"]
    axes.set(
        xlabel=OVER[over],
        ylabel=f"{split} {results['metric']}, mean over clients",
        title=f"{results['variant']} on {data['name']}, data: {data['source']}",
    )
    if over == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if splits:
        axes.legend(frameon=False)
