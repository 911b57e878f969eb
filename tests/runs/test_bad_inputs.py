"""Every row of `bad_inputs` ends with status 2 and one line, and nothing is written."""

import re
import subprocess

import pytest

from graphfl_jax.commands import OF_A_CHECKOUT
from tests.commands import ENVIRONMENT, ROOT, Ended, command, launched, scripted
from tests.runs.bad_inputs import FILES, rows

ROWS = rows()
GRAPHFL = "from graphfl_jax.__main__ import main\nmain()\n"


def contents(folder):
    return {
        str(path.relative_to(folder)): path.is_file() and path.read_bytes()
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with `FILES`, and its contents."""
    folder = tmp_path_factory.mktemp("workplace")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text, "latin1")
    return folder, contents(folder)


def started(row, folder):
    """How a command ends; with an environment, in a process of its own."""
    if row.command not in ("run", "sweep", *OF_A_CHECKOUT):
        return scripted(GRAPHFL, row.command, *row.words, cwd=folder)
    if not row.environment:
        return launched(row.command, *row.words, cwd=folder)
    ended = subprocess.run(
        command(row.command, *row.words),
        cwd=folder,
        env=ENVIRONMENT | row.environment,
        capture_output=True,
        timeout=300,
    )
    return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def test_the_table_is_long_enough():
    assert len(ROWS) >= 150


def first_of_each_field():
    """The rows, of which all but the first of each field are slow."""
    seen = set()
    for name, row in ROWS.items():
        field = re.split("[= ]", row.start)[0]
        yield pytest.param(name, marks=[pytest.mark.slow] * (field in seen))
        seen.add(field)


@pytest.mark.parametrize("name", list(first_of_each_field()))
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(workplace, name):
    folder, before = workplace
    row = ROWS[name]
    status, printed, errors = started(row, folder)
    assert (status, printed) == (2, ""), errors
    (line,) = re.fullmatch(r"(?:warning: .*\n)*error: (.*)\n", errors).groups()
    stated = line.replace("'", "").replace(f"{ROOT}/", "")
    assert stated.startswith(row.start) and re.search(r"; \S", stated), errors
    assert contents(folder) == before
