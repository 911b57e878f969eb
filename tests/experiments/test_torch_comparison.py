"""The comparison with PyTorch: what it verifies, what it refuses, and what it writes."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.benchmarks import torch_comparison
from experiments.benchmarks.recorded_rounds import Round, play_in_jax
from experiments.benchmarks.scaling import generated_federation, image_federation
from experiments.benchmarks.timing import compile_rounds
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.configs import change, compcars, fl60, metr_la, tpt48
from tests.commands import launched_small
from tests.federations import SMALL, small_config, two_clusters

ONE_DEVICE = "--xla_backend_optimization_level=0"
ADAM = {"client_optimizer": "adam", "server_optimizer": "adam"}
# Both methods, models and tasks, and all optimisers. The server's learning rate 1 is larger
# than Polyak's step size. With embedding dropout 0.5, some of seven clients are dropped.
CASES = {
    "panacea": {
        "hparams__server_lr": 1.0,
        "hparams__embedding_dropout": 0.5,
        "hparams__lambda_d": 1.0,
    },
    "panacea, gru": ADAM
    | {"hparams__server_lr": 1e-3, "hparams__client_lr": 1e-3, "model__name": "gru"},
    "fedavg, labels": {"method": "fedavg"},
    "fedavg, lenet": {"method": "fedavg", "model__name": "lenet", "local_steps": 1},
    "fedavg, cnn": {"method": "fedavg", "model__name": "cnn", "local_steps": 1},
    "fedavg, resnet18": {
        "method": "fedavg",
        "model__name": "resnet18",
        "model__width": 4,
        "local_steps": 1,
    },
}
CASES |= {
    f"flha-ghn, {' and '.join(names)}": {
        "method": "flha-ghn",
        "model__name": "architectures",
        "model__architectures": names,
        "model__width": 4,
        "local_steps": 1,
        **more,
    }
    for names, more in (
        (("arch1", "arch3"), {}),
        (("hybrid1", "arch3"), {"algorithm__ghn_edges": "bidirectional"}),
    )
}
SIZES = {
    "flha-ghn, arch1 and arch3": (9, 8, 3),
    "flha-ghn, hybrid1 and arch3": (8, 7, 2),
    "fedavg, lenet": (18, 16, 1),
    "fedavg, cnn": (8, 10, 2),
    "fedavg, resnet18": (33, 31, 3),
}


def traffic():
    """Six sensors of simulated traffic."""
    sizes = {"data.source": "simulated", "data.sensors": 6, "data.steps": 80}
    return load_federation(change(metr_la.get_config(), sizes))


@pytest.fixture(scope="module")
def jax_rounds():
    """A function: the experiment and the configuration of a case, and JAX's rounds of it."""
    made = {}

    def play(case):
        if case not in made:
            config = small_config(**CASES[case])
            if "gru" in case:
                federation = traffic()
            elif case in SIZES:
                federation = image_federation(SIZES[case], 7, 20, 3)
            else:
                federation = two_clusters() if "labels" in case else generated_federation(7)
            experiment = build_experiment(config, federation)
            rounds = compile_rounds(experiment, config)
            count = 2 if "gru" in case else torch_comparison.ROUNDS
            made[case] = experiment, config, *play_in_jax(experiment, config, rounds, count)
        return made[case]

    return play


@pytest.fixture
def torch_player():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch_comparison.import_torch_player(threads=1)


def verified(torch_player, rounds, variant, change=lambda player, start: None):
    """Verifies a variant after `change(player, start)`; the largest differences."""
    experiment, config, start, played = rounds
    player, start = torch_player.player_of(experiment, config, variant), dict(start)
    change(player, start)
    images = torch_comparison.images_of(config)
    return torch_comparison.verify(torch_player, player, start, played, variant, images=images)


def check_differences(differences):
    assert 0 <= differences["loss"] <= 1e-5
    assert 0 < differences["server"] <= torch_comparison.SERVER_TOLERANCE


@pytest.mark.parametrize(
    "case, variant",
    [
        pytest.param("fedavg, lenet", "eager", marks=pytest.mark.slow),
        pytest.param("fedavg, lenet", "vmap", marks=pytest.mark.release),
        pytest.param("fedavg, cnn", "eager", marks=pytest.mark.release),
        pytest.param("fedavg, resnet18", "eager", marks=pytest.mark.release),
        pytest.param("fedavg, resnet18", "vmap", marks=pytest.mark.release),
        pytest.param("flha-ghn, arch1 and arch3", "eager", marks=pytest.mark.release),
        pytest.param("flha-ghn, hybrid1 and arch3", "eager", marks=pytest.mark.release),
    ],
)
def test_networks_for_images_are_those_of_jax(torch_player, jax_rounds, case, variant):
    """Sizes of images are uneven, odd and different, so that no axis can be another one."""
    differences = verified(torch_player, jax_rounds(case), variant)
    assert 0 <= differences["loss"] <= 1e-5
    assert 0 < differences["server"] <= (4 * 6) ** -0.5  # of a round of 24 images


