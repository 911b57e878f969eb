"""Which clients take part in a round, and how many of their local steps they take.

    dropout      each client of a cohort fails with the probability ``hparams.dropout_share``,
                 whatever the others do; it is drawn anew in each round
    trace        a file says when each client is up. Cohorts are drawn from those who are up;
                 where these are too few, the other places of the round are empty
    stragglers   with ``stragglers.name=uniform`` and the probability
                 ``hparams.straggler_share``, a client takes k of its K local steps, k uniform
                 in 1, ..., K

A client that fails counts as untrained: it keeps what it had, and the server learns from the
others alone. Where the server averages, the mean is over those who answer. A round in which
nobody answers changes nothing. The message was sent to all, so the bytes are those of all.
"""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax.core import Array
from graphfl_jax.data import files
from graphfl_jax.data.tables import is_number, read_rows
from graphfl_jax.settings import Real, Text

# (key, cohorts, number n of clients of each architecture, state of the server) -> the cohorts,
# with who takes part and how; see `core.Algorithm.attend`
Law = Callable[[Array, tuple, tuple[int, ...], object], tuple]


class Availability(NamedTuple):
    """Who can be drawn, and who of those who were drawn takes part."""

    law: Law
    up: Callable[[Array, Array], Array] | None = None  # see `core.Algorithm.up`


def dropout(
    *,
    dropout_share: Annotated[
        Array, Real("Probability with which a client of a round does not answer.", high=1.0)
    ] = 0.1,
) -> Availability:
    """Lets each client of a round fail with the same probability."""

    def law(key, cohorts, sizes, server):
        return tuple(
            cohort.of_those(jax.random.uniform(key_group, cohort.ids.shape) >= dropout_share)
            for key_group, cohort in zip(_keys(key, cohorts), cohorts, strict=True)
        )

    return Availability(law)


def trace(
    *,
    client_names: Sequence[str],
    file: Annotated[
        str,
        Text(
            "CSV file of the columns client, time and state, which is up or down from then on."
        ),
    ] = "",
    trace_repeat: Annotated[
        Array, Real("Time after which the trace begins again; 0: it does not.")
    ] = 0.0,
    dropout_share: Annotated[
        Array, Real("Probability with which a client that is up does not answer.", high=1.0)
    ] = 0.0,
) -> Availability:
    """Lets clients be up or down as a file says.

    Its times count from 0. They are seconds of the clock, or without one rounds.

    Raises:
      ValueError: the file is damaged, or has other clients; one line.
      FileNotFoundError: there is no such file.
    """
    if not file:
        raise ValueError(
            "availability.file is empty, and availability.name=trace reads it; set "
            "--config.availability.file=FILE"
        )
    files.check_exists(file, field="availability.file")
    modified = Path(file).stat().st_mtime_ns
    up_at_first, changes = read_trace(file, modified, tuple(client_names))

    def up(ids, time):
        repeats = trace_repeat > 0
        time = jnp.where(repeats, jnp.mod(time, jnp.where(repeats, trace_repeat, 1.0)), time)
        count = jnp.sum(jnp.asarray(changes)[ids] <= time, axis=1)
        return jnp.asarray(up_at_first)[ids] ^ (count % 2 == 1)

    return Availability(dropout(dropout_share=dropout_share).law, up)


@functools.lru_cache(maxsize=2)
def read_trace(
    file: str, modified: int, clients: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """The trace of a file.

    Before its first line, a client is in the other state than this line says.

    Args:
      modified: when, so that a file that was edited is read again.
      clients: the names of all clients.

    Returns:
      Whether each client is up at first, [N] bool, and the times when it changes, [N, E]
      float32, after which there are infinite ones.

    Raises:
      ValueError: the file is damaged, or has other clients; one line.
    """
    header, *rows = read_rows(file)
    if header != ["client", "time", "state"]:
        raise ValueError(
            f"availability.file={file}: the header is {','.join(header)}; make it "
            f"client,time,state"
        )
    lines: dict[str, dict[float, bool]] = {name: {} for name in clients}
    for number, (name, time, state) in enumerate(rows, start=2):
        where = f"availability.file={file}, line {number}"
        if name not in lines:
            raise ValueError(
                f"{where}: client {name!r} is none of the {len(clients)} clients; use their "
                f"names, such as {clients[0]!r}, or leave the line out"
            )
        if not is_number(time) or not 0 <= float(time) < math.inf:
            raise ValueError(f"{where}: time {time!r} is no number from 0 on; give a number")
        if state not in ("up", "down"):
            raise ValueError(f"{where}: state {state!r} is unknown; choose from up, down")
        if float(time) in lines[name]:
            raise ValueError(
                f"{where}: client {name!r} has two lines with time {time}; leave one out"
            )
        lines[name][float(time)] = state == "up"
    without = [name for name, of_client in lines.items() if not of_client]
    if without:
        raise ValueError(
            f"availability.file={file} has no line of {len(without)} of {len(clients)} "
            f"clients, the first is {without[0]!r}; add one, such as {without[0]},0,up"
        )
    return _changes(lines.values())


def _changes(of_clients):
    """Whether each client is up at first, and when it changes, from its states by time."""
    up_at_first, times = [], []
    for states in of_clients:
        ordered = sorted(states.items())
        before = [not ordered[0][1], *(state for _, state in ordered)]
        up_at_first.append(before[0])
        times.append([t for (t, new), old in zip(ordered, before, strict=False) if new != old])
    changes = np.full((len(times), max(map(len, times))), np.inf, np.float32)
    for row, some in zip(changes, times, strict=True):
        row[: len(some)] = some
    return np.array(up_at_first), changes


def uniform_stragglers(
    *,
    straggler_share: Annotated[
        Array, Real("Probability with which a client takes fewer local steps.", high=1.0)
    ] = 0.5,
    steps: Callable[[Array], Array],
) -> Law:
    """Lets some clients take k of their K local steps, with k uniform in 1, ..., K.

    Args:
      steps: (weights [M]) -> [M] float32, the local steps of clients with so many examples.
    """

    def law(key, cohorts, sizes, server):
        return tuple(
            _with_stragglers(key_group, cohort, straggler_share, steps(cohort.weights))
            for key_group, cohort in zip(_keys(key, cohorts), cohorts, strict=True)
        )

    return law


def _with_stragglers(key, cohort, share, steps):
    key_who, key_steps = jax.random.split(key)
    is_straggler = jax.random.uniform(key_who, cohort.ids.shape) < share
    uniform = 1.0 - jax.random.uniform(key_steps, cohort.ids.shape)  # in (0, 1]
    taken = jnp.ceil(uniform * steps)
    return cohort._replace(work=jnp.where(is_straggler, taken / steps, 1.0))


def _keys(key, cohorts):
    return [jax.random.fold_in(key, group) for group in range(len(cohorts))]


AVAILABILITIES = {"dropout": dropout, "trace": trace}
STRAGGLERS = {"uniform": uniform_stragglers}


def in_turn(laws: Sequence[Law]) -> Law | None:
    """The law of several, each with a key of its own; None without any."""
    if not laws:
        return None

    def law(key, cohorts, sizes, server):
        for number, each in enumerate(laws):
            cohorts = each(jax.random.fold_in(key, number), cohorts, sizes, server)
        return cohorts

    return law
