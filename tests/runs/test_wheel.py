"""The wheel: what is in it, and a run with nothing but it, beside folders of the same names."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.commands import ROOT

pytestmark = pytest.mark.slow
SOURCES = ("graphfl_jax", "pyproject.toml", "requirements.txt", "README.md", "LICENSE")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of a copy of the sources: a build leaves files beside them."""
    if not importlib.util.find_spec("setuptools") or not importlib.util.find_spec("pip"):
        pytest.skip("pip and setuptools of the extra dev are not installed")
    copy, folder = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in (*SOURCES, "experiments", "configs", "tests"):
        path = ROOT / name
        if path.is_dir():
            own = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, copy / name, ignore=own)
        else:
            shutil.copy(path, copy / name)
    words = ["wheel", ".", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}"]
    subprocess.run([*PIP, *words], cwd=copy, check=True, capture_output=True, timeout=300)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "graphfl_jax").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    info = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - info == sources
    assert {"graphfl_jax/py.typed", "graphfl_jax/configs/tpt48.py"} <= sources
    assert {"METADATA", "entry_points.txt"} <= {Path(name).name for name in info}


def test_the_extras_are_declared(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = archive.read(name).decode()
    extras = {line.split()[1] for line in metadata.splitlines() if "Provides-Extra:" in line}
    assert extras == {
        *("cuda", "cuda12", "cuda13", "dev", "docs", "onnx", "optuna", "pandas"),
        *("parquet", "privacy", "ray", "tensorboard", "torch", "wandb"),
    }
    assert "\nRequires-Python: >=3.11\n" in metadata
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if not line.startswith("#"):
            assert f"Requires-Dist: {line.split('>')[0].split('=')[0]}" in metadata


def test_the_installed_command_runs_beside_folders_of_the_same_names(wheel, tmp_path):
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    place = tmp_path / "venv"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    words = ["install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(
        [*PIP[:3], f"--python={python}", *PIP[3:], *words],
        env=environment,
        check=True,
        capture_output=True,
    )
    own = sysconfig.get_path("purelib", vars={"base": str(place)})
    # The packages that it requires are those of this Python; its editable install is not.
    (Path(own) / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")

    work = tmp_path / "work"
    for folder in ("configs", "experiments"):
        (work / folder).mkdir(parents=True)
        (work / folder / "__init__.py").write_text("raise ImportError('another package')\n")
    (work / "configs/tpt48.py").write_text("raise ImportError('another file')\n")
    command = [place / "bin" / "graphfl", "run", "tpt48", "--config.data.source=simulated"]
    ended = subprocess.run(
        [*command, "--config.rounds=2", "--config.local_steps=2", "--out=out"],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stderr
    results = json.loads((work / "out/results.json").read_text())
    assert (results["variant"], results["rounds"]) == ("panacea", 2)
    assert results["git_commit"] is None
    shown = subprocess.run(
        [place / "bin" / "graphfl"], cwd=work, env=environment, capture_output=True, text=True
    )
    assert shown.returncode == 0 and "\n  run " in shown.stdout
    found = subprocess.run(
        [python, "-c", "import graphfl_jax; print(graphfl_jax.__file__)"],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.stdout.startswith(str(place))
