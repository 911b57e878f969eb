"""Several processes that run one program: barriers, shared errors, checks of equality.

All processes run the same code on the same configuration, and every computation needs all of
them. If one stops alone, the others wait. So everything that may fail in one process is called
through `run_synchronized`: reading data, and writing the folder of a run, which only the first
process does. In a single process, the functions here do nothing else.
"""

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import serialization
from jax.experimental import multihost_utils

_WIDTH = 1000  # bytes of an error message that are sent to the others


class AgreedError(ValueError):
    """An error in one process that all processes know of."""


def is_distributed() -> bool:
    """Whether this process has joined others; uses no device."""
    return jax.distributed.is_initialized()


def is_first() -> bool:
    """Whether this process writes and prints."""
    return not is_distributed() or jax.process_index() == 0


def run_synchronized(function: Callable, *args: Any) -> Any:
    """`function(*args)` in every process; afterwards all continue, or none.

    Raises:
      AgreedError: in all processes, the first error of any of them.
      OSError, ValueError: the error itself, in a single process.
    """
    if not is_distributed():
        return function(*args)
    _connect()
    value, error = None, None
    try:
        value = function(*args)
    except (OSError, ValueError) as raised:
        error = raised
    errors = _all_gather_text(str(error) or type(error).__name__ if error else "")
    for i, text in enumerate(errors):
        if text:
            raise AgreedError(f"process {i}: {text}" if i else text) from error
    return value


def barrier() -> None:
    """Barrier across processes."""
    run_synchronized(lambda: None)


@functools.cache
def _connect():
    """Connects the processes while they are at the same point of the code.

    Gloo, which connects CPUs, allows 30 s for the first connection of a group of devices. Later
    they wait for each other without a limit.
    """
    _all_gather_text("")


def assert_same_on_all(facts: dict[str, str]) -> None:
    """Checks that all processes have the same facts.

    Raises:
      AgreedError: they differ; it names the fact.
    """
    if not is_distributed():
        return
    for what, fact in facts.items():
        digests = _all_gather_text(hashlib.sha256(fact.encode()).hexdigest())
        for i, digest in enumerate(digests):
            if digest != digests[0]:
                raise AgreedError(
                    f"process {i} and process 0 differ in their {what}; "
                    f"start all processes with the same"
                )


def from_first(value: Any) -> Any:
    """The first process's value, in every process.

    Args:
      value: nested dictionaries of arrays, numbers and text, or None; ignored in the others.
    """
    if not is_distributed():
        return value
    packed = serialization.msgpack_serialize(value) if is_first() else b""
    length = np.frombuffer(len(packed).to_bytes(8, "big"), np.uint8)
    length = int.from_bytes(multihost_utils.broadcast_one_to_all(length).tobytes(), "big")
    sent = np.frombuffer(packed or bytes(length), np.uint8)
    return serialization.msgpack_restore(multihost_utils.broadcast_one_to_all(sent).tobytes())


def _all_gather_text(text: str) -> list[str]:
    """The texts of all processes, in their order; long ones are cut."""
    padded = text.encode()[:_WIDTH].ljust(_WIDTH, b"\0")
    rows = multihost_utils.process_allgather(np.frombuffer(padded, np.uint8))
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in rows]