@pytest.mark.slow
def test_another_pooling_is_not_timed(torch_player, jax_rounds):
    def mean_pooling(player, start):
        module = player.clients.module
        (first, *_) = (i for i, layer in enumerate(module) if "Pool" in type(layer).__name__)
        module[first] = torch_player.nn.AvgPool2d(2)

    with pytest.raises(ValueError, match="^variants=eager differs from JAX in round 1, "):
        verified(torch_player, jax_rounds("fedavg, lenet"), "eager", mean_pooling)


def check_rounds(errors, images):
    """Verifies rounds with given errors of the server, relative to its change in the round."""
    start = {"theta": np.zeros(2)}
    played = [
        Round(None, 1.0, {"theta": np.array([number, 0.0])}) for number in (1.0, 2.0, 3.0)
    ]
    left = list(zip(played, errors, strict=True))

    class Other:
        def start(self, weights):
            pass

        def play(self, draws):
            expected, error = left.pop(0)
            self.found = {"theta": expected.weights["theta"] + np.array([0.0, error])}
            return expected.loss

        def weights(self):
            return self.found

    library = SimpleNamespace(as_tensors=lambda draws: draws)
    return torch_comparison.verify(library, Other(), start, played, "eager", images=images)


def test_a_kink_may_change_one_image_of_a_round_but_not_all_rounds():
    """Of 400 images, one may change the mean gradient by a twentieth."""
    assert check_rounds([1e-4, 0.04, 0.04], images=400)["server"] == pytest.approx(0.04)
    for errors, number in (
        ([0.01, 0.01, 0.01], 3),  # no round agrees closely
        ([1e-4, 0.06, 1e-4], 2),
        ([np.nan, 1e-4, 1e-4], 1),
    ):
        with pytest.raises(ValueError, match=f"differs from JAX in round {number}, "):
            check_rounds(errors, images=400)
    with pytest.raises(ValueError, match="differs from JAX in round 2, "):
        check_rounds([1e-4, 0.04, 1e-4], images=0)


@pytest.mark.parametrize("variant", ["eager", "vmap"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param("panacea", marks=pytest.mark.slow),
        pytest.param("fedavg, labels", marks=pytest.mark.slow),
        pytest.param("panacea, gru", marks=pytest.mark.release),
    ],
)
def test_rounds_in_pytorch_equal_those_in_jax(torch_player, jax_rounds, case, variant):
    check_differences(verified(torch_player, jax_rounds(case), variant))


@pytest.mark.release
@pytest.mark.parametrize(
    "case, variant", [("panacea", "vmap+compile"), ("fedavg, labels", "compile")]
)
def test_compiled_rounds_equal_those_in_jax(torch_player, jax_rounds, case, variant):
    try:
        differences = verified(torch_player, jax_rounds(case), variant)
    except torch_player.CompileError as error:
        pytest.skip(str(error).splitlines()[0])
    check_differences(differences)


def other_embedding(player, start):
    start["embeddings"] = start["embeddings"].copy()
    start["embeddings"][0, 0] *= 1.1


def no_polyak_step_size(player, start):
    from experiments.benchmarks import torch_player

    player.server.make_optimizer = torch_player.SERVER_OPTIMIZERS["sgd"]


def no_penalty(player, start):
    player.server.network.lambda_d = 0.0


def no_dropout(player, start):
    play = player.play
    player.play = lambda draws: play(draws._replace(dropped=draws.dropped & False))


def other_order_of_outputs(player, start):
    start["output.bias"] = np.roll(start["output.bias"], 1)


@pytest.mark.parametrize(
    "change",
    [other_embedding, no_polyak_step_size, no_penalty, no_dropout, other_order_of_outputs],
)
def test_a_different_computation_is_not_timed(torch_player, jax_rounds, change):
    message = r"^variants=eager differs from JAX in round \d, so nothing is timed: its loss is"
    with pytest.raises(ValueError, match=message):
        verified(torch_player, jax_rounds("panacea"), "eager", change)


def test_a_loss_that_is_not_a_number_is_not_timed(torch_player, jax_rounds):
    def broken(player, start):
        start["output.bias"] = start["output.bias"] * np.float32(np.nan)

    with pytest.raises(ValueError, match="its loss is nan"):
        verified(torch_player, jax_rounds("panacea"), "eager", broken)


