"""Optimisers against arithmetic on a parabola, c x^2 / 2."""

import jax.numpy as jnp
import numpy as np
import optax

from graphfl_jax.optimizers import OPTIMIZERS

CURVATURE = 4.0


def descend(optimizer, x=3.0, steps=20):
    """The iterates of an optimiser that is told gradient and value."""
    optimizer = optax.with_extra_args_support(optimizer)
    x = jnp.float32(x)
    memory = optimizer.init(x)
    path = [float(x)]
    for _ in range(steps):
        value = 0.5 * CURVATURE * jnp.square(x)
        update, memory = optimizer.update(CURVATURE * x, memory, x, value=value)
        x = x + update
        path.append(float(x))
    return np.array(path)


def test_a_rate_that_sends_sgd_away_is_capped_at_half_of_newtons():
    """1 - 2 * c < -1 for SGD at rate 2; the cap is 1 / (2 c), which halves x in every step."""
    assert abs(descend(OPTIMIZERS["sgd"](lr=2.0))[-1]) > 1e3
    np.testing.assert_allclose(
        descend(OPTIMIZERS["polyak_sgd"](lr=2.0), steps=5), 3.0 * 0.5 ** np.arange(6), rtol=1e-5
    )


def test_below_the_cap_polyak_is_sgd():
    slow = 0.5 / CURVATURE * 0.9
    capped, plain = (descend(OPTIMIZERS[name](lr=slow)) for name in ("polyak_sgd", "sgd"))
    np.testing.assert_allclose(capped, plain, rtol=1e-6)
    np.testing.assert_allclose(plain, 3.0 * (1 - slow * CURVATURE) ** np.arange(21), rtol=1e-4)


def test_momentum_clips_then_decays_then_remembers():
    lr, momentum, decay, clip = 0.05, 0.9, 0.1, 5.0
    x, velocity, path = 3.0, 0.0, [3.0]
    for _ in range(6):
        gradient = np.clip(CURVATURE * x, -clip, clip) + decay * x
        velocity = momentum * velocity + gradient
        x -= lr * velocity
        path.append(x)
    ours = OPTIMIZERS["momentum"](lr=lr, momentum=momentum, weight_decay=decay, clip=clip)
    np.testing.assert_allclose(descend(ours, steps=6), path, rtol=1e-5)


def test_adam_steps_by_its_rate_at_first():
    """Adam's first step is lr times the sign of the gradient."""
    path = descend(OPTIMIZERS["adam"](lr=0.1), steps=1)
    np.testing.assert_allclose(path[1], 3.0 - 0.1, rtol=1e-5)
