"""One federation on several devices and processes: the same numbers, and one exit status."""

import functools
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import flagsaver
from jax.sharding import NamedSharding, PartitionSpec

import graphfl_jax
from graphfl_jax.algorithms.lgfedavg import lgfedavg
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change, fl60
from graphfl_jax.devices import client_mesh
from graphfl_jax.metrics import CLASSIFICATION
from graphfl_jax.models.mlp import mlp
from graphfl_jax.program import Program
from graphfl_jax.rounds import Group
from graphfl_jax.runs import single
from graphfl_jax.runs.environment import processor
from graphfl_jax.trainers import sgd_trainer
from tests.commands import ROOT, launched
from tests.federations import small_config, two_clusters

METHODS = ("ditto", "panacea")
SMALL = {
    "rounds": 4,
    "eval_every": 2,
    "checkpoint_every": 2,
    "cohort_size": 4,
    "local_steps": 2,
    "batch_size": 4,
}
FLAGS = [f"--config={ROOT}/configs/fl60.py:ditto"]
FLAGS += [f"--config.{field}={value}" for field, value in SMALL.items()]
# Plays one round of each method in Python, and writes the state and the scores to a file.
WORKER = """
import sys, jax, numpy as np
where, folder, process = sys.argv[1:]
jax.config.update("jax_enable_preemption_service", False)  # its handler ignores SIGTERM
jax.distributed.initialize(where, 2, int(process))
from tests.runs import test_distributed
for method in test_distributed.METHODS:
    leaves = test_distributed.one_round(method)
    np.savez(f"{folder}/{method}-{process}.npz", *leaves)
"""


def environment(devices):
    flags = re.sub(r"(?<=device_count=)\d+", str(devices), os.environ["XLA_FLAGS"])
    return os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}


def coordinator():
    with socket.create_server(("localhost", 0)) as server:
        return f"localhost:{server.getsockname()[1]}"


def begin(*command, devices=1, **changes):
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment(devices) | changes,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(processes, timeout=200):
    """Standard output, errors and status of each process; kills those that do not end."""
    try:
        # One after the other, which is possible because their output fits into the pipes.
        return [
            (*process.communicate(timeout=timeout), process.returncode) for process in processes
        ]
    finally:
        for process in processes:
            process.kill()


def command(*flags, **changes):
    return begin("-m", "experiments.run", *FLAGS, *flags, **changes)


def member(process, where, *flags):
    joins = ["--distributed", f"--coordinator={where}", "--num_processes=2"]
    return command(*joins, f"--process_id={process}", *flags)


# ----------------------------------------------------------------------------- devices


@pytest.mark.parametrize("cohort_size, size", [(8, 8), (4, 4), (5, 5), (3, 3), (1, 2)])
def test_a_mesh_has_devices_of_every_process(monkeypatch, cohort_size, size):
    """Eight devices that seem to belong to two processes."""
    halves = jax.devices()[:4], jax.devices()[4:]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda process_index: halves[process_index])
    mesh = client_mesh(cohort_size)
    assert mesh.size == size
    shares = [sum(device in half for device in mesh.devices) for half in halves]
    assert max(shares) - min(shares) == size % 2


def one_round(method):
    """Leaves of the state and of the scores after a round of a tiny federation."""
    config = small_config(method, rounds=1)
    result = graphfl_jax.run(config, two_clusters())
    return [np.asarray(leaf) for leaf in jax.tree.leaves((result.state, result.rows))]


