"""Models out of a run: its files, loading, exporting and predicting, and `init_from`."""

import csv
import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import graphfl_jax
from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.commands.common.finished_runs import read_run
from graphfl_jax.commands.common.result_tables import trained_text
from graphfl_jax.commands.reporting.folders import run_facts
from graphfl_jax.configs import change
from graphfl_jax.data import tpt48
from graphfl_jax.metrics import METRICS
from graphfl_jax.runs import models
from graphfl_jax.runs.results import description_of
from graphfl_jax.runs.views import client_table
from tests.commands import scripted
from tests.core.test_architectures import federation as image_federation
from tests.core.test_chest_xray import LABELS, several_labels
from tests.federations import small_config

NAMES = ["Bergen", "Oslo", "Bari", "Nice", "Faro"]


EDGES = [("Oslo", "Bergen"), ("Bari", "Nice")]


def own_data(scale="standard", **changes):
    """Five clients with a regression whose numbers are far from 0 and 1."""
    rng = np.random.default_rng(0)
    client = np.repeat(NAMES, 12)
    x = rng.normal(size=(60, 3)) * (1, 10, 100) + (0, 50, 1000)
    y = x @ rng.normal(size=(3, 2)) + 7
    arrays = {"x": x, "y": y, "client": client, "edges": EDGES, "scale": scale} | changes
    return graphfl_jax.from_arrays(**arrays)


