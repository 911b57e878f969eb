"""Files of relations: pairs of clients, or a matrix with a row and a column per client."""

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from graphfl_jax.data import files
from graphfl_jax.data.tables import is_number, names_of, read_rows


def read_edges(path: str, clients: np.ndarray | None) -> dict[str, Any]:
    """Reads relations from a file, which is one of

    pairs: a CSV file with a header and two columns of names; a third one has weights. Pairs
      have no direction, and each is given once.
    a matrix with names: a CSV file whose header and first column have the same names.
    a matrix [N, N] without names: in the sorted order of the clients, as a CSV file or an array
      of np.save or np.savez.

    Where a matrix is not 0, the client of the row is related to the client of the column. It
    receives from it if the matrix is not symmetric, which a warning says. The diagonal is not
    read. A warning says too if a matrix with names lacks clients.

    Args:
      clients: the names of the clients [N], sorted; None if they are 0, 1, ...

    Returns:
      ``edges`` and perhaps ``edge_weight`` and ``directed``, arguments of
      `custom.from_arrays`.

    Raises:
      ValueError: the file is damaged, or of another form. One line with the file.
      FileNotFoundError: there is no such file.
    """
    files.check_exists(path, field="data.edges")
    if Path(path).suffix in (".npy", ".npz"):
        return _of_matrix(path, _read_array(path), clients)
    rows = read_rows(path)
    header, *below = rows
    known = set() if clients is None else set(clients.astype(str).tolist())
    if len(header) == len(rows) > 2 and all(map(is_number, itertools.chain(*rows))):
        if len(header) == 3 and _may_be_pairs(rows, known):
            raise ValueError(
                f"{path}: its three rows are pairs with weights, or a matrix; write a header "
                "such as from,to,weight above pairs, or give a matrix as a .npy file"
            )
        return _of_matrix(path, np.array(rows).astype(float), clients)
    if len(header) > 2 and sorted(header[1:]) == sorted(row[0] for row in below):
        return _of_named_matrix(path, header[1:], below, clients)
    if len(header) not in (2, 3):
        raise ValueError(
            f"{path}: the file has {len(rows)} rows of {len(header)} columns; give pairs of "
            "clients in two columns, a third one of weights, or a matrix with a row and a "
            "column for each client"
        )
    if known.issuperset(header[:2]):
        raise ValueError(
            f"{path}: the first row names the clients {header[0]!r} and {header[1]!r}; write a "
            "header such as from,to above it"
        )
    pairs = np.array(below).reshape(-1, len(header))
    edges = {"edges": _names(pairs[:, :2], clients)}
    return edges if len(header) == 2 else edges | {"edge_weight": _numbers(path, pairs[:, 2])}


def _of_named_matrix(path, columns, rows, clients):
    """The edges of rows that begin with a name; the columns may have another order."""
    of_row = {row[0]: row[1:] for row in rows}
    if len(of_row) < len(rows):
        raise ValueError(f"{path}: two rows have the same name; give every client one row")
    names = _names(np.array(columns), clients)
    lacking = [] if clients is None else np.setdiff1d(clients, names).tolist()
    if lacking:
        warnings.warn(
            f"{path}: {len(lacking)} of {len(clients)} clients have no row, the first is "
            f"{lacking[0]!r}; they are related to nobody",
            RuntimeWarning,
            stacklevel=5,
        )
    cells = np.array([of_row[name] for name in columns])
    return _of_matrix(path, _numbers(path, cells), names)


def _may_be_pairs(rows, known):
    """Whether the first two cells of rows are different pairs of clients, known or numbered."""
    pairs = {frozenset(row[:2]) for row in rows}
    if len(pairs) < len(rows) or any(len(pair) < 2 for pair in pairs):
        return False
    names = set().union(*pairs)
    return names <= known if known else all(map(str.isdigit, names))


def _names(cells, clients):
    """Names in the type of those of the clients."""
    return cells if clients is not None and clients.dtype.kind == "U" else names_of(cells)


def _numbers(path, cells):
    for place, cell in np.ndenumerate(cells):
        if not is_number(cell):
            raise ValueError(
                f"{path}: {str(cell)!r} is no number, in row {place[0]}, counted from 0 below "
                f"the header; give weights as numbers"
            )
    return cells.astype(float)


def _read_array(path):
    """The array of a file of np.save, or the only one of a file of np.savez."""
    with Path(path).open("rb") as opened:
        if Path(path).suffix == ".npz":
            file = files.open_npz(path, opened)
            if len(file.files) != 1:
                raise ValueError(
                    f"{path}: the file has {len(file.files)} arrays; give one, a matrix of "
                    "relations"
                )
            return files.read_npz_array(path, file, file.files[0])
        try:
            return np.lib.format.read_array(opened, allow_pickle=False)
        except (ValueError, EOFError) as error:
            why = " ".join(str(error).split())
            raise ValueError(
                f"{path}: the array cannot be read ({why}); write it with np.save"
            ) from error


def _of_matrix(path, matrix, names):
    """The edges of a matrix. Without names, its clients are 0, 1, ..."""
    size = len(matrix) if names is None and matrix.ndim else np.size(names)
    if matrix.shape != (size, size) or matrix.dtype.kind not in "biuf":
        raise ValueError(
            f"{path}: the array has shape {matrix.shape} and type {matrix.dtype}; give numbers "
            f"[{size}, {size}], a row and a column for each client in sorted order"
        )
    names = np.arange(size) if names is None else names
    matrix = matrix.astype(float)
    np.fill_diagonal(matrix, 0)
    differ = int(np.count_nonzero(matrix != matrix.T)) // 2
    if differ:
        warnings.warn(
            f"{path}: the matrix is not symmetric for {differ} of {size * (size - 1) // 2} "
            f"pairs of clients, so its relations are directed, from the column to the row; if "
            f"they have no direction, write matrix + matrix.T of a triangle, else their mean",
            RuntimeWarning,
            stacklevel=5,
        )
    directed = differ > 0
    receivers, senders = np.nonzero(matrix if directed else np.triu(matrix))
    weights = matrix[receivers, senders]
    edges = {"edges": names[np.stack([senders, receivers], axis=1)], "directed": directed}
    return edges if (weights == 1).all() else edges | {"edge_weight": weights}
