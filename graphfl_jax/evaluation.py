"""Evaluation: the predictors of every client at three points, and their scores."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphfl_jax import tree
from graphfl_jax.core import Algorithm, Array, ClientData, ClientModel, Predictor, State
from graphfl_jax.devices import filled, map_clients
from graphfl_jax.examples import Examples, Windows
from graphfl_jax.rounds import client_data, members

POINTS = ("G", "L", "P")
ALLOCATED = 100  # clients of the largest federation whose allocation is kept


class Scope(NamedTuple):
    """What an evaluation computes."""

    points: tuple[str, ...] = POINTS
    splits: tuple[str, ...] = ()  # () is all


EVERYTHING = Scope()


class Evaluated(NamedTuple):
    """What an evaluation of all clients gives."""

    scores: dict  # {split: {point: [N]}}
    extras: dict  # {point: {name: [N, ...]}}: the task's extra metrics on the test split
    # {point: {name: {"values": [N], "defined": [N]}}}: of `Task.metrics` on the test split; a
    # value is 0 where it is undefined
    metrics: dict
    # `core.Allocation`; () without one, or with more than `ALLOCATED` clients
    allocation: Array | tuple
    # [N] of `core.Rejected`; () where the server rejects no client
    rejected: Array | tuple
    models: tuple = ()  # as `predictors_of_clients` returns; () if they are not asked for


def score_client(predict, score, examples: Examples | Windows, batch_size: int):
    """Means of `score` over one client's real examples, `batch_size` at a time.

    The mean is NaN if an output is not finite: the argmax of NaN logits would count as a
    prediction.

    Args:
      predict: x [B, ...] -> outputs [B, O].
      score: (outputs, y) -> a tree of [B, ...].
      examples: of the client.
      batch_size: examples scored at once.

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

        def summed(scores):
            scores = jnp.where(finite, jnp.moveaxis(scores, 0, -1), jnp.nan)
            return jnp.sum(jnp.where(real, scores, 0.0), axis=-1)

        return jax.tree.map(summed, score(outputs, batch.y))

    sums = jax.lax.map(of_batch, jnp.arange(0, examples.size, batch_size))
    count = jnp.maximum(examples.count, 1).astype(jnp.float32)
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0) / count, sums)


