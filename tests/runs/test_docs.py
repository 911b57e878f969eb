"""The documentation: commands parse, links exist, pages are up to date, words are plain."""

import ast
import importlib.util
import inspect
import json
import pydoc
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphfl_jax
from experiments.common import pages
from graphfl_jax.algorithms import ALGORITHMS, method_of
from graphfl_jax.commands import COMMANDS, OF_A_CHECKOUT
from graphfl_jax.configs import fields
from graphfl_jax.configs.reference import reference
from tests.federations import small_config, two_clusters

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "BUILD", "CONTRIBUTING")),
    *sorted(DOCS.rglob("*.md")),
]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
FOLDERS = ("graphfl_jax", "experiments", "configs", "tests")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
# Words that make prose hard to read.
FORBIDDEN = (
    r"told|tells?|telling|without a word|heed|besieged|bearable|newcomers?|settled?"
    r"|tally|tallies|sum_up|tamper|spoil|whoever|thrice|ledger"
)
WITHOUT_FLAGS = {"list", "completion"}
# Files that must name them.
EXEMPT = {
    ROOT / "graphfl_jax/commands/sweeping/tpe.py",  # methods of Optuna
    Path(__file__),
}


# "graphfl run tpt48", or what follows "python -m".
COMMAND = re.compile(
    r"(?:(?<=\bpython -m )(?:experiments|graphfl_jax)\.\S.*"
    rf"|(?<![\w`/])graphfl (?:{'|'.join(COMMANDS)}) \S.*)"
)


def blocks(text):
    """The contents of fenced code blocks, with their languages."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def without_blocks(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def spans(text):
    """The contents of code in a line, outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", without_blocks(text))


def commands(path):
    """The words of every command of a page, or of a file's docstring, its module first."""
    text = path.read_text()
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
        shell = re.findall(
            r"^    ((?:graphfl|python -m experiments\.).*(?:\n .*)*)", text, re.MULTILINE
        )
    else:
        shell = [content for language, content in blocks(text) if language in ("", "bash")]
    lines = "\n".join(shell).replace("\\\n", " ").splitlines() + spans(text)
    started = []
    for line in lines:
        for command in COMMAND.findall(line):
            words = shlex.split(command.rstrip("& "), comments=True)
            end = min([*(words.index(mark) for mark in ">|" if mark in words), len(words)])
            if words[0] == "graphfl":
                words[:2], end = [f"graphfl_jax.commands.{words[1]}"], end - 1
            started.append(words[:end])
    return started


