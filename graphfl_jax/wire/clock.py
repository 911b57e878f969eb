"""A simulated clock: how many seconds the rounds of a federation would take on devices.

    t_i = k_i s_i + (B_down + B_up) / r_i        of client i in its round
    s_i = ``hparams.step_seconds`` exp(``hparams.step_spread`` z_i),          z_i ~ N(0, 1)
    r_i = ``hparams.bandwidth`` exp(``hparams.bandwidth_spread`` z'_i),       z'_i ~ N(0, 1)

with k_i local steps, and B bytes of its message and upload. The speeds of a client are drawn
once, and are the same for all seeds and methods. A round takes as long as the server waits:

    devices     for all clients, or for the first ``clock.wait_for`` of the cohort: the others
                were drawn in vain (over-sampling), and count as absent
    deadline    as `devices`, but at most ``hparams.deadline``. With ``clock.late=drop``, who is
                later counts as absent. With ``clock.late=shorten``, each client takes only as
                many steps as fit before the deadline; who has no time for one is absent

A client that fails takes no time, since the server notices it at once. A step counts as one,
however many gradients the method computes in it. The server itself takes no time.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax.core import Array
from graphfl_jax.settings import Choice, Integer, Part, Real
from graphfl_jax.wire.availability import Law

DROP, SHORTEN = LATE = ("drop", "shorten")
SPEEDS = 0x5EED  # of the key of the speeds, the same for all runs


class Clock(NamedTuple):
    """The devices of clients, and how long a server waits for them."""

    step_seconds: Array  # [] median of s_i
    step_spread: Array
    bandwidth: Array  # [] median of r_i, bytes in a second
    bandwidth_spread: Array
    wait_for: int = 0  # 0 is all
    deadline: Array | None = None  # [] seconds
    late: str = DROP  # one of `LATE`, what is done about a deadline

    def speeds(self, ids: Array) -> tuple[Array, Array]:
        """Seconds s_i of a step, and bytes r_i in a second, of clients `ids` [M]."""
        key = jax.random.key(SPEEDS)
        normal = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i), (2,)))(ids)
        step = self.step_seconds * jnp.exp(self.step_spread * normal[:, 0])
        return step, self.bandwidth * jnp.exp(self.bandwidth_spread * normal[:, 1])

    def seconds(self, ids: Array, steps: Array, sent: float) -> Array:
        """Seconds t_i of clients `ids` [M] with so many steps, and bytes `sent` both ways."""
        step, rate = self.speeds(ids)
        return steps * step + sent / rate


def devices(
    *,
    wait_for: Annotated[
        int, Integer("Clients of a cohort for which the server waits; 0: all.", low=0)
    ] = 0,
    step_seconds: Annotated[Array, Real("Median seconds of a local step.", low=1e-6)] = 0.1,
    step_spread: Annotated[
        Array, Real("Standard deviation over clients of the logarithm of these seconds.")
    ] = 0.5,
    bandwidth: Annotated[Array, Real("Median bytes in a second.", low=1.0)] = 1e6,
    bandwidth_spread: Annotated[
        Array, Real("Standard deviation over clients of the logarithm of these bytes.")
    ] = 0.5,
) -> Clock:
    """Gives clients devices of different speed, and waits for all or for the first."""
    return Clock(step_seconds, step_spread, bandwidth, bandwidth_spread, wait_for)


def with_deadline(
    *,
    clock: Annotated[Clock, Part(devices)],
    deadline: Annotated[Array, Real("Seconds after which a client is late.", low=1e-6)] = 10.0,
    late: Annotated[str, Choice("What is done about the deadline.", LATE)] = DROP,
) -> Clock:
    """Gives clients such devices, and waits until a deadline."""
    return clock._replace(deadline=deadline, late=late)


CLOCKS = {"devices": devices, "deadline": with_deadline}


def law_of(
    clock: Clock,
    steps: Callable[[Array], Array],
    sent: Sequence[float],
    seconds: Callable[[Any], Array] | None,
) -> Law:
    """The law by which a server waits for a cohort.

    Args:
      steps: (weights [M]) -> [M] float32, the local steps of clients with so many examples.
      sent: bytes of the message and the upload of a client of each architecture.
      seconds: `core.Server.seconds` of the method.
    """

    def law(key, cohorts, sizes, server):
        if seconds is not None:
            total = seconds(server)
            return tuple(c._replace(seconds=jnp.full(len(c.ids), total)) for c in cohorts)
        if clock.deadline is not None and clock.late == SHORTEN:
            pairs = zip(cohorts, sent, strict=True)
            cohorts = tuple(_shortened(clock, c, steps(c.weights), b) for c, b in pairs)
        taken = []
        for cohort, sent_bytes in zip(cohorts, sent, strict=True):
            work = 1.0 if cohort.work is None else cohort.work
            each = clock.seconds(cohort.ids, work * steps(cohort.weights), sent_bytes)
            taken.append(jnp.where(cohort.answers, each, 0.0))
        limit = _limit(clock, cohorts, jnp.concatenate(taken))
        waited = []
        for cohort, each in zip(cohorts, taken, strict=True):
            if clock.deadline is not None or clock.wait_for:
                cohort = cohort.of_those(each <= limit)
            waited.append(cohort._replace(seconds=jnp.minimum(each, limit)))
        return tuple(waited)

    return law


def _shortened(clock, cohort, steps, sent):
    """A cohort whose clients take as many of their steps as fit before the deadline."""
    step, rate = clock.speeds(cohort.ids)
    fitting = jnp.floor((clock.deadline - sent / rate) / step)
    before = 1.0 if cohort.work is None else cohort.work
    work = jnp.minimum(before * steps, fitting) / steps
    return cohort.of_those(fitting >= 1)._replace(work=jnp.maximum(work, 1.0 / steps))


def _limit(clock, cohorts, taken):
    """The seconds for which the server waits at most, where clients have `taken` so many."""
    limit = jnp.float32(jnp.inf) if clock.deadline is None else clock.deadline
    if not clock.wait_for:
        return limit
    present = jnp.concatenate([cohort.answers for cohort in cohorts])
    answers = jnp.sort(jnp.where(present, taken, jnp.inf))
    return jnp.minimum(limit, answers[min(clock.wait_for, len(taken)) - 1])
