"""The simulated clock: how long clients take, for whom a server waits, and what it records."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphfl_jax import run
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change
from graphfl_jax.core import Cohort
from graphfl_jax.rounds import message_bytes
from graphfl_jax.runs.views import per_round
from graphfl_jax.testing.subject import federation, small_config
from graphfl_jax.wire.clock import Clock, devices, law_of, with_deadline

IDS = jnp.array([0, 3, 4, 7], jnp.int32)
CLOCK = devices(step_seconds=0.5, bandwidth=100.0)
SENT = 150.0  # bytes


def speeds_by_hand(i):
    """Seconds of a step and bytes in a second of client i."""
    normal = jax.random.normal(jax.random.fold_in(jax.random.key(0x5EED), i), (2,))
    return 0.5 * np.exp(0.5 * float(normal[0])), 100.0 * np.exp(0.5 * float(normal[1]))


def waited(clock, cohort, steps=4.0):
    """The cohort after the law of a clock, with so many local steps."""
    law = law_of(clock, lambda weights: jnp.full(len(weights), steps), [SENT], None)
    return law(jax.random.key(0), (cohort,), (9,), ())[0]


def seconds_by_hand(steps):
    taken = [speeds_by_hand(i) for i in IDS.tolist()]
    return np.array(
        [k * step + SENT / rate for k, (step, rate) in zip(steps, taken, strict=True)]
    )


def test_a_server_waits_for_all_clients():
    after = waited(CLOCK, Cohort(IDS, jnp.ones(4)))
    assert after.present is None and after.work is None
    np.testing.assert_allclose(after.seconds, seconds_by_hand([4] * 4), rtol=1e-5)


def test_speeds_are_log_normal_and_the_same_in_all_runs():
    step, rate = CLOCK.speeds(jnp.arange(4000))
    for values, median in ((step, 0.5), (rate, 100.0)):
        logs = np.log(np.asarray(values) / median)
        np.testing.assert_allclose([logs.mean(), logs.std()], [0.0, 0.5], atol=0.03)
    correlation = np.corrcoef(np.log(step), np.log(rate))[0, 1]
    assert abs(correlation) < 0.08


def test_a_client_with_a_share_of_the_steps_takes_their_time():
    cohort = Cohort(IDS, jnp.ones(4), None, jnp.array([0.25, 1.0, 0.5, 0.75]))
    after = waited(CLOCK, cohort)
    np.testing.assert_allclose(after.seconds, seconds_by_hand([1, 4, 2, 3]), rtol=1e-5)


@pytest.mark.parametrize("wait_for", [1, 2, 3])
def test_a_server_waits_for_the_first_of_a_cohort(wait_for):
    """Who is absent for another reason is not waited for."""
    present = jnp.array([True, True, False, True])
    after = waited(CLOCK._replace(wait_for=wait_for), Cohort(IDS, jnp.ones(4), present))
    taken = seconds_by_hand([4] * 4)
    fastest = sorted([0, 1, 3], key=lambda i: taken[i])[:wait_for]
    assert np.flatnonzero(after.present).tolist() == sorted(fastest)
    np.testing.assert_allclose(jnp.max(after.seconds), taken[fastest[-1]], rtol=1e-5)


def test_a_server_that_waits_for_more_than_are_present_waits_for_these():
    present = jnp.array([True, False, False, True])
    after = waited(CLOCK._replace(wait_for=3), Cohort(IDS, jnp.ones(4), present))
    assert after.present.tolist() == present.tolist()
    taken = np.where(present, seconds_by_hand([4] * 4), 0.0)
    np.testing.assert_allclose(after.seconds, taken, rtol=1e-5)


def test_late_clients_are_dropped_and_the_round_ends_at_the_deadline():
    taken = seconds_by_hand([4] * 4)
    deadline = float(np.mean(np.sort(taken)[1:3]))
    clock = with_deadline(clock=CLOCK, deadline=deadline)
    after = waited(clock, Cohort(IDS, jnp.ones(4)))
    assert after.present.tolist() == (taken <= deadline).tolist()
    np.testing.assert_allclose(after.seconds, np.minimum(taken, deadline), rtol=1e-5)
    nobody_late = waited(clock._replace(deadline=100.0), Cohort(IDS, jnp.ones(4)))
    assert nobody_late.present.all()
    np.testing.assert_allclose(jnp.max(nobody_late.seconds), taken.max(), rtol=1e-5)


def test_clients_take_as_many_steps_as_fit_before_the_deadline():
    """With 40 steps; the last two clients are down, or too slow for a single one."""
    slow = Clock(0.5, 0.5, 100.0, 0.5, deadline=jnp.float32(6.0), late="shorten")
    after = waited(slow, Cohort(IDS, jnp.ones(4), jnp.array([True] * 3 + [False])), 40.0)
    for place, i in enumerate(IDS.tolist()):
        step, rate = speeds_by_hand(i)
        fitting = min(40, int((6.0 - SENT / rate) // step))
        assert after.present[place] == (fitting >= 1 and place < 3)
        if after.present[place]:
            assert round(40 * float(after.work[place])) == fitting
            expected = fitting * step + SENT / rate
            np.testing.assert_allclose(after.seconds[place], expected, rtol=1e-5)
    nobody = waited(slow._replace(deadline=0.01), Cohort(IDS, jnp.ones(4)), 40.0)
    assert not nobody.present.any() and (nobody.work > 0).all()


CONFIG = small_config("fedavg", clock__name="devices", rounds=4, eval_every=2)


@pytest.mark.slow
def test_results_have_the_seconds_of_all_rounds(tmp_path):
    """Each round takes as long as its slowest client, with the bytes of a message and an
    upload. A run in two parts has the same."""
    result = run(CONFIG, federation(), out=tmp_path / "whole")
    run(change(CONFIG, {"rounds": 2}), federation(), out=tmp_path / "parts")
    parts = run(CONFIG, federation(), out=tmp_path / "parts", resume=True)
    total = result.results["simulated_seconds"]
    assert parts.results["simulated_seconds"] == total
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line)["simulated_seconds"] for line in lines]
    assert 0 < rows[0] < rows[1] == total
    assert per_round(result.results, "clock") == total / 4
    experiment = build_experiment(CONFIG, federation())
    algorithm = experiment.build(experiment.hparams, 0)
    ((down, up),) = message_bytes(algorithm, experiment.federation.data)
    clock, everyone = devices(), jnp.arange(7)
    each = np.asarray(clock.seconds(everyone, jnp.full(7, 5.0), down + up))
    assert 4 * each.min() < total <= 4 * each.max()
    plain = run(change(CONFIG, {"clock.name": ""}), federation(), keep_in=False)
    assert plain.results["scores"]["final"] == result.results["scores"]["final"]
    assert plain.results["simulated_seconds"] is None
    with pytest.raises(ValueError, match="over=clock needs simulated seconds"):
        per_round(plain.results, "clock")


@pytest.mark.slow
def test_clients_on_the_host_have_the_bits_of_those_on_the_device():
    config = change(CONFIG, {"clock.wait_for": 2, "stragglers.name": "uniform"})
    results = [
        run(change(config, {"data.storage": storage}), federation(), keep_in=False).results
        for storage in ("device", "host")
    ]
    for name in ("scores", "rounds_trained", "simulated_seconds"):
        assert results[0][name] == results[1][name]


@pytest.mark.parametrize(
    "method, fields, message",
    [
        (
            "fedavg",
            {"clock__wait_for": 5},
            "clock.wait_for=5 is more than cohort_size=4; set --config.clock.wait_for=4 or "
            "less",
        ),
        (
            "fedavg",
            {"clock__wait_for": 2, "defence__name": "median"},
            "defence.name='median' compares the updates of a cohort, of which some are absent "
            "with clock.wait_for=2; set --config.clock.wait_for=0",
        ),
        (
            "fedbuff",
            {"clock__name": "deadline"},
            "algorithm.name='fedbuff' draws its cohorts itself, and not as "
            "clock.name=deadline; set --config.clock.name=devices",
        ),
        (
            "fedbuff",
            {"stragglers__name": "uniform"},
            "algorithm.name='fedbuff' plans how long clients take, and "
            "stragglers.name=uniform changes it; leave stragglers.name empty",
        ),
        (
            "fedbuff",
            {"local_epochs": 1},
            "algorithm.name='fedbuff' plans the time of local_steps, and local_epochs=1 takes "
            "others; set --config.local_epochs=0",
        ),
        (
            "fedbuff",
            {"clock__name": ""},
            "algorithm.name='fedbuff' needs to know how long clients take; set "
            "--config.clock.name=devices",
        ),
        (
            "fedbuff",
            {"algorithm__fedbuff_concurrency": 4},
            "algorithm.fedbuff_concurrency=4 and cohort_size=4 together are more than 7 "
            "clients; set --config.algorithm.fedbuff_concurrency=3",
        ),
    ],
)
def test_clocks_that_do_not_fit_are_refused_in_one_line(method, fields, message):
    with pytest.raises(ValueError) as error:
        build_experiment(
            small_config(method, **{"clock__name": "devices"} | fields), federation()
        )
    assert str(error.value) == message
