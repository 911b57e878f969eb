"""Client models from Flax modules: Linen and NNX, as pure functions over their parameters."""

import functools
import warnings
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx, traverse_util
from flax.errors import InvalidRngError

from graphfl_jax.architecture import Architecture
from graphfl_jax.core import ClientModel, Task
from graphfl_jax.models.layers import scale_bytes


def client_model(
    *,
    body: Any,
    head: Any = None,
    inputs: tuple[int, ...],
    task: Task,
    architecture: Architecture | None = None,
) -> ClientModel:
    """A client model from Flax modules, which are called with a batch and nothing else.

    A module of Flax Linen is given as it is. A module of Flax NNX is given by the function that
    makes it, such as ``lambda rngs: Net(rngs=rngs)``: then the weights of a client model depend
    on the seed. An NNX module that is already made keeps its weights in all seeds, with a
    warning. Modules have parameters only: batch statistics, caches and dropout are refused.

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
      ValueError: a module is no Flax module, has more than parameters, or cannot be applied.
    """
    init_body, apply_module, features = _pure_functions("body", body, inputs)
    if head is None:
        init_head, apply_head = lambda key: {}, lambda params, features: features
    elif len(features) != 1:
        raise ValueError(
            f"body={_name(body)} gives features of shape {features}; flatten them in the body"
        )
    else:
        init_head, apply_head, _ = _pure_functions("head", head, features)

    def init(key):
        key_body, key_head = jax.random.split(key)
        return {"body": init_body(key_body), "head": init_head(key_head)}

    def apply_body(params, x):
        x, types = scale_bytes(x), [leaf.dtype for leaf in jax.tree.leaves(params)]
        if types and jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(types[0])  # of the parameters in training, see `objectives`
        return apply_module(params, x)

    return ClientModel(
        init=init,
        body=apply_body,
        head=apply_head,
        task=task,
        architecture=architecture,
    )


def _pure_functions(part, module, inputs):
    """A module, checked, as pure functions, and the shape of an output without the batch.

    The functions are key -> params and (params, x [B, ...]) -> [B, ...]. `part` is "body" or
    "head", for errors.
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
        init, apply = make()
        key = jax.eval_shape(jax.random.key, 0)
        outputs = jax.eval_shape(lambda key: apply(init(key), examples), key)
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
    return init, apply, outputs.shape[1:]


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
        f"it, for example by LayerNorm in place of BatchNorm, and no dropout"
    )


def _from_linen(part, module, examples):
    """`init` and `apply` of a Linen module that has parameters only."""
    variables = jax.eval_shape(module.init, jax.eval_shape(jax.random.key, 0), examples)
    collections = sorted(variables.keys() - {"params"})
    if collections:
        raise _state_error(part, _name(module), f"the collection {', '.join(collections)}")

    def init(key):
        return module.init(key, examples).get("params", {})

    def apply(params, x):
        return module.apply({"params": params}, x)

    try:
        jax.eval_shape(apply, variables.get("params", {}), examples)
    except InvalidRngError:
        raise _state_error(part, _name(module), "random draws") from None
    return init, apply


def _from_nnx(part, make):
    """`init` and `apply` of an NNX module that has parameters only."""

    def split(key):
        module = make(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise _no_module_error(part, module)
        return nnx.split(module, nnx.Param, ...)

    like, state = jax.eval_shape(lambda key: split(key)[1:], jax.eval_shape(jax.random.key, 0))
    names = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(state)]
    if names:
        raise _state_error(part, _name(make), f"the state {', '.join(names)}")
    paths = [path for path, _ in nnx.to_flat_state(like)]

    def init(key):
        params = nnx.to_flat_state(split(key)[1])
        leaves = {tuple(map(str, path)): param[...] for path, param in params}
        return traverse_util.unflatten_dict(leaves)

    def apply(params, x):
        leaves = traverse_util.flatten_dict(params)
        state = [(path, nnx.Param(leaves[tuple(map(str, path))])) for path in paths]
        # Made anew, since its attributes can be traced settings. The weights are not computed.
        definition, *_ = split(jax.random.key(0))
        return nnx.merge(definition, nnx.from_flat_state(state))(x)

    return init, apply
