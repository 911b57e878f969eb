"""Memory: refuses what cannot fit, by arithmetic on shapes, before anything is allocated."""

import math
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

# Limits of a container, in the two versions of control groups.
CONTAINERS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def check_memory(what: str, needed: int, there: int | None = None) -> None:
    """Refuses what needs more memory than there is.

    Args:
      what: the setting or the file that decides, such as "data.image_size=1000000".
      needed: bytes, at least.
      there: bytes; None is the memory of the host.
    """
    there = host_memory() if there is None else there
    if needed > there:
        raise ValueError(
            f"{what} needs {size_text(needed)}, {size_text(there)} are there; choose a smaller "
            f"one"
        )


def bytes_of(values: Any) -> int:
    """Bytes of a tree of arrays, or of their shapes from ``jax.eval_shape``."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(values))


def check_run(
    algorithm: Any,
    groups: Any,
    data: Any,
    exchange: Any,
    *,
    held: int,
    steps: Mapping[str, int],
    batch_size: int,
    loaded: str,
    sized: str,
) -> None:
    """Refuses a run whose state, models or batches cannot fit into a device.

    Only what every method needs is counted: the data, the state of the server, the memories of
    its clients and the uploads of a cohort, and of each client that trains at once, what it got
    or its model, a gradient of the model, the inputs of a step and the numbers of the drawn
    examples. So a run that passes may still need too much.

    Args:
      exchange: `Algorithm.first_exchange`.
      held: clients whose examples and memories are on a device at once; 0 is all.
      steps: numbers of steps of a client, by the setting that decides on them.
      loaded: the setting that decides on the data, with its value.
      sized: the setting that decides the sizes of models and states, with its value.

    Raises:
      ValueError: it needs more memory; one line with the setting that needs most of it.
    """
    key = jax.eval_shape(jax.random.key, 0)
    server, messages, memories, uploads = exchange
    example = jax.tree.map(lambda leaf: leaf[0], data.train).rows(np.arange(1))
    everyone, devices = len(data.train.count), jax.device_count()
    share = min(1, held / everyone) if held else 1
    needs = {"data": bytes_of(data) * share, "sizes": bytes_of(server), "batch": 0, "steps": 0}
    for g, group in enumerate(groups):
        count = (everyone if group.ids is None else len(group.ids)) * share
        cohort = -(-group.cohort_size // devices)
        at_once = min(group.at_once or cohort, cohort)
        model = bytes_of(jax.eval_shape(algorithm.clients[g].model.init, key))
        needs["sizes"] += count * bytes_of(memories[g]) + cohort * bytes_of(uploads[g])
        needs["sizes"] += at_once * (max(model, bytes_of(messages[g])) + model)
        needs["batch"] += at_once * batch_size * bytes_of(example)
        needs["steps"] += at_once * batch_size * max(steps.values()) * 4
    sizes = {"batch_size": batch_size, **steps}
    largest = max(sizes, key=sizes.get)
    names = {
        "data": loaded,
        "sizes": sized,
        "batch": f"batch_size={batch_size}",
        "steps": f"{largest}={sizes[largest]}",
    }
    check_memory(names[max(needs, key=needs.get)], int(sum(needs.values())), device_memory())


def host_memory() -> int:
    """Bytes that this process can have: of the machine, its container and its ulimit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    texts = [path.read_text().strip() for path in CONTAINERS if path.is_file()]
    limits += [int(text) for text in texts if text.isdecimal()]
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft_limit != resource.RLIM_INFINITY:
        limits.append(soft_limit)
    return min(limits)


def device_memory() -> int:
    """Bytes of the device of this process that has the least; CPUs have the host's memory."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    return min(stat["bytes_limit"] for stat in stats) if all(stats) else host_memory()


def size_text(count: int) -> str:
    """A number of bytes with three digits or more: "450 TiB"."""
    power = min(max(count.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    value = count / 1024**power
    return f"{value:.0f} {UNITS[power]}" if value >= 100 else f"{value:.3g} {UNITS[power]}"
