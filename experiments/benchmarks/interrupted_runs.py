"""Runs that are interrupted, and resumed until they end, in processes of their own."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "custom:ditto"  # its clients keep something
DATA = "federation.npz"
SETTINGS = {
    "rounds": 60,
    "eval_every": 2,
    "checkpoint_every": 4,
    "cohort_size": 4,
    "local_steps": 2,
    "batch_size": 4,
    "model.hidden": 4,
    "data.val_fraction": 0.1,
}
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
# A limit of the size of files ends a write in its middle, as a full disk does.
FULL, DAMAGED_RUN, DAMAGED_PROGRAM = "full disk", "damaged file of the run", "damaged program"
FAULTS = (*SIGNALS, FULL, DAMAGED_RUN, DAMAGED_PROGRAM)
MOST_FAULTS = 3  # of a run
LIMITS = (100, 50_000)  # bytes; the largest file of a tiny run has about as many
TIMEOUT = 300  # seconds that a process may take
IDENTICAL, REFUSED, WRONG = "identical", "refused in one line", "wrong"


class Ended(NamedTuple):
    """How a process ended."""

    status: int  # negative: the number of the signal that ended it
    lines: list[str]  # of stderr, without warnings


class Outcome(NamedTuple):
    """What became of an interrupted run."""

    faults: list[str]
    verdict: str  # IDENTICAL, REFUSED or WRONG
    why: str  # of a refusal, or what was wrong


def write_data(work: Path) -> None:
    """Writes the data of the runs: five clients, so that federation.json is small."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    np.savez(work / DATA, x=x, y=(x[:, 0] > 0).astype(int), client=np.arange(200) % 5)


class Runs(NamedTuple):
    """The runs of a soak."""

    work: Path  # has the file of `write_data`, and the folders of the runs
    fields: list[str]  # that are set, as FIELD=VALUE

    @property
    def cache(self) -> Path:
        """The user's cache folder, in which compiled programs are kept."""
        return self.work / "cache"


def start_run(runs: Runs, folder: Path, *words: str) -> subprocess.Popen:
    """Starts the command of a run."""
    values = SETTINGS | {"data.path": runs.work / DATA}
    fields = [*(f"{field}={value}" for field, value in values.items()), *runs.fields]
    settings = [f"--config.{field}" for field in fields]
    command = ["-m", "graphfl_jax", "run", f"--config={CONFIG}", f"--out={folder}"]
    return subprocess.Popen(
        [sys.executable, *command, "--cores=1", *settings, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(runs.cache)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen) -> Ended:
    """Waits for the end of a process. One that hangs is killed, and ends with status 1."""
    try:
        _, text = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Ended(1, [f"a run does not end within {TIMEOUT} s"])
    lines = [line for line in text.splitlines() if not line.startswith("warning: ")]
    return Ended(process.returncode, lines)


def outputs_of(folder: Path) -> tuple[bytes, dict]:
    """What a finished run wrote: metrics.jsonl, and results.json.

    Times are left out, and the commit of the checkout, since a soak may outlast a commit.
    """
    results = json.loads((folder / "results.json").read_text())
    del results["timing"], results["git_commit"]
    return (folder / "metrics.jsonl").read_bytes(), results


def differences(resumed: tuple[bytes, dict], whole: tuple[bytes, dict]) -> list[str]:
    """What differs between two runs, as `outputs_of`: files, and keys of results.json."""
    (rows, results), (all_rows, all_results) = resumed, whole
    keys = sorted(results.keys() | all_results.keys())
    files = [] if rows == all_rows else ["metrics.jsonl"]
    return files + [key for key in keys if results.get(key) != all_results.get(key)]


def play_with_faults(
    rng: np.random.Generator, runs: Runs, folder: Path, whole: tuple, seconds: float
) -> Outcome:
    """Plays a run with faults, resumes it, and compares it with an uninterrupted one.

    `whole` is the `outputs_of` the uninterrupted run, which took so many seconds.
    """
    first = rng.choice([*SIGNALS, FULL])  # so that there are files to damage
    faults = [str(fault) for fault in (first, *rng.choice(FAULTS, rng.integers(MOST_FAULTS)))]
    for fault in faults:
        if fault in (DAMAGED_RUN, DAMAGED_PROGRAM):
            _damage(rng, folder if fault == DAMAGED_RUN else runs.cache)
            continue
        verdict, why = _after(fault, *_with_fault(rng, fault, runs, folder, seconds))
        if verdict:
            return Outcome(faults, verdict, why)
    end = wait_for(start_run(runs, folder, *_resume(folder)))
    if end.status == 2 and len(end.lines) == 1:
        return Outcome(faults, REFUSED, end.lines[0])
    if end.status or end.lines:
        return Outcome(faults, WRONG, f"status {end.status}: {' '.join(end.lines)}")
    different = differences(outputs_of(folder), whole)
    if different:
        return Outcome(faults, WRONG, f"other {', '.join(different)}")
    return Outcome(faults, IDENTICAL, "")


def _resume(folder):
    """The flag that continues a run, if the folder has any file of one."""
    return ["--resume"] if any(folder.glob("*")) else []


def _with_fault(rng, fault, runs, folder, seconds):
    """How a process ends to which a fault happens, and whether there was a run before."""
    words = _resume(folder)
    process = start_run(runs, folder, *words)
    if fault == FULL:
        limit = int(np.exp(rng.uniform(*np.log(LIMITS))))
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    else:
        _wait_for_start(process)
        time.sleep(rng.uniform(0, seconds))
        process.send_signal(SIGNALS[fault])
    return wait_for(process), bool(words)


def _after(fault, end, resumed):
    """A verdict on a process to which a fault happened, and why; empty if the run can go on."""
    text = " ".join(end.lines)
    if end.status == 2 and len(end.lines) == 1 and resumed and "be written" not in text:
        return REFUSED, text  # a file had been damaged before
    statuses = {"SIGKILL": -signal.SIGKILL, FULL: 2}
    expected = (0, statuses.get(fault, 128 + SIGNALS.get(fault, 0)))
    if end.status in expected and len(end.lines) == (end.status > 0):
        return "", ""
    return WRONG, f"{fault}, status {end.status}: {text}"


def _wait_for_start(process):
    """Waits until the command catches SIGTERM, which it does before its imports."""
    status = Path(f"/proc/{process.pid}/status")
    caught = 0
    while process.poll() is None and not caught >> (signal.SIGTERM - 1) & 1:
        time.sleep(0.01)
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        caught = int(lines.get("SigCgt", "0"), 16)


def _damage(rng, folder):
    """Truncates or removes a file, or flips a bit of it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        return
    path = files[rng.integers(len(files))]
    content = bytearray(path.read_bytes())
    kind = rng.integers(3)
    if kind == 0 or not content:
        path.unlink()
    elif kind == 1:
        os.truncate(path, rng.integers(len(content)))
    else:
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(content)
