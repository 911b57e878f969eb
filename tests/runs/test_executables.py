"""Kept executables: a later start has the same results, and wrong files change nothing."""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable

import graphfl_jax
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change, compcars, fl60
from graphfl_jax.core import State
from graphfl_jax.models import MODELS
from graphfl_jax.program import Compiled
from graphfl_jax.runs import batch as runs_batch
from graphfl_jax.runs import executables, session, single
from graphfl_jax.runs.batch import Trial, run_trials
from graphfl_jax.runs.debug import DebugSession
from graphfl_jax.runs.executables import Kept
from graphfl_jax.runs.session import Inputs, Session, inputs_of
from tests.commands import ENVIRONMENT, ROOT, launched_small
from tests.federations import two_clusters

HEAVY = {"orbax", "scipy", "h5py", "PIL", "matplotlib", "psutil"}
SMALL = {
    "rounds": 4,
    "eval_every": 2,
    "cohort_size": 2,
    "local_steps": 2,
    "batch_size": 4,
    "model.hidden": (4,),
}
KEY = "a configuration"


def test_importing_the_package_loads_no_library_that_few_runs_need():
    script = "import json, sys, graphfl_jax; graphfl_jax.run; print(json.dumps([*sys.modules]))"
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(answer.stdout)}
    assert {"jax", "graphfl_jax"} <= loaded
    assert not loaded & HEAVY


# -------------------------------------------------------------------- a program of three lines


class Server(NamedTuple):
    total: Any


def small_program(server=Server):
    """A program that adds a float, once per round. It uses neither the key nor the data."""

    def start(key, hparams, data):
        return State(server(jnp.zeros(3)), ((),), jnp.int32(0))

    def advance(state, key, hparams, data, rounds):
        total = state.server.total + rounds.astype(jnp.float32) * hparams["step"]
        return State(server(total), ((),), state.round + rounds), total.sum()

    def evaluate(state, key, hparams, data, scope):
        return {"mean": state.server.total.mean()}, {}

    return Compiled(
        start=jax.jit(start, keep_unused=True),
        advance=jax.jit(advance, donate_argnums=0, keep_unused=True),
        evaluate=jax.jit(evaluate, static_argnames="scope", keep_unused=True),
        predictors=None,
        admit=None,
        adapt=None,
    )


def small_inputs():
    return Inputs(jax.random.key(0), {"step": jnp.float32(0.5)}, {"x": jnp.ones((2, 5))})


UNTRACEABLE = Compiled(*[None] * 6)  # lowering one of its functions raises an error


def played(kept, program=None):
    """The scores after 3 rounds of a session with what is kept."""
    session = Session(program or small_program(), small_inputs(), kept=kept)
    state, log = session.advance(session.state, jnp.int32(3))
    assert jax.tree.leaves(session.state)[0].is_deleted()  # it was donated
    assert float(log) == 4.5
    assert int(state.round) == 3
    return float(session.evaluate(state)[0]["mean"])


@pytest.fixture
def folder(tmp_path):
    """A folder in which the small program is kept."""
    folder = executables.private_folder(tmp_path)
    assert played(Kept(folder, KEY)) == 1.5
    return folder


def files(folder):
    """An entry, and the programs from the smallest to the largest."""
    entry = executables._path(folder, KEY)
    programs = set(folder.iterdir()) - {entry}
    return [entry, *sorted(programs, key=lambda path: path.stat().st_size)]


def test_a_later_session_traces_nothing(folder):
    assert len(files(folder)) == 4
    assert played(Kept(folder, KEY), UNTRACEABLE) == 1.5


@pytest.mark.parametrize("keeps", [False, True])
def test_the_evaluation_is_compiled_while_rounds_play(keeps, tmp_path, monkeypatch):
    """Its compilation waits until the first rounds have ended."""
    rounds_ended, compiled = threading.Event(), executables._compiled

    def wait(lowered):
        if lowered.name == "evaluate_chosen":
            assert rounds_ended.wait(timeout=60)
        return compiled(lowered)

    monkeypatch.setattr(executables, "_compiled", wait)
    kept = Kept(executables.private_folder(tmp_path), KEY) if keeps else Kept()
    session = Session(small_program(), small_inputs(), kept=kept)
    state, _ = session.advance(session.state, jnp.int32(3))
    assert int(state.round) == 3
    again = Session(UNTRACEABLE, small_inputs(), kept=kept)  # nothing is compiled twice
    rounds_ended.set()
    for each in (session, again):
        assert float(each.evaluate(state)[0]["mean"]) == 1.5
    assert set(kept.ready) == {"start", "advance", "evaluate_chosen"} and not kept.coming
    if keeps:
        assert played(Kept(kept.folder, KEY), UNTRACEABLE) == 1.5


