"""The benchmark against PyTorch: what it verifies, what it refuses, what it leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.benchmarks import torch_comparison
from experiments.benchmarks.recorded_rounds import play_in_jax
from experiments.benchmarks.scaling import drawn_federation
from experiments.benchmarks.timing import compile_rounds
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.configs import fl60, metr_la, tpt48
from tests.federations import SMALL, small_config, two_clusters

ROOT = Path(__file__).parents[1]
LIGHT = "--xla_backend_optimization_level=0"
ADAM = {"client_optimizer": "adam", "server_optimizer": "adam"}
# Both methods, models, tasks and kinds of optimiser. The server's rate 1 is more than Polyak's
# cap allows, so that the cap decides; code dropout 0.5 meets some of seven clients.
CASES = {
    "panacea": {
        "hparams__server_lr": 1.0,
        "hparams__embedding_dropout": 0.5,
        "hparams__lambda_d": 1.0,
    },
    "panacea, gru": ADAM | {"hparams__server_lr": 1e-3, "hparams__client_lr": 1e-3},
    "fedavg, labels": {"algorithm__name": "fedavg"},
}


def series():
    """Six sensors of simulated traffic."""
    config = metr_la.get_config()
    config.data.source, config.data.sensors, config.data.steps = "simulated", 6, 80
    return load_federation(config)


@pytest.fixture(scope="module")
def jax_rounds():
    """A function: a case's experiment and configuration, and what JAX played of it."""
    made = {}

    def play(case):
        if case not in made:
            config = small_config(**CASES[case])
            if "gru" in case:
                federation, config.model.name = series(), "gru"
            else:
                federation = two_clusters() if "labels" in case else drawn_federation(7)
            experiment = build_experiment(config, federation)
            rounds = compile_rounds(experiment, config)
            count = 2 if "gru" in case else torch_comparison.ROUNDS
            played = play_in_jax(experiment, config, rounds, count)
            made[case] = experiment, config, *played
        return made[case]

    return play


@pytest.fixture
def pytorch():
    pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    from experiments import pytorch

    pytorch.torch.set_num_threads(1)
    return pytorch


def verified(pytorch, told, variant, change=lambda player, start: None):
    experiment, config, start, played = told
    player, start = pytorch.Player(experiment, config, variant), dict(start)
    change(player, start)
    return torch_comparison.verify(player, pytorch.drawn, start, played, variant)


@pytest.mark.parametrize("variant", ["eager", "vmap"])
@pytest.mark.parametrize("case", CASES)
def test_rounds_are_those_of_jax(pytorch, jax_rounds, case, variant):
    apart = verified(pytorch, jax_rounds(case), variant)
    assert (
        0 <= apart["loss"] <= 1e-5 and 0 < apart["server"] <= torch_comparison.SERVER_TOLERANCE
    )


@pytest.mark.parametrize(
    "case, variant", [("panacea", "vmap+compile"), ("fedavg, labels", "compile")]
)
def test_compiled_rounds_are_those_of_jax(pytorch, jax_rounds, case, variant):
    try:
        apart = verified(pytorch, jax_rounds(case), variant)
    except pytorch.CompileError as error:
        pytest.skip(str(error).splitlines()[0])
    assert (
        0 <= apart["loss"] <= 1e-5 and 0 < apart["server"] <= torch_comparison.SERVER_TOLERANCE
    )


def weight(player, start):
    start["embeddings"] = start["embeddings"].copy()
    start["embeddings"][0, 0] *= 1.1


def cap(player, start):
    player.server.make_optimizer = player_sgd


def player_sgd(parameters, lr):
    from experiments import pytorch

    return pytorch.sgd(parameters, lr)


def penalty(player, start):
    player.server.network.lambda_d = 0.0


def dropout(player, start):
    forward = player.play
    player.play = lambda draws: forward(draws._replace(forgotten=draws.forgotten & False))


def order(player, start):
    start["output.bias"] = np.roll(start["output.bias"], 1)


@pytest.mark.parametrize("change", [weight, cap, penalty, dropout, order])
def test_another_computation_is_not_timed(pytorch, jax_rounds, change):
    with pytest.raises(ValueError, match=r"variant eager in round \d: its loss is .*not timed"):
        verified(pytorch, jax_rounds("panacea"), "eager", change)


def test_a_loss_that_is_no_number_is_not_timed(pytorch, jax_rounds):
    def broken(player, start):
        start["output.bias"] = start["output.bias"] * np.float32(np.nan)

    with pytest.raises(ValueError, match="its loss is nan"):
        verified(pytorch, jax_rounds("panacea"), "eager", broken)


