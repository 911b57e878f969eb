"""Evaluation: the predictors of every client at three points, and their scores."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, Client, ClientData, ClientModel, Predictor, State
from graphfl_jax.devices import fill_up, map_clients
from graphfl_jax.examples import Examples, Windows
from graphfl_jax.rounds import ids_at, rows_of, scored_ids

POINTS = ("G", "L", "P")
ALLOCATED = 100  # clients of the largest federation whose allocation is kept


class Scope(NamedTuple):
    """What an evaluation computes."""

    points: tuple[str, ...] = POINTS
    splits: tuple[str, ...] = ()  # () is all


EVERYTHING = Scope()


class Evaluated(NamedTuple):
    """What an evaluation gives. K is the number of clients that it scores, by default all."""

    scores: dict  # {split: {point: [K]}}
    extras: dict  # {point: {name: [K, ...]}}: the task's extra metrics on the test split
    # {point: {name: {"values": [K], "defined": [K]}}}: of `Task.metrics` on the test split; a
    # value is 0 where it is undefined
    metrics: dict
    # {point: [K]}: means of the task's loss on validation; {} without such a split
    losses: dict
    # `Server.allocation`; () without one, or with more than `ALLOCATED` clients
    allocation: Array | tuple
    # [N] of `Server.rejected`; () where the server rejects no client
    rejected: Array | tuple
    models: tuple = ()  # as `predictors_of_clients` returns; () if they are not asked for
    moved: Array | None = None  # [] of `Server.moved`; None without one, or if it is not asked
    seconds: Array | tuple = ()  # `State.seconds`


def not_finite(scores: dict, points: tuple[str, ...] = POINTS) -> np.ndarray:
    """Whether [K] a client has a score at one of the points that is not finite."""
    chosen = [at[point] for at in scores.values() for point in points if point in at]
    return ~np.all([np.isfinite(values) for values in chosen], axis=0)


def score_client(predict, score, examples: Examples | Windows, batch_size: int):
    """Means of `score` over one client's real examples, `batch_size` at a time.

    The mean is NaN if an output is not finite: the argmax of NaN logits would count as a
    prediction.

    Args:
      predict: x [B, ...] -> outputs [B, O].
      score: (outputs, y) -> a tree of [B, ...].

    Returns:
      The same tree of [...].
    """
    batch_size = min(batch_size, examples.size)

    def of_batch(first):
        indices = first + jnp.arange(batch_size)
        real = indices < examples.count
        batch = examples.rows(jnp.minimum(indices, examples.size - 1))
        outputs = predict(batch.x)
        finite = jnp.isfinite(outputs).reshape(batch_size, -1).all(axis=1)

        def sum_real(scores):
            scores = jnp.where(finite, jnp.moveaxis(scores, 0, -1), jnp.nan)
            return jnp.sum(jnp.where(real, scores, 0.0), axis=-1)

        return jax.tree.map(sum_real, score(outputs, batch.y))

    sums = jax.lax.map(of_batch, jnp.arange(0, examples.size, batch_size))
    count = jnp.maximum(examples.count, 1).astype(jnp.float32)
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0) / count, sums)


def score_all_examples(predict, score, examples: Examples | Windows, batch_size: int):
    """`score` of all examples of one client together, predicted `batch_size` at a time.

    All values are NaN if an output of a real example is not finite.

    Args:
      predict: x [B, ...] -> outputs [B, O].
      score: (outputs [S, O], y [S, ...], real [S]) -> a tree of [...].

    Returns:
      The same tree.
    """
    size = examples.size
    batch_size = min(batch_size, size)

    def of_batch(first):
        indices = first + jnp.arange(batch_size)
        return predict(examples.rows(jnp.minimum(indices, size - 1)).x)

    outputs = jax.lax.map(of_batch, jnp.arange(0, size, batch_size))
    outputs = outputs.reshape(-1, *outputs.shape[2:])[:size]
    real = jnp.arange(size) < examples.count
    finite = jnp.isfinite(outputs).reshape(size, -1).all(axis=1) | ~real
    values = score(outputs, examples.rows(jnp.arange(size)).y, real)
    return jax.tree.map(lambda leaf: jnp.where(finite.all(), leaf, jnp.nan), values)


def evaluate_clients(
    algorithm: Algorithm,
    data,
    state: State,
    key: Array,
    *,
    groups,
    batch_size,
    at_once,
    mesh,
    scope: Scope = EVERYTHING,
    models: int = 0,
    map_groups=None,
    key_of_init: Array | None = None,
):
    """Scores clients of all groups on the chosen evaluation splits, at the chosen points.

    G is the model as the server sends it, L the same after one round of local training, P the
    method's own predictor. The state after this local training is discarded.

    Args:
      models: bytes up to which the scored predictors at G and P are returned too.
      map_groups: in place of `map_clients_of_groups`.
      key_of_init: that `Server.init` got, for `Evaluated.moved`; None does not ask for it.

    Returns:
      An `Evaluated`, with the clients of `rounds.scored_ids`.
    """
    everyone = (algorithm.client_data(data), splits_in(scope, data.evals))
    shared = (state.server, key, splits_in(scope, data.shared))

    def of_client(group, *client):
        return score_points(
            algorithm, group, batch_size, scope.points, *client, predictors=models > 0
        )

    map_groups = map_groups or map_clients_of_groups
    places = [group.scored for group in groups]
    results = map_groups(
        of_client, shared, state.clients, groups, everyone, at_once, mesh, places=places
    )
    parts, predictors = zip(*results, strict=True)
    if len(parts) == 1:
        (results,) = parts
    else:
        ids = [scored_ids([group], len(data.train.count)) for group in groups]
        order = np.argsort(np.concatenate(ids))
        results = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[order], *parts)
    scored = split_results(results, scope.points)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(predictors))
    kept = predictors if 0 < size <= models else ()
    moved = algorithm.server.moved if key_of_init is not None else None
    moved = moved and moved(state.server, key_of_init)
    of_server = allocation_and_rejected(algorithm, state)
    return Evaluated(*scored, *of_server, kept, moved, state.seconds)


def splits_in(scope: Scope, splits: dict) -> dict:
    """Those of the splits that a scope names."""
    names = scope.splits or splits
    return {name: examples for name, examples in splits.items() if name in names}


def allocation_and_rejected(
    algorithm: Algorithm, state: State
) -> tuple[Array | tuple, Array | tuple]:
    """`Evaluated.allocation` and `Evaluated.rejected` of a state."""
    server, shares, rejected = algorithm.server, (), ()
    if server.allocation is not None:
        shares = server.allocation(state.server)
    if server.rejected is not None:
        rejected = server.rejected(state.server)
    return shares if len(shares) <= ALLOCATED else (), rejected


def split_results(results, points):
    """Scores, extra metrics, metrics and losses from `score_points`; without P, G is P."""

    def at(by_point, point):
        return by_point[point] if point in by_point else by_point["G"]

    scores = {
        split: {point: at(by_point, point)[0] for point in points}
        for split, by_point in results.items()
    }
    extras, metrics, losses = (
        {point: at(results[split], point)[k] for point in points if split in results}
        for split, k in (("test", 1), ("test", 2), ("val", 1))
    )
    return scores, extras, metrics, losses


def score_points(algorithm, group, batch_size, points, shared, i, rows, *, predictors=False):
    """Scores, extra metrics and metrics of one client by split and point; without P if P is G.

    Also the predictors at G and P by point, if `predictors` asks for them.

    Args:
      shared: state of the server, key, and splits that all clients share.
      rows: its memory, and (its `ClientData`, its evaluation splits).
    """
    (server, key, shared_splits), (memory, (data, splits)) = shared, rows
    client, splits = algorithm.clients[group], splits | shared_splits
    by_point = predictors_of(algorithm, group, points, (server, key), i, (memory, data))

    def score(predictor):
        predictor = recalibrate(client.model, predictor, data)
        scores = {
            split: score_split(client, predictor, split, examples, batch_size)
            for split, examples in splits.items()
        }
        return scores, predictor if predictors else ()

    if len(algorithm.clients) > 1 and len(set(map(_form, by_point.values()))) == 1:
        # A loop, so that each of the architectures is compiled once and not for every point.
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *by_point.values())
        scored = jax.lax.map(score, stacked)
        results = {point: tree.take(scored, row) for row, point in enumerate(by_point)}
    else:
        results = {point: score(predictor) for point, predictor in by_point.items()}
    scores = {
        split: {point: of_splits[split] for point, (of_splits, _) in results.items()}
        for split in splits
    }
    at_end = {point: predictor for point, (_, predictor) in results.items() if point != "L"}
    return scores, at_end if predictors else {}


def score_split(client: Client, predictor: Predictor, split: str, examples, batch_size: int):
    """Score, extra metrics and metrics of a client's predictor on one of its splits.

    On validation, the mean of the loss over examples is in the place of the extra metrics.
    """
    task = client.model.task
    predict = functools.partial(client.predict or client.model.predict, predictor)
    score_examples = score_all_examples if task.of_all_examples else score_client
    on_test = split == "test"

    def score(*predicted):
        beside = {}
        if split == "val":
            beside = mean_loss(*predicted) if task.of_all_examples else task.loss(*predicted)
        elif task.extra_metrics and on_test:
            beside = task.extra_metrics(*predicted)
        return task.score(*predicted), beside

    def mean_loss(outputs, y, real):
        total = jnp.sum(jnp.where(real, task.loss(outputs, y), 0.0))
        return total / jnp.maximum(jnp.sum(real), 1).astype(jnp.float32)

    scores = score_examples(predict, score, examples, batch_size)
    if not task.metrics or not on_test:
        return *scores, {}
    measure = functools.partial(measure_all, dict(task.metrics))
    metrics = score_all_examples(predict, measure, examples, batch_size)
    return *scores, jax.tree.map(_mark_undefined, metrics)


def measure_all(metrics: dict, *predicted) -> dict[str, Array]:
    """The value of each of `Task.metrics`, a float32 scalar.

    Raises:
      ValueError: one does not return a real number.
    """
    values = {name: metric(*predicted) for name, metric in metrics.items()}
    for name, value in values.items():
        array = hasattr(value, "dtype")
        if not array and not isinstance(value, int | float) or jnp.iscomplexobj(value):
            raise ValueError(
                f"metrics={name} returns {value!r}, which is no real number; return one, such "
                f"as a mean over the real examples"
            )
        if array and value.ndim:
            raise ValueError(
                f"metrics={name} returns an array of shape {value.shape}; return a scalar, "
                f"such as a mean over the real examples"
            )
    return jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), values)


def predictors_of(
    algorithm: Algorithm, group: int, points, shared, i, rows
) -> dict[str, Predictor]:
    """The predictors of one client by point, not yet `recalibrated`; without P if P is G.

    Args:
      shared: state of the server, and key.
      rows: its memory and its `ClientData`.
    """
    client, (server, key), (memory, data) = algorithm.clients[group], shared, rows
    key_local, key_personal = jax.random.split(jax.random.fold_in(key, i))
    message, predictors = algorithm.server.download(server, group, i), {}
    if "G" in points or ("P" in points and client.personalize is None):
        predictors["G"] = client.deploy(message, memory, data)
    if "L" in points:
        trained, upload, _ = client.local(message, memory, data, key_local)
        predictors["L"] = client.deploy(upload, trained, data)
    if "P" in points and client.personalize is not None:
        predictors["P"] = client.personalize(message, memory, data, key_personal)
    return predictors


def recalibrate(model: ClientModel, predictor: Predictor, data: ClientData) -> Predictor:
    """A predictor with what its model computes of the client's training examples."""
    return predictor._replace(params=model.recalibrate(predictor.params, data.train))


