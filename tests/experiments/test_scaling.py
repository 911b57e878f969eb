"""Measurements of time and memory, and times over numbers of clients, runs and devices."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench import configurations_of, with_method
from experiments.benchmarks import scaling
from experiments.benchmarks.timing import compile_rounds, cost, player, time_interleaved
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import methods
from graphfl_jax.configs.base import variant_of
from tests.commands import launched_small
from tests.federations import small_config, two_clusters


@pytest.mark.parametrize("before", ["panacea-mean", "pfedhn", "fedavg-finetune"])
def test_a_compared_method_keeps_no_choice_of_the_method_before(before):
    config = small_config(before, batch_size=3)
    for method in methods():
        compared, expected = with_method(config, method), small_config(method)
        name, _, _ = variant_of(compared).partition("+")  # small_config has fewer GHN layers
        assert name == method and compared.batch_size == 3
        for field in ("client_optimizer", "server_optimizer"):
            assert compared.get(field) == expected.get(field)


def test_varied_values_are_checked():
    configs = configurations_of(small_config(), "algorithm.depth=2,3")
    assert [config.algorithm.depth for config in configs.values()] == [2, 3]
    assert list(configs) == ["algorithm.depth=2", "algorithm.depth=3"]
    defences = configurations_of(small_config(), "defence.name=none,clip")
    assert [config.defence.name for config in defences.values()] == ["", "clip"]
    for vary, problem in (
        ("algorithm.depth", "has no values"),
        ("algorithm.depth=2,x", "algorithm.depth=x is not of type int"),
        ("model.size=1,2", "model.size=1 is not a field"),
        ("model.name=none", "model.name='none' is unknown"),
        ("hparams.mu=1", "is not read by this configuration"),
    ):
        with pytest.raises(ValueError, match=f"^vary={vary}.* ?{problem}"):
            configurations_of(small_config(), vary)


def test_the_power_law_is_fitted_to_the_upper_sizes():
    sizes = [1, 10, 100, 300, 1000]
    times = [2.0, 2.0, *(0.02 * size**1.5 for size in sizes[2:])]  # a device that fills up
    fit = scaling.power(sizes, times)
    assert fit.sizes == [100, 300, 1000]
    np.testing.assert_allclose([fit.exponent, fit.factor], [1.5, 0.02], rtol=1e-6)
    # Three sizes at least, even if fewer exceed a tenth of the largest.
    assert scaling.power([1, 10, 1000], [1.0, 1.0, 1.0]).sizes == [1, 10, 1000]
    assert scaling.power([7], [1.0]) is None


def test_sizes_are_sorted_positive_integers():
    assert scaling.numbers(["30", "5", "5"]) == [5, 30]
    for words in (["0"], ["-1"], ["many"]):
        with pytest.raises(ValueError, match=f"^sizes={words[0]} has a value that is not"):
            scaling.numbers(words)


@pytest.mark.parametrize("clients", [1, 2, 3, 9])
def test_the_relations_of_generated_clients_form_a_ring(clients):
    federation = scaling.generated_federation(clients)
    degrees = np.bincount(federation.data.graph.receivers, minlength=clients)
    assert set(degrees.tolist()) == {min(clients - 1, 2)}
    assert federation.data.train.x.shape == (clients, 80, 6)


def test_the_nearest_pairs_of_points_are_found():
    points = np.random.default_rng(0).random((60, 2))
    gaps = np.linalg.norm(points[:, None] - points, axis=-1)
    shortest = np.sort(gaps[np.triu_indices(60, 1)])[:300]
    pairs = scaling.nearest_pairs(60, 300)
    assert len(np.unique(np.sort(pairs, axis=1), axis=0)) == 300
    np.testing.assert_allclose(gaps[pairs[:, 0], pairs[:, 1]], shortest)


def test_a_cohort_of_a_large_federation_is_timed():
    compile_for = scaling.over_relations(small_config("fedavg"), [20])
    assert compile_for(20).client_steps == 4 * 5
    with pytest.raises(ValueError, match="^sizes=19 is too small; set --sizes to at least 20"):
        scaling.over_relations(small_config("fedavg"), [30, 19])


def test_methods_with_relations_are_timed_with_fewer_clients():
    """Of them, SFL* learns a matrix of N^2 numbers."""
    sizes = scaling.SCALINGS["clients"][0]
    assert sizes(small_config())[-1] == 1000
    assert sizes(small_config("fedavg"))[-1] == 10000


@pytest.mark.slow
def test_vmapped_runs_have_different_seeds():
    config = small_config("fedavg")
    experiment = build_experiment(config, two_clusters())
    rounds = compile_rounds(experiment, config, runs=3)
    after = player(rounds, 2)()
    assert after.round.tolist() == [2, 2, 2]
    kernel = after.server["head"]["Dense_0"]["kernel"]
    assert kernel.shape[0] == 3 and not jnp.allclose(kernel[0], kernel[1])
    assert rounds.client_steps == 3 * 4 * 5


@pytest.mark.release
def test_runs_are_split_over_the_devices_that_divide_them():
    """Tests simulate eight devices."""
    assert scaling.mesh_of(1) is None and scaling.mesh_of(11) is None
    assert scaling.mesh_of(6).size == 6 and scaling.mesh_of(12).size == 6
    config = small_config("fedavg")
    experiment = build_experiment(config, two_clusters())
    states = []
    for mesh in (None, scaling.mesh_of(2)):
        rounds = compile_rounds(experiment, config, mesh=mesh, runs=2)
        states.append(jax.tree.leaves(player(rounds, 2)().server))
    for alone, split in zip(*states, strict=True):
        assert len(split.sharding.device_set) == 2
        np.testing.assert_allclose(alone, split, rtol=1e-5, atol=1e-7)


def test_a_player_continues_and_keeps_the_first_state():
    config = small_config("fedavg")
    rounds = compile_rounds(build_experiment(config, two_clusters()), config)
    play = player(rounds, 2)
    assert int(play().round) == 2 and int(play().round) == 4
    assert int(rounds.state.round) == 0


@pytest.mark.release
def test_clients_are_split_over_the_given_number_of_devices(monkeypatch):
    """Tests simulate eight devices."""
    monkeypatch.setattr(scaling, "AT_LEAST", 10)
    compile_for = scaling.over_devices(small_config("fedavg"), [1, 3])
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


def test_generated_clients_have_perceptrons():
    with pytest.raises(ValueError, match="^model.name=gru does not fit generated clients"):
        scaling.over_clients(small_config(model__name="gru"), [5])(5)


def test_functions_are_timed_in_turn_after_a_first_call():
    called = []
    functions = {name: lambda name=name: called.append(name) for name in "ab"}
    times = time_interleaved(functions, 2)
    assert called == ["a", "b"] * 3
    assert [len(times[name]) for name in "ab"] == [2, 2]


def test_a_cost_is_the_memory_of_its_block():
    """The kernel counts pages per thread and in batches, so that 4 MiB may be missing."""
    bytearray(2**28)  # an earlier peak, which does not count
    with cost() as spent:
        kept = np.ones(2**26, np.uint8)  # 64 MiB
    measured = spent()
    assert measured.seconds > 0 and kept[0]
    if measured.memory is None:
        pytest.skip("this system does not report the peak memory of a process")
    assert 2**26 - 2**22 <= measured.memory < 2**27


@pytest.mark.release
def test_a_scaling_writes_numbers_a_page_and_a_figure(tmp_path):
    words = ["--scaling=clients", "--sizes=3,6,12", "--repeats=1", "--rounds_each=2"]
    status, printed, errors = launched_small(
        "bench", *words, "--out=here", cwd=tmp_path, file="tpt48.py:fedavg"
    )
    assert status == 0, errors
    assert "The time grows as clients to the power" in printed
    results = json.loads((tmp_path / "here" / "scaling_clients.json").read_text())
    assert [row["size"] for row in results["rows"]] == [3, 6, 12] == results["power"]["sizes"]
    assert [row["client_steps"] for row in results["rows"]] == [15, 30, 60]
    page = (tmp_path / "here" / "scaling_clients.md").read_text()
    assert page.startswith("Made by `python -m experiments.bench ") and "\n| 12 | " in page
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert names == {f"scaling_clients.{suffix}" for suffix in ("json", "md", "png", "svg")}
