"""Who took part in which rounds: entries of few clients, on disk and in results."""

import json

import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.commands.common.finished_runs import read_run
from graphfl_jax.commands.common.result_tables import rounds_by_client
from graphfl_jax.commands.reporting.folders import run_facts
from graphfl_jax.program import NOBODY, Participation, in_total
from graphfl_jax.runs import folder, results
from tests.federations import small_config, two_clusters


def some_participation(rng, clients):
    """Of a few clients, of which no number but that of the last one was not finite."""
    trained, not_finite = np.zeros((2, clients), np.int32)
    drawn = rng.choice(clients, 3, replace=False)
    trained[drawn] = rng.integers(1, 5, 3)
    not_finite[drawn[-1]] = 2
    return Participation(trained, not_finite, np.array([rng.integers(1, 9), drawn[-1]]))


def dense(participation, clients):
    trained, not_finite = np.zeros((2, clients), np.int32)
    trained[participation.ids] = participation.trained
    not_finite[participation.ids] = participation.not_finite
    return Participation(trained, not_finite, participation.first)


def assert_same(one_form, other):
    np.testing.assert_array_equal(one_form.trained, other.trained)
    np.testing.assert_array_equal(one_form.not_finite, other.not_finite)
    np.testing.assert_array_equal(one_form.first, other.first)


@pytest.mark.parametrize("kinds", ["ss", "sds", "nss", "nd"])
def test_sums_of_few_clients_are_those_of_all(kinds):
    """Of entries of few clients (s), of all (d), and of nobody (n)."""
    rng, clients = np.random.default_rng(0), 11
    whole = [some_participation(rng, clients) for kind in kinds if kind != "n"]
    parts = iter(whole)
    mixed = [
        NOBODY if kind == "n" else next(parts).sparse() if kind == "s" else next(parts)
        for kind in kinds
    ]
    total, expected = in_total(mixed), in_total(whole)
    assert expected.ids is None and (np.diff(total.ids) > 0).all()
    assert_same(dense(total, clients), expected)
    everyone = np.arange(clients)
    for order in (everyone, everyone[::-3]):
        rounds = total.rounds_trained(order)
        np.testing.assert_array_equal(rounds, expected.rounds_trained(order))
    assert total.not_finite_rounds() == expected.not_finite_rounds()
    assert set(expected.not_finite_rounds()) == set(np.flatnonzero(expected.not_finite))


def test_rows_of_several_lengths_are_packed_and_read():
    rng = np.random.default_rng(1)
    parts = [NOBODY, *(some_participation(rng, 9).sparse() for _ in range(3)), NOBODY]
    for some in (parts, parts[:1]):
        packed = folder._pack([part._asdict() for part in some])
        assert all(leaf.size for leaf in packed.values())  # Orbax refuses others
        for part, row in zip(some, folder._unpack(packed), strict=True):
            assert_same(Participation(**row), part)
            np.testing.assert_array_equal(row["ids"], part.ids)


