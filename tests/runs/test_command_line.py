"""``graphfl`` itself: its overview, the help of commands, its lists, completion in shells."""

import ast
import re
import shutil
import subprocess
import sys

import pytest
from rich.console import Console
from rich.progress import Progress

from graphfl_jax import __version__, configs
from graphfl_jax.__main__ import main, overview
from graphfl_jax.algorithms import ALGORITHMS
from graphfl_jax.commands import COMMANDS, CONFIGURED, OF_A_CHECKOUT, completion
from graphfl_jax.commands import list as lists
from graphfl_jax.commands.common import command_line
from graphfl_jax.commands.common.text_tables import TextTable, narrow, say
from graphfl_jax.configs.fields import PARTS_OF_USERS, all_fields
from graphfl_jax.data import DATASETS
from graphfl_jax.metrics import METRICS
from graphfl_jax.models import MODELS
from graphfl_jax.settings import perhaps
from tests.commands import ENVIRONMENT, ROOT, launched, scripted

PARTS = {
    *("attack.name", "availability.name", "clock.name", "compression.name", "data.graph"),
    *("data.partition", "defence.name", "privacy.name", "stragglers.name"),
    *(f"{side}_{what}" for side in ("client", "server") for what in ("optimizer", "schedule")),
}
WITH_FLAGS = [name for name in COMMANDS if name not in ("list", "completion")]
WITHOUT_CONFIGURATION = {"tables", "soak"}


def graphfl(monkeypatch, capsys, *words):
    """The exit status and the output of ``graphfl``, for what imports no command with flags."""
    monkeypatch.setattr(sys, "argv", ["graphfl", *words])
    status = 0
    try:
        main()
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


@pytest.fixture(autouse=True)
def no_handlers_of_signals(monkeypatch):
    monkeypatch.setattr("graphfl_jax.commands.common.interrupts.install", lambda: None)


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_the_overview_lists_every_command_with_its_first_line(monkeypatch, capsys, words):
    status, printed, errors = graphfl(monkeypatch, capsys, *words)
    assert (status, errors) == (0, "")
    rows = dict(re.findall(r"^  (\w+) {2,}(.+)$", printed, re.MULTILINE))
    assert set(rows) == set(COMMANDS)
    for name, line in rows.items():
        source = (ROOT / f"graphfl_jax/commands/{name}.py").read_text()
        described = ast.get_docstring(ast.parse(source)).splitlines()
        assert described[0] == line and line.endswith(".")
        assert re.match(rf"    .*\bgraphfl {name}\b", described[2])  # an example
    assert "\n  graphfl run fl60:ditto --config.seed=3" in printed


