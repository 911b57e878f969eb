"""``bench --rehearse``: rounds that are compiled for GPUs, and what is counted in them."""

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks import rehearsal, suite
from experiments.benchmarks.rehearsal import Loop, Round, count_round
from experiments.benchmarks.scaling import image_federation
from graphfl_jax.build import arrange, build_experiment, load_federation
from graphfl_jax.configs import change, custom, metr_la, tpt48
from graphfl_jax.models.convolutions import convolve
from graphfl_jax.runs.session import inputs_of, program_of
from graphfl_jax.testing.subject import assert_equal
from tests.commands import launched

needs_plugin = pytest.mark.skipif(
    not rehearsal.is_installed(), reason="JAX's plugin for CUDA is not installed"
)
REHEARSED = {
    measurement.name: measurement
    for measurement in suite.MEASUREMENTS
    if measurement.table == "rehearsal"
}

# The launches of each computation, without those that it calls, stand on the right.
PROGRAM = """HloModule jit_advance, is_scheduled=true

FileNames
1 "rounds.py"

%fused (p.1: f32[4]) -> f32[4] {
  %p.1 = f32[4]{0} parameter(0)
  %twice = f32[4]{0} add(%p.1, %p.1)
  ROOT %square = f32[4]{0} multiply(%twice, %twice)
}

%inner_condition (p.2: (s32[], f32[4])) -> pred[] {
  %p.2 = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%p.2), index=0
  %c.2 = s32[] constant(3)
  ROOT %less.2 = pred[] compare(%i.2, %c.2), direction=LT
}

%inner_body (p.3: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.3 = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %x.3 = f32[4]{0} get-tuple-element(%p.3), index=1
  %fusion.3 = f32[4]{0} fusion(%x.3), kind=kLoop, calls=%fused
  %copy.3 = f32[4]{0} copy(%fusion.3)
  ROOT %t.3 = (s32[], f32[4]{0}) tuple(%i.3, %copy.3)
}

%local_body (p.4: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.4 = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %gemm.4 = (f32[4]{0}, s8[64]{0}) custom-call(%p.4), custom_call_target="__cublas$gemm"
  %while.4 = (s32[], f32[4]{0}) while(%t.4), condition=%inner_condition, body=%inner_body, \
backend_config={"known_trip_count":{"n":"3"},"dynamic_variables":[]}
  ROOT %fusion.4 = (s32[], f32[4]{0}) fusion(%while.4), kind=kLoop, calls=%fused
}

%small_branch (p.5: f32[4]) -> f32[4] {
  %p.5 = f32[4]{0} parameter(0)
  ROOT %fusion.5 = f32[4]{0} fusion(%p.5), kind=kLoop, calls=%fused
}

%large_branch (p.6: f32[4]) -> f32[4] {
  %p.6 = f32[4]{0} parameter(0)
  %fusion.6 = f32[4]{0} fusion(%p.6), kind=kLoop, calls=%fused
  %sort.6 = f32[4]{0} sort(%fusion.6), dimensions={0}, to_apply=%fused
  ROOT %all.6 = f32[4]{0} all-reduce(%sort.6), replica_groups={{0,1}}, to_apply=%fused
}

%gathering (p.7: f32[4]) -> f32[8] {
  %p.7 = f32[4]{0} parameter(0)
  ROOT %gather.7 = f32[8]{0} all-gather(%p.7), dimensions={0}
}

%called (p.8: f32[4]) -> f32[4] {
  %p.8 = f32[4]{0} parameter(0)
  ROOT %fusion.8 = f32[4]{0} fusion(%p.8), kind=kLoop, calls=%fused
}

%round_body (p.9: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.9 = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %x.9 = f32[4]{0} get-tuple-element(%p.9), index=1
  %while.9 = (s32[], f32[4]{0}) while(%p.9), condition=%inner_condition, body=%local_body, \
backend_config={"known_trip_count":{"n":"5"}}
  %branch.9 = f32[4]{0} conditional(%i.9, %x.9, %x.9), \
branch_computations={%small_branch, %large_branch}
  %start.9 = ((f32[4]{0}), f32[8]{0}) async-start(%x.9), calls=%gathering
  %done.9 = f32[8]{0} async-done(%start.9)
  %begin.9 = (f32[4]{0}, f32[8]{0}) all-gather-start(%x.9), dimensions={0}
  %end.9 = f32[8]{0} all-gather-done(%begin.9)
  %host.9 = f32[4]{0} custom-call(%x.9), custom_call_target="xla_ffi_python_gpu_callback"
  %call.9 = f32[4]{0} call(%x.9), to_apply=%called
  ROOT %t.9 = (s32[], f32[4]{0}) tuple(%i.9, %call.9)
}

%round_condition (p.10: (s32[], f32[4])) -> pred[] {
  %p.10 = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  ROOT %less.10 = pred[] fusion(%p.10), kind=kLoop, calls=%fused
}

ENTRY %main (p.11: f32[4]) -> f32[4] {
  %p.11 = f32[4]{0} parameter(0)
  %fusion.11 = f32[4]{0} fusion(%p.11), kind=kLoop, calls=%fused
  %while.11 = (s32[], f32[4]{0}) while(%t.11), condition=%round_condition, body=%round_body
  ROOT %x.11 = f32[4]{0} get-tuple-element(%while.11), index=1
}
"""

