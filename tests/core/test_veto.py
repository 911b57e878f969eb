"""A client's veto: what it trains and predicts with, limits, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.algorithms.veto import ALONE
from graphfl_jax.build import build_experiment
from graphfl_jax.core import Predictor
from graphfl_jax.program import Program
from graphfl_jax.testing.subject import assert_equal, federation, floats, small_config

ALWAYS = {"hparams__veto_margin": 1e9, "hparams__veto_prediction_margin": 1e9}
NEVER = {"hparams__veto_margin": -1.0, "hparams__veto_prediction_margin": -1.0}


def experiment_of(method, **fields):
    fields = {"local_steps": 8, "defence__veto": True, **fields}
    return build_experiment(small_config(method, **fields), federation())


def inputs_of(experiment):
    inputs = jax.random.key(3), floats(experiment.hparams), experiment.federation.data
    return jax.tree.map(jnp.asarray, inputs)


def played(experiment, rounds=2):
    inputs = inputs_of(experiment)
    program = Program(experiment.build, experiment.groups)
    state = program.start(*inputs)
    return jax.jit(program.advance)(state, *inputs, jnp.int32(rounds))[0]


@pytest.mark.parametrize("method", ["ditto", pytest.param("panacea", marks=pytest.mark.slow)])
def test_with_an_infinite_margin_it_is_the_method_with_the_remaining_steps(method):
    """A quarter of eight steps trains the client's own model, and six are the method's."""
    cautious = played(experiment_of(method, **ALWAYS))
    plain = played(experiment_of(method, defence__veto=False, local_steps=6))
    assert_equal(cautious.server, plain.server, rtol=1e-5, atol=1e-7)
    memories = [kept.memory for kept in cautious.clients]
    assert_equal(memories, list(plain.clients), rtol=1e-5, atol=1e-7)


def client_and_data(experiment, i=2):
    algorithm = experiment.build(floats(experiment.hparams), 0)
    data = jax.tree.map(
        lambda leaf: jnp.asarray(leaf)[i], algorithm.client_data(experiment.federation.data)
    )
    return algorithm.client, data


def shifted(params, by):
    return jax.tree.map(lambda leaf: leaf + by, params)


def mean_loss(model, params, val):
    real = np.arange(val.size) < int(val.count)
    losses = model.task.loss(model.apply(params, val.rows(jnp.arange(val.size)).x), val.y)
    return float(np.mean(np.asarray(losses)[real]))


def test_a_client_starts_from_the_better_model_and_predicts_with_it():
    """Its own model is trained alone, whatever it receives."""
    experiment = experiment_of("fedavg", hparams__veto_margin=0.0)
    client, data = client_and_data(experiment)
    model, key = client.model, jax.random.key(5)
    local = jax.jit(lambda message, held: client.local(message, held, data, key))
    good = model.init(jax.random.key(1))
    for _ in range(20):  # a model that the client's examples have trained
        good = local(good, client.enroll(good, key))[1]
    held = client.enroll(good, key)
    assert_equal(held.alone, model.init(jax.random.fold_in(key, ALONE)))
    bad = shifted(good, 30.0)
    after_good, upload_good, metrics = local(good, held)
    after_bad, upload_bad, other = local(bad, held)
    assert float(metrics["vetoed"]) == 0 and float(other["vetoed"]) == 1
    assert_equal(after_good.alone, after_bad.alone)
    # The upload is trained from the client's own model, and not from what it got.
    (_, from_alone, _) = local(after_bad.alone, held)
    assert_equal(upload_bad, from_alone)
    assert mean_loss(model, upload_bad, data.val) < mean_loss(model, bad, data.val)
    for message, expected in ((good, good), (bad, after_bad.alone)):
        predictor = client.personalize(message, after_bad, data, key)
        assert_equal(predictor.params, expected)
        x = data.val.rows(jnp.arange(3)).x
        assert_equal(model.predict(predictor, x), model.apply(expected, x), rtol=1e-6)
    broken = shifted(good, np.nan)
    assert_equal(client.personalize(broken, after_bad, data, key).params, after_bad.alone)


def test_a_client_predicts_with_what_is_right_more_often_and_of_equals_with_the_lower_loss():
    """The loss of a mistake with confidence does not outweigh all that is right."""
    experiment = experiment_of("fedavg")
    client, data = client_and_data(experiment)
    model, key = client.model, jax.random.key(5)
    guess = jax.tree.map(jnp.zeros_like, model.init(key))
    alone = model.init(key)
    local = jax.jit(client.local)
    for _ in range(20):
        alone = local(alone, client.enroll(alone, key), data, key)[1]
    alone = alone | {"head": jax.tree.map(lambda leaf: 1000.0 * leaf, alone["head"])}
    right = model.apply(alone, data.val.x).argmax(axis=-1).astype(data.val.y.dtype)
    y = jnp.where(jnp.arange(data.val.size) == 0, 1 - right, right)  # one is wrong
    data = data._replace(val=data.val._replace(y=y))
    held = client.enroll(guess, key)._replace(alone=alone)
    assert mean_loss(model, alone, data.val) > 2 * mean_loss(model, guess, data.val)
    assert_equal(client.personalize(guess, held, data, key).params, alone)
    softer = alone | {"head": jax.tree.map(lambda leaf: 0.01 * leaf, alone["head"])}
    assert_equal(client.personalize(softer, held, data, key).params, softer)
    softly = held._replace(alone=softer)
    assert_equal(client.personalize(alone, softly, data, key).params, softer)


def test_where_no_model_is_sent_a_client_keeps_what_it_had_and_sends_it_untrained():
    experiment = experiment_of("fedrep", hparams__veto_margin=0.0)
    client, data = client_and_data(experiment)
    key = jax.random.key(5)
    algorithm = experiment.build(floats(experiment.hparams), 0)
    message = algorithm.server.download(
        algorithm.server.init(key, experiment.federation.data.graph), 0, 2
    )
    held, bad = client.enroll(message, key), shifted(message, 30.0)
    after, upload, metrics = client.local(bad, held, data, key)
    assert float(metrics["vetoed"]) == 1
    assert_equal(after.memory, held.memory)
    assert_equal(upload, client.untrained(bad, held, data))


def test_a_client_that_never_trusts_predicts_as_one_that_trains_alone():
    """With all of its steps, and keys of its own."""
    experiment = experiment_of("fedavg", defence__veto_steps=8, **NEVER)
    client, data = client_and_data(experiment)
    key, model = jax.random.key(5), client.model
    message = model.init(jax.random.key(1))
    after, _, _ = client.local(message, client.enroll(message, key), data, key)
    alone = build_experiment(small_config("local", local_steps=8), federation())
    trains_alone, data_alone = client_and_data(alone)
    start = model.init(jax.random.fold_in(key, ALONE))
    expected, _, _ = trains_alone.local((), start, data_alone, jax.random.fold_in(key, ALONE))
    assert_equal(after.alone, expected, rtol=1e-6)
    assert_equal(client.personalize(message, after, data, key).params, after.alone)
    predictor = client.personalize(message, after, data, key)
    assert isinstance(predictor, Predictor) and not predictor.extra.trusted


@pytest.mark.slow
def test_clients_go_on_alone_when_attackers_destroy_the_server():
    """Their uploads are too large for a mean, or make all models overflow."""
    fields = {
        "attack__name": "poisoning",
        "hparams__attack_ratio": 0.5,
        "hparams__attack_lambda": 3e38,
        "data__val_fraction": 0.2,
        "rounds": 4,
        "eval_every": 4,
    }
    plain = graphfl_jax.run(small_config("fedavg", **fields))
    assert plain.results["diverged"]
    vetoed = graphfl_jax.run(small_config("fedavg", defence__veto=True, **fields))
    assert not vetoed.results["diverged"]
    assert np.isfinite(vetoed.results["scores"]["final"]["P"]["per_client"]).all()


@pytest.mark.parametrize(
    "method, fields, message",
    [
        (
            "fedavg",
            {"defence__veto_steps": 9},
            "defence.veto_steps=9 is more than local_steps=8; set "
            "--config.defence.veto_steps=8 or less",
        ),
        (
            "pfedgat-paper",
            {"cohort_size": 7},
            "defence.veto needs validation examples, and clients of this method have those of "
            "the split test; set --config.defence.veto=false",
        ),
    ],
)
def test_a_veto_that_does_not_fit_is_refused_in_one_line(method, fields, message):
    with pytest.raises(ValueError) as error:
        experiment_of(method, **fields)
    assert str(error.value) == message