# Imports what all commands share, and forks a child for each, as commands define flags of the
# same names. Prints a line of JSON with the errors of each command.
CHECKER = """
import contextlib, importlib, io, json, os, sys, warnings
import graphfl_jax.commands.common.command_line as command_line
import graphfl_jax.commands.sweeping.grid as grid
import graphfl_jax.commands.common.plots, graphfl_jax.commands.common.statistics
from absl import app

FLAGS = command_line.FLAGS


def check(module, words):
    command = command_line.name_of(module)
    points = [{}]
    if command == "sweep":
        words, module.AXES = grid.take_axes(words)
        points = one_by_one(grid.points_of, module.AXES)
    command_line.parse(module, [command, *words])
    if command in ("sweep", "robustness"):
        if command == "robustness":
            module.check_names("attacks", FLAGS.attacks, module.ATTACKS)
            module.shares("ratios", FLAGS.ratios)
            points = [
                {"algorithm": method, "attack.name": attack}
                for method in FLAGS.methods
                for attack in FLAGS.attacks
            ]
        unread = [set(grid.configure_point(point)[1]) for point in points]
        if set.intersection(*unread):
            raise ValueError(f"not read: {set.intersection(*unread)}")
    elif command == "tables":
        _, cells, _ = module.table_of_flags()
        for cell in cells:
            for method in FLAGS.methods:
                module.table_config(cell, method)
    elif command == "figures":
        module.check_names("methods", FLAGS.methods, module.methods())
    elif command == "theory":
        module.check_flags()
    if FLAGS.config is not None and command not in ("sweep", "robustness"):
        config = command_line.configuration()
        if command == "bench":
            module.names_of(FLAGS.methods)
            FLAGS.vary and module.configurations_of(config, FLAGS.vary)


def one_by_one(points_of, axes):
    # Every value of every axis, the others at their first values.
    points = []
    for axis in axes:
        grid = {a: v if a == axis else v[:1] for a, v in axes.items() if a.startswith("--grid")}
        points += points_of(grid, 0)
        if not axis.startswith("--grid"):
            points += points_of({axis: axes[axis]}, 1)
    return points


for name, all_words in json.load(sys.stdin).items():
    if os.fork():
        continue
    errors = []
    module = importlib.import_module(name)
    for words in all_words:
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                check(module, list(words))
        except SystemExit as stop:
            if stop.code:  # not after --help
                errors.append([words, output.getvalue()])
        except Exception as error:
            errors.append([words, f"{type(error).__name__}: {error}"])
        for name in FLAGS:
            FLAGS[name].unparse()
    os.write(1, (json.dumps(errors) + "\\n").encode())
    os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


def test_commands_of_all_pages_parse(tmp_path):
    by_module, mine = {}, tmp_path / "my.py"
    mine.write_text(blocks((ROOT / "docs/guide/own-parts.md").read_text())[0][1])
    of_page = dict(blocks((ROOT / "docs/guide/commands.md").read_text()))
    settings = tmp_path / "mine.toml"
    settings.write_text(of_page["toml"])
    files = [ROOT / f"experiments/{name}.py" for name in OF_A_CHECKOUT]
    files += (ROOT / "graphfl_jax/configs").glob("*.py")
    files += (ROOT / "graphfl_jax/commands").glob("*.py")
    for path in [*PAGES, *files]:
        for module, *words in commands(path):
            package, _, command = module.rpartition(".")
            if command in WITHOUT_FLAGS:
                continue
            assert importlib.util.find_spec(module), f"{path}: {module}"
            if module == "graphfl_jax.configs.reference":
                continue
            if package == "experiments" and command in COMMANDS:  # run and sweep
                module = f"graphfl_jax.commands.{command}"
            words = [re.sub(r"\bmy\.py", str(mine), word) for word in words]
            words = [word.replace("mine.toml", str(settings)) for word in words]
            if words not in by_module.setdefault(module, []) and words:
                by_module[module].append(words)
    assert set(by_module) == {  # every command is documented
        *(f"graphfl_jax.commands.{name}" for name in set(COMMANDS) - WITHOUT_FLAGS),
        *(f"experiments.{name}" for name in OF_A_CHECKOUT),
    }
    checked = subprocess.run(
        [sys.executable, "-c", CHECKER],
        input=json.dumps(by_module),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    results = [json.loads(line) for line in checked.stdout.splitlines()]
    assert len(results) == len(by_module), checked.stderr
    errors = [error for errors in results for error in errors]
    assert errors == [], "\n".join(map(str, errors))


def test_no_page_starts_a_command_of_a_checkout_as_one_of_the_package():
    wrong = re.compile(rf"\bgraphfl (?:{'|'.join(OF_A_CHECKOUT)})\b")
    for path in [*PAGES, *SOURCES, *NOTEBOOKS, ROOT / "Makefile"]:
        assert path == Path(__file__) or not wrong.search(path.read_text()), path


def test_targets_of_make_exist():
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in PAGES:
        text = path.read_text()
        for code in [*(content for _, content in blocks(text)), *spans(text)]:
            named = re.findall(r"^(?:\w+=\S+ )?make (?:\w+=\S+ )?([\w-]+)", code, re.MULTILINE)
            assert set(named) <= targets, path


def test_python_on_the_pages_compiles_and_names_what_exists():
    for path in PAGES:
        for language, content in blocks(path.read_text()):
            if language == "python":
                compile(content, str(path), "exec")
        for name in set(re.findall(r"\bgraphfl_jax((?:\.[a-z_]\w*)+)\(", path.read_text())):
            found = graphfl_jax
            for part in name.split(".")[1:]:
                found = getattr(found, part)  # AttributeError names what is missing


def test_the_python_page_lists_names_with_their_sources_and_first_lines():
    row = re.compile(r"^\| \[`([\w.]+)`\]\(\.\./\.\./(\S+)\) \| (.*) \|$", re.MULTILINE)
    page = (DOCS / "reference/api.md").read_text()
    listed = row.findall(page)
    assert len(listed) == page.count("| [`")
    for name, source, meaning in listed:
        described = pydoc.locate(name)
        assert inspect.getsourcefile(described) == str(ROOT / source), name
        assert pydoc.getdoc(described).split("\n")[0].replace("``", "`") == meaning, name


def test_relative_links_lead_to_files():
    for path in [*PAGES, ROOT / "CHANGELOG.md", *NOTEBOOKS]:
        text = without_blocks(path.read_text())
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith(("http://", "https://")):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            assert file.is_file(), f"{path}: {target}"
            assert not anchor or anchor in anchors(file), f"{path}: {target}"


def anchors(path):
    """The anchors of a page's headings."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_rows_of_tables_have_a_line_each():
    for path in PAGES:
        text = without_blocks(path.read_text())
        for line in text.splitlines():
            row = line.strip()
            assert "|---" not in row or set(row) <= set("|-: "), f"{path}: {line}"