TWICE = 'backend_config={"known_trip_count":{"n":"2"}}'


def test_a_round_is_counted_as_by_hand():
    """Of the round: the loop, the larger branch, and the rest, with the round's condition.

    A repeat of the inner loop has a fusion and a copy. A repeat of the loop around it has these
    three times, a product and a fusion: 8. The larger branch has 3. Then come two gathers, the
    callback, what is called, and the condition. The first fusion is before the round.
    """
    launches = 5 * 8 + 3 + 2 + 1 + 1 + 1
    assert count_round(PROGRAM) == Round(launches, 3, 1, [Loop(5, 8)])


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(ValueError, match="^the loop %while.4 of a round repeats an unknown"):
        count_round(PROGRAM.replace('{"known_trip_count":{"n":"3"},', "{"))
    with pytest.raises(ValueError, match="^the compiled program has 0 loops over rounds "):
        count_round(PROGRAM.replace("body=%round_body", f"body=%round_body, {TWICE}"))


def test_what_is_traced_chooses_as_on_a_gpu():
    def traced():
        x, kernel = jnp.ones((16, 8, 8, 2)), jnp.ones((3, 3, 16, 4))
        trace = jax.make_jaxpr(lambda x: convolve(x, kernel, padding=1, lowering="auto"))
        return str(trace(x))

    with rehearsal.choices_of_gpus():
        assert "conv_general_dilated" in traced()
    assert "conv_general_dilated" not in traced()