def test_an_evaluation_that_does_not_compile_is_an_error_and_compiled_anew(monkeypatch):
    compiled = executables._compiled

    def fail(lowered):
        if lowered.name == "evaluate_chosen":
            raise MemoryError("of the compiler")
        return compiled(lowered)

    kept = Kept()
    with monkeypatch.context() as patched:
        patched.setattr(executables, "_compiled", fail)
        for _ in range(2):
            with pytest.raises(MemoryError, match="of the compiler"):
                played(kept)
    assert played(kept) == 1.5


def test_a_process_that_ends_keeps_what_it_compiles(tmp_path):
    script = """
import sys, time
from tests.runs.test_executables import *
compiled = executables._compiled
def slowly(lowered):
    time.sleep(lowered.name == "evaluate_chosen")
    return compiled(lowered)
executables._compiled = slowly
kept = Kept(executables.private_folder(sys.argv[1]), KEY)
Session(small_program(), small_inputs(), kept=kept)
assert kept.coming
raise SystemExit(3)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, env=ENVIRONMENT, cwd=ROOT).returncode == 3
    assert played(Kept(executables.private_folder(tmp_path), KEY), UNTRACEABLE) == 1.5


def test_another_key_with_the_same_programs_compiles_nothing(folder, monkeypatch):
    monkeypatch.setattr(jax.stages.Lowered, "compile", None)
    assert played(Kept(folder, "another configuration")) == 1.5
    assert len(files(folder)) == 5


def test_programs_that_differ_only_in_an_unused_input_are_not_confused(folder):
    """Each program adds one of two floats, so the texts without unused inputs are equal."""
    inputs = small_inputs()._replace(hparams={"other": jnp.float32(8), "step": jnp.float32(1)})
    for name, total in (("step", 1.0), ("other", 8.0)):
        program = small_program()._replace(
            advance=jax.jit(
                lambda state, key, hparams, data, rounds, name=name: (
                    state._replace(server=Server(state.server.total + hparams[name])),
                    0,
                ),
                donate_argnums=0,
                keep_unused=True,
            )
        )
        session = Session(program, inputs, kept=Kept(folder, f"adds {name}"))
        state, _ = session.advance(session.state, jnp.int32(1))
        assert state.server.total.tolist() == [total] * 3


def truncated(path, others):
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path, others):
    path.write_bytes(b"")


def random(path, others):
    path.write_bytes(np.random.default_rng(0).bytes(5000))


def foreign(path, others):
    path.write_bytes(next(other for other in others if other != path).read_bytes())


def missing(path, others):
    path.unlink()


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("damage", [truncated, emptied, random, foreign, missing])
def test_a_wrong_file_is_replaced(folder, damage, which):
    paths = files(folder)
    contents = [path.read_bytes() for path in paths]
    damage(paths[which], paths)
    assert played(Kept(folder, KEY)) == 1.5
    assert set(files(folder)) == set(paths)
    assert sum(path.read_bytes() == old for path, old in zip(paths, contents, strict=True)) >= 3
    assert played(Kept(folder, KEY), UNTRACEABLE) == 1.5


def test_files_of_other_versions_are_not_read(tmp_path, monkeypatch):
    folder = executables.private_folder(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(executables, "versions", lambda: {"jax": "0.0.1"})
        assert played(Kept(folder, executables.machine())) == 1.5
    before = set(folder.iterdir())
    assert played(Kept(folder, executables.machine())) == 1.5
    assert len(before) == len(set(folder.iterdir()) - before) == 4


def test_an_executable_that_cannot_be_loaded_is_compiled_anew(folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise jax.errors.JaxRuntimeError("INTERNAL: of another driver")

    monkeypatch.setattr(serialize_executable, "deserialize_and_load", refuse)
    assert played(Kept(folder, KEY)) == 1.5


def test_a_state_that_cannot_be_pickled_is_not_kept(folder):
    class Local(NamedTuple):
        total: Any

    for _ in range(2):
        assert played(Kept(folder, "local"), small_program(Local)) == 1.5
        assert list(Kept(folder, "local").entry) == ["evaluate_chosen"]


def test_values_are_remembered(folder):
    assert Kept(folder, KEY).remember("traffic", lambda: (1, 2)) == (1, 2)
    assert Kept(folder, KEY).remember("traffic", None) == (1, 2)
    assert Kept(folder, "another").remember("traffic", lambda: (3, 4)) == (3, 4)
    assert Kept().remember("traffic", lambda: (5, 6)) == (5, 6)


def test_programs_of_several_architectures_have_options_of_their_own(monkeypatch):
    """Programs of one architecture have none, and flags of XLA come first."""
    monkeypatch.setenv("XLA_FLAGS", "")
    names = {"xla_backend_optimization_level", "xla_llvm_disable_expensive_passes"}
    assert executables.options_of_architectures(1) == {}
    assert set(executables.options_of_architectures(2)) == names
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
    assert set(executables.options_of_architectures(2)) == names - {min(names)}
    assert executables.options_of_one_call() == {}


def test_the_files_used_least_recently_are_removed(tmp_path, monkeypatch):
    folder = executables.private_folder(tmp_path)
    monkeypatch.setattr(executables, "MOST_BYTES", 2500)
    for age, name in ((3, "first"), (2, "second"), (1, "third")):
        executables._write(folder, name, bytes(1000))
        now = os.stat(tmp_path).st_mtime
        os.utime(executables._path(folder, name), (now - 60 * age,) * 2)
        if name == "second":
            assert executables._read(folder, "first") == bytes(1000)  # it was used now
    held = [executables._path(folder, name).exists() for name in ("first", "second", "third")]
    assert held == [True, False, True]


def test_only_the_user_may_write_into_the_folder(tmp_path):
    folder = executables.private_folder(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    executables._write(folder, KEY, 0)
    assert stat.S_IMODE(executables._path(folder, KEY).stat().st_mode) == 0o600
    for open_to_others in (folder, tmp_path):
        before = open_to_others.stat().st_mode
        open_to_others.chmod(0o770)
        message = (
            f"^compilation_cache={open_to_others} can be .* run chmod go-w {open_to_others},"
        )
        with pytest.raises(ValueError, match=message):
            executables.private_folder(tmp_path)
        open_to_others.chmod(before)


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(
        ValueError, match=f"^compilation_cache={tmp_path} belongs to another user"
    ):
        executables.private_folder(tmp_path)


def test_a_folder_below_one_that_others_may_write_is_refused(tmp_path):
    """They could put a folder of theirs into its place; the sticky bit forbids this."""
    folder = tmp_path / "shared" / "mine"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o777)
    (tmp_path / "link").symlink_to(folder)
    for path in (folder, tmp_path / "link"):
        message = (
            f"is in {folder.parent}, into which others can write, .* chmod go-w {tmp_path}"
        )
        with pytest.raises(ValueError, match=message):
            executables.private_folder(path)
    folder.parent.chmod(0o1777)
    assert executables.private_folder(tmp_path / "link") == folder / "executables"


def test_folders_that_are_made_are_private(tmp_path):
    before = os.umask(0)
    try:
        executables.private_folder(tmp_path / "new" / "cache")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {0o700}


def test_an_entry_of_another_user_is_not_read(tmp_path, monkeypatch):
    folder = executables.private_folder(tmp_path)
    executables._write(folder, KEY, 7)
    assert executables._read(folder, KEY) == 7
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert executables._read(folder, KEY) is None


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match="executables are not kept"):
        assert executables.private_folder(tmp_path / "file") is None


# ---------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def config():
    return change(fl60.get_config("fedavg"), SMALL)


@pytest.fixture(scope="module")
def federation():
    return two_clusters(3)


@pytest.fixture(scope="module")
def kept(config, federation, tmp_path_factory):
    """A folder with the executables of a run, and the run's folder."""
    root = tmp_path_factory.mktemp("kept")
    graphfl_jax.run(config, federation, out=root / "out", keep_in=root)
    return root


