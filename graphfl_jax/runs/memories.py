"""What clients keep between rounds, as records in a file: for federations on the host."""

import errno
import os
import tempfile
from typing import Any

import jax
import numpy as np

from graphfl_jax.memory import bytes_of
from graphfl_jax.runs.disk import writing


class Memories:
    """A record of each client. Only those that have been written take space.

    They are in a file without a name, in the folder for temporary files ($TMPDIR), which the
    system removes when the process ends. Records are read and written one by one: the pages of
    a memory map would count as memory of the process.

    Attributes:
      known: [N] bool, whether a client's record has been written.
      width: bytes of a record; 0 if clients keep nothing.
    """

    def __init__(self, form: Any, clients: int):
        """Makes the file.

        Args:
          form: the shapes and types of what one client keeps.
          clients: N.
        """
        self.form, self.width = form, bytes_of(form)
        self.known = np.zeros(clients, bool)
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115

    def read(self, ids: np.ndarray) -> Any:
        """What clients `ids` [C] keep, every leaf [C, ...]; 0 for those without a record."""
        return self._as_tree(self._records(ids))

    def write(self, ids: np.ndarray, memories: Any) -> None:
        """Replaces what clients `ids` [C] keep by every leaf [C, ...].

        Raises:
          WriteError: the file cannot be written.
        """
        leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(memories)]
        rows = [leaf.reshape(len(ids), -1).view(np.uint8) for leaf in leaves if leaf.size]
        if rows:
            self._write(ids, np.concatenate(rows, axis=1))

    def saved(self) -> dict[str, np.ndarray]:
        """All records, for a checkpoint: "ids" [n] and "records" [n, width]; {} without any."""
        ids = np.flatnonzero(self.known)
        return {"ids": ids, "records": self._records(ids)} if len(ids) else {}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Writes the records of `saved`.

        Raises:
          ValueError: they have another size.
        """
        if not saved:
            return
        if saved["records"].shape[1:] != (self.width,):
            raise ValueError(
                f"the checkpoint has records of {saved['records'].shape[1:]} bytes of what "
                f"clients keep, and a client keeps {self.width}; choose another --out"
            )
        self._write(saved["ids"], saved["records"])

    def _records(self, ids):
        """The bytes [C, width] of records."""
        records = np.zeros((len(ids), self.width), np.uint8)
        for row, i, known in zip(records, ids.tolist(), self.known[ids], strict=True):
            if known:
                content = os.pread(self.file.fileno(), self.width, i * self.width)
                row[:] = np.frombuffer(content, np.uint8)
        return records

    def _write(self, ids, records):
        with writing(f"{tempfile.gettempdir()} (what clients keep)"):
            for row, i in zip(records, ids.tolist(), strict=True):
                if os.pwrite(self.file.fileno(), row, i * self.width) < self.width:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.known[ids] = True

    def _as_tree(self, records):
        """Every leaf [C, ...] of records."""
        leaves, begin = [], 0
        for leaf in jax.tree.leaves(self.form):
            end = begin + bytes_of(leaf)
            part = np.ascontiguousarray(records[:, begin:end]).view(leaf.dtype)
            leaves.append(part.reshape(len(records), *leaf.shape))
            begin = end
        return jax.tree.unflatten(jax.tree.structure(self.form), leaves)
