"""Client models from Flax modules: Linen and NNX, as pure functions over their parameters.

A body may normalise by batches, as `batch_statistics` describes: training uses the statistics
of each batch and keeps no running averages. Before a client predicts, `recalibrate` computes
them from its own training examples. Flax updates a running average s by m s + (1 - m) b, with
the momentum m of the layer and the statistics b of the batch. The module is applied to the same
examples with all averages 0 and with all averages `LARGE`; from the two results come m and b.
"""

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx, traverse_util
from flax.errors import InvalidRngError

from graphfl_jax.architecture import Architecture
from graphfl_jax.core import ClientModel, Task
from graphfl_jax.examples import repeat_real
from graphfl_jax.models.batch_statistics import RECALIBRATION_EXAMPLES, spread_rows
from graphfl_jax.models.layers import scale_bytes

STATISTICS = "statistics"  # of a body, beside its parameters
LARGE = 2.0**40  # average beside which statistics of a batch vanish in float32
DIGITS = 1e6  # a momentum is a multiple of 1 / DIGITS


def client_model(
    *,
    body: Any,
    head: Any = None,
    inputs: tuple[int, ...],
    task: Task,
    architecture: Architecture | None = None,
) -> ClientModel:
    """A client model from Flax modules, which are called with a batch and nothing else.

    A module of Flax Linen is given as it is; if it normalises by batches, its function is
    ``__call__(x, train)``, and its layers are ``nn.BatchNorm(use_running_average=not train)``.
    A module of Flax NNX is given by the function that makes it, such as ``lambda rngs:
    Net(rngs=rngs)``: then the weights of a client model depend on the seed. An NNX module that
    is already made keeps its weights in all seeds, with a warning. Modules have parameters, and
    in a body batch statistics, which a client computes from its own training examples before it
    predicts. If a batch has fewer real rows than others, these are repeated. Caches and dropout
    are refused.

    Args:
      body: maps examples [B, *inputs] to features; without a head, to the outputs [B, O].
        Bytes are scaled to -1 to 1 before.
      head: maps features to outputs [B, O]. Without one, methods that treat the head apart
        refuse the model.
      inputs: shape of an example.
      task: of the federation.
      architecture: the layers as a graph, for methods and federations that need one. A path of
        a node is that of its parameters, such as ("body", "Conv_0") and ("head",).

    Raises:
      ValueError: a module is no Flax module, has more than that, or cannot be applied.
    """
    of_body, features = _pure_functions("body", body, inputs)
    if head is None:
        of_head = _Functions(lambda key: {}, lambda params, features: features)
    elif len(features) != 1:
        raise ValueError(
            f"body={_name(body)} gives features of shape {features}; flatten them in the body"
        )
    else:
        of_head, _ = _pure_functions("head", head, features)
        if of_head.statistics:
            raise ValueError(f"head={_name(head)} normalises by batches; do so in the body")

    def init(key):
        key_body, key_head = jax.random.split(key)
        return {"body": of_body.init(key_body), "head": of_head.init(key_head)}

    def apply_body(params, x):
        return of_body.apply(params, _as_inputs(params, x))

    model = ClientModel(
        init=init,
        body=apply_body,
        head=of_head.apply,
        task=task,
        architecture=architecture,
    )
    return _with_recalibration(model, of_body) if of_body.statistics else model


class _Functions(NamedTuple):
    """A module as pure functions."""

    init: Callable  # key -> params
    # (params, x [B, ...]) -> [B, ...], with the statistics in params, or else of x
    apply: Callable
    # (params, x) -> the statistics of x; None of a module without any
    statistics: Callable | None = None


def _with_recalibration(model, of_body):
    """A client model whose body normalises by batches."""

    def train_forward(params, batch, key):
        body = _without_statistics(params["body"])
        return model.apply(params | {"body": body}, _repeat_real(batch.x, batch.count))

    def recalibrate(params, examples):
        x = _repeat_real(*spread_rows(examples, RECALIBRATION_EXAMPLES))
        statistics = of_body.statistics(params["body"], _as_inputs(params, x))
        return params | {"body": params["body"] | {STATISTICS: statistics}}

    return dataclasses.replace(model, train_forward=train_forward, recalibrate=recalibrate)


def _without_statistics(body):
    return {name: part for name, part in body.items() if name != STATISTICS}


def _as_inputs(params, x):
    """Inputs as numbers of the type of the parameters in training, see `objectives`."""
    x, types = scale_bytes(x), [leaf.dtype for leaf in jax.tree.leaves(params)]
    return x.astype(types[0]) if types and jnp.issubdtype(x.dtype, jnp.floating) else x


def _repeat_real(x, count):
    """Rows [B, ...] of which the first `count` are repeated in place of the others."""
    return x[repeat_real(jnp.arange(x.shape[0]), count)]


def _with_statistics(init, run, like):
    """The functions of a module that normalises by batches.

    Args:
      run: (params, statistics, x, train) -> outputs, and the updated statistics.
      like: the tree of the statistics.
    """

    def filled(value):
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, value, jnp.float32), like)

    def of_batch(from_zeros, from_large):
        rest = (DIGITS - jnp.round(DIGITS * (from_large / LARGE))) / DIGITS  # 1 - m
        return from_zeros / rest

    def statistics(params, x):
        parts = (run(_without_statistics(params), filled(s), x, True)[1] for s in (0.0, LARGE))
        return jax.tree.map(of_batch, *parts)

    def apply(params, x):
        known = params.get(STATISTICS)
        if known is None:
            return run(params, filled(0.0), x, True)[0]
        return run(_without_statistics(params), known, x, False)[0]

    return _Functions(init, apply, statistics)


