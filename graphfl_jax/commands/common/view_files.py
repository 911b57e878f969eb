"""The plot and the table that a run leaves beside its results."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphfl_jax.runs import views
from graphfl_jax.runs.checkpoint import write_bytes, write_text


def write_views(
    out: Path,
    rows: Sequence[Mapping],
    final: Mapping | None,
    results: Mapping,
    clients: Sequence[str],
) -> None:
    """Writes a plot of the scores over rounds, and a table of the scores of all clients.

    Args:
      out: folder of the run.
      rows: `single.Result.rows`; without any there is no plot.
      final: `single.Result.final`; without it there is no table.
      results: what results.json holds.
      clients: their names.
    """
    if final is not None:
        write_text(out / views.TABLE, views.client_table(final, clients))
    if not rows:
        return
    from matplotlib.figure import Figure  # half a second, for which no refusal should wait

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    views.draw(figure.subplots(), rows, final, results)
    content = io.BytesIO()
    figure.savefig(content, format="svg")
    write_bytes(out / views.PLOT, content.getvalue())
