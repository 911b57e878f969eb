"""Histograms of the values of clients' series, for a figure."""

import numpy as np

from graphfl_jax.data.federation import Federation


def histograms(federation: Federation, clients: int) -> tuple[list[dict], str]:
    """A line for each of the first clients, and the unit of values.

    A line has the client's ``name``, ``mean`` and ``std``, the ``edges`` of bins, and the
    ``shares`` of values in them.
    """
    units = federation.units
    values = units.mean + units.std * federation.data.train.series[:clients, :, 0]
    edges = np.linspace(0, np.ceil(values.max() / 10) * 10, 41)
    lines = []
    for name, series in zip(federation.clients, values, strict=False):
        shares = np.histogram(series, edges)[0] / len(series)
        lines.append(
            {
                "name": name,
                "mean": float(series.mean()),
                "std": float(series.std()),
                "edges": edges.tolist(),
                "shares": shares.tolist(),
            }
        )
    return lines, units.name


def histogram_rows(lines: list[dict], unit: str) -> list[list[str]]:
    """Mean and standard deviation of each client's values, as text."""
    rows = [[line["name"], f"{line['mean']:.2f}", f"{line['std']:.2f}"] for line in lines]
    return [["client", f"mean, {unit}", f"sd, {unit}"], *rows]
