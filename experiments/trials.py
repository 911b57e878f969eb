"""Many runs of one configuration as one program: seeds and float hyperparameters, vmapped."""

import copy
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from graphfl_jax.build import build_experiment, load_federation
from graphfl_jax.core import Task
from graphfl_jax.data import relations
from graphfl_jax.program import make_program


class Trial(NamedTuple):
    """One run, after its last round."""

    hparams: dict[str, float]  # all that the algorithm reads
    seed: int
    diverged: bool
    scores: dict  # {split: {"G" | "L" | "P": [N]}}; meaningless where diverged
    tallies: dict  # of the test split, as `program.evaluate_clients` tells them
    novel: list[dict]  # the same of newcomers after 0, 1, ... rounds at home; [] without any
    curve: list[tuple[int, dict]]  # rounds played and scores then


def run_trials(
    config: ConfigDict,
    points: list[dict[str, float]],
    seeds: list[int],
    *,
    at_once: int = 32,
    curve: bool = False,
) -> tuple[list[Trial], Task]:
    """Runs every point of a grid with every seed, and scores the final round.

    A seed is of the split, the initial weights, the newcomers and all draws, as in a single
    run.

    Args:
      config: the run that the trials vary.
      points: values for fields of ``hparams``; what a point leaves out stays as in `config`.
      seeds: one run of every point each.
      at_once: runs that share the device's memory.
      curve: whether to score every ``eval_every`` rounds too.

    Returns:
      The trials, in the order of points, then seeds, and what their scores measure.
    """
    federations = [load_federation(with_seed(config, seed)) for seed in seeds]
    experiment = build_experiment(config, federations[0])
    unread = sorted({name for point in points for name in point} - experiment.hparams.keys())
    if unread:
        raise ValueError(
            f"hparams.{unread[0]} is not read by {config.algorithm.name}; "
            f"its floats are {', '.join(experiment.hparams)}"
        )
    play = _player(config, experiment, federations, seeds)
    stops = list(range(config.eval_every, config.rounds, config.eval_every)) if curve else []
    stops.append(config.rounds)
    full = [{**experiment.hparams, **point} for point in points]
    size = max(1, at_once // len(seeds))
    trials = []
    for begin in range(0, len(full), size):
        part = full[begin : begin + size]
        # The last batch is filled up with its last point, so that one program serves all.
        filled = part + part[-1:] * (min(size, len(full)) - len(part))
        told = play(filled, stops)
        for p, point in enumerate(part):
            for s, seed in enumerate(seeds):
                own = jax.tree.map(lambda leaf: leaf[s, p], told)  # noqa: B023
                broken, scores, tallies, novel = own
                finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(own))
                diverged = bool(broken) or not finite
                rows = list(zip(stops, scores, strict=True))
                trials.append(Trial(point, seed, diverged, scores[-1], tallies, novel, rows))
    return trials, experiment.model.task


def _player(config, experiment, federations, seeds):
    """A function that plays seeds x points as one program, and scores them at some rounds.

    It returns whether a run broke, scores at every stop, tallies at the last, and newcomers'
    scores after every round of theirs; every leaf is [seeds, points, ...].
    """
    newcomers = federations[0].newcomers
    program = make_program(
        experiment.build,
        experiment.model,
        cohort_size=config.cohort_size,
        block=config.eval_block,
        group=config.eval_clients,
        newcomers=newcomers,
    )
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    data = _stacked([federation.data for federation in federations])

    def everywhere(function, *same):
        """`function(state, key, hparams, data, ...)` for all seeds and points."""
        over_points = jax.vmap(function, (0, None, 0, None, *same))
        return jax.vmap(over_points, (0, 0, None, 0, *same))

    begin = jax.jit(jax.vmap(jax.vmap(program.start, (None, 0, None)), (0, None, 0)))
    advance = jax.jit(everywhere(program.advance, None), donate_argnums=0)
    evaluate, admit, adapt = (
        jax.jit(everywhere(function))
        for function in (program.evaluate, program.admit, program.adapt)
    )

    def play(points, stops):
        hparams = {
            k: jnp.array([point[k] for point in points], jnp.float32)
            for k in experiment.hparams
        }
        given = (keys, hparams, data)
        state = begin(*given)
        broken, played, scores, novel = False, 0, [], []
        for stop in stops:
            state, log = advance(state, *given, jnp.int32(stop - played))
            broken, played = broken | (log.diverged_at >= 0), stop
            told, tallies = jax.device_get(evaluate(state, *given))
            scores.append(told)
        if newcomers:
            given = (keys, hparams, _stacked([f.everyone for f in federations]))
            state = admit(state, *given)
            for adapted in range(config.novel.rounds + 1):
                state = adapt(state, *given) if adapted else state
                told, _ = jax.device_get(evaluate(state, *given))
                novel.append(jax.tree.map(lambda leaf: leaf[..., -newcomers:], told))
        return jax.device_get(broken), scores, tallies, novel

    return play


def _stacked(data):
    """The data of several federations on a leading axis."""
    edges = max(len(one.graph.senders) for one in data)
    data = [one._replace(graph=relations.padded(one.graph, edges)) for one in data]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *data)


def with_seed(config: ConfigDict, seed: int) -> ConfigDict:
    """A copy of a configuration with another seed."""
    config = copy.deepcopy(config)
    config.seed = seed
    return config
