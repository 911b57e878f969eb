"""Strictness for all tests: no silent casts, no silent broadcasts, eight simulated devices."""

import os
import tempfile
from pathlib import Path

# Before JAX starts, for this process and for those that tests start. Tests compile far more
# than they compute, so that the compiler's own optimisations would cost more than they give.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)
os.environ["JAX_PLATFORMS"] = "cpu"
# What entries keep in the user's cache folder, tests' entries keep among themselves.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="graphfl_jax-tests-")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data files."""
    root = os.environ.get("GRAPHFL_DATA")
    if not root:
        pytest.skip("GRAPHFL_DATA is not set: real data files are not tested")
    return Path(root)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """No test downloads anything."""

    def refuse(*args, **kwargs):
        raise OSError("tests have no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
