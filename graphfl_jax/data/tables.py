"""Tables with one row per example: CSV files, and Parquet files, which pyarrow reads."""

import csv
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from graphfl_jax.settings import Items, Text

SUFFIXES = (".csv", ".parquet")
CLIENT, SPLIT, TARGETS = "client", "split", ("y", "target", "label")
SHOWN = 10  # names of columns in a message
MISSING = ("na", "n/a", "nan", "null")  # how programs write a missing value, in small letters


class Columns(NamedTuple):
    """Which columns of a table are what. A column `split` is the split of the examples."""

    client_column: Annotated[str, Text("Column of a table with the clients.")] = CLIENT
    target_columns: Annotated[
        tuple, Items("Columns of a table with y; empty: the column y, target or label.")
    ] = ()
    feature_columns: Annotated[
        tuple, Items("Columns of a table with x; empty: all others, which must be numbers.")
    ] = ()

    def check_unread(self, path) -> None:
        """Raises a ValueError if columns are named, and the data of `path` have none."""
        for field, value, default in zip(self._fields, self, Columns(), strict=True):
            if value != default:
                raise ValueError(
                    f"data.{field}={value!r} is of a table, and {path} is none; leave it out, "
                    f"or set --config.data.path to a file that ends in {' or '.join(SUFFIXES)}"
                )


def read_table(
    path: str | Path, columns: Columns, *, partitioned: bool
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Reads a table. What is guessed of its columns is said in a warning.

    Args:
      partitioned: whether the table may be without clients.

    Returns:
      The arguments of `custom.from_arrays` by name, and the names of the targets.

    Raises:
      ValueError: the table is damaged, a column is missing, or a cell is empty or no number.
        One line with the file, the column, the row and a remedy.
    """
    is_parquet = Path(path).suffix.lower() == ".parquet"
    table = _read_parquet(path) if is_parquet else _read_csv(path)
    client, targets, features = _choose(path, columns, table, partitioned)
    chosen = [*client, *targets, *features, *([SPLIT] if SPLIT in table else [])]
    for name in chosen:
        _check_complete(path, name, table[name])
    arrays = {"x": np.stack([_numbers(path, name, table[name]) for name in features], axis=1)}
    if len(targets) == 1:
        arrays["y"] = _labels_or_numbers(path, targets[0], table[targets[0]])
        _warn_of_missing(path, targets[0], arrays["y"])
    else:
        arrays["y"] = np.stack([_numbers(path, name, table[name]) for name in targets], axis=1)
    if client:
        arrays["client"] = names_of(table[client[0]])
        _warn_of_missing(path, client[0], arrays["client"])
    if SPLIT in table:
        arrays["split"] = table[SPLIT].astype(str)
    if not (columns.target_columns and columns.feature_columns):
        kind = {"f": "numbers", "U": "text"}.get(arrays["y"].dtype.kind, "integers")
        warnings.warn(
            f"{path}: y is {kind} of the column {_some(targets)}, and x is of "
            f"{_some(features)}; to take others, set --config.data.target_columns and "
            "feature_columns",
            RuntimeWarning,
            stacklevel=4,
        )
    return arrays, targets


def names_of(column: np.ndarray) -> np.ndarray:
    """Names as integers if all are written as such, else as text. Numbers stay numbers."""
    if column.dtype.kind in "biuf":
        return column
    text = column.astype(str)
    try:
        numbers = text.astype(np.int64)
    except (ValueError, OverflowError):
        return text
    return numbers if (numbers.astype(str) == text).all() else text


def read_rows(path: str | Path) -> list[list[str]]:
    """The rows of a CSV file, all of the length of the first one, without spaces around cells.

    Raises:
      ValueError: the file is empty, or no CSV file. One line with the file and the row.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{path}: the file is no CSV file in UTF-8 ({error}); save the table as one"
        ) from error
    if not rows:
        raise ValueError(f"{path}: the file is empty; write a header, and rows below it")
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"{path}: row {number - 1}, counted from 0 below the header, has {len(row)} "
                f"cells and the header has {len(rows[0])}; separate all cells by commas, and "
                "quote text with commas"
            )
    return rows


def _read_csv(path) -> dict[str, np.ndarray]:
    """The columns [n] of text by name."""
    header, *rows = read_rows(path)
    if len(header) == 1:
        raise ValueError(
            f"{path}: the header has the column {header[0]!r} alone; separate columns by commas"
        )
    name, times = Counter(header).most_common(1)[0]
    if times > 1 or "" in header:
        what = f"the name {name!r} {times} times" if times > 1 else "a column without a name"
        raise ValueError(
            f"{path}: the header has {what}; give each column its own name, as pandas does "
            "with to_csv(index=False)"
        )
    if not rows:
        raise ValueError(f"{path}: there are no rows below the header; add the examples")
    return dict(zip(header, map(np.array, zip(*rows, strict=True)), strict=True))


