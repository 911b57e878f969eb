"""Predictions as programs of PyTorch and of ONNX, which need neither this package nor JAX.

The JAX function of a prediction is traced to its operations, and `Translated` computes each of
them with PyTorch. So client models and methods need no code for this, also the user's own.
PyTorch exports the module, and makes ONNX of it. What cannot be translated is refused.

A program takes any number of rows n. So the function is traced for two of them: a size that
differs is linear in n. Loops over time are unrolled.
"""

import functools
import io
import json
import logging
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax.extend.core import ClosedJaxpr, Literal

from graphfl_jax import tree

TRACED = (2, 3)  # numbers of rows
METADATA = "graphfl_jax"  # its name in both kinds of files
CLOSE = 1e-3  # largest difference from JAX, as a share of the range of the outputs
Moved = list[np.ndarray] | None  # offset and scale in float64; None leaves numbers as they are


class Translated(torch.nn.Module):
    """x [n, *features] -> outputs [n, O], both before scaling, as `Fleet.predict` has them.

    Buffers hold the predictor's arrays, by their names.
    """

    def __init__(
        self,
        predict: Callable,
        predictor: Any,
        row: jax.ShapeDtypeStruct,
        inputs: Moved,
        targets: Moved,
    ):
        """Traces (predictor, scaled x) -> outputs.

        Args:
          row: shape and type of the inputs of an example.
          inputs: the scaling of x.
          targets: the scaling of the outputs.
        """
        super().__init__()
        self.traced = [
            jax.make_jaxpr(predict)(predictor, jax.ShapeDtypeStruct((n, *row.shape), row.dtype))
            for n in TRACED
        ]
        by_name = tree.leaves_by_name(predictor)
        self.names = tuple(by_name)
        for part, moved in (("inputs", inputs), ("targets", targets)):
            by_name |= {f"{part}_{i}": value for i, value in enumerate(moved or ())}
        for name, value in by_name.items():
            self.register_buffer(name, _tensor(value))
        self.is_scaled = inputs is not None, targets is not None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs."""
        buffers, rows = dict(self.named_buffers()), x.shape[0]
        of_inputs, of_targets = self.is_scaled
        if of_inputs:  # in float64, as the run did it
            x = ((x.double() - buffers["inputs_0"]) / buffers["inputs_1"]).float()
        known = [buffers[name] for name in self.names]
        (outputs,) = _play(self.traced, [*known, x], rows)
        if of_targets:
            outputs = outputs.double() * buffers["targets_1"] + buffers["targets_0"]
        return outputs.float()


def program_of(
    module: Translated, kind: str, facts: dict, x: np.ndarray, expected: np.ndarray
) -> bytes:
    """The file of a program.

    Args:
      kind: ".pt2" of PyTorch, or ".onnx".
      facts: metadata, as JSON.
      x: inputs of a few examples.
      expected: what JAX computes for them.

    Raises:
      ValueError: the module cannot be translated.
    """
    text, content = json.dumps(facts), io.BytesIO()
    try:
        sizes = {"x": {0: torch.export.Dim("n")}}
        program = torch.export.export(module, (torch.from_numpy(x),), dynamic_shapes=sizes)
        _check(program.module()(torch.from_numpy(x)).numpy(), expected)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # which has paths of this machine
        if kind == ".pt2":
            torch.export.save(program, content, extra_files={METADATA: text})
            return content.getvalue()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch about itself
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            made = torch.onnx.export(
                program,
                input_names=["x"],
                output_names=["outputs"],
                dynamic_shapes={"x": {0: "n"}},
                dynamo=True,
                verbose=False,
            )
        made.model.metadata_props[METADATA] = text
        return made.model_proto.SerializeToString()
    except Exception as error:  # PyTorch raises many kinds
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        why = kind + " ".join(str(error).split())[:200]
        raise ValueError(f"the model cannot be translated, since {why}") from error


def _check(outputs, expected):
    """Refuses outputs that differ by more than rounding."""
    near = {"rtol": 1e-6, "atol": CLOSE * np.ptp(expected), "equal_nan": True}
    if not np.allclose(outputs, expected, **near):
        raise ValueError(f"its outputs differ by {np.abs(outputs - expected).max():.2g}")


def _play(traced, values, rows):
    """The outputs for n rows, of a function that is traced for each of `TRACED`."""
    jaxpr, other = (t.jaxpr if isinstance(t, ClosedJaxpr) else t for t in traced)
    if isinstance(traced[0], ClosedJaxpr):
        values = [*map(_same, *(t.consts for t in traced)), *values]
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))

    def read(variables, others):
        return [
            _same(variable.val, other.val) if isinstance(variable, Literal) else known[variable]
            for variable, other in zip(variables, others, strict=True)
        ]

    for equation, again in _needed(jaxpr, other):
        name, params = equation.primitive.name, equation.params
        operands = read(equation.invars, again.invars)
        inner = [[e.params[key] for e in (equation, again)] for key in CALLED if key in params]
        if name in OPERATIONS:
            shapes = (equation.outvars[0].aval.shape, again.outvars[0].aval.shape)
            shape = [_size(*sizes, rows) for sizes in zip(*shapes, strict=True)]
            results = OPERATIONS[name](*operands, **(params | {"shape": shape}))
        elif name == "scan":
            results = _scan(inner[0], operands, rows, params)
        elif name in CALLS and inner:
            results = _play(inner[0], operands, rows)
        else:
            raise ValueError(f"it computes {name!r}")
        if not equation.primitive.multiple_results:
            results = [results]
        known |= zip(equation.outvars, results, strict=True)
    return read(jaxpr.outvars, other.outvars)


def _needed(jaxpr, other):
    """The pairs of equations on which the outputs depend."""
    kept, needed = [], {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for pair in reversed(list(zip(jaxpr.eqns, other.eqns, strict=True))):
        if needed & set(pair[0].outvars):
            needed |= {v for v in pair[0].invars if not isinstance(v, Literal)}
            kept.append(pair)
    return reversed(kept)


def _size(first, second, rows):
    """A size for so many rows, from the two for those of `TRACED`."""
    times = second - first
    return first + times * (rows - TRACED[0]) if times else first


def _same(value, other):
    if not np.array_equal(value, other, equal_nan=True):
        raise ValueError("it computes with the number of rows")
    return _tensor(value)


def _tensor(value):
    return torch.from_numpy(np.array(value))


def _scan(step, operands, rows, params):
    """The last carry, and what each step gives, stacked."""
    first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, carry, series = operands[:first], operands[first:last], operands[last:]
    times, per_step = range(params["length"])[:: -1 if params["reverse"] else 1], {}
    for t in times:
        results = _play(step, [*consts, *carry, *(values[t] for values in series)], rows)
        carry, per_step[t] = results[: len(carry)], results[len(carry) :]
    in_order = zip(*(per_step[t] for t in sorted(per_step)), strict=True)
    return [*carry, *map(torch.stack, in_order)]


# --------------------------- operations of JAX: (*operands, shape=of the result, **parameters)


def _plain(function):
    """An operation of tensors alone."""
    return lambda *operands, **_: function(*operands)


def _over_axes(function):
    """A reduction, which keeps the type."""
    return lambda x, axes, **_: function(x, axes).to(x.dtype) if axes else x


def _broadcast_in_dim(x, shape, broadcast_dimensions, **_):
    for axis in range(len(shape)):
        if axis not in broadcast_dimensions:
            x = x.unsqueeze(axis)
    return x.expand(shape)


def _slice(x, shape, start_indices, strides, **_):
    for axis, (first, count) in enumerate(zip(start_indices, shape, strict=True)):
        step = strides[axis] if strides else 1
        if (first, step) != (0, 1) or not _are_equal(count, x.shape[axis]):
            x = _every(x, axis, first, count, step)
    return x


def _are_equal(size, other):
    """Whether two sizes are equal for any number of rows; of these, only some are symbols."""
    return type(size) is type(other) and size == other


def _every(x, axis, first, count, step):
    """So many items of an axis."""
    x = x.narrow(axis, first, (count - 1) * step + 1)
    return x if step == 1 else x[(slice(None),) * axis + (slice(None, None, step),)]


def _pad(x, value, shape, padding_config):
    for axis, (before, after, between) in enumerate(padding_config):
        if between or min(before, after) < 0:
            raise ValueError("it pads between numbers, or by less than 0")
        sides = [
            value.expand([*x.shape[:axis], width, *x.shape[axis + 1 :]])
            for width in (before, after)
        ]
        if before or after:
            x = torch.cat([sides[0], x, sides[1]], axis)
    return x


def _iota(shape, dtype, dimension, **_):
    places = torch.arange(shape[dimension]).to(_type(dtype))
    return _broadcast_in_dim(places, shape, (dimension,))


def _select_n(which, *cases, **_):
    if which.dtype != torch.bool:
        raise ValueError("it chooses among several arrays by numbers")
    return torch.where(which, cases[1], cases[0])


def _gather(x, places, dimension_numbers, shape, mode, **_):
    """Items of one axis."""
    axes, others = dimension_numbers.start_index_map, dimension_numbers.offset_dims
    whole = [size for axis, size in enumerate(x.shape) if axis not in axes]
    is_whole = all(map(_are_equal, whole, [shape[i] for i in others]))
    if len(axes) != 1 or axes != dimension_numbers.collapsed_slice_dims or not is_whole:
        raise ValueError("it takes other parts of an array than items of one axis")
    places = places[..., 0].long()
    if mode == jax.lax.GatherScatterMode.CLIP:
        places = places.clamp(0, x.shape[axes[0]] - 1)
    taken = x.movedim(axes[0], 0)[places]
    ahead = iter(range(places.ndim))
    after = iter(range(places.ndim, taken.ndim))
    return taken.permute([next(after if i in others else ahead) for i in range(taken.ndim)])


def _dot_general(a, b, dimension_numbers, **_):
    (of_a, of_b), (batch_a, batch_b) = dimension_numbers
    if (of_a, of_b, batch_a, b.ndim) == ((a.ndim - 1,), (0,), (), 2):
        return a @ b
    left, right = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip((*of_a, *batch_a), (*of_b, *batch_b), strict=True):
        right[j] = left[i]
    batch = [left[i] for i in batch_a]
    free_a = [left[i] for i in range(a.ndim) if i not in (*of_a, *batch_a)]
    free_b = [right[j] for j in range(b.ndim) if j not in (*of_b, *batch_b)]
    return torch.einsum(a, left, b, right, [*batch, *free_a, *free_b])


def _conv(x, kernel, dimension_numbers, window_strides, padding, rhs_dilation, **params):
    of_x, of_kernel, of_result = dimension_numbers
    if params["batch_group_count"] != 1 or set(params["lhs_dilation"]) != {1}:
        raise ValueError("it has a transposed convolution")
    x, kernel = x.permute(of_x), kernel.permute(of_kernel)
    before = [low for low, _ in padding]
    if any(low != high for low, high in padding):
        pairs = [side for pair in reversed(padding) for side in pair]
        x, before = torch.nn.functional.pad(x, pairs), [0] * len(padding)
    groups = params["feature_group_count"]
    sizes = (window_strides, before, rhs_dilation, False, [0] * len(padding), groups)
    return torch.convolution(x, kernel, None, *sizes).permute(np.argsort(of_result).tolist())


def _pool(function, start):
    """Sliding windows, one axis after the other."""

    def pool(x, shape, window_dimensions, window_strides, padding, **dilations):
        if {*dilations["base_dilation"], *dilations["window_dilation"]} != {1}:
            raise ValueError("it pools with gaps")
        x = _pad(x, torch.tensor(start, dtype=x.dtype), None, [(*p, 0) for p in padding])
        for axis, (size, step) in enumerate(
            zip(window_dimensions, window_strides, strict=True)
        ):
            if (size, step) != (1, 1):
                parts = (_every(x, axis, i, shape[axis], step) for i in range(size))
                x = functools.reduce(function, parts)
        return x

    return pool


def _type(dtype):
    return getattr(torch, np.dtype(dtype).name)


def _top_k(x, k, axis=-1, **_):
    largest, places = torch.topk(x, k, axis)
    return largest, places.int()


CALLED = ("jaxpr", "call_jaxpr")
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint")
# Operations of tensors alone that have the same name in PyTorch.
SAME = """
    abs add ceil cos eq erf exp expm1 floor ge gt le log log1p lt mul ne neg pow rsqrt sign sin
    sqrt square sub tanh
