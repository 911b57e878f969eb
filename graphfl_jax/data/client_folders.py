"""Folders with examples of clients, as PFLlib and LEAF write them.

PFLlib (Zhang et al., PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated
Learning Library and Benchmark, JMLR 2025): ``config.json`` with ``num_clients``, and for client
i the files ``train/i.npz`` and ``test/i.npz``, each with a dictionary of x and y under the name
``data``. LEAF: ``train/`` and ``test/`` with JSON files of users, see `leaf_json`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from graphfl_jax.data.leaf_json import read_users
from graphfl_jax.data.pickles import load_npz_object

PARTS = ("train", "test")


def read_folder(path: str | Path) -> dict[str, Any]:
    """Reads a folder, with the split that it has.

    Returns:
      The arguments x, y, client and split of `custom.from_arrays`.

    Raises:
      ValueError: the folder is neither PFLlib's nor LEAF's, or a file is damaged or without
        numbers. One line with the file or the client.
      FileNotFoundError: the file of a client is missing.
    """
    path = Path(path)
    if (path / "config.json").is_file():
        rows = _read_pfllib(path)
    elif any((path / "train").glob("*.json")):
        rows = _read_leaf(path)
    else:
        raise ValueError(
            f"data.path={str(path)!r} is a folder with neither config.json, as of PFLlib, nor "
            "JSON files in train, as of LEAF; set it to such a folder, or to a file"
        )
    for client, part, x, y in rows:
        if x.dtype.kind not in "biuf" or x.shape[1:] != rows[0][2].shape[1:]:
            raise ValueError(
                f"{path}: client {client!r} has {part} examples x of type {x.dtype} and shape "
                f"{x.shape}; give numbers of one shape per example, or for the text of LEAF's "
                "Shakespeare set --config.data.name=shakespeare"
            )
        if x.shape[:1] != y.shape[:1]:
            raise ValueError(
                f"{path}: client {client!r} has {part} examples with x of shape {x.shape} and "
                f"y of shape {y.shape}; give one row of each per example"
            )
    clients, parts, x, y = zip(*rows, strict=True)
    counts = list(map(len, y))
    return {
        "x": np.concatenate(x),
        "y": np.concatenate(y),
        "client": np.repeat(clients, counts),
        "split": np.repeat(parts, counts),
    }


def _read_pfllib(path):
    """Lists of client, part, x and y. Files of a larger federation before this one stay out."""
    try:
        total = json.loads((path / "config.json").read_bytes())["num_clients"]
        if not isinstance(total, int) or total < 1:
            raise ValueError(f"num_clients is {total!r}")
    except (ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path / 'config.json'}: the file has no num_clients ({why}); write the folder "
            "with a generator of PFLlib"
        ) from error
    rows = []
    for client in range(total):
        for part in PARTS:
            file = path / part / f"{client}.npz"
            if not file.is_file():
                raise FileNotFoundError(
                    f"{file} is not a file, and config.json has num_clients={total}; write the "
                    "folder again"
                )
            content = load_npz_object(file, "data")
            if not isinstance(content, dict) or not {"x", "y"} <= set(content):
                raise ValueError(
                    f"{file}: 'data' is no dictionary with x and y; write the folder with a "
                    "generator of PFLlib"
                )
            rows.append((client, part, _array(content["x"]), _array(content["y"])))
    return rows


def _read_leaf(path):
    """Lists of user, part, x and y."""
    users = {
        part: list(read_users(path / part, lambda x, y: (_array(x), _array(y))))
        for part in PARTS
    }
    train, test = ({user for user, _ in users[part]} for part in PARTS)
    if train != test:
        raise ValueError(
            f"{path}: {len(train ^ test)} users, such as {min(train ^ test)!r}, are in one of "
            "train and test alone; split with preprocess.sh -t sample, by which each user has "
            "examples of both"
        )
    return [(user, part, x, y) for part in PARTS for user, (x, y) in users[part]]


def _array(values):
    """Rows as an array; of several shapes, an array of objects."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.array([None] * len(values))
