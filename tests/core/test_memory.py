"""Checks of sizes against memory: counted by hand, and exact at the border."""

import resource
import types

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from graphfl_jax import memory
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change, flha_cifar10
from graphfl_jax.data import from_arrays
from graphfl_jax.runs import batch
from tests.federations import small_config, two_clusters

GIB = 2**30


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (24 * GIB, "24 GiB"),
        (3 * 165 * 10**12, "450 TiB"),
        (2**70, "1024 EiB"),
    ],
)
def test_bytes_are_shown_with_three_digits_or_more(count, text):
    assert memory.size_text(count) == text


def test_what_fits_passes_and_one_byte_more_is_refused():
    memory.check_memory("data.steps=9", GIB, GIB)
    with pytest.raises(
        ValueError, match="^data.steps=9 needs 1 GiB, 1 GiB are there; choose a"
    ):
        memory.check_memory("data.steps=9", GIB + 1, GIB)


def test_bytes_are_those_of_arrays_and_of_their_shapes():
    arrays = {"a": jnp.zeros((3, 5), jnp.int32), "b": (np.zeros(7, np.uint8), jnp.zeros(()))}
    assert memory.bytes_of(arrays) == 60 + 7 + 4
    assert memory.bytes_of(jax.eval_shape(lambda: arrays)) == 60 + 7 + 4


def test_a_container_and_a_ulimit_lower_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CONTAINERS", ())
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY,) * 2)
    machine = memory.host_memory()
    assert machine > GIB // 2
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CONTAINERS", (limit, tmp_path / "absent"))
    for text, there in (("max", machine), ("4096", 4096)):
        limit.write_text(f"{text}\n")
        assert memory.host_memory() == there
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 1024))
    assert memory.host_memory() == 1024


def test_data_that_do_not_fit_are_named(monkeypatch):
    monkeypatch.setattr(memory, "host_memory", lambda: 1000)
    with pytest.raises(
        ValueError, match="^data.name=two_clusters needs .* KiB, 1000 bytes are"
    ):
        build_experiment(small_config("fedavg", model__hidden=(2,)), two_clusters(padding=99))


# Bytes of a client's examples, 10 to 12 of two floats and a label, padded to 12.
EXAMPLES = 7 * (12 * 3 + 1) * 4 + 7 * (10 * 3 + 1) * 4 + 7 * (14 * 3 + 1) * 4
MODEL = (2 * 5 + 5 + 5 * 2 + 2) * 4  # weights and biases with five hidden units


@pytest.mark.parametrize(
    "method, sizes",
    [
        # The server's model, an upload, and a client with its gradient.
        ("fedavg", MODEL + MODEL + 2 * MODEL),
        ("local", 7 * MODEL + 0 + 2 * MODEL),  # the clients' models
        # Control variates of the server and of the clients, which are sent and uploaded too.
        ("scaffold", 2 * MODEL + 7 * MODEL + 2 * MODEL + (2 + 1) * MODEL),
    ],
)
def test_a_run_needs_its_data_states_models_and_batches(method, sizes, monkeypatch):
    """On eight devices, each trains one client of the cohort."""
    federation = two_clusters()
    asked = []
    monkeypatch.setattr(memory, "check_memory", lambda *found: asked.append(found))
    build_experiment(small_config(method, local_steps=5, batch_size=6), federation)
    graph = memory.bytes_of(federation.data.graph)
    batch, drawn = 6 * (3 * 4 + 4), 6 * 5 * 4
    ((what, needed, there),) = asked
    assert needed == EXAMPLES + graph + sizes + batch + drawn
    assert there == memory.device_memory()


@pytest.mark.parametrize(
    "method, changes, what",
    [
        ("fedavg", {"batch_size": 10**9}, "batch_size=1000000000"),
        ("fedavg", {"local_steps": 10**9}, "local_steps=1000000000"),
        ("fedavg", {"model__hidden": (10**8, 9)}, r"model.hidden=\(100000000, 9\)"),
        ("pfedhn", {"algorithm__embedding_dim": 10**9}, "algorithm.embedding_dim=1000000000"),
        ("panacea", {"algorithm__width": 10**8}, "algorithm.width=100000000"),
    ],
)
def test_the_setting_that_needs_most_is_named(method, changes, what, monkeypatch):
    monkeypatch.setattr(memory, "host_memory", lambda: GIB)
    with pytest.raises(ValueError, match=f"^{what} needs .*B, 1 GiB are there; choose a small"):
        build_experiment(small_config(method, **changes), two_clusters())


def test_uploads_of_a_hypernetwork_count_for_each_client_of_a_cohort(monkeypatch):
    """At full width ten times 305 MiB: of the server, 8 uploads, and a client that trains."""
    monkeypatch.setattr(memory, "host_memory", lambda: 2 * GIB)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (32, 8, 8, 3)).astype(np.uint8)
    federation = from_arrays(x, np.arange(32) % 2, np.arange(32) // 4)
    settings = {"cohort_size": 8, "client_chunk": 1, "batch_size": 2, "local_steps": 1}
    settings |= {"model.architectures": ("arch0",), "data.cap": 0}
    config = flha_cifar10.get_config()
    build_experiment(change(config, settings), federation)  # at width 8
    with pytest.raises(ValueError, match=r"^model.width=64 needs 3\.0. GiB, 2 GiB are there"):
        build_experiment(change(config, settings | {"model.width": 64}), federation)


def test_batches_of_runs_may_take_what_the_container_has_left(monkeypatch):
    """The margin covers what this process takes in the meantime."""
    used, devices = psutil.Process().memory_info().rss, len(jax.local_devices())
    host = types.SimpleNamespace(available=64 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: host)
    monkeypatch.setattr(memory, "host_memory", lambda: used + 4 * GIB)
    assert 3.9 * GIB / devices <= batch.free_memory() <= 4.1 * GIB / devices
    host.available = GIB  # other processes have the rest
    assert batch.free_memory() == GIB // devices
    monkeypatch.setattr(memory, "host_memory", lambda: 1000)
    assert batch.free_memory() == 0
