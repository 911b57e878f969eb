"""Files of settings in TOML and YAML, which stand for configuration files."""

import pytest

from graphfl_jax.commands.common.configuration import configuration_in_file
from graphfl_jax.configs import change, tpt48
from tests.commands import launched

TOML = """
config = "tpt48:ditto"
rounds = 40
data.source = "simulated"

[hparams]
client_lr = 0.03
[model]
hidden = [4, 5]
"""
YAML = """
config: tpt48:ditto
rounds: 40
data: {source: simulated}
hparams:
  client_lr: 0.03
model:
  hidden: [4, 5]
"""
FIELDS = {
    "rounds": 40,
    "data.source": "simulated",
    "hparams.client_lr": 0.03,
    "model.hidden": (4, 5),
}


@pytest.mark.parametrize("name, text", [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML)])
@pytest.mark.parametrize("words", [(), ("fedavg",)])
def test_a_file_has_the_values_of_fields(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    found = configuration_in_file("config", str(tmp_path / name), *words)
    assert found.to_dict() == change(tpt48.get_config(*words or ["ditto"]), FIELDS).to_dict()


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.toml", "config = \n", "a.toml cannot be read .*line 1.*; correct the file$"),
        ("a.yaml", "config: [", "a.yaml cannot be read .*line 1.*; correct the file$"),
        ("a.yaml", "config: !!python/object/apply:os.getcwd []", "cannot be read .*; correct"),
        ("a.toml", b"\xff", "a.toml cannot be read .*; correct the file$"),
        ("a.yaml", "- 3", "a.yaml has config=''; set config to one of chest_xray, "),
        ("a.toml", "rounds = 3", "a.toml has config=''; set config to one of chest_xray, "),
        ("a.toml", "config = 'tpt'", "has config='tpt'; perhaps tpt48 is meant; set config"),
        (
            "a.toml",
            "config = 'tpt48:dito'",
            "^method='dito' is unknown; perhaps ditto is meant",
        ),
        ("a.yaml", "config: tpt48\nround: 3", "^round=3 is not a field; perhaps rounds is mea"),
        ("a.yaml", "config: tpt48\n1: 3", "^1=3 is not a field"),
        ("a.yaml", "config: tpt48\nrounds: 1e-3", "^rounds='1e-3' is of type str; set "),
        ("a.toml", "config = 'tpt48'\nrounds = 0", "^rounds=0 must be at least 1; set "),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message) as caught:
        configuration_in_file("config", str(path))
    assert "\n" not in str(caught.value)


def test_a_mark_of_the_byte_order_is_no_part_of_a_file(tmp_path):
    (tmp_path / "a.toml").write_text(TOML, encoding="utf-8-sig")
    found = configuration_in_file("config", str(tmp_path / "a.toml"))
    assert found.rounds == 40
    with pytest.raises(ValueError, match="b.toml is not a file; choose a file, such as mine"):
        configuration_in_file("folders", str(tmp_path / "b.toml"))


@pytest.mark.slow
def test_a_run_resumes_with_its_file_and_is_refused_with_another(tmp_path):
    file = tmp_path / "mine.toml"
    small = 'config = "fl60:local"\nrounds = 2\neval_every = 2\nlocal_steps = 2\n'
    file.write_text(small + "model.hidden = [4]\n")
    words = ["--config=mine.toml", "--out=run"]
    assert launched("run", *words, cwd=tmp_path).status == 0
    assert launched("run", *words, "--resume", cwd=tmp_path).status == 0
    file.write_text(small + "model.hidden = [5]\n")
    ended = launched("run", *words, "--resume", cwd=tmp_path)
    assert ended.status == 2 and "model.hidden=(5,) differs from (4,)" in ended.stderr
