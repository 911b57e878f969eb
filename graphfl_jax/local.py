"""What clients do alone: draw batches and train."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from graphfl_jax.core import Array, Examples, Params

Objective = Callable[[Params, Examples], Array]
Train = Callable[[Objective, Params, Examples, Array], tuple[Params, dict[str, Array]]]


def draw_indices(key: Array, shape: tuple[int, ...], count: Array) -> Array:
    """Uniform draws with replacement from [0, count): int32 of `shape`.

    A float32 uniform has 2^23 values, so for `count` examples the odds of two indices differ by
    at most a factor 1 + count / 2^23.
    """
    uniform = jax.random.uniform(key, shape)
    indices = (uniform * count.astype(jnp.float32)).astype(jnp.int32)
    # Rounding can carry uniform * count up to count itself.
    return jnp.minimum(indices, count - 1)


def batch_of(examples: Examples, indices: Array) -> Examples:
    """The rows `indices` [B] of one client's examples, all of them real."""
    count = jnp.int32(indices.shape[0])
    return Examples(examples.x[indices], examples.y[indices], count)


def sgd_trainer(
    optimizer: optax.GradientTransformation, *, steps: int, batch_size: int | None
) -> Train:
    """Builds ``train(objective, params, examples, key) -> (params, {"loss": scalar})``.

    Args:
      optimizer: starts afresh at every call, as clients that forget do.
      steps: gradient steps, K_c.
      batch_size: examples in a step, drawn uniformly with replacement, independently in every
        step. None takes all the client's examples in every step.
    """

    optimizer = optax.with_extra_args_support(optimizer)

    def train(objective, params, examples, key):
        def step(carry, indices):
            params, memory = carry
            batch = examples if batch_size is None else batch_of(examples, indices)
            loss, gradient = jax.value_and_grad(objective)(params, batch)
            updates, memory = optimizer.update(gradient, memory, params, value=loss)
            return (optax.apply_updates(params, updates), memory), loss

        indices = draw_indices(key, (steps, batch_size or 0), examples.count)
        (params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), indices)
        return params, {"loss": jnp.mean(losses)}

    return train
