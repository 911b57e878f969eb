"""Compares finished runs: what differs in their settings, scores over seeds, and paired tests.

    graphfl compare runs/*
    graphfl compare runs/panacea-* runs/fedavg-* --to=compare.md

Runs that differ only in their seed are one setting. For each setting, the mean test score after
the last round and its 95 % interval over seeds are shown at G, L and P. Two settings with the
same seeds on the same split of the same data are compared by Wilcoxon's signed-rank test over
clients. Settings with other data are not compared, and the output names them.

With --to, the comparison is also written: all of it as .json or .md, the scores alone as .csv.
"""

import csv
import io
from pathlib import Path

from absl import flags
from rich.console import Console

from graphfl_jax.commands.common.command_line import FLAGS, launch
from graphfl_jax.commands.common.comparison import comparison, data_texts
from graphfl_jax.commands.common.finished_runs import read_run, why_no_run
from graphfl_jax.commands.common.new_files import check_new_file
from graphfl_jax.commands.common.text_tables import TextTable, markdown_table, narrow
from graphfl_jax.evaluation import POINTS
from graphfl_jax.runs.checkpoint import write_json, write_text

FORMATS = (".json", ".csv", ".md")

flags.DEFINE_multi_string("folders", [], "Folders of runs; the words without a flag.")
flags.DEFINE_string("to", None, "File to write, .json, .csv or .md; it must not exist.")


def main() -> int:
    to = Path(FLAGS.to) if FLAGS.to is not None else None
    if to is not None:
        if to.suffix not in FORMATS:
            raise ValueError(f"to={to} has no known format; let it end with .json, .csv or .md")
        check_new_file("to", to)
    paths = list(dict.fromkeys(map(Path, FLAGS.folders)))
    reasons = {path: why_no_run(path) for path in paths}
    usable = [path for path, why in reasons.items() if not why]
    if len(usable) < 2:
        others = "".join(f", {path} {why}" for path, why in reasons.items() if why)
        raise ValueError(
            f"folders={','.join(map(str, paths))} has {len(usable)} finished runs{others}; "
            f"name two or more, such as runs/a runs/b"
        )
    found = comparison([read_run(path) for path in usable])
    notes = [f"left out: {path} {why}" for path, why in reasons.items() if why]
    notes += [
        f"not paired: {one['first']} and {one['second']}, since {one['why']}"
        for one in found["unpaired"]
    ]
    notes += [
        f"the data of {one['name']} differ between seeds: the seed decides them, or a file has "
        f"changed"
        for one in found["settings"]
        if len({*one["data_sha256"]}) > 1
    ]
    console = Console()
    for title, caption, rows in tables(found):
        left = ("field", "setting", "first", "second", "metric")
        console.print(narrow(title, rows, left=left, caption=caption))
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if to is not None:
        write(to, found, notes)
        console.print(str(to), highlight=False, markup=False, soft_wrap=True)
    return 0


def tables(found: dict) -> list[TextTable]:
    """The tables of a comparison."""
    settings, result = found["settings"], []
    if found["fields"]:
        heads = ["field", *(one["name"] for one in settings)]
        rows = [
            [name, *(value_text(one, name) for one in settings)] for name in found["fields"]
        ]
        caption = "- where a setting does not read the field"
        result.append(TextTable("fields that differ", caption, [heads, *rows]))
    rows = [["setting", "data", "metric", "seeds", *POINTS]]
    for one, data in zip(settings, data_texts(settings), strict=True):
        cells = [f"{one['diverged']} diverged"] * len(POINTS)
        if one["scores"] is not None:
            cells = [mean_text(one["scores"][point]) for point in POINTS]
        rows.append([one["name"], data, one["metric"], str(len(one["seeds"])), *cells])
    better = {"higher" if one["higher_is_better"] else "lower" for one in settings}
    direction = f"{better.pop()} is better; " if len(better) == 1 else ""
    caption = f"{direction}mean ± 95 % interval over seeds"
    result.append(TextTable("test scores after the last round", caption, rows))
    rows = [
        [one["name"], name, *(mean_text(own[point]) for point in POINTS)]
        for one in settings
        for name, own in one["metrics"].items()
    ]
    if rows:
        title, heads = "further metrics after the last round", ["setting", "metric", *POINTS]
        caption = "clients for which a metric is defined; mean ± 95 % interval over seeds"
        result.append(TextTable(title, caption, [heads, *rows]))
    if found["pairs"]:
        rows = [
            ["first", "second", "seeds", "clients", "difference", "better", "p", "p (Holm)"]
        ]
        for pair in found["pairs"]:
            at = pair["points"]["P"]
            numbers = [f"{at[name]:.3g}" for name in ("p", "p_holm")]
            rows.append(
                [pair["first"], pair["second"]]
                + [str(len(pair["seeds"])), str(pair["clients"])]
                + [f"{at['difference']:+.4g}", str(at["better"]), *numbers]
            )
        caption = (
            "second - first at P, means over clients; clients for which the second is better; "
            "Wilcoxon's signed-rank test over clients, Holm's correction for all pairs"
        )
        result.append(TextTable("paired by clients", caption, rows))
    return result


def value_text(setting: dict, field: str) -> str:
    """The value of a field in a setting."""
    value = setting["fields"][field]
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def mean_text(own: dict | None) -> str:
    """The mean and the half width of its interval; None is undefined."""
    if own is None:
        return "none"
    interval = "" if own["half_width"] is None else f"±{own['half_width']:.2g}"
    return f"{own['mean']:.4g}{interval}"


def write(path: Path, found: dict, notes: list[str]) -> None:
    """Writes a comparison in the format of the file's name."""
    if path.suffix == ".json":
        write_json(path, found)
    elif path.suffix == ".csv":
        write_text(path, csv_text(found))
    else:
        parts = [
            f"{title}: {caption}\n\n{markdown_table(r)}" for title, caption, r in tables(found)
        ]
        parts += ["".join(f"- {note}\n" for note in notes)] if notes else []
        write_text(path, "\n".join(parts))


def csv_text(found: dict) -> str:
    """The scores: a line for each setting, metric and point, with all digits."""
    text = io.StringIO()
    heads = ("name", "method", "data", "source", "extent", "metric", "seeds", "diverged")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["setting", *heads[1:], *found["fields"], "point", "mean", "half_width"])
    for one in found["settings"]:
        own = [one[name] for name in heads] + [one["fields"][name] for name in found["fields"]]
        own[heads.index("seeds")] = len(one["seeds"])
        for metric, scores in {one["metric"]: one["scores"] or {}, **one["metrics"]}.items():
            own[heads.index("metric")] = metric
            for point in POINTS:
                score = scores.get(point) or {}
                writer.writerow([*own, point, score.get("mean"), score.get("half_width")])
    return text.getvalue()


def start() -> None:
    """Reads the flags, and runs the command."""
    launch(main, keep_compiled=False, configured=False)
