"""Times over numbers of clients, runs and devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks import scaling
from experiments.benchmarks.timing import compile_rounds, cost, interleaved, player
from graphfl_jax.build import build_experiment
from tests.federations import SMALL, small_config, two_clusters

ROOT = Path(__file__).parents[1]
LIGHT = "--xla_backend_optimization_level=0"


def test_the_exponent_is_of_the_upper_sizes():
    sizes = [1, 10, 100, 300, 1000]
    times = [2.0, 2.0, *(0.02 * size**1.5 for size in sizes[2:])]  # a device that fills up
    fit = scaling.power(sizes, times)
    assert fit.sizes == [100, 300, 1000]
    np.testing.assert_allclose([fit.exponent, fit.factor], [1.5, 0.02], rtol=1e-6)
    # Three sizes at least, where fewer lie within a tenth of the largest.
    assert scaling.power([1, 10, 1000], [1.0, 1.0, 1.0]).sizes == [1, 10, 1000]
    assert scaling.power([7], [1.0]) is None


def test_sizes_are_numbers_in_order():
    assert scaling.numbers(["30", "5", "5"]) == [5, 30]
    for words in (["0"], ["-1"], ["many"]):
        with pytest.raises(ValueError, match=f"sizes={words[0]} are no numbers; give some"):
            scaling.numbers(words)


@pytest.mark.parametrize("clients", [1, 2, 3, 9])
def test_drawn_clients_stand_in_a_ring(clients):
    federation = scaling.drawn_federation(clients)
    heard = np.bincount(federation.data.graph.receivers, minlength=clients)
    assert set(heard.tolist()) == {min(clients - 1, 2)}
    assert federation.data.train.x.shape == (clients, 80, 6)


def test_sizes_of_clients_depend_on_whether_relations_count():
    """A graph of N clients is a matrix of N^2 numbers."""
    sizes = scaling.SCALINGS["clients"][0]
    assert sizes(small_config())[-1] == 1000
    assert sizes(small_config(algorithm__name="fedavg"))[-1] == 10000


def test_runs_are_vmapped_with_seeds_of_their_own():
    config = small_config(algorithm__name="fedavg")
    experiment = build_experiment(config, two_clusters())
    rounds = compile_rounds(experiment, config, runs=3)
    after = player(rounds, 2)()
    assert after.round.tolist() == [2, 2, 2]
    kernel = after.server["head"]["Dense_0"]["kernel"]
    assert kernel.shape[0] == 3 and not jnp.allclose(kernel[0], kernel[1])
    assert rounds.client_steps == 3 * 4 * 5


def test_a_player_goes_on_where_it_ended_and_leaves_the_first_state():
    config = small_config(algorithm__name="fedavg")
    rounds = compile_rounds(build_experiment(config, two_clusters()), config)
    play = player(rounds, 2)
    assert int(play().round) == 2 and int(play().round) == 4
    assert int(rounds.state.round) == 0


def test_devices_are_those_asked_for_and_divide_the_clients(monkeypatch):
    """Tests simulate eight devices."""
    monkeypatch.setattr(scaling, "AT_LEAST", 10)
    compile_for = scaling.over_devices(small_config(algorithm__name="fedavg"), [1, 3])
    for size in (1, 3):
        rounds = compile_for(size)
        assert rounds.client_steps == 12 * 5
        leaf = jax.tree.leaves(rounds.state.server)[0]
        assert len(leaf.sharding.device_set) == size
    with pytest.raises(ValueError, match="sizes=9 exceeds the 8 devices of this host"):
        scaling.over_devices(small_config(), [9])


def test_one_device_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda: [None])
    with pytest.raises(ValueError, match="--xla_force_host_platform_device_count=4"):
        scaling.over_devices(small_config(), [1])


def test_clients_are_drawn_for_perceptrons():
    with pytest.raises(ValueError, match="model.name=gru: clients are drawn for perceptrons"):
        scaling.over_clients(small_config(model__name="gru"), [5])(5)


def test_functions_are_timed_in_turn_after_a_warm_up():
    called = []
    functions = {name: lambda name=name: called.append(name) for name in "ab"}
    times = interleaved(functions, 2)
    assert called == ["a", "b"] * 3
    assert [len(times[name]) for name in "ab"] == [2, 2]


def test_a_cost_tells_the_memory_of_its_own_block():
    """The kernel counts pages by the thread and in batches: 4 MiB may be missing."""
    bytearray(2**28)  # a peak before, which does not count
    with cost() as spent:
        kept = np.ones(2**26, np.uint8)  # 64 MiB
    told = spent()
    assert told.seconds > 0 and kept[0]
    if told.memory is None:
        pytest.skip("this system tells no peak of a process")
    assert 2**26 - 2**22 <= told.memory < 2**27


def test_a_scaling_leaves_a_table_numbers_and_a_drawing(tmp_path):
    settings = [
        f"--config.{field}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for field, value in SMALL.items()
    ]
    words = ["--scaling=clients", "--sizes=3,6,12", "--repeats=1", "--rounds_each=2"]
    config = f"--config={ROOT}/configs/tpt48.py:fedavg"
    done = subprocess.run(
        [sys.executable, "-m", "experiments.bench", config, *settings, *words, "--out=here"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": LIGHT},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "time grows as clients to the power" in done.stdout
    told = json.loads((tmp_path / "here" / "scaling_clients.json").read_text())
    assert [row["size"] for row in told["rows"]] == [3, 6, 12] == told["power"]["sizes"]
    assert [row["client_steps"] for row in told["rows"]] == [15, 30, 60]
    left = {path.name for path in (tmp_path / "here").iterdir()}
    assert left == {f"scaling_clients.{suffix}" for suffix in ("json", "png", "svg")}
