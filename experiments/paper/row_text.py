"""What the rows of all tables of runs have: their values, columns, and notes."""

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from experiments.paper.columns import Column, Row, number_text
from graphfl_jax.commands.common.statistics import diverged
from graphfl_jax.commands.common.styles import UNITS
from graphfl_jax.configs.base import variant_of

# What tables with the column "sd seeds" say of it.
SPREAD = "*sd seeds* is the standard deviation over seeds; its divisor is the number of seeds."
DATA, SETTING = (
    Column(name, itemgetter(name), scored=False, console=False) for name in ("data", "setting")
)
METHOD = Column("method", itemgetter("method"), scored=False, left=True)
PUBLISHED = Column("published", lambda row: number_text(row["published"]), scored=False)


def common_row(config, runs: list[dict]) -> Row:
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


def seed_statistics(summaries: list[dict], scale: float) -> dict:
    """Means over seeds and their spread, in the printed unit.

    Args:
      summaries: one per seed, as in results.json.
      scale: factor of the printed unit.
    """
    values = {
        name: np.array([summary[name] for summary in summaries])
        for name in ("mean", "std_clients", "worst_decile", "jain")
    }
    return {
        "mean": scale * values["mean"].mean(),
        "std_clients": scale * values["std_clients"].mean(),
        "std_seeds": scale * values["mean"].std(),
        "worst_decile": scale * values["worst_decile"].mean(),
        "jain": values["jain"].mean(),
        "seeds": (scale * values["mean"]).tolist(),
    }


def spread_text(scores: Sequence[float]) -> str:
    """The standard deviation over seeds as text; empty for one seed."""
    return f"{np.std(scores):.2f}" if len(scores) > 1 else ""


def size_list(rows: list[Row]) -> str:
    """The size of the runs of each data set, or of each setting if they differ in it.

    It is a list in Markdown. The size of a row that is computed from others is None.
    """
    settings = {}
    for row in rows:
        if row["size"]:
            size = f"{row['size']}, {row['extent'] or 'all images'}"
            settings.setdefault((row["data"], size), []).append(row["setting"])
    return "".join(
        f"- {data}, {'; '.join(dict.fromkeys(names))}: {size}\n"
        for (data, size), names in settings.items()
    )


def simulated_notes(rows: list[Row]) -> list[str]:
    """Notes on simulated data."""
    simulated = dict.fromkeys(row["data"] for row in rows if row["source"] == "simulated")
    return [f"{data}: simulated; not comparable with published scores" for data in simulated]
