"""The rule by which results are used again, and the stores that follow it."""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import graphfl_jax
from experiments.paper import cached_runs as cache
from experiments.paper.cached_runs import Cache, cached_runs
from graphfl_jax.algorithms import ALGORITHMS, Method
from graphfl_jax.commands.sweeping.leaderboard import leaderboards, markdown
from graphfl_jax.commands.sweeping.trial_log import TrialLog
from graphfl_jax.configs import base, change, fl60
from graphfl_jax.configs.values import adjust
from graphfl_jax.data import from_arrays
from graphfl_jax.runs import identity, store
from graphfl_jax.runs.batch import Outcome, current_fields_text, run_trials
from graphfl_jax.runs.environment import environment
from graphfl_jax.runs.store import (
    RUN,
    SWEEP,
    TABLES,
    NewFolders,
    check_folder,
    content_of,
    with_digest,
)
from graphfl_jax.runs.sweep import groups_of
from tests.commands import ROOT, launched, launched_small, shrunk, tiny

pytestmark = pytest.mark.usefixtures("shared_programs")
SMALL = {
    "rounds": 4,
    "eval_every": 2,
    "checkpoint_every": 2,
    "cohort_size": 2,
    "local_steps": 1,
    "batch_size": 2,
    "model.hidden": (2,),
}
CONFIG = change(base.configure("fedavg", "custom"), SMALL)
RNG = np.random.default_rng(0)
X, Y, CLIENT = RNG.normal(size=(60, 2)), RNG.integers(0, 2, 60), np.repeat(range(4), 15)


class Cut(BaseException):
    """Ends a run in these tests; nothing catches it."""


def data(**settings):
    return from_arrays(X, Y, CLIENT, **settings)


def start(out, *, config=CONFIG, federation=None, cut_at=None, **options):
    """Starts or resumes a run, and cuts it after a round."""

    def report(row):
        if row["round"] == cut_at:
            raise Cut

    with contextlib.suppress(Cut):
        federation = federation or data()
        return graphfl_jax.run(config, federation, out=out, report=report, **options)


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def read(out, name):
    return json.loads((out / name).read_text())


def edit_package(monkeypatch):
    """As if a file of the package had been edited before this process started."""
    monkeypatch.setattr(identity, "SOURCE", "e" * 64)


def refused(out, message, **options):
    """Checks that a run is not resumed, and that its folder stays as it is."""
    before = contents(out)
    with pytest.raises(ValueError, match=message) as caught:
        start(out, resume=True, **options)
    assert "\n" not in str(caught.value)
    assert contents(out) == before


@pytest.fixture(scope="module")
def cut_once(tmp_path_factory):
    """The folder of a run that was cut after round 2 of 4."""
    out = tmp_path_factory.mktemp("cut")
    start(out, cut_at=2)
    return out


@pytest.fixture
def cut(cut_once, tmp_path):
    shutil.copytree(cut_once, tmp_path / "cut")
    return tmp_path / "cut"