def config(method="ditto", **changes):
    return small_config(method, rounds=2, eval_every=2, **changes)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a run with new clients, its federation and its results."""
    federation = own_data(scale_by="client")
    out = tmp_path_factory.mktemp("run") / "mine"
    own = config(new_clients__fraction=0.2, new_clients__rounds=1, cohort_size=3)
    return out, federation, graphfl_jax.run(own, federation, out=out).results


def mean_squares(fleet, federation, at="P"):
    """The mean squared errors of scaled predictions on the test examples of each client."""
    found = {}
    for i, client in enumerate(federation.clients):
        test = federation.data.evals["test"]
        real = slice(test.count[i])
        error = fleet.outputs(client, test.x[i, real], at) - test.y[i, real]
        found[client] = np.square(error).mean()
    return found


@pytest.mark.slow
def test_models_have_the_scores_of_the_run_also_those_of_new_clients(made):
    out, federation, results = made
    fleet = graphfl_jax.load(out)
    assert repr(fleet) == f"<Fleet: models of {len(NAMES)} clients in {fleet.path}>"
    assert set(fleet.clients) == set(NAMES)
    new = results["new_clients"]
    for at in ("G", "P"):
        expected = dict(
            zip(fleet.clients, results["scores"]["final"][at]["per_client"], strict=False)
        )
        expected |= dict(zip(new["clients"], new["curve"][-1][at]["per_client"], strict=True))
        found = mean_squares(fleet, federation, at)
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_predictions_are_in_the_units_of_the_data(made):
    out, federation, _ = made
    fleet, row = graphfl_jax.load(out), sorted(NAMES).index("Oslo")
    raw = np.array([[0.3, 52.0, 1010.0], [-1.0, 49.0, 950.0]])
    inputs, targets = (
        [part[row] for part in own]
        for own in (federation.scaling.inputs, federation.scaling.targets)
    )
    scaled = ((raw - inputs[0]) / inputs[1]).astype(np.float32)
    expected = fleet.outputs("Oslo", scaled) * targets[1] + targets[0]
    np.testing.assert_array_equal(fleet.predict("Oslo", raw)["y"], expected)


@pytest.mark.slow
def test_the_description_needs_no_data(made):
    out, federation, _ = made
    found = json.loads((out / "federation.json").read_text())
    names = [client["name"] for client in found["clients"]]
    edges = {(names[i], names[j], weight) for i, j, weight in found["relations"]}
    assert {("Oslo", "Bergen", 1.0), ("Bergen", "Oslo", 1.0)} <= edges
    assert [client["new"] for client in found["clients"]] == [False] * 4 + [True]
    assert {sum(client["examples"].values()) for client in found["clients"]} == {12}
    assert all(client["position"] is None for client in found["clients"])


def test_the_description_has_labels_positions_and_attackers():
    own = graphfl_jax.configs.fl60.get_config("local")
    own = change(own, {"attack.name": "label_flip", "attack.clients": ("domain 3",)})
    found = description_of(build_experiment(own, load_federation(own)))
    client = found["clients"][3]
    assert found["axes"] == ["x", "y"] and 1 <= np.hypot(*client["position"]) <= 8
    assert sum(client["labels"]["train"]) == client["examples"]["train"]
    assert [c["name"] for c in found["clients"] if c["malicious"]] == ["domain 3"]


def test_one_client_is_exported_and_loaded(made, tmp_path):
    fleet = graphfl_jax.load(made[0])
    x = np.random.default_rng(1).normal(size=(4, 3)) + (0, 50, 1000)
    for at in ("G", "P"):
        path = tmp_path / f"{at}.safetensors"
        fleet.export("Oslo", path, at=at)
        alone = graphfl_jax.load(path)
        assert alone.clients == ("Oslo",)
        for point in ("G", "P"):
            found = alone.predict("Oslo", x, at=point)["y"]
            np.testing.assert_array_equal(found, fleet.predict("Oslo", x, at=at)["y"])
        names = {name.split("/")[0] for name in load_file(path)}
        assert names == {at}
    kernel = fleet.params("Oslo")["body"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal(load_file(path)["P/params/body/Dense_0/kernel"][0], kernel)


@pytest.mark.release
def test_models_of_several_architectures_are_loaded_and_exported(tmp_path):
    federation, out = image_federation(), tmp_path / "run"
    own = {"rounds": 1, "eval_every": 1, "local_steps": 1, "batch_size": 4}
    own |= {"model.name": "architectures", "model.architectures": ("plain4", "plain7")}
    own |= {"model.width": 1, "model.lowering": "xla"}  # which is compiled faster
    own = change(graphfl_jax.configs.custom.get_config("local"), own)
    results = graphfl_jax.run(own, federation, out=out).results
    fleet, test = graphfl_jax.load(out), federation.data.evals["test"]
    names = {name.rpartition("/params/")[0] for name in load_file(out / models.FILE)}
    assert {"plain4/P", "plain7/P"} <= names
    assert [group.clients for group in fleet.groups] == [["0", "2", "4"], ["1", "3"]]
    scores = []
    for i, name in enumerate(federation.clients):
        real = slice(test.count[i])
        label = fleet.predict(name, test.x[i, real])["label"]
        scores.append(np.mean(label == test.y[i, real]))
    assert scores == pytest.approx(results["scores"]["final"]["P"]["per_client"])
    fleet.export("3", tmp_path / "three.safetensors")
    alone = graphfl_jax.load(tmp_path / "three.safetensors")
    assert alone.clients == ("3",)
    same = [loaded.predict("3", test.x[3])["outputs"] for loaded in (fleet, alone)]
    np.testing.assert_array_equal(*same)
    jax.tree.map(np.testing.assert_array_equal, alone.params("3"), fleet.params("3"))


def test_predictions_are_labels_of_the_data(tmp_path):
    """Labels 1 and 100 are outputs 0 and 1, and have their names wherever they are shown."""
    y = np.where(np.arange(60) % 2, 100, 1)
    federation = own_data(x=100 * y[:, None] + np.arange(60)[:, None], y=y)
    graphfl_jax.run(config("fedavg", cohort_size=3), federation, out=tmp_path / "run")
    fleet = graphfl_jax.load(tmp_path / "run")
    found = fleet.predict("Oslo", [[100.0], [10_000.0]])
    names = np.array([1, 100])
    np.testing.assert_array_equal(found["label"], names[found["outputs"].argmax(axis=1)])
    assert run_facts(read_run(tmp_path / "run"))["labels"]["names"] == ["1", "100"]
    described = json.loads((tmp_path / "run/federation.json").read_text())
    assert described["labels"] == [1, 100] and described["outputs"] == 2


@pytest.mark.release
def test_models_of_several_labels_predict_each_of_them(tmp_path, shared_programs):
    federation = several_labels(shared=False)
    own = small_config("fedavg", rounds=1, eval_every=1, cohort_size=3)
    graphfl_jax.run(own, federation, out=tmp_path / "run")
    fleet = graphfl_jax.load(tmp_path / "run")
    assert fleet.facts["model"]["labels"] == list(LABELS)
    found = fleet.predict("client 1", np.random.default_rng(0).normal(size=(20, 4)))
    assert found["label"].shape == (20, 3) and 0 < found["label"].mean() < 1
    np.testing.assert_allclose(found["probability"], 1 / (1 + np.exp(-found["outputs"])), 1e-5)
    np.testing.assert_array_equal(found["label"], found["probability"] > 0.5)


def in_the_units_of_the_loader(config, raw, scaled, out):
    """Predictions for raw inputs, and outputs for the same inputs in the run's own scale."""
    graphfl_jax.run(config, out=out)
    fleet = graphfl_jax.load(out)
    client = fleet.clients[1]
    return fleet.predict(client, raw)["y"], fleet.outputs(client, scaled)


