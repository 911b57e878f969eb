"""Cohorts of random size: their law, empty rounds, and what is refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

from graphfl_jax import load, run
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change
from graphfl_jax.core import Cohort
from graphfl_jax.rounds import draw_cohort, known_to_server, present_first
from graphfl_jax.runs.session import program_of
from graphfl_jax.runs.views import per_round
from graphfl_jax.testing.subject import assert_equal, federation, floats, small_config
from graphfl_jax.wire.poisson import MISSED, places, poisson_cohorts

CONFIG = small_config("fedavg", cohort="poisson", cohort_size=2, rounds=12, eval_every=6)


@pytest.mark.parametrize("size, clients", [(5, 48), (1, 6), (100, 1000), (100, 10**6), (7, 7)])
def test_a_round_has_places_for_all_but_a_tiny_share_of_cohorts(size, clients):
    """One place fewer would be too few, unless there is one for each client."""
    number = places(size, clients)
    assert binom.sf(number, clients, size / clients) <= MISSED
    if size < clients:
        assert number <= clients
        assert number == 1 or binom.sf(number - 1, clients, size / clients) > MISSED
    else:
        assert number == clients


def test_each_client_takes_part_with_the_same_probability_whatever_others_do():
    clients, size, draws = 12, 3, 20_000
    number = places(size, clients)
    law = poisson_cohorts(size)

    @jax.jit
    @jax.vmap
    def drawn(key):
        key_cohort, key_present = jax.random.split(key)
        cohort = draw_cohort(key_cohort, jnp.ones(clients, jnp.int32), number)
        (cohort,) = law(key_present, (cohort,), (clients,), ())
        _, cohort = present_first(cohort.ids, cohort)
        takes_part = jnp.zeros(clients).at[known_to_server(cohort).ids].set(1.0)
        return takes_part

    rounds = np.asarray(drawn(jax.random.split(jax.random.key(0), draws)))
    share = size / clients
    np.testing.assert_allclose(rounds.mean(axis=0), share, atol=5 * 0.44 / draws**0.5)
    counts = rounds.sum(axis=1)
    law = binom.pmf(np.arange(clients + 1), clients, share)
    np.testing.assert_allclose(
        np.bincount(counts.astype(int), minlength=clients + 1) / draws,
        law,
        atol=5 * 0.5 / draws**0.5,
    )
    both = (rounds.T @ rounds / draws)[~np.eye(clients, dtype=bool)]
    np.testing.assert_allclose(both, share**2, atol=5 * 0.25 / draws**0.5)


def test_those_who_are_present_come_first_in_the_order_of_their_numbers():
    cohort = Cohort(jnp.array([2, 3, 5, 8]), jnp.array([1.0, 2.0, 3.0, 4.0]))
    those = cohort.of_those(jnp.array([False, True, False, True]))
    places, some = present_first(jnp.arange(4), those)
    assert places.tolist() == [1, 3, 0, 2]
    assert some.ids.tolist() == [3, 8, 2, 5] and some.weights.tolist() == [2, 4, 0, 0]
    assert float(some.number) == 2 and float(cohort.number) == 4
    assert known_to_server(some).ids.tolist() == [3, 8, 2**31 - 1, 2**31 - 1]
    _, nobody = present_first(places, those.of_those(jnp.array([True, False, True, False])))
    assert float(nobody.number) == 1  # so that nothing is divided by 0


def test_a_round_without_a_client_changes_nothing():
    """Rounds are counted, but neither the server nor a client moves."""
    config = change(small_config("ditto"), {"cohort": "poisson", "cohort_size": 1})
    experiment = build_experiment(config, federation())
    program, data = program_of(experiment, config), experiment.federation.data
    advance, hparams = jax.jit(program.advance), floats(experiment.hparams)
    sizes = set()
    for seed in range(12):
        inputs = jax.random.key(seed), hparams, data
        start = program.start(*inputs)
        after, log = advance(start, *inputs, jnp.int32(1))
        trained = int(log.participation.trained.sum())
        sizes.add(trained)
        same = all(
            np.array_equal(old, new)
            for old, new in zip(
                *map(jax.tree.leaves, (start._replace(round=after.round), after)), strict=True
            )
        )
        assert same == (trained == 0) and int(after.round) == 1
    assert {0, 1} < sizes


@pytest.mark.slow
def test_results_say_how_often_each_client_trained(tmp_path):
    result = run(CONFIG, federation(), out=tmp_path / "run")
    trained = result.results["rounds_trained"]
    assert 10 < sum(trained) < 40  # 24 in the mean
    assert result.results["communication"]["clients"] == 2
    assert per_round(result.results, "steps") == pytest.approx(2 * CONFIG.local_steps)
    saved = load(tmp_path / "run")
    numbers = [saved.rounds_trained(client) for client in saved.clients]
    assert numbers == trained


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(tmp_path, method):
    config = change(small_config(method), {"cohort": "poisson", "rounds": 4, "eval_every": 2})
    run(config, federation(), out=tmp_path / "whole")
    run(change(config, {"rounds": 2}), federation(), out=tmp_path / "parts")
    run(config, federation(), out=tmp_path / "parts", resume=True)
    texts = [(tmp_path / name / "results.json").read_text() for name in ("whole", "parts")]
    whole, parts = map(json.loads, texts)
    assert whole["scores"] == parts["scores"]
    assert whole["rounds_trained"] == parts["rounds_trained"]
    fleets = [load(tmp_path / name) for name in ("whole", "parts")]
    for client in fleets[0].clients:
        assert_equal(*(fleet.params(client) for fleet in fleets))


@pytest.mark.slow
def test_clients_on_the_host_have_the_bits_of_those_on_the_device():
    results = [
        run(change(CONFIG, {"data.storage": storage}), federation(), keep_in=False)
        for storage in ("device", "host")
    ]
    for name in ("scores", "rounds_trained"):
        assert results[0].results[name] == results[1].results[name]


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"defence__name": "median"},
            "defence.name='median' compares the updates of a cohort, of which some are absent "
            "with cohort=poisson; set --config.cohort=fixed",
        ),
        (
            {"new_clients__fraction": 0.3, "new_clients__join": "together"},
            "cohort=poisson does not fit new_clients.join=together, whose cohorts have a fixed "
            "share of all clients; set --config.cohort=fixed",
        ),
        ({"cohort": "some"}, "cohort='some' is unknown; choose from fixed, poisson"),
    ],
)
def test_poisson_cohorts_that_do_not_fit_are_refused_in_one_line(fields, message):
    with pytest.raises(ValueError) as error:
        build_experiment(small_config("fedavg", **{"cohort": "poisson"} | fields), federation())
    assert str(error.value) == message