def own_method(path, factor):
    """A function that a file defines, as a user would import it."""
    path.write_text(f"def mine(model):\n    return {factor}\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.mine


# ------------------------------------------------------------------------------------ the rule


DIGESTS = {
    "config": "c",
    "data": "d",
    "arrays": "a",
    "source": "s",
    "config_file": "f",
    "callables": {"mine.py": "1"},
}


@pytest.mark.parametrize(
    "change, why",
    [
        ({}, "$"),
        ({"config_file": None}, "$"),  # the fields come from config.json or from Python
        (
            {"data": "d" * 20},
            r"the data differ .* \(sha256 d{12}, not d\); choose another --out$",
        ),
        ({"arrays": "b"}, "the data are split in another way .*; give the same split, or"),
        (
            {"weights": "w"},
            r"the content of model.weights differs .* \(sha256 w, not none\); put",
        ),
        (
            {"source": "e" * 64},
            r"the code changed .* graphfl_jax \(sha256 eeeeeeeeeeee, not s\);",
        ),
        ({"config_file": "g"}, r"the code .*: the configuration file \(sha256 g, not f\); go "),
        (
            {"callables": {"mine.py": "2"}},
            r"the code changed .*: mine.py \(sha256 2, not 1\); go",
        ),
        (
            {"callables": {}},
            r"the code changed .*made: mine.py \(sha256 none, not 1\); go back",
        ),
        (
            {"config_file": None, "callables": {}},
            "the results were made with functions of mine.py, .*; add the --config of the run$",
        ),
    ],
)
def test_other_data_are_refused_and_other_code_is_unless_accepted(change, why):
    record = {"identity": DIGESTS, "accepted_changes": []}
    now = DIGESTS | change
    refused = store.refusal(record, now, accept_changes=False)
    assert re.match(why, refused)
    of_code = refused.startswith(("the code", "the results"))
    assert store.refusal(record, now, accept_changes=True) == ("" if of_code else refused)
    if of_code:
        assert store.accept(record, now) and not store.accept(record, now)
        assert record == {"identity": DIGESTS, "accepted_changes": [now]}
        assert not store.refusal(record, now, accept_changes=False)
        assert not store.refusal(record, DIGESTS, accept_changes=False)


# -------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("split", [{"seed": 1}, {"test_fraction": 0.3}])
def test_another_split_of_the_same_data_is_refused(cut, split):
    refused(cut, "the data are split in another way", federation=data(**split))
    refused(cut, "split in another way", federation=data(**split), accept_changes=True)
    assert start(cut, resume=True).results["scores"]


def test_an_edited_package_is_refused_or_accepted_and_recorded(cut, monkeypatch):
    before = read(cut, "identity.json")["identity"]
    edit_package(monkeypatch)
    refused(cut, r"the code changed .* graphfl_jax \(sha256 eeeeeeeeeeee, not .*--accept_ch")
    with pytest.warns(RuntimeWarning, match="rounds of other code, which was accepted: graph"):
        start(cut, resume=True, accept_changes=True, cut_at=4)
    now = before | {"source": "e" * 64}
    expected = {"identity": now, "accepted_changes": [before]}
    assert read(cut, "identity.json") == expected
    results = start(cut, resume=True).results  # it has been accepted
    assert {name: results[name] for name in expected} == expected
    assert read(cut, "results.json")["accepted_changes"] == [before]
    (cut / "results.json").unlink()
    (cut / "checkpoints/00000004.json").unlink()  # the checkpoint left is of the code before
    with pytest.warns(RuntimeWarning, match="which was accepted"):
        assert start(cut, resume=True).results["scores"] == results["scores"]


def test_a_run_without_a_checkpoint_is_refused_too(tmp_path, monkeypatch):
    config = change(CONFIG, {"checkpoint_every": 100})
    start(tmp_path, config=config, cut_at=2)
    assert not (tmp_path / "checkpoints").exists()
    edit_package(monkeypatch)
    refused(tmp_path, "the code changed since its results were made", config=config)


def test_edited_files_of_the_user_are_refused(tmp_path, monkeypatch):
    mine = tmp_path / "mine.py"
    monkeypatch.setitem(ALGORITHMS, "mine", Method(own_method(mine, 1)))
    (tmp_path / "config.py").write_text("first")
    options = {"config_file": tmp_path / "config.py"}
    start(tmp_path / "out", cut_at=2, **options)
    own_method(mine, 2)
    refused(tmp_path / "out", r"the code changed .*made: mine.py \(sha256 ", **options)
    own_method(mine, 1)
    options["config_file"].write_text("second")
    refused(tmp_path / "out", r"made: the configuration file \(sha256 ", **options)
    assert start(tmp_path / "out", resume=True).results["scores"]


@pytest.mark.parametrize("field, value", [("seed", 1), ("hparams.client_lr", 0.3)])
def test_the_checkpoints_of_another_run_are_refused(cut, tmp_path, field, value):
    start(tmp_path / "other", config=change(CONFIG, {field: value}), cut_at=2)
    shutil.rmtree(cut / "checkpoints")
    shutil.copytree(tmp_path / "other/checkpoints", cut / "checkpoints")
    refused(cut, "the checkpoint of round 2 is of another run; put the run's own")


def test_a_changed_configuration_in_the_folder_is_refused(cut):
    path = cut / "config.json"
    path.write_text(path.read_text().replace('"client_lr": 0.1', '"client_lr": 0.3'))
    config = change(CONFIG, {"hparams.client_lr": 0.3})
    refused(cut, "config.json was changed since the run began", config=config)


DAMAGED_IDENTITIES = (
    "",
    "[1]",
    "null",
    '{"identity": 1}',
    '{"identity": {}, "accepted_changes": []}',
    '{"identity": {"data": "a", "config": "b", "source": "c"}, "accepted_changes": []}',
    '{"identity": {"data": "a", "config": "b"}, "accepted_changes": [1]}',
    json.dumps(
        {
            "identity": DIGESTS | {"callables": None},
            "accepted_changes": [],
        }
    ),
    json.dumps({"identity": DIGESTS | {"data": 7}, "accepted_changes": []}),
    pytest.param("[" * 100_000, id="nested too deeply"),
)


@pytest.mark.parametrize("text", DAMAGED_IDENTITIES)
def test_a_damaged_identity_is_refused(cut, text):
    (cut / "identity.json").write_text(text)
    refused(cut, "identity.json is damaged; remove it and resume with --accept_changes")
    (cut / "identity.json").unlink()
    refused(cut, r"the code changed .* graphfl_jax \(sha256 .{12}, not none\); .*--accept")
    with pytest.warns(RuntimeWarning, match="which was accepted"):
        start(cut, resume=True, accept_changes=True, cut_at=4)
    assert start(cut, resume=True).results["scores"]


def test_a_second_run_in_a_folder_is_refused_and_does_not_disturb_the_first(cut, tmp_path):
    whole = start(tmp_path / "whole")
    seen = []

    def report(row):
        refused(cut, f"^out={cut}: another process writes into it; wait until")
        seen.append(row["round"])

    result = graphfl_jax.run(CONFIG, data(), out=cut, resume=True, report=report)
    assert seen == [4] and result.results["scores"] == whole.results["scores"]
    names = ("metrics.jsonl", "config.json", "identity.json")
    assert all((cut / n).read_text() == (tmp_path / "whole" / n).read_text() for n in names)


def test_a_run_that_ends_while_another_compiles_keeps_its_folder(tmp_path, monkeypatch):
    """The second has checked the folder before the first began."""
    make, out = graphfl_jax.runs.single.compile_session, tmp_path / "out"

    def start_another(*args, **options):
        monkeypatch.setattr(graphfl_jax.runs.single, "compile_session", make)
        start(out)
        return make(*args, **options)

    monkeypatch.setattr(graphfl_jax.runs.single, "compile_session", start_another)
    with pytest.raises(ValueError, match="already holds a run; add --resume"):
        start(out)
    assert (out / "metrics.jsonl").read_text().count("\n") == 2


# ------------------------------------------------------------------------ what a folder holds


CONTENT = {RUN: "config.json", SWEEP: "trials.jsonl", TABLES: "cached_runs"}


@pytest.mark.parametrize("content", CONTENT)
def test_a_folder_holds_one_kind_of_results(tmp_path, content):
    check_folder(tmp_path, content)
    (tmp_path / CONTENT[content]).touch()
    assert content_of(tmp_path) == content
    for other in CONTENT:
        if other == content:
            check_folder(tmp_path, other)
            continue
        with pytest.raises(ValueError, match=f"^out={tmp_path} holds {content}, and {other} "):
            check_folder(tmp_path, other)


@pytest.mark.parametrize(
    "name, start_of, flags, message",
    [
        ("missing", launched, ["--resume"], "no run to resume; leave --resume out"),
        ("missing", launched_small, ["--resume"], "no run to resume; leave --resume out"),
        ("", launched, ["--resume"], "no run to resume; leave --resume out"),
        ("", launched_small, ["--resume"], "no run to resume; leave --resume out"),
        (
            "trials.jsonl",
            launched,
            ["--resume"],
            "a sweep, and a run needs a folder of its own",
        ),
        (
            "trials.jsonl",
            launched_small,
            ["--resume"],
            "a sweep, and a run needs a folder of its own",
        ),
        ("trials.jsonl", launched_small, [], "a sweep, and a run needs a folder of its own"),
        ("cached_runs", launched, ["--resume"], "runs of tables or figures, and a run needs a"),
        (
            "cached_runs",
            launched_small,
            [],
            "runs of tables or figures, and a run needs a folder",
        ),
    ],
)
def test_a_run_is_refused_where_it_does_not_fit(tmp_path, name, start_of, flags, message):
    if name != "missing":
        (tmp_path / "out").mkdir()
    if name not in ("missing", ""):
        (tmp_path / "out" / name).touch()
    before = contents(tmp_path)
    status, printed, errors = start_of("run", *flags, "--out=out", cwd=tmp_path)
    assert (status, printed, errors.count("\n")) == (2, "", 1), errors
    assert errors.startswith(f"error: out=out holds {message}")
    assert contents(tmp_path) == before


SWEPT = ["--config.data.val_fraction=0.1", "--config.rounds=1", "--grid.hparams.client_lr=0.1"]


@pytest.mark.parametrize(
    "name, words, message",
    [
        ("config.json", SWEPT, "holds a run, and a sweep needs a folder of its own; choose"),
        ("config.json", [*SWEPT, "--resume"], "holds a run, and a sweep needs a folder of"),
        ("empty", [*SWEPT, "--resume"], "holds no sweep to resume; leave --resume out"),
        ("empty", [*SWEPT, "--accept_changes"], "is not read without --resume; add --resume"),
    ],
)
def test_a_sweep_is_refused_where_it_does_not_fit(tmp_path, name, words, message):
    (tmp_path / "out").mkdir()
    if name != "empty":
        (tmp_path / "out" / name).touch()
    before = contents(tmp_path)
    status, _, errors = launched_small("sweep", *words, "--out=out", cwd=tmp_path)
    assert status == 2 and errors.count("\n") == 1 and message in errors, errors
    assert contents(tmp_path) == before


# ---------------------------------------------------------------------------- the command run


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The working folder of a run of one round."""
    folder = tmp_path_factory.mktemp("begun")
    words = ["--config.rounds=1", "--out=out"]
    status, _, errors = launched_small("run", *words, cwd=folder, file="fl60.py:local")
    assert status == 0, errors
    return folder


@pytest.fixture
def folder(begun, tmp_path):
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_a_folder_is_enough_to_resume_its_run(folder):
    words = ["--resume", "--out=out", "--config.rounds=2"]
    status, printed, errors = launched("run", *words, cwd=folder)
    assert (status, errors) == (0, ""), errors
    assert "local on fl60" in printed
    results = read(folder / "out", "results.json")
    file = hashlib.sha256((ROOT / "configs/fl60.py").read_bytes()).hexdigest()
    assert results["rounds"] == 2 and results["identity"]["config_file"] == file
    assert results["accepted_changes"] == []
    assert (folder / "out/metrics.jsonl").read_text().count("\n") == 2


def test_a_locked_folder_and_other_code_are_refused_in_one_line(folder):
    path = folder / "out/identity.json"
    path.write_text(path.read_text().replace(identity.SOURCE, "0" * 64))
    before = contents(folder)
    words = ["--resume", "--out=out"]
    for message, options in {
        "accept_changes=True is not read without --resume": ["--accept_changes"],
        "error: out=out: the code changed since its results were made: graphfl_jax": words,
        "error: out=out: another process writes into it": [*words, "--accept_changes"],
    }.items():
        with open(folder / "out/.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            status, printed, errors = launched("run", *options, cwd=folder)
        assert (status, printed, errors.count("\n")) == (2, "", 1), errors
        assert message in errors
        assert contents(folder) == before


# ------------------------------------------------------------------------------------- sweeps


def sweep_of(*rates, **fields):
    fields = {"rounds": 1, "data.val_fraction": 0.1} | fields
    config = change(tiny(fl60.get_config("local")), fields)
    points = [{"hparams.client_lr": rate} for rate in rates]
    return groups_of(points, [0], lambda point: adjust(config, {}, point))


@pytest.fixture(scope="module")
def groups():
    return sweep_of(0.1, 0.2)


def continued(out, groups, **options):
    """Continues a sweep; the number of runs that were made, and all lines."""
    made = 0
    resume = (out / "trials.jsonl").exists()
    with TrialLog(out, groups, resume=resume, **options) as log:
        for group in log.unfinished():
            trials = [planned.trial for planned in group.planned]
            for i, outcome in run_trials(group.config, group.federations, trials, at_once=2):
                log.write(group, group.planned[i], outcome)
                made += 1
    return made, log.lines()


@pytest.fixture(scope="module")
def swept_once(groups, tmp_path_factory):
    out = tmp_path_factory.mktemp("swept")
    made, _ = continued(out, groups)
    assert made == 2
    return out


@pytest.fixture
def swept(swept_once, tmp_path):
    """The folder of a sweep that has ended."""
    shutil.copytree(swept_once, tmp_path / "swept")
    return tmp_path / "swept"


def without_digest(line):
    return json.dumps({name: v for name, v in json.loads(line).items() if name != "sha256"})


def other_score(line):
    value = json.loads(line)
    value["validation"]["final"]["P"]["mean"] += 0.125
    return json.dumps(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [other_score, pytest.param(without_digest, marks=pytest.mark.release)]
)
def test_the_run_of_a_changed_line_is_repeated(swept, groups, change):
    path = swept / "trials.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{change(second)}\n")
    with pytest.warns(RuntimeWarning, match="line 2 is damaged; its run is repeated"):
        made, lines = continued(swept, groups)
    assert made == 1
    again = json.loads(second)
    assert lines[1]["scores"] == again["scores"]
    assert lines[1]["validation"] == again["validation"]


@pytest.mark.slow
def test_runs_of_a_release_with_fewer_fields_are_not_repeated(swept, groups):
    """A field that came later has its default in the name of such a run."""
    path, lines = swept / "trials.jsonl", []
    for text in path.read_text().splitlines():
        line = json.loads(without_digest(text))
        fields = json.loads(line["trial"])
        assert fields.pop("eval.clients") == 10_000
        lines.append(json.dumps(with_digest(line | {"trial": json.dumps(fields)})) + "\n")
    path.write_text("".join(lines))
    made, continued_lines = continued(swept, groups)
    assert made == 0 and len(continued_lines) == 2
    assert (
        current_fields_text('{"algorithm.name": "unknown"}') == '{"algorithm.name": "unknown"}'
    )


@pytest.mark.parametrize("text", ["{}", "[1]", "[]", "null", '"a"', "7", '{"trial": 1}'])
def test_a_line_that_is_no_run_is_named(swept, groups, text):
    with open(swept / "trials.jsonl", "a") as file:
        file.write(text + "\n")
    before = contents(swept)
    message = "trials.jsonl: line 3 is not a run of a sweep; remove the line, or choose"
    with pytest.raises(ValueError, match=message) as caught:
        continued(swept, groups)
    assert "\n" not in str(caught.value)
    assert contents(swept) == before


def test_trials_of_other_code_are_refused_or_accepted_and_recorded(swept, groups, monkeypatch):
    _, lines = continued(swept, groups)
    before = [line["identity"] for line in lines]
    edit_package(monkeypatch)
    files = contents(swept)
    with pytest.raises(ValueError, match=r"the code changed .*sha256 eeee.*--accept_changes"):
        continued(swept, groups)
    assert contents(swept) == files
    with pytest.warns(RuntimeWarning, match="2 of 2 runs in .* are of other code, which was"):
        made, lines = continued(swept, sweep_of(0.1, 0.2, 0.3), accept_changes=True)
    assert made == 1
    assert [line["identity"]["source"][:4] for line in lines[2:]] == ["eeee"]
    assert [line["identity"] for line in lines[:2]] == before
    for line in lines[:2]:
        assert line["accepted_changes"] == [line["identity"] | {"source": "e" * 64}]
    (board,) = leaderboards(lines)
    assert board["other_code"] == 2 and "2 runs are of other code" in markdown([board], 3)
    with pytest.warns(RuntimeWarning, match="2 of 3 runs"):  # it has been accepted
        assert continued(swept, sweep_of(0.1, 0.2, 0.3))[0] == 0


def test_a_sweep_that_is_resumed_with_another_field_names_the_field(swept):
    changed = sweep_of(0.1, 0.2, local_steps=3)
    with pytest.raises(
        ValueError, match="has the run .*0.1.* with seed 0 with local_steps=5 in"
    ):
        continued(swept, changed)


def test_runs_of_later_batches_of_a_search_are_used_when_they_are_planned(swept, monkeypatch):
    """As if the search had asked for the second point only after the first."""
    before = contents(swept)
    first, second = ([group] for group in sweep_of(0.1) + sweep_of(0.2))
    with pytest.raises(ValueError, match="has a run that is not in this sweep, .*0.2.* seed 0"):
        continued(swept, first)
    log = TrialLog(swept, first, resume=True)
    log.growing = True
    with log:
        assert not log.unfinished()
        with pytest.raises(ValueError, match="has a run that is not in this sweep, .*0.2"):
            log.check_all_planned()
        log.plan(second)
        assert not log.unfinished()
        log.check_all_planned()
    assert len(log.lines()) == 2 and contents(swept) == before

    edit_package(monkeypatch)
    with pytest.warns(RuntimeWarning, match="runs in .* are of other code"):
        log = TrialLog(swept, first, resume=True, accept_changes=True)
        log.growing = True
        with log:
            log.plan(second)
    lines = [json.loads(line) for line in (swept / "trials.jsonl").open()]
    assert [line["accepted_changes"][0]["source"][:4] for line in lines] == ["eeee"] * 2


def test_a_sweep_removes_what_a_killed_one_left(swept):
    theirs = ("film.part", "trials-2-of-3.jsonl.0123456789ab.part", "scores-mine.part")
    parts = ("trials.jsonl", "leaderboard.md", "scores-fl60.png")
    for name in (*theirs, *(f"{name}.0123456789ab.part" for name in parts)):
        (swept / name).touch()
    continued(swept, sweep_of(0.1, 0.2))
    assert {path.name for path in swept.glob("*.part")} == set(theirs)


def test_a_sweep_whose_folder_was_removed_ends(tmp_path, groups):
    (group,) = groups
    trials = [planned.trial for planned in group.planned]
    with TrialLog(tmp_path / "out", groups, resume=False) as log:
        outcome = next(run_trials(group.config, group.federations, trials, at_once=2))[1]
        shutil.rmtree(tmp_path / "out")
        (tmp_path / "out").mkdir()
        with pytest.raises(FileNotFoundError, match="was removed, moved or replaced while"):
            log.write(group, group.planned[0], outcome)
    assert not any((tmp_path / "out").iterdir())


# -------------------------------------------------------------------------------- new folders


@pytest.mark.parametrize("endings", [("",), ("-seed3", "-seed4")])
def test_processes_that_begin_together_make_different_folders(tmp_path, endings):
    known = []
    new = [NewFolders(tmp_path / "runs/a", endings, known=known.append) for _ in range(8)]
    assert len({str(Path(folders)) for folders in new}) == 1
    assert not any(tmp_path.iterdir())
    with ThreadPoolExecutor(8) as pool:
        made = [*pool.map(NewFolders.make, new)]
    names = [f"a{number}" for number in ("", *(f"-{i}" for i in range(2, 20)))]
    sets = sorted([path.name for path in paths] for paths in made)
    assert all([name + ending for ending in endings] in sets for name in names[:2])
    assert sum(sets, []) == sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert sorted(known) == sorted(paths[0] for paths in made)


def test_a_run_in_a_new_folder_writes_nothing_before_it_begins(tmp_path):
    new = [NewFolders(tmp_path / "a") for _ in range(3)]
    with pytest.raises(ValueError, match="cohort_size"):
        start(new[0], config=change(CONFIG, {"cohort_size": 9}))
    assert not any(tmp_path.iterdir())
    for folder in new[1:]:
        start(folder, cut_at=2)
    assert [Path(folder).name for folder in new[1:]] == ["a", "a-2"]
    assert all((tmp_path / name / "metrics.jsonl").exists() for name in ("a", "a-2"))


def test_two_sweeps_make_different_folders(tmp_path, groups):
    new = [NewFolders(tmp_path / "sweep") for _ in range(2)]
    logs = [TrialLog(folder, groups, resume=False) for folder in new]
    assert not any(tmp_path.iterdir())
    for log in logs:
        with log:
            assert log.path.exists()
    assert [log.path.parent.name for log in logs] == ["sweep", "sweep-2"]


def test_a_node_with_other_code_is_refused(tmp_path, groups, monkeypatch):
    (group,) = groups
    trials = [planned.trial for planned in group.planned]
    with TrialLog(tmp_path, groups, resume=False) as log:
        edit_package(monkeypatch)
        outcome = next(run_trials(group.config, group.federations, trials, at_once=2))[1]
        with pytest.raises(ValueError, match="launcher=ray: a node has other code than this"):
            log.write(group, group.planned[0], outcome)
    assert (tmp_path / "trials.jsonl").read_text() == ""


# ------------------------------------------------------------------------------ cells of tables


@pytest.fixture
def asked(monkeypatch):
    """The seeds of the runs that were made, whose scores are all 0."""
    seeds = []

    def run_trials(config, federations, trials, *, at_once, report):
        for i, trial in enumerate(trials):
            seeds.append(trial.seed)
            results = environment() | {"seed": trial.seed, "diverged": False}
            results |= {"accepted_changes": [], "scores": {"final": final}}
            yield i, Outcome(results, [], [], None)

    final = dict.fromkeys("GLP", {"per_client": [0.0]})
    monkeypatch.setattr(cache, "run_trials", run_trials)
    return seeds


def cells(out, seeds=(0, 1), **options):
    kept = Cache(out, **options)
    config = tiny(fl60.get_config("fedavg"))
    return kept, cached_runs(config, list(seeds), kept)


def test_cells_of_other_code_are_made_again_and_said(tmp_path, asked, monkeypatch):
    _, before = cells(tmp_path)
    edit_package(monkeypatch)
    with pytest.warns(RuntimeWarning) as caught:
        kept, runs = cells(tmp_path, seeds=(0,))
    (warning,) = caught
    assert f"2 runs in {tmp_path}/cached_runs are of other code and are made" in str(warning)
    assert asked == [0, 1, 0] and kept.counts() == "1 new runs, 0 from the cache"
    assert runs[0]["identity"] == before[0]["identity"] | {"source": "e" * 64}
    monkeypatch.undo()
    assert len(list((tmp_path / "cached_runs").iterdir())) == 3  # the earlier ones are kept


def test_cells_of_other_code_are_accepted_and_marked(tmp_path, asked, monkeypatch):
    _, before = cells(tmp_path)
    edit_package(monkeypatch)
    with pytest.warns(RuntimeWarning, match="are of other code and are used where they are"):
        kept, runs = cells(tmp_path, seeds=(0, 1, 2), accept_changes=True)
    assert asked == [0, 1, 2]
    counts = "1 new runs, 2 from the cache (2 of them of other code, which was accepted)"
    assert kept.counts() == counts
    assert [run["identity"] for run in runs[:2]] == [run["identity"] for run in before]
    now = runs[2]["identity"]["source"]
    for run in runs[:2]:
        assert [each["source"] for each in run["accepted_changes"]] == [now] == ["e" * 64]


def test_a_cell_that_was_changed_is_made_again_and_said(tmp_path, asked):
    cells(tmp_path, seeds=(0,))
    (path,) = (tmp_path / "cached_runs").iterdir()
    whole = path.read_text()
    assert whole.count('"diverged": false') == 1
    path.write_text(whole.replace('"diverged": false', '"diverged": true'))
    with pytest.warns(RuntimeWarning, match="1 runs in .* are damaged and are made again"):
        cells(tmp_path, seeds=(0,))
    assert asked == [0, 0] and path.read_text() == whole


def test_a_cell_with_another_configuration_file_is_made_again(tmp_path, asked):
    file = tmp_path / "mine.py"
    for text, made in (("first", [0]), ("first", [0]), ("second", [0, 0])):
        file.write_text(text)
        with contextlib.ExitStack() as stack:
            if text == "second":
                stack.enter_context(pytest.warns(RuntimeWarning, match="of other code"))
            cells(tmp_path / "out", seeds=(0,), config_files=[file])
        assert asked == made


@pytest.mark.release
def test_a_table_says_what_it_does_with_cells_of_other_code(tmp_path):
    words = ["--table=panacea_2", "--datasets=fl60", "--methods=local", "--rounds=1"]
    words += ["--seeds=1", "--out=here"]

    def table(*more):
        status, printed, errors = shrunk("tables", *words, *more, cwd=tmp_path, file="fl60")
        assert status == 0, errors
        return printed, errors

    assert "1 new runs, 0 from the cache" in table()[0]
    (path,) = (tmp_path / "here/cached_runs").iterdir()
    run = json.loads(path.read_text().replace(identity.SOURCE, "0" * 64))
    run["sha256"] = identity.digest_of_json({n: v for n, v in run.items() if n != "sha256"})
    path.unlink()
    Path(path.parent, path.name.replace(path.stem[-12:], "0" * 12)).write_text(json.dumps(run))
    printed, errors = table("--accept_changes")
    assert "1 runs in here/cached_runs are of other code and are used" in errors
    assert "1 from the cache (1 of them of other code" in printed
    assert "(1 of them of other code" in (tmp_path / "here/panacea_2.md").read_text()
    printed, errors = table()
    assert "are of other code and are made again where they are needed; add --accept" in errors
    assert "1 new runs, 0 from the cache" in printed