""".split()  # noqa: SIM905
RENAMED = {
    "and": torch.bitwise_and,
    "clamp": lambda low, x, high: torch.minimum(torch.maximum(x, low), high),
    "copy": torch.clone,
    "is_finite": torch.isfinite,
    "logistic": torch.sigmoid,
    "max": torch.maximum,
    "min": torch.minimum,
    "not": torch.bitwise_not,
    "or": torch.bitwise_or,
    "stop_gradient": torch.detach,
}
PLAIN = {name: getattr(torch, name) for name in SAME} | RENAMED
OPERATIONS = {name: _plain(function) for name, function in PLAIN.items()} | {
    "reduce_and": _over_axes(torch.all),
    "reduce_max": _over_axes(torch.amax),
    "reduce_min": _over_axes(torch.amin),
    "reduce_or": _over_axes(torch.any),
    "reduce_sum": _over_axes(torch.sum),
    "reduce_window_max": _pool(torch.maximum, -np.inf),
    "reduce_window_min": _pool(torch.minimum, np.inf),
    "reduce_window_sum": _pool(torch.add, 0),
    "argmax": lambda x, axes, index_dtype, **_: x.argmax(axes[0]).to(_type(index_dtype)),
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda *parts, dimension, **_: torch.cat(parts, dimension),
    "conv_general_dilated": _conv,
    "convert_element_type": lambda x, new_dtype, **_: x.to(_type(new_dtype)),
    "div": lambda a, b, **_: (
        a / b if a.is_floating_point() else a.div(b, rounding_mode="trunc")
    ),
    "dot_general": _dot_general,
    "gather": _gather,
    "integer_pow": lambda x, y, **_: x**y,
    "iota": _iota,
    "pad": _pad,
    "reshape": lambda x, shape, **_: x.reshape(shape),
    "rev": lambda x, dimensions, **_: x.flip(dimensions),
    "select_n": _select_n,
    "slice": _slice,
    "split": lambda x, sizes, axis, **_: x.split([int(size) for size in sizes], axis),
    "squeeze": lambda x, dimensions, **_: x.squeeze(dimensions),
    "top_k": _top_k,
    "transpose": lambda x, permutation, **_: x.permute(permutation),
}