def score_all_examples(predict, score, examples: Examples | Windows, batch_size: int):
    """`score` of all examples of one client together, predicted `batch_size` at a time.

    All values are NaN if an output of a real example is not finite.

    Args:
      predict: x [B, ...] -> outputs [B, O].
      score: (outputs [S, O], y [S, ...], real [S]) -> a tree of [...].
      examples: of the client.
      batch_size: examples predicted at once.

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
):
    """Scores the clients of all groups on the chosen evaluation splits, at the chosen points.

    G is the model as the server sends it, L the same after one round of local training, P the
    method's own predictor. The state after this local training is discarded.

    Args:
      groups: the clients of each architecture, in the order of `Algorithm.clients`.
      batch_size: examples scored at once, per client.
      at_once: clients trained and scored at once; 0 is all.
      scope: the chosen splits and points.
      models: bytes up to which the scored predictors at G and P are returned too.

    Returns:
      An `Evaluated`, with the clients in the order of their ids.
    """
    everyone = (client_data(algorithm, data), chosen(data.evals, scope))
    parts = [
        _map_group(
            functools.partial(
                score_points, algorithm, g, batch_size, scope.points, predictors=models > 0
            ),
            (state.server, key, chosen(data.shared, scope)),
            *(state.clients[g], group, everyone, data.train.count, at_once, mesh),
        )
        for g, group in enumerate(groups)
        if group.ids is None or len(group.ids)
    ]
    parts, predictors = zip(*parts, strict=True)
    if len(parts) == 1:
        (results,) = parts
    else:
        order = np.argsort(np.concatenate([group.ids for group in groups]))
        results = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[order], *parts)
    scored = split_results(results, scope.points)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(predictors))
    kept = predictors if 0 < size <= models else ()
    return Evaluated(*scored, *known_of(algorithm, state), kept)


def chosen(splits: dict, scope: Scope) -> dict:
    """Those of the splits that a scope names."""
    return {name: own for name, own in splits.items() if name in (scope.splits or splits)}


def known_of(algorithm: Algorithm, state: State) -> tuple[Array | tuple, Array | tuple]:
    """`Evaluated.allocation` and `Evaluated.rejected` of a state."""
    server, shares, rejected = algorithm.server, (), ()
    if server.allocation is not None:
        shares = server.allocation(state.server)
    if server.rejected is not None:
        rejected = server.rejected(state.server)
    return shares if len(shares) <= ALLOCATED else (), rejected


def split_results(results, points):
    """Scores, extra metrics and metrics from `score_points`; P is G if it is missing."""

    def at(own, point):
        return own[point] if point in own else own["G"]

    scores = {
        split: {point: at(own, point)[0] for point in points} for split, own in results.items()
    }
    extras, metrics = (
        {point: at(results["test"], point)[k] for point in points if "test" in results}
        for k in (1, 2)
    )
    return scores, extras, metrics


def score_points(algorithm, group, batch_size, points, shared, i, rows, *, predictors=False):
    """Scores, extra metrics and metrics of one client by split and point; without P if P is G.

    Also the predictors at G and P by point, if `predictors` asks for them.

    Args:
      algorithm: the method.
      group: number of the client's architecture.
      batch_size: examples scored at once.
      points: of `POINTS`.
      shared: state of the server, key, and splits that all clients share.
      i: the client's id.
      rows: its memory, and (its `ClientData`, its evaluation splits).
      predictors: whether predictors are returned.
    """
    client, (*known, same), (memory, (own, evals)) = algorithm.clients[group], shared, rows
    model, predict = client.model, client.predict or client.model.predict
    task = model.task
    score_examples = score_all_examples if task.of_all_examples else score_client
    found = predictors_of(algorithm, group, points, known, i, (memory, own))

    def score_on(split, *predicted):
        with_extras = task.extra_metrics and split == "test"
        return task.score(*predicted), task.extra_metrics(*predicted) if with_extras else {}

    def measure_on(split, predict, examples):
        if not task.metrics or split != "test":
            return {}
        functions = dict(task.metrics)

        def measure(*predicted):
            values = {name: measured(*predicted) for name, measured in functions.items()}
            for name, value in values.items():
                if jnp.ndim(value):
                    raise ValueError(
                        f"metrics={name} returns an array of shape {value.shape}; return a "
                        f"scalar, such as a mean over the real examples"
                    )
            return jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), values)

        values = score_all_examples(predict, measure, examples, batch_size)
        return jax.tree.map(_defined, values)

    def score_splits(predictor):
        predictor = recalibrated(model, predictor, own)
        predicted = functools.partial(predict, predictor)
        of_splits = {
            split: (
                *score_examples(
                    *(predicted, functools.partial(score_on, split), examples, batch_size)
                ),
                measure_on(split, predicted, examples),
            )
            for split, examples in (evals | same).items()
        }
        return of_splits, predictor if predictors else ()

    if len(algorithm.clients) > 1 and len(set(map(_form, found.values()))) == 1:
        # A loop, so that each of the architectures is compiled once and not for every point.
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *found.values())
        rows = jax.lax.map(score_splits, stacked)
        results = {point: tree.take(rows, row) for row, point in enumerate(found)}
    else:
        results = {point: score_splits(one) for point, one in found.items()}
    scores = {
        split: {point: of_splits[split] for point, (of_splits, _) in results.items()}
        for split in evals | same
    }
    scored = {point: own for point, (_, own) in results.items() if point != "L"}
    return scores, scored if predictors else {}


def predictors_of(
    algorithm: Algorithm, group: int, points, known, i, rows
) -> dict[str, Predictor]:
    """The predictors of one client by point, not yet `recalibrated`; without P if P is G.

    Args:
      algorithm: the method.
      group: number of the client's architecture.
      points: of `POINTS`.
      known: state of the server, and key.
      i: the client's id.
      rows: its memory and its `ClientData`.
    """
    client, (server, key), (memory, own) = algorithm.clients[group], known, rows
    key_local, key_personal = jax.random.split(jax.random.fold_in(key, i))
    message, predictors = algorithm.download(server, group, i), {}
    if "G" in points or ("P" in points and client.personalize is None):
        predictors["G"] = client.deploy(message, memory)
    if "L" in points:
        trained, upload, _ = client.local(message, memory, own, key_local)
        predictors["L"] = client.deploy(upload, trained)
    if "P" in points and client.personalize is not None:
        predictors["P"] = client.personalize(message, memory, own, key_personal)
    return predictors


def recalibrated(model: ClientModel, predictor: Predictor, own: ClientData) -> Predictor:
    """A predictor with what its model computes of the client's training examples."""
    return predictor._replace(params=model.recalibrate(predictor.params, own.train))


def predictors_of_clients(
    algorithm: Algorithm, data, state: State, key: Array, *, groups, at_once, mesh
) -> tuple[dict[str, Predictor], ...]:
    """The predictors of all clients at G and P, with which `evaluate_clients` scores them.

    Returns:
      For each architecture the predictors by point, every leaf [n, ...]; without P if P is G.
    """

    def of_client(group, known, i, rows):
        predictors = predictors_of(algorithm, group, ("G", "P"), known, i, rows)
        model = algorithm.clients[group].model
        return {
            point: recalibrated(model, predictor, rows[1])
            for point, predictor in predictors.items()
        }

    own = client_data(algorithm, data)
    return tuple(
        _map_group(
            functools.partial(of_client, g),
            (state.server, key),
            *(state.clients[g], group, own, data.train.count, at_once, mesh),
        )
        for g, group in enumerate(groups)
    )


def _defined(value):
    """A value, 0 where it is not finite, and whether it is finite."""
    finite = jnp.isfinite(value)
    return {"values": jnp.where(finite, value, 0.0), "defined": finite}


def _form(values):
    """The structure, the shapes and the types of a tree."""
    leaves, structure = jax.tree.flatten(values)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def _map_group(one_client, shared, memories, group, everyone, counts, at_once, mesh):
    """``one_client(shared, i, (memory, own))`` of all clients of a group, every leaf [n, ...].

    Args:
      everyone: rows [N, ...] of all clients, of which `own` is one.
      counts: [N].
    """
    rows = (memories, members(everyone, group))
    count = len(counts if group.ids is None else group.ids)
    size = min(at_once or count, count)
    if mesh is not None:
        size = -(-size // mesh.size) * mesh.size
    # The last client is scored again until the last batch is full; see the cut below.
    places = filled(jnp.arange(count, dtype=jnp.int32), size)

    def of_batch(places):
        own = rows if size == count else tree.take(rows, places)
        ids = members(places, group, of=True)
        return map_clients(one_client, mesh, group.at_once)(shared, ids, own)

    results = jax.lax.map(of_batch, places.reshape(-1, size))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], results)
