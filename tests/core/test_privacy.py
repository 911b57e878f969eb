"""Differential privacy: moments of what a server reads, accountants, and what is refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from graphfl_jax import load, run
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change
from graphfl_jax.core import Algorithm, Client, Cohort, Server
from graphfl_jax.testing.subject import assert_equal, federation, small_config
from graphfl_jax.wire.accounting import (
    ORDERS,
    Accounting,
    Rounds,
    central_epsilon,
    local_epsilon,
)
from graphfl_jax.wire.privacy import (
    ByClient,
    ByServer,
    Private,
    central,
    local,
    with_privacy,
)

COHORT = Cohort(jnp.arange(4), jnp.array([5.0, 1.0, 2.0, 3.0]))
SENT = np.float32([[1, 0, 0], [2, 0, 1], [0, 0, 0], [1, 1, 1]])
UPDATES = np.float32([[3, 4, 0], [0, 0, 0.5], [0, 30, 40], [1, 0, 0]])
KEYS = jax.random.split(jax.random.key(0), 4000)


def private(privacy, numbers=(4.0,)):
    """An averaging method with privacy, whose server and uploads are vectors."""
    server = Server.of_one(
        init=lambda key, graph: jnp.zeros(3),
        download=lambda model, i: model,
        aggregate=lambda model, cohort, uploads, key: uploads.mean(axis=0),
    )
    client = Client(None, local=lambda *values: None)
    return with_privacy(Algorithm(server, (client,), averages=True), "own", privacy, numbers)


def releases(algorithm, state=None, cohort=COHORT):
    """What the server reads with many keys: its states, the cohorts, and updates [K, M, d]."""

    def one(key):
        uploads = (jnp.asarray(SENT + UPDATES),)
        state_, (known,), (read,) = algorithm.release(
            state, (cohort,), (jnp.asarray(SENT),), uploads, key
        )
        return state_, known, read - SENT

    return jax.jit(jax.vmap(one))(KEYS)


CLIPPED = np.float64(
    [[1.2, 1.6, 0], [0, 0, 0.5], [0, 1.2, 1.6], [1, 0, 0]]
)  # norms of at most 2


def test_the_server_reads_a_noisy_mean_of_clipped_updates():
    _, known, read = releases(private(central(privacy_clip=2.0, privacy_noise=0.5)))
    assert (np.ptp(read, axis=1) < 1e-6).all()  # all clients have the same update
    assert (np.asarray(known.weights) == 1).all()
    error = 5 * 0.25 / math.sqrt(len(KEYS))  # the noise has the deviation 0.5 * 2 / 4
    np.testing.assert_allclose(read[:, 0].mean(axis=0), CLIPPED.sum(axis=0) / 4, atol=error)
    np.testing.assert_allclose(read[:, 0].std(axis=0), 0.25, rtol=0.06)


def test_noise_of_a_deployment_is_that_of_its_cohort():
    deployed = central(privacy_clip=2.0, privacy_noise=0.5, privacy_cohort=100.0)
    _, _, read = releases(private(deployed))
    np.testing.assert_allclose(read[:, 0].std(axis=0), 0.5 * 2 / 100, rtol=0.06)


def test_absent_clients_add_nothing_and_their_number_stays_hidden():
    """The sum is divided by the mean number of a cohort, not by that of those present."""
    some = COHORT._replace(present=jnp.array([True, False, True, False]))
    algorithm = private(central(privacy_clip=2.0, privacy_noise=0.0), numbers=(3.0,))
    _, known, read = releases(algorithm, cohort=some)
    np.testing.assert_allclose(read[0, 0], CLIPPED[[0, 2]].sum(axis=0) / 3, rtol=1e-5)
    assert known.present[0].tolist() == [True, True, True, False]


def test_the_clip_follows_the_quantile_of_the_norms():
    """Half of the norms 5, 0.5, 50 and 1 are up to 2, and the share 0.9 should be."""
    privacy = central(
        privacy_clip=2.0, privacy_noise=0.3, clipping="quantile", privacy_quantile=0.9
    )
    algorithm = private(privacy)
    start = algorithm.server.init(jax.random.key(0), None)
    assert isinstance(start, Private) and float(start.clip) == 2.0
    state, _, read = releases(algorithm, start)
    logs = np.log(np.asarray(state.clip) / 2)
    # -0.2 (b - 0.9), where b has the mean 2/4 and the deviation 1/20
    np.testing.assert_allclose(logs.mean(), 0.2 * 0.4, atol=5 * 0.01 / math.sqrt(len(KEYS)))
    np.testing.assert_allclose(logs.std(), 0.2 / 20, rtol=0.06)
    noise = (0.3**-2 - 0.4**-2) ** -0.5 * 2 / 4
    np.testing.assert_allclose(read[:, 0].std(axis=0), noise, rtol=0.06)


def test_a_client_sends_a_noisy_clipped_update():
    send = private(local(privacy_clip=2.0, privacy_noise=0.5)).client.send
    sent = jax.vmap(lambda key: send((), SENT[0], jnp.asarray(SENT[0] + UPDATES[0]), key)[1])(
        KEYS
    )
    np.testing.assert_allclose(
        sent.mean(axis=0), SENT[0] + CLIPPED[0], atol=5 / math.sqrt(len(KEYS))
    )
    np.testing.assert_allclose(sent.std(axis=0), 1.0, rtol=0.06)


def test_registered_functions_decide_what_the_server_reads():
    """All uploads become the same one; and a client sends what its function returns."""
    some = COHORT._replace(present=jnp.array([True, False, True, False]))

    def mean(updates, present, m, key):
        return jnp.where(present[:, None], updates, 0.0).sum(axis=0) / m

    _, known, read = releases(private(ByServer(mean), numbers=(3.0,)), cohort=some)
    expected = UPDATES[[0, 2]].sum(axis=0) / 3
    np.testing.assert_allclose(read[0], np.broadcast_to(expected, (4, 3)), rtol=1e-5)
    assert known.present[0].tolist() == [True, True, True, False]
    upload = jnp.float32([0.1, 0.7, -3.3])
    for function, sent in (
        (lambda update, key: update, upload),  # bit for bit
        (lambda update, key: 2 * update, SENT[0] + 2 * (upload - SENT[0])),
    ):
        client = private(ByClient(function)).client
        assert client.send((), SENT[0], upload, KEYS[0])[1].tolist() == sent.tolist()


# -------------------------------------------------------------------------------- accountants


def exact_epsilon(noise, rounds, delta):
    """Of Gaussian mechanisms without sampling: Balle and Wang, ICML 2018, Theorem 8."""
    mu = math.sqrt(rounds) / noise

    def excess(epsilon):
        first = norm.cdf(mu / 2 - epsilon / mu)
        return first - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return brentq(excess, 0, 400)


@pytest.mark.parametrize("noise, rounds", [(4.0, 10), (1.0, 1), (20.0, 300)])
def test_epsilon_without_sampling_is_the_exact_one(noise, rounds):
    everyone = Rounds(rounds, 50, 50, poisson=True)
    exact = exact_epsilon(noise, rounds, 1e-5)
    pld, rdp = (
        central_epsilon(noise, everyone, Accounting(name, 1e-5)) for name in ("pld", "rdp")
    )
    np.testing.assert_allclose(pld, exact, rtol=2e-3)
    assert exact <= rdp <= 1.2 * exact
    # In place of each other, two updates have the distance 2 C.
    np.testing.assert_allclose(
        local_epsilon(2 * noise, rounds, Accounting("pld", 1e-5)), exact, rtol=2e-3
    )


def test_epsilon_of_poisson_cohorts_is_the_published_one():
    """Mironov, Talwar and Zhang, 2019, Section 3.3: the divergence at integer orders."""
    noise, share, rounds, delta = 1.1, 256 / 60_000, 14_063, 1e-5

    def divergence(order):
        logs = [
            math.lgamma(order + 1)
            - math.lgamma(k + 1)
            - math.lgamma(order - k + 1)
            + k * math.log(share)
            + (order - k) * math.log1p(-share)
            + (k * k - k) / (2 * noise**2)
            for k in range(order + 1)
        ]
        return np.logaddexp.reduce(logs) / (order - 1)

    # The conversion of Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12.
    expected = min(
        rounds * divergence(a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
        for a in ORDERS[:60]
    )
    ours = central_epsilon(noise, Rounds(rounds, 256, 60_000, True), Accounting("rdp", delta))
    np.testing.assert_allclose(ours, expected, rtol=1e-3)
    fixed = Rounds(rounds, 256, 60_000, False)
    assert ours < central_epsilon(noise, fixed, Accounting("rdp", delta)) < 4 * ours


def test_without_noise_there_is_no_epsilon_and_without_rounds_nothing_is_lost():
    assert central_epsilon(0.0, Rounds(1, 1, 2, True), Accounting("rdp", 1e-5)) == math.inf
    assert local_epsilon(1.0, 0, Accounting("rdp", 1e-5)) == 0.0


# --------------------------------------------------------------------------------------- runs


@pytest.mark.slow
def test_results_state_epsilon(tmp_path):
    """Twice the rounds cost more, and a run without noise has none."""
    fields = {"privacy__name": "central", "cohort": "poisson", "cohort_size": 3}
    config = small_config("fedavg", rounds=4, **fields)
    few, more, none = (
        run(change(config, changes), federation(), keep_in=tmp_path).results["privacy"]
        for changes in ({}, {"rounds": 8}, {"hparams.privacy_noise": 0.0})
    )
    assert 0 < few["epsilon"] < more["epsilon"] and none["epsilon"] is None
    assert (few["name"], few["delta"], few["accountant"]) == ("central", 1e-5, "rdp")
    alone = small_config("panacea", rounds=4, privacy__name="local", privacy__accountant="pld")
    result = run(alone, federation(), keep_in=tmp_path).results
    most = max(result["rounds_trained"])
    expected = local_epsilon(1.0, most, Accounting("pld", 1e-5))
    assert result["privacy"]["epsilon"] == expected


@pytest.mark.slow
def test_without_noise_and_clipping_a_run_is_the_mean_of_equal_clients():
    """All clients of a round, with the same weight; up to rounding, FedAvg of equal sizes."""
    from tests.core.test_flha_ghn import equal_counts

    equal = federation()._replace(data=equal_counts(len(federation().clients)))
    config = small_config("fedavg", rounds=3)
    private_run = {"privacy.name": "central", "hparams.privacy_noise": 0.0}
    results = [
        run(change(config, fields), equal, keep_in=False).results["scores"]["final"]["G"]
        for fields in ({}, private_run | {"hparams.privacy_clip": 1e6})
    ]
    np.testing.assert_allclose(results[0]["mean"], results[1]["mean"], rtol=1e-4)


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(tmp_path):
    fields = {"privacy__name": "central", "privacy__clipping": "quantile", "cohort": "poisson"}
    fields |= {"hparams__privacy_noise": 0.2, "eval_every": 2, "compression__name": "quantise"}
    config = small_config("ditto", rounds=4, **fields)
    run(config, federation(), out=tmp_path / "whole")
    run(change(config, {"rounds": 2}), federation(), out=tmp_path / "parts")
    run(config, federation(), out=tmp_path / "parts", resume=True)
    fleets = [load(tmp_path / name) for name in ("whole", "parts")]
    for client in fleets[0].clients:
        assert_equal(*(fleet.params(client) for fleet in fleets))


@pytest.mark.parametrize(
    "method, fields, message",
    [
        ("panacea", {}, "privacy.name='central' needs a server that averages"),
        ("local", {}, "privacy.name='central' has no effect"),
        (
            "fedavg",
            {"defence__name": "clip"},
            "defence.name='clip' makes the updates of clients depend on each other",
        ),
        (
            "fedavg",
            {"privacy__accountant": "pld"},
            "privacy.accountant=pld does not know fixed cohorts; set --config.cohort=poisson",
        ),
        (
            "fedavg",
            {"privacy__clipping": "quantile", "hparams__privacy_noise": 1.0},
            "hparams.privacy_noise=1 is too large for privacy.clipping=quantile with "
            "cohort_size=4; set less than 0.4",
        ),
        (
            "fedavg",
            {"hparams__privacy_cohort": 100.0},
            "hparams.privacy_population=0 is less than hparams.privacy_cohort=100",
        ),
    ],
)
def test_privacy_that_does_not_fit_is_refused_in_one_line(method, fields, message):
    with pytest.raises(ValueError) as error:
        build_experiment(
            small_config(method, **{"privacy__name": "central"} | fields), federation()
        )
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