def test_rounds_leave_other_things_to_chance(jax_rounds):
    _, config, _, played = jax_rounds("panacea")
    first, second, _ = (told.draws for told in played)
    assert first.ids.shape == (4,) and first.indices.shape == (4, 5, 6)
    assert list(first.ids) == sorted(set(first.ids.tolist()))
    assert not np.array_equal(first.indices, second.indices)
    assert first.forgotten.shape == (7, 1)
    assert 0 < np.mean([told.draws.forgotten.mean() for told in played]) < 1


def test_pytorch_draws_what_the_program_draws(pytorch, jax_rounds):
    experiment, config, _, played = jax_rounds("panacea")
    own, replayed = pytorch.Player(experiment, config, "eager").draw(), played[0].draws
    for mine, theirs in zip(own, replayed, strict=True):
        assert tuple(mine.shape) == theirs.shape
    assert own.indices.min() >= 0 and own.indices.max() < 80  # of 100, a fifth is for test


def test_what_is_said_to_be_written_is(pytorch):
    assert set(torch_comparison.WRITTEN["client_optimizer"]) == set(pytorch.CLIENT_OPTIMIZERS)
    assert set(torch_comparison.PANACEAS["server_optimizer"]) == set(pytorch.SERVER_OPTIMIZERS)


@pytest.mark.parametrize(
    "config, named",
    [
        (tpt48.get_config("ditto"), "algorithm.name='ditto'"),
        (tpt48.get_config("fedavg-finetune"), "tuning.part='whole'"),
        (tpt48.get_config("panacea-mean"), "algorithm.layer='mean'"),
        (tpt48.get_config("pfedhn"), "algorithm.name='pfedhn'"),
        (small_config(model__name="resnet18"), "model.name='resnet18'"),
        (small_config(client_optimizer="momentum"), "client_optimizer='momentum'"),
        (small_config(server_optimizer="momentum"), "server_optimizer='momentum'"),
    ],
)
def test_what_is_not_written_in_pytorch_is_refused(config, named):
    with pytest.raises(ValueError, match=f"^{named} is not written in PyTorch; set --config"):
        torch_comparison.check(config, ["eager"])


def test_what_is_written_is_not_refused():
    for config in (tpt48.get_config(), fl60.get_config("fedavg"), metr_la.get_config()):
        torch_comparison.check(config, list(torch_comparison.VARIANTS))
    with pytest.raises(ValueError, match="variants='jit' is unknown; choose from eager, "):
        torch_comparison.check(tpt48.get_config(), ["jit"])


def bench(folder, *words, code="", **environment):
    """Runs the benchmark as a user does, after some code."""
    settings = [
        f"--config.{field}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for field, value in SMALL.items()
    ]
    run = f"{code}\nimport runpy; runpy.run_module('experiments.bench', run_name='__main__')"
    config = f"--config={ROOT}/configs/fl60.py:fedavg"
    return subprocess.run(
        [sys.executable, "-c", run, config, *settings, "--repeats=2", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": LIGHT} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_without_pytorch_a_line_tells_how_to_install_it(tmp_path):
    code = "import sys; sys.modules['torch'] = None"
    done = bench(tmp_path, "--against=torch", code=code)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert ".venv/bin/pip install -e '.[torch]'" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_comparison_leaves_a_table_numbers_and_a_drawing(pytorch, tmp_path):
    words = [
        "--against=torch",
        "--variants=eager,vmap+compile",
        "--rounds_each=2",
        "--out=here",
    ]
    done = bench(tmp_path, *words, "--threads=1", CXX="/nowhere/c++")
    assert done.returncode == 0, done.stderr
    assert "vmap+compile is not measured: InvalidCxxCompiler" in done.stdout
    told = json.loads((tmp_path / "here" / "bench.json").read_text())
    assert [row["name"] for row in told["rows"]] == ["graphfl_jax", "eager"]
    jax_row, torch_row = told["rows"]
    median, fastest, slowest = torch_row["s_per_round"]
    assert 0 < fastest <= median <= slowest
    assert torch_row["times_as_long"] == median / jax_row["s_per_round"][0]
    assert jax_row["apart"] is None and torch_row["apart"]["loss"] <= 1e-5
    assert told["torch"]["threads"] == 1 and list(told["not_measured"]) == ["vmap+compile"]
    assert told["client_steps"] == SMALL["cohort_size"] * SMALL["local_steps"]
    for suffix in ("png", "svg"):
        assert (tmp_path / "here" / f"bench.{suffix}").stat().st_size > 1000