def test_sources_named_on_the_pages_exist():
    for path in PAGES:
        for name in spans(path.read_text()):
            if re.fullmatch(rf"(?:{'|'.join(FOLDERS)}|docs)/[\w/.-]+\.(?:py|md)", name):
                assert (ROOT / name).is_file() or "NAME" in name, f"{path}: {name}"


def test_pages_and_sources_use_plain_words():
    words = re.compile(rf"\b(?:{FORBIDDEN})\b", re.IGNORECASE)
    found = []
    for path in [*PAGES, ROOT / "CHANGELOG.md", *SOURCES, *NOTEBOOKS]:
        if path in EXEMPT:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if word := words.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {word[0]}")
    assert found == []


def test_settings_page_has_only_what_its_generator_prints():
    """`make docs` renews it. A new part need not, so the lists of names may lack some."""

    def without_names(page):
        lines = []
        for line in page.splitlines():
            field, *cells = line.strip("|").split(" | ")
            values = [] if ".name`" in field else cells[-2:-1]
            lines.append((field, *cells[-4:-2], *values, *cells[-1:]))
        return set(lines)

    assert without_names((DOCS / "guide/settings.md").read_text()) <= without_names(reference())


def test_the_reference_has_every_field():
    named = set(re.findall(r"^\| `([\w.]+)` \|", reference(), re.MULTILINE))
    assert named == {name for name, _ in fields.all_fields()}


def test_the_citation_and_the_package_have_the_same_version():
    assert f"\nversion: {graphfl_jax.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 170


