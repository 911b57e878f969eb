"""The types: federated data, client models, and what an algorithm consists of.

Letters in shapes: ``N`` clients in the federation, ``M`` clients in a round's cohort, ``S``
examples per client (padded), ``B`` examples in a batch, ``O`` outputs of a client model, ``d``
parameters of one client model, ``E`` size of a client's embedding.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from graphfl_jax.architecture import Architecture
from graphfl_jax.examples import Examples, Windows

Array = jax.Array
Params = Any  # a tree of arrays, {"body": ..., "head": ...}
Metrics = dict[str, Array]


class FederatedData(NamedTuple):
    """The data of N clients, and the relations between them."""

    train: Examples | Windows
    evals: dict[str, Examples | Windows]  # "test", and "val" if there is a validation split
    graph: jraph.GraphsTuple  # N nodes without features; edges [n_edge] float32 weights
    # [N] int32: the order in which clients become malicious, see `wire.attacks`
    attack_rank: Array | None = None
    # Further splits for evaluation that are the same for all clients: {name: [S, ...]}
    shared: dict[str, Examples] = {}


class Task(NamedTuple):
    """The loss of a prediction, per example, and its score, per example or per client."""

    loss: Callable[[Array, Array], Array]  # (outputs [B, O], y [B, ...]) -> [B], minimised
    score: Callable[..., Array]  # (outputs [B, O], y [B, ...]) -> [B], reported
    metric: str  # name of the score: "accuracy", "mse", "auc"
    higher_is_better: bool
    # Further test metrics, if any: values per example, (outputs, y) -> {name: [B, ...]}, and
    # their summary from the clients' means, {name: [N, ...]} -> dict.
    extra_metrics: Callable[[Array, Array], dict[str, Array]] | None = None
    summarize: Callable[[dict[str, np.ndarray]], dict] | None = None
    # Whether the score is no mean over examples. Then `score` and `extra_metrics` get all
    # examples of a client, and which are real: (outputs [S, O], y [S, ...], real [S]), and
    # return the client's values without the axis of examples.
    of_all_examples: bool = False
    # Those of `config.metrics`: by name, a score of all examples; NaN if it is undefined
    metrics: tuple[tuple[str, Callable[[Array, Array, Array], Array]], ...] = ()


class Predictor(NamedTuple):
    """What a client predicts with."""

    params: Params  # of the client model; recalibration and fine-tuning change these alone
    extra: Any = ()  # anything else, such as a second head or a data store


@dataclasses.dataclass(frozen=True)
class ClientModel:
    """What a client trains: pure functions over ``{"body": ..., "head": ...}``.

    A method that personalises, resets or freezes a head uses ``params["head"]``; the split is a
    convention of the parameters.
    """

    init: Callable[[Array], Params]  # key -> params
    body: Callable[[Any, Array], Array]  # (params["body"], x [B, *features]) -> [B, F]
    head: Callable[[Any, Array], Array]  # (params["head"], features [B, F]) -> [B, O]
    task: Task
    # (params, batch, key) -> outputs [B, O] in training, where these differ from `apply`
    train_forward: Callable[[Params, Examples, Array], Array] | None = None
    # (params, a client's training examples) -> params to predict with on that client's data
    recalibrate: Callable[[Params, Any], Params] = lambda params, examples: params
    at_once: int = 0  # clients that a core trains at once at the highest speed; 0 is all
    architecture: Architecture | None = None  # None: the model does not describe its layers
    symbols: int = 0  # inputs are whole numbers below it; 0: they are any numbers

    def apply(self, params: Params, x: Array) -> Array:
        """Predicts: outputs [B, O] for x [B, *features]."""
        return self.head(params["head"], self.body(params["body"], x))

    def predict(self, predictor: Predictor, x: Array) -> Array:
        """`apply` with the parameters of a predictor."""
        return self.apply(predictor.params, x)

    def forward(self, params: Params, batch: Examples, key: Array) -> Array:
        """Outputs [B, O] in training, of all rows of a batch.

        `key` is for what is random in training, such as dropout or scheduled sampling.
        """
        if self.train_forward is None:
            return self.apply(params, batch.x)
        return self.train_forward(params, batch, key)

    def objective(self, params: Params, batch: Examples, key: Array) -> Array:
        """Mean loss over the real rows of a batch: a float32 scalar. `key` as in `forward`."""
        return self.mean_loss(self.forward(params, batch, key), batch)

    def mean_loss(self, outputs: Array, batch: Examples) -> Array:
        """The mean loss of outputs [B, O] over the real rows of a batch: a float32 scalar."""
        losses = self.task.loss(outputs, batch.y)  # [B]
        real = (jnp.arange(losses.shape[0]) < batch.count).astype(losses.dtype)
        return jnp.sum(losses * real) / jnp.maximum(batch.count, 1).astype(losses.dtype)


ABSENT = np.iinfo(np.int32).max


class Cohort(NamedTuple):
    """The M clients of one round, as the server knows them."""

    # [M] int32, ascending. To the server, those who are not present have the number `ABSENT`:
    # what it writes at this index of an array is dropped.
    ids: Array
    weights: Array  # [M] float32, number of training examples of each; 0 if it is not present
    # [M] bool, whether each takes part; the others count as untrained. None: all do
    present: Array | None = None
    # [M] float32, in (0, 1], the share of its local steps that each takes. None: all of them
    work: Array | None = None
    # [M] float32, simulated seconds for which the round waits for each. None: without a clock
    seconds: Array | None = None

    @property
    def number(self) -> Array:
        """[] float32, how many take part; 1 if none does."""
        return jnp.maximum(jnp.sum(self.answers.astype(jnp.float32)), 1.0)

    @property
    def answers(self) -> Array:
        """[M] bool, whether each takes part."""
        return jnp.ones(len(self.ids), bool) if self.present is None else self.present

    def of_those(self, present: Array) -> "Cohort":
        """The cohort in which, of those who are present, only these [M] bool are."""
        return self._replace(present=present & self.answers)


class State(NamedTuple):
    """All that a run carries from round to round, and all that a checkpoint holds."""

    server: Any  # the server's own state
    clients: tuple  # memories of the clients, for each architecture: every leaf [n, ...]
    round: Array  # [] int32, number of rounds played
    seconds: Any = ()  # [] float32, simulated, that they have taken; () without a clock


class ClientData(NamedTuple):
    """What the functions of one client may see of its data."""

    train: Examples | Windows
    val: Examples | Windows | None = None  # the split that `Needs.held_out` names, if any


# (message, memory, data, key) -> next memory, upload, and scalars with "loss"
Local = Callable[[Any, Any, ClientData, Array], tuple[Any, Any, Metrics]]


def identity(server: Any, key: Array) -> Any:
    """A `Server.begin_round` that changes nothing."""
    return server


def keep_server(server: Any, *args: Any) -> Any:
    """A `Server.admit` or `adapt_new_clients` after which the server is the same."""
    return server


def no_memory(message: Any, key: Array) -> tuple:
    """A `Client.enroll` of clients that keep nothing between rounds."""
    return ()


def use_model(model: Any, memory: Any, data: ClientData) -> Predictor:
    """A `Client.deploy` of the parameters that the client holds."""
    return Predictor(model)


def use_message(message: Any, memory: Any, data: ClientData) -> Any:
    """A `Client.untrained` of clients that train what they receive and send it back."""
    return message


@dataclasses.dataclass(frozen=True)
class Server:
    """The server of a method. Its functions never see examples.

    They get tuples with one entry for each architecture. Where all clients have one, `of_one`
    makes a server of functions without tuples.
    """

    # (key, graph) -> the state before the first round
    init: Callable[[Array, jraph.GraphsTuple], Any]
    # (state, group, i) -> the message to client i ([] int32) of architecture number `group`. It
    # is called inside the map over clients; what does not depend on i is computed once.
    download: Callable[[Any, int, Array], Any]
    # (state, cohorts, uploads, key) -> the next state. Every leaf of an upload is [M, ...], in
    # the order of the `ids` of its `Cohort`.
    aggregate: Callable[[Any, tuple, tuple, Array], Any]
    # (state, key) -> the state during one round, from download to aggregation
    begin_round: Callable[[Any, Array], Any] = identity
    # (state, ids [m] of the new clients, graph, key) -> the state after they have joined. They
    # are the last of the N clients in `graph`, and have not trained; some ids may be empty.
    admit: Callable[[Any, tuple, jraph.GraphsTuple, Array], Any] = keep_server
    # As `aggregate`, after new clients have trained. Only what belongs to them may change. The
    # upload of an architecture without new clients is None.
    adapt_new_clients: Callable[[Any, tuple, tuple, Array], Any] = keep_server
    # Whether ordinary rounds of all clients can follow `admit`: its state has all that
    # `aggregate` reads, also of the new clients.
    plays_on: bool = True
    # state -> [N, N], at [i, j] client j's share in the message to client i; () if not held.
    # For methods that send mixtures of the last models.
    allocation: Callable[[Any], Array] | None = None
    # (state, related [N, N] of 0 and 1) -> the state with these relations: at [i, j], whether
    # client i receives from client j. For methods of one architecture that mix over relations,
    # and whose `Client.untrained` is a function of the message.
    relate: Callable[[Any, Array], Any] | None = None
    # (state, mean) -> the state in which some clients have what the server holds of others, for
    # methods whose server holds a part of each client. `mean` takes one row for each client,
    # [N, E], and returns these rows, of which some are replaced by means of others.
    substitute: Callable[[Any, Callable[[Array], Array]], Any] | None = None
    # state -> [N], the share of each client's uploads that were rejected; -1 without uploads.
    # For a defence that rejects uploads.
    rejected: Callable[[Any], Array] | None = None
    # (state, key that `init` got) -> [] float32, how far the embeddings of clients that the
    # server learns have moved from their start: ||H - H0|| / ||H0||. None: it learns none.
    moved: Callable[[Any, Array], Array] | None = None
    # (state, counts [n] of training examples, size, key) -> the places [size] int32 of a cohort
    # among the n clients of an architecture, all different and ascending. None: all subsets of
    # a cohort's size are equally probable.
    sample: Callable[[Any, Array, int, Array], Array] | None = None
    # state -> [] float32, the simulated seconds of the next round, for a server that does not
    # wait for the cohort that it samples. None: it waits
    seconds: Callable[[Any], Array] | None = None
    # graph -> [N], the messages that each client receives, and sends, in its round. None: one.
    messages: Callable[[jraph.GraphsTuple], Array] | None = None

    @classmethod
    def of_one(
        cls,
        init: Callable[[Array, jraph.GraphsTuple], Any],
        download: Callable[[Any, Array], Any],
        aggregate: Callable[[Any, Cohort, Any, Array], Any],
        *,
        admit: Callable[[Any, Array, jraph.GraphsTuple, Array], Any] = keep_server,
        adapt_new_clients: Callable[[Any, Cohort, Any, Array], Any] = keep_server,
        **functions: Any,
    ) -> "Server":
        """A server of clients that all have one architecture.

        Args:
          download: (server, i) -> message.
          aggregate: (server, cohort, uploads, key) -> server, with leaves [M, ...] of uploads.
          admit: (server, new clients [m], graph, key) -> server.
          adapt_new_clients: (server, cohort, uploads, key) -> server.
          **functions: other fields of `Server`.
        """
        return cls(
            init,
            lambda server, group, i: download(server, i),
            lambda server, cohorts, uploads, key: aggregate(server, *cohorts, *uploads, key),
            admit=lambda server, ids, graph, key: admit(server, *ids, graph, key),
            adapt_new_clients=lambda server, cohorts, uploads, key: adapt_new_clients(
                server, *cohorts, *uploads, key
            ),
            **functions,
        )

    def within(self, get: Callable[[Any], Any], put: Callable[[Any, Any], Any]) -> "Server":
        """This server as a part of a larger state. `init` still makes the part alone.

        Args:
          get: the larger state -> the state of this server.
          put: (the larger state, the next state of this server) -> the next larger state.
        """

        def read(function):
            return function and (lambda state, *values: function(get(state), *values))

        def step(function):
            return function and (
                lambda state, *values: put(state, function(get(state), *values))
            )

        steps = (
            "aggregate",
            "begin_round",
            "admit",
            "adapt_new_clients",
            "substitute",
            "relate",
        )
        reads = ("download", "allocation", "rejected", "moved", "sample", "seconds")
        return dataclasses.replace(
            self,
            **{name: step(getattr(self, name)) for name in steps},
            **{name: read(getattr(self, name)) for name in reads},
        )


@dataclasses.dataclass(frozen=True)
class Client:
    """A client of a method, written for one client."""

    model: ClientModel
    local: Local  # one round of a client
    # (predictor, x [B, *features]) -> outputs [B, O]; None: `model.predict`
    predict: Callable[[Predictor, Array], Array] | None = None
    # (first message, key) -> memory
    enroll: Callable[[Any, Array], Any] = no_memory
    # (model, memory, data) -> the predictor of a client that holds `model`: the message (scored
    # as G) or its own upload (scored as L). It may choose one of several models by its data.
    deploy: Callable[[Any, Any, ClientData], Predictor] = use_model
    # (message, memory from before the round, data) -> the upload of a client that has not
    # trained. An update is an upload minus this, so what a client computes of its examples,
    # such as means of classes, is a part of its update. It may choose by its data which of
    # several models it would have trained.
    untrained: Callable[[Any, Any, ClientData], Any] = use_message
    # (memory after the round, what it would send untrained, upload, key) -> the memory, and the
    # upload as the server reads it. None: as it was sent. It is no part of `local`, so that L
    # is what the client trained.
    send: Callable[[Any, Any, Any, Array], tuple[Any, Any]] | None = None
    # (message, memory, data, key) -> the predictor that the method gives the client in the end
    # (scored as P); None: P is G
    personalize: Callable[[Any, Any, ClientData, Array], Predictor] | None = None


def check_local(local: Local, result: Any, memory: Any, untrained: Any) -> None:
    """Checks what a `Client.local` returns, which a user may have written.

    Args:
      untrained: what `Client.untrained` returns.

    Raises:
      ValueError: it is not the next memory, an upload of the form of the untrained one, and
        scalars with "loss".
    """
    code = getattr(local, "__code__", None)
    where = f"{code.co_filename}, line {code.co_firstlineno}" if code else repr(local)
    if not isinstance(result, tuple) or len(result) != 3:
        count = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise ValueError(
            f"local ({where}) returns {count}; return three: the next memory, the upload, and "
            f"a dictionary of scalars"
        )
    if not isinstance(result[2], dict) or "loss" not in result[2]:
        raise ValueError(
            f"local ({where}) returns no 'loss' in its third value; return a dictionary of "
            f'scalars there, such as {{"loss": loss}}'
        )
    remedies = {
        "a memory": "return one like the memory that it receives",
        "an upload": "return one like Client.untrained, or give the Client such an untrained",
    }
    for (what, remedy), *forms in zip(
        remedies.items(), (memory, untrained), result, strict=False
    ):
        before, after = map(_form, forms)
        if before != after:
            raise ValueError(
                f"local ({where}) returns {what} with {after}, and not with {before}; {remedy}"
            )


def _form(values):
    """The shapes and types of a tree."""
    return jax.tree.map(
        lambda leaf: (jnp.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))), values
    )


class Needs(NamedTuple):
    """What a method needs of a federation. It is checked when the method is built."""

    relations: bool = False  # between clients
    edge_weights: bool = False  # of these relations
    held_out: str = ""  # the split in `ClientData.val`: "val"; or "test", which is a leak
    everyone: bool = False  # all clients in every round
    labels: bool = False  # a classification
    # Whether clients train on outputs of the model's body and head, not on its `objective`, so
    # that what the model changes in training has no effect
    parts: bool = False
    head: bool = False  # parameters of the head apart from those of the body
    layers: bool = False  # client models that describe their layers


class Exchange(NamedTuple):
    """What is held and sent at the start of a federation."""

    server: Any
    messages: list  # of each architecture, to one client
    memories: list  # of these clients
    uploads: list  # what they would send untrained


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A federated algorithm: pure functions that may run inside ``jit``, ``vmap``, ``scan``.

    An algorithm in which each client uploads the mean of its targets and the server averages
    these means:

    >>> import jax.numpy as jnp
    >>> def averaging(model):
    ...     def local(message, memory, data, key):
    ...         loss = jnp.square(data.train.y - message).mean()
    ...         return memory, data.train.y.mean(), {"loss": loss}
    ...     server = Server.of_one(
    ...         init=lambda key, graph: jnp.float32(0.0),
    ...         download=lambda mean, i: mean,
    ...         aggregate=lambda mean, cohort, uploads, key: uploads.mean(),
    ...     )
    ...     client = Client(
    ...         model,
    ...         local=local,
    ...         predict=lambda predictor, x: jnp.full((len(x), 1), predictor.params),
    ...     )
    ...     return Algorithm(server, (client,))
    """

    server: Server
    clients: tuple[Client, ...]  # for each architecture; those that none trains with are last
    needs: Needs = Needs()
    averages: bool = False  # whether the server makes one model of the uploads, their mean
    # (state, cohorts, untrained, uploads) -> the state with what the server remembers, and the
    # uploads from which it learns; leaves are [M, ...]. None: the uploads as they are.
    defend: Callable[[Any, tuple, tuple, tuple], tuple[Any, tuple]] | None = None
    # (state, cohorts, untrained, uploads, key) -> the same without `untrained` and `key`, from
    # which the server learns. It is the last thing that happens to uploads. None: nothing
    release: Callable[[Any, tuple, tuple, tuple, Array], tuple[Any, tuple, tuple]] | None = None
    # (ids [n], time) -> [n] bool, which clients can be drawn. The time is that of the clock, or
    # without one the number of rounds played, float32. None: all of them
    up: Callable[[Array, Array], Array] | None = None
    # (key, cohorts, number n of clients of each architecture, server) -> the cohorts, with who
    # takes part and how. None: all do, in full
    attend: Callable[[Array, tuple, tuple[int, ...], Any], tuple] | None = None
    # whether the server stays as it was in a round that would leave a number in it not finite
    stays_finite: bool = False
    clocked: bool = False  # whether `attend` says how long a round waits for each client
    # upload, shapes and types -> the bits that are sent of it; None: those of its numbers
    upload_bits: Callable[[Any], float] | None = None

    @property
    def client(self) -> Client:
        """The client, where all have one architecture."""
        (client,) = self.clients
        return client

    def client_data(self, data: FederatedData) -> ClientData:
        """What clients may see of their data, stacked [N, ...]."""
        split = self.needs.held_out
        return ClientData(data.train, data.evals[split] if split else None)

    def first_exchange(self, data: FederatedData, groups: int) -> "Exchange":
        """What the server and client 0 of the first architectures hold before they train.

        Args:
          groups: number of architectures. The last clients are of those that none trains with.

        Returns:
          Shapes and types.
        """

        def exchange(key):
            server, messages, memories = self.server.init(key, data.graph), [], []
            for group, client in enumerate(self.clients[:groups]):
                messages.append(self.server.download(server, group, jnp.int32(0)))
                memories.append(client.enroll(messages[-1], key))
            return Exchange(
                server, messages, memories, self.first_uploads(data, messages, memories)
            )

        return jax.eval_shape(exchange, jax.eval_shape(jax.random.key, 0))

    def first_uploads(self, data: FederatedData, messages: list, memories: list) -> list:
        """What client 0 of each of the first architectures would send untrained."""
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), self.client_data(data))
        clients = zip(self.clients, messages, memories, strict=False)
        return [client.untrained(*held, rows) for client, *held in clients]

    def replacing(self, **changes: Any) -> "Algorithm":
        """The algorithm with other functions, each put into the record that has its name.

        A function of `Client` replaces that of all architectures.

        Raises:
          TypeError: no record has a field of that name.
        """
        of_server, of_client = (
            {f.name: changes.pop(f.name) for f in dataclasses.fields(kind) if f.name in changes}
            for kind in (Server, Client)
        )
        return dataclasses.replace(
            self,
            server=dataclasses.replace(self.server, **of_server),
            clients=tuple(dataclasses.replace(client, **of_client) for client in self.clients),
            **changes,
        )
