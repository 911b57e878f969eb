"""Matrix products: how many operations a round has, and how fast this machine makes them."""

import math

import jax
from jax.extend import core as jex_core

from graphfl_jax.rounds import play_round


def matmul_chain():
    """A function that multiplies large matrices, and the number of operations of a call."""
    size, products = 1024, 8
    a = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5

    @jax.jit
    def chain(a):
        return jax.lax.fori_loop(0, products, lambda _, b: b @ a, a)

    return lambda: chain(a), 2 * size**3 * products


def round_flops(experiment, state) -> int:
    """Operations in the matrix products of one round, counted in its trace."""

    def one_round(state, data, key):
        algorithm = experiment.build(experiment.hparams, 0)
        poison = experiment.poison(experiment.hparams)
        return play_round(
            algorithm, data, state, key, groups=experiment.groups, mesh=None, poison=poison
        )

    trace = jax.make_jaxpr(one_round)(state, experiment.federation.data, jax.random.key(0))
    return matmul_flops(trace.jaxpr)


def matmul_flops(jaxpr: jex_core.Jaxpr) -> int:
    """Operations in all matrix products and convolutions of a trace.

    Those in a loop count as often as the loop repeats them, and of the branches of a condition
    the one with most counts.
    """
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, result = equation.invars[0].aval, equation.outvars[0].aval
            total += 2 * math.prod(left.shape[axis] for axis in contracted) * result.size
        if equation.primitive.name == "conv_general_dilated":
            kernel, result = equation.invars[1].aval, equation.outvars[0].aval
            outputs = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
            zeros = math.prod(equation.params["lhs_dilation"])  # inserted into the input
            total += 2 * kernel.size // outputs * result.size // zeros
        inner = [
            part if isinstance(part, jex_core.Jaxpr) else part.jaxpr
            for part in equation.params.values()
            if isinstance(part, jex_core.Jaxpr | jex_core.ClosedJaxpr)
        ]
        times = equation.params.get("length", 1)  # of a scan
        total += times * sum(map(matmul_flops, inner))
        branches = equation.params.get("branches", ())
        total += max((matmul_flops(branch.jaxpr) for branch in branches), default=0)
    return total