@pytest.mark.slow
def test_predictions_for_tpt48_are_in_degrees(tmp_path):
    """Each state is scaled by its own extremes of all months and years."""
    own = graphfl_jax.configs.tpt48.get_config("local")
    changes = {"data.source": "simulated", "rounds": 1, "eval_every": 1, "local_steps": 1}
    table = tpt48.simulate(own.data.generator_seed)[1]  # of the second state
    low, high, raw = table.min(), table.max(), table[:3, :6]
    scaled = ((raw - low) / (high - low)).astype(np.float32)
    found, outputs = in_the_units_of_the_loader(
        change(own, changes), raw, scaled, tmp_path / "run"
    )
    np.testing.assert_allclose(found, low + outputs * (high - low), rtol=1e-6)


@pytest.mark.release
def test_predictions_of_traffic_are_in_miles_per_hour(tmp_path):
    """The speeds are scaled, but not the times of day; the hidden ones are 0."""
    own = graphfl_jax.configs.metr_la.get_config("local")
    changes = {"data.source": "simulated", "data.sensors": 4, "data.steps": 60}
    changes |= {"rounds": 1, "eval_every": 1, "local_steps": 1, "cohort_size": 4}
    changes |= {"model.name": "mlp"}  # which is compiled faster
    own = change(own, changes)
    units = load_federation(own).units
    raw = np.zeros((2, 24, 2))
    raw[:, :12, 0], raw[..., 1] = 60.0, np.linspace(0.2, 0.3, 24)
    scaled = raw.astype(np.float32)
    scaled[:, :12, 0] = (60 - units.mean) / units.std
    found, outputs = in_the_units_of_the_loader(own, raw, scaled, tmp_path / "run")
    assert units.mean > 20
    np.testing.assert_allclose(found, units.mean + outputs * units.std, rtol=1e-6)


def test_an_export_replaces_no_file(made):
    fleet = graphfl_jax.load(made[0])
    before = fleet.path.read_bytes()
    with pytest.raises(ValueError, match="^to=.*models.safetensors exists; remove it, or choo"):
        fleet.export("Oslo", fleet.path)
    assert fleet.path.read_bytes() == before


@pytest.mark.slow
def test_large_models_are_written_only_if_asked_for(tmp_path, monkeypatch, shared_programs):
    monkeypatch.setattr(models, "LARGEST", 500)
    federation, out = own_data(), tmp_path / "run"
    result = graphfl_jax.run(config("fedavg"), federation, out=out)
    assert result.unsaved == 5 * 4 * (3 * 5 + 5 + 5 * 2 + 2)
    with pytest.raises(ValueError, match="has no models.safetensors; .*--save_models"):
        graphfl_jax.load(out)
    again = {"out": out, "resume": True, "save_models": True}
    assert graphfl_jax.run(config("fedavg"), federation, **again).unsaved == 0
    assert graphfl_jax.load(out).clients == tuple(sorted(NAMES))


# ------------------------------------------------------------------------------------ bad input


def test_bad_inputs_of_predictions_are_refused(made, tmp_path):
    fleet = graphfl_jax.load(made[0])
    x = np.zeros((2, 3))
    for words, message in (
        (("Osla", x), "client=Osla is none of the 5 clients of .*; perhaps Oslo"),
        (("Oslo", x, "L"), "at='L' is unknown; choose from G, P"),
        (("Oslo", x[0]), r"x has shape \(3,\), and the models take \[n, 3\]"),
        (("Oslo", x[:0]), r"x has shape \(0, 3\)"),
        (("Oslo", x.astype(str)), "x has type <U32; give numbers"),
        (("Oslo", x + [0, np.nan, 0]), "client 'Oslo' has a NaN .* in x of its example 0"),
    ):
        with pytest.raises(ValueError, match=message):
            fleet.predict(*words)


