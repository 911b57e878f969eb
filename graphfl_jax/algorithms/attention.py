"""Logits of the attention between clients, from their models; see `pfedgat`."""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax.core import Array
from graphfl_jax.data import relations
from graphfl_jax.settings import Integer, Real, Switch

SLOPE = 0.2  # of LeakyReLU

Heads = Annotated[int, Integer("Heads K of pFedGAT's attention.")]
Size = Annotated[int, Integer("Features d' of a head of pFedGAT's attention.")]


class Attention(NamedTuple):
    """Logits between clients, as pure functions."""

    init: Callable  # (key, client graph, (N, d)) -> weights
    logits: Callable  # (weights, models [N, d]) -> [K, N, N]
    # (weights, client graph with the new clients) -> weights
    grow: Callable = lambda weights, graph: weights
    learns: bool = True  # whether the weights change


def v1(
    *,
    attention_heads: Heads = 8,
    attention_size: Size = 64,
    attention_collapsed: Annotated[
        bool, Switch("Whether v1 learns W^T a instead of W and a; for large models.")
    ] = False,
) -> Attention:
    """The attention of the paper: two numbers per client and head."""

    def init(key, graph, shape):
        (_, d), (key_w, key_a) = shape, jax.random.split(key)
        if attention_collapsed:
            return jax.random.normal(key_w, (attention_heads, 2, d)) / d**0.5
        w = jax.random.normal(key_w, (attention_heads, attention_size, d)) / d**0.5
        a = jax.random.normal(key_a, (attention_heads, 2, attention_size))
        return {"W": w, "a": a / attention_size**0.5}

    def logits(weights, models):
        h = normalise(models)
        if attention_collapsed:
            s, t = jnp.einsum("kcd,nd->ckn", weights, h)  # a_1^T W h_i and a_2^T W h_j
        else:
            z = jnp.einsum("khd,nd->knh", weights["W"], h)  # W h_i
            s, t = jnp.einsum("kch,knh->ckn", weights["a"], z)
        return jax.nn.leaky_relu(s[:, :, None] + t[:, None, :], SLOPE)  # e_ij

    return Attention(init, logits)


def v2(*, attention_heads: Heads = 8, attention_size: Size = 64) -> Attention:
    """The attention of GATv2, in which the product with a comes after LeakyReLU.

    Brody, Alon, Yahav. How Attentive are Graph Attention Networks? ICLR 2022.
    https://arxiv.org/abs/2105.14491
    """

    def init(key, graph, shape):
        (_, d), (key_w, key_a) = shape, jax.random.split(key)
        w = jax.random.normal(key_w, (2, attention_heads, attention_size, d)) / d**0.5
        a = jax.random.normal(key_a, (attention_heads, attention_size)) / attention_size**0.5
        return {"W": w, "a": a}

    def logits(weights, models):
        z, y = jnp.einsum("ckhd,nd->cknh", weights["W"], normalise(models))
        # LeakyReLU(W [h_i || h_j]), [K, N, N, d']
        pairs = jax.nn.leaky_relu(z[:, :, None] + y[:, None, :], SLOPE)
        return jnp.einsum("kh,kijh->kij", weights["a"], pairs)

    return Attention(init, logits)


def direct() -> Attention:
    """A free number for each pair of clients."""

    def init(key, graph, shape):
        return jnp.zeros([shape[0]] * 2)

    def grow(weights, graph):
        return jnp.pad(weights, (0, relations.num_clients(graph) - len(weights)))

    return Attention(init, lambda weights, models: weights[None], grow)


def from_relations() -> Attention:
    """The client graph: equal shares for a client and its senders, and nothing is learned.

    With a graph of the clients that should share a model, it is the mixture to compare with.
    """

    def shares(graph, total):
        """Among the first clients: the training graph can have new clients, which come last."""
        among = relations.propagation_array(graph, "mean")[:total, :total]
        return among / jnp.sum(among, axis=1, keepdims=True)

    def logits(weights, models):
        smallest = jnp.finfo(weights.dtype).tiny
        return jnp.log(jnp.maximum(jax.lax.stop_gradient(weights), smallest))[None]

    return Attention(
        init=lambda key, graph, shape: shares(graph, shape[0]),
        logits=logits,
        grow=lambda weights, graph: shares(graph, relations.num_clients(graph)),
        learns=False,
    )


def dot(
    *,
    attention_scale: Annotated[
        Array, Real("Initial factor t of dot's products of models.", low=1e-6)
    ] = 5.0,
) -> Attention:
    """Dot products of the directions in which models differ from their mean.

    A client's product with itself, 1, would always be the largest. It is replaced by its
    largest product with another client, so that clients that are all alike get equal shares. A
    difference within the rounding of the models counts as 0.
    """

    def init(key, graph, shape):
        return {
            "log t": jnp.log(jnp.asarray(attention_scale, jnp.float32)),
            "b": jnp.float32(0),
        }

    def logits(weights, models):
        x = models - jnp.mean(models, axis=0, keepdims=True)
        squares = jnp.sum(jnp.square(x), axis=1, keepdims=True)
        rounding = (8 * jnp.finfo(x.dtype).eps) ** 2
        least = rounding * jnp.sum(jnp.square(models), axis=1, keepdims=True)
        differs = squares > least
        # x_i: the direction of h_i from the mean
        x = jnp.where(differs, x * jax.lax.rsqrt(jnp.where(differs, squares, 1.0)), 0.0)
        products = x @ x.T  # x_i . x_j
        diagonal = jnp.eye(len(x), dtype=bool)
        others = jnp.where(diagonal, -jnp.inf, products)
        nearest = jnp.max(others, axis=1, initial=-1.0)  # a single client has no other
        products = jnp.where(diagonal, nearest[:, None], products)
        bias = jnp.where(diagonal, weights["b"], 0.0)
        return (jnp.exp(weights["log t"]) * products + bias)[None]

    return Attention(init, logits)


def normalise(models: Array) -> Array:
    """Rows [N, d] with mean 0 and variance 1; a constant row becomes 0."""
    centred = models - jnp.mean(models, axis=1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.maximum(variance, jnp.finfo(models.dtype).tiny))


ATTENTIONS = {"v1": v1, "v2": v2, "direct": direct, "dot": dot, "given": from_relations}


def log_shares(logits: Array) -> Array:
    """log R [N, N] of the logits [K, N, N] of the heads."""
    heads = jax.nn.log_softmax(logits, axis=2)  # of each head, over j
    return jax.nn.logsumexp(heads, axis=0) - jnp.log(jnp.float32(len(logits)))
