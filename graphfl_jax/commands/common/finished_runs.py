"""Folders of runs that have ended: reading them, and adding a plot and a table."""

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flax.traverse_util import flatten_dict

from graphfl_jax.configs.values import as_text, current_values
from graphfl_jax.evaluation import POINTS
from graphfl_jax.runs import views
from graphfl_jax.runs.batch import ELSEWHERE
from graphfl_jax.runs.checkpoint import write_bytes, write_text
from graphfl_jax.runs.forms import RESULTS, ROW, load_json, misfit, read_json
from graphfl_jax.runs.results import from_json
from graphfl_jax.runs.store import RUN, content_of


class FinishedRun(NamedTuple):
    """A run with results."""

    path: Path
    fields: dict[str, Any]  # of the configuration, by dotted name
    results: dict[str, Any]  # what results.json holds, with NaN for null in scores
    unknown: str = ""  # why the fields are not known here; then they are as they were written

    @property
    def settings(self) -> dict[str, Any]:
        """The fields without the seed and without those that do not change the results."""
        left_out = (ELSEWHERE - {"data.path"}) | {"seed"}
        return {name: value for name, value in self.fields.items() if name not in left_out}

    @property
    def setting(self) -> str:
        """The data set and the settings, as text."""
        data = self.results["dataset"]
        return f"{data['name']} {data['source']} {as_text(self.settings, without=set())}"


def why_no_run(path: Path) -> str:
    """Why a folder is no run with results; empty if it is one.

    Raises:
      FileNotFoundError: there is no such folder.
      ValueError: it is a run without results whose evaluations are damaged.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder; name folders of runs, such as runs/a")
    content = content_of(path)
    if content != RUN:
        return f"holds {content or 'no run'}"
    if not (path / "results.json").exists():
        rows = read_rows(path, ended=False)
        last = f", the last after round {rows[-1]['round']}" if rows else ""
        return (
            f"has no results yet, only evaluations: {len(rows)}{last} (graphfl run --resume "
            f"--out={path} continues it)"
        )
    return ""


def read_runs(paths: Iterable[Path]) -> list[FinishedRun]:
    """The runs in folders, ordered by their data, their method and the names of the folders.

    The order of the folders is not kept, so the sign of a difference does not depend on it.

    Raises:
      ValueError: as `read_run`.
    """
    return sorted(
        map(read_run, paths),
        key=lambda run: (run.results["dataset"]["name"], run.results["variant"], run.path),
    )


def read_run(path: Path) -> FinishedRun:
    """The run in a folder with results.

    Raises:
      ValueError: it is no run with results, or a file is damaged.
      OSError: a file cannot be read.
    """
    if why := why_no_run(path):
        raise ValueError(f"folders={path} {why}; leave it out, or correct the folder")
    fields = read_object(path / "config.json", dict)
    results = read_object(path / "results.json", RESULTS)
    if why := _contradiction(results):
        raise damage_error(path / "results.json", why)
    fields.pop("defaults", None)  # of settings that nothing reads
    unknown = ""
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in flatten_dict(fields, sep=".").items()
    }
    try:
        fields = current_values(fields)
    except ValueError as error:  # such as the name of a part that is registered elsewhere
        unknown = str(error)
    return FinishedRun(path, fields, from_json(results), unknown)


def read_rows(path: Path, *, ended: bool = True) -> list[dict[str, Any]]:
    """The evaluations of the run in a folder, oldest first, as metrics.jsonl has them.

    Args:
      path: of the folder.
      ended: whether the run has ended. If not, the last line may be incomplete; it is left out.

    Raises:
      ValueError: a line is damaged.
      OSError: the file cannot be read.
    """
    file, rows = path / "metrics.jsonl", []
    if not file.exists():  # of a run that is about to begin
        return rows
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
        if not ended and not line.endswith(b"\n"):
            break
        if misfit(row := _json_or_none(line), ROW):
            if not any(path.glob("checkpoints/*.json")):  # as of a run with --seeds
                raise damage_error(file, f"line {number}")
            raise ValueError(
                f"{file}: line {number} is damaged; graphfl run --resume --out={path} writes "
                f"it again"
            )
        rows.append(row)
    return rows


def bytes_sent(results: Mapping[str, Any], fields: Mapping[str, Any], rounds: int) -> int:
    """Bytes that all clients of a run that did not diverge sent and received in its rounds."""
    scored, sample = results["scores"]["final"]["P"]["per_client"], results.get("sample")
    traffic = results["communication"]
    # Older releases have not recorded the number of clients.
    cohort = min(fields["cohort_size"], sample["of"] if sample else len(scored))
    clients = traffic.get("clients", cohort)
    return rounds * clients * (traffic["up_bytes"] + traffic["down_bytes"])


def read_object(file: Path, form: Any) -> dict[str, Any]:
    """The object of a form in a file of JSON.

    Raises:
      ValueError: the file is missing or damaged, or holds something else.
      OSError: the file cannot be read.
    """
    try:
        return read_json(file, form)
    except (FileNotFoundError, ValueError) as error:
        raise damage_error(file, error) from error


def _json_or_none(line):
    try:
        return load_json(line)
    except ValueError:
        return None


def _contradiction(results):
    """What in the results does not fit together; empty if all does."""
    final = results["scores"]["final"] if results["scores"] else {}
    if not results["diverged"] and (not final or final["P"]["mean"] is None):
        return "diverged and scores contradict each other"
    sizes = {len(final[point]["per_client"]) for point in POINTS if final}
    if 0 in sizes or len(sizes) > 1:
        return "scores.final has points with no or with other clients"
    return ""


@contextlib.contextmanager
def fitting(path: Path | str) -> Iterator[None]:
    """Names a run's folder in an error of the block that reads what its files hold.

    Raises:
      ValueError: files, or parts of a file, do not fit together.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"folders={path} has files that do not fit together ({type(error).__name__}: "
            f"{error}); run it again into another folder"
        ) from error


def damage_error(file: Path, why: object) -> ValueError:
    """The error for a file that does not hold what a run writes."""
    return ValueError(
        f"{file} is missing or damaged ({why}); leave the run out, or run it again into "
        f"another folder"
    )


def write_views(out: Path, run: views.Viewed) -> None:
    """Writes a plot of the scores over rounds, and a table of the scores of clients.

    Without evaluations there is no plot, and without final scores no table.
    """
    if run.final is not None:
        write_text(out / views.TABLE, views.client_table(run))
    if not run.rows:
        return
    from matplotlib.figure import Figure  # half a second, for which no refusal should wait

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    views.draw(figure.subplots(), run)
    content = io.BytesIO()
    figure.savefig(content, format="svg")
    write_bytes(out / views.PLOT, content.getvalue())
