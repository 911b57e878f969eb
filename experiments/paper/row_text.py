"""What the rows of all tables of runs have, and the notes below these tables."""

from collections.abc import Sequence

import numpy as np

from graphfl_jax.commands.common.statistics import diverged
from graphfl_jax.commands.common.units import UNITS
from graphfl_jax.configs.base import variant_of

# What tables with the column "sd seeds" say of it.
SPREAD = "*sd seeds* is the standard deviation over seeds; its divisor is the number of seeds."


def common_row(config, runs: list[dict]) -> dict:
    """The part of a row that does not depend on its table.

    Args:
      config: configuration of the runs.
      runs: one per seed, in the format of results.json.
    """
    first = runs[0]
    return {
        "data": config.data.name,
        "method": variant_of(config),
        "metric": first["metric"],
        "unit": UNITS[first["metric"]][1],
        "seeds": len(runs),
        "hparams": first["hparams"],
        "diverged": sum(map(diverged, runs)),
        "source": first["dataset"]["source"],
        "extent": first["dataset"]["extent"],
    }


def spread_text(scores: Sequence[float]) -> str:
    """The standard deviation over seeds as text; empty for one seed."""
    return f"{np.std(scores):.2f}" if len(scores) > 1 else ""


def sizes(rows: list[dict]) -> list[str]:
    """The size of the runs of each data set, or of each setting if they differ in it.

    The size of a row that is computed from others is None.
    """
    found = {}
    for row in rows:
        if row["size"]:
            size = f"{row['size']}, {row['extent'] or 'all images'}"
            found.setdefault((row["data"], size), []).append(row["setting"])
    return [
        f"{data}, {'; '.join(dict.fromkeys(settings))}: {size}"
        for (data, size), settings in found.items()
    ]


def simulated_notes(rows: list[dict]) -> list[str]:
    """Notes on simulated data."""
    simulated = dict.fromkeys(row["data"] for row in rows if row["source"] == "simulated")
    return [f"{data}: simulated; not comparable with published scores" for data in simulated]