def predictors_of_clients(
    algorithm: Algorithm, data, state: State, key: Array, *, groups, at_once, mesh
) -> tuple[dict[str, Predictor], ...]:
    """The predictors of all clients at G and P, with which `evaluate_clients` scores them.

    Returns:
      For each architecture the predictors by point, every leaf [n, ...]; without P if P is G.
    """

    def of_client(group, shared, i, rows):
        predictors = predictors_of(algorithm, group, ("G", "P"), shared, i, rows)
        model = algorithm.clients[group].model
        return {
            point: recalibrate(model, predictor, rows[1])
            for point, predictor in predictors.items()
        }

    shared, everyone = (state.server, key), algorithm.client_data(data)
    results = map_clients_of_groups(
        of_client, shared, state.clients, groups, everyone, at_once, mesh
    )
    return tuple(results)


def _mark_undefined(value):
    """A value, 0 where it is not finite, and whether it is finite."""
    finite = jnp.isfinite(value)
    return {"values": jnp.where(finite, value, 0.0), "defined": finite}


def _form(values):
    """The structure, the shapes and the types of a tree."""
    leaves, structure = jax.tree.flatten(values)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def map_clients_of_groups(
    of_client, shared, memories, groups, everyone, at_once, mesh, *, places=None
):
    """``of_client(g, shared, i, (memory, row))`` of the clients of each group, leaves [n, ...].

    Groups without clients are left out.

    Args:
      everyone: the rows [N, ...] of all clients.
      places: of the clients of each group, ascending; None is all.
    """

    def of_group(g, group, rows, total):
        chosen = None if places is None else places[g]
        if chosen is None:
            chosen = np.arange(total, dtype=np.int32)
        count = len(chosen)
        size = min(at_once or count, count)
        if mesh is not None:
            size = -(-size // mesh.size) * mesh.size
        # The last client is scored again until the last batch is full; see the cut below.
        filled = fill_up(jnp.asarray(chosen), size)
        mapped = map_clients(functools.partial(of_client, g), mesh, group.at_once)

        def of_batch(places):
            batch = rows if count == size == total else tree.take(rows, places)
            return mapped(shared, ids_at(group, places), batch)

        results = jax.lax.map(of_batch, filled.reshape(-1, size))
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], results)

    for g, group in enumerate(groups):
        rows = rows_of(group, everyone)
        count = len(jax.tree.leaves(rows)[0])
        if count:
            yield of_group(g, group, (memories[g], rows), count)
