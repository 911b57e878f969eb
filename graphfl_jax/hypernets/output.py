"""From a hypernetwork's last features to a client's parameters: which are generated, and how.

With the last linear layer v = O(a) of features a, and a base b that all clients share, which
begins as the client model's own initialisation (pretrained weights, where it has them), O's
matrix and bias being scaled by 1e-2,

    whole     theta = v, with O as it is initialised and no base
    full      theta = b + v
    head      theta = b, plus v in the head and in all vectors of the body: its biases, and the
              scales and biases of normalisation
    lowrank   theta = b, plus v in all vectors, plus A B / sqrt(rank) in every kernel, seen as
              matrix [fan-in, out]; A [fan-in, rank] and B [rank, out] are their shared values
              plus v. A's shared values begin at random and B's at 0 (Hu et al. LoRA. ICLR 2022.
              https://arxiv.org/abs/2106.09685)

b and the shared values of A and B are the hypernetwork's to train: they are O's biases, in a
form that starts where the model does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from graphfl_jax.core import Array, ClientModel, Params
from graphfl_jax.models.mlp import MLP

PROFILES = ("whole", "full", "head", "lowrank")
SCALE = 1e-2


class Output(NamedTuple):
    """The last layer of a hypernetwork."""

    size: int  # numbers generated
    init: Callable  # (key, features) -> weights
    decode: Callable  # (weights, a [features]) -> parameters of one client


def output_layer(model: ClientModel, *, profile: str, rank: int) -> Output:
    """Builds the layer that generates `model` by one of `PROFILES`.

    Raises:
      ValueError: an unknown profile, or no rank.
    """
    if profile not in PROFILES:
        raise ValueError(
            f"algorithm.profile={profile!r} is unknown; choose from {', '.join(PROFILES)}"
        )
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    parts = jax.tree_util.tree_map_with_path(_parts_of(profile, rank), shapes)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), parts)
    flat, unravel = ravel_pytree(zeros)
    linear = MLP((flat.shape[0],))

    def init(key: Array, features: int) -> dict[str, Any]:
        key_linear, key_base, key_factors = jax.random.split(key, 3)
        weights = {"linear": linear.init(key_linear, jnp.zeros((features,)))["params"]}
        if profile == "whole":
            return weights
        weights = jax.tree.map(lambda leaf: SCALE * leaf, weights)
        weights["base"] = model.init(key_base)
        if profile == "lowrank":
            weights["factors"] = _random_factors(key_factors, zeros)
        return weights

    def decode(weights: dict[str, Any], active: Array) -> Params:
        generated = unravel(linear.apply({"params": weights["linear"]}, active))
        if profile == "whole":
            return generated
        if profile == "lowrank":
            generated = jax.tree.map(jnp.add, weights["factors"], generated)
        return jax.tree.map(_added, weights["base"], generated)

    return Output(flat.shape[0], init, decode)


def _parts_of(profile, rank):
    """What is generated for a tensor of the model: (path, shape) -> a tree of shapes."""

    def parts(path, leaf):
        vector = leaf.ndim <= 1
        if profile in ("whole", "full") or vector:
            return leaf
        if profile == "head":
            in_head = path[0] == jax.tree_util.DictKey("head")
            return leaf if in_head else ()
        fan_in, out = leaf.size // leaf.shape[-1], leaf.shape[-1]
        if rank < 1:
            raise ValueError(f"algorithm.rank={rank} must be at least 1; 4 is usual")
        return {
            "a": jax.ShapeDtypeStruct((fan_in, rank), leaf.dtype),
            "b": jax.ShapeDtypeStruct((rank, out), leaf.dtype),
        }

    return parts


def _random_factors(key, zeros):
    """Shared values of all that is generated: each A drawn in N(0, 1 / fan-in), the rest 0."""
    leaves, form = jax.tree_util.tree_flatten_with_path(zeros)
    drawn = []
    for i, (path, leaf) in enumerate(leaves):
        if path[-1] == jax.tree_util.DictKey("a") and leaf.ndim == 2:
            own = jax.random.normal(jax.random.fold_in(key, i), leaf.shape, leaf.dtype)
            leaf = own / jnp.sqrt(jnp.float32(leaf.shape[0]))
        drawn.append(leaf)
    return jax.tree_util.tree_unflatten(form, drawn)


def _added(base, generated):
    """A tensor of the model from its shared value and what is generated for it, if anything."""
    if isinstance(generated, tuple):
        return base
    if not isinstance(generated, dict):
        return base + generated
    rank = jnp.float32(generated["b"].shape[0])
    return base + (generated["a"] @ generated["b"] / jnp.sqrt(rank)).reshape(base.shape)
