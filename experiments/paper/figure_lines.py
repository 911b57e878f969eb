"""Lines of figures from runs."""

from collections.abc import Callable

from ml_collections import ConfigDict

from experiments.paper.configurations import Cell
from graphfl_jax.commands.common.statistics import diverged

ConfigOf = Callable[[Cell, str], ConfigDict]  # (cell, method) -> configuration


def name_with(method: str, lost: int) -> str:
    """The name of a method's line, with the number of its diverged runs."""
    return f"{method} ({lost} diverged)" if lost else method


def line_of(method: str, runs: list[dict], curves: list[list[dict]], x: str) -> dict:
    """The ``name`` of a method's line, its ``metric``, and its ``x``.

    Args:
      method: of the line.
      runs: one per seed.
      curves: of the runs that did not diverge.
      x: the key of a curve's elements.
    """
    return {
        "name": name_with(method, len(runs) - len(curves)),
        "metric": runs[0]["metric"],
        "x": [row[x] for row in curves[0]] if curves else [],
    }


def new_client_curves(runs: list[dict]) -> list[list[dict]]:
    """The scores of the new clients in each run that did not diverge, by round and point."""
    return [run["new_clients"]["curve"] for run in runs if not diverged(run)]