def test_files_of_something_else_and_damaged_ones_are_refused(made, tmp_path):
    whole = (made[0] / models.FILE).read_bytes()
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut").write_bytes(whole[:-100])
    (tmp_path / "flipped").write_bytes(flipped)
    (tmp_path / "other client").write_bytes(whole.replace(b"Oslo", b"Uslo"))  # in the metadata
    written = rf"\"format\": {models.FORMAT}".encode()
    assert whole.count(written) == 1
    (tmp_path / "other format").write_bytes(whole.replace(written, written[:-1] + b"3"))
    save_file({"w": np.zeros(3)}, tmp_path / "foreign")
    for name, message in {
        "absent": "does not exist; give the folder of a run",
        "empty": "holds no run",
        "cut": r"is damaged \(.*\); write it again",
        "flipped": "its digest differs",
        "other client": "its digest differs",
        "other format": "has format 3, and version .* reads format 2; read it with version",
        "foreign": "holds no models of this package",
    }.items():
        with pytest.raises((ValueError, OSError), match=message):
            graphfl_jax.load(tmp_path / name)


@pytest.mark.parametrize(
    "keys, value",
    [
        (("clients",), [["Oslo"]]),
        (("new_clients",), -5),
        (("model", "task"), ["regression"]),
        (("model", "inputs"), None),
        (("model", "labels"), 7),
        (("rounds_trained",), 3),
        (("model", "outputs"), 0),
        (("scaling", "inputs", "scale", 0, 0), 0.0),
        (("data", "nodes"), 0),
        (("data", "train", "x", 0, 2), 0),
        (("data", "edges"), "many"),
        (("data", "train", "x", 1), "object"),
        (("data", "train", "x", 0), [7, 7, 7]),
        (("groups", 0, "points"), {}),
        (("groups", 0, "clients"), ["none"]),
        (("scaling",), {"clients": [], "inputs": {"offset": [], "scale": []}, "targets": None}),
    ],
)
def test_a_wrong_value_in_a_file_of_models_is_named(made, tmp_path, keys, value):
    path = made[0] / models.FILE
    facts, tensors = models.read(path)
    part = facts
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    facts["sha256"] = models._digest(tensors, facts)
    save_file(tensors, tmp_path / "changed", {models.KEY: json.dumps(facts)})
    with pytest.raises(
        ValueError, match=r"changed is damaged \(.*\); write it again"
    ) as caught:
        graphfl_jax.load(tmp_path / "changed")
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------- beginning elsewhere


@pytest.mark.slow
def test_a_run_begins_from_the_server_of_another(made, tmp_path, shared_programs):
    federation = own_data()
    first = graphfl_jax.run(config("fedavg"), federation, out=tmp_path / "first")
    own = config("fedavg", init_from=str(tmp_path / "first"), hparams__client_lr=0.0)
    second = graphfl_jax.run(own, federation, out=tmp_path / "second")
    score = [run.results["scores"]["final"]["G"] for run in (first, second)]
    assert score[0] == score[1]  # nothing is learned at a rate of 0
    identity = json.loads((tmp_path / "second" / "identity.json").read_text())["identity"]
    assert len(identity["init"]) == 64
    with pytest.raises(ValueError, match="init_from='' differs from '.*first' in the run of"):
        graphfl_jax.run(
            change(own, {"init_from": ""}), federation, out=tmp_path / "second", resume=True
        )
    # The other run goes on, and this one is still resumed from its own checkpoint.
    longer = change(config("fedavg"), {"rounds": 4})
    graphfl_jax.run(longer, federation, out=tmp_path / "first", resume=True)
    again = graphfl_jax.run(own, federation, out=tmp_path / "second", resume=True)
    assert again.results["scores"] == second.results["scores"]
    for path in (tmp_path / "second" / "checkpoints").glob("*.json"):
        path.unlink()
    (tmp_path / "second" / "results.json").unlink()  # a run without it begins anew
    with pytest.raises(ValueError, match="has another state than when this run began"):
        graphfl_jax.run(own, federation, out=tmp_path / "second", resume=True)


