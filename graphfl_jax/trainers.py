"""Local training of one client: batches and gradient steps."""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from graphfl_jax import tree
from graphfl_jax.core import Array, Metrics, Params
from graphfl_jax.draws import draw_uniform
from graphfl_jax.examples import Examples, Windows, repeat_real
from graphfl_jax.optimizers import Optimizer
from graphfl_jax.settings import Part, Shared

# Folded into a client's key, it gives the key of the objectives. Indices of batches are drawn
# from the client's key itself.
_OBJECTIVE = 0x6F626A


# (params, batch, key) -> what a trainer minimises, a float32 scalar
Objective = Callable[[Params, Examples, Array], Array]
# (objective, params, examples, key) -> the trained params, and {"loss": mean over the steps}
Trainer = Callable[[Objective, Params, Examples | Windows, Array], tuple[Params, Metrics]]
# (carry, batch, key) -> what the next local step gets, and the loss, a float32 scalar
Step = Callable[[Any, Examples, Array], tuple[Any, Array]]
ClientOptimizer = Annotated[
    optax.GradientTransformation, Optimizer("client", meaning="Learning rate of the clients.")
]


def draw_indices(key: Array, shape: tuple[int, ...], count: Array) -> Array:
    """Uniform draws with replacement from [0, count): int32 of `shape`.

    A float32 uniform has 2^23 values, so for `count` examples the probabilities of two indices
    differ by at most a factor 1 + count / 2^23.
    """
    uniform = draw_uniform(key, shape)
    indices = (uniform * count.astype(jnp.float32)).astype(jnp.int32)
    # Rounding can carry uniform * count up to count itself.
    return jnp.minimum(indices, count - 1)


def step_key(key: Array, step: Array) -> Array:
    """The key for the objective in one step of a client whose key is `key`."""
    return jax.random.fold_in(jax.random.fold_in(key, _OBJECTIVE), step)


def train_steps(
    step: Step,
    start: Any,
    examples: Examples | Windows,
    key: Array,
    *,
    steps: int,
    batch_size: int | None,
) -> tuple[Any, Metrics]:
    """Takes steps, each on a batch: a fixed number, or the client's share of them.

    Args:
      start: what the first step gets, such as (parameters, state of an optimiser).
      steps: K_c; see `steps_taken`.
      batch_size: examples in a step, drawn uniformly with replacement, independently in every
        step. None takes all the client's examples in every step.

    Returns:
      What the last step returns, and {"loss": mean over the steps}.
    """

    def take_numbered(carry, number, indices):
        batch = everything if batch_size is None else examples.rows(indices)
        return step(carry, batch, step_key(key, number))

    if batch_size is None:
        everything = examples.rows(repeat_real(jnp.arange(examples.size), examples.count))
        everything = everything._replace(count=examples.count)
    indices = draw_indices(key, (steps, batch_size or 0), examples.count)
    return scan_steps(take_numbered, start, indices, examples)


def steps_taken(examples: Examples | Windows, steps: Any) -> Any:
    """How many of so many steps a client takes: its share of them, but at least one."""
    if examples.work is None:
        return steps
    return jnp.maximum(jnp.round(examples.work * jnp.float32(steps)), 1).astype(jnp.int32)


def scan_steps(
    step: Callable[[Any, Array, Any], tuple[Any, Array]],
    start: Any,
    inputs: Array,
    examples: Examples | Windows,
) -> tuple[Any, Metrics]:
    """Takes the steps of a client.

    Args:
      step: (carry, number, input) -> the next carry, and the loss.
      inputs: of each step, [K_c, ...]. Those after `steps_taken` change nothing.

    Returns:
      What the last step returns, and {"loss": mean over the steps}.
    """
    steps, numbers = len(inputs), jnp.arange(len(inputs))
    if examples.work is None:
        end, losses = jax.lax.scan(lambda carry, at: step(carry, *at), start, (numbers, inputs))
        return end, {"loss": jnp.mean(losses)}
    taken = steps_taken(examples, steps)

    def take_some(carry, at):
        after, loss = step(carry, *at)
        return tree.where(at[0] < taken, (after, loss), (carry, jnp.zeros_like(loss)))

    # The client's share decides, so the carry must vary over devices as the share does.
    start = tree.varying_as(start, examples.work)
    end, losses = jax.lax.scan(take_some, start, (numbers, inputs))
    return end, {"loss": jnp.sum(losses) / taken.astype(losses.dtype)}


