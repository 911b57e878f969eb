"""The nouns: what a client holds, what a server holds, and what an algorithm is.

Letters used in shapes everywhere: ``N`` clients in the federation, ``M`` clients in a round's
cohort, ``S`` examples per client (padded), ``B`` examples in a batch, ``d`` parameters of one
client model, ``E`` the size of a client's code.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jraph

Array = jax.Array
Params = Any  # a tree of arrays, {"body": ..., "head": ...}
Metrics = dict[str, Array]


class Examples(NamedTuple):
    """Examples of one client, or of N clients stacked on a leading axis.

    The first `count` rows are real; the rest is padding on which no result depends.
    """

    x: Array  # [S, *features]  or [N, S, *features]
    y: Array  # [S, *targets]   or [N, S, *targets]
    count: Array  # [] int32    or [N] int32


class FederatedData(NamedTuple):
    """Everything that N clients hold, and the relations between them."""

    train: Examples
    evals: dict[str, Examples]  # "test", and "val" where clients keep a validation split
    graph: jraph.GraphsTuple  # N nodes without features; edges [n_edge] float32 weights


class Task(NamedTuple):
    """What a prediction is worth, example by example."""

    loss: Callable[[Array, Array], Array]  # (outputs [B, O], y [B, ...]) -> [B], minimised
    score: Callable[[Array, Array], Array]  # (outputs [B, O], y [B, ...]) -> [B], reported
    metric: str  # the name of the score: "accuracy", "mse"
    higher_is_better: bool


@dataclasses.dataclass(frozen=True)
class ClientModel:
    """What a client trains: pure functions over ``{"body": ..., "head": ...}``.

    The split is a convention of the parameters: whoever personalises, resets or freezes a head
    says ``params["head"]`` and nothing more.
    """

    init: Callable[[Array], Params]  # key -> params
    body: Callable[[Any, Array], Array]  # (params["body"], x [B, *features]) -> [B, F]
    head: Callable[[Any, Array], Array]  # (params["head"], features [B, F]) -> [B, O]
    task: Task

    def apply(self, params: Params, x: Array) -> Array:
        """Predicts: outputs [B, O] for x [B, *features]."""
        return self.head(params["head"], self.body(params["body"], x))

    def objective(self, params: Params, batch: Examples) -> Array:
        """Mean loss over the real rows of a batch: a float32 scalar."""
        losses = self.task.loss(self.apply(params, batch.x), batch.y)  # [B]
        real = (jnp.arange(losses.shape[0]) < batch.count).astype(losses.dtype)
        return jnp.sum(losses * real) / jnp.maximum(batch.count, 1).astype(losses.dtype)


class Cohort(NamedTuple):
    """The M clients of one round, as the server knows them."""

    ids: Array  # [M] int32, ascending
    weights: Array  # [M] float32, training examples of each


class State(NamedTuple):
    """All that a run carries from round to round, and all that a checkpoint holds."""

    server: Any  # the algorithm's own
    clients: Any  # each client's memory, every leaf [N, ...]; () when clients forget
    round: Array  # [] int32, rounds played


def _no_memory(message, key):
    return ()


def _the_model(model, client):
    return model


def _as_sent(message, client, examples, key):
    return message


def _as_it_is(server, key):
    return server


def _nothing_new(server, newcomers, told, key):
    return server


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A federated algorithm, told from the server's side and from one client's side.

    The server's functions never see examples; the client's are written for one client. Every
    field but the last is a pure function that may run inside ``jit``, ``vmap`` and ``scan``:

    ``init(key, graph) -> server``
        What the server knows before the first round.
    ``prepare(server, key) -> server``
        The server as a round sees it, from its download to its aggregation; evaluations see the
        server itself. Default: the same.
    ``download(server, i) -> message``
        What client i receives. Called inside the map over clients: what does not depend on
        ``i`` is computed once.
    ``local(message, client, examples, key) -> (client, upload, metrics)``
        One client's whole round: its next memory, what it sends back, and a dictionary of
        scalars with at least ``"loss"``.
    ``aggregate(server, cohort, uploads, key) -> server``
        What the server learns; every leaf of `uploads` is [M, ...], in the order of
        ``cohort.ids``.
    ``predict(predictor, x) -> outputs``
        Outputs [B, O] for x [B, *features].
    ``enroll(message, key) -> client``
        The memory of a client that has just received its first message. Default: none.
    ``deploy(model, client) -> predictor``
        What a client with memory `client` predicts with when it holds `model`, be that the
        message it was sent (scored as G) or its own upload (scored as L). Default: the model.
    ``personalize(message, client, examples, key) -> predictor``
        What the client finally uses (scored as P). Default: the message.
    ``admit(server, newcomers, graph, key) -> server``
        What the server knows once the clients `newcomers` [m], the last of the N in `graph`,
        have joined a trained federation; nobody has trained for them. Default: what it knew.
    ``adapt(server, cohort, uploads, key) -> server``
        What the server learns from newcomers alone, who have trained at home, while all that
        it shares between clients stays. Default: nothing.
    ``relational``
        Whether the relations between clients play a part; if so, a federation without any is
        refused. Default: they do not.

    A whole algorithm, in which each client uploads the mean of its targets and the server
    averages the means:

    >>> import jax, jax.numpy as jnp
    >>> averaging = Algorithm(
    ...     init=lambda key, graph: jnp.float32(0.0),
    ...     download=lambda server, i: server,
    ...     local=lambda message, client, examples, key: (
    ...         client, examples.y.mean(), {"loss": jnp.square(examples.y - message).mean()}),
    ...     aggregate=lambda server, cohort, uploads, key: uploads.mean(),
    ...     predict=lambda predictor, x: jnp.full(x.shape[:1], predictor),
    ... )
    """

    init: Callable
    download: Callable
    local: Callable
    aggregate: Callable
    predict: Callable
    prepare: Callable = _as_it_is
    enroll: Callable = _no_memory
    deploy: Callable = _the_model
    personalize: Callable = _as_sent
    admit: Callable = _nothing_new
    adapt: Callable = _nothing_new
    relational: bool = False