@pytest.mark.release
def test_a_run_that_begins_elsewhere_has_its_own_relations(tmp_path):
    """The embeddings are those of the other run, and the relations those of its own data."""
    others = [("Oslo", "Nice"), ("Bergen", "Bari")]
    graphfl_jax.run(config("panacea"), own_data(), out=tmp_path / "first")
    frozen = {"hparams__client_lr": 0.0, "hparams__server_lr": 0.0, "hparams__lambda_d": 0.0}
    own = config("panacea", init_from=str(tmp_path / "first"), **frozen)
    first, second = (graphfl_jax.run(own, own_data(edges=e)) for e in (EDGES, others))
    np.testing.assert_array_equal(
        first.state.server.weights["embeddings"], second.state.server.weights["embeddings"]
    )
    plain = graphfl_jax.run(config("panacea", **frozen), own_data(edges=others))
    np.testing.assert_array_equal(second.state.server.relations, plain.state.server.relations)
    assert (np.asarray(first.state.server.relations) != second.state.server.relations).any()


@pytest.mark.slow
def test_the_server_of_other_clients_is_refused(tmp_path):
    graphfl_jax.run(config("sfl"), own_data(), out=tmp_path / "first")
    path = tmp_path / "first" / "federation.json"
    described = json.loads(path.read_text())
    own = config("sfl", init_from=str(tmp_path / "first"))
    described["clients"][1]["name"] = "Paris"
    path.write_text(json.dumps(described))
    with pytest.raises(ValueError, match="other clients that train: client 1 is Paris there"):
        graphfl_jax.run(own, own_data(), out=tmp_path / "second")
    described["clients"][1]["new"] = None
    for text in (json.dumps(described), '{"clients": 3}', "[" * 700 + "]" * 700, ""):
        path.write_text(text)
        with pytest.raises(ValueError, match="has no federation.json, or a damaged one .*; g"):
            graphfl_jax.run(own, own_data(), out=tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_the_server_of_another_method_is_refused(made, tmp_path):
    message = "init_from=.* has another state of the server: .* is .* there and .* here; choose"
    own = config("fedavg", init_from=str(made[0]), model__hidden=(4,))
    with pytest.raises(ValueError, match=message):
        graphfl_jax.run(own, own_data(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="has no valid checkpoint; give the folder of a run"):
        graphfl_jax.run(change(own, {"init_from": str(tmp_path)}), own_data())


# ------------------------------------------------------------------------------- the commands


COMMANDS = """
import runpy, sys
sys.argv[0] = "graphfl_jax"
runpy.run_module("graphfl_jax", run_name="__main__", alter_sys=True)
"""


def test_commands_export_and_predict(made, tmp_path):
    np.savez(tmp_path / "new.npz", x=np.array([[0.0, 50.0, 1000.0]]))
    np.savez(tmp_path / "old.npz", y=np.zeros(2))

    def graphfl(*words):
        return scripted(COMMANDS, *words, cwd=tmp_path)

    to = ["--client=Oslo", "--to=oslo.safetensors"]
    ended = graphfl("export", made[0], *to)
    assert (ended.status, ended.stderr) == (0, "")
    data = ["--data=new.npz", "--to=out.npz"]
    ended = graphfl("predict", "oslo.safetensors", "--client=Oslo", *data)
    assert (ended.status, ended.stderr) == (0, "")
    expected = graphfl_jax.load(made[0]).predict("Oslo", [[0.0, 50.0, 1000.0]])
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["y"], expected["y"])
    before = sorted(tmp_path.iterdir())
    for words, message in (
        (["export", made[0], *to], "to=oslo.safetensors exists; remove it"),
        (["export", made[0], "--client=Oslo"], "to is not set; add --to=oslo.safetensors"),
        (["export", *to], "run is not set; name the folder of a run"),
        (
            ["export", made[0], "--client=O", "--to=no/o"],
            "to=no/o cannot be written .*/no is no",
        ),
        (["predict", made[0], "--client=O", "--to=o"], "data is not set; add --data=new.npz"),
        (
            ["predict", made[0], "--client=Oslo", "--to=o.csv", "--data=old.npz"],
            "to=o.csv gets arrays of np.savez; let it end with .npz",
        ),
        (
            ["predict", made[0], "--client=Oslo", "--to=o", "--data=old.npz"],
            "data=old.npz has no array x",
        ),
    ):
        ended = graphfl(*words)
        assert ended.status == 2

        assert re.fullmatch(f"error: {message}.*\n", ended.stderr), ended.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_diverged_run_without_models_is_not_to_be_resumed(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="has no models.safetensors; finish the run with"):
        graphfl_jax.load(tmp_path)
    (tmp_path / "results.json").write_text('{"diverged": true}')
    with pytest.raises(ValueError, match="since its run diverged; make another run with lower"):
        graphfl_jax.load(tmp_path)


def test_a_run_in_which_no_client_trained_says_so():
    results = {"rounds_trained": [0, 0, 0], "diverged": False, "trained_only": None}
    assert trained_text(results).startswith("no client of 3 trained in any round, so their mod")
    assert not trained_text(results | {"rounds_trained": [1, 1, 1]})
    assert not trained_text(results | {"rounds_trained": None})  # of an old release
    assert not trained_text(results | {"diverged": True})  # which has no scores
    assert not trained_text(results | {"not_finite": {"uploads": {"Oslo": 3}}})


@pytest.mark.slow
def test_clients_that_never_trained_are_named(tmp_path):
    """One of five trains in each of two rounds. Ditto keeps a model for each client."""
    out = tmp_path / "run"
    result = graphfl_jax.run(config(cohort_size=1), own_data(), out=out)
    results, fleet = result.results, graphfl_jax.load(out)
    rounds = dict(zip(fleet.clients, results["rounds_trained"], strict=True))
    trained = [name for name in rounds if rounds[name]]
    (never, *_), (some, *_) = (name for name in rounds if not rounds[name]), trained
    assert sum(rounds.values()) == 2 and len(trained) <= 2
    assert {name: fleet.rounds_trained(name) for name in rounds} == rounds
    scores = np.array(results["scores"]["final"]["P"]["per_client"])
    mean = scores[[bool(rounds[name]) for name in rounds]].mean()
    part = results["trained_only"]
    assert part["clients"] == len(trained) and part["final"]["P"] == pytest.approx(mean)
    assert trained_text(results).startswith(
        f"{5 - len(trained)} of 5 clients trained in no round, so a model that ditto keeps for "
        f"one of them alone is untrained; means of mse over the {len(trained)} others: G "
    )
    table = client_table(result)
    lines = {
        line["client"]: line["rounds trained"] for line in csv.DictReader(table.splitlines())
    }
    assert lines == {name: str(count) for name, count in rounds.items()}
    np.savez(tmp_path / "new.npz", x=np.array([[0.0, 50.0, 1000.0]]))
    for name in (never, some):
        for word, *to in (
            ("export", f"--to=m{name}.safetensors"),
            ("predict", "--data=new.npz", f"--to=y{name}.npz"),
        ):
            ended = scripted(COMMANDS, word, out, f"--client={name}", *to, cwd=tmp_path)
            assert ended.status == 0
            in_none = f"client={name} trained in none of the 2 rounds"
            warned = f"warning: {in_none}, so a model that ditto keeps"
            assert ended.stderr.startswith(warned if name == never else "")
            assert bool(ended.stderr) == (name == never)
    alone = graphfl_jax.load(tmp_path / f"m{never}.safetensors")
    assert alone.rounds_trained(never) == 0


def test_models_are_loaded_without_the_metrics_of_their_run(made, tmp_path, monkeypatch):
    """An own metric is a function of the user's module, which predictions do not need."""
    loaded = graphfl_jax.load(made[0])
    monkeypatch.setitem(METRICS, "mine", METRICS["rmse"])
    own = change(config(), {"metrics": ("mine",)})
    facts = models.facts_of(build_experiment(own, own_data()), own, 1, None)
    models.write(tmp_path / "other.safetensors", loaded.groups, facts)
    monkeypatch.undo()
    other = graphfl_jax.load(tmp_path / "other.safetensors")
    assert facts["config"]["metrics"] == ("mine",) and "mine" not in METRICS
    expected = loaded.params("Oslo")
    jax.tree.map(np.testing.assert_array_equal, other.params("Oslo"), expected)
