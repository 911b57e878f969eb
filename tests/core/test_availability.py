"""Clients that do not answer: their law, what the others do, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphfl_jax import run
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change
from graphfl_jax.testing.subject import federation, small_config
from graphfl_jax.wire.availability import both, dropout

CONFIG = small_config("ditto", availability__name="dropout", rounds=30, eval_every=30)


def test_clients_drop_out_independently_with_the_same_probability():
    law = dropout(dropout_share=0.3)
    keys = jax.random.split(jax.random.key(1), 5000)
    rounds = jax.vmap(lambda key: law(key, jnp.arange(4), 9))(keys)
    np.testing.assert_allclose(rounds.mean(axis=0), 0.7, atol=5 * 0.46 / 5000**0.5)
    both_present = np.mean(rounds[:, 0] & rounds[:, 1])
    np.testing.assert_allclose(both_present, 0.49, atol=5 * 0.5 / 5000**0.5)


def test_two_laws_hold_together_with_keys_of_their_own():
    keys = jax.random.split(jax.random.key(1), 5000)
    law = both(dropout(dropout_share=0.5), dropout(dropout_share=0.5))
    rounds = jax.vmap(lambda key: law(key, jnp.arange(2), 9))(keys)
    np.testing.assert_allclose(rounds.mean(), 0.25, atol=5 * 0.43 / 10_000**0.5)
    alone = dropout(dropout_share=0.5)
    assert both(None, alone) is alone


def test_without_dropout_a_run_is_the_same_bit_for_bit_and_with_all_nothing_moves(tmp_path):
    """The share is traced, so that all of these runs have one program."""
    plain = run(change(CONFIG, {"availability.name": ""}), federation(), keep_in=False)
    results = [
        run(change(CONFIG, {"hparams.dropout_share": share}), federation(), keep_in=tmp_path)
        for share in (0.0, 0.3, 1.0)
    ]
    finals = [result.results["scores"]["final"] for result in results]
    assert finals[0] == plain.results["scores"]["final"]
    trained = [sum(result.results["rounds_trained"]) for result in results]
    assert trained[0] == 120 and trained[2] == 0  # 30 rounds of four clients
    assert 60 < trained[1] < 105  # 84 in the mean
    never = run(change(CONFIG, {"rounds": 1, "hparams.dropout_share": 1.0}), federation())
    assert never.results["scores"]["final"]["P"] == finals[2]["P"]


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"defence__name": "clip"},
            "defence.name='clip' compares the updates of a cohort, of which some are absent "
            "with availability.name=dropout; leave availability.name empty",
        ),
        ({"hparams__dropout_share": 1.1}, "hparams.dropout_share=1.1"),
        ({"availability__name": "drop"}, "availability.name='drop' is unknown"),
    ],
)
def test_absence_that_does_not_fit_is_refused_in_one_line(fields, message):
    with pytest.raises(ValueError) as error:
        build_experiment(
            small_config("fedavg", **{"availability__name": "dropout"} | fields), federation()
        )
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
