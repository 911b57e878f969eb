"""Further methods against a few lines of NumPy, and cases in which two methods are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax import tree
from graphfl_jax.algorithms.fedbabu import fedbabu
from graphfl_jax.algorithms.tuning import finetune
from graphfl_jax.core import ClientData
from graphfl_jax.trainers import sgd_trainer
from tests.core.test_identities import MODEL, assert_close, distance, fedrep_of, same_batches
from tests.core.test_identities import TRAIN as SAME_TRAIN
from tests.core.test_reference import (
    COUNT,
    KEY,
    PRODUCT,
    RATE,
    TRAIN,
    data,
    play,
    product_slopes,
    squares,
)


def same_examples():
    """The `ClientData` of a client whose examples are equal, so that all batches are."""
    return ClientData(jax.tree.map(jnp.asarray, tree.take(same_batches().train, 2)))


# ------------------------------------------------------------------------------------- FedBABU


def body_steps(b, h, i, steps=3):
    for _ in range(steps):
        b = b - RATE * product_slopes(b, h, i)[0]
    return b


def tuned_product(b, h, i, rate, steps=2):
    for _ in range(steps):
        of_b, of_h = product_slopes(b, h, i)
        b, h = b - rate * of_b, h - rate * of_h
    return b * h


@pytest.mark.parametrize("rate", [0.05, 0.0])
def test_fedbabu_trains_bodies_below_one_random_head_and_tunes_both(rate):
    """With the rate 0 of fine-tuning, P is G."""
    tune = sgd_trainer(optax.sgd(rate), steps=2, batch_size=None)
    algorithm = finetune(fedbabu(PRODUCT, TRAIN), tune, tuning_part="whole")
    first, last, program = play(algorithm, data(), 2)
    b, h = (float(first.server[part][0]) for part in ("body", "head"))
    for _ in range(2):
        before, b = b, COUNT @ [body_steps(b, h, i) for i in range(3)] / COUNT.sum()
    np.testing.assert_allclose(last.server["body"][0], b, rtol=1e-5)
    np.testing.assert_array_equal(last.server["head"], first.server["head"])
    scores = program.evaluate(last, KEY, {}, data())[0]["test"]
    np.testing.assert_allclose(scores["G"], squares([b * h] * 3), rtol=1e-4)
    local = [body_steps(b, h, i) * h for i in range(3)]
    np.testing.assert_allclose(scores["L"], squares(local), rtol=1e-4)
    personal = [tuned_product(b, h, i, rate) for i in range(3)]
    np.testing.assert_allclose(scores["P"], squares(personal), rtol=1e-4)
    assert abs(before - b) > 1e-3


def test_fedbabu_is_fedrep_without_steps_of_the_head_from_an_equal_head():
    ours, theirs = fedbabu(MODEL, SAME_TRAIN).client, fedrep_of(0).client
    w = MODEL.init(KEY)

    @jax.jit
    def both(w, data):
        head, sent, _ = ours.local(w, ours.enroll(w, KEY), data, KEY)
        return (head, sent["body"]), theirs.local(w["body"], w["head"], data, KEY)[:2]

    ours, theirs = both(w, same_examples())
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert distance(ours[1], w["body"]) > 1e-3