@pytest.mark.slow
def test_the_draws_of_rounds_differ(jax_rounds):
    _, config, _, played = jax_rounds("panacea")
    first, second, _ = (played_round.draws for played_round in played)
    assert first.ids.shape == (4,) and first.indices.shape == (4, 5, 6)
    assert list(first.ids) == sorted(set(first.ids.tolist()))
    assert not np.array_equal(first.indices, second.indices)
    assert first.dropped.shape == (7, 1)
    assert 0 < np.mean([played_round.draws.dropped.mean() for played_round in played]) < 1


def test_draws_of_pytorch_have_the_shapes_of_those_of_jax(torch_player, jax_rounds):
    experiment, config, _, played = jax_rounds("panacea")
    draws = torch_player.Player(experiment, config, "eager").draw()
    for drawn, recorded in zip(draws, played[0].draws, strict=True):
        assert tuple(drawn.shape) == recorded.shape
    assert draws.indices.min() >= 0 and draws.indices.max() < 80  # of 100, a fifth is for test


def test_supported_optimizers_exist_in_pytorch(torch_player):
    supported = torch_comparison.SUPPORTED | torch_comparison.SUPPORTED_PANACEA
    assert set(supported["client_optimizer"]) == set(torch_player.CLIENT_OPTIMIZERS)
    assert set(supported["server_optimizer"]) == set(torch_player.SERVER_OPTIMIZERS)


@pytest.mark.parametrize(
    "config, field",
    [
        (tpt48.get_config("ditto"), "algorithm.name='ditto'"),
        (tpt48.get_config("fedavg-finetune"), "tuning.part='whole'"),
        (tpt48.get_config("panacea-mean"), "algorithm.layer='mean'"),
        (small_config(algorithm__edge_weights=True), "algorithm.edge_weights=True"),
        (tpt48.get_config("pfedhn"), "algorithm.name='pfedhn'"),
        (small_config(algorithm__output="lora"), "algorithm.output='lora'"),
        (small_config(model__name="lenet"), "algorithm.name='panacea'"),
        (small_config("fedavg", model__name="cnn", model__augment=True), "model.augment=True"),
        (small_config(client_optimizer="momentum"), "client_optimizer='momentum'"),
        (small_config(server_optimizer="momentum"), "server_optimizer='momentum'"),
        (small_config(server_schedule="cosine"), "server_schedule='cosine'"),
        (small_config(attack__name="poisoning"), "attack.name='poisoning'"),
    ],
)
def test_unsupported_fields_are_refused(config, field):
    message = f"^{field} is not supported by --against=torch; set --config"
    with pytest.raises(ValueError, match=message):
        torch_comparison.check(config, ["eager"])


def test_supported_configurations_are_accepted():
    configs = [tpt48.get_config(), fl60.get_config("fedavg"), metr_la.get_config()]
    for config in (*configs, compcars.get_config("fedavg")):
        torch_comparison.check(config, list(torch_comparison.VARIANTS))
    with pytest.raises(ValueError, match="variants='jit' is unknown; choose from eager, "):
        torch_comparison.check(tpt48.get_config(), ["jit"])


def test_the_error_without_pytorch_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match="run pip install torch"):
        torch_comparison.import_torch_player(None)


@pytest.mark.release
def test_a_comparison_writes_numbers_a_page_and_a_figure(torch_player, tmp_path):
    words = ["--against=torch", "--variants=eager,vmap+compile", "--threads=1"]
    words += ["--repeats=2", "--rounds_each=2", "--out=here"]
    settings = {"XLA_FLAGS": ONE_DEVICE, "CXX": "/nowhere/c++"}
    status, printed, errors = launched_small(
        "bench", *words, cwd=tmp_path, file="fl60.py:fedavg", **settings
    )
    assert status == 0, errors
    assert "vmap+compile is not measured: InvalidCxxCompiler" in printed
    results = json.loads((tmp_path / "here" / "bench.json").read_text())
    assert [row["name"] for row in results["rows"]] == ["graphfl_jax", "eager"]
    jax_row, torch_row = results["rows"]
    median, fastest, slowest = torch_row["s_per_round"]
    assert 0 < fastest <= median <= slowest
    assert torch_row["time_ratio"] == median / jax_row["s_per_round"][0]
    assert jax_row["differences"] is None and torch_row["differences"]["loss"] <= 1e-5
    assert results["torch"]["threads"] == 1 and list(results["not_measured"]) == [
        "vmap+compile"
    ]
    assert results["client_steps"] == SMALL["cohort_size"] * SMALL["local_steps"]
    page = (tmp_path / "here" / "bench.md").read_text()
    assert page.startswith("Made by `python -m experiments.bench ") and "\n| eager | " in page
    for suffix in ("png", "svg"):
        assert (tmp_path / "here" / f"bench.{suffix}").stat().st_size > 1000
