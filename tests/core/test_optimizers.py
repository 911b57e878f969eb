"""Optimisers and schedules against NumPy; the objective is a parabola, c x^2 / 2."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from graphfl_jax import optimizers
from graphfl_jax.build import build_experiment
from graphfl_jax.configs import change, fl60, flha_cifar10, parse
from graphfl_jax.optimizers import OPTIMIZERS, SCHEDULES
from graphfl_jax.testing.subject import assert_equal
from tests.federations import small_config, two_clusters

CURVATURE = 4.0


def descend(optimizer, x=3.0, steps=20):
    """The iterates of an optimiser that gets gradient and value."""
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


def test_polyak_caps_a_learning_rate_with_which_sgd_diverges():
    """At rate 2, 1 - 2 c < -1, so SGD diverges; the cap 1 / (2 c) halves x in every step."""
    assert abs(descend(OPTIMIZERS["sgd"](lr=2.0))[-1]) > 1e3
    np.testing.assert_allclose(
        descend(OPTIMIZERS["polyak_sgd"](lr=2.0), steps=5), 3.0 * 0.5 ** np.arange(6), rtol=1e-5
    )


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("longest", [0, 5, 1000])
def test_polyak_is_that_of_optax(scale, longest, monkeypatch):
    """At a zero gradient, below and above the cap, and with large tensors apart or not."""
    monkeypatch.setattr(optimizers, "ONE_VECTOR", longest)
    rng = np.random.default_rng(0)
    shapes = {"a": (3, 4), "b": (5,), "c": ()}
    gradient = {
        name: jnp.asarray(scale * rng.normal(size=shape), jnp.float32)
        for name, shape in shapes.items()
    }
    updates = []
    for optimizer in (OPTIMIZERS["polyak_sgd"](lr=0.05), optax.polyak_sgd(0.05)):
        memory = optimizer.init(gradient)
        updates.append(optimizer.update(gradient, memory, gradient, value=jnp.float32(0.4))[0])
    assert bool(jnp.any(updates[0]["a"] != 0)) == (scale > 1e-9)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), *updates)


def test_below_the_cap_polyak_is_sgd():
    slow = 0.5 / CURVATURE * 0.9
    capped, plain = (descend(OPTIMIZERS[name](lr=slow)) for name in ("polyak_sgd", "sgd"))
    np.testing.assert_allclose(capped, plain, rtol=1e-6)
    np.testing.assert_allclose(plain, 3.0 * (1 - slow * CURVATURE) ** np.arange(21), rtol=1e-4)


def test_momentum_clips_then_decays_then_accumulates():
    lr, momentum, decay, clip = 0.05, 0.9, 0.1, 5.0
    x, velocity, path = 3.0, 0.0, [3.0]
    for _ in range(6):
        gradient = np.clip(CURVATURE * x, -clip, clip) + decay * x
        velocity = momentum * velocity + gradient
        x -= lr * velocity
        path.append(x)
    ours = OPTIMIZERS["momentum"](lr=lr, momentum=momentum, weight_decay=decay, clip=clip)
    np.testing.assert_allclose(descend(ours, steps=6), path, rtol=1e-5)


@pytest.mark.parametrize("largest", [0.1, 100.0])
@pytest.mark.parametrize("longest", [0, 5, 1000])
def test_accelerators_clip_as_optax_does(largest, longest, monkeypatch):
    """Above and below the limit; the memory has the same form."""
    monkeypatch.setattr(optimizers, "ONE_VECTOR", longest)
    rng = np.random.default_rng(0)
    gradient = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=5), "c": rng.normal()}
    gradient = jax.tree.map(jnp.float32, gradient)

    def step():
        optimizer = OPTIMIZERS["momentum"](lr=0.1, clip=largest)
        return optimizer.update(gradient, optimizer.init(gradient), gradient)

    expected = step()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert_equal(step(), expected, rtol=1e-6)


def test_the_first_step_of_adam_has_the_size_of_its_rate():
    """Adam's first step is lr times the sign of the gradient."""
    path = descend(OPTIMIZERS["adam"](lr=0.1), steps=1)
    np.testing.assert_allclose(path[1], 3.0 - 0.1, rtol=1e-5)


# ---- schedules


def in_numpy(name, lr, played, first, second=None):
    """The formulas of the schedules in float64."""
    if name == "exponential":
        return lr * first**played
    progress = np.minimum(played / second, 1)
    return lr * (first + (1 - first) * (1 + np.cos(np.pi * progress)) / 2)


SETTINGS = [
    ("exponential", {"decay": 0.97}),
    ("exponential", {"decay": 1.0}),
    ("exponential", {"decay": 0.0}),
    ("cosine", {"final": 0.0, "horizon": 40.0}),
    ("cosine", {"final": 0.1, "horizon": 7.5}),
    ("cosine", {"final": 1.0, "horizon": 1.0}),
]


