"""Differential privacy of clients: clipped updates and Gaussian noise.

An update u_i is an upload minus what client i would have sent untrained. C is
``hparams.privacy_clip``, z is ``hparams.privacy_noise``, and N(0, 1) has independent numbers.

    central   the server averages, and learns from
              (1/m) (sum over the clients i of the round of min(1, C / |u_i|) u_i + z C N(0, 1))
    local     a client sends min(1, C / |u_i|) u_i + z C N(0, 1)

m is the number of clients in a round, or the mean number of Poisson cohorts. With
``hparams.privacy_cohort`` D above 0, the noise of `central` is z C / D per number: that of a
deployment with D clients in a round, for which the accountant then needs
``hparams.privacy_population`` clients.

`central` protects a client from those who see the models that the server sends. The server is
trusted. It fits methods whose server averages (`Algorithm.averages`): FedAvg, and methods with
a personal part beside it, such as Ditto and FedRep. What a client keeps for itself is not sent,
so it costs no privacy, and is not private from those who get this client's predictions.
`local` protects a client from the server too, and fits every method. Each upload is private by
itself; a client that is in more rounds reveals more.

With ``privacy.clipping=quantile``, C follows the quantile g = ``hparams.privacy_quantile`` of
the norms:

    C <- C exp(-r (b - g)),   b = (1/m) (number of |u_i| <= C  +  m/20 N(0, 1))

with r = ``hparams.privacy_clip_rate``. So that b costs no additional privacy, the noise of the
updates has z' = (z^-2 - (m/10)^-2)^(-1/2) in place of z.

Sources: McMahan, Ramage, Talwar, Zhang, Learning Differentially Private Recurrent Language
Models, ICLR 2018 (central); Andrew, Thakkar, McMahan, Ramaswamy, Differentially Private
Learning with Adaptive Clipping, NeurIPS 2021 (quantile).

Departures: whatever weights a method uses, all clients have the same weight. The number of
examples of a client does not become public.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from graphfl_jax.core import Algorithm, Array, Cohort, Exchange, FederatedData
from graphfl_jax.settings import Choice, Real
from graphfl_jax.wire.updates import floats_of, shorten, with_updates

NOISE = 0xD1F  # folded into a key, for the noise

Clip = Annotated[Array, Real("Largest norm C of a client's update; or the first one.")]
Noise = Annotated[
    Array, Real("Noise multiplier z: the standard deviation of the noise is z times C.")
]


class Central(NamedTuple):
    """What a server does to the updates of a round."""

    clip: Array
    noise: Array
    cohort: Array  # D, or 0
    quantile: Array | None  # g; None: C stays
    rate: Array


class ByServer(NamedTuple):
    """What a server makes of the updates of a round, if it keeps nothing for the next one."""

    # (updates [M, d], which of their clients are present [M] bool, m, key) -> what the server
    # learns from [d], in place of the mean
    mean: Callable[[Array, Array, float, Array], Array]


class ByClient(NamedTuple):
    """What a client makes of its update."""

    send: Callable[[Array, Array], Array]  # (update [d], key) -> what is sent of it [d]


class Private(NamedTuple):
    """The state of a server whose C changes."""

    server: Any
    clip: Array


def central(
    *,
    privacy_clip: Clip = 1.0,
    privacy_noise: Noise = 1.0,
    privacy_cohort: Annotated[
        Array, Real("Clients in a round of the deployment whose noise is added; 0: as here.")
    ] = 0.0,
    privacy_population: Annotated[
        float, Real("Clients of that deployment, of which a round draws some.")
    ] = 0.0,
    clipping: Annotated[
        str,
        Choice(
            "Whether C is fixed, or follows a quantile of the norms.", ("fixed", "quantile")
        ),
    ] = "fixed",
    privacy_quantile: Annotated[
        Array, Real("Share of updates that are not clipped.", high=1.0)
    ] = 0.5,
    privacy_clip_rate: Annotated[Array, Real("Rate of the logarithm of C.")] = 0.2,
) -> Central:
    """Clips the updates, and adds noise to their mean at the server."""
    quantile = privacy_quantile if clipping == "quantile" else None
    return Central(privacy_clip, privacy_noise, privacy_cohort, quantile, privacy_clip_rate)


def local(*, privacy_clip: Clip = 1.0, privacy_noise: Noise = 1.0) -> ByClient:
    """Clips and adds noise at each client, before it sends."""

    def send(update, key):
        (short,) = shorten(update[None], privacy_clip)
        return short + privacy_clip * privacy_noise * jax.random.normal(key, update.shape)

    return ByClient(send)


PRIVACIES: dict[str, Callable] = {"central": central, "local": local}


def with_privacy(
    algorithm: Algorithm,
    name: str,
    privacy: Central | ByServer | ByClient,
    numbers: tuple[float, ...],
) -> Algorithm:
    """A method with differential privacy.

    Args:
      algorithm: the method.
      name: one of `PRIVACIES`.
      privacy: what it makes.
      numbers: m of each architecture.

    Raises:
      ValueError: it made something else; one line.
    """
    if isinstance(privacy, ByClient):
        return _by_client(algorithm, name, privacy)
    if isinstance(privacy, Central):
        return _central(algorithm, privacy, numbers)
    if not isinstance(privacy, ByServer):
        raise ValueError(
            f"privacy.name={name!r} returns a {type(privacy).__name__}; return a ByClient or a "
            f"ByServer of graphfl_jax.wire.privacy"
        )

    def mean(updates, *rest):
        result = privacy.mean(updates, *rest)
        _check_result(name, updates[0], result)
        return result

    def release(state, *values):
        return state, *_learn_from(mean, numbers, *values)

    return algorithm.replacing(release=release)


def _learn_from(mean, numbers, cohorts, untrained, uploads, key):
    """Cohorts and uploads from which a server learns `ByServer.mean` and no more."""

    def change(updates, sent, group):
        key_group = jax.random.fold_in(key, NOISE + group)
        result = mean(updates, cohorts[group].answers, numbers[group], key_group)
        return jnp.broadcast_to(result[None], updates.shape)

    uploads = with_updates(untrained, uploads, change)
    return tuple(map(_alike, cohorts, numbers)), uploads


def _check_result(name, update, result):
    """Refuses what a registered function returns in place of an update."""
    if jnp.shape(result) != update.shape:
        raise ValueError(
            f"privacy.name={name!r} returns an array {list(jnp.shape(result))} in place of an "
            f"update {list(update.shape)}; return one of this shape"
        )


def _central(algorithm, privacy, numbers):
    if privacy.quantile is not None:
        algorithm = _with_clip(algorithm, privacy.clip)

    def release(state, cohorts, untrained, uploads, key):
        clip = privacy.clip if privacy.quantile is None else state.clip
        below = []

        def mean(updates, present, m, key_group):
            norms = jnp.linalg.norm(updates, axis=1)
            below.append(jnp.sum(jnp.where(present, norms <= clip, False).astype(jnp.float32)))
            finite = jnp.isfinite(norms) & present
            kept = shorten(jnp.where(finite[:, None], updates, 0.0), clip)
            noise = jax.random.normal(key_group, updates.shape[1:])
            z = privacy.noise
            if privacy.quantile is not None:
                z = (z**-2 - (m / 10) ** -2) ** -0.5
            deployed = jnp.where(privacy.cohort > 0, privacy.cohort, m)
            return jnp.sum(kept, axis=0) / m + z * clip * noise / deployed

        known = _learn_from(mean, numbers, cohorts, untrained, uploads, key)
        if privacy.quantile is not None:
            m = sum(numbers)
            noise = m / 20 * jax.random.normal(jax.random.fold_in(key, NOISE - 1))
            share = (sum(below) + noise) / m
            state = state._replace(
                clip=clip * jnp.exp(-privacy.rate * (share - privacy.quantile))
            )
        return state, *known

    return algorithm.replacing(release=release)


def _with_clip(algorithm, clip):
    """The method, whose state is `Private`."""
    server = algorithm.server
    inside = server.within(
        lambda state: state.server, lambda state, inner: state._replace(server=inner)
    )

    def init(key, graph):
        return Private(server.init(key, graph), jnp.float32(clip))

    return dataclasses.replace(algorithm, server=dataclasses.replace(inside, init=init))


def _alike(cohort: Cohort, number: float) -> Cohort:
    """A cohort whose clients count alike: they have the same update, which hides their number.

    Of a Poisson cohort, as many count as in the mean.
    """
    everyone = jnp.ones_like(cohort.weights)
    if cohort.present is None:
        return cohort._replace(weights=everyone)
    present = jnp.arange(len(everyone)) < round(number)
    return cohort._replace(weights=jnp.where(present, everyone, 0.0), present=present)


def check_privacy(
    algorithm: Algorithm, exchange: Exchange, data: FederatedData, *, method: str, name: str
) -> None:
    """Checks that privacy fits a method.

    Args:
      algorithm: the method, from `with_privacy`.
      exchange: its `Algorithm.first_exchange`.
      data: of the federation.
      method, name: of the method and of the privacy, for errors.

    Raises:
      ValueError: the server does not average, or what clients send has whole numbers, or also
        without training depends on what a client knows; one line.
    """
    named = f"algorithm.name={method!r}"
    sent = jax.tree.leaves(exchange.uploads)
    if not sent:
        raise ValueError(
            f"privacy.name={name!r} has no effect: the clients of {named} upload nothing; "
            f"leave it empty"
        )
    if algorithm.release is not None and not algorithm.averages:
        raise ValueError(
            f"privacy.name={name!r} needs a server that averages, and that of {named} keeps "
            f"more of single clients; set --config.privacy.name=local"
        )
    why = ""
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in sent):
        why = "send whole numbers, which get no noise"
    elif _knows(algorithm, exchange, data):
        why = "send what they know also without training, and it gets no noise"
    if why:
        raise ValueError(
            f"privacy.name={name!r} does not fit {named}, whose clients {why}; leave it empty"
        )


def _knows(algorithm, exchange, data):
    """Whether untrained uploads depend on memories or examples of clients."""
    rows = jax.tree.map(lambda leaf: leaf[0], algorithm.client_data(data))

    def of_messages(messages, held):
        memories, rows = held
        zipped = zip(algorithm.clients, messages, memories, strict=False)
        return [client.untrained(*known, rows) for client, *known in zipped]

    program = jax.make_jaxpr(of_messages)(exchange.messages, (exchange.memories, rows)).jaxpr
    _, read = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    return any(read[len(jax.tree.leaves(exchange.messages)) :])


def _by_client(algorithm, name, privacy):
    """The method, whose clients send private updates. It has no other way of sending yet."""

    def send(memory, untrained, upload, key):
        start, _ = floats_of(untrained)
        trained, back = floats_of(upload)
        update = trained - start
        private = privacy.send(update, jax.random.fold_in(key, NOISE))
        _check_result(name, update, private)
        return memory, back(jnp.where(private == update, trained, start + private))

    return algorithm.replacing(send=send)
