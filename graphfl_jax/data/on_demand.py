"""Arrays of clients of which rows are computed when they are read, and names likewise."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

PART = 1_000_000  # numbers that are computed at a time, unless a client has more


class OnDemand:
    """An array [N, ...] whose rows are a function of the numbers of clients.

    It stands where a federation has a NumPy array, and is a leaf of trees. Reading some clients
    computes their rows alone, so ``tree.take(data.train, ids)`` is cheap. `numpy.asarray`
    computes all of them.

    Attributes:
      shape: [N, ...].
      dtype: of NumPy.
      formula: what determines all numbers beside the shape and the type; it stands for them in
        digests.
    """

    def __init__(
        self,
        rows_of: Callable[[np.ndarray], np.ndarray],
        shape: Sequence[int],
        dtype: Any,
        formula: str,
    ):
        """
        Args:
          rows_of: the numbers [k] of clients, int64 -> their rows [k, ...]. The row of a client
            must not depend on the other clients that are read.
        """
        self._rows_of = rows_of
        self.shape, self.dtype, self.formula = tuple(shape), np.dtype(dtype), formula

    def __repr__(self) -> str:
        return f"<OnDemand: {self.dtype}{list(self.shape)} by {self.formula}>"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, clients: Any) -> np.ndarray:
        """The rows of clients as of a NumPy array: of a number, a slice, or an array [k].

        Raises:
          IndexError: there is no such client.
        """
        numbers = np.arange(len(self))[clients]  # checks them, and counts from the end
        rows = np.empty((numbers.size, *self.shape[1:]), self.dtype)
        step = max(1, PART // max(1, math.prod(self.shape[1:])))
        for begin in range(0, numbers.size, step):
            part = slice(begin, begin + step)
            rows[part] = self._rows_of(numbers.reshape(-1)[part])
        return rows.reshape(*numbers.shape, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows.

        Raises:
          ValueError: `copy` is False, since they are not in memory.
        """
        if copy is False:
            raise ValueError("copy=False: rows are computed when they are read; leave it out")
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)


class Names(Sequence[str]):
    """The names "WORD 0", "WORD 1", ... of clients, each made when it is read."""

    def __init__(self, word: str, numbers: range):
        self._word, self._numbers = word, numbers

    def __repr__(self) -> str:
        return f"<Names: {len(self)} of {self._word!r}>"

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return (f"{self._word} {i}" for i in self._numbers)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Names(self._word, self._numbers[place])
        return f"{self._word} {self._numbers[place]}"
