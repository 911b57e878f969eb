"""Compression: what the server reads of the update that a client sends.

An update u, d floats, is an upload minus what its client would have sent untrained. The server
reads C(u) in its place. p is ``hparams.compression_share``.

    quantise   min u + r y, with r = (max u - min u) / (2^b - 1) and x_j = (u_j - min u) / r;
               y_j is x_j rounded down or up, up with probability x_j - floor(x_j)
    top_k      u_j where |u_j| is among the k = p d largest, and 0 elsewhere
    random_k   u_j d / k at k = p d random places, and 0 elsewhere
    sign       sign(u_j) mean_i |u_i|
    sketch     the median over rows r of s_r(j) S[r, h_r(j)], where S[r, c] is the sum of
               s_r(j) u_j over all j with h_r(j) = c; the signs s_r and the columns h_r are
               random, and drawn anew in each round

quantise, random_k and a sketch of one row are unbiased: the mean of C(u) is u. An upload has

    quantise   b d + 64 bits, for min u and r
    top_k      k (32 + ceil(log2 d))
    random_k   32 k + 32, for the number from which the places are drawn
    sign       d + 32
    sketch     32 rows columns + 32

With ``compression.feedback``, a client keeps what was lost, e, at first 0: the server reads
C(u + e), and e <- u + e - C(u + e). So what is lost is sent later. It is of the round in which
the client took part before, which with many clients is long ago.

Only floats are compressed. Whole numbers of an upload, such as counts, are sent as they are.
What a client predicts with after its local training, L, is what it trained, not C of it.
Attackers send what they like, with as many bits. Rounds in which new clients adapt alone have
no compression.

Sources: Konecny, McMahan, Yu, Richtarik, Suresh, Bacon, Federated Learning: Strategies for
Improving Communication Efficiency, 2016, https://arxiv.org/abs/1610.05492 (quantise, random_k);
Alistarh, Hoefler, Johansson, Konstantinov, Khirirat, Renggli, The Convergence of Sparsified
Gradient Methods, NeurIPS 2018 (top_k); Bernstein, Wang, Azizzadenesheli, Anandkumar, signSGD,
ICML 2018 (sign), with the scale of Karimireddy, Rebjock, Stich, Jaggi, Error Feedback Fixes
SignSGD, ICML 2019 (feedback); Charikar, Chen, Farach-Colton, Finding Frequent Items in Data
Streams, ICALP 2002 (sketch).

Departures: an update is compressed as one vector, not tensor by tensor, and without a random
rotation before quantise. k is rounded, and at least 1.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from graphfl_jax.core import Algorithm, Array, Client, Exchange
from graphfl_jax.rounds import bits_of
from graphfl_jax.settings import Integer, Real, Switch
from graphfl_jax.wire.updates import floats_of

FLOAT_BITS = 32
# The key with which a client compresses is that of its local training, with this folded in.
SENDING = 0x5E4D

Share = Annotated[
    Array, Real("Share of the numbers of an update that is sent.", low=0.0, high=1.0)
]


class Compressor(NamedTuple):
    """How an update is sent."""

    read: Callable[[Array, Array], Array]  # (update [d] float32, key) -> what is read of it
    bits: Callable[[int], float]  # d -> bits of an update of d floats


class Held(NamedTuple):
    """What a client keeps between rounds, with the part of its updates that was lost."""

    memory: Any  # of the method
    lost: Array  # [d], e


def quantise(
    *, bits: Annotated[int, Integer("Bits of a number.", low=1, high=8)] = 8
) -> Compressor:
    """Rounds each number at random to one of 2^bits levels."""
    levels = 2**bits - 1

    def read(update, key):
        low, high = jnp.min(update), jnp.max(update)
        step = (high - low) / levels
        place = (update - low) / jnp.where(step > 0, step, 1.0)
        up = jax.random.uniform(key, update.shape) < place - jnp.floor(place)
        rounded = jnp.floor(place) + up.astype(update.dtype)
        return low + step * jnp.minimum(rounded, levels)

    return Compressor(read, lambda size: bits * size + 2 * FLOAT_BITS)


def top_k(*, compression_share: Share = 0.1) -> Compressor:
    """Sends the largest numbers."""

    def read(update, key):
        sizes = jnp.abs(update)
        last = jnp.sort(sizes)[-_kept(compression_share, update.size)]
        return jnp.where(sizes >= last, update, 0.0)

    def bits(size):
        place = math.ceil(math.log2(max(size, 2)))
        return float(_kept(compression_share, size)) * (FLOAT_BITS + place)

    return Compressor(read, bits)


def random_k(*, compression_share: Share = 0.1) -> Compressor:
    """Sends numbers at random places."""

    def read(update, key):
        kept = _kept(compression_share, update.size)
        chosen = jax.random.permutation(key, update.size) < kept
        return jnp.where(chosen, update * (update.size / kept), 0.0)

    def bits(size):
        return FLOAT_BITS * (float(_kept(compression_share, size)) + 1)

    return Compressor(read, bits)


def _kept(share, size):
    """The number k of floats that are sent."""
    return jnp.clip(jnp.round(share * size).astype(jnp.int32), 1, size)


def sign() -> Compressor:
    """Sends the signs, and one size for all numbers."""

    def read(update, key):
        return jnp.sign(update) * jnp.mean(jnp.abs(update))

    return Compressor(read, lambda size: size + FLOAT_BITS)


def sketch(
    *,
    rows: Annotated[int, Integer("Rows of a sketch.")] = 5,
    columns: Annotated[int, Integer("Columns of a sketch.")] = 100,
) -> Compressor:
    """Sends sums of numbers, from which the server estimates each."""

    def read(update, key):
        def estimate(key):
            key_signs, key_columns = jax.random.split(key)
            signs = jax.random.rademacher(key_signs, update.shape, update.dtype)
            places = jax.random.randint(key_columns, update.shape, 0, columns)
            sums = jnp.zeros(columns).at[places].add(signs * update)
            return signs * sums[places]

        return jnp.median(jax.vmap(estimate)(jax.random.split(key, rows)), axis=0)

    return Compressor(read, lambda size: FLOAT_BITS * (rows * columns + 1))


COMPRESSORS = {
    "quantise": quantise,
    "top_k": top_k,
    "random_k": random_k,
    "sign": sign,
    "sketch": sketch,
}


def feedback_of(
    *,
    feedback: Annotated[
        bool, Switch("Whether a client adds what was lost of its updates to its next one.")
    ] = False,
) -> bool:
    """Whether clients keep what compression has lost."""
    return feedback


def with_compression(
    algorithm: Algorithm, compressor: Compressor, feedback: bool, uploads: list
) -> Algorithm:
    """A method whose clients compress what they send.

    Args:
      algorithm: the method.
      compressor: how.
      feedback: from `feedback_of`.
      uploads: with feedback, what a client of each architecture sends, shapes and types.
    """
    clients = algorithm.clients
    if feedback:
        sizes = [_size(upload) for upload in uploads]
        sizes += [0] * (len(clients) - len(sizes))  # of architectures that none trains with
        clients = tuple(map(_keeping, clients, sizes))
    send = functools.partial(_send, compressor, feedback)
    clients = tuple(
        dataclasses.replace(client, send=_after(client.send, send)) for client in clients
    )

    def upload_bits(upload):
        leaves = jax.tree.leaves(upload)
        whole = [leaf for leaf in leaves if not jnp.issubdtype(leaf.dtype, jnp.floating)]
        size = _size(upload)
        return bits_of(whole) + (compressor.bits(size) if size else 0)

    return dataclasses.replace(algorithm, clients=clients, upload_bits=upload_bits)


def check_compression(
    algorithm: Algorithm, exchange: Exchange, *, method: str, name: str
) -> None:
    """Checks that a method sends what can be compressed, and warns if it would become longer.

    Args:
      algorithm: from `with_compression`.
      exchange: its `Algorithm.first_exchange`.
      method, name: of the method and of the compressor, for errors.

    Raises:
      ValueError: it sends no floats; one line.
    """
    if not any(map(_size, exchange.uploads)):
        raise ValueError(
            f"compression.name={name!r} has no effect: the clients of "
            f"algorithm.name={method!r} upload no floats; leave it empty"
        )
    for upload in exchange.uploads:
        before, after = bits_of(upload) / 8, algorithm.upload_bits(upload) / 8
        if after >= before:
            warnings.warn(
                f"compression.name={name!r} makes {after:,.0f} bytes of an upload of "
                f"{before:,.0f}; set its other fields so that it sends less",
                RuntimeWarning,
                stacklevel=2,
            )
            break


def _size(upload):
    """The floats of an upload."""
    leaves = jax.tree.leaves(upload)
    return sum(leaf.size for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating))


def _send(compressor, feedback, memory, untrained, upload, key):
    """`Client.send`. Where nothing is lost of a number, the upload stays as it is."""
    start, _ = floats_of(untrained)
    trained, back = floats_of(upload)
    if not trained.size:
        return memory, upload
    update = trained - start
    whole = update + memory.lost if feedback else update
    read = compressor.read(whole, jax.random.fold_in(key, SENDING))
    if feedback:
        memory = memory._replace(lost=whole - read)
    return memory, back(jnp.where(read == update, trained, start + read))


def _after(first, second):
    """`Client.send` of two parts, of which the first may be None."""
    if first is None:
        return second

    def send(memory, untrained, upload, key):
        memory, upload = first(memory, untrained, upload, key)
        return second(memory, untrained, upload, key)

    return send


def _keeping(client: Client, size: int) -> Client:
    """A client that keeps, beside its memory, what is lost of its updates."""

    def enroll(message, key):
        return Held(client.enroll(message, key), jnp.zeros(size))

    def local(message, held, data, key):
        memory, upload, metrics = client.local(message, held.memory, data, key)
        return held._replace(memory=memory), upload, metrics

    def of_memory(function):
        """The function, which gets the memory as its second argument."""
        return function and (lambda message, held, *rest: function(message, held.memory, *rest))

    return dataclasses.replace(
        client,
        enroll=enroll,
        local=local,
        deploy=of_memory(client.deploy),
        untrained=of_memory(client.untrained),
        personalize=of_memory(client.personalize),
    )
