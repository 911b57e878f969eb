"""Local training: its batches, its loss and what optimisers get."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax.draws import draw_uniform
from graphfl_jax.examples import Examples
from graphfl_jax.optimizers import OPTIMIZERS
from graphfl_jax.trainers import client_trainer, epoch_trainer, sgd_trainer

KEY = jax.random.key(2)
STEP = optax.sgd(1.0)
# Three examples of a client, without padding.
THREE = Examples(np.float32([1, 2, 3]), np.float32([1, 1, -2]), np.int32(3))


def trained(trainer, objective, start=0.0, key=KEY, examples=THREE):
    """The weight after training, and the loss."""
    train = jax.jit(functools.partial(trainer, objective))
    params, metrics = train(np.float32(start), examples, key)
    return params, metrics["loss"]


def squares(w, batch, key):
    return jnp.mean(jnp.square(w * batch.x - batch.y))


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 0), (2, 50, 64)])
def test_uniform_draws_are_those_of_jax(kind, shape):
    keys = jax.random.split(jax.random.key(2**32 - 5, impl=kind), 3)
    for map_over in (lambda draw: jax.vmap(draw)(keys), lambda draw: draw(keys[1])):
        for ordered in (True, False):  # the words that are encrypted, of which one is an option
            with jax.threefry_partitionable(ordered):
                drawn = map_over(lambda key: draw_uniform(key, shape))
                expected = map_over(lambda key: jax.random.uniform(key, shape))
            np.testing.assert_array_equal(drawn, expected, strict=True)


def test_the_loss_is_the_mean_over_the_steps():
    """The weight is the loss, and falls by 1 in every step."""
    train = sgd_trainer(STEP, steps=3, batch_size=2)
    w, loss = trained(train, lambda w, batch, key: w)
    assert (w, loss) == (-3, (0 - 1 - 2) / 3)


def test_a_batch_counts_no_more_than_the_examples_that_are_left():
    """An epoch over three examples has a batch of two, and then of one."""
    train = epoch_trainer(STEP, epochs=1, batch_size=2)
    w, _ = trained(train, lambda w, batch, key: w * batch.count.astype(jnp.float32))
    assert w == -(2 + 1)


@pytest.mark.parametrize(
    "train",
    [
        sgd_trainer(STEP, steps=2, batch_size=None),
        epoch_trainer(STEP, epochs=2, batch_size=3),
        epoch_trainer(STEP, epochs=1, batch_size=8),
    ],
    ids=["all examples", "a last batch", "one batch"],
)
def test_all_rows_of_a_batch_are_examples(train):
    """Of five rows four are real. A model may mix the rows, as batch normalisation does."""
    x = np.float32([1, 2, 3, 4, 1e6])
    padded = Examples(x, np.zeros(5, np.float32), np.int32(4))
    largest = lambda w, batch, key: w * jnp.max(batch.x)  # noqa: E731
    w, _ = trained(train, largest, examples=padded)
    assert -4 * 4 <= w <= -4


def test_epochs_are_shuffled():
    """Single examples in another order lead to another weight; there are six orders."""
    train = epoch_trainer(optax.sgd(0.1), epochs=1, batch_size=1)
    each = jax.vmap(lambda key: trained(train, squares, 0.5, key)[0])
    found = np.asarray(jax.jit(each)(jax.random.split(KEY, 20)))
    assert len(set(np.round(found, 4))) > 3


@pytest.mark.parametrize(
    "make",
    [functools.partial(sgd_trainer, steps=1), functools.partial(epoch_trainer, epochs=1)],
)
@pytest.mark.parametrize("rate", [0.01, 10.0])
def test_optimisers_get_the_value_of_the_loss(make, rate):
    """Polyak's step size is min(rate, loss / gradient^2)."""
    one = Examples(np.float32([3]), np.float32([1]), np.int32(1))
    train = make(OPTIMIZERS["polyak_sgd"](lr=np.float32(rate)), batch_size=1)
    w, _ = trained(train, squares, 0.5, examples=one)
    loss, slope = (0.5 * 3 - 1) ** 2, 2 * (0.5 * 3 - 1) * 3
    assert w == pytest.approx(0.5 - min(rate, loss / slope**2) * slope)


@pytest.mark.parametrize("batch_size", [3, 8])
def test_epochs_of_one_batch_are_steps_on_all_examples(batch_size):
    """Of a client with three examples, in any order."""
    epochs = client_trainer(
        client_optimizer=optax.sgd(0.1),
        local_steps=50,
        batch_size=batch_size,
        local_epochs=4,
    )
    steps = sgd_trainer(optax.sgd(0.1), steps=4, batch_size=None)
    for in_epochs, in_steps in zip(
        trained(epochs, squares, 0.5), trained(steps, squares, 0.5), strict=True
    ):
        np.testing.assert_allclose(in_epochs, in_steps, rtol=1e-6)
