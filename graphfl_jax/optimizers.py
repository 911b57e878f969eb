"""Optimisers and learning-rate schedules by name.

Their keyword arguments are floats and may be traced. Every update gets ``value``, the value of
an objective whose minimum is 0, because `polyak_sgd` needs it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.core import Array
from graphfl_jax.declarations import (
    Declaration,
    Form,
    Place,
    SameAs,
    Setting,
    Source,
    parameters,
)
from graphfl_jax.settings import Choice, Real

FIRST_RATE = 0.1  # default learning rate of an optimiser
ALL_ROUNDS = SameAs("rounds")

ONE_VECTOR = 100_000  # numbers of a tensor that `polyak_sgd` copies into one vector
SMALLEST_SQUARE = 2.0**-52  # up to this squared norm `polyak_sgd` takes no step, as in Optax


class WithoutMemory(optax.GradientTransformationExtraArgs):
    """An optimiser that keeps nothing, and moves no parameter whose gradient is 0."""


def sgd(*, lr: Array) -> optax.GradientTransformation:
    """Gradient descent without momentum."""
    return WithoutMemory(*optax.with_extra_args_support(optax.sgd(lr)))


def polyak_sgd(*, lr: Array) -> optax.GradientTransformation:
    """Gradient descent with step size min(lr, value / ||gradient||^2), Polyak's step size.

    If one direction of curvature c dominates the value, Polyak's step size is 1 / (2 c), half
    of Newton's, so that steps cannot overshoot and diverge. A smaller lr is not changed.
    Loizou, Vaswani, Laradji, Lacoste-Julien. Stochastic Polyak Step-size for SGD. AISTATS 2021.
    https://arxiv.org/abs/2002.10542

    It is ``optax.polyak_sgd(lr)`` with the norm of one vector instead of a norm per tensor. A
    round of Panacea on TPT-48 then takes 8.6 instead of 9.2 ms on one core. Tensors of more
    than `ONE_VECTOR` numbers have a sum of their own, so that they are not copied.
    """

    def update(gradient, memory, params=None, *, value, **others):
        square = sum(jnp.sum(jnp.square(part.ravel())) for part in _parts(gradient))
        step = jnp.minimum(value / square, lr)
        step = jnp.where(square <= SMALLEST_SQUARE, jnp.zeros_like(step), step)
        return jax.tree.map(lambda leaf: -step * leaf, gradient), memory

    return WithoutMemory(optax.init_empty_state, update)


def _parts(gradient):
    """The large tensors, and one vector of all small ones."""
    (vector, others), _ = tree.join_small(gradient, ONE_VECTOR)
    return [*others, vector]


def _clip(largest):
    """``optax.clip_by_global_norm``; on accelerators, small tensors have one sum."""
    if jax.default_backend() == "cpu":
        return optax.clip_by_global_norm(largest)

    def update(gradient, params):
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(part)) for part in _parts(gradient)))
        factor = jnp.where(norm < largest, 1.0, largest / norm)
        return jax.tree.map(lambda leaf: factor * leaf, gradient)

    return optax.stateless(update)


def momentum(
    *,
    lr: Array,
    momentum: Annotated[Array, Real("Momentum.", high=1)] = 0.9,
    weight_decay: Annotated[Array, Real("Weight decay, added to the gradient.")] = 5e-5,
    clip: Annotated[Array, Real("Largest global norm of a gradient.", low=1e-6)] = 50.0,
) -> optax.GradientTransformation:
    """Heavy-ball momentum; the gradient is first clipped, then weight decay is added."""
    return optax.chain(
        _clip(clip),
        optax.add_decayed_weights(weight_decay),
        optax.sgd(lr, momentum),
    )


def adam(*, lr: Array) -> optax.GradientTransformation:
    """Adam with its usual decay rates."""
    return _with_integer_powers(optax.adam(lr))


def adamw(
    *,
    lr: Array,
    weight_decay: Annotated[
        Array, Real("Weight decay; a step also takes lr times this share of the weights.")
    ] = 1e-4,
) -> optax.GradientTransformation:
    """Adam, with weight decay apart from the gradient.

    Loshchilov, Hutter. Decoupled Weight Decay Regularization. ICLR 2019.
    https://arxiv.org/abs/1711.05101
    """
    return _with_integer_powers(optax.adamw(lr, weight_decay=weight_decay))


def projected_sgd(lr: Array) -> optax.GradientTransformation:
    """Gradient descent whose parameters stay in [0, 1], such as shares."""

    def to_projected(gradient, share):
        """The way to the share after a step, whose length is limited by 0 and 1."""
        return jnp.clip(share - lr * gradient, 0.0, 1.0) - share

    return optax.stateless(
        lambda gradients, shares: jax.tree.map(to_projected, gradients, shares)
    )


def _with_integer_powers(optimizer):
    """An optimiser that raises its decay rates to an integer power, as Adam does."""

    def update(gradient, memory, params=None):
        with jax.numpy_dtype_promotion("standard"):  # the strict one refuses these powers
            return optimizer.update(gradient, memory, params)

    return optax.GradientTransformation(optimizer.init, update)


# (*, lr, declared floats) -> an optimiser of Optax
OPTIMIZERS = {
    "sgd": sgd,
    "polyak_sgd": polyak_sgd,
    "momentum": momentum,
    "adam": adam,
    "adamw": adamw,
}


def constant(lr: Array, played: Array) -> Array:
    """lr itself in every round."""
    return lr


def exponential(
    lr: Array,
    played: Array,
    *,
    decay: Annotated[Array, Real("Factor on the learning rate per round.", high=1)] = 0.99,
) -> Array:
    """lr * decay^played."""
    decay, played = jnp.asarray(decay, jnp.float32), jnp.asarray(played, jnp.float32)
    return jnp.asarray(lr, jnp.float32) * decay**played


def cosine(
    lr: Array,
    played: Array,
    *,
    final: Annotated[
        Array, Real("Final learning rate as a share of the initial one.", high=1)
    ] = 0.0,
    horizon: Annotated[
        Array, Real("Rounds over which the learning rate falls; by default all.", low=1)
    ] = ALL_ROUNDS,
) -> Array:
    """lr * (final + (1 - final) (1 + cos(pi min(played / horizon, 1))) / 2)."""
    final, horizon = jnp.asarray(final, jnp.float32), jnp.asarray(horizon, jnp.float32)
    progress = jnp.minimum(jnp.asarray(played, jnp.float32) / horizon, 1.0)
    factor = final + (1 - final) * (1 + jnp.cos(jnp.pi * progress)) / 2
    return jnp.asarray(lr, jnp.float32) * factor


# (lr, rounds played, *, declared floats) -> learning rate of the next round
SCHEDULES = {"constant": constant, "exponential": exponential, "cosine": cosine}


@dataclasses.dataclass(frozen=True)
class Optimizer(Declaration):
    """An optimiser. Its kind, schedule and floats are fields that begin with `side`.

    Attributes:
      side: "client" or "server"; two parameters of one side share all fields but the rate and
        the schedule, which a learning rate of a field of its own does not have.
      defaults: of the fields that differ from those that the optimisers declare, by their names
        without the side.
      rate: the field of the learning rate in ``hparams``; by default ``SIDE_lr``.
      meaning: of the learning rate.
    """

    side: str
    defaults: tuple[tuple[str, Any], ...] = ()
    rate: str = ""
    meaning: str = ""

    @property
    def rate_field(self) -> str:
        return f"hparams.{self.rate or self.side + '_lr'}"

    def add_fields(self, form: Form, place: Place, name: str, default: Any) -> None:
        side, defaults = self.side, dict(self.defaults)
        kind = Choice(f"Optimiser of the {side}.", OPTIMIZERS)
        form.add(f"{side}_optimizer", kind, defaults.get("kind", "sgd"), place.reader)
        rate = Real(self.meaning or f"Learning rate of the {side}'s optimiser.")
        form.add(self.rate_field, rate, defaults.get("lr", FIRST_RATE), place.reader)
        registries = {f"{side}_optimizer": OPTIMIZERS}
        if not self.rate:
            schedule = Choice(f"Schedule of {side}_lr over rounds.", SCHEDULES)
            form.add(f"{side}_schedule", schedule, "constant", place.reader)
            registries[f"{side}_schedule"] = SCHEDULES
        for field, factories in registries.items():
            chosen = form.choose(field)
            for name, setting, first in _floats(factories[chosen]):
                value = defaults.get(name, first)
                form.add(f"hparams.{side}_{name}", setting, value, f"{field}={chosen}")

    def value(self, source: Source, section: str, name: str) -> optax.GradientTransformation:
        """The optimiser, with its learning rate after the supplied rounds `played`.

        Raises:
          ValueError: the function of an optimiser returns something else.
        """
        lr = source.values[self.rate_field]
        if not self.rate:
            played = source.supplied.get("played", 0)
            lr = scheduled_rate(self.side, lr, played, source.values)
        chosen = source.values[f"{self.side}_optimizer"]
        made = OPTIMIZERS[chosen](
            lr=lr, **_values(OPTIMIZERS[chosen], self.side, source.values)
        )
        if not isinstance(made, optax.GradientTransformation):
            raise ValueError(
                f"{self.side}_optimizer={chosen!r} returns a {type(made).__name__}; return an "
                f"optax.GradientTransformation, such as optax.sgd(lr)"
            )
        return made


def scheduled_rate(side: str, lr: Array, played: Array, values: Mapping[str, Any]) -> Array:
    """The learning rate of a side after `played` rounds, from the values of fields."""
    schedule = SCHEDULES[values[f"{side}_schedule"]]
    return schedule(lr, played, **_values(schedule, side, values))


def _floats(factory: Callable) -> list:
    """The declared floats of an optimiser or a schedule."""
    return [p for p in parameters(factory) if isinstance(p.declaration, Setting)]


def _values(factory, side, values):
    return {name: values[f"hparams.{side}_{name}"] for name, *_ in _floats(factory)}