def pack_as_before(parts):
    """As version 0.1.0 wrote it: [rows, 9] for all of 9 clients."""
    whole = [dense(Participation(**part), 9) for part in parts]
    names = ("trained", "not_finite", "first")
    return {name: np.stack([getattr(part, name) for part in whole]) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("written", ["now", "dense", "unknown"])
def test_a_run_goes_on_from_checkpoints_of_older_releases(tmp_path, monkeypatch, written):
    config = small_config("ditto", rounds=4, eval_every=1, checkpoint_every=1, cohort_size=2)
    whole = graphfl_jax.run(config, two_clusters(9)).results
    with monkeypatch.context() as patch:
        if written == "dense":
            patch.setattr(folder, "_pack", pack_as_before)
        half = small_config("ditto", rounds=2, eval_every=1, checkpoint_every=1, cohort_size=2)
        graphfl_jax.run(half, two_clusters(9), out=tmp_path / "run")
        if written == "unknown":
            read = folder.checkpoint.latest

            def without_participation(*arguments):
                newest = read(*arguments)
                newest.history.pop("participation")
                return newest

            patch.setattr(folder.checkpoint, "latest", without_participation)
        resumed = graphfl_jax.run(config, two_clusters(9), out=tmp_path / "run", resume=True)
    known = None if written == "unknown" else whole["rounds_trained"]
    assert resumed.results["rounds_trained"] == known
    assert sum(whole["rounds_trained"]) == 4 * 2
    assert resumed.results["scores"] == whole["scores"]
    for row in resumed.rows[2:]:  # two clients of nine trained
        assert row["participation"]["trained"].tolist() == [1, 1]


@pytest.mark.slow
def test_results_of_a_sample_have_the_rounds_of_its_clients(tmp_path):
    """Also in the file of models; of the other clients, nothing is stated."""
    settings = {"rounds": 3, "eval_every": 1, "cohort_size": 2}
    all_scored = graphfl_jax.run(small_config("ditto", **settings), two_clusters(9)).results
    config = small_config("ditto", eval__clients=4, **settings)
    sampled = graphfl_jax.run(config, two_clusters(9), out=tmp_path / "run").results
    ids = sampled["sample"]["ids"]
    expected = [all_scored["rounds_trained"][i] for i in ids]
    assert sampled["rounds_trained"] == expected and len(set(expected)) > 1
    assert rounds_by_client(sampled) == dict(zip(ids, expected, strict=True))
    fleet = graphfl_jax.load(tmp_path / "run")
    rounds = {fleet.clients.index(name): fleet.rounds_trained(name) for name in fleet.clients}
    assert rounds == dict.fromkeys(range(9)) | dict(zip(ids, expected, strict=True))
    # A file of version 0.1.0 has the rounds of all clients.
    older = sampled | {"rounds_trained": all_scored["rounds_trained"]}
    assert rounds_by_client(older) == dict(enumerate(all_scored["rounds_trained"]))


@pytest.mark.release
def test_the_description_of_many_clients_has_those_that_are_scored(tmp_path, monkeypatch):
    """Reports and runs that begin with this one's server can read it."""
    monkeypatch.setattr(results, "DESCRIBED", 8)
    config = small_config("sfl", rounds=1, eval_every=1, eval__clients=4)
    config = graphfl_jax.configs.change(config, {"new_clients.fraction": 0.23})
    run = graphfl_jax.run(config, two_clusters(9), out=tmp_path / "run")
    described = json.loads((tmp_path / "run" / "federation.json").read_text())
    ids = [*run.results["sample"]["ids"], 7, 8]
    names = [run.federation.clients[i] for i in ids]
    assert described["listed"]["of"] == 9 and described["listed"]["ids"] == ids
    assert [client["name"] for client in described["clients"]] == names
    assert [client["new"] for client in described["clients"]] == [False] * 4 + [True] * 2
    counts = np.asarray(run.federation.everyone.train.count)[ids].tolist()
    assert [client["examples"]["train"] for client in described["clients"]] == counts
    assert described["relations"] == []

    facts = run_facts(read_run(tmp_path / "run"))
    assert [client["name"] for client in facts["clients"]] == names
    final = run.results["scores"]["final"]["P"]["per_client"]
    assert facts["scores"]["P"][:4] == final and len(facts["scores"]["P"]) == 6
    trained = [client["trained"] for client in facts["clients"]]
    assert trained == run.results["rounds_trained"] + [None, None]
    assert (
        facts["map"] is None
        and "of the 9 clients, federation.json has the 6" in (facts["why_no_map"])
    )

    following = graphfl_jax.configs.change(config, {"init_from": str(tmp_path / "run")})
    graphfl_jax.run(following, two_clusters(9))
    path = tmp_path / "run" / "federation.json"
    described["listed"]["sha256"] = results.digest_of_names(["other", *names])
    path.write_text(json.dumps(described))
    with pytest.raises(ValueError, match="other clients that train: 7 there and 7 here"):
        graphfl_jax.run(following, two_clusters(9))
    described["listed"]["ids"][0] = 9
    path.write_text(json.dumps(described))
    with pytest.raises(ValueError, match="listed does not fit the clients"):
        run_facts(read_run(tmp_path / "run"))
