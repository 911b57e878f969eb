"""The structure of the code: who imports whom, and how long files are."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from graphfl_jax import commands

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "graphfl_jax"
COMMANDS = PACKAGE / "commands"
EXPERIMENTS = REPOSITORY / "experiments"
# A layer imports layers above it in this list, and itself.
LAYERS = [
    {"architecture", "examples", "declarations", "version"},
    {"core", "settings"},
    {"tree", "parts", "memory", "devices", "draws", "intervals", "metrics"},
    {"optimizers"},
    {"trainers"},
    {"rounds", "models", "data"},
    {"evaluation", "hypernets", "wire"},
    {"program", "streamed", "algorithms"},
    {"configs"},
    {"fit"},
    {"build"},
    {"register"},
    {"runs"},
    {"commands", "testing"},
    {"reading"},
]
# The program knows neither methods nor data sets.
COMPUTATION = {
    "architecture",
    "examples",
    "core",
    "tree",
    "devices",
    "draws",
    "rounds",
    "evaluation",
    "program",
    "streamed",
}
# Packages of commands, with the packages of their parts.
PARTS = {
    COMMANDS: {"reporting", "sweeping"},
    EXPERIMENTS: {"paper", "benchmarks", "linear_theory"},
}
# Modules of experiments that start commands of the package.
STARTERS = {"run", "sweep"}
# Packages whose imported name is another one.
IMPORTED = {"absl-py": "absl", "orbax-checkpoint": "orbax", "pillow": "PIL"}
IMPORTED |= {"pyyaml": "yaml", "dp-accounting": "dp_accounting"}


def imported(path, package):
    """The modules of a package that a file names, by the first word below the package."""
    words = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.module == package:
            words |= {alias.name for alias in node.names}
        elif (node.module or "").startswith(f"{package}."):
            words.add(node.module.removeprefix(f"{package}.").split(".")[0])
    return words


def test_imports_of_the_package_point_down():
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if name in ("__init__", "__main__"):
            continue
        for other in imported(path, "graphfl_jax"):
            assert (
                level[other] < level[name] or other == name or ({other, name} <= COMPUTATION)
            ), f"{path} imports {other}"
            assert name not in COMPUTATION or other in COMPUTATION, f"{path} imports {other}"


@pytest.mark.parametrize(
    "folder, package", [(COMMANDS, "graphfl_jax.commands"), (EXPERIMENTS, "experiments")]
)
def test_imports_of_commands_point_down(folder, package):
    """From the commands to their parts, and from these to what all share."""
    for path in folder.rglob("*.py"):
        part = path.relative_to(folder).parts[0]
        if part == "common":
            allowed = {"common"}
        elif part in PARTS[folder]:
            allowed = {"common", part}
        else:
            allowed = {"common"} | PARTS[folder]
        words = imported(path, package)
        assert words <= allowed, f"{path} imports {words - allowed}"


def test_the_package_does_not_need_the_checkout():
    for path in PACKAGE.rglob("*.py"):
        names = named_packages(ast.walk(ast.parse(path.read_text())))
        assert not names & {"experiments", "configs", "tests"}, path
    for path in EXPERIMENTS.rglob("*.py"):
        assert "tests" not in named_packages(ast.walk(ast.parse(path.read_text()))), path


def test_experiments_use_commands_of_the_package_only_to_start_them():
    for path in EXPERIMENTS.rglob("*.py"):
        words = imported(path, "graphfl_jax.commands") & {*commands.COMMANDS}
        assert words <= ({path.stem} & STARTERS), f"{path} imports {words}"


def declared(lines):
    """The names that declared packages are imported by."""
    names = (re.split(r"[\[<>=~]", line)[0] for line in lines if not line.startswith("#"))
    return {IMPORTED.get(name, name) for name in names}


def named_packages(nodes):
    """The packages that imports name."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    return names


def foreign(nodes):
    """The packages that imports name, without the standard library and this package."""
    return named_packages(nodes) - sys.stdlib_module_names - {"graphfl_jax"}


def test_imported_packages_are_declared():
    """Required ones; and those of an extra, which may be missing, where they are needed."""
    required = declared((REPOSITORY / "requirements.txt").read_text().splitlines())
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    users = [line for name in extras.keys() - {"dev", "docs"} for line in extras[name]]
    for path in PACKAGE.rglob("*.py"):
        module = ast.parse(path.read_text())
        assert foreign(ast.walk(module)) <= required | declared(users), path
        # These modules are imported only if PyTorch is there.
        rest = {"torch"} if path.name.startswith("torch_") else set()
        assert foreign(module.body) <= required | rest, f"{path} imports an extra at once"


@pytest.mark.parametrize(
    "folder, names",
    [(COMMANDS, {*commands.COMMANDS}), (EXPERIMENTS, {*commands.OF_A_CHECKOUT} | STARTERS)],
)
def test_commands_are_the_only_modules_beside_their_parts(folder, names):
    assert {path.stem for path in folder.glob("[!_]*.py")} == names
    packages = {path.name for path in folder.iterdir() if (path / "__init__.py").exists()}
    assert packages == PARTS[folder] | {"common"}


def test_algorithms_use_each_other_only_by_public_names():
    for path in (PACKAGE / "algorithms").glob("[!_]*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            module = getattr(node, "module", None) or ""
            if module.startswith("graphfl_jax.algorithms."):
                private = [alias.name for alias in node.names if alias.name.startswith("_")]
                assert not private, f"{path.name} imports {private}"
