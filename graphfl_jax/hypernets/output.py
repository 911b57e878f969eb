"""The output layer of a hypernetwork: which parameters of a client are generated, and how.

A linear layer O maps the hypernetwork's last features a to a vector of numbers v = O(a). One of
four forms turns v into the client's parameters theta:

    direct      theta = v. All parameters are generated.
    residual    theta = b + v. All parameters are generated as differences from a base b.
    head        theta = b, plus v in the head and in all vectors of the body (its biases, and
                the scales and biases of its normalisation layers). The other kernels of the
                body are those of b.
    lora        theta = b, plus v in all vectors, plus A B / sqrt(rank) in every kernel, which
                is seen as a matrix [fan-in, out]. A [fan-in, rank] and B [rank, out], and
                what is added to vectors, are shared values plus v (Hu et al. LoRA. ICLR 2022.
                https://arxiv.org/abs/2106.09685).

All clients share the base b and the shared values of A and B, and the server trains them with
the rest of the hypernetwork. b starts as an initialisation of the client model, including
pretrained weights if it has any. A's shared values start random, B's at 0. With a base, O's
kernel and bias are scaled by 1e-2 at the start, so that the first generated models are close
to b.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax.core import Array, ClientModel, Params
from graphfl_jax.models.mlp import MLP
from graphfl_jax.settings import Choice, Integer

OUTPUTS = ("direct", "residual", "head", "lora")
SCALE = 1e-2  # initial scale of the linear layer where there is a base


class Output(NamedTuple):
    """The output layer of a hypernetwork."""

    size: int  # length of v
    init: Callable  # (key, size of the features) -> weights
    decode: Callable  # (weights, features [F]) -> the parameters of one client


def output_layer(
    model: ClientModel,
    *,
    output: Annotated[
        str,
        Choice(
            "What a hypernetwork generates: models (direct), their differences from a shared "
            "model (residual), only heads, biases and scales (head), or these and low-rank "
            "changes of kernels (lora).",
            OUTPUTS,
        ),
    ] = "direct",
    rank: Annotated[int, Integer("Rank of the generated kernel updates with output=lora.")] = 4,
) -> Output:
    """Builds the layer that generates the parameters of `model`.

    Raises:
      ValueError: only the head is generated, and the model has none.
    """
    shapes = jax.eval_shape(model.init, jax.eval_shape(jax.random.key, 0))
    if output == "head" and not jax.tree.leaves(shapes["head"]):
        raise ValueError(
            "algorithm.output='head' needs client models with a head, and this one has none; "
            "choose another output, or give the model a head"
        )
    parts = jax.tree_util.tree_map_with_path(_shapes_by_output(output, rank), shapes)
    tensors, structure = jax.tree.flatten(parts)
    sizes = [tensor.size for tensor in tensors]
    linear = MLP((sum(sizes),))

    def init(key: Array, features: int) -> dict[str, Any]:
        key_linear, key_base, key_factors = jax.random.split(key, 3)
        weights = {"linear": linear.init(key_linear, jnp.zeros((features,)))["params"]}
        if output == "direct":
            return weights
        weights = jax.tree.map(lambda leaf: SCALE * leaf, weights)
        weights["base"] = model.init(key_base)
        if output == "lora":
            weights["factors"] = _initial_factors(key_factors, parts)
        return weights

    def decode(weights: dict[str, Any], features: Array) -> Params:
        generated = linear.apply({"params": weights["linear"]}, features)
        generated = [
            piece.reshape(tensor.shape)
            for piece, tensor in zip(jax.lax.split(generated, sizes), tensors, strict=True)
        ]
        generated = jax.tree.unflatten(structure, generated)
        if output == "direct":
            return generated
        if output == "lora":
            generated = jax.tree.map(jnp.add, weights["factors"], generated)
        return jax.tree.map(_add_to_base, weights["base"], generated)

    return Output(sum(sizes), init, decode)


def _shapes_by_output(output, rank):
    """Returns (path, shape of a tensor of the model) -> shapes of what is generated for it."""

    def shapes_for(path, leaf):
        vector = leaf.ndim <= 1
        if output in ("direct", "residual") or vector:
            return leaf
        if output == "head":
            in_head = path[0] == jax.tree_util.DictKey("head")
            return leaf if in_head else ()
        fan_in, out = leaf.size // leaf.shape[-1], leaf.shape[-1]
        return {
            "a": jax.ShapeDtypeStruct((fan_in, rank), leaf.dtype),
            "b": jax.ShapeDtypeStruct((rank, out), leaf.dtype),
        }

    return shapes_for


def _initial_factors(key, shapes):
    """Initial shared values of everything generated: A from N(0, 1 / fan-in), the rest 0."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(shapes)
    values = []
    for i, (path, leaf) in enumerate(leaves):
        if path[-1] == jax.tree_util.DictKey("a") and leaf.ndim == 2:
            normal = jax.random.normal(jax.random.fold_in(key, i), leaf.shape, leaf.dtype)
            values.append(normal / jnp.sqrt(jnp.float32(leaf.shape[0])))
        else:
            values.append(jnp.zeros(leaf.shape, leaf.dtype))
    return jax.tree_util.tree_unflatten(treedef, values)


def _add_to_base(base, generated):
    """A tensor of the model: its base plus what is generated for it, () if nothing is."""
    if isinstance(generated, tuple):
        return base
    if not isinstance(generated, dict):
        return base + generated
    rank = jnp.float32(generated["b"].shape[0])
    return base + (generated["a"] @ generated["b"] / jnp.sqrt(rank)).reshape(base.shape)
