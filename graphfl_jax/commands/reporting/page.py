"""The page of a report: collects, renders and writes it."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from graphfl_jax.commands.common.finished_runs import fitting, read_runs
from graphfl_jax.commands.common.result_tables import further_tables, new_architectures_table
from graphfl_jax.commands.common.text_tables import TextTable
from graphfl_jax.commands.reporting.comparison import comparison_facts
from graphfl_jax.commands.reporting.folders import in_readable_units, run_facts
from graphfl_jax.runs.checkpoint import write_text
from graphfl_jax.runs.results import with_null
from graphfl_jax.version import __version__

GENERATOR = "graphfl_jax"  # which a page names in its head

NOT_REAL = ("simulated", "generated")  # sources of data that nobody measured
# Parts that the template shows, or that are shown as tables, and not by the script.
SHOWN = {"versions", "settings", "unknown", "results"}
# The script of a page, in the order of its parts; the last one starts.
SCRIPTS = ("elements", "map", "clients", "lines", "matrix", "report")


def write_report(folders: Sequence[Path], to: Path) -> None:
    """Writes a report of the runs in folders into one file, which it replaces.

    Raises:
      ValueError: a folder holds no finished run, or two hold the same run.
      OSError: the file cannot be written.
    """
    runs = read_runs(folders)
    facts = in_readable_units([run_facts(run) for run in runs])
    write_text(to, render(facts, comparison_facts(runs, facts) if len(runs) > 1 else None))


def is_report(path: Path) -> bool:
    """Whether a file is a report, which a new one may replace."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return f'<meta name="generator" content="{GENERATOR} ' in file.read(1000)


def render(runs: list[dict[str, Any]], comparison: dict[str, Any] | None) -> str:
    """The page of runs from `run_facts`, and of several, their `comparison_facts`."""
    import jinja2

    folder = files("graphfl_jax.commands.reporting")
    scripts = [(folder / f"{name}.js").read_text("utf-8") for name in SCRIPTS]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = number
    template = environment.from_string((folder / "report.html.j2").read_text("utf-8"))
    data = [
        {key: run[key] for key in run.keys() - SHOWN} | {"further": further(run)}
        for run in runs
    ]
    drawn = ("name", "data", "metric", "factor", "unit", "curve", "style", "diverged")
    curves = comparison and [
        {key: group[key] for key in drawn} for group in comparison["groups"]
    ]
    return template.render(
        runs=runs,
        comparison=comparison,
        not_real=NOT_REAL,
        generator=GENERATOR,
        version=__version__,
        style=(folder / "report.css").read_text("utf-8"),
        script="\n".join(scripts),
        data=script_text({"runs": data, "groups": curves}),
    )


def further(run: dict[str, Any]) -> list[TextTable]:
    """Tables of what the results hold beside the scores of all clients, in the run's unit."""
    results, unit = run["results"], (run["factor"], run["unit"])
    with fitting(run["path"]):
        tables = further_tables(results, *unit)
        if "architectures" in (results["new_clients"] or {}):
            tables.append(new_architectures_table(results, *unit))
        return tables


def script_text(content: Any) -> str:
    """JSON that cannot end the script element that holds it; null for NaN."""
    text = json.dumps(
        with_null(content), allow_nan=False, separators=(",", ":"), sort_keys=True
    )
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def number(value: float, factor: float = 1, digits: int = 4) -> str:
    """A number with some significant digits, or with all of a longer integer part."""
    value = value * factor + 0.0  # -0.0 becomes 0.0
    rounded = float(f"{value:.{digits}g}")  # 99.6 becomes 100 with two digits
    form = ".0f" if abs(rounded) >= 10**digits else f"#.{digits}g"
    return f"{value:{form}}".rstrip(".").replace("-", "−")