def run_again(config, federation, kept, out):
    graphfl_jax.run(config, federation, out=out, keep_in=kept)
    results = json.loads((out / "results.json").read_text())
    return (out / "metrics.jsonl").read_bytes(), results["communication"]


@pytest.mark.slow
def test_a_run_of_kept_executables_has_the_same_bits(
    config, federation, kept, tmp_path, monkeypatch
):
    plain = run_again(config, federation, None, tmp_path / "plain")
    monkeypatch.setattr(single, "program_of", lambda *given, **models: UNTRACEABLE)
    monkeypatch.setattr(session, "message_bytes", None)
    assert run_again(config, federation, kept, tmp_path / "loaded") == plain
    assert (kept / "out" / "metrics.jsonl").read_bytes() == plain[0]
    # Inputs of the program, and fields outside it
    other = change(config, {"seed": 1, "hparams.client_lr": 0.05, "rounds": 2})
    loaded = run_again(other, federation, kept, tmp_path / "other")
    monkeypatch.undo()
    assert loaded == run_again(other, federation, None, tmp_path / "other-plain")


@pytest.mark.release
def test_a_batch_of_kept_executables_has_the_same_bits(
    config, federation, tmp_path, monkeypatch
):
    trials = [Trial({"client_lr": rate}, 0) for rate in (0.1, 0.2)]

    def batch(keep_in):
        outcomes = dict(run_trials(config, {0: federation}, trials, at_once=2, keep_in=keep_in))
        return [
            (outcomes[i].rows, outcomes[i].results["communication"])
            for i, _ in enumerate(trials)
        ]

    first = batch(tmp_path)
    monkeypatch.setattr(runs_batch, "batch_program", lambda *args, **sizes: UNTRACEABLE)
    again = batch(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, first, again)


