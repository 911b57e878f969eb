"""Strictness for all tests: no silent casts, no silent broadcasts, eight simulated devices."""

import atexit
import collections
import gc
import itertools
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

# Set before JAX starts, for this process and for those that tests start. Tests compile far more
# than they compute, so the compiler's own optimisations would cost more time than they save.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_cpu_parallel_codegen_split_count=1",
        # The older code generator compiles three times as fast. Later releases lack it.
        *["--xla_cpu_use_fusion_emitters=false"] * version("jaxlib").startswith("0.10."),
    ]
)
os.environ["JAX_PLATFORMS"] = "cpu"
# Compiled programs are shared by all workers, by the processes that tests start, and by the
# next test run.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "tests")
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# The user's cache folder of the commands that tests start.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="graphfl_jax-tests-")

import jax
import pytest

from graphfl_jax.configs.values import structure
from graphfl_jax.data import files
from graphfl_jax.runs import executables, single

atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
# Only the user may be able to write into a folder of compiled programs.
Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).mkdir(mode=0o700, parents=True, exist_ok=True)
# Tracing makes many objects that live long: the collector looks at them less often.
gc.set_threshold(100_000)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data files."""
    root = os.environ.get("GRAPHFL_DATA")
    if not root:
        pytest.skip("GRAPHFL_DATA is not set: real data files are not tested")
    return Path(root)


@pytest.fixture
def default_root(monkeypatch, tmp_path) -> Path:
    """The data folder of a user who has chosen none, without files."""
    monkeypatch.delenv("GRAPHFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return files.default_root()


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """No test downloads anything."""

    def refuse(*args, **kwargs):
        raise OSError("tests have no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


PROGRAMS = {}
TESTS = itertools.count(1)
# Groups of few tests that take long. For others, the number of tests says enough.
LONG = {
    *("test_robustness", "test_distributed", "test_examples", "test_wheel", "test_tools"),
    *("test_sweep", "test_resume", "test_traffic", "test_shards", "test_tpe"),
}


@pytest.fixture
def shared_programs(monkeypatch):
    """Runs in this process share the program that they compile, if only its inputs differ."""
    make = single.program_of

    def program_of(experiment, config, mesh=None, **models):
        key = (
            structure(config, without=executables.OUTSIDE),
            experiment.federation.sha256,
            mesh,
            *models.values(),
        )
        if key not in PROGRAMS:
            PROGRAMS[key] = make(experiment, config, mesh, **models)
        return PROGRAMS[key]

    monkeypatch.setattr(single, "program_of", program_of)


@pytest.fixture(autouse=True)
def free_memory_maps():
    """Forgets compiled programs before this process has too many memory maps.

    Every program holds dozens. Linux gives a process 65,530 of them by default; beyond that,
    XLA ends with a segmentation fault. To count them takes time, so only every tenth test does.
    """
    yield
    maps = Path("/proc/self/maps")
    if next(TESTS) % 10 or not maps.exists():
        return
    if len(maps.read_bytes().splitlines()) > 30_000:
        PROGRAMS.clear()
        jax.clear_caches()
        gc.collect()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Tests of one file run in one process, unless they name another group.

    The longest groups come first, so that no process waits for one of them at the end.
    """
    sizes = collections.Counter()
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        sizes[_group(item)] += 1
    items.sort(key=lambda item: (_group(item) not in LONG, -sizes[_group(item)], _group(item)))


def _group(item):
    return item.get_closest_marker("xdist_group").args[0]