@functools.cache
def alone(method):
    """A round of a method on one device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single, "mesh_of", lambda experiment: None)
        return one_round(method)


@pytest.mark.release
def test_a_cohort_that_does_not_divide_over_the_devices_trains_as_on_one():
    """Of four clients, three devices take two each; two of these are surplus and dropped."""
    auto = (jax.sharding.AxisType.Auto,)
    three = jax.make_mesh((3,), ("clients",), auto, devices=jax.devices()[:3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single, "mesh_of", lambda experiment: three)
        assert_close(one_round("ditto"), alone("ditto"))


def advance_over(mesh, build, groups, hparams, data):
    """The functions of a program over a mesh, and its compiled `advance`."""
    program = Program(build, groups=groups, mesh=mesh).compiled()
    everywhere = NamedSharding(mesh, PartitionSpec())
    inputs = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere),
        (jax.random.key(0), hparams, data),
    )
    state = jax.eval_shape(program.start, *inputs)
    return program, program.advance.lower(state, *inputs, jnp.int32(1)).compile()


def collectives(compiled):
    words = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    return re.findall(rf" ({words})(?:-start)?\(", compiled.as_text())


def test_a_round_has_one_collective():
    """Every device runs all steps of Panacea's server; only the clients' rows are gathered."""
    built = build_experiment(small_config("panacea"), two_clusters())
    hparams = {name: jnp.float32(value) for name, value in built.hparams.items()}
    data = built.federation.data
    _, compiled = advance_over(client_mesh(4), built.build, (Group(4),), hparams, data)
    assert collectives(compiled) == ["all-gather"]


@pytest.mark.release
def test_a_round_of_several_architectures_has_one_collective():
    """Two devices train three clients of one architecture and one of the other, both filled up.

    The state is that of one device.
    """
    groups = (Group(3, np.arange(0, 7, 2, np.int32)), Group(1, np.arange(1, 7, 2, np.int32)))
    models = tuple(
        mlp(inputs=(2,), hidden=hidden, outputs=2, task=CLASSIFICATION)
        for hidden in ((3,), (5, 3))
    )
    algorithm = lgfedavg(models, sgd_trainer(optax.sgd(0.1), steps=3, batch_size=None))
    key, data = jax.random.key(0), two_clusters().data
    mesh = client_mesh(3, 1, devices=jax.devices()[:2])
    program, compiled = advance_over(mesh, lambda *_: algorithm, groups, {}, data)
    assert collectives(compiled) == ["all-gather"]
    alone = Program(lambda *_: algorithm, groups=groups).compiled()
    split, whole = (
        play.advance(play.start(key, {}, data), key, {}, data, jnp.int32(2))
        for play in (program, alone)
    )
    assert_close(*map(jax.tree.leaves, (split, whole)))


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """The folder into which two processes of two devices each write a round of each method."""
    folder, where = tmp_path_factory.mktemp("rounds"), coordinator()
    members = [begin("-c", WORKER, where, str(folder), str(i), devices=2) for i in range(2)]
    for _, errors, status in ends(members):
        assert status == 0, errors
    return folder


def assert_close(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.release
def test_four_devices_compute_what_one_does():
    """tests/core/test_contract.py compares the programs of all methods."""
    assert_close(one_round("ditto"), alone("ditto"))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_compute_what_one_device_does(two_processes, method):
    for process in range(2):
        leaves = np.load(two_processes / f"{method}-{process}.npz")
        assert_close([leaves[name] for name in leaves.files], alone(method))


# ------------------------------------------------------------------------------- command


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The folder of a run of two rounds by two processes with different --out, and how both
    ended."""
    folder, where = tmp_path_factory.mktemp("command"), coordinator()
    names = ("first", "second")
    members = [
        member(i, where, "--config.rounds=2", f"--out={folder / name}")
        for i, name in enumerate(names)
    ]
    return folder / "first", ends(members)


@pytest.mark.release
def test_only_the_first_process_writes_and_prints(started):
    out, ((table, _, status), other) = started
    assert status == 0
    assert "ditto on fl60" in table and "Gloo" not in table
    assert other == ("", "", 0)
    files = {path.name for path in out.iterdir()}
    assert files == {
        *("config.json", "identity.json", "federation.json", "metrics.jsonl", "results.json"),
        *("checkpoints", "models.safetensors", "clients.csv", "convergence.svg", ".lock"),
    }
    saved = {path.name for path in (out / "checkpoints").iterdir()}
    assert saved == {"00000002", "00000002.json"}
    assert not (out.parent / "second").exists()
    results = json.loads((out / "results.json").read_text())
    assert results["device"] == f"2 x cpu: cpu ({processor()}) of 2 processes"


@pytest.mark.release
def test_processes_of_a_cluster_continue_a_run(started, tmp_path):
    """SLURM's variables name the coordinator. The run is that of two devices, bit for bit."""
    out, _ = started
    port = int(coordinator().rpartition(":")[2])
    slurm = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "JAX_COORDINATOR_PORT": str(port),
    }
    members = [
        command(
            *("--distributed", f"--out={out}", "--resume"),
            **slurm,
            SLURM_PROCID=str(i),
            SLURM_LOCALID=str(i),
        )
        for i in range(2)
    ]
    whole = tmp_path / "whole"
    config = change(fl60.get_config("ditto"), SMALL)
    two = jax.make_mesh(
        (2,), ("clients",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single, "mesh_of", lambda experiment: two)
        graphfl_jax.run(config, out=whole)
    for _, errors, status in ends(members):
        assert status == 0, errors
    name = "metrics.jsonl"
    assert (out / name).read_text().count("\n") == 2
    assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert json.loads((out / "results.json").read_text())["rounds"] == 4


JOIN = ["--distributed", "--coordinator=localhost:1"]
REFUSED = [
    (["--distributed", "--num_processes=2"], "num_processes=2 needs --coordinator too; give"),
    ([*JOIN, "--num_processes=2"], "coordinator=localhost:1 needs --process_id too; give all"),
    (["--num_processes=2"], "num_processes=2 is not read without --distributed; add it"),
    (
        [*JOIN, "--num_processes=2", "--process_id=2"],
        r"process_id=2 is not below num_processes=2; set --process_id to a value in \[0, 1\]",
    ),
    (
        [*JOIN, "--num_processes=0", "--process_id=0"],
        "num_processes=0 is not an integer of at least 1",
    ),
    (
        ["--distributed", "--coordinator=host", "--num_processes=2", "--process_id=1"],
        "coordinator=host is not HOST:PORT; set --coordinator=HOST:PORT",
    ),
    (
        ["--distributed", "--coordinator=:TAKEN", "--num_processes=2", "--process_id=0"],
        "coordinator=.* cannot be opened .*in use.*; choose another port",
    ),
]


@pytest.mark.parametrize("flags, message", REFUSED)
def test_flags_that_do_not_fit_are_refused_in_one_line(flags, message, monkeypatch, capsys):
    from graphfl_jax.commands.common.command_line import launch
    from graphfl_jax.commands.common.processes import (
        join_processes,
    )  # defines flags, for these tests only

    def main():
        with join_processes():
            raise AssertionError("the process has joined")

    with flagsaver.flagsaver(), socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        flags = [flag.replace(":TAKEN", f"localhost:{port}") for flag in flags]
        monkeypatch.setattr(sys, "argv", ["run", *flags])
        monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # restored
        with pytest.raises(SystemExit) as left:
            launch(main)
    assert left.value.code == 2
    assert re.fullmatch(f"error: .*{message}.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            [*JOIN, "--num_processes=2", "--process_id=1", "--join_timeout=1"],
            "coordinator=localhost:1: after 1 s not all processes have joined; start each with",
        ),
        (
            ["--distributed"],
            "distributed=True: no cluster is found .*; add --coordinator=HOST:PORT --num_proc",
        ),
    ],
)
def test_a_process_that_finds_no_other_ends_in_one_line(tmp_path, flags, message):
    status, printed, errors = launched("run", *FLAGS, "--out=out", *flags, cwd=tmp_path)
    assert (status, printed) == (2, "")
    assert re.fullmatch(f"error: {message}.*\n", errors), errors
    assert list(tmp_path.iterdir()) == []