def test_the_overview_imports_no_command_and_no_jax():
    script = (
        "import sys, graphfl_jax.__main__ as own; own.overview(); print('jax' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert ended.stdout == "False\n", ended.stderr


def test_the_version_is_that_of_the_package(monkeypatch, capsys):
    assert graphfl(monkeypatch, capsys, "--version") == (0, f"graphfl {__version__}\n", "")


@pytest.mark.parametrize("words, near", [(("rnu",), "run"), (("swep", "tpt48"), "sweep")])
def test_a_misspelt_command_is_refused_with_its_near_names(monkeypatch, capsys, words, near):
    status, printed, errors = graphfl(monkeypatch, capsys, *words)
    assert (status, printed) == (2, "")
    assert errors == (
        f"error: command '{words[0]}' is unknown; perhaps {near} is meant; choose from "
        f"{', '.join(COMMANDS)}\n"
    )


@pytest.mark.parametrize("name", OF_A_CHECKOUT)
def test_a_command_of_a_checkout_is_refused_with_its_module(monkeypatch, capsys, name):
    status, printed, errors = graphfl(monkeypatch, capsys, name, "--cores=1")
    assert (status, printed) == (2, "")
    assert errors == (
        f"error: command '{name}' is python -m experiments.{name} in a checkout of the "
        f"repository; start it there\n"
    )


def test_near_names_are_at_most_three_and_none_if_nothing_is_near():
    assert perhaps("xyz", ["run", "list"]) == ""
    assert perhaps("fedagv", ["fedavg", "local"]) == "; perhaps fedavg is meant"
    several = perhaps("aaa", ["aaab", "aaac", "aaad", "aaae"])
    assert re.fullmatch(r"; perhaps aaa\w, aaa\w or aaa\w is meant", several)


# ---------------------------------------------------------------------------------------- help


def described_flags(source, printed):
    """The flags in the help of a command, which begins with the docstring of its source."""
    assert printed.startswith(ast.get_docstring(ast.parse(source.read_text())))
    flags = re.findall(r"^  --(\[no\])?(\w+):", printed, re.MULTILINE)
    return {f"--{flag}" + "=" * (not boolean) for boolean, flag in flags}


@pytest.mark.parametrize("name", WITH_FLAGS)
def test_help_has_the_description_and_exactly_the_flags_that_are_completed(tmp_path, name):
    """Completion reads the flags in the sources, and --help asks the imported command."""
    script = "from graphfl_jax.__main__ import main\nmain()\n"
    status, printed, errors = scripted(script, name, "--help", cwd=tmp_path)
    assert (status, errors) == (0, "")
    described = described_flags(ROOT / f"graphfl_jax/commands/{name}.py", printed)
    described -= {"--code="}  # a former name
    assert described == set(completion.flags_of(name)) and len(described) > 1
    assert ("Add a configuration" in printed) == (name in CONFIGURED)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", OF_A_CHECKOUT)
def test_help_of_commands_of_a_checkout_has_the_same_parts(tmp_path, name):
    status, printed, errors = launched(name, "--help", cwd=tmp_path)
    assert (status, errors) == (0, "")
    described = described_flags(ROOT / f"experiments/{name}.py", printed)
    assert {"--config=", "--cores=", "--debug", "--out="} <= described
    assert f"flags of {name}:" in printed and "flags that commands share:" in printed
    assert ("Add a configuration" in printed) == (name not in WITHOUT_CONFIGURATION)
    assert list(tmp_path.iterdir()) == []


def test_help_with_a_word_lists_the_fields_of_that_configuration(tmp_path):
    status, printed, errors = launched("run", "tpt48:ditto", "--help", cwd=tmp_path)
    assert (status, errors) == (0, "")
    assert re.search(r"\n hparams\.ditto_lambda +│ 0\.1 ", printed)


def test_a_value_of_a_flag_does_not_ask_for_help(tmp_path):
    ended = launched("run", "nowhere", "--out", "h", "--config.data.path", "help", cwd=tmp_path)
    assert ended.status == 2 and ended.stderr.startswith("error: config=nowhere is neither")
    assert "flags of run:" in launched("run", "help", cwd=tmp_path).stdout


@pytest.mark.parametrize("name", ["predict", "export"])
def test_commands_that_read_models_refuse_a_folder_of_data(tmp_path, name):
    script = "from graphfl_jax.__main__ import main\nmain()\n"
    words = ["run", "--client=a", "--data=a.npz"][: 3 if name == "predict" else 2]
    ended = scripted(script, name, *words, "--to=b", "--data_root=c", cwd=tmp_path)
    expected = "error: data_root=c is not read by this command; leave it out\n"
    assert (ended.status, ended.stderr) == (2, expected)


@pytest.mark.parametrize("error", ["MemoryError()", "RuntimeError('RESOURCE_EXHAUSTED: x')"])
def test_too_little_memory_ends_in_one_line(error, tmp_path):
    words = f"""
import sys
from experiments import theory
from graphfl_jax.commands.common.command_line import launch

def main():
    raise {error}

main.__module__, sys.argv = theory.__name__, ["theory"]
launch(main)
"""
    ended = scripted(words, cwd=tmp_path)
    assert (ended.status, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: the memory of this machine or its devices is too small; ")


# --------------------------------------------------------------------------------------- lists


def test_lists_have_every_name_and_no_empty_cell():
    names = {
        "methods": configs.methods(),
        "data": DATASETS,
        "models": MODELS,
        "metrics": METRICS,
        "parts": PARTS,
        "fields": dict(all_fields()),
    }
    assert set(lists.LISTS) == set(names) == set(completion.LISTS)
    for word, (heads, rows) in lists.LISTS.items():
        rows = list(rows())
        assert {row[0] for row in rows} == set(names[word])
        assert all(len(row) == len(heads) for row in rows)
        assert all(row[-1] for row in rows)


def test_parts_are_those_of_the_registries_to_which_users_add():
    listed = {(field, value) for field, value, _ in lists.parts()}
    values = {value for _, value in listed}
    assert all(
        set(registry) <= values
        for registry in PARTS_OF_USERS
        if registry not in (DATASETS, MODELS)
    )
    assert ("attack.name", "drift") in listed and ("data.partition", "dirichlet") in listed


def test_methods_have_the_text_of_their_file_and_variants_their_values():
    names = list(configs.methods())
    for name in names:
        text, what = lists.about(name), lists.description_of(name)
        assert re.search(r"\b(19|20)\d\d\b", text) or name == "local"
        assert text.startswith(f"{name}: {what}\n")
        assert what.endswith(".") and "  " not in what
        assert "Departures:" in text and "hparams.client_lr = " in text
    assert "https://arxiv.org/abs/1812.06127" in lists.about("fedprox")
    assert lists.description_of("panacea-mean").startswith("panacea with algorithm.layer=mean")
    assert lists.description_of("fedadam") == "FedAdam."
    assert len({*map(lists.description_of, names)}) == len(names)  # no two are equal
    assert set(ALGORITHMS) <= {name.replace("-", "_") for name in names}


def test_what_methods_need_is_marked():
    rows = {name: marks for name, *marks, _ in lists.methods()}
    assert rows["sfl"] == ["x", "", "", ""] and rows["fedavg"] == [""] * 4
    assert rows["fedproto"] == ["", "x", "x", ""] and rows["pfedgat"] == ["", "", "", "x"]


def test_a_method_of_the_list_is_shown_alone(monkeypatch, capsys):
    status, printed, errors = graphfl(monkeypatch, capsys, "list", "methods", "ditto")
    assert (status, errors) == (0, "")
    assert printed.strip() == lists.about("ditto").strip()
    status, printed, errors = graphfl(monkeypatch, capsys, "list", "metrics", "ditto")
    assert printed.startswith(lists.about("ditto")) and "macro_f1" in printed


@pytest.mark.parametrize("word", ["methods", "data", "metrics", "parts"])
def test_a_list_is_printed_with_its_names_in_the_first_column(monkeypatch, capsys, word):
    rows = list(lists.LISTS[word][1]())
    status, whole, errors = graphfl(monkeypatch, capsys, "list", word)
    assert (status, errors) == (0, "")
    assert all(row[-1] in whole for row in rows)  # a file has all of each line
    as_terminal(monkeypatch, 80)
    printed = graphfl(monkeypatch, capsys, "list", word)[1].splitlines()
    assert max(map(len, printed)) <= 80
    begun = [line.split()[0] for line in printed if line[:1].strip()]
    assert [name for name in begun if name in {row[0] for row in rows}] == [
        row[0] for row in rows
    ]
    cut = [line.removesuffix(" ...").split()[-1] for line in printed if line.endswith(" ...")]
    assert set(cut) <= {*whole.split()}  # between words
    if word == "methods":  # all are on one screen
        assert cut and len(begun) == len([line for line in printed if line])
    else:
        assert not cut and " ".join(whole.split()) == " ".join(" ".join(printed).split())


def as_terminal(monkeypatch, columns):
    """Lets Rich take the output for a terminal without colours."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": str(columns)}.items():
        monkeypatch.setenv(name, value)


def test_a_terminal_gets_no_broken_words_and_whole_commands(monkeypatch, capsys):
    words = "first " * 20
    search = "graphfl sweep tpt48 " + " ".join(f"--config.field{i}=1" for i in range(9))
    say(f"{words}; to search: {search}\n  name  {words}\n/{'a' * 90}")
    as_file = capsys.readouterr().out
    assert as_file == f"{words}; to search: {search}\n  name  {words}\n/{'a' * 90}\n"
    as_terminal(monkeypatch, 80)
    say(as_file.rstrip())
    lines = capsys.readouterr().out.splitlines()
    assert search in lines
    assert {*" ".join(lines).split()} == {*as_file.split()}
    assert all(len(line) <= 80 for line in lines if line not in (search, f"/{'a' * 90}"))
    assert any(line.startswith("        first") for line in lines)  # below the list's text


def test_the_seconds_of_compiling_run_until_the_first_round():
    now = [0.0]
    bar = Progress(get_time=lambda: now[0])
    task, rate = bar.add_task("ditto", total=40), command_line.Rate("rounds")
    for now[0] in (0.0, 12.0):
        shown = rate.render(bar.tasks[0]).plain
        assert shown == f"compiling and first rounds, {now[0]:.0f} s"
    bar.update(task, completed=20)  # no speed is known yet
    assert rate.render(bar.tasks[0]).plain == ""
    now[0] = 14.0
    bar.update(task, completed=24)
    assert rate.render(bar.tasks[0]).plain == "2 rounds/s"


def test_a_table_that_is_too_wide_follows_in_a_second_one(monkeypatch, capsys):
    heads = ["setting", *(f"head_{i}" for i in range(12))]
    cells = ["fedavg-finetune", *(f"{i}.123456" for i in range(12))]
    as_terminal(monkeypatch, 80)
    TextTable("a title", "a caption", [heads, cells]).show()
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    words = printed.split()
    assert words.count("fedavg-finetune") == words.count("setting") == 2
    assert all(words.count(word) == 1 for word in [*heads[1:], *cells[1:]])
    assert printed.count("a caption") == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["list", "metods"],
            "'metods' is unknown; perhaps methods, models or metrics is meant; choose ",
        ),
        (["completion", "tcsh"], "'tcsh' is unknown; choose from bash, zsh, fish"),
        (["completion"], "completion needs the name of one shell; choose from bash, zsh, fish"),
    ],
)
def test_unknown_words_are_refused_in_one_line(monkeypatch, capsys, words, message):
    status, printed, errors = graphfl(monkeypatch, capsys, *words)
    assert (status, printed) == (2, "")
    assert errors.startswith(f"error: {message}") and errors.count("\n") == 1


# ---------------------------------------------------------------------------------- completion

TYPED = {  # the words of a line as bash divides it: what completes the last one
    "graphfl|expo": ["export"],
    "graphfl|theo": [],  # a command of a checkout
    "graphfl|run|tp": ["tpt48"],
    "graphfl|run|tpt48|:|fedavg-": ["fedavg-finetune"],
    "graphfl|run|tpt48|:": [*configs.methods()],
    "graphfl|run|--res": ["--resume"],
    "graphfl|run|--config|=|metr": ["metr_la"],
    "graphfl|run|--config|=": [*configs.PRESETS],
    "graphfl|run|--out|=|tp": [],  # files
    "graphfl|sweep|--lau": ["--launcher="],
    "graphfl|run|--lau": [],
    "graphfl|report|": [],  # folders
    "graphfl|predict|tp": [],
    "graphfl|compare|runs/a|:|fed": [],
    "graphfl|sweep|tp": ["tpt48"],
    "graphfl|list|m": ["methods", "models", "metrics"],
    "graphfl|completion|f": ["fish"],
}


def test_bash_completes_what_the_script_says(tmp_path):
    (tmp_path / "script").write_text(completion.script("bash"))
    lines = [
        'source ./script; play() { COMPREPLY=(); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        ' _graphfl; echo "${COMPREPLY[*]}"; }'
    ]
    lines += [f"play {' '.join(map(repr, typed.split('|')))}" for typed in TYPED]
    ended = subprocess.run(
        ["bash", "-u", "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.stderr == ""
    completed = dict(zip(TYPED, map(str.split, ended.stdout.splitlines()), strict=True))
    assert completed == TYPED


@pytest.mark.skipif(not shutil.which("fish"), reason="the shell fish is not installed")
def test_fish_completes_what_the_script_says(tmp_path):
    (tmp_path / "script").write_text(completion.script("fish"))
    lines = ["graphfl expo", "graphfl theo", "graphfl run tpt48:fedavg-"]
    lines += ["graphfl sweep --lau", "graphfl report tp", "graphfl report a:fedavg-"]
    lines += ["graphfl sweep tp"]
    code = "source ./script; " + "; ".join(f"complete -C '{line}'" for line in lines)
    ended = subprocess.run(["fish", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ended.stdout.split() == ["export", "tpt48:fedavg-finetune", "--launcher=", "tpt48"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_have_all_words(shell):
    text = completion.script(shell)
    for word in (*COMMANDS, *configs.PRESETS, "--resume", "--seeds="):
        assert word in text
    assert not re.search(r"@[A-Z]+@", text)
    configured = [line for line in text.splitlines() if "tpt48" in line]
    assert configured and not [line for line in configured if "report" in line]
    assert not re.search(rf"\b(?:{'|'.join(OF_A_CHECKOUT)})\b", text)


def test_the_overview_is_as_wide_as_a_terminal():
    assert max(map(len, overview().splitlines())) <= 110


def test_control_characters_do_not_reach_the_terminal(capsys):
    """As in names of clients, methods and files that come from others."""
    from graphfl_jax.commands.common.help_text import complain

    name = "a\x1b]0;title\x07\x1b[31m\x9b2J\rö"
    shown = r"a\x1b]0;title\x07\x1b[31m\x9b2J\x0dö"
    rows = [[name, "P"], [name, name]]
    terminal = Console(force_terminal=True, width=300, color_system=None)
    terminal.print(narrow(name, rows, caption=name))
    TextTable(name, name, rows).show()
    complain(f"folders={name} is wrong")
    say(f"{name}: 3 runs")
    printed, complained = capsys.readouterr()
    assert printed.count(shown) == 11
    assert complained == f"error: folders={shown} is wrong\n".replace(r"\x0d", " ")
    assert not set(printed) & set("\x1b\x07\x9b\r")


def test_commands_print_by_one_function():
    """Which replaces control characters; the others print no text of files."""
    folder = ROOT / "graphfl_jax/commands"
    printing = {
        path.name
        for path in folder.rglob("*.py")
        if re.search(r"(?<![\w.])print\(", path.read_text())
    }
    assert printing == {"completion.py", "text_tables.py"}