FEW = {"cohort_size": 3, "local_steps": 3, "batch_size": 8}
RATE = 1e-3  # of Adam
ADAM = {"server_optimizer": "adam", "hparams.server_lr": RATE}
SIMULATED = {"data.source": "simulated"}
SERVER = FEW | SIMULATED | {"algorithm.server_steps": 3}
SERIES = SIMULATED | {"data.sensors": 5, "data.steps": 200, "model.hidden": (6,)}
IMAGES = {"model.name": "lenet", "client_optimizer": "momentum"}
SYSTEMS = {
    "polyak": (tpt48, "panacea", SERVER),
    "adam": (tpt48, "panacea", SERVER | ADAM),
    "gru": (metr_la, "panacea", SERVER | SERIES | {"server_optimizer": "polyak_sgd"}),
    "sampled": (metr_la, "fedavg", FEW | SERIES | {"model.name": "gru_sampled"}),
    "clipped": (custom, "fedavg", FEW | IMAGES | {"hparams.client_clip": 0.5}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_what_gpus_compute_is_equal_up_to_rounding(name):
    """Two rounds, of which the states have the same form; both are computed on a CPU.

    Adam divides a gradient by its size, so that the rounding of a small one is not small: if
    the first weights differ by 1e-7, some weights differ by 1e-2 of the rate.
    """
    file, method, changes = SYSTEMS[name]
    config = change(file.get_config(method), changes)
    if file is custom:
        federation = arrange(config, image_federation((16, 16, 1), 4, 20, 3))
    else:
        federation = load_federation(config)

    def play():
        experiment = build_experiment(config, federation)
        program, inputs = program_of(experiment, config), inputs_of(experiment, config.seed)
        text = program.advance.lower(program.start(*inputs), *inputs, jnp.int32(2)).as_text()
        return text, program.advance(program.start(*inputs), *inputs, jnp.int32(2))

    with rehearsal.choices_of_gpus():
        text, (state, log) = play()
    text_of_cpus, (expected, log_of_cpus) = play()
    assert text != text_of_cpus
    atol = 5e-2 * RATE if config.get("server_optimizer") == "adam" else 1e-6
    assert_equal(state, expected, rtol=1e-4, atol=atol)
    assert_equal(log, log_of_cpus, rtol=1e-4, atol=atol)


def test_cards_are_described_in_bytes_and_hertz():
    text = rehearsal.target_config(rehearsal.CARDS["a100"])
    for line in (
        "cuda_compute_capability { major: 8 minor: 0 }",
        "core_count: 108",
        "shared_memory_per_block_optin: 166912",
        "l2_cache_size: 41943040",
        "memory_bandwidth: 2039000000000",
    ):
        assert f"\n  {line}\n" in text


@pytest.mark.skipif(rehearsal.is_installed(), reason="JAX's plugin for CUDA is installed")
def test_without_the_plugin_it_is_refused_in_one_line(tmp_path):
    status, _, errors = launched("bench", "tpt48", "--rehearse=a100", "--out=o", cwd=tmp_path)
    line = "rehearse=a100 needs JAX's plugin for CUDA; run pip install --no-deps jax-cuda12-"
    assert status == 2 and line in errors and errors.count("\n") == 1, errors
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words, message",
    [
        (["--rehearse=h100", "--vary=seed=1,2"], "excludes --rehearse"),
        (["--rehearse=h100", "--repeats=3"], "repeats=3 is not read by --rehearse=h100"),
    ],
)
def test_flags_that_do_not_fit_are_refused(tmp_path, words, message):
    status, _, errors = launched("bench", "tpt48", *words, cwd=tmp_path)
    assert status == 2 and message in errors and errors.count("\n") == 1, errors


def rehearsed(monkeypatch, name, *words):
    """The rows of a measurement of the suite, with further words."""
    for variable in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR"):  # of the tests, for CPUs
        monkeypatch.delenv(variable)
    measurement = REHEARSED[name]
    words = (*measurement.words, *words)
    return suite.numbers_of(measurement._replace(words=words))["rows"]


def check(rows):
    """A collective in a round on several GPUs, no callback, and few launches for 64 runs.

    The rates differ between runs, and spreading them over the parameters takes up to 0.16 more.
    """
    alone, many, split = rows
    assert [row["runs"] for row in rows] == [1, rehearsal.RUNS, 1]
    assert [row["gpus"] for row in rows] == [1, 1, rehearsal.GPUS]
    assert [row["collectives"] for row in rows] == [0, 0, 1]
    assert [row["callbacks"] for row in rows] == [0, 0, 0]
    assert many["launches"] <= 1.25 * alone["launches"]


@needs_plugin
@pytest.mark.release
@pytest.mark.parametrize("name", REHEARSED)
def test_every_model_family_and_system_compiles_for_gpus(monkeypatch, name):
    check(rehearsed(monkeypatch, name))


@needs_plugin
@pytest.mark.release
@pytest.mark.parametrize("name", ["h100-mlp", "h100-lenet"])
def test_they_compile_for_an_older_gpu(monkeypatch, name):
    check(rehearsed(monkeypatch, name, "--rehearse=a100"))
