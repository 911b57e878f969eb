"""Evaluations of runs for TensorBoard and Weights & Biases, read back from their files."""

import json
import sys

import pytest

from graphfl_jax.commands.common.trackers import scalars
from tests.commands import launched_small, scripted
from tests.runs.test_compare import GRAPHFL, write_run

ROWS = [
    {
        "round": played,
        "train": {"loss": 1 / played},
        "test": {
            "P": {
                **{"mean": 0.1 * played, "std_clients": 0.2, "worst_decile": 0.3, "jain": 0.4},
                "per_client": [0.5],
            }
        },
    }
    for played in (2, 4)
]
# The package has no reader of its files. They are logs in LevelDB's format, with a head of
# seven bytes: blocks of 32 KiB hold parts of records, each after its checksum (4 bytes), its
# length (2) and its kind (1: whole, 2: first, 3: middle, 4: last).
FILES_OF_WANDB = """
import glob, json, struct, sys
from wandb.proto import wandb_internal_pb2 as protocol
(path,) = glob.glob(sys.argv[1] + "/wandb/offline-run-*/*.wandb")
data, at, begun, found = open(path, "rb").read(), 7, b"", []
assert data[:4] == b":W&B"
while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    _, length, kind = struct.unpack("<IHB", data[at : at + 7])
    begun += data[at + 7 : at + 7 + length]
    at += 7 + length
    if kind in (1, 4):
        record, begun = protocol.Record.FromString(begun), b""
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append(
                {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            )
print(json.dumps(found))
"""


@pytest.fixture
def made(tmp_path):
    """A folder of a finished run."""
    path = write_run(tmp_path / "mine", "fedavg", 0)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def track(made, *words):
    return scripted(GRAPHFL, "track", "mine", *words, cwd=made.parent)


def events(folder):
    module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(module, reason="needs '.[tensorboard]'")
    found = accumulator.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_services_get_the_losses_and_the_scores_alone():
    row = ROWS[0] | {"allocation": [[1.0]], "not_finite": {"client 0": 1}}
    numbers = dict(scalars(row))
    assert numbers["train/loss"] == 0.5 and numbers["test/P/jain"] == 0.4
    assert len(numbers) == 5


def test_a_finished_run_is_written_for_tensorboard(made):
    pytest.importorskip("tensorboard", reason="needs '.[tensorboard]'")
    status, printed, errors = track(made, "--to=tensorboard")
    assert (status, printed) == (0, "mine: 2 evaluations to tensorboard\n"), errors
    found = events(made / "tensorboard")
    assert found["train/loss"] == [(2, 0.5), (4, 0.25)]
    assert found["test/P/mean"] == [(2, pytest.approx(0.2)), (4, pytest.approx(0.4))]
    assert set(found) == {
        *("train/loss", "test/P/mean", "test/P/std_clients"),
        *("test/P/worst_decile", "test/P/jain"),
    }
    status, printed, errors = track(made, "--to=tensorboard")
    assert status == 2 and "mine/tensorboard exists; remove it" in errors


def test_a_finished_run_is_written_for_wandb(made):
    pytest.importorskip("wandb", reason="needs '.[wandb]'")
    words = ["track", "mine", "--to=wandb"]
    script = "import os; os.environ['WANDB_MODE'] = 'offline'\n" + GRAPHFL
    status, printed, errors = scripted(script, *words, cwd=made.parent)
    assert (status, printed) == (0, "mine: 2 evaluations to wandb\n"), errors
    status, printed, errors = scripted(FILES_OF_WANDB, made, cwd=made.parent)
    assert status == 0, errors
    found = json.loads(printed)
    assert [row["_step"] for row in found] == [2, 4]
    assert [row["train/loss"] for row in found] == [0.5, 0.25]
    assert found[1]["test/P/mean"] == pytest.approx(0.4)


def test_a_run_is_tracked_while_it_is_made(tmp_path):
    pytest.importorskip("tensorboard", reason="needs '.[tensorboard]'")
    words = ["--config.rounds=2", "--config.eval_every=1", "--out=mine", "--track=tensorboard"]
    ended = launched_small("run", *words, cwd=tmp_path, file="fl60.py:local")
    assert ended.status == 0, ended.stderr
    rows = [json.loads(line) for line in (tmp_path / "mine/metrics.jsonl").open()]
    found = events(tmp_path / "mine/tensorboard")["test/P/mean"]
    assert found == [(row["round"], pytest.approx(row["test"]["P"]["mean"])) for row in rows]


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "to is not set; choose from tensorboard, wandb"),
        (["--to=mlflow"], "to=mlflow is unknown; choose from tensorboard, wandb"),
        (["none", "--to=tensorboard"], "none is not a folder; name folders of runs"),
    ],
)
def test_bad_input_is_refused(made, words, message):
    before = sorted(made.rglob("*"))
    status, printed, errors = track(made, *words)
    assert (status, printed) == (2, "") and errors.startswith(f"error: {message}"), errors
    assert sorted(made.rglob("*")) == before


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    from graphfl_jax.commands.common import trackers

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="^track=wandb needs .* pip install wandb"):
        trackers.check_trackers("track", ["wandb"])


def test_a_run_without_an_account_is_refused_before_it_begins(tmp_path):
    pytest.importorskip("wandb", reason="needs '.[wandb]'")
    script = (
        "import os\n"
        "for name in list(os.environ):\n"
        "    if name.startswith('WANDB'):\n"
        "        del os.environ[name]\n"
        f"os.environ['HOME'] = os.environ['NETRC'] = {str(tmp_path / 'home')!r}\n"
    )
    words = ["run", "fl60:local", "--track=wandb", "--out=mine"]
    status, printed, errors = scripted(script + GRAPHFL, *words, cwd=tmp_path)
    assert status == 2 and not (tmp_path / "mine").exists()
    assert errors.splitlines()[-1] == (
        "error: track=wandb has no account; run wandb login, or set WANDB_MODE=offline in the "
        "environment"
    )
