"""What several processes tell one another beside the program that they run together.

All of them run the same code on the same configuration, and every computation needs each: one
that stops alone leaves the others waiting. So whatever may fail on one process, reading data
above all and writing the folder of a run, which the first process does alone, is done in
`together`. In a process by itself, nothing here does anything.
"""

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import serialization
from jax.experimental import multihost_utils

_WIDTH = 1000  # bytes of an error that are told to the others


class AgreedError(ValueError):
    """An error on one process that all processes have been told of."""


def is_distributed() -> bool:
    """Whether this process has joined others; asks no device."""
    return jax.distributed.is_initialized()


def is_first() -> bool:
    """Whether this process writes and prints."""
    return not is_distributed() or jax.process_index() == 0


def run_synchronized(function: Callable, *args: Any) -> Any:
    """`function(*args)` on every process, after which all go on or none does.

    Raises:
      Agreed: on all processes, the first error that any of them met.
      OSError, ValueError: the error itself, in a process by itself.
    """
    if not is_distributed():
        return function(*args)
    _meet()
    value, error = None, None
    try:
        value = function(*args)
    except (OSError, ValueError) as met:
        error = met
    errors = _all_gather_text(str(error) or type(error).__name__ if error else "")
    for i, text in enumerate(errors):
        if text:
            raise AgreedError(f"process {i}: {text}" if i else text) from error
    return value


def barrier() -> None:
    """Returns once every process has come here."""
    run_synchronized(lambda: None)


@functools.cache
def _meet():
    """Connects the processes, while they are at one place of the code.

    Gloo, which connects CPUs, gives a circle of devices 30 s to come together for the first
    time. After that they wait for one another as long as it takes.
    """
    _all_gather_text("")


def assert_same_on_all(facts: dict[str, str]) -> None:
    """Refuses processes that were not given the same.

    Raises:
      Agreed: it names what differs.
    """
    if not is_distributed():
        return
    for what, fact in facts.items():
        told = _all_gather_text(hashlib.sha256(fact.encode()).hexdigest())
        for i, other in enumerate(told):
            if other != told[0]:
                raise AgreedError(
                    f"process {i} and process 0 differ in their {what}; "
                    f"start all processes with the same"
                )


def from_first(value: Any) -> Any:
    """The first process's value, on every process.

    Args:
      value: nested dictionaries of arrays, numbers and text, or None; the others' is ignored.
    """
    if not is_distributed():
        return value
    packed = serialization.msgpack_serialize(value) if is_first() else b""
    length = np.frombuffer(len(packed).to_bytes(8, "big"), np.uint8)
    length = int.from_bytes(multihost_utils.broadcast_one_to_all(length).tobytes(), "big")
    sent = np.frombuffer(packed or bytes(length), np.uint8)
    return serialization.msgpack_restore(multihost_utils.broadcast_one_to_all(sent).tobytes())


def _all_gather_text(text: str) -> list[str]:
    """Every process's text, in their order; long ones are cut."""
    told = text.encode()[:_WIDTH].ljust(_WIDTH, b"\0")
    rows = multihost_utils.process_allgather(np.frombuffer(told, np.uint8))
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in rows]