def _pure_functions(part, module, inputs):
    """The `_Functions` of a module, checked, and the shape of an output without the batch.

    `part` is "body" or "head", for errors.
    """
    name, examples = _name(module), jnp.zeros((1, *inputs))
    if isinstance(module, nn.Module):
        make = functools.partial(_from_linen, part, module, examples)
    elif isinstance(module, nnx.Module):
        _warn_of_weights(part, name)
        make = functools.partial(_from_nnx, part, lambda rngs: module)
    elif callable(module):
        make = functools.partial(_from_nnx, part, module)
    else:
        raise _no_module_error(part, module)
    try:
        functions = make()
        key = jax.eval_shape(jax.random.key, 0)
        params = jax.eval_shape(functions.init, key)
        outputs = jax.eval_shape(functions.apply, params, examples)
        if not isinstance(outputs, jax.ShapeDtypeStruct):
            kind = type(outputs).__name__
            raise _RefusedError(f"{part}={name} returns a {kind}; return one array")
    except _RefusedError as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # whatever the user's module raises
        why = " ".join(str(error).split())
        raise ValueError(
            f"{part}={name} cannot be applied to inputs of shape {examples.shape} "
            f"({type(error).__name__}: {why}); correct the module"
        ) from error
    return functions, outputs.shape[1:]


@functools.cache  # a program is built several times
def _warn_of_weights(part, name):
    warnings.warn(
        f"{part}={name} is an NNX module that has its weights, so all seeds begin with them; "
        f"for new ones, give the function that makes it, such as lambda rngs: "
        f"{name}(rngs=rngs)",
        stacklevel=4,
    )


class _RefusedError(ValueError):
    """A module is refused for what it is; its own code raised no error."""


def _name(module):
    """A name for errors: of the module's class, or of the function."""
    return getattr(module, "__name__", type(module).__name__)


def _no_module_error(part, value):
    return _RefusedError(
        f"{part}={_name(value)} is no Flax module; give a Linen module, or a function that "
        f"makes an NNX module, such as lambda rngs: Net(rngs=rngs)"
    )


def _state_error(part, name, what):
    return _RefusedError(
        f"{part}={name} has {what} beside its parameters, which clients cannot keep; remove "
        f"it, such as dropout"
    )


def _from_linen(part, module, examples):
    """The functions of a Linen module that has parameters, and perhaps batch statistics."""
    words = {"train": False} if "train" in inspect.signature(module.__call__).parameters else {}
    start = functools.partial(module.init, **words)
    variables = jax.eval_shape(start, jax.eval_shape(jax.random.key, 0), examples)
    statistics = variables.get("batch_stats") if words else None
    if "batch_stats" in variables and not words:
        raise _RefusedError(
            f"{part}={_name(module)} has the collection batch_stats and no argument train; "
            f"write __call__(self, x, train), and BatchNorm(use_running_average=not train)"
        )
    collections = sorted(variables.keys() - {"params", "batch_stats"})
    if collections:
        raise _state_error(part, _name(module), f"the collection {', '.join(collections)}")

    def init(key):
        return start(key, examples).get("params", {})

    def apply(params, x):
        return module.apply({"params": params}, x, **words)

    def run(params, statistics, x, train):
        variables = {"params": params, "batch_stats": statistics}
        if not train:
            return module.apply(variables, x, train=False), statistics
        outputs, new = module.apply(variables, x, train=True, mutable=["batch_stats"])
        return outputs, new["batch_stats"]

    made = _with_statistics(init, run, statistics) if statistics else _Functions(init, apply)
    for function in filter(None, (made.apply, made.statistics)):
        try:
            jax.eval_shape(function, variables.get("params", {}), examples)
        except InvalidRngError:
            raise _state_error(part, _name(module), "random draws") from None
    return made


def _from_nnx(part, make):
    """The functions of an NNX module that has parameters, and perhaps batch statistics."""

    def split(key):
        module = make(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise _no_module_error(part, module)
        return nnx.split(module, nnx.Param, nnx.BatchStat, ...)

    key = jax.eval_shape(jax.random.key, 0)
    like, averages, state = jax.eval_shape(lambda key: split(key)[1:], key)
    names = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(state)]
    if names:
        raise _state_error(part, _name(make), f"the state {', '.join(names)}")

    def module_of(params, statistics):
        # Made anew, since its attributes can be traced settings. The weights are not computed.
        definition, *_ = split(jax.random.key(0))
        state = _state_of(nnx.Param, like, params)
        return nnx.merge(definition, state, _state_of(nnx.BatchStat, averages, statistics))

    def init(key):
        return _leaves_of(split(key)[1])

    def apply(params, x):
        return module_of(params, {})(x)

    def run(params, statistics, x, train):
        module = module_of(params, statistics)
        (module.train if train else module.eval)()
        outputs = module(x)
        return outputs, _leaves_of(nnx.state(module, nnx.BatchStat))

    if nnx.to_flat_state(averages):
        shapes = jax.eval_shape(lambda key: _leaves_of(split(key)[2]), key)
        return _with_statistics(init, run, shapes)
    return _Functions(init, apply)


def _leaves_of(state):
    """A state of NNX as a tree of arrays, whose paths have texts."""
    flat = nnx.to_flat_state(state)
    return traverse_util.unflatten_dict(
        {tuple(map(str, path)): leaf[...] for path, leaf in flat}
    )


def _state_of(kind, like, leaves):
    """A state of NNX like another, with variables of a kind and the leaves of a tree."""
    leaves = traverse_util.flatten_dict(leaves)
    flat = nnx.to_flat_state(like)
    return nnx.from_flat_state(
        [(path, kind(leaves[tuple(map(str, path))])) for path, _ in flat]
    )
