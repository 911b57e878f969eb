"""The notebooks of examples/: they execute, and are stored with clean outputs."""

import importlib.util
import json
import re

import pytest

from tests.commands import ENVIRONMENT, ROOT, scripted

ROUND = ROOT / "examples/round_by_hand.py"
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
LARGEST = 200_000  # bytes
# The start of a path from the root, such as /home/me; not of a/tmp or https://tmp.
ABSOLUTE = re.compile(
    r"(?<![\w./])/(?:Users|etc|home|mnt|opt|private|root|srv|tmp|usr|var|work)\b|\b[A-Z]:\\"
)
INSTALLED = all(map(importlib.util.find_spec, ("nbclient", "nbformat", "ipykernel")))

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def outputs_of(notebook):
    cells = notebook["cells"]
    return [output for cell in cells for output in cell.get("outputs", [])]


def kinds_of(notebook):
    """The kinds of each cell's outputs. A stream may come in several pieces."""
    return [
        {(output["output_type"], output.get("name")) for output in cell.get("outputs", [])}
        for cell in notebook["cells"]
    ]


def texts_of(notebook):
    """The texts of a reader: of cells and outputs, but not the bytes of images."""
    for part in [*notebook["cells"], *outputs_of(notebook)]:
        shown = [part.get("source", ""), part.get("text", "")]
        shown += [v for kind, v in part.get("data", {}).items() if kind.startswith("text/")]
        yield from ("".join(text) for text in shown)


def test_there_are_three_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["first_run", "own_data", "own_method"]


@each_notebook
def test_a_stored_notebook_was_executed_in_order_and_is_clean(path):
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {output["output_type"] for output in outputs_of(notebook)}
    assert kinds == {"display_data", "execute_result", "stream"}  # so no errors
    streams = {output.get("name", "stdout") for output in outputs_of(notebook)}
    assert streams == {"stdout"}
    assert any("image/png" in output.get("data", {}) for output in outputs_of(notebook))
    assert [text for text in texts_of(notebook) if ABSOLUTE.search(text)] == []
    assert notebook["metadata"] == METADATA
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    assert path.stat().st_size < LARGEST


@pytest.mark.parametrize("text", ["in /tmp/a", "'/home/me'", "file:/root", r"C:\me"])
def test_absolute_paths_are_found(text):
    assert ABSOLUTE.search(text)
    assert not ABSOLUTE.search("runs/tmp https://home/tmp and/or a/work")


@pytest.mark.skipif(not INSTALLED, reason="nbclient of the extra dev is not installed")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=pytest.mark.slow if path.stem == "first_run" else pytest.mark.release,
        )
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_executes(path, tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    # One device, as without these tests.
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", ENVIRONMENT["XLA_FLAGS"])
    own = ENVIRONMENT | {"XLA_FLAGS": flags}
    client = NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=own | {"IPYTHONDIR": str(tmp_path / ".ipython")})  # raises on errors
    assert kinds_of(notebook) == kinds_of(json.loads(path.read_text()))


@pytest.mark.slow
def test_the_round_by_hand_is_short_and_learns(tmp_path):
    """G is that of a shared model of two kinds of clients, and L that of a client's own."""
    assert len(ROUND.read_text().splitlines()) <= 60
    status, printed, errors = scripted(ROUND.read_text(), cwd=tmp_path)
    assert (status, errors) == (0, "")
    scores = {line[0]: [*map(float, line[3:-1].split())] for line in printed.splitlines()}
    assert max(scores["G"]) < 0.7 < 0.9 < min(scores["L"]), printed
