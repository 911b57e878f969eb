"""Ctrl-C and SIGTERM end a command at once, in one line with the words that continue it."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from graphfl_jax.commands.common import interrupts
from tests.commands import ENVIRONMENT, ROOT, command, small_words

BOTH = {signal.SIGINT: 130, signal.SIGTERM: 143}
EITHER = [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
TIMEOUT = 120  # seconds
# A parent that ignores SIGINT, as a shell's background job does, would pass that on.
AS_IN_A_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
IN_A_PROGRAM = """
from graphfl_jax.commands.common import interrupts
interrupts.install()
import jax
endless = jax.jit(lambda x: jax.lax.while_loop(lambda x: x < 2, jax.numpy.sin, x))
compiled = endless.lower(1.0).compile()
print("ready", flush=True)
compiled(1.0).block_until_ready()
"""
WITH_A_CHILD = """
import subprocess, sys, time
from graphfl_jax.commands.common import interrupts
interrupts.install()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
time.sleep(600)
"""


def begin(*words, cwd=ROOT):
    """Starts a process that does not ignore SIGINT."""
    return subprocess.Popen(
        [sys.executable, "-c", AS_IN_A_TERMINAL, *words],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(process, ready):
    """Waits until a condition holds; the process must not end before."""
    deadline = time.monotonic() + TIMEOUT
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def signalled(process, number):
    """Sends a signal; returns the exit status and the lines of stderr without warnings."""
    process.send_signal(number)
    try:
        _, text = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    return process.returncode, [
        line for line in text.splitlines() if not line.startswith("warning: ")
    ]


def catches_sigterm(process):
    """Whether the process has a handler of SIGTERM, as Linux reports it."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (caught,) = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return int(caught, 16) >> (signal.SIGTERM - 1) & 1


linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


@linux
@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("name", ["run", "sweep", "tables", "robustness"])
def test_a_command_is_interrupted_while_it_imports(tmp_path, name, number):
    words = command(name, "--out=out", "--grid.batch_size=2,3")
    process = begin(*words, cwd=tmp_path)
    until(process, lambda: catches_sigterm(process))
    status, lines = signalled(process, number)
    assert status == BOTH[number]
    assert lines == [
        f"interrupted by {number.name}; nothing was written; start again with: "
        f"python -m experiments.{name} --out=out --grid.batch_size=2,3"
    ]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["graphfl", "run"], ["-m", "experiments.run"]])
def test_an_interrupt_before_the_first_own_handler_has_no_traceback(tmp_path, words):
    """It comes while the module of the handler is imported."""
    (tmp_path / "psutil.py").write_text("import os\nos.kill(os.getpid(), 2)\n")
    (tmp_path / "graphfl").write_text("from graphfl_jax.__main__ import main\nmain()\n")
    ended = subprocess.run(
        [sys.executable, "-c", AS_IN_A_TERMINAL, sys.executable, *words],
        cwd=tmp_path,
        env=ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


@linux
def test_the_installed_command_is_interrupted_while_it_imports(tmp_path):
    installed = tmp_path / "graphfl"  # as pip writes it
    installed.write_text("from graphfl_jax.__main__ import main\nmain()\n")
    process = begin(sys.executable, str(installed), "run", "tpt48", "--out=out", cwd=tmp_path)
    until(process, lambda: catches_sigterm(process))
    status, lines = signalled(process, signal.SIGINT)
    assert status == BOTH[signal.SIGINT]
    assert lines[0].endswith("start again with: graphfl run tpt48 --out=out")
    assert {path.name for path in tmp_path.iterdir()} == {"graphfl"}


@pytest.mark.parametrize("number", EITHER)
def test_a_compiled_program_is_interrupted(tmp_path, number):
    """It does not return to Python, whose handlers would wait for ever."""
    (tmp_path / "script.py").write_text(IN_A_PROGRAM)
    process = begin(sys.executable, str(tmp_path / "script.py"))
    assert process.stdout.readline() == "ready\n"
    status, lines = signalled(process, number)
    assert status == BOTH[number]
    assert len(lines) == 1


@pytest.mark.parametrize("number", EITHER)
def test_a_run_is_interrupted_and_names_the_command_that_resumes(tmp_path, number):
    started = command("run", *small_words("fl60.py:fedavg", rounds=1_000_000))
    process = begin(*started, "--cores=1", cwd=tmp_path)
    out = Path("runs/fl60-fedavg-seed0")
    rows = tmp_path / out / "metrics.jsonl"
    until(process, lambda: rows.exists() and rows.stat().st_size)
    status, lines = signalled(process, number)
    assert status == BOTH[number]
    (line,) = lines
    said, _, continued = line.partition("; continue with: ")
    assert said == f"interrupted by {number.name}"
    words = ["python", *started[1:], "--cores=1", "--resume", f"--out={out}"]
    assert shlex.split(continued) == words


def test_the_processes_that_a_command_has_started_end_too(tmp_path):
    (tmp_path / "script.py").write_text(WITH_A_CHILD)
    process = begin(sys.executable, str(tmp_path / "script.py"))
    child = psutil.Process(int(process.stdout.readline()))
    status, lines = signalled(process, signal.SIGTERM)
    assert status == 143
    assert len(lines) == 1
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_signal_that_the_parent_ignores_stays_ignored():
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from graphfl_jax.commands.common import interrupts; interrupts.install()\n"
        "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN,"
        " callable(signal.getsignal(signal.SIGTERM)))"
    )
    words = [sys.executable, "-c", script]
    answer = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert answer.stdout == "True True\n"