DIFFERENT = {
    "another seed": (
        ["--config.seed=1"],
        "process 1 and process 0 differ in their configuration",
    ),
    "a missing file": (["--data_root=nowhere"], "process 1: fl60: no file nowhere/"),
}


@pytest.fixture(scope="module")
def different(tmp_path_factory):
    """How pairs of processes end of which the second has other flags."""
    folder = tmp_path_factory.mktemp("different")
    (folder / "dg60").mkdir()
    arrays = {
        "data": np.random.default_rng(0).normal(size=(6000, 2)),
        "label": np.tile([0, 1], 3000),
        "domain": np.repeat(np.arange(60), 100),
        "A": np.ones((60, 60)) - np.eye(60),
    }
    (folder / "dg60" / "toy_d60_spiral.pkl").write_bytes(pickle.dumps(arrays))
    same = [f"--out={folder}/out", "--config.data.source=file", f"--data_root={folder}"]
    pairs = []
    for flags, _ in DIFFERENT.values():
        where = coordinator()
        pairs += [member(0, where, *same), member(1, where, *same, *flags)]
    ended = ends(pairs)
    assert not (folder / "out").exists()
    return dict(zip(DIFFERENT, zip(ended[::2], ended[1::2], strict=True), strict=True))


@pytest.mark.release
@pytest.mark.parametrize("name", DIFFERENT)
def test_an_error_of_one_process_ends_all_in_one_line_of_the_first(different, name):
    (printed, errors, status), other = different[name]
    assert (status, printed) == (2, "")
    assert re.fullmatch(f"error: .*{DIFFERENT[name][1]}.*\n", errors), errors
    assert other == ("", "", 2)


# A process that joins as the command does, and then waits for the others again and again.
WAITING = """
import sys
import time
from graphfl_jax.commands.common.processes import join_processes
from graphfl_jax.commands.common.command_line import launch
from graphfl_jax.runs.multihost import barrier

def main():
    with join_processes():
        while True:
            barrier()
            print("here", flush=True)

launch(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_process_ends_the_other(lost):
    """Soon, and with an error status: JAX aborts a process that has lost the coordinator."""
    where = coordinator()
    joins = ["--distributed", f"--coordinator={where}", "--num_processes=2"]
    members = [begin("-c", WAITING, *joins, f"--process_id={i}") for i in range(2)]
    assert members[lost].stdout.readline() == "here\n"
    members[lost].kill()
    other, _ = ends([members[1 - lost], members[lost]], timeout=60)
    _, errors, status = other
    assert status in (3, -signal.SIGABRT)
    if lost == 1:
        assert re.fullmatch("error: process 0 .* lost another .*--resume\n", errors), errors


@pytest.mark.release
def test_an_interrupted_process_ends_in_one_line_and_the_other_ends_too(tmp_path):
    where, rows = coordinator(), tmp_path / "out" / "metrics.jsonl"
    words = ["--config.rounds=1000000", f"--out={tmp_path}/out"]
    first, second = (member(process, where, *words) for process in range(2))
    while first.poll() is None and not (rows.exists() and rows.stat().st_size):
        time.sleep(0.05)
    second.send_signal(signal.SIGTERM)
    (_, errors, status), (_, interrupted, own) = ends([first, second], timeout=60)
    assert own == 143
    assert re.fullmatch("interrupted by SIGTERM; .*--process_id=1 .*\n", interrupted)
    assert status in (3, -signal.SIGABRT)
    assert re.search("error: process 0 .* lost another .*--resume\n", errors), errors
