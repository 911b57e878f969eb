"""The nouns: what a client holds, what a server holds, and what an algorithm is.

Letters used in shapes everywhere: ``N`` clients in the federation, ``M`` clients in a round's
cohort, ``S`` examples per client (padded), ``B`` examples in a batch, ``d`` parameters of one
client model, ``E`` the size of a client's code.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import jraph
import numpy as np

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

    @property
    def size(self) -> int:
        """S, for the examples of one client."""
        return self.y.shape[0]

    def rows(self, indices: Array) -> "Examples":
        """The examples `indices` [B] of one client, all of them real."""
        return Examples(self.x[indices], self.y[indices], _all_of(indices))


@flax.struct.dataclass
class Windows:
    """Examples of one client, or of N clients stacked, that are windows over a series.

    Example j is the steps j to j + past + future - 1, of which the last `future` are to be
    forecast. Windows are cut out when they are asked for: written out, each step would be there
    past + future times.
    """

    series: Array  # [T, F] or [N, T, F]; feature 0 is forecast, the others are known ahead
    count: Array  # [] int32 or [N] int32, at most T - past - future + 1
    past: int = flax.struct.field(pytree_node=False)
    future: int = flax.struct.field(pytree_node=False)

    @property
    def size(self) -> int:
        """S, for the examples of one client."""
        return self.series.shape[0] - self.past - self.future + 1

    def rows(self, indices: Array) -> Examples:
        """The windows `indices` [B] of one client.

        Returns:
          x [B, past + future, F], where feature 0 is 0 in the last `future` steps, and
          y [B, future].
        """
        length = self.past + self.future
        windows = self.series[indices[:, None] + np.arange(length)[None]]
        told = np.ones((length, windows.shape[-1]), np.float32)
        told[self.past :, 0] = 0
        return Examples(windows * told[None], windows[:, self.past :, 0], _all_of(indices))


def _all_of(indices):
    return jnp.int32(indices.shape[0])


class FederatedData(NamedTuple):
    """Everything that N clients hold, and the relations between them."""

    train: Examples | Windows
    evals: dict[
        str, Examples | Windows
    ]  # "test", and "val" where clients keep a validation split
    graph: jraph.GraphsTuple  # N nodes without features; edges [n_edge] float32 weights
    rank: Array | None = None  # [N] int32, in which order clients turn malicious (`attacks`)


class Units(NamedTuple):
    """How standardised targets are told in units of their own: mean + std * target."""

    name: str  # "mph"
    mean: float
    std: float
    step: float  # minutes from one target of an example to the next
    missing: float  # the value in these units that stands for no reading


class Task(NamedTuple):
    """What a prediction is worth, example by example."""

    loss: Callable[[Array, Array], Array]  # (outputs [B, O], y [B, ...]) -> [B], minimised
    score: Callable[[Array, Array], Array]  # (outputs [B, O], y [B, ...]) -> [B], reported
    metric: str  # the name of the score: "accuracy", "mse"
    higher_is_better: bool
    # What else is told of a trained model, if anything: what an example adds to it, (outputs,
    # y) -> {name: [B, ...]}, and what the clients' means {name: [N, ...]} of that come to.
    extra_metrics: Callable[[Array, Array], dict[str, Array]] | None = None
    summarize: Callable[[dict[str, np.ndarray]], dict] | None = None


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
    # (params, batch) -> outputs [B, O] while training, where they are not `apply`'s
    train_forward: Callable[[Params, Examples], Array] | None = None
    # (params, a client's examples) -> params with which to predict on that client's data
    recalibrate: Callable[[Params, Any], Params] = lambda params, examples: params

    def apply(self, params: Params, x: Array) -> Array:
        """Predicts: outputs [B, O] for x [B, *features]."""
        return self.head(params["head"], self.body(params["body"], x))

    def objective(self, params: Params, batch: Examples) -> Array:
        """Mean loss over the real rows of a batch: a float32 scalar."""
        if self.train_forward is None:
            outputs = self.apply(params, batch.x)
        else:
            outputs = self.train_forward(params, batch)
        losses = self.task.loss(outputs, batch.y)  # [B]
        real = (jnp.arange(losses.shape[0]) < batch.count).astype(losses.dtype)
        return jnp.sum(losses * real) / jnp.maximum(batch.count, 1).astype(losses.dtype)


class Cohort(NamedTuple):
    """The M clients of one round, as the server knows them."""

    ids: Array  # [M] int32, ascending
    weights: Array  # [M] float32, training examples of each
    rank: Array | None = None  # [M] int32 of `FederatedData`, which no server goes by


class State(NamedTuple):
    """All that a run carries from round to round, and all that a checkpoint holds."""

    server: Any  # the algorithm's own
    clients: Any  # each client's memory, every leaf [N, ...]; () when clients forget
    round: Array  # [] int32, rounds played


def _no_memory(message, key):
    return ()


def use_model(model, client):
    """What a client predicts with, in methods that leave it at the model it holds."""
    return model


def use_message(message, client, examples, key):
    """What a client finally uses, in methods that leave it at the message."""
    return message


def identity(whole, key):
    return whole


def _the_message(message):
    return message


def _nothing_new(server, new_clients, told, key):
    return server


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A federated algorithm, told from the server's side and from one client's side.

    The server's functions never see examples; the client's are written for one client. Every
    field but the last two is a pure function that may run inside ``jit``, ``vmap`` and
    ``scan``:

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
    ``admit(server, new clients, graph, key) -> server``
        What the server knows once the clients `new clients` [m], the last of the N in `graph`,
        have joined a trained federation; nobody has trained for them. Default: what it knew.
    ``adapt(server, cohort, uploads, key) -> server``
        What the server learns from new clients alone, who have trained at home, while all that
        it shares between clients stays. Default: nothing.
    ``untrained(message) -> upload``
        What a client would upload if it had not trained. The difference is its update, of which
        attacks and defences are functions. Default: the message.
    ``tamper(data, key) -> data``
        The federation's data as malicious clients have made them, with the same key throughout
        a run. Default: as they are.
    ``averages``
        Whether the server makes one model of the uploads, their mean. Default: it does not.
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
    prepare: Callable = identity
    enroll: Callable = _no_memory
    deploy: Callable = use_model
    personalize: Callable = use_message
    admit: Callable = _nothing_new
    adapt: Callable = _nothing_new
    untrained: Callable = _the_message
    poison_data: Callable = identity
    averages: bool = False
    relational: bool = False