@pytest.mark.slow
def test_the_next_run_of_a_process_compiles_nothing(config, federation, tmp_path, monkeypatch):
    """By default in the user's cache, and a few sessions in memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(executables, "IN_MEMORY", {})
    graphfl_jax.run(config, federation)
    folder = tmp_path / "graphfl_jax/compiled/executables"
    assert any(folder.iterdir())
    monkeypatch.setattr(single, "program_of", lambda *given, **models: UNTRACEABLE)
    loaded = run_again(config, federation, True, tmp_path / "memory")
    shutil.rmtree(folder)
    other = change(config, {"seed": 1, "hparams.client_lr": 0.05})
    run_again(other, federation, True, tmp_path / "other")
    executables.IN_MEMORY.clear()
    with pytest.raises(AttributeError):  # it is compiled
        graphfl_jax.run(config, federation, keep_in=None)
    monkeypatch.undo()
    assert run_again(config, federation, None, tmp_path / "plain") == loaded


def test_a_process_remembers_the_last_sessions(config, federation, tmp_path, monkeypatch):
    monkeypatch.setattr(executables, "IN_MEMORY", {})
    experiment = build_experiment(config, federation)

    def kept(size):
        sized = change(config, {"batch_size": size})
        return executables.open_kept(tmp_path, experiment, sized, inputs_of(experiment, 0))

    first, *others = map(kept, range(1, executables.MOST_SESSIONS + 1))
    assert kept(1) is first
    kept(executables.MOST_SESSIONS + 1)
    assert kept(1) is first and kept(2) is not others[0]


def test_a_cache_of_the_user_that_others_can_write_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "graphfl_jax").mkdir()
    (tmp_path / "graphfl_jax").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="executables are not kept .* others can write"):
        assert executables.private_folder(True) is None


def test_debug_mode_keeps_nothing(config, federation):
    assert DebugSession(build_experiment(config, federation), config).kept.folder is None


# ------------------------------------------------------------------------------------- the key


def described(config, federation):
    experiment = build_experiment(config, federation)
    return executables.description(experiment, config, inputs_of(experiment, config.seed))


@pytest.fixture(scope="module")
def usual(config, federation):
    return described(config, federation)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 3},
        {"rounds": 9},
        {"eval_every": 1},
        {"checkpoint_every": 7},
        {"hparams.client_lr": 0.3},
        {"data.root": "elsewhere"},
    ],
)
def test_inputs_and_paths_are_not_in_the_key(config, federation, usual, changes):
    assert described(change(config, changes), federation) == usual


@pytest.mark.parametrize(
    "changes",
    [
        {"local_steps": 3},
        {"batch_size": 5},
        {"eval_batch_size": 100},
        {"client_optimizer": "adam"},
        {"client_schedule": "cosine"},
        {"tuning.part": "head"},
        {"attack.name": "ipm"},
        {"defence.name": "clip"},
        {"algorithm.name": "fedprox"},
    ],
)
def test_what_shapes_the_program_is_in_the_key(config, federation, usual, changes):
    assert described(change(config, changes), federation) != usual


def test_the_federation_is_in_the_key(config, federation, usual):
    data = federation.data
    others = [
        federation._replace(sha256="1" * 64),
        federation._replace(data=data._replace(graph=data.graph._replace(edges=None))),
        federation._replace(
            data=data._replace(train=data.train._replace(x=data.train.x.astype(np.float16)))
        ),
    ]
    keys = {described(config, other) for other in others} | {usual}
    assert len(keys) == 4


def test_the_state_of_the_process_is_in_the_key(config, federation, usual, monkeypatch):
    with jax.default_matmul_precision("highest"):
        assert described(config, federation) != usual
    with jax.numpy_rank_promotion("warn"):
        assert described(config, federation) != usual
    with jax.threefry_partitionable(False):
        assert described(config, federation) != usual
    with monkeypatch.context() as patched:
        patched.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"] + " --xla_cpu_enable_fast_math")
        assert described(config, federation) != usual
    with monkeypatch.context() as patched:
        patched.setattr(executables, "_processor", lambda: ["flags : avx"])
        assert described(config, federation) != usual
    with monkeypatch.context() as patched:
        patched.setattr(executables, "SOURCE", "other code")
        assert described(config, federation) != usual
    assert described(config, federation) == usual


def test_the_text_of_a_program_has_all_its_inputs(config, federation):
    """Also those that it does not use, such as the examples when a run starts."""
    experiment = build_experiment(config, federation)
    inputs = inputs_of(experiment, 0)
    program = single.program_of(experiment, config)
    state, rounds = jax.eval_shape(program.start, *inputs), jnp.int32(1)
    given = {"start": inputs, "advance": (state, *inputs, rounds), "evaluate": (state, *inputs)}
    for name, arguments in given.items():
        text = getattr(program, name).lower(*arguments).as_text()
        (main,) = [line for line in text.splitlines() if "func.func public @main" in line]
        assert main.count("%arg") == len(jax.tree.leaves(arguments)), name


def test_nothing_is_kept_of_code_outside_the_key(config, federation, tmp_path, monkeypatch):
    experiment = build_experiment(config, federation)
    given = (tmp_path, experiment, config, inputs_of(experiment, 0))
    assert executables.open_kept(*given).folder == tmp_path
    assert executables.open_kept(None, *given[1:]).folder is None
    executables.IN_MEMORY.clear()
    with monkeypatch.context() as patched:
        patched.setattr(jax, "process_count", lambda: 2)
        assert executables.open_kept(*given).folder is None

    def own_model(**settings):
        return MODELS["mlp"](**settings)

    monkeypatch.setitem(MODELS, "own", own_model)
    assert executables.open_kept(*given).folder is None
    assert not executables.IN_MEMORY


def test_pretrained_weights_are_in_the_key(config, federation, tmp_path, monkeypatch):
    """The content of the file, not only its name."""
    experiment = build_experiment(config, federation)
    inputs, weights = inputs_of(experiment, 0), tmp_path / "weights.safetensors"
    named = change(
        compcars.get_config("fedavg"),
        {"model.name": "resnet18", "model.weights": str(weights)},
    )
    keys = set()
    for content in (b"first", b"second"):
        weights.write_bytes(content)
        keys.add(executables.description(experiment, named, inputs))
    assert len(keys) == 2


# ------------------------------------------------------------------------------------- commands


@pytest.mark.release
def test_a_second_start_of_a_run_reads_what_the_first_has_kept(tmp_path):
    found = []
    for out in ("first", "second"):
        ended = launched_small("run", f"--out={out}", "--compilation_cache=kept", cwd=tmp_path)
        assert ended.status == 0, ended.stderr
        kept = sorted((tmp_path / "kept" / "executables").iterdir())
        written = [(path, path.stat().st_ino) for path in kept]
        found.append((written, (tmp_path / out / "metrics.jsonl").read_bytes()))
    assert len(found[0][0]) == 4  # an entry, and start, advance and evaluate
    assert found[0] == found[1]


def test_a_folder_that_others_can_write_is_refused_and_not_changed(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    kept.chmod(0o777)
    ended = launched_small("run", "--out=out", "--compilation_cache=kept", cwd=tmp_path)
    assert ended.status == 2
    assert ended.stderr == (
        "error: compilation_cache=kept can be written by others, and its files are executed; "
        "run chmod go-w kept, or set --compilation_cache to another folder\n"
    )
    assert list(tmp_path.rglob("*")) == [kept]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o777


def test_such_a_folder_of_jaxs_own_settings_is_refused_too(tmp_path):
    from graphfl_jax.commands.common.command_line import _keep_compiled

    own = jax.config.jax_compilation_cache_dir
    tmp_path.chmod(0o777)
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        for flag in (None, ""):
            with pytest.raises(ValueError, match=f"^compilation_cache={tmp_path} can be wri"):
                _keep_compiled(flag)
        jax.config.update("jax_compilation_cache_dir", str(tmp_path / "absent"))
        _keep_compiled(None)
        assert not list(tmp_path.iterdir())
    finally:
        jax.config.update("jax_compilation_cache_dir", own)


def test_an_empty_flag_keeps_nothing():
    from graphfl_jax.commands.common.command_line import (  # defines flags, for this test only
        FLAGS,
        compiled_folder,
    )

    FLAGS(["run"])
    assert compiled_folder() == os.environ["JAX_COMPILATION_CACHE_DIR"]
    FLAGS(["run", "--compilation_cache="])
    assert compiled_folder() is None
    FLAGS.unparse_flags()