@pytest.mark.parametrize("name, floats", SETTINGS)
def test_schedules_follow_their_formulas(name, floats):
    """With Python numbers, and with traced ones under jit and vmap."""
    schedule, rounds = SCHEDULES[name], np.arange(60)
    expected = in_numpy(name, 0.3, rounds, *floats.values())
    for played in (0, 1, 59):
        rate = schedule(0.3, played, **floats)
        assert rate.shape == () and rate.dtype == jnp.float32
        np.testing.assert_allclose(rate, expected[played], rtol=1e-4, atol=1e-7)

    @jax.jit
    def traced(lr, played, floats):
        return jax.vmap(lambda played: schedule(lr, played, **floats))(played)

    given = jax.tree.map(jnp.float32, floats)
    rates = traced(jnp.float32(0.3), jnp.asarray(rounds, jnp.int32), given)
    assert rates.shape == (60,) and rates.dtype == jnp.float32
    np.testing.assert_allclose(rates, expected, rtol=1e-4, atol=1e-7)


def test_schedules_are_vmapped_over_their_floats():
    """As for runs that share one program and differ in their floats."""
    lrs, finals = jnp.float32([0.1, 0.2, 0.4]), jnp.float32([0.0, 0.5, 1.0])
    horizons = jnp.float32([10.0, 20.0, 30.0])

    def rate(lr, played, final, horizon):
        return SCHEDULES["cosine"](lr, played, final=final, horizon=horizon)

    rates = jax.jit(jax.vmap(rate, (0, None, 0, 0)))(lrs, jnp.int32(15), finals, horizons)
    expected = [
        in_numpy("cosine", *map(float, (lr, 15, final, horizon)))
        for lr, final, horizon in zip(lrs, finals, horizons, strict=True)
    ]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)


def test_a_constant_schedule_returns_the_same_object():
    lr = jnp.float32(0.3)
    assert SCHEDULES["constant"](lr, jnp.int32(7)) is lr


def test_cosine_stays_at_its_final_rate():
    rates = [SCHEDULES["cosine"](0.5, played, final=0.25, horizon=8.0) for played in (8, 500)]
    np.testing.assert_array_equal(rates, [0.125, 0.125])


def test_adamw_decays_weights_apart_from_the_gradient():
    """In the first step, Adam moves by the rate against the gradient's sign."""
    path = descend(OPTIMIZERS["adamw"](lr=0.1, weight_decay=0.5), steps=1)
    np.testing.assert_allclose(path[1], path[0] - 0.1 * (1 + 0.5 * path[0]), rtol=1e-5)
    plain, undecayed = (
        descend(OPTIMIZERS["adam"](lr=0.1)),
        descend(OPTIMIZERS["adamw"](lr=0.1, weight_decay=0.0)),
    )
    np.testing.assert_allclose(undecayed, plain, rtol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_takes_a_scheduled_rate(name, schedule):
    """Under jit, with the defaults of both; at round 0 the rate is the initial one."""

    @jax.jit
    def step(lr, played):
        floats = {"horizon": 800.0} if schedule == "cosine" else {}
        rate = SCHEDULES[schedule](lr, played, **floats)
        optimizer = optax.with_extra_args_support(OPTIMIZERS[name](lr=rate))
        x = jnp.float32(3.0)
        value = 0.5 * CURVATURE * jnp.square(x)
        return optimizer.update(CURVATURE * x, optimizer.init(x), x, value=value)[0]

    steps = [float(step(jnp.float32(0.01), jnp.int32(played))) for played in (0, 400)]
    unscheduled = descend(OPTIMIZERS[name](lr=0.01), steps=1)
    assert steps[0] == pytest.approx(unscheduled[1] - unscheduled[0], rel=1e-4)
    share = {"constant": 1.0, "exponential": 0.99**400, "cosine": 0.5}[schedule]
    assert steps[1] == pytest.approx(share * steps[0], rel=1e-3)


def test_the_horizon_follows_the_number_of_rounds_until_it_is_set():
    config = parse(fl60.get_config("fedavg"), {"client_schedule": "cosine", "rounds": "30"})
    assert config.hparams.client_horizon == 30.0
    assert change(config, {"rounds": 70}).hparams.client_horizon == 70.0
    apart = change(config, {"hparams.client_horizon": 40.0})
    assert change(apart, {"rounds": 70}).hparams.client_horizon == 40.0
    assert change(flha_cifar10.get_config(), {"rounds": 9}).hparams.client_horizon == 9.0


@pytest.mark.parametrize(
    "changes, ends",
    [
        ({"client_schedule": "cosine"}, False),
        ({"client_schedule": "cosine", "hparams__client_horizon": 2.0}, True),
        (
            {
                "client_schedule": "cosine",
                "hparams__client_horizon": 2.0,
                "hparams__client_final": 0.1,
            },
            False,
        ),
        ({"client_schedule": "exponential", "hparams__client_decay": 0.0}, True),
        ({"client_schedule": "exponential"}, False),
    ],
)
def test_a_rate_that_ends_before_the_last_round_is_refused(changes, ends):
    config = small_config("fedavg", rounds=4, **changes)
    if not ends:
        build_experiment(config, two_clusters())
        return
    with pytest.raises(ValueError, match="^client_schedule=.*; set --config.") as refused:
        build_experiment(config, two_clusters())
    _, _, remedy = str(refused.value).partition("; set --config.")
    field, _, value = remedy.split(" ")[0].partition("=")
    build_experiment(parse(config, {field: value}), two_clusters())
