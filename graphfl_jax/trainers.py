"""What clients do alone: draw batches and train."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from graphfl_jax.core import Array, Examples, Params, Windows

Objective = Callable[[Params, Examples], Array]
Train = Callable[
    [Objective, Params, Examples | Windows, Array], tuple[Params, dict[str, Array]]
]


def draw_indices(key: Array, shape: tuple[int, ...], count: Array) -> Array:
    """Uniform draws with replacement from [0, count): int32 of `shape`.

    A float32 uniform has 2^23 values, so for `count` examples the odds of two indices differ by
    at most a factor 1 + count / 2^23.
    """
    uniform = jax.random.uniform(key, shape)
    indices = (uniform * count.astype(jnp.float32)).astype(jnp.int32)
    # Rounding can carry uniform * count up to count itself.
    return jnp.minimum(indices, count - 1)


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
            batch = everything if batch_size is None else examples.rows(indices)
            loss, gradient = jax.value_and_grad(objective)(params, batch)
            updates, memory = optimizer.update(gradient, memory, params, value=loss)
            return (optax.apply_updates(params, updates), memory), loss

        if batch_size is None:
            everything = examples.rows(jnp.arange(examples.size))
            everything = everything._replace(count=examples.count)
        indices = draw_indices(key, (steps, batch_size or 0), examples.count)
        (params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), indices)
        return params, {"loss": jnp.mean(losses)}

    return train


def epoch_trainer(
    optimizer: optax.GradientTransformation, *, epochs: int, batch_size: int
) -> Train:
    """Builds a trainer that passes over all of a client's examples in a fresh order each time.

    The last batch of a pass holds what is left. Clients of one program take the same number of
    steps; those of a client with fewer examples than the largest leave everything as it is.

    Args:
      optimizer: starts afresh at every call.
      epochs: passes.
      batch_size: examples in a step.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def train(objective, params, examples, key):
        size = examples.size
        rows = min(batch_size, size)
        batches = -(-size // rows)
        real = jnp.arange(size) < examples.count

        def one_epoch(carry, key):
            # Padding sorts behind every real example.
            order = jnp.argsort(jnp.where(real, jax.random.uniform(key, (size,)), 2.0))
            order = jnp.pad(order, (0, batches * rows - size)).reshape(batches, rows)
            left = examples.count - jnp.arange(batches) * rows  # before each batch
            return jax.lax.scan(step, carry, (order, left))

        def step(carry, part):
            indices, left = part
            params, memory = carry
            batch = examples.rows(indices)._replace(count=jnp.minimum(left, rows))
            loss, gradient = jax.value_and_grad(objective)(params, batch)
            updates, memory = optimizer.update(gradient, memory, params, value=loss)
            after = (optax.apply_updates(params, updates), memory)
            after = jax.tree.map(lambda new, old: jnp.where(left > 0, new, old), after, carry)
            return after, jnp.where(left > 0, loss, 0.0)

        # A step that is left out is chosen by the client's count, so that the memory must vary
        # over devices as the count does.
        zero = jnp.zeros_like(examples.count)
        memory = jax.tree.map(
            lambda leaf: leaf + zero.astype(leaf.dtype), optimizer.init(params)
        )
        (params, _), losses = jax.lax.scan(
            one_epoch, (params, memory), jax.random.split(key, epochs)
        )
        steps = epochs * -(-examples.count // rows)
        return params, {"loss": jnp.sum(losses) / steps.astype(losses.dtype)}

    return train
