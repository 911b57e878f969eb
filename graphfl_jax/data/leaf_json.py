"""JSON files of LEAF: the examples of users, in any number of files of a folder.

Caldas, Duddu, Wu, Li, Konecny, McMahan, Smith, Talwalkar. LEAF: A Benchmark for Federated
Settings. 2018. https://arxiv.org/abs/1812.01097. A file is an object with the names of its
"users", and "user_data", which has the lists "x" and "y" of each user.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray]  # x [n, ...] and y [n]


def read_users(
    folder: Path, convert: Callable[[list, list], Arrays]
) -> Iterator[tuple[str, Arrays]]:
    """Reads the users of a folder of JSON files, one file after another, sorted by name.

    A file is parsed when its first user is asked for, so the lists of one file are in memory.

    Args:
      convert: the lists x and y of a user, of the same length, as arrays; it raises a
        TypeError or a ValueError that says what is wrong with them.

    Raises, while users are asked for:
      ValueError: a file has another form, or the examples of a user cannot be converted. One
        line with the file and the user.
    """
    for path in sorted(Path(folder).glob("*.json")):
        remedy = "use a file of LEAF's preprocess.sh"
        try:
            content = json.loads(path.read_bytes())
            users, data = content["users"], content["user_data"]
            examples = [(str(user), data[user]["x"], data[user]["y"]) for user in users]
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(
                f"{path}: the file has no users with x and y ({why}); {remedy}"
            ) from error
        for user, x, y in examples:
            try:
                if len(x) != len(y):
                    raise ValueError(f"{len(x)} in x and {len(y)} in y")
                arrays = convert(x, y)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{path}: the examples of user {user!r} are wrong "
                    f"({' '.join(str(error).split())}); {remedy}"
                ) from error
            yield user, arrays
