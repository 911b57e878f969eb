"""Rows of many clients in one array, so that array operations take the place of loops."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """Rows of N clients, those of one client after those of another."""

    values: np.ndarray  # [R, ...]
    counts: np.ndarray  # [N] int, the rows of each client, in total R

    @classmethod
    def of(cls, arrays: np.ndarray | Iterable[np.ndarray]) -> "Rows":
        """The rows of N clients from one array [n_i, ...] of each, or from one [N, n, ...]."""
        if isinstance(arrays, np.ndarray):
            clients, each, *shape = arrays.shape
            return cls(arrays.reshape(-1, *shape), np.full(clients, each))
        arrays = list(arrays)
        return cls(np.concatenate(arrays), np.fromiter(map(len, arrays), np.int64, len(arrays)))

    @property
    def begins(self) -> np.ndarray:
        """The first row of each client, [N] int."""
        return np.cumsum(self.counts) - self.counts

    @property
    def clients(self) -> np.ndarray:
        """The client of each row, [R] int."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def place(self, row: int) -> tuple[int, int]:
        """The client of a row, and the number of the row among those of the client."""
        client = int(np.searchsorted(np.cumsum(self.counts), row, side="right"))
        return client, row - int(self.begins[client])

    def split(self) -> list[np.ndarray]:
        """One array [n_i, ...] of each client."""
        return np.split(self.values, np.cumsum(self.counts)[:-1])