def sgd_trainer(
    optimizer: optax.GradientTransformation, *, steps: int, batch_size: int | None
) -> Trainer:
    """Builds a trainer that takes a fixed number of gradient steps.

    Args:
      optimizer: its state starts anew in every call. Parts of the parameters have rates of
        their own by `parts.optimizer_of_parts`. Other arguments are as of `train_steps`.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def train(objective, params, examples, key):
        def step(carry, batch, key):
            params, opt_state = carry
            loss, gradient = jax.value_and_grad(objective)(params, batch, key)
            updates, opt_state = optimizer.update(gradient, opt_state, params, value=loss)
            return (optax.apply_updates(params, updates), opt_state), loss

        start = (params, optimizer.init(params))
        (params, _), metrics = train_steps(
            step, start, examples, key, steps=steps, batch_size=batch_size
        )
        return params, metrics

    return train


def epoch_trainer(
    optimizer: optax.GradientTransformation, *, epochs: int, batch_size: int
) -> Trainer:
    """Builds a trainer that passes over all of a client's examples, shuffled for each epoch.

    The last batch of an epoch holds the remaining examples. All clients of one program take the
    same number of steps; additional steps of clients with fewer examples change nothing, and
    nor do those after the client's share, see `steps_taken`.

    Args:
      optimizer: its state starts anew in every call.
      epochs: passes over the examples.
      batch_size: examples in a step.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def train(objective, params, examples, key):
        size = examples.size
        rows = min(batch_size, size)
        batches = -(-size // rows)
        real = jnp.arange(size) < examples.count
        per_epoch = -(-examples.count // rows)
        steps = steps_taken(examples, epochs * per_epoch)

        def one_epoch(carry, at):
            epoch, key_epoch = at
            # Padding is sorted behind all real examples.
            order = jnp.argsort(jnp.where(real, draw_uniform(key_epoch, (size,)), 2.0))
            order = jnp.pad(order, (0, batches * rows - size)).reshape(batches, rows)
            numbers = jnp.arange(batches)
            left = examples.count - numbers * rows  # before each batch
            if examples.work is not None:
                left = jnp.where(epoch * per_epoch + numbers < steps, left, 0)
            # Of this epoch, so that it does not depend on the padding.
            keys = jax.vmap(step_key, (None, 0))(key_epoch, numbers)
            return jax.lax.scan(step, carry, (keys, order, left))

        def step(carry, step_input):
            key_step, indices, left = step_input
            params, opt_state = carry
            count = jnp.minimum(left, rows)
            batch = examples.rows(repeat_real(indices, count))._replace(count=count)
            loss, gradient = jax.value_and_grad(objective)(params, batch, key_step)
            updates, opt_state = optimizer.update(gradient, opt_state, params, value=loss)
            after = (optax.apply_updates(params, updates), opt_state)
            after = jax.tree.map(lambda new, old: jnp.where(left > 0, new, old), after, carry)
            return after, jnp.where(left > 0, loss, 0.0)

        # The client's count decides which steps are skipped, so the optimiser's state must vary
        # over devices as the count does.
        opt_state = tree.varying_as(optimizer.init(params), examples.count)
        at = (jnp.arange(epochs), jax.random.split(key, epochs))
        (params, _), losses = jax.lax.scan(one_epoch, (params, opt_state), at)
        return params, {"loss": jnp.sum(losses) / steps.astype(losses.dtype)}

    return train


def client_trainer(
    *,
    client_optimizer: ClientOptimizer,
    local_steps: int,
    batch_size: int,
    local_epochs: Annotated[
        int,
        Shared(
            "Passes of a client over its shuffled examples in a round, instead of local_steps; "
            "0: none.",
            low=0,
        ),
    ] = 0,
) -> Trainer:
    """Builds the clients' trainer of a configuration."""
    if local_epochs:
        return epoch_trainer(client_optimizer, epochs=local_epochs, batch_size=batch_size)
    return sgd_trainer(client_optimizer, steps=local_steps, batch_size=batch_size)


Train = Annotated[Trainer, Part(client_trainer)]  # what a method's factory takes
