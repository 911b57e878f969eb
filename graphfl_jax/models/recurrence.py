"""The states of a GRU with few kernels, for accelerators.

A kernel of such a small network takes about as long to start as to run. So the products with
the inputs of all time steps are one product here, and so is the gradient of each weight. A step
and its gradient have a product and some arithmetic each. On a CPU, storing and reading all of
these numbers takes longer than it saves (`models.gru`).

The weights are matrices whose last row is the biases. Such a matrix W is used in all steps, and
the gradient of its products y_t = W^T (x_t, 1) is sum_t (x_t, 1) dy_t^T. So the loop is
differentiated with respect to what is added to y_t, which gives all dy_t.
"""

import functools

import jax
import jax.numpy as jnp

from graphfl_jax.core import Array

UNROLL = 12  # time steps per loop iteration, see docs/developer/decisions.md


def all_states(
    cell: dict[str, Array],
    start: Array,
    x: Array,
    read_out: tuple[Array, Array] | None = None,
    is_free: Array | None = None,
) -> Array:
    """The states [T, H, B] of `gru.next_state` after `start` [H, B] and inputs x [T, F, B].

    Args:
      read_out: a kernel [H] and a bias [], with which a value is read from a state.
      is_free: [T, B]; where it is true, the value of the state before a step is added to the
        first input of the step.
    """
    of_input = jnp.concatenate([cell["input_kernel"], cell["input_bias"][None]])
    of_state = jnp.concatenate([cell["hidden_kernel"], cell["hidden_bias"][None]])
    if read_out is not None:
        of_state = jnp.concatenate([of_state, jnp.append(*read_out)[:, None]], axis=1)
    return _states(of_input, of_state, start, _with_ones(x), is_free)


def _loop(of_input, of_state, is_free, from_input, added, start):
    """The states; in each step, `added` is a term of the products with the state."""

    def step(h, step_inputs):
        from_input, from_state, is_free = step_inputs
        from_state += of_state[:-1].T @ h + of_state[-1][:, None]
        if is_free is not None:
            value = jnp.where(is_free[None], from_state[-1:], 0.0)
            from_input, from_state = from_input + of_input[:1].T * value, from_state[:-1]
        # Slices of the gates would be more kernels in the gradient.
        (xr, xz, xn), (hr, hz, hn) = jnp.split(from_input, 3), jnp.split(from_state, 3)
        r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
        n = jnp.tanh(xn + r * hn)
        h = n + z * (h - n)
        return h, h

    return jax.lax.scan(step, start, (from_input, added, is_free), unroll=UNROLL)[1]


@jax.custom_vjp
def _states(of_input, of_state, start, x, is_free):
    return _forward(of_input, of_state, start, x, is_free)[0]


def _forward(of_input, of_state, start, x, is_free):
    from_input = jnp.einsum("fg,tfb->tgb", of_input, x)
    added = jnp.zeros_like(x, shape=(len(x), of_state.shape[1], x.shape[2]))
    loop = functools.partial(_loop, of_input, of_state, is_free)
    states, pull_back = jax.vjp(loop, from_input, added, start)
    return states, (pull_back, of_input, of_state, start, x, is_free, states)


def _backward(kept, of_states):
    pull_back, of_input, of_state, start, x, is_free, states = kept
    slopes_of_input, slopes_of_state, slope_of_start = pull_back(of_states)
    before = _with_ones(jnp.concatenate([start[None], states[:-1]]))
    slope_of_x = jnp.einsum("fg,tgb->tfb", of_input, slopes_of_input)
    if is_free is not None:
        values = jnp.einsum("h,thb->tb", of_state[:, -1], before)
        x = x.at[:, 0].add(jnp.where(is_free, values, 0.0))
    return (
        jnp.einsum("tfb,tgb->fg", x, slopes_of_input),
        jnp.einsum("thb,tgb->hg", before, slopes_of_state),
        slope_of_start,
        slope_of_x,
        None,
    )


_states.defvjp(_forward, _backward)


def _with_ones(x):
    """x [T, F, B] with ones as the last of F + 1 inputs."""
    return jnp.concatenate([x, jnp.ones_like(x[:, :1])], axis=1)
