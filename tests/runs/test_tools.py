"""Tools that check the project: pyright on its types, and the site of its pages."""

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.commands import ROOT

pytestmark = pytest.mark.slow


def needs(package, extra):
    if not importlib.util.find_spec(package):
        pytest.skip(f"{package} of the extra {extra} is not installed")


def test_the_public_functions_have_consistent_types():
    needs("pyright", "dev")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 errors" in ended.stdout


def test_the_site_has_every_page_and_needs_no_other_host(tmp_path):
    needs("mkdocs", "docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    for page in pages:
        text = (tmp_path / page.with_suffix(".html")).read_text()
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=[\"']?([^\"'\s>]+)", text)
        loaded += re.findall(r"<link[^>]* href=[\"']?([^\"'\s>]+)[^>]*stylesheet", text)
        assert loaded and not [url for url in loaded if "//" in url], page
    api = (tmp_path / "reference/api.html").read_text()
    for name in ("run", "sweep", "from_arrays", "change"):
        assert re.search(rf'id="graphfl_jax[\w.]*\.{name}"', api), name