def _read_parquet(path) -> dict[str, np.ndarray]:
    """The columns [n] by name."""
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            f"{path} needs pyarrow, which is not installed; run pip install pyarrow, or write "
            "the table as a CSV file"
        ) from None
    try:
        table = pyarrow.parquet.ParquetFile(path).read()
        columns = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if pyarrow.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            nested = pyarrow.types.is_nested(column.type)  # lists are text here, no numbers
            columns[name] = (
                np.array(list(map(str, column.to_pylist()))) if nested else column.to_numpy()
            )
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        why = " ".join(str(error).split())
        raise ValueError(
            f"{path}: the file is not a complete Parquet file ({why}); write it again"
        ) from error
    return columns


def _choose(path, columns, table, partitioned):
    """The names of the columns of clients, none or one, of targets and of features."""
    client, targets = (columns.client_column,), tuple(map(str, columns.target_columns))
    if partitioned and columns.client_column == CLIENT and CLIENT not in table:
        client = ()
    if not targets:
        targets = tuple(name for name in TARGETS if name in table)[:1]
    features = tuple(map(str, columns.feature_columns))
    taken = {*client, *targets, SPLIT}
    if not features:
        features = tuple(name for name in table if name not in taken)
    if not targets:
        raise ValueError(
            f"{path}: there is no column {' or '.join(TARGETS)}; set "
            f"--config.data.target_columns to some of {_some(table)}"
        )
    if not features:
        raise ValueError(
            f"{path}: there is no column of features beside {_some(table)}; add one of numbers"
        )
    for field, names in zip(columns._fields, (client, targets, features), strict=True):
        for name in names:
            if name not in table:
                remedy = f"set --config.data.{field} to one of {_some(table)}"
                if field == "client_column" and not partitioned:
                    remedy += ", or set --config.data.partition"
                raise ValueError(f"{path}: there is no column {name!r}; {remedy}")
    for name, times in Counter([*client, *targets, *features]).items():
        if times > 1 or name == SPLIT:
            raise ValueError(
                f"{path}: column {name!r} is to be two things of client, target, feature and "
                "split; name it in one of data.client_column, target_columns, feature_columns"
            )
    return client, targets, features


def _check_complete(path, name, column):
    empty = column != column  # NaN, and times that are none
    if column.dtype.kind in "UO":
        empty = empty | (column == "")
    if column.dtype == object:
        empty = empty | np.equal(column, None)
    if empty.any():
        raise ValueError(
            f"{path}: column {name!r} has no value in row {int(np.argmax(empty))}, counted "
            f"from 0, and in {int(empty.sum())} rows in all; fill it in, or leave them out"
        )


def _warn_of_missing(path, name, names):
    """Warns of words for a missing value among names, which may also be meant as names."""
    if names.dtype.kind != "U":
        return
    missing = np.isin(np.char.lower(names), MISSING)
    if missing.any():
        warnings.warn(
            f"{path}: column {name!r} has {str(names[missing][0])!r} as a name in "
            f"{int(missing.sum())} rows, the first is row {int(np.argmax(missing))}, counted "
            f"from 0; leave the rows out if they lack a value",
            RuntimeWarning,
            stacklevel=5,
        )


def _numbers(path, name, column) -> np.ndarray:
    """A column as finite floats."""
    try:
        numbers = column.astype(float)
    except (TypeError, ValueError):
        numbers = np.full(1, np.nan)
    if np.isfinite(numbers).all() and not (column.dtype.kind == "U" and "_" in "".join(column)):
        return numbers
    row = next(i for i, value in enumerate(column) if not is_number(value))
    raise ValueError(
        f"{path}: column {name!r} has {str(column[row])!r} in row {row}, counted from 0, which "
        "is no number; correct it, replace categories by columns of 0 and 1, or name the other "
        "columns by --config.data.target_columns and feature_columns"
    )


def _labels_or_numbers(path, name, column) -> np.ndarray:
    """A column of y: integers, else numbers, else text. Text among numbers is an error."""
    names = names_of(column)
    if names.dtype.kind != "U":
        return names
    share = np.mean([is_number(value) for value in names])
    return _numbers(path, name, names) if share > 0.5 else names


def is_number(value: Any) -> bool:
    """Whether a value, or a text, is a finite number. 1_000 is none."""
    try:
        return bool(np.isfinite(float(value))) and "_" not in str(value)
    except (TypeError, ValueError):
        return False


def _some(names) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN]) + (f", ... ({len(names)} in all)" if names[SHOWN:] else "")
