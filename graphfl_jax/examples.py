"""Examples of clients: in memory, or windows over a series."""

from typing import NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


class Examples(NamedTuple):
    """Examples of one client, or of N clients stacked on a leading axis.

    The first `count` rows are real. The others are padding, on which no result depends.
    """

    x: Array  # [S, *features]  or [N, S, *features]
    y: Array  # [S, *targets]   or [N, S, *targets]
    count: Array  # [] int32    or [N] int32
    # The share of its local steps that the client takes, [] float32; None: all of them
    work: Array | None = None

    @property
    def size(self) -> int:
        """S, for the examples of one client."""
        return self.y.shape[0]

    def with_work(self, work: Array | None) -> "Examples":
        """The same examples with another `work`."""
        return self._replace(work=work)

    def rows(self, indices: Array) -> "Examples":
        """The examples `indices` [B] of one client, all of them real."""
        return Examples(self.x[indices], self.y[indices], jnp.int32(indices.shape[0]))


@flax.struct.dataclass
class Windows:
    """Examples of one client, or of N clients stacked, that are windows over a series.

    Example j consists of the steps j to j + past + future - 1; the last `future` of them are
    the targets. Windows are gathered on demand: stored windows would need past + future times
    the memory.
    """

    # [T, F] or [N, T, F]; feature 0 is the target, the others are known in advance
    series: Array
    count: Array  # [] int32 or [N] int32, at most T - past - future + 1
    work: Array | None = flax.struct.field(default=None, kw_only=True)  # as of `Examples`
    past: int = flax.struct.field(pytree_node=False)
    future: int = flax.struct.field(pytree_node=False)

    @property
    def size(self) -> int:
        """S, for the examples of one client."""
        return self.series.shape[0] - self.past - self.future + 1

    def with_work(self, work: Array | None) -> "Windows":
        """The same windows with another `work`."""
        return self.replace(work=work)

    def rows(self, indices: Array) -> Examples:
        """The windows `indices` [B] of one client.

        Returns:
          x [B, past + future, F], where feature 0 is 0 in the last `future` steps, and
          y [B, future].
        """
        length = self.past + self.future
        windows = self.series[indices[:, None] + np.arange(length)[None]]
        visible = np.ones((length, windows.shape[-1]), np.float32)
        visible[self.past :, 0] = 0
        targets = windows[:, self.past :, 0]
        return Examples(windows * visible[None], targets, jnp.int32(indices.shape[0]))


def repeat_real(indices: Array, count: Array) -> Array:
    """The first `count` of the indices [B], which are repeated in place of the others.

    So all rows of a batch are examples, also for a model that mixes the rows: statistics of
    batch normalisation have nothing of padding.
    """
    return indices[jnp.arange(indices.shape[0]) % jnp.maximum(count, 1)]
