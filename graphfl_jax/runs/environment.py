"""Where a run is made: device, versions of packages, and commit."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import jax

from graphfl_jax.version import __version__

PACKAGES = ("jax", "jaxlib", "flax", "optax", "jraph", "orbax-checkpoint", "numpy")


def versions() -> dict[str, str]:
    """The versions of this package, of Python, and of the packages that compute."""
    packages = {"graphfl_jax": __version__, "python": platform.python_version()}
    return packages | {package: importlib.metadata.version(package) for package in PACKAGES}


def environment() -> dict:
    """Where a run was made: device, versions, and the commit of this checkout if it is one."""
    devices, processes = jax.devices(), jax.process_count()
    kind = devices[0].device_kind
    if devices[0].platform == "cpu":
        kind += f" ({processor()})"  # other processors round in another way
    where = f" of {processes} processes" if processes > 1 else ""
    return {
        "device": f"{len(devices)} x {devices[0].platform}: {kind}{where}",
        "versions": versions(),
        "git_commit": _git_commit(),
    }


def processor() -> str:
    """The name of the CPU."""
    names = (
        line.partition(":")[2].strip()
        for line in processor_lines()
        if line.startswith("model name")
    )
    return next(names, "") or platform.processor() or platform.machine()


def processor_lines() -> list[str]:
    """What Linux says of the first CPU: lines "name : value"; elsewhere, none."""
    try:
        return Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:  # not Linux, or not readable
        return []


def _git_commit() -> str | None:
    """The checked-out commit, with "+changes" where tracked files differ from it."""
    here = Path(__file__).resolve().parent

    def git(*words):
        command = ["git", "-C", str(here), *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):
            return None  # installed inside somebody else's checkout
        return git("rev-parse", "HEAD") + ("+changes" if git("diff", "HEAD", "--stat") else "")
    except (OSError, subprocess.CalledProcessError):
        return None  # no git here, or no checkout