def test_importing_the_commands_changes_no_handler():
    """In a process of its own, because libraries of other tests install handlers."""
    words = "import signal, experiments; print(signal.getsignal(signal.SIGTERM).name)"
    ended = subprocess.run(
        [sys.executable, "-c", words], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert ended.stdout == "SIG_DFL\n", ended.stderr


def test_the_command_that_continues_has_each_flag_once(tmp_path, monkeypatch):
    monkeypatch.setattr(interrupts, "_marker", None)
    monkeypatch.setattr(interrupts, "_words", ())
    words = ["/usr/bin/python3", "-m", "experiments.run", "--out", "my runs"]
    monkeypatch.setattr(sys, "orig_argv", words)
    assert interrupts.how_to_continue() == (
        "nothing was written; start again with: python -m experiments.run --out 'my runs'"
    )
    marker = tmp_path / "config.json"
    interrupts.resumable("--resume", "--out=my runs", marker=marker)
    assert interrupts.how_to_continue().startswith("nothing was written; start again with: ")
    os.mknod(marker)
    assert interrupts.how_to_continue() == (
        "continue with: python -m experiments.run --out 'my runs' --resume"
    )
    monkeypatch.setattr(sys, "orig_argv", [*words[:3], "--data_root", "out"])
    assert interrupts.how_to_continue() == (
        "continue with: python -m experiments.run --data_root out --resume '--out=my runs'"
    )


def test_a_signal_leaves_first_results_and_no_temporary_folder(tmp_path):
    words = """
import os, signal, sys, time
from pathlib import Path
from graphfl_jax.commands.common import interrupts
interrupts.install()
first = Path(sys.argv[1], "first.json")
interrupts.mark_unfinished(first)
with interrupts.temporary_folder("work-", Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    first.touch()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
    ended = subprocess.run(
        [sys.executable, "-c", words, tmp_path], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert ended.returncode == 128 + signal.SIGTERM
    assert f"{tmp_path}/first.json has the first results; start again with: " in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["first.json"]


AT_THE_END = """
import atexit, sys, time
from graphfl_jax.commands.common import interrupts
interrupts.install()
class Slow:
    def __del__(self):
        print("removed", flush=True)
sys.modules["kept until the end"] = Slow()
atexit.register(print, "called", flush=True)
print("written to a buffer", end=" ")
interrupts.note_end(7)
sys.exit(7)
"""


def test_python_removes_no_objects_after_the_end(tmp_path):
    """It removes its handlers first, and JAX's objects take long."""
    (tmp_path / "script.py").write_text(AT_THE_END)
    words = [sys.executable, str(tmp_path / "script.py")]
    answer = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (7, "written to a buffer called\n")


# ------------------------------------------------------------------------- several processes


@pytest.mark.release
def test_tasks_on_a_ray_cluster_end_with_the_sweep(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray, an extra, is not installed")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    from ray.cluster_utils import Cluster

    def tasks():
        found = psutil.process_iter(["cmdline"])
        return [one for one in found if "ray::_run_part" in (one.info["cmdline"] or [""])[0]]

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        words = ["--grid.hparams.client_lr=0.1,0.2", "--at_once=1", "--out=out"]
        words += [*small_words(rounds=100_000_000, words=words)]
        words += ["--config.data.val_fraction=0.2"]
        words += ["--launcher=ray", f"--ray_address={nodes.address}"]
        sweep = begin(*command("sweep", *words), cwd=tmp_path)
        until(sweep, tasks)
        status, lines = signalled(sweep, signal.SIGTERM)
        assert status == 143
        assert len(lines) == 1 and lines[0].startswith(
            "interrupted by SIGTERM; continue with: "
        )
        deadline = time.monotonic() + TIMEOUT
        while tasks():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        nodes.shutdown()


def test_an_interrupt_imports_nothing():
    """The thread that ends the process would wait for a module that the main thread imports."""
    program = """
import os, sys
from graphfl_jax.commands.common import interrupts
interrupts.install()
before = set(sys.modules)
leave = os._exit
def check(status):
    print(sorted(set(sys.modules) - before))
    sys.stdout.flush()
    leave(status)
os._exit = check
os.kill(os.getpid(), 15)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (143, "[]\n")


def test_a_reader_that_stops_reading_ends_a_command_without_an_error():
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        command("run", "--help"),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")