def rows(path, columns):
    """Cells of all rows of a page's tables that have this number of columns."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == columns]


def test_scores_in_the_readme_are_those_of_the_results():
    """Columns of both tables of results: data, method, P, ..., G, ..."""
    results = {}
    for row in rows(DOCS / "results/panacea.md", 13):
        results.setdefault((row[0], row[1]), []).append((row[2], row[7]))  # P and G
    lines = [row for row in rows(ROOT / "README.md", 6) if re.match(r"\d", row[1])]
    assert len(lines) == 7
    for method, *scores in lines:
        (fl60, *fl60_new), (tpt48, *tpt48_new) = (
            results[data, method] for data in ("fl60", "tpt48")
        )
        new = [own[0][0] if own else "" for own in (fl60_new, tpt48_new)]
        assert scores == [fl60[0], new[0], tpt48[1], tpt48[0], new[1]], method


# ------------------------------------------------------------------------- blocks of the pages


def test_blocks_of_the_results_begin_and_end_once_and_have_their_command():
    for path in sorted((DOCS / "results").glob("*.md")):
        text = path.read_text()
        names = re.findall(r"^<!-- begin (\S+) -->$", text, re.MULTILINE)
        assert names == re.findall(r"^<!-- end (\S+) -->$", text, re.MULTILINE)
        assert names and len(set(names)) == len(names)
        for name in names:
            begin, end = pages.markers(name)
            block = text.split(begin)[1].split(end)[0]
            made = re.match(r"\nMade by `(?:python -m experiments\.|graphfl )", block)
            assert made, f"{path}: {name}"
        outside = re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", "", text, flags=re.DOTALL)
        assert not re.search(r"^\|", outside, re.MULTILINE), f"{path}: a table outside"


def test_update_replaces_one_block_and_keeps_the_rest(tmp_path):
    page = tmp_path / "page.md"
    text = "a\n<!-- begin one -->\nold\n<!-- end one -->\nb\n"
    text += "<!-- begin two -->\n<!-- end two -->\n"
    page.write_text(text)
    pages.update(page, "one", "new\n\n| c |\n")
    assert page.read_text() == text.replace("old", "new\n\n| c |")
    pages.update(page, "two", "x")
    assert "<!-- begin two -->\nx\n<!-- end two -->\n" in page.read_text()


def test_update_reads_utf_8_in_every_locale(tmp_path, monkeypatch):
    page, text = tmp_path / "page.md", "± ü\n<!-- begin one -->\nold\n<!-- end one -->\n"
    page.write_bytes(text.encode("utf-8"))

    def read_text(path, encoding="latin1"):
        return path.read_bytes().decode(encoding)

    monkeypatch.setattr(Path, "read_text", read_text)
    pages.update(page, "one", "new")
    assert page.read_bytes().decode("utf-8") == text.replace("old", "new")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "nothing\n",
        "<!-- begin one -->\n",
        "<!-- end one -->\n<!-- begin one -->\n",
        "<!-- begin one -->\n<!-- end one -->\n" * 2,
    ],
)
def test_a_page_without_the_block_is_refused_in_one_line_and_kept(tmp_path, text):
    page = tmp_path / "page.md"
    if text is not None:
        page.write_text(text)
    with pytest.raises(ValueError, match=r"^page=.*<!-- begin one -->.*$"):
        pages.update(page, "one", "new")
    assert text is None or page.read_text() == text


# ---------------------------------------------------------------------- the developers' pages


@pytest.fixture
def skeleton(monkeypatch):
    """The factory of docs/developer/skeleton.py, registered as a new file would be."""
    spec = importlib.util.spec_from_file_location("skeleton", DOCS / "developer/skeleton.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(ALGORITHMS, "skeleton", method_of(module.skeleton))
    return module


@pytest.mark.slow
def test_the_skeleton_is_a_method_with_its_settings(skeleton):
    assert "\nDepartures:" in skeleton.__doc__
    config = small_config("skeleton", rounds=2, eval_every=2, algorithm__passes=2)
    assert config.hparams.server_share == 1.0
    result = graphfl_jax.run(config, two_clusters())
    assert not result.results["diverged"]
    assert result.results["hparams"] == {"client_lr": np.float32(0.1), "server_share": 1.0}
    with pytest.raises(ValueError, match=r"hparams.server_share=2.0 is not in \[0, 1\]"):
        small_config("skeleton", hparams__server_share=2.0)


def test_the_page_on_methods_shows_fedprox_as_it_is():
    page = (DOCS / "developer/add-a-method.md").read_text()
    diffs = [content for language, content in blocks(page) if language == "diff"]
    shown = "\n".join(line[1:] for line in diffs[0].splitlines() if line.startswith("+"))
    source = (ROOT / "graphfl_jax/algorithms/fedprox.py").read_text()
    assert source.endswith(shown + "\n")
    table = (ROOT / "graphfl_jax/algorithms/__init__.py").read_text()
    for line in diffs[1].splitlines():
        assert line[1:] in table or line == " ...", line
