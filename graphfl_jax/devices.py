"""Devices: the mesh that a cohort is split over, and how its rows move between devices."""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from graphfl_jax import tree
from graphfl_jax.core import Array


def client_mesh(*cohort_sizes: int, devices: list[jax.Device] | None = None) -> Mesh | None:
    """A mesh over which the clients of a round are split; None if that is one device.

    It has as few devices as make the largest share of a device as small as possible: 10 clients
    take 5 of 8 devices, with 2 each. With several processes, each has devices in the mesh,
    since a computation needs all processes.

    Args:
      cohort_sizes: clients in a round, of each architecture.
      devices: devices of this process that may be used; by default those of all processes.
    """
    processes = jax.process_count()
    if devices is None:
        by_process = [jax.local_devices(process_index=i) for i in range(processes)]
        turns = itertools.zip_longest(*by_process)
        devices = [device for turn in turns for device in turn if device]
    sizes = range(processes, len(devices) + 1)
    size = min(sizes, key=lambda n: sum(-(-count // n) for count in cohort_sizes))
    if size == 1:
        return None
    chosen = sorted(devices[:size], key=lambda device: device.process_index)
    return jax.make_mesh((size,), ("clients",), (AxisType.Auto,), devices=chosen)


def fill_up(ids: Array | np.ndarray, multiple: int) -> Array | np.ndarray:
    """The ids [M], the last of them repeated until their number is a multiple."""
    count = len(ids)
    full = -(-count // multiple) * multiple
    # Without a gather where there is nothing to fill: this is part of every round.
    return ids if full == count else ids[np.minimum(np.arange(full), count - 1)]


def map_clients(one_client: Callable, mesh: Mesh | None, at_once: int = 0) -> Callable:
    """Maps ``one_client(shared, i, rows)`` over ids [M] and rows [M, ...].

    It is a vmap, split over the devices of `mesh` if there is one; M must be a multiple of the
    size of the mesh, see `fill_up`.

    Args:
      at_once: largest number of clients in a vmap on each device; these vmaps are in sequence.
        0 is all.
    """
    all_at_once = jax.vmap(one_client, in_axes=(None, 0, 0))

    def many(shared, ids, rows):
        count = len(ids)
        if not 0 < at_once < count:
            return all_at_once(shared, ids, rows)
        size = -(-count // -(-count // at_once))
        # All vmaps have the same size, so that only one is compiled.
        if count % size:
            ids, rows = tree.take((ids, rows), fill_up(np.arange(count), size))
        results = jax.lax.map(
            lambda client: one_client(shared, *client),
            (ids, rows),
            batch_size=size if size > 1 else None,
        )
        return jax.tree.map(lambda leaf: leaf[:count], results)

    if mesh is None:
        return many

    def on_one_device(shared, ids, rows):
        # A gradient with respect to a value that is the same on all devices would be summed
        # over the devices, and each client would train on the others' examples too.
        shared = jax.lax.pcast(shared, "clients", to="varying")
        return many(shared, ids, rows)

    whole, split = P(), P("clients")
    return jax.shard_map(
        on_one_device, mesh=mesh, in_specs=(whole, split, split), out_specs=split
    )


def call_for_all(many: Callable) -> Callable:
    """The function (shared, i) that gives one row of ``many(shared, ids [M])``.

    Mapped over clients alone, it calls `many` once for all of them, instead of mapping its
    operations. So `many` may choose what is cheaper for their number, and a condition in it
    that is the same for all clients computes one branch.
    """

    def row(shared, i):
        return jax.tree.map(lambda leaf: leaf[0], many(shared, i[None]))

    function = jax.custom_batching.custom_vmap(row)

    @function.def_vmap
    def map_rows(size, is_mapped, shared, ids):
        axes = jax.tree.map(lambda leaf_is_mapped: 0 if leaf_is_mapped else None, is_mapped)
        if jax.tree.leaves(axes) == [0] and axes[1] == 0:
            rows = many(shared, ids)
        else:
            rows = jax.vmap(row, axes)(shared, ids)
        return rows, jax.tree.map(lambda leaf: True, rows)

    return function


def replicate(values, mesh: Mesh | None):
    """The same values, held whole by every device of `mesh`.

    Without this constraint, the compiler also splits what comes before and after a cohort's
    training, and the devices have to sum the gradients of each step of the server.
    """
    if mesh is None:
        return values
    return jax.lax.with_sharding_constraint(values, NamedSharding(mesh, P()))


def all_gather_rows(rows, mesh: Mesh | None):
    """Rows of any types and numbers, held whole by every device of `mesh`, which had parts.

    All rows of a type travel in one message: between hosts, starting a message takes longer
    than sending it.

    Args:
      rows: a tree of [M, ...]. Each M is a multiple of the size of the mesh.
    """
    if mesh is None:
        return rows
    leaves, structure = jax.tree.flatten(rows)
    gathered = list(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):  # the same order on all hosts
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        # What each device has of a leaf, as a row.
        flat = [leaves[i].reshape(mesh.size, leaves[i].size // mesh.size) for i in places]
        ends = np.cumsum([leaf.shape[1] for leaf in flat])
        parts = jnp.split(replicate(jnp.concatenate(flat, axis=1), mesh), ends[:-1], axis=1)
        for i, part in zip(places, parts, strict=True):
            gathered[i] = replicate(part.reshape(leaves[i].shape), mesh)
    return jax.tree.unflatten(structure, gathered)
